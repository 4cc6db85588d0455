//! Unresponsive providers: their records are in the DHT, and dials of them hang, or are refused.
//!
//! Each is an identity of its own that announces over a connection that it opens itself, because a DHT accepts provider
//! records from the provider only. The addresses in its records lead to a socket of this process that is unresponsive
//! in one of the ways that occur in networks.

use super::dht::PROTOCOL;
use super::peer;
use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use libp2p::kad::{self, QueryResult, RecordKey, store::MemoryStore};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, PeerId, Swarm};
use socket2::{Domain, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// How long a connection to the DHT stays open between announcements.
const IDLE: Duration = Duration::from_secs(600);
/// For one announcement.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(30);

/// What happens to a dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// TCP is accepted, and nothing is sent.
    Accepts,
    /// The queue of the listening socket is full, so that the kernel drops the packets.
    Drops,
    /// A UDP socket takes QUIC's packets and sends none.
    Udp,
    /// The port is closed.
    Refuses,
    /// The address leads through a circuit relay that accepts and sends nothing.
    DeadRelay,
}

/// The ways in which a dial hangs.
pub const HANGING: [Fault; 3] = [Fault::Accepts, Fault::Drops, Fault::Udp];

/// An address at which no peer responds, and the sockets that keep it so until this is dropped.
pub struct DeadAddress {
    pub address: Multiaddr,
    _sockets: Vec<Socket>,
    _accepting: JoinSet<()>,
}

impl DeadAddress {
    /// A new one on a free port of the loopback.
    pub async fn bind(fault: Fault) -> Result<Self> {
        let mut accepting = JoinSet::new();
        let mut sockets = Vec::new();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let over_tcp = |port| Multiaddr::from(Ipv4Addr::LOCALHOST).with(Protocol::Tcp(port));
        let address = match fault {
            Fault::Accepts | Fault::DeadRelay => {
                let listener = TcpListener::bind(any).await?;
                let address = over_tcp(listener.local_addr()?.port());
                accepting.spawn(accept(listener));
                match fault {
                    Fault::DeadRelay => address.with(Protocol::P2p(PeerId::random())).with(Protocol::P2pCircuit),
                    _ => address,
                }
            }
            Fault::Drops => {
                let (full, port) = full_queue(any)?;
                sockets.extend(full);
                over_tcp(port)
            }
            Fault::Udp => {
                let socket = UdpSocket::bind(any)?;
                let port = socket.local_addr()?.port();
                sockets.push(socket.into());
                Multiaddr::from(Ipv4Addr::LOCALHOST).with(Protocol::Udp(port)).with(Protocol::QuicV1)
            }
            Fault::Refuses => {
                // Bound and not listening: no other process gets the port.
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
                socket.bind(&any.into())?;
                let bound = socket.local_addr()?.as_socket().context("an address")?;
                sockets.push(socket);
                over_tcp(bound.port())
            }
        };
        Ok(Self { address, _sockets: sockets, _accepting: accepting })
    }
}

/// Keeps all connections, and sends nothing.
async fn accept(listener: TcpListener) {
    let mut kept = Vec::new();
    while let Ok((stream, _)) = listener.accept().await {
        kept.push(stream);
    }
}

/// A listening socket with no room for another connection, with what fills it, and its port.
fn full_queue(any: SocketAddr) -> Result<(Vec<Socket>, u16)> {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    listener.bind(&any.into())?;
    listener.listen(0)?;
    let address = listener.local_addr()?.as_socket().context("an address")?;
    let filling = TcpStream::connect(address)?;
    let another = TcpStream::connect_timeout(&address, Duration::from_millis(50));
    ensure!(another.is_err(), "the kernel took a second connection beyond an empty backlog");
    Ok((vec![listener, filling.into()], address.port()))
}

/// A key to announce, and where to report that the DHT has the record.
type Announcement = (RecordKey, oneshot::Sender<()>);

/// Providers that announce and do not respond. They end when this is dropped.
pub struct UnresponsiveProviders {
    announcers: Vec<mpsc::Sender<Announcement>>,
    _tasks: JoinSet<Result<()>>,
}

