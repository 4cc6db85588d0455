//! [`Problem`]: all errors of a request, and the mapping to statuses, titles and advice.
//!
//! Goals: a person understands the text; caches store no temporary failure; an error after the response's head never
//! appears as text.

use crate::html;
use crate::metrics::{Abort, RequestLimit};
use crate::request::RequestError;
use crate::request::negotiate::wants_html;
use content::subdomain::LabelError;
use services::denylists::Refused;
use services::limiter::Full;
mod car_options;
mod routing;

pub use self::car_options::CarOptionsError;
pub use self::routing::RoutingProblem;
use content::ipld::IpldError;
use content::names::NameError;
use content::packed::PackedError;
use content::path::{PathError, Root};
use content::redirects::RedirectsError;
use content::scope::ScopeError;
use content::tar::TarError;
use content::unixfs::NodeError;
use content::unixfs::dir::DirError;
use content::unixfs::file::ReadError;
use content::walk::WalkError;
use content::{Cid, CidError, SourceError, Verdict};
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER, VARY};
use http::{Response, StatusCode};
use maud::{DOCTYPE, html};
use std::time::Duration;

/// Why a request is not answered with content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The request's head is invalid.
    #[error(transparent)]
    Request(RequestError),
    /// A name cannot be resolved.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The scope of a service worker would include all sites of this host.
    #[error("a service worker cannot be registered for all of /ipfs/")]
    ServiceWorker,
    /// The limit of connections is reached.
    #[error("the gateway has reached its limit of connections")]
    ConnectionLimit,
    /// The client has reached its limit of connections or of concurrent requests.
    #[error("your address has reached the limit of concurrent requests of one client")]
    ClientLimit,
    /// A CONNECT request inside a tunnel, or over HTTP/2.
    #[error("a CONNECT request inside a tunnel, or over HTTP/2, is not supported")]
    NestedTunnel,
    /// The requested format is not the stored one, and conversion is switched off.
    #[error("{cid} is not stored as {wanted}, and this gateway does not convert codecs")]
    NotConverted {
        /// The content.
        cid: Cid,
        /// The format.
        wanted: &'static str,
    },
    /// A document cannot be shown or converted.
    #[error(transparent)]
    Document(#[from] IpldError),
    /// The path leads to a value inside a document.
    #[error("the path leads to a value inside the document {cid}; only whole documents are served")]
    InsideDocument {
        /// The document.
        cid: Cid,
    },
    /// An IPNS record was requested for a path that is not an IPNS key.
    #[error("only a path of the form /ipns/KEY has an IPNS record")]
    NotIpnsKey,
    /// The parameters of a CAR request are invalid.
    #[error(transparent)]
    CarOptions(#[from] CarOptionsError),
    /// The host serves only formats that clients can verify.
    #[error("only raw blocks, CAR and IPNS records are served by this host")]
    TrustlessOnly,
    /// The request has `only-if-cached`, and a block is not stored locally.
    #[error("{cid} is not stored locally, and the request has only-if-cached")]
    NotCached {
        /// The block that is not stored locally.
        cid: Cid,
    },
    /// The precondition `If-Match` or `If-Unmodified-Since` is false.
    #[error("the content does not meet the request's If-Match or If-Unmodified-Since")]
    PreconditionFailed,
    /// A request to the routing API is invalid.
    #[error(transparent)]
    Routing(#[from] RoutingProblem),
    /// The page of a listing begins after an entry that does not exist.
    #[error("the directory has no entry with the name that the page begins after")]
    NoSuchEntry,
    /// A site's `_redirects` file is invalid.
    #[error("could not parse _redirects: {0}")]
    Redirects(RedirectsError),
    /// The path leads to content that can only be served as a raw block.
    #[error("{cid} has the codec 0x{codec:x}, which cannot be shown as a file: request the block with ?format=raw")]
    NoRendering {
        /// The content.
        cid: Cid,
        /// Its multicodec.
        codec: u64,
    },
    /// The zstd file of a packed CID cannot be read as a packed file.
    #[error(transparent)]
    Packed(#[from] PackedError),
    /// The path cannot be resolved.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A directory cannot be read.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// The blocks of a CAR cannot be collected.
    #[error(transparent)]
    Scope(ScopeError),
    /// A TAR cannot be made.
    #[error(transparent)]
    Tar(TarError),
    /// The response would exceed `http.response_bytes_max`.
    #[error("the response would have {bytes} bytes, and the limit is {max} (http.response_bytes_max)")]
    TooLarge {
        /// The length of the response, in bytes.
        bytes: u64,
        /// The limit, in bytes.
        max: u64,
    },
    /// The response exceeds `http.response_bytes_max`.
    #[error("the response exceeds the limit http.response_bytes_max")]
    TooLong,
    /// The gateway is cut off from its site, and refuses content (`site.isolated`).
    #[error("this gateway may not know what was taken down: it has not reached its site for {} seconds", .0.as_secs())]
    Isolated(Duration),
    /// The limit of concurrent archives is reached.
    #[error("the limit of concurrent archives is reached")]
    Busy {
        /// After which time a retry is expected to succeed.
        retry_after: Duration,
    },
    /// The limit of concurrent name look-ups of the client is reached.
    #[error("too many names are being looked up for this client")]
    LookupLimit {
        /// After which time a retry is expected to succeed.
        retry_after: Duration,
    },
    /// The client exceeds its rate of requests that need the network.
    #[error("this client exceeds its rate of requests that need the network (http.client_misses_per_second)")]
    RateLimited {
        /// The time after which the client may send such a request again.
        retry_after: Duration,
    },
    /// The request exceeded `http.request_timeout_seconds`.
    #[error("the request exceeded the timeout http.request_timeout_seconds")]
    TooSlow,
    /// The policy withholds the content.
    #[error("{cid} is withheld by this gateway's policy")]
    Refused {
        /// The content.
        cid: Cid,
        /// The policy's verdict.
        verdict: Verdict,
    },
    /// A file is longer or shorter than its declared length.
    #[error("the content's length differs from its declared length")]
    Length,
    /// The memory for buffered HTTP/1.0 responses and read-ahead is used up.
    #[error("the memory for buffered HTTP/1.0 responses is used up: try again, or use HTTP/1.1")]
    Http10BufferFull,
    /// The memory for response bodies is used up.
    #[error("the memory for response bodies is used up")]
    MemoryFull,
    /// The page is too long to buffer it and send its length, which HTTP/1.0 requires.
    #[error("this page exceeds the limit of {max} bytes for HTTP/1.0: use HTTP/1.1")]
    NeedsHttp11 {
        /// The limit, in bytes.
        max: u64,
    },
}

/// `Cache-Control` of responses that rarely change.
const SHORT_LIVED: HeaderValue = HeaderValue::from_static("public, max-age=60");
/// Its `max-age`.
const SHORT_LIVED_MAX_AGE: Duration = Duration::from_secs(60);

/// The parts of an error page.
struct Page {
    status: StatusCode,
    /// What went wrong, as a short title.
    title: &'static str,
    /// What the client can do.
    advice: &'static str,
    /// `Retry-After`, in seconds.
    retry_seconds: Option<u32>,
}

impl Page {
    const fn new(status: StatusCode, title: &'static str, advice: &'static str) -> Self {
        Self { status, title, advice, retry_seconds: None }
    }
}

const INVALID_CONTENT: Page = Page {
    retry_seconds: Some(3600),
    ..Page::new(
        StatusCode::BAD_GATEWAY,
        "Invalid data",
        "The blocks arrived, but they do not form valid content. Its publisher must repair it.",
    )
};
const NOT_FOUND: Page = Page::new(StatusCode::NOT_FOUND, "Not found", "Check the path: names are case-sensitive.");
const NO_RENDERING: Page = Page::new(
    StatusCode::NOT_ACCEPTABLE,
    "No such format",
    "Request the block with ?format=raw, or a CAR with ?format=car.",
);
const TOO_MUCH: Page = Page::new(
    StatusCode::FORBIDDEN,
    "Response too large",
    "Request a part: a range of a file, a subdirectory, or a CAR with a narrower dag-scope.",
);
const TOO_SLOW: Page = Page {
    retry_seconds: Some(120),
    ..Page::new(StatusCode::GATEWAY_TIMEOUT, "Not found in time", "Try again later.")
};

impl Problem {
    fn page(&self) -> Page {
        match self {
            Self::Request(error) => request_page(error),
            Self::Name(error) => name_page(error),
            Self::ServiceWorker => Page::new(
                StatusCode::BAD_REQUEST,
                "Service worker rejected",
                "Move the script to a subdirectory: a service worker's scope is the directory that contains it.",
            ),
            Self::NestedTunnel => {
                Page::new(StatusCode::METHOD_NOT_ALLOWED, "Nested tunnel", "Request content on this connection.")
            }
            Self::ConnectionLimit => {
                Page { status: StatusCode::SERVICE_UNAVAILABLE, title: "Too many connections", ..BUSY }
            }
            Self::Isolated(_) => Page {
                retry_seconds: Some(10),
                ..Page::new(StatusCode::SERVICE_UNAVAILABLE, "Temporarily unavailable", "Try again in a moment.")
            },
            Self::ClientLimit | Self::MemoryFull => BUSY,
            Self::Busy { retry_after } | Self::LookupLimit { retry_after } | Self::RateLimited { retry_after } => {
                busy(*retry_after)
            }
            Self::NoRendering { .. } | Self::NotConverted { .. } => NO_RENDERING,
            Self::Packed(PackedError::Read(error)) => read_page(error),
            Self::Packed(_) => Page::new(
                StatusCode::BAD_GATEWAY,
                "Not a packed file",
                "Request the zstd file by its own CID, which has the same hash, and decompress it with zstd -d.",
            ),
            Self::Document(error) => document_page(error),
            Self::InsideDocument { .. } => Page::new(
                StatusCode::NOT_IMPLEMENTED,
                "Value inside a document",
                "Request the whole document, and read the value from it.",
            ),
            Self::NotIpnsKey => {
                Page::new(StatusCode::BAD_REQUEST, "Not an IPNS key", "Remove the rest of the path, or the format.")
            }
            Self::CarOptions(_) => Page::new(
                StatusCode::BAD_REQUEST,
                "Invalid CAR parameters",
                "Check the parameters in the URL and in Accept.",
            ),
            Self::TrustlessOnly => NO_RENDERING,
            Self::NotCached { .. } => Page::new(
                StatusCode::PRECONDITION_FAILED,
                "Not stored locally",
                "Repeat the request without only-if-cached to fetch the content.",
            ),
            Self::PreconditionFailed => Page::new(
                StatusCode::PRECONDITION_FAILED,
                "Precondition failed",
                "Repeat the request without the condition to get the current content.",
            ),
            Self::Routing(problem) => routing_page(problem),
            Self::NoSuchEntry => NOT_FOUND,
            Self::Redirects(_) => Page::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "Invalid _redirects file",
                "The site's publisher must repair its _redirects file.",
            ),
            Self::Walk(error) => walk_page(error),
            Self::Read(error) => read_page(error),
            Self::Dir(DirError::Source(error)) => source_page(error),
            Self::Dir(_) | Self::Length => INVALID_CONTENT,
            Self::Scope(error) => scope_page(error),
            Self::Tar(error) => tar_page(error),
            Self::TooLarge { .. } | Self::TooLong => TOO_MUCH,
            Self::TooSlow => TOO_SLOW,
            Self::Refused { verdict, .. } => verdict_page(*verdict),
            Self::Http10BufferFull => BUSY,
            Self::NeedsHttp11 { .. } => Page::new(
                StatusCode::HTTP_VERSION_NOT_SUPPORTED,
                "HTTP/1.1 required",
                "Configure the client or the proxy in between to use HTTP/1.1.",
            ),
        }
    }

    /// The error of the block that could not be read, if that is the problem.
    pub fn source_error(&self) -> Option<&SourceError> {
        match self {
            Self::Walk(WalkError::Source(error))
            | Self::Read(ReadError::Source(error))
            | Self::Packed(PackedError::Read(ReadError::Source(error)))
            | Self::Dir(DirError::Source(error))
            | Self::Scope(ScopeError::Source(error))
            | Self::Tar(TarError::Source(error)) => Some(error),
            _ => None,
        }
    }

    /// The limit that was reached, if that is the problem.
    pub fn limit(&self) -> Option<RequestLimit> {
        let limit = match self {
            Self::Busy { .. } => RequestLimit::Archives,
            Self::LookupLimit { .. } | Self::Name(NameError::Busy) => RequestLimit::Lookups,
            Self::RateLimited { .. } => RequestLimit::Rate,
            Self::Routing(RoutingProblem::Busy { .. }) => RequestLimit::Searches,
            Self::ClientLimit => RequestLimit::Client,
            Self::ConnectionLimit => RequestLimit::Connections,
            Self::MemoryFull | Self::Http10BufferFull => RequestLimit::Memory,
            _ => match self.source_error()? {
                SourceError::Busy { .. } => RequestLimit::Fetches,
                SourceError::RateLimited { .. } => RequestLimit::Rate,
                _ => return None,
            },
        };
        Some(limit)
    }

    /// What the policy withholds, with its verdict, if that is the problem.
    pub fn refused(&self) -> Option<(Refused, Verdict)> {
        match self {
            Self::Refused { cid, verdict } => Some((Refused::content(cid, ""), *verdict)),
            Self::Name(NameError::Withheld { name, path, verdict }) => {
                Some((Refused { root: Root::Name(name.clone()), path: path.clone() }, *verdict))
            }
            _ => match self.source_error() {
                Some(SourceError::Refused { cid, verdict }) => Some((Refused::content(cid, ""), *verdict)),
                Some(SourceError::RefusedPath { root, path, verdict }) => {
                    Some((Refused::content(root, path), *verdict))
                }
                _ => None,
            },
        }
    }

    /// The process is stopping.
    pub fn closed() -> Self {
        Self::Walk(WalkError::Source(SourceError::Closed))
    }

    /// Whether the error of a singleflight call concerns its leader only, so that a follower which has `waited` so long
    /// retries: the leader got no permit for the network, or its timeout ended before the follower's.
    pub fn is_leader_only(&self, waited: Duration) -> bool {
        match self.source_error() {
            Some(error) if error.is_of_client() => true,
            Some(SourceError::Stalled { stall, .. }) => waited < stall.waited / 2,
            _ => false,
        }
    }

    /// The response's status.
    pub fn status(&self) -> StatusCode {
        self.page().status
    }

    /// The reason under which a response is counted that this problem aborts after its head.
    pub fn abort_reason(&self) -> Abort {
        match self.status() {
            StatusCode::GATEWAY_TIMEOUT | StatusCode::NOT_FOUND => Abort::Stalled,
            StatusCode::BAD_GATEWAY => Abort::Corrupt,
            StatusCode::FORBIDDEN => Abort::Limit,
            _ => Abort::Internal,
        }
    }

    /// The response: HTML for browsers, else plain text.
    pub fn response(&self, request: &HeaderMap) -> Response<String> {
        let page = self.page();
        let (body, content_type) = if wants_html(request) {
            (self.as_html(&page), "text/html; charset=utf-8")
        } else {
            (
                format!(
                    "{} {}: {}.\n{}\n",
                    page.status.as_u16(),
                    page.title,
                    html::plain(&self.to_string()),
                    page.advice
                ),
                "text/plain; charset=utf-8",
            )
        };
        let mut response = Response::new(body);
        *response.status_mut() = page.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(CACHE_CONTROL, self.cache_control(page.status));
        headers.insert(VARY, HeaderValue::from_static("Accept"));
        if let Some(seconds) = page.retry_seconds {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if page.status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD, OPTIONS"));
        }
        response
    }

    /// The response to a request for a name, whose target may change after `ttl`.
    pub fn response_for(&self, ttl: Duration, request: &HeaderMap) -> Response<String> {
        let mut response = self.response(request);
        if response.headers().get(CACHE_CONTROL) == Some(&SHORT_LIVED) && ttl < SHORT_LIVED_MAX_AGE {
            let kept = format!("public, max-age={}", ttl.as_secs());
            response.headers_mut().insert(CACHE_CONTROL, crate::headers::header(&kept));
        }
        response
    }

    /// Permanent errors are cached for a short time, to reduce load; so are take-downs, which the operator may lift.
    /// Temporary errors are not cached.
    fn cache_control(&self, status: StatusCode) -> HeaderValue {
        match (self, status) {
            // Without that header the same URL may succeed.
            (Self::ServiceWorker | Self::NotCached { .. } | Self::Request(RequestError::Host), _) => {
                HeaderValue::from_static("no-store")
            }
            // An offline gateway may import the content at any time.
            (Self::Name(NameError::Offline { .. }), _) => HeaderValue::from_static("no-store"),
            (_, StatusCode::NOT_FOUND) if self.source_error().is_some() => HeaderValue::from_static("no-store"),
            (_, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::GONE) => SHORT_LIVED,
            (_, StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS) => SHORT_LIVED,
            _ => HeaderValue::from_static("no-store"),
        }
    }

    fn as_html(&self, page: &Page) -> String {
        let code = page.status.as_u16();
        let markup = html! {
            (DOCTYPE)
            html lang="en" {
                (html::head(&format!("{code} {}", page.title), STYLE))
                body {
                    p.code { (code) }
                    h1 { (page.title) }
                    p { (html::plain(&capitalised(&self.to_string()))) "." }
                    p.advice { (page.advice) }
                    p { a href="/" { "Start page" } }
                }
            }
        };
        markup.into_string()
    }
}

const STYLE: &str = ":root{color-scheme:light dark}body{max-width:38rem;margin:12vh auto 0;padding:0 1.25rem;\
    font:1.0625rem/1.6 system-ui,sans-serif;overflow-wrap:anywhere}h1{margin:0;line-height:1.2}\
    .code,a{color:#0b7c84}@media(prefers-color-scheme:dark){.code,a{color:#5cc6c4}}\
    .code{margin:0;font-weight:700}.advice{opacity:.75}";

/// A sentence with a capital letter, unless it begins with a CID, a domain or another name, whose case matters.
fn capitalised(text: &str) -> String {
    const WORD_BYTES_MAX: usize = 20;
    let word = text.split(' ').next().unwrap_or_default();
    if word.len() > WORD_BYTES_MAX || !word.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return text.to_owned();
    }
    let mut characters = text.chars();
    characters.next().map(|first| first.to_uppercase().chain(characters).collect()).unwrap_or_default()
}

impl From<RequestError> for Problem {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Name(error) => Self::Name(error),
            error => Self::Request(error),
        }
    }
}

