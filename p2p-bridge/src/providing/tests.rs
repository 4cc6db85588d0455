//! Sweeps over simulated networks: peers with real routing tables, without sockets.

use super::desk::Action;
use super::job::Table;
use super::keys::{KeySource, WINDOW_KEYS_MAX, Window};
use super::keyspace::{Position, Prefix, REPLICATION, SLOTS};
use super::region::Region;
use super::schedule::Schedule;
use super::sweep::{Counts, Sweep};
use super::walk::{ClosestPeersLookup, Peer};
use libp2p::PeerId;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet, VecDeque};
use std::error::Error;
use std::sync::Arc;

const INTERVAL: u64 = 22 * 3600;
const NOW: u64 = 1_800_000_000;

/// A deterministic pseudo-random generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn peer(&mut self) -> PeerId {
        let mut bytes = vec![0x00, 0x20];
        (0..4).for_each(|_| bytes.extend(self.next().to_be_bytes()));
        PeerId::from_bytes(&bytes).expect("an identity multihash")
    }
}

fn key(n: u64) -> Vec<u8> {
    let mut key = vec![0x12, 0x20];
    key.resize(34, 0);
    key[10..18].copy_from_slice(&n.to_be_bytes());
    key
}

struct Numbers(std::ops::Range<u64>);

impl KeySource for Numbers {
    fn visit(&self, visit: &mut dyn FnMut(&[u8])) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.0.clone().for_each(|n| visit(&key(n)));
        Ok(())
    }
}

/// A network of peers that all know their closest peers, and up to twenty peers of every farther bucket.
struct Network {
    peers: Vec<(Position, PeerId)>,
    tables: HashMap<PeerId, Vec<usize>>,
    dead: HashSet<PeerId>,
    /// Peers that reject every record.
    rejecting: HashSet<PeerId>,
    local_id: PeerId,
    asked: u64,
    batches: u64,
    /// How often each peer got each key, if that is recorded.
    records: Option<HashMap<PeerId, HashMap<Vec<u8>, u32>>>,
}

impl Network {
    fn new(size: usize, seed: u64) -> Self {
        let mut random = Random(seed | 1);
        let local_id = random.peer();
        let mut peers: Vec<(Position, PeerId)> = (0..size)
            .map(|_| {
                let peer = random.peer();
                (Position::of_peer(&peer), peer)
            })
            .collect();
        peers.sort();
        let mut network = Self {
            peers,
            tables: HashMap::new(),
            dead: HashSet::new(),
            rejecting: HashSet::new(),
            local_id,
            asked: 0,
            batches: 0,
            records: Some(HashMap::new()),
        };
        let all: Vec<PeerId> = network.peers.iter().map(|(_, peer)| *peer).chain([local_id]).collect();
        for peer in all {
            let table = network.table_of(&peer, &mut random);
            network.tables.insert(peer, table);
        }
        network
    }

    fn range(&self, prefix: &Prefix) -> std::ops::Range<usize> {
        let start = self.peers.partition_point(|(at, _)| *at < prefix.first());
        let length = self.peers[start..].iter().take_while(|(at, _)| prefix.contains(at)).count();
        start..start + length
    }

    fn table_of(&self, peer: &PeerId, random: &mut Random) -> Vec<usize> {
        let position = Position::of_peer(peer);
        let mut table = Vec::new();
        let mut prefix = Prefix::ALL;
        loop {
            let halves = prefix.halves();
            let (near, far) =
                if halves[0].contains(&position) { (halves[0], halves[1]) } else { (halves[1], halves[0]) };
            let mut bucket: Vec<usize> = self.range(&far).collect();
            while bucket.len() > REPLICATION {
                bucket.swap_remove(random.below(bucket.len()));
            }
            table.extend(bucket);
            if self.range(&near).len() <= 1 {
                table.extend(self.range(&near));
                table.retain(|index| self.peers[*index].1 != *peer);
                return table;
            }
            prefix = near;
        }
    }

