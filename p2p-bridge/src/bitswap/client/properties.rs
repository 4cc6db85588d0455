//! Invariants of the client under arbitrary event sequences.

use super::*;
use crate::dag::client::active::{Decline, TransferEnd, TransferEvent};
use crate::dag::client::fixture::context;
use crate::dag::message::{EndStatus, TransferId};
use crate::observers::BlockTransport;
use bytes::Bytes;
use content::{Block, codec, hashes};
use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::LazyLock;
use tokio::sync::mpsc;

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
enum Input {
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
    WithoutPeers,
    Step,
    Time(u64),
    /// A peer speaks the DAG protocol, or not.
    Speaks(usize, bool),
    /// A want whose reader needs everything below a root.
    WantAhead(usize, usize, usize),
    /// A transfer brings a block, lacks it, or has dropped it.
    Brings(usize, usize),
    Lacks(usize, usize),
    Drops(usize, usize),
    Ends(usize, usize),
}

/// The peer that is a gateway.
const GATEWAY: usize = 0;

const ENDS: [TransferEnd; 9] = [
    TransferEnd::Declined(Decline::Lacks),
    TransferEnd::Declined(Decline::Unsupported),
    TransferEnd::Declined(Decline::Incomplete),
    TransferEnd::Status(EndStatus::Complete),
    TransferEnd::Status(EndStatus::Refused),
    TransferEnd::Status(EndStatus::Busy),
    TransferEnd::Status(EndStatus::Budget),
    TransferEnd::Lost,
    TransferEnd::TooManyBlocks,
];

fn input() -> impl Strategy<Value = Input> {
    use Input::*;
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
        1 => Just(WithoutPeers),
        1 => Just(Step),
        4 => (0..40_u64).prop_map(Time),
        2 => (0..PEERS, prop::bool::weighted(0.8)).prop_map(|(peer, speaks)| Speaks(peer, speaks)),
        6 => (0..SESSIONS, 0..BLOCKS, 0..3_usize).prop_map(|(session, n, root)| WantAhead(session, n, root)),
        4 => (any::<usize>(), 0..BLOCKS).prop_map(|(transfer, n)| Brings(transfer, n)),
        1 => (any::<usize>(), 0..BLOCKS).prop_map(|(transfer, n)| Lacks(transfer, n)),
        1 => (any::<usize>(), 0..BLOCKS).prop_map(|(transfer, n)| Drops(transfer, n)),
        2 => (any::<usize>(), 0..ENDS.len()).prop_map(|(transfer, end)| Ends(transfer, end)),
    ]
}

/// A client, the state of its peers' wantlists, and the waiters.
struct World {
    client: Client,
    now: Instant,
    ids: Vec<PeerId>,
    connected: HashSet<PeerId>,
    /// The wantlist that each connected peer has received.
    wantlists: HashMap<PeerId, HashMap<Cid, Ask>>,
    /// The waiters.
    waiting: HashSet<(SessionId, BlockKey)>,
    searching: HashSet<SessionId>,
    /// The transfers that were started, and what they report.
    started: Vec<TransferId>,
    reports: mpsc::UnboundedReceiver<TransferEvent>,
}

impl World {
    fn new() -> Self {
        let config = Config { sessions_max: 2, ..Config::default() };
        let ((events, reports), readers) = (mpsc::unbounded_channel(), Arc::default());
        let mut client = Client::new(config, Metrics::default());
        client.use_transfers(Arc::new(context(BlockTransport::Dag, &events, &readers)));
        client.use_gateway_transfers(Arc::new(context(BlockTransport::Http, &events, &readers)));
        Self {
            client,
            now: Instant::now(),
            ids: (0..PEERS).map(|_| PeerId::random()).collect(),
            connected: HashSet::new(),
            wantlists: HashMap::new(),
            waiting: HashSet::new(),
            searching: HashSet::new(),
            started: Vec::new(),
            reports,
        }
    }

