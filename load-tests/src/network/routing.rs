//! Providers that only the DHT knows: finding them, and being found.

use super::Options;
use super::dht::{Dht, Stored};
use super::latency::seed;
use super::world::{self, Remote};
use crate::comparison::{Case, Measure, Series, System, rounds};
use crate::directory::temp_dir;
use crate::http::get;
use crate::relay::Link;
use crate::sample;
use crate::servers::{self, Causeway, Kubo, Server, Setup, Transport};
use crate::stats::median;
use anyhow::{Context, Result, bail, ensure};
use content::Cid;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tokio::sync::broadcast;
use tokio::time::timeout;

/// DHT nodes of the larger network.
const NODES: usize = 20;
/// How long a fresh client has to fill its routing table before the clock starts.
const SETTLE: Duration = Duration::from_secs(15);
/// For a record to be published.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(120);
const PAGE: usize = 24 << 10;
pub const SYSTEMS: [System; 2] = [System::Kubo, System::Causeway];

/// A source that is no DHT server itself, so that no lookup meets it.
pub fn no_server(settings: &mut Value) {
    settings["Routing"]["Type"] = json!("dhtclient");
}

/// A page whose provider is known to a third node on loopback.
pub async fn near(options: &Options) -> Result<Case> {
    let dht = Kubo::start(&options.binaries.kubo).await?;
    let source = Remote::<Kubo>::start_with(options, Link::delay(Duration::ZERO), no_server).await?;
    let known = dht.multiaddr(Transport::Tcp)?.to_owned();
    source.node.connect(&known).await?;
    let series = find(options, &source, &[known], 80).await?;
    let case = Case::new("first byte, provider known only to the DHT, loopback", "s", series);
    let measure = Measure::lower(case.value(System::Causeway), "s").bar("0.2 s", 0.2).aim("0.05 s", 0.05);
    Ok(case.measure(measure).note("one DHT node, which is a Kubo; fresh clients and new content each time"))
}

/// The same among twenty nodes, all of them far away.
pub async fn far(options: &Options) -> Result<Case> {
    let dht = Dht::start(NODES, options.link()).await?;
    let source = Remote::<Kubo>::start_with(options, options.link(), no_server).await?;
    source.node.connect(&dht.addresses[0]).await?;
    settle(&source.node, 1).await?;
    let series = find(options, &source, &dht.addresses, 90).await?;
    let name = format!("the same, {NODES} DHT nodes, {} ms each", options.link().round_trip().as_millis());
    let case = Case::new(name, "s", series);
    let kubo = case.value(System::Kubo);
    let measure = Measure::lower(case.value(System::Causeway), "s")
        .bar("1 s less than Kubo", kubo - 1.0)
        .aim("a third of Kubo's", kubo / 3.0);
    Ok(case.measure(measure).note(
        "the DHT nodes are libp2p's, in this process; a client knows one of them and has had time to fill its routing \
         table",
    ))
}

/// Seconds to the first byte, for clients that know the first node of `dht` and no other peer.
async fn find(options: &Options, source: &Remote<Kubo>, dht: &[String], row: u64) -> Result<Vec<Series>> {
    rounds(options.run.rounds(), &SYSTEMS, async |system, round| {
        let content = sample::bytes(PAGE, seed(row, system, round));
        let path = source.node.add(&content)?;
        source.node.provide(&path).await?;
        let client = joined(system, options, dht).await?;
        let before = source.passed_down();
        let response = get(&client.at(&path)).await?.of_content(&content)?;
        let passed = source.passed_down() - before;
        ensure!(passed >= content.len() as u64, "only {passed} bytes passed the source's links");
        Ok(response.first_byte.as_secs_f64())
    })
    .await
}

