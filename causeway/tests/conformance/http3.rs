//! The way to a gateway over HTTP/3: a front, as [`crate::http2`] is one.

use crate::http2::{pass_back, request};
use crate::support::certificate::trusting;
use bytes::{Buf as _, Bytes};
use h3::client::SendRequest;
use h3::error::{Code, StreamError};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};

/// The requests of one connection.
type Requests = SendRequest<h3_quinn::OpenStreams, Bytes>;

/// Starts a front of the listener at `gateway`, which has this certificate; returns its address.
pub async fn front(gateway: SocketAddr, certificate: &Path) -> SocketAddr {
    let requests = connect(gateway, certificate).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("is bound");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let requests = requests.clone();
            tokio::spawn(async move {
                if let Err(error) = pass_on(stream, requests).await {
                    eprintln!("a request was not passed on over HTTP/3: {error}");
                }
            });
        }
    });
    address
}

async fn connect(gateway: SocketAddr, certificate: &Path) -> Requests {
    let tls = QuicClientConfig::try_from(trusting(certificate, "h3")).expect("TLS 1.3");
    let endpoint = Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let config = ClientConfig::new(Arc::new(tls));
    let connection = endpoint.connect_with(config, gateway, "localhost").expect("can connect");
    let connection = h3_quinn::Connection::new(connection.await.expect("shakes hands"));
    let (mut connection, requests) = h3::client::new(connection).await.expect("begins");
    tokio::spawn(async move {
        connection.wait_idle().await;
        drop(endpoint);
    });
    requests
}

/// Passes one request on, and its response back.
async fn pass_on(mut stream: TcpStream, mut requests: Requests) -> Result<(), String> {
    let request = request(&mut stream).await?;
    let headless = request.method() == http::Method::HEAD;
    let mut exchange = requests.send_request(request).await.map_err(|error| error.to_string())?;
    match exchange.finish().await {
        // A server that has answered already needs no end of the request (RFC 9114, section 4.1).
        Err(StreamError::RemoteTerminate { code: Code::H3_NO_ERROR, .. }) | Ok(()) => (),
        Err(error) => return Err(error.to_string()),
    }
    let (parts, ()) = exchange.recv_response().await.map_err(|error| error.to_string())?.into_parts();
    let body = futures::stream::unfold(exchange, |mut exchange| async {
        let data = exchange.recv_data().await.map_err(std::io::Error::other).transpose()?;
        let data = data.map(|mut data| data.copy_to_bytes(data.remaining()));
        Some((data, exchange))
    });
    pass_back(&mut stream, parts, headless, body).await.map_err(|error| error.to_string())
}
