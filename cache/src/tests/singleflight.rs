use super::{Random, key, noisy, raw};
use crate::singleflight::{FetchResult, LEADER_ONLY_ERRORS_MAX, SharedCall, Singleflight, aside};
use content::{Block, BlockKey, SourceError};
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use futures::task::noop_waker_ref;
use proptest::prelude::*;
use std::future::Future as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
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

/// Records when the work of a call is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

struct Expected {
    key: usize,
    outcome: Option<FetchResult>,
    complete: Option<oneshot::Sender<FetchResult>>,
    landed: bool,
    waiters: usize,
    dropped: Arc<AtomicBool>,
}

impl Expected {
    fn under_way(&self) -> bool {
        !self.landed && self.waiters > 0
    }
}

/// A sequential model of singleflight.
struct Model {
    flights: Singleflight<BlockKey, FetchResult>,
    blocks: Vec<Block>,
    expected: Vec<Expected>,
    waiters: Vec<(usize, SharedCall<FetchResult>)>,
}

impl Model {
    fn new() -> Self {
        let blocks = (0..KEYS).map(|seed| noisy(seed as u64, 100)).collect();
        Self { flights: Singleflight::default(), blocks, expected: Vec::new(), waiters: Vec::new() }
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
            assert_eq!(flight.dropped.load(Ordering::SeqCst), !flight.under_way(), "work exists while it is awaited");
        }
    }

    fn join(&mut self, index: usize) {
        let (complete, completion) = oneshot::channel::<FetchResult>();
        let dropped = Arc::new(AtomicBool::new(false));
        let guard = Dropped(Arc::clone(&dropped));
        let work = move || async move {
            let _guard = guard;
            completion.await.unwrap_or(Err(SourceError::Closed))
        };
        let (flight, joined) = self.flights.join(key(&self.blocks[index]), work);
        let current = self.current(index);
        assert_eq!(joined, current.is_some(), "a call in flight is joined");
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
                assert_eq!(&outcome, expected, "every waiter gets the result");
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
    fn any_order_of_joining_leaving_and_completing_matches_the_model(
        steps in proptest::collection::vec(step(), 0..120)
    ) {
        let mut model = Model::new();
        for step in steps {
            model.run(step);
        }
        model.waiters.clear();
        prop_assert_eq!(model.flights.under_way(), 0);
    }
}

/// Waiters on many threads join, and some leave early; the others get the right block, and no call stays behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_waiter_on_many_threads_gets_its_result() {
    let flights = Singleflight::<BlockKey, FetchResult>::default();
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

/// The result of a call: a number, or a leader-only error.
type Heard = Result<usize, Turned>;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Turned;

/// A started call: its key, its leader, and how to complete it.
struct BegunPin {
    key: usize,
    by: usize,
    /// Whether it is the work of a caller that has retried often enough and runs alone.
    alone: bool,
    end: Option<oneshot::Sender<Heard>>,
    heard: Option<Heard>,
    dropped: Arc<AtomicBool>,
}

/// Records that a waiter was woken.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

struct Waiter {
    name: usize,
    key: usize,
    landing: BoxFuture<'static, (Heard, bool)>,
    woken: Arc<Woken>,
}

#[derive(Debug, Clone)]
enum Move {
    Come(usize),
    Leave(usize),
    Poll(usize),
    /// The call of a key completes.
    End {
        key: usize,
        turned: bool,
    },
}

fn a_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        3 => (0..KEYS).prop_map(Move::Come),
        2 => any::<usize>().prop_map(Move::Leave),
        4 => any::<usize>().prop_map(Move::Poll),
        3 => (0..KEYS, any::<bool>()).prop_map(|(key, turned)| Move::End { key, turned }),
    ]
}

/// Callers of `land`, with leader-only errors.
#[derive(Default)]
struct World {
    flights: Singleflight<usize, Heard>,
    begun: Arc<Mutex<Vec<BegunPin>>>,
    waiters: Vec<Waiter>,
    names: usize,
}

