//! The messages of `/causeway/site/1.0.0`.
//!
//! A stream is opened by the gateway that asks, and carries one look-up at a time. Each message follows its length, an
//! unsigned varint:
//!
//! ```text
//! message Lookup { bytes root = 1; bytes cid = 2; bool may_fetch = 3; Request ahead = 4; }
//! message Reply  { oneof reply { bytes block = 1; bytes fetched = 2; Status status = 3; Stall not_found = 4; } }
//! enum Status    { WAITING = 1; NOT_STORED = 2; BUSY = 3; FAILED = 4; }
//! message Stall  { uint64 waited_ms = 1; uint32 found = 2; uint32 asked = 3; uint32 answered = 4; }
//! ```
//!
//! `Request` is that of the DAG protocol ([`crate::dag::message`]), of which root, path, scope and range are used. A
//! look-up is answered by any number of `WAITING`, while it takes long, and then one other reply.
//!
//! Goals and non-goals are those of the DAG protocol's messages.

use super::Lookup;
use super::metrics::LookupResult;
use crate::dag::message::{
    DagMessageError, Request, TransferId, framed, framed_raw, put_cid, put_field, skip, take, take_cid,
};
use bytes::{Buf as _, Bytes, BytesMut};
use content::source_error::Stall;
use content::{MAX_BLOCK_BYTES, ReadAhead};
use prost::encoding::{self, WireType};
use std::time::Duration;

/// The maximum length of a look-up, in bytes.
pub const LOOKUP_BYTES_MAX: usize = 16 * 1024;
/// The maximum length of a reply, in bytes: a block of the maximum size, and its field.
pub const REPLY_BYTES_MAX: usize = MAX_BLOCK_BYTES + 16;

/// A message of the gateway that is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The block, not verified.
    Block {
        /// Its bytes.
        data: Bytes,
        /// Whether it was fetched from the network for this look-up.
        fetched: bool,
    },
    /// The gateway is at work.
    Waiting,
    /// The block is not stored, and was not to be fetched.
    NotStored,
    /// The network was searched, and made no progress.
    NotFound(Stall),
    /// Too many look-ups are in progress.
    Busy,
    /// The gateway cannot say whether there is such a block.
    Failed,
}

impl Lookup {
    /// The message with its length.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(512);
        put_cid(1, &self.root, &mut out);
        put_cid(2, &self.cid, &mut out);
        encoding::bool::encode(3, &self.may_fetch, &mut out);
        // A path that is too long to be sent is a hint less.
        if let Some(ahead) = self.ahead.as_ref().map(request).filter(Request::has_valid_path) {
            put_field(4, &ahead.encode(), &mut out);
        }
        framed_raw(&out)
    }

    /// Decodes a frame without its length.
    ///
    /// # Errors
    /// [`DagMessageError`].
    pub fn decode(mut rest: Bytes) -> Result<Self, DagMessageError> {
        let (mut root, mut cid, mut may_fetch, mut ahead) = (None, None, false, None);
        while rest.has_remaining() {
            match encoding::decode_key(&mut rest)? {
                (1, WireType::LengthDelimited) => root = Some(take_cid(&mut rest)?),
                (2, WireType::LengthDelimited) => cid = Some(take_cid(&mut rest)?),
                (3, WireType::Varint) => may_fetch = encoding::decode_varint(&mut rest)? != 0,
                (4, WireType::LengthDelimited) => ahead = Some(Request::decode(take(&mut rest)?)?),
                (tag, wire) => skip(tag, wire, &mut rest)?,
            }
        }
        let ahead = ahead.map(|Request { root, path, scope, .. }| ReadAhead { root, path, scope });
        let (root, cid) = root.zip(cid).ok_or(DagMessageError::Cid)?;
        Ok(Self { root, cid, may_fetch, ahead })
    }
}

/// What is needed next, as a request for it.
fn request(ahead: &ReadAhead) -> Request {
    let ReadAhead { root, path, scope } = ahead.clone();
    let transfer = TransferId(0);
    Request { transfer, root, path, scope, held: Vec::new(), budget_bytes: 0, packed: false, fragments: false }
}

