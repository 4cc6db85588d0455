//! A day at a public gateway, replayed: a trace with the shape of the paper's figures, sent to a gateway at a multiple
//! of the real pace, and the paper's Table 5 beside the results.
//!
//! Goals: one command and one seed; requests are sent when they are due, whatever the server does; the service's hit
//! rate beside that of a simulated memory tier of the same size; what the paper does not print is named as an
//! assumption ([`shape`]).
//!
//! Non-goals: the network's own latency. The node that has the unpinned content is on the same machine, so that the
//! last tier's times are no public network's; for those see [`mod@crate::network`].
//!
//! | module | concern |
//! |---|---|
//! | [`paper`] | the figures that are reproduced |
//! | [`shape`] | the distributions that are fitted to them: popularity, sizes, pins, the day's curve |
//! | [`workload`] | a seed to a trace: objects and requests |
//! | [`simulate`] | the memory tier's hits over a trace, without a gateway |
//! | [`corpus`] | objects to blocks and archives |
//! | [`service`] | the gateway that is measured, and the node behind it |
//! | [`replay`], [`client`] | requests on schedule, and a record of each |
//! | [`tier`] | which tier served a response |
//! | [`figures`], [`table`], [`picture`] | records to figures; figures to Markdown, and to SVG |

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

use crate::machine;
use crate::options::CausewayFlags;
use crate::report::Report;
use anyhow::{Result, ensure};
use cache::RamPolicy;
use content::Cid;
use figures::Replayed;
use replay::{Schedule, Scheduled, Target};
use serde::Serialize;
use serde_json::json;
use service::Service;
use shape::{Popularity, Sizes};
use simulate::{Share, Store};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tier::ByTier;
use workload::{Draw, Trace};

/// The share of a day's bytes that a cache of the fitted popularity has to have room for to reach the paper's hit rate
/// of 46.0 %.
pub const CACHE_SHARE: f64 = 0.011;

/// For a response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// What to replay, and against what.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// The causeway binary
    #[arg(long, value_name = "FILE", default_value = "target/release/causeway")]
    pub causeway: PathBuf,
    #[command(flatten)]
    pub flags: CausewayFlags,
    /// Measure a running gateway that has the content (see --write), instead of one of our own
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// That gateway's admin listener, for its metrics; CAUSEWAY_ADMIN_TOKEN is a token with the scope "read"
    #[arg(long, value_name = "URL", requires = "url")]
    pub admin: Option<String>,
    /// Write the content into this directory, as pinned.car and others.car, and replay nothing
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    pub write: Option<PathBuf>,
    /// Directory for the results
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
    /// Minutes of warm-up before those
    #[arg(long, value_name = "MINUTES", default_value_t = 5.0)]
    pub warm_minutes: f64,
    /// Pace, as a multiple of the real day's
    #[arg(long, value_name = "TIMES", default_value_t = 20.0)]
    pub speed: f64,
    /// Factor of all sizes
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub size_scale: f64,
    /// Limit for the bytes of all content; if it is exceeded, all sizes shrink alike
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 30)]
    pub corpus_bytes_max: u64,
    /// Bytes of the gateway's memory tier and of the simulated ones; 1.1 % of the day's by default
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
    /// With little content, and faster, if the run is a quick one.
    fn scaled(self) -> Self {
        if !self.quick {
            return self;
        }
        let (cids, corpus_bytes_max) = (self.cids.div_ceil(100), self.corpus_bytes_max / 256);
        Self { cids, corpus_bytes_max, speed: self.speed * 10.0, ..self }
    }

    fn draw(&self) -> Draw {
        let hours = self.from_hour..self.from_hour + (self.warm_minutes + self.minutes) / 60.0;
        let (scale_max, bytes_max) = (self.size_scale, self.corpus_bytes_max);
        Draw { seed: self.seed, cids: self.cids, hours, scale_max, bytes_max }
    }
}

/// Everything that was measured, and what it is compared with.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    pub trace: Workload,
    /// The size of the simulated memory tiers; the service's is configured alike.
    pub ram_bytes: u64,
    paper: ByTier<paper::Column>,
    pub simulated: Vec<Simulated>,
    pub causeway: Measured,
}

/// What the trace is like.
#[derive(Debug, Clone, Serialize)]
pub struct Workload {
    pub seed: u64,
    #[serde(rename = "cids_of_day")]
    pub cids: u32,
    pub from_hour: f64,
    pub minutes: f64,
    pub warm_minutes: f64,
    pub speed: f64,
    pub objects: usize,
    pub object_bytes: u64,
    pub size_scale: f64,
    pub size_deviations: (f64, f64),
    pub popularity_exponent: f64,
    pub popularity_knee: f64,
    pub connections: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    #[serde(flatten)]
    pub replayed: Replayed,
    /// The service's hits in memory as a share of all its responses, over the simulated LRU's. Nothing if no response
    /// had a tier.
    pub hits_of_lru: Option<f64>,
    /// With the warm-up: bytes of the blocks that each tier served, and CPU time for each request.
    #[serde(rename = "given_bytes")]
    pub served: Option<ByTier<u64>>,
    pub cpu_microseconds_per_request: Option<f64>,
}

/// A simulated memory tier with a store behind it, in the place of the service.
#[derive(Debug, Clone, Serialize)]
pub struct Simulated {
    pub name: &'static str,
    pub tiers: ByTier<Share>,
}

