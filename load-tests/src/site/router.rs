//! A delegated router (<https://specs.ipfs.tech/routing/http-routing-v1/>) that names one provider for everything, and
//! counts how often it is asked: each question is a search for providers.
//!
//! Non-goals: other endpoints, which are answered with 404; HTTP/2.

use anyhow::Result;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::json;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};

const PROVIDERS: &str = "/routing/v1/providers/";

/// A running router. Dropping it ends it.
pub struct Router {
    pub url: String,
    asked: Arc<AtomicUsize>,
    task: AbortHandle,
}

impl Router {
    /// A provider is a peer with addresses, without its peer ID.
    pub async fn start(peer_id: &str, addresses: &[String]) -> Result<Self> {
        let record = json!({
            "Schema": "peer", "ID": peer_id, "Addrs": addresses, "Protocols": ["transport-bitswap"],
        });
        let answer = Bytes::from(json!({ "Providers": [record] }).to_string());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (url, asked) = (format!("http://{}", listener.local_addr()?), Arc::new(AtomicUsize::new(0)));
        let task = tokio::spawn(serve(listener, answer, Arc::clone(&asked))).abort_handle();
        Ok(Self { url, asked, task })
    }

    /// Questions for providers so far.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves until the task is aborted, and ends all connections with itself.
async fn serve(listener: TcpListener, answer: Bytes, asked: Arc<AtomicUsize>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let (answer, asked) = (answer.clone(), Arc::clone(&asked));
                let respond = service_fn(move |request| respond(request, answer.clone(), Arc::clone(&asked)));
                connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), respond));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn respond(
    request: Request<Incoming>,
    answer: Bytes,
    asked: Arc<AtomicUsize>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if !request.uri().path().starts_with(PROVIDERS) {
        let mut missing = Response::new(Full::default());
        *missing.status_mut() = StatusCode::NOT_FOUND;
        return Ok(missing);
    }
    asked.fetch_add(1, Ordering::Relaxed);
    let mut response = Response::new(Full::new(answer));
    let json = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, json);
    Ok(response)
}

#[tokio::test]
async fn questions_for_providers_are_answered_and_counted() {
    use http_body_util::BodyExt as _;
    let router = Router::start("12D3KooW", &["/ip4/127.0.0.1/tcp/1".to_owned()]).await.expect("a port is free");
    let mut client = crate::trace::client::Client::new(router.url.trim_start_matches("http://").to_owned());
    for (path, status) in [("providers/bafy", 200), ("peers/bafy", 404), ("providers/bafk", 200)] {
        let response = client.get(&format!("/routing/v1/{path}")).await.expect("is answered");
        assert_eq!(response.status(), status, "{path}");
        let body = response.into_body().collect().await.expect("is whole").to_bytes();
        let is_named = String::from_utf8_lossy(&body).contains("\"ID\":\"12D3KooW\"");
        assert_eq!(is_named, status == 200, "{path}");
    }
    assert_eq!(router.asked(), 2);
}
