//! The fuzz targets of `p2p-bridge`: messages, records and addresses from the network, and imported keys.

use bytes::Bytes;
use content::ipns::{Draft, Record};
use content::names::Key;
use content::{Block, Cid};
use futures::AsyncRead;
use futures::executor::block_on;
use libp2p::identity::{Keypair, PublicKey};
use libp2p::kad::RecordKey;
use libp2p::kad::store::RecordStore as _;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use p2p_bridge::bitswap::message::{
    Ask, DecodeError, MAX_REPEATED, Message, RawBlock, Version, encode_answer, encode_wants, parse_prefix,
};
use p2p_bridge::dag::message as dag;
use p2p_bridge::dht::providers::{ADDRESS_BYTES_MAX, ADDRESSES_MAX, Added, PER_KEY_MAX};
use p2p_bridge::dht::store::{KEY_BYTES_MAX, RecordStoreLimits, Rejection, Store};
use p2p_bridge::dht::values::LIFETIME;
use p2p_bridge::dht::{Moment, Network, digest, kept};
use p2p_bridge::dialable::{Host, Shape, TransportKind, first_hop, is_free_port};
use p2p_bridge::framing::{Budgets, Frame, Memory, UNSOLICITED_BYTES_MAX};
use p2p_bridge::http_source::address::{AddressError, Base, is_http};
use p2p_bridge::names::key_format::{KeyFormat, Secret};
use p2p_bridge::private_network::{KeyError, SwarmKey};
use p2p_bridge::providing::message as announcing;
use p2p_bridge::providing::walk::{ClosestPeersLookup, Peer};
use p2p_bridge::routing_v1::ndjson::{self, Lines};
use p2p_bridge::routing_v1::types::{self, FormatError, PEERS, PROVIDERS};
use p2p_bridge::routing_v1::{Filters, PeerRecord};
use p2p_bridge::scope::{AddressPolicy, Reach, Scope, is_literal, is_public};
use p2p_bridge::traffic::Traffic;
use prost::encoding;
use std::borrow::Cow;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A fuzz target.
pub type Function = fn(&[u8]);

/// All targets, by the name of their fuzzer and corpus.
pub const TARGETS: [(&str, Function); 9] = [
    ("bitswap_message", bitswap_message),
    ("bitswap_frame", bitswap_frame),
    ("dag_message", dag_message),
    ("kad_message", kad_message),
    ("kad_records", kad_records),
    ("routing_v1", routing_v1),
    ("addresses", addresses),
    ("dialable", dialable),
    ("key_format", key_format),
];

/// A Bitswap message. Its size is bounded by the input, and it survives encoding in each version.
pub fn bitswap_message(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let decoded = Message::decode(bytes.clone());
    let at = cut(data);
    if let (Ok(first), Ok(second)) = (Message::decode(bytes.slice(..at)), Message::decode(bytes.slice(at..))) {
        check_joined(first, second, &decoded);
    }
    let Ok(message) = decoded else { return };
    let lists = [message.wants.len(), message.blocks.len(), message.presences.len()];
    assert!(lists.iter().all(|entries| *entries <= MAX_REPEATED));
    let held: usize = message.blocks.iter().map(|raw| raw.prefix.len() + raw.data.len()).sum();
    assert!(held + 2 * lists.iter().sum::<usize>() <= data.len());
    // Hashing thousands of blocks four times would take most of the time.
    let blocks: Vec<Block> = message.blocks.iter().take(100).filter_map(hashed).collect();
    for version in Version::ALL {
        check_wants(&message, version);
        check_answer(&blocks, &message.presences, version);
    }
}

/// A message of the DAG protocol, of each of its kinds. What is decoded is within the limits, survives encoding, and
/// takes no more memory than the input; a packed block unpacks to the announced size or not at all.
pub fn dag_message(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(opening) = dag::Opening::decode(bytes.clone()) {
        if let dag::Opening::Request(request) = &opening {
            assert!(request.has_valid_path() && request.held.len() <= dag::HELD_MAX);
            let named = request.held.len() * 4 + request.path.iter().map(String::len).sum::<usize>();
            assert!(named <= data.len());
        }
        let encoded = read_length(opening.encode().concat().into());
        // A longer request loses held subtrees when it is encoded.
        if data.len() <= dag::OPENING_BYTES_MAX / 2 {
            assert_eq!(dag::Opening::decode(encoded), Ok(opening));
        }
    }
    if let Ok(control) = dag::Control::decode(bytes.clone()) {
        let encoded = read_length(control.encode().concat().into());
        assert_eq!(dag::Control::decode(encoded), Ok(control));
    }
    let Ok(answer) = dag::Answer::decode(bytes) else { return };
    let overhead = dag::ANSWER_OVERHEAD_BYTES;
    assert!(answer.budget_bytes() <= content::MAX_BLOCK_BYTES as u64 + overhead);
    // The head of an envelope.
    assert!(answer.wire_bytes() <= data.len() + 3 + overhead as usize);
    if let dag::Answer::Packed(packed) = &answer {
        let unpacked = packed.stored.block();
        assert!(unpacked.is_err() || unpacked.is_ok_and(|block| block.len() == packed.block_bytes));
    }
    let encoded = read_length(answer.encode().concat().into());
    assert_eq!(dag::Answer::decode(encoded), Ok(answer));
}