impl From<Full> for Problem {
    fn from(full: Full) -> Self {
        match full {
            Full::Client => Self::ClientLimit,
            Full::All => Self::ConnectionLimit,
        }
    }
}

const UNSAFE_CID: Page = Page::new(
    StatusCode::BAD_REQUEST,
    "Unsafe CID",
    "This hash function is not accepted, because it cannot verify the content.",
);

fn request_page(error: &RequestError) -> Page {
    match error {
        RequestError::Path { error, .. } => path_page(error),
        RequestError::Label(LabelError::Cid(CidError::Hash(_))) => UNSAFE_CID,
        RequestError::Label(LabelError::TooLong { .. }) => Page::new(
            StatusCode::BAD_REQUEST,
            "Too long for a DNS label",
            "Use a path gateway instead of a subdomain gateway.",
        ),
        RequestError::Label(_) => Page::new(StatusCode::BAD_REQUEST, "Not a CID or name", "Check the URL."),
        RequestError::Uri => Page::new(StatusCode::BAD_REQUEST, "Not an IPFS address", "Check the URL."),
        RequestError::UrlTooLong { .. } => Page::new(StatusCode::URI_TOO_LONG, "URL too long", "Use a shorter one."),
        RequestError::Host => Page::new(StatusCode::BAD_REQUEST, "Missing or invalid Host", "Send one Host header."),
        RequestError::Method => {
            Page::new(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed", "This gateway is read-only.")
        }
        RequestError::NoSuchPage => Page::new(StatusCode::NOT_FOUND, "Not found", "Use a path of the form /ipfs/CID."),
        RequestError::SiteUnknown { .. } => Page {
            retry_seconds: Some(30),
            ..Page::new(StatusCode::GATEWAY_TIMEOUT, "Not found in time", "Try again later.")
        },
        RequestError::Name(error) => name_page(error),
        RequestError::Format(_) => NO_RENDERING,
    }
}

fn path_page(error: &PathError) -> Page {
    match error {
        PathError::Cid(CidError::Hash(_)) => UNSAFE_CID,
        PathError::Cid(CidError::Malformed { .. }) => {
            Page::new(StatusCode::BAD_REQUEST, "Not a CID", "A CID begins with \"bafy\", \"bafk\" or \"Qm\".")
        }
        PathError::Name(_) => Page::new(
            StatusCode::BAD_REQUEST,
            "Not a name",
            "A name is a domain, or a key that begins with \"k51\", \"12D3\" or \"Qm\".",
        ),
        _ => Page::new(StatusCode::BAD_REQUEST, "Invalid path", "Check the URL."),
    }
}

fn name_page(error: &NameError) -> Page {
    const UNRESOLVED: &str = "The name cannot be resolved";
    match error {
        NameError::NoRecord { .. } => Page {
            retry_seconds: Some(60),
            ..Page::new(
                StatusCode::GATEWAY_TIMEOUT,
                "No IPNS record found",
                "The name's owner must republish it regularly. Try again later.",
            )
        },
        NameError::Refused { .. } => Page {
            retry_seconds: Some(60),
            ..Page::new(StatusCode::BAD_GATEWAY, UNRESOLVED, "The name's owner must publish a valid record.")
        },
        NameError::NoDnsLink { .. } => {
            Page::new(StatusCode::NOT_FOUND, "No DNSLink", "The domain has no TXT record with a DNSLink.")
        }
        NameError::Dns { .. } | NameError::TooSlow { .. } => {
            Page { retry_seconds: Some(30), ..Page::new(StatusCode::GATEWAY_TIMEOUT, UNRESOLVED, "Try again later.") }
        }
        NameError::Value { .. } | NameError::ChainTooLong { .. } => Page {
            retry_seconds: Some(300),
            ..Page::new(StatusCode::BAD_GATEWAY, UNRESOLVED, "The name's owner must repair its value.")
        },
        NameError::Withheld { verdict, .. } => verdict_page(*verdict),
        NameError::Busy => BUSY,
        NameError::Offline { .. } => Page::new(
            StatusCode::NOT_FOUND,
            "Name not cached",
            "This gateway is offline: it serves only names that it resolved before.",
        ),
    }
}

fn routing_page(problem: &RoutingProblem) -> Page {
    match problem {
        RoutingProblem::Busy { retry_after } => busy(*retry_after),
        RoutingProblem::NotAcceptable { .. } => {
            Page::new(StatusCode::NOT_ACCEPTABLE, "No such format", "Request one of those media types, or omit Accept.")
        }
        RoutingProblem::Cid(_)
        | RoutingProblem::Peer { .. }
        | RoutingProblem::Name { .. }
        | RoutingProblem::Key { .. } => Page::new(StatusCode::BAD_REQUEST, "Not a key", "Check the URL."),
    }
}

/// The maximum of a computed `Retry-After`, in seconds.
const RETRY_SECONDS_MAX: u64 = 3600;
const BUSY: Page = Page {
    retry_seconds: Some(5),
    ..Page::new(StatusCode::TOO_MANY_REQUESTS, "Too many requests", "Try again in a moment.")
};

/// The page for a request that may be repeated after some time, in whole seconds.
fn busy(retry_after: Duration) -> Page {
    let seconds = retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0);
    Page { retry_seconds: Some(u32::try_from(seconds.clamp(1, RETRY_SECONDS_MAX)).unwrap_or(u32::MAX)), ..BUSY }
}

