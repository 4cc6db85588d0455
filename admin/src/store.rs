//! The admin API of the store.
//!
//! | request | does |
//! |---|---|
//! | `GET /api/v1/store/stats` | says what the store holds and what that takes |
//! | `POST /api/v1/store/check?bytes_per_second=` | reads and checks every block and forgets what is damaged; lines of JSON while it does |
//! | `POST /api/v1/store/compact` | gives back space that nothing needs |
//! | `GET /api/v1/store/export/CID` | a CAR of all blocks below a root, which have to be here |
//! | `POST /api/v1/store/import?roots=header\|last&name=` | takes in a CAR and pins its roots; answers when they are on the disk |
//! | `GET /api/v1/store/blocks/CID` | a block that is here; `HEAD` says whether it is |
//!
//! Goals: a body of any length goes through in little memory, either way; an export that cannot be completed breaks off; a
//! request that takes long ends when its sender leaves, except where it is in the middle of changing the store: a compaction goes
//! on, and what was uploaded whole is pinned. Nothing here is fetched from anybody, and nothing counts as read. What
//! the policy withholds is neither sent nor taken in, whatever the token: the only way to it is the disk, while no
//! gateway runs.
//!
//! Limits: so many operations that take long at once ([`OPERATIONS_MAX`], 429 beyond that); a block of an archive has at most 2
//! MiB, and its header 1 MiB; an upload that is silent for a minute is ended. There is no limit to time or to bytes in all.
//!
//! Departures: an archive whose roots are known last names none in its header, and brings a list of them as its last block
//! (`roots=last`, [`content::car::roots_block`]). It may name blocks without bringing them, of which the gateway said that it has
//! them ([`content::car::reference`], [`crate::have`]).

use crate::http::answer::{Answer, Refusal, json, status_of, stopping};
use crate::http::extract::Authenticated;
use crate::http::long::{self, PROGRESS_EVERY, apart};
use crate::http::openapi::Binary;
use crate::http::parameters::{Parameters, wrong};
use crate::http::refusals::{DiskFailed, Withheld, WithheldByLaw, WrongParameters};
use api::error::ErrorView;
use api::store::{CAR, CheckLine, CompactedView, FiguresView, ImportedView};
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cache::import::{IMPORT_BYTES_MAX, ImportError};
use cache::{BlockStore, Finding, ImportSummary, PinError, RootsIn, ScrubPass, ScrubProgress, StoreError, TakenCar};
use content::budget::Share;
use content::car::{self, CarError};
use content::dag::DagError;
use content::policy::admit;
use content::scope::{self, ScopeLimits, ScopeOptions};
use content::{Block, BlockKey, BlockSource, Cid, MAX_BLOCK_BYTES, Permitted, Policy, SourceError};
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use futures::stream::{self, Stream, StreamExt as _};
use gateway::listen::server::Connection;
use http_body::Body as _;
use services::access::Principal;
use services::audit::Detail;
use services::limiter::{Limiter, Permit};
use services::pinning::{Owner, Pins, PinsError};
use services::uploads::request_body::{Upload, boxed};
use services::uploads::{Uploads, claims, memory_for};
use services::views::store as store_views;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Instant;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Operations that take long, at a time.
pub const OPERATIONS_MAX: usize = 4;
/// Roots of an import that the audit log names.
const ROOTS_TOLD: usize = 100;
/// The media type of blocks.
const RAW: &str = "application/vnd.ipld.raw";

#[derive(Clone)]
struct Api {
    store: Arc<dyn BlockStore>,
    pins: Arc<Pins>,
    policy: Arc<dyn Policy>,
    uploads: Uploads,
    operations: Arc<Limiter>,
}

/// The routes whose answers are at hand.
pub fn quick_routes(
    store: &Arc<dyn BlockStore>,
    pins: &Arc<Pins>,
    uploads: &Uploads,
    policy: &Arc<dyn Policy>,
) -> OpenApiRouter {
    OpenApiRouter::default().routes(routes!(block)).with_state(Api::new(store, pins, uploads, policy))
}

