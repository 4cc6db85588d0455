//! Pins a DAG in any store, from a stream of its blocks.

use crate::pins::{PinError, PinSummary, check_name};
use crate::store::BlockStore;
use content::dag::Visited;
use content::{Block, Cid};
use futures::stream::{Stream, StreamExt as _};
use std::pin::pin;

impl dyn BlockStore {
    /// Pins a DAG: writes its blocks as members of the pin, then marks it complete. The pin is durable when this
    /// returns. Blocks that are already stored are not written again.
    ///
    /// An existing pin of the root is resumed if it is partial, and stays complete if it is complete. A `name` replaces
    /// the existing one.
    ///
    /// # Errors
    /// [`PinError`]; the pin stays partial and protects the blocks written so far.
    pub async fn pin_recursive<E>(
        &self,
        root: Cid,
        name: Option<String>,
        blocks: impl Stream<Item = Result<Block, E>> + Send,
    ) -> Result<PinSummary, PinError>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        self.pin_visited(root, None, name, blocks.map(|block| block.map(Visited::Block))).await
    }

    /// The same for a DAG whose blocks are stored: leaves become members without being read. The blocks of a packed
    /// file are followed by those of its plain file.
    ///
    /// # Errors
    /// The same, also if a leaf is missing.
    pub(crate) async fn pin_visited<E>(
        &self,
        root: Cid,
        packed: Option<Cid>,
        name: Option<String>,
        visited: impl Stream<Item = Result<Visited, E>> + Send,
    ) -> Result<PinSummary, PinError>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        check_name(name.as_deref())?;
        let attempt = self.begin_pin(root, name).await?;
        if let Some(zstd_file) = packed {
            attempt.set_packed(zstd_file);
        }
        let mut visited = pin!(visited);
        while let Some(visited) = visited.next().await {
            match visited.map_err(|error| PinError::Blocks(Box::new(error)))? {
                Visited::Block(block) => self.put_member(&block, &attempt).await?,
                Visited::Leaf(cid) => self.put_held_member(cid, &attempt).await?,
            }
        }
        self.finish_pin(attempt).await
    }
}
