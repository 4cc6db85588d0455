//! How soon an update of an IPNS name is visible: from the end of `ipfs name publish` until a gateway responds with it.
//!
//! Goals: a real publisher, a real node of the DHT, and gateways that are polled at the same moments, often or rarely,
//! long after the record's time to live. The content is in the name's record itself (an identity CID), so that nothing
//! but the name has to be resolved.

use super::Options;
use super::routing::{joined_at, systems_at};
use crate::comparison::{Case, Measure, Series, System};
use crate::http::get;
use crate::servers::{Kubo, Server, Transport};
use anyhow::{Context, Result, ensure};
use content::{Cid, Multihash, codec};
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::time::{sleep, sleep_until};

/// The time to live of the records, in seconds.
const TTL_SECONDS: u64 = 10;
/// Kubo republishes its names a minute after its start, with a time to live of five minutes in the place of theirs, and
/// then every four hours.
const REPUBLISHED_AFTER: Duration = Duration::from_secs(65);
/// The code of a multihash that is the content itself.
const IDENTITY: u64 = 0;

/// How often gateways are polled.
#[derive(Debug, Clone, Copy)]
struct Polling {
    every: Duration,
    rounds: usize,
    /// Before the first publication, so that the publisher does not republish during the rounds.
    delay: Duration,
    bar: f64,
}

/// A request every second.
pub async fn often(options: &Options) -> Result<Case> {
    let bar = (TTL_SECONDS + 2) as f64;
    let polling = Polling { every: Duration::from_secs(1), rounds: 5, delay: Duration::ZERO, bar };
    measure(options, polling, "a request every second").await
}

/// A request every 90 seconds.
pub async fn rare(options: &Options) -> Result<Case> {
    let polling = Polling { every: Duration::from_secs(90), rounds: 2, delay: REPUBLISHED_AFTER, bar: 92.0 };
    measure(options, polling, "a request every 90 s").await
}

async fn measure(options: &Options, polling: Polling, how: &str) -> Result<Case> {
    let dht = Kubo::start(&options.binaries.kubo).await?;
    let publisher = Kubo::start(&options.binaries.kubo).await?;
    publisher.connect(dht.multiaddr(Transport::Tcp)?).await?;
    sleep(polling.delay).await;
    let name = publish(&publisher, 0).await?;
    let mut clients = Vec::new();
    let systems = systems_at(options);
    for system in systems.iter().copied() {
        let client = joined_at(system, options, &dht).await?;
        ensure!(version(&client, &name).await? == 0, "{system} responds with the first version at first");
        clients.push(client);
    }
    let mut series: Vec<Series> = systems.into_iter().map(Series::new).collect();
    let rounds = if options.run.quick { 1 } else { polling.rounds };
    for round in 1..=rounds {
        // So that the interval begins for all of them.
        for client in &clients {
            version(client, &name).await?;
        }
        publish(&publisher, round).await?;
        let published = Instant::now();
        let visible = clients.iter().map(|client| visible(client, &name, round, published, polling.every));
        for (series, seconds) in series.iter_mut().zip(futures::future::try_join_all(visible).await?) {
            series.push(round - 1, seconds.into());
        }
    }
    let case = Case::new(format!("from publish to visible, TTL {TTL_SECONDS} s, {how}"), "s", series);
    let aim = case.value(System::Kubo) + polling.every.as_secs_f64().min(2.0);
    let measure = Measure::lower(case.value(System::Causeway), "s")
        .bar(format!("{} s", polling.bar), polling.bar)
        .aim("Kubo's, and an interval", aim);
    Ok(case
        .measure(measure)
        .note("up to the response with the new version; all gateways are polled at the same moments"))
}

/// Publishes a version of the content, and returns the name.
async fn publish(publisher: &Kubo, version: usize) -> Result<String> {
    let content = Multihash::wrap(IDENTITY, format!("version {version}").as_bytes())?;
    let path = format!("/ipfs/{}", Cid::new_v1(codec::RAW, content));
    let answer = publisher.call("name/publish", &format!("{path}&resolve=false&ttl={TTL_SECONDS}s")).await?;
    let answer: Value = serde_json::from_str(&answer)?;
    Ok(answer["Name"].as_str().context("no name was published")?.to_owned())
}

/// The version that a gateway responds with.
async fn version(client: &Server, name: &str) -> Result<usize> {
    let text = String::from_utf8(get(&client.at(&format!("/ipns/{name}"))).await?.body)?;
    Ok(text.strip_prefix("version ").with_context(|| text.clone())?.parse()?)
}

/// Seconds until a response has a version.
async fn visible(client: &Server, name: &str, version: usize, published: Instant, every: Duration) -> Result<f64> {
    let mut next = published;
    loop {
        next += every;
        sleep_until(next.into()).await;
        if self::version(client, name).await? == version {
            return Ok(published.elapsed().as_secs_f64());
        }
        ensure!(published.elapsed() < Duration::from_secs(600), "version {version} was never visible");
    }
}
