//! Who may use the admin listener: whoever bears the token, if there is one, and no web page of anybody else's.
//!
//! A browser runs pages of strangers on machines that are trusted, and lets them send requests anywhere. It says so, in `Origin`
//! (<https://fetch.spec.whatwg.org/#origin-header>) and `Sec-Fetch-Site` (<https://www.w3.org/TR/fetch-metadata/>); commands and
//! scripts send neither. A stranger can also have a name of its own stand for this machine's address, and its page is of the same
//! origin then; so a browser has to have asked for an address or for `localhost`, which no stranger can name.
//!
//! Only the API is kept from pages: metrics may be looked at from wherever a link leads to them.

use super::Admin;
use super::answer::Refusal;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use std::net::Ipv6Addr;
use std::sync::Arc;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// What is guarded against pages.
const API: &str = "/api/";

/// Lets requests through, or answers them.
pub async fn check(State(admin): State<Arc<Admin>>, request: Request, next: Next) -> Response {
    if request.uri().path().starts_with(API) && is_of_a_strange_page(request.headers()) {
        let words = "this cannot be used by web pages of other sites; use a command";
        return Refusal(StatusCode::FORBIDDEN, words.to_owned()).to_sender(request.into_body());
    }
    match admin.token.reveal() {
        Some(token) if !bears(request.headers(), token) => unauthorised(request),
        _ => next.run(request).await,
    }
}

fn unauthorised(request: Request) -> Response {
    let words = "this needs the header \"Authorization: Bearer TOKEN\" with the token of admin.token";
    let refusal = Refusal(StatusCode::UNAUTHORIZED, words.to_owned());
    let mut response = refusal.to_sender(request.into_body());
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
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
    let is_own = |origin: &str| origin.split_once("://").is_some_and(|(_, at)| at.eq_ignore_ascii_case(host));
    !is_nobodys_name(host)
        || !origin.is_none_or(is_own)
        || !site.is_none_or(|site| matches!(site, "same-origin" | "none"))
}

/// Whether a host, perhaps with a port, is an address or `localhost`.
fn is_nobodys_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    match name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::Ipv4Addr>().is_ok(),
    }
}

fn bears(headers: &HeaderMap, token: &str) -> bool {
    let value = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let credentials = value.and_then(|value| value.split_once(' '));
    credentials.is_some_and(|(scheme, given)| {
        scheme.eq_ignore_ascii_case("bearer") && same(given.trim().as_bytes(), token.as_bytes())
    })
}

/// Compares in a time that depends on the lengths alone.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differing = a.iter().zip(b).fold(0, |bits, (x, y)| std::hint::black_box(bits | (x ^ y)));
    a.len() == b.len() && differing == 0
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
            // A name of its own that leads here.
            ("evil.example:8081", Some("http://evil.example:8081"), Some("same-origin"), true),
            ("evil.example:8081", None, Some("same-origin"), true),
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
