//! [`Outbound`]: the part of a connection's handler that opens streams for transfers.
//!
//! The streams are read by tasks of their own, which end with the connection.

use super::active::{ActiveTransfer, Context as DagContext, LostWhenDropped, TransferEvent};
use crate::framing::Budgets;
use libp2p::PeerId;
use libp2p::swarm::Stream;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// No further streams are opened when there are so many: a peer accepts 128 on a connection, and each transfer needs one.
const STREAMS_WIDENED_MAX: usize = 64;

/// What a stream is opened for. Dropped when it cannot be opened.
#[derive(Debug)]
pub enum StreamPurpose {
    /// To ask for a transfer, which is lost without it.
    First(LostWhenDropped),
    /// To carry a part of its answer. The transfer goes on without it.
    Further(Arc<ActiveTransfer>),
}

impl StreamPurpose {
    fn transfer(&self) -> &Arc<ActiveTransfer> {
        match self {
            Self::First(LostWhenDropped(transfer)) | Self::Further(transfer) => transfer,
        }
    }
}

/// The transfers that a connection asks for. See the module's documentation.
pub struct Outbound {
    peer: PeerId,
    context: Arc<DagContext>,
    budgets: Budgets,
    /// Streams to be opened.
    opening: VecDeque<StreamPurpose>,
    /// Transfers that need a further stream.
    widen: (mpsc::UnboundedSender<Arc<ActiveTransfer>>, mpsc::UnboundedReceiver<Arc<ActiveTransfer>>),
    /// The tasks that read streams. They are aborted with the connection.
    tasks: JoinSet<()>,
}

impl Outbound {
    /// No transfers. Frames take their memory from these budgets.
    pub fn new(peer: PeerId, context: Arc<DagContext>, budgets: Budgets) -> Self {
        let (opening, widen) = (VecDeque::new(), mpsc::unbounded_channel());
        Self { peer, context, budgets, opening, widen, tasks: JoinSet::new() }
    }

    /// The peer has announced that it speaks the protocol on this connection, or that it does not any more.
    pub fn announced(&self, speaks: bool) {
        // The swarm task may have ended.
        let _ = self.context.events.send(TransferEvent::Speaks { peer: self.peer, speaks });
    }

    /// Starts a transfer.
    pub fn start(&mut self, transfer: LostWhenDropped) {
        self.opening.push_back(StreamPurpose::First(transfer));
    }

    /// The next stream to be opened.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Option<StreamPurpose> {
        while let Poll::Ready(Some(_)) = self.tasks.poll_join_next(cx) {}
        while let Poll::Ready(Some(transfer)) = self.widen.1.poll_recv(cx) {
            if self.tasks.len() + self.opening.len() < STREAMS_WIDENED_MAX {
                self.opening.push_back(StreamPurpose::Further(transfer));
            }
        }
        loop {
            let purpose = self.opening.pop_front()?;
            if !purpose.transfer().state().has_ended() {
                return Some(purpose);
            }
        }
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
            StreamPurpose::Further(transfer) => self.tasks.spawn(transfer.run_joined(stream, budgets)),
        };
    }

    /// Whether transfers are running or are to be started.
    pub fn is_busy(&self) -> bool {
        !self.opening.is_empty() || !self.tasks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dag::client::active::TransferEnd;
    use crate::dag::client::fixture::Start;
    use futures::task::noop_waker;

    /// Transfers that are to be started on a connection, of which the first one has ended.
    fn outbound(starts: &mut [Start]) -> Outbound {
        let context = Arc::clone(&starts[0].context);
        let budgets = Budgets::new(context.memory.clone(), Arc::default());
        let mut outbound = Outbound::new(PeerId::random(), context, budgets);
        starts[0].active.cancel();
        assert_eq!(starts[0].end(), Some(TransferEnd::Cancelled));
        starts.iter().for_each(|start| outbound.start(LostWhenDropped(Arc::clone(&start.active))));
        outbound
    }

    #[test]
    fn a_transfer_whose_stream_is_not_opened_is_lost_at_once() {
        let mut starts = [(); 3].map(|()| Start::of_random_peer());
        let mut outbound = outbound(&mut starts);
        let purpose = outbound.poll(&mut Context::from_waker(&noop_waker())).expect("a stream is to be opened");
        assert_eq!(purpose.transfer().id, starts[1].active.id);
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
        drop(StreamPurpose::Further(Arc::clone(&start.active)));
        assert_eq!(start.end(), None);
    }
}
