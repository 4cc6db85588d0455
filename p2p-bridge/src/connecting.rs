//! Connections on request of the API: who waits for which, and their results.
//!
//! Goals: the caller gets the result, with a reason, within its timeout; concurrent requests stay within the budget of
//! dials; an address from an untrusted client is dialled only if an untrusted peer may have it dialled.
//!
//! Non-goals: keeping a connection open. Unused connections are closed as usual, and the least useful are trimmed when
//! there are too many ([`crate::admission::trim`]).

use crate::admission::budget::Denial;
use crate::dialable::{Shape, ShapeError};
use crate::errors::innermost;
use crate::scope::{AddressPolicy, Scope};
use libp2p::core::transport::TransportError;
use libp2p::swarm::{ConnectionDenied, ConnectionId, DialError};
use libp2p::{Multiaddr, PeerId};
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::oneshot;

/// The maximum number of addresses of a peer that are dialled on request.
pub const ADDRESSES_MAX: usize = 16;
/// The maximum number of failed addresses in an error message.
const REASONS_MAX: usize = 4;

/// The origin of an address, which decides whether it may be dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressOrigin {
    /// The operator: host names are resolved, and private addresses are dialled.
    Operator,
    /// An untrusted client: neither is allowed, unless `p2p.dial_private` is set.
    Untrusted,
}

/// The result of a successful request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connected {
    /// The peer.
    pub peer: PeerId,
    /// Its address.
    pub address: Multiaddr,
    /// Whether the peer was connected before the request.
    pub already: bool,
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The peer ID is the node's own.
    #[error("the peer ID is this node's own")]
    Ourselves,
    /// None of the addresses may be dialled.
    #[error("none of the addresses may be dialled: untrusted clients may not give private addresses or host names")]
    NotAllowed,
    /// An address has an unsupported shape.
    #[error(
        "the address is not supported: {0}; give one such as /ip4/192.0.2.1/tcp/4001/p2p/ID or \
         /dns4/peer.example/tcp/443/wss/p2p/ID"
    )]
    UnsupportedAddress(ShapeError),
    /// Too many addresses were given.
    #[error("too many addresses: give at most {ADDRESSES_MAX} for a peer")]
    TooMany,
    /// Neither the caller nor the DHT has an address of the peer.
    #[error("no address of this peer is known: give one such as /ip4/192.0.2.1/tcp/4001/p2p/ID")]
    Unknown,
    /// The peer is banned.
    #[error("this peer misbehaved and is banned for a while")]
    Banned,
    /// A limit of connections or dials is reached.
    #[error("a connection limit is reached: try again later")]
    NoRoom,
    /// A peer with another ID answered.
    #[error("another peer answers at this address: {0}")]
    AnotherPeer(PeerId),
    /// All addresses failed.
    #[error("the peer cannot be reached: {0}")]
    Unreachable(String),
    /// The timeout expired.
    #[error("the peer was not reached within {:.0} seconds", .0.as_secs_f64())]
    TimedOut(Duration),
    /// The network has stopped.
    #[error("the network has stopped")]
    Stopped,
}

/// Receives the result.
pub type Reply = oneshot::Sender<Result<Connected, ConnectError>>;

/// The addresses that may be dialled, given their origin.
///
/// # Errors
/// [`ConnectError`] if there are too many addresses, or if none of the given ones may be dialled.
pub fn allowed(
    addresses: Vec<Multiaddr>,
    named_by: AddressOrigin,
    dial_private: bool,
) -> Result<Vec<Multiaddr>, ConnectError> {
    if addresses.len() > ADDRESSES_MAX {
        return Err(ConnectError::TooMany);
    }
    let borders = AddressPolicy { dial_private };
    let (mut allowed, mut why_not) = (Vec::new(), None);
    for address in addresses {
        let understood = Shape::read(&address).map(drop);
        match understood {
            Err(error) if named_by == AddressOrigin::Operator => {
                _ = why_not.get_or_insert(ConnectError::UnsupportedAddress(error))
            }
            Ok(()) if named_by == AddressOrigin::Operator || borders.may_dial(Scope::Wan, &address) => {
                allowed.push(address)
            }
            _ => why_not = Some(ConnectError::NotAllowed),
        }
    }
    why_not.filter(|_| allowed.is_empty()).map_or(Ok(allowed), Err)
}

