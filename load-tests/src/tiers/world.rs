//! Content, and the servers that have it.

use super::Options;
use crate::archive;
use crate::sample;
use crate::servers::{self, Causeway, Kubo, Server, Setup};
use crate::trace::corpus;
use crate::trace::workload::Object;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use reqwest::header::HeaderMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Files by their own CIDs, in an archive; and a folder for who serves files.
pub struct Content {
    dir: TempDir,
    pub files: Vec<File>,
}

/// A file of made-up bytes, and where every gateway has it.
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
    /// Files of so many bytes each. The same seed makes the same ones.
    pub fn make(seed: u64, sizes: impl Iterator<Item = u64>) -> Result<Self> {
        let content = Self { dir: servers::folder("content")?, files: Vec::new() };
        let object = |(bytes, seed)| Object { bytes, seed, pinned: true };
        let objects: Vec<Object> = sizes.zip(seed << 32..).map(object).collect();
        let cids = corpus::archive(&content.archive(), objects.iter())?;
        let file = |(cid, object)| File { path: format!("/ipfs/{cid}"), object };
        Ok(Self { files: cids.iter().zip(objects).map(file).collect(), ..content })
    }

    /// One file of these bytes, and its path.
    pub fn one(bytes: &[u8]) -> Result<(Self, String)> {
        let content = Self { dir: servers::folder("content")?, files: Vec::new() };
        let path = archive::write(&content.archive(), |sink| {
            let part = archive::file(&archive::importer()?, bytes, sink)?;
            Ok((part.cid, format!("/ipfs/{}", part.cid)))
        })?;
        Ok((content, path))
    }

    pub fn archive(&self) -> PathBuf {
        self.dir.path().join("content.car")
    }

    /// The folder of who serves files.
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// A node that holds all of it.
    pub async fn causeway(&self, options: &Options, settings: &[(&str, &str)]) -> Result<Causeway> {
        let archive = self.archive();
        let setup = Setup { archive: Some(&archive), flags: options.flags(), settings, ..Setup::default() };
        Causeway::start(&options.binaries.causeway, setup).await
    }
}

/// Causeway and Kubo, which hold some content, and nginx before Kubo.
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
        let nginx = servers::nginx(&kubo.server.url, content.folder()).await?;
        Ok(Self { causeway, nginx, kubo })
    }

    /// Asks everybody for every file twice: the first answer fills caches, the second shows that what they hold is right.
    pub async fn warm(&self, content: &Content) -> Result<()> {
        let client = Client::new()?;
        for file in &content.files {
            let expected = file.content()?;
            for server in [&self.causeway.server, &self.nginx, &self.kubo.server] {
                client.expect(server, &file.path, &[], &expected).await?;
                let answer = client.expect(server, &file.path, &[], &expected).await?;
                let cached = answer.header("x-cache").is_none_or(|cache| cache == "HIT");
                ensure!(cached, "nginx does not keep {}", file.path);
            }
        }
        Ok(())
    }
}

/// Asks a server once, to see what it answers.
pub struct Client(reqwest::Client);

pub struct Answer {
    pub status: u16,
    headers: HeaderMap,
    /// As it came.
    pub body: Bytes,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

impl Client {
    pub fn new() -> Result<Self> {
        Ok(Self(reqwest::Client::builder().no_proxy().build()?))
    }

    /// Headers are "Name: value".
    pub async fn get(&self, server: &Server, path: &str, headers: &[String]) -> Result<Answer> {
        let mut request = self.0.get(format!("{}{path}", server.url));
        for header in headers {
            let (name, value) = header.split_once(": ").with_context(|| format!("{header:?} is no header"))?;
            request = request.header(name, value);
        }
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Answer { status, headers, body: response.bytes().await? })
    }

    /// Fails unless the answer is 200 and of these bytes.
    pub async fn expect(&self, server: &Server, path: &str, headers: &[String], content: &[u8]) -> Result<Answer> {
        let answer = self.get(server, path, headers).await?;
        ensure!(answer.status == 200, "{}: {} for {path}", server.name, answer.status);
        ensure!(answer.body == content, "{}: wrong bytes of {path}", server.name);
        Ok(answer)
    }
}
