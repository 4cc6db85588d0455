//! [`Gateway`]: the request pipeline.
//!
//! ```text
//! head → subject → Ask (format) → route (host, path) ─┬→ cached path ────────────────────────────────┐
//!                                                     └→ ContentPath → name → policy → 304 by CID →  │
//!                                                        resolve → representation ───────────────────┴→ head + body
//! ```
//!
//! The pipeline waits for name resolution, path resolution, media type sniffing, and the first chunk of a body; errors
//! up to then get a status of their own. The rest are pure functions.
//!
//! A future is as large as the largest of those that it may await, and hyper reserves its size for each connection. So
//! the parts that a cache hit does not await are boxed, and so is the whole future: a hit needs 4 KB instead of 11, and
//! an idle connection nothing.

use crate::access_log::RequestLog;
use crate::body::{Body, Content, ListedRequest};
use crate::errors::Problem;
use crate::headers::header;
use crate::landing;
use crate::limits::RequestLimits;
use crate::listen::admission;
use crate::listen::connection::Connection;
use crate::listen::server::Uncounted;
use crate::metrics::{Exchange, HttpMetrics};
use crate::prefetch::{PageResponse, PrefetchWiring, Prefetcher};
use crate::recent_errors::RecentErrors;
use crate::represent::encoded::Encoded;
use crate::represent::file::{self, OpenFile};
use crate::represent::listings::Listings;
use crate::represent::plan::{self, About};
use crate::represent::{Context, Resources, archive, directory, document, not_modified_by_cid, purpose, record};
use crate::request::client::Client;
use crate::request::conditional::{has_precondition, precondition_holds};
use crate::request::hosts::Hosts;
use crate::request::negotiate::Format;
use crate::request::route::{Place, Route, Router};
use crate::request::{self, Ask, RequestError, Subject};
use crate::resolve::path_resolver::PathResolver;
use crate::resolve::paths::Paths;
use crate::resolve::redirects::SiteRedirects;
use crate::resolve::source::{LimitedClient, RootSource, Sources, Tier};
use crate::resolve::{Entity, Freshness, PathTarget, Target, etag_of};
use crate::respond::{self, Draft, Finish};
use crate::routing_v1::Routing;
use crate::running::{Phase, Running, RunningRequest, Step, StepClock, WaitReason};
use crate::trace::{RequestOrigin, RequestTrace, resolver_for};
use crate::workers::Workers;
use config::TrustedProxy;
use content::packed::PackedFile;
use content::path::Root;
use content::walk::WalkError;
use content::{
    BlockKey, BlockSource as _, Cid, ContentPath, NameError, NameResolver, Policy, SourceError, Verdict, Work, codec,
    packed, redirects,
};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use services::acme::Challenges;
use services::health::Health;
use services::isolation::Isolation;
use services::limiter::{Limiter, Permit};
use services::rate_limiter::RateLimiter;
use services::telemetry::Tracer;
use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

mod inspection;

pub use inspection::InvalidatedEntries;

/// The share of the path cache that is used for sites' `_redirects`.
const SITES_SHARE: u64 = 16;

/// The plain file of a packed file that is pinned, by the root of its zstd file.
pub type PlainFiles = dyn Fn(&BlockKey) -> Option<Cid> + Send + Sync;

/// The public gateway.
pub struct Gateway {
    sources: Arc<Sources>,
    plain_files: Arc<PlainFiles>,
    names: Arc<dyn NameResolver>,
    policy: Arc<dyn Policy>,
    paths: Paths,
    /// The resources of representations.
    pub resources: Resources,
    router: Router,
    /// Limits the requests in progress over HTTP/2 and HTTP/3, of which one connection has many, and those of clients
    /// behind trusted proxies, which have one connection together. The connections of other clients are limited.
    requests: Arc<Limiter>,
    /// Limits the requests that wait for a name look-up.
    lookups: Arc<Limiter>,
    /// Limits the rate of each client's requests that need the network.
    rates: Option<Arc<RateLimiter>>,
    /// Prefetches what pages load.
    prefetcher: Prefetcher,
    trusted_proxies: Vec<TrustedProxy>,
    routing: Option<Routing>,
    metrics: Arc<HttpMetrics>,
    log: Arc<RequestLog>,
    /// Begins traces, if requests are traced.
    tracer: Option<Arc<Tracer>>,
    health: Arc<Health>,
    /// The root of the welcome site, which the landing page links to.
    welcome: Option<Cid>,
    /// Whether responses have surrogate keys, by which content delivery networks purge.
    surrogate_keys: bool,
    /// The maximum age of responses in shared caches, in seconds; 0 for that of private caches.
    shared_max_age_seconds: u64,
    /// The pending challenges of an authority for certificates.
    challenges: Arc<Challenges>,
    /// Whether content is refused because the gateway is cut off from its site, if it is one that refuses it then.
    isolation: Option<Arc<Isolation>>,
    /// The requests in progress that were not answered at once.
    pub running: Running,
    /// The latest responses that failed.
    pub errors: Arc<RecentErrors>,
}

