//! [`Work`]: the CPU budget of one request, and when it yields to the scheduler.
//!
//! Content is untrusted: an attacker can craft it so that reading takes long and yields little. So every traversal
//! counts its steps: a link that is followed, a path segment, a rule that is matched, a part of a block that is
//! decoded. It takes the counter from its source ([`crate::BlockSource::work`]), so that one counter covers the whole
//! request.
//!
//! A traversal yields every [`STEPS_PER_YIELD`] steps, which is also when a task of a disconnected client is cancelled.
//! A request that exceeds its budget fails. Emitted bytes extend the budget, so that long responses complete and the
//! work of a request is linear in the size of its response.
//!
//! Non-goals: time. A step takes some hundred nanoseconds of CPU time, whatever kind it is of.

use crate::block::{Block, MAX_BLOCK_BYTES};
use crate::cid::codec;
use crate::source_error::SourceError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

/// The number of steps after which a traversal yields: about a millisecond.
pub const STEPS_PER_YIELD: u64 = 8 * 1024;
/// The maximum number of steps to decode one block. Decoding a block does not yield.
pub const STEPS_PER_BLOCK_MAX: u64 = 1 + MAX_BLOCK_BYTES as u64 / DOCUMENT_BYTES_PER_STEP;
/// Bytes of a dag-pb node that are decoded in one step. A link has at least eight bytes.
const NODE_BYTES_PER_STEP: u64 = 32;
/// Bytes of a document that are decoded in one step. A value has at least one byte.
const DOCUMENT_BYTES_PER_STEP: u64 = 16;
/// Bytes of names and paths that are processed in one step.
const TEXT_BYTES_PER_STEP: u64 = 64;
/// Emitted bytes that extend the budget by one step.
const EMITTED_BYTES_PER_STEP: u64 = 8;

/// A counter of steps. Clones share the counter.
#[derive(Debug, Clone)]
pub struct Work(Arc<Counter>);

#[derive(Debug)]
struct Counter {
    steps_max: u64,
    spent: AtomicU64,
    emitted_bytes: AtomicU64,
    spent_at_last_yield: AtomicU64,
    longest_run: AtomicU64,
}

impl Work {
    /// A budget of so many steps, which emitted bytes extend.
    pub fn new(steps_max: u64) -> Self {
        Self(Arc::new(Counter {
            steps_max,
            spent: AtomicU64::new(0),
            emitted_bytes: AtomicU64::new(0),
            spent_at_last_yield: AtomicU64::new(0),
            longest_run: AtomicU64::new(0),
        }))
    }

    /// A counter without a limit, which only makes traversals yield: for the operator's own commands.
    pub fn unlimited() -> Self {
        Self::new(u64::MAX)
    }

    /// Counts steps.
    pub fn charge(&self, steps: u64) {
        self.0.spent.fetch_add(steps, Ordering::Relaxed);
    }

    /// Counts the decoding of a block.
    pub fn charge_decoding(&self, block: &Block) {
        let bytes = block.data().len() as u64;
        self.charge(match block.cid().codec() {
            codec::RAW => 1,
            codec::DAG_PB => 1 + bytes / NODE_BYTES_PER_STEP,
            _ => 1 + bytes / DOCUMENT_BYTES_PER_STEP,
        });
    }

    /// Counts the processing of a name or a path of so many bytes.
    pub fn charge_text(&self, bytes: usize) {
        self.charge(1 + bytes as u64 / TEXT_BYTES_PER_STEP);
    }

    /// Counts emitted bytes, which extend the budget.
    pub fn earn(&self, bytes: usize) {
        self.0.emitted_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The number of steps so far.
    pub fn spent(&self) -> u64 {
        self.0.spent.load(Ordering::Relaxed)
    }

    /// The number of bytes emitted so far.
    pub fn emitted_bytes(&self) -> u64 {
        self.0.emitted_bytes.load(Ordering::Relaxed)
    }

    /// The maximum number of steps between two yields.
    pub fn longest_run(&self) -> u64 {
        self.0.longest_run.load(Ordering::Relaxed).max(self.since_yield())
    }

    fn since_yield(&self) -> u64 {
        self.spent().saturating_sub(self.0.spent_at_last_yield.load(Ordering::Relaxed))
    }

    /// Whether it is time to yield.
    pub fn is_due(&self) -> bool {
        self.since_yield() >= STEPS_PER_YIELD
    }

    /// Yields if [`Work::is_due`], then checks the budget.
    ///
    /// # Errors
    /// [`SourceError::TooMuchWork`] when the budget is used up.
    pub async fn turn(&self) -> Result<(), SourceError> {
        if self.is_due() {
            self.record_yield();
            tokio::task::yield_now().await;
        }
        self.check()
    }

    /// [`Work::turn`] for `poll` functions: returns `Pending` and wakes the task at once if it is time to yield.
    ///
    /// # Errors
    /// [`SourceError::TooMuchWork`] when the budget is used up.
    pub fn poll_yield(&self, cx: &Context<'_>) -> Poll<Result<(), SourceError>> {
        if self.is_due() {
            self.record_yield();
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.check())
    }

    fn record_yield(&self) {
        self.0.longest_run.fetch_max(self.since_yield(), Ordering::Relaxed);
        self.0.spent_at_last_yield.store(self.spent(), Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), SourceError> {
        let max = self.0.steps_max;
        let earned = self.emitted_bytes() / EMITTED_BYTES_PER_STEP;
        if self.spent() > max.saturating_add(earned) { Err(SourceError::TooMuchWork { max }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[test]
    fn a_walk_yields_after_each_turn_and_ends_with_its_budget() {
        let work = Work::new(3 * STEPS_PER_YIELD);
        let mut yields = 0;
        let ended = loop {
            work.charge(STEPS_PER_YIELD / 4);
            let mut turn = Box::pin(work.turn());
            match turn.as_mut().now_or_never() {
                Some(Ok(())) => {}
                Some(Err(error)) => break error,
                None => {
                    yields += 1;
                    if let Some(Err(error)) = turn.now_or_never() {
                        break error;
                    }
                }
            }
        };
        assert_eq!(ended, SourceError::TooMuchWork { max: 3 * STEPS_PER_YIELD });
        assert_eq!((yields, work.longest_run()), (3, STEPS_PER_YIELD));
        assert!(work.spent() <= 3 * STEPS_PER_YIELD + STEPS_PER_YIELD / 4);
    }

    #[test]
    fn emitted_bytes_extend_the_budget_of_all_clones() {
        let work = Work::new(10);
        work.charge(20);
        assert!(work.turn().now_or_never().expect("not due").is_err());
        work.clone().earn(80);
        assert_eq!(work.turn().now_or_never(), Some(Ok(())));
        work.clone().charge(1);
        assert!(work.turn().now_or_never().expect("not due").is_err());
        let unlimited = Work::unlimited();
        unlimited.charge(u64::MAX / 2);
        assert_eq!(unlimited.turn().now_or_never(), None, "unlimited work yields too");
        assert_eq!(unlimited.turn().now_or_never(), Some(Ok(())));
    }

    #[test]
    fn a_poll_yields_once() {
        let (work, waker) = (Work::unlimited(), futures::task::noop_waker());
        let cx = Context::from_waker(&waker);
        assert_eq!(work.poll_yield(&cx), Poll::Ready(Ok(())));
        work.charge(STEPS_PER_YIELD);
        assert_eq!(work.poll_yield(&cx), Poll::Pending);
        assert_eq!(work.poll_yield(&cx), Poll::Ready(Ok(())));
    }
}
