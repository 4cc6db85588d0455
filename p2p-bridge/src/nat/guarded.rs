//! [`Guarded`]: an address-filtering wrapper for behaviours that act on addresses which untrusted peers name.
//!
//! - It does not dial what [`Rules`] refuse. AutoNAT's server and hole punching would otherwise have us try any door in our
//!   own network at the word of a stranger. A dial with a refused address among others is refused as a whole. Nor does it
//!   dial more than once a second for long.
//! - It adds no addresses to anybody's dial. AutoNAT's requests keep every address that a peer says it listens on, and would
//!   have it tried whenever that peer is dialled.
//! - It hears of few candidates for our own address, and only of such as could be. Each peer can make up any number.
//! - It hears of our confirmed addresses as candidates too. Hole punching names only candidates to the other side, and what
//!   is confirmed is not reported as one any more, so that a node which everybody can reach would have nothing to name.
//! - What it takes for an address of ours is not announced: [`crate::reachability`] decides.

use super::Rules;
use libp2p::core::transport::PortUse;
use libp2p::core::{ConnectedPoint, Endpoint};
use libp2p::swarm::behaviour::{ConnectionEstablished, NewExternalAddrCandidate};
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use std::collections::{HashMap, HashSet};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// How long the candidates for our own address count that were passed on. The behaviours never forget any, so this bounds what
/// they learn in a year; an address that changes is heard of all the same.
const CANDIDATES_FOR: Duration = Duration::from_secs(6 * 3600);

/// Dials that begin in a minute.
const DIALS_PER_MINUTE: usize = 60;
const MINUTE: Duration = Duration::from_secs(60);

/// Why a dial was refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("a stranger named an address that is not public")]
    NotPublic,
    #[error("strangers named too many addresses within a minute")]
    TooMany,
}

/// A behaviour behind a guard. See the module's documentation.
pub struct Guarded<B> {
    inner: B,
    rules: Rules,
    /// Dials of the behaviour that have not begun.
    dials: HashSet<ConnectionId>,
    /// Those that began in the minute since then.
    begun: usize,
    begun_since: Instant,
    candidates: HashSet<Multiaddr>,
    candidates_max: usize,
    candidates_since: Instant,
    /// Those that are ours by now. Nobody reports them as candidates any more, so they must not be forgotten with the others.
    confirmed: HashSet<Multiaddr>,
    connections: HashMap<ConnectionId, (PeerId, ConnectedPoint)>,
}

impl<B> Guarded<B> {
    /// Puts a behaviour under guard, which hears of `candidates_max` addresses in six hours.
    pub fn new(inner: B, rules: Rules, candidates_max: usize) -> Self {
        let now = Instant::now();
        Self {
            inner,
            rules,
            dials: HashSet::new(),
            begun: 0,
            begun_since: now,
            candidates: HashSet::new(),
            candidates_max,
            candidates_since: now,
            confirmed: HashSet::new(),
            connections: HashMap::new(),
        }
    }

    /// An address is not ours any more, and not tested again until somebody names it.
    pub fn forget(&mut self, address: &Multiaddr) {
        self.candidates.remove(address);
        self.confirmed.remove(address);
    }

    fn forget_candidates(&mut self) {
        self.candidates.retain(|candidate| self.confirmed.contains(candidate));
        self.candidates_since = Instant::now();
    }

    /// Whether the behaviour may hear of a candidate.
    fn admit_candidate(&mut self, address: &Multiaddr) -> bool {
        if self.candidates_since.elapsed() > CANDIDATES_FOR {
            self.forget_candidates();
        }
        if self.candidates.contains(address) {
            return true;
        }
        let admitted = self.candidates.len() < self.candidates_max && self.rules.admit(address);
        admitted && self.candidates.insert(address.clone())
    }

    /// Whether a dial may begin.
    fn admit_dial(&mut self, id: ConnectionId, addresses: &[Multiaddr]) -> Result<(), Refusal> {
        if !self.dials.remove(&id) {
            return Ok(());
        }
        if !addresses.iter().all(|address| self.rules.admit_dial(address)) {
            return Err(Refusal::NotPublic);
        }
        if self.begun_since.elapsed() > MINUTE {
            (self.begun, self.begun_since) = (0, Instant::now());
        }
        if self.begun >= DIALS_PER_MINUTE {
            return Err(Refusal::TooMany);
        }
        self.begun += 1;
        Ok(())
    }
}

