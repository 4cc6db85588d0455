//! [`Problem`]: everything that can go wrong with a request, and the one place that chooses statuses and words.
//!
//! Goals: a person understands the text; a cache keeps no failure that may pass; nothing here appears after a response's
//! head has been sent.

use crate::html;
use crate::metrics::Abort;
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
use content::path::PathError;
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
    /// The request itself leads nowhere.
    #[error(transparent)]
    Request(RequestError),
    /// A name cannot be resolved.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A service worker whose scope would be every site of this host.
    #[error("a service worker cannot be registered for all of /ipfs/")]
    ServiceWorker,
    /// There are as many connections as there may be.
    #[error("there are as many connections as this gateway serves at a time")]
    Crowded,
    /// One client has as many connections, or requests under way, as it may.
    #[error("there are as many requests from your address as one client may have at a time")]
    Share,
    /// A tunnel inside a tunnel.
    #[error("this is a tunnel already")]
    Tunnel,
    /// A format was asked for that the content does not have.
    #[error("{cid} is not stored as {wanted}, and this gateway does not convert it")]
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
    /// An IPNS record was asked for of what is no key.
    #[error("only a path of the form /ipns/KEY has an IPNS record")]
    NoRecordOf,
    /// A CAR was asked for that does not exist.
    #[error(transparent)]
    CarOptions(#[from] CarOptionsError),
    /// The host serves only what clients can check for themselves.
    #[error("only raw blocks, CAR and IPNS records are served here")]
    TrustlessOnly,
    /// `only-if-cached`, and it is not.
    #[error("{cid} is not held here, and was to be served only if it is")]
    NotCached {
        /// What is missing.
        cid: Cid,
    },
    /// The request demands by `If-Match` or `If-Unmodified-Since` what is not so.
    #[error("what is at this address is not what the request demands with If-Match or If-Unmodified-Since")]
    NotAsDemanded,
    /// A request to the routing API that cannot be answered.
    #[error(transparent)]
    Routing(#[from] RoutingProblem),
    /// A page of a listing begins after an entry that is not there.
    #[error("the directory has no entry of the name after which the page was to begin")]
    NoSuchEntry,
    /// A site's `_redirects` cannot be understood.
    #[error("could not parse _redirects: {0}")]
    Redirects(RedirectsError),
    /// The path ends at content that cannot be shown without a format.
    #[error("{cid} has the codec 0x{codec:x}, which cannot be shown as a file; ask for the block with ?format=raw")]
    NoRendering {
        /// The content.
        cid: Cid,
        /// Its multicodec.
        codec: u64,
    },
    /// The path leads nowhere.
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
    /// There is no TAR of this.
    #[error(transparent)]
    Tar(TarError),
    /// More was asked for than one response may have.
    #[error("{bytes} bytes are more than the {max} that one response may have")]
    TooLarge {
        /// What would have to be sent, in bytes.
        bytes: u64,
        /// The limit, in bytes.
        max: u64,
    },
    /// A response became longer than any may be.
    #[error("the response is longer than any may be")]
    TooLong,
    /// As much of something is going on as may.
    #[error("too many archives are being made at the moment")]
    Busy,
    /// A request took longer than any may.
    #[error("the request took longer than any may")]
    TooSlow,
    /// The policy refuses the content.
    #[error("{cid} is not served here")]
    Refused {
        /// The content.
        cid: Cid,
        /// What the policy said.
        verdict: Verdict,
    },
    /// A file turned out longer or shorter than was said.
    #[error("the content does not have the length that it says")]
    Length,
    /// As much is held back for clients of HTTP/1.0, and fetched ahead of others, as there is memory for.
    #[error(
        "too much is being held back for other clients to find out the length of this page first, as HTTP/1.0 needs"
    )]
    NoRoom,
    /// As much is held for other clients as there is memory for.
    #[error("too much is held in memory for other clients at the moment")]
    NoMemory,
    /// The page is too long to find out its length first, which HTTP/1.0 needs.
    #[error("this page is longer than {max} bytes, too long for HTTP/1.0; ask with HTTP/1.1")]
    NeedsHttp11 {
        /// The limit, in bytes.
        max: u64,
    },
}

