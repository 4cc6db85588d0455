//! The admin API of the store.
//!
//! | request | does |
//! |---|---|
//! | `GET /api/v1/store/stats` | statistics of the store |
//! | `POST /api/v1/store/check?bytes_per_second=` | verifies every block and deletes damaged ones |
//! | `POST /api/v1/store/compact` | compacts the store and reclaims space |
//! | `GET /api/v1/store/export/CID` | a CAR of the DAG below a root, all of whose blocks must be stored locally |
//! | `POST /api/v1/store/import?roots=header\|last&name=&pin=new\|requested` | imports a CAR and pins its roots |
//! | `GET /api/v1/store/blocks/CID` | a block that is stored locally; `HEAD` checks whether it is |
//!
//! Goals: bodies of any length are streamed in both directions in little memory; an export that cannot be completed is
//! aborted; a long-running request ends when its client disconnects, except while it changes the store: a compaction
//! runs to completion, and a fully received archive is pinned. No request here fetches from the network, and reads do
//! not count for cache eviction. Content that the policy withholds is neither sent nor imported, whatever the token; it
//! is reachable only on the disk, while no gateway runs.
//!
//! Limits: [`OPERATIONS_MAX`] long-running operations at a time (429 beyond that); a block of an archive has at most
//! 2 MiB, and the archive's header 1 MiB; an upload that stalls for a minute is aborted. Neither the duration of an
//! operation nor the length of an archive is limited.
//!
//! Departures: the header of an archive may name no roots; its last block is then a list of them (`roots=last`,
//! [`content::car::roots_block`]). An archive may refer to blocks without containing them if the gateway has reported
//! that it stores them ([`content::car::reference`], [`crate::have`]). It may be for pins that are requested already,
//! of any owners (`pin=requested`): this is how the pins of another gateway are imported.

use crate::http::answer::{Answer, ApiError, ErrorFormat, decoded, json, status_of, stopping};
use crate::http::error_responses::{BadParameters, DiskFailed, Withheld, WithheldByLaw};
use crate::http::extract::Authenticated;
use crate::http::long_running::{self, PROGRESS_EVERY, run_to_completion};
use crate::http::openapi::Binary;
use crate::http::parameters::{Parameters, bad_request};
use api::error::ErrorView;
use api::store::{CAR, CheckLine, CompactedView, FiguresView, ImportedView};
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cache::import::ImportError;
use cache::{
    Addition, BlockStore, Finding, ImportSummary, PinError, PinSummary, ReadCar, RootsIn, ScrubPass, ScrubProgress,
    StoreError,
};
use content::budget::Share;
use content::car::{self, CarError};
use content::dag::DagError;
use content::policy::admit;
use content::scope::{self, ScopeLimits, ScopeOptions};
use content::{Block, BlockKey, BlockSource, Cid, Permitted, Policy, SourceError};
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use futures::stream::{self, Stream, StreamExt as _};
use gateway::listen::connection::Connection;
use services::access::Principal;
use services::audit::ResponseDetail;
use services::limiter::{Limiter, Permit};
use services::pinning::adopt::{AdoptError, Adopted, Adoption};
use services::pinning::{Meta, Owner, Pins, PinsError};
use services::uploads::Uploads;
use services::uploads::limits::import_memory_bytes;
use services::uploads::request_body::{RequestBody, Upload};
use services::views::store as store_views;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Instant;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The maximum number of concurrent long-running operations.
pub const OPERATIONS_MAX: usize = 4;
/// The maximum number of roots of an import that the audit log names.
const AUDITED_ROOTS_MAX: usize = 100;
/// The media type of blocks.
const RAW: &str = "application/vnd.ipld.raw";

#[derive(Clone)]
struct StoreApi {
    store: Arc<dyn BlockStore>,
    pins: Arc<Pins>,
    policy: Arc<dyn Policy>,
    uploads: Uploads,
    operations: Arc<Limiter>,
}

/// The routes that have a timeout.
pub fn routes(
    store: &Arc<dyn BlockStore>,
    pins: &Arc<Pins>,
    uploads: &Uploads,
    policy: &Arc<dyn Policy>,
) -> OpenApiRouter {
    OpenApiRouter::default().routes(routes!(block)).with_state(StoreApi::new(store, pins, uploads, policy))
}

/// The long-running routes, which have no timeout.
pub fn long_running_routes(
    store: &Arc<dyn BlockStore>,
    pins: &Arc<Pins>,
    uploads: &Uploads,
    policy: &Arc<dyn Policy>,
) -> OpenApiRouter {
    let routes = OpenApiRouter::default().routes(routes!(stats)).routes(routes!(check)).routes(routes!(compact));
    routes.routes(routes!(export)).routes(routes!(import)).with_state(StoreApi::new(store, pins, uploads, policy))
}

