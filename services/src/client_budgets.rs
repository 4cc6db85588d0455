//! [`ClientBudgets`]: a memory budget, with a budget within it for each client.
//!
//! Goals: no client can use all of the memory. Clients are identified as by [`crate::limiter`]. A task asks for its
//! client's budget only when it has bytes to reserve: that takes a lock for one look-up, reserving takes none.

use crate::limiter::ClientKey;
use content::budget::Budget;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A budget of bytes, of which one client can use at most three quarters, or another part.
#[derive(Debug)]
pub struct ClientBudgets {
    all: Arc<Budget>,
    /// The size of a client's budget, in bytes.
    each: usize,
    /// A client's budget exists while it is in use.
    clients: Mutex<HashMap<ClientKey, Weak<Budget>>>,
}

impl ClientBudgets {
    /// A budget of so many bytes for all clients together.
    pub fn new(bytes: usize) -> Self {
        Self { all: Arc::new(Budget::new(bytes)), each: bytes - bytes / 4, clients: Mutex::default() }
    }

    /// A budget of so many bytes, which are also reserved from `parent`, and of which one client can use `each`.
    pub fn within(parent: Arc<Budget>, bytes: usize, each: usize) -> Self {
        Self { all: Arc::new(Budget::within(parent, bytes)), each, clients: Mutex::default() }
    }

    /// The budget of all clients together.
    pub fn all(&self) -> &Arc<Budget> {
        &self.all
    }

    /// The budget of one client.
    pub fn of(&self, client: impl Into<ClientKey>) -> Arc<Budget> {
        let client = client.into();
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(budget) = clients.get(&client).and_then(Weak::upgrade) {
            return budget;
        }
        // Room for as many clients again, so that the map is swept once for each time that it doubles.
        if clients.len() == clients.capacity() {
            clients.retain(|_, budget| budget.strong_count() > 0);
            let in_use = clients.len();
            clients.reserve(in_use + 1);
        }
        let budget = Arc::new(Budget::within(Arc::clone(&self.all), self.each));
        clients.insert(client, Arc::downgrade(&budget));
        budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::budget::Share;
    use std::net::{IpAddr, Ipv4Addr};

    fn client(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn one_client_leaves_a_quarter_to_others() {
        let budgets = ClientBudgets::new(1000);
        let mut first = Share::of(Some(budgets.of(client(1))));
        let mut second = Share::of(Some(budgets.of(client(1))));
        assert!(first.grow(500) && !second.grow(251) && second.grow(250));
        let mut other = Share::of(Some(budgets.of(client(2))));
        assert!(!other.grow(251) && other.grow(250), "all together have no more");
        drop(first);
        assert!(!second.grow(501) && second.grow(500));
        drop((second, other));
        assert_eq!((budgets.all().left(), budgets.of(client(1)).left()), (1000, 750));
    }

    #[test]
    fn clients_that_hold_nothing_are_removed() {
        let budgets = ClientBudgets::new(1000);
        let known = || budgets.clients.lock().expect("is sound").len();
        let held: Vec<_> = (0..10).map(|number| budgets.of(client(number))).collect();
        for number in 0..10_000 {
            budgets.of(client(number));
        }
        assert!((10..100).contains(&known()), "{} clients are known", known());
        assert!(Arc::ptr_eq(&held[3], &budgets.of(client(3))), "a client has one budget");
    }
}