impl World {
    fn come(&mut self, key: usize) {
        let name = self.names;
        self.names += 1;
        let (flights, begun) = (self.flights.clone(), Arc::clone(&self.begun));
        let turned = Arc::new(AtomicUsize::new(0));
        let heard_of = Arc::clone(&turned);
        let begin = move || {
            let alone = heard_of.load(Ordering::SeqCst) == LEADER_ONLY_ERRORS_MAX;
            let (end, ended) = oneshot::channel();
            let dropped = Arc::new(AtomicBool::new(false));
            let guard = Dropped(Arc::clone(&dropped));
            begun.lock().expect("is sound").push(BegunPin {
                key,
                by: name,
                alone,
                end: Some(end),
                heard: None,
                dropped,
            });
            async move {
                let _guard = guard;
                ended.await.expect("the sender exists")
            }
        };
        let seat = flights.join(key, &begin);
        let again = move |heard: &Heard| {
            turned.fetch_add(usize::from(heard.is_err()), Ordering::SeqCst);
            heard.is_err()
        };
        let landing = async move { flights.land(key, seat, begin, again).await };
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        self.waiters.push(Waiter { name, key, landing: landing.boxed(), woken });
    }

    /// Polls a waiter, which is removed when it is ready.
    fn poll(&mut self, index: usize) {
        let waiter = &mut self.waiters[index];
        waiter.woken.0.store(false, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&waiter.woken));
        let Poll::Ready((heard, joined)) = waiter.landing.as_mut().poll(&mut Context::from_waker(&waker)) else {
            return;
        };
        let waiter = self.waiters.swap_remove(index);
        let begun = self.begun.lock().expect("is sound");
        let own = |flight: &&BegunPin| flight.by == waiter.name && flight.heard.as_ref() == Some(&heard);
        match joined {
            false => assert!(begun.iter().any(|flight| own(&flight)), "the result is of its own call"),
            true => {
                assert!(heard.is_ok(), "a leader-only error is not returned to a follower");
                let of_key = |flight: &BegunPin| flight.key == waiter.key && flight.heard.as_ref() == Some(&heard);
                assert!(begun.iter().any(of_key), "a call had this result");
            }
        }
    }

    fn end(&self, key: usize, turned: bool) {
        let mut begun = self.begun.lock().expect("is sound");
        let number = begun.len();
        let Some(flight) =
            begun.iter_mut().find(|flight| flight.key == key && flight.is_alive() && flight.end.is_some())
        else {
            return;
        };
        if let Some(end) = flight.end.take() {
            let heard = if turned { Err(Turned) } else { Ok(number) };
            flight.heard = Some(heard.clone());
            end.send(heard).expect("the work is alive");
        }
    }

    fn run(&mut self, a_move: Move) {
        match a_move {
            Move::Come(key) => self.come(key),
            Move::Leave(waiter) if !self.waiters.is_empty() => {
                let waiter = waiter % self.waiters.len();
                drop(self.waiters.swap_remove(waiter));
            }
            Move::Poll(waiter) if !self.waiters.is_empty() => self.poll(waiter % self.waiters.len()),
            Move::End { key, turned } => self.end(key, turned),
            Move::Leave(_) | Move::Poll(_) => {}
        }
        let begun = self.begun.lock().expect("is sound");
        for key in 0..KEYS {
            let alive = begun.iter().filter(|flight| flight.key == key && flight.is_shared()).count();
            assert!(alive <= 1, "one call per key");
            assert!(alive == 0 || self.waiters.iter().any(|waiter| waiter.key == key), "no work runs without a waiter");
        }
        assert_eq!(self.flights.under_way(), begun.iter().filter(|flight| flight.is_shared()).count());
    }

    /// Completes every call successfully, and polls only woken waiters: each must get a result.
    fn finish(&mut self) {
        while !self.waiters.is_empty() {
            (0..KEYS).for_each(|key| self.end(key, false));
            let next = self.waiters.iter().position(|waiter| waiter.woken.0.load(Ordering::SeqCst));
            self.poll(next.expect("waiters are woken"));
        }
    }
}

impl BegunPin {
    fn is_alive(&self) -> bool {
        !self.dropped.load(Ordering::SeqCst)
    }

    fn is_shared(&self) -> bool {
        self.is_alive() && !self.alone
    }
}

proptest! {
    #[test]
    fn every_waiter_gets_a_result_despite_dropped_waiters_and_leader_only_errors(
        moves in proptest::collection::vec(a_move(), 0..120)
    ) {
        let mut world = World::default();
        for a_move in moves {
            world.run(a_move);
        }
        world.finish();
        prop_assert_eq!(world.flights.under_way(), 0);
        prop_assert!(world.begun.lock().expect("is sound").iter().all(|flight| !flight.is_alive()));
    }
}

