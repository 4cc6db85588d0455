//! How often one host is dialled because provider records name it: a rate limit for each socket and each host.
//!
//! Provider records are free, and so are peer ids: a thousand records that name one victim must not become a thousand dials
//! of it. Every dial takes a token of the socket and one of the host (an IPv4 address, an IPv6 /64), and a dial that reached
//! its peer gives them back. Hosts of our own networks have more tokens: only neighbours, and operators who allow private
//! addresses, can have us dial them, and whole networks run on one machine.
//!
//! A record that names somebody else's socket must not hold up the dial of whom it belongs to either. Who answers at a socket proves
//! its peer id in the handshake, even if another peer was expected there: from then on its own dials wait for no token, until one
//! of them is in vain, and others are not expected there.
//!
//! Bounded; the target longest unused goes first. State that is handed the clock.

use super::recent::Recent;
use crate::scope::is_public;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Dials of one socket in a row, and how soon one more is allowed.
const SOCKET: Rate = Rate { burst: 4, refill: Duration::from_secs(15) };
/// Dials of one public host.
const HOST: Rate = Rate { burst: 32, refill: Duration::from_secs(5) };
/// Dials of one host of our own networks.
const NEAR_HOST: Rate = Rate { burst: 1_024, refill: Duration::from_millis(50) };
/// Targets that are counted.
const TARGETS_MAX: usize = 8_192;
/// Sockets whose owner is known.
const OWNERS_MAX: usize = 8_192;
/// How long a socket belongs to whom answered there.
const OWNED_FOR: Duration = Duration::from_secs(3_600);