/// The routes that may take as long as they need.
pub fn long_routes(
    store: &Arc<dyn BlockStore>,
    pins: &Arc<Pins>,
    uploads: &Uploads,
    policy: &Arc<dyn Policy>,
) -> OpenApiRouter {
    let routes = OpenApiRouter::default().routes(routes!(stats)).routes(routes!(check)).routes(routes!(compact));
    routes.routes(routes!(export)).routes(routes!(import)).with_state(Api::new(store, pins, uploads, policy))
}

impl Api {
    fn new(store: &Arc<dyn BlockStore>, pins: &Arc<Pins>, uploads: &Uploads, policy: &Arc<dyn Policy>) -> Self {
        let operations = Arc::new(Limiter::shared(OPERATIONS_MAX));
        let (store, pins, policy) = (Arc::clone(store), Arc::clone(pins), Arc::clone(policy));
        Self { store, pins, policy, uploads: uploads.clone(), operations }
    }

    /// A slot and memory for an import whose body has so many bytes at most.
    fn begin_import(&self, bearer: &Principal, body_bytes_max: Option<u64>) -> Result<(Permit, Share), Refusal> {
        let bytes = memory_for(IMPORT_BYTES_MAX, MAX_BLOCK_BYTES, body_bytes_max);
        Ok((self.begin(bearer)?, self.uploads.reserve(bytes)?))
    }

    /// A place for an operation that takes long.
    fn begin(&self, bearer: &Principal) -> Result<Permit, Refusal> {
        long::place(&self.operations, bearer, || {
            format!("{OPERATIONS_MAX} operations on the store are under way: try again when one has ended")
        })
    }
}

fn parse(cid: &str) -> Result<Cid, Refusal> {
    content::cid::parse(cid).map_err(wrong)
}

/// What the store holds, and what that takes.
#[utoipa::path(get, path = "/api/v1/store/stats", tag = "store", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The figures", body = FiguresView), WrongParameters, DiskFailed))]
async fn stats(State(api): State<Api>, Authenticated(bearer): Authenticated, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    let (place, store) = (api.begin(&bearer)?, api.store);
    let figures = apart(place, async move { store.figures().await }).await??;
    Ok(json(StatusCode::OK, &store_views::figures(&figures)))
}

/// Gives back space that nothing needs.
#[utoipa::path(post, path = "/api/v1/store/compact", tag = "store", security(("bearer" = ["operate"])), responses(
    (status = 200, description = "What it came to", body = CompactedView), WrongParameters, DiskFailed))]
async fn compact(State(api): State<Api>, Authenticated(bearer): Authenticated, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    let (place, store) = (api.begin(&bearer)?, api.store);
    let done = apart(place, async move {
        let total = || store.stats().cached_bytes + store.stats().pinned_bytes;
        let bytes_before = total();
        store.compact().await?;
        Ok::<_, StoreError>(CompactedView { bytes_before, bytes_after: total() })
    });
    Ok(json(StatusCode::OK, &done.await??))
}

/// Reads and checks every block and forgets what is damaged. Lines of JSON tell how far it has come; the last is a report or an error.
#[utoipa::path(post, path = "/api/v1/store/check", tag = "store", security(("bearer" = ["operate"])),
    params(("bytes_per_second" = Option<u64>, Query, minimum = 1, description = "Reads no faster than that")),
    responses((status = 200, description = "Lines of JSON", body = CheckLine, content_type = "application/x-ndjson"),
        WrongParameters))]
async fn check(State(api): State<Api>, Authenticated(bearer): Authenticated, uri: Uri) -> Answer {
    let parameters = Parameters::of(&uri, &["bytes_per_second"])?;
    let rate = parameters.get("bytes_per_second").map(|text| rate(&text)).transpose()?;
    Ok(long::lines(Body::from_stream(lines(api.begin(&bearer)?, api.store, rate))))
}

fn rate(text: &str) -> Result<u64, Refusal> {
    let rate = text.parse().ok().filter(|rate| *rate > 0);
    rate.ok_or_else(|| wrong("bytes_per_second is a whole number above zero; without it, nothing is held back"))
}

/// What a check has said and nobody has read yet.
#[derive(Default)]
struct Said(Mutex<VecDeque<Bytes>>);