    fn closest_known(&self, to: &PeerId, target: &[u8]) -> Vec<Peer> {
        let position = Position::of(target);
        let mut known: Vec<&(Position, PeerId)> = self.tables[to].iter().map(|index| &self.peers[*index]).collect();
        known.sort_unstable_by_key(|(at, _)| at.distance(&position));
        known.into_iter().take(REPLICATION).map(|(_, id)| Peer { id: *id, addresses: Vec::new() }).collect()
    }

    fn closest_alive(&self, position: &Position) -> HashSet<PeerId> {
        let mut alive: Vec<&(Position, PeerId)> =
            self.peers.iter().filter(|(_, peer)| !self.dead.contains(peer)).collect();
        alive.sort_unstable_by_key(|(at, _)| at.distance(position));
        alive.into_iter().take(REPLICATION).map(|(_, peer)| *peer).collect()
    }

    /// The fraction of the expected records that the closest peers have.
    fn placed(&self, keys: impl Iterator<Item = Vec<u8>>) -> f64 {
        let records = self.records.as_ref().expect("kept");
        let (mut right, mut wanted) = (0, 0);
        for key in keys {
            for peer in self.closest_alive(&Position::of(&key)) {
                wanted += 1;
                right += usize::from(records.get(&peer).is_some_and(|keys| keys.contains_key(&key)));
            }
        }
        right as f64 / wanted.max(1) as f64
    }

    fn count_records(&self) -> u64 {
        let records = self.records.as_ref().expect("kept").values().flat_map(HashMap::values);
        records.map(|times| u64::from(*times)).sum()
    }
}

impl Table for Network {
    fn closest(&mut self, target: &[u8]) -> Vec<Peer> {
        self.closest_known(&self.local_id, target)
    }

    fn estimate(&mut self) -> Option<f64> {
        let own = Position::of_peer(&self.local_id);
        let farthest =
            self.closest_known(&self.local_id, &self.local_id.to_bytes()).into_iter().nth(REPLICATION - 1)?;
        Some(REPLICATION as f64 / own.distance(&Position::of_peer(&farthest.id)).share())
    }
}

/// Runs a sweep until no request is in flight, or for `rounds` round trips. Returns the number of round trips.
fn run(sweep: &mut Sweep, network: &mut Network, source: &dyn KeySource, now: u64, rounds: usize) -> usize {
    let mut under_way: VecDeque<Action> = VecDeque::new();
    for round in 0..rounds {
        sweep.advance(now, true, network);
        under_way.extend(std::iter::from_fn(|| sweep.poll_action()));
        if under_way.is_empty() {
            return round;
        }
        for action in std::mem::take(&mut under_way) {
            match action {
                Action::Load { first } => sweep.loaded(Window::load(source, first, WINDOW_KEYS_MAX), now),
                Action::Ask { id, peer, target } => {
                    network.asked += 1;
                    let answer = (!network.dead.contains(&peer.id)).then(|| network.closest_known(&peer.id, &target));
                    sweep.answered(id, answer);
                }
                Action::Announce { id, peer, batch } => {
                    network.batches += 1;
                    let taken = !network.dead.contains(&peer.id) && !network.rejecting.contains(&peer.id);
                    if taken && let Some(records) = &mut network.records {
                        let held = records.entry(peer.id).or_default();
                        batch.iter().for_each(|key| *held.entry(key.to_vec()).or_default() += 1);
                    }
                    sweep.announced(id, taken);
                }
                Action::Keep(_) => {}
            }
        }
    }
    rounds
}

