//! What holds of the client machine whatever happens, in whatever order.

use super::*;
use bytes::Bytes;
use content::{Block, codec, hashes};
use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::LazyLock;

const PEERS: usize = 5;
const SESSIONS: usize = 3;
const BLOCKS: usize = 12;

static CIDS: LazyLock<Vec<Cid>> = LazyLock::new(|| {
    let block = |n: usize| Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::from(vec![n as u8; 9]));
    (0..BLOCKS + SESSIONS).map(|n| *block(n).expect("a block").cid()).collect()
});

fn key(n: usize) -> BlockKey {
    BlockKey::of(&CIDS[n]).expect("a key")
}

fn session(n: usize) -> SessionId {
    *CIDS[BLOCKS + n].hash()
}

#[derive(Debug, Clone)]
enum Happening {
    Want(usize, usize),
    Cancel(usize, usize),
    Connected(usize, bool),
    Disconnected(usize),
    Replaced(usize),
    Failed(usize),
    Block(usize, usize, usize),
    Presence(usize, usize, bool),
    Progress(usize),
    Named(usize, usize),
    SearchFinished(usize),
    Time(u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    use Happening::*;
    prop_oneof![
        6 => (0..SESSIONS, 0..BLOCKS).prop_map(|(session, n)| Want(session, n)),
        2 => (0..SESSIONS, 0..BLOCKS).prop_map(|(session, n)| Cancel(session, n)),
        2 => (0..PEERS, any::<bool>()).prop_map(|(peer, favoured)| Connected(peer, favoured)),
        1 => (0..PEERS).prop_map(Disconnected),
        1 => (0..PEERS).prop_map(Replaced),
        1 => (0..PEERS).prop_map(Failed),
        6 => (0..PEERS, 0..BLOCKS, 0..3_000_000_usize).prop_map(|(peer, n, bytes)| Block(peer, n, bytes)),
        4 => (0..PEERS, 0..BLOCKS, any::<bool>()).prop_map(|(peer, n, has)| Presence(peer, n, has)),
        1 => (0..PEERS).prop_map(Progress),
        1 => (0..SESSIONS, 0..PEERS).prop_map(|(session, peer)| Named(session, peer)),
        1 => (0..SESSIONS).prop_map(SearchFinished),
        4 => (0..40_u64).prop_map(Time),
    ]
}

/// A machine, what it told its peers, and what it was told.
struct World {
    client: Client,
    now: Instant,
    ids: Vec<PeerId>,
    connected: HashSet<PeerId>,
    /// What each connected peer believes to be asked for.
    told: HashMap<PeerId, HashMap<Cid, Ask>>,
    /// Who waits for what.
    waiting: HashSet<(SessionId, BlockKey)>,
    searching: HashSet<SessionId>,
}

impl World {
    fn new() -> Self {
        let config = Config { sessions_max: 2, ..Config::default() };
        Self {
            client: Client::new(config, Metrics::default()),
            now: Instant::now(),
            ids: (0..PEERS).map(|_| PeerId::random()).collect(),
            connected: HashSet::new(),
            told: HashMap::new(),
            waiting: HashSet::new(),
            searching: HashSet::new(),
        }
    }

