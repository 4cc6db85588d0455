//! POST requests that stand for another method (tus 1.0, "X-HTTP-Method-Override"), for clients that can send nothing but GET and POST.

use axum::http::header::HeaderName;
use axum::http::{HeaderMap, Method};

/// The header that names the method.
const METHOD_OVERRIDE: HeaderName = HeaderName::from_static("x-http-method-override");

/// The route of an upload.
const UPLOAD: &str = "/api/v1/uploads/{id}";

/// The method that a POST to an upload stands for, if there is such a one.
pub fn stood_for(headers: &HeaderMap) -> Option<Method> {
    match headers.get(METHOD_OVERRIDE)?.as_bytes() {
        b"PATCH" => Some(Method::PATCH),
        b"HEAD" => Some(Method::HEAD),
        b"DELETE" => Some(Method::DELETE),
        _ => None,
    }
}

/// Whether a request only looks, although its method says that it may change something: a POST that stands for HEAD. Elsewhere the header
/// means nothing.
pub fn only_looks(route: &str, method: &Method, headers: &HeaderMap) -> bool {
    route == UPLOAD && method == Method::POST && stood_for(headers) == Some(Method::HEAD)
}