impl UnresponsiveProviders {
    /// `count` providers, with these faults by turns, that announce to one node of the DHT.
    pub async fn start(count: usize, faults: &[Fault], dht: &str) -> Result<Self> {
        let dht: Multiaddr = dht.parse()?;
        let (mut announcers, mut tasks) = (Vec::new(), JoinSet::new());
        for fault in faults.iter().cycle().take(count) {
            let dead = DeadAddress::bind(*fault).await?;
            let mut swarm = swarm()?;
            swarm.add_external_address(dead.address.clone());
            let Some(Protocol::P2p(server)) = dht.iter().last() else { anyhow::bail!("{dht} names no peer") };
            swarm.behaviour_mut().add_address(&server, dht.clone());
            let (announcer, announcements) = mpsc::channel(1);
            announcers.push(announcer);
            tasks.spawn(announce(swarm, announcements, dead));
        }
        Ok(Self { announcers, _tasks: tasks })
    }

    /// Has all of them announce a key.
    pub async fn announce(&self, key: &[u8]) -> Result<()> {
        let told = self.announcers.iter().map(|announcer| async move {
            let (done, told) = oneshot::channel();
            announcer.send((RecordKey::new(&key), done)).await.context("an unresponsive provider has ended")?;
            told.await.context("an unresponsive provider could not announce")
        });
        let all = futures::future::try_join_all(told);
        tokio::time::timeout(ANNOUNCE_TIMEOUT, all).await.context("the announcements took too long")??;
        Ok(())
    }
}

fn swarm() -> Result<Swarm<kad::Behaviour<MemoryStore>>> {
    peer::swarm(IDLE, |key| {
        let peer = key.public().to_peer_id();
        let mut kad = kad::Behaviour::with_config(peer, MemoryStore::new(peer), kad::Config::new(PROTOCOL));
        kad.set_mode(Some(kad::Mode::Client));
        kad
    })
}

async fn announce(
    mut swarm: Swarm<kad::Behaviour<MemoryStore>>,
    mut announcements: mpsc::Receiver<Announcement>,
    _dead: DeadAddress,
) -> Result<()> {
    let mut waiting: Vec<(kad::QueryId, oneshot::Sender<()>)> = Vec::new();
    loop {
        tokio::select! {
            announcement = announcements.recv() => {
                let Some((key, done)) = announcement else { return Ok(()) };
                waiting.push((swarm.behaviour_mut().start_providing(key)?, done));
            }
            event = swarm.select_next_some() => {
                if let SwarmEvent::Behaviour(kad::Event::OutboundQueryProgressed {
                    id, result: QueryResult::StartProviding(outcome), ..
                }) = event
                    && let Some(index) = waiting.iter().position(|(query, _)| *query == id)
                {
                    outcome?;
                    let (_, done) = waiting.swap_remove(index);
                    // The receiver may have timed out.
                    let _ = done.send(());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    #[tokio::test]
    async fn no_fault_lets_a_peer_respond() {
        const MOMENT: Duration = Duration::from_millis(200);
        let port = |dead: &DeadAddress| peer::port(&dead.address).expect("it has one");
        let dial = |port| timeout(MOMENT, tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)));

        let accepts = DeadAddress::bind(Fault::Accepts).await.expect("binds");
        let mut stream = dial(port(&accepts)).await.expect("in time").expect("is accepted");
        let read = timeout(MOMENT, tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 1])).await;
        assert!(read.is_err(), "it sends nothing: {read:?}");

        let drops = DeadAddress::bind(Fault::Drops).await.expect("binds");
        assert!(dial(port(&drops)).await.is_err(), "not even the kernel answers");

        let refuses = DeadAddress::bind(Fault::Refuses).await.expect("binds");
        assert!(dial(port(&refuses)).await.expect("at once").is_err());
        assert!(DeadAddress::bind(Fault::Udp).await.expect("binds").address.to_string().ends_with("/quic-v1"));
        let relay = DeadAddress::bind(Fault::DeadRelay).await.expect("binds");
        assert!(relay.address.to_string().ends_with("/p2p-circuit"));
    }
}
