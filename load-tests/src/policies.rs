//! What the memory tier keeps: its policies, on the same day at a public gateway ([`mod@crate::trace`]), alone and with somebody
//! who reads a very long file meanwhile.
//!
//! Goals: the memory tier itself is measured and no model of it; whole hours, so that what a policy learns shows; the file is
//! long beside the memory.
//!
//! Non-goals: time. What a hit or a miss costs is [`mod@crate::tiers`]' concern.
//!
//! How: each request reads its file's blocks as the gateway does: what memory has not is offered to it. A request is a hit if
//! nothing of its file was missing. Blocks are slices of one buffer, so that a day's memory tier takes no memory here but for
//! small ones.

use crate::trace::workload::{Draw, Object, Trace};
use crate::trace::{CACHE_SHARE, paper, simulate};
use crate::{machine, results};
use anyhow::Result;
use bytes::Bytes;
use cache::{Ram, RamPolicy};
use content::{BlockKey, Cid, Multihash, codec};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

/// Bytes of a leaf, as Kubo cuts files.
const LEAF_BYTES: usize = 256 * 1024;
/// Bytes that a link of a file's root takes: nearly all of it.
const LINK_BYTES: usize = 57;
/// The policies, and what they are called.
const POLICIES: [(RamPolicy, &str); 2] = [(RamPolicy::Lru, "lru"), (RamPolicy::TinyLfu, "tinylfu")];
/// When the long file is read, in hours since the trace begins.
const SCAN_HOURS: Range<f64> = 6.0..7.0;
/// For how long after that hits are looked at.
const AFTER_HOURS: f64 = 1.0;
/// SHA2-256 (multicodec table).
const SHA2_256: u64 = 0x12;

static LEAF: [u8; LEAF_BYTES] = [0; LEAF_BYTES];

/// What to simulate.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Folder for the results
    #[arg(long, value_name = "DIR", default_value = "load-tests/results")]
    out: PathBuf,
    /// The trace's seed
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// CIDs of the whole day; each has 25.9 requests a day on average
    #[arg(long, value_name = "COUNT", default_value_t = paper::CIDS)]
    cids: u32,
    /// Bytes of the memory tier; 1.1 % of the day's if not given
    #[arg(long, value_name = "BYTES")]
    ram_bytes: Option<u64>,
    /// Bytes of the long file
    #[arg(long, value_name = "BYTES", default_value_t = 50_000_000_000)]
    scan_bytes: u64,
    /// A hundredth of the CIDs and of the file: shows that everything works, measures nothing
    #[arg(long)]
    quick: bool,
}

/// Hits as shares of requests and bytes.
type Share = simulate::Share;

/// What came of a policy: on the whole day, and in the hours of the scan and after it without and with the scan.
struct Outcome {
    policy: &'static str,
    day: Share,
    during: [Share; 2],
    after: [Share; 2],
}

/// Simulates every policy and writes what came of it.
pub fn run(options: &Options) -> Result<PathBuf> {
    let part = if options.quick { 100 } else { 1 };
    let (cids, scan_bytes) = (options.cids.div_ceil(part), options.scan_bytes / u64::from(part));
    let draw = Draw { seed: options.seed, cids, hours: 0.0..24.0, scale_max: 1.0, bytes_max: u64::MAX };
    let trace = draw.draw()?;
    let ram_bytes = options.ram_bytes.unwrap_or((trace.day_bytes as f64 * CACHE_SHARE) as u64);
    eprintln!("{} requests for {cids} CIDs, {ram_bytes} bytes of memory", trace.requests.len());
    let outcomes = POLICIES.map(|(policy, name)| {
        eprintln!("  {name}");
        let without = replay(&trace, Ram::with_policy(ram_bytes, policy), 0);
        let with = replay(&trace, Ram::with_policy(ram_bytes, policy), scan_bytes);
        let (during, after) = (SCAN_HOURS, SCAN_HOURS.end..SCAN_HOURS.end + AFTER_HOURS);
        let both = |hours: Range<f64>| [&without, &with].map(|hits| share(&trace, hits, hours.clone()));
        Outcome { policy: name, day: share(&trace, &without, 0.0..24.0), during: both(during), after: both(after) }
    });
    let machine = machine::describe_policies(options.quick)?;
    let markdown = markdown(&machine, cids, ram_bytes, scan_bytes, &outcomes)?;
    let json = json!({
        "machine": &machine, "cids": cids, "ram_bytes": ram_bytes, "scan_bytes": scan_bytes,
        "policies": outcomes.iter().map(as_json).collect::<Vec<_>>(),
    });
    results::write(&options.out, &machine, "policies", &markdown, &json)
}

/// Which requests were hits. During the scan's hours a file of `scan_bytes` is read beside them at an even pace.
fn replay(trace: &Trace, ram: Ram, scan_bytes: u64) -> Vec<bool> {
    let (begin, end) = (hours(SCAN_HOURS.start), hours(SCAN_HOURS.end));
    let leaves = scan_bytes.div_ceil(LEAF_BYTES as u64);
    let mut scanned = 0;
    let mut hits = Vec::with_capacity(trace.requests.len());
    for request in &trace.requests {
        let into = request.at.saturating_sub(begin).as_secs_f64() / (end - begin).as_secs_f64();
        while scanned < (leaves as f64 * into.min(1.0)) as u64 {
            read(&ram, key(u32::MAX, scanned), LEAF_BYTES);
            scanned += 1;
        }
        let blocks = blocks(trace.object_of(request));
        let found = blocks.enumerate().map(|(block, bytes)| read(&ram, key(request.object, block as u64), bytes));
        // All of them are read, found or not.
        hits.push(found.fold(true, |hit, found| hit & found));
    }
    hits
}

