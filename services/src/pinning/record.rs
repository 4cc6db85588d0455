//! The records of the service in the pin metadata store, and their changes: JSON, which later releases can extend.
//!
//! A [`PinChange`] is a change in the service's terms. It becomes a change of a record when the service appends it, and
//! the changes of other services become such ones when they are applied.
//!
//! | key | record | content |
//! |---|---|---|
//! | `format` | [`FORMAT`] | the version of the format |
//! | `request/ID` | [`Record`] | a request and its outcome |
//! | `work/CID` | [`Work`] | attempts to fetch an incomplete DAG |
//! | `orphan/CID` | [`Orphan`] | a pin that is no longer needed, and may still be in the store |
//! | `unreadable/KEY` | anything | a record that this release cannot parse, kept under its former key |

use crate::pinning::index::{PinOutcome, StoredRequest};
use crate::pinning::request::{Meta, PinParameters};
use cache::StoreError;
use cache::metadata_store::{Change, LogEntry, LogPosition, MetadataLog};
use content::Cid;
use libp2p::Multiaddr;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::path::Path;
use std::sync::Arc;

/// The version that this release writes.
const FORMAT: u32 = 1;
const KEY_FORMAT: &[u8] = b"format";
const REQUEST: &str = "request/";
const WORK: &str = "work/";
const ORPHAN: &str = "orphan/";
const UNREADABLE: &str = "unreadable/";

/// A request.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    owner: String,
    cid: String,
    created_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Meta::is_empty")]
    meta: Meta,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    origins: Vec<Multiaddr>,
    outcome: PinOutcome,
    /// The outcome is a failure, but the stored blocks are kept: [`PinOutcome::Withheld`], which earlier releases do
    /// not support.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    withheld: bool,
    /// The owner's byte quota when the request was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes_max: Option<u64>,
    /// A root whose pin is retained until this request is settled: that of the request that it replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keeps: Option<String>,
    /// The request was created for a pin of the store that had no request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    taken_in: bool,
}

/// The attempts to fetch a DAG. Times are those of the process's [`Clock`](crate::pinning::clock::Clock).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// The number of failed attempts.
    pub attempts: u32,
    /// When a block was last received, or the work began.
    pub since_ms: u64,
    /// When the next attempt is due.
    pub due_ms: u64,
    /// Why the last attempt failed.
    pub reason: Option<String>,
    /// For how long nothing was received when this was written, in milliseconds, without the time when no process ran:
    /// the clock may have been set since.
    #[serde(default)]
    pub waited_ms: u64,
    /// The DAG was complete and has lost blocks.
    #[serde(default)]
    pub lost: bool,
}

/// A pin that is to be removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphan {
    /// When that was decided. A pin that was created later is another one.
    pub at_ms: u64,
    /// The service that removes it, if several append to the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_by: Option<String>,
}

/// A change of the records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PinChange {
    /// A new request, or another outcome of one.
    Request(StoredRequest),
    /// A request is removed.
    RemoveRequest(Arc<str>),
    /// The attempts to fetch a root.
    Work(Cid, Work),
    /// A root needs no further attempts.
    RemoveWork(Cid),
    /// The pin of a root is to be removed from the block store.
    Orphan(Cid, Orphan),
    /// It has been removed, or is needed again.
    RemoveOrphan(Cid),
}

impl PinChange {
    /// The change of a record.
    ///
    /// # Errors
    /// Serialisation errors, which do not occur in practice.
    pub fn encode(&self) -> Result<Change, StoreError> {
        Ok(match self {
            Self::Request(entry) => put(entry)?,
            Self::RemoveRequest(id) => Change::Delete(key(REQUEST, id)),
            Self::Work(root, work) => Change::Put(key(WORK, &root.to_string()), written(work)?),
            Self::RemoveWork(root) => Change::Delete(key(WORK, &root.to_string())),
            Self::Orphan(root, orphan) => Change::Put(key(ORPHAN, &root.to_string()), written(orphan)?),
            Self::RemoveOrphan(root) => Change::Delete(key(ORPHAN, &root.to_string())),
        })
    }

    /// The change of a record in the service's terms; `None` if it is none of the service's records.
    ///
    /// # Errors
    /// [`StoreError::UnknownRecord`] or [`StoreError::NewerSchema`] if a later release has made it.
    pub fn decode(change: &Change) -> Result<Option<Self>, StoreError> {
        match change {
            Change::Put(key, value) if key == KEY_FORMAT => {
                let found = serde_json::from_slice(value).map_err(|_| unknown(key))?;
                check_format(Some(found), Path::new("")).map(|()| None)
            }
            Change::Put(key, value) => match Self::of_record(key, value) {
                None if is_own(key) => Err(unknown(key)),
                change => Ok(change),
            },
            Change::Delete(key) => Ok(Self::of_deleted(key)),
        }
    }

