//! The glue: what sessions ask reaches the peers, and nothing is lost on the way.

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
            Circle::default(),
        );
        Self { behaviour, wants, commands, permits: Arc::new(Semaphore::new(8)) }
    }

    fn want(&self, block: &Block) {
        let want = SessionCommand::Want { session: *block.cid().hash(), cid: *block.cid() };
        self.commands.send(want).expect("the behaviour listens");
    }

    fn cancel(&self, block: &Block) {
        let permit = Arc::clone(&self.permits).try_acquire_owned().expect("there are enough");
        let (session, key) = (*block.cid().hash(), block.key().expect("a key"));
        self.commands.send(SessionCommand::Cancel { session, key, permit }).expect("the behaviour listens");
    }

    /// Polls until there is nothing more to do; what was asked of peers.
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
async fn who_leaves_takes_nothing_from_those_who_stay() {
    let (mut bench, block) = (Bench::new(), block(1));
    let peer = PeerId::random();
    bench.behaviour.circle.favoured.insert(peer);
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
async fn nobody_waits_for_a_network_that_has_stopped() {
    let (bench, block) = (Bench::new(), block(1));
    let (_, reply) = bench.wants.register(block.key().expect("a key"), *block.cid(), *block.cid().hash());
    bench.want(&block);
    drop(bench.behaviour);
    assert!(reply.await.is_err());
    let want = SessionCommand::Want { session: *block.cid().hash(), cid: *block.cid() };
    assert!(bench.commands.send(want).is_err(), "and who comes later is told at once");
}

#[tokio::test]
async fn many_commands_are_taken_in_turns_and_none_is_forgotten() {
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
    // The runtime may end a turn sooner than we do ourselves.
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
        assert!(wakes.0.load(Ordering::Relaxed) >= turn, "somebody comes back for the rest");
    }
}

#[tokio::test]
async fn streams_that_stall_together_are_one_offence_of_their_peer() {
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
