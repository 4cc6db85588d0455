//! Rate limits of dials to addresses from provider records: one per socket and one per host.
//!
//! Provider records and peer IDs are free to create: a thousand records that name one victim must not cause a thousand
//! dials of it. Each dial takes a token of the socket and one of the host (an IPv4 address, an IPv6 /64), and returns
//! them if it reached its peer. Hosts in private networks have more tokens: only local peers, and operators who allow
//! private addresses, can cause such dials, and whole networks run on one machine.
//!
//! A record that names another peer's socket must not delay dials of the peer that owns it either. The peer that
//! answers at a socket proves its ID in the handshake, even if another peer was expected: from then on its dials need
//! no token, until one of them fails, and dials of other peers at that socket are considered unreachable.
//!
//! Bounded; the least recently used target is evicted first. State that is passed the clock.

use crate::recent::{Recent, recent};
use crate::scope::is_public;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Rate limit of dials per socket.
const SOCKET: Rate = Rate { burst: 4, refill: Duration::from_secs(15) };
/// Rate limit of dials per public host.
const HOST: Rate = Rate { burst: 32, refill: Duration::from_secs(5) };
/// Rate limit of dials per host in private networks.
const NEAR_HOST: Rate = Rate { burst: 1_024, refill: Duration::from_millis(50) };
/// Maximum targets with state.
const TARGETS_MAX: usize = 8_192;
/// Maximum sockets with a known owner.
const OWNERS_MAX: usize = 8_192;
/// How long a socket counts as owned by the peer that answered there.
const OWNED_FOR: Duration = Duration::from_secs(3_600);

#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: u32,
    refill: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Target {
    /// A socket: host, port, and whether it is UDP.
    Socket(IpAddr, u16, bool),
    Host(IpAddr),
}

impl Target {
    fn rate(&self) -> Rate {
        match self {
            Self::Socket(..) => SOCKET,
            Self::Host(ip) if is_public(*ip) => HOST,
            Self::Host(_) => NEAR_HOST,
        }
    }
}

/// The state of the rate limits, and the owners of sockets.
#[derive(Debug)]
pub struct RateLimits {
    /// When a target has all tokens again (the theoretical arrival time of the generic cell rate algorithm).
    full_at: Recent<Target, Instant>,
    owners: Recent<Target, (PeerId, Instant)>,
}

impl Default for RateLimits {
    fn default() -> Self {
        Self { full_at: recent(TARGETS_MAX), owners: recent(OWNERS_MAX) }
    }
}

impl RateLimits {
    /// Takes the tokens for a dial of a peer at an address. Returns `false`, and takes none, if a rate limit is
    /// exceeded.
    pub fn take(&mut self, peer: &PeerId, address: &Multiaddr, now: Instant) -> bool {
        let targets = targets(address);
        let is_its_own = self.owner(address, now) == Some(*peer);
        if !is_its_own && !targets.iter().flatten().all(|target| self.has_token(target, now)) {
            return false;
        }
        for target in targets.into_iter().flatten() {
            self.remove_full(now);
            let full_at = self.full_at.peek(&target).map_or(now, |at| (*at).max(now)) + target.rate().refill;
            self.full_at.insert(target, full_at);
        }
        true
    }

    /// Records that a peer proved its ID at an address.
    pub fn answered(&mut self, peer: PeerId, address: &Multiaddr, now: Instant) {
        if let Some(socket) = targets(address)[0] {
            self.owners.insert(socket, (peer, now));
        }
    }

    /// Records that a peer did not answer at an address, which ends its ownership.
    pub fn not_answered(&mut self, peer: &PeerId, address: &Multiaddr) {
        let Some(socket) = targets(address)[0] else { return };
        if self.owners.peek(&socket).is_some_and(|(owner, _)| owner == peer) {
            self.owners.remove(&socket);
        }
    }

    /// Whether another peer recently proved its ID at an address.
    pub fn belongs_to_other(&self, peer: &PeerId, address: &Multiaddr, now: Instant) -> bool {
        self.owner(address, now).is_some_and(|owner| owner != *peer)
    }

