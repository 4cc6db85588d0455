//! The ceiling of a source: how soon it has sent a set of blocks to a Bitswap client that requests all of them at once.
//!
//! No client that finds its way from block to block can be faster. It knows every CID before it starts, which is why it
//! is no node: a bare swarm that opens streams, and Bitswap's messages from `p2p-bridge`. Those are shared because a
//! second codec would be one more source of mistakes. Nothing else of the network tier takes part, so that a mistake
//! there cannot lower the ceiling that it is measured by: QUIC is libp2p's.

use super::peer::{self, Behaviour};
use super::streams::{Received, Streams};
use super::udp;
use anyhow::{Context, Result, ensure};
use content::{Block, Cid};
use p2p_bridge::bitswap::message::{Ask, RawBlock, Version, WantEntry, encode_wants, parse_prefix};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long a source may send nothing.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Wants outstanding at once that a Go peer accepts.
const WANTS_MAX: usize = 1_024;

/// Connects to a peer, requests all of these blocks at once, and returns how long it took until the last was received.
/// The connection is made before the clock starts; the blocks are checked after it has stopped.
pub async fn fetch(peer: &str, cids: &[Cid]) -> Result<Duration> {
    ensure!(cids.len() <= WANTS_MAX, "{} blocks are more than a peer accepts wants for", cids.len());
    let (sender, mut messages) = mpsc::unbounded_channel();
    let mut swarm = peer::swarm(STALL_TIMEOUT, |key| Behaviour::new(key, Some(Streams::new(sender))))?;
    // QUIC dials from the socket that it listens on: the source's bursts must not be lost in this socket's buffer.
    udp::enlarge_buffers(&[peer::listen(&mut swarm, "/ip4/127.0.0.1/udp/0/quic-v1").await?]);
    let peer = peer::connect(&mut swarm, peer.parse()?).await?;
    // Our own identity is on its way to the peer as well: one more round trip at most, before the clock starts.
    let _: Result<(), _> = timeout(Duration::from_millis(300), peer::drive(&mut swarm)).await;
    let want = |cid: &Cid| WantEntry { cid: *cid, ask: Ask::Block, send_dont_have: true };
    let wants: Vec<WantEntry> = cids.iter().map(want).collect();
    let begun = Instant::now();
    let streams = swarm.behaviour_mut().streams.as_mut().context("a behaviour without streams")?;
    streams.write(peer, encode_wants(&wants, Version::V1_2));
    let driver = tokio::spawn(async move { peer::drive(&mut swarm).await });
    let received = receive(&mut messages, cids.len()).await;
    let elapsed = begun.elapsed();
    driver.abort();
    check(received?, cids)?;
    Ok(elapsed)
}

async fn receive(messages: &mut mpsc::UnboundedReceiver<Received>, count: usize) -> Result<Vec<RawBlock>> {
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
