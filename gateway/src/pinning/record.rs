//! How the service's records lie in the register: JSON, which later releases can add to.
//!
//! | key | record | says |
//! |---|---|---|
//! | `format` | [`FORMAT`] | how the rest is to be read |
//! | `request/ID` | [`Record`] | a request, and what became of it |
//! | `work/CID` | [`Work`] | attempts to fetch a DAG that is not here yet |
//! | `orphan/CID` | [`Orphan`] | a pin that the store may still have, and nobody wants |

use super::index::{Entry, Outcome};
use super::request::{Meta, Wanted};
use cache::StoreError;
use cache::register::{Change, Register};
use content::Cid;
use libp2p::Multiaddr;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::sync::Arc;

/// What this release writes.
const FORMAT: u32 = 1;
const KEY_FORMAT: &[u8] = b"format";
const REQUEST: &str = "request/";
const WORK: &str = "work/";
const ORPHAN: &str = "orphan/";

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
    outcome: Outcome,
    /// The owner's quota when this was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes_max: Option<u64>,
    /// A root whose pin stays until this is settled: what this request replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keeps: Option<String>,
    /// The pin was there and nobody had asked for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    taken_in: bool,
}

/// Attempts to fetch a DAG.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Those that failed.
    pub attempts: u32,
    /// When a block last arrived, or the work began.
    pub since_ms: u64,
    /// When the next attempt is due.
    pub due_ms: u64,
    /// What stopped the last one.
    pub reason: Option<String>,
}

/// A pin that is to go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphan {
    /// When that was decided: a pin that was made later is another one.
    pub at_ms: u64,
}

/// Everything in a register.
#[derive(Debug, Default)]
pub struct Found {
    /// The requests.
    pub entries: Vec<Entry>,
    /// Roots that are worked for.
    pub works: Vec<(Cid, Work)>,
    /// Roots whose pins are to go.
    pub orphans: Vec<(Cid, Orphan)>,
}

/// The change that writes a request.
///
/// # Errors
/// None in practice: texts and numbers can be written.
pub fn put(entry: &Entry) -> Result<Change, StoreError> {
    let record = Record {
        owner: entry.owner.to_string(),
        cid: entry.root.to_string(),
        created_ms: entry.created_ms,
        name: entry.name.clone(),
        meta: entry.meta.clone(),
        origins: entry.origins.clone(),
        outcome: entry.outcome.clone(),
        bytes_max: entry.bytes_max,
        keeps: entry.keeps.map(|root| root.to_string()),
        taken_in: entry.taken_in,
    };
    Ok(Change::Put(key(REQUEST, &entry.id), written(&record)?))
}

/// The change that removes a request.
pub fn delete(id: &str) -> Change {
    Change::Delete(key(REQUEST, id))
}

/// The change that notes how far the work for a root has come.
///
/// # Errors
/// As [`put`].
pub fn put_work(root: &Cid, work: &Work) -> Result<Change, StoreError> {
    Ok(Change::Put(key(WORK, &root.to_string()), written(work)?))
}

/// The change that forgets it.
pub fn delete_work(root: &Cid) -> Change {
    Change::Delete(key(WORK, &root.to_string()))
}

/// The change that notes that a pin is to go.
///
/// # Errors
/// As [`put`].
pub fn put_orphan(root: &Cid, at_ms: u64) -> Result<Change, StoreError> {
    Ok(Change::Put(key(ORPHAN, &root.to_string()), written(&Orphan { at_ms })?))
}

/// The change that notes that it has gone, or stays.
pub fn delete_orphan(root: &Cid) -> Change {
    Change::Delete(key(ORPHAN, &root.to_string()))
}

/// Reads everything. Blocks the thread.
///
/// # Errors
/// What the disk said, or that a record is none: what was acknowledged is not passed over in silence.
pub fn load(register: &Register) -> Result<Found, StoreError> {
    check_format(register)?;
    let mut found = Found::default();
    each(register, REQUEST, |id, record: Record| {
        found.entries.push(entry(id, record)?);
        Some(())
    })?;
    each(register, WORK, |root, work| {
        found.works.push((root.parse().ok()?, work));
        Some(())
    })?;
    each(register, ORPHAN, |root, orphan| {
        found.orphans.push((root.parse().ok()?, orphan));
        Some(())
    })?;
    Ok(found)
}

