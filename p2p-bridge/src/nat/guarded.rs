//! [`AddressFiltered`]: an address-filtering wrapper for behaviours that act on addresses from untrusted peers.
//!
//! - It denies dials that [`Rules`] reject. Otherwise AutoNAT's server and hole punching would dial any address in the
//!   local network for an untrusted peer. A dial with a rejected address is denied as a whole. The rate of dials is
//!   limited.
//! - It adds no addresses to dials of other behaviours. AutoNAT's request-response protocol keeps all addresses that a
//!   peer reports, and would add them to every dial of that peer.
//! - It limits the candidates for external addresses that the behaviour learns, and passes only plausible ones, since
//!   each peer can invent any number.
//! - It passes confirmed addresses as candidates too. Hole punching only sends candidates to the other side, and
//!   confirmed addresses are not reported as candidates, so a reachable node would have no addresses to send.
//! - External addresses that the behaviour confirms are not announced: [`crate::reachability`] decides.

use super::Rules;
use crate::behaviours::forward_connections;
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

/// How long candidates that were passed on count. The behaviours never remove any, so this bounds what they collect in
/// a year; a changed address is still passed on.
const CANDIDATES_FOR: Duration = Duration::from_secs(6 * 3600);

/// The rate limit of dials.
const DIALS_PER_MINUTE: usize = 60;
const MINUTE: Duration = Duration::from_secs(60);

/// Why a dial is denied.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("an untrusted peer requested a dial to an address that is not public")]
    NotPublic,
    #[error("untrusted peers requested too many dials within a minute")]
    TooMany,
}

/// The wrapper. See the module's documentation.
pub struct AddressFiltered<B> {
    inner: B,
    rules: Rules,
    /// Dials of the behaviour that have not started.
    dials: HashSet<ConnectionId>,
    /// The number of dials that started within the current minute.
    started: usize,
    started_since: Instant,
    candidates: HashSet<Multiaddr>,
    candidates_max: usize,
    candidates_since: Instant,
    /// Candidates that were confirmed. They are not reported as candidates again, so they must not expire with the
    /// others.
    confirmed: HashSet<Multiaddr>,
    connections: HashMap<ConnectionId, (PeerId, ConnectedPoint)>,
}

impl<B> AddressFiltered<B> {
    /// Wraps a behaviour, which learns at most `candidates_max` candidates in six hours.
    pub fn new(inner: B, rules: Rules, candidates_max: usize) -> Self {
        let now = Instant::now();
        Self {
            inner,
            rules,
            dials: HashSet::new(),
            started: 0,
            started_since: now,
            candidates: HashSet::new(),
            candidates_max,
            candidates_since: now,
            confirmed: HashSet::new(),
            connections: HashMap::new(),
        }
    }

    /// Removes an address that is no longer the node's. It is not tested again until it is reported again.
    pub fn remove(&mut self, address: &Multiaddr) {
        self.candidates.remove(address);
        self.confirmed.remove(address);
    }

    fn remove_candidates(&mut self) {
        self.candidates.retain(|candidate| self.confirmed.contains(candidate));
        self.candidates_since = Instant::now();
    }

    /// Whether the behaviour may learn a candidate.
    fn admit_candidate(&mut self, address: &Multiaddr) -> bool {
        if self.candidates_since.elapsed() > CANDIDATES_FOR {
            self.remove_candidates();
        }
        if self.candidates.contains(address) {
            return true;
        }
        let admitted = self.candidates.len() < self.candidates_max && self.rules.admit(address);
        admitted && self.candidates.insert(address.clone())
    }

    /// Whether a dial may start.
    fn admit_dial(&mut self, id: ConnectionId, addresses: &[Multiaddr]) -> Result<(), Refusal> {
        if !self.dials.remove(&id) {
            return Ok(());
        }
        if !addresses.iter().all(|address| self.rules.admit_dial(address)) {
            return Err(Refusal::NotPublic);
        }
        if self.started_since.elapsed() > MINUTE {
            (self.started, self.started_since) = (0, Instant::now());
        }
        if self.started >= DIALS_PER_MINUTE {
            return Err(Refusal::TooMany);
        }
        self.started += 1;
        Ok(())
    }
}

