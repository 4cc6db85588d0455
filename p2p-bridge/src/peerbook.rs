//! The persistent table of known peers, so that the node finds the network after a restart without a bootstrap peer.
//!
//! It has up to 900 peers, the size of the address book in *Design and Evaluation of IPFS*, section 3.2: those of the
//! routing tables first, then the most recently seen. It is one JSON file, written atomically; if the file is damaged,
//! the node starts with an empty table.
//!
//! A peer may be in the local network and the public one. The addresses that it reports over a connection of one scope
//! replace the known addresses of that scope, and do not affect those of the other.

use crate::dialable::Shape;
use crate::{durable, epoch};
use libp2p::{Multiaddr, PeerId};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};
use std::{fs, io};

const FILE: &str = "peers.json";
const PEERS_MAX: usize = 900;
/// The maximum number of addresses of a peer in one scope.
const ADDRESSES_MAX: usize = 8;
/// The maximum number of addresses of a peer.
const ALL_ADDRESSES_MAX: usize = 2 * ADDRESSES_MAX;
/// Peers not seen for this long are removed.
const EXPIRY: Duration = Duration::from_secs(30 * 24 * 3600);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct PeerEntry {
    addresses: Vec<Multiaddr>,
    /// Seconds since the Unix epoch.
    seen: u64,
    /// Whether it is in a routing table.
    table: bool,
}

/// Known DHT servers.
#[derive(Debug)]
pub struct Peerbook {
    path: PathBuf,
    peers: HashMap<PeerId, PeerEntry>,
    changed: bool,
}

impl Peerbook {
    /// Loads the table of a directory. A missing or damaged file gives an empty table.
    pub fn load(directory: &Path) -> Self {
        let path = directory.join(FILE);
        let peers = fs::read(&path).map_err(|error| error.to_string()).and_then(|bytes| {
            serde_json::from_slice::<HashMap<String, PeerEntry>>(&bytes).map_err(|error| error.to_string())
        });
        let peers = match peers {
            Ok(peers) => peers.into_iter().filter_map(|(id, entry)| Some((id.parse().ok()?, entry))).collect(),
            Err(reason) => {
                tracing::debug!(path = %path.display(), reason, "cannot load the table of known peers, starting empty");
                HashMap::new()
            }
        };
        let mut book = Self { path, peers, changed: false };
        for entry in book.peers.values_mut() {
            // An earlier version may have written unsupported addresses.
            entry.addresses.retain(|address| Shape::read(address).is_ok());
            entry.addresses.truncate(ALL_ADDRESSES_MAX);
        }
        book.evict();
        book
    }

    /// All peers and their addresses: those of the routing tables first, then the most recently seen.
    pub fn peers(&self) -> Vec<(PeerId, Vec<Multiaddr>)> {
        let mut peers: Vec<_> = self.peers.iter().collect();
        peers.sort_by_key(|(_, entry)| std::cmp::Reverse((entry.table, entry.seen)));
        peers.into_iter().map(|(peer, entry)| (*peer, entry.addresses.clone())).collect()
    }

    /// The addresses of one peer.
    pub fn addresses(&self, peer: &PeerId) -> Vec<Multiaddr> {
        self.peers.get(peer).map(|entry| entry.addresses.clone()).unwrap_or_default()
    }

