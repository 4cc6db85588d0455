//! [`Published`]: a published name, and the next step for it, without I/O or clock.
//!
//! A record has a `lifetime` and is *renewed* long before its end of life: signed again with the same value and
//! sequence number and a later end of life, so that it replaces the older one everywhere. Each record is *put* to every
//! target once. Once per value it is *compared* with records of others: the key may have been used on another node, and
//! then the record must be signed with a higher sequence number, or it would be rejected.

use crate::back_off::exponential;
use content::ipns::{Draft, Record, SignError};
use content::names::Key;
use libp2p::identity::Keypair;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

/// The back-off after the first failure; each further failure doubles it.
const RETRY_MIN: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_secs(600);
/// The maximum rest between steps, because the wall clock may be changed.
const REST_MAX: Duration = Duration::from_secs(600);

/// A put of the current record to a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put {
    /// When it was put.
    pub at: SystemTime,
    /// How many peers accepted it.
    pub peers: usize,
}

/// The durations of a published record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// From the signature to the end of life.
    pub lifetime: Duration,
    /// The time to live: how long resolvers may cache the record.
    pub ttl: Duration,
}

/// A published name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The name.
    pub key: Key,
    /// The current record.
    pub record: Record,
    /// The lifetime of each of its records.
    pub lifetime: Duration,
    /// When the operator published the value.
    pub published: SystemTime,
    /// When the record was signed.
    pub signed: SystemTime,
    /// Whether it was checked that no other node has a newer record.
    pub compared: bool,
    /// The targets that have the record.
    pub puts: BTreeMap<String, Put>,
    /// The time of the last put of the name, of this record or an earlier one.
    pub last_put: Option<SystemTime>,
}

/// Why a record could not be created.
#[derive(Debug, thiserror::Error)]
pub enum SignRecordError {
    /// The sequence number has reached its maximum.
    #[error("the sequence number of the name has reached its maximum: publish with a new key")]
    Exhausted,
    /// The record cannot be signed, for example because it is too large.
    #[error(transparent)]
    Sign(#[from] SignError),
}

impl Published {
    /// A publication of a new value, above the known sequence number.
    ///
    /// # Errors
    /// [`SignRecordError`] if the record cannot be signed.
    pub fn new(
        keypair: &Keypair,
        value: &str,
        terms: Terms,
        known: Option<u64>,
        now: SystemTime,
    ) -> Result<Self, SignRecordError> {
        let sequence = known.map_or(Some(0), |known| known.checked_add(1)).ok_or(SignRecordError::Exhausted)?;
        let end_of_life = now.checked_add(terms.lifetime).ok_or(SignError::EndOfLife)?;
        let draft = Draft { value: value.to_owned(), sequence, end_of_life, ttl: terms.ttl };
        Ok(Self {
            key: Key::from(keypair.public().to_peer_id()),
            record: Record::sign(keypair, &draft)?,
            lifetime: terms.lifetime,
            published: now,
            signed: now,
            compared: false,
            puts: BTreeMap::new(),
            last_put: None,
        })
    }

    /// The publication with a later end of life, without puts.
    ///
    /// # Errors
    /// [`SignRecordError`] if the record cannot be signed.
    pub fn renewed(&self, keypair: &Keypair, now: SystemTime) -> Result<Self, SignRecordError> {
        let end_of_life = now.checked_add(self.lifetime).ok_or(SignError::EndOfLife)?;
        self.sign_again(keypair, self.record.sequence(), end_of_life.max(self.record.end_of_life()), now)
    }

    /// The publication above a sequence number of another node, without puts.
    ///
    /// # Errors
    /// [`SignRecordError`] if the record cannot be signed.
    pub fn signed_above(&self, keypair: &Keypair, sequence: u64, now: SystemTime) -> Result<Self, SignRecordError> {
        let sequence = sequence.checked_add(1).ok_or(SignRecordError::Exhausted)?;
        let entry = self.sign_again(keypair, sequence, self.record.end_of_life(), now)?;
        Ok(Self { compared: true, ..entry })
    }

