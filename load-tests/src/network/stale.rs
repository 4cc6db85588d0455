//! Stale provider records: content that only the DHT knows of, one provider that is there, and many that are not.
//!
//! Goals: real records in a real DHT node, dials that hang as they do in real networks, fresh clients and fresh content for
//! each try, so that nothing is remembered; in one row the same client meets the same dead providers again. A try in which
//! nothing is found counts as [`MISSED`] at least, however soon that is said, and is told.
//!
//! Non-goals: dead nodes of the DHT itself.

use super::Options;
use super::figures::{Rounds, Row, Series, Who};
use super::routing::{RIVALS, joined, no_server};
use super::silent::{HANGING, Nowhere, Silence, SilentProviders};
use super::world::Far;
use crate::fetch::get;
use crate::goals::Goal;
use crate::relay::Link;
use crate::sample;
use crate::servers::{Kubo, Server, Transport};
use anyhow::{Result, ensure};
use content::Cid;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Tries of a row.
const TRIES: usize = 20;
/// Tries of a row about something else than many dead providers.
const FEW_TRIES: usize = 8;
/// Files that one client asks for in a row.
const IN_A_ROW: usize = 6;
const PAGE: usize = 24 << 10;
/// What a try takes in which nothing is found, in seconds: as long as a client waits.
const MISSED: f64 = 30.0;
/// How long records may take until the DHT names all of them.
const SETTLE: Duration = Duration::from_secs(20);

/// What surrounds the provider that is there.
struct Case {
    /// In the table.
    name: String,
    /// Of the sample content.
    seed: u64,
    dead: usize,
    ways: &'static [Silence],
    /// Between the living provider and everybody.
    link: Link,
    /// Addresses of the living provider that lead nowhere, before the right ones.
    wrong: usize,
    /// Whether the living provider is reached over QUIC only.
    only_quic: bool,
    tries: usize,
    /// What the slowest try may take, in seconds.
    bar: Goal,
}

impl Case {
    fn silent(name: &str, seed: u64, dead: usize, tries: usize, bar: f64) -> Self {
        Self {
            name: format!("first byte, provider known only to the DHT, {name}"),
            seed,
            dead,
            ways: &HANGING,
            link: Link::delay(Duration::ZERO),
            wrong: 0,
            only_quic: false,
            tries,
            bar: Goal::new(format!("{bar} s"), bar),
        }
    }
}

/// Many providers whose dials hang.
pub async fn silent(options: &Options, dead: usize, bar: f64) -> Result<Row> {
    let name = format!("{dead} silent of {} providers", dead + 1);
    measure(options, Case::silent(&name, 200 + dead as u64, dead, TRIES, bar)).await
}

/// The living provider is far away.
pub async fn slow(options: &Options) -> Result<Row> {
    let link = Link::delay(Duration::from_millis(150));
    measure(options, Case { link, ..Case::silent("20 silent, the 21st 300 ms away", 321, 20, FEW_TRIES, 3.0) }).await
}

/// The living provider's packets are lost: one in ten, each way.
pub async fn lossy(options: &Options) -> Result<Row> {
    let link = Link { lose_one_in: Some(10), ..options.link() };
    let name = "20 silent, the 21st over QUIC that loses one packet in ten";
    measure(options, Case { link, only_quic: true, ..Case::silent(name, 322, 20, FEW_TRIES, 2.0) }).await
}

/// The other providers are behind relays that are gone.
pub async fn relays(options: &Options) -> Result<Row> {
    let ways = &[Silence::DeadRelay];
    measure(options, Case { ways, ..Case::silent("20 of 21 behind dead relays", 323, 20, FEW_TRIES, 1.0) }).await
}

/// Most addresses of the provider lead nowhere.
pub async fn wrong(options: &Options) -> Result<Row> {
    let name = "a provider with 6 wrong addresses before the right ones";
    measure(options, Case { wrong: 6, ..Case::silent(name, 324, 0, FEW_TRIES, 1.0) }).await
}

/// The others refuse.
pub async fn refusing(options: &Options) -> Result<Row> {
    let ways = &[Silence::Refuses];
    measure(options, Case { ways, ..Case::silent("100 of 101 refuse", 325, 100, FEW_TRIES, 1.0) }).await
}

/// One client that asks for several files of the same providers, one after the other.
pub async fn again(options: &Options) -> Result<Row> {
    let case = Case::silent("the same 20 silent of 21 for six files in a row, mean of the six", 326, 20, 3, 0.5);
    let world = World::start(options, &case).await?;
    let tries = if options.run.quick { 1 } else { case.tries };
    let mut missed = Vec::new();
    let rounds = Rounds::measure(tries, &RIVALS, async |who, round| {
        let mut files = Vec::new();
        for file in 0..IN_A_ROW {
            let seed = case.seed << 32 | (who as u64) << 16 | (round * IN_A_ROW + file) as u64;
            files.push(world.publish(seed).await?);
        }
        // Who announces connects to every node of the DHT, so that the client comes last.
        let client = joined(who, options, std::slice::from_ref(&world.known)).await?;
        let mut took = 0.0;
        for (path, content) in &files {
            let (seconds, found) = fetch(&client, path, content).await?;
            missed.extend((!found).then_some(who));
            took += seconds;
            world.source.node.disconnect_all_but(&world.dht.peer_id().await?).await?;
        }
        Ok(took / IN_A_ROW as f64)
    });
    let rounds = rounds.await?;
    Ok(row(case, rounds, &missed))
}

