//! [`Clients`]: what clients of a site do: they upload, pin, replace, unpin and read, at any gateway.
//!
//! Each client changes its own pins, one after the other, so that it knows what the site has to have of them. A change
//! whose answer is lost is looked up later.

use super::Dice;
use super::faults::Fleet;
use super::ledger::{Expected, Ledger, Pin};
use crate::support::causeway::{Causeway, TOKEN};
use crate::support::noise::Noise;
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

const CLIENTS: u64 = 3;
/// A client that has so many pins removes some before it adds others.
const PINS_MAX: usize = 10;
/// After this a client takes the answer for lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(12);
/// The time between an answer and the next request of a client is below this, in milliseconds.
const THINK_MILLIS: u64 = 60;
/// The contents of which the source has the DAGs.
pub const SOURCE_CONTENTS: Range<u64> = 1_000_000..1_000_040;

/// The bytes of a content: 1 to 700,000. Some begin with the same 256 KiB, a block that their DAGs share.
pub fn content(number: u64) -> Vec<u8> {
    let mut dice = Dice::new(number);
    let bytes = usize::try_from(1 + dice.below(400_000)).expect("fits");
    let own = Noise::bytes(1_000 + number, if dice.below(3) == 0 { bytes / 100 + 1 } else { bytes });
    match number.is_multiple_of(3) {
        true => [Noise::bytes(number % 2, 256 << 10), own].concat(),
        false => own,
    }
}

/// Where a gateway answers.
#[derive(Debug, Clone)]
pub struct Endpoint {
    pub gateway: usize,
    pub public: String,
    pub admin: String,
}

impl Endpoint {
    pub fn of(gateway: usize, node: &Causeway) -> Self {
        Self { gateway, public: node.url(""), admin: node.admin_url().to_owned() }
    }

    /// All pins that a gateway lists, by the numbers of their requests.
    pub async fn listed(&self, http: &Client) -> Result<Value, String> {
        let url = format!("{}/psa/pins?status=queued,pinning,pinned,failed&limit=1000", self.admin);
        let response = http.get(url).bearer_auth(TOKEN).send().await.map_err(|error| error.to_string())?;
        let body = response.bytes().await.map_err(|error| error.to_string())?;
        serde_json::from_slice(&body).map_err(|error| error.to_string())
    }
}

/// What a client knows of a gateway.
#[derive(Debug, Clone)]
pub enum Reach {
    Running(Endpoint),
    /// It accepts connections, and may carry out requests much later.
    Paused(Endpoint),
    Down,
}

/// What clients and faults share.
pub struct Shared {
    pub ledger: Arc<Ledger>,
    pub gateways: Mutex<Vec<Reach>>,
    /// The CIDs of [`SOURCE_CONTENTS`].
    pub sources: Vec<String>,
    /// Whether clients pin again what was unpinned.
    pub pins_again: bool,
    next_source: AtomicUsize,
    is_ending: AtomicBool,
}

impl Shared {
    pub fn new(ledger: Arc<Ledger>, gateways: usize, sources: Vec<String>, pins_again: bool) -> Self {
        let gateways = Mutex::new(vec![Reach::Down; gateways]);
        let (next_source, is_ending) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { ledger, gateways, sources, pins_again, next_source, is_ending }
    }

    pub fn set(&self, gateway: usize, reach: Reach) {
        self.gateways.lock().unwrap_or_else(PoisonError::into_inner)[gateway] = reach;
    }

    /// A gateway that runs, or seldom one that is paused.
    fn any_gateway(&self, dice: &mut Dice) -> Option<Endpoint> {
        let gateways = self.gateways.lock().unwrap_or_else(PoisonError::into_inner);
        let may_be_paused = dice.below(16) == 0;
        let usable = |reach: &Reach| match reach {
            Reach::Running(endpoint) => Some(endpoint.clone()),
            Reach::Paused(endpoint) => may_be_paused.then(|| endpoint.clone()),
            Reach::Down => None,
        };
        let mut usable: Vec<Endpoint> = gateways.iter().filter_map(usable).collect();
        let chosen = dice.below(usable.len().max(1) as u64);
        (!usable.is_empty()).then(|| usable.swap_remove(usize::try_from(chosen).expect("fits")))
    }

    /// The number of a content that the source has: one that was not used before, unless clients pin again.
    fn next_source(&self, dice: &mut Dice) -> Option<usize> {
        if self.pins_again {
            return Some(usize::try_from(dice.below(self.sources.len() as u64)).expect("fits"));
        }
        Some(self.next_source.fetch_add(1, Ordering::Relaxed)).filter(|index| *index < self.sources.len())
    }
}

/// The clients of a site, which end with this.
pub struct Clients {
    shared: Arc<Shared>,
    running: JoinSet<()>,
}

