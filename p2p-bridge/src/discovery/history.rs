//! [`History`]: how the last searches for providers went, to explain why content is slow or not found.
//!
//! It records events per search, provider and dial, never per block. Bounded in DAGs, with the least recently searched
//! one evicted first, and in providers per search.

use crate::observers::SearchSource;
use crate::recent::{Recent, recent};
use crate::scope::Scope;
use crate::wants::SessionId;
use libp2p::PeerId;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Maximum DAGs whose last search is recorded.
const ROOTS_MAX: usize = 256;
/// Maximum providers recorded per search.
const PROVIDERS_MAX: usize = 64;
/// Maximum length of a dial error, in characters.
const REASON_CHARS_MAX: usize = 240;

/// A source of providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProviderSource {
    /// The known providers of the DAG.
    Memory,
    /// The caller passed the provider with the request.
    Caller,
    /// The DHT of a scope.
    Dht(Scope),
    /// A delegated router.
    Router,
}

impl ProviderSource {
    /// The name in API responses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Caller => "caller",
            Self::Dht(Scope::Wan) => "dht-wan",
            Self::Dht(Scope::Lan) => "dht-lan",
            Self::Router => "router",
        }
    }
}

impl From<ProviderSource> for SearchSource {
    fn from(source: ProviderSource) -> Self {
        match source {
            ProviderSource::Memory | ProviderSource::Caller => Self::Known,
            ProviderSource::Dht(scope) => Self::Dht(scope),
            ProviderSource::Router => Self::Routers,
        }
    }
}

/// A dial of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DialRecord {
    /// Time from the start of the search to the start of the dial.
    pub after: Duration,
    /// Duration and result of the dial; `None` while it is in progress.
    pub ended: Option<(Duration, Result<(), String>)>,
}

/// A found provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderRecord {
    /// The peer ID.
    pub peer: PeerId,
    /// The sources that found it, each with the time since the start of the search.
    pub named: Vec<(ProviderSource, Duration)>,
    /// Whether it was already connected when it was first found.
    pub was_connected: bool,
    /// The last dial.
    pub dial: Option<DialRecord>,
    /// Time from the start of the search to when it was known to have the DAG.
    pub proved: Option<Duration>,
}

/// A search for the providers of a DAG.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchRecord {
    /// When the search started.
    pub began: Instant,
    /// The duration; `None` while the search is in progress.
    pub took: Option<Duration>,
    /// The queried sources with the time until they finished; `None` for those in progress.
    pub asked: Vec<(ProviderSource, Option<Duration>)>,
    /// The found providers in order, including peers that had the DAG without being found by a source.
    pub providers: Vec<ProviderRecord>,
    /// The number of further providers that are not recorded.
    pub further: usize,
}

impl SearchRecord {
    fn new(now: Instant) -> Self {
        Self { began: now, took: None, asked: Vec::new(), providers: Vec::new(), further: 0 }
    }

    fn provider(&mut self, peer: PeerId, is_connected: bool) -> Option<&mut ProviderRecord> {
        let known = self.providers.iter().position(|provider| provider.peer == peer);
        let place = match known {
            Some(place) => place,
            None if self.providers.len() >= PROVIDERS_MAX => {
                self.further = self.further.saturating_add(1);
                return None;
            }
            None => {
                let (named, dial, proved) = (Vec::new(), None, None);
                self.providers.push(ProviderRecord { peer, named, was_connected: is_connected, dial, proved });
                self.providers.len() - 1
            }
        };
        self.providers.get_mut(place)
    }
}

/// The last searches.
#[derive(Debug)]
pub struct History {
    searches: Recent<SessionId, SearchRecord>,
    /// Dials in progress, with the searches that they belong to.
    dials: HashMap<PeerId, Vec<SessionId>>,
}

impl Default for History {
    fn default() -> Self {
        Self { searches: recent(ROOTS_MAX), dials: HashMap::new() }
    }
}

impl History {
    /// Records the start of a search.
    pub fn began(&mut self, root: SessionId, now: Instant) {
        self.searches.insert(root, SearchRecord::new(now));
    }

    /// Records the end of a search.
    pub fn ended(&mut self, root: &SessionId, now: Instant) {
        if let Some(search) = self.searches.peek_mut(root)
            && search.took.is_none()
        {
            search.took = Some(now.saturating_duration_since(search.began));
        }
    }

    /// Records a query to a source.
    pub fn asked(&mut self, root: &SessionId, source: ProviderSource) {
        if let Some(search) = self.searches.peek_mut(root)
            && !search.asked.iter().any(|(known, _)| *known == source)
        {
            search.asked.push((source, None));
        }
    }

    /// Records that a source has finished.
    pub fn answered(&mut self, root: &SessionId, source: ProviderSource, now: Instant) {
        let Some(search) = self.searches.peek_mut(root) else { return };
        let took = now.saturating_duration_since(search.began);
        if let Some((_, known)) = search.asked.iter_mut().find(|(known, _)| *known == source) {
            *known = Some(took);
        }
    }

    /// Records a provider that a source found.
    pub fn named(&mut self, root: &SessionId, peer: PeerId, by: ProviderSource, is_connected: bool, now: Instant) {
        let Some(search) = self.searches.peek_mut(root) else { return };
        let after = now.saturating_duration_since(search.began);
        if let Some(provider) = search.provider(peer, is_connected)
            && !provider.named.iter().any(|(known, _)| *known == by)
        {
            provider.named.push((by, after));
        }
    }