impl Said {
    fn say(&self, line: &CheckLine) {
        self.queue().push_back(long::line(line));
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Bytes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lines of a check, which goes on while they are read: what is not read yet is what one step has found.
fn lines(
    place: Permit,
    store: Arc<dyn BlockStore>,
    rate: Option<u64>,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    let said = Arc::<Said>::default();
    let mut checking = Some((pass(store, rate, Arc::clone(&said)).boxed(), place));
    stream::poll_fn(move |cx| {
        loop {
            if let Some(line) = said.queue().pop_front() {
                return Poll::Ready(Some(Ok(line)));
            }
            let Some((pass, _place)) = &mut checking else { return Poll::Ready(None) };
            match pass.poll_unpin(cx) {
                Poll::Ready(()) => checking = None,
                Poll::Pending if said.queue().is_empty() => return Poll::Pending,
                Poll::Pending => {}
            }
        }
    })
}

async fn pass(store: Arc<dyn BlockStore>, rate: Option<u64>, said: Arc<Said>) {
    let mut shown: Option<Instant> = None;
    let mut show = |progress: &ScrubProgress, findings: &[Finding]| {
        findings.iter().for_each(|finding| said.say(&CheckLine::Finding(store_views::finding(finding))));
        if shown.is_none_or(|shown| shown.elapsed() >= PROGRESS_EVERY) {
            shown = Some(Instant::now());
            said.say(&CheckLine::Progress(store_views::progress(progress)));
        }
    };
    let ended = store.scrub(ScrubPass::All, rate, &mut show).await;
    said.say(&match ended {
        Ok(report) => CheckLine::Report(store_views::scrubbed(&report)),
        Err(StoreError::Closed) => CheckLine::Error(stopping().1),
        Err(error) => CheckLine::Error(error.to_string()),
    });
}

/// What the store holds, looked at: see [`BlockStore::look`].
struct Looked(Arc<dyn BlockStore>);

impl BlockSource for Looked {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let Some(key) = BlockKey::of(cid) else {
            return ready(Block::inline(cid).ok_or(SourceError::NotFound { cid: *cid })).boxed();
        };
        let (store, cid) = (Arc::clone(&self.0), *cid);
        async move {
            let data = store.look(&key).await?.ok_or(SourceError::NotFound { cid })?;
            // It was hashed when it was looked at.
            Ok(Block::from_checked(cid, data))
        }
        .boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.0.has(cid)
    }
}

fn unread(error: SourceError) -> Refusal {
    match error {
        SourceError::NotFound { cid } => Refusal(StatusCode::NOT_FOUND, format!("{cid} is not in the store")),
        SourceError::Closed => stopping(),
        SourceError::Refused { verdict, .. } => Refusal(status_of(verdict), error.to_string()),
        SourceError::Unacceptable(error) => wrong(error),
        other => Refusal(StatusCode::INTERNAL_SERVER_ERROR, other.to_string()),
    }
}

/// What is sent as it is, and is never a page.
fn bytes_of(media_type: &'static str, body: Body) -> Response {
    let headers: [(HeaderName, &str); 3] =
        [(CONTENT_TYPE, media_type), (CACHE_CONTROL, "no-store"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, body).into_response()
}

/// A block that is here. HEAD says whether it is.
#[utoipa::path(get, path = "/api/v1/store/blocks/{cid}", tag = "store", security(("bearer" = ["read"])),
    params(("cid" = String, Path, description = "The block's CID")),
    responses((status = 200, description = "The block's bytes", content_type = "application/vnd.ipld.raw"),
        (status = 400, description = "This is no CID that can be looked up", body = ErrorView), Withheld, WithheldByLaw,
        DiskFailed))]
async fn block(State(api): State<Api>, method: Method, Path(cid): Path<String>, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    let cid = parse(&cid)?;
    let held = Permitted::blocks(Arc::new(Looked(api.store)), api.policy);
    if method == Method::HEAD {
        let has = held.has(&cid).await.map_err(unread)?;
        return if has { Ok(bytes_of(RAW, Body::empty())) } else { Err(unread(SourceError::NotFound { cid })) };
    }
    let block = held.get(&cid).await.map_err(unread)?;
    Ok(bytes_of(RAW, Body::from(block.data().clone())))
}