/// Strips the length from a message.
fn read_length(mut framed: Bytes) -> Bytes {
    let length = encoding::decode_varint(&mut framed).expect("a length");
    assert_eq!(length, framed.len() as u64);
    framed
}

/// Two concatenated messages are one message with the entries of both.
fn check_joined(first: Message, second: Message, joined: &Result<Message, DecodeError>) {
    let wants = [first.wants, second.wants].concat();
    let blocks = [first.blocks, second.blocks].concat();
    let presences = [first.presences, second.presences].concat();
    match joined {
        Ok(joined) => {
            assert_eq!((&joined.wants, &joined.blocks, &joined.presences), (&wants, &blocks, &presences));
            assert!(joined.full == second.full || joined.full == first.full);
        }
        Err(error) => {
            assert_eq!(*error, DecodeError::TooMany);
            assert!([wants.len(), blocks.len(), presences.len()].iter().any(|entries| *entries > MAX_REPEATED));
        }
    }
}

/// The block of a received payload, if it is valid.
fn hashed(raw: &RawBlock) -> Option<Block> {
    let (codec, hash, digest_bytes) = parse_prefix(raw.prefix.clone()).ok()?;
    Block::of(codec, hash, digest_bytes, raw.data.clone()).ok()
}

/// Old versions cannot express all entries, but the entries that they express are the same.
fn check_wants(message: &Message, version: Version) {
    let written = read_framed(encode_wants(&message.wants, version));
    let mut expected = message.wants.clone();
    if version != Version::V1_2 {
        for entry in &mut expected {
            entry.send_dont_have = false;
            entry.ask = if entry.ask == Ask::Have { Ask::Block } else { entry.ask };
        }
    }
    if version == Version::V1_0 {
        expected.retain_mut(|entry| {
            let old = Cid::new_v0(*entry.cid.hash());
            old.map(|cid| entry.cid = cid).is_ok()
        });
    }
    assert_eq!(written, Message { wants: expected, ..Message::default() }, "{version:?}");
}

fn check_answer(blocks: &[Block], presences: &[(Cid, bool)], version: Version) {
    let written = read_framed(encode_answer(blocks, presences, version).concat().into());
    assert_eq!(written.presences, if version == Version::V1_2 { presences } else { &[] });
    assert_eq!(written.blocks.len(), blocks.len());
    for (raw, block) in written.blocks.iter().zip(blocks) {
        assert_eq!(raw.data, block.data());
        assert!(version == Version::V1_0 || hashed(raw).as_ref() == Some(block), "{block:?}");
    }
}

/// The message in a frame.
fn read_framed(mut frame: Bytes) -> Message {
    let length = encoding::decode_varint(&mut frame).expect("a length");
    assert_eq!(length, frame.len() as u64);
    Message::decode(frame).expect("what was encoded is decoded")
}

/// A stream of Bitswap frames. The first byte says whether wants were sent to the peer, and by how many times 8 KiB the
/// stream is extended, so that large frames can be complete; the second byte says in which chunks the input arrives.
/// The frames do not depend on the latter.
pub fn bitswap_frame(data: &[u8]) {
    let [first, pieces, sent @ ..] = data else { return };
    // Four of these bytes are a length beyond all limits, which ends the stream.
    let sent = [sent, &vec![0xff; usize::from(first >> 1) * 8 * 1024]].concat();
    let asked = first & 1 == 1;
    let frames = read_frames(&mut Stream::whole(&sent), asked);
    assert_eq!(read_frames(&mut Stream::in_pieces(&sent, data.len() - 2, *pieces), asked), frames, "in chunks");
    let mut whole = Vec::new();
    let mut again = Vec::new();
    for frame in frames {
        if let Read::Whole(bytes) = &frame {
            assert!(asked || bytes.len() <= UNSOLICITED_BYTES_MAX);
            encoding::encode_varint(bytes.len() as u64, &mut again);
            again.extend_from_slice(bytes);
            whole.push(frame);
        }
    }
    assert!(again.len() <= sent.len());
    whole.push(Read::End);
    assert!(read_frames(&mut Stream::whole(&again), asked) == whole, "what is encoded is decoded");
}

/// The result of reading a frame.
#[derive(Debug, PartialEq, Eq)]
enum Read {
    Whole(Bytes),
    Unsolicited,
    End,
    Failed(io::ErrorKind),
}

