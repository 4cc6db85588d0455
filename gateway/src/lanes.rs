//! [`Lanes`]: who may fetch from the network, and how many at a time.
//!
//! Goals: what is held here is served whatever the network does, so only the way to the network has a gate; one client
//! cannot take every place; waiting for a place is short, and then the client is told to come back.
//!
//! A place belongs to a request, as long as any block is being fetched for it; while its client takes in what is there, it
//! needs none. Nor do requests that wait for what another one fetches.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a request waits for a place.
const PATIENCE: Duration = Duration::from_secs(2);

/// The places on the way to the network.
#[derive(Debug)]
pub struct Lanes {
    all: Arc<Semaphore>,
    per_client: usize,
    /// How long a request waits for a place.
    patience: Duration,
    clients: Mutex<HashMap<IpAddr, usize>>,
}

/// A place on the way to the network, until it is dropped.
#[derive(Debug)]
pub struct Pass {
    _counted: Counted,
    _permit: OwnedSemaphorePermit,
}

impl Lanes {
    /// That many places in all, and for each client.
    pub fn new(all: usize, per_client: usize) -> Self {
        let all = Arc::new(Semaphore::new(all.min(Semaphore::MAX_PERMITS)));
        Self { all, per_client, patience: PATIENCE, clients: Mutex::default() }
    }

    /// A place, or `None` if none comes free in time or the client has its share.
    pub async fn enter(self: Arc<Self>, client: IpAddr) -> Option<Pass> {
        if !self.count_in(client) {
            return None;
        }
        let counted = Counted { lanes: Arc::clone(&self), client };
        let permit = tokio::time::timeout(self.patience, Arc::clone(&self.all).acquire_owned()).await.ok()?.ok()?;
        Some(Pass { _counted: counted, _permit: permit })
    }

    fn count_in(&self, client: IpAddr) -> bool {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let places = clients.entry(client).or_default();
        let free = *places < self.per_client;
        *places += usize::from(free);
        free
    }

    fn count_out(&self, client: IpAddr) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = clients.get_mut(&client) {
            *places -= 1;
            if *places == 0 {
                clients.remove(&client);
            }
        }
    }
}

/// A client that was counted in, until this is dropped: a request may leave while it waits.
#[derive(Debug)]
struct Counted {
    lanes: Arc<Lanes>,
    client: IpAddr,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.lanes.count_out(self.client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[tokio::test]
    async fn a_client_has_its_share_and_all_have_theirs() {
        let lanes = Arc::new(Lanes { patience: Duration::from_millis(1), ..Lanes::new(3, 2) });
        let enter = |last| Arc::clone(&lanes).enter(client(last));
        let first = enter(1).await;
        let second = enter(1).await;
        assert!(first.is_some() && second.is_some());
        assert!(enter(1).await.is_none(), "has its share");
        let third = enter(2).await;
        assert!(third.is_some());
        assert!(enter(3).await.is_none(), "there are no more");
        drop(first);
        assert!(enter(3).await.is_some());
        drop((second, third));
        assert!(lanes.clients.lock().expect("is sound").is_empty());
    }

    #[tokio::test]
    async fn a_place_that_comes_free_in_time_is_taken_and_who_leaves_is_forgotten() {
        let lanes = Arc::new(Lanes::new(1, 1));
        let first = Arc::clone(&lanes).enter(client(1)).await;
        let waiting = tokio::spawn(Arc::clone(&lanes).enter(client(2)));
        let leaving = tokio::spawn(Arc::clone(&lanes).enter(client(3)));
        while lanes.clients.lock().expect("is sound").len() < 3 {
            tokio::task::yield_now().await;
        }
        leaving.abort();
        assert!(leaving.await.is_err());
        drop(first);
        assert!(waiting.await.expect("runs").is_some());
        assert!(lanes.clients.lock().expect("is sound").is_empty());
    }
}
