//! One question to one gateway: what is sent, how much of the answer is read and for how long, and what it means.
//!
//! Goals: whatever a server sends, it costs at most a block's size in memory and the time-outs below; a block is hashed and
//! handed to its waiters here, away from the swarm task, as a Bitswap connection does it; wrong bytes are told from absence.
//!
//! What answers mean (<https://specs.ipfs.tech/http-gateways/trustless-gateway/>):
//!
//! | answer | meaning |
//! |---|---|
//! | 200 with the block | it has it |
//! | 200 with other bytes | a lie |
//! | 404, 410, 412, 451, 504 | it has not got it, or will not give it |
//! | 429, 503 | it wants to be left alone for a while |
//! | another 5xx, no connection, no answer in time, half an answer | a failure, worth a second try |
//! | anything else: redirects, other content types, other 4xx, more bytes than a block has | no use asking it again for this |
//!
//! A question for presence is a HEAD request, which costs a round trip and no block. Of a stranger's gateway it asks for
//! what is there already (`Cache-Control: only-if-cached`), so that nobody fetches content because we wondered who has it;
//! a configured one may fetch, for that is what it was configured for.

use super::address::Base;
use super::dialling::{Clients, Trust, innermost};
use crate::retry_after::retry_after;
use crate::wants::Wants;
use content::{Block, BlockError, BlockKey, Cid, MAX_BLOCK_BYTES};
use reqwest::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Version};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The content type of a block.
const RAW: &str = "application/vnd.ipld.raw";
/// Bytes of blocks that are being received, over all gateways of one trust: strangers cannot use up what the configured
/// ones need. One that does not say how long a block is has room for the longest, so that slow strangers keep each other
/// waiting, each for [`Patience::body`] at most.
const BODIES_BYTES_MAX: usize = 32 * 1024 * 1024;

/// How long a gateway may take. What we make it wait for is not counted.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// Until a configured one answers. It may have to find the content first.
    configured: Duration,
    /// The same for a stranger's, which was said to have it.
    stranger: Duration,
    /// Until a block has arrived, once it was answered and there is room for it.
    body: Duration,
    /// How long nothing may arrive meanwhile.
    stall: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { configured: seconds(30), stranger: seconds(10), body: seconds(30), stall: seconds(5) }
    }
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// The block itself.
    Block,
    /// Whether it is there.
    Presence,
}

/// What came of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The block came, and went to whoever waited for it.
    Block {
        /// Its key.
        key: BlockKey,
        /// Its size.
        bytes: usize,
    },
    /// It is there.
    Has,
    /// It is not, or is not given.
    Lacks,
    /// Bytes came that are another block.
    Lie {
        /// The key of what came.
        key: BlockKey,
        /// Its size.
        bytes: usize,
    },
    /// Nothing came of it; it may the next time.
    Failed(String),
    /// An answer that is of no use, and would not be the next time.
    Useless(String),
    /// It wants to be left alone, maybe for a certain time.
    Busy(Option<Duration>),
}

/// An answer, and what it says about the connection.
#[derive(Debug)]
pub struct Answer {
    /// What came of the question.
    pub outcome: Outcome,
    /// Whether many requests share the connection.
    pub multiplexed: bool,
}

/// Asks gateways.
pub struct Asker {
    clients: Clients,
    wants: Arc<Wants>,
    configured_bodies: Semaphore,
    strange_bodies: Semaphore,
    patience: Patience,
}

impl Asker {
    /// Blocks go to `wants`.
    pub fn new(clients: Clients, wants: Arc<Wants>) -> Self {
        let [configured_bodies, strange_bodies] = [BODIES_BYTES_MAX; 2].map(Semaphore::new);
        Self { clients, wants, configured_bodies, strange_bodies, patience: Patience::default() }
    }

    /// Asks one question. Dropping the future ends the request.
    pub async fn ask(&self, base: &Base, trust: Trust, cid: &Cid, question: Question) -> Answer {
        let request = self.request(base, trust, cid, question);
        let (patience, bodies) = match trust {
            Trust::Configured => (self.patience.configured, &self.configured_bodies),
            Trust::Stranger => (self.patience.stranger, &self.strange_bodies),
        };
        match timeout(patience, request.send()).await {
            Err(_) => Answer { outcome: Outcome::Failed("no answer in time".to_owned()), multiplexed: false },
            Ok(Err(error)) => Answer { outcome: Outcome::Failed(innermost(&error)), multiplexed: false },
            Ok(Ok(response)) => {
                let multiplexed = response.version() == Version::HTTP_2;
                Answer { outcome: self.read(response, bodies, cid, question).await, multiplexed }
            }
        }
    }

    fn request(&self, base: &Base, trust: Trust, cid: &Cid, question: Question) -> RequestBuilder {
        let method = match question {
            Question::Block => Method::GET,
            Question::Presence => Method::HEAD,
        };
        let request = self.clients.of(trust).request(method, base.block_url(cid)).header(ACCEPT, RAW);
        if question == Question::Presence && trust == Trust::Stranger {
            return request.header(CACHE_CONTROL, "only-if-cached");
        }
        request
    }

