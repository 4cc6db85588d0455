//! The waiting rule of [`Tiers`], against a model: who asks whom, and what each hears, when three want the same block, each with
//! an upstream of its own; when whoever began the fetch leaves, has no place on the way there, or finds nobody in time.

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

/// What an upstream comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Found,
    Absent,
    Busy,
    /// It stalled after so long that everybody else has patience left.
    StalledLong,
    /// It stalled after so short a time that nobody has.
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
            Self::Busy => Err(SourceError::Busy),
            Self::StalledLong => Err(stall(Duration::from_secs(100_000))),
            Self::StalledShort => Err(stall(Duration::ZERO)),
        }
    }
}

/// An upstream that answers when it may.
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

/// Three who want one block.
struct Case {
    answers: [Answer; 3],
    /// Who leaves while the first fetch is under way.
    leaves: Option<usize>,
    /// Whether whoever begins the next one leaves as well.
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

    async fn hears(&mut self, who: usize, answer: Answer, what: &str) {
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
        assert_eq!([0, 1, 2].map(|who| self.asked(who)), [1, 0, 0], "one fetch, whoever left: {what}");
        self.answer(0);
        if self.readers[0].is_some() {
            self.hears(0, self.answers[0], &what).await;
        }
        let joiners: Vec<usize> = [1, 2].into_iter().filter(|who| self.readers[*who].is_some()).collect();
        self.settle(joiners, self.answers[0], &what).await;
        assert_eq!(self.asked(0), 1, "{what}");
    }

    /// Those who had joined a flight that came to `answer`.
    async fn settle(&mut self, joiners: Vec<usize>, answer: Answer, what: &str) {
        match answer {
            Answer::Busy if joiners.is_empty() => {}
            Answer::Busy => Box::pin(self.begin_anew(joiners, what)).await,
            // Each searches for itself.
            Answer::StalledLong => {
                until(|| joiners.iter().all(|who| self.asked(*who) == 1)).await;
                for who in joiners {
                    self.answer(who);
                    self.hears(who, self.answers[who], what).await;
                }
            }
            answer => {
                for who in joiners {
                    self.hears(who, answer, what).await;
                    assert_eq!(self.asked(who), 0, "{what}");
                }
            }
        }
    }

    /// One of those who heard that the first had no place begins a fetch of its own, and the others join that.
    async fn begin_anew(&mut self, mut joiners: Vec<usize>, what: &str) {
        until(|| joiners.iter().any(|who| self.asked(*who) == 1)).await;
        let begins = joiners.iter().position(|who| self.asked(*who) == 1).expect("one does");
        let begins = joiners.remove(begins);
        // Both were woken at once, and a fetch asks the disk before its upstream: the other one has joined by now.
        assert!(joiners.iter().all(|who| self.asked(*who) == 0), "{what}");
        if self.next_leaves && !joiners.is_empty() {
            self.leave(begins).await;
            assert!(joiners.iter().all(|who| self.asked(*who) == 0), "the fetch goes on: {what}");
        }
        self.answer(begins);
        if self.readers[begins].is_some() {
            // It has joined nobody: busy is busy.
            self.hears(begins, self.answers[begins], what).await;
        }
        self.settle(joiners, self.answers[begins], what).await;
    }
}

#[tokio::test]
async fn who_waits_for_whom_is_as_the_rule_says() {
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
