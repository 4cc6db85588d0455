//! Wants of sessions reach the peers, and none are lost.

use super::*;
use bytes::Bytes;
use content::{Block, MemoryBlocks, codec, hashes};
use futures::task::{ArcWake, waker};
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Semaphore;

struct Bench {
    behaviour: Behaviour,
    wants: Arc<Wants>,
    commands: mpsc::UnboundedSender<SessionCommand>,
    permits: Arc<Semaphore>,
}

fn block(n: u32) -> Block {
    Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::from(n.to_be_bytes().to_vec())).expect("a block")
}

impl Bench {
    fn new() -> Self {
        let wants = Arc::new(Wants::default());
        let (commands, inbox) = mpsc::unbounded_channel();
        let behaviour = Behaviour::new(
            client::Config::default(),
            Metrics::default(),
            Arc::clone(&wants),
            inbox,
            Arc::new(MemoryBlocks::new()),
            Memory::new(64 << 20),
            PeerSettings::default(),
        );
        Self { behaviour, wants, commands, permits: Arc::new(Semaphore::new(8)) }
    }

    fn want(&self, block: &Block) {
        let want = SessionCommand::Want { session: *block.cid().hash(), cid: *block.cid(), ahead: None };
        self.commands.send(want).expect("the behaviour listens");
    }

    fn cancel(&self, block: &Block) {
        let permit = Arc::clone(&self.permits).try_acquire_owned().expect("there are enough");
        let (session, key) = (*block.cid().hash(), block.key().expect("a key"));
        self.commands.send(SessionCommand::Cancel { session, key, permit }).expect("the behaviour listens");
    }

    /// Polls until nothing is left to do; returns the wants sent to peers.
    fn poll(&mut self) -> Vec<WantEntry> {
        let mut cx = Context::from_waker(futures::task::noop_waker_ref());
        let mut asked = Vec::new();
        while let Poll::Ready(event) = self.behaviour.poll(&mut cx) {
            if let ToSwarm::NotifyHandler { event: Command::Ask(entries), .. } = event {
                asked.extend(entries);
            }
        }
        asked
    }
}

#[tokio::test]
async fn cancelling_one_waiter_keeps_the_others() {
    let (mut bench, block) = (Bench::new(), block(1));
    let peer = PeerId::random();
    bench.behaviour.peer_settings.favoured.insert(peer);
    bench.behaviour.connected(peer, ConnectionId::new_unchecked(1));
    let (key, session) = (block.key().expect("a key"), *block.cid().hash());
    let (first, _first) = bench.wants.register(key, *block.cid(), session);
    let (second, _second) = bench.wants.register(key, *block.cid(), session);
    bench.want(&block);
    bench.want(&block);
    assert_eq!(bench.poll().iter().map(|entry| entry.ask).collect::<Vec<_>>(), [Ask::Block]);
    bench.wants.withdraw(&key, first);
    bench.cancel(&block);
    assert_eq!(bench.poll(), [], "the other one still waits");
    bench.wants.withdraw(&key, second);
    bench.cancel(&block);
    assert_eq!(bench.poll().iter().map(|entry| entry.ask).collect::<Vec<_>>(), [Ask::Cancel]);
    assert_eq!(bench.permits.available_permits(), 8);
}

#[tokio::test]
async fn waiters_fail_when_the_network_stops() {
    let (bench, block) = (Bench::new(), block(1));
    let (_, reply) = bench.wants.register(block.key().expect("a key"), *block.cid(), *block.cid().hash());
    bench.want(&block);
    drop(bench.behaviour);
    assert!(reply.await.is_err());
    let want = SessionCommand::Want { session: *block.cid().hash(), cid: *block.cid(), ahead: None };
    assert!(bench.commands.send(want).is_err(), "later requests fail immediately");
}