    /// The removal of a record; `None` if this release has never read it.
    fn of_deleted(key: &[u8]) -> Option<Self> {
        Some(match named(key)? {
            (REQUEST, id) => Self::RemoveRequest(id.into()),
            (WORK, root) => Self::RemoveWork(root.parse().ok()?),
            (_, root) => Self::RemoveOrphan(root.parse().ok()?),
        })
    }

    /// The root whose pin is to be removed, if that is the change.
    pub fn released_root(&self) -> Option<Cid> {
        match self {
            Self::Orphan(root, _) => Some(*root),
            _ => None,
        }
    }

    fn of_record(key: &[u8], value: &[u8]) -> Option<Self> {
        Some(match named(key)? {
            (REQUEST, id) => Self::Request(entry(id, serde_json::from_slice(value).ok()?)?),
            (WORK, root) => Self::Work(root.parse().ok()?, serde_json::from_slice(value).ok()?),
            (_, root) => Self::Orphan(root.parse().ok()?, serde_json::from_slice(value).ok()?),
        })
    }
}

/// The changes of an entry in the service's terms.
///
/// # Errors
/// As [`PinChange::decode`].
pub fn decode_all(changes: &[Change]) -> Result<Vec<PinChange>, StoreError> {
    changes.iter().filter_map(|change| PinChange::decode(change).transpose()).collect()
}

/// Whether a key is that of a record of the service.
fn is_own(key: &[u8]) -> bool {
    [REQUEST, WORK, ORPHAN].iter().any(|kind| key.starts_with(kind.as_bytes()))
}

fn unknown(key: &[u8]) -> StoreError {
    StoreError::UnknownRecord { key: String::from_utf8_lossy(key).into() }
}

fn check_format(format: Option<u32>, dir: &Path) -> Result<(), StoreError> {
    match format.filter(|found| *found > FORMAT) {
        Some(found) => Err(StoreError::NewerSchema { dir: dir.to_owned(), found, known: FORMAT }),
        None => Ok(()),
    }
}

/// The kind of a record, one of [`REQUEST`], [`WORK`] and [`ORPHAN`], and its name.
fn named(key: &[u8]) -> Option<(&'static str, &str)> {
    let key = std::str::from_utf8(key).ok()?;
    [REQUEST, WORK, ORPHAN].into_iter().find_map(|kind| Some((kind, key.strip_prefix(kind)?)))
}

/// The content of the pin metadata store.
#[derive(Debug, Clone, Default)]
pub struct Records {
    /// The position in the log as of which they were read.
    pub position: LogPosition,
    /// The version of the format; `None` if the store is empty.
    pub format: Option<u32>,
    /// The requests.
    pub entries: Vec<StoredRequest>,
    /// The work of roots.
    pub works: Vec<(Cid, Work)>,
    /// Roots whose pins are to be removed.
    pub orphans: Vec<(Cid, Orphan)>,
    /// Records that cannot be parsed, with their keys.
    pub unreadable: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Records {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        match PinChange::of_record(key, value) {
            Some(PinChange::Request(entry)) => self.entries.push(entry),
            Some(PinChange::Work(root, work)) => self.works.push((root, work)),
            Some(PinChange::Orphan(root, orphan)) => self.orphans.push((root, orphan)),
            _ if key == KEY_FORMAT => self.format = serde_json::from_slice(value).ok(),
            _ if is_own(key) => self.unreadable.push((key.to_vec(), value.to_vec())),
            // Records of a later release, or moved ones.
            _ => {}
        }
    }

    /// Checks that all records of the service were read.
    ///
    /// # Errors
    /// [`StoreError::UnknownRecord`].
    pub fn check_readable(&self) -> Result<(), StoreError> {
        self.unreadable.first().map_or(Ok(()), |(key, _)| Err(unknown(key)))
    }

