//! Content in a Causeway's store, and the node that serves it behind a link.

use crate::archive;
use crate::compression::blocks;
use crate::directory::temp_dir;
use crate::network::Options;
use crate::network::world::Remote;
use crate::relay::Link;
use crate::servers::{Causeway, Setup, causeway_import};
use crate::timed;
use anyhow::Result;
use std::path::Path;
use tempfile::TempDir;

/// A file in a store, compressed as the store does it.
pub struct Held {
    store: TempDir,
    /// Its path on a gateway.
    pub path: String,
    bytes: usize,
    /// The space of all its blocks.
    pub stored_bytes: u64,
}

impl Held {
    /// A new store with a file in the blocks of `ipfs add --cid-version=1`, and nothing else.
    pub fn new(causeway: &Path, content: &[u8]) -> Result<Self> {
        let (dir, store) = (temp_dir("archive")?, temp_dir("store")?);
        let archive = dir.path().join("content.car");
        let path = archive::write(&archive, |sink| {
            let root = archive::file(&archive::importer()?, content, sink)?.cid;
            Ok((root, format!("/ipfs/{root}")))
        })?;
        timed::run(&mut causeway_import(causeway, store.path(), &archive))?;
        let stored_bytes = blocks::stored_bytes(causeway, store.path())?;
        Ok(Self { store, path, bytes: content.len(), stored_bytes })
    }

    /// The share of the file's bytes that its blocks take in the store.
    pub fn share(&self) -> f64 {
        self.stored_bytes as f64 / self.bytes as f64
    }

    /// The node with this store, behind a link.
    pub async fn behind(&self, options: &Options, link: Link) -> Result<Remote<Causeway>> {
        Remote::<Causeway>::start_with(options, link, self.setup()).await
    }

    /// The same without a link.
    pub async fn served(&self, options: &Options) -> Result<Causeway> {
        let setup = Setup { flags: options.flags.get(), ..self.setup() };
        Causeway::start(&options.binaries.causeway, setup).await
    }

    fn setup(&self) -> Setup<'_> {
        Setup { data: Some(self.store.path()), ..Setup::default() }
    }
}