fn read_frames(stream: &mut Stream<'_>, asked: bool) -> Vec<Read> {
    let traffic = Arc::new(Traffic::default());
    if asked {
        traffic.record_request();
    }
    let budgets = Budgets::new(Memory::new(0), traffic);
    let mut frames = Vec::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        loop {
            // Each frame accounts for its own memory.
            stream.given = 0;
            let read = match budgets.read_frame(stream).await {
                Ok(Frame::Whole(bytes, _)) => Read::Whole(bytes),
                Ok(Frame::Unsolicited) => Read::Unsolicited,
                Ok(Frame::End) => Read::End,
                Ok(Frame::Stalled) => Read::Failed(io::ErrorKind::TimedOut),
                Err(error) => Read::Failed(error.kind()),
            };
            let is_last = matches!(read, Read::End | Read::Failed(_));
            frames.push(read);
            if is_last {
                return frames;
            }
        }
    })
}

/// The bytes of a peer. The reader may offer a buffer of more than [`Stream::FREE_BYTES`] only after it received as
/// many.
struct Stream<'a> {
    rest: &'a [u8],
    given: usize,
    /// The number of bytes that arrive in chunks, and the size of the chunks.
    in_pieces: usize,
    piece: usize,
    /// Whether each chunk is pending at first, and whether it was.
    slow: bool,
    waited: bool,
}

impl<'a> Stream<'a> {
    const FREE_BYTES: usize = 16 * 1024;

    /// Bytes that are available at once.
    fn whole(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, given: 0, in_pieces: 0, piece: 0, slow: false, waited: false }
    }

    /// Bytes of which the first ones arrive in small chunks.
    fn in_pieces(bytes: &'a [u8], in_pieces: usize, kind: u8) -> Self {
        let piece = 1 + usize::from(kind >> 1);
        Self { in_pieces, piece, slow: kind & 1 == 1, ..Self::whole(bytes) }
    }
}

impl AsyncRead for Stream<'_> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        assert!(buffer.len() <= self.given.max(Self::FREE_BYTES), "memory is bounded by the bytes received");
        if self.slow && !self.waited {
            self.waited = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.waited = false;
        let at_once = if self.in_pieces > 0 { self.piece } else { usize::MAX };
        let length = buffer.len().min(self.rest.len()).min(at_once);
        let (now, later) = self.rest.split_at(length);
        buffer[..length].copy_from_slice(now);
        self.rest = later;
        self.given += length;
        self.in_pieces = self.in_pieces.saturating_sub(length);
        Poll::Ready(Ok(length))
    }
}

/// A FIND_NODE response, alone and from a stream. Its peers are bounded and survive encoding, and a lookup with them
/// ends.
pub fn kad_message(data: &[u8]) {
    let kind = data.last().copied().unwrap_or_default();
    let read = |mut stream: Stream<'_>| block_on(announcing::read(&mut stream)).map_err(|error| error.kind());
    let message = read(Stream::whole(data));
    assert_eq!(read(Stream::in_pieces(data, data.len(), kind)), message, "in chunks");
    if let Ok(message) = message {
        assert!(message.len() <= announcing::MESSAGE_BYTES_MAX && message.len() < data.len());
        check_closer_peers(message);
    }
    check_closer_peers(Bytes::copy_from_slice(data));
}

fn check_closer_peers(message: Bytes) {
    let Ok(peers) = announcing::closer_peers(message) else { return };
    assert!(peers.len() <= announcing::PEERS_MAX);
    let mut answer = Vec::new();
    for peer in &peers {
        assert!(peer.addresses.len() <= announcing::PEER_ADDRESSES_MAX);
        let mut about = Vec::new();
        encoding::bytes::encode(1, &peer.id.to_bytes(), &mut about);
        for address in &peer.addresses {
            assert!(!matches!(address.iter().last(), Some(Protocol::P2p(other)) if other != peer.id), "{address}");
            encoding::bytes::encode(2, &address.to_vec(), &mut about);
        }
        encoding::bytes::encode(8, &about, &mut answer);
    }
    assert_eq!(announcing::closer_peers(answer.into()).as_ref(), Ok(&peers));
    let mut walk = ClosestPeersLookup::new(Arc::from(&b"target"[..]), stranger(0), peers.iter().cloned());
    while let Some(Peer { id, .. }) = walk.next_to_ask() {
        walk.answered(&id, peers.iter().cloned());
    }
    assert!(walk.is_over() && walk.discovered() <= peers.len());
}

/// A peer whose key is unknown.
fn stranger(number: u8) -> PeerId {
    let bytes = [&[0x12, 0x20][..], &[number; 32]].concat();
    PeerId::from_bytes(&bytes).expect("a SHA-256")
}

