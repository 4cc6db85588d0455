//! Uploads on a slow link: text with `Content-Encoding: zstd`, beside Kubo's `add` over its RPC.
//!
//! This program's own HTTP client compresses, in one thread, before it sends. `causeway add` is measured as well, if it
//! compresses on the way: for other machines only, so that it is given a name of this one.

use super::Bench;
use crate::comparison::{Case, Measure, System, Unsupported, rounds};
use crate::directory::temp_dir;
use crate::http;
use crate::relay::{Link, Protocol, Relay};
use crate::report::number;
use crate::servers::{Causeway, Kubo, Setup, token};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

const BYTES: usize = 128 << 20;
const LEVEL: i32 = 3;
/// Longer than any upload takes.
const TIMEOUT: Duration = Duration::from_secs(600);
/// The status of a coding that is not supported.
const UNSUPPORTED_MEDIA_TYPE: u16 = 415;
/// This machine to the system, which reads it as 127.0.0.1, and a name like others to the command.
const THIS_MACHINE: &str = "127.1";
const BAR: &str = "2.4 × Kubo's add; 0.9 × the compression ratio";

/// 128 MiB of text.
pub async fn text(bench: &Bench) -> Result<Vec<Case>> {
    let options = &bench.options;
    require_zstd(bench).await?;
    let content = bench.texts.of(options.size(BYTES));
    let dir = temp_dir("text")?;
    let file = dir.path().join("text.txt");
    std::fs::write(&file, &content)?;
    let (mut packed_bytes, mut roots) = (0, Vec::new());
    let command = bench.features.compresses.then_some(System::Command);
    let systems: Vec<System> = [System::Kubo, System::Causeway].into_iter().chain(command).collect();
    let series = rounds(options.run.rounds(), &systems, async |system, _| {
        // A new node each time: with what it has already it would be quicker.
        let (root, seconds) = match system {
            System::Kubo => kubo(bench, &file, &content).await?,
            System::Command => command_line(bench, &file, &content).await?,
            _ => {
                let (root, seconds, bytes) = causeway(bench, &content).await?;
                packed_bytes = bytes;
                (root, seconds)
            }
        };
        roots.push(root);
        Ok(seconds)
    });
    let series = series.await?;
    ensure!(roots.windows(2).all(|pair| pair[0] == pair[1]), "the CIDs differ: {roots:?}");
    let name = format!("an upload of {} MiB of text on 20 Mbit/s", number(content.len() as f64 / f64::from(1 << 20)));
    let case = Case::new(name, "s", series);
    let faster = case.value(System::Kubo) / case.value(System::Causeway);
    let ratio = content.len() as f64 / packed_bytes.max(1) as f64;
    let case = case
        .measure(Measure::higher(faster, "× as fast as Kubo's add").bar("2.4 ×", 2.4))
        .measure(Measure::higher(faster / ratio, "× the compression ratio").bar("0.9 ×", 0.9));
    let case = case.note(format!("zstd at level {LEVEL}: {ratio:.2} × smaller; its time is counted"));
    let of_command = case.value(System::Kubo) / case.value(System::Command);
    Ok(vec![match command {
        Some(_) => {
            case.measure(Measure::higher(of_command, "× as fast as Kubo's add, by `causeway add`").bar("2.4 ×", 2.4))
        }
        None => case.note("commands that compress on the way are not supported by this binary"),
    }])
}

/// Fails unless a small compressed upload is accepted. A node that rejects a long one ends the connection meanwhile.
async fn require_zstd(bench: &Bench) -> Result<()> {
    let node = node(bench).await?;
    let (status, text) = post(&node.admin, zstd::bulk::compress(b"text", LEVEL)?).await?;
    match status {
        200 => Ok(()),
        UNSUPPORTED_MEDIA_TYPE => Err(Unsupported::error("`Content-Encoding: zstd` of an upload", BAR)),
        status => bail!("{status}: {text}"),
    }
}

/// `ipfs add` to a node behind the link: the root, and the seconds.
async fn kubo(bench: &Bench, file: &Path, content: &[u8]) -> Result<(String, f64)> {
    let node = Kubo::start(&bench.options.binaries.kubo).await?;
    let link = link(bench.slow_link(), node.api_address()?).await?;
    let (address, file) = (link.address(), file.to_owned());
    // The link needs this runtime meanwhile.
    let (node, added) = tokio::task::spawn_blocking(move || {
        let added = node.add_through(address, &file);
        (node, added)
    })
    .await?;
    let added = added?;
    let passed = link.passed().up;
    ensure!(passed >= content.len() as u64, "{passed} bytes passed the link");
    let root = added.stdout.lines().last().unwrap_or_default().trim().to_owned();
    http::get(&node.server.at(&format!("/ipfs/{root}"))).await?.of_content(content)?;
    Ok((root, added.wall.as_secs_f64()))
}

/// A compressed upload to a node behind the link: the root, the seconds, and the bytes of the body.
async fn causeway(bench: &Bench, content: &[u8]) -> Result<(String, f64, usize)> {
    let node = node(bench).await?;
    let link = link(bench.slow_link(), node.admin_address()?).await?;
    let begun = Instant::now();
    let packed = zstd::bulk::compress(content, LEVEL)?;
    let packed_bytes = packed.len();
    let (status, text) = post(&format!("http://{}", link.address()), packed).await?;
    let seconds = begun.elapsed().as_secs_f64();
    ensure!(status == 200, "{status}: {text}");
    let passed = link.passed().up;
    ensure!(passed >= packed_bytes as u64, "{passed} bytes passed the link");
    let answer: Value = serde_json::from_str(&text)?;
    let root = answer["roots"][0]["cid"].as_str().with_context(|| format!("no root in {text}"))?.to_owned();
    http::get(&node.server.at(&format!("/ipfs/{root}"))).await?.of_content(content)?;
    Ok((root, seconds, packed_bytes))
}

/// `causeway add` to a node behind the link: the root, and the seconds.
async fn command_line(bench: &Bench, file: &Path, content: &[u8]) -> Result<(String, f64)> {
    let node = node(bench).await?;
    let link = link(bench.slow_link(), node.admin_address()?).await?;
    let admin = format!("http://{THIS_MACHINE}:{}", link.address().port());
    let file = file.to_owned();
    // The link needs this runtime meanwhile.
    let (node, added) = tokio::task::spawn_blocking(move || {
        let added = node.add_through(&admin, &file);
        (node, added)
    })
    .await?;
    let added = added?;
    let passed = link.passed().up;
    ensure!(passed > 0, "nothing passed the link");
    let root = added.stdout.trim().to_owned();
    http::get(&node.server.at(&format!("/ipfs/{root}"))).await?.of_content(content)?;
    Ok((root, added.wall.as_secs_f64()))
}

async fn node(bench: &Bench) -> Result<Causeway> {
    let setup = Setup { flags: bench.options.flags.get(), ..Setup::default() };
    Causeway::start(&bench.options.binaries.causeway, setup).await
}

/// An upload of a zstd frame: the status and the answer.
async fn post(admin: &str, packed: Vec<u8>) -> Result<(u16, String)> {
    let client = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build()?;
    let request = client.post(format!("{admin}/upload?cid-version=1&name=text.txt")).bearer_auth(token());
    let request = request.header("content-encoding", "zstd").header("content-type", "text/plain");
    let response = request.body(packed).send().await?;
    Ok((response.status().as_u16(), response.text().await?))
}

async fn link(link: Link, to: SocketAddr) -> Result<Relay> {
    let relay = Relay::bind(Protocol::Tcp, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), link).await?;
    relay.forward_to(to);
    Ok(relay)
}