/// The parts of a gateway.
pub struct Wiring {
    /// The sources of blocks.
    pub sources: Arc<Sources>,
    /// Files in their stored encoding, if they are sent so.
    pub encoded: Option<Encoded>,
    /// The name resolver.
    pub names: Arc<dyn NameResolver>,
    /// The policy.
    pub policy: Arc<dyn Policy>,
    /// The HTTP metrics.
    pub metrics: Arc<HttpMetrics>,
    /// The readiness of the process.
    pub health: Arc<Health>,
    /// The routing API, if it is enabled.
    pub routing: Option<Routing>,
    /// The root of the welcome site.
    pub welcome: Option<Cid>,
}

/// A request whose client is known.
struct Incoming {
    head: Parts,
    client: Client,
    phase: Phase,
    /// When it was received.
    started: Instant,
}

impl Incoming {
    /// Whether the response has no body.
    fn head_only(&self) -> bool {
        self.head.method == Method::HEAD
    }
}

/// What a request holds until the end of its response.
#[derive(Default)]
struct Held {
    /// Its entry in the list of running requests.
    listed: Option<RunningRequest>,
    /// If it is counted.
    permit: Option<Permit>,
}

/// A problem below a name is cached only as long as what the name points to; one below a CID is returned as it is.
fn problem_of_name(problem: Problem, target: &Target, ask: &Ask<'_>) -> Result<Draft, Problem> {
    match target.freshness {
        Freshness::Immutable => Err(problem),
        Freshness::For(ttl) | Freshness::Stale { ttl, .. } => {
            let mut draft = respond::page(problem.response_for(ttl, ask.headers));
            // For metrics and inspection.
            draft.extensions_mut().insert(Arc::new(problem));
            Ok(draft)
        }
    }
}

impl Gateway {
    /// A gateway to the blocks of the sources, for the configured hosts.
    pub fn new(wiring: Wiring, http: &config::Http, limits: RequestLimits) -> Self {
        let Wiring { sources, encoded, names, policy, metrics, health, routing, welcome } = wiring;
        let (memory, listings) = (Arc::clone(&limits.memory), metrics.listings.clone());
        let sites_bytes_max = limits.paths_bytes_max / SITES_SHARE;
        // Proxies have more requests while some of their connections wait to be admitted.
        let requests_max = limits.requests_max.saturating_add(admission::WAITING_MAX);
        let rates = RateLimiter::new(limits.client_misses_per_second, limits.client_misses_burst).map(Arc::new);
        let prefetch = PrefetchWiring {
            sources: Arc::clone(&sources),
            names: Arc::clone(&names),
            policy: Arc::clone(&policy),
            rates: rates.clone(),
            limits: limits.clone(),
            metrics: metrics.prefetch.clone(),
        };
        Self {
            prefetcher: Prefetcher::new(http.prefetch_subresources, prefetch),
            sources,
            plain_files: Arc::new(|_| None),
            policy,
            paths: Paths::new(limits.paths_bytes_max - sites_bytes_max),
            resources: Resources {
                path_resolver: PathResolver::new(metrics.plain.walks_joined.clone()),
                redirects: SiteRedirects::new(sites_bytes_max),
                listings: Listings::new(limits.listings_bytes_max, limits.response_bytes_max, memory, listings),
                encoded,
                archives: Arc::new(Limiter::new(limits.archives_max, limits.client_archives_max)),
                workers: Workers::default(),
                limits: limits.clone(),
            },
            router: Router::new(Hosts::of(http), Arc::clone(&names), limits.path_depth_max),
            requests: Arc::new(Limiter::new(requests_max, limits.client_requests_max)),
            lookups: Arc::new(Limiter::new(usize::MAX, limits.client_lookups_max)),
            rates,
            trusted_proxies: http.trusted_proxies.clone(),
            routing,
            metrics,
            log: Arc::default(),
            tracer: None,
            health,
            welcome,
            names,
            surrogate_keys: http.surrogate_keys,
            shared_max_age_seconds: http.shared_max_age_seconds,
            challenges: Arc::default(),
            isolation: None,
            running: Running::default(),
            errors: Arc::default(),
        }
    }

    /// Logs requests as `log` says, instead of as events with full addresses.
    #[must_use]
    pub fn logging_to(self, log: RequestLog) -> Self {
        let log = Arc::new(log);
        Self { errors: Arc::new(RecentErrors::new(Arc::clone(&log))), log, ..self }
    }

    /// Traces requests.
    #[must_use]
    pub fn tracing_with(self, tracer: Option<Arc<Tracer>>) -> Self {
        Self { tracer, ..self }
    }

    /// The gateway, with the pending challenges of an authority for certificates, which it answers.
    #[must_use]
    pub fn with_challenges(self, challenges: Arc<Challenges>) -> Self {
        Self { challenges, ..self }
    }