/// `Cache-Control` of what will hardly change.
const BRIEFLY: HeaderValue = HeaderValue::from_static("public, max-age=60");
/// How long that is.
const BRIEFLY_IS: Duration = Duration::from_secs(60);

/// A problem sorted by what the client can do about it.
struct Page {
    status: StatusCode,
    /// What went wrong, in a few words.
    title: &'static str,
    /// What may help, if anything.
    advice: &'static str,
    /// When to try again, in seconds.
    retry_seconds: Option<u32>,
}

impl Page {
    const fn new(status: StatusCode, title: &'static str, advice: &'static str) -> Self {
        Self { status, title, advice, retry_seconds: None }
    }
}

const DAMAGED: Page = Page {
    retry_seconds: Some(3600),
    ..Page::new(
        StatusCode::BAD_GATEWAY,
        "Damaged content",
        "The blocks arrived, but they do not form valid content. Whoever published it has to repair it.",
    )
};
const NOT_FOUND: Page = Page::new(StatusCode::NOT_FOUND, "Not found", "Check the path: names are case-sensitive.");
const NO_RENDERING: Page = Page::new(
    StatusCode::NOT_ACCEPTABLE,
    "No such format",
    "Ask for the block itself with ?format=raw, or for a CAR with ?format=car.",
);
const TOO_MUCH: Page = Page::new(
    StatusCode::FORBIDDEN,
    "Too much for one response",
    "Ask for a part of it: a range of a file, a folder further down, or a CAR with a narrower dag-scope.",
);
const TOO_SLOW: Page = Page {
    retry_seconds: Some(120),
    ..Page::new(StatusCode::GATEWAY_TIMEOUT, "Not found in time", "Trying again later may help.")
};

