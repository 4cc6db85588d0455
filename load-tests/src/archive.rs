//! CAR files of synthetic content, in the blocks that `ipfs add --cid-version=1` makes of it.
//!
//! Goals: blocks are written as they are made, so that memory does not grow with the archive; one root, so that an
//! archive is one pin.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use content::hashes::SHA2_256;
use content::importer::{Attributes, BlockSink, Importer, Part, Profile, SinkError};
use content::{Block, Cid, car, codec};
use std::fs::File;
use std::io::{BufWriter, Seek as _, Write as _};
use std::path::Path;

/// Files and directories without mode and modification time.
pub const PLAIN: Attributes = Attributes { mode: None, modified: None };

/// An importer with the profile of `ipfs add --cid-version=1`.
pub fn importer() -> Result<Importer> {
    Ok(Importer::new(Profile::UNIXFS_V0_2015.with_cid_v1())?)
}

/// Imports a file.
pub fn file(importer: &Importer, content: &[u8], sink: &mut dyn BlockSink) -> Result<Part> {
    let mut file = importer.file(PLAIN);
    file.write(content, sink)?;
    Ok(file.finish(sink)?)
}

/// Writes an archive of the blocks that `fill` makes. It returns their root, and a value for the caller.
pub fn write<T>(path: &Path, fill: impl FnOnce(&mut dyn BlockSink) -> Result<(Cid, T)>) -> Result<T> {
    let file = File::create(path).with_context(|| path.display().to_string())?;
    let mut out = BufWriter::new(file);
    // The root is known last. Every CID here has the same length, and so has every header.
    let placeholder = Block::of(codec::RAW, SHA2_256, 32, Bytes::new())?;
    out.write_all(&car::header(&[*placeholder.cid()]))?;
    let mut put = |block: Block| -> Result<(), SinkError> {
        let (head, data) = car::section(&block);
        out.write_all(&head)?;
        Ok(out.write_all(&data)?)
    };
    let (root, others) = fill(&mut put)?;
    out.rewind()?;
    out.write_all(&car::header(&[root]))?;
    out.flush()?;
    Ok(others)
}
