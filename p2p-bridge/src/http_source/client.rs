//! One request for a single block to one gateway: the request, the limits for its response, and the meaning of the
//! response.
//!
//! Goals: a response costs at most the memory of a block and the timeouts below; blocks are verified and delivered
//! here, outside the swarm task, as in a Bitswap connection; invalid blocks are distinguished from missing ones.
//!
//! The meaning of responses (<https://specs.ipfs.tech/http-gateways/trustless-gateway/>):
//!
//! | response | meaning |
//! |---|---|
//! | 200 with the block, plain or as zstd | the gateway has it |
//! | 200 with other bytes | invalid block |
//! | 404, 410, 412, 451, 504 | the gateway does not have it, or does not serve it |
//! | 429, 503 | the gateway is overloaded: back off |
//! | another 5xx, no connection, a timeout, an incomplete response | failure, to be retried |
//! | others: redirects, other types or codings, other 4xx, more bytes than a block may have | unusable, not retried |
//!
//! Blocks are requested with `Accept-Encoding: zstd`: a gateway that stores them compressed, as this one does, sends
//! fewer bytes. The encoded body is received whole, within the bounds of a plain one, and decoded into at most the
//! maximum size of a block, so that a bomb costs no more than a block.
//!
//! Presence is requested by HEAD, which costs a round trip and no block. Untrusted gateways are asked for cached
//! content only (`Cache-Control: only-if-cached`), so that they do not fetch content for a presence check; a configured
//! one may fetch.

use super::address::Base;
use super::dialling::{Clients, Trust};
use crate::errors::innermost;
use crate::observers::BlockTransport;
use crate::retry_after::retry_after;
use crate::wants::Wants;
use content::stored::coding::{self, CodingError, ZSTD};
use content::{Block, BlockError, BlockKey, Cid, MAX_BLOCK_BYTES};
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Version};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The content type of a block.
const RAW: &str = "application/vnd.ipld.raw";
/// The memory budget for blocks being received, in bytes, for all gateways of one trust level: untrusted ones cannot
/// use up the budget of configured ones. A response without a length reserves the maximum size of a body, and an
/// encoded one also that of a block, so slow untrusted gateways delay each other by at most [`Timeouts::body`].
const BODIES_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The maximum number of CARs that are decoded at a time, for all gateways of one trust level.
pub(super) const DECODERS_MAX: usize = 3;

/// The maximum size of the body with an encoded block, in bytes: incompressible blocks become some bytes longer.
const ENCODED_BYTES_MAX: usize = MAX_BLOCK_BYTES + 64 * 1024;

/// Timeouts of a gateway, excluding local waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeouts {
    /// For the response of a configured gateway, which may have to fetch the content.
    configured: Duration,
    /// For the response of an untrusted gateway, which should have the content.
    untrusted: Duration,
    /// For the body with a block, once its memory is reserved.
    pub(super) body: Duration,
    /// Without progress of the body.
    pub(super) stall: Duration,
    /// While a body is not read because no reader takes what was received.
    pub(super) pause: Duration,
}

impl Timeouts {
    /// For the response of a gateway.
    pub(super) fn response(&self, trust: Trust) -> Duration {
        match trust {
            Trust::Configured => self.configured,
            Trust::Untrusted => self.untrusted,
        }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            configured: seconds(30),
            untrusted: seconds(10),
            body: seconds(30),
            stall: seconds(5),
            pause: seconds(20),
        }
    }
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// The block.
    Block,
    /// Whether the gateway has the block.
    Presence,
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The block was received, verified and delivered.
    Block {
        /// The key.
        key: BlockKey,
        /// The size in bytes.
        bytes: usize,
        /// The size of the body in bytes: that of the block, unless it was encoded.
        body_bytes: usize,
    },
    /// The gateway has the block.
    Has,
    /// The gateway does not have the block, or does not serve it.
    Lacks,
    /// The gateway sent another block.
    InvalidBlock {
        /// The key of the received block.
        key: BlockKey,
        /// The size in bytes.
        bytes: usize,
    },
    /// The request failed and may be retried.
    Failed(String),
    /// The response is unusable, and a retry would not help.
    Useless(String),
    /// The gateway is overloaded, possibly with `Retry-After`.
    Busy(Option<Duration>),
}

