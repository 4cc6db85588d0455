//! HTTP/1.1 on one connection: its requests one after the other, with strict line endings.

use crate::listen::connection::{ActiveExchange, Connection};
use crate::listen::drain::ShutdownSignal;
use crate::listen::rate::Paced;
use crate::listen::server::{BoxError, ConnectionLimits, RequestBody};
use crate::listen::wire::StrictLines;
use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue};
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};

/// Serves the requests of a connection one after the other.
pub(super) async fn serve<I, H, F, B>(
    io: I,
    limits: &ConnectionLimits,
    handler: &H,
    stop: &ShutdownSignal,
    state: &Arc<Connection>,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Fn(Request<RequestBody>, Arc<Connection>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let service = service_fn(|request: Request<Incoming>| {
        let exchange = ActiveExchange::begin(state);
        let request = request.map(|body| RequestBody::Left(Paced::new(body, limits.rate_min)));
        // A tunnel outlives its first response.
        let may_close = request.method() != Method::CONNECT;
        // Boxed, because hyper reserves its size for each connection, also for idle ones.
        let response = Box::pin(handler(request, Arc::clone(state)));
        async move {
            let mut response = response.await.map(|body| ExchangeBody { body, _exchange: exchange });
            limits.announce_http3(state, response.headers_mut());
            if may_close && stop.is_sent() {
                state.linger_on_close();
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let builder = builder(limits);
    let io = TokioIo::new(StrictLines::new(io));
    let mut serving = pin!(builder.serve_connection(io, service).with_upgrades());
    let mut overdue = pin!(state.head_overdue(limits.header_timeout));
    let result = tokio::select! {
        biased;
        result = serving.as_mut() => result,
        () = overdue.as_mut() => return,
        () = state.evicted() => {
            // A request may have arrived at the same time.
            if state.awaiting_head_since().is_some() {
                return;
            }
            serving.as_mut().graceful_shutdown();
            tokio::select! {
                result = serving => result,
                () = overdue => return,
            }
        }
        () = stop.wait() => {
            state.linger_on_close();
            tokio::select! {
                biased;
                result = serving.as_mut() => result,
                () = overdue.as_mut() => return,
                // No request has arrived, or the client did not end the connection although the last response asks so.
                () = state.unused_in_drain() => {
                    serving.as_mut().graceful_shutdown();
                    tokio::select! {
                        result = serving => result,
                        () = overdue => return,
                    }
                }
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended with an error");
    }
}

fn builder(limits: &ConnectionLimits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.header_read_timeout(None).max_buf_size(limits.head_bytes_max.max(8192));
    builder
}

/// The body of a response, which ends the exchange when it is dropped.
struct ExchangeBody<B> {
    body: B,
    _exchange: ActiveExchange,
}

impl<B: Body + Unpin> Body for ExchangeBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