async fn measure(options: &Options, case: Case) -> Result<Row> {
    let world = World::start(options, &case).await?;
    let tries = if options.run.quick { 1 } else { case.tries };
    let (mut missed, mut met) = (Vec::new(), Vec::new());
    let rounds = Rounds::measure(tries, &RIVALS, async |who, round| {
        let (path, content) = world.publish(case.seed << 32 | (who as u64) << 16 | round as u64).await?;
        let client = joined(who, options, std::slice::from_ref(&world.known)).await?;
        let before = world.source.passed_down();
        let (seconds, found) = fetch(&client, &path, &content).await?;
        missed.extend((!found).then_some(who));
        let passed = world.source.passed_down() - before;
        // The source meets nodes of the DHT by itself, now and then the client: that is no dial of the client's.
        met.extend((found && passed < PAGE as u64).then_some(who));
        Ok(seconds)
    });
    let rounds = rounds.await?;
    let mut row = row(case, rounds, &missed);
    if !met.is_empty() {
        row.notes.push(format!("in {} tries the living provider had connected to the client by itself", met.len()));
    }
    Ok(row)
}

fn row(case: Case, rounds: Rounds, missed: &[Who]) -> Row {
    let worst = |series: &Series| series.rounds.iter().copied().fold(0.0, f64::max);
    let of = |who| rounds.0.iter().find(|series| series.who == who).map_or(f64::NAN, worst);
    let (ours, kubo) = (of(Who::Causeway), rounds.of(Who::Kubo));
    let mut notes = vec![
        "fresh clients, content and records for each try; the DHT is a Kubo, to which the living provider announces last"
            .to_owned(),
        format!(
            "median and slowest of {} tries: Causeway {:.2} and {ours:.2} s, Kubo {kubo:.2} and {:.2} s",
            rounds.0.first().map_or(0, |series| series.rounds.len()),
            rounds.of(Who::Causeway),
            of(Who::Kubo),
        ),
    ];
    let missed_by = |who| missed.iter().filter(|other| **other == who).count();
    for who in RIVALS.into_iter().filter(|who| missed_by(*who) > 0) {
        notes.push(format!("{who} found nothing in {} requests", missed_by(who)));
    }
    Row {
        case: case.name,
        unit: "s",
        measured: ours,
        measured_unit: "s at worst",
        higher_is_better: false,
        bar: case.bar,
        aim: Goal::new("no slower than Kubo's median", kubo),
        notes,
        series: rounds.0,
    }
}

/// A DHT node, the provider that is there, and those that are not.
struct World {
    dht: Kubo,
    /// Where the DHT node is.
    known: String,
    source: Far<Kubo>,
    dead: SilentProviders,
    count: usize,
    _wrong: Vec<Nowhere>,
}

impl World {
    async fn start(options: &Options, case: &Case) -> Result<Self> {
        let dht = Kubo::start(&options.binaries.kubo).await?;
        let known = dht.multiaddr(Transport::Tcp)?.to_owned();
        let mut wrong = Vec::new();
        for silence in HANGING.iter().cycle().take(case.wrong) {
            wrong.push(Nowhere::bind(*silence).await?);
        }
        let announce = |settings: &mut Value| {
            no_server(settings);
            let right = settings["Addresses"]["Announce"].as_array().cloned().unwrap_or_default();
            let right = right.into_iter().filter(|address| {
                !case.only_quic || address.as_str().is_some_and(|address| address.contains("/quic-v1"))
            });
            let wrong = wrong.iter().map(|nowhere| json!(nowhere.address.to_string()));
            settings["Addresses"]["Announce"] = wrong.chain(right).collect();
        };
        let source = Far::<Kubo>::start_with(options, case.link, announce).await?;
        source.node.connect(&known).await?;
        let dead = SilentProviders::start(case.dead, case.ways, &known).await?;
        Ok(Self { dht, known, source, dead, count: case.dead, _wrong: wrong })
    }

    /// A fresh page that all of them announce, and its path: those that are not there first. Returns when the DHT names all.
    async fn publish(&self, seed: u64) -> Result<(String, Vec<u8>)> {
        let content = sample::bytes(PAGE, seed);
        let path = self.source.node.add(&content)?;
        let cid = path.trim_start_matches("/ipfs/");
        self.dead.announce(&cid.parse::<Cid>()?.hash().to_bytes()).await?;
        let said = self.source.node.call("routing/provide", cid).await?;
        ensure!(!said.contains("\"Type\":3"), "the source could not announce: {said}");
        let begun = Instant::now();
        let all = self.count + 1;
        loop {
            let named = named(&self.dht, cid, all).await?;
            if named >= all {
                return Ok((path, content));
            }
            ensure!(begun.elapsed() < SETTLE, "the DHT names {named} of {all} providers");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// How many providers a node of the DHT names.
async fn named(dht: &Kubo, cid: &str, all: usize) -> Result<usize> {
    let said = dht.call("routing/findprovs", &format!("{cid}&num-providers={all}")).await?;
    let lines = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let responses = lines.filter(|line| line["Type"] == 4).flat_map(|line| line["Responses"].as_array().cloned());
    let named: HashSet<String> =
        responses.flatten().filter_map(|found| found["ID"].as_str().map(str::to_owned)).collect();
    Ok(named.len())
}

/// Seconds to the first byte, and whether it came; [`MISSED`] at least if it did not.
async fn fetch(client: &Server, path: &str, content: &[u8]) -> Result<(f64, bool)> {
    let begun = Instant::now();
    match get(&format!("{}{path}", client.url)).await {
        Ok((times, body)) => {
            ensure!(body == content, "wrong bytes");
            Ok((times.first_byte.as_secs_f64(), true))
        }
        Err(error) => {
            eprintln!("  not found: {error:#}");
            Ok((begun.elapsed().as_secs_f64().max(MISSED), false))
        }
    }
}
