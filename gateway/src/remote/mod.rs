//! A gateway that runs, for the commands: whoever types one need not know whether it does.
//!
//! A gateway has its store and its keys to itself. A command that finds them in use finds word in the data folder of where the
//! gateway's admin listener is ([`Keystore::leave_word`]), and asks there; `--admin URL` names one without a data folder. What a
//! command prints and what it leaves behind is the same either way.
//!
//! | module | concern |
//! |---|---|
//! | [`client`] | HTTP with one admin listener |
//! | [`blocks`] | a gateway's blocks as a source of blocks |
//!
//! Trust: the token goes to whoever listens where the data folder or the command line says, in the clear. Over networks that are
//! not one's own, tunnels are for that.

pub mod blocks;
pub mod client;

use self::blocks::RemoteBlocks;
use self::client::{Client, Lines, Wait};
use crate::admin::access::doorkeeper;
use crate::admin::store_api::CAR;
use crate::admin::store_views::{CheckLine, CheckView, CompactedView, FiguresView, FindingView, ImportedView};
use crate::admin::store_views::{ProgressView, VersionView};
use crate::network;
use crate::node::NO_ADMIN;
use anyhow::{Context as _, bail};
use bytes::{Bytes, BytesMut};
use cache::{RootsIn, StoreError};
use config::{Loaded, StoreKind};
use content::importer::SinkError;
use content::{Block, Cid, car};
use futures::stream::{self, Stream, TryStreamExt as _};
use http::Method;
use p2p_bridge::names::keystore::{Holder, Keystore};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// How long a gateway that is starting may take to say where it is.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often that is looked for.
const GLANCE: Duration = Duration::from_millis(20);
/// What is sent at a time, in bytes.
const PIECE_BYTES: usize = 256 * 1024;
/// Pieces that wait to be sent.
const PIECES_MAX: usize = 8;

/// No body.
const NOTHING: Option<&()> = None;

/// Who does the work.
pub enum Worker<T> {
    /// This process, which has the store.
    Here(T),
    /// A gateway that has it.
    There(Remote),
}

/// Opens a store, or finds the gateway that has it: the one at `admin` if that is given.
///
/// # Errors
/// What stands against either, in words that say what to do.
pub async fn reach<T>(
    loaded: &Loaded,
    admin: Option<&str>,
    open: impl AsyncFnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<Worker<T>> {
    let token = token(loaded);
    let token = token.as_deref();
    if let Some(url) = admin {
        return Remote::connect(Client::new(url, token)?).await.map(Worker::There);
    }
    let error = match open().await {
        Ok(store) => return Ok(Worker::Here(store)),
        Err(error) => error,
    };
    // A store in memory is that of the gateway that runs, or of none.
    if !is_in_use(&error) && loaded.config.cache.store != StoreKind::Memory {
        return Err(error);
    }
    match word(&loaded.config.data_dir).await? {
        None => Err(error),
        Some(word) if word == NO_ADMIN => {
            bail!("a gateway runs on this data folder without an admin listener: set admin.listen, or stop it first")
        }
        Some(url) => Remote::connect(Client::new(&url, token)?).await.map(Worker::There),
    }
}

/// What a command shows to the gateway: the settings' token, or that of the data folder.
pub fn token(loaded: &Loaded) -> Option<String> {
    let settings = loaded.config.admin.token.reveal().map(str::to_owned);
    settings.or_else(|| doorkeeper::read_local(&loaded.config.data_dir).ok().map(|token| token.reveal()))
}

/// Whether a store did not open because another process has it.
pub fn is_in_use(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(StoreError::InUse { .. }))
}

/// What a gateway has left word of, if one runs on the data folder.
async fn word(data_dir: &Path) -> anyhow::Result<Option<String>> {
    let (dir, begun) = (network::state_dir(data_dir), Instant::now());
    loop {
        match Keystore::holder(&dir)? {
            Holder::Somebody { word: Some(word) } => return Ok(Some(word)),
            // It is starting, or a command that is about to end.
            Holder::Somebody { word: None } if begun.elapsed() < PATIENCE => tokio::time::sleep(GLANCE).await,
            Holder::Somebody { word: None } | Holder::Nobody => return Ok(None),
        }
    }
}

/// A gateway that runs.
#[derive(Clone)]
pub struct Remote {
    client: Arc<Client>,
}

impl Remote {
    /// Finds out whether it answers and takes the token, before anything is sent that is large.
    async fn connect(client: Client) -> anyhow::Result<Self> {
        let _: VersionView = client.ask(Method::GET, "/api/v1/version", NOTHING, Wait::Short).await?;
        Ok(Self { client: Arc::new(client) })
    }

    /// Its blocks.
    pub fn blocks(&self) -> RemoteBlocks {
        RemoteBlocks::new(Arc::clone(&self.client))
    }

    /// What its store holds.
    ///
    /// # Errors
    /// What was answered instead.
    pub async fn stats(&self) -> anyhow::Result<FiguresView> {
        self.client.ask(Method::GET, "/api/v1/store/stats", NOTHING, Wait::Long).await
    }

