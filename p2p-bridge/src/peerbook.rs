//! The table of good peers that outlives a restart, so that the network is found again without a bootstrap host.
//!
//! Holds up to 900 peers, the size of the address book in the published design (*Design and Evaluation of IPFS*, section
//! 3.2), least recently seen out first. Written as one JSON file, whole or not at all; a damaged file costs the memory of
//! peers, not the start.

use libp2p::{Multiaddr, PeerId};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

const FILE: &str = "peers.json";
const PEERS_MAX: usize = 900;
/// Addresses kept of one peer.
const ADDRESSES_MAX: usize = 8;
/// Peers not seen for this long are forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30 * 24 * 3600);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Entry {
    addresses: Vec<Multiaddr>,
    /// Seconds since the Unix epoch.
    seen: u64,
}

/// Peers that were connected and useful to the DHT.
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
        Self { path, peers, changed: false }
    }

    /// Every peer and its addresses, most recently seen first.
    pub fn peers(&self) -> Vec<(PeerId, Vec<Multiaddr>)> {
        let mut peers: Vec<_> = self.peers.iter().collect();
        peers.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.seen));
        peers.into_iter().map(|(peer, entry)| (*peer, entry.addresses.clone())).collect()
    }

    /// The addresses of one peer.
    pub fn addresses(&self, peer: &PeerId) -> Vec<Multiaddr> {
        self.peers.get(peer).map(|entry| entry.addresses.clone()).unwrap_or_default()
    }

    /// A good peer was seen at these addresses.
    pub fn saw(&mut self, peer: PeerId, mut addresses: Vec<Multiaddr>, now: SystemTime) {
        if addresses.is_empty() {
            return;
        }
        addresses.truncate(ADDRESSES_MAX);
        let seen = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.peers.insert(peer, Entry { addresses, seen });
        self.changed = true;
        if self.peers.len() > PEERS_MAX
            && let Some(oldest) = self.peers.iter().min_by_key(|(_, entry)| entry.seen).map(|(peer, _)| *peer)
        {
            self.peers.remove(&oldest);
        }
    }

    /// What to write, if anything changed since the last call. Writing is left to [`save`], away from the swarm task.
    pub fn take_changes(&mut self, now: SystemTime) -> Option<(PathBuf, Vec<u8>)> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let oldest = now.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(FORGOTTEN_AFTER).as_secs();
        self.peers.retain(|_, entry| entry.seen >= oldest);
        let named: HashMap<String, &Entry> = self.peers.iter().map(|(peer, entry)| (peer.to_string(), entry)).collect();
        Some((self.path.clone(), serde_json::to_vec(&named).ok()?))
    }
}

/// Replaces a file by new contents, whole or not at all.
///
/// # Errors
/// Whatever the file system says.
pub fn save(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    fs::write(&partial, bytes)?;
    fs::rename(&partial, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Multiaddr {
        format!("/ip4/127.0.0.1/tcp/{port}").parse().expect("address")
    }

    #[test]
    fn good_peers_outlive_a_restart_and_damage_is_survived() {
        let directory = tempfile::tempdir().expect("directory");
        let now = SystemTime::now();
        let mut book = Peerbook::load(directory.path());
        let peer = PeerId::random();
        book.saw(peer, vec![address(1)], now);
        let (path, bytes) = book.take_changes(now).expect("changed");
        assert_eq!(book.take_changes(now), None);
        save(&path, &bytes).expect("saves");
        assert_eq!(Peerbook::load(directory.path()).peers(), vec![(peer, vec![address(1)])]);
        fs::write(&path, b"{").expect("damages");
        assert_eq!(Peerbook::load(directory.path()).peers(), vec![]);
    }

    #[test]
    fn the_table_is_bounded_and_forgets_the_longest_unseen() {
        let directory = tempfile::tempdir().expect("directory");
        let mut book = Peerbook::load(directory.path());
        let start = SystemTime::now();
        let first = PeerId::random();
        book.saw(first, vec![address(1)], start);
        for n in 0..PEERS_MAX as u64 {
            book.saw(PeerId::random(), vec![address(2); 20], start + Duration::from_secs(n + 1));
        }
        assert_eq!(book.peers().len(), PEERS_MAX);
        assert!(book.addresses(&first).is_empty());
        assert!(book.peers().iter().all(|(_, addresses)| addresses.len() <= ADDRESSES_MAX));
        let much_later = start + FORGOTTEN_AFTER + Duration::from_secs(PEERS_MAX as u64 + 2);
        book.take_changes(much_later);
        assert_eq!(book.peers(), vec![]);
    }
}