impl StoreApi {
    fn new(store: &Arc<dyn BlockStore>, pins: &Arc<Pins>, uploads: &Uploads, policy: &Arc<dyn Policy>) -> Self {
        let operations = Arc::new(Limiter::shared(OPERATIONS_MAX));
        let (store, pins, policy) = (Arc::clone(store), Arc::clone(pins), Arc::clone(policy));
        Self { store, pins, policy, uploads: uploads.clone(), operations }
    }

    /// A permit and reserved memory for an import.
    fn begin_import(&self, bearer: &Principal, body: &RequestBody) -> Result<(Permit, Share), ApiError> {
        Ok((self.begin(bearer)?, self.uploads.reserve(import_memory_bytes(body))?))
    }

    /// A permit for a long-running operation.
    fn begin(&self, bearer: &Principal) -> Result<Permit, ApiError> {
        long_running::acquire(&self.operations, bearer, || {
            format!("{OPERATIONS_MAX} operations on the store are running: try again when one has ended")
        })
    }
}

fn parse(cid: &str) -> Result<Cid, ApiError> {
    content::cid::parse(cid).map_err(bad_request)
}

/// Statistics of the store.
#[utoipa::path(get, path = "/api/v1/store/stats", tag = "store", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The statistics", body = FiguresView), BadParameters, DiskFailed))]
async fn stats(State(api): State<StoreApi>, Authenticated(bearer): Authenticated, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    let (permit, store) = (api.begin(&bearer)?, api.store);
    let figures = run_to_completion(permit, async move { store.figures().await }).await??;
    Ok(json(StatusCode::OK, &store_views::figures(&figures)))
}

/// Compacts the store and reclaims unused space.
#[utoipa::path(post, path = "/api/v1/store/compact", tag = "store", security(("bearer" = ["operate"])), responses(
    (status = 200, description = "The size before and after", body = CompactedView), BadParameters, DiskFailed))]
async fn compact(State(api): State<StoreApi>, Authenticated(bearer): Authenticated, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    let (permit, store) = (api.begin(&bearer)?, api.store);
    let done = run_to_completion(permit, async move {
        let total = || store.stats().cached_bytes + store.stats().pinned_bytes;
        let bytes_before = total();
        store.compact().await?;
        Ok::<_, StoreError>(CompactedView { bytes_before, bytes_after: total() })
    });
    Ok(json(StatusCode::OK, &done.await??))
}

/// Verifies every block and deletes damaged ones. JSON lines report progress; the last line is a report or an error.
#[utoipa::path(post, path = "/api/v1/store/check", tag = "store", security(("bearer" = ["operate"])),
    params(("bytes_per_second" = Option<u64>, Query, minimum = 1, description = "The maximum read rate")),
    responses((status = 200, description = "JSON lines", body = CheckLine, content_type = "application/x-ndjson"),
        BadParameters))]
async fn check(State(api): State<StoreApi>, Authenticated(bearer): Authenticated, uri: Uri) -> Answer {
    let parameters = Parameters::of(&uri, &["bytes_per_second"])?;
    let rate = parameters.get("bytes_per_second").map(|text| rate(&text)).transpose()?;
    Ok(long_running::lines(Body::from_stream(lines(api.begin(&bearer)?, api.store, rate))))
}

fn rate(text: &str) -> Result<u64, ApiError> {
    let rate = text.parse().ok().filter(|rate| *rate > 0);
    rate.ok_or_else(|| bad_request("bytes_per_second must be a whole number above zero; leave it out for no limit"))
}

/// Lines of a check that the client has not read yet.
#[derive(Default)]
struct PendingLines(Mutex<VecDeque<Bytes>>);

