//! [`Gateway`]: one request from top to bottom.
//!
//! ```text
//! head → subject → Ask (format) ─┬→ remembered path ───────────────────────────┐
//!                                └→ ContentPath → policy → 304 by CID → walk ──┴→ decision → head + body
//! ```
//!
//! Waiting happens in the walk, in sniffing a nameless file's type, and for the first chunk of a body, so that whatever
//! fails until then has an honest status. The rest are pure functions. Errors rise here once.

use crate::body::{Body, Content};
use crate::conditional::none_match;
use crate::content_type;
use crate::errors::Problem;
use crate::health::Health;
use crate::listing;
use crate::metrics::{Exchange, HttpMetrics};
use crate::negotiate::Format;
use crate::plan::{self, Decision};
use crate::request::{self, Ask, Subject};
use crate::resolve::{self, Entity, Found, Paths, Trail, etag_of};
use crate::respond::{self, Draft};
use crate::server::Connection;
use crate::source::{RootSource, Sources};
use bytes::Bytes;
use content::unixfs::file::{FileReader, ReadLimits};
use content::{Block, Cid, ContentPath, Policy, Verdict, codec};
use futures::StreamExt as _;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use std::ops::Range;
use std::sync::Arc;

/// What a request may cost.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a path and query.
    pub url_bytes_max: usize,
    /// Segments of a path.
    pub path_depth_max: usize,
    /// Bytes fetched ahead of a response's reader.
    pub read_ahead_bytes_max: usize,
    /// Bytes collected for an HTTP/1.0 client.
    pub http10_buffer_bytes_max: u64,
    /// Bytes of remembered paths.
    pub paths_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        let http = config::Http::default();
        Self::of(&http, &config::Cache::default())
    }
}

impl Limits {
    /// The limits that are configured.
    pub fn of(http: &config::Http, cache: &config::Cache) -> Self {
        let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        Self {
            url_bytes_max: size(http.url_bytes_max),
            path_depth_max: size(http.path_depth_max),
            read_ahead_bytes_max: size(http.read_ahead_bytes_max),
            http10_buffer_bytes_max: http.http10_buffer_bytes_max,
            paths_bytes_max: cache.paths_bytes_max,
        }
    }
}

/// What answers the public.
pub struct Gateway {
    sources: Arc<Sources>,
    policy: Arc<dyn Policy>,
    paths: Paths,
    metrics: Arc<HttpMetrics>,
    health: Arc<Health>,
    limits: Limits,
    /// Where `/` leads.
    landing: Option<HeaderValue>,
}

impl Gateway {
    /// A gateway to what the sources have, as far as the policy allows. `landing` is what `/` redirects to.
    pub fn new(
        sources: Sources,
        policy: Arc<dyn Policy>,
        metrics: Arc<HttpMetrics>,
        health: Arc<Health>,
        limits: Limits,
        landing: Option<Cid>,
    ) -> Self {
        let paths = Paths::new(limits.paths_bytes_max);
        let landing = landing.map(|root| resolve::header(&format!("/ipfs/{root}/")));
        Self { sources: Arc::new(sources), policy, paths, metrics, health, limits, landing }
    }

    /// Answers a request. Whatever it is about, there is a response.
    pub async fn handle<B>(&self, request: Request<B>, connection: Arc<Connection>) -> Response<Body> {
        let head = request.into_parts().0;
        let exchange = Exchange::begin(&self.metrics, &head.method);
        let draft = match self.answer(&head).await {
            Ok(draft) => draft,
            Err(problem) => {
                tracing::debug!(path = head.uri.path(), %problem, "not answered with content");
                respond::page(problem.response(&head.headers))
            }
        };
        respond::finish(draft, head.method == Method::HEAD, exchange, connection)
    }

    async fn answer(&self, head: &Parts) -> Result<Draft, Problem> {
        match request::subject(head, self.limits.url_bytes_max)? {
            Subject::Content => {
                let draft = self.content(&Ask::read(head)?).await?;
                match head.version < Version::HTTP_11 {
                    true => respond::with_known_length(draft, self.limits.http10_buffer_bytes_max).await,
                    false => Ok(draft),
                }
            }
            Subject::Options => Ok(no_content()),
            Subject::Landing => self.landing(),
            Subject::Health => Ok(respond::page(Health::alive())),
            Subject::Ready => Ok(respond::page(self.health.ready())),
        }
    }

    fn landing(&self) -> Result<Draft, Problem> {
        let location = self.landing.clone().ok_or(Problem::NoSuchPage)?;
        Ok(plan::redirect(location).map(|()| Content::Empty))
    }

