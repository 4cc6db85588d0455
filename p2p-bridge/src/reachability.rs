//! [`Reachability`]: whether peers can dial the node, and at which addresses.
//!
//! A state machine without I/O; the caller passes the time in. Peers are asked to dial back (AutoNAT). As in the
//! measurement study of IPFS (section 2.3), more than three of them must agree before a node counts as reachable or
//! unreachable. Each peer has one vote, its latest, and only the latest seven votes count: seven always have a majority
//! of four, so four consecutive peers change the verdict, in either direction.
//!
//! | known fact | verdict until the votes decide |
//! |---|---|
//! | the operator announces addresses | reachable, whatever the votes |
//! | peers dialled an address and returned its nonce (AutoNAT v2) | reachable |
//! | a public address belongs to an interface | reachable; votes reveal a firewall |
//! | none of these | unknown |
//!
//! A returned nonce proves that one of the node's addresses was dialled, but which one is only the peer's claim, and in
//! AutoNAT v1 everything is. So an address is confirmed only when two *witnesses* name it: two peers on two networks,
//! or one peer that the operator trusts. Otherwise a single peer could make the node announce another host's address.
//! Peer IDs are free, and a host with IPv4 and IPv6 addresses is on two networks, so neither is enough alone. A
//! witness's claim counts for [`LIFETIME`].

use crate::dht::Network;
use libp2p::{Multiaddr, PeerId};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// "More than three peers".
const MAJORITY: usize = 4;
/// With this many votes, one side always has a majority.
const VOTES_MAX: usize = 2 * MAJORITY - 1;
/// The maximum number of addresses, confirmed and unconfirmed each.
const ADDRESSES_MAX: usize = 32;
/// The number of witnesses that an address needs before it is announced.
const WITNESSES: usize = 2;

/// How long a claim counts. Access networks assign new addresses about once a day, and routers drop mappings sooner.
/// Six hourly tests fit in before a valid proof expires.
pub const LIFETIME: Duration = Duration::from_secs(6 * 3600);

/// The trust in a peer that confirms one of the node's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Witness {
    /// A peer that the operator configured, or any peer on a private network.
    Trusted,
    /// Any other peer, by its network.
    Untrusted(Network),
}

/// Whether two claims are from two witnesses.
fn are_distinct((one, from): (PeerId, Witness), (other, elsewhere): (PeerId, Witness)) -> bool {
    one != other && from != elsewhere
}

#[derive(Debug)]
struct Vote {
    voter: PeerId,
    witness: Witness,
    /// The address that was reached, or `None` if the dial failed.
    reached: Option<Multiaddr>,
    at: Instant,
}

#[derive(Debug)]
struct Proof {
    prover: PeerId,
    witness: Witness,
    address: Multiaddr,
    at: Instant,
}

crate::label_values! {
    /// Whether the node is reachable.
    #[derive(Default)]
    pub enum Verdict {
        /// Not known yet.
        #[default]
        Unknown = "unknown",
        /// Peers can dial the node.
        Reachable = "reachable",
        /// Peers cannot dial the node.
        Unreachable = "unreachable",
    }
}

/// The evidence for the node's reachability. See the module's documentation.
#[derive(Debug, Default)]
pub struct Reachability {
    announced: bool,
    own: Vec<Multiaddr>,
    /// Oldest first; for each address the latest of [`WITNESSES`] witnesses.
    proofs: Vec<Proof>,
    /// Oldest first.
    votes: VecDeque<Vote>,
}

impl Reachability {
    /// No evidence yet. `announced`: the operator announces addresses.
    pub fn new(announced: bool) -> Self {
        Self { announced, ..Self::default() }
    }

    /// A peer reports a successful dial-back.
    pub fn dialled_back(&mut self, voter: PeerId, witness: Witness, address: Multiaddr, now: Instant) {
        if witness == Witness::Trusted {
            // The report counts as a proof.
            self.proved(voter, witness, address.clone(), now);
        }
        self.vote(Vote { voter, witness, reached: Some(address), at: now });
    }

    /// A peer reports that its dial-back failed.
    pub fn not_dialled_back(&mut self, voter: PeerId, witness: Witness, now: Instant) {
        self.vote(Vote { voter, witness, reached: None, at: now });
    }

    fn vote(&mut self, vote: Vote) {
        self.votes.retain(|other| other.voter != vote.voter);
        if self.votes.len() == VOTES_MAX {
            self.votes.pop_front();
        }
        self.votes.push_back(vote);
    }