impl Reply {
    /// The parts of the message with its length, to be written in order. A block is not copied.
    pub fn encode(&self) -> Vec<Bytes> {
        let status = |number: u64| {
            let mut out = BytesMut::with_capacity(4);
            encoding::uint64::encode(3, &number, &mut out);
            vec![framed_raw(&out)]
        };
        match self {
            Self::Block { data, fetched } => encode_block(if *fetched { 2 } else { 1 }, data),
            Self::Waiting => status(1),
            Self::NotStored => status(2),
            Self::Busy => status(3),
            Self::Failed => status(4),
            Self::NotFound(stall) => vec![framed(4, &encode_stall(stall))],
        }
    }

    /// The reply as a label of metrics.
    pub fn result(&self) -> LookupResult {
        match self {
            Self::Block { fetched: false, .. } => LookupResult::Stored,
            Self::Block { fetched: true, .. } => LookupResult::Fetched,
            Self::NotStored => LookupResult::NotStored,
            Self::NotFound(_) => LookupResult::NotFound,
            Self::Busy => LookupResult::Busy,
            Self::Waiting | Self::Failed => LookupResult::Failed,
        }
    }

    /// Decodes a frame without its length. A status of a later release is a failure.
    ///
    /// # Errors
    /// [`DagMessageError`].
    pub fn decode(mut rest: Bytes) -> Result<Self, DagMessageError> {
        let mut reply = None;
        while rest.has_remaining() {
            let decoded = match encoding::decode_key(&mut rest)? {
                (tag @ (1 | 2), WireType::LengthDelimited) => {
                    let data = take(&mut rest)?;
                    if data.len() > MAX_BLOCK_BYTES {
                        return Err(DagMessageError::TooLarge);
                    }
                    Self::Block { data, fetched: tag == 2 }
                }
                (3, WireType::Varint) => match encoding::decode_varint(&mut rest)? {
                    1 => Self::Waiting,
                    2 => Self::NotStored,
                    3 => Self::Busy,
                    _ => Self::Failed,
                },
                (4, WireType::LengthDelimited) => Self::NotFound(decode_stall(take(&mut rest)?)?),
                (tag, wire) => {
                    skip(tag, wire, &mut rest)?;
                    continue;
                }
            };
            if reply.replace(decoded).is_some() {
                return Err(DagMessageError::Content);
            }
        }
        reply.ok_or(DagMessageError::Content)
    }
}

fn encode_block(tag: u32, data: &Bytes) -> Vec<Bytes> {
    let mut key = BytesMut::with_capacity(8);
    encoding::encode_key(tag, WireType::LengthDelimited, &mut key);
    encoding::encode_varint(data.len() as u64, &mut key);
    let mut out = BytesMut::with_capacity(16);
    encoding::encode_varint((key.len() + data.len()) as u64, &mut out);
    out.extend_from_slice(&key);
    vec![out.freeze(), data.clone()]
}

fn encode_stall(stall: &Stall) -> BytesMut {
    let Stall { waited, providers_found, peers_asked, peers_answered, no_peers: _ } = stall;
    let waited = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
    let mut out = BytesMut::with_capacity(32);
    encoding::uint64::encode(1, &waited, &mut out);
    for (tag, number) in [(2, providers_found), (3, peers_asked), (4, peers_answered)] {
        encoding::uint32::encode(tag, number, &mut out);
    }
    out
}