/// A fresh client that knows the first node of `dht`, and has had time to learn of the others.
pub async fn joined(system: System, options: &Options, dht: &[String]) -> Result<Server> {
    let first = dht.first().context("a DHT without nodes")?;
    let enough = (dht.len() * 3).div_ceil(4);
    match system {
        System::Kubo => {
            let kubo = Kubo::start(&options.binaries.kubo).await?;
            kubo.connect(first).await?;
            settle(&kubo, enough).await?;
            Ok(kubo.server)
        }
        System::Causeway => {
            let setup = Setup { bootstrap: Some(first), flags: options.flags.get(), ..Setup::default() };
            let causeway = Causeway::start(&options.binaries.causeway, setup).await?;
            let begun = Instant::now();
            let known = || causeway.metric("causeway_dht_routing_table_peers{dht=\"lan\"}");
            while known().await? < enough as f64 && begun.elapsed() < SETTLE {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Ok(causeway.server)
        }
        _ => bail!("{system} is not measured here"),
    }
}

/// The systems of a row whose DHT is a Kubo: with Rainbow, if there is one.
pub fn systems_at(options: &Options) -> Vec<System> {
    let rainbow = options.rainbow.as_ref().map(|_| System::Rainbow);
    SYSTEMS.into_iter().chain(rainbow).collect()
}

/// A fresh client of a DHT that consists of one Kubo. Rainbow has no DHT of local networks: it asks that Kubo over HTTP,
/// as it asks its delegated routers by default.
pub async fn joined_at(system: System, options: &Options, dht: &Kubo) -> Result<Server> {
    match (system, &options.rainbow) {
        (System::Rainbow, Some(rainbow)) => servers::rainbow(rainbow, &dht.server.url).await,
        _ => joined(system, options, &[dht.multiaddr(Transport::Tcp)?.to_owned()]).await,
    }
}

/// Gives a Kubo time to learn of that many peers.
async fn settle(kubo: &Kubo, enough: usize) -> Result<()> {
    let begun = Instant::now();
    while known_to(kubo).await? < enough && begun.elapsed() < SETTLE {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Peers in the routing table of a Kubo.
async fn known_to(kubo: &Kubo) -> Result<usize> {
    let tables = kubo.lines("stats/dht", "lan").await?;
    let buckets = tables.iter().flat_map(|table| table["Buckets"].as_array().cloned().unwrap_or_default());
    Ok(buckets.filter_map(|bucket| bucket["Peers"].as_array().map(Vec::len)).sum())
}

/// From the command to publish until another node would find the record.
pub async fn publish(options: &Options) -> Result<Case> {
    let dht = Dht::start(NODES, options.link()).await?;
    let packer = Kubo::start(&options.binaries.kubo).await?;
    let mut everywhere: Vec<(System, f64)> = Vec::new();
    let series = rounds(options.run.rounds(), &SYSTEMS, async |system, round| {
        let content = sample::bytes(PAGE, seed(100, system, round));
        let stored = dht.stored();
        let (first, most) = match system {
            System::Kubo => published_by_kubo(options, &dht, &content, stored).await?,
            System::Causeway => published_by_causeway(options, &dht, &packer, &content, stored).await?,
            _ => bail!("{system} is not measured here"),
        };
        everywhere.push((system, most));
        Ok(first)
    });
    let case = Case::new("publication of a provider record, the same network", "s", series.await?);
    let kubo = case.value(System::Kubo);
    let five = 5.0 * options.link().round_trip().as_secs_f64();
    let [at_kubo, at_causeway] = SYSTEMS.map(|system| {
        let seconds = everywhere.iter().filter(|(publisher, _)| *publisher == system).map(|(_, seconds)| *seconds);
        median(seconds)
    });
    let measure =
        Measure::lower(case.value(System::Causeway), "s").bar("half of Kubo's", kubo / 2.0).aim("5 round trips", five);
    Ok(case
        .measure(measure)
        .note("until the first of the nodes has the record, which a third one then finds")
        .note(format!("until three quarters of the nodes have it: Kubo {at_kubo:.2}, Causeway {at_causeway:.2} s"))
        .note(
            "Causeway's clock starts when the process is ready, before it has joined the DHT; Kubo's when a node that \
             has joined is told to announce",
        ))
}

async fn published_by_kubo(
    options: &Options,
    dht: &Dht,
    content: &[u8],
    stored: broadcast::Receiver<Stored>,
) -> Result<(f64, f64)> {
    let kubo = Kubo::start(&options.binaries.kubo).await?;
    kubo.connect(&dht.addresses[0]).await?;
    settle(&kubo, NODES * 3 / 4).await?;
    let path = kubo.add(content)?;
    let begun = Instant::now();
    // Kubo responds when it has sent the record to all nodes; what counts is when they have stored it.
    let (provided, seen) = tokio::join!(kubo.provide(&path), seen(stored, &path, begun));
    provided?;
    seen
}

async fn published_by_causeway(
    options: &Options,
    dht: &Dht,
    packer: &Kubo,
    content: &[u8],
    stored: broadcast::Receiver<Stored>,
) -> Result<(f64, f64)> {
    let path = packer.add(content)?;
    let dir = temp_dir("archive")?;
    let archive = dir.path().join("content.car");
    world::archive(packer, &path, &archive).await?;
    let bootstrap = Some(dht.addresses[0].as_str());
    let setup = Setup { bootstrap, archive: Some(&archive), flags: options.flags.get(), ..Setup::default() };
    let causeway = Causeway::start(&options.binaries.causeway, setup).await?;
    seen(stored, &path, causeway.ready).await
}

/// Seconds until the first node has a record for a path, and until three quarters of them have.
async fn seen(mut stored: broadcast::Receiver<Stored>, path: &str, begun: Instant) -> Result<(f64, f64)> {
    let key = multihash(path)?;
    let (mut first, mut nodes) = (None, HashSet::new());
    let all = async {
        loop {
            let Stored { node, key: provided, at } = stored.recv().await?;
            if provided == key {
                let seconds = at.saturating_duration_since(begun).as_secs_f64();
                let first = *first.get_or_insert(seconds);
                nodes.insert(node);
                if nodes.len() >= NODES * 3 / 4 {
                    return Ok((first, seconds));
                }
            }
        }
    };
    match timeout(PUBLISH_TIMEOUT, all).await {
        Ok(seen) => seen,
        Err(_) => bail!("published at {} of {NODES} nodes within {PUBLISH_TIMEOUT:?}", nodes.len()),
    }
}

/// The multihash of a path `/ipfs/CID`, by which the DHT knows it.
pub fn multihash(path: &str) -> Result<Vec<u8>> {
    Ok(path.trim_start_matches("/ipfs/").parse::<Cid>()?.hash().to_bytes())
}
