//! A part of a DAG from one gateway, as the body of one response: the transfers of [`crate::dag::client`] over HTTP.
//!
//! Goals: one round trip for all that a reader will request; each block is verified as it is received, and only if the
//! request or a verified block has named it; a body that breaks off is resumed where the file breaks off; a gateway
//! that does not send CARs costs one round trip, and is asked for single blocks ([`super::client`]).
//!
//! Non-goals: which gateway is asked for what, and what becomes of wants that a transfer does not bring
//! ([`crate::bitswap::client`]); the number of requests ([`crate::bitswap::http_peers`]).
//!
//! The request is `GET /ipfs/ROOT/PATH?format=car&dag-scope=…`, with `entity-bytes` for a part of a file
//! (<https://specs.ipfs.tech/http-gateways/trustless-gateway/#car-responses-application-vnd-ipld-car>). Blocks are
//! requested in depth-first order without duplicates; those that come in another order wait for their parents, within
//! the bounds of the transfer, and duplicates are skipped up to [`REPEATED_BYTES_MAX`].
//!
//! *Backpressure.* The body is read only while the window of the transfer has room: what was received and no reader has
//! taken stays bounded, and TCP or HTTP/2 slows the gateway down. After 20 s without it the transfer ends, and the
//! reader's next request begins another one where it goes on. A block that is late is requested alone
//! ([`crate::bitswap::client`]).
//!
//! *Memory.* A section takes twice its size while it is read, once it has begun to arrive: 64 KiB of it are awaited
//! with memory for these alone. Then each doubling has to arrive within [`Memory::step_timeout`], so that a gateway
//! that sends a byte now and then does not keep the memory of a section that it has only declared. That time is shorter
//! while memory is short here, and waiting for memory takes time as well. Neither is the fault of a gateway that goes on
//! sending: such a transfer ends as if there had been no permit for it.
//!
//! *Truncation.* That a body ends says nothing: the verified blocks say what must follow. If it breaks off and a part of
//! a file is missing, the rest is requested with `entity-bytes`, at most [`RESUMPTIONS_MAX`] times, and only if the last
//! response has brought something. A body that HTTP says is whole is what the gateway has.
//!
//! | response | meaning |
//! |---|---|
//! | 200 with a CAR, plain or as zstd | its blocks are verified |
//! | 404, 410, 412, 451, 504 | it does not have the DAG, or does not serve it; without a path, it lacks the root |
//! | 429, 503 | the gateway is overloaded: back off |
//! | 406, 415, 501; 200 with another type or coding | it does not send CARs, and is not asked again for an hour |
//! | another 5xx, no connection, a timeout | failure |
//! | others: redirects, other 4xx, a CAR without the root | the DAG is not asked for as a CAR again for a minute |
//! | 200 with much that is outside of the range | the same |
//! | 200 without the blocks of the path | the same |
//! | 200 with blocks that nothing has named, and no others | failure |

use super::address::Base;
use super::client::{DECODERS_MAX, GatewayClient, content_coding};
use super::dialling::Trust;
use super::metrics::Metrics;
use crate::dag::client::active::{ActiveTransfer, Decline, TransferEnd};
use crate::dag::message::EndStatus;
use crate::errors::innermost;
use crate::framing::Memory;
use crate::retry_after::retry_after;
use bytes::Bytes;
use content::Cid;
use content::car::{CarError, CarReader};
use content::scope::ScopeOptions;
use content::stored::coding::{BodyDecoder, CodingError, DECODER_BYTES_MAX, ZSTD};
use futures::stream::{self, BoxStream, StreamExt as _};
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, TRANSFER_ENCODING};
use reqwest::{Response, StatusCode, Version};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{OwnedSemaphorePermit, SemaphorePermit};
use tokio::time::timeout;
use tokio_util::io::StreamReader;

