//! A running gateway, for commands that work with and without one.
//!
//! A gateway holds the locks of its store and its keys. A command that finds them locked reads the address of the admin
//! listener from the data folder ([`Keystore::publish_admin_address`]), and uses the admin API; `--admin URL` gives the
//! address without a data folder. The output and the effects of a command are the same either way.
//!
//! | module | concern |
//! |---|---|
//! | [`access`] | the token, and the trusted certificates |
//! | [`client`], [`address`] | the HTTP client of one admin listener, and its address |
//! | [`tls`] | certificate verification |
//! | [`blocks`] | the gateway's blocks as a [`content::BlockSource`] |
//! | [`addition`] | sending blocks, with deduplication |
//! | [`compression`] | compression of what is sent to another machine |
//!
//! Trust: the token is sent to the address in the data folder or on the command line. Without TLS to another machine,
//! the command warns that it is unencrypted.

pub mod access;
pub mod addition;
pub mod address;
pub mod blocks;
pub mod client;
pub mod compression;
pub mod tls;

use self::access::Access;
use self::addition::RemoteAddition;
use self::blocks::RemoteBlocks;
use self::client::{Client, Lines, RequestError, Wait};
use self::compression::TransferOptions;
use crate::options::NodeOptions;
use anyhow::{Context as _, bail};
use api::store::{CAR, CheckLine, CheckView, CompactedView, FiguresView, ImportedView, VersionView};
use api::uploads::UploadView;
use bytes::{Bytes, BytesMut};
use cache::{RootsIn, StoreError};
use config::{Loaded, StoreKind};
use content::Cid;
use content::stored::coding::ZSTD;
use futures::stream::{self, Stream, TryStreamExt as _};
use http::{Method, StatusCode};
use p2p_bridge::names::keystore::{Keystore, LockHolder};
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

/// How long to wait for a starting gateway to publish its admin address.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval of looking for the admin address.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The size of a chunk of an upload, in bytes.
const CHUNK_BYTES: usize = 256 * 1024;

/// No request body.
const NO_BODY: Option<&()> = None;

/// Where a command does its work.
pub enum Backend<T> {
    /// In this process, which has opened the store.
    Local(T),
    /// In the gateway that has the store.
    Remote(Remote),
}

/// Opens a store, or connects to the gateway that has it, or to the one of `--admin`.
///
/// # Errors
/// When neither works, with a message for the user.
pub async fn open_or_connect<T>(
    loaded: &Loaded,
    node: &NodeOptions,
    open: impl AsyncFnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<Backend<T>> {
    if node.admin().is_some() {
        return connect(loaded, node).await.map(Backend::Remote);
    }
    let error = match open().await {
        Ok(store) => return Ok(Backend::Local(store)),
        Err(error) => error,
    };
    // A store in memory exists only in a running gateway, and that of a site is opened only by one.
    let is_of_gateways = loaded.config.cache.store == StoreKind::Memory || loaded.config.site.is_on();
    if !is_in_use(&error) && !is_of_gateways {
        return Err(error);
    }
    match admin_url(&loaded.config.data_dir).await? {
        Some(admin_url) => connect_local(loaded, node, &admin_url).await.map(Backend::Remote),
        None => Err(error),
    }
}

/// Connects to the gateway of `--admin`, or to the one that runs on the data folder.
///
/// # Errors
/// When no gateway is running, or it cannot be reached, or rejects the token.
pub async fn connect(loaded: &Loaded, node: &NodeOptions) -> anyhow::Result<Remote> {
    Remote::connect(client_for(loaded, node).await?).await
}

/// The client of the gateway of `--admin`, or of the one that runs on the data folder. Does not check the token.
///
/// # Errors
/// When no gateway is running.
pub async fn client_for(loaded: &Loaded, node: &NodeOptions) -> anyhow::Result<Client> {
    if let Some(url) = node.admin() {
        return Client::new(url, Access::of(loaded, node, false)?);
    }
    let data_dir = &loaded.config.data_dir;
    match admin_url(data_dir).await? {
        Some(admin_url) => Client::new(address(&admin_url)?, Access::of(loaded, node, true)?),
        None => Err(RequestError::Unreachable(format!(
            "no gateway is running on {}: start one with \"causeway serve\", or choose another data folder with \
             --data-dir, or a gateway's address with --admin",
            // A relative path depends on the working directory.
            std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.clone()).display()
        ))
        .into()),
    }
}