    /// The gateway, which answers requests for content with 503 while it is cut off from its site.
    #[must_use]
    pub fn refusing_while(self, isolation: Option<Arc<Isolation>>) -> Self {
        Self { isolation, ..self }
    }

    /// The limits of a request.
    pub fn limits(&self) -> &RequestLimits {
        &self.resources.limits
    }

    /// The prefetcher of what pages load, which is stopped at shutdown.
    pub fn prefetcher(&self) -> &Prefetcher {
        &self.prefetcher
    }

    /// Invalidates all caches, because the policy has changed.
    pub fn invalidate_caches(&self) {
        self.paths.invalidate_all();
        self.resources.redirects.invalidate_all();
        self.resources.listings.invalidate_all();
        if let Some(encoded) = &self.resources.encoded {
            encoded.invalidate_all();
        }
    }

    /// Counts a request over HTTP/2 or HTTP/3 until its end: also an answer from memory keeps memory until the client
    /// takes it.
    ///
    /// # Errors
    /// The client, or all clients together, are at their limit.
    fn count(&self, client: &Client, connection: &Connection) -> Result<Option<Permit>, Problem> {
        let permit = connection.is_multiplexed().then(|| self.requests.try_acquire(client.address));
        Ok(permit.transpose()?)
    }

    /// Adds a request that is not answered at once to the list of running requests. One of a client behind a proxy is
    /// counted from now on, if it is not counted already.
    fn list(&self, incoming: &Incoming, connection: &Connection, held: &mut Held) -> Result<(), Problem> {
        let Incoming { head, client, phase, started } = incoming;
        if held.permit.is_none() && client.address != connection.peer().ip().to_canonical() {
            held.permit = Some(self.requests.try_acquire(client.address)?);
        }
        held.listed = Some(self.running.list(head, client, *started, phase));
        Ok(())
    }

    /// Whether a request is one for the health of this gateway, which is answered in any case. On the origin of a site
    /// these paths are files of the site.
    fn is_health_check(&self, head: &Parts, client: &Client) -> bool {
        request::is_health_check(head.uri.path()) && !self.router.is_site(client)
    }

    /// Takes a token of the client's rate.
    async fn take_token(&self, client: &Client) -> Result<(), Problem> {
        let Some(rates) = &self.rates else { return Ok(()) };
        rates.acquire_soon(client.address).await.map_err(|retry_after| Problem::RateLimited { retry_after })
    }

    /// Waits for a name look-up within the client's limit. A cached name needs no permit.
    async fn with_lookup_permit<T>(
        &self,
        client: &Client,
        looking: impl Future<Output = Result<T, impl Into<Problem>>>,
    ) -> Result<T, Problem> {
        let mut looking = pin!(looking);
        if let Poll::Ready(found) = futures::poll!(looking.as_mut()) {
            return found.map_err(Into::into);
        }
        self.take_token(client).await?;
        let busy = |_| Problem::LookupLimit { retry_after: self.lookups.retry_after() };
        let _permit = self.lookups.try_acquire(client.address).map_err(busy)?;
        looking.await.map_err(Into::into)
    }

    /// Answers a request.
    pub async fn handle<B>(&self, request: Request<B>, connection: Arc<Connection>) -> Response<Body> {
        // hyper reads no more of a connection whose request's body is dropped.
        let (head, client, _body) = self.identify(request, &connection);
        let (exchange, incoming) = self.begin(head, client);
        let counted = self.count(&incoming.client, &connection);
        let is_counted = counted.is_ok();
        let mut held = Held::default();
        let answer = match counted {
            Err(problem) if !self.is_health_check(&incoming.head, &incoming.client) => Err(problem),
            counted => {
                held.permit = counted.unwrap_or_default();
                self.answer_within_time(&incoming, &connection, &mut held).await
            }
        };
        let mut draft = self.draft_of(answer, &incoming, &connection);
        self.add_cache_headers(draft.status(), draft.headers_mut());
        if !is_counted {
            draft.extensions_mut().insert(Uncounted);
        }
        let finish = Finish {
            head_only: incoming.head_only(),
            exchange,
            connection,
            response_bytes_max: self.limits().response_bytes_max,
            request_timeout: self.limits().request_timeout,
            listed: held.listed.map(|entry| ListedRequest { entry, errors: Arc::clone(&self.errors) }),
            permit: held.permit,
        };
        respond::finish(draft, finish)
    }

    /// The head of a request, its client and its body. A request for a tunnel takes over the connection, and has no
    /// body.
    fn identify<B>(&self, request: Request<B>, connection: &Arc<Connection>) -> (Parts, Client, Option<B>) {
        let (head, body) = request.into_parts();
        let mut client = match connection.tunnel_client() {
            Some(address) => Client::in_tunnel(&head, address),
            None => Client::of(&head, (connection.peer().ip(), connection.is_encrypted()), &self.trusted_proxies),
        };
        client.connection_memory = connection.memory(self.limits(), &client);
        if head.method != Method::CONNECT {
            return (head, client, Some(body));
        }
        let mut request = Request::from_parts(head, body);
        connection.become_tunnel(&mut request, client.address);
        (request.into_parts().0, client, None)
    }

