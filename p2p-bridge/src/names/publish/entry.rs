//! [`Published`]: a name that is published here, and what is to be done for it next, without I/O or clock.
//!
//! A record lives for `lifetime` and is *renewed* long before its end: signed again with the same value and sequence number
//! and a later end of life, which replaces the older one everywhere. Each record is *put* into every target once. Before
//! or after the first put it is *compared* once with what others have: a key may have been used elsewhere, and then the
//! record has to be signed again above what is known there, or nobody would take it.

use content::ipns::{Draft, Record, SignError};
use content::names::Key;
use libp2p::identity::Keypair;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

/// After the first failure; each further one doubles it.
const RETRY_MIN: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_secs(600);
/// The clock on the wall may be set: it is looked at this often at least.
const GLANCE: Duration = Duration::from_secs(600);

/// That a target has the present record of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put {
    /// Since when.
    pub at: SystemTime,
    /// On how many peers.
    pub peers: usize,
}

/// How long things last that are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// From a signature to the end of life.
    pub lifetime: Duration,
    /// How long others may remember the record without asking again.
    pub ttl: Duration,
}

/// A name that is published here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The name.
    pub key: Key,
    /// The record that is to be in the world.
    pub record: Record,
    /// How long each record of it lives.
    pub lifetime: Duration,
    /// When the operator published the value.
    pub published: SystemTime,
    /// When the record was signed.
    pub signed: SystemTime,
    /// Whether it is known that nobody has a newer record.
    pub compared: bool,
    /// Which targets have the record.
    pub puts: BTreeMap<String, Put>,
    /// When a record of the name was last put, this one or one before.
    pub last_put: Option<SystemTime>,
}

/// Why there is no record.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// The highest sequence number is taken.
    #[error("the name has the highest sequence number there is; only a new key helps")]
    Exhausted,
    /// The record cannot be signed, for example because it is too large.
    #[error(transparent)]
    Sign(#[from] SignError),
}

impl Published {
    /// A new value, above the sequence numbers that are known.
    ///
    /// # Errors
    /// [`EntryError`].
    pub fn new(
        keypair: &Keypair,
        value: &str,
        terms: Terms,
        known: Option<u64>,
        now: SystemTime,
    ) -> Result<Self, EntryError> {
        let sequence = known.map_or(Some(0), |known| known.checked_add(1)).ok_or(EntryError::Exhausted)?;
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

    /// The same with a later end of life, to be put everywhere.
    ///
    /// # Errors
    /// [`EntryError`].
    pub fn renewed(&self, keypair: &Keypair, now: SystemTime) -> Result<Self, EntryError> {
        let end_of_life = now.checked_add(self.lifetime).ok_or(SignError::EndOfLife)?;
        self.signed_again(keypair, self.record.sequence(), end_of_life.max(self.record.end_of_life()), now)
    }

    /// The same above a sequence number that others know, to be put everywhere.
    ///
    /// # Errors
    /// [`EntryError`].
    pub fn above(&self, keypair: &Keypair, sequence: u64, now: SystemTime) -> Result<Self, EntryError> {
        let sequence = sequence.checked_add(1).ok_or(EntryError::Exhausted)?;
        let entry = self.signed_again(keypair, sequence, self.record.end_of_life(), now)?;
        Ok(Self { compared: true, ..entry })
    }

    fn signed_again(
        &self,
        keypair: &Keypair,
        sequence: u64,
        end_of_life: SystemTime,
        now: SystemTime,
    ) -> Result<Self, EntryError> {
        let draft = Draft { value: self.record.value().to_owned(), sequence, end_of_life, ttl: self.record.ttl() };
        let record = Record::sign(keypair, &draft)?;
        Ok(Self { record, signed: now, puts: BTreeMap::new(), ..self.clone() })
    }

    /// A target took the record.
    pub fn put(&self, target: &str, peers: usize, now: SystemTime) -> Self {
        let mut entry = Self { last_put: Some(now), ..self.clone() };
        entry.puts.insert(target.to_owned(), Put { at: now, peers });
        entry
    }

    /// How long the record is good as it is, if it is to be renewed so often.
    fn rest(&self, now: SystemTime, every: Duration) -> Duration {
        // A record has to be renewed well before its end, whatever the settings say.
        let every = every.min(self.lifetime / 2);
        match now.duration_since(self.signed) {
            Ok(age) => every.saturating_sub(age),
            // It was signed in the future: the clock was set back. Its end of life is the later for it.
            Err(ahead) => {
                if ahead.duration() > every {
                    Duration::ZERO
                } else {
                    every
                }
            }
        }
    }
}

/// When something that failed is to be tried again.
#[derive(Debug, Clone, Copy, Default)]
struct Patience {
    failures: u32,
    until: Option<Instant>,
}

impl Patience {
    fn failed(&mut self, now: Instant) {
        let delay = RETRY_MIN.saturating_mul(1 << self.failures.min(16)).min(RETRY_MAX);
        self.failures += 1;
        self.until = Some(now + delay);
    }

