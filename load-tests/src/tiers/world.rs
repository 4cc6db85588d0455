//! Content, and the servers that have it.

use super::Options;
use crate::archive;
use crate::directory::temp_dir;
use crate::http::Client;
use crate::sample;
use crate::servers::{self, Causeway, Kubo, Server, Setup};
use crate::trace::corpus;
use crate::trace::workload::Object;
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Files by their own CIDs, in an archive; and a directory for servers of plain files.
pub struct Content {
    dir: TempDir,
    pub files: Vec<File>,
}

/// A synthetic file, and its path at every gateway.
#[derive(Debug, Clone)]
pub struct File {
    pub path: String,
    pub object: Object,
}

impl File {
    pub fn content(&self) -> Result<Vec<u8>> {
        Ok(sample::bytes(usize::try_from(self.object.bytes)?, self.object.seed))
    }
}

impl Content {
    /// Files of these sizes. The same seed makes the same files.
    pub fn make(seed: u64, sizes: impl Iterator<Item = u64>) -> Result<Self> {
        let content = Self { dir: temp_dir("content")?, files: Vec::new() };
        let object = |(bytes, seed)| Object { bytes, seed, pinned: true };
        let objects: Vec<Object> = sizes.zip(seed << 32..).map(object).collect();
        let cids = corpus::archive(&content.archive(), objects.iter())?;
        let file = |(cid, object)| File { path: format!("/ipfs/{cid}"), object };
        Ok(Self { files: cids.iter().zip(objects).map(file).collect(), ..content })
    }

    /// One file of these bytes, and its path.
    pub fn one(bytes: &[u8]) -> Result<(Self, String)> {
        let content = Self { dir: temp_dir("content")?, files: Vec::new() };
        let path = archive::write(&content.archive(), |sink| {
            let part = archive::file(&archive::importer()?, bytes, sink)?;
            Ok((part.cid, format!("/ipfs/{}", part.cid)))
        })?;
        Ok((content, path))
    }

    pub fn archive(&self) -> PathBuf {
        self.dir.path().join("content.car")
    }

    /// The directory for servers of plain files.
    pub fn directory(&self) -> &Path {
        self.dir.path()
    }

    /// A node that has all of it.
    pub async fn causeway(&self, options: &Options, settings: &[(&str, &str)]) -> Result<Causeway> {
        let archive = self.archive();
        let setup = Setup { archive: Some(&archive), flags: options.flags.get(), settings, ..Setup::default() };
        Causeway::start(&options.binaries.causeway, setup).await
    }
}

/// Causeway and Kubo, which have some content, and nginx in front of Kubo.
pub struct World {
    pub causeway: Causeway,
    pub nginx: Server,
    pub kubo: Kubo,
}

impl World {
    pub async fn start(options: &Options, content: &Content) -> Result<Self> {
        let causeway = content.causeway(options, &[]).await?;
        let kubo = Kubo::start(&options.binaries.kubo).await?;
        kubo.import(&content.archive())?;
        let nginx = servers::nginx(&kubo.server.url, content.directory()).await?;
        Ok(Self { causeway, nginx, kubo })
    }

    /// Requests every file from every server twice: the first response fills caches, the second shows that the cached
    /// bytes are right.
    pub async fn warm(&self, content: &Content) -> Result<()> {
        let client = Client::new()?;
        for file in &content.files {
            let expected = file.content()?;
            for server in [&self.causeway.server, &self.nginx, &self.kubo.server] {
                let url = server.at(&file.path);
                client.get(&url).await?.of_content(&expected)?;
                let response = client.get(&url).await?.of_content(&expected)?;
                ensure!(response.header("x-cache").is_none_or(|cache| cache == "HIT"), "nginx does not cache {url}");
            }
        }
        Ok(())
    }
}