    /// Applies entries of the log that follow. Returns the roots that they affect.
    ///
    /// # Errors
    /// As [`PinChange::decode`].
    pub fn advance(&mut self, entries: &[LogEntry]) -> Result<BTreeSet<Cid>, StoreError> {
        let mut affected = BTreeSet::new();
        let by_id = |entry: StoredRequest| (Arc::clone(&entry.id), entry);
        let mut requests: BTreeMap<_, _> = mem::take(&mut self.entries).into_iter().map(by_id).collect();
        let mut works: BTreeMap<_, _> = mem::take(&mut self.works).into_iter().collect();
        let mut orphans: BTreeMap<_, _> = mem::take(&mut self.orphans).into_iter().collect();
        for LogEntry { position, changes } in entries {
            for change in decode_all(changes)? {
                match change {
                    PinChange::Request(entry) => {
                        affected.insert(entry.root);
                        requests.insert(Arc::clone(&entry.id), entry);
                    }
                    PinChange::RemoveRequest(id) => affected.extend(requests.remove(&id).map(|entry| entry.root)),
                    PinChange::Work(root, work) => _ = works.insert(root, work),
                    PinChange::RemoveWork(root) => _ = works.remove(&root),
                    PinChange::Orphan(root, orphan) => {
                        affected.insert(root);
                        orphans.insert(root, orphan);
                    }
                    PinChange::RemoveOrphan(root) => {
                        affected.insert(root);
                        orphans.remove(&root);
                    }
                }
            }
            self.position = *position;
        }
        self.entries = requests.into_values().collect();
        self.works = works.into_iter().collect();
        self.orphans = orphans.into_iter().collect();
        Ok(affected)
    }
}

fn put(entry: &StoredRequest) -> Result<Change, StoreError> {
    let record = Record {
        owner: entry.owner.to_string(),
        cid: entry.root.to_string(),
        created_ms: entry.created_ms,
        name: entry.name.clone(),
        meta: entry.meta.clone(),
        origins: entry.origins.clone(),
        outcome: match &entry.outcome {
            PinOutcome::Withheld(reason) => PinOutcome::Failed(Arc::clone(reason)),
            outcome => outcome.clone(),
        },
        withheld: matches!(entry.outcome, PinOutcome::Withheld(_)),
        bytes_max: entry.bytes_max,
        keeps: entry.keeps.map(|root| root.to_string()),
        taken_in: entry.taken_in,
    };
    Ok(Change::Put(key(REQUEST, &entry.id), written(&record)?))
}

/// Writes the version of the format.
///
/// # Errors
/// As [`PinChange::encode`].
pub fn put_format() -> Result<Change, StoreError> {
    Ok(Change::Put(KEY_FORMAT.to_vec(), written(&FORMAT)?))
}

/// Reads all records. Blocks the thread.
///
/// # Errors
/// The error of the disk, or [`StoreError::NewerSchema`].
pub fn load(log: &dyn MetadataLog) -> Result<Records, StoreError> {
    let mut records = Records::default();
    records.position = log.read(&mut |key, value| records.add(key, value))?;
    check_format(records.format, log.dir().unwrap_or(Path::new("")))?;
    Ok(records)
}

/// Moves records that cannot be parsed to other keys.
pub fn move_unreadable(unreadable: &[(Vec<u8>, Vec<u8>)]) -> Vec<Change> {
    let moves = unreadable.iter().flat_map(|(key, value)| {
        [Change::Put([UNREADABLE.as_bytes(), key].concat(), value.clone()), Change::Delete(key.clone())]
    });
    moves.collect()
}

fn entry(id: &str, record: Record) -> Option<StoredRequest> {
    let Record { name, origins, meta, .. } = record;
    let wanted = PinParameters { root: record.cid.parse().ok()?, name, origins, meta };
    Some(StoredRequest {
        id: id.into(),
        owner: record.owner.into(),
        wanted: Arc::new(wanted),
        created_ms: record.created_ms,
        outcome: match record.outcome {
            PinOutcome::Failed(reason) if record.withheld => PinOutcome::Withheld(reason),
            outcome => outcome,
        },
        bytes_max: record.bytes_max,
        keeps: record.keeps.map(|root| root.parse()).transpose().ok()?,
        taken_in: record.taken_in,
    })
}

fn key(prefix: &str, name: &str) -> Vec<u8> {
    [prefix.as_bytes(), name.as_bytes()].concat()
}

fn written(value: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(value).map_err(|error| damaged(&error.to_string()))
}