impl Clients {
    pub fn start(fleet: &Fleet, seed: u64) -> Self {
        let shared = Arc::clone(fleet.shared());
        let mut running = JoinSet::new();
        for number in 0..CLIENTS {
            let dice = Dice::new(seed.wrapping_mul(CLIENTS + 1).wrapping_add(number + 1));
            let client = SiteClient { number, dice, shared: Arc::clone(&shared), http: new_http(), next: 0 };
            running.spawn(client.run());
        }
        Self { shared, running }
    }

    /// Ends them after their current requests.
    pub async fn stop(mut self) {
        self.shared.is_ending.store(true, Ordering::Relaxed);
        while let Some(ended) = self.running.join_next().await {
            ended.expect("a client does not panic");
        }
    }
}

/// Without connections that are kept: gateways are killed.
pub fn new_http() -> Client {
    p2p_bridge::tls::use_ring();
    let client = Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).pool_max_idle_per_host(0);
    client.timeout(ANSWER_TIMEOUT).build().expect("a client without TLS needs nothing that could be missing")
}

/// An answer.
struct Reply {
    status: u16,
    body: bytes::Bytes,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

struct SiteClient {
    number: u64,
    dice: Dice,
    shared: Arc<Shared>,
    http: Client,
    next: u64,
}

impl SiteClient {
    async fn run(mut self) {
        while !self.shared.is_ending.load(Ordering::Relaxed) {
            if let Some(at) = self.shared.any_gateway(&mut self.dice) {
                self.step(&at).await;
            }
            sleep(self.dice.millis_below(THINK_MILLIS)).await;
        }
    }

    async fn step(&mut self, at: &Endpoint) {
        let kept = self.ledger().pins_of(self.number, Expected::Kept);
        let doubtful = self.ledger().pins_of(self.number, Expected::Either);
        let action = self.dice.below(12);
        match (action, self.one_of(kept.clone()), self.one_of(doubtful)) {
            (0..3, _, _) if kept.len() < PINS_MAX => self.upload(at).await,
            (3, _, _) if kept.len() < PINS_MAX => self.request(at, None).await,
            (4, Some(replaced), _) => self.request(at, Some(replaced)).await,
            (0..6, Some(pin), _) => self.remove(at, pin).await,
            (6..8, _, Some(pin)) => self.look_up(at, pin).await,
            (_, Some((_, pin)), _) => self.read(at, &pin).await,
            _ => {}
        }
    }

    fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    fn one_of<T>(&mut self, mut items: Vec<T>) -> Option<T> {
        let chosen = self.dice.below(items.len().max(1) as u64);
        (!items.is_empty()).then(|| items.swap_remove(usize::try_from(chosen).expect("fits")))
    }

    /// A name that no other pin has.
    fn new_name(&mut self) -> String {
        self.next += 1;
        format!("{}-{}", self.number, self.next)
    }

    /// Sends a request. `None` if there is no whole answer.
    async fn send(&self, what: &str, at: &Endpoint, request: RequestBuilder) -> Option<Reply> {
        let answered = async {
            let response = request.send().await?;
            let has_retry_after = response.headers().contains_key("retry-after");
            let (status, url) = (response.status().as_u16(), response.url().clone());
            Ok::<_, reqwest::Error>((status, has_retry_after, url, response.bytes().await?))
        };
        let Ok((status, has_retry_after, url, body)) = answered.await else {
            self.ledger().count(format!("{what} unanswered"));
            return None;
        };
        self.ledger().count(format!("{what} {status}"));
        if status >= 500 && !(status == 503 && has_retry_after) {
            let text = String::from_utf8_lossy(&body).chars().take(500).collect::<String>();
            let retry = if has_retry_after { "" } else { " without Retry-After" };
            self.ledger().violation(format!("{what} {url} at gateway {}: {status}{retry}: {text}", at.gateway));
        }
        Some(Reply { status, body })
    }

    fn admin(&self, at: &Endpoint, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", at.admin)).bearer_auth(TOKEN)
    }

    /// Notes an acknowledgement, or the end of a change of which nothing is known.
    fn note(&self, what: &str, at: &Endpoint, reply: Option<&Reply>) {
        let status = reply.map_or_else(|| "no answer".to_owned(), |reply| reply.status.to_string());
        self.ledger().note(format!("client {}: {what} at gateway {}: {status}", self.number, at.gateway));
    }

    /// Statuses that are none of these are errors of the site.
    fn expect_status(&self, what: &str, reply: Option<&Reply>, expected: &[u16]) {
        if let Some(reply) = reply.filter(|reply| reply.status != 503 && !expected.contains(&reply.status)) {
            let text = String::from_utf8_lossy(&reply.body).chars().take(500).collect::<String>();
            self.ledger().violation(format!("{what}: {}: {text}", reply.status));
        }
    }

