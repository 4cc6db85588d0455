//! The server of the Delegated Routing V1 HTTP API (<https://specs.ipfs.tech/routing/http-routing-v1/>): providers,
//! peers, IPNS records and the closest peers of a key, for light clients that are not DHT nodes.
//!
//! Goals: records are streamed as they are found; concurrent searches are limited for each client and in total;
//! searches have a timeout, after which the response ends with the records found; clients outside the local network
//! receive no private addresses.
//!
//! Non-goals: forwarding to other routers, which could form a loop; publishing records (`PUT`).
//!
//! | module | concern |
//! |---|---|
//! | [`ask`] | parsing and format negotiation |
//! | `answer` | responses |
//! | [`finder`] | searches of the network |
//! | [`metrics`] | metrics |

pub mod ask;
pub mod finder;
pub mod metrics;

mod answer;

use crate::errors::{Problem, RoutingProblem};
use crate::request::client::Client;
use crate::respond::Draft;
use ask::{Format, RoutingRequest};
use content::names::{Key, NameError};
use content::{BlockSource, Name, NameResolver, Policy, Verdict};
use finder::PeerFinder;
use futures::stream::{self, BoxStream, StreamExt as _};
use http::request::Parts;
use metrics::{RequestResult, RoutingMetrics};
use p2p_bridge::routing_v1::filters::{FILTER_ADDRS, FILTER_PROTOCOLS};
use p2p_bridge::routing_v1::{Filters, PeerRecord};
use p2p_bridge::scope::{Scope, is_public};
use services::limiter::{Limiter, Permit};
use services::url::parameter;
use std::sync::Arc;
use std::time::Duration;

/// Upper limits of concurrent searches, in total and for each client, independent of the limits of fetches.
const SEARCHES_MAX: u64 = 256;
const CLIENT_SEARCHES_MAX: u64 = 32;

/// The limits of a response.
#[derive(Debug, Clone, Copy)]
pub struct RoutingResponseLimits {
    /// The timeout of a search.
    pub time: Duration,
    /// The maximum number of records in a JSON response. Streamed responses can have more.
    pub list_max: usize,
    /// The maximum number of records in a streamed response.
    pub lines_max: usize,
}

impl Default for RoutingResponseLimits {
    fn default() -> Self {
        Self { time: Duration::from_secs(30), list_max: 20, lines_max: 1024 }
    }
}

/// The server of the routing API.
pub struct Routing {
    finder: Arc<dyn PeerFinder>,
    names: Arc<dyn NameResolver>,
    /// The blocks that are stored locally.
    local: Arc<dyn BlockSource>,
    searches: Arc<Limiter>,
    policy: Arc<dyn Policy>,
    limits: RoutingResponseLimits,
    metrics: RoutingMetrics,
}

/// The limiter of searches, derived from the limits of fetches.
pub fn limiter(http: &config::Http) -> Limiter {
    let size = |value: u64, max: u64| usize::try_from(value.min(max)).unwrap_or(usize::MAX);
    Limiter::new(size(http.misses_max, SEARCHES_MAX), size(http.client_misses_max, CLIENT_SEARCHES_MAX))
}

impl Routing {
    /// A server that searches with `finder`, resolves names with `names`, and announces this node for the blocks in
    /// `local`.
    pub fn new(
        finder: Arc<dyn PeerFinder>,
        names: Arc<dyn NameResolver>,
        local: Arc<dyn BlockSource>,
        policy: Arc<dyn Policy>,
        searches: Limiter,
        limits: RoutingResponseLimits,
        metrics: RoutingMetrics,
    ) -> Self {
        Self { finder, names, local, searches: Arc::new(searches), policy, limits, metrics }
    }

    /// Answers a request.
    ///
    /// # Errors
    /// [`Problem`] when the request is invalid, or the limit of searches is reached.
    pub async fn answer(&self, head: &Parts, client: &Client) -> Result<Draft, Problem> {
        let request = match RoutingRequest::read(head.uri.path()) {
            Ok(request) => request,
            Err(problem) => {
                self.metrics.answered(metrics::UNKNOWN, RequestResult::Invalid);
                return Err(problem);
            }
        };
        let endpoint = request.endpoint();
        if let Err(problem) = self.check_policy(&request) {
            self.metrics.answered(endpoint, RequestResult::Failed);
            return Err(problem);
        }
        let answered = match request {
            RoutingRequest::Record(key) => self.record(key, head, client).await,
            request => self.peers(request, head, client).await,
        };
        let result = match &answered {
            Ok((_, true)) => RequestResult::Found,
            Ok((_, false)) => RequestResult::Empty,
            Err(Problem::Routing(RoutingProblem::Busy { .. }) | Problem::Name(NameError::Busy)) => RequestResult::Busy,
            Err(Problem::Routing(_)) => RequestResult::Invalid,
            Err(_) => RequestResult::Failed,
        };
        self.metrics.answered(endpoint, result);
        answered.map(|(draft, _)| draft)
    }

