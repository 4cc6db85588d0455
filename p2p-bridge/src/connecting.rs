//! Connections that somebody asked for: who waits for which, and what comes of them.
//!
//! Goals: whoever asks hears what happened, in words, and within the time that they give; however many ask, no more
//! dials are under way than the budget has room for; an address that a stranger named leads nowhere that strangers may
//! not send us.
//!
//! Non-goals: keeping a connection. One that nobody uses is closed as any other is, and the least useful ones go first
//! when there are too many ([`crate::admission::trim`]).

use crate::admission::budget::Refusal;
use crate::dialable::{Shape, ShapeError};
use crate::scope::{Borders, Scope};
use libp2p::core::transport::TransportError;
use libp2p::swarm::{ConnectionDenied, ConnectionId, DialError};
use libp2p::{Multiaddr, PeerId};
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::oneshot;

/// Addresses of one peer that are dialled on request.
pub const ADDRESSES_MAX: usize = 16;
/// Addresses whose failure is told.
const REASONS_MAX: usize = 4;

/// On whose word an address is dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedBy {
    /// The operator's: names are resolved, and private addresses dialled.
    Operator,
    /// A stranger's: neither, unless `p2p.dial_private` says so.
    Stranger,
}

/// A connection that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connected {
    /// The peer.
    pub peer: PeerId,
    /// Where it is.
    pub address: Multiaddr,
    /// Whether it was connected before anybody asked.
    pub already: bool,
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// It is our own name.
    #[error("this node is that peer itself")]
    Ourselves,
    /// Nothing is left to dial.
    #[error("none of its addresses may be dialled: they are private, or host names, and come from outside")]
    NotAllowed,
    /// An address is of no known shape.
    #[error(
        "its address is not understood: {0}; name one as in /ip4/192.0.2.1/tcp/4001/p2p/ID or /dns4/peer.example/tcp/443/wss/p2p/ID"
    )]
    NotUnderstood(ShapeError),
    /// There are more addresses than are dialled for anybody.
    #[error("at most {ADDRESSES_MAX} addresses of a peer are dialled")]
    TooMany,
    /// Neither the caller nor the DHT said where it is.
    #[error("nobody knows an address of this peer; name one, as in /ip4/192.0.2.1/tcp/4001/p2p/ID")]
    Unknown,
    /// The peer misbehaved a short while ago.
    #[error("this peer misbehaved, and is not spoken to for a while")]
    Banned,
    /// The node has as many connections, or dials, as it may.
    #[error("there is no room for another connection; try again later")]
    NoRoom,
    /// Somebody else answers there.
    #[error("another peer answers there: {0}")]
    AnotherPeer(PeerId),
    /// Every address failed.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// It took too long.
    #[error("it was not reached within {:.0} seconds", .0.as_secs_f64())]
    TimedOut(Duration),
    /// There is no network (any more).
    #[error("the network has stopped")]
    Stopped,
}

/// Where the outcome goes.
pub type Reply = oneshot::Sender<Result<Connected, ConnectError>>;

/// The addresses that may be dialled on somebody's word.
///
/// # Errors
/// [`ConnectError`] when there are too many, or none may be dialled while some were named.
pub fn allowed(
    addresses: Vec<Multiaddr>,
    named_by: NamedBy,
    dial_private: bool,
) -> Result<Vec<Multiaddr>, ConnectError> {
    if addresses.len() > ADDRESSES_MAX {
        return Err(ConnectError::TooMany);
    }
    let borders = Borders { dial_private };
    let (mut allowed, mut why_not) = (Vec::new(), None);
    for address in addresses {
        let understood = Shape::read(&address).map(drop);
        match understood {
            Err(error) if named_by == NamedBy::Operator => {
                _ = why_not.get_or_insert(ConnectError::NotUnderstood(error))
            }
            Ok(()) if named_by == NamedBy::Operator || borders.may_dial(Scope::Wan, &address) => allowed.push(address),
            _ => why_not = Some(ConnectError::NotAllowed),
        }
    }
    why_not.filter(|_| allowed.is_empty()).map_or(Ok(allowed), Err)
}

/// What a failed dial is told as.
pub fn reason(error: &DialError) -> ConnectError {
    match error {
        DialError::LocalPeerId { .. } => ConnectError::Ourselves,
        DialError::NoAddresses => ConnectError::Unknown,
        DialError::WrongPeerId { obtained, .. } => ConnectError::AnotherPeer(*obtained),
        DialError::Denied { cause } => denied(cause),
        DialError::Transport(failures) => {
            let told: Vec<String> = failures.iter().take(REASONS_MAX).map(|(at, why)| failure(at, why)).collect();
            let further = failures.len().saturating_sub(REASONS_MAX);
            let rest = if further > 0 { format!("; and {further} more") } else { String::new() };
            ConnectError::Unreachable(format!("{}{rest}", told.join("; ")))
        }
        other => ConnectError::Unreachable(other.to_string()),
    }
}

fn denied(cause: &ConnectionDenied) -> ConnectError {
    match cause.downcast_ref::<Refusal>() {
        Some(Refusal::Banned) => ConnectError::Banned,
        Some(_) => ConnectError::NoRoom,
        None => ConnectError::Unreachable(cause.to_string()),
    }
}

