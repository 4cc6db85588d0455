//! [`Ledger`]: what the clients were told, what was done to the site, and which answers must not be.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What the site has to have of a pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The pin was acknowledged.
    Kept,
    /// The answer to its last change was lost, or was an error.
    Either,
    /// Its removal was acknowledged.
    Removed,
}

/// A pin that a client has attempted to create.
#[derive(Debug, Clone)]
pub struct Pin {
    /// Its name, which no other pin has.
    pub name: String,
    /// The client.
    pub client: u64,
    /// The number of its content.
    pub content: u64,
    /// Whether it was uploaded, so that all of it is stored once it is acknowledged.
    pub is_upload: bool,
    /// The number of its request, and its CID, if the site has said so.
    pub known: Option<(String, String)>,
    /// What the site has to have of it.
    pub expected: Expected,
}

/// What the clients were told, and what was done to the site.
pub struct Ledger {
    seed: u64,
    begun: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pins: Vec<Pin>,
    journal: Vec<String>,
    violations: Vec<String>,
    acknowledged: u64,
    answers: BTreeMap<String, u64>,
}

impl Ledger {
    pub fn new(seed: u64) -> Self {
        Self { seed, begun: Instant::now(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line to the journal.
    pub fn note(&self, line: impl AsRef<str>) {
        let line = format!("{:8.3} {}", self.begun.elapsed().as_secs_f64(), line.as_ref());
        self.state().journal.push(line);
    }

    /// Adds what must not be.
    pub fn violation(&self, line: impl AsRef<str>) {
        self.note(format!("VIOLATION: {}", line.as_ref()));
        self.state().violations.push(line.as_ref().to_owned());
    }

    /// Panics if there is anything that must not be.
    pub fn check(&self) {
        let violations = self.state().violations.clone();
        assert!(violations.is_empty(), "CAUSEWAY_FAULTS_SEED={}: {violations:#?}", self.seed);
    }

    /// Counts an answer.
    pub fn count(&self, answer: String) {
        *self.state().answers.entry(answer).or_default() += 1;
    }

    /// The number of changes that were acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.state().acknowledged
    }

    /// Begins a pin, whose creation is not known to have succeeded. Returns its index.
    pub fn begin(&self, client: u64, name: &str, content: u64, is_upload: bool) -> usize {
        let mut state = self.state();
        let (name, known, expected) = (name.to_owned(), None, Expected::Either);
        state.pins.push(Pin { name, client, content, is_upload, known, expected });
        state.pins.len() - 1
    }

    /// The site has said that it has a pin, to the client that created it or to one that has read it.
    pub fn keep(&self, index: usize, id: &str, cid: &str) {
        let mut state = self.state();
        state.acknowledged += 1;
        let pin = &mut state.pins[index];
        (pin.known, pin.expected) = (Some((id.to_owned(), cid.to_owned())), Expected::Kept);
    }

    /// The site has said that it has removed a pin.
    pub fn remove(&self, index: usize) {
        let mut state = self.state();
        state.acknowledged += 1;
        state.pins[index].expected = Expected::Removed;
    }

    /// A change of a pin has begun, or its answer was lost.
    pub fn doubt(&self, index: usize) {
        self.state().pins[index].expected = Expected::Either;
    }

    /// The pins of a client of which the site has to have something, with their indexes.
    pub fn pins_of(&self, client: u64, expected: Expected) -> Vec<(usize, Pin)> {
        let state = self.state();
        let own = state.pins.iter().enumerate().filter(|(_, pin)| pin.client == client && pin.expected == expected);
        own.map(|(index, pin)| (index, pin.clone())).collect()
    }

    /// All pins.
    pub fn pins(&self) -> Vec<Pin> {
        self.state().pins.clone()
    }

    /// The number of uploads whose answer was lost, or was an error.
    pub fn unacknowledged_uploads(&self) -> usize {
        let state = self.state();
        let acknowledged = state.answers.get("upload 200").copied().unwrap_or_default();
        let attempted = state.pins.iter().filter(|pin| pin.is_upload).count();
        attempted - usize::try_from(acknowledged).unwrap_or(usize::MAX)
    }

    /// The answers, by kind.
    pub fn summary(&self) -> String {
        let state = self.state();
        let mut summary = format!("{} changes acknowledged, answers:", state.acknowledged);
        for (answer, count) in &state.answers {
            _ = write!(summary, "  {answer}: {count}");
        }
        summary
    }
}

/// Prints the journal at the end of the test, which is shown if it fails.
pub struct Shown(pub Arc<Ledger>);

impl Drop for Shown {
    fn drop(&mut self) {
        println!("---- CAUSEWAY_FAULTS_SEED={}, {}", self.0.seed, self.0.summary());
        println!("{}", self.0.state().journal.join("\n"));
    }
}
