//! Two nodes over real sockets on loopback, which belongs to the local scope.

use super::*;
use crate::Bridge;
use crate::lookups::RecordOrigin;
use crate::tcp::TcpTransport;
use content::MemoryBlocks;
use content::ipns::{Draft, Record};
use futures::StreamExt;
use libp2p::core::upgrade::Version;
use libp2p::identity::Keypair;
use libp2p::kad::store::MemoryStore;
use libp2p::kad::{GetProvidersOk, GetRecordOk, QueryResult, RecordKey};
use libp2p::swarm::SwarmEvent;
use libp2p::{Swarm, SwarmBuilder, Transport as _, noise, yamux};
use prometheus_client::registry::Registry;
use std::path::Path;
use std::sync::Arc;

/// Generous, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// The timeout of a request of libp2p's Kademlia.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

fn options(directory: &Path) -> BridgeOptions {
    let mut options = BridgeOptions::new(directory);
    options.listen = vec!["/ip4/127.0.0.1/tcp/0".parse().expect("address")];
    options.nat.upnp = false;
    options
}

async fn start(options: BridgeOptions) -> Bridge {
    Bridge::start(options, Arc::new(MemoryBlocks::default()), &mut Registry::default()).await.expect("starts")
}

/// A DHT node without verification, connected to one bridge.
struct TestPeer {
    swarm: Swarm<kad::Behaviour<MemoryStore>>,
}

impl TestPeer {
    async fn new(scope: Scope, knows: &Bridge) -> Self {
        let behaviour = |keypair: &Keypair| {
            let local = keypair.public().to_peer_id();
            let mut config = kad::Config::new(scope.protocol());
            config.set_query_timeout(PATIENCE / 2).set_kbucket_inserts(kad::BucketInserts::Manual);
            kad::Behaviour::with_config(local, MemoryStore::new(local), config)
        };
        let builder = SwarmBuilder::with_new_identity().with_tokio();
        let builder = builder.with_other_transport(|keypair| {
            let noise = noise::Config::new(keypair)?;
            Ok(TcpTransport::default().upgrade(Version::V1).authenticate(noise).multiplex(yamux::Config::default()))
        });
        let mut swarm = builder.expect("transport").with_behaviour(behaviour).expect("behaviour").build();
        swarm.listen_on("/ip4/127.0.0.1/tcp/0".parse().expect("address")).expect("listens");
        let address = loop {
            if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
                break address;
            }
        };
        swarm.add_external_address(address);
        // Not an address of the local scope, so the local DHT must not return it.
        swarm.add_external_address("/ip4/8.8.4.4/tcp/4001".parse().expect("address"));
        for address in knows.addresses().await {
            swarm.behaviour_mut().add_address(&knows.peer_id(), address);
        }
        Self { swarm }
    }

    /// The same, once the bridge answers it.
    async fn answered(scope: Scope, bridge: &Bridge) -> Self {
        let mut peer = Self::new(scope, bridge).await;
        let probe = RecordKey::new(b"any multihash");
        let answered = async { while peer.providers(&probe).await.1 > 0 {} };
        tokio::time::timeout(PATIENCE, answered).await.expect("the bridge answers");
        peer
    }

    fn id(&self) -> PeerId {
        *self.swarm.local_peer_id()
    }

    /// The results of a query, and how many requests failed.
    async fn results(&mut self, id: kad::QueryId) -> (Vec<QueryResult>, u32) {
        let mut results = Vec::new();
        let all = async {
            loop {
                let event = self.swarm.select_next_some().await;
                if let SwarmEvent::Behaviour(kad::Event::OutboundQueryProgressed { id: of, result, step, stats }) =
                    event
                    && of == id
                {
                    results.push(result);
                    if step.last {
                        return stats.num_failures();
                    }
                }
            }
        };
        let failures = tokio::time::timeout(PATIENCE, all).await.expect("the query ends");
        (results, failures)
    }

    /// Announces, and waits until the announcement arrived: it has no response.
    async fn provide(&mut self, key: &RecordKey) {
        let id = self.swarm.behaviour_mut().start_providing(key.clone()).expect("room");
        self.results(id).await;
        // Requests on one connection are handled in order, so the announcement was handled before this one.
        self.providers(key).await;
    }

    async fn providers(&mut self, key: &RecordKey) -> (Vec<PeerId>, u32) {
        let id = self.swarm.behaviour_mut().get_providers(key.clone());
        let (results, failures) = self.results(id).await;
        let found = results.into_iter().filter_map(|result| match result {
            QueryResult::GetProviders(Ok(GetProvidersOk::FoundProviders { providers, .. })) => Some(providers),
            _ => None,
        });
        let local = self.id();
        (found.flatten().filter(|peer| *peer != local).collect(), failures)
    }

    async fn put(&mut self, record: kad::Record, to: &Bridge) -> bool {
        let id = self.swarm.behaviour_mut().put_record_to(record, [to.peer_id()].into_iter(), kad::Quorum::One);
        let (results, _) = self.results(id).await;
        results.into_iter().any(|result| matches!(result, QueryResult::PutRecord(Ok(_))))
    }

    async fn get(&mut self, key: &RecordKey) -> Option<Vec<u8>> {
        let id = self.swarm.behaviour_mut().get_record(key.clone());
        let (results, _) = self.results(id).await;
        results.into_iter().find_map(|result| match result {
            QueryResult::GetRecord(Ok(GetRecordOk::FoundRecord(found))) => Some(found.record.value),
            _ => None,
        })
    }
}