    /// Has it give back space.
    ///
    /// # Errors
    /// What was answered instead.
    pub async fn compact(&self) -> anyhow::Result<CompactedView> {
        self.client.ask(Method::POST, "/api/v1/store/compact", NOTHING, Wait::Long).await
    }

    /// Has it check its store, at so many bytes a second or as fast as it goes, and shows progress and findings as they come.
    ///
    /// # Errors
    /// What was answered instead, or why the check ended early.
    pub async fn check(
        &self,
        rate: Option<u64>,
        mut on_progress: impl FnMut(&ProgressView),
        mut on_finding: impl FnMut(FindingView),
    ) -> anyhow::Result<CheckView> {
        let query = rate.map(|rate| format!("?bytes_per_second={rate}")).unwrap_or_default();
        let mut lines: Lines = self.client.lines(&format!("/api/v1/store/check{query}")).await?;
        while let Some(line) = lines.next().await? {
            let line = serde_json::from_slice(&line);
            match line.with_context(|| format!("the gateway at {} is of another version", self.client.url()))? {
                CheckLine::Progress(progress) => on_progress(&progress),
                CheckLine::Finding(finding) => on_finding(finding),
                CheckLine::Report(report) => return Ok(report),
                CheckLine::Error(words) => bail!("the check ended early: {words}"),
            }
        }
        bail!("the check ended early: the gateway at {} said nothing more", self.client.url())
    }

    /// Has it take in an archive, which is sent as it is read.
    ///
    /// # Errors
    /// That the archive cannot be read, or what was answered instead.
    pub async fn import(&self, archive: impl AsyncRead + Unpin + Send + 'static) -> anyhow::Result<ImportedView> {
        // What cannot be read breaks the connection, and that is all that is heard of it there.
        let failure = Arc::new(OnceLock::new());
        let noted = Arc::clone(&failure);
        let pieces = pieces(archive).inspect_err(move |error| _ = noted.set(error.to_string()));
        let sent = self.client.upload(&import_path(RootsIn::Header, None), CAR, pieces).await;
        match failure.get() {
            Some(error) => bail!("the archive cannot be read: {error}"),
            None => sent,
        }
    }

    /// Begins to send blocks whose roots are known last.
    pub fn begin_addition(&self, name: Option<&str>) -> RemoteAddition {
        let (pieces, mut queue) = mpsc::channel(PIECES_MAX);
        let body = stream::poll_fn(move |cx| queue.poll_recv(cx));
        let (client, path) = (Arc::clone(&self.client), import_path(RootsIn::LastBlock, name));
        let answer = tokio::spawn(async move { client.upload(&path, CAR, body).await });
        let gathered = BytesMut::from(&car::header(&[])[..]);
        RemoteAddition { pieces, gathered, answer }
    }
}

/// What a reader gives, piece by piece, until it fails or ends.
fn pieces(reader: impl AsyncRead + Unpin + Send + 'static) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        let mut piece = BytesMut::with_capacity(PIECE_BYTES);
        match reader.read_buf(&mut piece).await {
            Ok(0) => None,
            Ok(_) => Some((Ok(piece.freeze()), Some(reader))),
            Err(error) => Some((Err(error), None)),
        }
    })
}

fn import_path(roots_in: RootsIn, name: Option<&str>) -> String {
    let roots = match roots_in {
        RootsIn::Header => "header",
        RootsIn::LastBlock => "last",
    };
    let name = name.map(|name| format!("&name={}", utf8_percent_encode(name, NON_ALPHANUMERIC))).unwrap_or_default();
    format!("/api/v1/store/import?roots={roots}{name}")
}

/// Blocks that are being sent to a gateway, which pins their roots in the end: [`cache::Addition`] from afar.
pub struct RemoteAddition {
    pieces: mpsc::Sender<io::Result<Bytes>>,
    /// What makes the next piece.
    gathered: BytesMut,
    answer: JoinHandle<anyhow::Result<ImportedView>>,
}

/// Why no more blocks are taken: the answer has come already, and says why.
#[derive(Debug, thiserror::Error)]
#[error("the gateway takes no more blocks")]
struct Answered;

impl RemoteAddition {
    /// Sends a block; waits while the gateway is behind.
    ///
    /// # Errors
    /// When the gateway takes no more. [`RemoteAddition::give_up`] says why.
    pub async fn put(&mut self, block: &Block) -> Result<(), SinkError> {
        let (head, data) = car::section(block);
        self.gathered.extend_from_slice(&head);
        self.gathered.extend_from_slice(&data);
        if self.gathered.len() >= PIECE_BYTES { self.send().await } else { Ok(()) }
    }

    async fn send(&mut self) -> Result<(), SinkError> {
        let piece = self.gathered.split().freeze();
        self.pieces.send(Ok(piece)).await.map_err(|_| Answered.into())
    }

    /// Ends: the gateway pins each root. The pins are on its disk when this returns.
    ///
    /// # Errors
    /// What it answered instead.
    pub async fn pin(mut self, roots: &[Cid]) -> anyhow::Result<ImportedView> {
        let list = car::roots_block(roots).context("these are too many roots")?;
        // If no more is taken, the answer says why.
        if self.put(&list).await.is_ok() {
            _ = self.send().await;
        }
        self.answer().await
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
