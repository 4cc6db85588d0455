//! [`RequestTrace`]: the spans of a request that is traced (`telemetry.otlp_endpoint`).
//!
//! ```text
//! GET /ipfs/*                    the request: attributes of OpenTelemetry's semantic conventions for HTTP servers
//! ├ admission, host, name resolution, path resolution, first block, body      the steps, as the log of slow requests
//! │ ├ ipns search, dnslink query a name that was not cached
//! │ └ block                      one block that was not in memory: its CID, tier and size
//! │   ├ disk read                whether the disk had it
//! │   ├ owner lookup             whether the gateway of a site that owns the root returned it
//! │   ├ site read                whether the storage that the gateways of a site share had it
//! │   └ network fetch            from the permit to the verified block
//! └ network session              blocks and bytes that the network has sent for the request
//!   ├ dht search, router search  scope, peers asked, providers found
//!   └ bitswap, http source       peers or gateways asked, blocks, bytes
//! ```
//!
//! Goals: after the decision, a request that is not sampled costs one branch at each place; the number of spans is
//! bounded whatever is requested; no query of a URL and no address other than as `log.access_addresses` has it.
//!
//! A step is recorded if it has spans below it, or took a millisecond. Blocks that were in memory, or that the disk has
//! returned without waiting, are only counted. Work that several requests share is recorded in the trace of its first
//! request (the leader); what the network does for a DAG is recorded in the traces of all that wait for it.

use cache::LookupObserver;
use content::{Cid, Name, NameError, NameObserver, NameResolver};
use http::request::Parts;
use http::{Method, StatusCode, Version};
use libp2p::PeerId;
use p2p_bridge::SessionObserver;
use p2p_bridge::observers::{BlockTransport, SearchSource, SessionEvent};
use services::access_log::record::{ContentTier, printable};
use services::telemetry::trace::{OpenSpan, SpanGroup, error_text};
use services::telemetry::{Attributes, Span, SpanId, SpanKind, Trace, TraceId, TraceParent, Tracer};
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A step that took less, and has no spans below it, is not recorded.
const STEP_MIN: Duration = Duration::from_millis(1);
/// The maximum lengths of paths and hosts, and of user agents, in bytes.
const TEXT_BYTES_MAX: usize = 1024;
const AGENT_BYTES_MAX: usize = 256;
/// The maximum number of peers that are counted as different ones.
const PEERS_MAX: usize = 1024;
/// The maximum number of searches of which the end is awaited.
const SEARCHES_MAX: usize = 16;

/// The attribute of a span that shares the result of another request's call.
const FOLLOWER: &str = "causeway.singleflight.follower";

/// The methods that the semantic conventions know, and what stands for others.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
const OTHER_METHOD: &str = "_OTHER";

/// The trace of a request.
#[derive(Debug)]
pub struct RequestTrace {
    trace: Arc<Trace>,
    started: Instant,
    method: &'static str,
    route: Option<&'static str>,
    tiers: [AtomicU64; ContentTier::ALL.len()],
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The attributes of the request that are known already.
    attributes: Attributes,
    step: CurrentStep,
    /// The name that is being looked up.
    name: Option<OpenSpan>,
    /// The blocks that are being looked up.
    blocks: Vec<BlockLookup>,
    session: Option<NetworkSession>,
    /// Whether there were too many spans for one of the session.
    has_no_session: bool,
    problem: Option<Cow<'static, str>>,
    status: Option<StatusCode>,
}

/// The step that has not ended.
#[derive(Debug)]
struct CurrentStep {
    name: &'static str,
    start: Instant,
    /// Its span, once there are spans below it.
    id: Option<SpanId>,
    /// Whether it shares the result of another request's call.
    follows: bool,
}

#[derive(Debug)]
struct BlockLookup {
    cid: Cid,
    span: SpanId,
    /// The tier that has it, as far as it is known.
    tier: Option<ContentTier>,
    follows: bool,
}