fn document_page(error: &IpldError) -> Page {
    match error {
        IpldError::NotConvertible { .. } => NO_RENDERING,
        IpldError::Malformed { .. } => INVALID_CONTENT,
        IpldError::TooComplex { .. } => {
            Page::new(StatusCode::NOT_ACCEPTABLE, "Too complex to show", "Request the block with ?format=raw.")
        }
    }
}

fn scope_page(error: &ScopeError) -> Page {
    match error {
        ScopeError::Source(error) => source_page(error),
        ScopeError::Node(_) => INVALID_CONTENT,
        ScopeError::TooDeep { .. } | ScopeError::TooManyBlocks { .. } | ScopeError::TooManyRepeats { .. } => TOO_MUCH,
    }
}

fn tar_page(error: &TarError) -> Page {
    match error {
        TarError::Source(error) => source_page(error),
        TarError::NotUnixFs { .. } => NO_RENDERING,
        TarError::Name { .. } | TarError::Symlink { .. } => Page::new(
            StatusCode::BAD_REQUEST,
            "Unsafe as an archive",
            "Extracting it could write outside its folder. Request a CAR with ?format=car.",
        ),
        TarError::TooDeep { .. } | TarError::TooManyEntries { .. } | TarError::TooManyBytes { .. } => TOO_MUCH,
        TarError::Node(_) | TarError::File(_) => INVALID_CONTENT,
    }
}

