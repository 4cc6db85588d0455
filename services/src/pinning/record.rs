//! The records of the service in the pin metadata store: JSON, which later releases can extend.
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
use cache::metadata_store::{Change, MetadataLog as _, MetadataStore};
use content::Cid;
use libp2p::Multiaddr;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
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
}

/// The content of the pin metadata store.
#[derive(Debug, Default)]
pub struct Records {
    /// The requests.
    pub entries: Vec<StoredRequest>,
    /// The work of roots.
    pub works: Vec<(Cid, Work)>,
    /// Roots whose pins are to be removed.
    pub orphans: Vec<(Cid, Orphan)>,
    /// Records that cannot be parsed, with their keys.
    pub unreadable: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Writes a request.
///
/// # Errors
/// Serialisation errors, which do not occur in practice.
pub fn put(entry: &StoredRequest) -> Result<Change, StoreError> {
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

/// Removes a request.
pub fn delete(id: &str) -> Change {
    Change::Delete(key(REQUEST, id))
}

/// Writes the work of a root.
///
/// # Errors
/// As [`put`].
pub fn put_work(root: &Cid, work: &Work) -> Result<Change, StoreError> {
    Ok(Change::Put(key(WORK, &root.to_string()), written(work)?))
}

/// Removes the work of a root.
pub fn delete_work(root: &Cid) -> Change {
    Change::Delete(key(WORK, &root.to_string()))
}

/// Writes that a pin is to be removed.
///
/// # Errors
/// As [`put`].
pub fn put_orphan(root: &Cid, at_ms: u64) -> Result<Change, StoreError> {
    Ok(Change::Put(key(ORPHAN, &root.to_string()), written(&Orphan { at_ms })?))
}

/// Writes that a pin has been removed, or is needed again.
pub fn delete_orphan(root: &Cid) -> Change {
    Change::Delete(key(ORPHAN, &root.to_string()))
}

/// Reads all records. Blocks the thread.
///
/// # Errors
/// The error of the disk, or [`StoreError::NewerSchema`].
pub fn load(register: &MetadataStore) -> Result<Records, StoreError> {
    check_format(register)?;
    let mut records = Records::default();
    let mut unreadable = Vec::new();
    each(register, REQUEST, &mut unreadable, |id, record: Record| {
        records.entries.push(entry(id, record)?);
        Some(())
    })?;
    each(register, WORK, &mut unreadable, |root, work| {
        records.works.push((root.parse().ok()?, work));
        Some(())
    })?;
    each(register, ORPHAN, &mut unreadable, |root, orphan| {
        records.orphans.push((root.parse().ok()?, orphan));
        Some(())
    })?;
    records.unreadable = unreadable;
    Ok(records)
}

/// Moves records that cannot be parsed to other keys.
pub fn move_unreadable(unreadable: &[(Vec<u8>, Vec<u8>)]) -> Vec<Change> {
    let moves = unreadable.iter().flat_map(|(key, value)| {
        [Change::Put([UNREADABLE.as_bytes(), key].concat(), value.clone()), Change::Delete(key.clone())]
    });
    moves.collect()
}

fn check_format(register: &MetadataStore) -> Result<(), StoreError> {
    let known = register.get(KEY_FORMAT)?.and_then(|text| serde_json::from_slice::<u32>(&text).ok());
    match known {
        Some(found) if found > FORMAT => {
            let dir = register.dir().map(Path::to_owned).unwrap_or_default();
            Err(StoreError::NewerSchema { dir, found, known: FORMAT })
        }
        Some(_) => Ok(()),
        None if register.is_read_only() => Ok(()),
        None => match register.write_now(vec![Change::Put(KEY_FORMAT.to_vec(), written(&FORMAT)?)]) {
            // The store is empty, and the next start writes the version.
            Err(error) if error.is_full() => Ok(()),
            wrote => wrote,
        },
    }
}

fn each<T: DeserializeOwned>(
    register: &MetadataStore,
    prefix: &str,
    unreadable: &mut Vec<(Vec<u8>, Vec<u8>)>,
    mut take: impl FnMut(&str, T) -> Option<()>,
) -> Result<(), StoreError> {
    register.scan(prefix.as_bytes(), |key, value| {
        let taken = std::str::from_utf8(key)
            .ok()
            .and_then(|key| take(key.strip_prefix(prefix)?, serde_json::from_slice(value).ok()?));
        if taken.is_none() {
            unreadable.push((key.to_vec(), value.to_vec()));
        }
        ControlFlow::Continue(())
    })
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
        let mut changes: Vec<_> = entries.iter().map(|entry| put(entry).expect("can be written")).collect();
        changes.push(put_work(&root, &work).expect("can be written"));
        changes.push(put_orphan(&root, 9).expect("can be written"));
        register.write_now(changes).expect("writes");
        let found = load(&register).expect("reads");
        assert_eq!(found.entries, entries);
        assert_eq!(found.works, [(root, work)]);
        assert_eq!(found.orphans, [(root, Orphan { at_ms: 9 })]);
        register
            .write_now(vec![delete("0123"), delete("4567"), delete("89ab"), delete_work(&root), delete_orphan(&root)])
            .expect("writes");
        let found = load(&register).expect("reads");
        assert!(found.entries.is_empty() && found.works.is_empty() && found.orphans.is_empty());
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