fn check_format(register: &Register) -> Result<(), StoreError> {
    match register.get(KEY_FORMAT)? {
        None => register.write_now(vec![Change::Put(KEY_FORMAT.to_vec(), written(&FORMAT)?)]),
        Some(text) => match serde_json::from_slice::<u32>(&text) {
            Ok(found) if found <= FORMAT => Ok(()),
            _ => Err(damaged("the list of pins was written by a newer release")),
        },
    }
}

fn each<T: DeserializeOwned>(
    register: &Register,
    prefix: &str,
    mut take: impl FnMut(&str, T) -> Option<()>,
) -> Result<(), StoreError> {
    let mut wrong = None;
    register.scan(prefix.as_bytes(), |key, value| {
        let taken = std::str::from_utf8(key)
            .ok()
            .and_then(|key| take(key.strip_prefix(prefix)?, serde_json::from_slice(value).ok()?));
        if taken.is_none() {
            wrong = Some(String::from_utf8_lossy(key).into_owned());
        }
        if taken.is_some() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    wrong.map_or(Ok(()), |key| Err(damaged(&format!("the record {key} of the list of pins cannot be read"))))
}

fn entry(id: &str, record: Record) -> Option<Entry> {
    let Record { name, origins, meta, .. } = record;
    let wanted = Wanted { root: record.cid.parse().ok()?, name, origins, meta };
    Some(Entry {
        id: id.into(),
        owner: record.owner.into(),
        wanted: Arc::new(wanted),
        created_ms: record.created_ms,
        outcome: record.outcome,
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

    fn entries() -> Vec<Entry> {
        let root: Cid = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy".parse().expect("a CID");
        let wanted = Wanted {
            root,
            name: Some("Ein Name \"mit\" Ärger\n".into()),
            meta: [("k".to_owned(), "v".to_owned()), (String::new(), String::new())].into(),
            origins: ["/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
                .parse()
                .expect("an address")]
            .into(),
        };
        let full = Entry {
            id: "0123".into(),
            owner: "somebody".into(),
            wanted: Arc::new(wanted),
            created_ms: 1_795_000_000_123,
            outcome: Outcome::Failed("nobody has it".into()),
            bytes_max: Some(7),
            keeps: Some(root),
            taken_in: false,
        };
        let bare = Entry {
            id: "4567".into(),
            wanted: Arc::new(Wanted::new(root)),
            outcome: Outcome::Pending,
            bytes_max: None,
            keeps: None,
            taken_in: true,
            ..full.clone()
        };
        vec![full, bare]
    }

    #[test]
    fn what_is_written_is_read_again() {
        let register = Register::memory();
        assert!(load(&register).expect("reads").entries.is_empty());
        let entries = entries();
        let root = entries[0].root;
        let work = Work { attempts: 3, since_ms: 1, due_ms: 2, reason: Some("why".into()) };
        let mut changes: Vec<_> = entries.iter().map(|entry| put(entry).expect("can be written")).collect();
        changes.push(put_work(&root, &work).expect("can be written"));
        changes.push(put_orphan(&root, 9).expect("can be written"));
        register.write_now(changes).expect("writes");
        let found = load(&register).expect("reads");
        assert_eq!(found.entries, entries);
        assert_eq!(found.works, [(root, work)]);
        assert_eq!(found.orphans, [(root, Orphan { at_ms: 9 })]);
        register
            .write_now(vec![delete("0123"), delete("4567"), delete_work(&root), delete_orphan(&root)])
            .expect("writes");
        let found = load(&register).expect("reads");
        assert!(found.entries.is_empty() && found.works.is_empty() && found.orphans.is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let damaged: [(&str, &str); 4] = [
            ("request/1", "{}"),
            ("request/1", "not JSON"),
            ("work/nothing", "{\"attempts\":0,\"since_ms\":0,\"due_ms\":0,\"reason\":null}"),
            ("format", "2"),
        ];
        for (key, value) in damaged {
            let register = Register::memory();
            register.write_now(vec![Change::Put(key.into(), value.into())]).expect("writes");
            assert!(matches!(load(&register), Err(StoreError::Corrupt(_))), "{key} {value}");
        }
    }
}
