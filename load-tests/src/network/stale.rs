//! Stale provider records: content that only the DHT knows of, one responsive provider, and many unresponsive ones.
//!
//! Goals: real records in a real DHT node, dials that hang as they do in real networks, fresh clients and new content
//! for each try, so that nothing is cached; in one row the same client meets the same unresponsive providers again. A
//! try in which nothing is found counts as [`MISSED_SECONDS`] at least, however soon it fails, and is reported.
//!
//! Non-goals: dead nodes of the DHT itself.

use super::Options;
use super::latency::seed;
use super::routing::{joined_at, multihash, no_server, systems_at};
use super::unresponsive::{DeadAddress, Fault, HANGING, UnresponsiveProviders};
use super::world::Remote;
use crate::comparison::{Case, Measure, Series, System, rounds};
use crate::http::get;
use crate::relay::Link;
use crate::report::number;
use crate::sample;
use crate::servers::{Kubo, Server, Transport};
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Tries of a row.
const TRIES: usize = 20;
/// Tries of a row about something else than many unresponsive providers.
const FEW_TRIES: usize = 8;
/// Files that one client requests in a row.
const IN_A_ROW: usize = 6;
const PAGE: usize = 24 << 10;
/// A failed try counts for at least this long: as long as a client waits.
const MISSED_SECONDS: f64 = 30.0;
/// For the DHT to return all records.
const SETTLE: Duration = Duration::from_secs(20);

/// The providers of a row.
struct Scenario {
    /// In the table.
    name: String,
    /// Of the content's seeds.
    row: u64,
    unresponsive: usize,
    faults: &'static [Fault],
    /// Between the responsive provider and all other peers.
    link: Link,
    /// Addresses of the responsive provider at which no peer responds, before the right ones.
    wrong: usize,
    /// Whether the responsive provider is reached over QUIC only.
    only_quic: bool,
    tries: usize,
    /// For the slowest try, in seconds.
    bar: f64,
}

impl Scenario {
    fn new(name: &str, row: u64, unresponsive: usize, tries: usize, bar: f64) -> Self {
        Self {
            name: format!("first byte, provider known only to the DHT, {name}"),
            row,
            unresponsive,
            faults: &HANGING,
            link: Link::delay(Duration::ZERO),
            wrong: 0,
            only_quic: false,
            tries,
            bar,
        }
    }
}

/// Many providers whose dials hang.
pub async fn silent(options: &Options, unresponsive: usize, bar: f64) -> Result<Case> {
    let name = format!("{unresponsive} unresponsive of {} providers", unresponsive + 1);
    measure(options, Scenario::new(&name, 200 + unresponsive as u64, unresponsive, TRIES, bar)).await
}

/// The responsive provider is far away.
pub async fn slow(options: &Options) -> Result<Case> {
    let scenario = Scenario::new("20 unresponsive, the 21st 300 ms away", 321, 20, FEW_TRIES, 3.0);
    measure(options, Scenario { link: Link::delay(Duration::from_millis(150)), ..scenario }).await
}

/// The link to the responsive provider loses one packet in ten, each way.
pub async fn lossy(options: &Options) -> Result<Case> {
    let name = "20 unresponsive, the 21st over QUIC that loses one packet in ten";
    let link = Link { lose_one_in: Some(10), ..options.link() };
    measure(options, Scenario { link, only_quic: true, ..Scenario::new(name, 322, 20, FEW_TRIES, 2.0) }).await
}

/// The other providers are behind circuit relays that are gone.
pub async fn relays(options: &Options) -> Result<Case> {
    let scenario = Scenario::new("20 of 21 behind dead relays", 323, 20, FEW_TRIES, 1.0);
    measure(options, Scenario { faults: &[Fault::DeadRelay], ..scenario }).await
}

/// Most addresses of the provider are wrong.
pub async fn wrong(options: &Options) -> Result<Case> {
    let scenario = Scenario::new("a provider with 6 wrong addresses before the right ones", 324, 0, FEW_TRIES, 1.0);
    measure(options, Scenario { wrong: 6, ..scenario }).await
}

/// The others refuse.
pub async fn refusing(options: &Options) -> Result<Case> {
    let scenario = Scenario::new("100 of 101 refuse", 325, 100, FEW_TRIES, 1.0);
    measure(options, Scenario { faults: &[Fault::Refuses], ..scenario }).await
}

/// One client that requests several files of the same providers, one after the other.
pub async fn again(options: &Options) -> Result<Case> {
    let name = "the same 20 unresponsive of 21 for six files in a row, mean of the six";
    let scenario = Scenario::new(name, 326, 20, 3, 0.5);
    let world = World::start(options, &scenario).await?;
    let tries = if options.run.quick { 1 } else { scenario.tries };
    let mut missed = Vec::new();
    let systems = systems_at(options);
    let series = rounds(tries, &systems, async |system, round| {
        let mut files = Vec::new();
        for file in 0..IN_A_ROW {
            files.push(world.publish(seed(scenario.row, system, round * IN_A_ROW + file)).await?);
        }
        // Publishing connects the source to every node of the DHT, so that the client starts last.
        let client = joined_at(system, options, &world.dht).await?;
        let mut sum = 0.0;
        for (path, content) in &files {
            let (seconds, found) = fetch(&client, path, content).await?;
            missed.extend((!found).then_some(system));
            sum += seconds;
            world.source.node.disconnect_all_but(&world.dht.peer_id().await?).await?;
        }
        Ok(sum / IN_A_ROW as f64)
    });
    let series = series.await?;
    Ok(case(scenario, series, &missed))
}

