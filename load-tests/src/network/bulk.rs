//! 100 MiB at once: from Kubo, from Causeway, from four sources, and without a relay.

use super::Options;
use super::asker;
use super::figures::{Rounds, Row, Who};
use super::world::{self, Far};
use crate::child::datagrams_dropped;
use crate::fetch::get;
use crate::goals::Goal;
use crate::relay::Link;
use crate::sample;
use crate::servers::{Causeway, Kubo, Setup, Transport};
use anyhow::{Result, bail, ensure};
use std::time::Duration;
use tempfile::TempDir;

/// The large file, in bytes.
const LARGE: usize = 100 << 20;
/// Of each of the four sources.
const SLOW_BITS_PER_SECOND: u64 = 50_000_000;

/// 100 MiB that only a Kubo holds, far away.
pub async fn cold(options: &Options, transport: Transport) -> Result<Row> {
    let source = Far::<Kubo>::start(options, options.link()).await?;
    let content = sample::bytes(options.size(LARGE), 1);
    let path = source.node.add(&content)?;
    let blocks = world::all_blocks(&source.node, &path).await?;
    let (mut overhead, mut dropped) = (0.0_f64, 0);
    let who = [Who::Http, Who::Ceiling, Who::Kubo, Who::Causeway];
    let dropped_here = datagrams_dropped(std::process::id());
    let rounds = Rounds::measure(options.run.rounds(), &who, async |who, _| {
        let before = source.passed(who, transport);
        let seconds = match who {
            Who::Ceiling => asker::ask(&source.multiaddr(transport), &blocks).await?.as_secs_f64(),
            Who::Http => whole(&source.url(), &path, &content).await?,
            client => {
                let server = world::client(client, options, &[source.multiaddr(transport)]).await?;
                let seconds = whole(&server.url, &path, &content).await?;
                if who == Who::Causeway {
                    dropped += server.process.datagrams_dropped();
                }
                seconds
            }
        };
        let passed = source.check(who, transport, before, content.len())?;
        if who == Who::Causeway {
            overhead = overhead.max(passed.down as f64 / content.len() as f64);
        }
        Ok(seconds)
    });
    let rounds = rounds.await?;
    let (http, ceiling, ours) = (rounds.of(Who::Http), rounds.of(Who::Ceiling), rounds.of(Who::Causeway));
    let bar = if transport == Transport::Tcp { 1.15 } else { 1.2 };
    Ok(Row {
        case: format!("{} MiB cold, one Kubo, {}", content.len() >> 20, transport.name()),
        unit: "s",
        measured: ours / ceiling,
        measured_unit: "× the ceiling",
        higher_is_better: false,
        bar: Goal::new(format!("{bar} × the ceiling"), bar),
        aim: Goal::new("1.05 ×", 1.05),
        notes: vec![
            format!("stretch {:.1}, Kubo's {:.1}", ours / http, rounds.of(Who::Kubo) / http),
            format!("bytes through the relay: {overhead:.3} × the file"),
            format!(
                "datagrams lost in full buffers: {dropped} at Causeway, {} at the relay",
                datagrams_dropped(std::process::id()).saturating_sub(dropped_here)
            ),
        ],
        series: rounds.0,
    })
}

/// 100 MiB that only a Causeway holds, far away.
pub async fn ours(options: &Options, transport: Transport) -> Result<Row> {
    let content = sample::bytes(options.size(LARGE), 2);
    let (path, dir) = packed(options, &content).await?;
    let source = Far::<Causeway>::start(options, options.link(), &dir.path().join("content.car")).await?;
    let rounds = Rounds::measure(options.run.rounds(), &[Who::Http, Who::Causeway, Who::Kubo], async |who, _| {
        let before = source.passed(who, transport);
        let seconds = if who == Who::Http {
            whole(&source.url(), &path, &content).await?
        } else {
            let server = world::client(who, options, &[source.multiaddr(transport)]).await?;
            whole(&server.url, &path, &content).await?
        };
        source.check(who, transport, before, content.len())?;
        Ok(seconds)
    });
    let rounds = rounds.await?;
    Ok(Row {
        case: format!("{} MiB cold, Causeway from Causeway, {}", content.len() >> 20, transport.name()),
        unit: "s",
        measured: rounds.of(Who::Causeway) / rounds.of(Who::Http),
        measured_unit: "stretch",
        higher_is_better: false,
        bar: Goal::new("stretch 3", 3.0),
        aim: Goal::new("stretch 1.5", 1.5),
        notes: vec!["Kubo is a client of the same Causeway".to_owned()],
        series: rounds.0,
    })
}

