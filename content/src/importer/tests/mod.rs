//! Tests that CIDs are those of Kubo (`kubo.rs`), that imported content can be read (`round_trip.rs`), that the order
//! of operations does not matter (`order.rs`), and that memory is bounded (`memory.rs`).

mod cases;
mod kubo;
mod memory;
mod order;
mod round_trip;

use super::{Attributes, BlockSink, ImportError, Importer, Part, Profile, SinkError};
use crate::block::Block;
use crate::cid::Cid;
use crate::source::MemoryBlocks;
use std::collections::BTreeSet;

/// Deterministic bytes: the little-endian words of a 64-bit xorshift generator, truncated.
fn content(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        Some(state.to_le_bytes())
    };
    std::iter::from_fn(word).flatten().take(size).collect()
}

fn importer(profile: &Profile) -> Importer {
    Importer::new(profile.clone()).expect("a valid profile")
}

/// A sink that stores everything and records every CID.
#[derive(Default)]
struct RecordingSink {
    blocks: MemoryBlocks,
    cids: BTreeSet<Vec<u8>>,
}

impl BlockSink for RecordingSink {
    fn put(&mut self, block: Block) -> Result<(), SinkError> {
        assert!(block.key().is_some(), "{} is inline", block.cid());
        assert_eq!(Block::verify(*block.cid(), block.data().clone()).as_ref(), Ok(&block));
        self.blocks.insert(&block);
        self.cids.insert(block.cid().to_bytes());
        Ok(())
    }
}

impl RecordingSink {
    fn block(&self, cid: &Cid) -> Block {
        crate::source::peek_or_inline(&self.blocks, cid).expect("every block was sent")
    }
}

fn import(importer: &Importer, data: &[u8], attributes: Attributes, sink: &mut dyn BlockSink) -> Part {
    let mut file = importer.file(attributes);
    data.chunks(64 * 1024).try_for_each(|piece| file.write(piece, sink)).expect("the sink takes everything");
    file.finish(sink).expect("the sink takes everything")
}

fn discard(_: Block) -> Result<(), SinkError> {
    Ok(())
}

#[test]
fn an_error_of_the_sink_ends_the_import() {
    let importer = importer(&Profile { chunking: "size-100".parse().expect("a form"), ..Profile::default() });
    let mut left = 3;
    let mut sink = |_: Block| -> Result<(), SinkError> {
        left = i32::checked_sub(left, 1).filter(|left| *left >= 0).ok_or("full")?;
        Ok(())
    };
    let mut file = importer.file(Attributes::default());
    let result = file.write(&content(1, 1_000), &mut sink);
    assert!(matches!(result, Err(ImportError::Sink(reason)) if reason.to_string() == "full"));
}

#[test]
fn an_unsharded_directory_larger_than_a_block_is_an_error() {
    let sharding = super::Sharding { estimate: super::Estimate::Off, ..Profile::default().sharding };
    let importer = importer(&Profile { sharding, ..Profile::default() });
    let part = import(&importer, b"x", Attributes::default(), &mut discard);
    let mut directory = importer.directory(Attributes::default());
    for n in 0..40 {
        directory.add(format!("{n:060000}").as_bytes(), &part).expect("a name");
    }
    assert!(matches!(directory.finish(&mut discard), Err(ImportError::Block(_))));
}
