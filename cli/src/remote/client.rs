//! [`Client`]: HTTP with one admin listener.
//!
//! Goals: connections are used again, since a folder that is read is thousands of small requests; an upload stops when its
//! answer has come, whatever is left of it; every error is one line that says what to do.
//!
//! Non-goals: redirects, which the admin listener does not have; proxies, which would see the token.

use crate::remote::access::Access;
use crate::remote::address::Address;
use crate::remote::tls;
use anyhow::{Context as _, anyhow, bail};
use api::error::{ErrorView, KuboError, PinningError};
use bytes::Bytes;
use futures::stream::{Stream, StreamExt as _};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
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
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;

/// How long it may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer may take that is at hand.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(40);
/// The largest answer that is read as a whole: a thousand names and more.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// Connections that are kept for further requests.
const IDLE_MAX: usize = 16;

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// How long an answer may be waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It is at hand.
    Short,
    /// The work takes as long as it takes.
    Long,
}

/// Why a gateway could not be asked. What it is about is in the words.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody is there, or there is no way to find out who.
    #[error("{0}")]
    Unreachable(String),
    /// It was answered, but not as was hoped.
    #[error("{words}")]
    Refused {
        /// What kind of refusal.
        status: StatusCode,
        /// What the gateway says, or what this says of it.
        words: String,
    },
}

impl AskError {
    /// The status of a refusal somewhere in an error, if it is one.
    pub fn status(error: &anyhow::Error) -> Option<StatusCode> {
        match error.downcast_ref()? {
            Self::Refused { status, .. } => Some(*status),
            Self::Unreachable(_) => None,
        }
    }
}

