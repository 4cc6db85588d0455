//! [`Outbound`]: the part of a connection's handler that opens streams for transfers.
//!
//! The streams are read by tasks of their own, which end with the connection. Each transfer has a first stream. Further
//! ones are opened in turns, one for each transfer that needs more, as long as the connection has few of them; the
//! others wait until streams end. So small transfers leave some to a large one that begins later, above all while the
//! sizes of their answers are guesses. While a connection has few streams of such transfers, the next one opens more of
//! them with its request, so that a large file begins as fast as one whose size is known.

use super::active::{ActiveTransfer, Context as DagContext, LostWhenDropped, TransferEvent};
use crate::framing::Budgets;
use libp2p::PeerId;
use libp2p::swarm::Stream;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

/// The maximum number of further streams of a connection: a peer accepts 128 streams, and each transfer needs one.
const FURTHER_MAX: usize = 64;
/// Those of them that may be open while it is not known whether the answer is that long.
const GUESSED_MAX: usize = FURTHER_MAX / 2;
/// While at most so many of them are open or requested, a transfer whose size is not known requests more than others.
const GUESSED_FEW: usize = GUESSED_MAX / 4;

/// What a stream is opened for. Dropped when it cannot be opened.
#[derive(Debug)]
pub enum StreamPurpose {
    /// To ask for a transfer, which is lost without it.
    First(LostWhenDropped),
    /// To carry a part of its answer. The transfer goes on without it.
    Further(Arc<ActiveTransfer>, StreamPermits),
}

/// What a further stream takes of what the connection may have, until it ends or is not opened. The transfer has the
/// permit of a guess, because it is released earlier if the size of the answer becomes known.
#[derive(Debug)]
pub struct StreamPermits {
    _further: OwnedSemaphorePermit,
    transfer: Arc<ActiveTransfer>,
}

impl StreamPermits {
    fn of(transfer: &Arc<ActiveTransfer>, further: OwnedSemaphorePermit, guess: Option<OwnedSemaphorePermit>) -> Self {
        transfer.opens_stream(guess);
        Self { _further: further, transfer: Arc::clone(transfer) }
    }
}

impl Drop for StreamPermits {
    fn drop(&mut self) {
        self.transfer.stream_ended();
    }
}

/// The further streams that may be opened on a connection.
struct StreamLimits {
    further: Arc<Semaphore>,
    guessed: Arc<Semaphore>,
}

impl StreamLimits {
    fn new() -> Self {
        let [further, guessed] = [FURTHER_MAX, GUESSED_MAX].map(|permits| Arc::new(Semaphore::new(permits)));
        Self { further, guessed }
    }

    /// The permits of another stream of a transfer, which counts as opened then.
    fn try_acquire(&self, transfer: &Arc<ActiveTransfer>) -> Option<StreamPermits> {
        let acquire = |permits: &Arc<Semaphore>| Arc::clone(permits).try_acquire_owned().ok();
        let guess = if transfer.guesses_streams() { Some(acquire(&self.guessed)?) } else { None };
        Some(StreamPermits::of(transfer, acquire(&self.further)?, guess))
    }
}

/// The transfers that a connection asks for. See the module's documentation.
pub struct Outbound {
    peer: PeerId,
    context: Arc<DagContext>,
    budgets: Budgets,
    /// Transfers to be started.
    starting: VecDeque<LostWhenDropped>,
    /// Transfers that need further streams, in turns.
    widening: VecDeque<Arc<ActiveTransfer>>,
    limits: StreamLimits,
    /// Where transfers report that they need further streams.
    widen: (mpsc::UnboundedSender<Arc<ActiveTransfer>>, mpsc::UnboundedReceiver<Arc<ActiveTransfer>>),
    /// The tasks that read streams. They are aborted with the connection.
    tasks: JoinSet<()>,
}

impl Outbound {
    /// No transfers. Frames take their memory from these budgets.
    pub fn new(peer: PeerId, context: Arc<DagContext>, budgets: Budgets) -> Self {
        Self {
            peer,
            context,
            budgets,
            starting: VecDeque::new(),
            widening: VecDeque::new(),
            limits: StreamLimits::new(),
            widen: mpsc::unbounded_channel(),
            tasks: JoinSet::new(),
        }
    }

    /// The peer has announced that it speaks the protocol on this connection, or that it does not any more.
    pub fn announced(&self, speaks: bool) {
        // The swarm task may have ended.
        let _ = self.context.events.send(TransferEvent::Speaks { peer: self.peer, speaks });
    }

    /// Starts a transfer.
    pub fn start(&mut self, transfer: LostWhenDropped) {
        self.starting.push_back(transfer);
    }