fn sweep_of(network: &Network) -> Sweep {
    Sweep::new(network.local_id, Schedule::new(INTERVAL, NOW), true)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_region_gives_each_key_its_closest_peers(size in 1..120_usize, seed: u64, n: u64) {
        let network = Network::new(size, seed);
        let peers = network.peers.iter().map(|(at, id)| (*at, Peer { id: *id, addresses: vec![] })).collect();
        let region = Region { prefix: Prefix::ALL, peers: Arc::new(peers), estimate: 0.0, walks: 1 };
        let (position, own) = (Position::of(&key(n)), Position::of_peer(&network.local_id));
        let (closest, includes_local) = region.closest(&position, &own);
        let found: HashSet<PeerId> = closest.into_iter().map(|index| region.peers[index].1.id).collect();
        prop_assert_eq!(found, network.closest_alive(&position));
        let closer = network.peers.iter().filter(|(at, _)| at.distance(&position) < own.distance(&position)).count();
        prop_assert_eq!(includes_local, closer < REPLICATION);
    }

    #[test]
    fn a_walk_finds_the_closest_peers_and_its_covered_prefix(size in 1..300_usize, seed: u64, n: u64, all_live: bool) {
        let mut network = Network::new(size, seed);
        if !all_live {
            network.dead = network.peers.iter().step_by(5).map(|(_, peer)| *peer).collect();
        }
        let seeds = network.closest(&key(n));
        let mut walk = ClosestPeersLookup::new(key(n).into(), network.local_id, seeds);
        let mut questions = 0;
        while !walk.is_over() {
            let peer = walk.next_to_ask().expect("not over");
            match network.dead.contains(&peer.id) {
                true => walk.failed(&peer.id),
                false => walk.answered(&peer.id, network.closest_known(&peer.id, &key(n))),
            }
            questions += 1;
            prop_assert!(questions <= 256);
        }
        let found: HashSet<PeerId> = walk.responded().take(REPLICATION).map(|peer| peer.id).collect();
        if all_live {
            prop_assert_eq!(found, network.closest_alive(&walk.position()));
        }
        let responded: HashSet<PeerId> = walk.responded().map(|peer| peer.id).collect();
        let covered = walk.covered();
        let below = network.peers.iter().filter(|(at, peer)| covered.contains(at) && !network.dead.contains(peer));
        prop_assert!(below.filter(|(_, peer)| !responded.contains(peer)).count() <= 1);
    }
}

/// Walks through a network in which half of the peers return the `invented` peers.
fn walk_with_misbehaving_peers(network: &mut Network, target: &[u8], invented: &[PeerId]) -> ClosestPeersLookup {
    let seeds = network.closest(target);
    let mut walk = ClosestPeersLookup::new(target.into(), network.local_id, seeds);
    while !walk.is_over() {
        let peer = walk.next_to_ask().expect("not over");
        let misbehaves =
            network.peers.iter().position(|(_, known)| *known == peer.id).is_some_and(|index| index % 2 == 0);
        let named = invented.iter().filter(|_| misbehaves).map(|id| Peer { id: *id, addresses: Vec::new() });
        match invented.contains(&peer.id) {
            true => walk.failed(&peer.id),
            false => walk.answered(&peer.id, network.closest_known(&peer.id, target).into_iter().chain(named)),
        }
    }
    walk
}

#[test]
fn invented_peers_do_not_make_a_network_look_dense() {
    for seed in 1..6 {
        let (mut network, mut random) = (Network::new(100, seed), Random(seed << 32));
        let position = Position::of(&key(seed));
        let mut invented: Vec<PeerId> = (0..2_000).map(|_| random.peer()).collect();
        invented.sort_by_cached_key(|peer| Position::of_peer(peer).distance(&position));
        invented.truncate(60);
        let honest = walk_with_misbehaving_peers(&mut network, &key(seed), &[]);
        let misled = walk_with_misbehaving_peers(&mut network, &key(seed), &invented);
        let found =
            |walk: &ClosestPeersLookup| walk.responded().take(REPLICATION).map(|peer| peer.id).collect::<Vec<_>>();
        assert_eq!(found(&misled), found(&honest));
        let bits = [&honest, &misled].map(|walk| walk.covered().bits());
        assert!(bits[1] <= bits[0] + 2, "{bits:?}");
        let estimates = [&honest, &misled].map(ClosestPeersLookup::estimate);
        assert!((0.3..3.0).contains(&(estimates[1] / estimates[0])), "{estimates:?}");
    }
}