/// The result of a request, with a property of its connection.
#[derive(Debug)]
pub struct Answer {
    /// The result.
    pub outcome: Outcome,
    /// Whether the connection is multiplexed (HTTP/2).
    pub multiplexed: bool,
}

/// Sends requests to gateways.
pub struct GatewayClient {
    pub(super) clients: Clients,
    wants: Arc<Wants>,
    configured_bodies: Semaphore,
    untrusted_bodies: Semaphore,
    configured_decoders: Semaphore,
    untrusted_decoders: Semaphore,
    pub(super) timeouts: Timeouts,
}

impl GatewayClient {
    /// A client that delivers blocks to `wants`.
    pub fn new(clients: Clients, wants: Arc<Wants>) -> Self {
        let [configured_bodies, untrusted_bodies] = [BODIES_BYTES_MAX; 2].map(Semaphore::new);
        let [configured_decoders, untrusted_decoders] = [DECODERS_MAX; 2].map(Semaphore::new);
        let timeouts = Timeouts::default();
        Self { clients, wants, configured_bodies, untrusted_bodies, configured_decoders, untrusted_decoders, timeouts }
    }

    /// The permits for the decoders of CARs from gateways of a trust level.
    pub(super) fn decoders(&self, trust: Trust) -> &Semaphore {
        match trust {
            Trust::Configured => &self.configured_decoders,
            Trust::Untrusted => &self.untrusted_decoders,
        }
    }

    /// Sends a request. Dropping the future aborts it.
    pub async fn ask(&self, base: &Base, trust: Trust, cid: &Cid, kind: RequestKind) -> Answer {
        let request = self.request(base, trust, cid, kind);
        let bodies = match trust {
            Trust::Configured => &self.configured_bodies,
            Trust::Untrusted => &self.untrusted_bodies,
        };
        match timeout(self.timeouts.response(trust), request.send()).await {
            Err(_) => Answer {
                outcome: Outcome::Failed("the gateway did not respond in time".to_owned()),
                multiplexed: false,
            },
            Ok(Err(error)) => Answer { outcome: Outcome::Failed(innermost(&error)), multiplexed: false },
            Ok(Ok(response)) => {
                let multiplexed = response.version() == Version::HTTP_2;
                Answer { outcome: self.read(response, bodies, cid, kind).await, multiplexed }
            }
        }
    }

    fn request(&self, base: &Base, trust: Trust, cid: &Cid, kind: RequestKind) -> RequestBuilder {
        let method = match kind {
            RequestKind::Block => Method::GET,
            RequestKind::Presence => Method::HEAD,
        };
        let request = self.clients.of(trust).request(method, base.block_url(cid)).header(ACCEPT, RAW);
        match (kind, trust) {
            (RequestKind::Block, _) => request.header(ACCEPT_ENCODING, ZSTD),
            (RequestKind::Presence, Trust::Untrusted) => request.header(CACHE_CONTROL, "only-if-cached"),
            (RequestKind::Presence, Trust::Configured) => request,
        }
    }

