//! The table of good peers that outlives a restart, so that the network is found again without a bootstrap host, and known
//! providers without a search.
//!
//! Holds up to 900 peers, the size of the address book in the published design (*Design and Evaluation of IPFS*, section
//! 3.2). Peers that gave us content stay longest, a third of the book at most; then those of the routing tables; then those
//! that were seen last. Written as one JSON file, whole or not at all; a damaged file costs the memory of peers, not the
//! start.
//!
//! A peer may be a neighbour and in the public network at once. What it says of itself over a connection of one scope replaces
//! what it said over others of that scope, and leaves its addresses of the other scope alone.

use libp2p::{Multiaddr, PeerId};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

const FILE: &str = "peers.json";
const PEERS_MAX: usize = 900;
/// Peers that stay because they gave us content.
const USEFUL_MAX: usize = PEERS_MAX / 3;
/// Addresses kept of one peer in one scope.
const ADDRESSES_MAX: usize = 8;
/// Addresses kept of one peer in all.
const ALL_ADDRESSES_MAX: usize = 2 * ADDRESSES_MAX;
/// Peers that were neither seen nor useful for this long are forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30 * 24 * 3600);
/// Failures in a row after which a provider is no better than any other peer.
const FAILURES_MAX: u8 = 3;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Entry {
    addresses: Vec<Multiaddr>,
    /// When it was last known for a server of the DHT, in seconds since the Unix epoch; 0: never.
    seen: u64,
    /// It is in a routing table.
    table: bool,
    /// When it last gave us content, in seconds since the Unix epoch; 0: never.
    useful: u64,
    /// The binary logarithm of the bytes a second that it gave.
    rate: u8,
    /// Failures since.
    failures: u8,
}

impl Entry {
    fn is_useful(&self) -> bool {
        self.useful > 0 && self.failures < FAILURES_MAX
    }

    /// Whoever has the lowest goes first.
    fn rank(&self) -> (u8, u64) {
        let class = if self.is_useful() { 2 } else { self.table.into() };
        (class, self.seen.max(self.useful))
    }
}

/// How good a provider was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Score {
    /// When it last gave us content.
    pub useful: SystemTime,
    /// Bytes a second that it gave then: a power of two.
    pub bytes_per_second: u64,
    /// Failures since.
    pub failures: u8,
}

/// Peers that were of use to the DHT or to us.
#[derive(Debug)]
pub struct Peerbook {
    path: PathBuf,
    peers: HashMap<PeerId, Entry>,
    changed: bool,
}

impl Peerbook {
    /// Reads the table of a directory. A missing or damaged file is an empty table.
    pub fn load(directory: &Path) -> Self {
        let path = directory.join(FILE);
        let peers = fs::read(&path).map_err(|error| error.to_string()).and_then(|bytes| {
            serde_json::from_slice::<HashMap<String, Entry>>(&bytes).map_err(|error| error.to_string())
        });
        let peers = match peers {
            Ok(peers) => peers.into_iter().filter_map(|(id, entry)| Some((id.parse().ok()?, entry))).collect(),
            Err(reason) => {
                tracing::debug!(path = %path.display(), reason, "starting without remembered peers");
                HashMap::new()
            }
        };
        let mut book = Self { path, peers, changed: false };
        book.peers.values_mut().for_each(|entry| entry.addresses.truncate(ALL_ADDRESSES_MAX));
        book.make_room();
        book
    }

    /// The servers of the DHT and their addresses: those of the routing tables first, then the last seen.
    pub fn peers(&self) -> Vec<(PeerId, Vec<Multiaddr>)> {
        let mut peers: Vec<_> = self.peers.iter().filter(|(_, entry)| entry.seen > 0).collect();
        peers.sort_by_key(|(_, entry)| std::cmp::Reverse((entry.table, entry.seen)));
        peers.into_iter().map(|(peer, entry)| (*peer, entry.addresses.clone())).collect()
    }

    /// The addresses of one peer.
    pub fn addresses(&self, peer: &PeerId) -> Vec<Multiaddr> {
        self.peers.get(peer).map(|entry| entry.addresses.clone()).unwrap_or_default()
    }

    /// How good a peer was as a provider, if it ever was one.
    pub fn score(&self, peer: &PeerId) -> Option<Score> {
        let entry = self.peers.get(peer).filter(|entry| entry.useful > 0)?;
        let useful = UNIX_EPOCH + Duration::from_secs(entry.useful);
        Some(Score { useful, bytes_per_second: 1 << entry.rate.min(63), failures: entry.failures })
    }