fn walk_page(error: &WalkError) -> Page {
    match error {
        WalkError::NoLink { .. } | WalkError::NotADirectory { .. } => NOT_FOUND,
        WalkError::Unsupported { .. } | WalkError::TooComplex { .. } => Page::new(
            StatusCode::NOT_IMPLEMENTED,
            "Path not supported",
            "Paths lead through directories and through documents of limited size. Request the block with ?format=raw.",
        ),
        WalkError::Malformed { .. } => INVALID_CONTENT,
        WalkError::Source(error) => source_page(error),
    }
}

fn read_page(error: &ReadError) -> Page {
    match error {
        ReadError::Source(error) => source_page(error),
        ReadError::Node(NodeError::Unsupported { .. }) => NO_RENDERING,
        _ => INVALID_CONTENT,
    }
}

fn source_page(error: &SourceError) -> Page {
    match error {
        SourceError::NotFound { .. } => Page::new(
            StatusCode::NOT_FOUND,
            "Not stored locally",
            "This gateway is offline: it serves only content that is stored locally.",
        ),
        SourceError::Stalled { stall, .. } if stall.no_peers => Page {
            retry_seconds: Some(10),
            ..Page::new(
                StatusCode::GATEWAY_TIMEOUT,
                "No peers",
                "This gateway is connected to no peers, so it cannot fetch the content. Its operator can find the \
                 cause with \"causeway health\".",
            )
        },
        SourceError::Stalled { stall, .. } => Page {
            retry_seconds: Some(if stall.providers_found == 0 { 120 } else { 30 }),
            ..Page::new(
                StatusCode::GATEWAY_TIMEOUT,
                "Not found in time",
                "No reachable peer provided the content. Try again later.",
            )
        },
        SourceError::Busy { retry_after } | SourceError::RateLimited { retry_after } => busy(*retry_after),
        SourceError::Corrupt { .. } => Page {
            retry_seconds: Some(30),
            ..Page::new(
                StatusCode::BAD_GATEWAY,
                "Invalid content",
                "The blocks that peers sent do not match their CIDs, so they were discarded.",
            )
        },
        SourceError::Refused { verdict, .. } | SourceError::RefusedPath { verdict, .. } => verdict_page(*verdict),
        SourceError::TooMuchWork { .. } => TOO_MUCH,
        SourceError::Unacceptable(_) => Page {
            retry_seconds: Some(3600),
            ..Page::new(
                StatusCode::BAD_GATEWAY,
                "Unsafe content",
                "A block below this path has a CID that cannot verify its content, so it is not served.",
            )
        },
        SourceError::Store(_) => Page::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "Store failure",
            "The operator of this gateway must check its store and its logs.",
        ),
        SourceError::Closed => Page {
            retry_seconds: Some(5),
            ..Page::new(StatusCode::SERVICE_UNAVAILABLE, "Shutting down", "Try again in a moment.")
        },
    }
}