/// The content type of a CAR.
const CAR: &str = "application/vnd.ipld.car";
/// What is accepted: blocks before those below them, each once.
const ACCEPTED: &str = "application/vnd.ipld.car; version=1; order=dfs; dups=n";
/// The maximum size of the header of a CAR, in bytes. It names one root.
const HEADER_BYTES_MAX: usize = 4 * 1024;
/// The maximum size of the blocks of a transfer that were received before, in bytes: those on the way of a resumed
/// body, and those of gateways that send duplicates nevertheless.
const REPEATED_BYTES_MAX: usize = 16 * 1024 * 1024;
/// What a block that was received before counts at least, in bytes.
const REPEATED_BYTES_MIN: usize = 4 * 1024;
/// How often a transfer is resumed.
const RESUMPTIONS_MAX: usize = 8;
/// The part of the network's memory that decoders may take, for all gateways of one trust level.
const DECODERS_MEMORY_PART: usize = 8;
/// Fewer bytes of a body are no progress: a gateway that sends a byte now and then counts as stalled, and its wants are
/// requested from others as well.
const PROGRESS_BYTES_MIN: usize = 16 * 1024;
/// How much of a section has to arrive before it gets its memory, in bytes.
const SECTION_BEGIN_BYTES: usize = 64 * 1024;
/// How often it is noted that a body waits for memory, so that its gateway does not count as stalled.
const NOTE_WAITING: Duration = Duration::from_millis(100);
/// How much of a body is decoded at a time, in bytes.
const DECODED_BYTES: usize = 64 * 1024;

type BodyReader = StreamReader<BoxStream<'static, io::Result<Bytes>>, Bytes>;

/// How a body has ended.
enum BodyEnd {
    /// As HTTP says.
    Whole,
    /// The connection broke off, or the gateway stalled.
    Broken { stalled: bool },
}

/// A transfer from a gateway, while it runs.
struct CarTransfer<'a> {
    client: &'a GatewayClient,
    base: &'a Base,
    trust: Trust,
    active: &'a Arc<ActiveTransfer>,
    metrics: &'a Metrics,
    multiplexed: bool,
    repeated_bytes: usize,
}

impl GatewayClient {
    /// Runs a transfer, and returns whether the connection is multiplexed (HTTP/2). Dropping the future ends it.
    pub async fn transfer(&self, base: &Base, trust: Trust, active: Arc<ActiveTransfer>, metrics: &Metrics) -> bool {
        let mut transfer =
            CarTransfer { client: self, base, trust, active: &active, metrics, multiplexed: false, repeated_bytes: 0 };
        Arc::clone(&active).run(transfer.run()).await;
        transfer.multiplexed
    }
}

impl<'a> CarTransfer<'a> {
    async fn run(&mut self) -> TransferEnd {
        let mut scope = self.active.request().scope;
        for attempts_left in (0..=RESUMPTIONS_MAX).rev() {
            let before = self.active.state().blocks();
            let end = self.attempt(&scope).await;
            self.active.verified().await;
            let (blocks, is_complete, rest) = {
                let state = self.active.state();
                (state.blocks(), state.missing() == 0 || state.is_needless(), state.rest_of_file())
            };
            // A gateway may send more than was requested, and whatever follows is not needed.
            if is_complete {
                return TransferEnd::Status(EndStatus::Complete);
            }
            let end = match end {
                Ok(end) => end,
                Err(end) => return end,
            };
            match (&end, rest) {
                // The gateway has sent what it has.
                (BodyEnd::Whole, _) if blocks == 0 && self.active.state().has_unnamed() => return self.unnamed(),
                (BodyEnd::Whole, _) if blocks == 0 => return TransferEnd::Declined(Decline::Refused),
                (BodyEnd::Whole, _) => return TransferEnd::Declined(Decline::Incomplete),
                (BodyEnd::Broken { .. }, Some(rest)) if blocks > before && attempts_left > 0 => scope = rest,
                (BodyEnd::Broken { .. }, _) if blocks == 0 => return TransferEnd::Declined(Decline::Failed),
                (BodyEnd::Broken { stalled: true }, _) => return TransferEnd::Stalled,
                (BodyEnd::Broken { stalled: false }, _) => return TransferEnd::Lost,
            }
            self.metrics.cars_resumed.inc();
        }
        TransferEnd::Lost
    }