/// If every leader is rejected, each waiter gets its own error soon, not after all the others.
#[tokio::test]
async fn no_waiter_waits_until_all_others_were_rejected() {
    let (flights, begun) = (Singleflight::<u8, Heard>::default(), AtomicUsize::new(0));
    let waits = (0..100).map(|name| {
        let begin = || {
            begun.fetch_add(1, Ordering::SeqCst);
            async {
                tokio::task::yield_now().await;
                Err(Turned)
            }
        };
        let (seat, others) = (flights.join(1, begin), AtomicUsize::new(0));
        let (flights, name) = (flights.clone(), name);
        async move {
            let again = |heard: &Heard| {
                others.fetch_add(1, Ordering::SeqCst);
                heard.is_err()
            };
            let (heard, joined) = flights.land(1, seat, begin, again).await;
            assert_eq!((heard, joined), (Err(Turned), false), "{name}");
            others.into_inner()
        }
    });
    let others = join_all(waits).await;
    assert_eq!(others.into_iter().max(), Some(LEADER_ONLY_ERRORS_MAX));
    assert_eq!((begun.into_inner(), flights.under_way()), (100, 0), "each has started once");
}

/// The state of a call is visible to all of its callers until it completes.
#[test]
fn followers_see_the_state_of_the_leader() {
    let flights = Singleflight::<u8, u8, Arc<str>>::default();
    let begin = |sight: &str| {
        let sight: Arc<str> = sight.into();
        move || (std::future::ready(7), sight)
    };
    let (first, seen, joined) = flights.join_observed(1, begin("first"));
    assert_eq!((&*seen, joined), ("first", false));
    let (second, seen, joined) = flights.join_observed(1, begin("second"));
    assert_eq!((&*seen, joined), ("first", true));
    assert_eq!((second.now_or_never(), first.now_or_never()), (Some(7), Some(7)));
    let (_third, seen, joined) = flights.join_observed(1, begin("third"));
    assert_eq!((&*seen, joined), ("third", false), "a completed call is removed");
}

/// Work that need not wait runs without a task; other work runs without being polled, and is aborted when it is
/// dropped.
#[tokio::test]
async fn spawned_work_runs_unpolled_and_is_aborted_with_its_waiter() {
    let at_once = std::thread::spawn(|| aside(async { 1 }).now_or_never());
    assert_eq!(at_once.join().expect("needs no runtime"), Some(Some(1)));

    let (steps, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let work = |end: bool| {
        let (steps, guard) = (Arc::clone(&steps), Dropped(Arc::clone(&dropped)));
        async move {
            let _guard = guard;
            for _ in 0..10 {
                tokio::task::yield_now().await;
                steps.fetch_add(1, Ordering::SeqCst);
            }
            if !end {
                std::future::pending::<()>().await;
            }
        }
    };
    let until = async |condition: &dyn Fn() -> bool| {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    let mut waiting = aside(work(false)).boxed();
    assert!(futures::poll!(&mut waiting).is_pending());
    until(&|| steps.load(Ordering::SeqCst) == 10).await;
    assert!(!dropped.load(Ordering::SeqCst));
    drop(waiting);
    until(&|| dropped.load(Ordering::SeqCst)).await;
    assert_eq!(aside(work(true)).await, Some(()));
    let panics = aside(async {
        tokio::task::yield_now().await;
        panic!("a defect");
    });
    assert_eq!(panics.await, None::<()>);
    let panics_at_once = aside(async { panic!("a defect") });
    assert_eq!(panics_at_once.await, None::<()>);
}

/// If the work panics, all waiters get a result, and the next call is a new one.
#[tokio::test]
async fn waiters_for_work_that_panics_do_not_panic() {
    let flights = Singleflight::<u8, Option<u8>>::default();
    let begin = || aside(async { panic!("a defect") });
    let waiting: Vec<_> = (0..3).map(|_| flights.join(1, begin).0).collect();
    assert_eq!(join_all(waiting.clone()).await, [None; 3]);
    let (next, joined) = flights.join(1, || aside(async { 7 }));
    assert_eq!((next.await, joined), (Some(7), false));
    drop(waiting);
}