    fn apply(&mut self, input: &Input) {
        use Input::*;
        let (client, now) = (&mut self.client, self.now);
        match *input {
            Want(id, n) => {
                client.want(session(id), CIDS[n], now);
                self.waiting.insert((session(id), key(n)));
            }
            Speaks(peer, speaks) => client.set_speaks_dag(self.ids[peer], speaks),
            WantAhead(id, n, root) => {
                let root = Cid::new_v1(codec::DAG_PB, *CIDS[root].hash());
                client.want_ahead(session(id), CIDS[n], Some(Arc::new(ReadAhead::all(root))), now);
                self.waiting.insert((session(id), key(n)));
            }
            Brings(transfer, n) => {
                if let Some(transfer) = self.transfer(transfer) {
                    let used = self.client.transfer_received(transfer, key(n), 1_000, now);
                    let waited_for = self.waiting.iter().any(|(_, waited)| *waited == key(n));
                    assert_eq!(used == BlockUse::Wanted, waited_for);
                    self.waiting.retain(|(_, waited)| *waited != key(n));
                }
            }
            Lacks(transfer, n) => {
                if let Some(transfer) = self.transfer(transfer) {
                    self.client.transfer_lacks(transfer, &CIDS[n], now);
                }
            }
            Drops(transfer, n) => {
                if let Some(transfer) = self.transfer(transfer) {
                    self.client.transfer_dropped(transfer, &CIDS[n], now);
                }
            }
            Ends(transfer, end) => {
                if let Some(transfer) = self.transfer(transfer) {
                    self.client.transfer_ended(transfer, &ENDS[end], now);
                }
            }
            Cancel(id, n) => {
                client.cancel(session(id), key(n), now);
                self.waiting.remove(&(session(id), key(n)));
            }
            Connected(peer, favoured) => {
                if self.connected.insert(self.ids[peer]) {
                    match peer {
                        GATEWAY => client.gateway_connected(self.ids[peer], favoured, now),
                        _ => client.peer_connected(self.ids[peer], favoured, now),
                    }
                }
            }
            Disconnected(peer) => {
                if self.connected.remove(&self.ids[peer]) {
                    self.wantlists.remove(&self.ids[peer]);
                    client.peer_disconnected(self.ids[peer], now);
                }
            }
            Replaced(peer) => client.resend_requests(self.ids[peer]),
            Failed(peer) => client.peer_failed(self.ids[peer], now),
            Block(peer, n, bytes) => {
                let peer = self.ids[peer];
                if self.connected.contains(&peer) {
                    let used = client.received_block(peer, key(n), bytes, now);
                    let waited_for = self.waiting.iter().any(|(_, waited)| *waited == key(n));
                    assert!(used != BlockUse::Wanted || waited_for);
                    if used == BlockUse::Wanted {
                        self.waiting.retain(|(_, waited)| *waited != key(n));
                    }
                    self.wantlists.entry(peer).or_default().remove(&CIDS[n]);
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
            WithoutPeers => client.fail_without_peers(now),
            Step => client.fail_next(now),
            Time(ticks) => {
                for _ in 0..ticks {
                    self.now += Duration::from_millis(100);
                    self.client.tick(self.now);
                }
            }
        }
    }

    fn transfer(&self, at: usize) -> Option<TransferId> {
        self.started.get(at.checked_rem(self.started.len())?).copied()
    }

    fn carry_out(&mut self) {
        while let Ok(event) = self.reports.try_recv() {
            if let TransferEvent::Ended { transfer, end } = event {
                self.client.transfer_ended(transfer, &end, self.now);
            }
        }
        while let Some(action) = self.client.poll_action() {
            match action {
                Action::Transfer(active) => {
                    assert!(self.connected.contains(&active.peer), "transfers are asked of connected peers only");
                    self.started.push(active.id);
                }
                Action::Send { peer, entries } => {
                    assert!(self.connected.contains(&peer), "requests go to connected peers only");
                    let wantlists = self.wantlists.entry(peer).or_default();
                    for entry in entries {
                        if entry.ask == Ask::Cancel {
                            wantlists.remove(&entry.cid);
                        } else {
                            wantlists.insert(entry.cid, entry.ask);
                        }
                    }
                }
                Action::Search(id) => assert!(self.searching.insert(id), "one search at a time"),
                Action::StopSearch(id) => assert!(self.searching.remove(&id), "only a running search is stopped"),
                Action::Stalled(peer) => assert!(self.client.peers.contains_key(&peer)),
                Action::Joined(id, peer) => assert!(self.client.sessions[&id].answered.contains(&peer)),
                Action::Fail(failure) => {
                    assert!(self.waiting.remove(&(failure.session, failure.key)), "only wants with waiters fail");
                }
            }
        }
    }

    /// Invariants between events.
    fn check(&self) {
        let client = &self.client;
        let wanted: HashSet<(SessionId, BlockKey)> =
            client.sessions.iter().flat_map(|(id, session)| session.wants.keys().map(|key| (*id, *key))).collect();
        assert_eq!(wanted, self.waiting, "all waiters are known");
        for (key, want) in &client.wants {
            assert!(!want.sessions.is_empty());
            for id in &want.sessions {
                let session = &client.sessions[id];
                assert!(session.wants.contains_key(key));
                assert_eq!(session.queued.contains_key(&want.order), !want.is_requested(), "requested or queued");
            }
            for request in &want.asked {
                let open: Vec<_> = client.peers[&request.peer].open().filter(|(asked, _)| *asked == key).collect();
                assert_eq!(open, [(key, request.block)], "both sides have the request");
                if let Some(transfer) = request.transfer {
                    assert!(self.started.contains(&transfer), "what waits for a transfer was started");
                    assert!(client.planner.waits(transfer, key), "and the transfer is known to be awaited");
                    continue;
                }
                let wantlists = self.wantlists[&request.peer].get(&want.cid);
                // A peer that answered something else may have removed it.
                assert!(wantlists.is_none_or(|ask| (*ask == Ask::Block) == request.block), "as on the peer's wantlist");
            }
        }
        for (transfer, key) in client.planner.waiting() {
            let mut asked = client.wants.get(key).into_iter().flat_map(|want| &want.asked);
            assert!(asked.any(|request| request.transfer == Some(transfer)), "a transfer is awaited by requests only");
        }
        for (id, peer) in &client.peers {
            assert!(self.connected.contains(id));
            assert!(peer.open().all(|(key, _)| client.wants.get(key).is_some_and(|want| want.is_asked(id))));
            assert!(peer.sessions.iter().all(|session| client.sessions[session].members.contains(id)));
        }
        for (id, session) in &client.sessions {
            assert!(session.members.iter().all(|peer| client.peers[peer].sessions.contains(id)));
            assert!(session.senders.iter().all(|peer| session.members.contains(peer)));
            assert!(session.queued.values().all(|key| session.wants.contains_key(key)));
            assert!(session.probed.iter().all(|key| session.wants.contains_key(key)));
            assert_eq!(session.search == Search::Running, self.searching.contains(id));
            let without_members = session.members.is_empty() && !session.wants.is_empty();
            assert!(!without_members || session.search != Search::Idle, "a session without members searches");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_invariants_hold_after_any_events(inputs in proptest::collection::vec(input(), 1..120)) {
        let mut world = World::new();
        for input in &inputs {
            world.apply(input);
            world.carry_out();
            world.check();
        }
        // All wants end in time, and all state expires.
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