/// 100 MiB from four Causeways, each on a slow line, against one of them.
pub async fn four(options: &Options) -> Result<Row> {
    let content = sample::bytes(options.size(LARGE), 3);
    let (path, dir) = packed(options, &content).await?;
    let link = Link { bits_per_second: Some(SLOW_BITS_PER_SECOND), ..options.link() };
    let mut sources = Vec::new();
    for _ in 0..4 {
        sources.push(Far::<Causeway>::start(options, link, &dir.path().join("content.car")).await?);
    }
    let addresses: Vec<String> = sources.iter().map(|source| source.multiaddr(Transport::Tcp)).collect();
    let passed = || sources.iter().map(Far::passed_down).sum::<u64>();
    let mut overhead: f64 = 0.0;
    let rounds = Rounds::measure(options.run.rounds(), &[Who::OneSource, Who::Causeway], async |who, _| {
        let peers = if who == Who::OneSource { &addresses[..1] } else { &addresses };
        let before = passed();
        // Without a DHT, in which they would hear of the other sources.
        let flags = [options.flags(), vec!["--dht", "off"]].concat();
        let setup = Setup { peers, flags, ..Setup::default() };
        let client = Causeway::start(&options.binaries.causeway, setup).await?.server;
        let seconds = whole(&client.url, &path, &content).await?;
        let ratio = (passed() - before) as f64 / content.len() as f64;
        ensure!(ratio >= 1.0, "{ratio:.2} × the file came through the relays");
        if who == Who::Causeway {
            overhead = overhead.max(ratio);
        }
        Ok(seconds)
    });
    let rounds = rounds.await?;
    Ok(Row {
        case: format!("{} MiB from four Causeway peers, 50 Mbit/s each", content.len() >> 20),
        unit: "s",
        measured: rounds.of(Who::OneSource) / rounds.of(Who::Causeway),
        measured_unit: "× one peer",
        higher_is_better: true,
        bar: Goal::new("3.4 × one peer", 3.4),
        aim: Goal::new("3.9 ×", 3.9),
        notes: vec![format!("bytes through the relays: {overhead:.3} × the file (duplicates)")],
        series: rounds.0,
    })
}

/// 100 MiB cold from a Kubo next door.
pub async fn loopback(options: &Options) -> Result<Row> {
    let source = Kubo::start(&options.binaries.kubo).await?;
    let content = sample::bytes(options.size(LARGE), 4);
    let path = source.add(&content)?;
    let blocks = world::all_blocks(&source, &path).await?;
    let address = source.multiaddr(Transport::Tcp)?.to_owned();
    let who = [Who::Http, Who::Ceiling, Who::Kubo, Who::Causeway];
    let rounds = Rounds::measure(options.run.rounds(), &who, async |who, _| {
        let seconds = match who {
            Who::Http => whole(&source.server.url, &path, &content).await?,
            Who::Ceiling => asker::ask(&address, &blocks).await?.as_secs_f64(),
            client => {
                let server = world::client(client, options, std::slice::from_ref(&address)).await?;
                whole(&server.url, &path, &content).await?
            }
        };
        Ok(content.len() as f64 / 1e6 / seconds)
    });
    let rounds = rounds.await?;
    Ok(Row {
        case: format!("{} MiB cold on loopback from Kubo, TCP", content.len() >> 20),
        unit: "MB/s",
        measured: rounds.of(Who::Causeway),
        measured_unit: "MB/s",
        higher_is_better: true,
        bar: Goal::new("200 MB/s", 200.0),
        aim: Goal::new("the ceiling", rounds.of(Who::Ceiling)),
        notes: Vec::new(),
        series: rounds.0,
    })
}

/// Seconds until the last byte; wrong bytes are an error.
async fn whole(url: &str, path: &str, content: &[u8]) -> Result<f64> {
    let (times, body) = get(&format!("{url}{path}")).await?;
    if body != content {
        bail!("{url}{path}: wrong bytes");
    }
    ensure!(times.complete > Duration::ZERO, "no time has passed");
    Ok(times.complete.as_secs_f64())
}

/// The path of some content, and a folder with its DAG in `content.car`. A Kubo made both, so that all DAGs look alike.
async fn packed(options: &Options, content: &[u8]) -> Result<(String, TempDir)> {
    let dir = TempDir::with_prefix("causeway-bench-archive-")?;
    let packer = Kubo::start(&options.binaries.kubo).await?;
    let path = packer.add(content)?;
    world::archive(&packer, &path, &dir.path().join("content.car")).await?;
    Ok((path, dir))
}