    /// One request, and what its response brings.
    async fn attempt(&mut self, scope: &ScopeOptions) -> Result<BodyEnd, TransferEnd> {
        let request = self.active.request();
        let Some(url) = self.base.car_url(&request.root, &request.path, scope) else {
            return Err(TransferEnd::Declined(Decline::Refused));
        };
        // Without memory to decode the body, it is requested plain.
        let decoder_memory = self.memory_of_decoder();
        let coding = if decoder_memory.is_some() { ZSTD } else { "identity" };
        let get =
            self.client.clients.for_cars(self.trust).get(url).header(ACCEPT, ACCEPTED).header(ACCEPT_ENCODING, coding);
        let response = match timeout(self.client.timeouts.response(self.trust), get.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.failed(&innermost(&error))),
            Err(_) => return Err(self.failed("the gateway did not respond in time")),
        };
        self.multiplexed |= response.version() == Version::HTTP_2;
        if let Some(decline) = classify(&response) {
            return Err(self.declined(decline, &response));
        }
        let is_encoded = match content_coding(&response) {
            Ok(true) if decoder_memory.is_none() => return Err(self.declined(Decline::Refused, &response)),
            Ok(is_encoded) => is_encoded,
            Err(_) => return Err(self.declined(Decline::Unsupported, &response)),
        };
        let has_end = has_end(&response);
        let decoder_memory = decoder_memory.filter(|_| is_encoded);
        let body = match Body::new(response, is_encoded, self.client.timeouts.stall, self) {
            Ok(body) => body,
            Err(_) => return Err(out_of_memory()),
        };
        let end = self.read(body.into_reader()).await;
        drop(decoder_memory);
        match end? {
            BodyEnd::Whole if !has_end => Ok(BodyEnd::Broken { stalled: false }),
            end => Ok(end),
        }
    }

    /// The memory of a decoder, out of the part of the network's memory that may be used for decoders.
    fn memory_of_decoder(&self) -> Option<(SemaphorePermit<'a>, OwnedSemaphorePermit)> {
        let allowed = (self.memory().bytes_max() / DECODERS_MEMORY_PART / DECODER_BYTES_MAX).min(DECODERS_MAX);
        // If fewer are allowed than there are permits, each takes several.
        let permits = u32::try_from(DECODERS_MAX.div_ceil(allowed.max(1))).ok().filter(|_| allowed > 0)?;
        let client: &'a GatewayClient = self.client;
        let permit = client.decoders(self.trust).try_acquire_many(permits).ok()?;
        Some((permit, self.memory().try_take(DECODER_BYTES_MAX)?))
    }

    fn memory(&self) -> &Memory {
        &self.active.context().memory
    }

    fn failed(&self, reason: &str) -> TransferEnd {
        tracing::debug!(gateway = %self.base, reason, "the request for a CAR failed");
        TransferEnd::Declined(Decline::Failed)
    }

    fn declined(&self, decline: Decline, response: &Response) -> TransferEnd {
        tracing::debug!(gateway = %self.base, status = %response.status(), ?decline, "the gateway sends no CAR");
        // With a path, it may have the blocks on the way.
        if decline == Decline::Lacks && self.active.request().path.is_empty() {
            self.active.lacks_root();
        }
        TransferEnd::Declined(decline)
    }

    /// Reads an archive to its end.
    async fn read(&mut self, reader: BodyReader) -> Result<BodyEnd, TransferEnd> {
        let within = self.client.timeouts.body;
        let car = match timeout(within, CarReader::with_short_header(reader, HEADER_BYTES_MAX)).await {
            Ok(car) => car,
            Err(_) => return Ok(BodyEnd::Broken { stalled: true }),
        };
        let mut car = match car {
            Ok(car) => car,
            Err(error) => return broken(error),
        };
        loop {
            if self.active.state().is_needless() {
                // To end the request is cheaper than to read the rest.
                return Ok(BodyEnd::Whole);
            }
            let section_bytes = match timeout(within, car.next_section_bytes()).await {
                Err(_) => return Ok(BodyEnd::Broken { stalled: true }),
                Ok(None) => return Ok(BodyEnd::Whole),
                Ok(Some(Err(error))) => return broken(error),
                Ok(Some(Ok(_))) if self.active.state().missing() == 0 => return Ok(BodyEnd::Whole),
                Ok(Some(Ok(bytes))) => bytes,
            };
            self.room_for(section_bytes).await?;
            let mut memory = match self.buffer(&mut car, section_bytes).await? {
                Ok(memory) => memory,
                Err(Some(error)) => return broken(error),
                Err(None) => return Ok(BodyEnd::Broken { stalled: true }),
            };
            let section = match car.next_section().await {
                None => return Ok(BodyEnd::Whole),
                Some(Err(error)) => return broken(error),
                Some(Ok(section)) => section,
            };
            drop(memory.split(section_bytes));
            let (cid, data) = section.into_parts();
            self.take(cid, data, memory).await?;
        }
    }

    /// Reads a section of so many bytes into the buffer, and returns twice its memory: it is copied out of the buffer.
    /// An error says why it cannot be read; `None`: it is too slow. If it is that only because memory is short, the
    /// transfer ends.
    ///
    /// The memory is taken in two steps, the second of which is almost all of it: transfers that wait for memory hold
    /// next to nothing that others wait for.
    async fn buffer(
        &self,
        car: &mut CarReader<BodyReader>,
        bytes: usize,
    ) -> Result<Result<OwnedSemaphorePermit, Option<CarError>>, TransferEnd> {
        let begin = bytes.min(SECTION_BEGIN_BYTES);
        let mut memory = self.take_memory(2 * begin).await?;
        let (mut end, mut left) = (begin, self.client.timeouts.body);
        let mut within = left;
        loop {
            let since = Instant::now();
            match timeout(within, car.buffer_section(end)).await {
                Err(_) if within < left.min(self.memory().step_timeout_max()) && !self.is_quiet() => {
                    return Err(out_of_memory());
                }
                Err(_) => return Ok(Err(None)),
                Ok(Err(error)) => return Ok(Err(Some(error))),
                Ok(Ok(())) if end == bytes => return Ok(Ok(memory)),
                Ok(Ok(())) => left = left.saturating_sub(since.elapsed()),
            }
            if end == begin {
                memory.merge(self.take_memory(2 * (bytes - begin)).await?);
            }
            end = bytes.min(2 * end);
            within = left.min(self.memory().step_timeout());
        }
    }

    /// Whether the gateway has stopped, and not only become slow.
    fn is_quiet(&self) -> bool {
        self.active.received_at().is_none_or(|at| at.elapsed() >= self.memory().quiet_timeout())
    }

    /// Takes memory, and waits for it for a few seconds, in which the gateway cannot be late.
    async fn take_memory(&self, bytes: usize) -> Result<OwnedSemaphorePermit, TransferEnd> {
        let mut taking = pin!(self.memory().take(bytes));
        loop {
            match timeout(NOTE_WAITING, &mut taking).await {
                Ok(taken) => return taken.map_err(|_| out_of_memory()),
                Err(_) => self.active.note_bytes(),
            }
        }
    }

    /// Waits until the window has room for a block.
    async fn room_for(&self, bytes: usize) -> Result<(), TransferEnd> {
        match timeout(self.client.timeouts.pause, self.active.room_for(bytes as u64)).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.unnamed()),
            // Some of what readers have not taken may wait for its parents.
            Err(_) => Err(TransferEnd::Status(EndStatus::Budget)),
        }
    }

    /// The gateway sends blocks that nothing has named, in place of the rest or of all that was requested. That is a
    /// fault only if nothing of what was requested can have named them: it may send more of a file than a range, after
    /// the root, and not all names may be known here. Some gateways leave out the blocks of the path, which name what is
    /// at its end: they are good for single blocks.
    fn unnamed(&self) -> TransferEnd {
        let state = self.active.state();
        let is_part = state.blocks() > 0 && self.active.request().scope.entity_bytes.is_some();
        if state.names_are_partial() {
            TransferEnd::NamesLost
        } else if is_part || !state.has_resolved_path() {
            TransferEnd::Declined(Decline::Refused)
        } else {
            TransferEnd::Fault("a CAR with blocks that nothing has named".to_owned())
        }
    }

    async fn take(&mut self, cid: Cid, data: Bytes, memory: OwnedSemaphorePermit) -> Result<(), TransferEnd> {
        let is_repeat = self.active.state().is_repeat(&cid);
        if is_repeat {
            self.repeated_bytes += data.len().max(REPEATED_BYTES_MIN);
            if self.repeated_bytes > REPEATED_BYTES_MAX {
                return Err(TransferEnd::Fault("a CAR with too many duplicates".to_owned()));
            }
            return Ok(());
        }
        match self.active.take_block(cid, data, memory).await {
            None => Ok(()),
            Some(TransferEnd::Fault(_)) => Err(self.unnamed()),
            Some(end) => Err(end),
        }
    }
}