    async fn read(&self, response: Response, bodies: &Semaphore, cid: &Cid, kind: RequestKind) -> Outcome {
        if let Some(outcome) = classify_head(&response) {
            return outcome;
        }
        if kind == RequestKind::Presence {
            return Outcome::Has;
        }
        let is_encoded = match content_coding(&response) {
            Ok(is_encoded) => is_encoded,
            Err(outcome) => return outcome,
        };
        let bytes_max = if is_encoded { ENCODED_BYTES_MAX } else { MAX_BLOCK_BYTES };
        let announced = response.content_length().map(|length| usize::try_from(length).unwrap_or(usize::MAX));
        let body_bytes_max = announced.unwrap_or(bytes_max);
        if body_bytes_max > bytes_max {
            return too_long();
        }
        let reserved = body_bytes_max + if is_encoded { MAX_BLOCK_BYTES } else { 0 };
        // Waiting for local memory must not count for the gateway's timeout, which starts afterwards. Each reservation
        // is held for a bounded time. The semaphore is never closed, and a block is a small part of it.
        let _reserved = bodies.acquire_many(u32::try_from(reserved).unwrap_or(u32::MAX)).await.ok();
        match timeout(self.timeouts.body, read_body(response, announced, body_bytes_max, self.timeouts.stall)).await {
            Err(_) => Outcome::Failed("the block was not received in time".to_owned()),
            Ok(Err(outcome)) => outcome,
            Ok(Ok(body)) if is_encoded => match coding::decode_body(&body, MAX_BLOCK_BYTES) {
                Ok(block) => self.deliver(cid, block, body.len()),
                // The body may be valid.
                Err(error @ CodingError::Memory) => Outcome::Failed(error.to_string()),
                Err(error) => Outcome::Useless(error.to_string()),
            },
            Ok(Ok(body)) => {
                let body_bytes = body.len();
                self.deliver(cid, body, body_bytes)
            }
        }
    }

    /// Verifies a block and delivers it to its waiters.
    fn deliver(&self, cid: &Cid, block: Vec<u8>, body_bytes: usize) -> Outcome {
        let data = bytes::Bytes::from(block);
        let bytes = data.len();
        let block = match Block::verify(*cid, data.clone()) {
            Ok(block) => block,
            // It is another block, which may have waiters too.
            Err(BlockError::Mismatch { .. }) => {
                match Block::of(cid.codec(), cid.hash().code(), cid.hash().digest().len(), data) {
                    Ok(block) => block,
                    Err(error) => return Outcome::Useless(error.to_string()),
                }
            }
            Err(error) => return Outcome::Useless(error.to_string()),
        };
        self.wants.deliver(&block, BlockTransport::Http);
        match block.key() {
            Some(key) if block.cid() == cid => Outcome::Block { key, bytes, body_bytes },
            Some(key) => Outcome::InvalidBlock { key, bytes },
            None => Outcome::Useless("its bytes are in its CID".to_owned()),
        }
    }
}

fn too_long() -> Outcome {
    Outcome::Useless(format!("more than {MAX_BLOCK_BYTES} bytes"))
}

/// Reads a body of the announced length, or of at most `bytes_max`.
async fn read_body(
    mut response: Response,
    announced: Option<usize>,
    bytes_max: usize,
    stall: Duration,
) -> Result<Vec<u8>, Outcome> {
    let mut body = Vec::with_capacity(announced.unwrap_or_default());
    loop {
        match timeout(stall, response.chunk()).await {
            Err(_) => return Err(Outcome::Failed("the gateway stopped sending the block".to_owned())),
            Ok(Err(error)) => return Err(Outcome::Failed(innermost(&error))),
            Ok(Ok(None)) => {
                // The block may be cached, so it must not hold on to unused capacity.
                body.shrink_to_fit();
                return Ok(body);
            }
            Ok(Ok(Some(chunk))) if body.len() + chunk.len() > bytes_max => return Err(too_long()),
            Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
        }
    }
}

/// Whether the body is zstd.
pub(super) fn content_coding(response: &Response) -> Result<bool, Outcome> {
    let mut codings = response.headers().get_all(CONTENT_ENCODING).iter();
    let Some(coding) = codings.next() else { return Ok(false) };
    let is = |name: &str| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(name.as_bytes());
    match codings.next() {
        None if is(ZSTD) => Ok(true),
        None if is("identity") || is("") => Ok(false),
        _ => Err(Outcome::Useless(format!("the content coding is {coding:?}"))),
    }
}