    /// Begins to measure, log and trace a request.
    fn begin(&self, head: Parts, mut client: Client) -> (Exchange, Incoming) {
        let mut exchange = Exchange::begin(&self.metrics, &head.method, head.version);
        let started = exchange.started();
        client.trace = self.tracer.as_ref().and_then(|tracer| {
            let origin = || RequestOrigin {
                address: self.log.address(client.address),
                scheme: client.scheme(),
                host: client.host(),
            };
            let first = (Step::Admission.span_name(), started);
            RequestTrace::begin(tracer, &head, client.via_trusted_proxy, origin, first)
        });
        exchange.trace(client.trace.clone());
        exchange.log(self.log.begin(&head, &client));
        let clock = self.log.logs_slow_requests().then(|| Arc::new(StepClock::new(started)));
        let phase = Phase::timed(clock.clone(), client.trace.clone());
        exchange.time_steps(clock);
        (exchange, Incoming { head, client, phase, started })
    }

    /// Answers a request within the time of requests. It is listed if it is not answered at once, or if its body needs
    /// more than one step, until the body's end.
    async fn answer_within_time(
        &self,
        incoming: &Incoming,
        connection: &Connection,
        held: &mut Held,
    ) -> Result<Draft, Problem> {
        let Incoming { head, client, phase, .. } = incoming;
        let mut answering = pin!(self.answer_admitted(head, client, connection, phase));
        // Most requests are answered at once and need no timer.
        let draft = match futures::poll!(answering.as_mut()) {
            Poll::Ready(answer) => answer?,
            Poll::Pending => {
                self.list(incoming, connection, held)?;
                let timeout = tokio::time::timeout(self.limits().request_timeout, answering);
                timeout.await.unwrap_or(Err(Problem::TooSlow))?
            }
        };
        if held.listed.is_none() && !incoming.head_only() && !draft.body().is_in_memory() {
            self.list(incoming, connection, held)?;
        }
        Ok(draft)
    }

    /// The response that an answer becomes: of a problem, its page.
    fn draft_of(&self, answer: Result<Draft, Problem>, incoming: &Incoming, connection: &Connection) -> Draft {
        let Incoming { head, client, started, .. } = incoming;
        let draft = match answer {
            Ok(_) if head.method == Method::CONNECT && !connection.may_become_tunnel() => {
                respond::page(Problem::NestedTunnel.response(&head.headers))
            }
            Ok(draft) => draft,
            Err(problem) => {
                let path = head.uri.path();
                tracing::debug!(
                    client = self.log.address(client.address), path, %problem, "the request was answered with an error"
                );
                let mut page = respond::page(problem.response(&head.headers));
                page.extensions_mut().insert(Arc::new(problem));
                page
            }
        };
        if let Some(problem) = draft.extensions().get::<Arc<Problem>>() {
            problem.limit().into_iter().for_each(|limit| self.metrics.rejected(limit));
            client.trace.iter().for_each(|trace| trace.failed(problem));
            self.errors.answered(head, client, draft.status(), problem, started.elapsed());
        }
        draft
    }

    /// The response to a request, without sending it. Nothing is counted.
    pub async fn preview(&self, head: &Parts, client: &Client) -> Result<Draft, Problem> {
        let mut draft = self.answer(head, client, &Phase::default()).await?;
        self.add_cache_headers(draft.status(), draft.headers_mut());
        Ok(draft)
    }

    /// The gateway, with a way to find the plain files of packed files that are pinned, by the roots of their zstd
    /// files.
    #[must_use]
    pub fn with_plain_files(self, plain_files: Arc<PlainFiles>) -> Self {
        Self { plain_files, ..self }
    }

    /// The plain file that a packed CID names, if it is pinned.
    ///
    /// # Errors
    /// [`Problem::Refused`] when the policy withholds the zstd file.
    pub fn plain_file(&self, cid: &Cid) -> Result<Option<Cid>, Problem> {
        let Some(zstd_file) = packed::zstd_file_of(cid) else { return Ok(None) };
        match self.policy.check(cid) {
            Verdict::Allow => Ok((self.plain_files)(&zstd_file)),
            verdict => Err(Problem::Refused { cid: *cid, verdict }),
        }
    }

