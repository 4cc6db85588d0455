//! The store's way: each block is a frame of its own, if that pays.

use super::corpora::Corpus;
use super::{Method, Options, Took};
use crate::median::median_duration;
use crate::servers::{self, Causeway, Setup, without_settings};
use crate::timed::{self, Ran};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Hashes a folder and keeps nothing: what adding costs without a store.
pub fn hash(options: &Options, folder: &Path) -> Result<Took> {
    let mut add = adding(&options.causeway, folder);
    Ok(middle(&[timed::settled(add.arg("--only-hash"))?]))
}

/// Adds a folder, and asks for each of its files.
pub async fn measure(options: &Options, corpus: &Corpus, folder: &Path, level: u8) -> Result<Method> {
    let setting = ("CAUSEWAY_CACHE_ZSTD_LEVEL", level.to_string());
    let mut runs = Vec::new();
    let mut last = None;
    for _ in 0..options.rounds(level) {
        let data = servers::folder("store")?;
        let mut add = adding(&options.causeway, folder);
        runs.push(timed::settled(add.arg("--data-dir").arg(data.path()).env(setting.0, &setting.1))?);
        last = Some(data);
    }
    let (data, ran) = last.zip(runs.last()).context("there is no round")?;
    let stored_bytes = stored_bytes(&options.causeway, data.path())?;
    let sent_bytes = sent_bytes(options, corpus, data.path(), ran.stdout.trim()).await?;
    Ok(Method { stored_bytes, sent_bytes, added: middle(&runs) })
}

/// `causeway add` of a folder.
pub fn adding(binary: &Path, folder: &Path) -> Command {
    let mut add = without_settings(binary);
    add.args(["add", "-Q", "--cid-version=1"]).arg(folder);
    add
}

/// The middle of some runs.
pub fn middle(runs: &[Ran]) -> Took {
    let of = |of: fn(&Ran) -> std::time::Duration| median_duration(runs.iter().map(of));
    Took { wall: of(|ran| ran.wall), cpu: of(|ran| ran.cpu) }
}

/// Of all blocks, those of folders and the inner ones included, which are few and small.
fn stored_bytes(binary: &Path, data: &Path) -> Result<u64> {
    let mut command = without_settings(binary);
    let ran = timed::run(command.args(["store", "stats", "--json", "--data-dir"]).arg(data))?;
    let stats: Value = serde_json::from_str(&ran.stdout)?;
    stats["all"]["stored_bytes"].as_u64().with_context(|| format!("no stored bytes in {}", ran.stdout))
}

/// What bodies take that are sent to a client who takes zstd; each is unpacked and compared.
async fn sent_bytes(options: &Options, corpus: &Corpus, data: &Path, root: &str) -> Result<u64> {
    let setup = Setup { data: Some(data), flags: vec!["--offline"], ..Setup::default() };
    let causeway = Causeway::start(&options.causeway, setup).await?;
    let client = reqwest::Client::builder().no_proxy().build()?;
    let mut bytes = 0;
    for file in &corpus.files {
        let url = format!("{}/ipfs/{root}/{}", causeway.server.url, file.name);
        let response = client.get(&url).header("accept-encoding", "zstd").send().await?;
        ensure!(response.status() == 200, "{url}: {}", response.status());
        let coding = response.headers().get("content-encoding").cloned();
        let body = response.bytes().await?;
        let plain = match coding.as_ref().map(|coding| coding.as_bytes()) {
            None => body.to_vec(),
            Some(b"zstd") => zstd::decode_all(&body[..])?,
            Some(_) => bail!("{url}: {coding:?} was not asked for"),
        };
        ensure!(plain == file.bytes, "{url}: wrong bytes");
        bytes += body.len() as u64;
    }
    Ok(bytes)
}