/// The archives of a trace in a directory: the pinned content, and the rest.
pub fn corpus_files(dir: &Path) -> [PathBuf; 2] {
    ["pinned.car", "others.car"].map(|name| dir.join(name))
}

/// Writes the content for a gateway that is set up by hand; or measures, and writes the report.
pub async fn run(options: &Options) -> Result<()> {
    let options = &options.clone().scaled();
    if let Some(dir) = &options.write {
        std::fs::create_dir_all(dir)?;
        service::write(&drawn(options)?, dir)?;
        println!("Written to {}: pinned.car is for the gateway, others.car for a node that it reaches.", dir.display());
        return Ok(());
    }
    let outcome = measure(options).await?;
    let mut machine = machine::describe("bench-trace", options.quick)?;
    machine["causeway"] = json!(match &options.url {
        Some(url) => format!("what ran at {url}"),
        None => machine::version(&options.causeway),
    });
    let mut report = Report::new(machine, "trace", "A day at a public gateway, replayed");
    table::describe(&mut report, &outcome);
    report.plot(picture::tiers(&outcome.causeway.replayed)?);
    report.write(&options.out, &outcome)?;
    let unanswered = outcome.causeway.replayed.unanswered();
    ensure!(unanswered == 0, "{unanswered} requests have no complete response");
    Ok(())
}

async fn measure(options: &Options) -> Result<Outcome> {
    let speed = options.speed;
    ensure!(speed.is_finite() && speed > 0.0, "nothing can be replayed at {speed} times its speed");
    let trace = drawn(options)?;
    let warm = trace.first_at(Duration::try_from_secs_f64(options.warm_minutes * 60.0)?);
    let ram_bytes = options.ram_bytes.unwrap_or((trace.day_bytes as f64 * CACHE_SHARE) as u64);
    let simulated = simulated(&trace, ram_bytes, warm);
    let (service, cids) = match &options.url {
        Some(url) => {
            let cids = trace.objects.iter().map(corpus::cid).collect::<Result<Vec<Cid>>>()?;
            (Service::running(url, options.admin.as_deref()), cids)
        }
        None => Service::start(options, &trace, ram_bytes).await?,
    };
    let before = service.usage().await?;
    let records = replay::replay(schedule(&trace, &cids, service.authority()?, options)).await?;
    let after = service.usage().await?;
    let replayed = Replayed::of(&records[warm..]);
    let cpu = before.cpu.zip(after.cpu).map(|(before, after)| after.saturating_sub(before).as_secs_f64());
    let with_tier = replayed.tiers.iter().any(|tier| tier.count > 0);
    let [lru, ..] = &simulated;
    let causeway = Measured {
        hits_of_lru: with_tier.then(|| replayed.tiers.ram.share.requests / lru.tiers.ram.requests),
        served: before.served.zip(after.served).map(|(before, after)| after.since(before)),
        cpu_microseconds_per_request: cpu.map(|seconds| seconds * 1e6 / records.len().max(1) as f64),
        replayed,
    };
    let popularity = Popularity::fitted();
    let workload = Workload {
        seed: options.seed,
        cids: options.cids,
        from_hour: options.from_hour,
        minutes: options.minutes,
        warm_minutes: options.warm_minutes,
        speed,
        objects: trace.objects.len(),
        object_bytes: trace.bytes(),
        size_scale: trace.scale,
        size_deviations: Sizes::fitted().deviations(),
        popularity_exponent: popularity.exponent(),
        popularity_knee: popularity.knee(),
        connections: options.connections,
    };
    Ok(Outcome { trace: workload, ram_bytes, paper: paper::TABLE_5, simulated: simulated.into(), causeway })
}

fn drawn(options: &Options) -> Result<Trace> {
    let trace = options.draw().draw()?;
    let (requests, objects, scale) = (trace.requests.len(), trace.objects.len(), trace.scale);
    eprintln!("{requests} requests for {objects} objects, {} bytes, sizes times {scale:.4}", trace.bytes());
    Ok(trace)
}

/// The first of them is LRU, with which the service is compared.
fn simulated(trace: &Trace, ram_bytes: u64, warm: usize) -> [Simulated; 3] {
    let [lru, tiny_lfu] =
        [RamPolicy::Lru, RamPolicy::TinyLfu].map(|policy| simulate::hits(trace, policy, ram_bytes, None));
    let tiers = |hits: &[bool], store| simulate::shares(trace, hits, store, warm..trace.requests.len());
    [
        Simulated { name: "LRU, pins", tiers: tiers(&lru, Store::Pins) },
        Simulated { name: "LRU, pins and fetched", tiers: tiers(&lru, Store::PinsAndFetched) },
        Simulated { name: "TinyLFU, pins and fetched", tiers: tiers(&tiny_lfu, Store::PinsAndFetched) },
    ]
}

fn schedule(trace: &Trace, cids: &[Cid], authority: String, options: &Options) -> Schedule {
    let target = |(object, cid): (&workload::Object, &Cid)| Target {
        path: format!("/ipfs/{cid}"),
        bytes: object.bytes,
        seed: object.seed,
    };
    let scheduled =
        |request: &workload::Request| Scheduled { due: request.at.div_f64(options.speed), target: request.object };
    Schedule {
        authority,
        targets: trace.objects.iter().zip(cids).map(target).collect(),
        requests: trace.requests.iter().map(scheduled).collect(),
        connections: options.connections,
        timeout: REQUEST_TIMEOUT,
    }
}
