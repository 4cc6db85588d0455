//! A day at a public gateway, replayed: a trace with the shape that the paper's figures have, sent to a gateway at a multiple
//! of the real pace, and the paper's Table 5 beside what comes of it.
//!
//! Goals: one command and one seed; requests that are due are sent, whatever the server does; the service's hit share beside
//! that of a simulated cache of the same size; what the paper does not print is named as an assumption ([`shape`]).
//!
//! Non-goals: the network's own latency. The node that has what is not pinned is on the same machine, so that the last
//! column's times are no public network's; for those see [`mod@crate::network`].
//!
//! | module | concern |
//! |---|---|
//! | [`paper`] | the figures that are followed |
//! | [`shape`] | the distributions that are fitted to them: popularity, sizes, pins, the day's curve |
//! | [`workload`] | a seed to a trace: objects and requests |
//! | [`simulate`] | LRU and TinyLFU over a trace |
//! | [`corpus`] | objects to blocks and archives |
//! | [`service`] | the gateway that is asked, and the node behind it |
//! | [`replay`], [`client`] | requests at their times, and a record of each |
//! | [`tier`] | which tier answered |
//! | [`figures`], [`table`], [`picture`] | records to figures; figures to Markdown and JSON, and to SVG |

pub mod client;
pub mod corpus;
pub mod figures;
pub mod paper;
pub mod picture;
pub mod replay;
pub mod service;
pub mod shape;
pub mod simulate;
pub mod table;
pub mod tier;
pub mod workload;

use anyhow::{Result, ensure};
use content::Cid;
use figures::Replayed;
use replay::{Script, Shot, Target};
use service::Service;
use simulate::{Policy, Share, Store};
use std::path::{Path, PathBuf};
use std::time::Duration;
use workload::{Draw, Trace};

/// The share of a day's bytes that a cache of the fitted popularity has to hold to answer the paper's 46.0 %.
pub const CACHE_SHARE: f64 = 0.011;

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// What to replay, and against what.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// The causeway binary
    #[arg(long, value_name = "FILE", default_value = "target/release/causeway")]
    pub causeway: PathBuf,
    /// More flags for every "causeway serve" (repeatable; use --causeway-flag=--flag)
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    pub causeway_flag: Vec<String>,
    /// Ask a gateway that runs already and has been given the content (see --write), instead of one of our own
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// That gateway's admin listener, for its metrics; CAUSEWAY_ADMIN_TOKEN has a token with the scope "read"
    #[arg(long, value_name = "URL", requires = "url")]
    pub admin: Option<String>,
    /// Write the content into this folder, as pinned.car and others.car, and replay nothing
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    pub write: Option<PathBuf>,
    /// Folder for the results
    #[arg(long, value_name = "DIR", default_value = "load-tests/results")]
    pub out: PathBuf,
    /// The trace's seed: the same one draws the same trace
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// CIDs of the whole day; each has 25.9 requests a day on average
    #[arg(long, value_name = "COUNT", default_value_t = paper::CIDS)]
    pub cids: u32,
    /// Where in the day to begin, in hours of the gateway's clock
    #[arg(long, value_name = "HOURS", default_value_t = 18.0)]
    pub from_hour: f64,
    /// Minutes of the day that are measured
    #[arg(long, value_name = "MINUTES", default_value_t = 20.0)]
    pub minutes: f64,
    /// Minutes of the day before those that only warm the caches
    #[arg(long, value_name = "MINUTES", default_value_t = 5.0)]
    pub warm_minutes: f64,
    /// How many times as fast as the real day
    #[arg(long, value_name = "TIMES", default_value_t = 20.0)]
    pub speed: f64,
    /// What sizes are multiplied by
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub size_scale: f64,
    /// Bytes that all content may have; if it would have more, all sizes shrink alike
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 30)]
    pub corpus_bytes_max: u64,
    /// Bytes of the gateway's memory tier and of the simulated caches; 1.1 % of the day's if not given
    #[arg(long, value_name = "BYTES")]
    pub ram_bytes: Option<u64>,
    /// Connections at a time
    #[arg(long, value_name = "COUNT", default_value_t = 512)]
    pub connections: usize,
    /// A hundredth of the CIDs, faster and small: shows that everything works, measures nothing
    #[arg(long)]
    pub quick: bool,
}

impl Options {
    fn draw(&self) -> Draw {
        let cids = if self.quick { self.cids.div_ceil(100) } else { self.cids };
        let bytes_max = if self.quick { self.corpus_bytes_max / 256 } else { self.corpus_bytes_max };
        let end = self.from_hour + (self.warm_minutes + self.minutes) / 60.0;
        Draw { seed: self.seed, cids, hours: self.from_hour..end, scale_max: self.size_scale, bytes_max }
    }

    /// How many times real time the replay is.
    pub fn speed(&self) -> f64 {
        if self.quick { self.speed * 10.0 } else { self.speed }
    }