/// The record store of a DHT server: steps, each of which is a record, a restart or a period of time. With a first byte
/// of 0xff, the rest is a file of stored records.
pub fn kad_records(data: &[u8]) {
    if let Some(body) = data.strip_prefix(&[0xff]) {
        let file = [kept::MAGIC, body, &digest(&[kept::MAGIC, body].concat())].concat();
        let mut server = Server::new();
        let read = kept::decode(&file, &mut server.store);
        assert!(read.is_err() || server.store.provider_records() + server.store.value_records() <= data.len());
        return server.ends();
    }
    let mut script = Script(data);
    let mut server = Server::new();
    while !script.0.is_empty() && server.steps < STEPS_MAX {
        server.step(&mut script);
    }
    server.ends();
}

/// The maximum number of steps. Signatures take most of the time.
const STEPS_MAX: usize = 64;
/// The time when scripts begin.
const BEGINNING: Moment = 1_800_000_000;
/// Small limits, which scripts can reach.
const LIMITS: RecordStoreLimits =
    RecordStoreLimits { provider_bytes: 8 * 1024, value_bytes: 2 * 1024, own_keys: 0, provider_ttl: 48 * 3600 };

/// Bytes that describe the steps.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or_default()
    }

    fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte()).min(self.0.len());
        self.0.split_off(..length).unwrap_or_default()
    }

    /// One of four fixed keys.
    fn keypair(&mut self) -> &'static Keypair {
        &KEYPAIRS[usize::from(self.byte() % 4)]
    }

    /// The DHT key of a name or a public key that can be signed for, or any other.
    fn key(&mut self) -> RecordKey {
        let peer = |script: &mut Self| script.keypair().public().to_peer_id();
        RecordKey::from(match self.byte() % 3 {
            0 => Key::from(peer(self)).routing_key(),
            1 => [PUBLIC_KEY, &peer(self).to_bytes()[..]].concat(),
            _ => self.bytes().to_vec(),
        })
    }

    fn network(&mut self) -> Network {
        Network(u64::from(self.byte() % 4))
    }

    /// A signed IPNS record. It may be expired.
    fn signed(&mut self) -> Vec<u8> {
        let keypair = self.keypair();
        let [sequence, hours, ttl] = [self.byte(), self.byte(), self.byte()].map(u64::from);
        let value = format!("/ipfs/{}", String::from_utf8_lossy(self.bytes()));
        let end_of_life = at(BEGINNING) + Duration::from_secs(hours * 3600);
        let draft = Draft { value, sequence, end_of_life, ttl: Duration::from_secs(ttl) };
        Record::sign(keypair, &draft).map(|record| record.bytes().to_vec()).unwrap_or_default()
    }

    /// Addresses, arbitrary ones and valid ones.
    fn addresses(&mut self) -> Vec<Multiaddr> {
        let count = self.byte() % 20;
        let address = |_| match self.byte() {
            0 => Multiaddr::try_from(self.bytes().to_vec()).ok(),
            number => Some(Multiaddr::empty().with(Protocol::Ip4([8, 8, 8, number].into())).with(Protocol::Tcp(4001))),
        };
        // The behaviour forwards only addresses that can be dialled, and files have no others.
        (0..count).filter_map(address).filter(|address| Shape::read(address).is_ok()).collect()
    }
}

static KEYPAIRS: LazyLock<[Keypair; 4]> = LazyLock::new(|| {
    [0, 1, 2, 3].map(|number| Keypair::ed25519_from_bytes([number; 32]).expect("any 32 bytes will do"))
});

/// The prefix of the DHT keys of public keys.
const PUBLIC_KEY: &[u8] = b"/pk/";

fn at(moment: Moment) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(moment.into())
}

/// A store, and all keys that were put into it.
struct Server {
    store: Store,
    keys: Vec<RecordKey>,
    steps: usize,
}

impl Server {
    fn new() -> Self {
        Self { store: Store::new(stranger(0), LIMITS, BEGINNING), keys: Vec::new(), steps: 0 }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        self.steps += 1;
        match script.byte() % 6 {
            0 => self.announce(script),
            1 => {
                let (key, value) = (script.key(), script.bytes().to_vec());
                self.put(key, value, script.network());
            }
            2 => {
                let (key, value) = (script.key(), script.signed());
                self.put(key, value, script.network());
            }
            3 => {
                let (key, value) = (script.key(), script.keypair().public().encode_protobuf());
                self.put(key, value, script.network());
            }
            4 => self.wait(script.byte()),
            _ => self.restart(),
        }
        self.check_bounds();
    }

    /// A peer announces that it provides a key.
    fn announce(&mut self, script: &mut Script<'_>) {
        let (key, number, network, addresses) = (script.key(), script.byte(), script.network(), script.addresses());
        let peer = stranger(number.max(1));
        let known = self.store.providers(&key).iter().any(|record| record.provider == peer);
        match self.store.put_provider(&key, peer, network, addresses.clone()) {
            Ok(added) => assert_eq!(added == Added::Renewed, known),
            Err(Rejection::NoAddress) => assert!(addresses.iter().all(|address| address.len() > ADDRESS_BYTES_MAX)),
            Err(Rejection::KeyLength(bytes)) => assert!(!(1..=KEY_BYTES_MAX).contains(&bytes)),
            Err(error) => panic!("{error}"),
        }
        let records = self.store.providers(&key);
        assert!(records.len() <= PER_KEY_MAX);
        for (place, record) in records.iter().enumerate() {
            let bytes: usize = record.addresses.iter().map(Multiaddr::len).sum();
            assert!((1..=ADDRESSES_MAX).contains(&record.addresses.len()) && bytes <= ADDRESS_BYTES_MAX);
            assert!(records[..place].iter().all(|other| other.provider != record.provider), "each peer has one record");
        }
        self.note(key);
    }