async fn measure(options: &Options, scenario: Scenario) -> Result<Case> {
    let world = World::start(options, &scenario).await?;
    let tries = if options.run.quick { 1 } else { scenario.tries };
    let (mut missed, mut connected_before) = (Vec::new(), 0);
    let systems = systems_at(options);
    let series = rounds(tries, &systems, async |system, round| {
        let (path, content) = world.publish(seed(scenario.row, system, round)).await?;
        let client = joined_at(system, options, &world.dht).await?;
        let before = world.source.passed_down();
        let (seconds, found) = fetch(&client, &path, &content).await?;
        missed.extend((!found).then_some(system));
        // Sometimes the source itself dials the client, as it does other nodes of the DHT, and the content takes that
        // connection.
        let passed = world.source.passed_down() - before;
        connected_before += usize::from(found && passed < PAGE as u64);
        Ok(seconds)
    });
    let series = series.await?;
    let case = case(scenario, series, &missed);
    Ok(match connected_before {
        0 => case,
        tries => case.note(format!("in {tries} tries the responsive provider had dialled the client itself")),
    })
}

fn case(scenario: Scenario, series: Vec<Series>, missed: &[System]) -> Case {
    let case = Case::new(scenario.name, "s", series);
    let highest = |system| case.of(system).map_or(f64::NAN, Series::highest);
    let (ours, kubo, bar) = (highest(System::Causeway), case.value(System::Kubo), scenario.bar);
    let figures =
        |series: &Series| format!("{} {} and {} s", series.system, number(series.value()), number(series.highest()));
    let slowest: Vec<String> = case.series.iter().map(figures).collect();
    let slowest = format!("median and slowest try: {}", slowest.join(", "));
    let measure =
        Measure::lower(ours, "s at worst").bar(format!("{bar} s"), bar).aim("no slower than Kubo's median", kubo);
    let mut case = case.measure(measure).note(slowest).note(
        "fresh clients, content and records for each try; the DHT is a Kubo, to which the responsive provider \
         announces last",
    );
    let systems: Vec<System> = case.series.iter().map(|series| series.system).collect();
    for system in systems {
        let misses = missed.iter().filter(|missed| **missed == system).count();
        if misses > 0 {
            case = case.note(format!("{system} found nothing in {misses} requests"));
        }
    }
    case
}

/// A DHT node, the responsive provider, and the unresponsive ones.
struct World {
    dht: Kubo,
    source: Remote<Kubo>,
    unresponsive: UnresponsiveProviders,
    /// All of them.
    providers: usize,
    _wrong: Vec<DeadAddress>,
}

impl World {
    async fn start(options: &Options, scenario: &Scenario) -> Result<Self> {
        let dht = Kubo::start(&options.binaries.kubo).await?;
        let known = dht.multiaddr(Transport::Tcp)?.to_owned();
        let mut wrong = Vec::new();
        for fault in HANGING.iter().cycle().take(scenario.wrong) {
            wrong.push(DeadAddress::bind(*fault).await?);
        }
        let announce = |settings: &mut Value| {
            no_server(settings);
            let right = settings["Addresses"]["Announce"].as_array().cloned().unwrap_or_default();
            let right = right.into_iter().filter(|address| {
                !scenario.only_quic || address.as_str().is_some_and(|address| address.contains("/quic-v1"))
            });
            let wrong = wrong.iter().map(|dead| json!(dead.address.to_string()));
            settings["Addresses"]["Announce"] = wrong.chain(right).collect();
        };
        let source = Remote::<Kubo>::start_with(options, scenario.link, announce).await?;
        source.node.connect(&known).await?;
        let unresponsive = UnresponsiveProviders::start(scenario.unresponsive, scenario.faults, &known).await?;
        Ok(Self { dht, source, unresponsive, providers: scenario.unresponsive + 1, _wrong: wrong })
    }

    /// A new page that all of them announce, the unresponsive ones first, and its path. Returns when the DHT returns
    /// all providers.
    async fn publish(&self, seed: u64) -> Result<(String, Vec<u8>)> {
        let content = sample::bytes(PAGE, seed);
        let path = self.source.node.add(&content)?;
        self.unresponsive.announce(&multihash(&path)?).await?;
        self.source.node.provide(&path).await?;
        let begun = Instant::now();
        loop {
            let found = self.providers_of(&path).await?;
            if found >= self.providers {
                return Ok((path, content));
            }
            ensure!(begun.elapsed() < SETTLE, "the DHT returns {found} of {} providers", self.providers);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// How many providers the DHT node returns.
    async fn providers_of(&self, path: &str) -> Result<usize> {
        let cid = path.trim_start_matches("/ipfs/");
        let argument = format!("{cid}&num-providers={}", self.providers);
        let lines = self.dht.lines("routing/findprovs", &argument).await?;
        let responses =
            lines.iter().filter(|line| line["Type"] == 4).flat_map(|line| line["Responses"].as_array().cloned());
        let ids = responses.flatten().filter_map(|provider| provider["ID"].as_str().map(str::to_owned));
        Ok(ids.collect::<HashSet<String>>().len())
    }
}

/// Seconds to the first byte, and whether the content was found; [`MISSED_SECONDS`] at least if it was not.
async fn fetch(client: &Server, path: &str, content: &[u8]) -> Result<(f64, bool)> {
    let begun = Instant::now();
    match get(&client.at(path)).await {
        Ok(response) => Ok((response.of_content(content)?.first_byte.as_secs_f64(), true)),
        Err(error) => {
            eprintln!("  not found: {error:#}");
            Ok((begun.elapsed().as_secs_f64().max(MISSED_SECONDS), false))
        }
    }
}
