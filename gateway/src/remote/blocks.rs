//! [`RemoteBlocks`]: the blocks of a gateway that runs, over its admin listener.
//!
//! What reads content from a store reads it from here all the same. Each block is hashed when it has come, so that nothing
//! between here and there can pass one for another.

use super::client::Client;
use content::{Block, BlockSource, Cid, MAX_BLOCK_BYTES, SourceError};
use futures::future::{BoxFuture, FutureExt as _, ready};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Blocks that are asked for at a time.
const AT_ONCE: usize = 16;

/// The blocks that a gateway holds. Clones share its connections.
#[derive(Clone)]
pub struct RemoteBlocks {
    client: Arc<Client>,
    places: Arc<Semaphore>,
}

impl RemoteBlocks {
    /// The blocks behind an admin listener.
    pub fn new(client: Arc<Client>) -> Self {
        Self { client, places: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    async fn fetch(self, cid: Cid) -> Result<Block, SourceError> {
        let _place = self.places.acquire().await.map_err(|_| SourceError::Closed)?;
        let bytes = self.client.bytes(&path(&cid), MAX_BLOCK_BYTES).await.map_err(failed)?;
        let bytes = bytes.ok_or(SourceError::NotFound { cid })?;
        let verifying = tokio::task::spawn_blocking(move || Block::verify(cid, bytes)).await;
        verifying.map_err(|_| SourceError::Closed)?.map_err(|_| SourceError::Corrupt { cid })
    }
}

impl BlockSource for RemoteBlocks {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        match Block::inline(cid) {
            Some(block) => ready(Ok(block)).boxed(),
            None => self.clone().fetch(*cid).boxed(),
        }
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        if Block::inline(cid).is_some() {
            return ready(Ok(true)).boxed();
        }
        let (this, path) = (self.clone(), path(cid));
        async move {
            let _place = this.places.acquire().await.map_err(|_| SourceError::Closed)?;
            this.client.has(&path).await.map_err(failed)
        }
        .boxed()
    }
}

fn path(cid: &Cid) -> String {
    format!("/api/v1/store/blocks/{cid}")
}

fn failed(error: anyhow::Error) -> SourceError {
    SourceError::Store(format!("{error:#}").into())
}
