//! Look-ups under way: one for each name, however many ask, and not more than so many in all.

use super::Inner;
use super::cache::Entry;
use content::Name;
use std::collections::HashMap;
use std::collections::hash_map;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

type Board = watch::Receiver<Option<Arc<Entry>>>;

/// The look-ups under way.
pub(super) struct Flights {
    flights: Mutex<HashMap<Name, Board>>,
    permits: Arc<Semaphore>,
    /// Permits that refreshes leave to those who wait for an answer.
    reserved: usize,
}

/// A look-up, as seen by who waits for it.
pub(super) struct Flight(Board);

impl Flight {
    /// The first answer of the look-up, or why there is none; `None` if it broke off.
    pub async fn first(mut self) -> Option<Arc<Entry>> {
        self.0.wait_for(Option::is_some).await.ok().and_then(|entry| entry.clone())
    }
}

impl Flights {
    pub fn new(max: usize) -> Self {
        let permits = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        Self { flights: Mutex::default(), permits, reserved: max / 2 }
    }

    /// Joins the look-up of a name, or starts it; `None` if too many are under way.
    pub fn join(&self, inner: &Arc<Inner>, name: &Name) -> Option<Flight> {
        self.depart(inner, name, 0)
    }

    /// Starts a look-up that nobody waits for, unless there is one, or no room for it.
    pub fn refresh(&self, inner: &Arc<Inner>, name: &Name) {
        let _ = self.depart(inner, name, self.reserved);
    }

    fn depart(&self, inner: &Arc<Inner>, name: &Name, reserved: usize) -> Option<Flight> {
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        let vacant = match flights.entry(name.clone()) {
            hash_map::Entry::Occupied(flight) => return Some(Flight(flight.get().clone())),
            hash_map::Entry::Vacant(vacant) => vacant,
        };
        if self.permits.available_permits() <= reserved {
            return None;
        }
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        let (sender, board) = watch::channel(None);
        vacant.insert(board.clone());
        let landing = Landing { inner: Arc::clone(inner), name: name.clone(), _permit: permit };
        tokio::spawn(async move {
            let Landing { inner, name, .. } = &landing;
            // An answer on the board outlives the sender, so whoever waits sees it.
            inner.fly(name, |entry| _ = sender.send(Some(entry))).await;
        });
        Some(Flight(board))
    }

    #[cfg(test)]
    pub fn under_way(&self) -> usize {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Ends a look-up, however it ends.
struct Landing {
    inner: Arc<Inner>,
    name: Name,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.inner.flights.flights.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
    }
}
