//! The hit rates of the memory tier's policies, on the same day at a public gateway ([`mod@crate::trace`]), alone and
//! while a very long file is read.
//!
//! Goals: the memory tier itself is measured, not a model of it ([`crate::trace::simulate`]); whole hours, so that
//! adaptation to popularity shows; a file that is many times as long as the memory tier.
//!
//! Non-goals: time. The cost of a hit or a miss is the concern of [`mod@crate::tiers`].

use crate::machine;
use crate::report::{Report, Table, percent};
use crate::trace::simulate::{POLICIES, Scan, Share, Store, hits, shares};
use crate::trace::workload::{Draw, Trace};
use crate::trace::{CACHE_SHARE, paper};
use anyhow::Result;
use serde::Serialize;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

/// When the long file is read, since the trace begins.
const SCAN: Range<Duration> = Duration::from_hours(6)..Duration::from_hours(7);
/// When hits after the scan are counted.
const AFTER: Range<Duration> = Duration::from_hours(7)..Duration::from_hours(8);
const DAY: Range<Duration> = Duration::ZERO..Duration::from_hours(24);

/// What to simulate.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Directory for the results
    #[arg(long, value_name = "DIR", default_value = "load-tests/results")]
    out: PathBuf,
    /// The trace's seed
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// CIDs of the whole day; each has 25.9 requests a day on average
    #[arg(long, value_name = "COUNT", default_value_t = paper::CIDS)]
    cids: u32,
    /// Bytes of the memory tier; 1.1 % of the day's by default
    #[arg(long, value_name = "BYTES")]
    ram_bytes: Option<u64>,
    /// Bytes of the long file
    #[arg(long, value_name = "BYTES", default_value_t = 50_000_000_000)]
    scan_bytes: u64,
    /// A hundredth of the CIDs and of the file: shows that everything works, measures nothing
    #[arg(long)]
    quick: bool,
}

#[derive(Serialize)]
struct Results {
    cids: u32,
    ram_bytes: u64,
    scan_bytes: u64,
    policies: Vec<Outcome>,
}

/// Hits of a policy.
#[derive(Serialize)]
struct Outcome {
    policy: &'static str,
    day: Share,
    during_scan: Comparison,
    after_scan: Comparison,
}

#[derive(Serialize)]
struct Comparison {
    without: Share,
    with: Share,
}

/// Simulates every policy, and writes the report.
pub fn run(options: &Options) -> Result<()> {
    let part = if options.quick { 100 } else { 1 };
    let (cids, scan_bytes) = (options.cids.div_ceil(part), options.scan_bytes / u64::from(part));
    let draw = Draw { seed: options.seed, cids, hours: 0.0..24.0, scale_max: 1.0, bytes_max: u64::MAX };
    let trace = draw.draw()?;
    let ram_bytes = options.ram_bytes.unwrap_or((trace.day_bytes as f64 * CACHE_SHARE) as u64);
    eprintln!("{} requests for {cids} CIDs, {ram_bytes} bytes of memory", trace.requests.len());
    let scan = Scan { bytes: scan_bytes, during: SCAN };
    let policies = POLICIES.map(|(policy, name)| {
        eprintln!("  {name}");
        let [without, with] = [None, Some(&scan)].map(|scan| hits(&trace, policy, ram_bytes, scan));
        let both = |during: &Range<Duration>| Comparison {
            without: share(&trace, &without, during),
            with: share(&trace, &with, during),
        };
        Outcome { policy: name, day: share(&trace, &without, &DAY), during_scan: both(&SCAN), after_scan: both(&AFTER) }
    });
    let results = Results { cids, ram_bytes, scan_bytes, policies: policies.into() };
    let machine = machine::describe("bench-policies", options.quick)?;
    let mut report = Report::new(machine, "policies", "Hit rates of the memory tier, by policy");
    results.describe(&mut report);
    report.write(&options.out, &results)
}

fn share(trace: &Trace, hits: &[bool], during: &Range<Duration>) -> Share {
    shares(trace, hits, Store::Pins, trace.first_at(during.start)..trace.first_at(during.end)).ram
}

impl Results {
    fn describe(&self, report: &mut Report) {
        let [command, commit] = ["command", "commit"].map(|key| report.fact(key));
        report.paragraph(format!(
            "Simulated by `{command}` at commit {commit}: the memory tier itself, with {:.2} GB, for the requests of \
             a day for {} CIDs\n(load-tests/src/trace/shape.rs describes the distributions). Hits as shares of \
             requests, and of bytes. A file of {:.1} GB is read once,\nfrom hour 6 to hour 7; \"after\" is the hour \
             behind that.",
            self.ram_bytes as f64 / 1e9,
            self.cids,
            self.scan_bytes as f64 / 1e9,
        ));
        let headings =
            ["policy", "whole day", "those hours, no scan", "during the scan", "after, no scan", "after the scan"];
        let mut table = Table::new("lr", headings);
        for Outcome { policy, day, during_scan, after_scan } in &self.policies {
            let shares = [*day, during_scan.without, during_scan.with, after_scan.without, after_scan.with];
            let cells = shares.map(|share| format!("{}, {}", percent(share.requests), percent(share.bytes)));
            table.row([(*policy).to_owned()].into_iter().chain(cells));
        }
        report.table(&table);
    }
}
