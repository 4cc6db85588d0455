//! Middleware of the admin listener: authenticates the bearer token, authorises the operation by the token's scopes,
//! rejects cross-site requests of browsers, and records changes in the audit log.
//!
//! A browser lets any web page send requests to any address, also from a trusted machine. It marks them with `Origin`
//! (<https://fetch.spec.whatwg.org/#origin-header>) and `Sec-Fetch-Site` (<https://www.w3.org/TR/fetch-metadata/>);
//! commands and scripts send neither. Cross-site requests are rejected before the token is checked, so that a page
//! gains nothing even if a browser adds a token by itself. Pages that this listener serves have the same origin.
//!
//! The OpenAPI description names the scope that each operation requires ([`super::openapi::Permissions`]). An operation
//! that it does not describe is forbidden to every token.

use super::method_override::is_read_only;
use crate::http::ListenerState;
use crate::http::answer::{ApiError, ErrorFormat, with_lingering_read};
use crate::http::openapi::Requirement;
use api::access::Scope;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use gateway::listen::connection::Connection;
use services::access::Principal;
use services::access::authenticator::{FAILURES_WITHIN, Rejected};
use services::audit::context::AuditContext;
use services::audit::{self, ResponseDetail, Space};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The one route that cross-site links may lead to.
const METRICS: &str = "/metrics";
/// A read-only POST: its list of CIDs is too long for a URL.
const HAVE: &str = "/api/v1/store/have";

/// The routes that take space on the disk. All other changes may use the space that the audit log reserves for a full
/// disk.
pub const TAKES_SPACE: [&str; 16] = [
    "/api/v0/add",
    "/api/v0/block/put",
    "/api/v0/dag/import",
    "/api/v0/dag/put",
    "/api/v0/pin/add",
    "/api/v0/pin/update",
    "/api/v1/pins",
    "/api/v1/pins/{requestid}/retry",
    "/api/v1/store/import",
    "/api/v1/upload",
    "/api/v1/uploads",
    "/api/v1/uploads/{id}",
    "/api/v1/warm",
    "/psa/pins",
    "/psa/pins/{requestid}",
    "/upload",
];

/// The error for other tokens if an operation requires the operator's own token.
const OPERATOR_TOKEN_REQUIRED: &str =
    "this needs the operator's own token: the one in the settings (admin.token), or in DATA_DIR/admin.token";

/// The middleware. A change runs after the audit log has recorded its start, and is answered after the log has recorded
/// its result.
pub async fn check(State(admin): State<Arc<ListenerState>>, mut request: Request, next: Next) -> Response {
    let (error_format, from) = (ErrorFormat::of(request.uri().path()), peer(&request));
    let (bearer, scope) = match authorise(&admin, &request, from) {
        Ok(admitted) => admitted,
        Err(error) => return reject(error, error_format, request),
    };
    let audit_context = AuditContext::default();
    let mut change = None;
    if let Some(scope) = scope.filter(|scope| *scope != Scope::Read && changes(&request)) {
        let begun = audit::PendingChange::new(&bearer, scope, from, request.method(), request.uri());
        match admin.audit.begin(begun, audit_context.clone(), space(&request)).await {
            Ok(begun) => change = Some(begun),
            Err(error) => return reject(error.into(), error_format, request),
        }
    }
    request.extensions_mut().insert(bearer);
    request.extensions_mut().insert(audit_context);
    let mut response = next.run(request).await;
    if let Some(change) = &mut change {
        let detail = response.extensions_mut().remove::<ResponseDetail>().map(|ResponseDetail(value)| value);
        change.end(response.status().as_u16(), detail).await;
    }
    response
}

