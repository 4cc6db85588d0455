//! Limits of inbound handshakes, whose state an untrusted peer can cause with one packet.
//!
//! While few are under way, each is accepted. With more, a peer must first prove that it receives packets at its
//! address (Retry), so that forged addresses cost no memory. There is a limit in all, and one for each address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Handshakes beyond which addresses must be validated.
const UNVALIDATED_MAX: usize = 64;
/// The maximum number of handshakes.
const HANDSHAKES_MAX: usize = 512;
/// The maximum number of handshakes of one IPv4 address or IPv6 network of 64 bits.
const PER_ADDRESS_MAX: usize = 16;

/// The handshakes under way. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Handshakes {
    pending: Arc<Mutex<Pending>>,
}

#[derive(Debug, Default)]
struct Pending {
    total: usize,
    of: HashMap<IpAddr, usize>,
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

/// A handshake that is counted until it is dropped.
#[derive(Debug)]
pub struct Slot {
    handshakes: Handshakes,
    network: IpAddr,
}

impl Handshakes {
    /// Decides about a handshake from an address.
    pub fn begin(&self, ip: IpAddr, is_validated: bool) -> Verdict {
        let network = network(ip);
        let mut pending = self.pending();
        let of_network = pending.of.get(&network).copied().unwrap_or_default();
        if pending.total >= HANDSHAKES_MAX || of_network >= PER_ADDRESS_MAX {
            return Verdict::Refuse;
        }
        if pending.total >= UNVALIDATED_MAX && !is_validated {
            return Verdict::Validate;
        }
        pending.total += 1;
        pending.of.insert(network, of_network + 1);
        drop(pending);
        Verdict::Accept(Slot { handshakes: self.clone(), network })
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        // No code that holds the lock can leave the counts half changed.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut pending = self.handshakes.pending();
        pending.total -= 1;
        if let Some(count) = pending.of.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                pending.of.remove(&self.network);
            }
        }
    }
}

/// What counts as one address: a host has all addresses of an IPv6 network of 64 bits.
fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: usize) -> IpAddr {
        IpAddr::from([192, 0, 2, u8::try_from(number).expect("fewer than 256 addresses")])
    }

    #[test]
    fn handshakes_are_limited_by_address_and_in_all() {
        let handshakes = Handshakes::default();
        let mut slots = Vec::new();
        let mut begin = |number: usize, is_validated| match handshakes.begin(ip(number / PER_ADDRESS_MAX), is_validated)
        {
            Verdict::Accept(slot) => {
                slots.push(slot);
                "accept"
            }
            Verdict::Validate => "validate",
            Verdict::Refuse => "refuse",
        };
        for number in 0..UNVALIDATED_MAX {
            assert_eq!(begin(number, false), "accept", "{number}");
        }
        assert_eq!(begin(0, false), "refuse", "the address has its maximum");
        assert_eq!(begin(UNVALIDATED_MAX, false), "validate");
        for number in UNVALIDATED_MAX..HANDSHAKES_MAX {
            assert_eq!(begin(number, true), "accept", "{number}");
        }
        assert_eq!(begin(HANDSHAKES_MAX, true), "refuse", "the maximum in all");
        slots.clear();
        assert!(matches!(handshakes.begin(ip(0), false), Verdict::Accept(_)), "slots are released");
        assert!(handshakes.pending().of.is_empty(), "nothing is left of addresses");
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let [one, other, far] =
            ["2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1"].map(|text| network(text.parse().expect(text)));
        assert_eq!(one, other);
        assert_ne!(one, far);
        assert_eq!(network("::ffff:192.0.2.1".parse().expect("an address")), ip(1));
    }
}