/// What the network does for the request.
#[derive(Debug)]
struct NetworkSession {
    id: SpanId,
    start: Instant,
    end: Instant,
    searches: Vec<Search>,
    transports: [Transfers; 3],
}

#[derive(Debug)]
struct Search {
    source: SearchSource,
    start: Instant,
    /// When it ended, whether it was complete then, and how many peers were asked.
    ended: Option<(Instant, bool, Option<u32>)>,
    providers: u64,
}

/// What was transferred by one transport.
#[derive(Debug, Default)]
struct Transfers {
    /// The time of the first request and of the last event.
    times: Option<(Instant, Instant)>,
    asked: HashSet<PeerId>,
    blocks: u64,
    bytes: u64,
}

/// Where a request comes from, and for which host it is.
#[derive(Debug)]
pub struct RequestOrigin {
    /// The client's address as it may be shown; empty if it may not.
    pub address: String,
    /// The scheme of the client's URL.
    pub scheme: &'static str,
    /// The host of the client's URL; empty if there is none.
    pub host: String,
}

/// How a request has ended.
#[derive(Debug, Clone, Copy)]
pub struct RequestEnd {
    /// The tier of its content, if the response has content.
    pub tier: Option<ContentTier>,
    /// Bytes of the body.
    pub bytes: u64,
    /// Why the response is incomplete, if it is.
    pub aborted: Option<&'static str>,
}

