//! 100 MiB at once: from Kubo, from Causeway, from four sources, and on loopback.

use super::world::{self, Remote};
use super::{Options, ceiling};
use crate::child::datagrams_dropped;
use crate::comparison::{Case, Measure, System, Turn, rounds};
use crate::directory::temp_dir;
use crate::http;
use crate::relay::Link;
use crate::sample;
use crate::servers::{Causeway, Kubo, Setup, Transport};
use anyhow::{Result, ensure};
use tempfile::TempDir;

/// The large file, in bytes.
const LARGE: usize = 100 << 20;
/// Of each of the four sources.
const SLOW_BITS_PER_SECOND: u64 = 50_000_000;
const BLOCK_BYTES: usize = 256 << 10;

/// 100 MiB that only a Kubo has, far away.
pub async fn cold(options: &Options, transport: Transport) -> Result<Case> {
    let source = Remote::<Kubo>::start(options, options.link()).await?;
    let content = sample::bytes(options.size(LARGE), 1);
    let path = source.node.add(&content)?;
    let blocks = world::all_blocks(&source.node, &path).await?;
    let (mut overhead, mut dropped) = (0.0_f64, 0);
    let systems = [System::Http, System::Ceiling, System::Kubo, System::Causeway];
    let dropped_before = datagrams_dropped(std::process::id())?;
    let series = rounds(options.run.rounds(), &systems, async |system, _| {
        let before = source.passed(system, transport);
        let seconds = match system {
            System::Ceiling => ceiling::fetch(&source.multiaddr(transport), &blocks).await?.as_secs_f64(),
            System::Http => whole(&source.url(), &path, &content).await?,
            client => {
                let server = world::client(client, options, &[source.multiaddr(transport)]).await?;
                let seconds = whole(&server.url, &path, &content).await?;
                if system == System::Causeway {
                    dropped += server.process.datagrams_dropped()?;
                }
                seconds
            }
        };
        let passed = source.check(system, transport, before, content.len())?;
        if system == System::Causeway {
            overhead = overhead.max(passed.down as f64 / content.len() as f64);
        }
        Ok(seconds)
    });
    let name = format!("{} MiB cold, one Kubo, {}", content.len() >> 20, transport.name());
    let case = Case::new(name, "s", series.await?);
    let of_http = |system| case.value(system) / case.value(System::Http);
    let stretch = format!("stretch {:.1}, Kubo's {:.1}", of_http(System::Causeway), of_http(System::Kubo));
    let of_ceiling = case.value(System::Causeway) / case.value(System::Ceiling);
    let bar = if transport == Transport::Tcp { 1.15 } else { 1.2 };
    let dropped_here = datagrams_dropped(std::process::id())?.saturating_sub(dropped_before);
    let measure =
        Measure::lower(of_ceiling, "× the ceiling").bar(format!("{bar} × the ceiling"), bar).aim("1.05 ×", 1.05);
    Ok(case
        .measure(measure)
        .note(stretch)
        .note(format!("bytes through the link: {overhead:.3} × the file"))
        .note(format!("datagrams dropped by full buffers: {dropped} at Causeway, {dropped_here} at the link")))
}

/// 100 MiB that only a Causeway has, far away.
pub async fn ours(options: &Options, transport: Transport) -> Result<Case> {
    let content = sample::bytes(options.size(LARGE), 2);
    let (path, dir) = packed(options, &content).await?;
    let source = Remote::<Causeway>::start(options, options.link(), &dir.path().join("content.car")).await?;
    let systems = [System::Http, System::Causeway, System::Kubo];
    let series = rounds(options.run.rounds(), &systems, async |system, _| {
        let before = source.passed(system, transport);
        let seconds = if system == System::Http {
            whole(&source.url(), &path, &content).await?
        } else {
            let server = world::client(system, options, &[source.multiaddr(transport)]).await?;
            whole(&server.url, &path, &content).await?
        };
        source.check(system, transport, before, content.len())?;
        Ok(seconds)
    });
    let name = format!("{} MiB cold, Causeway from Causeway, {}", content.len() >> 20, transport.name());
    let case = Case::new(name, "s", series.await?);
    let stretch = case.value(System::Causeway) / case.value(System::Http);
    let measure = Measure::lower(stretch, "stretch");
    let measure = match transport {
        Transport::Tcp => measure.bar("stretch 1.8", 1.8).aim("1.4", 1.4),
        Transport::Quic => measure.bar("stretch 2.5", 2.5).aim("1.6", 1.6),
    };
    Ok(case.measure(measure).note("Kubo is a client of the same Causeway"))
}