    /// Answers a request for a packed file that is not pinned, from its zstd file.
    async fn packed_file(
        &self,
        ask: &Ask<'_>,
        client: &Client,
        target: &Target,
        generation: u64,
    ) -> Result<Draft, Problem> {
        let cid = target.root;
        if !file::is_native(ask) {
            return Err(Problem::NoRendering { cid, codec: cid.codec() });
        }
        if let Some(name) = target.segments.first() {
            return Err(WalkError::NotADirectory { cid, name: name.clone() }.into());
        }
        // Under the codec that its providers know.
        let zstd_file = Cid::new_v1(codec::DAG_PB, *cid.hash());
        let source = self.source(zstd_file, client, ask);
        let root = source.fetch(&zstd_file).await.map_err(|error| Problem::Walk(WalkError::Source(error)))?;
        let packed = PackedFile::open(source.paced(), &root).await?;
        let entity = Entity {
            root: zstd_file,
            cid,
            size: packed.size(),
            content_type: None,
            etag: etag_of(&cid, ""),
            roots: header(&cid.to_string()),
            index_key: None,
            modified: None,
            generation,
        };
        let open = OpenFile {
            source: &source,
            block: &root,
            size: entity.size,
            encoded: None,
            packed: Some(packed),
            limits: self.limits(),
        };
        let roots = entity.roots.clone();
        let about = About { ask, freshness: target.freshness, roots: &roots, tier: source.tier() };
        file::file(&about, Arc::new(entity), open, self.limits().response_bytes_max, |_| ()).await
    }

    /// Adds the headers for shared caches.
    fn add_cache_headers(&self, status: StatusCode, headers: &mut HeaderMap) {
        if self.surrogate_keys {
            respond::add_surrogate_keys(status, headers);
        } else {
            headers.remove(respond::SURROGATE_KEY);
        }
        if self.shared_max_age_seconds > 0 {
            respond::bound_shared_age(headers, self.shared_max_age_seconds);
        }
    }

    /// Answers a request once its connection is admitted.
    async fn answer_admitted(
        &self,
        head: &Parts,
        client: &Client,
        connection: &Connection,
        phase: &Phase,
    ) -> Result<Draft, Problem> {
        if let Some(answer) = self.challenge(head) {
            return Ok(answer);
        }
        request::check_host(head)?;
        if !self.is_health_check(head, client) {
            connection.admitted().await?;
        }
        phase.ended(Step::Admission);
        self.answer(head, client, phase).await
    }

    /// The answer to the validation of a certificate authority (http-01; RFC 8555, section 8.3). Whichever site the
    /// host is, and however many connections there are, it comes first: only tokens of pending challenges are answered.
    fn challenge(&self, head: &Parts) -> Option<Draft> {
        let is_read = matches!(head.method, Method::GET | Method::HEAD);
        let key_authorization = self.challenges.key_authorization(head.uri.path()).filter(|_| is_read)?;
        let mut answer = Response::new(key_authorization);
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Some(respond::page(answer))
    }

    async fn answer(&self, head: &Parts, client: &Client, phase: &Phase) -> Result<Draft, Problem> {
        let subject = request::subject(head, self.limits().url_bytes_max)?;
        match subject {
            Subject::Options => return Ok(no_content()),
            Subject::Tunnel => return Ok(Response::new(Content::Empty)),
            // A site with its own origin may have files with these names.
            Subject::Health if !self.router.is_site(client) => return Ok(respond::page(Health::alive())),
            Subject::Ready if !self.router.is_site(client) => {
                return Ok(respond::page(self.health.ready(&head.headers)));
            }
            Subject::Routing => {
                if let Some(routing) = self.routing.as_ref().filter(|_| !self.router.is_site(client)) {
                    self.take_token(client).await?;
                    phase.ended(Step::Host);
                    let draft = Box::pin(routing.answer(head, client)).await?;
                    return self.for_version(head, client, draft).await;
                }
            }
            Subject::Health | Subject::Ready | Subject::Content => {}
        }
        let mut ask = Ask::read(head)?;
        let route = self.with_lookup_permit(client, self.router.route(client, &mut ask)).await?;
        phase.ended(Step::Host);
        let draft = match route {
            Route::Content(place) => check_precondition(&ask, self.content(&ask, &place, client, phase).await?)?,
            Route::Landing => respond::page(landing::page(self.welcome.as_ref())),
            Route::Redirect(status, location) => redirect(status, location),
        };
        self.for_version(head, client, draft).await
    }

    /// HTTP/1.0 responses need a length.
    async fn for_version(&self, head: &Parts, client: &Client, draft: Draft) -> Result<Draft, Problem> {
        match head.version < Version::HTTP_11 && head.method != Method::HEAD {
            true => {
                let (bytes_max, memory) =
                    (self.limits().http10_buffer_bytes_max, self.limits().memory_of(client.group()));
                Box::pin(respond::with_known_length(draft, bytes_max, memory)).await
            }
            false => Ok(draft),
        }
    }