    /// The peers that gave us content and have not failed since, the fastest first.
    pub fn providers(&self) -> Vec<PeerId> {
        let mut useful: Vec<_> = self.peers.iter().filter(|(_, entry)| entry.is_useful()).collect();
        useful.sort_by_key(|(_, entry)| std::cmp::Reverse((entry.rate, entry.useful)));
        useful.into_iter().map(|(peer, _)| *peer).collect()
    }

    /// A server of the DHT was seen in a scope: `belongs` says which addresses are of that scope. Those given replace the known
    /// ones of the scope.
    pub fn saw(
        &mut self,
        peer: PeerId,
        addresses: Vec<Multiaddr>,
        belongs: impl Fn(&Multiaddr) -> bool,
        now: SystemTime,
    ) {
        if addresses.is_empty() {
            return;
        }
        let entry = self.peers.entry(peer).or_default();
        entry.addresses.retain(|known| !belongs(known));
        entry.addresses.splice(0..0, addresses.into_iter().take(ADDRESSES_MAX));
        entry.addresses.truncate(ALL_ADDRESSES_MAX);
        entry.seen = seconds(now).max(1);
        self.changed = true;
        self.make_room();
    }

    /// The peers that are in the routing tables now, and those of them that were never seen since the start with the
    /// addresses that the tables have.
    pub fn in_tables(&mut self, table: Vec<(PeerId, Vec<Multiaddr>)>, now: SystemTime) {
        let there: HashSet<PeerId> = table.iter().map(|(peer, _)| *peer).collect();
        for (peer, entry) in &mut self.peers {
            self.changed |= entry.table != there.contains(peer);
            entry.table = there.contains(peer);
        }
        for (peer, mut addresses) in table {
            if !self.peers.contains_key(&peer) && !addresses.is_empty() {
                addresses.truncate(ADDRESSES_MAX);
                let seen = seconds(now).max(1);
                self.peers.insert(peer, Entry { addresses, seen, table: true, ..Entry::default() });
                self.changed = true;
            }
        }
        self.make_room();
    }

    /// A peer gave us content, from one of these addresses, as fast as is said.
    pub fn useful(&mut self, peer: PeerId, addresses: &[Multiaddr], bytes_per_second: u64, now: SystemTime) {
        let entry = self.peers.entry(peer).or_default();
        for address in addresses.iter().take(ADDRESSES_MAX) {
            if !entry.addresses.contains(address) {
                entry.addresses.insert(0, address.clone());
            }
        }
        entry.addresses.truncate(ALL_ADDRESSES_MAX);
        // The logarithm of a u64 is less than 64.
        entry.rate = bytes_per_second.max(1).ilog2() as u8;
        entry.useful = seconds(now).max(1);
        entry.failures = 0;
        self.changed = true;
        self.make_room();
    }

