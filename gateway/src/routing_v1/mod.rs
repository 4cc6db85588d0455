//! The Delegated Routing V1 HTTP API, answered (<https://specs.ipfs.tech/routing/http-routing-v1/>): providers, peers, IPNS records
//! and the neighbours of a key, for light clients that are no part of the DHT.
//!
//! Goals: records are sent as they are found; a search is work for the node, so a client has a bounded number at a time, and all
//! clients have; time is bounded as well, and what was found until then is the answer; who asks from outside hears of no private
//! address.
//!
//! Non-goals: asking other routers, lest two of them ask each other for ever; and taking records in (`PUT`).
//!
//! | module | concern |
//! |---|---|
//! | [`ask`] | what is asked for, and in which format |
//! | `answer` | heads and bodies |
//! | [`finder`] | who searches the network |
//! | [`metrics`] | what is counted |

pub mod ask;
pub mod finder;
pub mod metrics;

mod answer;

use crate::errors::{Problem, RoutingProblem};
use crate::request::client::Client;
use crate::respond::Draft;
use ask::{Asked, Format};
use content::names::{Key, NameError};
use content::{BlockSource, Name, NameResolver, Policy, Verdict};
use finder::Finder;
use futures::stream::{self, BoxStream, StreamExt as _};
use http::request::Parts;
use metrics::{Outcome, RoutingMetrics};
use p2p_bridge::routing_v1::filters::{FILTER_ADDRS, FILTER_PROTOCOLS};
use p2p_bridge::routing_v1::{Filters, PeerRecord};
use p2p_bridge::scope::{Scope, is_public};
use services::limiter::Limiter;
use services::url::parameter;
use std::sync::Arc;
use std::time::Duration;

/// Searches at a time, over all clients and for each of them, however many requests may fetch blocks.
const SEARCHES_MAX: u64 = 256;
const CLIENT_SEARCHES_MAX: u64 = 32;

/// What one answer may cost.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long a search may take. What was found until then is the answer.
    pub time: Duration,
    /// Records of an answer that is sent as a whole. Whoever wants more takes them as they are found.
    pub list_max: usize,
    /// Records of an answer that is sent as they are found.
    pub lines_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { time: Duration::from_secs(30), list_max: 20, lines_max: 1024 }
    }
}

/// What the API is made of.
pub struct Routing {
    finder: Arc<dyn Finder>,
    names: Arc<dyn NameResolver>,
    /// What is held here.
    local: Arc<dyn BlockSource>,
    searches: Arc<Limiter>,
    policy: Arc<dyn Policy>,
    limits: Limits,
    metrics: RoutingMetrics,
}

/// Who may search, by the settings for requests that fetch from it.
pub fn limiter(http: &config::Http) -> Limiter {
    let size = |value: u64, max: u64| usize::try_from(value.min(max)).unwrap_or(usize::MAX);
    Limiter::new(size(http.misses_max, SEARCHES_MAX), size(http.client_misses_max, CLIENT_SEARCHES_MAX))
}

impl Routing {
    /// Answers by what `finder` finds, what `names` knows, and what is held in `local`.
    pub fn new(
        finder: Arc<dyn Finder>,
        names: Arc<dyn NameResolver>,
        local: Arc<dyn BlockSource>,
        policy: Arc<dyn Policy>,
        searches: Limiter,
        limits: Limits,
        metrics: RoutingMetrics,
    ) -> Self {
        Self { finder, names, local, searches: Arc::new(searches), policy, limits, metrics }
    }

    /// Answers a request.
    ///
    /// # Errors
    /// [`Problem`] when it asks for nothing that there is, or too much is being searched for.
    pub async fn answer(&self, head: &Parts, client: &Client) -> Result<Draft, Problem> {
        let asked = match Asked::read(head.uri.path()) {
            Ok(asked) => asked,
            Err(problem) => {
                self.metrics.answered(metrics::UNKNOWN, Outcome::Invalid);
                return Err(problem);
            }
        };
        let endpoint = asked.endpoint();
        if let Err(problem) = self.check_policy(&asked) {
            self.metrics.answered(endpoint, Outcome::Failed);
            return Err(problem);
        }
        let answered = match asked {
            Asked::Record(key) => self.record(key, head, client).await,
            asked => self.peers(asked, head, client).await,
        };
        let outcome = match &answered {
            Ok((_, true)) => Outcome::Found,
            Ok((_, false)) => Outcome::Empty,
            Err(Problem::Routing(RoutingProblem::Busy) | Problem::Name(NameError::Busy)) => Outcome::Busy,
            Err(Problem::Routing(_)) => Outcome::Invalid,
            Err(_) => Outcome::Failed,
        };
        self.metrics.answered(endpoint, outcome);
        answered.map(|(draft, _)| draft)
    }