/// Connects to the gateway that has published its admin address in the data folder.
///
/// # Errors
/// When it has no admin listener, or cannot be reached, or rejects the token.
pub async fn connect_local(loaded: &Loaded, node: &NodeOptions, admin_url: &str) -> anyhow::Result<Remote> {
    Remote::connect(Client::new(address(admin_url)?, Access::of(loaded, node, true)?)?).await
}

/// The published address, unless the gateway has no admin listener.
fn address(admin_url: &str) -> anyhow::Result<&str> {
    if admin_url == NO_ADMIN {
        let message =
            "a gateway without an admin listener runs on this data folder: set admin.listen, or stop it first";
        bail!(RequestError::Unreachable(message.to_owned()));
    }
    Ok(admin_url)
}

/// Whether a store could not be opened because another process has it open.
pub fn is_in_use(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(StoreError::InUse { .. }))
}

/// The admin address that a gateway has published, if one runs on the data folder.
async fn admin_url(data_dir: &Path) -> anyhow::Result<Option<String>> {
    let (dir, begun) = (p2p::state_dir(data_dir), Instant::now());
    loop {
        match Keystore::holder(&dir)? {
            LockHolder::Process { admin_address: Some(admin_url) } => return Ok(Some(admin_url)),
            // A starting gateway, or a command that holds the lock for a moment.
            LockHolder::Process { admin_address: None } if begun.elapsed() < STARTUP_TIMEOUT => {
                tokio::time::sleep(POLL_INTERVAL).await
            }
            LockHolder::Process { admin_address: None } | LockHolder::Unlocked => return Ok(None),
        }
    }
}

/// A running gateway.
#[derive(Clone)]
pub struct Remote {
    client: Arc<Client>,
    /// Whether uploads are compressed.
    compresses: bool,
}

impl Remote {
    /// Checks that the gateway answers and accepts the token, before a large request is sent.
    ///
    /// # Errors
    /// When it cannot be reached, or rejects the token.
    pub async fn connect(client: Client) -> anyhow::Result<Self> {
        if client.sends_token_in_clear() {
            eprintln!("warning: the token is sent to {} unencrypted; use https, or a tunnel", client.url());
        }
        let version: anyhow::Result<VersionView> =
            client.call(Method::GET, "/api/v1/version", NO_BODY, Wait::Short).await;
        let codings = match version {
            // The token is valid, but lacks the scope `read`.
            Err(error) if RequestError::status(&error) == Some(StatusCode::FORBIDDEN) => Vec::new(),
            version => version?.upload_codings,
        };
        let compresses = !client.is_loopback() && codings.iter().any(|coding| coding == ZSTD);
        Ok(Self { client: Arc::new(client), compresses })
    }

    /// The gateway, to which content is sent as the options say.
    #[must_use]
    pub fn sending(self, options: TransferOptions) -> Self {
        let compresses = self.compresses && !options.uncompressed;
        Self { compresses, ..self }
    }

