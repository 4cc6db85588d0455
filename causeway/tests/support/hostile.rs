//! A malicious peer, over Bitswap or in transfers of the DAG protocol.
//!
//! It is a real libp2p peer on a real connection: only its answers to wants are invalid.

use super::noise::Noise;
use super::wire;
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Stream, StreamProtocol, SwarmBuilder, identify, noise, tcp, yamux};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

const BITSWAP: StreamProtocol = StreamProtocol::new("/ipfs/bitswap/1.2.0");
const DAG: StreamProtocol = StreamProtocol::new("/causeway/dag/1.0.0");
const MIB: usize = 1024 * 1024;

/// The behaviour of the peer on wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malice {
    /// Sends HAVE for everything, and blocks with other bytes under the CID's prefix.
    WrongBytes,
    /// Sends messages above the maximum of 4 MiB.
    TooLong,
    /// Sends the length prefix of a message of 4 GiB, and its beginning.
    EndlessLength,
    /// Sends invalid messages.
    Garbage,
    /// Sends nothing.
    Silence,
    /// Sends HAVE for everything, and no blocks.
    EmptyPromises,
    /// Sends DONT_HAVE for everything, which is honest.
    HasNothing,
}

/// The behaviour of the peer on requests for transfers. It answers every want with DONT_HAVE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DagMalice {
    /// Sends other bytes under the requested CID.
    WrongBytes,
    /// Sends many blocks that were not requested.
    OtherBlocks,
    /// Sends more than the budget of the request.
    TooMuch,
    /// Sends frames that claim to be small, and unpack to two gigabytes.
    Bombs,
    /// Sends invalid messages.
    Garbage,
    /// Sends nothing.
    Silence,
    /// Sends the end of a complete transfer, without blocks.
    EndsAtOnce,
}

/// A running peer. Dropping it hangs up.
pub struct Hostile {
    multiaddr: Multiaddr,
    wants: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(NetworkBehaviour)]
struct Behaviour {
    identify: identify::Behaviour,
    streams: libp2p_stream::Behaviour,
}

impl Hostile {
    /// Listens on a free loopback port.
    pub async fn start(malice: Malice) -> Self {
        Self::start_with(malice, None).await
    }

    /// The same for a peer that misbehaves in transfers of the DAG protocol.
    pub async fn start_dag(malice: DagMalice) -> Self {
        Self::start_with(Malice::HasNothing, Some(malice)).await
    }