    async fn content(&self, ask: &Ask<'_>, place: &Place, client: &Client, phase: &Phase) -> Result<Draft, Problem> {
        phase.enter(WaitReason::Content);
        if let Some(lasting) = self.isolation.as_ref().and_then(|isolation| isolation.refusal()) {
            return Err(Problem::Isolated(lasting));
        }
        reject_wide_service_worker(ask)?;
        if !place.deserialized && !ask.wanted.format.is_trustless() {
            return Err(Problem::TrustlessOnly);
        }
        let generation = self.policy.generation();
        self.check_entry(ask)?;
        // A path that begins with a CID is its own cache key.
        let freshness = if place.certain { Freshness::Immutable } else { Freshness::For(Duration::ZERO) };
        if let Some(entity) = self.cached_file(ask, &ask.path, generation) {
            phase.ended(Step::Path);
            return self.file(ask, place, client, freshness, &ask.path, entity).await;
        }
        Box::pin(self.resolve_and_represent(ask, place, client, generation, phase)).await
    }

    /// Answers a request whose path is not cached.
    async fn resolve_and_represent(
        &self,
        ask: &Ask<'_>,
        place: &Place,
        client: &Client,
        generation: u64,
        phase: &Phase,
    ) -> Result<Draft, Problem> {
        let path = self.parse(ask)?;
        let names = resolver_for(&self.names, client.trace.as_ref());
        phase.enter(WaitReason::Name);
        if ask.wanted.format == Format::IpnsRecord {
            self.check_record(&path)?;
            return self.with_lookup_permit(client, record::record(ask, &path, &**names)).await;
        }
        let mut target = self.with_lookup_permit(client, Target::of(path, &**names, &*self.policy)).await?;
        phase.enter(WaitReason::Content);
        phase.ended(Step::Name);
        // Formats that clients verify have the block that the hash names.
        let mut is_requested_path = true;
        if !ask.wanted.format.is_trustless() && target.root.codec() == codec::PACKED_FILE {
            match self.plain_file(&target.root)? {
                // A path that is cached would outlive the pin.
                Some(plain_file) => (target.root, is_requested_path) = (plain_file, false),
                None => {
                    let answer = Box::pin(self.packed_file(ask, client, &target, generation)).await;
                    return answer.map_err(|problem| only_if_cached_error(ask, problem));
                }
            }
        }
        if !place.certain {
            target.freshness = Freshness::For(Duration::ZERO);
        }
        if let Some(draft) = self.cached(ask, place, client, (&target, generation), phase).await {
            return draft;
        }
        self.metrics.path_misses.inc();
        let source = self.source(target.root, client, ask);
        // No block is read for this answer, but the tiers ask the policy before they say that they have one.
        if let Some(draft) = not_modified_by_cid(ask, &target)
            && source.has(&target.root).await == Ok(true)
        {
            return Ok(draft);
        }
        let cx = Context {
            resources: &self.resources,
            ask,
            place,
            target: &target,
            is_requested_path,
            client,
            source: &source,
            generation,
            phase,
        };
        let represented = match self.represent(&cx).await.map_err(|problem| only_if_cached_error(ask, problem)) {
            // A site with its own origin can have rules for missing paths.
            Err(problem @ Problem::Walk(WalkError::NoLink { .. } | WalkError::NotADirectory { .. }))
                if place.isolated && file::is_native(ask) =>
            {
                self.apply_redirects(&cx, problem).await
            }
            other => other,
        };
        represented.or_else(|problem| problem_of_name(problem, &target, ask))
    }

    /// The response of a file that a name pointed to before, or of a listing, if it is cached.
    async fn cached(
        &self,
        ask: &Ask<'_>,
        place: &Place,
        client: &Client,
        (target, generation): (&Target, u64),
        phase: &Phase,
    ) -> Option<Result<Draft, Problem>> {
        if target.freshness != Freshness::Immutable {
            let key = target.key();
            if let Some(entity) = self.cached_file(ask, &key, generation) {
                phase.ended(Step::Path);
                return Some(self.file(ask, place, client, target.freshness, &key, entity).await);
            }
        }
        directory::cached(&self.resources.listings, ask, place, target, generation).map(Ok)
    }

    /// The source of a request's blocks.
    fn source(&self, root: Cid, client: &Client, ask: &Ask<'_>) -> Arc<RootSource> {
        let work = Work::new(self.limits().work_steps_max);
        let client = LimitedClient {
            address: client.group(),
            connection_memory: client.connection_memory.clone(),
            rates: self.rates.clone(),
            trace: client.trace.clone(),
            is_background: false,
        };
        let purpose = purpose(ask);
        RootSource::with_purpose(&self.sources, root, client, ask.only_if_cached, work, purpose)
    }

    fn parse(&self, ask: &Ask<'_>) -> Result<ContentPath, Problem> {
        let path = ContentPath::parse(&ask.path, self.limits().path_depth_max);
        path.map_err(|error| RequestError::Path { path: ask.path.to_string(), error }.into())
    }

    /// The cached file of a path, if the request is for the file's bytes.
    fn cached_file(&self, ask: &Ask<'_>, key: &str, generation: u64) -> Option<Arc<Entity>> {
        file::is_native(ask).then(|| self.paths.get(key, generation)).flatten()
    }