    /// A peer proved a dial-back, and reports the address.
    pub fn proved(&mut self, prover: PeerId, witness: Witness, address: Multiaddr, now: Instant) {
        let is_another = |proof: &Proof| are_distinct((proof.prover, proof.witness), (prover, witness));
        self.proofs.retain(|proof| proof.address != address || is_another(proof));
        let mut of_address = self.proofs.iter().enumerate().filter(|(_, proof)| proof.address == address);
        if let (Some((oldest, _)), true) = (of_address.next(), of_address.count() + 1 == WITNESSES) {
            self.proofs.remove(oldest);
        }
        self.proofs.push(Proof { prover, witness, address, at: now });
        self.bound();
    }

    /// Bounds the addresses, since untrusted peers can invent any number. Those with one witness and confirmed ones
    /// have separate limits, and the newest replace the oldest: a true address is always added, and stays until another
    /// peer confirms it.
    fn bound(&mut self) {
        for confirmed in [false, true] {
            let mut addresses: Vec<Multiaddr> = Vec::new();
            for Proof { address, .. } in self.proofs.iter().rev() {
                if self.is_confirmed(address) == confirmed && !addresses.contains(address) {
                    addresses.push(address.clone());
                }
            }
            let surplus = addresses.get(ADDRESSES_MAX..).unwrap_or_default();
            self.proofs.retain(|proof| !surplus.contains(&proof.address));
        }
    }

    /// The node listens on a public address.
    pub fn listens(&mut self, address: Multiaddr) {
        if self.own.len() < ADDRESSES_MAX && !self.own.contains(&address) {
            self.own.push(address);
        }
    }

    /// An address is no longer the node's.
    pub fn lost(&mut self, address: &Multiaddr) {
        self.own.retain(|known| known != address);
        self.proofs.retain(|proof| proof.address != *address);
        self.votes.retain(|vote| vote.reached.as_ref() != Some(address));
    }

    /// Removes expired claims.
    pub fn expire(&mut self, now: Instant) {
        let counts = |at: Instant| now.saturating_duration_since(at) < LIFETIME;
        self.proofs.retain(|proof| counts(proof.at));
        self.votes.retain(|vote| counts(vote.at));
    }

    /// Whether peers can dial the node.
    pub fn verdict(&self) -> Verdict {
        let reached = self.votes.iter().filter(|vote| vote.reached.is_some()).count();
        let missed = self.votes.len() - reached;
        if self.announced || reached >= MAJORITY {
            Verdict::Reachable
        } else if missed >= MAJORITY {
            Verdict::Unreachable
        } else if self.own.is_empty() && self.confirmed().next().is_none() {
            Verdict::Unknown
        } else {
            Verdict::Reachable
        }
    }

    /// Whether the node is known to be reachable.
    pub fn reachable(&self) -> bool {
        self.verdict() == Verdict::Reachable
    }

    /// The confirmed addresses; none while the node is unreachable. Addresses that the operator announces are not
    /// included.
    pub fn addresses(&self) -> Vec<Multiaddr> {
        if !self.reachable() {
            return Vec::new();
        }
        let witnessed = self.votes.iter().filter_map(|vote| vote.reached.as_ref()).filter(|at| self.is_confirmed(at));
        let mut all = Vec::new();
        for address in self.own.iter().chain(self.confirmed()).chain(witnessed) {
            if !all.contains(address) {
                all.push(address.clone());
            }
        }
        all
    }

    /// The proved addresses that have enough witnesses, with duplicates.
    fn confirmed(&self) -> impl Iterator<Item = &Multiaddr> {
        self.proofs.iter().map(|proof| &proof.address).filter(|address| self.is_confirmed(address))
    }

    /// Whether an address has enough witnesses, in either protocol.
    fn is_confirmed(&self, address: &Multiaddr) -> bool {
        let proofs = self.proofs.iter().filter(|proof| proof.address == *address);
        let votes = self.votes.iter().filter(|vote| vote.reached.as_ref() == Some(address));
        let witnesses: Vec<(PeerId, Witness)> = proofs
            .map(|proof| (proof.prover, proof.witness))
            .chain(votes.map(|vote| (vote.voter, vote.witness)))
            .collect();
        witnesses
            .iter()
            .any(|one| one.1 == Witness::Trusted || witnesses.iter().any(|other| are_distinct(*one, *other)))
    }
}