    /// Updates a DHT server that was seen in a scope; `belongs` tells which addresses are of that scope. The new
    /// addresses replace the known ones of the scope.
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
        entry.seen = epoch::seconds(now);
        self.changed = true;
        self.evict();
    }

    /// Updates which peers are in the routing tables. Peers of the tables that are unknown are added with the tables'
    /// addresses.
    pub fn in_tables(&mut self, table: Vec<(PeerId, Vec<Multiaddr>)>, now: SystemTime) {
        let there: HashSet<PeerId> = table.iter().map(|(peer, _)| *peer).collect();
        for (peer, entry) in &mut self.peers {
            self.changed |= entry.table != there.contains(peer);
            entry.table = there.contains(peer);
        }
        for (peer, mut addresses) in table {
            if !self.peers.contains_key(&peer) && !addresses.is_empty() {
                addresses.truncate(ADDRESSES_MAX);
                let seen = epoch::seconds(now);
                self.peers.insert(peer, PeerEntry { addresses, seen, table: true });
                self.changed = true;
            }
        }
        self.evict();
    }

    /// Evicts peers that are in no routing table, least recently seen first.
    fn evict(&mut self) {
        while self.peers.len() > PEERS_MAX {
            let last = self.peers.iter().min_by_key(|(_, entry)| (entry.table, entry.seen)).map(|(peer, _)| *peer);
            let Some(last) = last else { break };
            self.peers.remove(&last);
        }
    }

    /// The content to write, if it changed since the last call. [`save`] writes it outside the swarm task.
    pub fn take_changes(&mut self, now: SystemTime) -> Option<(PathBuf, Vec<u8>)> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let oldest = epoch::seconds(now).saturating_sub(EXPIRY.as_secs());
        self.peers.retain(|_, entry| entry.table || entry.seen >= oldest);
        let named: HashMap<String, &PeerEntry> =
            self.peers.iter().map(|(peer, entry)| (peer.to_string(), entry)).collect();
        Some((self.path.clone(), serde_json::to_vec(&named).ok()?))
    }
}

/// Replaces a file atomically.
///
/// # Errors
/// Errors of the file system.
pub fn save(path: &Path, bytes: &[u8]) -> io::Result<()> {
    /// Serialises writers: the last write at shutdown may overlap with another.
    static WRITING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = WRITING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    durable::write(path, bytes)
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
    fn peers_survive_a_restart_and_a_damaged_file_is_ignored() {
        let directory = tempfile::tempdir().expect("directory");
        let now = SystemTime::now();
        let mut book = book(&directory);
        let peer = PeerId::random();
        book.saw(peer, vec![address(1)], |_| true, now);
        let (path, bytes) = book.take_changes(now).expect("changed");
        assert_eq!(book.take_changes(now), None);
        save(&path, &bytes).expect("saves");
        assert_eq!(Peerbook::load(directory.path()).peers(), [(peer, vec![address(1)])]);
        fs::write(&path, b"{").expect("damages");
        assert_eq!(Peerbook::load(directory.path()).peers(), []);
        let addresses = r#"["/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/7","/ip4/127.0.0.1/tcp/7"]"#;
        fs::write(&path, format!(r#"{{"{peer}":{{"addresses":{addresses},"seen":9}},"x":{{}}}}"#))
            .expect("an old file");
        assert_eq!(Peerbook::load(directory.path()).peers(), [(peer, vec![address(7)])]);
    }

    #[test]
    fn updates_in_one_scope_keep_the_addresses_of_the_other() {
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
    fn the_table_is_bounded_and_evicts_the_least_recently_seen() {
        let directory = tempfile::tempdir().expect("directory");
        let mut book = book(&directory);
        let start = SystemTime::now();
        let [first, in_table] = std::array::from_fn(|_| PeerId::random());
        book.saw(first, vec![address(1)], |_| true, start);
        book.in_tables(vec![(in_table, vec![address(1)])], start);
        for n in 0..PEERS_MAX as u64 {
            book.saw(PeerId::random(), vec![address(2); 20], |_| true, start + Duration::from_secs(n + 1));
        }
        assert_eq!(book.peers.len(), PEERS_MAX);
        assert!(book.addresses(&first).is_empty());
        assert_eq!(book.peers()[0], (in_table, vec![address(1)]), "those of the tables stay, and come first");
        assert!(book.peers().iter().all(|(_, addresses)| addresses.len() <= ADDRESSES_MAX));
        let much_later = start + EXPIRY + Duration::from_secs(PEERS_MAX as u64 + 2);
        book.take_changes(much_later);
        assert_eq!(book.peers(), [(in_table, vec![address(1)])]);
        book.in_tables(vec![], much_later);
        book.take_changes(much_later);
        assert!(book.peers.is_empty());
    }
}