    /// In allowlist mode, the entry point of a request must be allowed: a root or name, or a path from there.
    fn check_entry(&self, ask: &Ask<'_>) -> Result<(), Problem> {
        if !self.policy.serves_only_listed() {
            return Ok(());
        }
        let ContentPath { root, segments, .. } = self.parse(ask)?;
        let path = segments.join("/");
        match (self.policy.check_entry(&root, &path), root) {
            (Verdict::Allow, _) => Ok(()),
            (verdict, Root::Cid(cid)) => Err(WalkError::Source(SourceError::refused(&cid, &path, verdict)).into()),
            (verdict, Root::Name(name)) => Err(NameError::Withheld { name, path, verdict }.into()),
        }
    }

    /// A record is checked by its name, whatever its value.
    fn check_record(&self, path: &ContentPath) -> Result<(), Problem> {
        let Root::Name(name) = &path.root else { return Ok(()) };
        match self.policy.check_name(name, "") {
            Verdict::Allow => Ok(()),
            verdict => Err(NameError::Withheld { name: name.clone(), path: String::new(), verdict }.into()),
        }
    }

    /// The requested representation.
    async fn represent(&self, cx: &Context<'_>) -> Result<Draft, Problem> {
        match cx.ask.wanted.format {
            Format::Native | Format::Json | Format::Cbor => self.native(cx).await,
            Format::Raw => file::raw(cx).await,
            Format::Car => archive::car(cx).await,
            Format::Tar => archive::tar(cx).await,
            Format::DagJson | Format::DagCbor => document::of_path(cx).await,
            Format::IpnsRecord => Err(Problem::NotIpnsKey),
        }
    }

    /// The content at the end of the path, in its own format.
    async fn native(&self, cx: &Context<'_>) -> Result<Draft, Problem> {
        let shows_index = cx.ask.wanted.format != Format::Json;
        let resolving = self.resources.path_resolver.resolve(cx.source, cx.target, cx.generation, shows_index);
        let found = resolving.await?;
        cx.phase.ended(Step::Path);
        match found {
            PathTarget::File(entity, block) => {
                let key = self.key_of(cx);
                let cache_entity = |entity: &Arc<Entity>| {
                    if shows_index {
                        self.paths.insert(&key, entity);
                    }
                };
                cache_entity(&entity);
                let roots = entity.roots.clone();
                let open = OpenFile {
                    source: cx.source,
                    block: &block,
                    size: entity.size,
                    encoded: cx.resources.encoded.as_ref(),
                    packed: None,
                    limits: self.limits(),
                };
                // A file is sent as it is, whatever media type is preferred: clients that prefer JSON accept others
                // too.
                let max = self.limits().response_bytes_max;
                let draft = file::file(&cx.about(&roots), Arc::clone(&entity), open, max, cache_entity).await?;
                Ok(self.with_prefetch(draft, cx.ask, (cx.place, cx.client), (&entity, cx.source)))
            }
            PathTarget::Symlink(entity, target) => {
                file::symlink(&cx.about(&entity.roots), &entity, target, cx.memory())
            }
            PathTarget::SlashMissing(roots) => Ok(plan::add_slash(&cx.about(&roots)).map(|()| Content::Empty)),
            PathTarget::Document(resolved) => document::document(cx, resolved).await,
            PathTarget::Directory { block, .. } if cx.ask.wanted.format == Format::Cbor => {
                Err(Problem::NotConverted { cid: *block.cid(), wanted: Format::Cbor.name() })
            }
            PathTarget::Directory { roots, block } => directory::listing(cx, block, &roots).await,
        }
    }

