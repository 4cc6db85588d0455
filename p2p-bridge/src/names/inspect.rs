//! Inspecting names: explaining a name from the cache, refreshing it on request, and invalidating it.
//!
//! Goals: the result is what clients would get (both use [`super::follow`]); a failed refresh does not remove a usable
//! answer.

use super::cache::{Answer, CacheEntry, Freshness};
use super::{Inner, LookUpMode, Names, STEPS_MAX, StepAnswer, follow, path_of};
use content::ipns::Record;
use content::names::Key;
use content::path::{ContentPath, Root};
use content::{Name, NameError, NameResolver, Resolution};
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The source of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepSource {
    /// The operator's static map.
    List,
    /// A record published by this node.
    Published,
    /// A record from the network.
    Network,
    /// The DNS.
    Dns,
    /// None: a look-up is needed.
    Unknown,
}

impl StepSource {
    /// The name in API responses.
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

/// One step of resolving a name from the cache.
#[derive(Debug, Clone)]
pub struct NameStep {
    /// The name.
    pub name: Name,
    /// The source of the answer.
    pub source: StepSource,
    /// The value of the name, if it has one.
    pub value: Option<String>,
    /// The error, if it has none.
    pub error: Option<NameError>,
    /// The age of the answer.
    pub age: Option<Duration>,
    /// The remaining time to live. `None`: the next request looks the name up.
    pub fresh_for: Option<Duration>,
    /// The end of life of the record.
    pub valid_until: Option<SystemTime>,
    /// The sequence number of the record.
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

/// A name before and after a refresh, with all its steps.
#[derive(Debug, Clone)]
pub struct Refreshed {
    /// The steps before.
    pub before: Vec<NameStep>,
    /// The steps after.
    pub after: Vec<NameStep>,
    /// The cached resolution before, if any.
    pub old: Option<Resolution>,
    /// The resolution after.
    pub new: Result<Resolution, NameError>,
}

impl Names {
    /// The steps of resolving a name from the cache, without look-ups, and without counting as use of the cache.
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

    /// Looks up a name and all names that it points to, even if they are cached, and caches the results. If a look-up
    /// fails, usable cached answers stay.
    pub async fn refresh(&self, name: &Name) -> Refreshed {
        let before = self.explain(name);
        let old = self.cache_only().resolve(name).await.ok();
        let failed = self.inner.look_up_all(name).await.err();
        let new = match failed {
            Some(error) => Err(error),
            None => self.cache_only().resolve(name).await,
        };
        Refreshed { before, after: self.explain(name), old, new }
    }

    /// Invalidates the cached answer of a name. The static map and published names are not affected. Returns whether
    /// there was one.
    pub fn invalidate(&self, name: &Name) -> bool {
        let known = self.inner.cache.remove(name);
        if known {
            self.inner.changed.notify_one();
        }
        known
    }

    /// Whether a name is cached.
    pub fn is_cached(&self, name: &Name) -> bool {
        self.inner.cache.get(name).is_some()
    }

    /// A resolver that uses only the cache, without look-ups.
    pub fn cache_only(&self) -> Arc<dyn NameResolver> {
        Arc::new(KnownOnly(Arc::clone(&self.inner)))
    }
}

impl Inner {
    /// The step of one name, and the next name if it points to one.
    fn explain(&self, name: &Name) -> (NameStep, Option<Name>) {
        let unknown = NameStep::unknown(name);
        let next = |root: &Root| match root {
            Root::Name(next) => Some(next.clone()),
            Root::Cid(_) => None,
        };
        if let Some(path) = self.static_entry(name) {
            let value = Some(text_of(&path));
            return (NameStep { source: StepSource::List, value, ..unknown }, next(&path.root));
        }
        let (now, wall) = ((self.clock.now)(), (self.clock.wall)());
        let own = self.published_record(name);
        let Some(entry) = self.cache.get(name) else {
            let Some(record) = own else { return (unknown, None) };
            let root = path_of(name, &Answer::Record(record.clone())).ok().and_then(|path| next(&path.root));
            return (NameStep { source: StepSource::Published, ..of_record(unknown, &record) }, root);
        };
        let mut step = NameStep { age: Some(entry.age(now)), ..unknown };
        step.fresh_for = match self.cache.freshness(&entry, now, wall) {
            Freshness::Fresh(ttl) => Some(ttl),
            Freshness::Stale { .. } | Freshness::Expired => None,
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
                let is_usable = self.cache.freshness(&entry, now, wall) != Freshness::Expired;
                let path = path_of(name, answer);
                step.error = path.as_ref().err().cloned();
                (step, path.ok().filter(|_| is_usable).and_then(|path| next(&path.root)))
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

    /// Looks up a name and all names that it points to.
    async fn look_up_all(self: &Arc<Self>, name: &Name) -> Result<(), NameError> {
        let mut name = name.clone();
        for _ in 0..STEPS_MAX {
            let path = match self.static_entry(&name) {
                Some(path) => path,
                None => {
                    let entry = self.await_complete_look_up(&name).await?;
                    path_of(&name, &entry.outcome.clone()?)?
                }
            };
            match path.root {
                Root::Cid(_) => return Ok(()),
                Root::Name(next) => name = next,
            }
        }
        Err(NameError::ChainTooLong { name, max: STEPS_MAX })
    }

    /// Waits for the end of a complete look-up.
    async fn await_complete_look_up(self: &Arc<Self>, name: &Name) -> Result<Arc<CacheEntry>, NameError> {
        if !self.is_reachable(name) {
            return Err(NameError::Offline { name: name.clone() });
        }
        let look_up = self.look_ups.join(self, name).ok_or(NameError::Busy)?;
        look_up.end().await.ok_or(NameError::Busy)
    }
}

/// A path as text.
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

/// See [`Names::cache_only`].
struct KnownOnly(Arc<Inner>);

impl NameResolver for KnownOnly {
    fn resolve(&self, name: &Name) -> BoxFuture<'static, Result<Resolution, NameError>> {
        let (inner, name) = (Arc::clone(&self.0), name.clone());
        async move {
            let found = follow(&inner, &name, LookUpMode::CacheOnly).await?;
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
            Some(Ok(StepAnswer { answer: Answer::Record(record), .. })) => Ok(record),
            Some(Err(error)) => Err(error),
            _ => Err(NameError::Offline { name }),
        };
        ready(known).boxed()
    }
}