    /// Who has what is withheld, and what a name that is withheld stands for, is not told.
    fn check_policy(&self, asked: &Asked) -> Result<(), Problem> {
        match asked {
            Asked::Providers(cid) => match self.policy.check(cid) {
                Verdict::Allow => Ok(()),
                verdict => Err(Problem::Refused { cid: *cid, verdict }),
            },
            Asked::Record(key) => match self.policy.check_name(&Name::Key(*key), "") {
                Verdict::Allow => Ok(()),
                verdict => Err(NameError::Withheld { name: Name::Key(*key), verdict }.into()),
            },
            Asked::Peer(_) | Asked::Closest(_) => Ok(()),
        }
    }

    /// Peers, and whether there are any.
    async fn peers(&self, asked: Asked, head: &Parts, client: &Client) -> Result<(Draft, bool), Problem> {
        let format = Format::of_peers(&head.headers)?;
        let parameter = |name| head.uri.query().and_then(|query| parameter(query, name));
        let filters = Filters::read(parameter(FILTER_ADDRS).as_deref(), parameter(FILTER_PROTOCOLS).as_deref());
        let place = self.searches.acquire_soon(client.address).await.map_err(|_| RoutingProblem::Busy)?;
        let list = asked.list();
        let filters = if matches!(asked, Asked::Closest(_)) { Filters::default() } else { filters };
        let audience = if is_public(client.address) { Audience::Outside } else { Audience::Inside };
        let found = self.search(asked).await;
        let found = found.filter_map(move |record| {
            // The place is kept for as long as the search is.
            let _kept = &place;
            std::future::ready(audience.may_hear(record).and_then(|record| filters.apply(record)))
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

    /// Everybody who is found; this node first, if it holds what is asked for.
    async fn search(&self, asked: Asked) -> BoxStream<'static, PeerRecord> {
        match asked {
            Asked::Providers(cid) => {
                let held = self.local.has(&cid).await.unwrap_or(false);
                let ourselves = if held { self.finder.ourselves().await } else { None };
                let own_id = ourselves.as_ref().map(|record| record.id);
                let others = self.finder.providers(&cid);
                let others = others.filter(move |record| std::future::ready(Some(record.id) != own_id));
                stream::iter(ourselves).chain(others).boxed()
            }
            Asked::Peer(peer) => self.finder.peer(peer),
            Asked::Closest(key) => self.finder.closest(key),
            Asked::Record(_) => stream::empty().boxed(),
        }
    }

    /// An IPNS record, or that there is none.
    async fn record(&self, key: Key, head: &Parts, client: &Client) -> Result<(Draft, bool), Problem> {
        ask::accepts_record(&head.headers)?;
        let _place = self.searches.acquire_soon(client.address).await.map_err(|_| RoutingProblem::Busy)?;
        match tokio::time::timeout(self.limits.time, self.names.record(&key)).await {
            Ok(Ok(record)) => Ok((answer::record(&key, &record, &head.headers), true)),
            Ok(Err(error @ (NameError::Busy | NameError::Withheld { .. }))) => Err(error.into()),
            Ok(Err(error)) => Ok((answer::no_record(&error.to_string()), false)),
            Err(_) => Ok((answer::no_record("no record of the name was found in time"), false)),
        }
    }
}

/// Who hears the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Audience {
    /// Somebody on this machine or in its network.
    Inside,
    /// Somebody else, whom private addresses are of no use to and no business of.
    Outside,
}

impl Audience {
    /// What of a record may be told; `None` if nothing is left of where the peer is.
    fn may_hear(self, mut record: PeerRecord) -> Option<PeerRecord> {
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
    fn who_asks_from_outside_hears_of_no_private_address() {
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
            let heard = |audience: Audience| audience.may_hear(record(&addresses)).map(|record| record.addresses.len());
            assert_eq!((heard(Audience::Outside), heard(Audience::Inside)), (outside, inside), "{addresses:?}");
        }
    }
}