#[tokio::test]
async fn commands_are_processed_in_batches_and_none_is_lost() {
    struct Wakes(AtomicUsize);
    impl ArcWake for Wakes {
        fn wake_by_ref(this: &Arc<Self>) {
            this.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (mut bench, block) = (Bench::new(), block(1));
    let total = 3 * COMMANDS_PER_POLL + 1;
    (0..total).for_each(|_| bench.want(&block));
    let wakes = Arc::new(Wakes(AtomicUsize::new(0)));
    let waker = waker(Arc::clone(&wakes));
    let mut cx = Context::from_waker(&waker);
    // The runtime's budget may end a batch earlier.
    let mut left = total;
    for turn in 1.. {
        assert!(bench.behaviour.poll(&mut cx).is_pending());
        let taken = left - bench.behaviour.commands.len();
        assert!((1..=COMMANDS_PER_POLL).contains(&taken), "{taken} in one turn");
        left -= taken;
        if left == 0 {
            break;
        }
        tokio::task::yield_now().await;
        assert!(wakes.0.load(Ordering::Relaxed) >= turn, "it is woken for the rest");
    }
}

#[tokio::test]
async fn streams_that_stall_together_count_as_one_offence() {
    let mut bench = Bench::new();
    let here = Multiaddr::empty();
    let connection = ConnectionId::new_unchecked(1);
    let peers = [PeerId::random(), PeerId::random()];
    let _handlers = peers.map(|peer| {
        bench.behaviour.handle_established_inbound_connection(connection, peer, &here, &here).expect("is let in")
    });
    for peer in [peers[0], peers[1], peers[0], peers[1], peers[0]] {
        bench.behaviour.on_connection_handler_event(peer, connection, HandlerEvent::Stalled);
    }
    let mut cx = Context::from_waker(futures::task::noop_waker_ref());
    let mut offenders = Vec::new();
    while let Poll::Ready(event) = bench.behaviour.poll(&mut cx) {
        if let ToSwarm::GenerateEvent(Event::Offence(peer, Offence::Stall)) = event {
            offenders.push(peer);
        }
    }
    assert_eq!(offenders, peers);
}

/// Peers that do not support the version that is proposed first.
mod old_peers {
    use super::*;
    use crate::bitswap::message::{Message, Version};
    use futures::future::{Either, select};
    use futures::{AsyncReadExt, StreamExt};
    use libp2p::core::transport::{MemoryTransport, Transport};
    use libp2p::core::upgrade::{self, InboundUpgrade, OutboundUpgrade, UpgradeInfo};
    use libp2p::identity::Keypair;
    use libp2p::swarm::{Config, OneShotHandler, Stream, Swarm, SwarmEvent, dummy};
    use libp2p::{StreamProtocol, noise, yamux};
    use std::time::Duration;

    fn swarm<B: NetworkBehaviour>(behaviour: B) -> Swarm<B> {
        let key = Keypair::generate_ed25519();
        let transport = MemoryTransport::default()
            .upgrade(upgrade::Version::V1Lazy)
            .authenticate(noise::Config::new(&key).expect("a key"))
            .multiplex(yamux::Config::default())
            .boxed();
        let config = Config::with_tokio_executor()
            .with_substream_upgrade_protocol_override(upgrade::Version::V1Lazy)
            .with_idle_connection_timeout(Duration::from_secs(60));
        Swarm::new(transport, behaviour, key.public().to_peer_id(), config)
    }

    /// Reads one message of this version only.
    #[derive(Debug, Clone)]
    struct Reads(Version);

    impl UpgradeInfo for Reads {
        type Info = StreamProtocol;
        type InfoIter = std::iter::Once<StreamProtocol>;

        fn protocol_info(&self) -> Self::InfoIter {
            std::iter::once(self.0.protocol())
        }
    }

    impl InboundUpgrade<Stream> for Reads {
        type Output = Message;
        type Error = std::io::Error;
        type Future = BoxFuture<'static, std::io::Result<Message>>;

        fn upgrade_inbound(self, mut stream: Stream, _: StreamProtocol) -> Self::Future {
            Box::pin(async move {
                let mut length = [0];
                stream.read_exact(&mut length).await?;
                let mut frame = vec![0; usize::from(length[0])];
                stream.read_exact(&mut frame).await?;
                Message::decode(frame.into()).map_err(std::io::Error::other)
            })
        }
    }

    /// Unused, but a handler must implement it.
    impl OutboundUpgrade<Stream> for Reads {
        type Output = Message;
        type Error = std::io::Error;
        type Future = BoxFuture<'static, std::io::Result<Message>>;

        fn upgrade_outbound(self, stream: Stream, info: StreamProtocol) -> Self::Future {
            self.upgrade_inbound(stream, info)
        }
    }

    /// A peer that supports one old version and records requests.
    struct OldPeer {
        version: Version,
        asked: Vec<Message>,
    }

    impl NetworkBehaviour for OldPeer {
        type ConnectionHandler = OneShotHandler<Reads, Reads, Message>;
        type ToSwarm = Vec<WantEntry>;

        crate::handler_of_each_connection!(|peer, _| {
            OneShotHandler::new(libp2p::swarm::SubstreamProtocol::new(Reads(peer.version), ()), Default::default())
        });

        fn on_swarm_event(&mut self, _: FromSwarm) {}

        fn on_connection_handler_event(
            &mut self,
            _: PeerId,
            _: ConnectionId,
            event: Result<Message, libp2p::swarm::StreamUpgradeError<std::io::Error>>,
        ) {
            self.asked.extend(event);
        }

        fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
            self.asked.pop().map_or(Poll::Pending, |message| Poll::Ready(ToSwarm::GenerateEvent(message.wants)))
        }
    }

    /// Lets a swarm with this behaviour request a block from `peer` until `is_over`.
    async fn ask<B: NetworkBehaviour>(
        mut peer: Swarm<B>,
        block: &Block,
        mut is_over: impl FnMut(Option<B::ToSwarm>, &Behaviour, &PeerId) -> bool,
    ) {
        peer.listen_on("/memory/0".parse().expect("an address")).expect("listens");
        let SwarmEvent::NewListenAddr { address, .. } = peer.select_next_some().await else { panic!("no address") };
        let bench = Bench::new();
        let _waiting = bench.wants.register(block.key().expect("a key"), *block.cid(), *block.cid().hash());
        bench.want(block);
        let peer_id = *peer.local_peer_id();
        let mut ours = swarm(bench.behaviour);
        ours.behaviour_mut().peer_settings.favoured.insert(peer_id);
        ours.dial(address).expect("dials");
        let run = async {
            loop {
                let either = tokio::time::timeout(Duration::from_millis(20), select(peer.next(), ours.next())).await;
                let event = match either {
                    Ok(Either::Left((Some(SwarmEvent::Behaviour(event)), _))) => Some(event),
                    _ => None,
                };
                if is_over(event, ours.behaviour(), &peer_id) {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), run).await.expect("over in time");
    }

    #[tokio::test]
    async fn peers_with_an_old_version_are_asked_in_it() {
        for version in [Version::V1_1, Version::V1_0] {
            // The oldest version only supports CIDv0.
            let block = Block::of(codec::DAG_PB, hashes::SHA2_256, 32, Bytes::from_static(b"\n\0")).expect("a block");
            ask(swarm(OldPeer { version, asked: Vec::new() }), &block, |wants, _, _| {
                wants.is_some_and(|wants| wants.iter().any(|want| want.cid.hash() == block.cid().hash()))
            })
            .await;
        }
    }

    #[tokio::test]
    async fn peers_without_bitswap_have_no_outstanding_requests() {
        let mut was_asked = false;
        ask(swarm(dummy::Behaviour), &block(1), |_, behaviour, peer| {
            let (has_outstanding, _) = behaviour.usefulness(peer);
            was_asked |= has_outstanding;
            was_asked && !has_outstanding
        })
        .await;
    }
}
