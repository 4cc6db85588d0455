//! [`RemoteAddition`]: blocks that are sent to a gateway, which pins their roots in the end: [`cache::Addition`] from afar.
//!
//! Goals: what the gateway has already is named and not sent, so that adding a folder again, or one that has changed a little, costs
//! what has changed; the gateway protects from then on what was only named, so it cannot go in between.
//!
//! How: blocks are gathered, the gateway is asked which of them it has, and the rest follows in the archive that is under way.
//! A gateway that answers no such questions is sent everything.

use crate::remote::Remote;
use crate::remote::client::AskError;
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

/// Blocks that are asked for at a time.
const ASKED_MAX: usize = 1024;
/// Bytes of blocks that wait for an answer.
const ASKED_BYTES_MAX: usize = 8 << 20;
/// How long nothing is sent because more is gathered: the gateway ends an upload that is silent for a minute.
const SILENCE: Duration = Duration::from_secs(10);
/// Pieces that wait to be sent.
const PIECES_MAX: usize = 8;

/// Blocks that are being sent to a gateway.
pub struct RemoteAddition {
    remote: Remote,
    pieces: mpsc::Sender<io::Result<Bytes>>,
    /// What the gateway has not been asked about.
    waiting: Vec<Block>,
    waiting_bytes: usize,
    /// What makes the next piece.
    gathered: BytesMut,
    asks: bool,
    /// When something was last sent.
    sent: Instant,
    answer: JoinHandle<anyhow::Result<ImportedView>>,
}

/// Why no more blocks are taken: the answer has come already, and says why.
#[derive(Debug, thiserror::Error)]
#[error("the gateway takes no more blocks")]
struct Answered;

impl RemoteAddition {
    /// Begins. `asks` says whether what is there already is to be spared.
    pub(super) fn begin(remote: &Remote, name: Option<&str>, asks: bool) -> Self {
        let (pieces, mut queue) = mpsc::channel(PIECES_MAX);
        let body = stream::poll_fn(move |cx| queue.poll_recv(cx));
        let (client, path) = (remote.client.clone(), crate::remote::import_path(RootsIn::LastBlock, name));
        let answer = tokio::spawn(async move { client.upload(&path, CAR, body).await });
        let gathered = BytesMut::from(&car::header(&[])[..]);
        let (remote, waiting) = (remote.clone(), Vec::new());
        Self { remote, pieces, waiting, waiting_bytes: 0, gathered, asks, sent: Instant::now(), answer }
    }

    /// Sends a block, unless it is there; waits while the gateway is behind.
    ///
    /// # Errors
    /// When the gateway takes no more. [`RemoteAddition::give_up`] says why.
    pub async fn put(&mut self, block: &Block) -> Result<(), SinkError> {
        if !self.asks {
            return self.send_block(block).await;
        }
        // A block that is written into its CID needs neither a question nor a place.
        if Block::inline(block.cid()).is_some() {
            return Ok(());
        }
        self.waiting.push(block.clone());
        self.waiting_bytes += block.data().len();
        let is_enough = self.waiting.len() >= ASKED_MAX || self.waiting_bytes >= ASKED_BYTES_MAX;
        if is_enough || self.sent.elapsed() >= SILENCE { self.ask().await } else { Ok(()) }
    }

    /// Asks about what waits, and sends what is not there.
    async fn ask(&mut self) -> Result<(), SinkError> {
        let blocks = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        if blocks.is_empty() {
            return Ok(());
        }
        let question = HaveQuestion { cids: blocks.iter().map(|block| block.cid().to_string()).collect() };
        let held = match self.remote.post::<HaveView>("/api/v1/store/have", &question).await {
            Ok(HaveView { held }) => held,
            Err(error) => {
                let status = AskError::status(&error);
                let is_none = [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::FORBIDDEN];
                if !status.is_some_and(|status| is_none.contains(&status)) {
                    return Err(error.into_boxed_dyn_error());
                }
                self.asks = false;
                Vec::new()
            }
        };
        for (block, held) in blocks.iter().zip(held.into_iter().chain(std::iter::repeat(false))) {
            if held {
                self.gathered.extend_from_slice(&car::reference(block.cid()));
                self.send_if_enough().await?;
            } else {
                self.send_block(block).await?;
            }
        }
        // What is only named is protected from when the gateway has read it: soon.
        self.send().await
    }

    async fn send_block(&mut self, block: &Block) -> Result<(), SinkError> {
        let (head, data) = car::section(block);
        self.gathered.extend_from_slice(&head);
        self.gathered.extend_from_slice(&data);
        self.send_if_enough().await
    }

    async fn send_if_enough(&mut self) -> Result<(), SinkError> {
        if self.gathered.len() >= crate::remote::PIECE_BYTES { self.send().await } else { Ok(()) }
    }

    async fn send(&mut self) -> Result<(), SinkError> {
        let piece = self.gathered.split().freeze();
        if piece.is_empty() {
            return Ok(());
        }
        self.sent = Instant::now();
        self.pieces.send(Ok(piece)).await.map_err(|_| Answered.into())
    }

    /// Ends: the gateway pins each root. The pins are on its disk when this returns.
    ///
    /// # Errors
    /// What it answered instead; 409 if something that it had is gone, which is sent if all is done once more without asking.
    pub async fn pin(mut self, roots: &[Cid]) -> anyhow::Result<ImportedView> {
        let list = car::roots_block(roots).context("these are too many roots")?;
        // If no more is taken, the answer says why.
        if self.finish(&list).await.is_ok() {
            _ = self.send().await;
        }
        self.answer().await
    }

    async fn finish(&mut self, list: &Block) -> Result<(), SinkError> {
        self.ask().await?;
        self.send_block(list).await
    }

    /// Ends without pinning anything: the connection breaks, so that what was sent cannot be taken for all.
    ///
    /// # Errors
    /// Why the gateway took no more, if it was so.
    pub async fn give_up(self) -> anyhow::Result<()> {
        let given_up = io::Error::other("given up");
        if self.pieces.send(Err(given_up)).await.is_err() {
            return self.answer().await.map(drop);
        }
        _ = self.answer().await;
        Ok(())
    }

    async fn answer(self) -> anyhow::Result<ImportedView> {
        let Self { pieces, answer, .. } = self;
        drop(pieces);
        answer.await.context("the answer could not be read")?
    }
}
