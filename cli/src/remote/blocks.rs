//! [`RemoteBlocks`]: the blocks of a running gateway, over its admin API, as a [`BlockSource`].
//!
//! Each block is verified against its CID. The gateway fetches missing blocks if a root is given.

use crate::remote::client::{Client, RequestError};
use content::{Block, BlockSource, Cid, MAX_BLOCK_BYTES, SourceError, Verdict};
use futures::future::{BoxFuture, FutureExt as _, ready};
use http::StatusCode;
use services::logging::chain;
use std::sync::{Arc, OnceLock};
use tokio::sync::Semaphore;

/// The maximum number of concurrent requests.
const REQUESTS_MAX: usize = 16;

/// The blocks of a gateway. Clones share its connections.
#[derive(Clone)]
pub struct RemoteBlocks {
    client: Arc<Client>,
    permits: Arc<Semaphore>,
    /// The root below which the gateway fetches missing blocks.
    root: Option<Cid>,
    /// The gateway's error for the first block that it could not fetch.
    failure: Arc<OnceLock<String>>,
}

impl RemoteBlocks {
    /// The blocks of a gateway; with a root, also those below it that the gateway can fetch.
    pub fn new(client: Arc<Client>, root: Option<Cid>) -> Self {
        Self { client, permits: Arc::new(Semaphore::new(REQUESTS_MAX)), root, failure: Arc::default() }
    }

    /// The gateway's error for the first block that it could not fetch.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    async fn read(self, cid: Cid) -> Result<Block, SourceError> {
        let _permit = self.permits.acquire().await.map_err(|_| SourceError::Closed)?;
        let path = match &self.root {
            Some(root) => format!("/api/v1/fetch/{root}/{cid}"),
            None => path(&cid),
        };
        let bytes = self.client.bytes(&path, MAX_BLOCK_BYTES).await.map_err(|error| self.source_error(cid, error))?;
        let verifying = tokio::task::spawn_blocking(move || Block::verify(cid, bytes)).await;
        verifying.map_err(|_| SourceError::Closed)?.map_err(|_| SourceError::Corrupt { cid })
    }
}

impl RemoteBlocks {
    fn source_error(&self, cid: Cid, error: anyhow::Error) -> SourceError {
        let message = chain(&error);
        match RequestError::status(&error) {
            Some(StatusCode::NOT_FOUND) => {}
            Some(StatusCode::GONE) => return SourceError::Refused { cid, verdict: Verdict::Gone },
            Some(StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS) => {
                return SourceError::Refused { cid, verdict: Verdict::Legal };
            }
            _ => return SourceError::Store(message.into()),
        }
        if self.root.is_some() {
            _ = self.failure.set(message);
        }
        SourceError::NotFound { cid }
    }
}

impl BlockSource for RemoteBlocks {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        match Block::inline(cid) {
            Some(block) => ready(Ok(block)).boxed(),
            None => self.clone().read(*cid).boxed(),
        }
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        if Block::inline(cid).is_some() {
            return ready(Ok(true)).boxed();
        }
        let (this, path) = (self.clone(), path(cid));
        async move {
            let _permit = this.permits.acquire().await.map_err(|_| SourceError::Closed)?;
            this.client.has(&path).await.map_err(|error| SourceError::Store(chain(&error).into()))
        }
        .boxed()
    }
}

fn path(cid: &Cid) -> String {
    format!("/api/v1/store/blocks/{cid}")
}
