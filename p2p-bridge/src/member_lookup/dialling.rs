//! [`Dialler`]: opens connections to other gateways of the site, for look-ups.
//!
//! A gateway may be connected to others already: as DHT servers they have found each other at the addresses that they
//! announce, which may lead over a router. So look-ups have connections of their own. All addresses of a gateway are
//! dialled at once, and the connection over the first that answers is used. TCP has a head start, because it costs less
//! processor time between machines that are near to each other.
//!
//! Goals: an address that does not answer, or at which another peer answers (127.0.0.1 of another machine, or one of a
//! container network), delays nothing.
//!
//! Non-goals: when to dial, which [`super::client`] decides; circuits through relays, which carry too little.

use super::MemberAddress;
use super::behaviour::Ends;
use crate::address_filter::OperatorAddresses;
use crate::dialable::{Host, Shape, is_tcp};
use futures::FutureExt as _;
use futures::future::{BoxFuture, select_ok};
use libp2p::{Multiaddr, PeerId};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// The maximum number of addresses that a gateway tells the others, and that are dialled.
pub const ADDRESSES_MAX: usize = 32;
/// How long other transports wait for TCP.
const HEAD_START: Duration = Duration::from_millis(300);
/// How long a connection may take to be opened. Longer in tests, which run beside others.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 20 } else { 2 });

/// What is asked of the behaviour.
#[derive(Debug)]
pub enum Request {
    /// A connection, unless there is one that was requested.
    Dial {
        /// The peer.
        peer: PeerId,
        /// The addresses, which are dialled at once.
        addresses: Vec<Multiaddr>,
        /// The caller, who gets the reason if there is no connection.
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// The connections to a peer that were requested may be broken.
    Distrust(PeerId),
}

/// Opens connections. See the module's documentation. Clones share its requests.
#[derive(Debug, Clone)]
pub struct Dialler {
    requests: mpsc::Sender<Request>,
    operator: OperatorAddresses,
}

impl Dialler {
    /// A dialler whose connections a behaviour opens. Addresses of gateways are trusted as the operator's are.
    pub fn new(ends: &Ends, operator: OperatorAddresses) -> Self {
        Self { requests: ends.requests.clone(), operator }
    }

    /// Opens a connection. The error is a reason for the log.
    pub async fn dial(&self, MemberAddress { peer, addresses }: MemberAddress) -> Result<(), String> {
        let addresses = best_addresses(addresses);
        let _trusted = self.operator.trust(&addresses);
        let dialled = timeout(CONNECT_TIMEOUT, self.dial_all(peer, addresses)).await;
        dialled.unwrap_or_else(|_| Err("it did not answer in time".to_owned()))
    }

    /// Uses another connection from now on than the one that was opened, which may be broken.
    pub async fn distrust(&self, peer: PeerId) {
        // Not if the network has stopped.
        let _ = self.requests.send(Request::Distrust(peer)).await;
    }

    async fn dial_all(&self, peer: PeerId, addresses: Vec<Multiaddr>) -> Result<(), String> {
        let (tcp, others): (Vec<_>, Vec<_>) = addresses.into_iter().partition(is_tcp);
        if others.is_empty() || tcp.is_empty() {
            return self.request(peer, [tcp, others].concat()).await;
        }
        let mut by_tcp = self.request(peer, tcp);
        match timeout(HEAD_START, &mut by_tcp).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => self.request(peer, others).await,
            Err(_) => select_ok([by_tcp, self.request(peer, others)]).await.map(drop),
        }
    }

    /// Dials addresses at once.
    fn request(&self, peer: PeerId, addresses: Vec<Multiaddr>) -> BoxFuture<'static, Result<(), String>> {
        let requests = self.requests.clone();
        async move {
            let stopped = || "the network has stopped".to_owned();
            let (reply, dialled) = oneshot::channel();
            requests.send(Request::Dial { peer, addresses, reply }).await.map_err(|_| stopped())?;
            dialled.await.map_err(|_| stopped())?
        }
        .boxed()
    }
}

/// The addresses at which other gateways of the site can dial one, the best ones first: TCP before other transports, and
/// loopback addresses, which are of use on one machine only, last. At most [`ADDRESSES_MAX`].
pub fn best_addresses(mut addresses: Vec<Multiaddr>) -> Vec<Multiaddr> {
    addresses.retain(|address| Shape::read(address).is_ok_and(|shape| shape.circuit.is_none() && shape.is_dialled()));
    addresses.sort_by_key(|address| (is_loopback(address), !is_tcp(address)));
    addresses.truncate(ADDRESSES_MAX);
    addresses
}

fn is_loopback(address: &Multiaddr) -> bool {
    Shape::read(address).is_ok_and(|shape| matches!(shape.host, Host::Ip(ip) if ip.is_loopback()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_addresses_are_the_first() {
        let relay = PeerId::random();
        let circuit = format!("/ip4/192.0.2.9/tcp/4001/p2p/{relay}/p2p-circuit");
        let all = [
            "/ip4/127.0.0.1/tcp/4001",
            "/ip4/127.0.0.1/udp/4001/quic-v1",
            "/ip4/192.0.2.1/udp/4001/quic-v1",
            "/ip4/192.0.2.1/udp/4001/quic-v1/webtransport",
            &circuit,
            "/dns4/gw1.example.org/tcp/4001",
            "/ip4/192.0.2.1/tcp/4001",
            "/ip4/192.0.2.1/tcp/1/ip4/127.0.0.1/tcp/5001",
        ];
        let parse =
            |texts: &[&str]| -> Vec<Multiaddr> { texts.iter().map(|text| text.parse().expect("an address")).collect() };
        let expected = [
            "/dns4/gw1.example.org/tcp/4001",
            "/ip4/192.0.2.1/tcp/4001",
            "/ip4/192.0.2.1/udp/4001/quic-v1",
            "/ip4/127.0.0.1/tcp/4001",
            "/ip4/127.0.0.1/udp/4001/quic-v1",
        ];
        assert_eq!(best_addresses(parse(&all)), parse(&expected));
        // Those of many container networks do not displace that of the machine by QUIC.
        let many: Vec<String> = (0..100).map(|n| format!("/ip4/127.0.0.{n}/tcp/4001")).collect();
        let mut many: Vec<&str> = many.iter().map(String::as_str).collect();
        many.push("/ip4/192.0.2.1/udp/4001/quic-v1");
        let best = best_addresses(parse(&many));
        assert_eq!((best.len(), &best[..1]), (ADDRESSES_MAX, &parse(&many[100..])[..]));
    }
}
