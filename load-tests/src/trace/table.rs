//! The paper's Table 5 beside ours, as [`results`].

use super::figures::{Answers, Replayed};
use super::shape::{Popularity, Sizes};
use super::simulate::{Policy, Share, Store};
use super::tier::Tier;
use super::{Options, Outcome, Simulated, paper, picture};
use crate::results;
use anyhow::Result;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// The least share of a simulated LRU's hits that the service's memory tier is to have.
const HITS_BAR: f64 = 0.98;

/// Of the files.
const KIND: &str = "trace";

/// Writes all files and returns the path of the Markdown one.
pub fn write(options: &Options, machine: &Value, outcome: &Outcome) -> Result<PathBuf> {
    let picture = picture::tiers(&outcome.replayed)?;
    let (mut markdown, json) = (markdown(options, machine, outcome)?, as_json(options, machine, outcome));
    markdown.push('\n');
    results::show_picture(&mut markdown, machine, KIND, &picture)?;
    results::write_pictures(&options.out, machine, KIND, &[picture])?;
    results::write(&options.out, machine, KIND, &markdown, &json)
}

fn markdown(options: &Options, machine: &Value, outcome: &Outcome) -> Result<String> {
    let mut out = String::new();
    let say = |key| results::say(machine, key);
    results::heading(&mut out, machine, "A day at a public gateway, replayed")?;
    writeln!(
        out,
        "{}. {}. Load generator, gateway and the\nnode that has what is not pinned shared the machine, all on loopback.\n",
        results::measured(machine),
        say("causeway")
    )?;
    about_trace(&mut out, options, outcome)?;
    table_5(&mut out, outcome)?;
    verdicts(&mut out, outcome)?;
    Ok(out)
}

fn about_trace(out: &mut String, options: &Options, outcome: &Outcome) -> Result<()> {
    let Replayed { due, due_per_second, .. } = outcome.replayed;
    let (popularity, (below, above)) = (Popularity::fitted(), Sizes::fitted().deviations());
    let draw = options.draw();
    writeln!(
        out,
        "The trace (seed {}): {} minutes from {} o'clock of a day with {} CIDs, of which the first {} only warm the caches; {} \
         objects of {} in all,\nwith the paper's sizes times {:.4}; {due} requests, {due_per_second:.0}/s: {} times real time. \
         Requests are sent in an open loop over at most {} connections;\nlatencies count from when they were due.\n",
        draw.seed,
        options.warm_minutes + options.minutes,
        options.from_hour,
        draw.cids,
        options.warm_minutes,
        outcome.objects,
        bytes(outcome.object_bytes as f64),
        outcome.scale,
        options.speed(),
        options.connections,
    )?;
    Ok(writeln!(
        out,
        "Popularity is Zipf–Mandelbrot with an exponent of {:.3} and a knee at {} of the CIDs: of all CIDs, half are asked for {:.1} \
         times a day or more,\na tenth {:.0} times, a hundredth {:.0} times. Sizes are log-normal with deviations of {below:.3} below \
         the median and {above:.3} above. What of that the paper prints,\nand what is assumed, is told in \
         `load-tests/src/trace/shape.rs`.\n",
        popularity.exponent(),
        popularity.knee(),
        popularity.at(0.5),
        popularity.at(0.1),
        popularity.at(0.01),
    )?)
}

fn table_5(out: &mut String, outcome: &Outcome) -> Result<()> {
    writeln!(out, "## Table 5\n")?;
    writeln!(
        out,
        "The paper's latencies are its gateway's own, to the first byte. The simulated caches hold whole objects in {}, and behind \
         them\n\"pins\" as in the paper, or also everything that was fetched. Which tier answered is what the response's head says: as far \
         as the\nsearch had gone by then.\n",
        bytes(outcome.ram_bytes as f64)
    )?;
    writeln!(out, "| tier | whose | requests | bytes | first byte, median | p99 | last byte, median | p99 |")?;
    writeln!(out, "|---|---|--:|--:|--:|--:|--:|--:|")?;
    for (index, column) in paper::TABLE_5.iter().enumerate() {
        let ours = column.tier.name();
        let share = Share { requests: column.requests, bytes: column.bytes };
        writeln!(out, "| {} | paper {} | {} | – | – | – |", column.name, shares(share), column.latency)?;
        for simulated in &outcome.simulated {
            writeln!(
                out,
                "| {ours} | simulated: {} {} | – | – | – | – |",
                name(simulated),
                shares(simulated.tiers[index])
            )?;
        }
        let answers = &outcome.replayed.tiers[index];
        writeln!(out, "| {ours} | Causeway {} | {} |", shares(answers.share), times(answers))?;
    }
    Ok(writeln!(out, "| all | Causeway | | | {} |\n", times(&outcome.replayed.all))?)
}

