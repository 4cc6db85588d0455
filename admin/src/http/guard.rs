//! Who may use the admin listener: whoever bears a token that is good for what is asked, and no web page of anybody else's.
//!
//! A browser runs pages of strangers on machines that are trusted, and lets them send requests anywhere. It says so, in `Origin`
//! (<https://fetch.spec.whatwg.org/#origin-header>) and `Sec-Fetch-Site` (<https://www.w3.org/TR/fetch-metadata/>); commands and
//! scripts send neither. Such a page knows no token, so it could do nothing; that it is refused before any token is looked at keeps
//! it so even where somebody puts tokens into a browser. A page that this listener serves itself is of the same origin.
//!
//! What each operation asks for is said by the description of the API ([`super::openapi::Permissions`]); nobody may use what it does not name.

use super::method_override::only_looks;
use crate::http::Shared;
use crate::http::answer::{Dialect, Refusal, while_sending};
use crate::http::openapi::Asked;
use api::access::Scope;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use gateway::listen::server::Connection;
use services::access::Principal;
use services::access::authenticator::{FAILURES_WITHIN, Rejected};
use services::audit::context::AuditContext;
use services::audit::{self, Detail, Space};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// What may be looked at from wherever a link leads to it.
const METRICS: &str = "/metrics";
/// Changes nothing, and has too long a question for an address.
const HAVE: &str = "/api/v1/store/have";

/// What takes space on the disk, as routes. Everything else may use up what the audit log keeps for a full disk.
pub const TAKES_SPACE: [&str; 14] = [
    "/api/v0/add",
    "/api/v0/block/put",
    "/api/v0/dag/import",
    "/api/v0/dag/put",
    "/api/v0/pin/add",
    "/api/v0/pin/update",
    "/api/v1/store/import",
    "/api/v1/upload",
    "/api/v1/uploads",
    "/api/v1/uploads/{id}",
    "/api/v1/warm",
    "/psa/pins",
    "/psa/pins/{requestid}",
    "/upload",
];

/// What others than the operator hear of what is for the operator alone.
const FOR_THE_OPERATOR: &str =
    "this needs the operator's own token: the one in the settings (admin.token), or in DATA_DIR/admin.token";

/// Lets requests through, or answers them. A change is made when the audit log has it, and answered when the log has
/// its outcome.
pub async fn check(State(admin): State<Arc<Shared>>, mut request: Request, next: Next) -> Response {
    let (dialect, from) = (Dialect::of(request.uri().path()), peer(&request));
    let (bearer, scope) = match judge(&admin, &request, from) {
        Ok(admitted) => admitted,
        Err(refusal) => return reject(refusal, dialect, request),
    };
    let noted = AuditContext::default();
    let mut change = None;
    if let Some(scope) = scope.filter(|scope| *scope != Scope::Read && changes(&request)) {
        let begun = audit::Begun::new(&bearer, scope, from, request.method(), request.uri());
        match admin.audit.begin(begun, noted.clone(), space(&request)).await {
            Ok(begun) => change = Some(begun),
            Err(error) => return reject(error.into(), dialect, request),
        }
    }
    request.extensions_mut().insert(bearer);
    request.extensions_mut().insert(noted);
    let mut response = next.run(request).await;
    if let Some(change) = &mut change {
        let detail = response.extensions_mut().remove::<Detail>().map(|Detail(value)| value);
        change.end(response.status().as_u16(), detail).await;
    }
    response
}

/// Whether a request may change anything (RFC 9110, section 9.2.1). Commands of Kubo are all sent with POST; those for which
/// looking is enough change nothing.
fn changes(request: &Request) -> bool {
    let route = route(request);
    let only_looks = request.uri().path() == HAVE || only_looks(route, request.method(), request.headers());
    !request.method().is_safe() && !only_looks
}

fn space(request: &Request) -> Space {
    let takes = request.method() != Method::DELETE && TAKES_SPACE.contains(&route(request));
    if takes { Space::Taken } else { Space::Returned }
}

fn route(request: &Request) -> &str {
    request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str)
}

fn peer(request: &Request) -> Option<SocketAddr> {
    request.extensions().get::<Arc<Connection>>().map(|connection| connection.peer())
}

