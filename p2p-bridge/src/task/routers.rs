//! Delegated routers as sources of providers, asked in parallel with the DHT ([`crate::routing_v1`]).
//!
//! Addresses from routers are untrusted: private ones are not dialled unless configured, since a router could make the
//! node scan its own network.

use super::Task;
use crate::discovery::history::ProviderSource;
use crate::discovery::plan::Provider;
use crate::http_source::address::is_http;
use crate::observers::{SearchSource, SessionEvent};
use crate::routing_v1::types::BITSWAP;
use crate::routing_v1::{PeerRecord, Question, RouterRecords, Routers};
use crate::scope::{AddressPolicy, Scope};
use crate::wants::SessionId;
use content::{Cid, Multihash, codec};
use libp2p::Multiaddr;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// The maximum number of records from routers per search: a thousand unreachable providers would use up half of its
/// dials.
const RECORDS_MAX: usize = 128;
/// The capacity of the channel from the routers' tasks to the swarm task.
const RECORDS_WAITING_MAX: usize = 64;

/// The routers, and the channel for their records.
pub struct Delegation {
    routers: Routers,
    /// Whether private addresses from routers are dialled.
    pub(super) dial_private: bool,
    sender: mpsc::Sender<RoutedRecord>,
    records: mpsc::Receiver<RoutedRecord>,
    requests_started: u64,
}

impl Delegation {
    /// Uses these routers.
    pub fn new(routers: Routers, dial_private: bool) -> Self {
        let (sender, records) = mpsc::channel(RECORDS_WAITING_MAX);
        Self { routers, dial_private, sender, records, requests_started: 0 }
    }

    /// Whether any router is configured.
    pub(super) fn has_routers(&self) -> bool {
        !self.routers.is_empty()
    }

    /// The next record of a router.
    pub(super) async fn next(&mut self) -> RoutedRecord {
        match self.records.recv().await {
            Some(record) => record,
            // `self` holds a sender.
            None => std::future::pending().await,
        }
    }
}

/// A record from a router about a session's root.
pub(super) struct RoutedRecord {
    session: SessionId,
    /// The number of the session's search.
    number: u64,
    /// The record; `None` at the end.
    record: Option<PeerRecord>,
}

/// A running request to the routers, aborted on drop.
#[derive(Debug)]
pub(super) struct RouterRequest {
    number: u64,
    task: JoinHandle<()>,
}

impl Drop for RouterRequest {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(mut found: RouterRecords, sender: mpsc::Sender<RoutedRecord>, session: SessionId, number: u64) {
    for _ in 0..RECORDS_MAX {
        let Some(record) = found.next().await else { break };
        let record = Some(record);
        // The swarm task may have ended.
        if sender.send(RoutedRecord { session, number, record }).await.is_err() {
            return;
        }
    }
    let _ = sender.send(RoutedRecord { session, number, record: None }).await;
}

impl Task {
    /// Asks the routers, if there are any, for providers of a session's block, usually its root.
    pub(super) fn ask_routers(&mut self, session: SessionId, block: Multihash) -> Option<RouterRequest> {
        let Delegation { routers, sender, requests_started, .. } = &mut self.delegation;
        if routers.is_empty() {
            return None;
        }
        *requests_started += 1;
        let number = *requests_started;
        let found = routers.find(&Question::Providers(Cid::new_v1(codec::RAW, block)));
        let task = tokio::spawn(run(found, sender.clone(), session, number));
        self.history.asked(&session, ProviderSource::Router);
        self.tell(&session, SessionEvent::SearchStarted(SearchSource::Routers));
        Some(RouterRequest { number, task })
    }

    pub(super) fn on_routed_record(&mut self, routed: RoutedRecord) {
        let RoutedRecord { session, number, record } = routed;
        let Some(search) = self.searches.get_mut(&session) else { return };
        if search.routers.as_ref().is_none_or(|request| request.number != number) {
            return;
        }
        match record {
            Some(record) => self.on_routed(session, record),
            None => {
                search.routers = None;
                self.history.answered(&session, ProviderSource::Router, Instant::now());
                let source = SearchSource::Routers;
                self.tell(&session, SessionEvent::SearchEnded { source, peers_asked: None, is_complete: true });
                self.end_search_if_over(session);
            }
        }
    }

    /// A router returned a provider.
    fn on_routed(&mut self, session: SessionId, record: PeerRecord) {
        if record.id == *self.swarm.local_peer_id() {
            return;
        }
        let (over_http, as_peer) = addresses_by_protocol(&record, self.delegation.dial_private);
        if !over_http.is_empty() {
            self.http_provider(session, over_http);
        }
        if let Some(addresses) = as_peer {
            self.provider_named(session, Provider { peer: record.id, addresses }, ProviderSource::Router);
        }
    }

    /// A trustless gateway that has the root, by its HTTP addresses.
    fn http_provider(&mut self, session: SessionId, mut addresses: Vec<Multiaddr>) {
        self.offer_gateways(session, &mut addresses);
        self.tell(&session, SessionEvent::ProviderFound(SearchSource::Routers));
        if let Some(search) = self.searches.get_mut(&session) {
            search.found = true;
        }
    }
}

/// The HTTP addresses of a provider, and its addresses as a peer, if it is one.
///
/// HTTP addresses are recognised by themselves. `Protocols` is only a hint: it may be missing, or contain only Bitswap
/// (<https://specs.ipfs.tech/routing/http-routing-v1/#peer-schema>).
fn addresses_by_protocol(record: &PeerRecord, dial_private: bool) -> (Vec<Multiaddr>, Option<Vec<Multiaddr>>) {
    let (over_http, to_dial) = sort_by_protocol(&record.addresses, dial_private);
    // A provider whose addresses may not be dialled is useless; one without addresses can be looked up.
    let is_of_use = !to_dial.is_empty() || record.addresses.is_empty();
    let mut protocols = record.protocols.iter();
    let is_peer = protocols.len() == 0 || protocols.any(|protocol| protocol.eq_ignore_ascii_case(BITSWAP));
    (over_http, (is_of_use && is_peer).then_some(to_dial))
}

/// The addresses that may be dialled: those of HTTP servers, and those of libp2p peers.
fn sort_by_protocol(addresses: &[Multiaddr], dial_private: bool) -> (Vec<Multiaddr>, Vec<Multiaddr>) {
    let borders = AddressPolicy { dial_private };
    let over_http = addresses.iter().filter(|address| is_http(address) && borders.admits(Scope::Wan, address));
    let to_dial = addresses.iter().filter(|address| borders.may_dial(Scope::Wan, address));
    (over_http.cloned().collect(), to_dial.cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_from_routers_are_not_dialled() {
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
            let pick = |indices: &[usize]| indices.iter().map(|index| addresses[*index].clone()).collect::<Vec<_>>();
            assert_eq!(sort_by_protocol(&addresses, dial_private), (pick(http), pick(dialled)), "{dial_private}");
        }
    }

    #[test]
    fn http_addresses_are_recognised_whatever_the_protocols() {
        const HTTPS: &str = "/dns4/a.example/tcp/443/https";
        const TLS_HTTP: &str = "/dns4/a.example/tcp/443/tls/http";
        const PEER: &str = "/ip4/8.8.8.8/tcp/4001";
        const PRIVATE: &str = "/ip4/10.0.0.1/tcp/80/http";
        const GATEWAY: &str = "transport-ipfs-gateway-http";
        // Addresses, protocols, the HTTP addresses, and the addresses as a peer, if it is one.
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
            assert_eq!(addresses_by_protocol(&record, false), expected, "{addresses:?} {protocols:?}");
        }
    }
}