    fn owner(&self, address: &Multiaddr, now: Instant) -> Option<PeerId> {
        let (owner, at) = self.owners.peek(&targets(address)[0]?)?;
        (now.saturating_duration_since(*at) < OWNED_FOR).then_some(*owner)
    }

    /// Returns the tokens of a dial that reached its peer.
    pub fn return_tokens(&mut self, address: &Multiaddr) {
        for target in targets(address).into_iter().flatten() {
            if let Some(full_at) = self.full_at.peek_mut(&target) {
                *full_at = full_at.checked_sub(target.rate().refill).unwrap_or(*full_at);
            }
        }
    }

    fn has_token(&self, target: &Target, now: Instant) -> bool {
        let Rate { burst, refill } = target.rate();
        let until_full = self.full_at.peek(target).map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        until_full <= refill * burst.saturating_sub(1)
    }

    /// Removes targets that have all tokens again.
    fn remove_full(&mut self, now: Instant) {
        while self.full_at.iter().next().is_some_and(|(_, at)| *at <= now) {
            self.full_at.remove_lru();
        }
    }
}

/// The socket and the host that an address dials first. For a circuit there is only the relay's host, because many
/// peers may use the relay.
fn targets(address: &Multiaddr) -> [Option<Target>; 2] {
    let mut parts = address.iter();
    let host = match parts.next() {
        Some(Protocol::Ip4(ip)) => IpAddr::V4(ip),
        Some(Protocol::Ip6(ip)) => IpAddr::V6(ip).to_canonical(),
        _ => return [None; 2],
    };
    let socket = match parts.next() {
        Some(Protocol::Tcp(port)) => Some(Target::Socket(host, port, false)),
        Some(Protocol::Udp(port)) => Some(Target::Socket(host, port, true)),
        _ => None,
    };
    let is_circuit = address.iter().any(|part| part == Protocol::P2pCircuit);
    [socket.filter(|_| !is_circuit), Some(Target::Host(subnet(host)))]
}