#[test]
fn every_key_is_stored_at_its_closest_peers_with_shared_walks() {
    for (size, keys) in [(3, 100), (19, 1_000), (24, 1_000), (150, 2_000), (600, 3_000)] {
        let mut network = Network::new(size, 7);
        let mut sweep = sweep_of(&network);
        run(&mut sweep, &mut network, &Numbers(0..keys), NOW, usize::MAX);
        let Counts { keys: announced, walks, failures, .. } = sweep.take_counts();
        let placed = network.placed((0..keys).map(key).step_by(7));
        println!("{size} peers, {keys} keys: {walks} walks, {} requests, {} batches", network.asked, network.batches);
        // A slot on the border of two regions may be announced in both.
        assert!((keys..=keys + keys / 20).contains(&announced) && failures == 0, "{announced} keys");
        assert!(placed > 0.995, "{size} peers: {placed} of the records are stored");
        assert!(walks as usize <= 1 + size / 5, "{size} peers took {walks} walks");
        assert!(walks as usize >= size / 40);
        let most = announced * size.min(REPLICATION) as u64;
        assert!(network.count_records() <= most);
        assert_eq!(
            sweep.status(NOW + 1),
            super::sweep::Status { keys, slots_done: usize::from(SLOTS), ..Default::default() }
        );
    }
}

#[test]
fn keys_are_announced_once_per_interval_and_evenly() {
    let mut network = Network::new(200, 3);
    let mut sweep = sweep_of(&network);
    let source = Numbers(0..2_000);
    run(&mut sweep, &mut network, &source, NOW, usize::MAX);
    let first = sweep.take_counts().keys;
    let (mut again, mut busiest) = (0, 0);
    for step in 1..=220 {
        run(&mut sweep, &mut network, &source, NOW + step * INTERVAL / 220, usize::MAX);
        let counts = sweep.take_counts();
        again += counts.keys;
        busiest = busiest.max(counts.keys);
        assert_eq!(sweep.status(NOW + step * INTERVAL / 220).lag, 0);
    }
    assert_eq!(first, 2_000);
    assert!((1_900..=2_300).contains(&again), "{again} keys in one interval");
    assert!(busiest <= 300, "{busiest} keys at once");
}

#[test]
fn a_restart_continues_a_sweep() {
    let mut network = Network::new(400, 5);
    let mut sweep = sweep_of(&network);
    let source = Numbers(0..4_000);
    run(&mut sweep, &mut network, &source, NOW, 25);
    let before = network.count_records();
    assert!(before > 0 && before < 4_000 * REPLICATION as u64, "in the middle: {before}");
    let image = sweep.take_changes().expect("changed");
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("schedule");
    std::fs::write(&path, image).expect("writes");
    let mut resumed = Sweep::new(network.local_id, Schedule::load(&path, INTERVAL, NOW + 60), true);
    run(&mut resumed, &mut network, &source, NOW + 60, usize::MAX);
    assert!(network.placed((0..4_000).map(key).step_by(9)) > 0.995);
    let all = network.count_records();
    assert!(all < 4_000 * REPLICATION as u64 * 3 / 2, "{all} records: only those in flight are sent twice");
    assert_eq!(resumed.status(NOW + 61).slots_done, usize::from(SLOTS));
}

#[test]
fn a_new_key_is_stored_within_a_few_round_trips() {
    for (size, known) in [(10, false), (20, false), (500, false), (1_500, true)] {
        let mut network = Network::new(size, 11);
        let mut sweep = Sweep::new(network.local_id, Schedule::new(INTERVAL, NOW), false);
        if known {
            // An earlier key provides the estimate of the network size.
            sweep.provide(&key(1), NOW);
            run(&mut sweep, &mut network, &Numbers(0..0), NOW, usize::MAX);
        }
        sweep.provide(&key(2), NOW);
        let mut rounds = 0;
        while network.placed([key(2)].into_iter()) < 0.95 {
            rounds += run(&mut sweep, &mut network, &Numbers(0..0), NOW, 1);
            assert!(rounds < 20, "{size} peers");
        }
        println!("{size} peers: stored after {rounds} round trips, {} records", network.count_records());
        assert!(rounds <= 5, "{size} peers: {rounds} round trips");
        run(&mut sweep, &mut network, &Numbers(0..0), NOW, usize::MAX);
        assert!(network.placed([key(2)].into_iter()) > 0.95);
        assert!(network.count_records() <= 2 * 2 * REPLICATION as u64);
    }
}

