//! [`Client`]: the HTTP client of one admin listener.
//!
//! Goals: connections are reused, since reading a folder takes thousands of small requests; an upload stops as soon as
//! the answer is received; every error is one line that says what to do.
//!
//! Non-goals: redirects, which the admin listener does not send; proxies, which would see the token.

use crate::remote::access::Access;
use crate::remote::address::Address;
use crate::remote::compression;
use crate::remote::tls;
use anyhow::{Context as _, anyhow, bail};
use api::error::{ErrorView, KuboError, PinningError};
use bytes::Bytes;
use content::stored::coding::ZSTD;
use futures::stream::{Stream, StreamExt as _, TryStreamExt as _};
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HOST};
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyDataStream, BodyExt as _, Full, Limited, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use services::logging::chain;
use std::convert::Infallible;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;

/// The timeout of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of requests with [`Wait::Short`].
const ANSWER_TIMEOUT: Duration = Duration::from_secs(40);
/// The maximum length of an answer that is buffered: more than a thousand names.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// The maximum number of idle connections for reuse.
const IDLE_MAX: usize = 16;

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The timeout of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// [`ANSWER_TIMEOUT`].
    Short,
    /// No timeout.
    Long,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No gateway is running, or it cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// The gateway answered with an error.
    #[error("{message}")]
    Rejected {
        /// The status of the answer.
        status: StatusCode,
        /// The gateway's message, or one about its answer.
        message: String,
    },
}

impl RequestError {
    /// The status of a [`RequestError::Rejected`] in the chain of an error.
    pub fn status(error: &anyhow::Error) -> Option<StatusCode> {
        match error.downcast_ref()? {
            Self::Rejected { status, .. } => Some(*status),
            Self::Unreachable(_) => None,
        }
    }
}

/// A bidirectional byte stream.
trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// A client of an admin listener.
pub struct Client {
    address: Address,
    tls: Option<TlsConnector>,
    access: Access,
    idle: Mutex<Vec<SendRequest<Body>>>,
}

impl Client {
    /// The listener at a URL such as `http://127.0.0.1:8081`.
    ///
    /// # Errors
    /// When the URL is invalid, or the trusted certificates cannot be read.
    pub fn new(url: &str, access: Access) -> anyhow::Result<Self> {
        let address = Address::parse(url).with_context(|| {
            format!("\"{url}\" is not the URL of an admin listener, such as http://127.0.0.1:8081 or unix:/PATH")
        })?;
        let tls = address.is_tls().then(|| match &access.ca {
            None if access.is_local && address.is_loopback() => tls::own_gateway(),
            ca => tls::connector(ca.as_deref()),
        });
        let tls = tls.transpose()?;
        Ok(Self { address, tls, access, idle: Mutex::default() })
    }

    /// The URL of the admin listener.
    pub fn url(&self) -> String {
        self.address.url()
    }

    /// The token that it authenticates with, if there is one.
    pub fn token(&self) -> Option<&str> {
        self.access.token()
    }

    /// Whether the token would be sent unencrypted to another machine.
    pub fn sends_token_in_clear(&self) -> bool {
        self.access.token().is_some() && !self.address.is_tls() && !self.address.is_loopback()
    }