fn verdict_page(verdict: Verdict) -> Page {
    match verdict {
        Verdict::Legal => Page::new(
            StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS,
            "Unavailable for legal reasons",
            "The operator of this gateway withholds it.",
        ),
        Verdict::Unlisted => Page::new(
            StatusCode::FORBIDDEN,
            "Not on an allowlist",
            "This gateway serves only content that its operator has listed.",
        ),
        Verdict::Gone | Verdict::Allow => {
            Page::new(StatusCode::GONE, "Removed by the operator", "The operator of this gateway withholds it.")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::Stall;
    use content::cid::parse;
    use content::packed::SeekTableError;
    use http::header::ACCEPT;

    fn cid() -> Cid {
        parse("bafkqac3imvwgy3zao5xxe3de").expect("a CID")
    }

    fn stall() -> Stall {
        let waited = Duration::from_secs(30);
        Stall { waited, providers_found: 2, peers_asked: 3, peers_answered: 1, ..Stall::default() }
    }

    fn source(error: SourceError) -> Problem {
        Problem::Walk(WalkError::Source(error))
    }

    #[test]
    fn each_problem_has_a_status_and_temporary_ones_are_not_cached() {
        let cid = cid();
        let stall = stall();
        let table = [
            (
                Problem::Request(RequestError::Path {
                    path: "/ipfs/hello".to_owned(),
                    error: PathError::Cid(parse("hello").expect_err("no CID")),
                }),
                400,
                "public, max-age=60",
            ),
            (
                Problem::Request(RequestError::Path { path: "/ipfs/x/..".to_owned(), error: PathError::AboveRoot }),
                400,
                "public, max-age=60",
            ),
            (Problem::Request(RequestError::UrlTooLong { max: 10 }), 414, "no-store"),
            (Problem::ServiceWorker, 400, "no-store"),
            (Problem::Request(RequestError::Method), 405, "no-store"),
            (Problem::Request(RequestError::NoSuchPage), 404, "public, max-age=60"),
            (Problem::NoRendering { cid, codec: 0x71 }, 406, "no-store"),
            (Problem::Packed(PackedError::Table(SeekTableError::Missing)), 502, "no-store"),
            (Problem::Packed(PackedError::Read(SourceError::NotFound { cid }.into())), 404, "no-store"),
            (Problem::Walk(WalkError::NoLink { parent: cid, name: "x".to_owned() }), 404, "public, max-age=60"),
            (Problem::Walk(WalkError::Malformed { cid, reason: "x".to_owned() }), 502, "no-store"),
            (Problem::Walk(WalkError::Unsupported { cid, codec: 0x71 }), 501, "no-store"),
            (Problem::Refused { cid, verdict: Verdict::Gone }, 410, "public, max-age=60"),
            (source(SourceError::Refused { cid, verdict: Verdict::Legal }), 451, "public, max-age=60"),
            (source(SourceError::refused(&cid, "a/b c", Verdict::Gone)), 410, "public, max-age=60"),
            (source(SourceError::NotFound { cid }), 404, "no-store"),
            (source(SourceError::Stalled { cid, stall }), 504, "no-store"),
            (source(SourceError::Corrupt { cid }), 502, "no-store"),
            (source(SourceError::Store("disk".into())), 500, "no-store"),
            (source(SourceError::Closed), 503, "no-store"),
            (Problem::Isolated(Duration::from_secs(61)), 503, "no-store"),
            (source(SourceError::TooMuchWork { max: 5 }), 403, "no-store"),
            (Problem::NeedsHttp11 { max: 10 }, 505, "no-store"),
        ];
        for (problem, status, cache_control) in table {
            let response = problem.response(&HeaderMap::new());
            assert_eq!(response.status().as_u16(), status, "{problem}");
            assert_eq!(response.headers()[CACHE_CONTROL], cache_control, "{problem}");
            assert!(response.body().len() > 30 && response.body().contains(&problem.to_string()), "{problem}");
        }
    }

    #[test]
    fn sentences_are_capitalised_and_names_are_not() {
        let table = [
            ("the address is too long", "The address is too long"),
            ("bafkqac3imvwgy3zao5xxe3de is not stored locally", "bafkqac3imvwgy3zao5xxe3de is not stored locally"),
            ("example.com has no DNSLink", "example.com has no DNSLink"),
            ("k51qzi5uqu5dg is a key", "k51qzi5uqu5dg is a key"),
            ("", ""),
        ];
        for (text, expected) in table {
            assert_eq!(capitalised(text), expected);
        }
    }

    #[test]
    fn a_stall_reports_the_search_and_retry_after() {
        let stall = stall();
        let response = source(SourceError::Stalled { cid: cid(), stall }).response(&HeaderMap::new());
        assert_eq!(response.headers()[RETRY_AFTER], "30");
        for part in ["2 providers found", "3 peers asked", "1 answered", "30.0 s"] {
            assert!(response.body().contains(part), "{part} is not in {}", response.body());
        }
    }

    #[test]
    fn browsers_get_escaped_html() {
        let browser = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("text/html,*/*"))]);
        let problem = Problem::Walk(WalkError::NoLink { parent: cid(), name: "<script>".to_owned() });
        let response = problem.response(&browser);
        assert_eq!(response.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
        assert!(response.body().contains("&lt;script&gt;") && !response.body().contains("<script>"));
    }
}