/// Who asks, and what for. What nobody may ask for is for the router to answer.
fn judge(admin: &Shared, request: &Request, from: Option<SocketAddr>) -> Result<(Principal, Option<Scope>), Refusal> {
    if request.uri().path() != METRICS && is_of_a_strange_page(request.headers()) {
        let words = "this cannot be used by web pages of other sites; use a command";
        return Err(Refusal(StatusCode::FORBIDDEN, words.to_owned()));
    }
    let address = from.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |from| from.ip());
    let bearer =
        admin.authenticator.admit(borne(request.headers()), address, SystemTime::now()).map_err(Refusal::from)?;
    // Where nothing is, the router says so.
    let Some(path) = request.extensions().get::<MatchedPath>() else { return Ok((bearer, None)) };
    match admin.permissions.asked(path.as_str(), request.method()) {
        Some(Asked::AnyToken) => Ok((bearer, None)),
        Some(Asked::Scope(scope)) if bearer.may(scope) => Ok((bearer, Some(scope))),
        Some(Asked::Operator) if bearer.is_operator() => Ok((bearer, Some(Scope::Operate))),
        Some(Asked::Operator) => Err(Refusal(StatusCode::FORBIDDEN, FOR_THE_OPERATOR.to_owned())),
        Some(Asked::Scope(scope)) => Err(too_little(&bearer, scope)),
        None => Err(Refusal(StatusCode::FORBIDDEN, "no token is good for this".to_owned())),
    }
}

fn too_little(bearer: &Principal, scope: Scope) -> Refusal {
    let Principal { name, scopes, .. } = bearer;
    let words = format!(
        "this needs a token with the scope \"{scope}\", and \"{name}\" has {scopes}: ask whoever runs the gateway for one"
    );
    Refusal(StatusCode::FORBIDDEN, words)
}

/// The token that a request bears (RFC 6750, section 2.1).
fn borne(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

impl From<Rejected> for Refusal {
    fn from(turned: Rejected) -> Self {
        let (status, words) = match turned {
            Rejected::Missing => (
                StatusCode::UNAUTHORIZED,
                "this needs the header \"Authorization: Bearer TOKEN\"; \"causeway token create\" makes a token",
            ),
            Rejected::Wrong => (
                StatusCode::UNAUTHORIZED,
                "the token is wrong, revoked or expired; \"causeway token ls\" lists those there are",
            ),
            Rejected::TooOften => {
                (StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens came from there: wait a minute")
            }
        };
        Self(status, words.to_owned())
    }
}

fn reject(refusal: Refusal, dialect: Dialect, request: Request) -> Response {
    let status = refusal.0;
    let mut response = while_sending(dialect.refuse(refusal), request.into_body());
    let headers = response.headers_mut();
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if status == StatusCode::TOO_MANY_REQUESTS {
        headers.insert(RETRY_AFTER, HeaderValue::from(FAILURES_WITHIN.as_secs()));
    }
    response
}

/// Whether a browser sent the request, for a page that is none of ours.
fn is_of_a_strange_page(headers: &HeaderMap) -> bool {
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let (origin, site) = (text(&ORIGIN), text(&SEC_FETCH_SITE));
    if origin.is_none() && site.is_none() {
        return false;
    }
    let host = text(&HOST).unwrap_or_default();
    let is_own = |origin: &str| {
        !host.is_empty() && origin.split_once("://").is_some_and(|(_, at)| at.eq_ignore_ascii_case(host))
    };
    !origin.is_none_or(is_own) || !site.is_none_or(|site| matches!(site, "same-origin" | "none"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_others_are_told_from_commands_and_from_our_own() {
        const HERE: &str = "127.0.0.1:8081";
        // Host, Origin, Sec-Fetch-Site, and whether it is a stranger's.
        let table = [
            (HERE, None, None, false),
            ("gateway.example.org", None, None, false),
            (HERE, Some("http://127.0.0.1:8081"), Some("same-origin"), false),
            (HERE, None, Some("none"), false),
            ("localhost:8081", Some("http://localhost:8081"), None, false),
            ("[::1]:8081", Some("http://[::1]:8081"), None, false),
            (HERE, Some("http://127.0.0.1:8080"), None, true),
            (HERE, Some("http://localhost:8081"), None, true),
            (HERE, Some("https://evil.example"), None, true),
            (HERE, Some("null"), None, true),
            (HERE, Some(""), None, true),
            (HERE, None, Some("cross-site"), true),
            (HERE, None, Some("same-site"), true),
            (HERE, Some("http://127.0.0.1:8081"), Some("cross-site"), true),
            // A page that the listener serves itself, under a name.
            ("admin.example.org", Some("https://admin.example.org"), Some("same-origin"), false),
            ("admin.example.org", None, Some("same-origin"), false),
            ("", Some("http://"), None, true),
        ];
        for (host, origin, site, strange) in table {
            let mut headers = HeaderMap::new();
            let given = [(HOST, Some(host)), (ORIGIN, origin), (SEC_FETCH_SITE, site)];
            for (name, value) in given.into_iter().filter_map(|(name, value)| Some((name, value?))) {
                headers.insert(name, value.parse().expect("a header"));
            }
            assert_eq!(is_of_a_strange_page(&headers), strange, "{host} {origin:?} {site:?}");
        }
    }
}