/// An IPv4 address, or the /64 of an IPv6 address, the smallest assignment to a customer.
fn subnet(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) if ip.is_loopback() => IpAddr::V6(ip),
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from(u128::from(ip) & !u128::from(u64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().expect("an address")
    }

    #[test]
    fn dials_of_a_victim_are_rate_limited() {
        // The address of the n-th record, and how many of a thousand are dialled.
        type Record = fn(u16) -> String;
        let table: [(&str, Record, u32); 6] = [
            ("one socket", |_| "/ip4/8.8.8.8/tcp/80".to_owned(), SOCKET.burst),
            ("one host", |n| format!("/ip4/8.8.8.8/tcp/{n}"), HOST.burst),
            ("one customer", |n| format!("/ip6/2600::{n}/udp/1/quic-v1"), HOST.burst),
            (
                "one relay",
                |n| {
                    format!(
                        "/ip4/8.8.8.8/tcp/{}/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo/p2p-circuit",
                        n % 3
                    )
                },
                HOST.burst,
            ),
            ("many hosts", |n| format!("/ip4/8.8.{}.{}/tcp/1", n / 250, n % 250), 1_000),
            ("this machine", |n| format!("/ip4/127.0.0.1/tcp/{n}"), 1_000),
        ];
        for (what, record, expected) in table {
            let (mut limits, now) = (RateLimits::default(), Instant::now());
            let taken = (0..1_000).filter(|n| limits.take(&PeerId::random(), &address(&record(*n)), now)).count();
            assert_eq!(taken, expected as usize, "{what}");
        }
    }

    #[test]
    fn tokens_are_returned_over_time_and_on_success() {
        let (mut limits, start, socket) = (RateLimits::default(), Instant::now(), address("/ip4/8.8.8.8/tcp/1"));
        let peer = PeerId::random();
        for n in 0..1_000 {
            assert!(limits.take(&peer, &socket, start), "{n}: successful dials are not limited");
            limits.return_tokens(&socket);
        }
        while limits.take(&peer, &socket, start) {}
        assert!(!limits.take(&peer, &socket, start + SOCKET.refill / 2));
        assert!(
            limits.take(&peer, &socket, start + SOCKET.refill) && !limits.take(&peer, &socket, start + SOCKET.refill)
        );
    }

    #[test]
    fn records_that_name_another_peers_socket_do_not_delay_its_owners_dials() {
        let (mut limits, start, socket) =
            (RateLimits::default(), Instant::now(), address("/ip4/8.8.8.8/udp/1/quic-v1"));
        let (owner, attacker) = (PeerId::random(), PeerId::random());
        while limits.take(&attacker, &socket, start) {}
        assert!(!limits.take(&owner, &socket, start), "its owner is not known yet");
        limits.answered(owner, &socket, start);
        for n in 0..20 {
            assert!(limits.take(&owner, &socket, start), "{n}");
        }
        assert!(!limits.take(&attacker, &socket, start) && limits.belongs_to_other(&attacker, &socket, start));
        limits.not_answered(&attacker, &socket);
        assert!(limits.take(&owner, &socket, start), "a failure of another peer changes nothing");
        limits.not_answered(&owner, &socket);
        assert!(!limits.take(&owner, &socket, start), "after a failure the rate limit applies again");
        limits.answered(owner, &socket, start);
        let same_host = address("/ip4/8.8.8.8/udp/2/quic-v1");
        assert!(
            !limits.belongs_to_other(&attacker, &same_host, start) && !limits.belongs_to_other(&owner, &socket, start)
        );
        let later = start + OWNED_FOR;
        assert!(!limits.belongs_to_other(&attacker, &socket, later), "the ownership has expired");
        assert!(limits.take(&attacker, &socket, later));
        // A peer behind a relay does not own the relay's socket.
        let relay = PeerId::random();
        let relayed = address("/ip4/8.8.8.8/tcp/1").with(Protocol::P2p(relay)).with(Protocol::P2pCircuit);
        limits.answered(owner, &relayed, later);
        assert!(!limits.belongs_to_other(&relay, &address("/ip4/8.8.8.8/tcp/1"), later));
    }

    proptest! {
        /// Over any time, at most the burst plus the refilled tokens are dialled.
        #[test]
        fn the_rate_limit_holds_for_any_sequence(waits in prop::collection::vec(0_u64..20_000, 1..200)) {
            let (mut limits, start, socket) = (RateLimits::default(), Instant::now(), address("/ip4/8.8.8.8/tcp/1"));
            let peer = PeerId::random();
            let (mut now, mut taken) = (start, 0_u32);
            for wait in waits {
                now += Duration::from_millis(wait);
                taken += u32::from(limits.take(&peer, &socket, now));
                let refilled = now.duration_since(start).as_millis() / SOCKET.refill.as_millis();
                prop_assert!(u128::from(taken) <= u128::from(SOCKET.burst) + refilled);
            }
        }
    }

    #[test]
    fn the_state_of_targets_is_bounded() {
        let (mut limits, now) = (RateLimits::default(), Instant::now());
        for n in 0..2 * TARGETS_MAX as u32 {
            let ip = std::net::Ipv4Addr::from(0x0808_0000 + n);
            assert!(limits.take(&PeerId::random(), &address(&format!("/ip4/{ip}/tcp/1")), now));
        }
        assert!(limits.full_at.len() <= TARGETS_MAX);
        assert!(limits.take(&PeerId::random(), &address("/ip4/9.9.9.9/tcp/1"), now + HOST.refill + SOCKET.refill));
        assert!(limits.full_at.len() <= 4, "targets with all tokens need no state");
        for n in 0..2 * OWNERS_MAX as u32 {
            let ip = std::net::Ipv4Addr::from(0x0808_0000 + n);
            limits.answered(PeerId::random(), &address(&format!("/ip4/{ip}/tcp/1")), now);
        }
        assert!(limits.owners.len() <= OWNERS_MAX);
    }
}