impl<B: NetworkBehaviour> Guarded<B> {
    /// Puts another behaviour in the place of the one under guard, and tells it what connections and candidates there are. For
    /// the client of AutoNAT, which never tests an address twice, whatever becomes of it. What the one before has begun ends
    /// unheard, and what it knew of peers is forgotten: connections from then on show who can be asked.
    ///
    /// The addresses that the router forwards (`mapped`) are candidates each time. It names them once, and strangers may have
    /// taken up the room for candidates since.
    pub fn begin_again<'a>(&'a mut self, inner: B, mapped: impl Iterator<Item = &'a Multiaddr>) {
        self.inner = inner;
        let mut established: HashMap<PeerId, usize> = HashMap::new();
        for (connection_id, (peer_id, endpoint)) in &self.connections {
            let others = established.entry(*peer_id).or_default();
            self.inner.on_swarm_event(FromSwarm::ConnectionEstablished(ConnectionEstablished {
                peer_id: *peer_id,
                connection_id: *connection_id,
                endpoint,
                failed_addresses: &[],
                other_established: *others,
            }));
            *others += 1;
        }
        let mapped = mapped.filter(|address| self.rules.admit(address) && !self.candidates.contains(*address));
        for addr in self.candidates.iter().chain(mapped) {
            self.inner.on_swarm_event(FromSwarm::NewExternalAddrCandidate(NewExternalAddrCandidate { addr }));
        }
    }
}

impl<B: NetworkBehaviour> NetworkBehaviour for Guarded<B> {
    type ConnectionHandler = THandler<B>;
    type ToSwarm = B::ToSwarm;

    fn handle_pending_inbound_connection(
        &mut self,
        id: ConnectionId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        self.inner.handle_pending_inbound_connection(id, local, remote)
    }

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<B>, ConnectionDenied> {
        self.inner.handle_established_inbound_connection(id, peer, local, remote)
    }

