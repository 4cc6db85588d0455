//! [`Reachability`]: whether peers can open connections to us, and where.
//!
//! A state machine without I/O that is handed the clock. Peers are asked to dial us back (AutoNAT). As in the paper that
//! measured IPFS (section 2.3), more than three of them have to agree before a node counts as reachable, or as not. Each peer
//! has one vote, its latest, and only the latest seven votes count: seven cannot be split without a majority of four, so that
//! four peers in a row turn the verdict, in either direction.
//!
//! | what is known | until the votes decide |
//! |---|---|
//! | the operator announces addresses | reachable, whatever the votes say: the operator knows |
//! | peers dialled an address and brought back the number that they were given (AutoNAT v2) | reachable |
//! | a public address is an interface's own | reachable; a firewall shows in the votes |
//! | none of these | unknown |
//!
//! That a number came back proves that some address of ours was dialled. Which one it was is the peer's word alone, and in the
//! older protocol everything is. So an address is ours only when two *witnesses* name it, two peers from two networks, or one
//! whom the operator trusts: otherwise one stranger could have us tell the world that we are at somebody else's address. Peer ids
//! cost nothing, and a host with an IPv4 and an IPv6 address is on two networks: neither is enough alone. What a witness said
//! counts for [`LIFETIME`].

use crate::dht::Network;
use libp2p::{Multiaddr, PeerId};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// "More than three peers".
const AGREE: usize = 4;
/// Twice that, less one: whenever all count, one side has enough.
const VOTES_MAX: usize = 2 * AGREE - 1;
/// Addresses of each kind that are remembered.
const ADDRESSES_MAX: usize = 32;
/// Witnesses that must name an address before it is told to others.
const WITNESSES: usize = 2;

/// How long a witness is believed. Providers give homes a new address about once a day and routers forget mappings sooner, so
/// that an older word says little; and six tests, one an hour, go by before a proof that holds is given up.
pub const LIFETIME: Duration = Duration::from_secs(6 * 3600);

/// What the word of a peer is worth that vouches for an address of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Witness {
    /// A peer that the operator named, or any on a network of one's own.
    Trusted,
    /// Any other, by the network that it speaks from.
    Stranger(Network),
}

/// Whether what two strangers say is what two witnesses say.
fn are_two((one, from): (PeerId, Witness), (other, elsewhere): (PeerId, Witness)) -> bool {
    one != other && from != elsewhere
}

#[derive(Debug)]
struct Vote {
    voter: PeerId,
    witness: Witness,
    /// The address that was reached, if any was.
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

/// What is known about our reachability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Verdict {
    /// Nothing yet.
    #[default]
    Unknown,
    /// Peers can open connections to us.
    Reachable,
    /// They cannot.
    Unreachable,
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Self; 3] = [Self::Unknown, Self::Reachable, Self::Unreachable];
}

/// What peers found out about us. See the module's documentation.
#[derive(Debug, Default)]
pub struct Reachability {
    announced: bool,
    own: Vec<Multiaddr>,
    /// Oldest first; of each address the latest of [`WITNESSES`] witnesses.
    proofs: Vec<Proof>,
    /// Oldest first.
    votes: VecDeque<Vote>,
}

impl Reachability {
    /// Nothing is known yet, but for whether the operator announces addresses.
    pub fn new(announced: bool) -> Self {
        Self { announced, ..Self::default() }
    }

    /// A peer says that it reached us at an address.
    pub fn dialled_back(&mut self, voter: PeerId, witness: Witness, address: Multiaddr, now: Instant) {
        if witness == Witness::Trusted {
            // Its word is as good as a number.
            self.proved(voter, witness, address.clone(), now);
        }
        self.vote(Vote { voter, witness, reached: Some(address), at: now });
    }

    /// A peer says that it tried and did not reach us.
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