/// The result that the head of a response determines; `None` if the body is needed.
fn classify_head(response: &Response) -> Option<Outcome> {
    let status = response.status();
    match status {
        StatusCode::OK => {
            let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
            let essence = content_type.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
            let is_raw = essence.eq_ignore_ascii_case(RAW);
            (!is_raw).then(|| Outcome::Useless(format!("the content type is {essence:?}")))
        }
        StatusCode::NOT_FOUND
        | StatusCode::GONE
        | StatusCode::PRECONDITION_FAILED
        | StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS
        | StatusCode::GATEWAY_TIMEOUT => Some(Outcome::Lacks),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Some(Outcome::Busy(retry_after(response.headers(), SystemTime::now())))
        }
        _ if status.is_server_error() => Some(Outcome::Failed(format!("status {status}"))),
        _ => Some(Outcome::Useless(format!("status {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http_source::test_server::{ServerMode, TestServer, block};

    #[tokio::test]
    async fn a_body_of_unknown_length_has_no_excess_capacity() {
        let chunks = (0..3).map(|_| Ok::<_, std::io::Error>(vec![7; 100_000]));
        let body = reqwest::Body::wrap_stream(futures::stream::iter(chunks));
        let response = Response::from(http::Response::new(body));
        let body = read_body(response, None, MAX_BLOCK_BYTES, Duration::from_secs(20)).await.expect("a body");
        assert_eq!((body.len(), body.capacity()), (300_000, 300_000));
    }

    #[tokio::test]
    async fn the_wait_for_local_memory_does_not_count_for_the_timeout() {
        let held = block(vec![7; 100_000]);
        let server = TestServer::start(ServerMode::Honest, std::slice::from_ref(&held)).await;
        let mut gateway_client = GatewayClient::new(Clients::new(false, false).expect("clients"), Arc::default());
        gateway_client.timeouts.body = Duration::from_millis(400);
        gateway_client.timeouts.stall = Duration::from_millis(400);
        let base = Base::from_url(&server.url()).expect("a URL");
        let all_but_one = u32::try_from(BODIES_BYTES_MAX - 1).expect("few");
        let others = gateway_client.configured_bodies.acquire_many(all_but_one).await.expect("is open");
        let others_take_their_time = async {
            // The waiting request has reserved all free permits.
            while gateway_client.configured_bodies.available_permits() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::sleep(2 * gateway_client.timeouts.body).await;
            drop(others);
        };
        let asking = gateway_client.ask(&base, Trust::Configured, held.cid(), RequestKind::Block);
        let (answer, ()) = futures::join!(asking, others_take_their_time);
        let expected = Outcome::Block { key: held.key().expect("a key"), bytes: 100_000, body_bytes: 100_000 };
        assert_eq!(answer.outcome, expected);
        assert_eq!(gateway_client.configured_bodies.available_permits(), BODIES_BYTES_MAX, "all permits are released");
    }

    #[tokio::test]
    async fn untrusted_gateways_do_not_use_the_memory_of_configured_ones() {
        let held = block(vec![7; 100_000]);
        let server = TestServer::start(ServerMode::Honest, std::slice::from_ref(&held)).await;
        let gateway_client = GatewayClient::new(Clients::new(false, false).expect("clients"), Arc::default());
        let base = Base::from_url(&server.url()).expect("a URL");
        let all = u32::try_from(BODIES_BYTES_MAX).expect("few");
        let _held_by_strangers = gateway_client.untrusted_bodies.acquire_many(all).await.expect("is open");
        let asking = gateway_client.ask(&base, Trust::Configured, held.cid(), RequestKind::Block);
        let answer = timeout(Duration::from_secs(20), asking).await.expect("does not wait for untrusted gateways");
        let key = held.key().expect("a key");
        assert_eq!(answer.outcome, Outcome::Block { key, bytes: 100_000, body_bytes: 100_000 });
    }
}