/// Bytes both ways.
trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// An admin listener that is talked to.
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
    /// When it is no such URL, or certificates cannot be checked.
    pub fn new(url: &str, access: Access) -> anyhow::Result<Self> {
        let address = Address::parse(url)
            .with_context(|| format!("\"{url}\" is not the URL of an admin listener, such as http://127.0.0.1:8081"))?;
        let tls = address.is_tls.then(|| match &access.ca {
            None if access.is_local && address.is_loopback() => tls::own_gateway(),
            ca => tls::connector(ca.as_deref()),
        });
        let tls = tls.transpose()?;
        Ok(Self { address, tls, access, idle: Mutex::default() })
    }

    /// Where it is.
    pub fn url(&self) -> String {
        self.address.url()
    }

    /// Whether a token would be read by whoever is on the way.
    pub fn shows_its_token(&self) -> bool {
        self.access.token().is_some() && !self.address.is_tls && !self.address.is_loopback()
    }

    /// Asks, with JSON if there is any, and reads the JSON of the answer.
    ///
    /// # Errors
    /// What stands against it, or what was answered instead.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        wait: Wait,
    ) -> anyhow::Result<T> {
        let body = body.map(serde_json::to_vec).transpose()?.map(Bytes::from).unwrap_or_default();
        let asking = async {
            let response = self.send(&method, path, body).await?;
            self.json(response).await
        };
        match wait {
            Wait::Short => self.in_time(asking).await,
            Wait::Long => asking.await,
        }
    }

    /// Asks for something of which the answer says nothing but that it is done.
    ///
    /// # Errors
    /// The same.
    pub async fn command(&self, method: Method, path: &str, body: Option<&impl Serialize>) -> anyhow::Result<()> {
        let body = body.map(serde_json::to_vec).transpose()?.map(Bytes::from).unwrap_or_default();
        let answer = self.good(self.send(&method, path, body).await?).await?;
        self.collect(answer, ANSWER_BYTES_MAX).await.map(drop)
    }

    /// GETs bytes, unless they are too many.
    ///
    /// # Errors
    /// The same.
    pub async fn bytes(&self, path: &str, bytes_max: usize) -> anyhow::Result<Bytes> {
        let asking = async {
            let answer = self.good(self.send(&Method::GET, path, Bytes::new()).await?).await?;
            self.collect(answer, bytes_max).await
        };
        self.in_time(asking).await
    }

    /// The same, and what is answered by a gateway that wants no requests (503).
    ///
    /// # Errors
    /// The same, for any other status.
    pub async fn readiness(&self, path: &str, bytes_max: usize) -> anyhow::Result<(StatusCode, Bytes)> {
        let asking = async {
            let answer = self.send(&Method::GET, path, Bytes::new()).await?;
            let answer = match answer.response.status() {
                StatusCode::SERVICE_UNAVAILABLE => answer,
                _ => self.good(answer).await?,
            };
            let status = answer.response.status();
            Ok((status, self.collect(answer, bytes_max).await?))
        };
        self.in_time(asking).await
    }

    /// Whether there is something, by a request for its head.
    ///
    /// # Errors
    /// The same.
    pub async fn has(&self, path: &str) -> anyhow::Result<bool> {
        let asking = async {
            let answer = self.send(&Method::HEAD, path, Bytes::new()).await?;
            match answer.response.status() {
                StatusCode::NOT_FOUND => Ok(false),
                StatusCode::OK => {
                    self.collect(answer, 0).await?;
                    Ok(true)
                }
                status => Err(self.refused(status, b"").into()),
            }
        };
        self.in_time(asking).await
    }

    /// Asks, with JSON if there is any, and gives the lines of the answer as they come.
    ///
    /// # Errors
    /// The same.
    pub async fn lines(&self, method: Method, path: &str, body: Option<&impl Serialize>) -> anyhow::Result<Lines> {
        let body = body.map(serde_json::to_vec).transpose()?.map(Bytes::from).unwrap_or_default();
        let answer = self.send(&method, path, body).await?;
        let answer = self.good(answer).await?;
        Ok(Lines { body: answer.response.into_body(), rest: Vec::new(), url: self.url() })
    }

    /// POSTs what comes, until all of it was sent or an answer has come. A piece that cannot be had breaks the connection.
    ///
    /// # Errors
    /// The same.
    pub async fn upload<T: DeserializeOwned>(
        &self,
        path: &str,
        media_type: &str,
        pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> anyhow::Result<T> {
        // Gone when the answer is there.
        let (asked, answered) = oneshot::channel::<Infallible>();
        let pieces = pieces.take_until(answered).map(|piece| piece.map(Frame::data));
        let request = self.request(&Method::POST, path).header(CONTENT_TYPE, media_type);
        let request = request.body(StreamBody::new(pieces).boxed_unsync())?;
        let mut sender = self.connect().await?;
        let response = sender.send_request(request).await.map_err(|error| self.broken(&error));
        drop(asked);
        self.json(Answered { response: response?, sender }).await
    }

    /// Sends a request with a body at hand. A connection that was kept may turn out to be gone, and nobody knows what has become
    /// of a request then; so only those go over one that change nothing.
    async fn send(&self, method: &Method, path: &str, body: Bytes) -> anyhow::Result<Answered> {
        let request = || {
            let request = self.request(method, path).header(CONTENT_TYPE, "application/json");
            request.body(Full::new(body.clone()).map_err(|never| match never {}).boxed_unsync())
        };
        while method.is_safe()
            && let Some(mut sender) = self.kept()
        {
            if sender.ready().await.is_ok()
                && let Ok(response) = sender.send_request(request()?).await
            {
                return Ok(Answered { response, sender });
            }
        }
        let mut sender = self.connect().await?;
        let response = sender.send_request(request()?).await.map_err(|error| self.broken(&error))?;
        Ok(Answered { response, sender })
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
            let stream = TcpStream::connect(self.address.authority()).await?;
            stream.set_nodelay(true)?;
            let stream: Box<dyn Duplex> = match &self.tls {
                Some(tls) => Box::new(tls.connect(tls::name(&self.address.host)?, stream).await?),
                None => Box::new(stream),
            };
            anyhow::Ok(http1::handshake(TokioIo::new(stream)).await?)
        };
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await;
        let connected = connected.unwrap_or_else(|_| bail!("it does not answer"));
        let (sender, connection) = connected.map_err(|error| self.unreachable(&error))?;
        tokio::spawn(connection);
        Ok(sender)
    }

    fn unreachable(&self, error: &anyhow::Error) -> AskError {
        let said = format!("no gateway can be reached at {}: {}", self.url(), chain(error));
        let is_about_its_certificate = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
            .is_some_and(|error| matches!(error.downcast_ref(), Some(rustls::Error::InvalidCertificate(_))));
        AskError::Unreachable(match is_about_its_certificate {
            // OpenSSL makes such certificates unless it is told otherwise, and other clients may take them.
            true if said.contains("CaUsedAsEndEntity") => {
                format!(
                    "{said}; its certificate is for signing others: make one with \"basicConstraints=critical,CA:FALSE\""
                )
            }
            true => format!("{said}; --admin-ca names certificates that are to be trusted"),
            false => said,
        })
    }

    fn kept(&self) -> Option<SendRequest<Body>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn keep(&self, sender: SendRequest<Body>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX && !sender.is_closed() {
            idle.push(sender);
        }
    }

    async fn json<T: DeserializeOwned>(&self, answer: Answered) -> anyhow::Result<T> {
        let answer = self.good(answer).await?;
        let bytes = self.collect(answer, ANSWER_BYTES_MAX).await?;
        serde_json::from_slice(&bytes).with_context(|| format!("the gateway at {} is of another version", self.url()))
    }

    /// The answer, unless it says what went wrong.
    async fn good(&self, answer: Answered) -> anyhow::Result<Answered> {
        let status = answer.response.status();
        if status.is_success() {
            return Ok(answer);
        }
        let said = self.collect(answer, ANSWER_BYTES_MAX).await.unwrap_or_default();
        Err(self.refused(status, &said).into())
    }

    async fn collect(&self, answer: Answered, bytes_max: usize) -> anyhow::Result<Bytes> {
        let collected = Limited::new(answer.response.into_body(), bytes_max).collect().await;
        let collected = collected.map_err(|error| anyhow!("the answer of {} broke off: {error}", self.url()))?;
        self.keep(answer.sender);
        Ok(collected.to_bytes())
    }

    fn refused(&self, status: StatusCode, said: &[u8]) -> AskError {
        let url = self.url();
        let words = match serde_json::from_slice::<ErrorView>(said) {
            _ if status == StatusCode::UNAUTHORIZED => format!("the gateway at {url} {}", self.access),
            Ok(view) => view.error,
            Err(_) if let Some(words) = others_words(said) => words,
            Err(_) if matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) => {
                format!("the gateway at {url} is of another version")
            }
            Err(_) => format!("the gateway at {url} answered {status} {}", String::from_utf8_lossy(said).trim()),
        };
        AskError::Refused { status, words }
    }

    fn broken(&self, error: &hyper::Error) -> anyhow::Error {
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
        anyhow!("the connection with the gateway at {} broke: {error}{cause}", self.url())
    }

    async fn in_time<T>(&self, asking: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, asking).await;
        asked.unwrap_or_else(|_| bail!("the gateway at {} does not answer", self.url()))
    }
}