impl RequestTrace {
    /// The trace of a request that was received at `started`, if it is sampled. `step` is its first one.
    pub fn begin(
        tracer: &Tracer,
        head: &Parts,
        via_trusted_proxy: bool,
        origin: impl FnOnce() -> RequestOrigin,
        (step, started): (&'static str, Instant),
    ) -> Option<Arc<Self>> {
        let parent = via_trusted_proxy.then(|| TraceParent::of(&head.headers)).flatten();
        let trace = tracer.begin(parent)?;
        let method = method_name(&head.method);
        let route = route(head.uri.path());
        let state = State {
            attributes: attributes(head, origin(), method, route),
            step: CurrentStep { name: step, start: started, id: None, follows: false },
            name: None,
            blocks: Vec::new(),
            session: None,
            has_no_session: false,
            problem: None,
            status: None,
        };
        let tiers = Default::default();
        Some(Arc::new(Self { trace, started, method, route, tiers, state: Mutex::new(state) }))
    }

    /// The identifier of the trace.
    pub fn id(&self) -> TraceId {
        self.trace.id()
    }

    /// A step has ended; the next one begins.
    pub fn step_ended(&self, step: &'static str, next: &'static str) {
        self.end_step(step, next, None);
    }

    /// The response's head is sent: the step that has not ended, ends, and the body begins.
    pub fn head(&self, status: StatusCode) {
        let (name, error) = {
            let mut state = self.state();
            state.status = Some(status);
            (state.step.name, state.problem.clone().filter(|_| status.is_server_error()))
        };
        self.end_step(name, "body", error);
    }

    /// The response is that of a problem.
    pub fn failed(&self, problem: &impl ToString) {
        self.state().problem = Some(error_text(problem));
    }

    /// Records that the current step shares the result of another request's call.
    pub fn follows_call(&self) {
        self.step_span();
        self.state().step.follows = true;
    }

    /// Counts a block that a tier had.
    pub fn count(&self, tier: ContentTier) {
        self.tiers[tier as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Begins the span of a block that is looked up; `None` if there are too many.
    pub fn block(self: &Arc<Self>, cid: &Cid) -> Option<BlockSpan> {
        let parent = self.step_span();
        let mut span = self.trace.begin(SpanGroup::Block, parent, "block", SpanKind::Internal)?;
        span.add("causeway.block.cid", cid.to_string());
        let lookup = BlockLookup { cid: *cid, span: span.id(), tier: None, follows: false };
        self.state().blocks.push(lookup);
        Some(BlockSpan { trace: Arc::clone(self), span: Some(span) })
    }

    /// Begins the span of a block that is fetched from the network.
    pub fn network_fetch(self: &Arc<Self>, cid: &Cid) -> Option<OpenSpan> {
        let parent = {
            let mut state = self.state();
            self.session(&mut state);
            let block = state.blocks.iter_mut().find(|block| block.cid == *cid);
            block.map(|block| {
                block.tier = Some(ContentTier::Network);
                block.span
            })
        };
        // Without a span of the block there is none of its fetch.
        let Some(parent) = parent else {
            self.trace.drop_below();
            return None;
        };
        self.trace.begin(SpanGroup::Block, parent, "network fetch", SpanKind::Client)
    }

    /// Ends the trace.
    pub fn finish(&self, end: RequestEnd) {
        let (name, look_up, error) = {
            let mut state = self.state();
            (state.step.name, state.name.take(), end.aborted.map(Cow::Borrowed))
        };
        drop(look_up);
        self.end_step(name, "", error);
        let session = self.state().session.take();
        session.into_iter().for_each(|session| self.record_session(session));
        self.trace.finish(|id, parent| self.request_span(id, parent, end));
    }

    fn request_span(&self, id: SpanId, parent: Option<SpanId>, end: RequestEnd) -> Span {
        let RequestEnd { tier, bytes, aborted } = end;
        let mut state = self.state();
        let (mut attributes, status) = (std::mem::take(&mut state.attributes), state.status);
        if let Some(status) = status {
            attributes.push(("http.response.status_code", status.as_u16().into()));
            attributes.push(("http.response.body.size", bytes.into()));
        }
        if let Some(tier) = tier {
            attributes.push(("causeway.tier", tier.name().into()));
        }
        for tier in ContentTier::ALL {
            let count = self.tiers[tier as usize].load(Ordering::Relaxed);
            // Few gateways belong to a site.
            if tier != ContentTier::Site || count > 0 {
                attributes.push((blocks_attribute(tier), count.into()));
            }
        }
        let failed = status.filter(StatusCode::is_server_error);
        let error_type = match (failed, aborted) {
            (Some(status), _) => Some(status.as_str().to_owned()),
            (None, Some(reason)) => Some(reason.to_owned()),
            (None, None) => None,
        };
        let error = error_type.map(|error_type| {
            let text = state.problem.take().filter(|_| failed.is_some());
            let text = text.unwrap_or_else(|| format!("the response is incomplete: {error_type}").into());
            attributes.push(("error.type", error_type.into()));
            text
        });
        let name = match self.route {
            Some(route) => Cow::Owned(format!("{} {route}", self.span_method())),
            None => Cow::Borrowed(self.span_method()),
        };
        Span { id, parent, name, kind: SpanKind::Server, start: self.started, end: Instant::now(), attributes, error }
    }

    /// The method in the name of the span.
    fn span_method(&self) -> &'static str {
        if self.method == OTHER_METHOD { "HTTP" } else { self.method }
    }

    /// The span of the current step, below which others begin.
    fn step_span(&self) -> SpanId {
        let mut state = self.state();
        if state.step.id.is_none() {
            state.step.id = self.trace.reserve(SpanGroup::Other);
        }
        state.step.id.unwrap_or(self.trace.root())
    }

    fn end_step(&self, name: &'static str, next: &'static str, error: Option<Cow<'static, str>>) {
        let now = Instant::now();
        let next = CurrentStep { name: next, start: now, id: None, follows: false };
        let CurrentStep { start, id, follows, .. } = std::mem::replace(&mut self.state().step, next);
        let took = now.saturating_duration_since(start);
        let is_recorded = id.is_some() || took >= STEP_MIN || error.is_some();
        if name.is_empty() || !is_recorded {
            return;
        }
        let Some(id) = id.or_else(|| self.trace.reserve(SpanGroup::Other)) else { return };
        let attributes = follows.then(|| (FOLLOWER, true.into())).into_iter().collect();
        self.record(id, self.trace.root(), name, SpanKind::Internal, (start, now), attributes, error);
    }

    #[expect(clippy::too_many_arguments, reason = "they are the fields of a span")]
    fn record(
        &self,
        id: SpanId,
        parent: SpanId,
        name: &'static str,
        kind: SpanKind,
        (start, end): (Instant, Instant),
        attributes: Attributes,
        error: Option<Cow<'static, str>>,
    ) {
        self.trace.record(Span { id, parent: Some(parent), name: name.into(), kind, start, end, attributes, error });
    }

    /// The session, which begins now if it has not.
    fn session<'a>(&self, state: &'a mut State) -> Option<&'a mut NetworkSession> {
        if state.session.is_none() && !state.has_no_session {
            let id = self.trace.reserve(SpanGroup::Other);
            // It is counted once, without what would be below it.
            state.has_no_session = id.is_none();
            let (id, now) = (id?, Instant::now());
            let (searches, transports) = (Vec::new(), Default::default());
            state.session = Some(NetworkSession { id, start: now, end: now, searches, transports });
        }
        state.session.as_mut()
    }