    /// A peer puts a value. Stored values are valid, and replaced only by newer ones.
    fn put(&mut self, key: RecordKey, value: Vec<u8>, network: Network) {
        let before = self.value(&key);
        let put = self.store.put_value(&key, value.clone(), network);
        let after = self.value(&key);
        match put {
            Ok(()) => {
                // The largest value is evicted, which may be this one.
                assert!(after.is_none() || after.as_ref() == Some(&value));
                let new = after.and_then(|after| self.check_value(&key, after));
                if let Some((known, new)) = before.and_then(|before| self.check_value(&key, before)).zip(new) {
                    assert!(!known.newer_than(&new));
                }
            }
            Err(error) => {
                assert_eq!(before, after, "{error}");
                assert_ne!(before, Some(value), "a stored value is accepted again: {error}");
            }
        }
        self.note(key);
    }

    fn note(&mut self, key: RecordKey) {
        if !self.keys.contains(&key) {
            self.keys.push(key);
        }
    }

    /// The value that is returned for a key.
    fn value(&self, key: &RecordKey) -> Option<Vec<u8>> {
        self.store.get(key).map(|record| record.into_owned().value)
    }

    /// Values that are returned are valid.
    fn check_value(&self, key: &RecordKey, value: Vec<u8>) -> Option<Record> {
        if let Some(public) = key.as_ref().strip_prefix(PUBLIC_KEY) {
            let decoded = PublicKey::try_decode_protobuf(&value).expect("a public key");
            assert_eq!(decoded.to_peer_id().to_bytes(), public);
            return None;
        }
        let name = key.as_ref().strip_prefix(b"/ipns/").expect("of a name or a public key");
        let name = Key::from(PeerId::from_bytes(name).expect("a name"));
        let record = Record::verify(&name, value.into()).expect("a record that holds");
        assert!(record.is_valid_at(at(self.store.now())));
        Some(record)
    }

    /// Time passes. Expired values are no longer returned.
    fn wait(&mut self, minutes: u8) {
        self.store.tick(self.store.now() + Moment::from(minutes) * 60);
        for key in &self.keys {
            self.value(key).and_then(|value| self.check_value(key, value));
        }
    }

    /// What is encoded is decoded, except expired records.
    fn restart(&mut self) {
        let mut file = kept::encode(&self.store);
        file.extend(digest(&file));
        let mut read = Store::new(stranger(0), LIMITS, self.store.now());
        let records = self.store.provider_records() + self.store.value_records();
        assert_eq!(kept::decode(&file, &mut read), Ok(records));
        assert!(read.bytes() <= self.store.bytes());
        for key in &self.keys {
            let providers = |store: &Store| {
                let records = store.providers(key).into_iter();
                records.map(|record| (record.provider, record.addresses)).collect::<Vec<_>>()
            };
            assert_eq!(providers(&read), providers(&self.store));
            assert_eq!(read.get(key).map(Cow::into_owned), self.store.get(key).map(Cow::into_owned));
        }
        self.store = read;
    }

    fn check_bounds(&self) {
        assert!(self.store.bytes() <= LIMITS.provider_bytes + LIMITS.value_bytes, "{}", self.store.bytes());
    }

    /// In the end all records are expired and deleted, and take no memory.
    fn ends(mut self) {
        self.check_bounds();
        let end = self.store.now() + LIFETIME.max(LIMITS.provider_ttl);
        // Not everything is swept in each tick.
        (0..60).for_each(|_| self.store.tick(end));
        let store = &self.store;
        assert_eq!((store.provider_records(), store.value_records(), store.bytes()), (0, 0, 0));
    }
}

