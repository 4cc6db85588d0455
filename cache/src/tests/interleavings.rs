//! Explores every order in which three tasks can request blocks, wait, leave and get results.
//!
//! [`Singleflight`] holds its locks for one look-up only, so all interleavings are covered by a scheduler that takes one
//! step at a time and explores every choice. Steps can also be interrupted at two points: when the last waiter has left
//! and the call is not removed yet, and when the work has ended and its call is still listed. At both points the work
//! is dropped, which its destructor detects.
//!
//! Non-goals: memory orderings, which the locks and [`futures::future::Shared`] ensure; `tests/flight.rs` runs on
//! threads.

use super::{key, noisy};
use crate::singleflight::{FetchResult, SharedCall, Singleflight};
use content::{Block, BlockKey, SourceError};
use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

const TASKS: usize = 3;

/// The maximum number of polls of a task; then it leaves.
const POLLS_MAX: u32 = 2;

/// The choice at each point of a run, and the number of alternatives.
#[derive(Debug, Default)]
struct Choices {
    taken: Vec<(usize, usize)>,
    at: usize,
}

impl Choices {
    fn choose(&mut self, of: usize) -> usize {
        if self.at == self.taken.len() {
            self.taken.push((0, of));
        }
        let (choice, was) = self.taken[self.at];
        assert_eq!(was, of, "runs are deterministic");
        self.at += 1;
        choice
    }

    /// Advances to the next run, if there is one.
    fn next(&mut self) -> bool {
        self.at = 0;
        while let Some((choice, of)) = self.taken.pop() {
            if choice + 1 < of {
                self.taken.push((choice + 1, of));
                return true;
            }
        }
        false
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Join(usize),
    Poll(usize),
    Leave(usize),
    /// The block of a key arrives.
    Land(usize),
}

enum Phase {
    Before,
    /// Waits; the call is taken out while it is polled or dropped.
    Waiting {
        work: usize,
        flight: Option<SharedCall<FetchResult>>,
        polls: u32,
    },
    After,
}

/// Whether a task was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Signals to the work of a call that the block arrived.
#[derive(Default)]
struct Signal {
    landed: bool,
    waker: Option<Waker>,
}

struct Work {
    key: usize,
    signal: Arc<Mutex<Signal>>,
    holders: usize,
    /// It completed, or all waiters left.
    over: bool,
    dropped: bool,
}

impl Work {
    fn is_live(&self) -> bool {
        self.holders > 0 && !self.over
    }