/// A failed dial as an error for the caller.
pub fn reason(error: &DialError) -> ConnectError {
    match error {
        DialError::LocalPeerId { .. } => ConnectError::Ourselves,
        DialError::NoAddresses => ConnectError::Unknown,
        DialError::WrongPeerId { obtained, .. } => ConnectError::AnotherPeer(*obtained),
        DialError::Denied { cause } => denied(cause),
        DialError::Transport(failures) => {
            let reasons: Vec<String> = failures.iter().take(REASONS_MAX).map(|(at, why)| failure(at, why)).collect();
            let further = failures.len().saturating_sub(REASONS_MAX);
            let rest = if further > 0 { format!("; and {further} more") } else { String::new() };
            ConnectError::Unreachable(format!("{}{rest}", reasons.join("; ")))
        }
        other => ConnectError::Unreachable(other.to_string()),
    }
}

fn denied(cause: &ConnectionDenied) -> ConnectError {
    match cause.downcast_ref::<Denial>() {
        Some(Denial::Banned) => ConnectError::Banned,
        Some(_) => ConnectError::NoRoom,
        None => ConnectError::Unreachable(cause.to_string()),
    }
}

fn failure(address: &Multiaddr, error: &TransportError<std::io::Error>) -> String {
    match error {
        TransportError::MultiaddrNotSupported(_) => {
            format!("{address}: no transport of this node supports this address")
        }
        TransportError::Other(error) => format!("{address}: {}", innermost(error)),
    }
}

struct Waiting {
    /// The dial for this request; `None` while an address is searched for.
    dial: Option<ConnectionId>,
    reply: Reply,
}

/// Requests that wait for a connection.
#[derive(Default)]
pub struct PendingConnects {
    waiting: HashMap<PeerId, Vec<Waiting>>,
}

impl PendingConnects {
    /// Adds a waiter for a peer that is being dialled or searched for.
    pub fn wait(&mut self, peer: PeerId, dial: Option<ConnectionId>, reply: Reply) {
        self.waiting.entry(peer).or_default().push(Waiting { dial, reply });
    }

    /// Notifies the waiters of a peer that it is connected.
    pub fn connected(&mut self, peer: &PeerId, address: &Multiaddr) {
        for waiting in self.waiting.remove(peer).into_iter().flatten() {
            let connected = Connected { peer: *peer, address: address.clone(), already: false };
            // The caller may have stopped waiting.
            let _ = waiting.reply.send(Ok(connected));
        }
    }

    /// Notifies the waiters of a dial that it failed, and the waiters of the peer that have no dial of their own.
    pub fn failed(&mut self, peer: &PeerId, dial: ConnectionId, error: &ConnectError) {
        self.end(peer, error, |waiting| waiting.dial.is_none_or(|own| own == dial));
    }

    /// Notifies the waiters of a peer that no address was found.
    pub fn not_found(&mut self, peer: &PeerId) {
        self.end(peer, &ConnectError::Unknown, |waiting| waiting.dial.is_none());
    }

    /// Removes waiters whose callers have stopped waiting.
    pub fn sweep(&mut self) {
        for waiting in self.waiting.values_mut() {
            waiting.retain(|waiting| !waiting.reply.is_closed());
        }
        self.waiting.retain(|_, waiting| !waiting.is_empty());
    }

    /// Whether a caller waits for this peer.
    pub fn is_waited_for(&self, peer: &PeerId) -> bool {
        self.waiting.contains_key(peer)
    }