    /// The client, for requests that have no function here.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// GETs a view, with a timeout.
    ///
    /// # Errors
    /// When the gateway cannot be reached or rejects the request.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.client.call(Method::GET, path, NO_BODY, Wait::Short).await
    }

    /// POSTs a request that may take long.
    ///
    /// # Errors
    /// When the gateway cannot be reached or rejects the request.
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> anyhow::Result<T> {
        self.client.call(Method::POST, path, Some(body), Wait::Long).await
    }

    /// DELETEs something, and ignores the body of the answer.
    ///
    /// # Errors
    /// When the gateway cannot be reached or rejects the request.
    pub async fn remove(&self, path: &str) -> anyhow::Result<()> {
        self.client.command(Method::DELETE, path, NO_BODY).await
    }

    /// DELETEs something.
    ///
    /// # Errors
    /// When the gateway cannot be reached or rejects the request.
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.client.call(Method::DELETE, path, NO_BODY, Wait::Short).await
    }

    /// The blocks that the gateway has stored.
    pub fn blocks(&self) -> RemoteBlocks {
        RemoteBlocks::new(Arc::clone(&self.client), None)
    }

    /// The blocks that the gateway has stored, and those below a root that it can fetch.
    pub fn blocks_below(&self, root: Cid) -> RemoteBlocks {
        RemoteBlocks::new(Arc::clone(&self.client), Some(root))
    }

    /// Statistics of the store.
    ///
    /// # Errors
    /// When the gateway cannot be reached or rejects the request.
    pub async fn stats(&self) -> anyhow::Result<FiguresView> {
        self.client.call(Method::GET, "/api/v1/store/stats", NO_BODY, Wait::Long).await
    }

    /// Compacts the store.
    ///
    /// # Errors
    /// When the gateway cannot be reached or rejects the request.
    pub async fn compact(&self) -> anyhow::Result<CompactedView> {
        self.client.call(Method::POST, "/api/v1/store/compact", NO_BODY, Wait::Long).await
    }

    /// Checks the store, at most at `rate` bytes a second, and passes progress and findings to `show`.
    ///
    /// # Errors
    /// When the gateway rejects the request, or the check ends early.
    pub async fn check(&self, rate: Option<u64>, mut show: impl FnMut(CheckLine)) -> anyhow::Result<CheckView> {
        let query = rate.map(|rate| format!("?bytes_per_second={rate}")).unwrap_or_default();
        let mut lines: Lines = self.client.lines(Method::POST, &format!("/api/v1/store/check{query}"), NO_BODY).await?;
        while let Some(line) = lines.next().await? {
            let line = serde_json::from_slice(&line);
            match line
                .with_context(|| format!("the answer of the gateway at {} cannot be parsed", self.client.url()))?
            {
                line @ (CheckLine::Progress(_) | CheckLine::Finding(_)) => show(line),
                CheckLine::Report(report) => return Ok(report),
                CheckLine::Error(message) => bail!("the check ended early: {message}"),
            }
        }
        bail!("the check ended early: the gateway at {} closed the connection", self.client.url())
    }

    /// Imports a CAR, which is streamed.
    ///
    /// # Errors
    /// When the CAR cannot be read, or the gateway rejects it.
    pub async fn import(&self, archive: impl AsyncRead + Unpin + Send + 'static) -> anyhow::Result<ImportedView> {
        self.send(&import_path(RootsIn::Header, None), CAR, "archive", chunks(archive)).await
    }

    /// Sends a CAR with the blocks of pins that are requested already.
    ///
    /// # Errors
    /// When the CAR cannot be read, or the gateway rejects it.
    pub async fn supply(
        &self,
        archive: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> anyhow::Result<ImportedView> {
        self.send("/api/v1/store/import?roots=header&pin=requested", CAR, "archive", archive).await
    }

    /// Uploads a file, which is streamed, with the parameters of an upload. `count` is called with the length of each
    /// chunk.
    ///
    /// # Errors
    /// When the file cannot be read, or the gateway rejects it.
    pub async fn upload_file(
        &self,
        parameters: &[(&str, String)],
        file: impl AsyncRead + Unpin + Send + 'static,
        count: impl Fn(usize) + Send + 'static,
    ) -> anyhow::Result<UploadView> {
        let chunks = chunks(file).inspect_ok(move |chunk| count(chunk.len()));
        let path = format!("/api/v1/upload{}", address::query(parameters));
        self.send(&path, "application/octet-stream", "file", chunks).await
    }

    /// POSTs what is read from a file or an archive: `what` names it in an error.
    async fn send<T: DeserializeOwned>(
        &self,
        path: &str,
        media_type: &str,
        what: &str,
        chunks: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> anyhow::Result<T> {
        // A read error closes the connection, and only this side knows the reason.
        let failure = Arc::new(OnceLock::new());
        let first_failure = Arc::clone(&failure);
        let chunks = chunks.inspect_err(move |error| _ = first_failure.set(error.to_string()));
        let sent = self.client.upload(path, media_type, self.compresses, chunks).await;
        match failure.get() {
            Some(error) => bail!("the {what} cannot be read: {error}"),
            None => sent,
        }
    }

    /// Starts an upload of blocks whose roots are known at its end. `deduplicates`: blocks that the gateway has are not
    /// sent.
    pub fn begin_addition(&self, name: Option<&str>, deduplicates: bool) -> RemoteAddition {
        RemoteAddition::begin(self, name, deduplicates)
    }
}

/// The chunks of a reader, until its end or its first error.
fn chunks(reader: impl AsyncRead + Unpin + Send + 'static) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
        match reader.read_buf(&mut chunk).await {
            Ok(0) => None,
            Ok(_) => Some((Ok(chunk.freeze()), Some(reader))),
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