    fn handle_pending_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: Option<PeerId>,
        addresses: &[Multiaddr],
        role: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        self.admit_dial(id, addresses).map_err(ConnectionDenied::new)?;
        self.inner.handle_pending_outbound_connection(id, peer, addresses, role).map(|_| Vec::new())
    }

    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port_use: PortUse,
    ) -> Result<THandler<B>, ConnectionDenied> {
        self.inner.handle_established_outbound_connection(id, peer, address, role, port_use)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match &event {
            FromSwarm::ConnectionEstablished(ConnectionEstablished { peer_id, connection_id, endpoint, .. }) => {
                self.connections.insert(*connection_id, (*peer_id, ConnectedPoint::clone(endpoint)));
            }
            FromSwarm::ConnectionClosed(closed) => _ = self.connections.remove(&closed.connection_id),
            FromSwarm::NewExternalAddrCandidate(candidate) if !self.admit_candidate(candidate.addr) => return,
            FromSwarm::ExternalAddrConfirmed(confirmed) if self.admit_candidate(confirmed.addr) => {
                self.confirmed.insert(confirmed.addr.clone());
                let candidate = NewExternalAddrCandidate { addr: confirmed.addr };
                self.inner.on_swarm_event(FromSwarm::NewExternalAddrCandidate(candidate));
            }
            FromSwarm::ExternalAddrExpired(expired) => _ = self.confirmed.remove(expired.addr),
            // Refused by another behaviour before it was our turn.
            FromSwarm::DialFailure(failure) => _ = self.dials.remove(&failure.connection_id),
            _ => {}
        }
        self.inner.on_swarm_event(event);
    }

    fn on_connection_handler_event(&mut self, peer: PeerId, id: ConnectionId, event: THandlerOutEvent<B>) {
        self.inner.on_connection_handler_event(peer, id, event);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<B::ToSwarm, THandlerInEvent<B>>> {
        loop {
            match self.inner.poll(cx) {
                Poll::Ready(ToSwarm::ExternalAddrConfirmed(_)) => {}
                Poll::Ready(ToSwarm::Dial { opts }) => {
                    self.dials.insert(opts.connection_id());
                    return Poll::Ready(ToSwarm::Dial { opts });
                }
                other => return other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::swarm::ConnectionClosed;
    use libp2p::swarm::behaviour::{ExternalAddrConfirmed, ExternalAddrExpired};
    use libp2p::swarm::dial_opts::DialOpts;
    use libp2p::swarm::dummy;
    use std::convert::Infallible;

    /// Wants to dial once, takes an address for its own, and counts candidates.
    #[derive(Default)]
    struct Eager {
        dial: Option<DialOpts>,
        own: Option<Multiaddr>,
        candidates: usize,
        connections: HashMap<PeerId, Vec<usize>>,
    }

    impl NetworkBehaviour for Eager {
        type ConnectionHandler = dummy::ConnectionHandler;
        type ToSwarm = Infallible;

        fn handle_established_inbound_connection(
            &mut self,
            _: ConnectionId,
            _: PeerId,
            _: &Multiaddr,
            _: &Multiaddr,
        ) -> Result<dummy::ConnectionHandler, ConnectionDenied> {
            Ok(dummy::ConnectionHandler)
        }

        fn handle_established_outbound_connection(
            &mut self,
            _: ConnectionId,
            _: PeerId,
            _: &Multiaddr,
            _: Endpoint,
            _: PortUse,
        ) -> Result<dummy::ConnectionHandler, ConnectionDenied> {
            Ok(dummy::ConnectionHandler)
        }

        fn on_swarm_event(&mut self, event: FromSwarm) {
            match event {
                FromSwarm::NewExternalAddrCandidate(_) => self.candidates += 1,
                FromSwarm::ConnectionEstablished(ConnectionEstablished { peer_id, other_established, .. }) => {
                    self.connections.entry(peer_id).or_default().push(other_established);
                }
                _ => {}
            }
        }

        fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: Infallible) {
            match event {}
        }

        fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Infallible, Infallible>> {
            if let Some(own) = self.own.take() {
                return Poll::Ready(ToSwarm::ExternalAddrConfirmed(own));
            }
            self.dial.take().map_or(Poll::Pending, |opts| Poll::Ready(ToSwarm::Dial { opts }))
        }
    }

    fn addresses(texts: &[&str]) -> Vec<Multiaddr> {
        texts.iter().map(|text| text.parse().expect(text)).collect()
    }

    #[test]
    fn a_dial_to_a_private_address_is_refused_and_dials_of_others_are_not() {
        let table = [
            (&["/ip4/8.8.8.8/tcp/4001"][..], true),
            (&["/ip4/192.168.1.1/tcp/80"], false),
            (&["/ip4/8.8.8.8/tcp/4001", "/ip4/127.0.0.1/tcp/80"], false),
        ];
        for (named, expected) in table {
            let addresses = addresses(named);
            let opts = DialOpts::peer_id(PeerId::random()).addresses(addresses.clone()).build();
            let id = opts.connection_id();
            let own = Some("/ip4/8.8.8.8/tcp/1".parse().expect("a multiaddr"));
            let mut guarded =
                Guarded::new(Eager { dial: Some(opts), own, ..Eager::default() }, Rules { private: false }, 1);
            let polled = guarded.poll(&mut Context::from_waker(std::task::Waker::noop()));
            assert!(matches!(polled, Poll::Ready(ToSwarm::Dial { .. })), "what it takes for its own is swallowed");
            let mut begin = |id| guarded.handle_pending_outbound_connection(id, None, &addresses, Endpoint::Dialer);
            assert!(begin(ConnectionId::new_unchecked(usize::MAX)).is_ok(), "somebody else's dial");
            assert_eq!(begin(id).is_ok(), expected, "{named:?}");
            assert!(guarded.dials.is_empty());
        }
    }

    #[test]
    fn strangers_do_not_have_us_dial_all_the_time() {
        let mut guarded = Guarded::new(Eager::default(), Rules { private: false }, 1);
        let public = addresses(&["/ip4/8.8.8.8/tcp/4001"]);
        for dial in 0..=DIALS_PER_MINUTE {
            let id = ConnectionId::new_unchecked(dial);
            guarded.dials.insert(id);
            let expected = if dial < DIALS_PER_MINUTE { Ok(()) } else { Err(Refusal::TooMany) };
            assert_eq!(guarded.admit_dial(id, &public), expected, "{dial}");
        }
        assert_eq!(
            guarded.admit_dial(ConnectionId::new_unchecked(usize::MAX), &public),
            Ok(()),
            "somebody else's dial"
        );
    }

    #[test]
    fn few_candidates_are_heard_and_none_that_is_private() {
        let mut guarded = Guarded::new(Eager::default(), Rules { private: false }, 32);
        let tell = |guarded: &mut Guarded<Eager>, text: &str| {
            let addr: Multiaddr = text.parse().expect(text);
            guarded.on_swarm_event(FromSwarm::NewExternalAddrCandidate(NewExternalAddrCandidate { addr: &addr }));
        };
        tell(&mut guarded, "/ip4/10.0.0.1/tcp/1");
        assert_eq!(guarded.inner.candidates, 0);
        for port in 1..1000 {
            tell(&mut guarded, &format!("/ip4/8.8.8.8/tcp/{port}"));
        }
        assert_eq!(guarded.inner.candidates, 32);
        tell(&mut guarded, "/ip4/8.8.8.8/tcp/1");
        assert_eq!(guarded.inner.candidates, 33, "how often each is named counts");
        let addr: Multiaddr = "/ip4/8.8.8.8/tcp/1".parse().expect("a multiaddr");
        guarded.on_swarm_event(FromSwarm::ExternalAddrConfirmed(ExternalAddrConfirmed { addr: &addr }));
        assert_eq!(guarded.inner.candidates, 34, "what is confirmed is a candidate too");
    }

    #[test]
    fn who_begins_again_knows_what_there_is() {
        let mut guarded = Guarded::new(Eager::default(), Rules { private: false }, 2);
        let (stays, twice, leaves) = (PeerId::random(), PeerId::random(), PeerId::random());
        let endpoint = ConnectedPoint::Dialer {
            address: "/ip4/8.8.8.8/tcp/4001".parse().expect("a multiaddr"),
            role_override: Endpoint::Dialer,
            port_use: PortUse::Reuse,
        };
        for (number, peer_id) in [stays, twice, twice, leaves].into_iter().enumerate() {
            guarded.on_swarm_event(FromSwarm::ConnectionEstablished(ConnectionEstablished {
                peer_id,
                connection_id: ConnectionId::new_unchecked(number),
                endpoint: &endpoint,
                failed_addresses: &[],
                other_established: usize::from(number == 2),
            }));
        }
        guarded.on_swarm_event(FromSwarm::ConnectionClosed(ConnectionClosed {
            peer_id: leaves,
            connection_id: ConnectionId::new_unchecked(3),
            endpoint: &endpoint,
            cause: None,
            remaining_established: 0,
        }));
        for addr in addresses(&["/ip4/8.8.8.8/tcp/1", "/ip4/8.8.8.8/tcp/2", "/ip4/8.8.8.8/tcp/3"]) {
            guarded.on_swarm_event(FromSwarm::NewExternalAddrCandidate(NewExternalAddrCandidate { addr: &addr }));
        }
        guarded.begin_again(Eager::default(), std::iter::empty());
        assert_eq!(guarded.inner.candidates, 2);
        assert_eq!(guarded.inner.connections, HashMap::from([(stays, vec![0]), (twice, vec![0, 1])]));

        // Hours later there is room for other candidates; what was confirmed is still to be tested.
        let [ours, other] = ["/ip4/8.8.8.8/tcp/1", "/ip4/8.8.8.8/tcp/4"].map(|text| addresses(&[text]).remove(0));
        guarded.on_swarm_event(FromSwarm::ExternalAddrConfirmed(ExternalAddrConfirmed { addr: &ours }));
        guarded.forget_candidates();
        guarded.on_swarm_event(FromSwarm::NewExternalAddrCandidate(NewExternalAddrCandidate { addr: &other }));
        assert_eq!(guarded.candidates, HashSet::from([ours.clone(), other]));
        guarded.on_swarm_event(FromSwarm::ExternalAddrExpired(ExternalAddrExpired { addr: &ours }));
        assert!(guarded.confirmed.is_empty());
    }

    #[test]
    fn what_the_router_forwards_is_tested_again_whatever_became_of_the_candidates() {
        let mut guarded = Guarded::new(Eager::default(), Rules { private: false }, 1);
        let [mapped, other, private] = ["/ip4/8.8.8.8/tcp/1", "/ip4/8.8.8.8/tcp/2", "/ip4/10.0.0.1/tcp/1"]
            .map(|text| addresses(&[text]).remove(0));
        let tested_again = |guarded: &mut Guarded<Eager>, mapped: &[&Multiaddr]| {
            guarded.begin_again(Eager::default(), mapped.iter().copied());
            guarded.inner.candidates
        };
        guarded.on_swarm_event(FromSwarm::NewExternalAddrCandidate(NewExternalAddrCandidate { addr: &mapped }));
        assert_eq!(tested_again(&mut guarded, &[&mapped]), 1, "once");
        // It was ours, until nobody proved it any more, and its place went to what a stranger named.
        guarded.on_swarm_event(FromSwarm::ExternalAddrConfirmed(ExternalAddrConfirmed { addr: &mapped }));
        guarded.on_swarm_event(FromSwarm::ExternalAddrExpired(ExternalAddrExpired { addr: &mapped }));
        guarded.forget_candidates();
        guarded.on_swarm_event(FromSwarm::NewExternalAddrCandidate(NewExternalAddrCandidate { addr: &other }));
        assert_eq!(tested_again(&mut guarded, &[&mapped, &private]), 2);
        guarded.forget(&other);
        assert_eq!(tested_again(&mut guarded, &[&mapped]), 1);
        assert_eq!(tested_again(&mut guarded, &[]), 0, "the router forwards it no more");
    }
}
