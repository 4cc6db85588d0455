//! Providers that only the DHT knows: finding them, and being found.

use super::Options;
use super::figures::{Rounds, Row, Who};
use super::neighbourhood::{Kept, Neighbourhood};
use super::world::{self, Far};
use crate::fetch::get;
use crate::goals::Goal;
use crate::relay::Link;
use crate::sample;
use crate::servers::{Causeway, Kubo, Server, Setup, Transport};
use anyhow::{Context, Result, bail, ensure};
use content::Cid;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::broadcast;
use tokio::time::timeout;

/// DHT nodes of the larger network.
const NODES: usize = 20;
/// How long a fresh client has to learn of its neighbours before the clock starts.
const SETTLE: Duration = Duration::from_secs(15);
/// How long a record may take to be published.
const PATIENCE: Duration = Duration::from_secs(120);
const PAGE: usize = 24 << 10;
pub const RIVALS: [Who; 2] = [Who::Kubo, Who::Causeway];

/// A source that is no DHT node itself, so that nobody meets it on a walk.
pub fn no_server(settings: &mut Value) {
    settings["Routing"]["Type"] = json!("dhtclient");
}

/// A page whose provider is known to a third node next door.
pub async fn near(options: &Options) -> Result<Row> {
    let dht = Kubo::start(&options.binaries.kubo).await?;
    let source = Far::<Kubo>::start_with(options, Link::delay(Duration::ZERO), no_server).await?;
    let known = dht.multiaddr(Transport::Tcp)?.to_owned();
    source.node.connect(&known).await?;
    let rounds = find(options, &source, &[known], 80).await?;
    Ok(Row {
        case: "first byte, provider known only to the DHT, loopback".to_owned(),
        unit: "s",
        measured: rounds.of(Who::Causeway),
        measured_unit: "s",
        higher_is_better: false,
        bar: Goal::new("0.2 s", 0.2),
        aim: Goal::new("0.05 s", 0.05),
        notes: vec!["one DHT node, which is a Kubo; fresh clients and fresh content each time".to_owned()],
        series: rounds.0,
    })
}

/// The same among twenty nodes, all of them far away.
pub async fn far(options: &Options) -> Result<Row> {
    let neighbourhood = Neighbourhood::start(NODES, options.link()).await?;
    let source = Far::<Kubo>::start_with(options, options.link(), no_server).await?;
    source.node.connect(&neighbourhood.addresses[0]).await?;
    settle(&source.node, 1).await?;
    let rounds = find(options, &source, &neighbourhood.addresses, 90).await?;
    let kubo = rounds.of(Who::Kubo);
    Ok(Row {
        case: format!("the same, {NODES} DHT nodes, {} ms each", options.link().round_trip().as_millis()),
        unit: "s",
        measured: rounds.of(Who::Causeway),
        measured_unit: "s",
        higher_is_better: false,
        bar: Goal::new("1 s less than Kubo", kubo - 1.0),
        aim: Goal::new("a third of Kubo's", kubo / 3.0),
        notes: vec![
            "the DHT nodes are libp2p's, in this process; a client knows one of them and has had time to meet others"
                .to_owned(),
        ],
        series: rounds.0,
    })
}

/// Seconds to the first byte, for clients that know the first of `dht` and nobody else.
async fn find(options: &Options, source: &Far<Kubo>, dht: &[String], row: u64) -> Result<Rounds> {
    Rounds::measure(options.run.rounds(), &RIVALS, async |who, round| {
        let content = sample::bytes(PAGE, row << 32 | (who as u64) << 16 | round as u64);
        let path = source.node.add(&content)?;
        let said = source.node.call("routing/provide", cid(&path)).await?;
        ensure!(!said.contains("\"Type\":3"), "the source could not announce: {said}");
        let client = joined(who, options, dht).await?;
        let before = [Transport::Tcp, Transport::Quic].map(|transport| source.passed(who, transport));
        let (times, body) = get(&format!("{}{path}", client.url)).await?;
        ensure!(body == content, "{who}: wrong bytes");
        let after = [Transport::Tcp, Transport::Quic].map(|transport| source.passed(who, transport));
        let passed: u64 = before.iter().zip(after).map(|(before, after)| after.since(*before).down).sum();
        ensure!(passed >= content.len() as u64, "{who}: only {passed} bytes came through the source's relays");
        Ok(times.first_byte.as_secs_f64())
    })
    .await
}

fn cid(path: &str) -> &str {
    path.trim_start_matches("/ipfs/")
}