    fn sign_again(
        &self,
        keypair: &Keypair,
        sequence: u64,
        end_of_life: SystemTime,
        now: SystemTime,
    ) -> Result<Self, SignRecordError> {
        let draft = Draft { value: self.record.value().to_owned(), sequence, end_of_life, ttl: self.record.ttl() };
        let record = Record::sign(keypair, &draft)?;
        Ok(Self { record, signed: now, puts: BTreeMap::new(), ..self.clone() })
    }

    /// The publication after a target accepted the record.
    pub fn put(&self, target: &str, peers: usize, now: SystemTime) -> Self {
        let mut entry = Self { last_put: Some(now), ..self.clone() };
        entry.puts.insert(target.to_owned(), Put { at: now, peers });
        entry
    }

    /// The time until the next renewal, with renewals `every` so often. Another gateway of a site, whose clock is
    /// ahead, may have signed a shared record: it is as good as a new one while its end of life is late enough.
    /// Otherwise two gateways would renew it in turn without end.
    fn rest(&self, now: SystemTime, every: Duration, shared: bool) -> Duration {
        // A record must be renewed well before its end of life, whatever the settings are.
        let every = every.min(self.lifetime / 2);
        match now.duration_since(self.signed) {
            Ok(age) => every.saturating_sub(age),
            // It was signed in the future: the clock was set back, and the end of life is later by as much.
            Err(ahead) => {
                let left = self.record.end_of_life().duration_since(now).unwrap_or_default();
                let is_new = if shared { left >= every } else { ahead.duration() <= every };
                if is_new { every } else { Duration::ZERO }
            }
        }
    }
}

/// The back-off of a step that failed.
#[derive(Debug, Clone, Copy, Default)]
struct BackOff {
    failures: u32,
    until: Option<Instant>,
}

impl BackOff {
    fn failed(&mut self, now: Instant) {
        self.until = Some(now + exponential(RETRY_MIN, RETRY_MAX, self.failures));
        self.failures += 1;
    }

    fn left(&self, now: Instant) -> Duration {
        self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }
}

/// The next step for a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Renew the record.
    Renew,
    /// Search for newer records of others.
    Compare,
    /// Put the record to a target.
    Put(String),
    /// Wait for so long, or until an event.
    Rest(Duration),
}

/// The pending steps of a name, and their back-off.
#[derive(Debug, Default)]
pub(super) struct PendingSteps {
    renewal: BackOff,
    comparison: BackOff,
    targets: BTreeMap<String, BackOff>,
    pending_puts: BTreeSet<String>,
}

/// The inputs of a decision.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepContext<'a> {
    pub now: Instant,
    pub wall: SystemTime,
    /// The interval of renewals.
    pub every: Duration,
    /// Whether records of others can be searched for.
    pub comparable: bool,
    /// Whether a newer record of another node is known.
    pub superseded: bool,
    /// Whether the name is one of a site.
    pub shared: bool,
    pub targets: &'a [String],
}

impl PendingSteps {
    /// The next step. Call it again for further puts.
    pub fn next(&self, entry: &Published, context: StepContext<'_>) -> Step {
        let StepContext { now, wall, every, comparable, superseded, shared, targets } = context;
        let mut rest = REST_MAX;
        // Returns whether a step is due, and otherwise limits the rest to when it will be.
        let mut is_due = |after: Duration| {
            rest = if after.is_zero() { rest } else { rest.min(after) };
            after.is_zero()
        };
        if comparable && !entry.compared && is_due(self.comparison.left(now)) {
            return Step::Compare;
        }
        // The node that published the newer record continues; a record of this node would only be rejected.
        if superseded && entry.compared {
            return Step::Rest(rest);
        }
        if is_due(entry.rest(wall, every, shared).max(self.renewal.left(now))) {
            return Step::Renew;
        }
        for target in targets.iter().filter(|target| !entry.puts.contains_key(*target)) {
            let left = self.targets.get(target).map_or(Duration::ZERO, |back_off| back_off.left(now));
            if !self.pending_puts.contains(target) && is_due(left) {
                return Step::Put(target.clone());
            }
        }
        Step::Rest(rest)
    }

    /// Records the start of a put.
    pub fn begun(&mut self, target: &str) {
        self.pending_puts.insert(target.to_owned());
    }

