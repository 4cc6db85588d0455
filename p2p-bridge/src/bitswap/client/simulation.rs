//! The client in a simulated network: peers with latency, rate and behaviour, and a reader that reads a file's blocks
//! in order through a window, as the file reader does. The clock is simulated, so every run is deterministic.

use super::*;
use bytes::Bytes;
use content::{Block, codec, hashes};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashSet};

const MS: Duration = Duration::from_millis(1);
const BLOCK_BYTES: usize = 256 * 1024;
const MB: f64 = 1e6;

/// The properties of a peer.
#[derive(Debug, Clone)]
struct PeerProfile {
    one_way: Duration,
    /// Bytes per second.
    rate: f64,
    stalls_at: Option<Duration>,
    sends_invalid: bool,
    /// It has one of this many blocks.
    every: u32,
    /// It has the first block in any case.
    has_root: bool,
    is_provider: bool,
}

fn honest(round_trip: u32, rate: f64) -> PeerProfile {
    PeerProfile {
        one_way: MS * round_trip / 2,
        rate,
        stalls_at: None,
        sends_invalid: false,
        every: 1,
        has_root: false,
        is_provider: true,
    }
}

struct Server {
    id: PeerId,
    profile: PeerProfile,
    queue: VecDeque<u32>,
    busy: bool,
}

enum Event {
    /// Requests reach a peer.
    Asked(usize, Vec<(u32, Ask)>),
    /// A peer has written a block to the network.
    Sent(usize, u32),
    /// A block reaches the client.
    Block(usize, u32),
    Presence(usize, u32, bool),
    Tick,
}

/// The result of a simulation.
#[derive(Debug, Default)]
struct Outcome {
    took: Duration,
    wanted: usize,
    duplicates: usize,
    presence_requests: usize,
    failures: usize,
    searches: usize,
    /// The longest wait of the reader for its next block, except for the first.
    longest_wait: Duration,
    /// The number of blocks from each peer.
    shares: Vec<usize>,
}

struct Network {
    client: Client,
    start: Instant,
    now: Instant,
    events: BinaryHeap<Reverse<(Instant, u64)>>,
    what: HashMap<u64, Event>,
    next_id: u64,
    servers: Vec<Server>,
    cids: Vec<Cid>,
    numbers: HashMap<Cid, u32>,
    outcome: Outcome,
}