    fn record_session(&self, session: NetworkSession) {
        let NetworkSession { id, start, end, searches, transports } = session;
        let all = |count: fn(&Transfers) -> u64| transports.iter().map(count).sum::<u64>();
        let attributes = vec![
            ("causeway.network.blocks", all(|transfers| transfers.blocks).into()),
            ("causeway.network.bytes", all(|transfers| transfers.bytes).into()),
        ];
        let end = end.max(start);
        for search in searches {
            self.record_search(id, search);
        }
        // In the order of `BlockTransport`.
        let names = [
            ("bitswap", "causeway.bitswap.peers_asked"),
            ("http source", "causeway.http_source.gateways_asked"),
            ("dag transfer", "causeway.dag.peers_asked"),
        ];
        for ((name, asked), transfers) in names.into_iter().zip(transports) {
            let Some(times) = transfers.times else { continue };
            let Some(span) = self.trace.reserve(SpanGroup::Other) else { continue };
            let attributes = vec![
                (asked, transfers.asked.len().into()),
                ("causeway.network.blocks", transfers.blocks.into()),
                ("causeway.network.bytes", transfers.bytes.into()),
            ];
            self.record(span, id, name, SpanKind::Client, times, attributes, None);
        }
        self.record(id, self.trace.root(), "network session", SpanKind::Internal, (start, end), attributes, None);
    }

