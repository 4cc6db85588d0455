//! Resident memory of a Causeway with many connections while many misses stream through it.

use super::Options;
use super::figures::{Row, Series, Who};
use super::world::Far;
use crate::goals::Goal;
use crate::relay::Link;
use crate::sample;
use crate::servers::{Causeway, Kubo, Setup, Transport};
use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, Swarm, SwarmBuilder, identify, noise, ping, tcp, tls, yamux};
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

const CONNECTIONS: usize = 1_000;
/// Connections that are being made at once.
const AT_ONCE: usize = 8;
const MISSES: usize = 200;
/// Of each file that misses, in bytes.
const FILE: usize = 4 << 20;
/// How fast each reader reads, in bytes per second: all of them together more slowly than the source sends, so that what is
/// read ahead is held.
const READER_RATE: f64 = 64.0 * 1024.0;
/// What the RAM tier may hold, which does not count.
const RAM_TIER: u64 = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(600);
const MIB: f64 = 1024.0 * 1024.0;

/// The peak while every connection stands and every miss streams.
pub async fn resident(options: &Options) -> Result<Row> {
    let (connections, misses, len) = (options.size(CONNECTIONS), options.size(MISSES), options.size(FILE));
    let source = Far::<Kubo>::start(options, Link { bits_per_second: None, ..options.link() }).await?;
    let site = TempDir::with_prefix("causeway-bench-misses-")?;
    for n in 0..misses {
        std::fs::write(site.path().join(n.to_string()), sample::bytes(len, 300 << 32 | n as u64))?;
    }
    let root = source.node.add_folder(site.path())?;
    let ram = RAM_TIER.to_string();
    // Everybody comes from one address here, and stands for many.
    let settings = [
        ("CAUSEWAY_CACHE_RAM_BYTES_MAX", ram.as_str()),
        ("CAUSEWAY_HTTP_CLIENT_MISSES_MAX", "1024"),
        ("CAUSEWAY_P2P_CONNECTIONS_MAX", "2048"),
        ("CAUSEWAY_P2P_CONNECTIONS_PER_IP_MAX", "2048"),
        ("CAUSEWAY_P2P_CONNECTIONS_PER_SUBNET_MAX", "2048"),
    ];
    let peers = [source.multiaddr(Transport::Tcp)];
    let setup = Setup { peers: &peers, flags: options.flags(), settings: &settings, ..Setup::default() };
    let causeway = Causeway::start(&options.binaries.causeway, setup).await?;
    let at_rest = causeway.server.process.resident_peak()?;
    let _crowd = crowd(&causeway, connections).await?;
    let stand = causeway.metric("causeway_p2p_connections").await?;
    ensure!(stand >= connections as f64, "only {stand} of {connections} connections stand");
    let connected = causeway.server.process.resident_peak()?;
    eprintln!("  {stand} connections stand; {misses} misses");
    let mut readers = JoinSet::new();
    for n in 0..misses {
        let (url, file) = (format!("{}{root}/{n}", causeway.server.url), site.path().join(n.to_string()));
        readers.spawn(async move { Ok::<_, anyhow::Error>(slowly(&url).await? == tokio::fs::read(file).await?) });
    }
    while let Some(reader) = readers.join_next().await {
        ensure!(reader??, "wrong bytes");
    }
    let stood = causeway.metric("causeway_p2p_connections").await?;
    let peak = causeway.server.process.resident_peak()?;
    let mib = |bytes: u64| bytes as f64 / MIB;
    let measured = mib(peak.saturating_sub(RAM_TIER));
    Ok(Row {
        case: format!("resident memory, {connections} connections and {misses} streaming misses, RAM tier aside"),
        unit: "MiB",
        series: vec![Series { who: Who::Causeway, rounds: vec![measured] }],
        measured,
        measured_unit: "MiB",
        higher_is_better: false,
        bar: Goal::new("under 400 MiB", 400.0),
        aim: Goal::new("200 MiB", 200.0),
        notes: vec![
            format!(
                "peak {:.0} MiB with a RAM tier of {:.0}; {:.0} after the start, {:.0} with all connections",
                mib(peak),
                mib(RAM_TIER),
                mib(at_rest),
                mib(connected)
            ),
            format!("{stood} connections stood at the end; readers take {:.0} KiB/s", READER_RATE / 1024.0),
        ],
    })
}

#[derive(NetworkBehaviour)]
struct Behaviour {
    identify: identify::Behaviour,
    ping: ping::Behaviour,
}

/// Peers that want nothing: every second one over QUIC. They leave when this is dropped.
async fn crowd(causeway: &Causeway, count: usize) -> Result<JoinSet<()>> {
    let address = |n: usize| {
        let part = if n.is_multiple_of(2) { "/tcp/" } else { "/udp/" };
        let address = causeway.listening.iter().find(|address| address.contains(part));
        Ok::<Multiaddr, anyhow::Error>(address.with_context(|| format!("no {part}"))?.parse()?)
    };
    let addresses: Vec<Multiaddr> = (0..count).map(address).collect::<Result<_>>()?;
    // A few at a time: what many peers do at once is another question.
    let swarms = futures::stream::iter(addresses).map(connected).buffer_unordered(AT_ONCE);
    let mut swarms = std::pin::pin!(swarms);
    let mut crowd = JoinSet::new();
    while let Some(swarm) = swarms.next().await {
        let mut swarm = swarm.with_context(|| format!("with {} connections", crowd.len()))?;
        crowd.spawn(async move {
            loop {
                swarm.select_next_some().await;
            }
        });
        if crowd.len() % 100 == 0 {
            eprintln!("  {} connections", crowd.len());
        }
    }
    Ok(crowd)
}

async fn connected(address: Multiaddr) -> Result<Swarm<Behaviour>> {
    let mut swarm = SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(tcp::Config::default().nodelay(true), (noise::Config::new, tls::Config::new), yamux::Config::default)?
        .with_quic()
        .with_behaviour(|key| Behaviour {
            identify: identify::Behaviour::new(identify::Config::new("ipfs/0.1.0".to_owned(), key.public())),
            ping: ping::Behaviour::default(),
        })?
        .with_swarm_config(|config| config.with_idle_connection_timeout(PATIENCE * 2))
        .build();
    swarm.dial(address)?;
    let established = async {
        loop {
            match swarm.select_next_some().await {
                SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received { .. })) => return Ok(()),
                SwarmEvent::OutgoingConnectionError { error, .. } => anyhow::bail!("{error}"),
                SwarmEvent::ConnectionClosed { cause, .. } => anyhow::bail!("closed: {cause:?}"),
                _ => {}
            }
        }
    };
    timeout(PATIENCE, established).await??;
    Ok(swarm)
}

/// Gets a file at the reader's rate. A connection of its own keeps the kernel's buffers of one from serving another.
async fn slowly(url: &str) -> Result<Vec<u8>> {
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build()?;
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