/// How a transfer ends if memory is short here.
fn out_of_memory() -> TransferEnd {
    TransferEnd::Status(EndStatus::Busy)
}

/// What an archive that cannot be read further means.
fn broken(error: CarError) -> Result<BodyEnd, TransferEnd> {
    match error {
        CarError::Io(error) if error.kind() == io::ErrorKind::InvalidData => Err(TransferEnd::Fault(error.to_string())),
        CarError::Io(error) => Ok(BodyEnd::Broken { stalled: error.kind() == io::ErrorKind::TimedOut }),
        CarError::Truncated(_) => Ok(BodyEnd::Broken { stalled: false }),
        error => Err(TransferEnd::Fault(error.to_string())),
    }
}

/// Whether HTTP marks the end of the body: otherwise it ends with the connection, for whatever reason.
fn has_end(response: &Response) -> bool {
    let headers = response.headers();
    response.version() >= Version::HTTP_2
        || response.content_length().is_some()
        || headers.contains_key(TRANSFER_ENCODING)
}

/// Why a response is no CAR, by its head; `None` if it is one.
fn classify(response: &Response) -> Option<Decline> {
    let status = response.status();
    Some(match status {
        StatusCode::OK => {
            let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
            let essence = content_type.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
            return (!essence.eq_ignore_ascii_case(CAR)).then_some(Decline::Unsupported);
        }
        StatusCode::NOT_ACCEPTABLE | StatusCode::UNSUPPORTED_MEDIA_TYPE | StatusCode::NOT_IMPLEMENTED => {
            Decline::Unsupported
        }
        StatusCode::NOT_FOUND
        | StatusCode::GONE
        | StatusCode::PRECONDITION_FAILED
        | StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS
        | StatusCode::GATEWAY_TIMEOUT => Decline::Lacks,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Decline::Busy(retry_after(response.headers(), SystemTime::now()))
        }
        _ if status.is_server_error() => Decline::Failed,
        _ => Decline::Refused,
    })
}

