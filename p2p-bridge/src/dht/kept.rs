//! Persistence of DHT records: one file per scope, replaced atomically.
//!
//! Goals: size bounded by the store's limits; a crash at any moment leaves the last complete file; a corrupt file loses
//! the records in it, but does not prevent the start; records from the file are verified like those from a peer.
//! Non-goals: records of the last minutes before a crash. The network has twenty copies of every record, and its
//! publisher republishes it within a day.
//!
//! A provider record is written as its hash, the index of its peer in the file and the time of receipt, 40 bytes each;
//! addresses are written once per peer. Numbers are little-endian. The file ends with a SHA-256 of everything before.

use super::store::{KEY_BYTES_MAX, Store};
use super::{Moment, Network, digest};
use crate::dialable::Shape;
use crate::peerbook;
use crate::scope::Scope;
use bytes::Bytes;
use content::ipns::RECORD_BYTES_MAX;
use libp2p::{Multiaddr, PeerId};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Magic bytes of the file; the digit is the version.
pub const MAGIC: &[u8; 8] = b"cwdht 1\n";
const DIGEST_BYTES: usize = 32;
/// The maximum size of a file to read: more than a store of the maximum size writes.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The file is corrupt.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the file is corrupt")]
pub struct Corrupt;

/// The path of a scope's records.
pub fn path(directory: &Path, scope: Scope) -> PathBuf {
    directory.join(match scope {
        Scope::Wan => "records-wan.bin",
        Scope::Lan => "records-lan.bin",
    })
}

/// Reads a scope's records into a store. A missing or corrupt file adds none.
pub fn load(path: &Path, store: &mut Store) {
    match read(path).and_then(|bytes| decode(&bytes, store).map_err(io::Error::other)) {
        Ok(records) => tracing::debug!(path = %path.display(), records, "loaded the DHT records"),
        Err(error) => {
            tracing::debug!(path = %path.display(), %error, "could not load the DHT records: starting without them")
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > FILE_BYTES_MAX {
        return Err(io::Error::other("the file exceeds the maximum size"));
    }
    fs::read(path)
}

/// Writes the output of [`encode`] and its hash. Call it outside of the swarm task.
pub fn save(path: &Path, mut bytes: Vec<u8>) {
    bytes.extend(digest(&bytes));
    if let Err(error) = peerbook::save(path, &bytes) {
        tracing::warn!(path = %path.display(), %error, "could not save the DHT records");
    }
}

/// Serialises the records of a store, without the hash at the end. It costs a copy of the records.
pub fn encode(store: &Store) -> Vec<u8> {
    let mut out = Vec::with_capacity(store.bytes() / 2);
    out.extend(MAGIC);
    let mut numbers = HashMap::new();
    put_u32(&mut out, store.providers.holders().count());
    for (number, (id, peer, network, addresses)) in store.providers.holders().enumerate() {
        numbers.insert(id, number);
        put_bytes(&mut out, &peer.to_bytes());
        out.extend(network.0.to_le_bytes());
        put_u32(&mut out, addresses.len());
        addresses.iter().for_each(|address| put_bytes(&mut out, address.as_ref()));
    }
    put_u32(&mut out, store.providers.len());
    for (key, holder, received) in store.providers.all() {
        out.extend(key);
        put_u32(&mut out, numbers.get(&holder).copied().unwrap_or(usize::MAX));
        out.extend(received.to_le_bytes());
    }
    put_u32(&mut out, store.values.len());
    for (key, value, network, received) in store.values.all() {
        put_bytes(&mut out, key);
        put_bytes(&mut out, value);
        out.extend(network.0.to_le_bytes());
        out.extend(received.to_le_bytes());
    }
    out
}

fn put_u32(out: &mut Vec<u8>, number: usize) {
    out.extend(u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, bytes.len());
    out.extend(bytes);
}

/// The unread rest of the file.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Corrupt> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Corrupt)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Corrupt> {
        self.take(N)?.try_into().map_err(|_| Corrupt)
    }

    fn u32(&mut self) -> Result<u32, Corrupt> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn network(&mut self) -> Result<Network, Corrupt> {
        Ok(Network(u64::from_le_bytes(self.array()?)))
    }

    fn bytes(&mut self, at_most: usize) -> Result<&'a [u8], Corrupt> {
        let bytes = self.u32()? as usize;
        if bytes > at_most { Err(Corrupt) } else { self.take(bytes) }
    }
}

/// Adds the records of a file to a store, except expired ones, and returns how many the file has.
///
/// # Errors
/// [`Corrupt`] if the hash or the format is wrong. The store has the records before the corruption, which were
/// verified.
pub fn decode(bytes: &[u8], store: &mut Store) -> Result<usize, Corrupt> {
    let end = bytes.len().checked_sub(DIGEST_BYTES).ok_or(Corrupt)?;
    let (body, hash) = bytes.split_at(end);
    let body = body.strip_prefix(MAGIC).filter(|_| digest(body) == hash).ok_or(Corrupt)?;
    decode_body(&mut Reader(body), store)
}

fn decode_body(rest: &mut Reader<'_>, store: &mut Store) -> Result<usize, Corrupt> {
    let now = store.now();
    let mut peers = Vec::new();
    for _ in 0..rest.u32()? {
        peers.push(decode_peer(rest)?);
    }
    let providers = rest.u32()?;
    for _ in 0..providers {
        let key = rest.array()?;
        let peer = peers.get(rest.u32()? as usize);
        let received = past(rest.u32()?, now);
        if let Some((peer, network, addresses)) = peer {
            store.providers.add(key, *peer, *network, addresses.clone(), received);
        }
    }
    store.providers.sweep(now, usize::MAX);
    let values = rest.u32()?;
    for _ in 0..values {
        let key = rest.bytes(KEY_BYTES_MAX)?;
        let value = Bytes::copy_from_slice(rest.bytes(RECORD_BYTES_MAX)?);
        let (network, received) = (rest.network()?, past(rest.u32()?, now));
        // A file has at most as many records as the store, so the rate limit of verification does not apply.
        store.values.tick();
        let _ = store.values.put(key, value, network, received, now);
    }
    if rest.0.is_empty() { Ok((providers + values) as usize) } else { Err(Corrupt) }
}

fn decode_peer(rest: &mut Reader<'_>) -> Result<(PeerId, Network, Vec<Multiaddr>), Corrupt> {
    let peer = PeerId::from_bytes(rest.bytes(KEY_BYTES_MAX)?).map_err(|_| Corrupt)?;
    let network = rest.network()?;
    let mut addresses = Vec::new();
    for _ in 0..rest.u32()? {
        let address = rest.bytes(super::providers::ADDRESS_BYTES_MAX)?;
        let address = Multiaddr::try_from(address.to_vec()).map_err(|_| Corrupt)?;
        // An earlier version may have written other shapes.
        if Shape::read(&address).is_ok() {
            addresses.push(address);
        }
    }
    Ok((peer, network, addresses))
}

/// After a clock was set back, records must not be kept forever.
fn past(received: Moment, now: Moment) -> Moment {
    received.min(now)
}

#[cfg(test)]
mod tests;