    fn record_search(&self, session: SpanId, search: Search) {
        let Search { source, start, ended, providers } = search;
        let (name, scope) = match source {
            SearchSource::Known => return,
            SearchSource::Dht(scope) => ("dht search", Some(scope.label())),
            SearchSource::Routers => ("router search", None),
        };
        let Some(id) = self.trace.reserve(SpanGroup::Other) else { return };
        let (end, is_complete, peers_asked) = ended.unwrap_or((Instant::now(), false, None));
        let mut attributes: Attributes = vec![
            ("causeway.search.providers_found", providers.into()),
            // The request may not have waited for its end.
            ("causeway.search.complete", is_complete.into()),
        ];
        attributes.extend(scope.map(|scope| ("causeway.dht.scope", scope.into())));
        attributes.extend(peers_asked.map(|asked| ("causeway.dht.peers_asked", asked.into())));
        self.record(id, session, name, SpanKind::Client, (start, end), attributes, None);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The span of a block, until it was found or not.
#[derive(Debug)]
pub struct BlockSpan {
    trace: Arc<RequestTrace>,
    span: Option<OpenSpan>,
}

impl BlockSpan {
    /// Ends it. `bytes` is the size of the block; `knows_tier` is false if it was looked up without an observer.
    pub fn end(mut self, found: Result<usize, String>, knows_tier: bool) {
        let lookup = self.take_lookup();
        let Some(mut span) = self.span.take() else { return };
        let (tier, follows) = lookup.map_or((None, false), |lookup| (lookup.tier, lookup.follows));
        if let Ok(bytes) = &found {
            span.add("causeway.block.size", *bytes);
            if follows {
                span.add(FOLLOWER, true);
            } else if knows_tier {
                // Memory is the only tier that is not observed.
                let in_memory = || {
                    self.trace.count(ContentTier::Ram);
                    ContentTier::Ram
                };
                span.add("causeway.block.tier", tier.unwrap_or_else(in_memory).name());
            }
        }
        span.end(found.err());
    }

    fn take_lookup(&self) -> Option<BlockLookup> {
        let mut state = self.trace.state();
        let id = self.span.as_ref().map(OpenSpan::id)?;
        let at = state.blocks.iter().position(|block| block.span == id)?;
        Some(state.blocks.swap_remove(at))
    }
}

impl Drop for BlockSpan {
    fn drop(&mut self) {
        self.take_lookup();
    }
}

/// The attribute of a request with the number of blocks that a tier had.
fn blocks_attribute(tier: ContentTier) -> &'static str {
    match tier {
        ContentTier::Ram => "causeway.blocks.ram",
        ContentTier::Disk => "causeway.blocks.disk",
        ContentTier::Site => "causeway.blocks.site",
        ContentTier::Network => "causeway.blocks.network",
    }
}

impl RequestTrace {
    /// Records that a tier was read for a block from `since` until now: its span has `name`, and whether the tier had
    /// the block as the attribute `hit_name`.
    fn tier_read(&self, tier: ContentTier, cid: &Cid, since: Instant, (name, hit_name): SpanNames, hit: bool) {
        if hit {
            self.count(tier);
        }
        let span = {
            let mut state = self.state();
            let Some(block) = state.blocks.iter_mut().find(|block| block.cid == *cid) else {
                return self.trace.drop_below();
            };
            if hit {
                block.tier = Some(tier);
            }
            block.span
        };
        let Some(id) = self.trace.reserve(SpanGroup::Block) else { return };
        let attributes = vec![(hit_name, hit.into())];
        self.record(id, span, name, SpanKind::Internal, (since, Instant::now()), attributes, None);
    }
}

/// The names of a span and of its attribute.
type SpanNames = (&'static str, &'static str);

impl LookupObserver for RequestTrace {
    fn disk_read(&self, cid: &Cid, since: Instant, hit: bool) {
        self.tier_read(ContentTier::Disk, cid, since, ("disk read", "causeway.disk.hit"), hit);
    }

    fn site_read(&self, cid: &Cid, since: Instant, hit: bool) {
        self.tier_read(ContentTier::Site, cid, since, ("site read", "causeway.site.hit"), hit);
    }

    fn owner_asked(&self, cid: &Cid, since: Instant, hit: bool) {
        self.tier_read(ContentTier::Site, cid, since, ("owner lookup", "causeway.owner.hit"), hit);
    }

    fn follows(&self, cid: &Cid) {
        let mut state = self.state();
        if let Some(block) = state.blocks.iter_mut().find(|block| block.cid == *cid) {
            block.follows = true;
        }
    }
}

/// The resolver of names for a request: it tells the trace of look-ups, if there is one.
pub fn resolver_for<'a>(
    names: &'a Arc<dyn NameResolver>,
    trace: Option<&Arc<RequestTrace>>,
) -> Cow<'a, Arc<dyn NameResolver>> {
    let observed = trace.and_then(|trace| names.observed(Arc::clone(trace) as _));
    observed.map_or(Cow::Borrowed(names), Cow::Owned)
}

impl NameObserver for RequestTrace {
    fn look_up_began(&self, name: &Name, is_shared: bool) {
        let parent = self.step_span();
        let kind = match name {
            Name::Key(_) => "ipns search",
            Name::Domain(_) => "dnslink query",
        };
        let mut span = self.trace.begin(SpanGroup::Other, parent, kind, SpanKind::Client);
        if let Some(span) = &mut span {
            span.add("causeway.name", name.to_string());
            if is_shared {
                span.add(FOLLOWER, true);
            }
        }
        self.state().name = span;
    }

    fn look_up_ended(&self, result: Option<Result<(), &NameError>>) {
        let span = self.state().name.take();
        if let (Some(span), Some(result)) = (span, result) {
            span.end(result.err());
        }
    }
}

