//! Resident memory of a Causeway with many connections while many misses stream through it.

use super::Options;
use super::peer::{self, Behaviour};
use super::world::Remote;
use crate::comparison::{Case, Measure, Series, System};
use crate::directory::temp_dir;
use crate::relay::Link;
use crate::sample;
use crate::servers::{Causeway, Kubo, Setup, Transport};
use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use libp2p::{Multiaddr, Swarm};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

const CONNECTIONS: usize = 1_000;
/// Connections that are being made at once.
const AT_ONCE: usize = 8;
const MISSES: usize = 200;
/// Of each file that misses, in bytes.
const FILE: usize = 4 << 20;
/// How fast each reader reads, in bytes per second: all of them together more slowly than the source sends, so that
/// read-ahead is buffered.
const READER_RATE: f64 = 64.0 * 1024.0;
/// The budget of the RAM tier, which does not count.
const RAM_TIER: u64 = 16 << 20;
/// For one response, and for a connection without streams.
const TIMEOUT: Duration = Duration::from_secs(600);
const MIB: f64 = 1024.0 * 1024.0;

/// The peak while all connections are open and all misses stream.
pub async fn resident(options: &Options) -> Result<Case> {
    let (connections, misses, len) = (options.size(CONNECTIONS), options.size(MISSES), options.size(FILE));
    let source = Remote::<Kubo>::start(options, Link { bits_per_second: None, ..options.link() }).await?;
    let site = temp_dir("misses")?;
    for n in 0..misses {
        std::fs::write(site.path().join(n.to_string()), sample::bytes(len, 300 << 32 | n as u64))?;
    }
    let root = source.node.add_directory(site.path())?;
    let ram = RAM_TIER.to_string();
    // All clients have one address here, and stand for many.
    let settings = [
        ("CAUSEWAY_CACHE_RAM_BYTES_MAX", ram.as_str()),
        ("CAUSEWAY_HTTP_CLIENT_MISSES_MAX", "1024"),
        ("CAUSEWAY_P2P_CONNECTIONS_MAX", "2048"),
        ("CAUSEWAY_P2P_CONNECTIONS_PER_IP_MAX", "2048"),
        ("CAUSEWAY_P2P_CONNECTIONS_PER_SUBNET_MAX", "2048"),
    ];
    let peers = [source.multiaddr(Transport::Tcp)];
    let setup = Setup { peers: &peers, flags: options.flags.get(), settings: &settings, ..Setup::default() };
    let causeway = Causeway::start(&options.binaries.causeway, setup).await?;
    let at_rest = causeway.server.process.resident_peak()?;
    let _crowd = crowd(&causeway, connections).await?;
    let open = causeway.metric("causeway_p2p_connections").await?;
    ensure!(open >= connections as f64, "only {open} of {connections} connections are open");
    let connected = causeway.server.process.resident_peak()?;
    eprintln!("  {open} connections; {misses} misses");
    let mut readers = JoinSet::new();
    for n in 0..misses {
        let (url, file) = (format!("{}{root}/{n}", causeway.server.url), site.path().join(n.to_string()));
        readers.spawn(async move { Ok::<_, anyhow::Error>(slowly(&url).await? == tokio::fs::read(file).await?) });
    }
    while let Some(reader) = readers.join_next().await {
        ensure!(reader??, "wrong bytes");
    }
    let open_at_end = causeway.metric("causeway_p2p_connections").await?;
    let peak = causeway.server.process.resident_peak()?;
    let mib = |bytes: u64| bytes as f64 / MIB;
    let measured = mib(peak.saturating_sub(RAM_TIER));
    let name = format!("resident memory, {connections} connections and {misses} streaming misses, RAM tier excluded");
    let series = Series { system: System::Causeway, turns: vec![measured.into()] };
    Ok(Case::new(name, "MiB", vec![series])
        .measure(Measure::lower(measured, "MiB").bar("under 400 MiB", 400.0).aim("200 MiB", 200.0))
        .note(format!(
            "peak {:.0} MiB with a RAM tier of {:.0}; {:.0} after the start, {:.0} with all connections",
            mib(peak),
            mib(RAM_TIER),
            mib(at_rest),
            mib(connected)
        ))
        .note(format!("{open_at_end} connections at the end; readers read {:.0} KiB/s", READER_RATE / 1024.0)))
}

/// Idle peers, every second one over QUIC. They disconnect when this is dropped.
async fn crowd(causeway: &Causeway, count: usize) -> Result<JoinSet<()>> {
    let address = |n: usize| {
        let part = if n.is_multiple_of(2) { "/tcp/" } else { "/udp/" };
        let address = causeway.listening.iter().find(|address| address.contains(part));
        Ok::<Multiaddr, anyhow::Error>(address.with_context(|| format!("no {part}"))?.parse()?)
    };
    let addresses: Vec<Multiaddr> = (0..count).map(address).collect::<Result<_>>()?;
    // A few at a time: a burst of connections would be another benchmark.
    let swarms = futures::stream::iter(addresses).map(connected).buffer_unordered(AT_ONCE);
    let mut swarms = std::pin::pin!(swarms);
    let mut crowd = JoinSet::new();
    while let Some(swarm) = swarms.next().await {
        let mut swarm = swarm.with_context(|| format!("with {} connections", crowd.len()))?;
        crowd.spawn(async move { peer::drive(&mut swarm).await });
        if crowd.len() % 100 == 0 {
            eprintln!("  {} connections", crowd.len());
        }
    }
    Ok(crowd)
}

async fn connected(address: Multiaddr) -> Result<Swarm<Behaviour>> {
    let mut swarm = peer::swarm(TIMEOUT * 2, |key| Behaviour::new(key, None))?;
    peer::connect(&mut swarm, address).await?;
    Ok(swarm)
}

/// Gets a file at the reader's rate. A connection of its own keeps the kernel's buffers of one from serving another.
async fn slowly(url: &str) -> Result<Vec<u8>> {
    let client = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build()?;
    let begun = Instant::now();
    let mut response = client.get(url).send().await?;
    ensure!(response.status() == 200, "{url}: {}", response.status());
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        body.extend_from_slice(&chunk);
        sleep_until(begun + Duration::from_secs_f64(body.len() as f64 / READER_RATE)).await;
    }
    Ok(body)
}
