//! Known providers of DAGs: peers that sent blocks of a DAG, saved across restarts, so that a DAG that was read before
//! is found again without a search.
//!
//! Bounded in DAGs, providers per DAG and addresses per provider; the least recently used DAG is evicted first. A
//! provider is removed when a dial of it fails, because the parallel search finds another one, but not when its dial is
//! aborted in favour of others. Saved as one JSON file, atomically; a corrupt file loses the known providers, but does
//! not prevent the start.

use super::plan::Provider;
use crate::epoch;
use crate::wants::SessionId;
use libp2p::{Multiaddr, PeerId};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

const FILE: &str = "providers.json";
/// Maximum DAGs with known providers.
const ROOTS_MAX: usize = 4_096;
/// Maximum providers of one DAG.
const PROVIDERS_MAX: usize = 4;
/// Maximum addresses of one provider.
const ADDRESSES_MAX: usize = 4;
/// The maximum size of a file to read, in bytes: several times what is ever written.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Entries unused for so long are removed: providers move to other machines.
const TTL: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct KnownProvider {
    peer: String,
    addresses: Vec<Multiaddr>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct KnownDag {
    providers: Vec<KnownProvider>,
    /// Seconds since the Unix epoch.
    used: u64,
}

/// The table of known providers.
#[derive(Debug)]
pub struct Memory {
    path: PathBuf,
    roots: HashMap<SessionId, KnownDag>,
    changed: bool,
}

impl Memory {
    /// Loads the table from a directory. A missing or corrupt file is an empty table.
    pub fn load(directory: &Path) -> Self {
        let path = directory.join(FILE);
        let roots = read(&path).unwrap_or_else(|error| {
            let path = path.display();
            tracing::debug!(%path, %error, "could not load the known providers: starting without them");
            HashMap::new()
        });
        Self { path, roots, changed: false }
    }

    /// The known providers of a DAG, the latest first.
    pub fn providers(&self, root: &SessionId) -> Vec<Provider> {
        let known = self.roots.get(root).into_iter().flat_map(|entry| &entry.providers);
        known
            .filter_map(|known| Some(Provider { peer: known.peer.parse().ok()?, addresses: known.addresses.clone() }))
            .collect()
    }

    /// Adds a provider that sent blocks of a DAG. A provider without addresses cannot be dialled and is ignored.
    pub fn proved(&mut self, root: SessionId, provider: Provider, now: SystemTime) {
        let Provider { peer, mut addresses } = provider;
        addresses.truncate(ADDRESSES_MAX);
        if addresses.is_empty() {
            return;
        }
        self.evict_for(&root);
        let entry = self.roots.entry(root).or_insert_with(|| KnownDag { providers: Vec::new(), used: 0 });
        let peer = peer.to_string();
        entry.providers.retain(|known| known.peer != peer);
        entry.providers.insert(0, KnownProvider { peer, addresses });
        entry.providers.truncate(PROVIDERS_MAX);
        entry.used = epoch::seconds(now);
        self.changed = true;
    }

    /// Removes a provider of a DAG that could not be reached.
    pub fn failed(&mut self, root: &SessionId, peer: &PeerId) {
        let Some(entry) = self.roots.get_mut(root) else { return };
        let peer = peer.to_string();
        let before = entry.providers.len();
        entry.providers.retain(|known| known.peer != peer);
        self.changed |= entry.providers.len() != before;
        if entry.providers.is_empty() {
            self.roots.remove(root);
        }
    }

    /// The file and content to save, if anything changed since the last call. The caller writes it outside of the swarm
    /// task.
    pub fn take_changes(&mut self, now: SystemTime) -> Option<(PathBuf, Vec<u8>)> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let oldest = epoch::seconds(now).saturating_sub(TTL.as_secs());
        self.roots.retain(|_, entry| entry.used >= oldest);
        let named: HashMap<String, &KnownDag> =
            self.roots.iter().map(|(root, entry)| (hex(&root.to_bytes()), entry)).collect();
        Some((self.path.clone(), serde_json::to_vec(&named).ok()?))
    }

    fn evict_for(&mut self, root: &SessionId) {
        if self.roots.len() >= ROOTS_MAX
            && !self.roots.contains_key(root)
            && let Some(oldest) = self.roots.iter().min_by_key(|(_, entry)| entry.used).map(|(root, _)| *root)
        {
            self.roots.remove(&oldest);
        }
    }
}

fn read(path: &Path) -> io::Result<HashMap<SessionId, KnownDag>> {
    if fs::metadata(path)?.len() > FILE_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let named: HashMap<String, KnownDag> = serde_json::from_slice(&fs::read(path)?)?;
    let known =
        named.into_iter().filter_map(|(root, entry)| Some((SessionId::from_bytes(&unhex(&root)?).ok()?, entry)));
    Ok(known.take(ROOTS_MAX).collect())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some((digit(pair.first()?)? << 4) | digit(pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::hashes;

    fn root(n: u64) -> SessionId {
        SessionId::wrap(hashes::SHA2_256, &[n.to_be_bytes(); 4].concat()).expect("multihash")
    }

    fn provider(port: u16) -> Provider {
        let address = format!("/ip4/192.0.2.1/tcp/{port}").parse().expect("address");
        Provider { peer: PeerId::random(), addresses: vec![address; 9] }
    }

    #[test]
    fn providers_survive_a_restart_until_they_fail_and_a_corrupt_file_is_ignored() {
        let directory = tempfile::tempdir().expect("directory");
        let now = SystemTime::now();
        let mut memory = Memory::load(directory.path());
        let all: Vec<Provider> = (1..=5).map(provider).collect();
        for provider in &all {
            memory.proved(root(1), provider.clone(), now);
        }
        let (path, bytes) = memory.take_changes(now).expect("changed");
        assert_eq!(memory.take_changes(now), None);
        fs::write(&path, bytes).expect("writes");
        let mut memory = Memory::load(directory.path());
        let kept: Vec<PeerId> = memory.providers(&root(1)).iter().map(|provider| provider.peer).collect();
        assert_eq!(kept, [4, 3, 2, 1].map(|n: usize| all[n].peer), "the latest first");
        assert!(memory.providers(&root(1)).iter().all(|provider| provider.addresses.len() == ADDRESSES_MAX));
        kept.iter().for_each(|peer| memory.failed(&root(1), peer));
        assert!(memory.providers(&root(1)).is_empty() && memory.roots.is_empty());
        for corrupt in ["{", "[]", r#"{"zz":{"providers":[],"used":1},"12zé":{"providers":[],"used":1}}"#] {
            fs::write(&path, corrupt).expect("writes");
            assert!(Memory::load(directory.path()).roots.is_empty(), "{corrupt}");
        }
    }

    #[test]
    fn the_table_is_bounded_and_evicts_the_least_recently_used() {
        let directory = tempfile::tempdir().expect("directory");
        let mut memory = Memory::load(directory.path());
        let start = SystemTime::now();
        let one = provider(1);
        for n in 0..=ROOTS_MAX as u64 {
            memory.proved(root(n), one.clone(), start + Duration::from_secs(n));
        }
        assert_eq!(memory.roots.len(), ROOTS_MAX);
        assert!(memory.providers(&root(0)).is_empty() && !memory.providers(&root(1)).is_empty());
        memory.take_changes(start + TTL + Duration::from_secs(ROOTS_MAX as u64 + 1));
        assert!(memory.roots.is_empty());
    }
}
