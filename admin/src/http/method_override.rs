//! Method override (`X-HTTP-Method-Override`, tus 1.0): POST requests that name another method, for clients that can
//! only send GET and POST.

use axum::http::header::HeaderName;
use axum::http::{HeaderMap, Method};

/// The header that names the overriding method.
const METHOD_OVERRIDE: HeaderName = HeaderName::from_static("x-http-method-override");

/// The route of a resumable upload.
const UPLOAD: &str = "/api/v1/uploads/{id}";

/// The method that overrides the POST of a request, if the header names a supported one.
pub fn overridden_method(headers: &HeaderMap) -> Option<Method> {
    match headers.get(METHOD_OVERRIDE)?.as_bytes() {
        b"PATCH" => Some(Method::PATCH),
        b"HEAD" => Some(Method::HEAD),
        b"DELETE" => Some(Method::DELETE),
        _ => None,
    }
}

/// Whether a request is read-only although its method is not safe: a POST to an upload that is overridden to HEAD.
/// Other routes ignore the header.
pub fn is_read_only(route: &str, method: &Method, headers: &HeaderMap) -> bool {
    route == UPLOAD && method == Method::POST && overridden_method(headers) == Some(Method::HEAD)
}
