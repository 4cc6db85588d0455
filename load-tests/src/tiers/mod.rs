//! The local tiers: how fast content that is stored locally is served and written, beside nginx and Kubo.
//!
//! Goals: one command for all rows, in one run on one machine; systems take turns in rotated order and medians count;
//! every server returns the same bytes, which is checked before, and by their number under load; the server's CPU time
//! beside each figure, since the generator takes a core. A row that fails does not keep the others from being measured.
//!
//! Non-goals: cache misses ([`mod@crate::network`]); hit rates ([`mod@crate::trace`]); absolute figures: everything
//! shares one machine.
//!
//! | module | concern |
//! |---|---|
//! | [`world`] | content, and the servers that have it |
//! | [`under_load`] | servers that take turns under the load of `wrk` |
//! | [`hot`] | content in memory: small and large files, pages, 304 |
//! | [`encrypted`] | small files in memory over TLS, HTTP/2, and handshakes |
//! | [`disk`] | content on disk only |
//! | [`flood`] | hits during a flood of misses |
//! | [`memory`] | whether the memory tier keeps to its budget |
//! | [`text`] | text, compressed |
//! | [`store`] | writing: archives and files |
//! | [`steady`] | the load of a public gateway in an open loop |
//! | [`picture`] | the measures beside their bars, as a plot |

pub mod disk;
pub mod encrypted;
pub mod flood;
pub mod hot;
pub mod memory;
pub mod picture;
pub mod steady;
pub mod store;
pub mod text;
pub mod under_load;
pub mod world;

use crate::comparison::{self, Case};
use crate::options::{Binaries, CausewayFlags, Run};
use crate::report::Report;
use crate::{machine, servers, wrk};
use anyhow::{Result, ensure};
use serde_json::json;
use std::time::Duration;

/// Longer than any row takes.
const ROW_TIMEOUT: Duration = Duration::from_secs(3600);

/// What to measure.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    #[command(flatten)]
    pub binaries: Binaries,
    #[command(flatten)]
    pub flags: CausewayFlags,
    #[command(flatten)]
    pub run: Run,
    /// Only these rows, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub rows: Vec<RowName>,
    /// Seconds of each run of wrk
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Seed of the content and of the order of requests
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..1 << 31))]
    pub seed: u64,
    /// Files of 664 KB that are read from disk
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..))]
    pub disk_files: u16,
    /// Bytes of new blocks to import; the goal is about 10000000000
    #[arg(long, value_name = "BYTES", default_value_t = 2_000_000_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub write_bytes: u64,
    /// Bytes of the file to add
    #[arg(long, value_name = "BYTES", default_value_t = 1_000_000_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub add_bytes: u64,
    /// Requests a second of the open loop
    #[arg(long, value_name = "COUNT", default_value_t = 7100.0)]
    pub load_rate: f64,
    /// Seconds of the open loop
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub load_seconds: u64,
    /// Connections of the open loop
    #[arg(long, value_name = "COUNT", default_value_t = 512)]
    pub load_connections: usize,
}

impl Options {
    /// With little content if the run is a quick one.
    fn scaled(self) -> Self {
        if !self.run.quick {
            return self;
        }
        Self {
            seconds: 1,
            disk_files: self.disk_files.div_ceil(10),
            write_bytes: self.write_bytes.div_ceil(100),
            add_bytes: self.add_bytes.div_ceil(100),
            load_rate: self.load_rate / 20.0,
            load_seconds: 1,
            ..self
        }
    }
}

comparison::rows! {
    (options: &Options) -> Result<Vec<Case>>;
    /// Hot 4 KiB, 1,000 URLs by Zipf, 32 and 512 connections
    #[value(name = "hot-4k")]
    Hot4k => hot::small(options).await,
    /// Hot 4 KiB over TLS with HTTP/1.1 and HTTP/2, and TLS handshakes
    #[value(name = "tls-4k")]
    Tls4k => encrypted::small(options).await,
    /// Hot 664 KB
    #[value(name = "hot-664k")]
    Hot664k => hot::large(options, "664 KB", 664_000).await,
    /// Hot 1 MiB
    #[value(name = "hot-1m")]
    Hot1m => hot::large(options, "1 MiB", 1 << 20).await,
    /// A hot page in a directory of 500 entries, by path and by subdomain
    #[value(name = "page-in-500")]
    PageIn500 => hot::page(options).await,
    /// 304 for what has not changed
    #[value(name = "revalidate-304")]
    Revalidate304 => hot::revalidation(options).await,
    /// 664 KB from disk, RAM tier off
    #[value(name = "disk-664k")]
    Disk664k => disk::median(options).await,
    /// Hits of 4 KiB during a flood of misses
    Flood => flood::misses(options).await,
    /// The memory tier's budget under load
    Memory => memory::budget(options).await,
    /// Hot text over zstd, against nginx with gzip_static
    ZstdText => text::zstd(options).await,
    /// New 256 KiB blocks from a CAR file
    Write => store::write(options).await,
    /// A large file, the same again, and a partly known one
    Add => store::add(options),
    /// 7,100 requests/s at 73 KB mean, open loop
    Load => steady::load(options).await,
}

/// Measures the rows that were chosen, and writes the report.
pub async fn run(options: &Options) -> Result<()> {
    let options = &options.clone().scaled();
    options.binaries.check()?;
    ensure!(options.load_rate.is_finite() && options.load_rate >= 1.0, "{} requests a second", options.load_rate);
    let results = comparison::measure(&options.rows, ROW_TIMEOUT, async |row| row.measure(options).await).await;
    let mut machine = machine::describe_with_kubo("bench-tiers", &options.run, &options.binaries)?;
    let wrk = machine::first_line("wrk", &["-v"]);
    machine["load_generator"] = json!(format!("{wrk} {} -d{}s", wrk::ARGUMENTS.join(" "), options.seconds));
    machine["seed"] = json!(options.seed);
    machine["folders"] = json!(machine::temporary_file_system());
    machine["nginx"] = json!(machine::first_line(servers::nginx_binary(), &["-v"]));
    let mut report = Report::new(machine, "tiers", "Content that is stored locally: Causeway beside nginx and Kubo");
    let [causeway, kubo, nginx, generator, rounds, file_system, seed] =
        ["causeway", "kubo", "nginx", "load_generator", "rounds", "folders", "seed"].map(|key| report.fact(key));
    report.paragraph(format!(
        "{} Load generator and servers shared the\nmachine, all on loopback, so that ratios hold better than figures. \
         {causeway}; {kubo}; {nginx}; {generator}. Medians of {rounds} rounds in\nrotated order (of one where \
         requests are sent in an open loop). Directories are on {file_system}. Seed {seed}.",
        report.measured(),
    ));
    results.report(&mut report);
    if let Some(picture) = picture::bars(&results)? {
        report.plot(picture);
    }
    report.write(&options.run.out, &results)?;
    results.check()
}
