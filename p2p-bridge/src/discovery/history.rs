//! [`History`]: how the last searches for providers went, for whoever wants to know why something is slow or not found.
//!
//! What is written down happens once for a search, a provider or a dial, and never for a block. Bounded in DAGs, the
//! one whose search began longest ago goes first, and in providers of one.

use crate::scope::Scope;
use crate::wants::SessionId;
use libp2p::PeerId;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// DAGs whose last search is remembered.
const ROOTS_MAX: usize = 256;
/// Providers that are remembered of one search.
const PROVIDERS_MAX: usize = 64;
/// Characters of why a dial failed.
const REASON_CHARS_MAX: usize = 240;

/// Who named a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Informant {
    /// It had the DAG when it was last read.
    Memory,
    /// Somebody who asked for the DAG said so.
    Caller,
    /// The DHT of a scope.
    Dht(Scope),
    /// A delegated router.
    Router,
}

impl Informant {
    /// Its name in answers.
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

/// A dial of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DialRecord {
    /// How long after the search began.
    pub after: Duration,
    /// How long it took, and why it failed if it did; none while it is under way.
    pub ended: Option<(Duration, Result<(), String>)>,
}

/// A provider that was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderRecord {
    /// Who it is.
    pub peer: PeerId,
    /// Who named it, and how long after the search began.
    pub named: Vec<(Informant, Duration)>,
    /// Whether it was connected when it was first named.
    pub was_connected: bool,
    /// The last dial.
    pub dial: Option<DialRecord>,
    /// How long after the search began it proved to hold the DAG.
    pub proved: Option<Duration>,
}

/// A search for the providers of a DAG.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchRecord {
    /// When it began.
    pub began: Instant,
    /// How long it took; none while it is under way.
    pub took: Option<Duration>,
    /// Who was asked, and how long they took; none for those that still search.
    pub asked: Vec<(Informant, Option<Duration>)>,
    /// Those that were named, in order, and those that proved to hold the DAG without being named.
    pub providers: Vec<ProviderRecord>,
    /// How many more were named.
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
#[derive(Debug, Default)]
pub struct History {
    searches: HashMap<SessionId, SearchRecord>,
    order: VecDeque<SessionId>,
    /// Dials under way, and the searches that they are for.
    dials: HashMap<PeerId, Vec<SessionId>>,
}