fn verdicts(out: &mut String, outcome: &Outcome) -> Result<()> {
    let replayed = &outcome.replayed;
    match outcome.of_lru() {
        Some(ratio) => {
            let met = if ratio >= HITS_BAR { "met" } else { "**missed**" };
            writeln!(out, "- Hits in memory are {ratio:.3} of the simulated LRU's; at least {HITS_BAR}: {met}.")?;
        }
        None => writeln!(out, "- No answer said which tier it came from.")?,
    }
    let Replayed { due, late, latest, statuses, wrong, failed, unsent, untold, .. } = replayed;
    writeln!(
        out,
        "- Of {due} requests {} were answered in full; {statuses} had another status than 200, {wrong} wrong bytes, {failed} no answer \
         to its end, {unsent} were not\n  sent before the time was over. {untold} did not say which tier they came from.",
        replayed.all.count
    )?;
    writeln!(
        out,
        "- {:.0} requests/s were due, {:.0} requests/s and {}/s were answered. {late} were sent more than 10 ms late, at most {} late.",
        replayed.due_per_second,
        replayed.answered_per_second,
        bytes(replayed.bytes_per_second),
        millis(*latest)
    )?;
    if let Some(given) = outcome.given {
        let all = given.iter().sum::<u64>().max(1) as f64;
        let tiers = Tier::ALL.map(|tier| {
            let given = given[tier as usize] as f64;
            format!("{} {} ({:.1} %)", tier.name(), bytes(given), given / all * 100.0)
        });
        writeln!(out, "- Bytes of blocks by the gateway's metrics, the warming included: {}.", tiers.join(", "))?;
    }
    if let Some(microseconds) = outcome.cpu_microseconds_per_request {
        writeln!(out, "- The gateway took {microseconds:.0} µs of CPU for each request, the warming included.")?;
    }
    Ok(())
}

fn name(simulated: &Simulated) -> &'static str {
    match (simulated.policy, simulated.store) {
        (Policy::Lru, Store::Pins) => "LRU, pins",
        (Policy::Lru, Store::PinsAndFetched) => "LRU, pins and fetched",
        (Policy::TinyLfu, Store::Pins) => "TinyLFU, pins",
        (Policy::TinyLfu, Store::PinsAndFetched) => "TinyLFU, pins and fetched",
    }
}

fn shares(share: Share) -> String {
    format!("| {:.1} % | {:.1} %", share.requests * 100.0, share.bytes * 100.0)
}

/// Four columns; none answered, none timed.
fn times(answers: &Answers) -> String {
    let Answers { count, first_byte, last_byte, .. } = answers;
    let times = [first_byte.median, first_byte.p99, last_byte.median, last_byte.p99];
    times.map(|time| if *count > 0 { millis(time) } else { "–".to_owned() }).join(" | ")
}

fn millis(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1e3)
}

fn bytes(count: f64) -> String {
    let units = [(1e9, "GB"), (1e6, "MB"), (1e3, "KB")];
    let (unit, name) = units.into_iter().find(|(unit, _)| count >= *unit).unwrap_or((1.0, "bytes"));
    format!("{:.1} {name}", count / unit)
}