impl<B: NetworkBehaviour> AddressFiltered<B> {
    /// Replaces the inner behaviour, and passes it the connections and candidates. For the AutoNAT client, which never
    /// tests an address twice. Requests of the old instance are dropped, as is its knowledge about peers: new
    /// connections show which peers can be asked.
    ///
    /// Addresses that the router maps (`mapped`) are always candidates: they are reported only once, and other
    /// candidates may have used up the limit since.
    pub fn replace_inner<'a>(&'a mut self, inner: B, mapped: impl Iterator<Item = &'a Multiaddr>) {
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

impl<B: NetworkBehaviour> NetworkBehaviour for AddressFiltered<B> {
    type ConnectionHandler = THandler<B>;
    type ToSwarm = B::ToSwarm;

    forward_connections!();

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
            // Another behaviour denied it before this one was asked.
            FromSwarm::DialFailure(failure) => _ = self.dials.remove(&failure.connection_id),
            _ => {}
        }
        self.inner.on_swarm_event(event);
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

    /// A behaviour that dials once, confirms an external address, and counts candidates.
    #[derive(Default)]
    struct TestBehaviour {
        dial: Option<DialOpts>,
        own: Option<Multiaddr>,
        candidates: usize,
        connections: HashMap<PeerId, Vec<usize>>,
    }

    impl NetworkBehaviour for TestBehaviour {
        type ConnectionHandler = dummy::ConnectionHandler;
        type ToSwarm = Infallible;

        crate::handler_of_each_connection!(|_, _| dummy::ConnectionHandler);

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
    fn dials_to_private_addresses_are_denied_except_for_other_behaviours() {
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
            let mut filtered = AddressFiltered::new(
                TestBehaviour { dial: Some(opts), own, ..TestBehaviour::default() },
                Rules { private: false },
                1,
            );
            let polled = filtered.poll(&mut Context::from_waker(std::task::Waker::noop()));
            assert!(matches!(polled, Poll::Ready(ToSwarm::Dial { .. })), "its confirmed address is not passed on");
            let mut begin = |id| filtered.handle_pending_outbound_connection(id, None, &addresses, Endpoint::Dialer);
            assert!(begin(ConnectionId::new_unchecked(usize::MAX)).is_ok(), "another behaviour's dial");
            assert_eq!(begin(id).is_ok(), expected, "{named:?}");
            assert!(filtered.dials.is_empty());
        }
    }

    #[test]
    fn the_rate_of_dials_is_limited() {
        let mut filtered = AddressFiltered::new(TestBehaviour::default(), Rules { private: false }, 1);
        let public = addresses(&["/ip4/8.8.8.8/tcp/4001"]);
        for dial in 0..=DIALS_PER_MINUTE {
            let id = ConnectionId::new_unchecked(dial);
            filtered.dials.insert(id);
            let expected = if dial < DIALS_PER_MINUTE { Ok(()) } else { Err(Refusal::TooMany) };
            assert_eq!(filtered.admit_dial(id, &public), expected, "{dial}");
        }
        assert_eq!(
            filtered.admit_dial(ConnectionId::new_unchecked(usize::MAX), &public),
            Ok(()),
            "another behaviour's dial"
        );
    }

    #[test]
    fn candidates_are_limited_and_public() {
        let mut filtered = AddressFiltered::new(TestBehaviour::default(), Rules { private: false }, 32);
        let report = |filtered: &mut AddressFiltered<TestBehaviour>, text: &str| {
            let addr: Multiaddr = text.parse().expect(text);
            filtered.on_swarm_event(FromSwarm::NewExternalAddrCandidate(NewExternalAddrCandidate { addr: &addr }));
        };
        report(&mut filtered, "/ip4/10.0.0.1/tcp/1");
        assert_eq!(filtered.inner.candidates, 0);
        for port in 1..1000 {
            report(&mut filtered, &format!("/ip4/8.8.8.8/tcp/{port}"));
        }
        assert_eq!(filtered.inner.candidates, 32);
        report(&mut filtered, "/ip4/8.8.8.8/tcp/1");
        assert_eq!(filtered.inner.candidates, 33, "repeated reports count");
        let addr: Multiaddr = "/ip4/8.8.8.8/tcp/1".parse().expect("a multiaddr");
        filtered.on_swarm_event(FromSwarm::ExternalAddrConfirmed(ExternalAddrConfirmed { addr: &addr }));
        assert_eq!(filtered.inner.candidates, 34, "a confirmed address is a candidate too");
    }