fn hours(hours: f64) -> Duration {
    Duration::from_secs_f64(hours * 3600.0)
}

/// The lengths of a file's blocks: leaves, and a root above them if there are several.
fn blocks(object: &Object) -> impl Iterator<Item = usize> {
    let leaves = object.bytes.div_ceil(LEAF_BYTES as u64).max(1);
    let last = object.bytes - (leaves - 1) * LEAF_BYTES as u64;
    let root = (leaves > 1).then_some((leaves as usize * LINK_BYTES).min(LEAF_BYTES));
    let leaf = move |leaf: u64| if leaf + 1 == leaves { last as usize } else { LEAF_BYTES };
    root.into_iter().chain((0..leaves).map(leaf))
}

/// A block's name: no hash, but as good as one.
fn key(object: u32, block: u64) -> Option<BlockKey> {
    let mut digest = [0; 32];
    digest[..4].copy_from_slice(&object.to_be_bytes());
    digest[24..].copy_from_slice(&block.to_be_bytes());
    BlockKey::of(&Cid::new_v1(codec::RAW, Multihash::wrap(SHA2_256, &digest).ok()?))
}

/// Reads a block as the gateway does, and says whether memory had it.
fn read(ram: &Ram, key: Option<BlockKey>, bytes: usize) -> bool {
    let Some(key) = key else { return false };
    let hit = ram.find(&key).is_some();
    if !hit {
        ram.insert(key, &Bytes::from_static(&LEAF[..bytes]));
    }
    hit
}

fn share(trace: &Trace, hits: &[bool], within: Range<f64>) -> Share {
    let (from, to) = (trace.first_at(hours(within.start)), trace.first_at(hours(within.end)));
    let (mut all, mut hit) = ([0, 0], [0, 0]);
    for (request, found) in trace.requests[from..to].iter().zip(&hits[from..to]) {
        let this = [1, trace.object_of(request).bytes];
        for (index, value) in this.into_iter().enumerate() {
            all[index] += value;
            hit[index] += if *found { value } else { 0 };
        }
    }
    let part = |index: usize| hit[index] as f64 / all[index].max(1) as f64;
    Share { requests: part(0), bytes: part(1) }
}

fn markdown(machine: &Value, cids: u32, ram_bytes: u64, scan_bytes: u64, outcomes: &[Outcome]) -> Result<String> {
    let mut out = String::new();
    results::heading(&mut out, machine, "What memory keeps, by policy")?;
    writeln!(
        out,
        "Simulated by `{}` at commit {}: the memory tier itself, with {:.2} GB, for the requests of a day for {cids} CIDs\n\
         (load-tests/src/trace/shape.rs tells how they are drawn). Hits as shares of requests, and of bytes. A file of {:.1} GB is \
         read once,\nfrom hour {} to hour {}; \"after\" is the hour behind that.\n",
        results::say(machine, "command"),
        results::say(machine, "commit"),
        ram_bytes as f64 / 1e9,
        scan_bytes as f64 / 1e9,
        SCAN_HOURS.start,
        SCAN_HOURS.end,
    )?;
    writeln!(out, "| policy | whole day | those hours, no scan | during the scan | after, no scan | after the scan |")?;
    writeln!(out, "|---|--:|--:|--:|--:|--:|")?;
    for Outcome { policy, day, during, after } in outcomes {
        let text = |share: &Share| format!("{:.1} %, {:.1} %", share.requests * 100.0, share.bytes * 100.0);
        let cells = [day, &during[0], &during[1], &after[0], &after[1]].map(text);
        writeln!(out, "| {policy} | {} |", cells.join(" | "))?;
    }
    Ok(out)
}

fn as_json(outcome: &Outcome) -> Value {
    let share = |share: &Share| json!({ "requests": share.requests, "bytes": share.bytes });
    let both = |[without, with]: &[Share; 2]| json!({ "without": share(without), "with": share(with) });
    let Outcome { policy, day, during, after } = outcome;
    json!({ "policy": policy, "day": share(day), "during_scan": both(during), "after_scan": both(after) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_s_blocks_are_its_leaves_and_a_root_above_several() {
        let leaf = LEAF_BYTES as u64;
        let table = [
            (1, vec![1]),
            (leaf, vec![LEAF_BYTES]),
            (leaf + 1, vec![2 * LINK_BYTES, LEAF_BYTES, 1]),
            (3 * leaf, vec![3 * LINK_BYTES, LEAF_BYTES, LEAF_BYTES, LEAF_BYTES]),
        ];
        for (bytes, expected) in table {
            let object = Object { bytes, seed: 0, pinned: false };
            assert_eq!(blocks(&object).collect::<Vec<_>>(), expected, "{bytes}");
        }
    }

    /// On a small day, a scan of many times the memory costs LRU its hits and TinyLFU next to nothing.
    #[test]
    fn a_scan_flushes_one_policy_and_not_the_other() {
        let draw = Draw { seed: 1, cids: 2_000, hours: 0.0..24.0, scale_max: 1.0, bytes_max: u64::MAX };
        let trace = draw.draw().expect("it is a day");
        let ram_bytes = trace.day_bytes / 50;
        let lost = |policy| {
            let scans = [0, 40 * ram_bytes];
            let hits = scans.map(|scan| replay(&trace, Ram::with_policy(ram_bytes, policy), scan));
            let [without, with] = hits.map(|hits| share(&trace, &hits, SCAN_HOURS).requests);
            without - with
        };
        assert!(lost(RamPolicy::Lru) > 0.1);
        assert!(lost(RamPolicy::TinyLfu) < 0.03);
    }
}