fn decode_stall(mut rest: Bytes) -> Result<Stall, DagMessageError> {
    let mut stall = Stall::default();
    let number =
        |rest: &mut Bytes| encoding::decode_varint(rest).map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    while rest.has_remaining() {
        match encoding::decode_key(&mut rest)? {
            (1, WireType::Varint) => stall.waited = Duration::from_millis(encoding::decode_varint(&mut rest)?),
            (2, WireType::Varint) => stall.providers_found = number(&mut rest)?,
            (3, WireType::Varint) => stall.peers_asked = number(&mut rest)?,
            (4, WireType::Varint) => stall.peers_answered = number(&mut rest)?,
            (tag, wire) => skip(tag, wire, &mut rest)?,
        }
    }
    Ok(stall)
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::scope::{DagScope, EntityBytes, ScopeOptions};
    use content::{Cid, codec, hashes};
    use proptest::prelude::*;

    fn cid(text: &str) -> Cid {
        Cid::new_v1(codec::DAG_PB, hashes::digest(hashes::SHA2_256, 32, text.as_bytes()).expect("a hash"))
    }

    /// A frame without its length.
    fn unframed(parts: &[Bytes]) -> Bytes {
        let mut frame = Bytes::from(parts.concat());
        let length = encoding::decode_varint(&mut frame).expect("a length");
        assert_eq!(length, frame.len() as u64);
        frame
    }

    #[test]
    fn lookups_and_replies_are_read_as_they_were_written() {
        let scope = ScopeOptions {
            scope: DagScope::File,
            entity_bytes: EntityBytes::new(10, Some(20)).ok(),
            duplicates: false,
        };
        let ahead = ReadAhead { root: cid("b"), path: vec!["x".to_owned(), "y".to_owned()], scope };
        for (may_fetch, ahead) in [(false, None), (true, Some(ahead))] {
            let lookup = Lookup { root: cid("a"), cid: cid("b"), may_fetch, ahead };
            assert_eq!(Lookup::decode(unframed(&[lookup.encode()])), Ok(lookup));
        }
        let waited = Duration::from_millis(1_234);
        let stall = Stall { waited, providers_found: 3, peers_asked: 2, peers_answered: 1, no_peers: false };
        let data = Bytes::from_static(b"block");
        let replies = [
            Reply::Block { data: data.clone(), fetched: false },
            Reply::Block { data, fetched: true },
            Reply::Block { data: Bytes::new(), fetched: false },
            Reply::Waiting,
            Reply::NotStored,
            Reply::NotFound(stall),
            Reply::Busy,
            Reply::Failed,
        ];
        for reply in replies {
            assert_eq!(Reply::decode(unframed(&reply.encode())), Ok(reply));
        }
    }

    #[test]
    fn a_path_that_is_too_long_is_left_out() {
        let ahead = ReadAhead { path: vec!["x".repeat(9_000)], ..ReadAhead::all(cid("b")) };
        let lookup = Lookup { root: cid("a"), cid: cid("b"), may_fetch: true, ahead: Some(ahead) };
        let sent = lookup.encode();
        assert!(sent.len() < LOOKUP_BYTES_MAX);
        assert_eq!(Lookup::decode(unframed(&[sent])), Ok(Lookup { ahead: None, ..lookup }));
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        let none = DagMessageError::Content;
        assert_eq!(Reply::decode(Bytes::new()), Err(none.clone()));
        let twice = [unframed(&Reply::Waiting.encode()), unframed(&Reply::Busy.encode())].concat();
        assert_eq!(Reply::decode(twice.into()), Err(none));
        let large = Reply::Block { data: vec![0; MAX_BLOCK_BYTES + 1].into(), fetched: true };
        assert_eq!(Reply::decode(unframed(&large.encode())), Err(DagMessageError::TooLarge));
        assert_eq!(Lookup::decode(Bytes::new()), Err(DagMessageError::Cid));
        assert_eq!(Reply::decode(Bytes::from_static(&[0x18, 99])), Ok(Reply::Failed), "of a later release");
    }

    #[test]
    fn a_block_of_the_maximum_size_fits() {
        let reply = Reply::Block { data: vec![7; MAX_BLOCK_BYTES].into(), fetched: true };
        assert!(unframed(&reply.encode()).len() <= REPLY_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes: Vec<u8>) {
            let _ = Reply::decode(bytes.clone().into());
            let _ = Lookup::decode(bytes.into());
        }
    }
}
