//! The public listener: connections whose requests the gateway answers.
//!
//! Goals: a node serves the gateway with one call for each socket, and all code of a connection and of an answer is
//! compiled here, in this crate, and not in each that starts a node: the body of an async function is compiled where it
//! is awaited.
//!
//! Non-goals: connections of other listeners, which [`server::serve`] serves with any handler.

use crate::listen::drain::Drain;
use crate::listen::http3::{self, QuicSocket};
use crate::listen::server::{self, ConnectionLimits};
use crate::listen::socket::Listener;
use crate::metrics::HttpMetrics;
use crate::pipeline::Gateway;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use std::io;
use std::sync::Arc;

/// Serves the gateway on a TCP or Unix socket until the drain begins ([`server::serve`]).
pub fn serve(
    listener: Listener,
    limits: ConnectionLimits,
    metrics: Arc<HttpMetrics>,
    drain: Drain,
    gateway: Arc<Gateway>,
) -> BoxFuture<'static, ()> {
    let handler = move |request, connection| {
        let gateway = Arc::clone(&gateway);
        async move { gateway.handle(request, connection).await }
    };
    server::serve(listener, limits, metrics, drain, handler).boxed()
}

/// Serves the gateway over HTTP/3 until the drain begins.
///
/// # Errors
/// As [`http3::serve`].
pub fn serve_http3(
    socket: QuicSocket,
    limits: ConnectionLimits,
    metrics: Arc<HttpMetrics>,
    drain: Drain,
    gateway: Arc<Gateway>,
) -> BoxFuture<'static, io::Result<()>> {
    let handler = move |request, connection| {
        let gateway = Arc::clone(&gateway);
        async move { gateway.handle(request, connection).await }
    };
    http3::serve(socket, limits, metrics, drain, handler).boxed()
}