    /// A peer reached us, and proved it, at what it says was this address.
    pub fn proved(&mut self, prover: PeerId, witness: Witness, address: Multiaddr, now: Instant) {
        let is_another = |proof: &Proof| are_two((proof.prover, proof.witness), (prover, witness));
        self.proofs.retain(|proof| proof.address != address || is_another(proof));
        let mut of_address = self.proofs.iter().enumerate().filter(|(_, proof)| proof.address == address);
        if let (Some((oldest, _)), true) = (of_address.next(), of_address.count() + 1 == WITNESSES) {
            self.proofs.remove(oldest);
        }
        self.proofs.push(Proof { prover, witness, address, at: now });
        self.bound();
    }

    /// Strangers can make up any number of addresses. Those that one alone has named and those that are confirmed have
    /// rooms of their own, and in either the newest has its place: whatever was made up before, a true one gets in, and stays
    /// for the next to confirm it.
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

    /// We listen on a public address.
    pub fn listens(&mut self, address: Multiaddr) {
        if self.own.len() < ADDRESSES_MAX && !self.own.contains(&address) {
            self.own.push(address);
        }
    }

    /// An address is not ours any more.
    pub fn lost(&mut self, address: &Multiaddr) {
        self.own.retain(|known| known != address);
        self.proofs.retain(|proof| proof.address != *address);
        self.votes.retain(|vote| vote.reached.as_ref() != Some(address));
    }

    /// Forgets what was said too long ago.
    pub fn expire(&mut self, now: Instant) {
        let counts = |at: Instant| now.saturating_duration_since(at) < LIFETIME;
        self.proofs.retain(|proof| counts(proof.at));
        self.votes.retain(|vote| counts(vote.at));
    }

    /// Whether peers can open connections to us.
    pub fn verdict(&self) -> Verdict {
        let reached = self.votes.iter().filter(|vote| vote.reached.is_some()).count();
        let missed = self.votes.len() - reached;
        if self.announced || reached >= AGREE {
            Verdict::Reachable
        } else if missed >= AGREE {
            Verdict::Unreachable
        } else if self.own.is_empty() && self.confirmed().next().is_none() {
            Verdict::Unknown
        } else {
            Verdict::Reachable
        }
    }

    /// Whether peers are known to be able to open connections to us.
    pub fn reachable(&self) -> bool {
        self.verdict() == Verdict::Reachable
    }

    /// Where they can, as far as they found out; nothing while they cannot. What the operator announces is not among it.
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

    /// The addresses that were proved and that enough witnesses name, some of them twice.
    fn confirmed(&self) -> impl Iterator<Item = &Multiaddr> {
        self.proofs.iter().map(|proof| &proof.address).filter(|address| self.is_confirmed(address))
    }

