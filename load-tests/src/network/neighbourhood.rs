//! A small DHT in this process: Kademlia servers that know each other, each behind a relay of its own.
//!
//! Goals: twenty nodes where twenty Kubo processes would fill the machine; what each of them is told to keep is seen from
//! outside, at once. They speak the DHT of local networks, because all their addresses are loopback's.
//!
//! Non-goals: churn and large networks. Twenty nodes are all neighbours of every key, so that a walk takes one or two hops.

use crate::relay::{Link, Protocol, Relay};
use anyhow::Result;
use futures::StreamExt;
use libp2p::kad::{self, InboundRequest, store::MemoryStore, store::RecordStore};
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, PeerId, StreamProtocol, Swarm, SwarmBuilder, identify, noise, tcp, tls, yamux};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::sync::broadcast;
use tokio::task::JoinSet;

const PROTOCOL: StreamProtocol = StreamProtocol::new("/ipfs/lan/kad/1.0.0");
/// How long an unused connection stays open: a minute or two in the networks that this stands for.
const IDLE: Duration = Duration::from_secs(60);
/// Records of which nobody has read yet.
const UNREAD_MAX: usize = 4_096;

/// A provider record has come to one of the nodes.
#[derive(Debug, Clone)]
pub struct Kept {
    pub node: usize,
    /// The multihash that is provided.
    pub key: Vec<u8>,
    pub at: Instant,
}

/// The nodes. They end when this is dropped.
pub struct Neighbourhood {
    /// Their addresses at the relays, with their peer ids.
    pub addresses: Vec<String>,
    kept: broadcast::Sender<Kept>,
    _relays: Vec<Relay>,
    _tasks: JoinSet<()>,
}

#[derive(NetworkBehaviour)]
struct Behaviour {
    identify: identify::Behaviour,
    kad: kad::Behaviour<MemoryStore>,
}

impl Neighbourhood {
    /// Starts `count` nodes, each at the other end of `link`.
    pub async fn start(count: usize, link: Link) -> Result<Self> {
        let (mut relays, mut swarms) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let relay = Relay::bind(Protocol::Tcp, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), link).await?;
            let mut swarm = swarm()?;
            relay.forward_to(listen(&mut swarm).await?);
            relays.push(relay);
            swarms.push(swarm);
        }
        let known: Vec<(PeerId, Multiaddr)> =
            relays.iter().zip(&swarms).map(|(relay, swarm)| (*swarm.local_peer_id(), multiaddr(relay))).collect();
        let (kept, _) = broadcast::channel(UNREAD_MAX);
        let mut tasks = JoinSet::new();
        for (node, mut swarm) in swarms.into_iter().enumerate() {
            // Identify tells others this address, and not where the node listens.
            swarm.add_external_address(known[node].1.clone());
            for (peer, address) in known.iter().filter(|(peer, _)| *peer != known[node].0) {
                swarm.behaviour_mut().kad.add_address(peer, address.clone());
            }
            tasks.spawn(serve(node, swarm, kept.clone()));
        }
        let addresses = known.iter().map(|(peer, address)| format!("{address}/p2p/{peer}")).collect();
        Ok(Self { addresses, kept, _relays: relays, _tasks: tasks })
    }

    /// Provider records that come from now on.
    pub fn kept(&self) -> broadcast::Receiver<Kept> {
        self.kept.subscribe()
    }
}

fn multiaddr(relay: &Relay) -> Multiaddr {
    Multiaddr::from(relay.address().ip()).with(libp2p::multiaddr::Protocol::Tcp(relay.address().port()))
}

fn swarm() -> Result<Swarm<Behaviour>> {
    let behaviour = |key: &libp2p::identity::Keypair| {
        let mut config = kad::Config::new(PROTOCOL);
        config.set_record_filtering(kad::StoreInserts::FilterBoth);
        let peer = key.public().to_peer_id();
        let mut kad = kad::Behaviour::with_config(peer, MemoryStore::new(peer), config);
        kad.set_mode(Some(kad::Mode::Server));
        let about = identify::Config::new("ipfs/0.1.0".to_owned(), key.public()).with_hide_listen_addrs(true);
        Behaviour { identify: identify::Behaviour::new(about), kad }
    };
    let swarm = SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(tcp::Config::default().nodelay(true), (noise::Config::new, tls::Config::new), yamux::Config::default)?
        .with_behaviour(behaviour)?
        .with_swarm_config(|config| config.with_idle_connection_timeout(IDLE))
        .build();
    Ok(swarm)
}

async fn listen(swarm: &mut Swarm<Behaviour>) -> Result<SocketAddr> {
    swarm.listen_on("/ip4/127.0.0.1/tcp/0".parse()?)?;
    loop {
        if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
            let port = address.iter().find_map(|part| match part {
                libp2p::multiaddr::Protocol::Tcp(port) => Some(port),
                _ => None,
            });
            return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port.unwrap_or_default())));
        }
    }
}

/// Answers queries, keeps provider records, and says so.
async fn serve(node: usize, mut swarm: Swarm<Behaviour>, kept: broadcast::Sender<Kept>) {
    loop {
        let event = swarm.select_next_some().await;
        let SwarmEvent::Behaviour(BehaviourEvent::Kad(kad::Event::InboundRequest { request })) = event else {
            continue;
        };
        if let InboundRequest::AddProvider { record: Some(record) } = request {
            let key = record.key.to_vec();
            if swarm.behaviour_mut().kad.store_mut().add_provider(record).is_ok() {
                // Nobody may be listening just now.
                let _ = kept.send(Kept { node, key, at: Instant::now() });
            }
        }
    }
}
