//! What delegated routers know of a session's root: they are asked at the moment the DHT is ([`crate::routing_v1`]).
//!
//! Routers are strangers as far as addresses are concerned: private ones are not dialled unless the operator wants that, for
//! a router could send us scanning our own network.

use super::Task;
use crate::discovery::history::Informant;
use crate::discovery::plan::Provider;
use crate::http_source::address::is_http;
use crate::routing_v1::types::BITSWAP;
use crate::routing_v1::{Found, PeerRecord, Question, Routers};
use crate::scope::{Borders, Scope};
use crate::wants::SessionId;
use content::{Cid, Multihash, codec};
use libp2p::Multiaddr;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Records that routers may contribute to one search: those of a thousand providers that are not there use up half of its
/// dials at most.
const RECORDS_MAX: usize = 128;
/// What may wait for the swarm task of what routers said.
const TOLD_WAITING_MAX: usize = 64;

/// The routers, and what they said so far.
pub struct Delegation {
    routers: Routers,
    /// Whether private addresses are dialled that they name.
    pub(super) dial_private: bool,
    teller: mpsc::Sender<Told>,
    told: mpsc::Receiver<Told>,
    errands: u64,
}

impl Delegation {
    /// Asks these routers.
    pub fn new(routers: Routers, dial_private: bool) -> Self {
        let (teller, told) = mpsc::channel(TOLD_WAITING_MAX);
        Self { routers, dial_private, teller, told, errands: 0 }
    }

    /// Whether there are any routers.
    pub(super) fn asks_anybody(&self) -> bool {
        !self.routers.is_empty()
    }

    /// What a router said next.
    pub(super) async fn next(&mut self) -> Told {
        match self.told.recv().await {
            Some(told) => told,
            // We hold a sender ourselves.
            None => std::future::pending().await,
        }
    }
}

/// What routers said about a session's root.
pub(super) struct Told {
    session: SessionId,
    /// Which search of the session was meant.
    number: u64,
    /// None: that was all.
    record: Option<PeerRecord>,
}

/// Routers being asked, until this is dropped.
#[derive(Debug)]
pub(super) struct Errand {
    number: u64,
    task: JoinHandle<()>,
}

impl Drop for Errand {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(mut found: Found, tell: mpsc::Sender<Told>, session: SessionId, number: u64) {
    for _ in 0..RECORDS_MAX {
        let Some(record) = found.next().await else { break };
        let record = Some(record);
        // The task that is told may have ended.
        if tell.send(Told { session, number, record }).await.is_err() {
            return;
        }
    }
    let _ = tell.send(Told { session, number, record: None }).await;
}

impl Task {
    /// Asks the routers about a block of a session, its root usually, if there are any routers.
    pub(super) fn ask_routers(&mut self, session: SessionId, block: Multihash) -> Option<Errand> {
        let Delegation { routers, teller, errands, .. } = &mut self.delegation;
        if routers.is_empty() {
            return None;
        }
        *errands += 1;
        let number = *errands;
        let found = routers.find(&Question::Providers(Cid::new_v1(codec::RAW, block)));
        let task = tokio::spawn(run(found, teller.clone(), session, number));
        self.history.asked(&session, Informant::Router);
        Some(Errand { number, task })
    }

    pub(super) fn on_told(&mut self, told: Told) {
        let Told { session, number, record } = told;
        let Some(search) = self.searches.get_mut(&session) else { return };
        if search.routers.as_ref().is_none_or(|errand| errand.number != number) {
            return;
        }
        match record {
            Some(record) => self.on_routed(session, record),
            None => {
                search.routers = None;
                self.history.answered(&session, Informant::Router, Instant::now());
                self.end_search_if_over(session);
            }
        }
    }

    /// A router named a provider.
    fn on_routed(&mut self, session: SessionId, record: PeerRecord) {
        if record.id == *self.swarm.local_peer_id() {
            return;
        }
        let (over_http, as_peer) = ways_to(&record, self.delegation.dial_private);
        if !over_http.is_empty() {
            self.http_provider(session, over_http);
        }
        if let Some(addresses) = as_peer {
            self.provider_named(session, Provider { peer: record.id, addresses }, Informant::Router);
        }
    }