    fn left(&self, now: Instant) -> Duration {
        self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }
}

/// What is to be done for a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Sign it again for longer.
    Renew,
    /// Look whether others have a newer record.
    Compare,
    /// Put the record into a target.
    Put(String),
    /// Nothing for so long, unless something happens.
    Rest(Duration),
}

/// What is under way for a name, and what has failed.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    renewal: Patience,
    comparison: Patience,
    targets: BTreeMap<String, Patience>,
    under_way: BTreeSet<String>,
}

/// What a step depends on beside the name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Circumstances<'a> {
    pub now: Instant,
    pub wall: SystemTime,
    /// How often names are renewed.
    pub every: Duration,
    /// Whether others can be asked for records.
    pub comparable: bool,
    /// Whether a newer record is known that is not ours.
    pub superseded: bool,
    pub targets: &'a [String],
}

impl Agenda {
    /// What to do now. Of puts, one at a time is named.
    pub fn next(&self, entry: &Published, circumstances: Circumstances<'_>) -> Step {
        let Circumstances { now, wall, every, comparable, superseded, targets } = circumstances;
        let mut rest = GLANCE;
        // Returns whether something is due, or else remembers when it will be.
        let mut is_due = |after: Duration| {
            rest = if after.is_zero() { rest } else { rest.min(after) };
            after.is_zero()
        };
        if comparable && !entry.compared && is_due(self.comparison.left(now)) {
            return Step::Compare;
        }
        // Whoever published above us goes on; ours would only be refused.
        if superseded && entry.compared {
            return Step::Rest(rest);
        }
        if is_due(entry.rest(wall, every).max(self.renewal.left(now))) {
            return Step::Renew;
        }
        for target in targets.iter().filter(|target| !entry.puts.contains_key(*target)) {
            let left = self.targets.get(target).map_or(Duration::ZERO, |patience| patience.left(now));
            if !self.under_way.contains(target) && is_due(left) {
                return Step::Put(target.clone());
            }
        }
        Step::Rest(rest)
    }

    /// A put was begun.
    pub fn begun(&mut self, target: &str) {
        self.under_way.insert(target.to_owned());
    }

    /// A put has ended. Whoever was asked may know more than we do.
    pub fn ended(&mut self, target: &str, succeeded: bool, now: Instant) {
        self.under_way.remove(target);
        self.comparison = Patience::default();
        if succeeded {
            self.targets.remove(target);
        } else {
            self.targets.entry(target.to_owned()).or_default().failed(now);
        }
    }

    /// Nobody could be asked for other records.
    pub fn not_compared(&mut self, now: Instant) {
        self.comparison.failed(now);
    }

    /// The record could not be signed again, or written.
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
    fn a_new_value_goes_above_and_a_renewal_only_lives_longer() {
        let first = entry();
        assert_eq!((first.record.sequence(), first.record.end_of_life()), (0, start() + 48 * HOUR));
        let terms = Terms { lifetime: HOUR, ttl: Duration::ZERO };
        let next = Published::new(&pair(), VALUE, terms, Some(7), start()).expect("signs");
        assert_eq!(next.record.sequence(), 8);
        assert!(next.record.newer_than(&first.record));
        assert!(matches!(Published::new(&pair(), VALUE, terms, Some(u64::MAX), start()), Err(EntryError::Exhausted)));
        let put = first.put("wan", 20, start());
        let renewed = put.renewed(&pair(), start() + HOUR).expect("signs");
        assert_eq!((renewed.record.sequence(), renewed.record.value()), (0, VALUE));
        assert!(renewed.record.newer_than(&put.record) && renewed.puts.is_empty());
        assert_eq!((renewed.last_put, renewed.published), (Some(start()), start()));
        let back = put.renewed(&pair(), start() - HOUR).expect("signs");
        assert_eq!(back.record.end_of_life(), put.record.end_of_life(), "a life is never made shorter");
        let above = put.above(&pair(), 41, start() + HOUR).expect("signs");
        assert_eq!((above.record.sequence(), above.compared, above.puts.len()), (42, true, 0));
    }

