//! The records that outlive a restart: one file for each scope, whole or not at all.
//!
//! Goals: bounded by what the store holds; a crash at any moment leaves the last file that was whole; a damaged file costs
//! the records in it, not the start; what is read back is checked like what a peer sends. Non-goals: the last minutes before
//! a crash. The network holds twenty copies of every record, and its owner publishes it again within a day.
//!
//! Provider records are written as their hash, the number of their peer in the file and the time of their receipt, 40 bytes
//! each; addresses once for each peer. Numbers are little-endian. A SHA-256 of everything stands at the end.

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

/// What a file begins with; the digit is the version.
pub const MAGIC: &[u8; 8] = b"cwdht 1\n";
const DIGEST_BYTES: usize = 32;
/// The largest file that is read: more than any store of ours writes.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The file is not what was written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the file is damaged")]
pub struct Damaged;

/// Where the records of a scope are kept.
pub fn path(directory: &Path, scope: Scope) -> PathBuf {
    directory.join(match scope {
        Scope::Wan => "records-wan.bin",
        Scope::Lan => "records-lan.bin",
    })
}

/// Reads a scope's records into a store. A missing or damaged file has none.
pub fn load(path: &Path, store: &mut Store) {
    match read(path).and_then(|bytes| decode(&bytes, store).map_err(io::Error::other)) {
        Ok(records) => tracing::debug!(path = %path.display(), records, "the DHT's records were read"),
        Err(error) => tracing::debug!(path = %path.display(), %error, "starting without records of the DHT"),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > FILE_BYTES_MAX {
        return Err(io::Error::other("the file is too large"));
    }
    fs::read(path)
}

/// Writes what [`encode`] made, away from the swarm task.
pub fn save(path: &Path, mut bytes: Vec<u8>) {
    bytes.extend(digest(&bytes));
    if let Err(error) = peerbook::save(path, &bytes) {
        tracing::warn!(path = %path.display(), %error, "could not write the DHT's records");
    }
}

/// The records of a store, all but the hash at the end. It takes the time of copying them.
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

/// What is still to be read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Damaged> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        self.take(N)?.try_into().map_err(|_| Damaged)
    }

    fn u32(&mut self) -> Result<u32, Damaged> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn network(&mut self) -> Result<Network, Damaged> {
        Ok(Network(u64::from_le_bytes(self.array()?)))
    }

    fn bytes(&mut self, at_most: usize) -> Result<&'a [u8], Damaged> {
        let bytes = self.u32()? as usize;
        if bytes > at_most { Err(Damaged) } else { self.take(bytes) }
    }
}

/// Puts the records of a file into a store, less those that have expired, and says how many there were.
///
/// # Errors
/// [`Damaged`] if the file is not what was written. What stood before the damage is in the store, and was checked.
pub fn decode(bytes: &[u8], store: &mut Store) -> Result<usize, Damaged> {
    let end = bytes.len().checked_sub(DIGEST_BYTES).ok_or(Damaged)?;
    let (body, hash) = bytes.split_at(end);
    let body = body.strip_prefix(MAGIC).filter(|_| digest(body) == hash).ok_or(Damaged)?;
    decode_body(&mut Rest(body), store)
}

fn decode_body(rest: &mut Rest<'_>, store: &mut Store) -> Result<usize, Damaged> {
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
        // Those of a file are as many as the store holds, so that nobody's limit a second counts.
        store.values.tick();
        let _ = store.values.put(key, value, network, received, now);
    }
    if rest.0.is_empty() { Ok((providers + values) as usize) } else { Err(Damaged) }
}

fn decode_peer(rest: &mut Rest<'_>) -> Result<(PeerId, Network, Vec<Multiaddr>), Damaged> {
    let peer = PeerId::from_bytes(rest.bytes(KEY_BYTES_MAX)?).map_err(|_| Damaged)?;
    let network = rest.network()?;
    let mut addresses = Vec::new();
    for _ in 0..rest.u32()? {
        let address = rest.bytes(super::providers::ADDRESS_BYTES_MAX)?;
        let address = Multiaddr::try_from(address.to_vec()).map_err(|_| Damaged)?;
        // An earlier version may have written others.
        if Shape::read(&address).is_ok() {
            addresses.push(address);
        }
    }
    Ok((peer, network, addresses))
}

/// A clock that was set back must not keep records for ever.
fn past(received: Moment, now: Moment) -> Moment {
    received.min(now)
}

#[cfg(test)]
mod tests;