/// A line of filters and the response of a router: as lines in any chunks, as a list, and encoded again.
pub fn routing_v1(data: &[u8]) {
    let Some(at) = data.iter().position(|byte| *byte == b'\n') else { return };
    let (filters, answer) = (str::from_utf8(&data[..at]).ok(), &data[at + 1..]);
    let filters = check_filters(filters);
    let (records, end) = read_lines([answer]);
    let pieces = answer.chunks(1 + usize::from(data[0]));
    let (in_pieces, end_in_pieces) = read_lines(pieces);
    if answer.len() <= LINES.bytes_max {
        assert_eq!((&in_pieces, &end_in_pieces), (&records, &end), "in chunks");
    } else {
        assert!(end.is_err() && end_in_pieces.is_err() && records.starts_with(&in_pieces));
    }
    records.iter().for_each(|record| check_record(record, &filters));
    if end.is_ok() {
        let lines = answer.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
        let list = [&b"{\"Peers\":["[..], &lines.collect::<Vec<_>>().join(&b','), b"]}"].concat();
        match types::from_json_list(&list, usize::MAX) {
            Ok(listed) => assert_eq!(listed, records, "the list has the same records as the lines"),
            // In a list everything is nested two levels deeper.
            Err(error) => assert!(error.to_string().contains("recursion limit"), "{error}"),
        }
    }
    if let Ok(listed) = types::from_json_list(answer, LISTED_MAX) {
        assert!(listed.len() <= LISTED_MAX);
        listed.iter().for_each(|record| check_record(record, &filters));
    }
}

/// Small limits, which inputs can reach.
const LINES: ndjson::NdjsonLimits = ndjson::NdjsonLimits { line_bytes_max: 1024, bytes_max: 3 * 1024 };
const LISTED_MAX: usize = 8;

fn read_lines<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<PeerRecord>, Result<(), FormatError>) {
    let (mut lines, mut records) = (Lines::new(LINES), Vec::new());
    for piece in pieces {
        if let Err(error) = lines.push(piece, |record| records.push(record)) {
            return (records, Err(error));
        }
    }
    let end = lines.finish(|record| records.push(record));
    (records, end)
}

/// Two lists of filters separated by `&`. They survive encoding as a query, which has no other characters.
fn check_filters(text: Option<&str>) -> Filters {
    let (addrs, protocols) = text.unwrap_or_default().split_once('&').unzip();
    let filters = Filters::read(addrs, protocols);
    let query = filters.to_query();
    assert!(query.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._!,=&".contains(&byte)), "{query}");
    let value = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    assert_eq!(Filters::read(value("filter-addrs"), value("filter-protocols")), filters, "{query}");
    filters
}

fn check_record(record: &PeerRecord, filters: &Filters) {
    assert!(record.addresses.len() <= types::ADDRESSES_MAX && record.protocols.len() <= types::PROTOCOLS_MAX);
    let is_bare = |address: &Multiaddr| !matches!(address.iter().last(), None | Some(Protocol::P2p(_)));
    assert!(record.addresses.iter().all(is_bare), "{record:?}");
    // The text of an address may be longer than the text from which it was parsed.
    if record.addresses.iter().all(|address| address.to_string().len() <= types::ADDRESS_BYTES_MAX) {
        let lists = [PEERS, PROVIDERS].map(|name| types::to_json_list(name, std::slice::from_ref(record)));
        let again = lists.map(|list| types::from_json_list(list.as_bytes(), 2));
        assert!(again.iter().all(|again| again.as_deref() == Ok(std::slice::from_ref(record))), "{again:?}");
        assert!(!record.to_json().contains('\n'));
    }
    if let Some(left) = filters.apply(record.clone()) {
        assert!(left.id == record.id && left.protocols == record.protocols);
        assert!(left.addresses.iter().all(|address| record.addresses.contains(address)));
        assert_eq!(filters.apply(left.clone()), Some(left), "filtering is idempotent");
    }
}

/// An address: as a binary multiaddr, as the text of one, and as a URL.
pub fn addresses(data: &[u8]) {
    if let Ok(address) = Multiaddr::try_from(data.to_vec()) {
        check_address(&address);
    }
    let Ok(text) = str::from_utf8(data) else { return };
    if let Ok(address) = text.parse::<Multiaddr>() {
        check_address(&address);
        assert_eq!(address.to_string().parse().ok(), Some(address), "what is encoded is decoded");
    }
    if let Ok(base) = Base::from_url(text) {
        check_base(&base);
    }
}

fn check_address(address: &Multiaddr) {
    let [wan, lan] = Scope::ALL.map(|scope| scope.admits(address));
    assert!(!(wan && lan), "an address is in one scope at most");
    let shape = Shape::read(address);
    let first = match &shape {
        Ok(Shape { host: Host::Ip(ip), .. }) => Some(*ip),
        _ => None,
    };
    if let Some(ip) = first {
        let reach = Reach::of(ip);
        assert!(is_literal(address) && (wan, lan) == (reach == Reach::Public, reach == Reach::Private), "{address}");
    }
    match &shape {
        Ok(shape) => check_shape(address, shape),
        Err(_) => assert!(!wan && !lan && !is_literal(address), "{address}"),
    }
    for scope in Scope::ALL {
        let [strict, lenient] = [false, true].map(|dial_private| AddressPolicy { dial_private });
        assert!(!strict.admits(scope, address) || lenient.admits(scope, address));
        for borders in [strict, lenient] {
            assert!(!borders.speaks_over(scope, address) || borders.admits(scope, address));
            assert!(!borders.may_dial(scope, address) || borders.admits(scope, address));
        }
        assert!(!strict.may_dial(scope, address) || lenient.may_dial(scope, address));
    }
    assert_ne!(Network::of(address), Network::OURS, "no address is in the network of the node itself");
    let base = Base::from_multiaddr(address);
    assert_eq!(is_http(address), base != Err(AddressError::NotHttp));
    let Ok(base) = base else { return };
    check_base(&base);
    let names_another_host = address.iter().any(|part| matches!(part, Protocol::Sni(_)));
    if first.is_some_and(|ip| !is_public(ip)) && !names_another_host {
        assert!(base.check_as_untrusted().is_err(), "{address}");
    }
}

/// An address of components that the bytes select. Any component may follow any other.
pub fn dialable(mut data: &[u8]) {
    let mut address = Multiaddr::empty();
    while let Some(component) = component(&mut data) {
        address.push(component);
    }
    check_address(&address);
    assert_eq!(Multiaddr::try_from(address.to_vec()).ok(), Some(address), "what is encoded is decoded");
}

fn take<const N: usize>(data: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = data.split_first_chunk()?;
    *data = rest;
    Some(*taken)
}

fn text(data: &mut &[u8]) -> Option<Cow<'static, str>> {
    let [length] = take(data)?;
    let (text, rest) = data.split_at_checked(usize::from(length % 64))?;
    *data = rest;
    Some(String::from_utf8_lossy(text).into_owned().into())
}

