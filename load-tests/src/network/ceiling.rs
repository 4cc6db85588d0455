//! The ceiling of a source: how soon it has sent a set of blocks to a Bitswap client that requests all of them at once.
//!
//! No client that finds its way from block to block can be faster. It knows every CID before it starts, which is why it
//! is no node: a bare swarm that opens streams, and Bitswap's messages from `p2p-bridge`. Those are shared because a
//! second codec would be one more source of mistakes, and so is room in the kernel for QUIC's bursts. Nothing else of
//! the network tier takes part, so that a mistake there cannot lower the ceiling that it is measured by.

use super::peer::{self, Behaviour};
use anyhow::{Context, Result, ensure};
use content::{Block, Cid};
use futures::io::BufReader;
use futures::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, StreamExt as _};
use libp2p::Stream;
use p2p_bridge::bitswap::message::{
    Ask, MAX_MESSAGE_BYTES, Message, RawBlock, Version, WantEntry, encode_wants, parse_prefix,
};
use p2p_bridge::udp;
use std::collections::HashSet;
use std::io::ErrorKind;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::timeout;
use unsigned_varint::{aio::read_usize, io::ReadError};

/// How long a source may send nothing.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Wants outstanding at once that a Go peer accepts.
const WANTS_MAX: usize = 1_024;
const READ_BYTES: usize = 64 << 10;

/// Connects to a peer, requests all of these blocks at once, and returns how long it took until the last was received.
/// The connection is made before the clock starts; the blocks are checked after it has stopped.
pub async fn fetch(peer: &str, cids: &[Cid]) -> Result<Duration> {
    ensure!(cids.len() <= WANTS_MAX, "{} blocks are more than a peer accepts wants for", cids.len());
    let mut swarm = peer::swarm(STALL_TIMEOUT, Behaviour::new)?;
    // QUIC dials from the socket that it listens on: the source's bursts must not be lost in this socket's buffer.
    udp::enlarge_buffers(&[peer::listen(&mut swarm, "/ip4/127.0.0.1/udp/0/quic-v1").await?]);
    let protocol = Version::V1_2.protocol();
    let mut control = swarm.behaviour().streams.new_control();
    let mut incoming = control.accept(protocol.clone())?;
    let peer = peer::connect(&mut swarm, peer.parse()?).await?;
    let driver = tokio::spawn(peer::drive(swarm));
    // Our own identity is on its way to the peer as well: one more round trip at most, before the clock starts.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (sender, mut messages) = mpsc::unbounded_channel();
    let reader = tokio::spawn(async move {
        while let Some((_, stream)) = incoming.next().await {
            tokio::spawn(read(stream, sender.clone()));
        }
    });
    let want = |cid: &Cid| WantEntry { cid: *cid, ask: Ask::Block, send_dont_have: true };
    let wants: Vec<WantEntry> = cids.iter().map(want).collect();
    let begun = Instant::now();
    let mut stream = control.open_stream(peer, protocol).await?;
    stream.write_all(&encode_wants(&wants, Version::V1_2)).await?;
    stream.close().await?;
    let received = receive(&mut messages, cids.len()).await;
    let elapsed = begun.elapsed();
    driver.abort();
    reader.abort();
    check(received?, cids)?;
    Ok(elapsed)
}

/// Reads the messages of one stream.
async fn read(stream: Stream, received: mpsc::UnboundedSender<Result<Message>>) {
    let mut stream = BufReader::with_capacity(READ_BYTES, stream);
    while let Some(message) = next_message(&mut stream).await.transpose() {
        let failed = message.is_err();
        if received.send(message).is_err() || failed {
            return;
        }
    }
}

/// The next message, or none at the end of the stream.
async fn next_message(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<Message>> {
    let length = match read_usize(&mut *stream).await {
        Err(ReadError::Io(error)) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        length => length?,
    };
    ensure!(length <= MAX_MESSAGE_BYTES, "a message of {length} bytes");
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).await?;
    Ok(Some(Message::decode(frame.into())?))
}

async fn receive(messages: &mut mpsc::UnboundedReceiver<Result<Message>>, count: usize) -> Result<Vec<RawBlock>> {
    let mut blocks = Vec::with_capacity(count);
    while blocks.len() < count {
        let message = timeout(STALL_TIMEOUT, messages.recv()).await.context("the source has stalled")?;
        let message = message.context("the connection has ended")??;
        ensure!(message.presences.iter().all(|(_, has)| *has), "the source does not have all blocks");
        blocks.extend(message.blocks);
    }
    Ok(blocks)
}

/// Every requested block was received, and is valid.
fn check(received: Vec<RawBlock>, cids: &[Cid]) -> Result<()> {
    let mut missing: HashSet<Cid> = cids.iter().copied().collect();
    for RawBlock { prefix, data } in received {
        let (codec, hash, digest_bytes) = parse_prefix(prefix)?;
        missing.remove(Block::of(codec, hash, digest_bytes, data)?.cid());
    }
    ensure!(missing.is_empty(), "{} blocks were not received", missing.len());
    Ok(())
}