impl Network {
    fn new(profiles: &[PeerProfile], blocks: u32) -> Self {
        let cids: Vec<Cid> = (0..=blocks)
            .map(|n| Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::from(n.to_be_bytes().to_vec())))
            .map(|block| *block.expect("a block").cid())
            .collect();
        let numbers = cids.iter().zip(0..).map(|(cid, n)| (*cid, n)).collect();
        let server = |profile: &PeerProfile| Server {
            id: PeerId::random(),
            profile: profile.clone(),
            queue: VecDeque::new(),
            busy: false,
        };
        let now = Instant::now();
        let servers: Vec<Server> = profiles.iter().map(server).collect();
        let outcome = Outcome { shares: vec![0; servers.len()], ..Outcome::default() };
        Self {
            client: Client::new(Config::default(), Metrics::default()),
            start: now,
            now,
            events: BinaryHeap::new(),
            what: HashMap::new(),
            next_id: 0,
            servers,
            cids,
            numbers,
            outcome,
        }
    }

    fn session(&self) -> SessionId {
        *self.cids[0].hash()
    }

    fn after(&mut self, time: Duration, event: Event) {
        let id = self.next_id;
        self.next_id += 1;
        self.what.insert(id, event);
        self.events.push(Reverse((self.now + time, id)));
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.client.poll_action() {
            match action {
                Action::Send { peer, entries } => {
                    let index = self.servers.iter().position(|server| server.id == peer).expect("known");
                    let asked: Vec<(u32, Ask)> =
                        entries.iter().map(|entry| (self.numbers[&entry.cid], entry.ask)).collect();
                    self.outcome.presence_requests += asked.iter().filter(|(_, ask)| *ask == Ask::Have).count();
                    self.after(self.servers[index].profile.one_way, Event::Asked(index, asked));
                }
                Action::Search(_) => self.outcome.searches += 1,
                Action::StopSearch(_) | Action::Joined(..) | Action::Stalled(_) | Action::Transfer(_) => {}
                Action::Fail(_) => self.outcome.failures += 1,
            }
        }
    }

    fn serve_next(&mut self, index: usize) {
        let server = &mut self.servers[index];
        let stalled = server.profile.stalls_at.is_some_and(|at| self.now >= self.start + at);
        if server.busy || stalled {
            return;
        }
        if let Some(n) = server.queue.pop_front() {
            server.busy = true;
            let takes = Duration::from_secs_f64(BLOCK_BYTES as f64 / server.profile.rate);
            self.after(takes, Event::Sent(index, n));
        }
    }

    fn on_asked(&mut self, index: usize, asked: Vec<(u32, Ask)>) {
        let PeerProfile { one_way, every, stalls_at, .. } = self.servers[index].profile;
        if stalls_at.is_some_and(|at| self.now >= self.start + at) {
            return;
        }
        for (n, ask) in asked {
            let has = (n + 1) % every == 0 || self.servers[index].profile.has_root && n == 0;
            match ask {
                Ask::Cancel => self.servers[index].queue.retain(|queued| *queued != n),
                Ask::Block if has => self.servers[index].queue.push_back(n),
                Ask::Block | Ask::Have => self.after(one_way, Event::Presence(index, n, has)),
            }
        }
        self.serve_next(index);
    }

    fn on_block(&mut self, index: usize, n: u32) {
        let (id, sends_invalid) = (self.servers[index].id, self.servers[index].profile.sends_invalid);
        // A misbehaving peer sends another block.
        let cid = if sends_invalid { self.cids.last().expect("one more than is read") } else { &self.cids[n as usize] };
        let key = BlockKey::of(cid).expect("a key");
        match self.client.received_block(id, key, BLOCK_BYTES, self.now) {
            BlockUse::Wanted => {
                self.outcome.wanted += 1;
                self.outcome.shares[index] += 1;
            }
            BlockUse::Duplicate => self.outcome.duplicates += 1,
            BlockUse::Invalid => assert!(sends_invalid, "{n} was asked for"),
        }
    }

    fn step(&mut self) {
        let Reverse((at, id)) = self.events.pop().expect("ticks go on");
        self.now = at;
        match self.what.remove(&id).expect("once") {
            Event::Asked(index, asked) => self.on_asked(index, asked),
            Event::Sent(index, n) => {
                self.servers[index].busy = false;
                let stalled = self.servers[index].profile.stalls_at.is_some_and(|at| self.now >= self.start + at);
                if !stalled {
                    self.after(self.servers[index].profile.one_way, Event::Block(index, n));
                }
                self.serve_next(index);
            }
            Event::Block(index, n) => self.on_block(index, n),
            Event::Presence(index, n, has) => {
                self.client.received_presence(self.servers[index].id, &self.cids[n as usize], has, self.now);
            }
            Event::Tick => {
                self.client.tick(self.now);
                self.after(100 * MS, Event::Tick);
            }
        }
        self.carry_out();
    }

    /// Reads all blocks in order, with up to `window` of them requested or waiting to be read.
    fn read(mut self, window: u32) -> Outcome {
        let session = self.session();
        for index in 0..self.servers.len() {
            let (id, is_provider) = (self.servers[index].id, self.servers[index].profile.is_provider);
            self.client.peer_connected(id, false, self.now);
            if is_provider {
                // The session begins with the first want, so its providers are added after that.
                self.client.want(session, self.cids[0], self.now);
                self.client.provider_found(session, id, self.now);
            }
        }
        self.after(100 * MS, Event::Tick);
        let total = u32::try_from(self.cids.len()).expect("few") - 1;
        let (mut next, mut read, mut last) = (0, 0, self.start);
        let mut open: BTreeSet<u32> = BTreeSet::new();
        while read < total {
            while next < total && next < read + window {
                self.client.want(session, self.cids[next as usize], self.now);
                open.insert(next);
                next += 1;
            }
            self.carry_out();
            self.step();
            let client = &self.client;
            let cids = &self.cids;
            open.retain(|n| BlockKey::of(&cids[*n as usize]).is_some_and(|key| client.wants.contains_key(&key)));
            let done = open.first().copied().unwrap_or(next);
            if done > read {
                if read > 0 {
                    self.outcome.longest_wait = self.outcome.longest_wait.max(self.now - last);
                }
                (read, last) = (done, self.now);
            }
            assert!(self.now < self.start + Duration::from_secs(600), "stuck at {read} of {total}");
        }
        self.outcome.took = self.now - self.start;
        self.outcome
    }
}

fn seconds(blocks: u32, rate: f64) -> f64 {
    f64::from(blocks) * BLOCK_BYTES as f64 / rate
}

#[test]
fn one_peer_is_fully_used_without_duplicates() {
    // Round trip in ms, and MB/s.
    for (round_trip, rate) in [(50, 20.0), (50, 100.0), (2, 300.0), (300, 10.0), (50, 1.0), (100, 0.1)] {
        let blocks = if rate < 1.0 { 20 } else { 400 };
        let outcome = Network::new(&[honest(round_trip, rate * MB)], blocks).read(64);
        let least = seconds(blocks, rate * MB) + f64::from(round_trip) / 1e3;
        let took = outcome.took.as_secs_f64();
        assert!(took < 1.05 * least + 0.1, "{round_trip} ms, {rate} MB/s: {took:.2} s of {least:.2}");
        assert_eq!((outcome.duplicates, outcome.failures), (0, 0), "{round_trip} ms, {rate} MB/s");
    }
}