    /// The next stream to be opened.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Option<StreamPurpose> {
        // Each stream that ends may leave room for another one.
        while let Poll::Ready(Some(_)) = self.tasks.poll_join_next(cx) {}
        while let Poll::Ready(Some(transfer)) = self.widen.1.poll_recv(cx) {
            if !self.widening.iter().any(|known| Arc::ptr_eq(known, &transfer)) {
                if self.guessed() <= GUESSED_FEW {
                    transfer.assume_more();
                }
                self.widening.push_back(transfer);
            }
        }
        while let Some(transfer) = self.starting.pop_front() {
            if !transfer.0.state().has_ended() {
                return Some(StreamPurpose::First(transfer));
            }
        }
        self.next_further()
    }

    /// The further streams that are open for answers of unknown size, and those that are to be opened for them.
    fn guessed(&self) -> usize {
        let guessing = self.widening.iter().filter(|transfer| transfer.guesses_streams());
        let lacking: usize = guessing.map(|transfer| transfer.lacking_streams()).sum();
        GUESSED_MAX - self.limits.guessed.available_permits() + lacking
    }

    /// A further stream of the next transfer that needs one, if the connection may have another one for it.
    fn next_further(&mut self) -> Option<StreamPurpose> {
        self.widening.retain(|transfer| transfer.lacking_streams() > 0);
        let may_have = |(at, transfer)| Some((at, self.limits.try_acquire(transfer)?));
        let (at, permits) = self.widening.iter().enumerate().find_map(may_have)?;
        let transfer = self.widening.remove(at)?;
        self.widening.push_back(Arc::clone(&transfer));
        Some(StreamPurpose::Further(transfer, permits))
    }

    /// A stream was opened.
    pub fn opened(&mut self, stream: Stream, purpose: StreamPurpose) {
        let (budgets, widen) = (self.budgets.clone(), self.widen.0.clone());
        match purpose {
            StreamPurpose::First(guard) => self.tasks.spawn(async move {
                // The task may be aborted before it runs.
                let LostWhenDropped(transfer) = &guard;
                Arc::clone(transfer).run_first(stream, budgets, widen).await;
            }),
            StreamPurpose::Further(transfer, permits) => self.tasks.spawn(async move {
                transfer.run_joined(stream, budgets).await;
                drop(permits);
            }),
        };
    }

    /// Whether transfers are running or are to be started.
    pub fn is_busy(&self) -> bool {
        !self.starting.is_empty() || !self.tasks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dag::client::active::{STREAMS_MAX, TransferEnd};
    use crate::dag::client::fixture::Start;
    use crate::dag::message::TransferId;
    use content::scope::{DagScope, EntityBytes, ScopeOptions};
    use futures::task::noop_waker;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    const MIB: u64 = 1024 * 1024;
    /// The further streams of a file of 16 MiB.
    const FURTHER_LARGE: usize = STREAMS_MAX / 2 - 1;

    fn empty(context: &Arc<DagContext>) -> Outbound {
        let budgets = Budgets::new(context.memory.clone(), Arc::default());
        Outbound::new(PeerId::random(), Arc::clone(context), budgets)
    }

    /// Transfers that are to be started on a connection, of which the first one has ended.
    fn outbound(starts: &mut [Start]) -> Outbound {
        let mut outbound = empty(&starts[0].context);
        starts[0].active.cancel();
        assert_eq!(starts[0].end(), Some(TransferEnd::Cancelled));
        starts.iter().for_each(|start| outbound.start(LostWhenDropped(Arc::clone(&start.active))));
        outbound
    }

    fn poll(outbound: &mut Outbound) -> Option<StreamPurpose> {
        outbound.poll(&mut Context::from_waker(&noop_waker()))
    }

    /// The streams that are opened for transfers which have begun. They end when these are dropped.
    fn further(outbound: &mut Outbound) -> Vec<(TransferId, StreamPurpose)> {
        let id = |purpose: &StreamPurpose| match purpose {
            StreamPurpose::First(LostWhenDropped(transfer)) | StreamPurpose::Further(transfer, _) => transfer.id,
        };
        std::iter::from_fn(|| poll(outbound)).map(|purpose| (id(&purpose), purpose)).collect()
    }

    fn count(streams: &[(TransferId, StreamPurpose)], start: &Start) -> usize {
        streams.iter().filter(|(id, _)| *id == start.active.id).count()
    }

    /// A transfer of a part of a file with so many bytes.
    fn of_known_size(bytes: i64) -> Start {
        let entity_bytes = EntityBytes::new(0, Some(bytes - 1)).ok();
        Start::of_scope(ScopeOptions { scope: DagScope::Entity, entity_bytes, duplicates: false })
    }

    #[test]
    fn many_small_transfers_leave_streams_to_a_large_one() {
        let small = [(); 30].map(|()| Start::of_random_peer());
        let large = [16_i64, 16, 16, 64].map(|mib| of_known_size(mib << 20));
        let mut outbound = empty(&small[0].context);
        let begin = |outbound: &Outbound, start: &Start| start.active.request_streams(outbound.widen.0.clone());
        small.iter().for_each(|start| begin(&outbound, start));
        let mut guessed = further(&mut outbound);
        assert_eq!(guessed.len(), GUESSED_MAX, "their sizes are not known");
        assert!(small.iter().all(|start| count(&guessed, start) >= 1), "in turns");
        begin(&outbound, &large[0]);
        let of_large = further(&mut outbound);
        assert_eq!((count(&of_large, &large[0]), of_large.len()), (FURTHER_LARGE, FURTHER_LARGE));
        // Two more have to share what is left, until others have ended.
        large[1..3].iter().for_each(|start| begin(&outbound, start));
        let shared = further(&mut outbound);
        assert_eq!(shared.len(), FURTHER_MAX - GUESSED_MAX - FURTHER_LARGE);
        assert!(large[1..3].iter().all(|start| count(&shared, start) >= 8), "{shared:?}");
        small.iter().for_each(|start| start.active.cancel());
        guessed.clear();
        let rest = further(&mut outbound);
        assert_eq!(rest.len() + shared.len(), 2 * FURTHER_LARGE, "nothing is opened for what has ended");
        drop((of_large, shared, rest));
        begin(&outbound, &large[3]);
        assert_eq!(count(&further(&mut outbound), &large[3]), STREAMS_MAX - 1, "streams that have ended do not count");
    }

    /// Notes whether it was woken.
    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn streams_are_no_guesses_any_more_once_the_size_is_known() {
        let starts = [(); 12].map(|()| Start::of_random_peer());
        let mut outbound = empty(&starts[0].context);
        starts.iter().for_each(|start| start.active.request_streams(outbound.widen.0.clone()));
        let mut guesses = further(&mut outbound);
        assert_eq!((guesses.len(), count(&guesses, &starts[0])), (GUESSED_MAX, 3), "in turns");
        let woken = Arc::new(Woken::default());
        assert!(outbound.poll(&mut Context::from_waker(&Arc::clone(&woken).into())).is_none());
        // It is as large as was assumed, so that it needs no other ones.
        starts[0].active.widen_for(MIB, false);
        assert!(woken.0.load(Ordering::Relaxed), "others can go on");
        assert_eq!(further(&mut outbound).len(), 3, "its streams go on, and are no guesses");
        // Those have ended at once. A stream that ends as a guess leaves room for one.
        let free = |outbound: &Outbound| outbound.limits.guessed.available_permits();
        assert_eq!((free(&outbound), outbound.limits.further.available_permits()), (3, FURTHER_MAX - GUESSED_MAX));
        let last = guesses.iter().rposition(|(id, _)| *id == starts[1].active.id).expect("it has three");
        drop(guesses.remove(last));
        assert_eq!(free(&outbound), 4);
        guesses.retain(|(id, _)| *id != starts[0].active.id);
        assert_eq!(free(&outbound), 4, "these were released before");
        drop(guesses);
        assert_eq!((free(&outbound), outbound.limits.further.available_permits()), (GUESSED_MAX, FURTHER_MAX));
    }

    #[test]
    fn a_connection_with_few_guesses_opens_more_streams_with_a_request() {
        let starts = [(); 5].map(|()| Start::of_random_peer());
        let mut outbound = empty(&starts[0].context);
        let begin = |outbound: &Outbound, start: &Start| start.active.request_streams(outbound.widen.0.clone());
        // Two begin at once.
        starts[..2].iter().for_each(|start| begin(&outbound, start));
        let mut guesses = further(&mut outbound);
        assert_eq!([0, 1].map(|n| count(&guesses, &starts[n])), [FURTHER_LARGE, 3]);
        begin(&outbound, &starts[2]);
        guesses.extend(further(&mut outbound));
        assert_eq!(count(&guesses, &starts[2]), 3);
        // The size of the first answer is known.
        starts[0].active.widen_for(2 * MIB, false);
        begin(&outbound, &starts[3]);
        guesses.extend(further(&mut outbound));
        assert_eq!([0, 3].map(|n| count(&guesses, &starts[n])), [FURTHER_LARGE, FURTHER_LARGE]);
        begin(&outbound, &starts[4]);
        guesses.extend(further(&mut outbound));
        assert_eq!((count(&guesses, &starts[4]), guesses.len()), (3, 2 * FURTHER_LARGE + 9));
    }

    #[test]
    fn a_transfer_whose_stream_is_not_opened_is_lost_at_once() {
        let mut starts = [(); 3].map(|()| Start::of_random_peer());
        let mut outbound = outbound(&mut starts);
        let Some(StreamPurpose::First(purpose)) = poll(&mut outbound) else { panic!("a stream is to be opened") };
        assert_eq!(purpose.0.id, starts[1].active.id);
        assert!(starts.iter_mut().all(|start| start.end().is_none()));
        // The connection closes while the protocol is negotiated.
        drop(purpose);
        assert_eq!((starts[1].end(), starts[2].end()), (Some(TransferEnd::Lost), None));
        assert!(starts[1].active.state().has_ended());
        drop(outbound);
        assert_eq!(starts.each_mut().map(Start::end), [None, None, Some(TransferEnd::Lost)]);
    }

    #[test]
    fn a_transfer_goes_on_without_a_further_stream() {
        let mut start = Start::of_random_peer();
        let mut outbound = empty(&start.context);
        start.active.request_streams(outbound.widen.0.clone());
        assert!(!further(&mut outbound).is_empty());
        assert_eq!(start.end(), None);
    }
}