/// A fresh client that knows the first of `dht`, and has had time to learn of the others.
pub async fn joined(who: Who, options: &Options, dht: &[String]) -> Result<Server> {
    let first = dht.first().context("a DHT without nodes")?;
    let enough = (dht.len() * 3).div_ceil(4);
    let begun = Instant::now();
    let tick = || tokio::time::sleep(Duration::from_millis(100));
    match who {
        Who::Kubo => {
            let kubo = Kubo::start(&options.binaries.kubo).await?;
            kubo.connect(first).await?;
            settle(&kubo, enough).await?;
            Ok(kubo.server)
        }
        Who::Causeway => {
            let setup = Setup { bootstrap: Some(first), flags: options.flags(), ..Setup::default() };
            let causeway = Causeway::start(&options.binaries.causeway, setup).await?;
            let known = || causeway.metric("causeway_dht_routing_table_peers{dht=\"lan\"}");
            while known().await? < enough as f64 && begun.elapsed() < SETTLE {
                tick().await;
            }
            Ok(causeway.server)
        }
        _ => bail!("{who} takes no part"),
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
    let said = kubo.call("stats/dht", "lan").await?;
    let tables = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let buckets = tables.flat_map(|table| table["Buckets"].as_array().cloned().unwrap_or_default());
    Ok(buckets.filter_map(|bucket| bucket["Peers"].as_array().map(Vec::len)).sum())
}

/// From the order to publish until somebody else would find it.
pub async fn publish(options: &Options) -> Result<Row> {
    let neighbourhood = Neighbourhood::start(NODES, options.link()).await?;
    let packer = Kubo::start(&options.binaries.kubo).await?;
    let mut everywhere: Vec<(Who, f64)> = Vec::new();
    let rounds = Rounds::measure(options.run.rounds(), &RIVALS, async |who, round| {
        let content = sample::bytes(PAGE, 100 << 32 | (who as u64) << 16 | round as u64);
        let kept = neighbourhood.kept();
        let (first, last) = match who {
            Who::Kubo => published_by_kubo(options, &neighbourhood, &content, kept).await?,
            Who::Causeway => published_by_causeway(options, &neighbourhood, &packer, &content, kept).await?,
            _ => bail!("{who} takes no part"),
        };
        everywhere.push((who, last));
        Ok(first)
    });
    let rounds = rounds.await?;
    let kubo = rounds.of(Who::Kubo);
    let of = |who| {
        let of_who = everywhere.iter().filter(|(publisher, _)| *publisher == who);
        crate::median::median(of_who.map(|(_, seconds)| *seconds))
    };
    let five = 5.0 * options.link().round_trip().as_secs_f64();
    Ok(Row {
        case: "publication of a provider record, the same network".to_owned(),
        unit: "s",
        measured: rounds.of(Who::Causeway),
        measured_unit: "s",
        higher_is_better: false,
        bar: Goal::new("half of Kubo's", kubo / 2.0),
        aim: Goal::new("5 round trips", five),
        notes: vec![
            "until the first of the nodes has the record, which a third one then finds".to_owned(),
            format!("until three quarters of the nodes have it: Kubo {:.2}, Causeway {:.2} s", of(Who::Kubo), of(Who::Causeway)),
            "Causeway's clock starts when the process is ready, before it has joined the DHT; Kubo's when a node that has \
             joined is told to announce"
                .to_owned(),
        ],
        series: rounds.0,
    })
}

async fn published_by_kubo(
    options: &Options,
    neighbourhood: &Neighbourhood,
    content: &[u8],
    kept: broadcast::Receiver<Kept>,
) -> Result<(f64, f64)> {
    let kubo = Kubo::start(&options.binaries.kubo).await?;
    kubo.connect(&neighbourhood.addresses[0]).await?;
    settle(&kubo, NODES * 3 / 4).await?;
    let path = kubo.add(content)?;
    let begun = Instant::now();
    // Kubo answers when it has told everybody; what counts is when they know.
    let (told, seen) = tokio::join!(kubo.call("routing/provide", cid(&path)), seen(kept, cid(&path), begun));
    told?;
    seen
}

async fn published_by_causeway(
    options: &Options,
    neighbourhood: &Neighbourhood,
    packer: &Kubo,
    content: &[u8],
    kept: broadcast::Receiver<Kept>,
) -> Result<(f64, f64)> {
    let path = packer.add(content)?;
    let dir = TempDir::with_prefix("causeway-bench-archive-")?;
    let archive = dir.path().join("content.car");
    world::archive(packer, &path, &archive).await?;
    let bootstrap = Some(neighbourhood.addresses[0].as_str());
    let setup = Setup { bootstrap, archive: Some(&archive), flags: options.flags(), ..Setup::default() };
    let causeway = Causeway::start(&options.binaries.causeway, setup).await?;
    seen(kept, cid(&path), causeway.ready).await
}

/// Seconds until the first node has a record for the CID, and until three quarters of them have.
async fn seen(mut kept: broadcast::Receiver<Kept>, cid: &str, begun: Instant) -> Result<(f64, f64)> {
    let key = cid.parse::<Cid>()?.hash().to_bytes();
    let (mut first, mut nodes) = (None, HashSet::new());
    let all = async {
        loop {
            let Kept { node, key: provided, at } = kept.recv().await?;
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
    match timeout(PATIENCE, all).await {
        Ok(seen) => seen,
        Err(_) => bail!("published at {} of {NODES} nodes within {PATIENCE:?}", nodes.len()),
    }
}