    /// Providers of withheld blocks and records of withheld names are not returned.
    fn check_policy(&self, request: &RoutingRequest) -> Result<(), Problem> {
        match request {
            RoutingRequest::Providers(cid) => match self.policy.check(cid) {
                Verdict::Allow => Ok(()),
                verdict => Err(Problem::Refused { cid: *cid, verdict }),
            },
            RoutingRequest::Record(key) => match self.policy.check_name(&Name::Key(*key), "") {
                Verdict::Allow => Ok(()),
                verdict => Err(NameError::Withheld { name: Name::Key(*key), path: String::new(), verdict }.into()),
            },
            RoutingRequest::Peer(_) | RoutingRequest::Closest(_) => Ok(()),
        }
    }

    /// A permit for a search.
    async fn permit(&self, client: &Client) -> Result<Permit, RoutingProblem> {
        let busy = |_| RoutingProblem::Busy { retry_after: self.searches.retry_after() };
        self.searches.acquire_soon(client.address).await.map_err(busy)
    }

    /// A response with peers, and whether there are any.
    async fn peers(&self, request: RoutingRequest, head: &Parts, client: &Client) -> Result<(Draft, bool), Problem> {
        let format = Format::of_peers(&head.headers)?;
        let parameter = |name| head.uri.query().and_then(|query| parameter(query, name));
        let filters = Filters::read(parameter(FILTER_ADDRS).as_deref(), parameter(FILTER_PROTOCOLS).as_deref());
        let permit = self.permit(client).await?;
        let list = request.list();
        let filters = if matches!(request, RoutingRequest::Closest(_)) { Filters::default() } else { filters };
        let audience = if is_public(client.address) { Audience::Outside } else { Audience::Inside };
        let found = self.search(request).await;
        let found = found.filter_map(move |record| {
            // The permit is held until the search ends.
            let _permit = &permit;
            std::future::ready(audience.filter_for(record).and_then(|record| filters.apply(record)))
        });
        let found = found.take_until(tokio::time::sleep(self.limits.time));
        match format {
            Format::Lines => Ok(answer::lines(found.take(self.limits.lines_max).boxed(), audience).await),
            Format::List => {
                let records: Vec<PeerRecord> = found.take(self.limits.list_max).collect().await;
                Ok((answer::list(list, &records, audience), !records.is_empty()))
            }
        }
    }

    /// The records of a search; this node comes first if it has the block.
    async fn search(&self, request: RoutingRequest) -> BoxStream<'static, PeerRecord> {
        match request {
            RoutingRequest::Providers(cid) => {
                let held = self.local.has(&cid).await.unwrap_or(false);
                let own_record = if held { self.finder.own_record().await } else { None };
                let own_id = own_record.as_ref().map(|record| record.id);
                let others = self.finder.providers(&cid);
                let others = others.filter(move |record| std::future::ready(Some(record.id) != own_id));
                stream::iter(own_record).chain(others).boxed()
            }
            RoutingRequest::Peer(peer) => self.finder.peer(peer),
            RoutingRequest::Closest(key) => self.finder.closest(key),
            RoutingRequest::Record(_) => stream::empty().boxed(),
        }
    }

    /// An IPNS record, or the reason why there is none.
    async fn record(&self, key: Key, head: &Parts, client: &Client) -> Result<(Draft, bool), Problem> {
        ask::accepts_record(&head.headers)?;
        let _permit = self.permit(client).await?;
        match tokio::time::timeout(self.limits.time, self.names.record(&key)).await {
            Ok(Ok(record)) => Ok((answer::record(&key, &record, &head.headers), true)),
            Ok(Err(error @ (NameError::Busy | NameError::Withheld { .. }))) => Err(error.into()),
            Ok(Err(error)) => Ok((answer::no_record(&error.to_string()), false)),
            Err(_) => Ok((answer::no_record("no record of the name was found in time"), false)),
        }
    }
}

/// The recipient of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Audience {
    /// A client on this machine or in its local network.
    Inside,
    /// Any other client, which receives no private addresses.
    Outside,
}

impl Audience {
    /// The record without the addresses that the recipient must not receive; `None` if no address is left.
    fn filter_for(self, mut record: PeerRecord) -> Option<PeerRecord> {
        if self == Self::Outside && !record.addresses.is_empty() {
            record.addresses.retain(|address| Scope::Wan.admits(address));
            if record.addresses.is_empty() {
                return None;
            }
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::PeerId;

    #[test]
    fn public_clients_get_no_private_addresses() {
        let record = |addresses: &[&str]| {
            PeerRecord::new(PeerId::random(), addresses.iter().map(|text| text.parse().expect("an address")).collect())
        };
        let (public, private) = ("/ip4/8.8.8.8/tcp/1", "/ip4/10.0.0.1/tcp/1");
        let table = [
            (vec![public, private], Some(1), Some(2)),
            (vec![private], None, Some(1)),
            (vec![], Some(0), Some(0)),
            (vec![public], Some(1), Some(1)),
        ];
        for (addresses, outside, inside) in table {
            let heard =
                |audience: Audience| audience.filter_for(record(&addresses)).map(|record| record.addresses.len());
            assert_eq!((heard(Audience::Outside), heard(Audience::Inside)), (outside, inside), "{addresses:?}");
        }
    }
}