fn failure(address: &Multiaddr, error: &TransportError<std::io::Error>) -> String {
    match error {
        TransportError::MultiaddrNotSupported(_) => format!("{address}: no transport here dials such an address"),
        TransportError::Other(error) => format!("{address}: {}", innermost(error)),
    }
}

/// What the system said: libp2p's own layers of errors say nothing of their own.
pub fn innermost(mut error: &(dyn std::error::Error + 'static)) -> String {
    // An I/O error that wraps another shows that one's source and skips the one itself.
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

struct Waiting {
    /// The dial that was begun for it; none as long as an address is searched for.
    dial: Option<ConnectionId>,
    reply: Reply,
}

/// Whoever waits for a connection.
#[derive(Default)]
pub struct Connects {
    waiting: HashMap<PeerId, Vec<Waiting>>,
}

impl Connects {
    /// Somebody waits for a peer, which is being dialled, or searched for.
    pub fn wait(&mut self, peer: PeerId, dial: Option<ConnectionId>, reply: Reply) {
        self.waiting.entry(peer).or_default().push(Waiting { dial, reply });
    }

    /// A peer is connected.
    pub fn connected(&mut self, peer: &PeerId, address: &Multiaddr) {
        for waiting in self.waiting.remove(peer).into_iter().flatten() {
            let connected = Connected { peer: *peer, address: address.clone(), already: false };
            // Whoever asked may have given up.
            let _ = waiting.reply.send(Ok(connected));
        }
    }

    /// A dial failed; with it whoever waits for it, and whoever waits for any dial of that peer.
    pub fn failed(&mut self, peer: &PeerId, dial: ConnectionId, error: &ConnectError) {
        self.end(peer, error, |waiting| waiting.dial.is_none_or(|own| own == dial));
    }

    /// Nobody knows where a peer is.
    pub fn not_found(&mut self, peer: &PeerId) {
        self.end(peer, &ConnectError::Unknown, |waiting| waiting.dial.is_none());
    }

    /// Forgets those who gave up.
    pub fn tend(&mut self) {
        for waiting in self.waiting.values_mut() {
            waiting.retain(|waiting| !waiting.reply.is_closed());
        }
        self.waiting.retain(|_, waiting| !waiting.is_empty());
    }

    /// Whether somebody waits for this peer.
    pub fn is_waited_for(&self, peer: &PeerId) -> bool {
        self.waiting.contains_key(peer)
    }

    /// Whether nobody waits.
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
    fn strangers_send_us_to_public_addresses_only() {
        // An address, and whether it is dialled for the operator, for a stranger, and for one where private ones may
        // be.
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
        for (text, operator, stranger, tolerated) in table {
            let may = |by, private| allowed(vec![address(text)], by, private).is_ok();
            assert_eq!(may(NamedBy::Operator, false), operator, "{text}");
            assert_eq!((may(NamedBy::Stranger, false), may(NamedBy::Stranger, true)), (stranger, tolerated), "{text}");
        }
        let both = vec![address("/ip4/10.0.0.1/tcp/4001"), address("/ip4/8.8.8.8/tcp/4001")];
        let left = allowed(both, NamedBy::Stranger, false).expect("one is left");
        assert_eq!(left, [address("/ip4/8.8.8.8/tcp/4001")]);
        assert_eq!(allowed(Vec::new(), NamedBy::Stranger, false), Ok(Vec::new()), "the DHT may know");
        let many = vec![address("/ip4/8.8.8.8/tcp/1"); ADDRESSES_MAX + 1];
        assert_eq!(allowed(many, NamedBy::Operator, true), Err(ConnectError::TooMany));
    }

    #[test]
    fn everybody_who_waits_hears_what_concerns_them() {
        let (peer, other) = (PeerId::random(), PeerId::random());
        let [first, second] = [1, 2].map(ConnectionId::new_unchecked);
        let mut connects = Connects::default();
        let mut wait = |peer, dial| {
            let (reply, outcome) = oneshot::channel();
            connects.wait(peer, dial, reply);
            outcome
        };
        let mut by_first = wait(peer, Some(first));
        let mut by_second = wait(peer, Some(second));
        let mut by_any = wait(peer, None);
        let mut elsewhere = wait(other, None);
        let gone = wait(other, Some(first));

        connects.failed(&peer, first, &ConnectError::NoRoom);
        assert_eq!(by_first.try_recv(), Ok(Err(ConnectError::NoRoom)));
        assert_eq!(by_any.try_recv(), Ok(Err(ConnectError::NoRoom)));
        assert!(by_second.try_recv().is_err() && elsewhere.try_recv().is_err(), "these still wait");

        let at = address("/ip4/192.0.2.1/tcp/1");
        connects.connected(&peer, &at);
        assert_eq!(by_second.try_recv(), Ok(Ok(Connected { peer, address: at, already: false })));

        connects.not_found(&other);
        assert_eq!(elsewhere.try_recv(), Ok(Err(ConnectError::Unknown)));
        drop(gone);
        connects.tend();
        assert!(connects.is_empty());
    }
}
