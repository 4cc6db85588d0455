//! A gateway that runs, for the commands: whoever types one need not know whether it does.
//!
//! A gateway has its store and its keys to itself. A command that finds them in use finds word in the data folder of where the
//! gateway's admin listener is ([`Keystore::leave_word`]), and asks there; `--admin URL` names one without a data folder. What a
//! command prints and what it leaves behind is the same either way.
//!
//! | module | concern |
//! |---|---|
//! | [`access`] | the token that it is shown, and whom it is taken for |
//! | [`client`], [`address`] | HTTP with one admin listener, and where it is |
//! | [`tls`] | certificates |
//! | [`blocks`] | a gateway's blocks as a source of blocks |
//! | [`addition`] | blocks that are sent to it, but for those that it has |
//!
//! Trust: the token goes to whoever listens where the data folder or the command line says; without TLS in the clear, which is
//! said if it leaves the machine.

pub mod access;
pub mod addition;
pub mod address;
pub mod blocks;
pub mod client;
pub mod tls;

use self::access::Access;
use self::addition::RemoteAddition;
use self::blocks::RemoteBlocks;
use self::client::{AskError, Client, Lines, Wait};
use crate::place::NodePlace;
use anyhow::{Context as _, bail};
use api::store::{CAR, CheckLine, CheckView, CompactedView, FiguresView, ImportedView, VersionView};
use bytes::{Bytes, BytesMut};
use cache::{RootsIn, StoreError};
use config::{Loaded, StoreKind};
use content::Cid;
use futures::stream::{self, Stream, TryStreamExt as _};
use http::{Method, StatusCode};
use p2p_bridge::names::keystore::{Holder, Keystore};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use services::access::authenticator::NO_ADMIN;
use services::p2p;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// How long a gateway that is starting may take to say where it is.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often that is looked for.
const GLANCE: Duration = Duration::from_millis(20);
/// What is sent at a time, in bytes.
const PIECE_BYTES: usize = 256 * 1024;

/// No body.
const NOTHING: Option<&()> = None;

/// Who does the work.
pub enum Worker<T> {
    /// This process, which has the store.
    Here(T),
    /// A gateway that has it.
    There(Remote),
}

/// Opens a store, or finds the gateway that has it: the one that `place` names if it names one.
///
/// # Errors
/// What stands against either, in words that say what to do.
pub async fn reach<T>(
    loaded: &Loaded,
    place: &NodePlace,
    open: impl AsyncFnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<Worker<T>> {
    if place.admin().is_some() {
        return running(loaded, place).await.map(Worker::There);
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
        Some(word) => local(loaded, place, &word).await.map(Worker::There),
        None => Err(error),
    }
}

/// The gateway that runs: the one that `place` names, or the one on the data folder.
///
/// # Errors
/// That none runs or answers, in words that say what to do.
pub async fn running(loaded: &Loaded, place: &NodePlace) -> anyhow::Result<Remote> {
    Remote::connect(client_of(loaded, place).await?).await
}

/// The same, without finding out whether it takes the token.
///
/// # Errors
/// The same.
pub async fn client_of(loaded: &Loaded, place: &NodePlace) -> anyhow::Result<Client> {
    if let Some(url) = place.admin() {
        return Client::new(url, Access::of(loaded, place, false)?);
    }
    let data_dir = &loaded.config.data_dir;
    match word(data_dir).await? {
        Some(word) => Client::new(address(&word)?, Access::of(loaded, place, true)?),
        None => Err(AskError::Unreachable(format!(
            "no gateway runs on {}: start one with \"causeway serve\", or name another's folder with --data-dir or its \
             address with --admin",
            // Which folder that is depends on where the command was typed.
            std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.clone()).display()
        ))
        .into()),
    }
}

/// The gateway that has left word in the data folder.
///
/// # Errors
/// That it has no admin listener, or does not answer.
pub async fn local(loaded: &Loaded, place: &NodePlace, word: &str) -> anyhow::Result<Remote> {
    Remote::connect(Client::new(address(word)?, Access::of(loaded, place, true)?)?).await
}

/// The address that a gateway has left word of, if it has one.
fn address(word: &str) -> anyhow::Result<&str> {
    if word == NO_ADMIN {
        let words = "a gateway runs on this data folder without an admin listener: set admin.listen, or stop it first";
        bail!(AskError::Unreachable(words.to_owned()));
    }
    Ok(word)
}

/// Whether a store did not open because another process has it.
pub fn is_in_use(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(StoreError::InUse { .. }))
}

/// What a gateway has left word of, if one runs on the data folder.
async fn word(data_dir: &Path) -> anyhow::Result<Option<String>> {
    let (dir, begun) = (p2p::state_dir(data_dir), Instant::now());
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
        if client.shows_its_token() {
            eprintln!("warning: the token goes to {} unencrypted; use https, or a tunnel", client.url());
        }
        let version: anyhow::Result<VersionView> =
            client.ask(Method::GET, "/api/v1/version", NOTHING, Wait::Short).await;
        match version {
            // A token that is known, for other things than looking around.
            Err(error) if AskError::status(&error) == Some(StatusCode::FORBIDDEN) => {}
            version => _ = version?,
        }
        Ok(Self { client: Arc::new(client) })
    }

    /// The admin listener, for what has no function of its own here.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// GETs a view whose answer is at hand.
    ///
    /// # Errors
    /// What was answered instead.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.client.ask(Method::GET, path, NOTHING, Wait::Short).await
    }

    /// Asks for something to be done, which may take long.
    ///
    /// # Errors
    /// What was answered instead.
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> anyhow::Result<T> {
        self.client.ask(Method::POST, path, Some(body), Wait::Long).await
    }

    /// Asks for something to be removed of which nothing more is said.
    ///
    /// # Errors
    /// What was answered instead.
    pub async fn remove(&self, path: &str) -> anyhow::Result<()> {
        self.client.command(Method::DELETE, path, NOTHING).await
    }

    /// Asks for something to be removed.
    ///
    /// # Errors
    /// What was answered instead.
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.client.ask(Method::DELETE, path, NOTHING, Wait::Short).await
    }

    /// Its blocks.
    pub fn blocks(&self) -> RemoteBlocks {
        RemoteBlocks::new(Arc::clone(&self.client), None)
    }

    /// The same, and those below a root that it can fetch.
    pub fn blocks_below(&self, root: Cid) -> RemoteBlocks {
        RemoteBlocks::new(Arc::clone(&self.client), Some(root))
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
    pub async fn check(&self, rate: Option<u64>, mut show: impl FnMut(CheckLine)) -> anyhow::Result<CheckView> {
        let query = rate.map(|rate| format!("?bytes_per_second={rate}")).unwrap_or_default();
        let mut lines: Lines = self.client.lines(Method::POST, &format!("/api/v1/store/check{query}"), NOTHING).await?;
        while let Some(line) = lines.next().await? {
            let line = serde_json::from_slice(&line);
            match line.with_context(|| format!("the gateway at {} is of another version", self.client.url()))? {
                line @ (CheckLine::Progress(_) | CheckLine::Finding(_)) => show(line),
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

    /// Begins to send blocks whose roots are known last. `asks` says whether what is there already is to be spared.
    pub fn begin_addition(&self, name: Option<&str>, asks: bool) -> RemoteAddition {
        RemoteAddition::begin(self, name, asks)
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
