//! Limits of inbound handshakes, whose state an untrusted peer can cause with one packet.
//!
//! While few are under way, each is accepted. With more, a peer must first prove that it receives packets at its
//! address (Retry), which costs no memory. Handshakes of proved addresses have limits of their own: so those of forged
//! addresses can neither keep others out, nor use up the limit of the address that they name.
//!
//! A handshake that fails counts until it would have timed out. So the limits bound how many fail in a time as well,
//! and with that the processor time that they cost.

use super::address::network;
use super::connection::HANDSHAKE_TIMEOUT;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How many handshakes there may be at a time. All together are fewer than the inbound connections of all transports
/// that may be pending ([`crate::admission`]), so that TCP has room beside them.
struct Limit {
    total: usize,
    /// Of one IPv4 address or IPv6 network of 64 bits. Loopback addresses do not count.
    per_address: usize,
}

/// Of addresses that are not validated; further ones are validated first.
const UNVALIDATED: Limit = Limit { total: 32, per_address: 8 };
/// Of validated addresses; further ones are refused.
const VALIDATED: Limit = Limit { total: 80, per_address: 16 };

/// The handshakes under way. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Handshakes {
    pending: Arc<Mutex<[Pending; 2]>>,
}

/// The handshakes of addresses that are validated, or of those that are not.
#[derive(Debug, Default)]
struct Pending {
    total: usize,
    of: HashMap<IpAddr, usize>,
    /// Those that have failed, and until when they count.
    failed: VecDeque<(Instant, IpAddr)>,
}

impl Pending {
    fn remove(&mut self, network: IpAddr) {
        self.total -= 1;
        if let Some(count) = self.of.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&network);
            }
        }
    }

    fn remove_failed(&mut self, now: Instant) {
        while let Some((_, network)) = self.failed.pop_front_if(|(until, _)| *until <= now) {
            self.remove(network);
        }
    }
}

/// What to do with a new handshake.
#[derive(Debug)]
pub enum Verdict {
    /// Begin it, and keep the slot until it has ended.
    Accept(Slot),
    /// Let the peer prove its address.
    Validate,
    /// Refuse it.
    Refuse,
}

/// A handshake that is counted until it succeeds, or for some seconds.
#[derive(Debug)]
pub struct Slot {
    handshakes: Handshakes,
    network: IpAddr,
    is_validated: bool,
    until: Instant,
    has_succeeded: bool,
}

impl Slot {
    /// The handshake is complete.
    pub fn succeed(mut self) {
        self.has_succeeded = true;
    }
}

impl Handshakes {
    /// Decides about a handshake from an address.
    pub fn begin(&self, ip: IpAddr, is_validated: bool, now: Instant) -> Verdict {
        let network = network(ip);
        let limit = if is_validated { VALIDATED } else { UNVALIDATED };
        let pending = &mut self.pending()[usize::from(is_validated)];
        pending.remove_failed(now);
        let of_network = pending.of.get(&network).copied().unwrap_or_default();
        if pending.total >= limit.total || (of_network >= limit.per_address && !ip.is_loopback()) {
            return if is_validated { Verdict::Refuse } else { Verdict::Validate };
        }
        pending.total += 1;
        pending.of.insert(network, of_network + 1);
        let until = now + HANDSHAKE_TIMEOUT;
        Verdict::Accept(Slot { handshakes: self.clone(), network, is_validated, until, has_succeeded: false })
    }

    /// How many count, of addresses that are not validated and of those that are.
    #[cfg(test)]
    pub(super) fn counts(&self) -> [usize; 2] {
        self.pending().each_ref().map(|pending| pending.total)
    }

    fn pending(&self) -> MutexGuard<'_, [Pending; 2]> {
        // No code that holds the lock can leave the counts half changed.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let pending = &mut self.handshakes.pending()[usize::from(self.is_validated)];
        if self.has_succeeded {
            pending.remove(self.network);
        } else {
            pending.failed.push_back((self.until, self.network));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: usize) -> IpAddr {
        IpAddr::from([192, 0, 2, u8::try_from(number).expect("fewer than 256 addresses")])
    }

    /// Begins as many handshakes as are accepted of one address. Returns what happens to the next.
    fn fill(handshakes: &Handshakes, host: usize, is_validated: bool, now: Instant, slots: &mut Vec<Slot>) -> Verdict {
        loop {
            match handshakes.begin(ip(host), is_validated, now) {
                Verdict::Accept(slot) => slots.push(slot),
                other => return other,
            }
        }
    }

    #[test]
    fn handshakes_are_limited_by_address_and_in_all() {
        let now = Instant::now();
        for (is_validated, limit) in [(false, UNVALIDATED), (true, VALIDATED)] {
            let (handshakes, mut slots) = (Handshakes::default(), Vec::new());
            let is_expected = |verdict| match verdict {
                Verdict::Accept(_) => false,
                Verdict::Validate => !is_validated,
                Verdict::Refuse => is_validated,
            };
            for host in 0..limit.total / limit.per_address {
                assert!(is_expected(fill(&handshakes, host, is_validated, now, &mut slots)));
                assert_eq!(slots.len(), (host + 1) * limit.per_address);
            }
            assert!(is_expected(handshakes.begin(ip(200), is_validated, now)), "the maximum in all");
            assert!(matches!(handshakes.begin(ip(0), !is_validated, now), Verdict::Accept(_)), "the others' limits");
            assert_eq!(handshakes.counts()[usize::from(is_validated)], limit.total);
            slots.drain(..).for_each(Slot::succeed);
            assert!(matches!(handshakes.begin(ip(0), is_validated, now), Verdict::Accept(_)), "slots are released");
        }
    }

    #[test]
    fn handshakes_that_have_failed_count_until_their_timeout() {
        let (handshakes, mut slots, now) = (Handshakes::default(), Vec::new(), Instant::now());
        assert!(matches!(fill(&handshakes, 0, true, now, &mut slots), Verdict::Refuse));
        slots.clear();
        let later = |seconds| now + std::time::Duration::from_secs(seconds);
        assert!(matches!(handshakes.begin(ip(0), true, later(4)), Verdict::Refuse));
        assert!(matches!(handshakes.begin(ip(0), true, later(5)), Verdict::Accept(_)));
        assert!(matches!(handshakes.begin(ip(1), true, later(11)), Verdict::Accept(_)));
        let of: Vec<_> = handshakes.pending()[1].of.keys().copied().collect();
        assert_eq!((handshakes.counts(), of), ([0, 1], vec![ip(1)]), "nothing is left of other addresses");
    }

    #[test]
    fn loopback_addresses_have_the_common_limit_only() {
        let handshakes = Handshakes::default();
        let begin = |_| match handshakes.begin(IpAddr::from([127, 0, 0, 1]), false, Instant::now()) {
            Verdict::Accept(slot) => Some(slot),
            _ => None,
        };
        assert_eq!((0..).map_while(begin).count(), UNVALIDATED.total);
    }
}
