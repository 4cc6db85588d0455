//! [`RemoteAddition`]: sends blocks to a gateway, which pins their roots at the end: the remote [`cache::Addition`].
//!
//! Goals: deduplication: blocks that the gateway has are referenced and not sent, so that adding a folder again costs
//! only what has changed; the gateway protects referenced blocks from eviction.
//!
//! How: blocks are buffered, the gateway answers which of them it has, and the others are sent in the CAR of the
//! running upload. A gateway without that operation is sent all blocks.

use crate::remote::Remote;
use crate::remote::client::RequestError;
use anyhow::Context as _;
use api::store::{CAR, HaveQuestion, HaveView, ImportedView};
use bytes::{Bytes, BytesMut};
use cache::RootsIn;
use content::importer::SinkError;
use content::{Block, Cid, car};
use futures::stream;
use http::StatusCode;
use std::io;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// The maximum number of blocks in one query.
const QUERY_BLOCKS_MAX: usize = 1024;
/// The maximum bytes of buffered blocks.
const QUERY_BYTES_MAX: usize = 8 << 20;
/// The maximum time between two chunks: the gateway aborts an upload that stalls for a minute.
const FLUSH_INTERVAL: Duration = Duration::from_secs(10);
/// The maximum number of chunks that wait to be sent.
const CHUNKS_MAX: usize = 8;

/// Blocks that are being sent to a gateway.
pub struct RemoteAddition {
    remote: Remote,
    chunks: mpsc::Sender<io::Result<Bytes>>,
    /// Buffered blocks, which were not queried yet.
    pending: Vec<Block>,
    pending_bytes: usize,
    /// The next chunk.
    buffer: BytesMut,
    deduplicates: bool,
    /// When the last chunk was sent.
    last_sent: Instant,
    answer: JoinHandle<anyhow::Result<ImportedView>>,
}

/// The gateway has answered before the end of the upload. Its answer has the reason.
#[derive(Debug, thiserror::Error)]
#[error("the gateway accepts no more blocks")]
struct AnsweredEarly;

impl RemoteAddition {
    /// Starts the upload. `deduplicates`: blocks that the gateway has are not sent.
    pub(super) fn begin(remote: &Remote, name: Option<&str>, deduplicates: bool) -> Self {
        let (chunks, mut queue) = mpsc::channel(CHUNKS_MAX);
        let body = stream::poll_fn(move |cx| queue.poll_recv(cx));
        let (client, path) = (remote.client.clone(), crate::remote::import_path(RootsIn::LastBlock, name));
        let compressed = remote.compresses;
        let answer = tokio::spawn(async move { client.upload(&path, CAR, compressed, body).await });
        let buffer = BytesMut::from(&car::header(&[])[..]);
        let (remote, pending) = (remote.clone(), Vec::new());
        Self { remote, chunks, pending, pending_bytes: 0, buffer, deduplicates, last_sent: Instant::now(), answer }
    }

    /// Sends a block, unless the gateway has it. Waits for the gateway (backpressure).
    ///
    /// # Errors
    /// When the gateway has ended the upload. [`RemoteAddition::abort`] returns its answer.
    pub async fn put(&mut self, block: &Block) -> Result<(), SinkError> {
        if !self.deduplicates {
            return self.send_block(block).await;
        }
        // A block with an identity hash is in its CID.
        if Block::inline(block.cid()).is_some() {
            return Ok(());
        }
        self.pending.push(block.clone());
        self.pending_bytes += block.data().len();
        let is_enough = self.pending.len() >= QUERY_BLOCKS_MAX || self.pending_bytes >= QUERY_BYTES_MAX;
        if is_enough || self.last_sent.elapsed() >= FLUSH_INTERVAL { self.query().await } else { Ok(()) }
    }

    /// Queries the pending blocks, and sends those that the gateway does not have.
    async fn query(&mut self) -> Result<(), SinkError> {
        let blocks = std::mem::take(&mut self.pending);
        self.pending_bytes = 0;
        if blocks.is_empty() {
            return Ok(());
        }
        let query = HaveQuestion { cids: blocks.iter().map(|block| block.cid().to_string()).collect() };
        let held = match self.remote.post::<HaveView>("/api/v1/store/have", &query).await {
            Ok(HaveView { held }) => held,
            Err(error) => {
                let status = RequestError::status(&error);
                let unsupported = [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::FORBIDDEN];
                if !status.is_some_and(|status| unsupported.contains(&status)) {
                    return Err(error.into_boxed_dyn_error());
                }
                self.deduplicates = false;
                Vec::new()
            }
        };
        for (block, held) in blocks.iter().zip(held.into_iter().chain(std::iter::repeat(false))) {
            if held {
                self.buffer.extend_from_slice(&car::reference(block.cid()));
                self.send_if_enough().await?;
            } else {
                self.send_block(block).await?;
            }
        }
        // The gateway protects a referenced block once it has read the reference, so send it now.
        self.send().await
    }

    async fn send_block(&mut self, block: &Block) -> Result<(), SinkError> {
        let (head, data) = car::section(block);
        self.buffer.extend_from_slice(&head);
        self.buffer.extend_from_slice(&data);
        self.send_if_enough().await
    }

    async fn send_if_enough(&mut self) -> Result<(), SinkError> {
        if self.buffer.len() >= crate::remote::CHUNK_BYTES { self.send().await } else { Ok(()) }
    }

    async fn send(&mut self) -> Result<(), SinkError> {
        let chunk = self.buffer.split().freeze();
        if chunk.is_empty() {
            return Ok(());
        }
        self.last_sent = Instant::now();
        self.chunks.send(Ok(chunk)).await.map_err(|_| AnsweredEarly.into())
    }

    /// Ends the upload: the gateway pins each root. The pins are on its disk when this returns.
    ///
    /// # Errors
    /// When the gateway rejects the upload; with 409 if it has evicted a referenced block: repeat the addition then.
    pub async fn pin(mut self, roots: &[Cid]) -> anyhow::Result<ImportedView> {
        let list = car::roots_block(roots).context("there are too many roots")?;
        // If the gateway has ended the upload, its answer has the reason.
        if self.finish(&list).await.is_ok() {
            _ = self.send().await;
        }
        self.answer().await
    }

    async fn finish(&mut self, list: &Block) -> Result<(), SinkError> {
        self.query().await?;
        self.send_block(list).await
    }

    /// Aborts the upload without pinning anything: the connection is closed within the body, so that the gateway does
    /// not take it for complete.
    ///
    /// # Errors
    /// The gateway's answer, if it had ended the upload.
    pub async fn abort(self) -> anyhow::Result<()> {
        let aborted = io::Error::other("aborted");
        if self.chunks.send(Err(aborted)).await.is_err() {
            return self.answer().await.map(drop);
        }
        _ = self.answer().await;
        Ok(())
    }

    async fn answer(self) -> anyhow::Result<ImportedView> {
        let Self { chunks, answer, .. } = self;
        drop(chunks);
        answer.await.context("the answer could not be read")?
    }
}