fn record(keypair: &Keypair, sequence: u64) -> kad::Record {
    let end_of_life = SystemTime::now() + Duration::from_secs(3_600);
    let draft = Draft { value: "/ipfs/bafkqaaa".to_owned(), sequence, end_of_life, ttl: Duration::ZERO };
    let record = Record::sign(keypair, &draft).expect("signs");
    let key = content::names::Key::from(keypair.public().to_peer_id()).routing_key();
    kad::Record::new(key, record.bytes().to_vec())
}

#[tokio::test]
async fn each_dht_uses_connections_of_its_scope_only() {
    use DhtMode::{Auto, Client, Off, Server};
    // The DHT mode, whether private addresses are dialled, the scope of the query, and whether the node answers.
    let table = [
        (Auto, false, Scope::Lan, true),
        (Auto, false, Scope::Wan, false),
        (Server, false, Scope::Wan, false),
        (Auto, true, Scope::Wan, true),
        (Auto, true, Scope::Lan, true),
        (Client, true, Scope::Wan, false),
        (Client, false, Scope::Lan, false),
        (Off, true, Scope::Wan, false),
        (Off, true, Scope::Lan, false),
    ];
    for (mode, dial_private, scope, answers) in table {
        let directory = tempfile::tempdir().expect("directory");
        let mut options = options(directory.path());
        (options.dht.mode, options.dial_private) = (mode, dial_private);
        let bridge = start(options).await;
        let key = RecordKey::new(b"a multihash");
        // Only a node that must answer is asked again.
        let mut test_peer = match answers {
            true => TestPeer::answered(scope, &bridge).await,
            false => TestPeer::new(scope, &bridge).await,
        };
        let (_, failures) = test_peer.providers(&key).await;
        assert_eq!(failures == 0, answers, "{mode:?} {dial_private} {scope:?}");
        bridge.shutdown().await;
    }
}

#[tokio::test]
async fn records_are_served_without_addresses_of_the_other_scope_and_survive_a_restart() {
    let directory = tempfile::tempdir().expect("directory");
    let bridge = start(options(directory.path())).await;
    let key = RecordKey::new(b"a multihash");
    let keypair = Keypair::generate_ed25519();
    let record = record(&keypair, 1);
    let mut provider = TestPeer::answered(Scope::Lan, &bridge).await;
    provider.provide(&key).await;
    assert!(provider.put(record.clone(), &bridge).await);
    let provider_id = provider.id();
    drop(provider);
    bridge.shutdown().await;
    let written = std::fs::read(kept::path(directory.path(), Scope::Lan)).expect("written");
    let holds = |ip: [u8; 4]| written.windows(4).any(|window| window == ip);
    assert!(holds([127, 0, 0, 1]) && !holds([8, 8, 4, 4]), "only addresses of this scope");

    let bridge = start(options(directory.path())).await;
    let mut asking = TestPeer::answered(Scope::Lan, &bridge).await;
    assert_eq!(asking.providers(&key).await.0, [provider_id]);
    assert_eq!(asking.get(&record.key).await, Some(record.value));
    bridge.shutdown().await;
}