/// A body that is read.
struct Body {
    response: Response,
    /// The decoder of an encoded body, and what it has not decoded.
    decoder: Option<(BodyDecoder, Bytes)>,
    stall: Duration,
    active: Arc<ActiveTransfer>,
    metrics: Metrics,
    /// The bytes since progress was last reported.
    unnoted_bytes: usize,
}

impl Body {
    fn new(
        response: Response,
        is_encoded: bool,
        stall: Duration,
        transfer: &CarTransfer<'_>,
    ) -> Result<Self, CodingError> {
        let decoder = match is_encoded {
            true => Some((BodyDecoder::new()?, Bytes::new())),
            false => None,
        };
        let (active, metrics) = (Arc::clone(transfer.active), transfer.metrics.clone());
        Ok(Self { response, decoder, stall, active, metrics, unnoted_bytes: 0 })
    }

    fn into_reader(self) -> BodyReader {
        let chunks = stream::try_unfold(self, |mut body| async move {
            let chunk = body.next().await?;
            Ok(chunk.map(|chunk| (chunk, body)))
        });
        StreamReader::new(chunks.boxed())
    }

    /// The next decoded bytes; `None` at the end.
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            if let Some((decoder, input)) = &mut self.decoder {
                let mut out = Vec::with_capacity(DECODED_BYTES);
                decoder.decode(input, &mut out).map_err(invalid)?;
                if !out.is_empty() {
                    return Ok(Some(out.into()));
                }
            }
            let chunk = self.chunk().await?;
            match (&mut self.decoder, chunk) {
                (None, chunk) => return Ok(chunk),
                (Some((_, input)), Some(chunk)) => *input = chunk,
                (Some((decoder, _)), None) => {
                    return decoder.finish().map(|()| None).map_err(|_| io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
    }

    /// The next bytes of the body.
    async fn chunk(&mut self) -> io::Result<Option<Bytes>> {
        let chunk = timeout(self.stall, self.response.chunk()).await.map_err(|_| io::ErrorKind::TimedOut)?;
        let chunk = chunk.map_err(|error| io::Error::new(io::ErrorKind::ConnectionAborted, innermost(&error)))?;
        if let Some(chunk) = &chunk {
            self.metrics.body_bytes.inc_by(chunk.len() as u64);
            self.unnoted_bytes += chunk.len();
            if self.unnoted_bytes >= PROGRESS_BYTES_MIN {
                self.unnoted_bytes = 0;
                self.active.note_bytes();
            }
        }
        Ok(chunk)
    }
}

fn invalid(error: CodingError) -> io::Error {
    match error {
        CodingError::Truncated => io::ErrorKind::UnexpectedEof.into(),
        error => io::Error::new(io::ErrorKind::InvalidData, error),
    }
}

#[cfg(test)]
#[path = "car_tests.rs"]
mod tests;