/// A CAR of all blocks below a root, which have to be here. One that cannot be completed breaks off.
#[utoipa::path(get, path = "/api/v1/store/export/{cid}", tag = "store", security(("bearer" = ["read"])),
    params(("cid" = String, Path, description = "The root's CID")),
    responses((status = 200, description = "A CARv1", content_type = "application/vnd.ipld.car"),
        (status = 400, description = "This is no CID that can be looked up", body = ErrorView), Withheld, WithheldByLaw,
        DiskFailed))]
async fn export(
    State(api): State<Api>,
    Authenticated(bearer): Authenticated,
    Path(cid): Path<String>,
    request: Request,
) -> Answer {
    Parameters::of(request.uri(), &[])?;
    let root = parse(&cid)?;
    let place = api.begin(&bearer)?;
    let held: Arc<dyn BlockSource> = Arc::new(Permitted::whole(Arc::new(Looked(api.store)), api.policy));
    let first = held.get(&root).await.map_err(unread)?;
    let connection = request.extensions().get::<Arc<Connection>>().cloned();
    // A stranger's request is bounded; the operator may have all that is here.
    let limits = ScopeLimits { depth_max: usize::MAX, seen_max: usize::MAX, ..ScopeLimits::default() };
    let blocks = scope::blocks(held, Vec::new(), first, ScopeOptions::default(), limits);
    let sections = blocks.flat_map(move |block| {
        let _place = &place;
        stream::iter(match block {
            Ok(block) => <[Bytes; 2]>::from(car::section(&block)).map(Ok).to_vec(),
            Err(error) => {
                tracing::warn!(%root, %error, "an export broke off");
                connection.iter().for_each(|connection| connection.reset_on_close());
                vec![Err(io::ErrorKind::UnexpectedEof)]
            }
        })
    });
    let header = stream::once(ready(Ok(car::header(&[root]))));
    Ok(bytes_of(CAR, Body::from_stream(header.chain(sections).map(|piece| piece.map_err(io::Error::from)))))
}

/// What an upload is to become.
struct Terms {
    roots_in: RootsIn,
    name: Option<String>,
}

impl Terms {
    fn of(uri: &Uri, headers: &HeaderMap) -> Result<Self, Refusal> {
        let parameters = Parameters::of(uri, &["roots", "name"])?;
        let roots_in = match parameters.get("roots").as_deref() {
            None | Some("header") => RootsIn::Header,
            Some("last") => RootsIn::LastBlock,
            Some(other) => return Err(wrong(format!("roots is \"header\" or \"last\", and not \"{other}\""))),
        };
        let name = parameters.get("name").map(|name| name.into_owned());
        cache::pins::check_name(name.as_deref()).map_err(wrong)?;
        let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media_type = media_type.split(';').next().unwrap_or_default().trim();
        if !media_type.eq_ignore_ascii_case(CAR) {
            let words = format!("an archive has the media type {CAR}: send the header Content-Type with it");
            return Err(Refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, words));
        }
        Ok(Self { roots_in, name })
    }
}

/// Takes in a CAR and pins its roots. Answers when they are on the disk.
#[utoipa::path(post, path = "/api/v1/store/import", tag = "store", security(("bearer" = ["operate"])),
    params(("roots" = Option<String>, Query, description = "Where the roots are named: \"header\", or \"last\" block"),
        ("name" = Option<String>, Query, description = "What to call the pins", max_length = 255)),
    request_body(content = inline(Binary), content_type = "application/vnd.ipld.car"),
    responses((status = 200, description = "What was pinned", body = ImportedView),
        (status = 400, description = "The archive or the parameters are wrong", body = ErrorView),
        Withheld, WithheldByLaw,
        (status = 409, description = "Somebody removed the pin meanwhile, or the token's quota is used up", body = ErrorView),
        DiskFailed,
        (status = 507, description = "The disk is full", body = ErrorView)))]
