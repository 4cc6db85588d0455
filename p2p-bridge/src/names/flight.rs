//! Look-ups under way: one for each name, however many ask, and not more than so many in all.
//!
//! A look-up is there *for* somebody until its first answer, and from then on it goes on *behind*, as one that refreshes does
//! from its beginning. Those behind may take half of the places, so that the others are left to those who wait. A look-up
//! that still has no answer when the last who waits has left is ended. The DHT and the DNS have places of their own, so that
//! neither's trouble is the other's.

use super::Inner;
use super::cache::{AGREED, Entry};
use content::Name;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

type Board = watch::Sender<Option<Arc<Entry>>>;

/// The look-ups under way.
pub(super) struct Flights {
    state: Mutex<State>,
    max: usize,
    /// How many of them may be behind.
    behind_max: usize,
}

#[derive(Default)]
struct State {
    flights: HashMap<Name, Underway>,
    keys: Places,
    domains: Places,
    /// Tells a look-up from a later one of the same name.
    last: u64,
}

impl State {
    fn remove(&mut self, name: &Name, id: u64) {
        if self.flights.get(name).is_none_or(|flight| flight.id != id) {
            return;
        }
        let Some(flight) = self.flights.remove(name) else { return };
        let places = self.places(name);
        places.all -= 1;
        places.behind -= usize::from(flight.behind);
    }

    fn places(&mut self, name: &Name) -> &mut Places {
        match name {
            Name::Key(_) => &mut self.keys,
            Name::Domain(_) => &mut self.domains,
        }
    }
}

/// How many places are taken.
#[derive(Default)]
struct Places {
    all: usize,
    behind: usize,
}

struct Underway {
    id: u64,
    board: Board,
    behind: bool,
    begun: Instant,
}

/// A look-up, as seen by who waits for it, and when it began.
pub(super) struct Flight(watch::Receiver<Option<Arc<Entry>>>, Instant);

impl Flight {
    /// How long the look-up has been under way.
    pub fn age(&self) -> Duration {
        self.1.elapsed()
    }

    /// The first answer of the look-up that is `good`, or why there is none; `None` if it ended without either.
    pub async fn answer(mut self, good: impl Fn(&Entry) -> bool) -> Option<Arc<Entry>> {
        let is_good = |entry: &Option<Arc<Entry>>| entry.as_deref().is_some_and(&good);
        self.0.wait_for(is_good).await.ok().and_then(|entry| entry.clone())
    }

    /// Waits until the look-up has brought something newer than what is `known`, or it counts as agreed that there is nothing
    /// newer, or until it has ended.
    pub async fn settled(self, known: &Entry) {
        self.answer(|entry| entry.agreed >= AGREED || entry.outcome != known.outcome).await;
    }

    /// The last answer of the look-up, once it has ended; `None` if it had none.
    pub async fn end(mut self) -> Option<Arc<Entry>> {
        while self.0.changed().await.is_ok() {}
        self.0.borrow().clone()
    }
}

impl Flights {
    pub fn new(max: usize) -> Self {
        Self { state: Mutex::default(), max, behind_max: max.div_ceil(2) }
    }

    /// Joins the look-up of a name, or starts it; `None` if too many are under way.
    pub fn join(&self, inner: &Arc<Inner>, name: &Name) -> Option<Flight> {
        self.depart(inner, name, false)
    }

    /// Starts a look-up that goes on whether or not anybody waits for it, unless there is one; `None` if there is no room.
    pub fn refresh(&self, inner: &Arc<Inner>, name: &Name) -> Option<Flight> {
        self.depart(inner, name, true)
    }

    fn depart(&self, inner: &Arc<Inner>, name: &Name, behind: bool) -> Option<Flight> {
        let (id, board, flight) = match self.seat(name, behind)? {
            (flight, None) => return Some(flight),
            (flight, Some((id, board))) => (id, board, flight),
        };
        // From here on the lock is free, which whoever ends the look-up needs: a runtime that stops drops it at once.
        let landing = Landing { inner: Arc::clone(inner), name: name.clone(), id };
        tokio::spawn(async move { landing.fly(board, behind).await });
        Some(flight)
    }

    /// A seat, with the look-up to start if nobody looks the name up yet; `None` if there is no room.
    fn seat(&self, name: &Name, behind: bool) -> Option<(Flight, Option<(u64, Board)>)> {
        let mut state = self.state();
        if let Some(flight) = state.flights.get(name) {
            return Some((Flight(flight.board.subscribe(), flight.begun), None));
        }
        let places = state.places(name);
        if places.all >= self.max || (behind && places.behind >= self.behind_max) {
            return None;
        }
        places.all += 1;
        places.behind += usize::from(behind);
        let (board, seat) = watch::channel(None);
        state.last += 1;
        let id = state.last;
        let begun = Instant::now();
        state.flights.insert(name.clone(), Underway { id, board: board.clone(), behind, begun });
        Some((Flight(seat, begun), Some((id, board))))
    }

    /// A look-up has answered. Returns whether there is room for it to go on.
    fn fall_behind(&self, name: &Name) -> bool {
        let mut state = self.state();
        if state.places(name).behind >= self.behind_max {
            return false;
        }
        match state.flights.get_mut(name) {
            Some(flight) if !flight.behind => flight.behind = true,
            _ => return true,
        }
        state.places(name).behind += 1;
        true
    }

    /// Takes a look-up off unless somebody waits for it. Returns whether it is off: nobody can join it any more.
    fn leave(&self, name: &Name, id: u64) -> bool {
        let mut state = self.state();
        if state.flights.get(name).is_some_and(|flight| flight.id == id && flight.board.receiver_count() > 0) {
            return false;
        }
        state.remove(name, id);
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub fn under_way(&self) -> usize {
        self.state().flights.len()
    }
}

/// Ends a look-up, however it ends.
struct Landing {
    inner: Arc<Inner>,
    name: Name,
    id: u64,
}

impl Landing {
    /// The look-up, for as long as anybody wants it.
    async fn fly(&self, board: Board, behind: bool) {
        let answered = Notify::new();
        // An answer on the board outlives the sender, so whoever waits sees it.
        let answer = |entry| {
            board.send_replace(Some(entry));
            answered.notify_one();
        };
        tokio::select! {
            // Answers count before anything else.
            biased;
            () = self.inner.fly(&self.name, answer) => {}
            () = self.superfluous(&board, &answered, behind) => {}
        }
    }

    /// Returns when the look-up is not to go on.
    async fn superfluous(&self, board: &Board, answered: &Notify, behind: bool) {
        let flights = &self.inner.flights;
        while !behind && board.borrow().is_none() {
            tokio::select! {
                () = answered.notified() => {}
                () = board.closed() => if flights.leave(&self.name, self.id) { return },
            }
        }
        if behind || flights.fall_behind(&self.name) {
            std::future::pending::<()>().await;
        }
        // It ends before enough peers have answered: a back-off, so that further visits do not start it again at once.
        self.inner.leave_in_peace(&self.name);
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.inner.flights.state().remove(&self.name, self.id);
    }
}