impl PendingLines {
    fn push(&self, line: &CheckLine) {
        self.queue().push_back(long_running::line(line));
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Bytes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lines of a check, as a stream that drives the check. At most the findings of one step are buffered.
fn lines(
    permit: Permit,
    store: Arc<dyn BlockStore>,
    rate: Option<u64>,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    let pending = Arc::<PendingLines>::default();
    let mut checking = Some((run_check(store, rate, Arc::clone(&pending)).boxed(), permit));
    stream::poll_fn(move |cx| {
        loop {
            if let Some(line) = pending.queue().pop_front() {
                return Poll::Ready(Some(Ok(line)));
            }
            let Some((run_check, _permit)) = &mut checking else { return Poll::Ready(None) };
            match run_check.poll_unpin(cx) {
                Poll::Ready(()) => checking = None,
                Poll::Pending if pending.queue().is_empty() => return Poll::Pending,
                Poll::Pending => {}
            }
        }
    })
}

async fn run_check(store: Arc<dyn BlockStore>, rate: Option<u64>, pending: Arc<PendingLines>) {
    let mut progress_sent: Option<Instant> = None;
    let mut report = |progress: &ScrubProgress, findings: &[Finding]| {
        findings.iter().for_each(|finding| pending.push(&CheckLine::Finding(store_views::finding(finding))));
        if progress_sent.is_none_or(|sent| sent.elapsed() >= PROGRESS_EVERY) {
            progress_sent = Some(Instant::now());
            pending.push(&CheckLine::Progress(store_views::progress(progress)));
        }
    };
    let ended = store.scrub(ScrubPass::All, rate, &mut report).await;
    pending.push(&match ended {
        Ok(report) => CheckLine::Report(store_views::scrubbed(&report)),
        Err(StoreError::Closed) => CheckLine::Error(stopping().1),
        Err(error) => CheckLine::Error(error.to_string()),
    });
}

/// The store as a block source whose reads do not count for cache eviction ([`BlockStore::look`]).
struct LocalBlocks(Arc<dyn BlockStore>);

impl BlockSource for LocalBlocks {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let Some(key) = BlockKey::of(cid) else {
            return ready(Block::inline(cid).ok_or(SourceError::NotFound { cid: *cid })).boxed();
        };
        let (store, cid) = (Arc::clone(&self.0), *cid);
        async move {
            let data = store.look(&key).await?.ok_or(SourceError::NotFound { cid })?;
            // `look` has verified the hash.
            Ok(Block::from_verified(cid, data))
        }
        .boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.0.has(cid)
    }
}

fn read_error(error: SourceError) -> ApiError {
    match error {
        SourceError::NotFound { cid } => ApiError(StatusCode::NOT_FOUND, format!("{cid} is not in the store")),
        SourceError::Closed => stopping(),
        SourceError::Refused { verdict, .. } | SourceError::RefusedPath { verdict, .. } => {
            ApiError(status_of(verdict), error.to_string())
        }
        SourceError::Unacceptable(error) => bad_request(error),
        other => ApiError(StatusCode::INTERNAL_SERVER_ERROR, other.to_string()),
    }
}

/// An answer of plain bytes, which a browser must not render as a page.
fn bytes_of(media_type: &'static str, body: Body) -> Response {
    let headers: [(HeaderName, &str); 3] =
        [(CONTENT_TYPE, media_type), (CACHE_CONTROL, "no-store"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, body).into_response()
}

/// A block that is stored locally. HEAD checks whether it is.
#[utoipa::path(get, path = "/api/v1/store/blocks/{cid}", tag = "store", security(("bearer" = ["read"])),
    params(("cid" = String, Path, description = "The block's CID")),
    responses((status = 200, description = "The block's bytes", content_type = "application/vnd.ipld.raw"),
        (status = 400, description = "The CID is invalid or unsupported", body = ErrorView), Withheld, WithheldByLaw,
        DiskFailed))]
async fn block(State(api): State<StoreApi>, method: Method, Path(cid): Path<String>, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    let cid = parse(&cid)?;
    let held = Permitted::blocks(Arc::new(LocalBlocks(api.store)), api.policy);
    if method == Method::HEAD {
        let has = held.has(&cid).await.map_err(read_error)?;
        return if has { Ok(bytes_of(RAW, Body::empty())) } else { Err(read_error(SourceError::NotFound { cid })) };
    }
    let block = held.get(&cid).await.map_err(read_error)?;
    Ok(bytes_of(RAW, Body::from(block.data().clone())))
}

/// A CAR of the DAG below a root, all of whose blocks must be stored locally. If one is missing, the answer is aborted.
#[utoipa::path(get, path = "/api/v1/store/export/{cid}", tag = "store", security(("bearer" = ["read"])),
    params(("cid" = String, Path, description = "The root's CID")),
    responses((status = 200, description = "A CARv1", content_type = "application/vnd.ipld.car"),
        (status = 400, description = "The CID is invalid or unsupported", body = ErrorView), Withheld, WithheldByLaw,
        DiskFailed))]