#[tokio::test]
async fn a_peer_look_up_finds_a_dht_client() {
    let directory = tempfile::tempdir().expect("directory");
    let bridge = start(options(directory.path())).await;
    let mut client = TestPeer::answered(Scope::Lan, &bridge).await;
    client.provide(&RecordKey::new(b"a multihash")).await;
    let mut asking = TestPeer::answered(Scope::Lan, &bridge).await;
    let id = asking.swarm.behaviour_mut().get_closest_peers(client.id());
    // The query asks the peer that was returned as well, which is gone.
    let wanted = client.id();
    drop(client);
    let event = std::future::poll_fn(|cx| {
        loop {
            let _ = std::task::ready!(asking.swarm.poll_next_unpin(cx));
            let query = asking.swarm.behaviour().query(&id).map(|query| query.stats().num_requests());
            if query.is_none_or(|requests| requests > 1) {
                return Poll::Ready(query);
            }
        }
    });
    let requests = tokio::time::timeout(PATIENCE, event).await.expect("the query returns another peer");
    assert!(requests.is_some(), "{wanted} was returned");
    bridge.shutdown().await;
}

#[tokio::test]
async fn an_invalid_record_is_rejected_without_delay() {
    let directory = tempfile::tempdir().expect("directory");
    let bridge = start(options(directory.path())).await;
    let keypair = Keypair::generate_ed25519();
    let (old, new) = (record(&keypair, 1), record(&keypair, 2));
    let mut forged = record(&keypair, 3);
    forged.value[30] ^= 1;
    let junk = kad::Record::new(b"/app/key".to_vec(), b"anything".to_vec());
    let mut test_peer = TestPeer::answered(Scope::Lan, &bridge).await;
    for (record, kept) in [(&forged, None), (&new, Some(&new)), (&old, Some(&new)), (&junk, None)] {
        let begun = std::time::Instant::now();
        test_peer.put(record.clone(), &bridge).await;
        assert!(begun.elapsed() < REQUEST_TIMEOUT, "answered without delay");
        assert_eq!(test_peer.get(&record.key).await.as_ref(), kept.map(|record| &record.value));
    }
    bridge.shutdown().await;
}

#[tokio::test]
async fn a_restarted_node_answers_its_first_query_without_a_bootstrap() {
    for (dial_private, scope) in [(false, Scope::Lan), (true, Scope::Wan)] {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("directory"));
        let mut settings = options(folders[0].path());
        settings.dial_private = dial_private;
        let server = start(settings).await;
        let keypair = Keypair::generate_ed25519();
        let name = content::names::Key::from(keypair.public().to_peer_id());
        assert!(TestPeer::answered(scope, &server).await.put(record(&keypair, 1), &server).await);

        let mut settings = options(folders[1].path());
        settings.dial_private = dial_private;
        settings.bootstrap = server.addresses().await;
        for bootstrap in [settings.bootstrap.clone(), Vec::new()] {
            settings.bootstrap = bootstrap;
            let bridge = start(settings.clone()).await;
            let mut search = bridge.find_records(&name).await;
            let found = tokio::time::timeout(PATIENCE, search.next()).await.expect("the search ends");
            assert_eq!(found.map(|found| found.holder), Some(RecordOrigin::Peer(server.peer_id())), "{scope:?}");
            bridge.shutdown().await;
        }
        server.shutdown().await;
    }
}

/// A behaviour whose connections need no socket.
fn scoped(scope: Scope) -> ScopedKad {
    let options = BridgeOptions::new("/nowhere");
    ScopedKad::start(scope, PeerId::random(), &options, DhtMetrics::default())
}

