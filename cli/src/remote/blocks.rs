//! [`RemoteBlocks`]: the blocks of a gateway that runs, over its admin listener.
//!
//! What reads content from a store reads it from here all the same. Each block is hashed when it has come, so that nothing
//! between here and there can pass one for another. What the gateway does not hold it fetches, if that is wanted.

use crate::remote::client::{AskError, Client};
use content::{Block, BlockSource, Cid, MAX_BLOCK_BYTES, SourceError, Verdict};
use futures::future::{BoxFuture, FutureExt as _, ready};
use http::StatusCode;
use services::logging::chain;
use std::sync::{Arc, OnceLock};
use tokio::sync::Semaphore;

/// Blocks that are asked for at a time.
const AT_ONCE: usize = 16;

/// The blocks that a gateway holds. Clones share its connections.
#[derive(Clone)]
pub struct RemoteBlocks {
    client: Arc<Client>,
    places: Arc<Semaphore>,
    /// What the blocks are below that are fetched.
    root: Option<Cid>,
    /// What the gateway said of the first block that it could not fetch.
    failure: Arc<OnceLock<String>>,
}

impl RemoteBlocks {
    /// The blocks behind an admin listener, and those that the gateway can fetch if they are below a root.
    pub fn new(client: Arc<Client>, root: Option<Cid>) -> Self {
        Self { client, places: Arc::new(Semaphore::new(AT_ONCE)), root, failure: Arc::default() }
    }

    /// What the gateway said of the first block that it could not fetch.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    async fn read(self, cid: Cid) -> Result<Block, SourceError> {
        let _place = self.places.acquire().await.map_err(|_| SourceError::Closed)?;
        let path = match &self.root {
            Some(root) => format!("/api/v1/fetch/{root}/{cid}"),
            None => path(&cid),
        };
        let bytes = self.client.bytes(&path, MAX_BLOCK_BYTES).await.map_err(|error| self.failed(cid, error))?;
        let verifying = tokio::task::spawn_blocking(move || Block::verify(cid, bytes)).await;
        verifying.map_err(|_| SourceError::Closed)?.map_err(|_| SourceError::Corrupt { cid })
    }
}

impl RemoteBlocks {
    fn failed(&self, cid: Cid, error: anyhow::Error) -> SourceError {
        let words = chain(&error);
        match AskError::status(&error) {
            Some(StatusCode::NOT_FOUND) => {}
            Some(StatusCode::GONE) => return SourceError::Refused { cid, verdict: Verdict::Gone },
            Some(StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS) => {
                return SourceError::Refused { cid, verdict: Verdict::Legal };
            }
            _ => return SourceError::Store(words.into()),
        }
        if self.root.is_some() {
            _ = self.failure.set(words);
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
            let _place = this.places.acquire().await.map_err(|_| SourceError::Closed)?;
            this.client.has(&path).await.map_err(|error| SourceError::Store(chain(&error).into()))
        }
        .boxed()
    }
}

fn path(cid: &Cid) -> String {
    format!("/api/v1/store/blocks/{cid}")
}
