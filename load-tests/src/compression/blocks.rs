//! The store's method: each block is a frame of its own, if that saves space.

use super::corpora::Corpus;
use super::{Method, Options, Took};
use crate::directory::temp_dir;
use crate::http::Client;
use crate::servers::{Causeway, Setup, without_settings};
use crate::stats::median_duration;
use crate::timed;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Hashes a directory without storing it: the cost of adding without a store.
pub fn hash(options: &Options, directory: &Path) -> Result<Took> {
    let ran = timed::settled(adding(&options.causeway, directory).arg("--only-hash"))?;
    Ok(Took { wall: ran.wall, cpu: ran.cpu })
}

/// Adds a directory, and requests each of its files.
pub async fn measure(options: &Options, corpus: &Corpus, directory: &Path, level: u8) -> Result<Method> {
    let mut runs = Vec::new();
    let mut last = None;
    for _ in 0..options.rounds(level) {
        let data = temp_dir("store")?;
        let mut add = adding(&options.causeway, directory);
        add.arg("--data-dir").arg(data.path()).env("CAUSEWAY_CACHE_ZSTD_LEVEL", level.to_string());
        let ran = timed::settled(&mut add)?;
        runs.push(Took { wall: ran.wall, cpu: ran.cpu });
        last = Some((data, ran.stdout));
    }
    let (data, root) = last.context("there is no round")?;
    let stored_bytes = stored_bytes(&options.causeway, data.path())?;
    let sent_bytes = sent_bytes(options, corpus, data.path(), root.trim()).await?;
    Ok(Method { name: format!("blocks, level {level}"), stored_bytes, sent_bytes, added: Took::median(&runs) })
}

/// `causeway add` of a directory.
pub fn adding(binary: &Path, directory: &Path) -> Command {
    let mut add = without_settings(binary);
    add.args(["add", "-Q", "--cid-version=1"]).arg(directory);
    add
}

impl Took {
    /// The median of some rounds.
    pub fn median(rounds: &[Self]) -> Self {
        let of = |of: fn(&Self) -> std::time::Duration| median_duration(rounds.iter().map(of));
        Self { wall: of(|took| took.wall), cpu: of(|took| took.cpu) }
    }
}

/// Of all blocks, including directories and inner nodes, which are few and small.
pub fn stored_bytes(binary: &Path, data: &Path) -> Result<u64> {
    let mut command = without_settings(binary);
    let ran = timed::run(command.args(["store", "stats", "--json", "--data-dir"]).arg(data))?;
    let stats: Value = serde_json::from_str(&ran.stdout)?;
    stats["all"]["stored_bytes"].as_u64().with_context(|| format!("no stored bytes in {}", ran.stdout))
}

/// The size of all bodies for a client that accepts zstd; each is decoded and compared.
async fn sent_bytes(options: &Options, corpus: &Corpus, data: &Path, root: &str) -> Result<u64> {
    let setup = Setup { data: Some(data), flags: vec!["--offline"], ..Setup::default() };
    let causeway = Causeway::start(&options.causeway, setup).await?;
    let (client, headers) = (Client::new()?, ["Accept-Encoding: zstd".to_owned()]);
    let mut bytes = 0;
    for file in &corpus.files {
        let url = causeway.server.at(&format!("/ipfs/{root}/{}", file.name));
        let response = client.request(&url, &headers).await?.of_status(200)?;
        ensure!(response.decoded()? == file.bytes, "{url}: wrong bytes");
        bytes += response.body.len() as u64;
    }
    Ok(bytes)
}
