//! Several gateways as one site: what it gains, beside Kubo, and what it costs, beside a gateway that is alone.
//!
//! Goals: real parts, which this program starts and ends: the Causeway binary, PostgreSQL, HAProxy, Kubo, nginx; a
//! folder as the shared storage; links between them that delay and count bytes ([`mod@crate::relay`]). Rivals take
//! turns in the same run. A row that fails does not keep the others from being measured.
//!
//! Non-goals: S3 as the storage, and several machines. Database and storage of a site are near its gateways, without a
//! link.
//!
//! | module | concern |
//! |---|---|
//! | [`second_read`] | the paper's Table II: a file is written in one place and read twice in another one |
//! | [`one_fetch`] | many clients of all gateways ask for one DAG |
//! | [`kill`] | a gateway is killed under load |
//! | [`hot`] | hits in memory |
//! | [`capacity`] | 1, 2 and 4 gateways with limited processor time |
//! | [`rows`] | a gateway by the number of rows in the database |
//! | [`place`] | nodes behind links, by place |
//! | [`gateways`], [`postgres`] | the gateways of a site; its database server |
//! | [`haproxy`], [`router`], [`cgroup`] | a load balancer, a delegated router, limits of processor time |

mod capacity;
mod cgroup;
mod gateways;
mod haproxy;
mod hot;
mod kill;
mod one_fetch;
mod place;
mod postgres;
mod router;
mod rows;
mod second_read;

use crate::comparison::{self, Case};
use crate::machine;
use crate::options::{Binaries, CausewayFlags, Run};
use crate::relay::Link;
use crate::report::Report;
use crate::servers::{self, Transport};
use anyhow::{Result, ensure};
use postgres::Postgres;
use serde_json::json;
use std::time::Duration;

/// Longer than any row takes.
const ROW_TIMEOUT: Duration = Duration::from_secs(3600);
/// Of all files of one system that are in memory at once.
const FILES_BYTES_MAX: usize = 4 << 30;
/// Cheap measurements are repeated more often.
const REPETITIONS: usize = 3;
/// So that a hundredth of them are those of several pins.
const BLOCK_ROWS_MIN: u32 = 100_000;

/// What to measure.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    #[command(flatten)]
    binaries: Binaries,
    #[command(flatten)]
    flags: CausewayFlags,
    #[command(flatten)]
    run: Run,
    /// Name of the results' files, after the date
    #[arg(long, value_name = "NAME", default_value = "site")]
    name: String,
    /// Only these rows, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    rows: Vec<RowName>,
    /// second-read: places, each with a site of Causeways and a group of Kubos; the paper has 3
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=6))]
    sites: u8,
    /// second-read: gateways of each site, and Kubos in each place; the paper has 4. Each is a process, and all of them
    /// share this machine
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=8))]
    gateways: u8,
    /// second-read: half of the round trip from a client to the gateways in its place, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 10)]
    client_delay_ms: u64,
    /// second-read, one-fetch: half of the round trip between places, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 50)]
    between_delay_ms: u64,
    /// second-read: QUIC between places. A link ends TCP connections, so that over TCP a sender's slow start does not
    /// see its delay
    #[arg(long)]
    quic: bool,
    /// second-read: Kubos of one place are not connected with each other, and there is no DHT, so that they fetch from
    /// other places only. By default every Kubo is connected with every other one, as in a DHT with so few nodes
    #[arg(long)]
    kubo_apart: bool,
    /// second-read: bytes of a file
    #[arg(long, value_name = "BYTES", default_value_t = 10_000_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(100_000..=1_000_000_000))]
    file_bytes: u32,
    /// second-read: files of the case with many; 0 leaves it out. They are in memory, and on the disk in several copies
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    files: u16,
    /// second-read: of these so many are read at once
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    parallel: u16,
    /// one-fetch: bytes of the DAG
    #[arg(long, value_name = "BYTES", default_value_t = 100 << 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(1_000_000..=2_000_000_000))]
    dag_bytes: u32,
    /// one-fetch: clients of each of the four gateways
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    clients: u16,
    /// kill: requests a second
    #[arg(long, value_name = "COUNT", default_value_t = 1_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(10..=50_000))]
    rate: u64,
    /// kill: seconds of the load; the gateway is killed after half of them
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(8..=600))]
    kill_seconds: u64,
    /// hot, capacity: seconds of each run of wrk
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// capacity: cores for each gateway. By default half a core, or what leaves one core to the load generator with
    /// four gateways if that is less
    #[arg(long, value_name = "CORES")]
    share: Option<f64>,
    /// rows: block rows of the largest site, for every 250 of which there is a pin; the others have a tenth and a
    /// hundredth of them. 10 million take 6 GB of disk
    #[arg(long, value_name = "COUNT", default_value_t = 10_000_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(i64::from(BLOCK_ROWS_MIN)..=20_000_000))]
    block_rows: u32,
}