#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: u32,
    refill: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Target {
    /// A socket: host, port, and whether it is UDP's.
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

/// The rates, and whom sockets belong to.
#[derive(Debug)]
pub struct Targets {
    /// When a target's tokens will all be back (the theoretical arrival time of the generic cell rate algorithm).
    full_at: HashMap<Target, Instant>,
    order: VecDeque<(Instant, Target)>,
    owners: Recent<Target, (PeerId, Instant)>,
}

impl Default for Targets {
    fn default() -> Self {
        Self { full_at: HashMap::new(), order: VecDeque::new(), owners: Recent::new(OWNERS_MAX) }
    }
}

impl Targets {
    /// Takes the tokens for a dial of a peer at an address; `false`, and none is taken, if that is dialled too often.
    pub fn take(&mut self, peer: &PeerId, address: &Multiaddr, now: Instant) -> bool {
        let targets = targets(address);
        let is_its_own = self.owner(address, now) == Some(*peer);
        if !is_its_own && !targets.iter().flatten().all(|target| self.has_token(target, now)) {
            return false;
        }
        for target in targets.into_iter().flatten() {
            self.make_room(now);
            let full_at = self.full_at.get(&target).map_or(now, |at| (*at).max(now)) + target.rate().refill;
            self.full_at.insert(target, full_at);
            self.order.push_back((full_at, target));
        }
        true
    }

    /// A peer proved its id at an address.
    pub fn answered(&mut self, peer: PeerId, address: &Multiaddr, now: Instant) {
        if let Some(socket) = targets(address)[0] {
            self.owners.insert(socket, (peer, now), now);
        }
    }

    /// A peer did not answer at an address: it is not known to be there any more.
    pub fn silent(&mut self, peer: &PeerId, address: &Multiaddr) {
        let Some(socket) = targets(address)[0] else { return };
        if self.owners.get(&socket).is_some_and(|(owner, _)| owner == peer) {
            self.owners.remove(&socket);
        }
    }

    /// Whether somebody else than this peer answered at an address lately.
    pub fn is_of_another(&self, peer: &PeerId, address: &Multiaddr, now: Instant) -> bool {
        self.owner(address, now).is_some_and(|owner| owner != *peer)
    }

    fn owner(&self, address: &Multiaddr, now: Instant) -> Option<PeerId> {
        let (owner, at) = self.owners.get(&targets(address)[0]?)?;
        (now.saturating_duration_since(*at) < OWNED_FOR).then_some(*owner)
    }

    /// A dial of an address reached its peer: what it took is given back.
    pub fn give_back(&mut self, address: &Multiaddr) {
        for target in targets(address).into_iter().flatten() {
            if let Some(full_at) = self.full_at.get_mut(&target) {
                *full_at = full_at.checked_sub(target.rate().refill).unwrap_or(*full_at);
            }
        }
    }

    fn has_token(&self, target: &Target, now: Instant) -> bool {
        let Rate { burst, refill } = target.rate();
        let owed = self.full_at.get(target).map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        owed <= refill * burst.saturating_sub(1)
    }

    fn make_room(&mut self, now: Instant) {
        while let Some((at, target)) = self.order.front().copied() {
            if self.order.len() < TARGETS_MAX && at > now {
                return;
            }
            self.order.pop_front();
            if self.full_at.get(&target).is_some_and(|latest| *latest <= at) {
                self.full_at.remove(&target);
            }
        }
    }
}

/// The socket and the host that an address leads to first: of a circuit, the relay's host, which many peers may be behind.
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

/// An IPv4 address, or the /64 of an IPv6 address: one customer has at least that much.
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
    fn a_victim_is_dialled_a_few_times_however_many_records_name_it() {
        // Addresses of the n-th record, and how many of a thousand are dialled at once.
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
            let (mut targets, now) = (Targets::default(), Instant::now());
            let taken = (0..1_000).filter(|n| targets.take(&PeerId::random(), &address(&record(*n)), now)).count();
            assert_eq!(taken, expected as usize, "{what}");
        }
    }

    #[test]
    fn tokens_come_back_with_time_and_with_success() {
        let (mut targets, start, socket) = (Targets::default(), Instant::now(), address("/ip4/8.8.8.8/tcp/1"));
        let peer = PeerId::random();
        for n in 0..1_000 {
            assert!(
                targets.take(&peer, &socket, start),
                "{n}: a peer that is reached each time may be dialled each time"
            );
            targets.give_back(&socket);
        }
        while targets.take(&peer, &socket, start) {}
        assert!(!targets.take(&peer, &socket, start + SOCKET.refill / 2));
        assert!(
            targets.take(&peer, &socket, start + SOCKET.refill) && !targets.take(&peer, &socket, start + SOCKET.refill)
        );
    }

    #[test]
    fn records_that_name_somebodys_socket_do_not_hold_up_its_own_dials() {
        let (mut targets, start, socket) = (Targets::default(), Instant::now(), address("/ip4/8.8.8.8/udp/1/quic-v1"));
        let (owner, liar) = (PeerId::random(), PeerId::random());
        while targets.take(&liar, &socket, start) {}
        assert!(!targets.take(&owner, &socket, start), "its owner is not known yet");
        targets.answered(owner, &socket, start);
        for n in 0..20 {
            assert!(targets.take(&owner, &socket, start), "{n}");
        }
        assert!(!targets.take(&liar, &socket, start) && targets.is_of_another(&liar, &socket, start));
        targets.silent(&liar, &socket);
        assert!(targets.take(&owner, &socket, start), "another peer's failure changes nothing");
        targets.silent(&owner, &socket);
        assert!(!targets.take(&owner, &socket, start), "who answers no more is dialled as rarely as anybody");
        targets.answered(owner, &socket, start);
        let same_host = address("/ip4/8.8.8.8/udp/2/quic-v1");
        assert!(!targets.is_of_another(&liar, &same_host, start) && !targets.is_of_another(&owner, &socket, start));
        let later = start + OWNED_FOR;
        assert!(!targets.is_of_another(&liar, &socket, later), "it may have moved");
        assert!(targets.take(&liar, &socket, later));
        // A peer behind a relay does not own the relay's socket.
        let relay = PeerId::random();
        let relayed = address("/ip4/8.8.8.8/tcp/1").with(Protocol::P2p(relay)).with(Protocol::P2pCircuit);
        targets.answered(owner, &relayed, later);
        assert!(!targets.is_of_another(&relay, &address("/ip4/8.8.8.8/tcp/1"), later));
    }

    proptest! {
        /// Over any time, no more dials are allowed than the burst and what the rate adds; and the memory is bounded.
        #[test]
        fn the_rate_holds_over_any_history(waits in prop::collection::vec(0_u64..20_000, 1..200)) {
            let (mut targets, start, socket) = (Targets::default(), Instant::now(), address("/ip4/8.8.8.8/tcp/1"));
            let peer = PeerId::random();
            let (mut now, mut taken) = (start, 0_u32);
            for wait in waits {
                now += Duration::from_millis(wait);
                taken += u32::from(targets.take(&peer, &socket, now));
                let refilled = now.duration_since(start).as_millis() / SOCKET.refill.as_millis();
                prop_assert!(u128::from(taken) <= u128::from(SOCKET.burst) + refilled);
            }
        }
    }

    #[test]
    fn a_flood_of_targets_costs_bounded_memory() {
        let (mut targets, now) = (Targets::default(), Instant::now());
        for n in 0..2 * TARGETS_MAX as u32 {
            let ip = std::net::Ipv4Addr::from(0x0808_0000 + n);
            assert!(targets.take(&PeerId::random(), &address(&format!("/ip4/{ip}/tcp/1")), now));
        }
        assert!(targets.full_at.len() <= TARGETS_MAX && targets.order.len() <= TARGETS_MAX);
        assert!(targets.take(&PeerId::random(), &address("/ip4/9.9.9.9/tcp/1"), now + HOST.refill + SOCKET.refill));
        assert!(targets.full_at.len() <= 4, "what is full again is not counted");
        for n in 0..2 * OWNERS_MAX as u32 {
            let ip = std::net::Ipv4Addr::from(0x0808_0000 + n);
            targets.answered(PeerId::random(), &address(&format!("/ip4/{ip}/tcp/1")), now);
        }
        assert!(targets.owners.held() <= OWNERS_MAX);
    }
}