    /// A peer that we hoped to get content from was not there, or gave none.
    pub fn failed(&mut self, peer: &PeerId) {
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.failures = entry.failures.saturating_add(1);
            self.changed = true;
        }
    }

    /// The least useful ones go.
    fn make_room(&mut self) {
        while self.peers.values().filter(|entry| entry.is_useful()).count() > USEFUL_MAX {
            let useful = self.peers.values_mut().filter(|entry| entry.is_useful());
            let Some(oldest) = useful.min_by_key(|entry| entry.useful) else { break };
            oldest.useful = 0;
        }
        while self.peers.len() > PEERS_MAX {
            let last = self.peers.iter().min_by_key(|(_, entry)| entry.rank()).map(|(peer, _)| *peer);
            let Some(last) = last else { break };
            self.peers.remove(&last);
        }
    }

    /// What to write, if anything changed since the last call. Writing is left to [`save`], away from the swarm task.
    pub fn take_changes(&mut self, now: SystemTime) -> Option<(PathBuf, Vec<u8>)> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let oldest = seconds(now).saturating_sub(FORGOTTEN_AFTER.as_secs());
        self.peers.retain(|_, entry| entry.table || entry.seen.max(entry.useful) >= oldest);
        let named: HashMap<String, &Entry> = self.peers.iter().map(|(peer, entry)| (peer.to_string(), entry)).collect();
        Some((self.path.clone(), serde_json::to_vec(&named).ok()?))
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Replaces a file by new contents, whole or not at all, whatever is cut off and whenever.
///
/// # Errors
/// Whatever the file system says.
pub fn save(path: &Path, bytes: &[u8]) -> io::Result<()> {
    /// The last writing before the end may come while another one is under way.
    static WRITING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = WRITING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let partial = path.with_extension("partial");
    let mut file = fs::File::create(&partial)?;
    io::Write::write_all(&mut file, bytes)?;
    file.sync_all()?;
    fs::rename(&partial, path)?;
    // The new name is on the disk when its folder is.
    path.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Multiaddr {
        format!("/ip4/127.0.0.1/tcp/{port}").parse().expect("address")
    }

    fn book(directory: &tempfile::TempDir) -> Peerbook {
        Peerbook::load(directory.path())
    }

    #[test]
    fn good_peers_outlive_a_restart_and_damage_is_survived() {
        let directory = tempfile::tempdir().expect("directory");
        let now = SystemTime::now();
        let mut book = book(&directory);
        let (peer, provider) = (PeerId::random(), PeerId::random());
        book.saw(peer, vec![address(1)], |_| true, now);
        book.useful(provider, &[address(2)], 5_000_000, now);
        let (path, bytes) = book.take_changes(now).expect("changed");
        assert_eq!(book.take_changes(now), None);
        save(&path, &bytes).expect("saves");
        let read = Peerbook::load(directory.path());
        assert_eq!(read.peers(), [(peer, vec![address(1)])], "a provider need not be a server of the DHT");
        assert_eq!((read.providers(), read.addresses(&provider)), (vec![provider], vec![address(2)]));
        assert_eq!(read.score(&provider).map(|score| score.bytes_per_second), Some(1 << 22));
        fs::write(&path, b"{").expect("damages");
        assert_eq!(Peerbook::load(directory.path()).peers(), []);
        fs::write(&path, format!(r#"{{"{peer}":{{"addresses":["/ip4/127.0.0.1/tcp/7"],"seen":9}},"x":{{}}}}"#))
            .expect("an old file");
        assert_eq!(Peerbook::load(directory.path()).peers(), [(peer, vec![address(7)])]);
    }

    #[test]
    fn a_sighting_in_one_scope_leaves_the_addresses_of_the_other() {
        let directory = tempfile::tempdir().expect("directory");
        let (mut book, peer, now) = (book(&directory), PeerId::random(), SystemTime::now());
        let public: Multiaddr = "/ip4/8.8.8.8/tcp/4001".parse().expect("address");
        let is_public = |address: &Multiaddr| crate::scope::Scope::Wan.admits(address);
        book.saw(peer, vec![public.clone()], is_public, now);
        book.saw(peer, vec![address(1)], |address| !is_public(address), now);
        assert_eq!(book.addresses(&peer), [address(1), public.clone()]);
        book.saw(peer, vec![address(2)], |address| !is_public(address), now);
        assert_eq!(book.addresses(&peer), [address(2), public], "the last of its scope counts");
    }

    #[test]
    fn the_table_is_bounded_and_forgets_the_longest_unseen() {
        let directory = tempfile::tempdir().expect("directory");
        let mut book = book(&directory);
        let start = SystemTime::now();
        let [first, in_table, useful] = std::array::from_fn(|_| PeerId::random());
        book.saw(first, vec![address(1)], |_| true, start);
        book.in_tables(vec![(in_table, vec![address(1)])], start);
        book.useful(useful, &[], 1, start);
        for n in 0..PEERS_MAX as u64 {
            book.saw(PeerId::random(), vec![address(2); 20], |_| true, start + Duration::from_secs(n + 1));
        }
        assert_eq!(book.peers.len(), PEERS_MAX);
        assert!(book.addresses(&first).is_empty());
        assert_eq!(book.peers()[0], (in_table, vec![address(1)]), "those of the tables stay, and come first");
        assert_eq!(book.providers(), [useful]);
        assert!(book.peers().iter().all(|(_, addresses)| addresses.len() <= ADDRESSES_MAX));
        let much_later = start + FORGOTTEN_AFTER + Duration::from_secs(PEERS_MAX as u64 + 2);
        book.take_changes(much_later);
        assert_eq!(book.peers(), [(in_table, vec![address(1)])]);
        book.in_tables(vec![], much_later);
        book.take_changes(much_later);
        assert!(book.peers.is_empty());
    }

    #[test]
    fn providers_are_bounded_and_leave_when_they_fail() {
        let directory = tempfile::tempdir().expect("directory");
        let mut book = book(&directory);
        let start = SystemTime::now();
        let peers: Vec<PeerId> = (0..2 * USEFUL_MAX).map(|_| PeerId::random()).collect();
        for (n, peer) in peers.iter().enumerate() {
            book.useful(*peer, &[address(1)], 1 << (n % 8), start + Duration::from_secs(n as u64));
        }
        assert_eq!(book.providers().len(), USEFUL_MAX);
        let fastest = book.providers()[0];
        assert_eq!(book.score(&fastest).map(|score| score.bytes_per_second), Some(1 << 7));
        for n in 1..=FAILURES_MAX {
            book.failed(&fastest);
            assert_eq!(book.providers().contains(&fastest), n < FAILURES_MAX);
        }
        book.useful(fastest, &[], 1, start);
        assert!(book.providers().contains(&fastest), "forgiven");
    }
}