    async fn content(&self, ask: &Ask<'_>) -> Result<Draft, Problem> {
        refuse_wide_service_worker(ask)?;
        let generation = self.policy.generation();
        if ask.format == Format::Unixfs
            && let Some(entity) = self.paths.get(ask.path, generation)
        {
            self.metrics.path_hits.inc();
            return self.file(ask, entity, None).await;
        }
        self.metrics.path_misses.inc();
        let path = ContentPath::parse(ask.path, self.limits.path_depth_max)?;
        let root = resolve::root(&path)?;
        self.check_allowed(&root)?;
        if let Some(draft) = not_modified_by_cid(ask, &path, &root) {
            return Ok(draft);
        }
        let source = RootSource::new(&self.sources, root);
        match ask.format {
            Format::Raw => raw(ask, &path, &source, generation).await,
            Format::Unixfs => self.unixfs(ask, &path, source, generation).await,
        }
    }

    /// The tiers check every block, but an answer from the CID alone touches none.
    fn check_allowed(&self, root: &Cid) -> Result<(), Problem> {
        match self.policy.check(root) {
            Verdict::Allow => Ok(()),
            verdict => Err(Problem::Refused { cid: *root, verdict }),
        }
    }

    async fn unixfs(
        &self,
        ask: &Ask<'_>,
        path: &ContentPath,
        source: Arc<RootSource>,
        generation: u64,
    ) -> Result<Draft, Problem> {
        match resolve::resolve(&source, path, ask.path, generation).await? {
            Found::File(entity, block) => {
                let entity = Arc::new(entity);
                self.paths.remember(ask.path, &entity);
                self.file(ask, entity, Some((source, block))).await
            }
            Found::Symlink(entity, target) => Ok(whole(ask, &entity, target)),
            Found::SlashMissing(trail) => Ok(plan::add_slash(ask, &trail).map(|()| Content::Empty)),
            Found::Directory(trail, block) => {
                let etag = listing::etag(block.cid());
                if none_match(ask.headers, etag.as_bytes(), true) {
                    return Ok(plan::not_modified(&etag, plan::LISTING_CACHE, &trail).map(|()| Content::Empty));
                }
                match ask.head_only {
                    true => Ok(listing::head_only(block.cid(), &trail)),
                    false => listing::page(source, block, ask.path, &trail).await,
                }
            }
        }
    }

    /// Sends a file, or what is wanted of it. What was fetched on the way is handed in.
    async fn file(
        &self,
        ask: &Ask<'_>,
        mut entity: Arc<Entity>,
        fetched: Option<(Arc<RootSource>, Block)>,
    ) -> Result<Draft, Problem> {
        let decision = Decision::of(ask, &entity.etag, entity.size);
        let range = match decision.range(entity.size) {
            Some(range) if !ask.head_only || entity.content_type.is_none() => range,
            _ => return Ok(plan::file(ask, &entity, &decision).map(|()| Content::Empty)),
        };
        let (source, block) = match fetched {
            Some(fetched) => fetched,
            None => self.fetch_again(&entity).await?,
        };
        let content = match ask.head_only {
            true => Content::Empty,
            false => self.open(&source, &block, range.clone()).await?,
        };
        if entity.content_type.is_none() {
            let sniffed = match begins(&content, &range, entity.size) {
                Some(first) => content_type::by_content(first),
                None => self.sniff(&source, &block, entity.size).await?,
            };
            Arc::make_mut(&mut entity).content_type = Some(sniffed);
            self.paths.remember(ask.path, &entity);
        }
        Ok(plan::file(ask, &entity, &decision).map(|()| content))
    }

    /// The root block of a remembered file: from memory, most of the time.
    async fn fetch_again(&self, entity: &Entity) -> Result<(Arc<RootSource>, Block), Problem> {
        let source = RootSource::new(&self.sources, entity.root);
        let block = source.fetch(&entity.cid).await.map_err(content::walk::WalkError::Source)?;
        Ok((source, block))
    }

    /// The bytes of a range. Waits for the first of them.
    async fn open(&self, source: &Arc<RootSource>, block: &Block, range: Range<u64>) -> Result<Content, Problem> {
        if block.cid().codec() == codec::RAW {
            return Ok(Content::Bytes(slice(block.data(), &range)));
        }
        let limits = ReadLimits { window_bytes_max: self.limits.read_ahead_bytes_max };
        let remaining = range.end - range.start;
        let mut reader = FileReader::new(Arc::clone(source) as _, block.clone(), range, limits)?;
        match reader.next().await.transpose()? {
            None if remaining == 0 => Ok(Content::Empty),
            None => Err(Problem::Length),
            Some(first) if first.len() as u64 == remaining => Ok(Content::Bytes(first)),
            Some(first) => Ok(Content::File { first: Some(first), reader: Box::new(reader), remaining }),
        }
    }