#[test]
fn connections_of_the_other_scope_have_no_protocol() {
    let local: Multiaddr = "/ip4/192.168.1.2/tcp/4001".parse().expect("address");
    let table = [
        ("/ip4/8.8.8.8/tcp/50000", true, false),
        ("/ip4/192.168.1.9/tcp/50000", false, true),
        ("/ip6/::1/udp/50000/quic-v1", false, true),
        ("/ip4/8.8.8.8/tcp/4001/p2p-circuit", false, false),
    ];
    for (remote, wan, lan) in table {
        let remote: Multiaddr = remote.parse().expect("address");
        for (scope, spoken) in [(Scope::Wan, wan), (Scope::Lan, lan)] {
            let (mut scoped, peer) = (scoped(scope), PeerId::random());
            let id = ConnectionId::new_unchecked(1);
            let inbound = scoped.handle_established_inbound_connection(id, peer, &local, &remote).expect("not refused");
            assert_eq!(matches!(inbound, Either::Left(_)), spoken, "{remote} {scope:?}");
            let (role, port) = (Endpoint::Dialer, PortUse::Reuse);
            let outbound = scoped.handle_established_outbound_connection(id, peer, &remote, role, port);
            assert_eq!(matches!(outbound.expect("not denied"), Either::Left(_)), spoken, "{remote} {scope:?}");
        }
    }
}

#[tokio::test]
async fn a_peer_with_a_connection_of_the_other_scope_is_dialled_again() {
    let (mut scoped, peer) = (scoped(Scope::Wan), PeerId::random());
    let addresses = ["/ip4/8.8.8.8/tcp/4001", "/ip4/10.0.0.1/tcp/4001"].map(|text| text.parse().expect("address"));
    for address in addresses {
        scoped.add_address(&peer, address);
    }
    let endpoint = libp2p::core::ConnectedPoint::Listener {
        local_addr: "/ip4/10.0.0.2/tcp/4001".parse().expect("address"),
        send_back_addr: "/ip4/10.0.0.1/tcp/50000".parse().expect("address"),
    };
    let connection_id = ConnectionId::new_unchecked(1);
    let (failed_addresses, other_established) = (&[][..], 0);
    let established = ConnectionEstablished {
        peer_id: peer,
        connection_id,
        endpoint: &endpoint,
        failed_addresses,
        other_established,
    };
    scoped.on_swarm_event(FromSwarm::ConnectionEstablished(established));
    scoped.get_providers(RecordKey::new(b"a multihash"));
    let dialled = std::future::poll_fn(|cx| {
        loop {
            match std::task::ready!(scoped.poll(cx)) {
                ToSwarm::Dial { opts } => return Poll::Ready(opts),
                ToSwarm::NotifyHandler { .. } => panic!("the public DHT does not use this connection"),
                _ => {}
            }
        }
    });
    let opts = tokio::time::timeout(PATIENCE, dialled).await.expect("it is dialled");
    let shown = format!("{opts:?}");
    assert!(shown.contains("8.8.8.8") && !shown.contains("10.0.0.1") && shown.contains("NotDialing"), "{shown}");
}

#[test]
fn an_unreachable_peer_leaves_the_table_unless_the_node_is_offline() {
    let (mut scoped, gone, there) = (scoped(Scope::Lan), PeerId::random(), PeerId::random());
    let address: Multiaddr = "/ip4/10.0.0.1/tcp/4001".parse().expect("address");
    scoped.add_address(&gone, address.clone());
    let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
    let error = DialError::Transport(vec![(address, libp2p::TransportError::Other(refused))]);
    for _ in 0..10 {
        scoped.on_unreachable(gone, &error);
    }
    assert!(scoped.is_in_table(gone), "the node itself may be offline");
    scoped.open.insert(there, vec![(ConnectionId::new_unchecked(1), Network::default())]);
    for n in 1..=FAILURES_MAX {
        scoped.on_unreachable(gone, &error);
        assert_eq!(scoped.is_in_table(gone), n < FAILURES_MAX);
    }
}
