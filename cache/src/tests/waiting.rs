//! The waiting rule of [`Tiers`], tested with a model: three callers with different upstreams request the same block,
//! and the leader leaves, gets no slot, or does not find the block in time.

use super::{noisy, open, until};
use crate::{Ram, TierMetrics, Tiers};
use content::{AllowAll, Block, BlockSource, Cid, SourceError, Stall};
use futures::future::{BoxFuture, FutureExt as _};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

type Outcome = Result<Block, SourceError>;

/// The result of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Found,
    Absent,
    Busy,
    /// It stalled after a long time, so that followers have time left.
    StalledLong,
    /// It stalled after a short time, so that followers have none left.
    StalledShort,
}

impl Answer {
    const ALL: [Self; 5] = [Self::Found, Self::Absent, Self::Busy, Self::StalledLong, Self::StalledShort];

    fn outcome(self, block: &Block) -> Outcome {
        let cid = *block.cid();
        let stall = |waited| SourceError::Stalled { cid, stall: Stall { waited, ..Stall::default() } };
        match self {
            Self::Found => Ok(block.clone()),
            Self::Absent => Err(SourceError::NotFound { cid }),
            Self::Busy => Err(SourceError::Busy { retry_after: Duration::ZERO }),
            Self::StalledLong => Err(stall(Duration::from_secs(100_000))),
            Self::StalledShort => Err(stall(Duration::ZERO)),
        }
    }
}

/// An upstream whose results are released by the test.
struct Upstream {
    outcome: Outcome,
    asked: AtomicUsize,
    gate: Semaphore,
}

struct Handle(Arc<Upstream>);

impl BlockSource for Handle {
    fn get(&self, _cid: &Cid) -> BoxFuture<'static, Outcome> {
        let upstream = Arc::clone(&self.0);
        async move {
            upstream.asked.fetch_add(1, Ordering::SeqCst);
            let pass = upstream.gate.acquire().await;
            pass.map_err(|_| SourceError::Closed)?.forget();
            upstream.outcome.clone()
        }
        .boxed()
    }

    fn has(&self, _cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        futures::future::ready(Ok(false)).boxed()
    }
}

/// Three callers of one block.
struct Case {
    answers: [Answer; 3],
    /// The caller that leaves during the first fetch.
    leaves: Option<usize>,
    /// Whether the next leader leaves as well.
    next_leaves: bool,
    block: Block,
    upstreams: [Arc<Upstream>; 3],
    readers: [Option<JoinHandle<Outcome>>; 3],
    metrics: TierMetrics,
}

impl Case {
    fn new(metrics: &TierMetrics, number: u64, answers: [Answer; 3], leaves: Option<usize>, next_leaves: bool) -> Self {
        let block = noisy(number, 50);
        let upstreams = answers.map(|answer| {
            let outcome = answer.outcome(&block);
            Arc::new(Upstream { outcome, asked: AtomicUsize::new(0), gate: Semaphore::new(0) })
        });
        let (readers, metrics) = ([const { None }; 3], metrics.clone());
        Self { answers, leaves, next_leaves, block, upstreams, readers, metrics }
    }

    fn asked(&self, who: usize) -> usize {
        self.upstreams[who].asked.load(Ordering::SeqCst)
    }

    async fn leave(&mut self, who: usize) {
        let reader = self.readers[who].take().expect("it waits");
        reader.abort();
        assert!(reader.await.is_err_and(|error| error.is_cancelled()));
    }

    fn answer(&self, who: usize) {
        self.upstreams[who].gate.add_permits(1);
    }

    async fn expect_result(&mut self, who: usize, answer: Answer, what: &str) {
        let heard = self.readers[who].take().expect("it waits").await.expect("no panic");
        assert_eq!(heard, answer.outcome(&self.block), "{who} of {what}");
    }

    async fn run(mut self, tiers: &Tiers) {
        let what = format!("{:?}, {:?} leaves, next: {}", self.answers, self.leaves, self.next_leaves);
        let before = self.metrics.followers.get();
        for who in 0..3 {
            let source = tiers.through(Arc::new(Handle(Arc::clone(&self.upstreams[who]))));
            self.readers[who] = Some(tokio::spawn(source.get(self.block.cid())));
            match who {
                0 => until(|| self.asked(0) == 1).await,
                _ => until(|| self.metrics.followers.get() == before + who as u64).await,
            }
        }
        if let Some(who) = self.leaves {
            self.leave(who).await;
        }
        assert_eq!([0, 1, 2].map(|who| self.asked(who)), [1, 0, 0], "one fetch, whichever caller left: {what}");
        self.answer(0);
        if self.readers[0].is_some() {
            self.expect_result(0, self.answers[0], &what).await;
        }
        let followers: Vec<usize> = [1, 2].into_iter().filter(|who| self.readers[*who].is_some()).collect();
        self.settle(followers, self.answers[0], &what).await;
        assert_eq!(self.asked(0), 1, "{what}");
    }

    /// Checks the followers of a call that ended with `answer`.
    async fn settle(&mut self, followers: Vec<usize>, answer: Answer, what: &str) {
        match answer {
            Answer::Busy if followers.is_empty() => {}
            Answer::Busy => Box::pin(self.retry(followers, what)).await,
            // Each runs its own search.
            Answer::StalledLong => {
                until(|| followers.iter().all(|who| self.asked(*who) == 1)).await;
                for who in followers {
                    self.answer(who);
                    self.expect_result(who, self.answers[who], what).await;
                }
            }
            answer => {
                for who in followers {
                    self.expect_result(who, answer, what).await;
                    assert_eq!(self.asked(who), 0, "{what}");
                }
            }
        }
    }

    /// After a leader-only error, one follower starts another fetch, and the others join it.
    async fn retry(&mut self, mut followers: Vec<usize>, what: &str) {
        until(|| followers.iter().any(|who| self.asked(*who) == 1)).await;
        let begins = followers.iter().position(|who| self.asked(*who) == 1).expect("one does");
        let begins = followers.remove(begins);
        // Both were woken together, and a fetch reads the disk before its upstream: the other one has joined by now.
        assert!(followers.iter().all(|who| self.asked(*who) == 0), "{what}");
        if self.next_leaves && !followers.is_empty() {
            self.leave(begins).await;
            assert!(followers.iter().all(|who| self.asked(*who) == 0), "the fetch continues: {what}");
        }
        self.answer(begins);
        if self.readers[begins].is_some() {
            // It is a leader itself: the error is its own.
            self.expect_result(begins, self.answers[begins], what).await;
        }
        self.settle(followers, self.answers[begins], what).await;
    }
}

#[tokio::test]
async fn followers_wait_and_retry_as_documented() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let metrics = TierMetrics::register(&mut Registry::default());
    let tiers = Tiers::new(Ram::new(1 << 24), Arc::new(disk), Arc::new(AllowAll), metrics.clone());
    let mut number = 0;
    for first in Answer::ALL {
        for second in Answer::ALL {
            for third in Answer::ALL {
                for leaves in [None, Some(0), Some(1), Some(2)] {
                    for next_leaves in [false, true] {
                        number += 1;
                        let answers = [first, second, third];
                        Case::new(&metrics, number, answers, leaves, next_leaves).run(&tiers).await;
                    }
                }
            }
        }
    }
}