    async fn read(&self, response: Response, bodies: &Semaphore, cid: &Cid, question: Question) -> Outcome {
        if let Some(outcome) = judge_head(&response) {
            return outcome;
        }
        if question == Question::Presence {
            return Outcome::Has;
        }
        let announced = response.content_length().map(|length| usize::try_from(length).unwrap_or(usize::MAX));
        let room = announced.unwrap_or(MAX_BLOCK_BYTES);
        if room > MAX_BLOCK_BYTES {
            return too_long();
        }
        // Waiting for memory of ours is no fault of the gateway's: its time begins when there is room. Whoever has the room
        // has it for a bounded time. The semaphore is never closed, and a block is a small part of it.
        let _room = bodies.acquire_many(u32::try_from(room).unwrap_or(u32::MAX)).await.ok();
        match timeout(self.patience.body, read_body(response, announced, self.patience.stall)).await {
            Err(_) => Outcome::Failed("the block took too long".to_owned()),
            Ok(Err(outcome)) => outcome,
            Ok(Ok(body)) => self.take_in(cid, body),
        }
    }

    /// Hashes what came and hands it to whoever waits for it.
    fn take_in(&self, cid: &Cid, body: Vec<u8>) -> Outcome {
        let data = bytes::Bytes::from(body);
        let bytes = data.len();
        let block = match Block::verify(*cid, data.clone()) {
            Ok(block) => block,
            // It is another block than was asked for. Somebody may even wait for that one.
            Err(BlockError::Mismatch { .. }) => {
                match Block::of(cid.codec(), cid.hash().code(), cid.hash().digest().len(), data) {
                    Ok(block) => block,
                    Err(error) => return Outcome::Useless(error.to_string()),
                }
            }
            Err(error) => return Outcome::Useless(error.to_string()),
        };
        self.wants.deliver(&block);
        match block.key() {
            Some(key) if block.cid() == cid => Outcome::Block { key, bytes },
            Some(key) => Outcome::Lie { key, bytes },
            None => Outcome::Useless("its bytes are in its CID".to_owned()),
        }
    }
}

fn too_long() -> Outcome {
    Outcome::Useless(format!("more than {MAX_BLOCK_BYTES} bytes"))
}

/// Reads a body that has as many bytes as was announced, or no more than a block may have.
async fn read_body(mut response: Response, announced: Option<usize>, stall: Duration) -> Result<Vec<u8>, Outcome> {
    let mut body = Vec::with_capacity(announced.unwrap_or_default());
    loop {
        match timeout(stall, response.chunk()).await {
            Err(_) => return Err(Outcome::Failed("the block stopped arriving".to_owned())),
            Ok(Err(error)) => return Err(Outcome::Failed(innermost(&error))),
            Ok(Ok(None)) => {
                // Whoever keeps it counts what it has, and not what was reserved while nobody knew how much would come.
                body.shrink_to_fit();
                return Ok(body);
            }
            Ok(Ok(Some(chunk))) if body.len() + chunk.len() > announced.unwrap_or(MAX_BLOCK_BYTES) => {
                return Err(too_long());
            }
            Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
        }
    }
}

/// What a response means by its head alone; `None` if it is one whose body counts.
fn judge_head(response: &Response) -> Option<Outcome> {
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
    use crate::http_source::test_server::{Manner, TestServer, block};

    #[tokio::test]
    async fn a_body_of_unknown_length_takes_no_more_than_it_has() {
        let chunks = (0..3).map(|_| Ok::<_, std::io::Error>(vec![7; 100_000]));
        let body = reqwest::Body::wrap_stream(futures::stream::iter(chunks));
        let response = Response::from(http::Response::new(body));
        let body = read_body(response, None, Duration::from_secs(20)).await.expect("a body");
        assert_eq!((body.len(), body.capacity()), (300_000, 300_000));
    }

    #[tokio::test]
    async fn waiting_for_our_own_memory_is_no_fault_of_the_gateways() {
        let held = block(vec![7; 100_000]);
        let server = TestServer::start(Manner::Honest, std::slice::from_ref(&held)).await;
        let mut asker = Asker::new(Clients::new(false).expect("clients"), Arc::default());
        asker.patience.body = Duration::from_millis(400);
        asker.patience.stall = Duration::from_millis(400);
        let base = Base::from_url(&server.url()).expect("a URL");
        let all_but_one = u32::try_from(BODIES_BYTES_MAX - 1).expect("few");
        let others = asker.configured_bodies.acquire_many(all_but_one).await.expect("is open");
        let others_take_their_time = async {
            // Whoever stands in line has taken what there was.
            while asker.configured_bodies.available_permits() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::sleep(2 * asker.patience.body).await;
            drop(others);
        };
        let asking = asker.ask(&base, Trust::Configured, held.cid(), Question::Block);
        let (answer, ()) = futures::join!(asking, others_take_their_time);
        let expected = Outcome::Block { key: held.key().expect("a key"), bytes: 100_000 };
        assert_eq!(answer.outcome, expected);
        assert_eq!(asker.configured_bodies.available_permits(), BODIES_BYTES_MAX, "and all of it comes back");
    }

    #[tokio::test]
    async fn memory_that_strangers_hold_is_none_that_configured_gateways_need() {
        let held = block(vec![7; 100_000]);
        let server = TestServer::start(Manner::Honest, std::slice::from_ref(&held)).await;
        let asker = Asker::new(Clients::new(false).expect("clients"), Arc::default());
        let base = Base::from_url(&server.url()).expect("a URL");
        let all = u32::try_from(BODIES_BYTES_MAX).expect("few");
        let _held_by_strangers = asker.strange_bodies.acquire_many(all).await.expect("is open");
        let asking = asker.ask(&base, Trust::Configured, held.cid(), Question::Block);
        let answer = timeout(Duration::from_secs(20), asking).await.expect("does not wait for strangers");
        assert_eq!(answer.outcome, Outcome::Block { key: held.key().expect("a key"), bytes: 100_000 });
    }
}
