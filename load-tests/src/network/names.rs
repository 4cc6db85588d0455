//! How soon a change of an IPNS name is seen: from the end of `ipfs name publish` until a gateway shows it.
//!
//! Goals: a real publisher, a real node of the DHT, and rivals that are visited at the same moments, by visitors who come
//! often and by one who comes rarely, long after the record's time to live. The content is in the name's record itself (an
//! identity CID), so that nothing but the name has to be found.

use super::Options;
use super::figures::{Rounds, Row, Series, Who};
use super::routing::{RIVALS, joined};
use crate::fetch::get;
use crate::goals::Goal;
use crate::servers::{Kubo, Server, Transport};
use anyhow::{Context, Result, ensure};
use content::{Cid, Multihash, codec};
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::time::sleep_until;

/// The time to live of the records, in seconds.
const TTL_SECONDS: u64 = 10;
/// The code of a multihash that is the content itself.
const IDENTITY: u64 = 0;

/// Visits come this often.
#[derive(Debug, Clone, Copy)]
struct Visits {
    every: Duration,
    rounds: usize,
    bar: f64,
}

/// A visit every second.
pub async fn often(options: &Options) -> Result<Row> {
    let visits = Visits { every: Duration::from_secs(1), rounds: 5, bar: (TTL_SECONDS + 2) as f64 };
    measure(options, visits, "a visit every second").await
}

/// A visit every 90 seconds.
pub async fn rare(options: &Options) -> Result<Row> {
    let visits = Visits { every: Duration::from_secs(90), rounds: 2, bar: 92.0 };
    measure(options, visits, "a visit every 90 s").await
}

async fn measure(options: &Options, visits: Visits, how: &str) -> Result<Row> {
    let dht = Kubo::start(&options.binaries.kubo).await?;
    let publisher = Kubo::start(&options.binaries.kubo).await?;
    let known = dht.multiaddr(Transport::Tcp)?.to_owned();
    publisher.connect(&known).await?;
    let name = publish(&publisher, 0).await?;
    let mut clients = Vec::new();
    for who in RIVALS {
        let client = joined(who, options, std::slice::from_ref(&known)).await?;
        ensure!(version(&client, &name).await? == 0, "{who} shows the first version at first");
        clients.push((who, client));
    }
    let mut series: Vec<Series> = RIVALS.map(|who| Series { who, rounds: Vec::new() }).into();
    let rounds = if options.run.quick { 1 } else { visits.rounds };
    for round in 1..=rounds {
        // Everybody has just been visited.
        for (_, client) in &clients {
            version(client, &name).await?;
        }
        publish(&publisher, round).await?;
        let published = Instant::now();
        let seen = clients.iter().map(|(_, client)| seen(client, &name, round, published, visits.every));
        for (series, seconds) in series.iter_mut().zip(futures::future::try_join_all(seen).await?) {
            eprintln!("  round {round}: {} {seconds:.2}", series.who);
            series.rounds.push(seconds);
        }
    }
    let rounds = Rounds(series);
    let kubo = rounds.of(Who::Kubo);
    Ok(Row {
        case: format!("from publish to visible, TTL {TTL_SECONDS} s, {how}"),
        unit: "s",
        measured: rounds.of(Who::Causeway),
        measured_unit: "s",
        higher_is_better: false,
        bar: Goal::new(format!("{} s", visits.bar), visits.bar),
        aim: Goal::new("Kubo's, and a visit", kubo + visits.every.as_secs_f64().min(2.0)),
        notes: vec!["the visit that shows it included; all rivals are visited at the same moments".to_owned()],
        series: rounds.0,
    })
}

/// Publishes a version of the content, and returns the name.
async fn publish(publisher: &Kubo, version: usize) -> Result<String> {
    let content = Multihash::wrap(IDENTITY, format!("version {version}").as_bytes())?;
    let path = format!("/ipfs/{}", Cid::new_v1(codec::RAW, content));
    let said = publisher.call("name/publish", &format!("{path}&resolve=false&ttl={TTL_SECONDS}s")).await?;
    let said: Value = serde_json::from_str(&said)?;
    Ok(said["Name"].as_str().context("publishing tells no name")?.to_owned())
}

/// The version that a gateway shows.
async fn version(client: &Server, name: &str) -> Result<usize> {
    let (_, body) = get(&format!("{}/ipns/{name}", client.url)).await?;
    let text = String::from_utf8(body)?;
    Ok(text.strip_prefix("version ").with_context(|| text.clone())?.parse()?)
}

/// Seconds until a visit shows a version.
async fn seen(client: &Server, name: &str, version: usize, published: Instant, every: Duration) -> Result<f64> {
    let mut next = published;
    loop {
        next += every;
        sleep_until(next.into()).await;
        if self::version(client, name).await? == version {
            return Ok(published.elapsed().as_secs_f64());
        }
        ensure!(published.elapsed() < Duration::from_secs(600), "version {version} was not seen");
    }
}