    #[test]
    fn a_new_inner_behaviour_gets_the_current_state() {
        let mut filtered = AddressFiltered::new(TestBehaviour::default(), Rules { private: false }, 2);
        let (stays, twice, leaves) = (PeerId::random(), PeerId::random(), PeerId::random());
        let endpoint = ConnectedPoint::Dialer {
            address: "/ip4/8.8.8.8/tcp/4001".parse().expect("a multiaddr"),
            role_override: Endpoint::Dialer,
            port_use: PortUse::Reuse,
        };
        for (number, peer_id) in [stays, twice, twice, leaves].into_iter().enumerate() {
            filtered.on_swarm_event(FromSwarm::ConnectionEstablished(ConnectionEstablished {
                peer_id,
                connection_id: ConnectionId::new_unchecked(number),
                endpoint: &endpoint,
                failed_addresses: &[],
                other_established: usize::from(number == 2),
            }));
        }
        filtered.on_swarm_event(FromSwarm::ConnectionClosed(ConnectionClosed {
            peer_id: leaves,
            connection_id: ConnectionId::new_unchecked(3),
            endpoint: &endpoint,
            cause: None,
            remaining_established: 0,
        }));
        for addr in addresses(&["/ip4/8.8.8.8/tcp/1", "/ip4/8.8.8.8/tcp/2", "/ip4/8.8.8.8/tcp/3"]) {
            filtered.on_swarm_event(FromSwarm::NewExternalAddrCandidate(NewExternalAddrCandidate { addr: &addr }));
        }
        filtered.replace_inner(TestBehaviour::default(), std::iter::empty());
        assert_eq!(filtered.inner.candidates, 2);
        assert_eq!(filtered.inner.connections, HashMap::from([(stays, vec![0]), (twice, vec![0, 1])]));

        // Hours later other candidates are accepted; confirmed ones are still to be tested.
        let [ours, other] = ["/ip4/8.8.8.8/tcp/1", "/ip4/8.8.8.8/tcp/4"].map(|text| addresses(&[text]).remove(0));
        filtered.on_swarm_event(FromSwarm::ExternalAddrConfirmed(ExternalAddrConfirmed { addr: &ours }));
        filtered.remove_candidates();
        filtered.on_swarm_event(FromSwarm::NewExternalAddrCandidate(NewExternalAddrCandidate { addr: &other }));
        assert_eq!(filtered.candidates, HashSet::from([ours.clone(), other]));
        filtered.on_swarm_event(FromSwarm::ExternalAddrExpired(ExternalAddrExpired { addr: &ours }));
        assert!(filtered.confirmed.is_empty());
    }

    #[test]
    fn mapped_addresses_are_always_tested_again() {
        let mut filtered = AddressFiltered::new(TestBehaviour::default(), Rules { private: false }, 1);
        let [mapped, other, private] = ["/ip4/8.8.8.8/tcp/1", "/ip4/8.8.8.8/tcp/2", "/ip4/10.0.0.1/tcp/1"]
            .map(|text| addresses(&[text]).remove(0));
        let tested_again = |filtered: &mut AddressFiltered<TestBehaviour>, mapped: &[&Multiaddr]| {
            filtered.replace_inner(TestBehaviour::default(), mapped.iter().copied());
            filtered.inner.candidates
        };
        filtered.on_swarm_event(FromSwarm::NewExternalAddrCandidate(NewExternalAddrCandidate { addr: &mapped }));
        assert_eq!(tested_again(&mut filtered, &[&mapped]), 1, "once");
        // It was confirmed, then expired, and another candidate used up the limit.
        filtered.on_swarm_event(FromSwarm::ExternalAddrConfirmed(ExternalAddrConfirmed { addr: &mapped }));
        filtered.on_swarm_event(FromSwarm::ExternalAddrExpired(ExternalAddrExpired { addr: &mapped }));
        filtered.remove_candidates();
        filtered.on_swarm_event(FromSwarm::NewExternalAddrCandidate(NewExternalAddrCandidate { addr: &other }));
        assert_eq!(tested_again(&mut filtered, &[&mapped, &private]), 2);
        filtered.remove(&other);
        assert_eq!(tested_again(&mut filtered, &[&mapped]), 1);
        assert_eq!(tested_again(&mut filtered, &[]), 0, "the mapping has ended");
    }
}