    /// Whether there are no waiters.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn end(&mut self, peer: &PeerId, error: &ConnectError, concerns: impl Fn(&Waiting) -> bool) {
        let Some(waiting) = self.waiting.remove(peer) else { return };
        let (over, rest): (Vec<Waiting>, Vec<Waiting>) = waiting.into_iter().partition(concerns);
        for waiting in over {
            let _ = waiting.reply.send(Err(error.clone()));
        }
        if !rest.is_empty() {
            self.waiting.insert(*peer, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().expect("an address")
    }

    #[test]
    fn untrusted_clients_may_give_only_public_addresses() {
        // An address, and whether it is dialled for the operator, for an untrusted client, and for one if private
        // addresses are allowed.
        let table = [
            ("/ip4/8.8.8.8/tcp/4001", true, true, true),
            ("/ip4/127.0.0.1/tcp/4001", true, false, true),
            ("/ip4/169.254.169.254/tcp/80", true, false, true),
            ("/ip6/::1/udp/4001/quic-v1", true, false, true),
            ("/dns4/example.org/tcp/4001", true, false, true),
            ("/dns4/localhost/tcp/4001", true, false, true),
            ("/dnsaddr/bootstrap.libp2p.io", true, false, true),
            ("/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/5001", false, false, false),
            ("/ip4/8.8.8.8/tcp/443/x-parity-ws/%2F%0D%0APOST", false, false, false),
        ];
        for (text, operator, untrusted, with_dial_private) in table {
            let may = |by, private| allowed(vec![address(text)], by, private).is_ok();
            assert_eq!(may(AddressOrigin::Operator, false), operator, "{text}");
            assert_eq!(
                (may(AddressOrigin::Untrusted, false), may(AddressOrigin::Untrusted, true)),
                (untrusted, with_dial_private),
                "{text}"
            );
        }
        let both = vec![address("/ip4/10.0.0.1/tcp/4001"), address("/ip4/8.8.8.8/tcp/4001")];
        let remaining = allowed(both, AddressOrigin::Untrusted, false).expect("one is remaining");
        assert_eq!(remaining, [address("/ip4/8.8.8.8/tcp/4001")]);
        assert_eq!(allowed(Vec::new(), AddressOrigin::Untrusted, false), Ok(Vec::new()), "the DHT may know");
        let many = vec![address("/ip4/8.8.8.8/tcp/1"); ADDRESSES_MAX + 1];
        assert_eq!(allowed(many, AddressOrigin::Operator, true), Err(ConnectError::TooMany));
    }

    #[test]
    fn waiters_get_the_results_that_concern_them() {
        let (peer, other) = (PeerId::random(), PeerId::random());
        let [first, second] = [1, 2].map(ConnectionId::new_unchecked);
        let mut connects = PendingConnects::default();
        let mut wait = |peer, dial| {
            let (reply, outcome) = oneshot::channel();
            connects.wait(peer, dial, reply);
            outcome
        };
        let mut by_first = wait(peer, Some(first));
        let mut by_second = wait(peer, Some(second));
        let mut by_any = wait(peer, None);
        let mut other_peer = wait(other, None);
        let gone = wait(other, Some(first));

        connects.failed(&peer, first, &ConnectError::NoRoom);
        assert_eq!(by_first.try_recv(), Ok(Err(ConnectError::NoRoom)));
        assert_eq!(by_any.try_recv(), Ok(Err(ConnectError::NoRoom)));
        assert!(by_second.try_recv().is_err() && other_peer.try_recv().is_err(), "these still wait");

        let at = address("/ip4/192.0.2.1/tcp/1");
        connects.connected(&peer, &at);
        assert_eq!(by_second.try_recv(), Ok(Ok(Connected { peer, address: at, already: false })));

        connects.not_found(&other);
        assert_eq!(other_peer.try_recv(), Ok(Err(ConnectError::Unknown)));
        drop(gone);
        connects.sweep();
        assert!(connects.is_empty());
    }
}
