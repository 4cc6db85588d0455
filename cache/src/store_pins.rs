//! Pinning a DAG in any store, from a stream of its blocks.

use crate::pins::{PinError, PinSummary, check_name};
use crate::store::BlockStore;
use content::dag::Visited;
use content::{Block, Cid};
use futures::stream::{Stream, StreamExt as _};
use std::pin::pin;

impl dyn BlockStore {
    /// Pins a DAG: writes its blocks as members of the pin and, when they have all been written, marks it complete. The
    /// pin is on the disk when this returns. Blocks that are here already are not written again.
    ///
    /// A root that has a pin keeps it: a partial one is gone on with, a complete one stays complete. A `name` replaces
    /// the one that it has.
    ///
    /// # Errors
    /// [`PinError`]; blocks written before stay protected, as a partial pin.
    pub async fn pin_recursive<E>(
        &self,
        root: Cid,
        name: Option<String>,
        blocks: impl Stream<Item = Result<Block, E>> + Send,
    ) -> Result<PinSummary, PinError>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        self.pin_visited(root, name, blocks.map(|block| block.map(Visited::Block))).await
    }

    /// The same for a DAG whose blocks are here: leaves that were not read are members as they are.
    ///
    /// # Errors
    /// The same; among them that a leaf is not here.
    pub(crate) async fn pin_visited<E>(
        &self,
        root: Cid,
        name: Option<String>,
        visited: impl Stream<Item = Result<Visited, E>> + Send,
    ) -> Result<PinSummary, PinError>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        check_name(name.as_deref())?;
        let attempt = self.begin_pin(root, name).await?;
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