#[cfg(test)]
mod tests {
    use super::Verdict::{Reachable, Unknown, Unreachable};
    use super::Witness::Trusted;
    use super::*;
    use proptest::prelude::*;

    fn address(port: u16) -> Multiaddr {
        format!("/ip4/198.51.100.1/tcp/{port}").parse().expect("a multiaddr")
    }

    fn untrusted(network: u64) -> Witness {
        Witness::Untrusted(Network(network))
    }

    /// '+' is a peer that reached the node, '-' one that did not; each is a different peer on a different network.
    fn after(state: &mut Reachability, votes: &str) -> Verdict {
        let now = Instant::now();
        for (network, vote) in (0..).zip(votes.chars()) {
            match vote {
                '+' => state.dialled_back(PeerId::random(), untrusted(network), address(4001), now),
                _ => state.not_dialled_back(PeerId::random(), untrusted(network), now),
            }
        }
        state.verdict()
    }

    #[test]
    fn more_than_three_peers_decide() {
        let table = [
            ("", Unknown),
            ("+++", Unknown),
            ("---", Unknown),
            ("++++", Reachable),
            ("----", Unreachable),
            ("+-+-+-", Unknown),
            ("+-+-+-+", Reachable),
            ("++++---", Reachable),
            ("++++----", Unreachable),
            ("-------+++", Unreachable),
            ("-------++++", Reachable),
        ];
        for (votes, expected) in table {
            assert_eq!(after(&mut Reachability::default(), votes), expected, "{votes}");
        }
    }

    #[test]
    fn a_peer_votes_once() {
        let (mut state, peer, now) = (Reachability::default(), PeerId::random(), Instant::now());
        for network in 0..10 {
            state.dialled_back(peer, untrusted(network), address(4001), now);
        }
        assert_eq!(state.verdict(), Unknown);
        state.not_dialled_back(peer, untrusted(0), now);
        assert_eq!(after(&mut state, "---"), Unreachable, "its latest vote counts");
    }

    #[test]
    fn other_evidence_counts_until_the_votes_decide() {
        let proved = |state: &mut Reachability| state.proved(PeerId::random(), Trusted, address(1), Instant::now());
        let reported =
            |state: &mut Reachability| state.dialled_back(PeerId::random(), Trusted, address(1), Instant::now());
        let listens = |state: &mut Reachability| state.listens(address(1));
        let ways =
            [("proved", &proved as &dyn Fn(&mut _)), ("reported by a trusted peer", &reported), ("listens", &listens)];
        for (what, learn) in ways {
            let mut state = Reachability::default();
            learn(&mut state);
            assert_eq!((state.verdict(), state.addresses()), (Reachable, vec![address(1)]), "{what}");
            assert_eq!((after(&mut state, "----"), state.addresses()), (Unreachable, vec![]), "{what}: lost");
            assert_eq!(after(&mut state, "+++++++"), Reachable, "{what}: found again");
            assert_eq!(state.addresses(), [address(1), address(4001)]);
            state.lost(&address(1));
            assert_eq!(state.addresses(), [address(4001)]);
        }
        let mut announced = Reachability::new(true);
        assert_eq!(after(&mut announced, "-------"), Reachable, "the operator's setting takes precedence");
    }

    #[test]
    fn an_address_needs_witnesses_of_two_networks_or_one_that_is_trusted() {
        // The witnesses of proofs, the witnesses of votes, and whether the address is confirmed.
        let table: [(&[Witness], &[Witness], bool); 8] = [
            (&[untrusted(1)], &[], false),
            (&[untrusted(1), untrusted(1)], &[], false),
            (&[untrusted(1), untrusted(2)], &[], true),
            (&[Trusted], &[], true),
            (&[untrusted(1)], &[untrusted(1)], false),
            (&[untrusted(1)], &[untrusted(2)], true),
            (&[], &[untrusted(1), untrusted(2)], false),
            (&[], &[Trusted], true),
        ];
        for (proofs, votes, confirmed) in table {
            let (mut state, now) = (Reachability::default(), Instant::now());
            proofs.iter().for_each(|witness| state.proved(PeerId::random(), *witness, address(1), now));
            votes.iter().for_each(|witness| state.dialled_back(PeerId::random(), *witness, address(1), now));
            assert_eq!(state.addresses().contains(&address(1)), confirmed, "{proofs:?} {votes:?}");
            assert_eq!(state.verdict(), if confirmed { Reachable } else { Unknown }, "{proofs:?} {votes:?}");
        }
    }