/// 100 MiB from four Causeways, each on a slow link, against one of them.
pub async fn four(options: &Options) -> Result<Case> {
    let content = sample::bytes(options.size(LARGE), 3);
    let (path, dir) = packed(options, &content).await?;
    let link = Link { bits_per_second: Some(SLOW_BITS_PER_SECOND), ..options.link() };
    let mut sources = Vec::new();
    for _ in 0..4 {
        sources.push(Remote::<Causeway>::start(options, link, &dir.path().join("content.car")).await?);
    }
    let addresses: Vec<String> = sources.iter().map(|source| source.multiaddr(Transport::Tcp)).collect();
    let passed = || sources.iter().map(Remote::passed_down).sum::<u64>();
    let mut overhead: f64 = 0.0;
    let systems = [System::OneSource, System::Causeway];
    let series = rounds(options.run.rounds(), &systems, async |system, _| {
        let peers = if system == System::OneSource { &addresses[..1] } else { &addresses };
        let before = passed();
        // Without a DHT, which would tell them of the other sources.
        let flags = [options.flags.get(), vec!["--dht", "off"]].concat();
        let setup = Setup { peers, flags, ..Setup::default() };
        let client = Causeway::start(&options.binaries.causeway, setup).await?.server;
        let seconds = whole(&client.url, &path, &content).await?;
        let ratio = (passed() - before) as f64 / content.len() as f64;
        ensure!(ratio >= 1.0, "{ratio:.2} × the file passed the links");
        if system == System::Causeway {
            overhead = overhead.max(ratio);
        }
        Ok(seconds)
    });
    let name = format!("{} MiB from four Causeway peers, 50 Mbit/s each", content.len() >> 20);
    let case = Case::new(name, "s", series.await?);
    let ratio = case.value(System::OneSource) / case.value(System::Causeway);
    let measure = Measure::higher(ratio, "× one peer").bar("3.4 × one peer", 3.4).aim("3.9 ×", 3.9);
    Ok(case.measure(measure).note(format!("bytes through the links: {overhead:.3} × the file (duplicates)")))
}

/// 100 MiB cold from a Kubo on loopback.
pub async fn loopback(options: &Options, transport: Transport) -> Result<Case> {
    let source = Kubo::start(&options.binaries.kubo).await?;
    let content = sample::bytes(options.size(LARGE), 4);
    let path = source.add(&content)?;
    let blocks = world::all_blocks(&source, &path).await?;
    let address = source.multiaddr(transport)?.to_owned();
    let systems = [System::Http, System::Ceiling, System::Kubo, System::Causeway];
    let series = rounds(options.run.rounds(), &systems, async |system, _| {
        let rate = |seconds: f64| content.len() as f64 / 1e6 / seconds;
        Ok(match system {
            System::Http => rate(whole(&source.server.url, &path, &content).await?).into(),
            System::Ceiling => rate(ceiling::fetch(&address, &blocks).await?.as_secs_f64()).into(),
            client => {
                let server = world::client(client, options, std::slice::from_ref(&address)).await?;
                let cpu = server.process.cpu();
                let value = rate(whole(&server.url, &path, &content).await?);
                let cpu = server.process.cpu().saturating_sub(cpu).as_secs_f64();
                let blocks = content.len().div_ceil(BLOCK_BYTES) as f64;
                Turn { value, cpu_microseconds: cpu * 1e6 / blocks, latency: None }
            }
        })
    });
    let name = format!("{} MiB cold on loopback from Kubo, {}", content.len() >> 20, transport.name());
    let case = Case::new(name, "MB/s", series.await?);
    let measure = Measure::higher(case.value(System::Causeway), "MB/s")
        .bar("200 MB/s", 200.0)
        .aim("the ceiling", case.value(System::Ceiling));
    let kubo = case.against(System::Kubo);
    let cpu = Measure::lower(case.cpu_microseconds(System::Causeway) * 1e3 / BLOCK_BYTES as f64, "ns of CPU a byte")
        .bar("5.5 ns a byte", 5.5)
        .aim("4.5 ns", 4.5);
    Ok(case.measure(measure).measure(kubo).measure(cpu))
}

/// Seconds until the last byte; wrong bytes are an error.
pub async fn whole(url: &str, path: &str, content: &[u8]) -> Result<f64> {
    Ok(http::get(&format!("{url}{path}")).await?.of_content(content)?.complete.as_secs_f64())
}

/// The path of some content, and a directory with its DAG in `content.car`. A Kubo makes both, so that all DAGs are
/// alike.
async fn packed(options: &Options, content: &[u8]) -> Result<(String, TempDir)> {
    let dir = temp_dir("archive")?;
    let packer = Kubo::start(&options.binaries.kubo).await?;
    let path = packer.add(content)?;
    world::archive(&packer, &path, &dir.path().join("content.car")).await?;
    Ok((path, dir))
}