async fn export(
    State(api): State<StoreApi>,
    Authenticated(bearer): Authenticated,
    Path(cid): Path<String>,
    request: Request,
) -> Answer {
    Parameters::of(request.uri(), &[])?;
    let root = parse(&cid)?;
    let permit = api.begin(&bearer)?;
    let held: Arc<dyn BlockSource> = Arc::new(Permitted::whole(Arc::new(LocalBlocks(api.store)), api.policy));
    let first = held.get(&root).await.map_err(read_error)?;
    let connection = request.extensions().get::<Arc<Connection>>().cloned();
    // Requests of the public are bounded; an operator's export is not.
    let limits = ScopeLimits { depth_max: usize::MAX, seen_max: usize::MAX, ..ScopeLimits::default() };
    let blocks = scope::blocks(held, Vec::new(), first, ScopeOptions::default(), limits);
    let sections = blocks.flat_map(move |block| {
        let _permit = &permit;
        stream::iter(match block {
            Ok(block) => <[Bytes; 2]>::from(car::section(&block)).map(Ok).to_vec(),
            Err(error) => {
                tracing::warn!(%root, %error, "an export was aborted");
                connection.iter().for_each(|connection| connection.response_aborted());
                vec![Err(io::ErrorKind::UnexpectedEof)]
            }
        })
    });
    let header = stream::once(ready(Ok(car::header(&[root]))));
    Ok(bytes_of(CAR, Body::from_stream(header.chain(sections).map(|piece| piece.map_err(io::Error::from)))))
}

/// The options of an import.
struct ImportOptions {
    roots_in: RootsIn,
    for_pins: ForPins,
}

/// Which pins the roots of an archive are for.
enum ForPins {
    /// New ones of the request's own token, with a name.
    New { name: Option<String> },
    /// Those that are requested already.
    Requested,
}

impl ImportOptions {
    fn of(uri: &Uri, headers: &HeaderMap) -> Result<Self, ApiError> {
        let parameters = Parameters::of(uri, &["roots", "name", "pin"])?;
        let roots_in = match parameters.get("roots").as_deref() {
            None | Some("header") => RootsIn::Header,
            Some("last") => RootsIn::LastBlock,
            Some(other) => {
                return Err(bad_request(format!("roots must be \"header\" or \"last\", and not \"{other}\"")));
            }
        };
        let name = parameters.get("name").map(|name| name.into_owned());
        cache::pins::check_name(name.as_deref()).map_err(bad_request)?;
        let for_pins = match (parameters.get("pin").as_deref(), name) {
            (None | Some("new"), name) => ForPins::New { name },
            (Some("requested"), None) => ForPins::Requested,
            (Some("requested"), Some(_)) => {
                return Err(bad_request("pins that are requested already have their names"));
            }
            (Some(other), _) => {
                return Err(bad_request(format!("pin must be \"new\" or \"requested\", and not \"{other}\"")));
            }
        };
        let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media_type = media_type.split(';').next().unwrap_or_default().trim();
        if !media_type.eq_ignore_ascii_case(CAR) {
            let message = format!("the archive must be sent with the header \"Content-Type: {CAR}\"");
            return Err(ApiError(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        Ok(Self { roots_in, for_pins })
    }
}

/// Imports a CAR, which may have `Content-Encoding: zstd`, and pins its roots. Answers once they are on the disk.
#[utoipa::path(post, path = "/api/v1/store/import", tag = "store", security(("bearer" = ["operate"])),
    params(("roots" = Option<String>, Query, description = "Where the archive names its roots: in its \"header\", or \
        in its \"last\" block"),
        ("name" = Option<String>, Query, description = "The name of the pins", max_length = 255),
        ("pin" = Option<String>, Query, description = "Whether the roots are for \"new\" pins of the token, or for \
            those that are \"requested\" already, by any owner, which are completed; no pin is created then")),
    request_body(content = inline(Binary), content_type = "application/vnd.ipld.car"),
    responses((status = 200, description = "The pinned roots", body = ImportedView),
        (status = 400, description = "The archive or a parameter is invalid", body = ErrorView),
        (status = 415, description = "The Content-Type or the Content-Encoding is not supported", body = ErrorView),
        Withheld, WithheldByLaw,
        (status = 409, description = "Another request removed the pin meanwhile, the quota of its owner is used up, or \
            no pin is requested", body = ErrorView),
        DiskFailed,
        (status = 507, description = "The disk is full", body = ErrorView)))]
async fn import(State(api): State<StoreApi>, Authenticated(bearer): Authenticated, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = match decoded(&head.headers, body, ErrorFormat::Admin) {
        Ok(body) => body,
        Err(response) => return response,
    };
    let terms = ImportOptions::of(&head.uri, &head.headers);
    let begun = terms.and_then(|terms| Ok((terms, api.begin_import(&bearer, &body)?)));
    let (options, (permit, memory)) = match begun {
        Ok(begun) => begun,
        Err(import_error) => return import_error.with_lingering_read(body),
    };
    let mut upload = Upload::new(body);
    // A fully received archive is pinned even if the client disconnects.
    let imported = run_to_completion(permit, async move {
        let _memory = memory;
        let imported = api.import_car(&Owner::from(&bearer), &mut upload, &options).await;
        (imported, upload)
    });
    match imported.await {
        Ok((Ok(summary), _)) => {
            let roots: Vec<String> =
                summary.pins.iter().take(AUDITED_ROOTS_MAX).map(|pin| pin.root.to_string()).collect();
            let detail = ResponseDetail(serde_json::json!({ "roots": roots, "bytes": summary.bytes }));
            detail.with(json(StatusCode::OK, &store_views::imported(&summary)))
        }
        Ok((Err(import_error), upload)) => import_error.with_lingering_read(upload.into_rest()),
        Err(import_error) => import_error.into_response(),
    }
}

impl StoreApi {
    /// Imports an archive and pins its roots, for an owner or for the requests that exist. If that fails, no pin of it
    /// stays.
    async fn import_car(
        &self,
        owner: &Owner,
        upload: &mut Upload,
        ImportOptions { roots_in, for_pins }: &ImportOptions,
    ) -> Result<ImportSummary, ApiError> {
        let check = |cid: &Cid| Ok(admit(&*self.policy, cid)?);
        let addition = self.uploads.begin_addition().await.map_err(|error| import_error(error.into()))?;
        let taken = cache::take_car(addition, upload, *roots_in, &check).await.map_err(import_error)?;
        let ReadCar { addition, roots, blocks, bytes } = taken;
        let pinned = match for_pins {
            ForPins::New { name } => self.adopt(addition, &roots, owner, name.as_deref()).await,
            ForPins::Requested => self.pins.supply(addition, &roots).await,
        };
        match pinned {
            Ok(pins) => Ok(ImportSummary { pins, blocks, bytes }),
            Err(AdoptError::Add(error)) => Err(import_error(error.into())),
            Err(AdoptError::Pins(PinsError::NotFound)) if matches!(for_pins, ForPins::Requested) => {
                let message = "no pin is requested for a root of the archive, or it was removed meanwhile";
                Err(ApiError(StatusCode::CONFLICT, message.to_owned()))
            }
            Err(AdoptError::Pins(error)) => Err(unrecorded(error)),
        }
    }