fn component(data: &mut &[u8]) -> Option<Protocol<'static>> {
    let peer = |number: u8| {
        let mut id = [number; 34];
        (id[0], id[1]) = (0x12, 32);
        PeerId::from_bytes(&id).map(Protocol::P2p).ok()
    };
    let [kind] = take(data)?;
    Some(match kind % 27 {
        0 => Protocol::Ip4(take(data)?.into()),
        1 => Protocol::Ip4(Ipv4Addr::LOCALHOST),
        2 => Protocol::Ip4(Ipv4Addr::new(8, 8, 8, 8)),
        3 => Protocol::Ip6(take::<16>(data)?.into()),
        4 => Protocol::Ip6(Ipv4Addr::from(take(data)?).to_ipv6_mapped()),
        5 => Protocol::Tcp(u16::from_be_bytes(take(data)?)),
        6 => Protocol::Udp(u16::from_be_bytes(take(data)?)),
        7 => Protocol::QuicV1,
        8 => Protocol::Quic,
        9 => Protocol::Dns(text(data)?),
        10 => Protocol::Dns4(text(data)?),
        11 => Protocol::Dns6(text(data)?),
        12 => Protocol::Dnsaddr(text(data)?),
        13 => Protocol::Ws(text(data)?),
        14 => Protocol::Wss(text(data)?),
        15 => Protocol::Tls,
        16 => Protocol::Sni(text(data)?),
        17 => peer(1)?,
        18 => peer(2)?,
        19 => Protocol::P2pCircuit,
        20 => Protocol::WebTransport,
        21 => Protocol::WebRTCDirect,
        22 => Protocol::Http,
        23 => Protocol::Https,
        24 => Protocol::HttpPath(text(data)?),
        25 => Protocol::Memory(u64::from_be_bytes(take(data)?)),
        _ => Protocol::Ws("/".into()),
    })
}

/// A valid shape has one host, at its beginning, and no characters that would change the structure of a request.
/// libp2p's transports connect to the same address.
fn check_shape(address: &Multiaddr, shape: &Shape<'_>) {
    let is_host = |part: &Protocol<'_>| {
        use Protocol::{Dns, Dns4, Dns6, Dnsaddr, Ip4, Ip6, Memory};
        matches!(part, Ip4(_) | Ip6(_) | Dns(_) | Dns4(_) | Dns6(_) | Dnsaddr(_) | Memory(_))
    };
    assert_eq!(address.iter().filter(is_host).count(), 1, "{address}");
    assert!(address.iter().next().is_some_and(|first| is_host(&first)), "{address}");
    let circuits = address.iter().filter(|part| matches!(part, Protocol::P2pCircuit)).count();
    assert!(circuits <= 1 && (circuits == 1) == shape.is_circuit(), "{address}");
    for part in address {
        match part {
            Protocol::Ws(path) | Protocol::Wss(path) => {
                assert!(path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()), "{path:?}");
            }
            Protocol::Sni(name) | Protocol::Dns(name) | Protocol::Dns4(name) | Protocol::Dns6(name) => {
                let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
                assert!(name.bytes().all(is_of_name) && name.parse::<IpAddr>().is_err(), "{name:?}");
            }
            Protocol::HttpPath(path) => assert!(!path.chars().any(char::is_control), "{path:?}"),
            _ => {}
        }
    }
    assert_ne!(shape.port(), Some(0), "{address}");
    check_dial(address, shape);
}