    async fn upload(&mut self, at: &Endpoint) {
        let name = self.new_name();
        let number = match self.shared.pins_again {
            // Those of other clients as well.
            true => self.dice.below(60),
            false => self.number * 10_000 + self.next,
        };
        let index = self.ledger().begin(self.number, &name, number, true);
        let request = self.admin(at, Method::POST, &format!("/upload?pin-name={name}")).body(content(number));
        let reply = self.send("upload", at, request).await;
        let what = format!("upload {name}, content {number}");
        // 409: a pin of the same content is being removed.
        self.expect_status(&what, reply.as_ref(), &[200, 409, 429]);
        if let Some(reply) = reply.as_ref().filter(|reply| reply.status == 200) {
            let root = &reply.json()["roots"][0];
            match (root["pin"].as_str(), root["cid"].as_str()) {
                (Some(id), Some(cid)) => self.ledger().keep(index, id, cid),
                _ => self.ledger().violation(format!("{what}: {root}")),
            }
        }
        self.note(&what, at, reply.as_ref());
    }

    /// Requests a DAG of the source, in place of another pin if one is given.
    async fn request(&mut self, at: &Endpoint, replaced: Option<(usize, Pin)>) {
        let Some(source) = self.shared.next_source(&mut self.dice) else { return };
        let (name, cid) = (self.new_name(), self.shared.sources[source].clone());
        let index = self.ledger().begin(self.number, &name, SOURCE_CONTENTS.start + source as u64, false);
        let former = replaced.as_ref().and_then(|(_, pin)| pin.known.as_ref());
        let path = former.map_or_else(|| "/psa/pins".to_owned(), |(id, _)| format!("/psa/pins/{id}"));
        let what = match &replaced {
            Some((_, pin)) => format!("pin {name}, {cid}, in place of {}", pin.name),
            None => format!("pin {name}, {cid}"),
        };
        if let Some((former, _)) = &replaced {
            self.ledger().doubt(*former);
        }
        let request = self.admin(at, Method::POST, &path).body(json!({ "cid": cid, "name": name }).to_string());
        let reply = self.send("pin", at, request).await;
        self.expect_status(&what, reply.as_ref(), &[202]);
        if let Some(reply) = reply.as_ref().filter(|reply| reply.status == 202) {
            match reply.json()["requestid"].as_str() {
                Some(id) => self.ledger().keep(index, id, &cid),
                None => self.ledger().violation(format!("{what}: {}", reply.json())),
            }
            if let Some((former, _)) = replaced {
                self.ledger().remove(former);
            }
        }
        self.note(&what, at, reply.as_ref());
    }

    /// Removes a pin that the site has to have.
    async fn remove(&self, at: &Endpoint, (index, pin): (usize, Pin)) {
        let Some((id, _)) = &pin.known else { return };
        self.ledger().doubt(index);
        let reply = self.send("unpin", at, self.admin(at, Method::DELETE, &format!("/psa/pins/{id}"))).await;
        let what = format!("unpin {}", pin.name);
        self.expect_status(&what, reply.as_ref(), &[202]);
        if reply.as_ref().is_some_and(|reply| reply.status == 202) {
            self.ledger().remove(index);
        }
        self.note(&what, at, reply.as_ref());
    }

    /// Finds out what has become of a change whose answer was lost: a pin is looked for by its name, and a removal
    /// repeated.
    async fn look_up(&self, at: &Endpoint, (index, pin): (usize, Pin)) {
        if let Some((id, _)) = &pin.known {
            let reply = self.send("unpin again", at, self.admin(at, Method::DELETE, &format!("/psa/pins/{id}"))).await;
            let what = format!("unpin {} again", pin.name);
            self.expect_status(&what, reply.as_ref(), &[202, 404]);
            if reply.as_ref().is_some_and(|reply| matches!(reply.status, 202 | 404)) {
                self.ledger().remove(index);
            }
            return self.note(&what, at, reply.as_ref());
        }
        let request = self.admin(at, Method::GET, &format!("/psa/pins?name={}", pin.name));
        let reply = self.send("look up", at, request).await;
        let found = reply.as_ref().map(|reply| reply.json()["results"][0].clone()).unwrap_or_default();
        if let (Some(id), Some(cid)) = (found["requestid"].as_str(), found["pin"]["cid"].as_str()) {
            self.ledger().keep(index, id, cid);
            self.note(&format!("look up {}, which is there", pin.name), at, reply.as_ref());
        }
    }

    /// Reads a file that the site has to have.
    async fn read(&self, at: &Endpoint, pin: &Pin) {
        let Some((_, cid)) = pin.known.as_ref().filter(|_| pin.is_upload) else { return };
        let reply = self.send("read", at, self.http.get(format!("{}/ipfs/{cid}", at.public))).await;
        let what = format!("read {} at gateway {}", pin.name, at.gateway);
        self.expect_status(&what, reply.as_ref(), &[200]);
        if reply.is_some_and(|reply| reply.status == 200 && reply.body != content(pin.content)) {
            self.ledger().violation(format!("{what}: other bytes"));
        }
    }
}