/// Sizes, which a quick run reduces.
impl Options {
    fn sites(&self) -> usize {
        usize::from(self.sites)
    }

    fn gateways(&self) -> usize {
        usize::from(self.gateways)
    }

    fn client_link(&self) -> Link {
        Link::delay(Duration::from_millis(self.client_delay_ms))
    }

    fn link_between(&self) -> Link {
        Link::delay(Duration::from_millis(self.between_delay_ms))
    }

    fn transport(&self) -> Transport {
        if self.quic { Transport::Quic } else { Transport::Tcp }
    }

    /// Turns of each system with one file.
    fn turns(&self) -> usize {
        if self.run.quick { 1 } else { self.run.rounds() * REPETITIONS }
    }

    fn file_bytes(&self) -> usize {
        self.divided(self.file_bytes as usize)
    }

    fn files(&self) -> usize {
        self.divided(usize::from(self.files))
    }

    fn parallel(&self) -> usize {
        usize::from(self.parallel)
    }

    fn dag_bytes(&self) -> usize {
        self.divided(self.dag_bytes as usize)
    }

    fn clients(&self) -> usize {
        self.divided(usize::from(self.clients))
    }

    fn rate(&self) -> u64 {
        if self.run.quick { (self.rate / 20).max(10) } else { self.rate }
    }

    fn kill_seconds(&self) -> u64 {
        if self.run.quick { 8 } else { self.kill_seconds }
    }

    fn block_rows(&self) -> u64 {
        u64::from(if self.run.quick { (self.block_rows / 100).max(BLOCK_ROWS_MIN) } else { self.block_rows })
    }

    fn seconds(&self) -> u64 {
        if self.run.quick { 1 } else { self.seconds }
    }

    /// A number that a quick run divides by 20, up to the next whole one.
    fn divided(&self, number: usize) -> usize {
        if self.run.quick { number.div_ceil(20) } else { number }
    }

    /// Cores for each gateway of the row `capacity`.
    fn share(&self) -> Result<f64> {
        let cores = std::thread::available_parallelism()?.get();
        Ok(self.share.unwrap_or_else(|| share(cores)))
    }

    fn check(&self) -> Result<()> {
        self.binaries.check()?;
        let bytes = self.files() * self.file_bytes();
        ensure!(
            bytes <= FILES_BYTES_MAX,
            "{bytes} bytes of files are too much: at most {FILES_BYTES_MAX} are in memory"
        );
        Ok(())
    }
}

/// Half a core, or what leaves one core of so many to others with four gateways.
fn share(cores: usize) -> f64 {
    ((cores as f64 - 1.0) / 4.0).clamp(0.1, 0.5)
}

comparison::rows! {
    (options: &Options) -> Result<Vec<Case>>;
    /// A file written in one place and read twice in another one, beside Kubo, a single Causeway and HTTP
    SecondRead => second_read::measure(options).await,
    /// One cold DAG for many clients of four gateways: bytes from the source, and searches
    OneFetch => one_fetch::measure(options).await,
    /// A gateway of three is killed under load, behind HAProxy
    Kill => kill::measure(options).await,
    /// Hits in memory at a gateway of a site and at one that is alone
    Hot => hot::measure(options).await,
    /// 1, 2 and 4 gateways with limited processor time; needs root and cgroups
    Capacity => capacity::measure(options).await,
    /// A gateway of a site with 10 million block rows: memory, start, lists, look-ups, pins
    Rows => rows::measure(options).await,
}