fn check_dial(address: &Multiaddr, shape: &Shape<'_>) {
    let strict = AddressPolicy { dial_private: false };
    if Scope::ALL.into_iter().any(|scope| strict.may_dial(scope, address)) {
        let Host::Ip(ip) = shape.host else { panic!("an untrusted peer's address has a host name: {address}") };
        assert!(Reach::of(ip) != Reach::Nowhere && shape.is_dialled(), "{address}");
        assert!(shape.port().is_some_and(is_free_port) && shape.has_plain_path(), "{address}");
    }
    let Host::Ip(ip) = shape.host else { return };
    let first = first_hop(address);
    assert_eq!(Shape::read(&first).map(|first| first.host == shape.host), Ok(true), "{address}");
    let expected = shape.port().map(|port| SocketAddr::new(ip, port));
    match shape.transport {
        TransportKind::Tcp { .. } => assert_eq!(tcp_end(first), expected, "{address}"),
        TransportKind::WebSocket { .. } => assert_eq!(tcp_end(without_websocket(first)), expected, "{address}"),
        TransportKind::Quic { .. } => {
            let parts: Vec<Protocol<'_>> = first.iter().collect();
            let [_, Protocol::Udp(port), Protocol::QuicV1] = parts[..] else { panic!("not QUIC: {address}") };
            assert_eq!(Some(SocketAddr::new(ip, port)), expected, "{address}");
        }
        _ => {}
    }
}

/// The address to which libp2p's TCP transport connects: it parses an address from its end.
fn tcp_end(mut address: Multiaddr) -> Option<SocketAddr> {
    let Some(Protocol::Tcp(port)) = address.pop() else { return None };
    match address.pop()? {
        Protocol::Ip4(ip) => Some((ip, port).into()),
        Protocol::Ip6(ip) => Some((ip, port).into()),
        _ => None,
    }
}

/// The address that libp2p's WebSocket transport passes to the transport below.
fn without_websocket(mut address: Multiaddr) -> Multiaddr {
    while address.iter().last().is_some_and(|part| !matches!(part, Protocol::Tcp(_))) {
        address.pop();
    }
    address
}

/// The URL of a gateway has one form, and blocks are requested from the same host. Untrusted peers may name only public
/// hosts.
fn check_base(base: &Base) {
    assert_eq!(Base::from_url(&base.to_string()).as_ref(), Ok(base));
    let cid: Cid = "bafkqaddjnzzxazldoqwxizltoq".parse().expect("a CID");
    let url = base.block_url(&cid);
    assert_eq!(url.origin().ascii_serialization(), base.origin());
    assert!(matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.password().is_none());
    assert!(url.path().ends_with(&format!("/ipfs/{cid}")) && url.query() == Some("format=raw"), "{url}");
    if base.check_as_untrusted().is_ok() {
        let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        assert!(host.parse().is_ok_and(is_public) || host.parse::<IpAddr>().is_err(), "{url}");
        assert!(matches!(url.port_or_known_default(), Some(80 | 443 | 1024..)), "{url}");
    }
}

/// A private key in each format, and the key of a private network.
pub fn key_format(data: &[u8]) {
    for format in [KeyFormat::Protobuf, KeyFormat::Pem] {
        if let Ok(secret) = Secret::read(format, data) {
            check_secret(&secret);
        }
    }
    if let Ok(key) = SwarmKey::parse(data) {
        let fingerprint = key.fingerprint();
        assert!(fingerprint.len() == 32 && fingerprint.bytes().all(|byte| byte.is_ascii_hexdigit()), "{fingerprint}");
        // In a text encoding, the end of the last line is ignored.
        let is_text = data.split(|byte| *byte == b'\n').nth(1).is_some_and(|line| !line.starts_with(b"/bin/"));
        match SwarmKey::parse(&[data, b"\r\n"].concat()) {
            Ok(again) => assert_eq!(again, key),
            Err(error) => assert!(!is_text || matches!(error, KeyError::TooLong), "{error}"),
        }
    }
}

/// A usable key survives encoding in each supported format.
fn check_secret(secret: &Secret) {
    let message = secret.write(KeyFormat::Protobuf).expect("every key has a protobuf encoding");
    let again = Secret::read(KeyFormat::Protobuf, &message);
    assert_eq!(again.as_ref(), Ok(secret));
    let Ok(keypair) = secret.keypair() else { return };
    let signature = keypair.sign(b"message").expect("a usable key signs");
    assert!(keypair.public().verify(b"message", &signature));
    if let Ok(pem) = secret.write(KeyFormat::Pem) {
        assert_eq!(KeyFormat::guess(&pem), KeyFormat::Pem);
        assert_eq!(Secret::read(KeyFormat::Pem, &pem).as_ref(), Ok(secret));
    }
}

/// The offset at which the bytes are split in two.
fn cut(data: &[u8]) -> usize {
    usize::from(data.last().copied().unwrap_or_default()).min(data.len())
}
