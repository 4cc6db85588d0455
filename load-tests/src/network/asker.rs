//! The ceiling of a source: how soon it has sent a set of blocks to somebody who asks for all of them at once.
//!
//! No client that finds its way from block to block can be faster. It knows every CID before it starts, which is why it is
//! no client of anybody's: a bare swarm with one protocol, and Bitswap's messages from `p2p-bridge`. Those are shared
//! because a second codec would be one more thing to be wrong, and room in the kernel for QUIC's bursts. Nothing else of the
//! network tier takes part, so that a mistake there cannot lower the ceiling that it is measured by.

use super::streams::{Received, Streams};
use anyhow::{Context, Result, bail, ensure};
use content::{Block, Cid};
use futures::StreamExt;
use libp2p::core::upgrade;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm, SwarmBuilder, identify, noise, tcp, tls, yamux};
use p2p_bridge::bitswap::message::{Ask, Message, RawBlock, Version, WantEntry, encode_wants, parse_prefix};
use p2p_bridge::udp;
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long a source may be silent.
const PATIENCE: Duration = Duration::from_secs(60);
/// Wants outstanding at once that a Go peer accepts.
const WANTS_MAX: usize = 1_024;

#[derive(NetworkBehaviour)]
struct Behaviour {
    identify: identify::Behaviour,
    streams: Streams,
}

/// Connects to a peer, asks it for all of these blocks at once, and returns how long it took until the last had come. The
/// connection is made before the clock starts; the blocks are checked after it has stopped.
pub async fn ask(peer: &str, cids: &[Cid]) -> Result<Duration> {
    ensure!(cids.len() <= WANTS_MAX, "{} blocks are more than a peer accepts wants for", cids.len());
    let (sender, mut messages) = mpsc::unbounded_channel();
    let mut swarm = swarm(sender)?;
    make_room(&mut swarm).await?;
    let peer = connect(&mut swarm, peer.parse()?).await?;
    let want = |cid: &Cid| WantEntry { cid: *cid, ask: Ask::Block, send_dont_have: true };
    let wants: Vec<WantEntry> = cids.iter().map(want).collect();
    let begun = Instant::now();
    swarm.behaviour_mut().streams.write(peer, encode_wants(&wants, Version::V1_2));
    let driver = tokio::spawn(async move {
        loop {
            if let SwarmEvent::ConnectionClosed { cause, .. } = swarm.select_next_some().await {
                return cause.map_or_else(|| "closed".to_owned(), |error| error.to_string());
            }
        }
    });
    let received = receive(&mut messages, cids.len()).await;
    let elapsed = begun.elapsed();
    driver.abort();
    check(received?, cids)?;
    Ok(elapsed)
}

async fn receive(messages: &mut mpsc::UnboundedReceiver<Received>, count: usize) -> Result<Vec<RawBlock>> {
    let mut blocks = Vec::with_capacity(count);
    while blocks.len() < count {
        let message = timeout(PATIENCE, messages.recv()).await.context("the source is silent")?;
        let message = Message::decode(message.context("the connection has ended")??)?;
        ensure!(message.presences.iter().all(|(_, has)| *has), "the source does not have everything");
        blocks.extend(message.blocks);
    }
    Ok(blocks)
}

/// Every block that was asked for has come, whole.
fn check(received: Vec<RawBlock>, cids: &[Cid]) -> Result<()> {
    let mut missing: HashSet<Cid> = cids.iter().copied().collect();
    for RawBlock { prefix, data } in received {
        let (codec, hash, digest_bytes) = parse_prefix(prefix)?;
        missing.remove(Block::of(codec, hash, digest_bytes, data)?.cid());
    }
    ensure!(missing.is_empty(), "{} blocks did not come", missing.len());
    Ok(())
}

fn swarm(received: mpsc::UnboundedSender<Received>) -> Result<Swarm<Behaviour>> {
    let swarm = SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(tcp::Config::default().nodelay(true), (noise::Config::new, tls::Config::new), yamux::Config::default)?
        .with_quic()
        .with_behaviour(|key| Behaviour {
            identify: identify::Behaviour::new(identify::Config::new("ipfs/0.1.0".to_owned(), key.public())),
            streams: Streams::new(received),
        })?
        // A new stream costs no round trip of its own: there is one protocol to agree on.
        .with_swarm_config(|config| config.with_substream_upgrade_protocol_override(upgrade::Version::V1Lazy))
        .build();
    Ok(swarm)
}

/// QUIC dials from the socket that it listens on, and that one's port is known: the source's bursts are not to be lost in the
/// asker's kernel.
async fn make_room(swarm: &mut Swarm<Behaviour>) -> Result<()> {
    swarm.listen_on("/ip4/127.0.0.1/udp/0/quic-v1".parse()?)?;
    loop {
        if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
            let udp = address.iter().find_map(|part| match part {
                Protocol::Udp(port) => Some(port),
                _ => None,
            });
            udp::enlarge_buffers(&[udp.context("no port")?]);
            return Ok(());
        }
    }
}

/// Connected, and known to each other: a Go peer answers nobody before it knows what they speak.
async fn connect(swarm: &mut Swarm<Behaviour>, address: Multiaddr) -> Result<PeerId> {
    swarm.dial(address)?;
    let identified = async {
        loop {
            match swarm.select_next_some().await {
                SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received { peer_id, .. })) => {
                    return Ok(peer_id);
                }
                SwarmEvent::OutgoingConnectionError { error, .. } => bail!("{error}"),
                _ => {}
            }
        }
    };
    let peer = timeout(PATIENCE, identified).await.context("no connection")??;
    // Our own identity is on its way to the peer as well: one more round trip at most, before the clock starts.
    let settle = async {
        loop {
            swarm.select_next_some().await;
        }
    };
    let _: Result<(), _> = timeout(Duration::from_millis(300), settle).await;
    Ok(peer)
}