    fn warm(&self) -> Result<Duration> {
        Ok(Duration::try_from_secs_f64(self.warm_minutes * 60.0)?)
    }
}

/// Everything that was measured, and what it is measured against.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// What the trace is like.
    pub objects: usize,
    pub object_bytes: u64,
    pub scale: f64,
    /// What the simulated caches hold, and the service's memory tier is meant to.
    pub ram_bytes: u64,
    pub replayed: Replayed,
    /// The warming included: bytes of the blocks that each tier gave, and CPU time for each request.
    pub given: Option<[u64; 3]>,
    pub cpu_microseconds_per_request: Option<f64>,
    pub simulated: Vec<Simulated>,
}

/// A simulated cache with a store behind it, in the place of the service.
#[derive(Debug, Clone, Copy)]
pub struct Simulated {
    pub policy: Policy,
    pub store: Store,
    pub tiers: [Share; 3],
}

impl Outcome {
    /// The service's hits in memory as a share of all its answers, over the simulated LRU's. Nothing if no answer told.
    pub fn of_lru(&self) -> Option<f64> {
        let lru = self.simulated.iter().find(|simulated| simulated.policy == Policy::Lru)?;
        let told = self.replayed.tiers.iter().any(|tier| tier.count > 0);
        told.then(|| self.replayed.tiers[0].share.requests / lru.tiers[0].requests)
    }
}

/// The archives of a trace in a folder: what is pinned, and the rest.
pub fn corpus_files(dir: &Path) -> [PathBuf; 2] {
    ["pinned.car", "others.car"].map(|name| dir.join(name))
}

/// Writes the content of a trace for a gateway that is set up by hand.
pub fn write(options: &Options, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    service::write(&drawn(options)?, dir)?;
    Ok(())
}

/// Draws, replays, measures and simulates.
pub async fn run(options: &Options) -> Result<Outcome> {
    let speed = options.speed();
    ensure!(speed.is_finite() && speed > 0.0, "nothing can be replayed at {speed} times its speed");
    let trace = drawn(options)?;
    let warm = trace.first_at(options.warm()?);
    let ram_bytes = options.ram_bytes.unwrap_or((trace.day_bytes as f64 * CACHE_SHARE) as u64);
    let simulated = simulated(&trace, ram_bytes, warm);
    let (service, cids) = match &options.url {
        Some(url) => {
            let cids = trace.objects.iter().map(corpus::cid).collect::<Result<Vec<Cid>>>()?;
            (Service::running(url, options.admin.as_deref()), cids)
        }
        None => Service::start(options, &trace, ram_bytes).await?,
    };
    let before = service.look().await?;
    let records = replay::replay(script(&trace, &cids, service.authority()?, options)).await?;
    let after = service.look().await?;
    let given = before.given.zip(after.given);
    let cpu = before.cpu.zip(after.cpu).map(|(before, after)| after.saturating_sub(before).as_secs_f64());
    Ok(Outcome {
        objects: trace.objects.len(),
        object_bytes: trace.bytes(),
        scale: trace.scale,
        ram_bytes,
        replayed: Replayed::of(&records[warm..]),
        given: given.map(|(before, after)| std::array::from_fn(|tier| after[tier].saturating_sub(before[tier]))),
        cpu_microseconds_per_request: cpu.map(|seconds| seconds * 1e6 / records.len().max(1) as f64),
        simulated,
    })
}

fn drawn(options: &Options) -> Result<Trace> {
    let trace = options.draw().draw()?;
    let (requests, objects, scale) = (trace.requests.len(), trace.objects.len(), trace.scale);
    eprintln!("{requests} requests for {objects} objects, {} bytes, sizes times {scale:.4}", trace.bytes());
    Ok(trace)
}

fn simulated(trace: &Trace, ram_bytes: u64, from: usize) -> Vec<Simulated> {
    let cases =
        [(Policy::Lru, Store::Pins), (Policy::Lru, Store::PinsAndFetched), (Policy::TinyLfu, Store::PinsAndFetched)];
    let simulate = |(policy, store)| {
        let tiers = simulate::shares(trace, &simulate::hits(trace, policy, ram_bytes), store, from);
        Simulated { policy, store, tiers }
    };
    cases.map(simulate).to_vec()
}

fn script(trace: &Trace, cids: &[Cid], authority: String, options: &Options) -> Script {
    let target = |(object, cid): (&workload::Object, &Cid)| Target {
        path: format!("/ipfs/{cid}"),
        bytes: object.bytes,
        seed: object.seed,
    };
    let shot = |request: &workload::Request| Shot { due: request.at.div_f64(options.speed()), target: request.object };
    Script {
        authority,
        targets: trace.objects.iter().zip(cids).map(target).collect(),
        shots: trace.requests.iter().map(shot).collect(),
        connections: options.connections,
        patience: PATIENCE,
    }
}