impl Problem {
    fn page(&self) -> Page {
        match self {
            Self::Request(error) => of_request(error),
            Self::Name(error) => of_name(error),
            Self::ServiceWorker => Page::new(
                StatusCode::BAD_REQUEST,
                "Service worker refused",
                "Put it into a folder: its scope is the folder that it is in.",
            ),
            Self::Tunnel => Page::new(StatusCode::METHOD_NOT_ALLOWED, "A tunnel in a tunnel", "Ask for content here."),
            Self::Crowded => Page { status: StatusCode::SERVICE_UNAVAILABLE, title: "Too many connections", ..BUSY },
            Self::Busy | Self::Share | Self::NoMemory => BUSY,
            Self::NoRendering { .. } | Self::NotConverted { .. } => NO_RENDERING,
            Self::Document(error) => of_document(error),
            Self::InsideDocument { .. } => Page::new(
                StatusCode::NOT_IMPLEMENTED,
                "Part of a document",
                "Ask for the document, and take the value out of it.",
            ),
            Self::NoRecordOf => Page::new(
                StatusCode::BAD_REQUEST,
                "Not an IPNS key",
                "Leave the rest of the path, or the format, away.",
            ),
            Self::CarOptions(_) => {
                Page::new(StatusCode::BAD_REQUEST, "No such CAR", "Check the parameters of the address and of Accept.")
            }
            Self::TrustlessOnly => NO_RENDERING,
            Self::NotCached { .. } => Page::new(
                StatusCode::PRECONDITION_FAILED,
                "Not held here",
                "Ask without only-if-cached to have it fetched.",
            ),
            Self::NotAsDemanded => Page::new(
                StatusCode::PRECONDITION_FAILED,
                "Something else is here",
                "Ask without the condition for what is here now.",
            ),
            Self::Routing(problem) => of_routing(problem),
            Self::NoSuchEntry => NOT_FOUND,
            Self::Redirects(_) => Page::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "The site's redirects are broken",
                "Whoever published the site has to repair its file _redirects.",
            ),
            Self::Walk(error) => of_walk(error),
            Self::Read(error) => of_read(error),
            Self::Dir(DirError::Source(error)) => of_source(error),
            Self::Dir(_) | Self::Length => DAMAGED,
            Self::Scope(error) => of_scope(error),
            Self::Tar(error) => of_tar(error),
            Self::TooLarge { .. } | Self::TooLong => TOO_MUCH,
            Self::TooSlow => TOO_SLOW,
            Self::Refused { verdict, .. } => of_verdict(*verdict),
            Self::NoRoom => BUSY,
            Self::NeedsHttp11 { .. } => {
                Page::new(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "HTTP/1.1 needed", "A proxy may have to be told so.")
            }
        }
    }

    /// What happened to the block that did not come, if that is the problem.
    pub fn source_error(&self) -> Option<&SourceError> {
        match self {
            Self::Walk(WalkError::Source(error))
            | Self::Read(ReadError::Source(error))
            | Self::Dir(DirError::Source(error))
            | Self::Scope(ScopeError::Source(error))
            | Self::Tar(TarError::Source(error)) => Some(error),
            _ => None,
        }
    }

    /// What the policy refuses, and how, if that is the problem.
    pub fn refused(&self) -> Option<(Refused, Verdict)> {
        match self {
            Self::Refused { cid, verdict } => Some((Refused::Content(*cid), *verdict)),
            Self::Name(NameError::Withheld { name, verdict }) => Some((Refused::Name(name.clone()), *verdict)),
            _ => match self.source_error() {
                Some(SourceError::Refused { cid, verdict }) => Some((Refused::Content(*cid), *verdict)),
                _ => None,
            },
        }
    }

    /// The process is stopping.
    pub fn closed() -> Self {
        Self::Walk(WalkError::Source(SourceError::Closed))
    }

    /// Whether what became of work that several wait for says something of whoever began it only, and nothing of who has
    /// `waited` so long for it: the one had no place on the way to the network, or its patience ended before the other's.
    pub fn is_of_who_began(&self, waited: Duration) -> bool {
        match self.source_error() {
            Some(SourceError::Busy) => true,
            Some(SourceError::Stalled { stall, .. }) => waited < stall.waited / 2,
            _ => false,
        }
    }

    /// The status that the problem is answered with.
    pub fn status(&self) -> StatusCode {
        self.page().status
    }

    /// What a response that breaks off because of the problem is counted under.
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

    /// The response to a request for what a name stands for, which may be something else after `ttl`.
    pub fn response_for(&self, ttl: Duration, request: &HeaderMap) -> Response<String> {
        let mut response = self.response(request);
        if response.headers().get(CACHE_CONTROL) == Some(&BRIEFLY) && ttl < BRIEFLY_IS {
            let kept = format!("public, max-age={}", ttl.as_secs());
            response.headers_mut().insert(CACHE_CONTROL, crate::headers::header(&kept));
        }
        response
    }

    /// A path that leads nowhere leads nowhere for ever, but a short time suffices to keep the load off; so it does for
    /// what the operator took down, who may think better of it. What may pass is not kept.
    fn cache_control(&self, status: StatusCode) -> HeaderValue {
        match (self, status) {
            // The same address is a good one without that header.
            (Self::ServiceWorker | Self::NotCached { .. } | Self::Request(RequestError::Host), _) => {
                HeaderValue::from_static("no-store")
            }
            // Offline, it may be imported any moment.
            (Self::Name(NameError::Offline { .. }), _) => HeaderValue::from_static("no-store"),
            (_, StatusCode::NOT_FOUND) if self.source_error().is_some() => HeaderValue::from_static("no-store"),
            (_, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::GONE) => BRIEFLY,
            (_, StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS) => BRIEFLY,
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
                    p { a href="/" { "To the start page" } }
                }
            }
        };
        markup.into_string()
    }
}

const STYLE: &str = ":root{color-scheme:light dark}body{max-width:38rem;margin:12vh auto 0;padding:0 1.25rem;\
    font:1.0625rem/1.6 system-ui,sans-serif;overflow-wrap:anywhere}h1{margin:0;line-height:1.2}\
    .code,a{color:#0b7c84}@media(prefers-color-scheme:dark){.code,a{color:#5cc6c4}}.code{margin:0;font-weight:700}.advice{opacity:.75}";