#[test]
fn four_peers_are_nearly_four_times_as_fast_as_one() {
    let one = Network::new(&[honest(50, 6.25 * MB)], 400).read(64);
    let four = Network::new(&[(); 4].map(|()| honest(50, 6.25 * MB)), 400).read(64);
    let times = one.took.as_secs_f64() / four.took.as_secs_f64();
    assert!(times > 3.6, "{times:.2}: {four:?}");
    assert!(four.duplicates * 20 < four.wanted, "{four:?}");
}

#[test]
fn peers_get_shares_by_their_rates() {
    let rates = [1.0, 4.0, 20.0];
    let latencies = [20, 150, 50];
    let profiles: Vec<PeerProfile> = rates.iter().zip(latencies).map(|(rate, ms)| honest(ms, rate * MB)).collect();
    let outcome = Network::new(&profiles, 800).read(64);
    let least = seconds(800, rates.iter().sum::<f64>() * MB);
    assert!(outcome.took.as_secs_f64() < 1.25 * least, "{outcome:?}, {least:.2} s at least");
    assert!(outcome.duplicates * 20 < outcome.wanted, "{outcome:?}");
    assert!(outcome.shares[2] > 3 * outcome.shares[1] && outcome.shares[1] > outcome.shares[0], "{outcome:?}");
}

#[test]
fn a_stalled_peer_is_replaced_in_under_a_second() {
    for others in 1..4 {
        let mut profiles = vec![honest(50, 10.0 * MB); others + 1];
        profiles[0].stalls_at = Some(1_000 * MS);
        let outcome = Network::new(&profiles, 400).read(64);
        assert!(outcome.longest_wait < 700 * MS, "{others} others: {outcome:?}");
        assert_eq!(outcome.failures, 0);
        assert!(outcome.duplicates * 20 < outcome.wanted, "{outcome:?}");
    }
}

#[test]
fn misbehaving_and_partial_peers_do_no_harm() {
    let misbehaving = PeerProfile { sends_invalid: true, ..honest(10, 20.0 * MB) };
    let part = |every| PeerProfile { every, has_root: true, ..honest(30, 10.0 * MB) };
    let outcome = Network::new(&[misbehaving, part(2), part(3), honest(80, 5.0 * MB)], 300).read(64);
    assert_eq!((outcome.failures, outcome.shares[0]), (0, 0), "{outcome:?}");
    assert!(outcome.shares[1..].iter().all(|share| *share > 0), "{outcome:?}");
    assert!(outcome.duplicates * 20 < outcome.wanted, "{outcome:?}");
}

#[test]
fn unrelated_peers_are_not_asked_while_a_member_delivers() {
    let unrelated = PeerProfile { is_provider: false, every: 1_000_000, ..honest(20, MB) };
    let mut profiles = vec![unrelated; 200];
    profiles[0] = honest(50, MB);
    let outcome = Network::new(&profiles, 60).read(16);
    assert!(outcome.presence_requests <= 16, "{outcome:?}");
    assert_eq!((outcome.duplicates, outcome.searches), (0, 1), "{outcome:?}");
}

#[test]
fn peers_with_only_the_root_do_not_displace_useful_ones() {
    let unrelated = PeerProfile { is_provider: false, every: 1_000_000, has_root: true, ..honest(20, MB) };
    let mut profiles = vec![unrelated; 100];
    profiles[99] = honest(50, MB);
    let outcome = Network::new(&profiles, 60).read(16);
    assert!(outcome.shares[99] >= 59, "{outcome:?}");
    assert!(outcome.took.as_secs_f64() < 1.1 * seconds(60, MB) + 0.2, "{outcome:?}");
    assert!(outcome.presence_requests < 100, "{outcome:?}");
}

#[test]
fn all_requests_are_cancelled_when_the_reader_is_cancelled() {
    let mut network = Network::new(&[honest(50, MB), honest(50, MB)], 100);
    let session = network.session();
    for server in &network.servers {
        network.client.peer_connected(server.id, true, network.now);
    }
    let cids = network.cids.clone();
    for cid in &cids {
        network.client.want(session, *cid, network.now);
    }
    let mut open: HashSet<(PeerId, Cid)> = HashSet::new();
    for leave in [false, true] {
        if leave {
            for cid in &cids {
                network.client.cancel(session, BlockKey::of(cid).expect("a key"), network.now);
            }
        }
        while let Some(action) = network.client.poll_action() {
            let Action::Send { peer, entries } = action else { continue };
            for entry in entries {
                match entry.ask {
                    Ask::Cancel => _ = open.remove(&(peer, entry.cid)),
                    Ask::Block | Ask::Have => _ = open.insert((peer, entry.cid)),
                }
            }
        }
        assert_eq!(open.is_empty(), leave);
    }
}
