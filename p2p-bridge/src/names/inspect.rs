//! Looking at names: what is known of one without asking anybody, having it looked up now, and forgetting it.
//!
//! Goals: what is told is what readers would get ([`super::follow`] is one for both); a look-up on request that fails
//! takes nothing away that still holds.

use super::cache::{Answer, Entry, Standing};
use super::{Ask, Inner, Names, STEPS_MAX, Said, follow, path_of};
use content::ipns::Record;
use content::names::Key;
use content::path::{ContentPath, Root};
use content::{Name, NameError, NameResolver, Resolution};
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Where what is known of a name comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepSource {
    /// The operator's list.
    List,
    /// A record that is published here.
    Published,
    /// A record that was found in the network.
    Network,
    /// The DNS.
    Dns,
    /// Nowhere: it would have to be looked up.
    Unknown,
}

impl StepSource {
    /// Its name in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Published => "published",
            Self::Network => "network",
            Self::Dns => "dns",
            Self::Unknown => "unknown",
        }
    }
}

/// What is known of one of the names on the way.
#[derive(Debug, Clone)]
pub struct NameStep {
    /// The name.
    pub name: Name,
    /// Where that comes from.
    pub source: StepSource,
    /// What it stands for, if it stands for anything.
    pub value: Option<String>,
    /// Why it does not.
    pub error: Option<NameError>,
    /// How long that has been known.
    pub age: Option<Duration>,
    /// How long it counts as fresh. Nothing: it is looked up again when it is next asked for.
    pub fresh_for: Option<Duration>,
    /// Until when the record holds.
    pub valid_until: Option<SystemTime>,
    /// How often the record was changed.
    pub sequence: Option<u64>,
}

impl NameStep {
    fn unknown(name: &Name) -> Self {
        Self {
            name: name.clone(),
            source: StepSource::Unknown,
            value: None,
            error: None,
            age: None,
            fresh_for: None,
            valid_until: None,
            sequence: None,
        }
    }
}

/// What a name stood for and stands for, each with the names on the way.
#[derive(Debug, Clone)]
pub struct Refreshed {
    /// What was known before.
    pub before: Vec<NameStep>,
    /// What is known now.
    pub after: Vec<NameStep>,
    /// Where it led to, if that was known.
    pub old: Option<Resolution>,
    /// Where it leads to.
    pub new: Result<Resolution, NameError>,
}

impl Names {
    /// What is known of a name and of those that it stands for, without asking anybody and without counting as use.
    pub fn explain(&self, name: &Name) -> Vec<NameStep> {
        let (mut steps, mut name) = (Vec::new(), name.clone());
        for _ in 0..STEPS_MAX {
            let (step, next) = self.inner.explain(&name);
            steps.push(step);
            match next {
                Some(next) => name = next,
                None => break,
            }
        }
        steps
    }

    /// Looks a name up now, and those that it stands for, whatever is known of them; what is found is known from then
    /// on. A look-up that fails leaves what is known and still holds.
    pub async fn refresh(&self, name: &Name) -> Refreshed {
        let before = self.explain(name);
        let old = self.known_only().resolve(name).await.ok();
        let failed = self.inner.look_up_all(name).await.err();
        let new = match failed {
            Some(error) => Err(error),
            None => self.known_only().resolve(name).await,
        };
        Refreshed { before, after: self.explain(name), old, new }
    }

    /// Forgets what is known of a name, but for what is published here and what the operator's list says. Whether
    /// anything was.
    pub fn forget(&self, name: &Name) -> bool {
        let known = self.inner.cache.remove(name);
        if known {
            self.inner.changed.notify_one();
        }
        known
    }

    /// Whether [`Self::forget`] would forget anything.
    pub fn remembers(&self, name: &Name) -> bool {
        self.inner.cache.get(name).is_some()
    }

    /// The same names, of which only what is known already is told. Nobody is asked.
    pub fn known_only(&self) -> Arc<dyn NameResolver> {
        Arc::new(KnownOnly(Arc::clone(&self.inner)))
    }
}

