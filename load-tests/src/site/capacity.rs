//! How the rate of a site grows with its gateways: 1, 2 and 4 of them, each limited to a part of a core, under a
//! closed loop of requests by popularity.
//!
//! The content is larger than the memory tier, and each gateway but one begins with an empty cache, so that what is
//! read comes from memory, disk, another gateway and the shared storage. Every gateway gets requests for all of the
//! content.
//!
//! All gateways together have to leave processor time for the load generator. A machine of two cores therefore limits
//! each to a quarter of a core.

use super::Options;
use super::cgroup::Group;
use super::gateways::Site;
use crate::comparison::{Case, Measure, System, Turn, rounds};
use crate::random::SplitMix;
use crate::stats::{Latency, median_duration};
use crate::tiers::world::{Content, File};
use crate::wrk::{self, Load, PathList, Paths, Run};
use crate::zipf::Zipf;
use anyhow::{Context, Result, ensure};
use std::sync::Arc;
use tokio::task::JoinSet;

/// Bytes of files, and how many there are of each size: 35 MB.
const SIZES: [(u64, usize); 3] = [(4 << 10, 600), (64 << 10, 300), (256 << 10, 50)];
/// The memory tier of each gateway, in bytes: a quarter of the content.
const RAM_BYTES: &str = "8388608";
const SEED: u64 = 25;
const CONNECTIONS: usize = 8;
/// Requests of the list that each generator goes through.
const DRAWN: usize = 1 << 14;
/// The systems by their gateways.
const SYSTEMS: [(System, usize); 3] = [(System::SiteOfOne, 1), (System::SiteOfTwo, 2), (System::SiteOfFour, 4)];

pub async fn measure(options: &Options) -> Result<Vec<Case>> {
    let share = options.share()?;
    let name = format!("requests by popularity, {share:.2} cores for each gateway");
    if let Err(error) = Group::new("trial", share) {
        let note = format!("it is not measured, because processor time cannot be limited here: {error:#}");
        return Ok(vec![Case::new(name, "requests/s", Vec::new()).note(note)]);
    }
    let sizes = SIZES.iter().flat_map(|(bytes, count)| std::iter::repeat_n(*bytes, options.divided(*count)));
    let content = Content::make(SEED, sizes)?;
    let systems = SYSTEMS.map(|(system, _)| system);
    let series = rounds(options.run.rounds(), &systems, async |system, _| {
        let count = SYSTEMS.iter().find(|(one, _)| *one == system).map_or(1, |(_, count)| *count);
        turn(options, &content, count, share).await
    });
    let case = Case::new(name, "requests/s", series.await?);
    let times = |system| case.value(system) / case.value(System::SiteOfOne);
    let two = Measure::higher(times(System::SiteOfTwo), "× one gateway, with two").bar("1.8 ×", 1.8);
    let four = Measure::higher(times(System::SiteOfFour), "× one gateway, with four").bar("3.4 ×", 3.4);
    Ok(vec![case.measure(two).measure(four).note("the database and the load generator are not limited")])
}

/// The limited gateways of a site.
struct Limited {
    // The gateways end before their groups are removed: fields are dropped in this order.
    site: Site,
    _groups: Vec<Group>,
}

impl Limited {
    async fn start(options: &Options, count: usize, share: f64) -> Result<Self> {
        let site = Site::start(options, count, &[], &[("CAUSEWAY_CACHE_RAM_BYTES_MAX", RAM_BYTES)]).await?;
        let mut groups = Vec::new();
        for (number, gateway) in site.gateways.iter().enumerate() {
            let group = Group::new(&number.to_string(), share)?;
            group.add(gateway.server.process.id())?;
            groups.push(group);
        }
        Ok(Self { site, _groups: groups })
    }
}

/// A new site under load; the first half of the time does not count.
async fn turn(options: &Options, content: &Content, count: usize, share: f64) -> Result<Turn> {
    let limited = Limited::start(options, count, share).await?;
    let gateways = &limited.site.gateways;
    gateways[0].import(&content.archive())?;
    // Begins with empty caches, but for the gateway that has imported.
    let lists = (0..count).map(|number| draw(SEED + number as u64, &content.files).map(Arc::new));
    let lists: Vec<Arc<PathList>> = lists.collect::<Result<_>>()?;
    let urls: Vec<String> = gateways.iter().map(|gateway| gateway.server.url.clone()).collect();
    load(&urls, &lists, options.seconds()).await?;
    let runs = load(&urls, &lists, options.seconds()).await?;
    let value: f64 = runs.iter().map(|run| run.requests_per_second).sum();
    let of = |percentile: fn(&Latency) -> std::time::Duration| {
        median_duration(runs.iter().map(|run| percentile(&run.latency)))
    };
    let latency = Latency { median: of(|latency| latency.median), p99: of(|latency| latency.p99) };
    Ok(Turn { latency: Some(latency), ..Turn::from(value) })
}

/// Loads all gateways at once.
async fn load(urls: &[String], lists: &[Arc<PathList>], seconds: u64) -> Result<Vec<Run>> {
    let mut running = JoinSet::new();
    for (url, list) in urls.iter().cloned().zip(lists.iter().cloned()) {
        running.spawn_blocking(move || {
            let load = Load { url: &url, paths: Paths::List(&list), headers: &[], connections: CONNECTIONS, seconds };
            wrk::run(&load)
        });
    }
    let mut runs = Vec::new();
    while let Some(run) = running.join_next().await {
        let run = run.context("a load generator's task failed")??;
        ensure!(run.requests > 0, "there was no response");
        runs.push(run);
    }
    Ok(runs)
}

/// Requests for the files by Zipf, small ones and large ones mixed. All lists have the same popularity.
fn draw(seed: u64, files: &[File]) -> Result<PathList> {
    let mut ranked: Vec<&File> = files.iter().collect();
    crate::sample::shuffle(&mut ranked, SEED);
    let (zipf, mut random) = (Zipf::new(ranked.len()), SplitMix::new(seed));
    PathList::new((0..DRAWN).map(|_| ranked[zipf.draw(&mut random)].path.as_str()))
}