    /// The media type that a file's first bytes look like, when they are not being sent anyway.
    async fn sniff(&self, source: &Arc<RootSource>, block: &Block, size: u64) -> Result<HeaderValue, Problem> {
        let content = self.open(source, block, 0..size.min(content_type::SNIFF_BYTES)).await?;
        Ok(content_type::by_content(first_of(&content)))
    }
}

/// The first bytes of a file, if they are among those that are sent.
fn begins<'a>(content: &'a Content, range: &Range<u64>, size: u64) -> Option<&'a [u8]> {
    let enough = range.start == 0 && range.end >= size.min(content_type::SNIFF_BYTES);
    (enough && (!matches!(content, Content::Empty) || size == 0)).then(|| first_of(content))
}

fn first_of(content: &Content) -> &[u8] {
    match content {
        Content::Bytes(bytes) | Content::File { first: Some(bytes), .. } => bytes,
        _ => &[],
    }
}

/// The bytes of a range that was checked against their number.
fn slice(bytes: &Bytes, range: &Range<u64>) -> Bytes {
    let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    bytes.slice(at(range.start)..at(range.end))
}

/// A script right below `/ipfs/` would become the service worker of every site here: its scope is the folder that it is in
/// (<https://specs.ipfs.tech/http-gateways/path-gateway/#service-worker-request-header>).
fn refuse_wide_service_worker(ask: &Ask<'_>) -> Result<(), Problem> {
    let script = ask.headers.get("service-worker").is_some_and(|value| value.as_bytes().trim_ascii() == b"script");
    let below_root = ask.path.strip_prefix("/ipfs/").is_some_and(|rest| rest.contains('/'));
    if script && !below_root { Err(Problem::ServiceWorker) } else { Ok(()) }
}

/// What stands at a bare CID has that CID for its entity tag, whatever it is: no block is needed to say that the client
/// has it.
fn not_modified_by_cid(ask: &Ask<'_>, path: &ContentPath, root: &Cid) -> Option<Draft> {
    if !path.segments.is_empty() {
        return None;
    }
    let trail = || Trail { path: resolve::header(ask.path), roots: resolve::header(&root.to_string()) };
    let etag = entity_tag(root, ask.format);
    if none_match(ask.headers, etag.as_bytes(), false) {
        return Some(plan::not_modified(&etag, plan::IMMUTABLE, &trail()).map(|()| Content::Empty));
    }
    let listing = listing::etag(root);
    let has_listing = ask.format == Format::Unixfs && none_match(ask.headers, listing.as_bytes(), false);
    has_listing.then(|| plan::not_modified(&listing, plan::LISTING_CACHE, &trail()).map(|()| Content::Empty))
}

fn entity_tag(cid: &Cid, format: Format) -> HeaderValue {
    match format {
        Format::Unixfs => etag_of(cid, ""),
        Format::Raw => etag_of(cid, ".raw"),
    }
}

/// The one block that a path leads to, as it is hashed.
async fn raw(ask: &Ask<'_>, path: &ContentPath, source: &RootSource, generation: u64) -> Result<Draft, Problem> {
    let (trail, block) = resolve::walk(source, path, ask.path).await?;
    let entity = Entity {
        root: *source.root(),
        cid: *block.cid(),
        size: block.data().len() as u64,
        content_type: None,
        etag: entity_tag(block.cid(), Format::Raw),
        trail,
        generation,
    };
    let decision = Decision::of(ask, &entity.etag, entity.size);
    let content =
        decision.range(entity.size).map_or(Content::Empty, |range| Content::Bytes(slice(block.data(), &range)));
    Ok(plan::raw(ask, &entity, &decision).map(|()| content))
}

/// A small body that is at hand.
fn whole(ask: &Ask<'_>, entity: &Entity, bytes: Bytes) -> Draft {
    let decision = Decision::of(ask, &entity.etag, entity.size);
    let content = decision.range(entity.size).map_or(Content::Empty, |range| Content::Bytes(slice(&bytes, &range)));
    plan::file(ask, entity, &decision).map(|()| content)
}

fn no_content() -> Draft {
    let mut draft = Response::new(Content::Empty);
    *draft.status_mut() = StatusCode::NO_CONTENT;
    draft
}