/// A sentence with a capital at its beginning, unless it begins with a CID, a domain or another name, whose case matters.
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
            Full::Client => Self::Share,
            Full::All => Self::Crowded,
        }
    }
}

const UNSAFE_CID: Page =
    Page::new(StatusCode::BAD_REQUEST, "Unsafe CID", "Its content could not be checked, so it is not served.");

fn of_request(error: &RequestError) -> Page {
    match error {
        RequestError::Path { error, .. } => of_path(error),
        RequestError::Label(LabelError::Cid(CidError::Hash(_))) => UNSAFE_CID,
        RequestError::Label(LabelError::TooLong { .. }) => Page::new(
            StatusCode::BAD_REQUEST,
            "Too long for a host name",
            "Ask for it by path, at a gateway that answers by path.",
        ),
        RequestError::Label(_) => Page::new(StatusCode::BAD_REQUEST, "Not a CID or name", "Check the address."),
        RequestError::Uri => Page::new(StatusCode::BAD_REQUEST, "Not an address of IPFS", "Check the address."),
        RequestError::UrlTooLong { .. } => {
            Page::new(StatusCode::URI_TOO_LONG, "Address too long", "Use a shorter one.")
        }
        RequestError::Host => Page::new(StatusCode::BAD_REQUEST, "Host is missing or wrong", "Send one Host header."),
        RequestError::Method => {
            Page::new(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed", "This gateway only reads.")
        }
        RequestError::NoSuchPage => Page::new(StatusCode::NOT_FOUND, "Not found", "Try /ipfs/ and a CID."),
        RequestError::SiteUnknown { .. } => Page {
            retry_seconds: Some(30),
            ..Page::new(StatusCode::GATEWAY_TIMEOUT, "Not found in time", "Trying again later may help.")
        },
        RequestError::Name(error) => of_name(error),
        RequestError::Format(_) => NO_RENDERING,
    }
}

fn of_path(error: &PathError) -> Page {
    match error {
        PathError::Cid(CidError::Hash(_)) => UNSAFE_CID,
        PathError::Cid(CidError::Malformed { .. }) => {
            Page::new(StatusCode::BAD_REQUEST, "Not a CID", "A CID starts with \"bafy\", \"bafk\" or \"Qm\".")
        }
        PathError::Name(_) => Page::new(
            StatusCode::BAD_REQUEST,
            "Not a name",
            "A name is a key, which starts with \"k51\", \"12D3\" or \"Qm\", or a domain.",
        ),
        _ => Page::new(StatusCode::BAD_REQUEST, "Not a valid path", "Check the address."),
    }
}

fn of_name(error: &NameError) -> Page {
    const UNRESOLVED: &str = "The name cannot be resolved";
    match error {
        NameError::NoRecord { .. } => Page {
            retry_seconds: Some(60),
            ..Page::new(
                StatusCode::GATEWAY_TIMEOUT,
                "No record of the name was found",
                "Its owner has to publish it again from time to time. Trying again later may help.",
            )
        },
        NameError::Refused { .. } => Page {
            retry_seconds: Some(60),
            ..Page::new(StatusCode::BAD_GATEWAY, UNRESOLVED, "Its owner has to publish a valid record.")
        },
        NameError::NoDnsLink { .. } => {
            Page::new(StatusCode::NOT_FOUND, "No DNSLink", "The owner of the domain has not linked it to content.")
        }
        NameError::Dns { .. } | NameError::TooSlow { .. } => Page {
            retry_seconds: Some(30),
            ..Page::new(StatusCode::GATEWAY_TIMEOUT, UNRESOLVED, "Trying again later may help.")
        },
        NameError::Value { .. } | NameError::TooManySteps { .. } => Page {
            retry_seconds: Some(300),
            ..Page::new(StatusCode::BAD_GATEWAY, UNRESOLVED, "Whoever owns the name has to repair what it stands for.")
        },
        NameError::Withheld { verdict, .. } => of_verdict(*verdict),
        NameError::Busy => BUSY,
        NameError::Offline { .. } => Page::new(
            StatusCode::NOT_FOUND,
            "Not known here",
            "This gateway is offline: it knows only names that were resolved before.",
        ),
    }
}

fn of_routing(problem: &RoutingProblem) -> Page {
    match problem {
        RoutingProblem::Busy => BUSY,
        RoutingProblem::NotAcceptable { .. } => {
            Page::new(StatusCode::NOT_ACCEPTABLE, "No such format", "Ask for one of those, or leave Accept away.")
        }
        RoutingProblem::Cid(_)
        | RoutingProblem::Peer { .. }
        | RoutingProblem::Name { .. }
        | RoutingProblem::Key { .. } => Page::new(StatusCode::BAD_REQUEST, "Not a key", "Check the address."),
    }
}

const BUSY: Page = Page {
    retry_seconds: Some(5),
    ..Page::new(StatusCode::TOO_MANY_REQUESTS, "Too many requests", "Try again in a moment.")
};

fn of_document(error: &IpldError) -> Page {
    match error {
        IpldError::NotConvertible { .. } => NO_RENDERING,
        IpldError::Malformed { .. } => DAMAGED,
        IpldError::TooComplex { .. } => {
            Page::new(StatusCode::NOT_ACCEPTABLE, "Too complex to show", "Ask for the block itself with ?format=raw.")
        }
    }
}

fn of_scope(error: &ScopeError) -> Page {
    match error {
        ScopeError::Source(error) => of_source(error),
        ScopeError::Node(_) => DAMAGED,
        ScopeError::TooDeep { .. } | ScopeError::TooManyBlocks { .. } | ScopeError::TooManyRepeats { .. } => TOO_MUCH,
    }
}

fn of_tar(error: &TarError) -> Page {
    match error {
        TarError::Source(error) => of_source(error),
        TarError::NotUnixFs { .. } => NO_RENDERING,
        TarError::Name { .. } | TarError::Symlink { .. } => Page::new(
            StatusCode::BAD_REQUEST,
            "Unsafe as an archive",
            "Extracting it could write outside its folder. Ask for a CAR with ?format=car.",
        ),
        TarError::TooDeep { .. } | TarError::TooManyEntries { .. } | TarError::TooManyBytes { .. } => TOO_MUCH,
        TarError::Node(_) | TarError::File(_) => DAMAGED,
    }
}

fn of_walk(error: &WalkError) -> Page {
    match error {
        WalkError::NoLink { .. } | WalkError::NotADirectory { .. } => NOT_FOUND,
        WalkError::Unsupported { .. } | WalkError::TooComplex { .. } => Page::new(
            StatusCode::NOT_IMPLEMENTED,
            "Path not supported",
            "Paths go through directories and through documents of a sensible size. Ask for the block itself with ?format=raw.",
        ),
        WalkError::Malformed { .. } => DAMAGED,
        WalkError::Source(error) => of_source(error),
    }
}

fn of_read(error: &ReadError) -> Page {
    match error {
        ReadError::Source(error) => of_source(error),
        ReadError::Node(NodeError::Unsupported { .. }) => NO_RENDERING,
        _ => DAMAGED,
    }
}

fn of_source(error: &SourceError) -> Page {
    match error {
        SourceError::NotFound { .. } => Page::new(
            StatusCode::NOT_FOUND,
            "Not held here",
            "This gateway is offline: it serves only what it holds itself, and asks no peers.",
        ),
        SourceError::Stalled { stall, .. } if stall.no_peers => Page {
            retry_seconds: Some(10),
            ..Page::new(
                StatusCode::GATEWAY_TIMEOUT,
                "No peers",
                "This gateway has no peers at the moment, so there is nobody to get it from. Its operator finds out why with \
                 \"causeway health\".",
            )
        },
        SourceError::Stalled { stall, .. } => Page {
            retry_seconds: Some(if stall.providers_found == 0 { 120 } else { 30 }),
            ..Page::new(
                StatusCode::GATEWAY_TIMEOUT,
                "Not found in time",
                "Perhaps nobody who has it is online. Trying again later may help.",
            )
        },
        SourceError::Busy => BUSY,
        SourceError::Corrupt { .. } => Page {
            retry_seconds: Some(30),
            ..Page::new(
                StatusCode::BAD_GATEWAY,
                "Content failed its check",
                "What the peers sent is not what the CID stands for, so it was thrown away.",
            )
        },
        SourceError::Refused { verdict, .. } => of_verdict(*verdict),
        SourceError::TooMuchWork { .. } => TOO_MUCH,
        SourceError::Unacceptable(_) => Page {
            retry_seconds: Some(3600),
            ..Page::new(
                StatusCode::BAD_GATEWAY,
                "Unsafe content",
                "Something below this path cannot be checked, so it is not served.",
            )
        },
        SourceError::Store(_) => {
            Page::new(StatusCode::INTERNAL_SERVER_ERROR, "Store failure", "The operator of this gateway has to look.")
        }
        SourceError::Closed => Page {
            retry_seconds: Some(5),
            ..Page::new(StatusCode::SERVICE_UNAVAILABLE, "Shutting down", "Try again in a moment.")
        },
    }
}

fn of_verdict(verdict: Verdict) -> Page {
    match verdict {
        Verdict::Legal => Page::new(
            StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS,
            "Unavailable for legal reasons",
            "The operator of this gateway withholds it.",
        ),
        Verdict::Unlisted => Page::new(
            StatusCode::FORBIDDEN,
            "Not among what is served here",
            "This gateway serves chosen content only.",
        ),
        Verdict::Gone | Verdict::Allow => {
            Page::new(StatusCode::GONE, "Not served here", "The operator of this gateway removed it.")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::Stall;
    use content::cid::parse;
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
    fn each_problem_has_its_status_and_nothing_temporary_is_cached() {
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
            (Problem::Walk(WalkError::NoLink { parent: cid, name: "x".to_owned() }), 404, "public, max-age=60"),
            (Problem::Walk(WalkError::Malformed { cid, reason: "x".to_owned() }), 502, "no-store"),
            (Problem::Walk(WalkError::Unsupported { cid, codec: 0x71 }), 501, "no-store"),
            (Problem::Refused { cid, verdict: Verdict::Gone }, 410, "public, max-age=60"),
            (source(SourceError::Refused { cid, verdict: Verdict::Legal }), 451, "public, max-age=60"),
            (source(SourceError::NotFound { cid }), 404, "no-store"),
            (source(SourceError::Stalled { cid, stall }), 504, "no-store"),
            (source(SourceError::Corrupt { cid }), 502, "no-store"),
            (source(SourceError::Store("disk".into())), 500, "no-store"),
            (source(SourceError::Closed), 503, "no-store"),
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
    fn sentences_begin_with_a_capital_and_names_stay_as_they_are() {
        let table = [
            ("the address is too long", "The address is too long"),
            ("bafkqac3imvwgy3zao5xxe3de is not held here", "bafkqac3imvwgy3zao5xxe3de is not held here"),
            ("example.com has no DNSLink", "example.com has no DNSLink"),
            ("k51qzi5uqu5dg is a key", "k51qzi5uqu5dg is a key"),
            ("", ""),
        ];
        for (text, expected) in table {
            assert_eq!(capitalised(text), expected);
        }
    }

    #[test]
    fn a_stall_says_how_far_the_search_got_and_when_to_try_again() {
        let stall = stall();
        let response = source(SourceError::Stalled { cid: cid(), stall }).response(&HeaderMap::new());
        assert_eq!(response.headers()[RETRY_AFTER], "30");
        for part in ["2 providers found", "3 peers asked", "1 answered", "30.0 s"] {
            assert!(response.body().contains(part), "{part} is not in {}", response.body());
        }
    }

    #[test]
    fn browsers_get_html_that_escapes_what_they_sent() {
        let browser = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("text/html,*/*"))]);
        let problem = Problem::Walk(WalkError::NoLink { parent: cid(), name: "<script>".to_owned() });
        let response = problem.response(&browser);
        assert_eq!(response.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
        assert!(response.body().contains("&lt;script&gt;") && !response.body().contains("<script>"));
    }
}
