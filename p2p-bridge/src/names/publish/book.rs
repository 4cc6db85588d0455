//! [`PublicationStore`]: the published names on disk.
//!
//! One file per name, so that a change writes one small file. A change is durable before it is acknowledged. Records
//! are verified when they are read, and a corrupt file affects only its own name.

use super::PublishError;
use super::entry::{Published, Put};
use crate::{durable, epoch};
use bytes::Bytes;
use cid::multibase::Base;
use content::ipns::{RECORD_BYTES_MAX, Record};
use content::names::Key;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

const FOLDER: &str = "published";
const SUFFIX: &str = ".json";
/// The maximum size of a file to read.
const FILE_BYTES_MAX: usize = 4 * RECORD_BYTES_MAX;

/// The format of a file. Times are seconds since the Unix epoch.
#[derive(Serialize, Deserialize)]
struct Stored {
    /// Base64.
    record: String,
    lifetime: u64,
    published: u64,
    signed: u64,
    compared: bool,
    last_put: Option<u64>,
    puts: BTreeMap<String, StoredPut>,
}

#[derive(Serialize, Deserialize)]
struct StoredPut {
    at: u64,
    peers: usize,
}

fn time(seconds: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

impl Stored {
    fn of(entry: &Published) -> Self {
        let put = |put: &Put| StoredPut { at: epoch::seconds(put.at), peers: put.peers };
        Self {
            record: Base::Base64Pad.encode(entry.record.bytes()),
            lifetime: entry.lifetime.as_secs(),
            published: epoch::seconds(entry.published),
            signed: epoch::seconds(entry.signed),
            compared: entry.compared,
            last_put: entry.last_put.map(epoch::seconds),
            puts: entry.puts.iter().map(|(target, at)| (target.clone(), put(at))).collect(),
        }
    }

    /// The publication, if the file is valid. The record may have expired, because it can be renewed.
    fn entry(self, key: Key) -> Option<Published> {
        let bytes = Bytes::from(Base::Base64Pad.decode(self.record).ok()?);
        let put = |(target, put): (String, StoredPut)| Some((target, Put { at: time(put.at)?, peers: put.peers }));
        Some(Published {
            key,
            record: Record::verify(&key, bytes).ok()?,
            lifetime: Duration::from_secs(self.lifetime),
            published: time(self.published)?,
            signed: time(self.signed)?,
            compared: self.compared,
            last_put: self.last_put.and_then(time),
            puts: self.puts.into_iter().map(put).collect::<Option<_>>()?,
        })
    }
}

impl Published {
    /// The publication as it is stored, in JSON.
    ///
    /// # Errors
    /// If it cannot be encoded.
    pub fn to_json(&self) -> io::Result<Vec<u8>> {
        serde_json::to_vec(&Stored::of(self)).map_err(io::Error::other)
    }

    /// A publication of a name, as it was stored. Its record is verified, and may have expired.
    ///
    /// # Errors
    /// If it is invalid, or the record is not one of the name.
    pub fn from_json(key: Key, json: &[u8]) -> io::Result<Self> {
        let stored: Stored = serde_json::from_slice(json)?;
        stored.entry(key).ok_or_else(|| io::Error::other("the record is corrupt"))
    }
}

/// The published names. Changes write files, so call them from blocking threads.
pub struct PublicationStore {
    folder: PathBuf,
    entries: RwLock<BTreeMap<Key, Published>>,
    /// Held while a publication is changed.
    changing: Mutex<()>,
}

impl PublicationStore {
    /// Reads the published names below a folder, which is created if it does not exist. The caller must have the
    /// keystore of the same folder open, whose lock covers both.
    ///
    /// # Errors
    /// [`PublishError::Io`]. A corrupt file is not an error: it is logged and left in place.
    pub fn open(state_dir: &Path) -> Result<Self, PublishError> {
        let folder = state_dir.join(FOLDER);
        let at = |source| PublishError::Io { path: folder.clone(), source };
        durable::create_folder(&folder).map_err(at)?;
        let mut entries = BTreeMap::new();
        for entry in fs::read_dir(&folder).map_err(at)? {
            let path = entry.map_err(at)?.path();
            let stem = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(SUFFIX));
            let Some(key) = stem.and_then(Key::parse) else { continue };
            match read(&path, key) {
                Ok(entry) => _ = entries.insert(key, entry),
                Err(error) => {
                    let path = path.display();
                    tracing::error!(%path, %error, "could not read a published name: restore it or publish it again");
                }
            }
        }
        Ok(Self { folder, entries: RwLock::new(entries), changing: Mutex::default() })
    }

    /// The publication of a key.
    pub fn get(&self, key: &Key) -> Option<Published> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// All publications.
    pub fn list(&self) -> Vec<Published> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Replaces the publication of a key by the result of `change`, or leaves it if that is `None`. When this returns,
    /// the change is durable.
    ///
    /// # Errors
    /// The error of `change`, or [`PublishError::Io`]; nothing has changed then.
    pub fn change(
        &self,
        key: &Key,
        change: impl FnOnce(Option<&Published>) -> Result<Option<Published>, PublishError>,
    ) -> Result<Option<Published>, PublishError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = change(self.get(key).as_ref())? else { return Ok(None) };
        let path = self.path(key);
        let written = entry.to_json().and_then(|json| durable::write(&path, &json));
        written.map_err(|source| PublishError::Io { path, source })?;
        self.entries.write().unwrap_or_else(PoisonError::into_inner).insert(*key, entry.clone());
        Ok(Some(entry))
    }

    /// Removes the publication of a key, and returns it.
    ///
    /// # Errors
    /// [`PublishError::Io`] if the file cannot be removed.
    pub fn remove(&self, key: &Key) -> Result<Option<Published>, PublishError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.path(key);
        durable::remove(&path).map_err(|source| PublishError::Io { path, source })?;
        Ok(self.entries.write().unwrap_or_else(PoisonError::into_inner).remove(key))
    }

    pub(in crate::names) fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(format!("{key}{SUFFIX}"))
    }
}