    async fn start_with(malice: Malice, of_transfers: Option<DagMalice>) -> Self {
        let mut swarm = SwarmBuilder::with_new_identity()
            .with_tokio()
            .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
            .expect("a fresh key suits Noise")
            .with_behaviour(|key| Behaviour {
                identify: identify::Behaviour::new(identify::Config::new("ipfs/0.1.0".to_owned(), key.public())),
                streams: libp2p_stream::Behaviour::new(),
            })
            .expect("the behaviour cannot fail")
            .with_swarm_config(|config| config.with_idle_connection_timeout(Duration::from_secs(600)))
            .build();
        let mut control = swarm.behaviour().streams.new_control();
        let mut incoming = control.accept(BITSWAP).expect("nobody else accepts it here");
        let transfers = of_transfers.map(|_| control.accept(DAG).expect("nobody else accepts it here"));
        swarm.listen_on("/ip4/127.0.0.1/tcp/0".parse().expect("a multiaddr")).expect("loopback has a free port");
        let listening = loop {
            if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
                break address;
            }
        };
        let multiaddr = listening.with_p2p(*swarm.local_peer_id()).expect("it ends in no other peer id");
        let wants = Arc::new(AtomicU64::new(0));
        let counter = Arc::new(AtomicU64::new(0));
        let counter = if of_transfers.is_some() { counter } else { wants.clone() };
        let network = tokio::spawn(async move {
            loop {
                swarm.select_next_some().await;
            }
        });
        let answers = tokio::spawn(async move {
            while let Some((peer, stream)) = incoming.next().await {
                tokio::spawn(listen(malice, peer, stream, control.clone(), counter.clone()));
            }
        });
        let mut tasks = vec![network, answers];
        if let Some((malice, mut incoming)) = of_transfers.zip(transfers) {
            let counter = wants.clone();
            tasks.push(tokio::spawn(async move {
                while let Some((_, stream)) = incoming.next().await {
                    tokio::spawn(transfer(malice, stream, counter.clone()));
                }
            }));
        }
        Self { multiaddr, wants, tasks }
    }

    /// Its multiaddr, with the peer ID.
    pub fn multiaddr(&self) -> String {
        self.multiaddr.to_string()
    }

    /// The number of wants that it received: a scenario must assert that it is above zero.
    pub fn wants(&self) -> u64 {
        self.wants.load(Ordering::Relaxed)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Reads the messages of a stream, and answers those with wants.
async fn listen(
    malice: Malice,
    peer: PeerId,
    mut stream: Stream,
    mut control: libp2p_stream::Control,
    wants: Arc<AtomicU64>,
) {
    while let Some(message) = read_message(&mut stream).await {
        let cids = wire::wanted_cids(&message);
        wants.fetch_add(cids.len() as u64, Ordering::Relaxed);
        if cids.is_empty() || malice == Malice::Silence {
            continue;
        }
        let Ok(mut answer) = control.open_stream(peer, BITSWAP).await else { return };
        // The attacked node may close the connection.
        let _ = answer.write_all(&harm(malice, &cids)).await;
        let _ = answer.close().await;
    }
}

/// The bytes to put on a stream, length prefix included.
fn harm(malice: Malice, cids: &[Vec<u8>]) -> Vec<u8> {
    let framed = |body: Vec<u8>| [wire::varint(body.len() as u64), body].concat();
    match malice {
        Malice::WrongBytes => {
            let wrong = |cid: &Vec<u8>| (wire::prefix_of(cid), b"these are not the bytes you are looking for".to_vec());
            framed(wire::message(cids, &cids.iter().map(wrong).collect::<Vec<_>>()))
        }
        Malice::TooLong => {
            let block = (wire::prefix_of(&cids[0]), Noise::bytes(5, 5 * MIB));
            framed(wire::message(cids, &[block]))
        }
        Malice::EndlessLength => [wire::varint(4 << 30), Noise::bytes(6, 16 * MIB)].concat(),
        Malice::Garbage => framed(Noise::bytes(7, MIB)),
        Malice::EmptyPromises => framed(wire::message(cids, &[])),
        Malice::HasNothing => framed(wire::lacks(cids)),
        Malice::Silence => Vec::new(),
    }
}

/// Answers a request for a transfer.
async fn transfer(malice: DagMalice, mut stream: Stream, requests: Arc<AtomicU64>) {
    let Some(opening) = read_message(&mut stream).await else { return };
    let Some(root) = wire::root_of_transfer(&opening) else { return };
    requests.fetch_add(1, Ordering::Relaxed);
    let (mut sent, answers) = (0, harm_transfer(malice, &root));
    while sent < 64 * MIB && !answers.is_empty() {
        // The attacked node may close the stream.
        if stream.write_all(&answers).await.is_err() {
            return;
        }
        sent += answers.len();
        if !matches!(malice, DagMalice::TooMuch | DagMalice::OtherBlocks) {
            break;
        }
    }
    let _ = stream.flush().await;
    // An open stream, on which nothing follows.
    tokio::time::sleep(Duration::from_secs(60)).await;
}

/// The bytes to put on a transfer's stream.
fn harm_transfer(malice: DagMalice, root: &[u8]) -> Vec<u8> {
    let other = |n: u8| wire::raw_cid(&[n; 32]);
    let blocks = |bytes| (0..200).map(|n| wire::dag_block(&other(n), &vec![n; bytes])).collect::<Vec<_>>().concat();
    match malice {
        DagMalice::WrongBytes => wire::dag_block(root, b"these are not the bytes you are looking for"),
        DagMalice::OtherBlocks => blocks(99),
        // Nothing names them, so nobody looks into them.
        DagMalice::TooMuch => blocks(MIB / 4),
        DagMalice::Bombs => {
            // A frame of run-length blocks, which announces 8 MiB, and contains as many zeros.
            let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0x80, 0];
            let block = |last: u32| ((128 * 1024) << 3 | 1 << 1 | last).to_le_bytes();
            for n in 0..64 {
                frame.extend(&block(u32::from(n == 63))[..3]);
                frame.push(0);
            }
            wire::dag_packed(root, 100, &frame)
        }
        DagMalice::Garbage => [wire::varint(MIB as u64), Noise::bytes(7, MIB)].concat(),
        DagMalice::Silence => Vec::new(),
        DagMalice::EndsAtOnce => wire::dag_end(1),
    }
}

async fn read_message(stream: &mut Stream) -> Option<Vec<u8>> {
    let mut len = 0_usize;
    for shift in (0..28).step_by(7) {
        let mut byte = [0];
        stream.read_exact(&mut byte).await.ok()?;
        len |= usize::from(byte[0] & 0x7f) << shift;
        if byte[0] & 0x80 == 0 {
            break;
        }
    }
    let mut message = vec![0; len.min(4 * MIB)];
    stream.read_exact(&mut message).await.ok()?;
    Some(message)
}