    /// Sends a request, with a JSON body if there is one, and parses the JSON of the answer.
    ///
    /// # Errors
    /// When the gateway cannot be reached or rejects the request.
    pub async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        wait: Wait,
    ) -> anyhow::Result<T> {
        let body = body.map(serde_json::to_vec).transpose()?.map(Bytes::from).unwrap_or_default();
        let request = async {
            let response = self.send(&method, path, body).await?;
            self.json(response).await
        };
        match wait {
            Wait::Short => self.with_timeout(request).await,
            Wait::Long => request.await,
        }
    }

    /// Sends a request, and ignores the body of the answer.
    ///
    /// # Errors
    /// When the gateway cannot be reached or rejects the request.
    pub async fn command(&self, method: Method, path: &str, body: Option<&impl Serialize>) -> anyhow::Result<()> {
        let body = body.map(serde_json::to_vec).transpose()?.map(Bytes::from).unwrap_or_default();
        let answer = self.success(self.send(&method, path, body).await?).await?;
        self.collect(answer, ANSWER_BYTES_MAX).await.map(drop)
    }

    /// GETs a body of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// When the gateway cannot be reached or rejects the request.
    pub async fn bytes(&self, path: &str, bytes_max: usize) -> anyhow::Result<Bytes> {
        let request = async {
            let answer = self.success(self.send(&Method::GET, path, Bytes::new()).await?).await?;
            self.collect(answer, bytes_max).await
        };
        self.with_timeout(request).await
    }

    /// GETs a body of an answer with the status 200 or 503.
    ///
    /// # Errors
    /// When the gateway cannot be reached, or answers with another status.
    pub async fn readiness(&self, path: &str, bytes_max: usize) -> anyhow::Result<(StatusCode, Bytes)> {
        let request = async {
            let answer = self.send(&Method::GET, path, Bytes::new()).await?;
            let answer = match answer.response.status() {
                StatusCode::SERVICE_UNAVAILABLE => answer,
                _ => self.success(answer).await?,
            };
            let status = answer.response.status();
            Ok((status, self.collect(answer, bytes_max).await?))
        };
        self.with_timeout(request).await
    }

    /// Whether a path exists, by a HEAD request.
    ///
    /// # Errors
    /// When the gateway cannot be reached or rejects the request.
    pub async fn has(&self, path: &str) -> anyhow::Result<bool> {
        let request = async {
            let answer = self.send(&Method::HEAD, path, Bytes::new()).await?;
            match answer.response.status() {
                StatusCode::NOT_FOUND => Ok(false),
                StatusCode::OK => {
                    self.collect(answer, 0).await?;
                    Ok(true)
                }
                status => Err(self.rejection(status, b"").into()),
            }
        };
        self.with_timeout(request).await
    }

    /// Sends a request, with a JSON body if there is one, and streams the lines of the answer.
    ///
    /// # Errors
    /// When the gateway cannot be reached or rejects the request.
    pub async fn lines(&self, method: Method, path: &str, body: Option<&impl Serialize>) -> anyhow::Result<Lines> {
        let body = body.map(serde_json::to_vec).transpose()?.map(Bytes::from).unwrap_or_default();
        let answer = self.send(&method, path, body).await?;
        let answer = self.success(answer).await?;
        Ok(Lines { body: answer.response.into_body(), rest: Vec::new(), url: self.url() })
    }

    /// GETs a body of any length, as it is received.
    ///
    /// # Errors
    /// When the gateway cannot be reached or rejects the request; in the stream, when the body is cut short.
    pub async fn download(&self, path: &str) -> anyhow::Result<impl Stream<Item = io::Result<Bytes>> + Send + use<>> {
        let answer = self.send(&Method::GET, path, Bytes::new()).await?;
        let answer = self.success(answer).await?;
        let cut_short = format!(
            "the gateway at {} ended it early, because a block is missing or withheld, or the connection failed: its \
             log says which",
            self.url()
        );
        let body = BodyDataStream::new(answer.response.into_body());
        Ok(body.map_err(move |_| io::Error::other(cut_short.clone())))
    }

    /// Whether the gateway is on this machine.
    pub fn is_loopback(&self) -> bool {
        self.address.is_loopback()
    }

    /// POSTs a stream until its end or until the answer is received; `compressed`: as zstd. An error of the stream
    /// closes the connection.
    ///
    /// # Errors
    /// When the gateway cannot be reached or rejects the request.
    pub async fn upload<T: DeserializeOwned>(
        &self,
        path: &str,
        media_type: &str,
        compressed: bool,
        chunks: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> anyhow::Result<T> {
        // Dropped when the answer is received, which ends the stream.
        let (sending, answered) = oneshot::channel::<Infallible>();
        let request = self.request(&Method::POST, path).header(CONTENT_TYPE, media_type);
        let (request, chunks) = match compressed {
            true => (request.header(CONTENT_ENCODING, ZSTD), compression::compressed(chunks)?.boxed()),
            false => (request, chunks.boxed()),
        };
        let chunks = chunks.take_until(answered).map(|chunk| chunk.map(Frame::data));
        let request = request.body(StreamBody::new(chunks).boxed_unsync())?;
        let mut sender = self.connect().await?;
        let response = sender.send_request(request).await.map_err(|error| self.connection_error(&error));
        drop(sending);
        self.json(PendingAnswer { response: response?, sender }).await
    }

    /// Sends a request with a buffered body. An idle connection may turn out to be closed, and then it is unknown
    /// whether the request was received; so only safe methods reuse connections (RFC 9110, section 9.2.1).
    async fn send(&self, method: &Method, path: &str, body: Bytes) -> anyhow::Result<PendingAnswer> {
        let request = || {
            let request = self.request(method, path).header(CONTENT_TYPE, "application/json");
            request.body(Full::new(body.clone()).map_err(|never| match never {}).boxed_unsync())
        };
        while method.is_safe()
            && let Some(mut sender) = self.idle_connection()
        {
            if sender.ready().await.is_ok()
                && let Ok(response) = sender.send_request(request()?).await
            {
                return Ok(PendingAnswer { response, sender });
            }
        }
        let mut sender = self.connect().await?;
        let response = sender.send_request(request()?).await.map_err(|error| self.connection_error(&error))?;
        Ok(PendingAnswer { response, sender })
    }

    fn request(&self, method: &Method, path: &str) -> http::request::Builder {
        let request = Request::builder().method(method).uri(path).header(HOST, self.address.authority());
        match self.access.token() {
            Some(token) => request.header(AUTHORIZATION, format!("Bearer {token}")),
            None => request,
        }
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Body>> {
        let connecting = async {
            let stream: Box<dyn Duplex> = match (&self.address, &self.tls) {
                (Address::Unix(path), _) => Box::new(UnixStream::connect(path).await?),
                (Address::Tcp { host, .. }, Some(tls)) => {
                    Box::new(tls.connect(tls::name(host)?, self.connect_tcp().await?).await?)
                }
                (Address::Tcp { .. }, None) => Box::new(self.connect_tcp().await?),
            };
            anyhow::Ok(http1::handshake(TokioIo::new(stream)).await?)
        };
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await;
        let connected = connected.unwrap_or_else(|_| bail!("the connection timed out"));
        let (sender, connection) = connected.map_err(|error| self.unreachable(&error))?;
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn connect_tcp(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.address.authority()).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn unreachable(&self, error: &anyhow::Error) -> RequestError {
        let message = format!("the gateway at {} cannot be reached: {}", self.url(), chain(error));
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if kind == Some(io::ErrorKind::PermissionDenied) && matches!(self.address, Address::Unix(_)) {
            return RequestError::Unreachable(format!(
                "{message}; only users who may write to the socket can connect: run this as the gateway's user, or set \
                 admin.unix_mode"
            ));
        }
        let is_about_its_certificate = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
            .is_some_and(|error| matches!(error.downcast_ref(), Some(rustls::Error::InvalidCertificate(_))));
        RequestError::Unreachable(match is_about_its_certificate {
            // OpenSSL creates such certificates by default, and other clients may accept them.
            true if message.contains("CaUsedAsEndEntity") => {
                format!(
                    "{message}; its certificate is a CA certificate: create one with \
                     \"basicConstraints=critical,CA:FALSE\""
                )
            }
            true => format!("{message}; use --admin-ca to trust its certificate"),
            false => message,
        })
    }

    fn idle_connection(&self) -> Option<SendRequest<Body>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn reuse(&self, sender: SendRequest<Body>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX && !sender.is_closed() {
            idle.push(sender);
        }
    }

    async fn json<T: DeserializeOwned>(&self, answer: PendingAnswer) -> anyhow::Result<T> {
        let answer = self.success(answer).await?;
        let bytes = self.collect(answer, ANSWER_BYTES_MAX).await?;
        serde_json::from_slice(&bytes).with_context(|| {
            format!("the answer of the gateway at {} cannot be parsed: it has another version", self.url())
        })
    }

    /// The answer if its status is a success.
    async fn success(&self, answer: PendingAnswer) -> anyhow::Result<PendingAnswer> {
        let status = answer.response.status();
        if status.is_success() {
            return Ok(answer);
        }
        let body = self.collect(answer, ANSWER_BYTES_MAX).await.unwrap_or_default();
        Err(self.rejection(status, &body).into())
    }

    async fn collect(&self, answer: PendingAnswer, bytes_max: usize) -> anyhow::Result<Bytes> {
        let collected = Limited::new(answer.response.into_body(), bytes_max).collect().await;
        let collected = collected.map_err(|error| anyhow!("the answer of {} was cut short: {error}", self.url()))?;
        self.reuse(answer.sender);
        Ok(collected.to_bytes())
    }

    fn rejection(&self, status: StatusCode, body: &[u8]) -> RequestError {
        let url = self.url();
        let message = match serde_json::from_slice::<ErrorView>(body) {
            _ if status == StatusCode::UNAUTHORIZED => format!("the gateway at {url} {}", self.access),
            Ok(view) => view.error,
            Err(_) if let Some(message) = other_api_error(body) => message,
            Err(_) if matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) => {
                format!("the gateway at {url} does not have this operation: it has another version")
            }
            Err(_) => format!("the gateway at {url} answered {status} {}", String::from_utf8_lossy(body).trim()),
        };
        RequestError::Rejected { status, message }
    }

    fn connection_error(&self, error: &hyper::Error) -> anyhow::Error {
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
        anyhow!("the connection to the gateway at {} failed: {error}{cause}", self.url())
    }

    async fn with_timeout<T>(&self, request: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, request).await;
        answer.unwrap_or_else(|_| {
            bail!("the gateway at {} did not answer within {} s", self.url(), ANSWER_TIMEOUT.as_secs())
        })
    }
}