    async fn adopt(
        &self,
        addition: Addition,
        roots: &[Cid],
        owner: &Owner,
        name: Option<&str>,
    ) -> Result<Vec<PinSummary>, AdoptError> {
        let adoption = Adoption { owner, name, meta: &Meta::new(), renames: true, import: None };
        let pin = |Adopted { pin, request }: Adopted| PinSummary { name: request.name.clone(), ..pin };
        Ok(self.pins.adopt(addition, roots, adoption).await?.into_iter().map(pin).collect())
    }
}

/// Maps why the pins of an import were not recorded.
fn unrecorded(error: PinsError) -> ApiError {
    match error {
        PinsError::Store(error) => ApiError::from(error),
        PinsError::Full(_) => ApiError(StatusCode::INSUFFICIENT_STORAGE, error.to_string()),
        PinsError::Invalid(_) => bad_request(error),
        PinsError::Quota(_) | PinsError::NotPinned { .. } | PinsError::NotFound | PinsError::TakenOver => {
            ApiError(StatusCode::CONFLICT, error.to_string())
        }
    }
}

/// Maps a failed import to a status that says whether the client, the policy or the node is the cause.
fn import_error(error: ImportError) -> ApiError {
    let message = error.to_string();
    match error {
        ImportError::Store(error) | ImportError::Pin { error: PinError::Store(error), .. } => error.into(),
        ImportError::Car(CarError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => {
            ApiError(StatusCode::REQUEST_TIMEOUT, message)
        }
        ImportError::Pin { error: PinError::Blocks(error), .. } => match error.downcast_ref() {
            Some(DagError::Source(SourceError::Closed)) => stopping(),
            Some(DagError::Memory) => ApiError(StatusCode::SERVICE_UNAVAILABLE, message),
            Some(DagError::Source(SourceError::Store(_))) => ApiError(StatusCode::INTERNAL_SERVER_ERROR, message),
            _ => bad_request(message),
        },
        ImportError::Refused(error) => match error.downcast_ref() {
            Some(SourceError::Refused { verdict, .. }) => ApiError(status_of(*verdict), message),
            _ => bad_request(message),
        },
        ImportError::Pin { error: PinError::Removed { .. } | PinError::Lost { .. }, .. } | ImportError::Gone { .. } => {
            ApiError(StatusCode::CONFLICT, message)
        }
        _ => bad_request(message),
    }
}