fn as_json(options: &Options, machine: &Value, outcome: &Outcome) -> Value {
    let replayed = &outcome.replayed;
    let share = |share: &Share| json!({ "requests": share.requests, "bytes": share.bytes });
    let by_tier = |of: &dyn Fn(usize) -> Value| -> Value {
        Tier::ALL.iter().enumerate().map(|(index, tier)| (tier.name().to_owned(), of(index))).collect()
    };
    let paper = |index: usize| {
        let paper::Column { name, requests, bytes, latency, .. } = paper::TABLE_5[index];
        json!({ "name": name, "requests": requests, "bytes": bytes, "median_latency": latency })
    };
    let answers = |answers: &Answers| {
        json!({
            "count": answers.count,
            "share": share(&answers.share),
            "first_byte_median_seconds": answers.first_byte.median.as_secs_f64(),
            "first_byte_p99_seconds": answers.first_byte.p99.as_secs_f64(),
            "last_byte_median_seconds": answers.last_byte.median.as_secs_f64(),
            "last_byte_p99_seconds": answers.last_byte.p99.as_secs_f64(),
        })
    };
    let simulated = |simulated: &Simulated| {
        let tiers = by_tier(&|index| share(&simulated.tiers[index]));
        json!({ "name": name(simulated), "tiers": tiers })
    };
    let draw = options.draw();
    json!({
        "machine": machine,
        "trace": {
            "seed": draw.seed,
            "cids_of_day": draw.cids,
            "from_hour": options.from_hour,
            "minutes": options.minutes,
            "warm_minutes": options.warm_minutes,
            "speed": options.speed(),
            "objects": outcome.objects,
            "object_bytes": outcome.object_bytes,
            "size_scale": outcome.scale,
            "size_deviations": Sizes::fitted().deviations(),
            "popularity_exponent": Popularity::fitted().exponent(),
            "popularity_knee": Popularity::fitted().knee(),
            "connections": options.connections,
        },
        "ram_bytes": outcome.ram_bytes,
        "paper": by_tier(&paper),
        "simulated": outcome.simulated.iter().map(simulated).collect::<Vec<_>>(),
        "causeway": {
            "tiers": by_tier(&|index| answers(&replayed.tiers[index])),
            "all": answers(&replayed.all),
            "due": replayed.due,
            "due_per_second": replayed.due_per_second,
            "answered_per_second": replayed.answered_per_second,
            "bytes_per_second": replayed.bytes_per_second,
            "late": replayed.late,
            "latest_seconds": replayed.latest.as_secs_f64(),
            "statuses": replayed.statuses,
            "wrong": replayed.wrong,
            "failed": replayed.failed,
            "unsent": replayed.unsent,
            "untold": replayed.untold,
            "hits_of_lru": outcome.of_lru(),
            "given_bytes": outcome.given.map(|given| by_tier(&|index| json!(given[index]))),
            "cpu_microseconds_per_request": outcome.cpu_microseconds_per_request,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::figures::Latency;
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    /// Shares of Causeway's and of a simulated LRU's memory.
    fn outcome(ours: f64, lru: f64) -> Outcome {
        let latency = Latency { median: Duration::from_millis(1), p99: Duration::from_millis(9) };
        let mut replayed = Replayed::of(&[]);
        let share = Share { requests: ours, bytes: ours };
        replayed.tiers[0] = Answers { count: 7, share, first_byte: latency, last_byte: latency };
        let tiers = [lru, 1.0 - lru, 0.0].map(|share| Share { requests: share, bytes: share });
        Outcome {
            objects: 3,
            object_bytes: 3_000_000,
            scale: 0.5,
            ram_bytes: 1_500_000,
            replayed,
            given: Some([75, 25, 0]),
            cpu_microseconds_per_request: Some(42.0),
            simulated: vec![Simulated { policy: Policy::Lru, store: Store::Pins, tiers }],
        }
    }

    #[test]
    fn every_tier_has_the_paper_s_line_the_simulated_and_ours() {
        let options = Line::parse_from(["trace"]).options;
        let text = markdown(&options, &json!({}), &outcome(0.45, 0.46)).expect("it can be written");
        let lines = [
            "| nginx cache | paper | 46.0 % | 46.4 % | 0 s | – | – | – |",
            "| ram | simulated: LRU, pins | 46.0 % | 46.0 % | – | – | – | – |",
            "| ram | Causeway | 45.0 % | 45.0 % | 1.00 ms | 9.00 ms | 1.00 ms | 9.00 ms |",
            "| IPFS node store | paper | 40.2 % | 38.0 % | 8 ms | – | – | – |",
            "| network | Causeway | 0.0 % | 0.0 % | – | – | – | – |",
            "ram 75.0 bytes (75.0 %)",
        ];
        for line in lines {
            assert!(text.contains(line), "no {line} in {text}");
        }
        let json = as_json(&options, &json!({}), &outcome(0.45, 0.46));
        assert_eq!(json["causeway"]["tiers"]["ram"]["count"], 7);
        assert_eq!(json["paper"]["disk"]["requests"], 0.402);
    }

    #[test]
    fn hits_are_measured_by_the_simulated_lru_s() {
        for (ours, lru, verdict) in [(0.46, 0.46, "0.98: met"), (0.449, 0.46, "0.98: **missed**")] {
            let mut out = String::new();
            verdicts(&mut out, &outcome(ours, lru)).expect("it can be written");
            assert!(out.contains(verdict), "{out}");
        }
        let mut untold = outcome(0.0, 0.46);
        untold.replayed.tiers[0].count = 0;
        assert_eq!(untold.of_lru(), None);
    }
}