    /// A host with IPv4 and IPv6 addresses is on two networks, but is one peer.
    #[test]
    fn a_peer_is_one_witness_on_however_many_networks() {
        type Says = fn(&mut Reachability, PeerId, Witness, Multiaddr, Instant);
        let protocols: [(&str, Says); 2] = [("v2", Reachability::proved), ("v1", Reachability::dialled_back)];
        for (first, says) in protocols {
            for (second, says_again) in protocols {
                let (mut state, now) = (Reachability::default(), Instant::now());
                let [dual_stack, other] = [(); 2].map(|()| PeerId::random());
                says(&mut state, dual_stack, untrusted(4), address(1), now);
                says_again(&mut state, dual_stack, untrusted(6), address(1), now);
                assert!(!state.is_confirmed(&address(1)), "{first}, {second}: one peer alone");
                says_again(&mut state, other, untrusted(7), address(1), now);
                assert!(state.is_confirmed(&address(1)), "{first}, {second}: and another");
            }
        }
    }

    #[test]
    fn an_address_with_one_network_as_witness_is_not_announced() {
        let (mut state, now) = (Reachability::default(), Instant::now());
        for (port, network) in [(1, 1), (1, 1), (2, 2), (2, 3), (3, 4)] {
            state.dialled_back(PeerId::random(), untrusted(network), address(port), now);
        }
        assert_eq!((state.verdict(), state.addresses()), (Reachable, vec![address(2)]));
    }

    #[test]
    fn claims_that_are_not_renewed_expire() {
        let (mut state, start) = (Reachability::default(), Instant::now());
        let (half, over) = (start + LIFETIME / 2, start + LIFETIME);
        for network in 0..7 {
            state.dialled_back(PeerId::random(), untrusted(network), address(1), start);
        }
        for (port, again) in [(2, start), (3, half)] {
            for network in [1, 2] {
                state.proved(PeerId::random(), untrusted(network), address(port), start);
                state.proved(PeerId::random(), untrusted(network), address(port), again);
            }
        }
        state.expire(over - Duration::from_secs(1));
        assert_eq!(state.addresses(), [address(2), address(3), address(1)]);
        state.expire(over);
        assert_eq!(state.addresses(), [address(3)], "it was proved again");
        state.expire(half + LIFETIME);
        assert_eq!((state.verdict(), state.addresses()), (Unknown, vec![]));
    }

    #[test]
    fn votes_for_a_lost_address_are_removed() {
        let mut state = Reachability::default();
        assert_eq!((after(&mut state, "++++"), state.addresses()), (Reachable, vec![address(4001)]));
        state.lost(&address(4001));
        assert_eq!((state.verdict(), state.addresses()), (Unknown, vec![]));
    }

    proptest! {
        #[test]
        fn a_verdict_needs_four_witnesses_among_the_latest_seven(votes in "[+-]{0,40}") {
            let latest: Vec<char> = votes.chars().rev().take(VOTES_MAX).collect();
            let reached = latest.iter().filter(|vote| **vote == '+').count();
            let expected = match (reached, latest.len() - reached) {
                (4.., _) => Reachable,
                (_, 4..) => Unreachable,
                _ => Unknown,
            };
            prop_assert_eq!(after(&mut Reachability::default(), &votes), expected);
        }

        /// Invented addresses do not keep two honest witnesses from confirming one, and memory is bounded.
        #[test]
        fn invented_addresses_do_not_displace_a_true_one(
            before in prop::collection::vec((1..100_u16, 0..4_u64), 0..150),
            between in prop::collection::vec(1000..2000_u16, 0..ADDRESSES_MAX),
        ) {
            let (mut state, now) = (Reachability::default(), Instant::now());
            let mut prove = |port, network| {
                state.proved(PeerId::random(), untrusted(network), address(port), now);
                state.proofs.len() <= (WITNESSES + 1) * ADDRESSES_MAX
            };
            for (port, network) in before {
                prop_assert!(prove(port, network));
            }
            prove(4001, 100);
            for port in between {
                prop_assert!(prove(port, 0));
            }
            prove(4001, 101);
            prop_assert!(state.addresses().contains(&address(4001)));
        }
    }
}