    /// The cache key of a path.
    fn key_of<'a>(&self, cx: &Context<'a>) -> Cow<'a, str> {
        match cx.target.freshness {
            Freshness::Immutable if cx.is_requested_path => Cow::Borrowed(&*cx.ask.path),
            _ => Cow::Owned(cx.target.key()),
        }
    }

    /// Answers with a file whose path is cached.
    async fn file(
        &self,
        ask: &Ask<'_>,
        place: &Place,
        client: &Client,
        freshness: Freshness,
        key: &str,
        entity: Arc<Entity>,
    ) -> Result<Draft, Problem> {
        self.metrics.path_hits.inc();
        let roots = entity.roots.clone();
        let about = |tier| About { ask, freshness, roots: &roots, tier };
        if let Some(draft) = file::head_only(&about(Tier::Ram), &entity, self.limits().response_bytes_max) {
            return Ok(draft);
        }
        let source = self.source(entity.root, client, ask);
        let fetched = source.fetch_content(&entity.cid).await;
        let fetched = fetched.map_err(|error| Problem::Walk(WalkError::Source(error)));
        let block = fetched.map_err(|problem| only_if_cached_error(ask, problem))?;
        let open = OpenFile {
            source: &source,
            block: &block,
            size: entity.size,
            encoded: self.resources.encoded.as_ref(),
            packed: None,
            limits: self.limits(),
        };
        let cache_entity = |entity: &Arc<Entity>| self.paths.insert(key, entity);
        let max = self.limits().response_bytes_max;
        let draft = file::file(&about(source.tier()), Arc::clone(&entity), open, max, cache_entity).await?;
        Ok(self.with_prefetch(draft, ask, (place, client), (&entity, &source)))
    }

    /// The response with a file. If it is a page that was fetched for a browser, what it loads is prefetched while it
    /// is sent.
    fn with_prefetch(
        &self,
        mut draft: Draft,
        ask: &Ask<'_>,
        (place, client): (&Place, &Client),
        (entity, source): (&Entity, &RootSource),
    ) -> Draft {
        let (tier, status, headers) = (source.tier(), draft.status(), draft.headers());
        let response = PageResponse { ask, place, client, entity, tier, status, headers };
        if let Some(page) = self.prefetcher.page(response) {
            draft.extensions_mut().insert(page);
        }
        draft
    }

    /// Applies the site's `_redirects` to a missing path; without a rule the path is not found.
    async fn apply_redirects(&self, cx: &Context<'_>, problem: Problem) -> Result<Draft, Problem> {
        let Some(rule) =
            cx.resources.path_resolver.rule(&cx.resources.redirects, cx.source, cx.target, cx.generation).await?
        else {
            return Err(problem);
        };
        let status = StatusCode::from_u16(rule.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        match rule.to {
            redirects::Target::Location(location) => {
                let location = redirects::with_query(&location, cx.ask.query.unwrap_or_default());
                if location.len() > redirects::TARGET_BYTES_MAX {
                    return Err(problem);
                }
                let freshness = cx.target.freshness;
                let mut head = plan::redirect(status, header(&location), freshness.cache_control(false));
                freshness.set_headers(head.headers_mut(), false);
                Ok(head.map(|()| Content::Empty))
            }
            redirects::Target::Path(path) => {
                let Ok(target) = cx.target.within_site(&path, self.limits().path_depth_max) else {
                    return Err(problem);
                };
                let (nothing, mut ask) = (HeaderMap::new(), cx.ask.clone());
                if status != StatusCode::OK {
                    // An error page is not a representation: conditions and ranges do not apply (RFC 9110, section
                    // 13.2.1).
                    ask.headers = &nothing;
                }
                let mut draft =
                    self.represent(&Context { ask: &ask, target: &target, is_requested_path: false, ..*cx }).await?;
                if status != StatusCode::OK {
                    *draft.status_mut() = status;
                }
                Ok(draft)
            }
            redirects::Target::Elsewhere | redirects::Target::TooLong => Err(problem),
        }
    }
}

/// A script directly below `/ipfs/` could be the service worker of all sites on this host, because its scope is the
/// directory that contains it (<https://specs.ipfs.tech/http-gateways/path-gateway/#service-worker-request-header>).
fn reject_wide_service_worker(ask: &Ask<'_>) -> Result<(), Problem> {
    let script = ask.headers.get("service-worker").is_some_and(|value| value.as_bytes().trim_ascii() == b"script");
    let below = content::path::Namespace::split(ask.sent).map(|(_, below)| below);
    let at_root = below.is_some_and(|below| !below.contains('/')) && ask.sent == ask.path;
    if script && at_root { Err(Problem::ServiceWorker) } else { Ok(()) }
}

/// Checks the preconditions of a request. They apply to content only (RFC 9110, section 13.2.1), not to errors or
/// redirects.
fn check_precondition(ask: &Ask<'_>, draft: Draft) -> Result<Draft, Problem> {
    let is_content = matches!(
        draft.status(),
        StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::NOT_MODIFIED | StatusCode::RANGE_NOT_SATISFIABLE
    );
    if is_content && has_precondition(ask.headers) && !precondition_holds(ask.headers, draft.headers()) {
        return Err(Problem::PreconditionFailed);
    }
    Ok(draft)
}

/// A block that is not stored locally is a different error for a request with `only-if-cached`.
fn only_if_cached_error(ask: &Ask<'_>, problem: Problem) -> Problem {
    match problem.source_error() {
        Some(SourceError::NotFound { cid }) if ask.only_if_cached => Problem::NotCached { cid: *cid },
        _ => problem,
    }
}

/// The redirect depends on the host, whose configuration may change.
fn redirect(status: StatusCode, location: HeaderValue) -> Draft {
    let a_day = HeaderValue::from_static("public, max-age=86400");
    let mut draft = plan::redirect(status, location, a_day).map(|()| Content::Empty);
    draft.headers_mut().insert(http::header::VARY, HeaderValue::from_static("Accept"));
    draft
}

fn no_content() -> Draft {
    let mut draft = Response::new(Content::Empty);
    *draft.status_mut() = StatusCode::NO_CONTENT;
    draft.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=86400"));
    draft
}