    fn happen(&mut self, happening: &Happening) {
        use Happening::*;
        let (client, now) = (&mut self.client, self.now);
        match *happening {
            Want(id, n) => {
                client.want(session(id), CIDS[n], now);
                self.waiting.insert((session(id), key(n)));
            }
            Cancel(id, n) => {
                client.cancel(session(id), key(n), now);
                self.waiting.remove(&(session(id), key(n)));
            }
            Connected(peer, favoured) => {
                if self.connected.insert(self.ids[peer]) {
                    client.peer_connected(self.ids[peer], favoured, now);
                }
            }
            Disconnected(peer) => {
                if self.connected.remove(&self.ids[peer]) {
                    self.told.remove(&self.ids[peer]);
                    client.peer_disconnected(self.ids[peer], now);
                }
            }
            Replaced(peer) => client.ask_again(self.ids[peer]),
            Failed(peer) => client.peer_failed(self.ids[peer], now),
            Block(peer, n, bytes) => {
                let peer = self.ids[peer];
                if self.connected.contains(&peer) {
                    let used = client.received_block(peer, key(n), bytes, now);
                    let waited_for = self.waiting.iter().any(|(_, waited)| *waited == key(n));
                    assert!(used != Use::Wanted || waited_for);
                    if used == Use::Wanted {
                        self.waiting.retain(|(_, waited)| *waited != key(n));
                    }
                    self.told.entry(peer).or_default().remove(&CIDS[n]);
                }
            }
            Presence(peer, n, has) => client.received_presence(self.ids[peer], &CIDS[n], has, now),
            Progress(peer) => client.peer_progressed(self.ids[peer], now),
            Named(id, peer) => client.provider_found(session(id), self.ids[peer], now),
            SearchFinished(id) => {
                if self.searching.remove(&session(id)) {
                    client.search_finished(session(id), now);
                }
            }
            Time(ticks) => {
                for _ in 0..ticks {
                    self.now += Duration::from_millis(100);
                    self.client.tick(self.now);
                }
            }
        }
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.client.poll_action() {
            match action {
                Action::Send { peer, entries } => {
                    assert!(self.connected.contains(&peer), "whoever is gone is asked nothing");
                    let told = self.told.entry(peer).or_default();
                    for entry in entries {
                        if entry.ask == Ask::Cancel {
                            told.remove(&entry.cid);
                        } else {
                            told.insert(entry.cid, entry.ask);
                        }
                    }
                }
                Action::Search(id) => assert!(self.searching.insert(id), "one search at a time"),
                Action::StopSearch(id) => assert!(self.searching.remove(&id), "what runs is stopped"),
                Action::Stalled(peer) => assert!(self.client.peers.contains_key(&peer)),
                Action::Joined(id, peer) => assert!(self.client.sessions[&id].answered.contains(&peer)),
                Action::Fail(failure) => {
                    assert!(self.waiting.remove(&(failure.session, failure.key)), "somebody waits for what fails");
                }
            }
        }
    }

    /// Everything that has to hold between two happenings.
    fn check(&self) {
        let client = &self.client;
        let wanted: HashSet<(SessionId, BlockKey)> =
            client.sessions.iter().flat_map(|(id, session)| session.wants.keys().map(|key| (*id, *key))).collect();
        assert_eq!(wanted, self.waiting, "those who wait are known");
        for (key, want) in &client.wants {
            assert!(!want.sessions.is_empty());
            for id in &want.sessions {
                let session = &client.sessions[id];
                assert!(session.wants.contains_key(key));
                assert_eq!(session.unasked.contains_key(&want.order), !want.is_owed(), "owed by somebody, or in line");
            }
            for question in &want.asked {
                let open: Vec<_> = client.peers[&question.peer].open().filter(|(asked, _)| *asked == key).collect();
                assert_eq!(open, [(key, question.block)], "one question, in both books");
                let told = self.told[&question.peer].get(&want.cid);
                // A peer that answered with something else may have struck it off.
                assert!(told.is_none_or(|ask| (*ask == Ask::Block) == question.block), "as the peer was told");
            }
        }
        for (id, peer) in &client.peers {
            assert!(self.connected.contains(id));
            assert!(peer.open().all(|(key, _)| client.wants.get(key).is_some_and(|want| want.is_asked(id))));
            assert!(peer.sessions.iter().all(|session| client.sessions[session].members.contains(id)));
        }
        for (id, session) in &client.sessions {
            assert!(session.members.iter().all(|peer| client.peers[peer].sessions.contains(id)));
            assert!(session.givers.iter().all(|peer| session.members.contains(peer)));
            assert!(session.unasked.values().all(|key| session.wants.contains_key(key)));
            assert!(session.probed.iter().all(|key| session.wants.contains_key(key)));
            assert_eq!(session.search == Search::Running, self.searching.contains(id));
            let helpless = session.members.is_empty() && !session.wants.is_empty();
            assert!(!helpless || session.search != Search::Idle, "whoever has nobody searches");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_books_agree_whatever_happens(happenings in proptest::collection::vec(happening(), 1..120)) {
        let mut world = World::new();
        for happening in &happenings {
            world.happen(happening);
            world.carry_out();
            world.check();
        }
        // Whoever waits is answered in time, and nothing is remembered for ever.
        for _ in 0..300 {
            world.now += Duration::from_secs(1);
            world.client.tick(world.now);
            world.carry_out();
        }
        world.check();
        prop_assert!(world.waiting.is_empty());
        prop_assert!(world.client.is_idle() && world.client.wants.is_empty());
        prop_assert!(world.client.peers.values().all(|peer| peer.open().count() == 0));
    }
}