/// Whether a request may change anything: its method is not safe (RFC 9110, section 9.2.1). All commands of Kubo are
/// sent with POST; the caller excludes those that only require the scope `read`.
fn changes(request: &Request) -> bool {
    let route = route(request);
    let is_read_only = request.uri().path() == HAVE || is_read_only(route, request.method(), request.headers());
    !request.method().is_safe() && !is_read_only
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

/// Authenticates and authorises a request: the client, and the scope that it used. Requests for unknown paths and
/// methods pass, and the router answers them with 404 or 405.
fn authorise(
    admin: &ListenerState,
    request: &Request,
    from: Option<SocketAddr>,
) -> Result<(Principal, Option<Scope>), ApiError> {
    if request.uri().path() != METRICS && is_cross_site(request.headers()) {
        let message = "web pages of other sites cannot use the admin API; use a command";
        return Err(ApiError(StatusCode::FORBIDDEN, message.to_owned()));
    }
    let address = from.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |from| from.ip());
    let bearer = admin
        .authenticator
        .admit(bearer_token(request.headers()), address, SystemTime::now())
        .map_err(ApiError::from)?;
    // The router answers 404.
    let Some(path) = request.extensions().get::<MatchedPath>() else { return Ok((bearer, None)) };
    match admin.permissions.required(path.as_str(), request.method()) {
        Some(Requirement::AnyToken) => Ok((bearer, None)),
        Some(Requirement::Scope(scope)) if bearer.may(scope) => Ok((bearer, Some(scope))),
        Some(Requirement::Operator) if bearer.is_operator() => Ok((bearer, Some(Scope::Operate))),
        Some(Requirement::Operator) => Err(ApiError(StatusCode::FORBIDDEN, OPERATOR_TOKEN_REQUIRED.to_owned())),
        Some(Requirement::Scope(scope)) => Err(insufficient_scope(&bearer, scope)),
        None => Err(ApiError(StatusCode::FORBIDDEN, "no token authorises this request".to_owned())),
    }
}

/// The error for a token without a scope.
pub fn insufficient_scope(bearer: &Principal, scope: Scope) -> ApiError {
    let Principal { name, scopes, .. } = bearer;
    let message = format!(
        "this needs a token with the scope \"{scope}\", and \"{name}\" has {scopes}: ask the operator for another token"
    );
    ApiError(StatusCode::FORBIDDEN, message)
}

/// The bearer token of a request (RFC 6750, section 2.1).
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

impl From<Rejected> for ApiError {
    fn from(rejected: Rejected) -> Self {
        let (status, message) = match rejected {
            Rejected::Missing => (
                StatusCode::UNAUTHORIZED,
                "this needs the header \"Authorization: Bearer TOKEN\"; \"causeway token create\" creates a token",
            ),
            Rejected::Wrong => (
                StatusCode::UNAUTHORIZED,
                "the token is wrong, revoked or expired; \"causeway token ls\" lists the tokens",
            ),
            Rejected::RateLimited => {
                (StatusCode::TOO_MANY_REQUESTS, "this address sent too many wrong tokens: wait a minute")
            }
        };
        Self(status, message.to_owned())
    }
}

fn reject(error: ApiError, error_format: ErrorFormat, request: Request) -> Response {
    let status = error.0;
    let mut response = with_lingering_read(error_format.response(error), request.into_body());
    let headers = response.headers_mut();
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if status == StatusCode::TOO_MANY_REQUESTS {
        headers.insert(RETRY_AFTER, HeaderValue::from(FAILURES_WITHIN.as_secs()));
    }
    response
}

/// Whether a browser sent the request for a page of another origin.
fn is_cross_site(headers: &HeaderMap) -> bool {
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
    fn cross_site_requests_are_told_from_commands_and_from_same_origin_requests() {
        const HERE: &str = "127.0.0.1:8081";
        // Host, Origin, Sec-Fetch-Site, and whether the request is cross-site.
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
        for (host, origin, site, cross_site) in table {
            let mut headers = HeaderMap::new();
            let given = [(HOST, Some(host)), (ORIGIN, origin), (SEC_FETCH_SITE, site)];
            for (name, value) in given.into_iter().filter_map(|(name, value)| Some((name, value?))) {
                headers.insert(name, value.parse().expect("a header"));
            }
            assert_eq!(is_cross_site(&headers), cross_site, "{host} {origin:?} {site:?}");
        }
    }
}