/// Measures the rows that were chosen, and writes the report.
pub async fn run(options: &Options) -> Result<()> {
    options.check()?;
    let results = comparison::measure(&options.rows, ROW_TIMEOUT, async |row| row.measure(options).await).await;
    let mut machine = machine::describe_with_kubo("bench-site", &options.run, &options.binaries)?;
    machine["sites"] = json!(options.sites);
    machine["gateways"] = json!(options.gateways);
    machine["client_delay_ms"] = json!(options.client_delay_ms);
    machine["between_delay_ms"] = json!(options.between_delay_ms);
    machine["block_rows"] = json!(options.block_rows());
    machine["between"] = json!(options.transport().name());
    machine["kubos_of_a_place_are_connected"] = json!(!options.kubo_apart);
    machine["postgres"] = json!(Postgres::version());
    machine["haproxy"] = json!(machine::first_line(haproxy::binary(), &["-v"]));
    machine["nginx"] = json!(machine::first_line(servers::nginx_binary(), &["-v"]));
    machine["folders"] = json!(machine::temporary_file_system());
    let mut report = Report::new(machine, &options.name, "Several gateways as one site");
    report.paragraph(about(&report, options));
    results.report(&mut report);
    report.write(&options.run.out, &results)?;
    results.check()
}

/// With what and how it was measured.
fn about(report: &Report, options: &Options) -> String {
    let [causeway, kubo, postgres, haproxy, nginx, folders, rounds] =
        ["causeway", "kubo", "postgres", "haproxy", "nginx", "folders", "rounds"].map(|key| report.fact(key));
    let [sites, gateways, clients, between, transport] =
        ["sites", "gateways", "client_delay_ms", "between_delay_ms", "between"].map(|key| report.fact(key));
    let rows = report.fact("block_rows");
    let kubos = if options.kubo_apart { "not connected with each other" } else { "connected with each other" };
    format!(
        "{} {causeway}; {kubo}; {postgres}; {haproxy}; {nginx}.\nEverything shares the machine, on loopback; folders \
         are on {folders}. `second-read` has {sites} places with {gateways} gateways of a site and {gateways} Kubos \
         each (the paper: 3 places with 4 nodes each, on machines of their own), where Kubos of one place are {kubos}; \
         links add {clients} ms each way to clients, and {between} ms between places, over {transport}, without a \
         limit of the rate. Database and storage of a site are near its gateways. In `rows` the \
         largest site has {rows} block rows. Medians of {rounds} rounds (three \
         times as many where a row is cheap; one where a row says what became of a load), in rotated order.",
        report.measured(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        options: Options,
    }

    fn options(more: &[&str]) -> Options {
        let here = std::env::current_exe().expect("a path").display().to_string();
        let binaries = ["site", "--causeway", &here, "--kubo", &here];
        Arguments::parse_from(binaries.iter().chain(more)).options
    }

    #[test]
    fn a_quick_run_is_smaller_in_everything() {
        let (full, quick) = (options(&[]), options(&["--quick"]));
        assert_eq!((full.file_bytes(), full.files(), full.turns(), full.rate()), (10_000_000, 100, 9, 1_000));
        assert_eq!((quick.file_bytes(), quick.files(), quick.turns(), quick.rate()), (500_000, 5, 1, 50));
        assert_eq!((quick.clients(), quick.seconds(), quick.kill_seconds()), (3, 1, 8));
        assert_eq!((full.block_rows(), quick.block_rows()), (10_000_000, 100_000));
        assert_eq!(options(&["--quick", "--files", "0"]).files(), 0);
    }

    #[test]
    fn gateways_leave_a_core_to_others() {
        assert_eq!([1, 2, 3, 8].map(share), [0.1, 0.25, 0.5, 0.5]);
        assert_eq!(options(&["--share", "0.3"]).share().ok(), Some(0.3));
    }

    #[test]
    fn more_files_than_memory_holds_are_refused() {
        let of = |files: &str| options(&["--files", files]).check();
        assert!(of("100").is_ok());
        assert!(of("1000").is_err_and(|error| error.to_string().contains("too much")));
    }
}