    fn landed(&self) -> bool {
        self.signal.lock().expect("not poisoned").landed
    }
}

struct State {
    choices: Choices,
    phases: [Phase; TASKS],
    works: Vec<Work>,
    /// The task whose step is in progress.
    busy: Option<usize>,
    /// Whether a step runs inside of another.
    nested: bool,
    said: Vec<Act>,
}

struct World {
    flights: Singleflight<BlockKey, FetchResult>,
    blocks: [Block; 2],
    /// The key that each task requests.
    wants: [usize; TASKS],
    woken: [Arc<Woken>; TASKS],
    state: Mutex<State>,
}

/// Dropped with the work of a call.
struct Dropped {
    world: Arc<World>,
    work: usize,
}

impl Drop for Dropped {
    fn drop(&mut self) {
        self.world.state().works[self.work].dropped = true;
        self.world.in_between();
    }
}

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("not poisoned")
    }

    /// The enabled steps. Tasks with the same key are symmetric, so they join in order.
    fn enabled(&self, state: &State) -> Vec<Act> {
        let mut acts = Vec::new();
        for task in (0..TASKS).filter(|task| state.busy != Some(*task)) {
            match &state.phases[task] {
                Phase::Before => {
                    let mut twins = (0..task).filter(|twin| self.wants[*twin] == self.wants[task]);
                    let comes_next = twins.all(|twin| !matches!(state.phases[twin], Phase::Before));
                    acts.extend(comes_next.then_some(Act::Join(task)));
                }
                Phase::Waiting { flight: Some(_), polls, .. } => {
                    let wakes = *polls == 0 || self.woken[task].0.load(Ordering::SeqCst);
                    acts.extend((wakes && *polls < POLLS_MAX).then_some(Act::Poll(task)));
                    acts.push(Act::Leave(task));
                }
                Phase::Waiting { .. } | Phase::After => {}
            }
        }
        let lands = |key: &usize| state.works.iter().any(|work| work.key == *key && work.is_live() && !work.landed());
        acts.extend((0..2).filter(lands).map(Act::Land));
        acts
    }

    /// Takes a step of another task during a step, or none.
    fn in_between(self: &Arc<Self>) {
        let act = {
            let mut state = self.state();
            if state.nested || state.busy.is_none() {
                return;
            }
            let acts = self.enabled(&state);
            let choice = state.choices.choose(acts.len() + 1);
            acts.get(choice).copied()
        };
        let Some(act) = act else { return };
        let busy = {
            let mut state = self.state();
            state.nested = true;
            state.busy
        };
        self.take(act);
        let mut state = self.state();
        (state.nested, state.busy) = (false, busy);
    }

    fn take(self: &Arc<Self>, act: Act) {
        self.state().said.push(act);
        match act {
            Act::Join(task) => self.join(task),
            Act::Poll(task) => self.poll(task),
            Act::Leave(task) => self.leave(task),
            Act::Land(key) => self.land(key),
        }
    }

    fn join(self: &Arc<Self>, task: usize) {
        let wanted = self.wants[task];
        let (current, next) = {
            let state = self.state();
            (state.works.iter().position(|work| work.key == wanted && work.is_live()), state.works.len())
        };
        let signal = Arc::<Mutex<Signal>>::default();
        let (hears, block) = (Arc::clone(&signal), self.blocks[wanted].clone());
        let begin = || {
            let dropped = Dropped { world: Arc::clone(self), work: next };
            async move {
                let _dropped = dropped;
                poll_fn(|cx| {
                    let mut signal = hears.lock().expect("not poisoned");
                    signal.waker = Some(cx.waker().clone());
                    if signal.landed { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                Ok(block)
            }
        };
        let (flight, joined) = self.flights.join(key(&self.blocks[wanted]), begin);
        let mut state = self.state();
        assert_eq!(joined, current.is_some(), "a call in flight is joined: {:?}", state.said);
        let work = current.unwrap_or_else(|| {
            state.works.push(Work { key: wanted, signal, holders: 0, over: false, dropped: false });
            next
        });
        state.works[work].holders += 1;
        state.phases[task] = Phase::Waiting { work, flight: Some(flight), polls: 0 };
    }

    /// Takes a task's call for a step.
    fn borrow(&self, task: usize) -> (usize, SharedCall<FetchResult>) {
        let mut state = self.state();
        state.busy = Some(task);
        let Phase::Waiting { work, flight, polls } = &mut state.phases[task] else { panic!("it waits") };
        *polls += 1;
        (*work, flight.take().expect("no step is in progress"))
    }

    fn poll(self: &Arc<Self>, task: usize) {
        let (work, mut flight) = self.borrow(task);
        self.woken[task].0.store(false, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&self.woken[task]));
        let polled = Pin::new(&mut flight).poll(&mut Context::from_waker(&waker));
        let mut state = self.state();
        state.busy = None;
        let said = state.said.clone();
        match polled {
            Poll::Ready(outcome) => {
                let work = &mut state.works[work];
                let expected: FetchResult = Ok(self.blocks[self.wants[task]].clone());
                assert!(work.landed() && outcome == expected, "{said:?}");
                (work.over, work.holders) = (true, work.holders - 1);
                state.phases[task] = Phase::After;
            }
            Poll::Pending => {
                // Another task may be polling it at this moment.
                assert!(!state.works[work].landed() || state.nested, "a completed call returns its result: {said:?}");
                let Phase::Waiting { flight: place, .. } = &mut state.phases[task] else { panic!("it waits") };
                *place = Some(flight);
            }
        }
    }

    fn leave(self: &Arc<Self>, task: usize) {
        let (work, flight) = self.borrow(task);
        {
            let mut state = self.state();
            state.works[work].holders -= 1;
            state.phases[task] = Phase::After;
        }
        drop(flight);
        let mut state = self.state();
        state.busy = None;
        let over = state.works[work].over || state.works[work].holders == 0;
        state.works[work].over = over;
    }

    fn land(&self, key: usize) {
        let waker = {
            let state = self.state();
            let mut live = state.works.iter().filter(|work| work.key == key && work.is_live());
            let work = live.next().expect("it is enabled");
            assert!(live.next().is_none(), "one fetch for one block: {:?}", state.said);
            let mut signal = work.signal.lock().expect("not poisoned");
            signal.landed = true;
            signal.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    fn check(&self) {
        let state = self.state();
        let said = &state.said;
        let live = state.works.iter().filter(|work| work.is_live()).count();
        assert_eq!(self.flights.under_way(), live, "{said:?}");
        for (number, work) in state.works.iter().enumerate() {
            assert_eq!(work.dropped, !work.is_live(), "work exists as long as it is awaited: {said:?}");
            if !work.is_live() || !work.landed() {
                continue;
            }
            let hears = |(task, phase): (usize, &Phase)| match phase {
                Phase::Waiting { work, polls, .. } if *work == number => {
                    *polls == 0 || self.woken[task].0.load(Ordering::SeqCst)
                }
                _ => false,
            };
            assert!(state.phases.iter().enumerate().any(hears), "a waiter is woken for a completed call: {said:?}");
        }
        for (task, phase) in state.phases.iter().enumerate() {
            if let Phase::Waiting { work, polls, .. } = phase {
                let told = *polls == 0 || self.woken[task].0.load(Ordering::SeqCst);
                assert!(!state.works[*work].over || told, "every waiter is woken for the result: {said:?}");
            }
        }
    }
}

/// Runs every order, and returns their number.
fn explore(wants: [usize; TASKS]) -> u64 {
    let blocks = [noisy(1, 10), noisy(2, 10)];
    let (mut choices, mut runs) = (Choices::default(), 0);
    loop {
        let state = State {
            choices: std::mem::take(&mut choices),
            phases: std::array::from_fn(|_| Phase::Before),
            works: Vec::new(),
            busy: None,
            nested: false,
            said: Vec::new(),
        };
        let world = Arc::new(World {
            flights: Singleflight::default(),
            blocks: blocks.clone(),
            wants,
            woken: Default::default(),
            state: Mutex::new(state),
        });
        loop {
            let act = {
                let mut state = world.state();
                let acts = world.enabled(&state);
                if acts.is_empty() {
                    break;
                }
                let choice = state.choices.choose(acts.len());
                acts[choice]
            };
            world.take(act);
            world.check();
        }
        runs += 1;
        let mut state = world.state();
        assert!(state.phases.iter().all(|phase| matches!(phase, Phase::After)), "every task ends");
        assert_eq!(world.flights.under_way(), 0);
        choices = std::mem::take(&mut state.choices);
        drop(state);
        if !choices.next() {
            return runs;
        }
    }
}

#[test]
fn three_tasks_that_want_one_block_share_a_fetch_in_every_order() {
    let runs = explore([0, 0, 0]);
    assert!(runs > 1_000, "{runs}");
}

#[test]
fn calls_of_two_blocks_are_independent_in_every_order() {
    let runs = explore([0, 0, 1]);
    assert!(runs > 1_000, "{runs}");
}

#[test]
fn an_error_is_shared_as_a_block_is() {
    let flights = Singleflight::<BlockKey, FetchResult>::default();
    let block = noisy(1, 10);
    let absent = SourceError::NotFound { cid: *block.cid() };
    let fails = absent.clone();
    let (mut first, _) = flights.join(key(&block), move || std::future::ready(Err(fails)));
    let (mut second, joined) = flights
        .join(key(&block), || std::future::ready(Err(SourceError::Busy { retry_after: std::time::Duration::ZERO })));
    assert!(joined);
    let mut cx = Context::from_waker(Waker::noop());
    for flight in [&mut first, &mut second] {
        assert_eq!(Pin::new(flight).poll(&mut cx), Poll::Ready(Err(absent.clone())));
    }
    assert_eq!(flights.under_way(), 0);
}