    /// Whether enough witnesses name an address, in either protocol.
    fn is_confirmed(&self, address: &Multiaddr) -> bool {
        let proofs = self.proofs.iter().filter(|proof| proof.address == *address);
        let votes = self.votes.iter().filter(|vote| vote.reached.as_ref() == Some(address));
        let said: Vec<(PeerId, Witness)> = proofs
            .map(|proof| (proof.prover, proof.witness))
            .chain(votes.map(|vote| (vote.voter, vote.witness)))
            .collect();
        said.iter().any(|one| one.1 == Witness::Trusted || said.iter().any(|other| are_two(*one, *other)))
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

    fn stranger(network: u64) -> Witness {
        Witness::Stranger(Network(network))
    }

    /// '+' is a peer that reached us, '-' one that did not; each is another peer of another network.
    fn after(state: &mut Reachability, votes: &str) -> Verdict {
        let now = Instant::now();
        for (network, vote) in (0..).zip(votes.chars()) {
            match vote {
                '+' => state.dialled_back(PeerId::random(), stranger(network), address(4001), now),
                _ => state.not_dialled_back(PeerId::random(), stranger(network), now),
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
            state.dialled_back(peer, stranger(network), address(4001), now);
        }
        assert_eq!(state.verdict(), Unknown);
        state.not_dialled_back(peer, stranger(0), now);
        assert_eq!(after(&mut state, "---"), Unreachable, "its latest vote counts");
    }

    #[test]
    fn what_is_known_without_votes_holds_until_they_decide() {
        let proved = |state: &mut Reachability| state.proved(PeerId::random(), Trusted, address(1), Instant::now());
        let told = |state: &mut Reachability| state.dialled_back(PeerId::random(), Trusted, address(1), Instant::now());
        let listens = |state: &mut Reachability| state.listens(address(1));
        let ways = [("proved", &proved as &dyn Fn(&mut _)), ("told by a friend", &told), ("listens", &listens)];
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
        assert_eq!(after(&mut announced, "-------"), Reachable, "the operator knows");
    }

    #[test]
    fn an_address_needs_witnesses_of_two_networks_or_one_that_is_trusted() {
        // Who proves it, whose votes name it, and whether it is told.
        let table: [(&[Witness], &[Witness], bool); 8] = [
            (&[stranger(1)], &[], false),
            (&[stranger(1), stranger(1)], &[], false),
            (&[stranger(1), stranger(2)], &[], true),
            (&[Trusted], &[], true),
            (&[stranger(1)], &[stranger(1)], false),
            (&[stranger(1)], &[stranger(2)], true),
            (&[], &[stranger(1), stranger(2)], false),
            (&[], &[Trusted], true),
        ];
        for (proofs, votes, told) in table {
            let (mut state, now) = (Reachability::default(), Instant::now());
            proofs.iter().for_each(|witness| state.proved(PeerId::random(), *witness, address(1), now));
            votes.iter().for_each(|witness| state.dialled_back(PeerId::random(), *witness, address(1), now));
            assert_eq!(state.addresses().contains(&address(1)), told, "{proofs:?} {votes:?}");
            assert_eq!(state.verdict(), if told { Reachable } else { Unknown }, "{proofs:?} {votes:?}");
        }
    }

    /// A host with an IPv4 and an IPv6 address is on two networks, and in either protocol one peer.
    #[test]
    fn a_peer_is_one_witness_on_however_many_networks() {
        type Says = fn(&mut Reachability, PeerId, Witness, Multiaddr, Instant);
        let protocols: [(&str, Says); 2] = [("v2", Reachability::proved), ("v1", Reachability::dialled_back)];
        for (first, says) in protocols {
            for (second, says_again) in protocols {
                let (mut state, now) = (Reachability::default(), Instant::now());
                let [dual_stack, other] = [(); 2].map(|()| PeerId::random());
                says(&mut state, dual_stack, stranger(4), address(1), now);
                says_again(&mut state, dual_stack, stranger(6), address(1), now);
                assert!(!state.is_confirmed(&address(1)), "{first}, {second}: one peer alone");
                says_again(&mut state, other, stranger(7), address(1), now);
                assert!(state.is_confirmed(&address(1)), "{first}, {second}: and another");
            }
        }
    }

    #[test]
    fn an_address_that_one_network_names_is_not_passed_on() {
        let (mut state, now) = (Reachability::default(), Instant::now());
        for (port, network) in [(1, 1), (1, 1), (2, 2), (2, 3), (3, 4)] {
            state.dialled_back(PeerId::random(), stranger(network), address(port), now);
        }
        assert_eq!((state.verdict(), state.addresses()), (Reachable, vec![address(2)]));
    }

    #[test]
    fn what_nobody_says_again_is_forgotten() {
        let (mut state, begun) = (Reachability::default(), Instant::now());
        let (half, over) = (begun + LIFETIME / 2, begun + LIFETIME);
        for network in 0..7 {
            state.dialled_back(PeerId::random(), stranger(network), address(1), begun);
        }
        for (port, again) in [(2, begun), (3, half)] {
            for network in [1, 2] {
                state.proved(PeerId::random(), stranger(network), address(port), begun);
                state.proved(PeerId::random(), stranger(network), address(port), again);
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
    fn votes_for_an_address_that_is_lost_are_forgotten() {
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

        /// Whatever strangers made up before and in between, two who tell the truth are enough, and the memory is bounded.
        #[test]
        fn made_up_addresses_do_not_keep_a_true_one_out(
            before in prop::collection::vec((1..100_u16, 0..4_u64), 0..150),
            between in prop::collection::vec(1000..2000_u16, 0..ADDRESSES_MAX),
        ) {
            let (mut state, now) = (Reachability::default(), Instant::now());
            let mut prove = |port, network| {
                state.proved(PeerId::random(), stranger(network), address(port), now);
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