    /// Records the end of a put. Peers are available then, so a comparison is retried.
    pub fn ended(&mut self, target: &str, succeeded: bool, now: Instant) {
        self.pending_puts.remove(target);
        self.comparison = BackOff::default();
        if succeeded {
            self.targets.remove(target);
        } else {
            self.targets.entry(target.to_owned()).or_default().failed(now);
        }
    }

    /// Records that a put was not started, since its target has no peers.
    pub fn not_begun(&mut self, target: &str, now: Instant) {
        self.targets.entry(target.to_owned()).or_default().failed(now);
    }

    /// Records that the pending puts were cancelled before their end.
    pub fn interrupted(&mut self, now: Instant) {
        for target in std::mem::take(&mut self.pending_puts) {
            self.targets.entry(target).or_default().failed(now);
        }
    }

    /// Records that no source could be asked for newer records.
    pub fn not_compared(&mut self, now: Instant) {
        self.comparison.failed(now);
    }

    /// Records that a renewal failed.
    pub fn not_renewed(&mut self, now: Instant) {
        self.renewal.failed(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::UNIX_EPOCH;

    const HOUR: Duration = Duration::from_secs(3600);
    const VALUE: &str = "/ipfs/bafkqaddjnzzxazldoqwxizltoq";

    fn pair() -> Keypair {
        Keypair::ed25519_from_bytes([1; 32]).expect("any 32 bytes will do")
    }

    fn start() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    fn entry() -> Published {
        let terms = Terms { lifetime: 48 * HOUR, ttl: Duration::from_secs(300) };
        Published::new(&pair(), VALUE, terms, None, start()).expect("signs")
    }

    #[test]
    fn a_new_value_has_a_higher_sequence_number_and_a_renewal_a_later_end_of_life() {
        let first = entry();
        assert_eq!((first.record.sequence(), first.record.end_of_life()), (0, start() + 48 * HOUR));
        let terms = Terms { lifetime: HOUR, ttl: Duration::ZERO };
        let next = Published::new(&pair(), VALUE, terms, Some(7), start()).expect("signs");
        assert_eq!(next.record.sequence(), 8);
        assert!(next.record.newer_than(&first.record));
        assert!(matches!(
            Published::new(&pair(), VALUE, terms, Some(u64::MAX), start()),
            Err(SignRecordError::Exhausted)
        ));
        let put = first.put("wan", 20, start());
        let renewed = put.renewed(&pair(), start() + HOUR).expect("signs");
        assert_eq!((renewed.record.sequence(), renewed.record.value()), (0, VALUE));
        assert!(renewed.record.newer_than(&put.record) && renewed.puts.is_empty());
        assert_eq!((renewed.last_put, renewed.published), (Some(start()), start()));
        let back = put.renewed(&pair(), start() - HOUR).expect("signs");
        assert_eq!(back.record.end_of_life(), put.record.end_of_life(), "the end of life never moves back");
        let above = put.signed_above(&pair(), 41, start() + HOUR).expect("signs");
        assert_eq!((above.record.sequence(), above.compared, above.puts.len()), (42, true, 0));
    }

    #[test]
    fn next_steps() {
        let targets = ["lan".to_owned(), "wan".to_owned()];
        let context = StepContext {
            now: Instant::now(),
            wall: start(),
            every: 4 * HOUR,
            comparable: true,
            superseded: false,
            shared: false,
            targets: &targets,
        };
        let compared = Published { compared: true, ..entry() };
        let lan = compared.put("lan", 3, start());
        let both = lan.put("wan", 20, start());
        let short = Published { lifetime: 2 * HOUR, ..both.clone() };
        let brief = Terms { lifetime: 2 * HOUR, ttl: Duration::ZERO };
        let brief = Published::new(&pair(), VALUE, brief, None, start()).expect("signs");
        let ends_soon = Published { compared: true, lifetime: 48 * HOUR, ..brief };
        let at = |wall| StepContext { wall, ..context };
        let of_site = |wall| StepContext { shared: true, ..at(wall) };
        let put = |target: &str| Step::Put(target.to_owned());
        let table = [
            ("first comparison", entry(), context, Step::Compare),
            ("unless no source can be asked", entry(), StepContext { comparable: false, ..context }, put("lan")),
            ("then put", compared.clone(), context, put("lan")),
            ("to every target", lan, context, put("wan")),
            ("then nothing", both.clone(), context, Step::Rest(REST_MAX)),
            ("until", both.clone(), at(start() + 4 * HOUR - RETRY_MIN), Step::Rest(RETRY_MIN)),
            ("renewal", both.clone(), at(start() + 4 * HOUR), Step::Renew),
            ("renewal much later", both.clone(), at(start() + 400 * HOUR), Step::Renew),
            ("renewal after the clock was set back far", both.clone(), at(start() - 5 * HOUR), Step::Renew),
            ("none after a little", both.clone(), at(start() - HOUR), Step::Rest(REST_MAX)),
            (
                "nor if a gateway whose clock is ahead signed it",
                both.clone(),
                of_site(start() - 5 * HOUR),
                Step::Rest(REST_MAX),
            ),
            ("or far ahead", both.clone(), of_site(start() - 500 * HOUR), Step::Rest(REST_MAX)),
            ("unless it ends soon", ends_soon, of_site(start() - HOUR), Step::Renew),
            ("renewal in a site", both.clone(), of_site(start() + 4 * HOUR), Step::Renew),
            ("short lifetimes are renewed sooner", short, at(start() + HOUR), Step::Renew),
            ("superseded by another node", compared, StepContext { superseded: true, ..context }, Step::Rest(REST_MAX)),
        ];
        for (what, entry, context, expected) in table {
            assert_eq!(PendingSteps::default().next(&entry, context), expected, "{what}");
        }
    }

    #[test]
    fn failures_are_retried_with_back_off_and_pending_puts_are_not_repeated() {
        let now = Instant::now();
        let targets = ["lan".to_owned(), "wan".to_owned()];
        let at = |now| StepContext {
            now,
            wall: start(),
            every: 4 * HOUR,
            comparable: true,
            superseded: false,
            shared: false,
            targets: &targets,
        };
        let entry = Published { compared: true, ..entry() };
        let mut pending = PendingSteps::default();
        for target in ["lan", "wan"] {
            assert_eq!(pending.next(&entry, at(now)), Step::Put(target.to_owned()));
            pending.begun(target);
        }
        assert_eq!(pending.next(&entry, at(now)), Step::Rest(REST_MAX));
        for delay in [5, 10, 20, 40, 80, 160, 320, 600, 600].map(Duration::from_secs) {
            pending.begun("lan");
            pending.ended("lan", false, now);
            assert_eq!(pending.next(&entry, at(now)), Step::Rest(delay));
            assert_eq!(pending.next(&entry, at(now + delay)), Step::Put("lan".to_owned()));
        }

        let unknown = Published { compared: false, ..entry };
        let mut pending = PendingSteps::default();
        pending.not_compared(now);
        assert_eq!(pending.next(&unknown, at(now)), Step::Put("lan".to_owned()), "puts do not wait for the comparison");
        pending.begun("lan");
        pending.ended("lan", false, now);
        assert_eq!(pending.next(&unknown, at(now)), Step::Compare, "peers are available");
    }

    proptest! {
        /// For any failures and clocks, there is always a next step, and every rest is bounded.
        #[test]
        fn every_rest_is_bounded(
            failures in 0_u32..100, ago in 0_u64..10_000_000, every in 0_u64..1_000_000, lifetime in 0_u64..1_000_000,
        ) {
            let now = Instant::now();
            let targets = ["lan".to_owned()];
            let mut pending = PendingSteps::default();
            for _ in 0..failures {
                pending.ended("lan", false, now);
                pending.not_renewed(now);
            }
            let entry = Published { lifetime: Duration::from_secs(lifetime), compared: true, ..entry() };
            let step = pending.next(&entry, StepContext {
                now, wall: start() + Duration::from_secs(ago), every: Duration::from_secs(every),
                comparable: true, superseded: false, shared: false, targets: &targets,
            });
            if let Step::Rest(rest) = step {
                prop_assert!(!rest.is_zero() && rest <= REST_MAX);
            }
        }
    }
}