#[test]
fn many_new_keys_share_walks_without_a_source() {
    let mut network = Network::new(200, 13);
    let mut sweep = Sweep::new(network.local_id, Schedule::new(INTERVAL, NOW), false);
    (0..1_000).for_each(|n| sweep.provide(&key(n), NOW));
    assert_eq!(sweep.status(NOW).waiting, 1_000);
    run(&mut sweep, &mut network, &Numbers(0..0), NOW, usize::MAX);
    let counts = sweep.take_counts();
    assert_eq!((counts.keys, sweep.status(NOW).waiting), (1_000, 0));
    assert!(counts.walks < 80, "{} walks", counts.walks);
    assert!(network.placed((0..1_000).map(key).step_by(10)) > 0.995);
}

#[test]
fn failures_are_retried_and_dead_peers_are_skipped() {
    let mut network = Network::new(300, 17);
    let source = Numbers(0..1_000);
    let mut sweep = sweep_of(&network);
    network.rejecting = network.peers.iter().map(|(_, peer)| *peer).collect();
    run(&mut sweep, &mut network, &source, NOW, usize::MAX);
    sweep.provide(&key(5_000), NOW);
    run(&mut sweep, &mut network, &source, NOW + 1, usize::MAX);
    assert_eq!(sweep.take_counts().keys, 0, "all peers reject records");
    let lag = sweep.status(NOW + 100).lag;
    assert_eq!(lag, 100);
    // A tenth of the peers keeps rejecting records and a fifth dies.
    network.rejecting = network.peers.iter().step_by(10).map(|(_, peer)| *peer).collect();
    network.dead = network.peers.iter().skip(1).step_by(5).map(|(_, peer)| *peer).collect();
    for minute in 1..60 {
        run(&mut sweep, &mut network, &source, NOW + minute * 60, usize::MAX);
    }
    assert!(sweep.take_counts().keys >= 1_001);
    assert_eq!(sweep.status(NOW + 3_600).waiting, 0);
    let placed = network.placed((0..1_000).map(key).step_by(7));
    assert!((0.8..0.95).contains(&placed), "{placed}: all but the rejected records");
}

#[test]
fn withdrawn_keys_are_not_announced() {
    let mut network = Network::new(100, 19);
    let mut sweep = sweep_of(&network);
    sweep.loaded(Window::load(&Numbers(0..100), 0, WINDOW_KEYS_MAX), NOW);
    sweep.provide(&key(200), NOW);
    (0..50).chain([200]).for_each(|n| sweep.withdraw(&key(n)));
    run(&mut sweep, &mut network, &Numbers(0..100), NOW, usize::MAX);
    assert_eq!(network.placed((0..50).chain([200]).map(key)), 0.0);
    assert!(network.placed((50..100).map(key)) > 0.99);
}

#[test]
fn nothing_is_announced_while_offline() {
    let mut network = Network::new(0, 23);
    let mut sweep = sweep_of(&network);
    sweep.provide(&key(1), NOW);
    sweep.advance(NOW, false, &mut network);
    assert!(sweep.poll_action().is_none());
    let mut network = Network::new(5, 23);
    run(&mut sweep, &mut network, &Numbers(0..3), NOW + 5, usize::MAX);
    assert_eq!(network.placed((0..3).map(key)), 1.0);
}

/// Prints what a sweep costs: `cargo test --release -p causeway-p2p-bridge -- --ignored --nocapture a_million_keys`.
#[test]
#[ignore = "a measurement"]
fn a_million_keys_in_a_network_of_ten_thousand_peers() {
    for keys in [100_000, 1_000_000] {
        let mut network = Network::new(10_000, 29);
        network.records = None;
        let mut sweep = sweep_of(&network);
        let before = memory_kib();
        let begun = std::time::Instant::now();
        let rounds = run(&mut sweep, &mut network, &Numbers(0..keys), NOW, usize::MAX);
        let (elapsed, counts) = (begun.elapsed(), sweep.take_counts());
        println!(
            "{keys} keys: {} walks, {} requests, {} batches, {} records, {rounds} round trips, {elapsed:?} of CPU, \
             peak {} MiB more",
            counts.walks,
            network.asked,
            network.batches,
            counts.records,
            (memory_kib() - before) / 1024,
        );
        assert_eq!(counts.keys, keys);
    }
}

/// The peak memory of this process so far.
fn memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or_default()
}
