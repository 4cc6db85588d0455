//! The stored forms of blocks for the shared storage.

use crate::blocks::SharedBlock;
use cache::StoreError;
use content::stored::{CompressionOptions, Encoder, Stored};
use content::{Block, BlockKey};

/// Encodes blocks, which takes the time of a processor.
pub(super) fn encode(blocks: &[(BlockKey, Block)], zstd: CompressionOptions) -> Result<Vec<SharedBlock>, StoreError> {
    let mut encoder = Encoder::new(zstd).map_err(|error| StoreError::Io(error.to_string().into()))?;
    let encoded = blocks.iter().map(|(key, block)| {
        let (_, pieces) = encoder.encode_in_pieces(block);
        let stored = Stored::read(pieces.concat().into());
        Ok(SharedBlock { key: *key, stored: stored.map_err(|error| StoreError::Io(error.to_string().into()))? })
    });
    encoded.collect()
}
