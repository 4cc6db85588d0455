use super::{Random, key, noisy, raw};
use crate::flight::{Flight, Flights, Outcome};
use content::{Block, SourceError};
use futures::task::noop_waker_ref;
use proptest::prelude::*;
use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio::sync::oneshot;

const KEYS: usize = 3;

#[derive(Debug, Clone)]
enum Step {
    Join(usize),
    Leave(usize),
    Complete { key: usize, found: bool },
    Poll(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..KEYS).prop_map(Step::Join),
        2 => any::<usize>().prop_map(Step::Leave),
        2 => (0..KEYS, any::<bool>()).prop_map(|(key, found)| Step::Complete { key, found }),
        4 => any::<usize>().prop_map(Step::Poll),
    ]
}

/// Says when the work of a flight is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

struct Expected {
    key: usize,
    outcome: Option<Outcome>,
    complete: Option<oneshot::Sender<Outcome>>,
    landed: bool,
    waiters: usize,
    dropped: Arc<AtomicBool>,
}

impl Expected {
    fn under_way(&self) -> bool {
        !self.landed && self.waiters > 0
    }
}

/// What flights do, told without any concurrency.
struct Model {
    flights: Flights,
    blocks: Vec<Block>,
    expected: Vec<Expected>,
    waiters: Vec<(usize, Flight)>,
}

impl Model {
    fn new() -> Self {
        let blocks = (0..KEYS).map(|seed| noisy(seed as u64, 100)).collect();
        Self { flights: Flights::default(), blocks, expected: Vec::new(), waiters: Vec::new() }
    }

    fn current(&self, key: usize) -> Option<usize> {
        self.expected.iter().position(|flight| flight.key == key && flight.under_way())
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Join(key) => self.join(key),
            Step::Leave(waiter) if !self.waiters.is_empty() => {
                let waiter = waiter % self.waiters.len();
                let (flight, handle) = self.waiters.swap_remove(waiter);
                self.expected[flight].waiters -= 1;
                drop(handle);
            }
            Step::Complete { key, found } => self.complete(key, found),
            Step::Poll(waiter) if !self.waiters.is_empty() => self.poll(waiter % self.waiters.len()),
            Step::Leave(_) | Step::Poll(_) => {}
        }
        let under_way = self.expected.iter().filter(|flight| flight.under_way()).count();
        assert_eq!(self.flights.under_way(), under_way);
        for flight in &self.expected {
            assert_eq!(flight.dropped.load(Ordering::SeqCst), !flight.under_way(), "work lives while it is awaited");
        }
    }

    fn join(&mut self, index: usize) {
        let (complete, completion) = oneshot::channel::<Outcome>();
        let dropped = Arc::new(AtomicBool::new(false));
        let guard = Dropped(Arc::clone(&dropped));
        let work = move || async move {
            let _guard = guard;
            completion.await.unwrap_or(Err(SourceError::Closed))
        };
        let (flight, joined) = self.flights.join(key(&self.blocks[index]), work);
        let current = self.current(index);
        assert_eq!(joined, current.is_some(), "whoever can join does");
        let current = current.unwrap_or_else(|| {
            let complete = Some(complete);
            let new = Expected { key: index, outcome: None, complete, landed: false, waiters: 0, dropped };
            self.expected.push(new);
            self.expected.len() - 1
        });
        self.expected[current].waiters += 1;
        self.waiters.push((current, flight));
    }

    fn complete(&mut self, index: usize, found: bool) {
        let block = self.blocks[index].clone();
        let outcome = if found { Ok(block) } else { Err(SourceError::NotFound { cid: *block.cid() }) };
        let Some(current) = self.current(index) else { return };
        let flight = &mut self.expected[current];
        if let Some(complete) = flight.complete.take() {
            complete.send(outcome.clone()).expect("the work is alive");
            flight.outcome = Some(outcome);
        }
    }

    fn poll(&mut self, waiter: usize) {
        let (current, handle) = &mut self.waiters[waiter];
        let flight = &mut self.expected[*current];
        match (Pin::new(handle).poll(&mut Context::from_waker(noop_waker_ref())), &flight.outcome) {
            (Poll::Pending, None) => {}
            (Poll::Ready(outcome), Some(expected)) => {
                assert_eq!(&outcome, expected, "every waiter gets the outcome");
                flight.landed = true;
                flight.waiters -= 1;
                drop(self.waiters.swap_remove(waiter));
            }
            (polled, expected) => panic!("polled {polled:?}, expected {expected:?}"),
        }
    }
}

proptest! {
    #[test]
    fn any_order_of_joining_leaving_and_completing_matches_the_model(steps in proptest::collection::vec(step(), 0..120)) {
        let mut model = Model::new();
        for step in steps {
            model.run(step);
        }
        model.waiters.clear();
        prop_assert_eq!(model.flights.under_way(), 0);
    }
}

/// Waiters on many threads come, go and leave early; whoever stays gets the right block, and nothing is left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_threads_join_and_leave_without_losing_anyone() {
    let flights = Flights::default();
    let blocks: Arc<Vec<Block>> = Arc::new((0..4_u8).map(|n| raw(vec![n; 10])).collect());
    let begun = Arc::new(AtomicUsize::new(0));
    let waiter = |seed: u64| {
        let (flights, blocks, begun) = (flights.clone(), Arc::clone(&blocks), Arc::clone(&begun));
        tokio::spawn(async move {
            let mut random = Random(seed);
            for _ in 0..2_000 {
                let block = blocks[usize::try_from(random.below(4)).expect("small")].clone();
                let (expected, yields) = (block.clone(), random.below(4));
                let begun = Arc::clone(&begun);
                let work = || async move {
                    begun.fetch_add(1, Ordering::Relaxed);
                    for _ in 0..yields {
                        tokio::task::yield_now().await;
                    }
                    Ok(block)
                };
                let (mut flight, _) = flights.join(key(&expected), work);
                if random.below(3) == 0 {
                    _ = futures::poll!(&mut flight);
                } else {
                    assert_eq!(flight.await, Ok(expected));
                }
            }
        })
    };
    let waiters: Vec<_> = (0..8).map(waiter).collect();
    for waiter in waiters {
        waiter.await.expect("no waiter panics");
    }
    assert_eq!(flights.under_way(), 0);
    assert!(begun.load(Ordering::Relaxed) > 0);
}