fn read(path: &Path, key: Key) -> io::Result<Published> {
    Published::from_json(key, &durable::read(path, FILE_BYTES_MAX)?)
}

#[cfg(test)]
mod tests {
    use super::super::entry::Terms;
    use super::*;
    use libp2p::identity::Keypair;

    fn entry(n: u8) -> Published {
        let pair = Keypair::ed25519_from_bytes([n; 32]).expect("any 32 bytes will do");
        let terms = Terms { lifetime: Duration::from_secs(3600), ttl: Duration::from_secs(60) };
        // Times are stored in whole seconds.
        let now = time(epoch::now()).expect("now");
        let entry = Published::new(&pair, "/ipfs/bafkqaddjnzzxazldoqwxizltoq", terms, Some(3), now).expect("signs");
        Published { compared: n.is_multiple_of(2), ..entry.put("wan", usize::from(n), now) }
    }

    #[test]
    fn publications_survive_a_restart_and_a_corrupt_file_affects_one_name() {
        let folder = tempfile::tempdir().expect("folder");
        let book = PublicationStore::open(folder.path()).expect("opens");
        let entries = [1, 2, 3].map(entry);
        for entry in &entries {
            let written = book.change(&entry.key, |before| {
                assert_eq!(before, None);
                Ok(Some(entry.clone()))
            });
            assert_eq!(written.expect("writes").as_ref(), Some(entry));
        }
        assert_eq!(book.change(&entries[0].key, |_| Ok(None)).expect("nothing to do"), None);
        assert_eq!(book.remove(&entries[2].key).expect("removes").as_ref(), Some(&entries[2]));
        let before = book.list();
        drop(book);
        let book = PublicationStore::open(folder.path()).expect("opens");
        assert_eq!((book.list(), book.list().len()), (before, 2));
        let corrupt = folder.path().join(format!("published/{}.json", entries[0].key));
        fs::write(&corrupt, b"{}").expect("writes");
        // A record of another key is as invalid as a corrupt one.
        let from = folder.path().join(format!("published/{}.json", entries[1].key));
        fs::copy(from, folder.path().join(format!("published/{}.json", entries[2].key))).expect("copies");
        let book = PublicationStore::open(folder.path()).expect("opens");
        assert_eq!(book.list(), [entries[1].clone()]);
        assert!(corrupt.exists(), "a corrupt file stays in place");
    }
}