    /// Records the start of a dial.
    pub fn dialled(&mut self, root: &SessionId, peer: PeerId, now: Instant) {
        let Some(search) = self.searches.peek_mut(root) else { return };
        let after = now.saturating_duration_since(search.began);
        if let Some(provider) = search.provider(peer, false) {
            provider.dial = Some(DialRecord { after, ended: None });
            let waiting = self.dials.entry(peer).or_default();
            if !waiting.contains(root) {
                waiting.push(*root);
            }
        }
    }

    /// Records the end of a dial; `why` it failed is evaluated only if a search recorded the dial.
    pub fn dial_ended(&mut self, peer: &PeerId, now: Instant, why: impl FnOnce() -> Option<String>) {
        let Some(roots) = self.dials.remove(peer) else { return };
        let outcome = why().map_or(Ok(()), |why| Err(why.chars().take(REASON_CHARS_MAX).collect::<String>()));
        for root in roots {
            let Some(search) = self.searches.peek_mut(&root) else { continue };
            let since = now.saturating_duration_since(search.began);
            let provider = search.providers.iter_mut().find(|provider| provider.peer == *peer);
            if let Some(dial) = provider.and_then(|provider| provider.dial.as_mut()) {
                dial.ended = Some((since.saturating_sub(dial.after), outcome.clone()));
            }
        }
    }

    /// Records that a peer has the DAG.
    pub fn proved(&mut self, root: &SessionId, peer: PeerId, now: Instant) {
        let Some(search) = self.searches.peek_mut(root) else { return };
        let after = now.saturating_duration_since(search.began);
        if let Some(provider) = search.provider(peer, true) {
            provider.proved.get_or_insert(after);
        }
    }

    /// The last search for the providers of a DAG.
    pub fn last(&self, root: &SessionId) -> Option<&SearchRecord> {
        self.searches.peek(root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::hashes;

    const MS: Duration = Duration::from_millis(1);

    fn root(n: u64) -> SessionId {
        SessionId::wrap(hashes::SHA2_256, &[n.to_be_bytes(); 4].concat()).expect("a multihash")
    }

    #[test]
    fn a_search_is_recorded() {
        let (mut history, root, start) = (History::default(), root(1), Instant::now());
        let [near, far, silent] = [0; 3].map(|_| PeerId::random());
        let (wan, at) = (ProviderSource::Dht(Scope::Wan), |ms: u32| start + ms * MS);
        history.named(&root, near, wan, false, start);
        assert!(history.last(&root).is_none(), "there is no search for it");
        history.began(root, start);
        history.asked(&root, wan);
        history.asked(&root, ProviderSource::Router);
        history.named(&root, near, ProviderSource::Memory, true, at(1));
        history.named(&root, far, wan, false, at(20));
        history.named(&root, far, ProviderSource::Router, false, at(30));
        history.named(&root, far, wan, false, at(40));
        history.dialled(&root, far, at(41));
        history.dialled(&root, silent, at(42));
        history.proved(&root, near, at(50));
        history.dial_ended(&far, at(61), || None);
        history.dial_ended(&silent, at(92), || Some("it timed out".to_owned()));
        history.dial_ended(&silent, at(99), || panic!("the dial was recorded as ended"));
        history.answered(&root, wan, at(70));
        history.ended(&root, at(100));
        history.ended(&root, at(200));

        let search = history.last(&root).expect("a recorded search");
        assert_eq!((search.began, search.took, search.further), (start, Some(100 * MS), 0));
        assert_eq!(search.asked, [(wan, Some(70 * MS)), (ProviderSource::Router, None)]);
        let [first, second, third] = &search.providers[..] else { panic!("{search:?}") };
        assert_eq!((first.peer, first.was_connected, first.proved), (near, true, Some(50 * MS)));
        assert_eq!(second.named, [(wan, 20 * MS), (ProviderSource::Router, 30 * MS)]);
        assert_eq!(second.dial, Some(DialRecord { after: 41 * MS, ended: Some((20 * MS, Ok(()))) }));
        let failed = Some((50 * MS, Err("it timed out".to_owned())));
        assert_eq!(third.dial, Some(DialRecord { after: 42 * MS, ended: failed }));

        history.began(root, at(300));
        assert_eq!(
            history.last(&root).map(|search| search.providers.len()),
            Some(0),
            "another search has a new record"
        );
    }

    #[test]
    fn the_history_is_bounded() {
        let (mut history, now) = (History::default(), Instant::now());
        for n in 0..2 * ROOTS_MAX as u64 {
            history.began(root(n), now);
            history.began(root(n), now);
        }
        assert_eq!(history.searches.len(), ROOTS_MAX);
        assert!(history.last(&root(0)).is_none());
        let newest = root(2 * ROOTS_MAX as u64 - 1);
        for _ in 0..PROVIDERS_MAX + 5 {
            history.named(&newest, PeerId::random(), ProviderSource::Router, false, now);
        }
        let search = history.last(&newest).expect("the newest");
        assert_eq!((search.providers.len(), search.further), (PROVIDERS_MAX, 5));
        let peer = search.providers[0].peer;
        history.dialled(&newest, peer, now);
        let long = "x".repeat(10_000);
        history.dial_ended(&peer, now, || Some(long));
        let search =
            history.last(&newest).and_then(|search| search.providers[0].dial.clone()).and_then(|dial| dial.ended);
        assert!(matches!(search, Some((_, Err(why))) if why.len() == REASON_CHARS_MAX));
        assert!(history.dials.is_empty());
    }
}