impl Inner {
    /// What is known of one name, and the name that it stands for, if it stands for one.
    fn explain(&self, name: &Name) -> (NameStep, Option<Name>) {
        let unknown = NameStep::unknown(name);
        let next = |root: &Root| match root {
            Root::Name(next) => Some(next.clone()),
            Root::Cid(_) => None,
        };
        if let Some(path) = self.mapped(name) {
            let value = Some(text_of(&path));
            return (NameStep { source: StepSource::List, value, ..unknown }, next(&path.root));
        }
        let (now, wall) = ((self.clock.now)(), (self.clock.wall)());
        let own = self.own_record(name);
        let Some(entry) = self.cache.get(name) else {
            let Some(record) = own else { return (unknown, None) };
            let root = path_of(name, &Answer::Record(record.clone())).ok().and_then(|path| next(&path.root));
            return (NameStep { source: StepSource::Published, ..of_record(unknown, &record) }, root);
        };
        let mut step = NameStep { age: Some(entry.age(now)), ..unknown };
        step.fresh_for = match self.cache.standing(&entry, now, wall) {
            Standing::Fresh(ttl) => Some(ttl),
            Standing::Stale { .. } | Standing::Gone => None,
        };
        match &entry.outcome {
            Ok(answer) => {
                step.source = StepSource::Dns;
                match answer {
                    Answer::Record(record) => {
                        let is_own = own.is_some_and(|own| own == *record);
                        step.source = if is_own { StepSource::Published } else { StepSource::Network };
                        step = of_record(step, record);
                    }
                    Answer::Link(link) => step.value = Some(link.to_string()),
                }
                let holds = self.cache.standing(&entry, now, wall) != Standing::Gone;
                let path = path_of(name, answer);
                step.error = path.as_ref().err().cloned();
                (step, path.ok().filter(|_| holds).and_then(|path| next(&path.root)))
            }
            Err(error) => {
                step.source = match name {
                    Name::Key(_) => StepSource::Network,
                    Name::Domain(_) => StepSource::Dns,
                };
                (NameStep { error: Some(error.clone()), ..step }, None)
            }
        }
    }

    /// Looks up a name and all that it stands for.
    async fn look_up_all(self: &Arc<Self>, name: &Name) -> Result<(), NameError> {
        let mut name = name.clone();
        for _ in 0..STEPS_MAX {
            let path = match self.mapped(&name) {
                Some(path) => path,
                None => {
                    let entry = self.look_up_anew(&name).await?;
                    path_of(&name, &entry.outcome.clone()?)?
                }
            };
            match path.root {
                Root::Cid(_) => return Ok(()),
                Root::Name(next) => name = next,
            }
        }
        Err(NameError::TooManySteps { name, max: STEPS_MAX })
    }

    /// Waits until a look-up has said all that there is.
    async fn look_up_anew(self: &Arc<Self>, name: &Name) -> Result<Arc<Entry>, NameError> {
        if !self.is_reachable(name) {
            return Err(NameError::Offline { name: name.clone() });
        }
        let flight = self.flights.join(self, name).ok_or(NameError::Busy)?;
        flight.end().await.ok_or(NameError::Busy)
    }
}

/// A path as it is written, for people.
fn text_of(path: &ContentPath) -> String {
    let root = match &path.root {
        Root::Cid(cid) => format!("/ipfs/{cid}"),
        Root::Name(name) => format!("/ipns/{name}"),
    };
    path.segments.iter().fold(root, |text, segment| text + "/" + segment)
}

fn of_record(step: NameStep, record: &Record) -> NameStep {
    NameStep {
        value: Some(record.value().to_owned()),
        valid_until: Some(record.end_of_life()),
        sequence: Some(record.sequence()),
        ..step
    }
}

/// See [`Names::known_only`].
struct KnownOnly(Arc<Inner>);

impl NameResolver for KnownOnly {
    fn resolve(&self, name: &Name) -> BoxFuture<'static, Result<Resolution, NameError>> {
        let (inner, name) = (Arc::clone(&self.0), name.clone());
        async move {
            let found = follow(&inner, &name, Ask::Nobody).await?;
            found.ok_or(NameError::Offline { name })
        }
        .boxed()
    }

    fn record(&self, key: &Key) -> BoxFuture<'static, Result<Record, NameError>> {
        let name = Name::Key(*key);
        if let Err(error) = self.0.check_policy(&name, &[]) {
            return ready(Err(error)).boxed();
        }
        let known = match self.0.known(&name) {
            Some(Ok(Said { answer: Answer::Record(record), .. })) => Ok(record),
            Some(Err(error)) => Err(error),
            _ => Err(NameError::Offline { name }),
        };
        ready(known).boxed()
    }
}