    #[test]
    fn what_is_next() {
        let targets = ["lan".to_owned(), "wan".to_owned()];
        let circumstances = Circumstances {
            now: Instant::now(),
            wall: start(),
            every: 4 * HOUR,
            comparable: true,
            superseded: false,
            targets: &targets,
        };
        let compared = Published { compared: true, ..entry() };
        let lan = compared.put("lan", 3, start());
        let both = lan.put("wan", 20, start());
        let short = Published { lifetime: 2 * HOUR, ..both.clone() };
        let at = |wall| Circumstances { wall, ..circumstances };
        let put = |target: &str| Step::Put(target.to_owned());
        let table = [
            ("first others are asked", entry(), circumstances, Step::Compare),
            ("if there is anybody", entry(), Circumstances { comparable: false, ..circumstances }, put("lan")),
            ("then it is put", compared.clone(), circumstances, put("lan")),
            ("everywhere", lan, circumstances, put("wan")),
            ("and that is that", both.clone(), circumstances, Step::Rest(GLANCE)),
            ("until", both.clone(), at(start() + 4 * HOUR - RETRY_MIN), Step::Rest(RETRY_MIN)),
            ("it is renewed", both.clone(), at(start() + 4 * HOUR), Step::Renew),
            ("also much later", both.clone(), at(start() + 400 * HOUR), Step::Renew),
            ("and when the clock was set back far", both.clone(), at(start() - 5 * HOUR), Step::Renew),
            ("not so when a little", both.clone(), at(start() - HOUR), Step::Rest(GLANCE)),
            ("short lives are renewed sooner", short, at(start() + HOUR), Step::Renew),
            ("not ours any more", compared, Circumstances { superseded: true, ..circumstances }, Step::Rest(GLANCE)),
        ];
        for (what, entry, circumstances, expected) in table {
            assert_eq!(Agenda::default().next(&entry, circumstances), expected, "{what}");
        }
    }

    #[test]
    fn failures_are_tried_again_ever_later_and_what_is_under_way_is_waited_for() {
        let now = Instant::now();
        let targets = ["lan".to_owned(), "wan".to_owned()];
        let at = |now| Circumstances {
            now,
            wall: start(),
            every: 4 * HOUR,
            comparable: true,
            superseded: false,
            targets: &targets,
        };
        let entry = Published { compared: true, ..entry() };
        let mut agenda = Agenda::default();
        for target in ["lan", "wan"] {
            assert_eq!(agenda.next(&entry, at(now)), Step::Put(target.to_owned()));
            agenda.begun(target);
        }
        assert_eq!(agenda.next(&entry, at(now)), Step::Rest(GLANCE));
        for delay in [5, 10, 20, 40, 80, 160, 320, 600, 600].map(Duration::from_secs) {
            agenda.begun("lan");
            agenda.ended("lan", false, now);
            assert_eq!(agenda.next(&entry, at(now)), Step::Rest(delay));
            assert_eq!(agenda.next(&entry, at(now + delay)), Step::Put("lan".to_owned()));
        }

        let unknown = Published { compared: false, ..entry };
        let mut agenda = Agenda::default();
        agenda.not_compared(now);
        assert_eq!(agenda.next(&unknown, at(now)), Step::Put("lan".to_owned()), "nobody waits for an answer");
        agenda.begun("lan");
        agenda.ended("lan", false, now);
        assert_eq!(agenda.next(&unknown, at(now)), Step::Compare, "somebody was there");
    }

    proptest! {
        /// Whatever fails and however the clocks go, there is always a next step, and no rest is without an end.
        #[test]
        fn it_never_rests_for_ever(
            failures in 0_u32..100, ago in 0_u64..10_000_000, every in 0_u64..1_000_000, lifetime in 0_u64..1_000_000,
        ) {
            let now = Instant::now();
            let targets = ["lan".to_owned()];
            let mut agenda = Agenda::default();
            for _ in 0..failures {
                agenda.ended("lan", false, now);
                agenda.not_renewed(now);
            }
            let entry = Published { lifetime: Duration::from_secs(lifetime), compared: true, ..entry() };
            let step = agenda.next(&entry, Circumstances {
                now, wall: start() + Duration::from_secs(ago), every: Duration::from_secs(every),
                comparable: true, superseded: false, targets: &targets,
            });
            if let Step::Rest(rest) = step {
                prop_assert!(!rest.is_zero() && rest <= GLANCE);
            }
        }
    }
}