async fn import(State(api): State<Api>, Authenticated(bearer): Authenticated, request: Request) -> Response {
    let terms = Terms::of(request.uri(), request.headers());
    let body_bytes_max = request.body().size_hint().upper();
    let begun = terms.and_then(|terms| Ok((terms, api.begin_import(&bearer, body_bytes_max)?)));
    let (Terms { roots_in, name }, (place, memory)) = match begun {
        Ok(begun) => begun,
        Err(refusal) => return refusal.to_sender(request.into_body()),
    };
    let mut upload = Upload::new(boxed(request.into_body()));
    // What has come whole is pinned, whether or not anybody waits to hear of it.
    let imported = apart(place, async move {
        let _memory = memory;
        let imported = api.take_in(&Owner::from(&bearer), &mut upload, roots_in, name.as_deref()).await;
        (imported, upload)
    });
    match imported.await {
        Ok((Ok(summary), _)) => {
            let roots: Vec<String> = summary.pins.iter().take(ROOTS_TOLD).map(|pin| pin.root.to_string()).collect();
            let detail = Detail(serde_json::json!({ "roots": roots, "bytes": summary.bytes }));
            detail.with(json(StatusCode::OK, &store_views::imported(&summary)))
        }
        Ok((Err(refusal), upload)) => refusal.to_sender(upload.into_rest()),
        Err(refusal) => refusal.into_response(),
    }
}

impl Api {
    /// Takes in an archive and pins its roots for somebody. If that is refused, nothing of it stays pinned.
    async fn take_in(
        &self,
        owner: &Owner,
        upload: &mut Upload,
        roots_in: RootsIn,
        name: Option<&str>,
    ) -> Result<ImportSummary, Refusal> {
        let look = |cid: &Cid| Ok(admit(&*self.policy, cid)?);
        let addition = self.uploads.begin_addition().await.map_err(|error| refusal(error.into()))?;
        let taken = cache::take_car(addition, upload, roots_in, &look).await.map_err(refusal)?;
        let TakenCar { addition, roots, blocks, bytes } = taken;
        // So that nobody else removes the pins before it is noted whose they are.
        let protected: Vec<_> = roots.iter().map(|root| self.pins.protect(*root)).collect();
        let pinned = match addition.pin(&roots, name).await {
            Ok(pins) => {
                let summary = ImportSummary { pins, blocks, bytes };
                record(&self.pins, owner, &summary).await.map(|()| summary)
            }
            Err(error) => Err(refusal(error.into())),
        };
        drop(protected);
        if pinned.is_err() {
            claims::let_go(&self.pins, &roots).await;
        }
        pinned
    }
}

/// Notes whose the new pins are.
async fn record(pins: &Arc<Pins>, owner: &Owner, summary: &ImportSummary) -> Result<(), Refusal> {
    for pin in &summary.pins {
        let recorded = pins.record_once(owner, pin.root, pin.name.clone()).await;
        recorded.map_err(|error| match error {
            PinsError::Store(error) => Refusal::from(error),
            PinsError::Full(_) => Refusal(StatusCode::INSUFFICIENT_STORAGE, error.to_string()),
            PinsError::Invalid(_) => wrong(error),
            PinsError::Quota(_) | PinsError::NotHeld { .. } | PinsError::NotFound => {
                Refusal(StatusCode::CONFLICT, error.to_string())
            }
        })?;
    }
    Ok(())
}

/// Why an archive was not imported, by who can do something about it.
fn refusal(error: ImportError) -> Refusal {
    let words = error.to_string();
    match error {
        ImportError::Store(error) | ImportError::Pin { error: PinError::Store(error), .. } => error.into(),
        ImportError::Car(CarError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => {
            Refusal(StatusCode::REQUEST_TIMEOUT, words)
        }
        ImportError::Pin { error: PinError::Blocks(error), .. } => match error.downcast_ref() {
            Some(DagError::Source(SourceError::Closed)) => stopping(),
            Some(DagError::Memory) => Refusal(StatusCode::SERVICE_UNAVAILABLE, words),
            Some(DagError::Source(SourceError::Store(_))) => Refusal(StatusCode::INTERNAL_SERVER_ERROR, words),
            _ => wrong(words),
        },
        ImportError::Refused(error) => match error.downcast_ref() {
            Some(SourceError::Refused { verdict, .. }) => Refusal(status_of(*verdict), words),
            _ => wrong(words),
        },
        ImportError::Pin { error: PinError::Removed { .. } | PinError::Lost { .. }, .. } | ImportError::Gone { .. } => {
            Refusal(StatusCode::CONFLICT, words)
        }
        _ => wrong(words),
    }
}