fn damaged(words: &str) -> StoreError {
    StoreError::Corrupt(words.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cache::MetadataStore;

    fn entries() -> Vec<StoredRequest> {
        let root: Cid = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy".parse().expect("a CID");
        let wanted = PinParameters {
            root,
            name: Some("Ein Name \"mit\" Ärger\n".into()),
            meta: [("k".to_owned(), "v".to_owned()), (String::new(), String::new())].into(),
            origins: ["/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
                .parse()
                .expect("an address")]
            .into(),
        };
        let full = StoredRequest {
            id: "0123".into(),
            owner: "alice".into(),
            wanted: Arc::new(wanted),
            created_ms: 1_795_000_000_123,
            outcome: PinOutcome::Failed("no peer has it".into()),
            bytes_max: Some(7),
            keeps: Some(root),
            taken_in: false,
        };
        let bare = StoredRequest {
            id: "4567".into(),
            wanted: Arc::new(PinParameters::new(root)),
            outcome: PinOutcome::Pending,
            bytes_max: None,
            keeps: None,
            taken_in: true,
            ..full.clone()
        };
        let withheld =
            StoredRequest { id: "89ab".into(), outcome: PinOutcome::Withheld("a rule".into()), ..full.clone() };
        vec![full, bare, withheld]
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let register = MetadataStore::memory();
        assert!(load(&register).expect("reads").entries.is_empty());
        let entries = entries();
        let root = entries[0].root;
        let work = Work { attempts: 3, since_ms: 1, due_ms: 2, reason: Some("why".into()), waited_ms: 4, lost: true };
        let mut changes: Vec<_> = entries.iter().cloned().map(PinChange::Request).collect();
        changes.push(PinChange::Work(root, work.clone()));
        changes.push(PinChange::Orphan(root, Orphan { at_ms: 9, removed_by: None }));
        let write = |changes: &[PinChange]| {
            let encoded: Vec<_> = changes.iter().map(|change| change.encode().expect("can be written")).collect();
            let decoded: Vec<_> =
                encoded.iter().map(|change| PinChange::decode(change).expect("is known").expect("is one")).collect();
            assert_eq!(decoded, changes);
            register.write_now(encoded).expect("writes");
        };
        write(&changes);
        let found = load(&register).expect("reads");
        assert_eq!(found.entries, entries);
        assert_eq!(found.works, [(root, work)]);
        assert_eq!(found.orphans, [(root, Orphan { at_ms: 9, removed_by: None })]);
        let mut changes: Vec<_> = entries.iter().map(|entry| PinChange::RemoveRequest(Arc::clone(&entry.id))).collect();
        changes.extend([PinChange::RemoveWork(root), PinChange::RemoveOrphan(root)]);
        write(&changes);
        let found = load(&register).expect("reads");
        assert!(found.entries.is_empty() && found.works.is_empty() && found.orphans.is_empty());
    }

    #[test]
    fn changes_of_other_records_are_none_of_pins() {
        let others = [
            put_format().expect("can be written"),
            Change::Put(KEY_FORMAT.into(), b"0".to_vec()),
            Change::Put(b"unreadable/request/1".to_vec(), b"{}".to_vec()),
            Change::Put(vec![0xff], b"{}".to_vec()),
            // It was never read.
            Change::Delete(b"orphan/nothing".to_vec()),
            Change::Delete(KEY_FORMAT.into()),
            Change::Delete(vec![0xff]),
        ];
        for other in others {
            assert!(matches!(PinChange::decode(&other), Ok(None)), "{other:?}");
        }
    }

    #[test]
    fn changes_of_a_later_release_are_errors() {
        let later = |key: &str, value: &str| Change::Put(key.into(), value.into());
        let unknown = [
            later("request/1", "{}"),
            later("work/nothing", "{\"attempts\":0,\"since_ms\":0,\"due_ms\":0,\"reason\":null}"),
            later("orphan/nothing", "{\"at_ms\":1}"),
            later("format", "\"two\""),
            Change::Put(b"request/\xff".to_vec(), b"{}".to_vec()),
        ];
        for change in unknown {
            let decoded = decode_all(&[put_format().expect("can be written"), change.clone()]);
            assert!(matches!(decoded, Err(StoreError::UnknownRecord { .. })), "{change:?}: {decoded:?}");
        }
        let newer = PinChange::decode(&later("format", "2"));
        assert!(matches!(newer, Err(StoreError::NewerSchema { found: 2, .. })), "{newer:?}");
    }

    #[test]
    fn unreadable_records_are_moved_and_newer_formats_are_rejected() {
        let unreadable = [
            ("request/1", "{}"),
            ("request/1", "not JSON"),
            ("work/nothing", "{\"attempts\":0,\"since_ms\":0,\"due_ms\":0,\"reason\":null}"),
        ];
        for (key, value) in unreadable {
            let register = MetadataStore::memory();
            let sound = &entries()[0];
            let written = vec![Change::Put(key.into(), value.into()), put(sound).expect("can be written")];
            register.write_now(written).expect("writes");
            let found = load(&register).expect("reads");
            assert_eq!(found.entries, std::slice::from_ref(sound), "{key} {value}");
            assert_eq!(found.unreadable, [(key.into(), value.into())]);
            register.write_now(move_unreadable(&found.unreadable)).expect("writes");
            assert_eq!(load(&register).expect("reads").unreadable, []);
            let kept = register.get(format!("unreadable/{key}").as_bytes()).expect("reads");
            assert_eq!(kept.as_deref(), Some(value.as_bytes()));
        }
        let register = MetadataStore::memory();
        register.write_now(vec![Change::Put(KEY_FORMAT.into(), b"2".to_vec())]).expect("writes");
        assert!(matches!(load(&register), Err(StoreError::NewerSchema { found: 2, .. })));
    }
}
