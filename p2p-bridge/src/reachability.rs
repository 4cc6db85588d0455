//! [`Reachability`]: whether peers can open connections to us.
//!
//! A state machine without I/O or clock. Peers are asked to dial us back (AutoNAT). As in the paper that measured IPFS
//! (section 2.3), more than three of them have to agree before a node counts as reachable, or as not. Each peer has one vote,
//! its latest, and only the latest seven votes count: seven cannot be split without a majority of four, so that four peers in
//! a row turn the verdict, in either direction.
//!
//! | what is known | until the votes decide |
//! |---|---|
//! | the operator announces addresses | reachable, whatever the votes say: the operator knows |
//! | a peer dialled an address and brought back the number that it was given (AutoNAT v2) | reachable |
//! | a public address is an interface's own | reachable; a firewall shows in the votes |
//! | none of these | unknown |

use libp2p::{Multiaddr, PeerId};
use std::collections::VecDeque;

/// "More than three peers".
const AGREE: usize = 4;
/// Twice that, less one: whenever all count, one side has enough.
const VOTES_MAX: usize = 2 * AGREE - 1;
/// Addresses of each kind that are remembered.
const ADDRESSES_MAX: usize = 32;
/// Peers that must have dialled one address before it is told to others: what a single one says may be made up.
const WITNESSES: usize = 2;

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
    proven: Vec<Multiaddr>,
    /// Oldest first; the address that was reached, if any was.
    votes: VecDeque<(PeerId, Option<Multiaddr>)>,
}

impl Reachability {
    /// Nothing is known yet, but for whether the operator announces addresses.
    pub fn new(announced: bool) -> Self {
        Self { announced, ..Self::default() }
    }

    /// A peer says that it reached us at an address.
    pub fn dialled_back(&mut self, peer: PeerId, address: Multiaddr) {
        self.vote(peer, Some(address));
    }

    /// A peer says that it tried and did not reach us.
    pub fn not_dialled_back(&mut self, peer: PeerId) {
        self.vote(peer, None);
    }

    fn vote(&mut self, peer: PeerId, reached: Option<Multiaddr>) {
        self.votes.retain(|(voter, _)| *voter != peer);
        if self.votes.len() == VOTES_MAX {
            self.votes.pop_front();
        }
        self.votes.push_back((peer, reached));
    }

    /// A peer reached us at an address, and proved it.
    pub fn proved(&mut self, address: Multiaddr) {
        remember(&mut self.proven, address);
    }

    /// We listen on a public address.
    pub fn listens(&mut self, address: Multiaddr) {
        remember(&mut self.own, address);
    }

    /// An address is not ours any more.
    pub fn lost(&mut self, address: &Multiaddr) {
        self.own.retain(|known| known != address);
        self.proven.retain(|known| known != address);
    }

    /// Whether peers can open connections to us.
    pub fn verdict(&self) -> Verdict {
        let reached = self.votes.iter().filter(|(_, reached)| reached.is_some()).count();
        let missed = self.votes.len() - reached;
        if self.announced || reached >= AGREE {
            Verdict::Reachable
        } else if missed >= AGREE {
            Verdict::Unreachable
        } else if self.proven.is_empty() && self.own.is_empty() {
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
        let witnesses = |address: &Multiaddr| self.votes.iter().filter(|(_, at)| at.as_ref() == Some(address)).count();
        let witnessed = self.votes.iter().filter_map(|(_, at)| at.as_ref()).filter(|at| witnesses(at) >= WITNESSES);
        let mut all = Vec::new();
        for address in self.own.iter().chain(&self.proven).chain(witnessed) {
            if !all.contains(address) {
                all.push(address.clone());
            }
        }
        all
    }
}

fn remember(known: &mut Vec<Multiaddr>, address: Multiaddr) {
    if known.len() < ADDRESSES_MAX && !known.contains(&address) {
        known.push(address);
    }
}

#[cfg(test)]
mod tests {
    use super::Verdict::{Reachable, Unknown, Unreachable};
    use super::*;
    use proptest::prelude::*;

    fn address(port: u16) -> Multiaddr {
        format!("/ip4/198.51.100.1/tcp/{port}").parse().expect("a multiaddr")
    }

    /// '+' is a peer that reached us, '-' one that did not; each is another peer.
    fn after(state: &mut Reachability, votes: &str) -> Verdict {
        for vote in votes.chars() {
            match vote {
                '+' => state.dialled_back(PeerId::random(), address(4001)),
                _ => state.not_dialled_back(PeerId::random()),
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
        let (mut state, peer) = (Reachability::default(), PeerId::random());
        for _ in 0..10 {
            state.dialled_back(peer, address(4001));
        }
        assert_eq!(state.verdict(), Unknown);
        state.not_dialled_back(peer);
        assert_eq!(after(&mut state, "---"), Unreachable, "its latest vote counts");
    }

    #[test]
    fn what_is_known_without_votes_holds_until_they_decide() {
        let proved = |state: &mut Reachability| state.proved(address(1));
        let listens = |state: &mut Reachability| state.listens(address(1));
        for (what, learn) in [("proved", &proved as &dyn Fn(&mut _)), ("listens", &listens)] {
            let mut state = Reachability::default();
            learn(&mut state);
            assert_eq!((state.verdict(), state.addresses()), (Reachable, vec![address(1)]), "{what}");
            assert_eq!((after(&mut state, "----"), state.addresses()), (Unreachable, vec![]), "{what}: lost");
            assert_eq!(after(&mut state, "++++"), Reachable, "{what}: found again");
            assert_eq!(state.addresses(), [address(1), address(4001)]);
            state.lost(&address(1));
            assert_eq!(state.addresses(), [address(4001)]);
        }
        let mut announced = Reachability::new(true);
        assert_eq!(after(&mut announced, "-------"), Reachable, "the operator knows");
    }

    #[test]
    fn an_address_that_one_peer_names_is_not_passed_on() {
        let mut state = Reachability::default();
        for port in [1, 2, 2, 3] {
            state.dialled_back(PeerId::random(), address(port));
        }
        assert_eq!((state.verdict(), state.addresses()), (Reachable, vec![address(2)]));
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
    }
}
