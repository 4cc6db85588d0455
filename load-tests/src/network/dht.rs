//! A small DHT in this process: Kademlia servers that know each other, each behind an emulated link of its own.
//!
//! Goals: twenty nodes where twenty Kubo processes would fill the machine; provider records that they store are
//! observed at once. They speak the DHT of local networks, because all their addresses are loopback's.
//!
//! Non-goals: churn and large networks. All twenty nodes are among the closest of every key, so that a lookup takes one
//! or two hops.

use super::peer;
use crate::relay::{Link, Protocol, Relay};
use anyhow::Result;
use futures::StreamExt;
use libp2p::kad::{self, InboundRequest, store::MemoryStore, store::RecordStore};
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, PeerId, StreamProtocol, Swarm, identify};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::sync::broadcast;
use tokio::task::JoinSet;

/// Kademlia of local networks.
pub const PROTOCOL: StreamProtocol = StreamProtocol::new("/ipfs/lan/kad/1.0.0");
/// How long an unused connection stays open: a minute or two in the networks that this stands for.
const IDLE: Duration = Duration::from_secs(60);
/// Records that were not read yet.
const UNREAD_MAX: usize = 4_096;

/// A provider record was stored by one of the nodes.
#[derive(Debug, Clone)]
pub struct Stored {
    pub node: usize,
    /// The multihash that is provided.
    pub key: Vec<u8>,
    pub at: Instant,
}

/// The nodes. They end when this is dropped.
pub struct Dht {
    /// Their addresses at the links, with their peer ids.
    pub addresses: Vec<String>,
    stored: broadcast::Sender<Stored>,
    _relays: Vec<Relay>,
    _tasks: JoinSet<()>,
}

#[derive(NetworkBehaviour)]
struct Behaviour {
    identify: identify::Behaviour,
    kad: kad::Behaviour<MemoryStore>,
}

impl Dht {
    /// Starts `count` nodes, each at the other end of `link`.
    pub async fn start(count: usize, link: Link) -> Result<Self> {
        let (mut relays, mut swarms) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let relay = Relay::bind(Protocol::Tcp, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), link).await?;
            let mut swarm = swarm()?;
            let port = peer::listen(&mut swarm, "/ip4/127.0.0.1/tcp/0").await?;
            relay.forward_to(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
            relays.push(relay);
            swarms.push(swarm);
        }
        let known: Vec<(PeerId, Multiaddr)> =
            relays.iter().zip(&swarms).map(|(relay, swarm)| (*swarm.local_peer_id(), multiaddr(relay))).collect();
        let (stored, _) = broadcast::channel(UNREAD_MAX);
        let mut tasks = JoinSet::new();
        for (node, mut swarm) in swarms.into_iter().enumerate() {
            // Identify tells others this address, and not where the node listens.
            swarm.add_external_address(known[node].1.clone());
            for (peer, address) in known.iter().filter(|(peer, _)| *peer != known[node].0) {
                swarm.behaviour_mut().kad.add_address(peer, address.clone());
            }
            tasks.spawn(serve(node, swarm, stored.clone()));
        }
        let addresses = known.iter().map(|(peer, address)| format!("{address}/p2p/{peer}")).collect();
        Ok(Self { addresses, stored, _relays: relays, _tasks: tasks })
    }

    /// Provider records that are stored from now on.
    pub fn stored(&self) -> broadcast::Receiver<Stored> {
        self.stored.subscribe()
    }
}

fn multiaddr(relay: &Relay) -> Multiaddr {
    Multiaddr::from(relay.address().ip()).with(libp2p::multiaddr::Protocol::Tcp(relay.address().port()))
}

fn swarm() -> Result<Swarm<Behaviour>> {
    peer::swarm(IDLE, |key| {
        let mut config = kad::Config::new(PROTOCOL);
        config.set_record_filtering(kad::StoreInserts::FilterBoth);
        let peer = key.public().to_peer_id();
        let mut kad = kad::Behaviour::with_config(peer, MemoryStore::new(peer), config);
        kad.set_mode(Some(kad::Mode::Server));
        Behaviour { identify: identify::Behaviour::new(peer::identify(key).with_hide_listen_addrs(true)), kad }
    })
}

/// Answers queries, stores provider records, and reports them.
async fn serve(node: usize, mut swarm: Swarm<Behaviour>, stored: broadcast::Sender<Stored>) {
    loop {
        let event = swarm.select_next_some().await;
        let SwarmEvent::Behaviour(BehaviourEvent::Kad(kad::Event::InboundRequest { request })) = event else {
            continue;
        };
        if let InboundRequest::AddProvider { record: Some(record) } = request {
            let key = record.key.to_vec();
            if swarm.behaviour_mut().kad.store_mut().add_provider(record).is_ok() {
                // There may be no receiver at the moment.
                let _ = stored.send(Stored { node, key, at: Instant::now() });
            }
        }
    }
}