impl History {
    /// A search began.
    pub fn began(&mut self, root: SessionId, now: Instant) {
        if self.searches.insert(root, SearchRecord::new(now)).is_some() {
            self.order.retain(|known| *known != root);
        }
        self.order.push_back(root);
        while self.order.len() > ROOTS_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.searches.remove(&oldest);
            }
        }
    }

    /// It ended.
    pub fn ended(&mut self, root: &SessionId, now: Instant) {
        if let Some(search) = self.searches.get_mut(root)
            && search.took.is_none()
        {
            search.took = Some(now.saturating_duration_since(search.began));
        }
    }

    /// Somebody is being asked.
    pub fn asked(&mut self, root: &SessionId, whom: Informant) {
        if let Some(search) = self.searches.get_mut(root)
            && !search.asked.iter().any(|(known, _)| *known == whom)
        {
            search.asked.push((whom, None));
        }
    }

    /// They have said all that they know.
    pub fn answered(&mut self, root: &SessionId, whom: Informant, now: Instant) {
        let Some(search) = self.searches.get_mut(root) else { return };
        let took = now.saturating_duration_since(search.began);
        if let Some((_, known)) = search.asked.iter_mut().find(|(known, _)| *known == whom) {
            *known = Some(took);
        }
    }

    /// Somebody named a provider.
    pub fn named(&mut self, root: &SessionId, peer: PeerId, by: Informant, is_connected: bool, now: Instant) {
        let Some(search) = self.searches.get_mut(root) else { return };
        let after = now.saturating_duration_since(search.began);
        if let Some(provider) = search.provider(peer, is_connected)
            && !provider.named.iter().any(|(known, _)| *known == by)
        {
            provider.named.push((by, after));
        }
    }

    /// A provider is being dialled.
    pub fn dialled(&mut self, root: &SessionId, peer: PeerId, now: Instant) {
        let Some(search) = self.searches.get_mut(root) else { return };
        let after = now.saturating_duration_since(search.began);
        if let Some(provider) = search.provider(peer, false) {
            provider.dial = Some(DialRecord { after, ended: None });
            let waiting = self.dials.entry(peer).or_default();
            if !waiting.contains(root) {
                waiting.push(*root);
            }
        }
    }

    /// A dial ended; `why` it failed is asked for if anybody wants to know.
    pub fn dial_ended(&mut self, peer: &PeerId, now: Instant, why: impl FnOnce() -> Option<String>) {
        let Some(roots) = self.dials.remove(peer) else { return };
        let outcome = why().map_or(Ok(()), |why| Err(why.chars().take(REASON_CHARS_MAX).collect::<String>()));
        for root in roots {
            let Some(search) = self.searches.get_mut(&root) else { continue };
            let since = now.saturating_duration_since(search.began);
            let provider = search.providers.iter_mut().find(|provider| provider.peer == *peer);
            if let Some(dial) = provider.and_then(|provider| provider.dial.as_mut()) {
                dial.ended = Some((since.saturating_sub(dial.after), outcome.clone()));
            }
        }
    }

    /// A peer proved to hold the DAG.
    pub fn proved(&mut self, root: &SessionId, peer: PeerId, now: Instant) {
        let Some(search) = self.searches.get_mut(root) else { return };
        let after = now.saturating_duration_since(search.began);
        if let Some(provider) = search.provider(peer, true) {
            provider.proved.get_or_insert(after);
        }
    }

    /// The last search for the providers of a DAG.
    pub fn last(&self, root: &SessionId) -> Option<&SearchRecord> {
        self.searches.get(root)
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
    fn a_search_is_told_as_it_went() {
        let (mut history, root, start) = (History::default(), root(1), Instant::now());
        let [near, far, silent] = [0; 3].map(|_| PeerId::random());
        let (wan, at) = (Informant::Dht(Scope::Wan), |ms: u32| start + ms * MS);
        history.named(&root, near, wan, false, start);
        assert!(history.last(&root).is_none(), "nobody searches for it");
        history.began(root, start);
        history.asked(&root, wan);
        history.asked(&root, Informant::Router);
        history.named(&root, near, Informant::Memory, true, at(1));
        history.named(&root, far, wan, false, at(20));
        history.named(&root, far, Informant::Router, false, at(30));
        history.named(&root, far, wan, false, at(40));
        history.dialled(&root, far, at(41));
        history.dialled(&root, silent, at(42));
        history.proved(&root, near, at(50));
        history.dial_ended(&far, at(61), || None);
        history.dial_ended(&silent, at(92), || Some("it is silent".to_owned()));
        history.dial_ended(&silent, at(99), || panic!("nobody waits for it any more"));
        history.answered(&root, wan, at(70));
        history.ended(&root, at(100));
        history.ended(&root, at(200));

        let told = history.last(&root).expect("it was searched for");
        assert_eq!((told.began, told.took, told.further), (start, Some(100 * MS), 0));
        assert_eq!(told.asked, [(wan, Some(70 * MS)), (Informant::Router, None)]);
        let [first, second, third] = &told.providers[..] else { panic!("{told:?}") };
        assert_eq!((first.peer, first.was_connected, first.proved), (near, true, Some(50 * MS)));
        assert_eq!(second.named, [(wan, 20 * MS), (Informant::Router, 30 * MS)]);
        assert_eq!(second.dial, Some(DialRecord { after: 41 * MS, ended: Some((20 * MS, Ok(()))) }));
        let failed = Some((50 * MS, Err("it is silent".to_owned())));
        assert_eq!(third.dial, Some(DialRecord { after: 42 * MS, ended: failed }));

        history.began(root, at(300));
        assert_eq!(history.last(&root).map(|search| search.providers.len()), Some(0), "another search begins anew");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut history, now) = (History::default(), Instant::now());
        for n in 0..2 * ROOTS_MAX as u64 {
            history.began(root(n), now);
            history.began(root(n), now);
        }
        assert_eq!((history.searches.len(), history.order.len()), (ROOTS_MAX, ROOTS_MAX));
        assert!(history.last(&root(0)).is_none());
        let newest = root(2 * ROOTS_MAX as u64 - 1);
        for _ in 0..PROVIDERS_MAX + 5 {
            history.named(&newest, PeerId::random(), Informant::Router, false, now);
        }
        let told = history.last(&newest).expect("it is the newest");
        assert_eq!((told.providers.len(), told.further), (PROVIDERS_MAX, 5));
        let peer = told.providers[0].peer;
        history.dialled(&newest, peer, now);
        let long = "x".repeat(10_000);
        history.dial_ended(&peer, now, || Some(long));
        let told = history.last(&newest).and_then(|told| told.providers[0].dial.clone()).and_then(|dial| dial.ended);
        assert!(matches!(told, Some((_, Err(why))) if why.len() == REASON_CHARS_MAX));
        assert!(history.dials.is_empty());
    }
}