    /// A trustless gateway that has the root, by the addresses that end in HTTP.
    fn http_provider(&mut self, session: SessionId, mut addresses: Vec<Multiaddr>) {
        self.offer_gateways(session, &mut addresses);
        if let Some(search) = self.searches.get_mut(&session) {
            search.found = true;
        }
    }
}

/// Where a provider can be asked over HTTP, and where as a peer, if it is one.
///
/// An address of HTTP says by itself how it is asked. `Protocols` is what somebody knew to be spoken; it may be missing, or name
/// Bitswap alone (<https://specs.ipfs.tech/routing/http-routing-v1/#peer-schema>).
fn ways_to(record: &PeerRecord, dial_private: bool) -> (Vec<Multiaddr>, Option<Vec<Multiaddr>>) {
    let (over_http, to_dial) = sort(&record.addresses, dial_private);
    // One of whom no address may be dialled is of no use; one whose address nobody said can be looked for.
    let is_of_use = !to_dial.is_empty() || record.addresses.is_empty();
    let mut protocols = record.protocols.iter();
    let is_peer = protocols.len() == 0 || protocols.any(|protocol| protocol.eq_ignore_ascii_case(BITSWAP));
    (over_http, (is_of_use && is_peer).then_some(to_dial))
}

/// The addresses that may be dialled: those of HTTP servers, and those of libp2p peers.
fn sort(addresses: &[Multiaddr], dial_private: bool) -> (Vec<Multiaddr>, Vec<Multiaddr>) {
    let borders = Borders { dial_private };
    let over_http = addresses.iter().filter(|address| is_http(address) && borders.admits(Scope::Wan, address));
    let to_dial = addresses.iter().filter(|address| borders.may_dial(Scope::Wan, address));
    (over_http.cloned().collect(), to_dial.cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routers_cannot_send_us_into_our_own_network() {
        let texts = [
            "/ip4/8.8.8.8/tcp/4001",
            "/ip4/10.0.0.1/tcp/4001",
            "/ip4/127.0.0.1/udp/4001/quic-v1",
            "/dns4/a.example/tcp/443/tls/http",
            "/dns4/a.example/tcp/443/https",
            "/ip4/192.168.0.1/tcp/80/http",
            "/dns4/a.example/tcp/443/tls/ws",
            "/memory/1",
        ];
        let addresses = texts.map(|text| text.parse::<Multiaddr>().expect("an address"));
        let table: [(bool, &[usize], &[usize]); 2] = [(false, &[3, 4], &[0]), (true, &[3, 4, 5], &[0, 1, 2, 6, 7])];
        for (dial_private, http, dialled) in table {
            let pick = |places: &[usize]| places.iter().map(|place| addresses[*place].clone()).collect::<Vec<_>>();
            assert_eq!(sort(&addresses, dial_private), (pick(http), pick(dialled)), "{dial_private}");
        }
    }

    #[test]
    fn addresses_say_who_is_asked_over_http_whatever_the_protocols() {
        const HTTPS: &str = "/dns4/a.example/tcp/443/https";
        const TLS_HTTP: &str = "/dns4/a.example/tcp/443/tls/http";
        const PEER: &str = "/ip4/8.8.8.8/tcp/4001";
        const PRIVATE: &str = "/ip4/10.0.0.1/tcp/80/http";
        const GATEWAY: &str = "transport-ipfs-gateway-http";
        // Addresses, protocols, those asked over HTTP, and those dialled, if it is a peer at all.
        type Row<'a> = (&'a [&'a str], &'a [&'a str], &'a [&'a str], Option<&'a [&'a str]>);
        let table: [Row; 9] = [
            (&[HTTPS, TLS_HTTP], &[], &[HTTPS, TLS_HTTP], None),
            (&[TLS_HTTP], &[BITSWAP], &[TLS_HTTP], None),
            (&[TLS_HTTP], &[GATEWAY], &[TLS_HTTP], None),
            (&[TLS_HTTP, PEER], &[], &[TLS_HTTP], Some(&[PEER])),
            (&[TLS_HTTP, PEER], &["Transport-Bitswap"], &[TLS_HTTP], Some(&[PEER])),
            (&[TLS_HTTP, PEER], &[GATEWAY], &[TLS_HTTP], None),
            (&[PRIVATE], &[], &[], None),
            (&[], &[], &[], Some(&[])),
            (&[], &[GATEWAY], &[], None),
        ];
        let parse =
            |texts: &[&str]| -> Vec<Multiaddr> { texts.iter().map(|text| text.parse().expect("an address")).collect() };
        for (addresses, protocols, over_http, as_peer) in table {
            let mut record = PeerRecord::new(libp2p::PeerId::random(), parse(addresses));
            record.protocols = protocols.iter().map(|protocol| (*protocol).to_owned()).collect();
            let expected = (parse(over_http), as_peer.map(parse));
            assert_eq!(ways_to(&record, false), expected, "{addresses:?} {protocols:?}");
        }
    }
}