impl SessionObserver for RequestTrace {
    fn observe(&self, event: SessionEvent) {
        let (mut state, now) = (self.state(), Instant::now());
        // Events of other requests for the DAG do not begin a session of this one.
        let Some(session) = state.session.as_mut() else { return };
        session.end = now;
        match event {
            SessionEvent::SearchStarted(source) => session.search_started(source, now),
            SessionEvent::ProviderFound(source) => {
                let of_source = session.searches.iter_mut().rev().find(|search| search.source == source);
                of_source.into_iter().for_each(|search| search.providers += 1);
            }
            SessionEvent::SearchEnded { source, peers_asked, is_complete } => {
                let is_open = |search: &&mut Search| search.source == source && search.ended.is_none();
                let open = session.searches.iter_mut().find(is_open);
                open.into_iter().for_each(|search| search.ended = Some((now, is_complete, peers_asked)));
            }
            SessionEvent::Asked(peer, over) => {
                let transfers = session.transfers(over, now);
                if transfers.asked.len() < PEERS_MAX {
                    transfers.asked.insert(peer);
                }
            }
            SessionEvent::Received(over, bytes) => {
                let transfers = session.transfers(over, now);
                transfers.blocks += 1;
                transfers.bytes = transfers.bytes.saturating_add(bytes as u64);
            }
        }
    }
}

impl NetworkSession {
    fn search_started(&mut self, source: SearchSource, now: Instant) {
        if self.searches.len() < SEARCHES_MAX {
            self.searches.push(Search { source, start: now, ended: None, providers: 0 });
        }
    }

    fn transfers(&mut self, over: BlockTransport, now: Instant) -> &mut Transfers {
        let transfers = &mut self.transports[over as usize];
        transfers.times = Some((transfers.times.map_or(now, |(start, _)| start), now));
        transfers
    }
}

/// The route of a path, of which there are few.
fn route(path: &str) -> Option<&'static str> {
    const ROUTES: [(&str, &str); 3] = [("/ipfs/", "/ipfs/*"), ("/ipns/", "/ipns/*"), ("/routing/v1/", "/routing/v1/*")];
    ROUTES.iter().find(|(prefix, _)| path.starts_with(prefix)).map(|(_, route)| *route)
}

fn method_name(method: &Method) -> &'static str {
    METHODS.into_iter().find(|known| *known == method.as_str()).unwrap_or(OTHER_METHOD)
}

/// The attributes of a request that its head has
/// (<https://opentelemetry.io/docs/specs/semconv/http/http-spans/#http-server-span>).
fn attributes(head: &Parts, origin: RequestOrigin, method: &'static str, route: Option<&'static str>) -> Attributes {
    let RequestOrigin { address, scheme, host } = origin;
    let shown = |text: &[u8], max| printable(text, max);
    let mut attributes: Attributes = vec![
        ("http.request.method", method.into()),
        ("url.path", shown(head.uri.path().as_bytes(), TEXT_BYTES_MAX).into()),
        ("url.scheme", scheme.into()),
        ("network.protocol.name", "http".into()),
        ("network.protocol.version", protocol_version(head.version).into()),
    ];
    if method == OTHER_METHOD {
        attributes.push(("http.request.method_original", shown(head.method.as_str().as_bytes(), 32).into()));
    }
    attributes.extend(route.map(|route| ("http.route", route.into())));
    if !host.is_empty() {
        attributes.push(("server.address", shown(host.as_bytes(), TEXT_BYTES_MAX).into()));
    }
    if !address.is_empty() {
        attributes.push(("client.address", address.into()));
    }
    if let Some(agent) = head.headers.get(http::header::USER_AGENT) {
        attributes.push(("user_agent.original", shown(agent.as_bytes(), AGENT_BYTES_MAX).into()));
    }
    attributes
}

fn protocol_version(version: Version) -> &'static str {
    match version {
        Version::HTTP_09 => "0.9",
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        Version::HTTP_3 => "3",
        _ => "1.1",
    }
}