/// The message of an error of the Pinning Service API or of Kubo's RPC.
fn other_api_error(body: &[u8]) -> Option<String> {
    if let Ok(PinningError { error }) = serde_json::from_slice(body) {
        return Some(error.details.unwrap_or(error.reason));
    }
    serde_json::from_slice::<KuboError>(body).ok().map(|error| error.message)
}

/// An answer whose body is not read yet, and its connection.
struct PendingAnswer {
    response: Response<Incoming>,
    sender: SendRequest<Body>,
}

/// A stream of lines.
pub struct Lines {
    body: Incoming,
    /// Received bytes after the last line.
    rest: Vec<u8>,
    url: String,
}

impl Lines {
    /// The maximum length of a line, in bytes.
    const BYTES_MAX: usize = ANSWER_BYTES_MAX;

    /// The next line; `None` at the end.
    ///
    /// # Errors
    /// When the answer is cut short.
    pub async fn next(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let after = self.rest.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.rest, after);
                line.truncate(end);
                return Ok(Some(line));
            }
            let Some(frame) = self.body.frame().await else {
                anyhow::ensure!(self.rest.is_empty(), "the answer of {} ends in the middle of a line", self.url);
                return Ok(None);
            };
            let frame = frame.map_err(|error| anyhow!("the answer of {} was cut short: {error}", self.url))?;
            self.rest.extend_from_slice(frame.data_ref().map_or(&[], |bytes| &bytes[..]));
            anyhow::ensure!(
                self.rest.len() <= Self::BYTES_MAX,
                "the gateway at {} sends a line that is too long",
                self.url
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_sent_in_clear_only_without_tls_and_to_other_machines() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("token");
        std::fs::write(&file, "secret").expect("writes");
        let flags = config::Flags::default();
        let loaded = config::load(&flags, std::iter::empty()).expect("valid settings");
        let node = crate::options::NodeOptions::for_tests(Some(&file));
        let access = Access::of(&loaded, &node, false).expect("reads");
        for (url, in_clear) in [
            ("http://127.0.0.1:1", false),
            ("http://10.0.0.1:1", true),
            ("http://example.org", true),
            ("unix:/run/admin.sock", false),
        ] {
            assert_eq!(Client::new(url, access.clone()).expect("a URL").sends_token_in_clear(), in_clear, "{url}");
            assert!(!Client::new(url, Access::default()).expect("a URL").sends_token_in_clear());
        }
    }
}
