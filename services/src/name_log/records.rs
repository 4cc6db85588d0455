//! The records of the log of names.
//!
//! | key | content |
//! |---|---|
//! | `check` | a text by which the key is recognised that private keys are encrypted with |
//! | `key/` and the name of a key | JSON: its IPNS name, and the encrypted private key |
//! | `name/` and an IPNS name | the publication, in JSON, as gateways have it in a file |
//!
//! Records with other keys are ignored: a newer release may write them.

use super::cipher::{NameCipher, Sealed};
use cache::metadata_store::Change;
use cid::multibase::Base;
use content::names::Key as IpnsName;
use p2p_bridge::names::key_format::{KeyFormat, Secret};
use p2p_bridge::names::publish::Published;
use p2p_bridge::names::shared::{KnownNames, NameChange};
use serde::{Deserialize, Serialize};
use std::io;

/// The key of the record by which the key of the cipher is recognised.
pub(super) const CHECK: &[u8] = b"check";
const KEY: &str = "key/";
const NAME: &str = "name/";

/// A private key as it is stored.
#[derive(Serialize, Deserialize)]
struct StoredKey {
    /// The IPNS name.
    id: String,
    /// Base64.
    sealed: String,
}

/// What a key of a record names.
#[derive(Debug, PartialEq, Eq)]
enum RecordKey<'a> {
    Key(&'a str),
    Name(IpnsName),
}

impl<'a> RecordKey<'a> {
    fn parse(key: &'a [u8]) -> Option<Self> {
        let key = str::from_utf8(key).ok()?;
        match (key.strip_prefix(KEY), key.strip_prefix(NAME)) {
            (Some(name), _) => Some(Self::Key(name)),
            (_, Some(id)) => IpnsName::parse(id).map(Self::Name),
            _ => None,
        }
    }
}

/// The change of a record for a change of a key or a publication.
///
/// # Errors
/// If it cannot be encoded or encrypted.
pub(super) fn encode(change: &NameChange, cipher: &NameCipher) -> io::Result<Change> {
    Ok(match change {
        NameChange::PutKey { name, secret } => Change::Put(key_of(KEY, name), seal(name, secret, cipher)?),
        NameChange::RemoveKey { name } => Change::Delete(key_of(KEY, name)),
        NameChange::PutPublication(entry) => Change::Put(key_of(NAME, &entry.key.to_string()), entry.to_json()?),
        NameChange::RemovePublication(id) => Change::Delete(key_of(NAME, &id.to_string())),
    })
}

fn key_of(prefix: &str, name: &str) -> Vec<u8> {
    format!("{prefix}{name}").into_bytes()
}

fn seal(name: &str, secret: &Secret, cipher: &NameCipher) -> io::Result<Vec<u8>> {
    let id = IpnsName::from(secret.keypair().map_err(io::Error::other)?.public().to_peer_id());
    let text = secret.write(KeyFormat::Protobuf).map_err(io::Error::other)?;
    let sealed = cipher.seal(Sealed::Key { name, id: &id }, &text);
    let sealed = sealed.ok_or_else(|| io::Error::other("the system has no random numbers"))?;
    let stored = StoredKey { id: id.to_string(), sealed: Base::Base64Pad.encode(sealed) };
    serde_json::to_vec(&stored).map_err(io::Error::other)
}

/// The private key of a record; `None` if it cannot be read.
fn open(name: &str, content: &[u8], cipher: &NameCipher) -> Option<Secret> {
    let stored: StoredKey = serde_json::from_slice(content).ok()?;
    let id = IpnsName::parse(&stored.id)?;
    let text = cipher.open(Sealed::Key { name, id: &id }, &Base::Base64Pad.decode(stored.sealed).ok()?)?;
    let secret = Secret::read(KeyFormat::Protobuf, &text).ok()?;
    (IpnsName::from(secret.keypair().ok()?.public().to_peer_id()) == id).then_some(secret)
}

/// Applies the content of a record to what is known; without a content it is removed. What cannot be read is logged,
/// and affects nothing else.
pub(super) fn apply(known: &mut KnownNames, key: &[u8], content: Option<&[u8]>, cipher: &NameCipher) {
    match (RecordKey::parse(key), content) {
        (Some(RecordKey::Key(name)), Some(content)) => apply_key(known, name, content, cipher),
        (Some(RecordKey::Key(name)), None) => known.remove_key(name),
        (Some(RecordKey::Name(id)), Some(content)) => match Published::from_json(id, content) {
            Ok(entry) => known.put_publication(entry),
            Err(error) => {
                tracing::error!(name = %id, %error, "a published name of the site cannot be read: publish it again");
                known.remove_publication(&id);
            }
        },
        (Some(RecordKey::Name(id)), None) => known.remove_publication(&id),
        (None, _) => {}
    }
}

fn apply_key(known: &mut KnownNames, name: &str, content: &[u8], cipher: &NameCipher) {
    let is_known = open(name, content, cipher).is_some_and(|secret| known.put_key(name, secret).is_ok());
    if !is_known {
        tracing::error!(name, "a key of the site cannot be decrypted: its record in the database was changed");
        known.put_unreadable_key(name);
    }
}