/// What went wrong, in the forms of the other APIs of the listener.
fn others_words(said: &[u8]) -> Option<String> {
    if let Ok(PinningError { error }) = serde_json::from_slice(said) {
        return Some(error.details.unwrap_or(error.reason));
    }
    serde_json::from_slice::<KuboError>(said).ok().map(|error| error.message)
}

/// An answer, and the connection that it comes on.
struct Answered {
    response: Response<Incoming>,
    sender: SendRequest<Body>,
}

/// Lines as they come.
pub struct Lines {
    body: Incoming,
    /// What came after the last line.
    rest: Vec<u8>,
    url: String,
}

impl Lines {
    /// The longest line, in bytes.
    const BYTES_MAX: usize = ANSWER_BYTES_MAX;

    /// The next one; `None` at the end.
    ///
    /// # Errors
    /// That it broke off.
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
            let frame = frame.map_err(|error| anyhow!("the answer of {} broke off: {error}", self.url))?;
            self.rest.extend_from_slice(frame.data_ref().map_or(&[], |bytes| &bytes[..]));
            anyhow::ensure!(self.rest.len() <= Self::BYTES_MAX, "the gateway at {} sends nonsense", self.url);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_shown_to_the_way_only_without_tls_and_beyond_the_machine() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("token");
        std::fs::write(&file, "secret").expect("writes");
        let flags = config::Flags::default();
        let loaded = config::load(&flags, std::iter::empty()).expect("good settings");
        let place = crate::place::NodePlace::for_tests(Some(&file));
        let access = Access::of(&loaded, &place, false).expect("reads");
        for (url, shown) in [("http://127.0.0.1:1", false), ("http://10.0.0.1:1", true), ("http://example.org", true)] {
            assert_eq!(Client::new(url, access.clone()).expect("a URL").shows_its_token(), shown, "{url}");
            assert!(!Client::new(url, Access::default()).expect("a URL").shows_its_token());
        }
    }
}
