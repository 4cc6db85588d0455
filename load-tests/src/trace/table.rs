//! The paper's Table 5 beside ours.

use super::figures::{Replayed, Responses};
use super::shape::Popularity;
use super::tier::Tier;
use super::{Measured, Outcome, Workload, paper};
use crate::report::{Report, Table, millis, percent};

/// The required share of a simulated LRU's hits.
const HITS_BAR: f64 = 0.98;

pub fn describe(report: &mut Report, outcome: &Outcome) {
    let causeway = report.fact("causeway");
    report.paragraph(format!(
        "{} {causeway}. Load generator, gateway and the\nnode that has the unpinned content shared the machine, all \
         on loopback.",
        report.measured(),
    ));
    describe_workload(report, outcome);
    report.section("Table 5");
    report.paragraph(format!(
        "The paper's latencies are its gateway's own, to the first byte. The simulated gateways have a memory tier of \
         {}, whose blocks are those of the trace's\nobjects, and behind it a store with \"pins\" as in the paper, or \
         also everything that was fetched. The tier of a response is the one in its head: as far as\nthe gateway had \
         gone by then.",
        bytes(outcome.ram_bytes as f64)
    ));
    report.table(&table_5(outcome));
    verdicts(report, &outcome.causeway);
}

fn describe_workload(report: &mut Report, outcome: &Outcome) {
    let Replayed { due, due_per_second, .. } = outcome.causeway.replayed;
    let Workload { seed, cids, from_hour, minutes, warm_minutes, speed, objects, connections, .. } = outcome.trace;
    let Workload { object_bytes, size_scale, popularity_exponent, popularity_knee, .. } = outcome.trace;
    let (below, above) = outcome.trace.size_deviations;
    report.paragraph(format!(
        "The trace (seed {seed}): {} minutes from {from_hour} o'clock of a day with {cids} CIDs, of which the first \
         {warm_minutes} only warm the caches; {objects} objects of {} in all,\nwith the paper's sizes times \
         {size_scale:.4}; {due} requests, {due_per_second:.0}/s: {speed} times real time. Requests are sent in an \
         open loop over at most {connections} connections;\nlatencies count from when they were due.",
        warm_minutes + minutes,
        bytes(object_bytes as f64),
    ));
    let [half, tenth, hundredth] = [0.5, 0.1, 0.01].map(|share| Popularity::fitted().at(share));
    report.paragraph(format!(
        "Popularity is Zipf–Mandelbrot with an exponent of {popularity_exponent:.3} and a knee at {popularity_knee} \
         of the CIDs: of all CIDs, half are requested {half:.1} times a day or more,\na tenth {tenth:.0} times, a \
         hundredth {hundredth:.0} times. Sizes are log-normal with deviations of {below:.3} below the median and \
         {above:.3} above. What of that the paper prints,\nand what is assumed, is documented in \
         `load-tests/src/trace/shape.rs`.",
    ));
}

fn table_5(outcome: &Outcome) -> Table {
    let headings = ["tier", "whose", "requests", "bytes", "first byte, median", "p99", "last byte, median", "p99"];
    let mut table = Table::new("llr", headings);
    for tier in Tier::ALL {
        let paper::Column { name, requests, bytes, latency, .. } = paper::TABLE_5.of(tier);
        table.row([*name, "paper", &percent(*requests), &percent(*bytes), latency, "–", "–", "–"]);
        for simulated in &outcome.simulated {
            let share = simulated.tiers.of(tier);
            let whose = format!("simulated: {}", simulated.name);
            table.row([tier.name(), &whose, &percent(share.requests), &percent(share.bytes), "–", "–", "–", "–"]);
        }
        let responses = outcome.causeway.replayed.tiers.of(tier);
        let [requests, bytes] = [responses.share.requests, responses.share.bytes].map(percent);
        table.row([tier.name(), "Causeway", &requests, &bytes].map(str::to_owned).into_iter().chain(times(responses)));
    }
    let all = ["all", "Causeway", "", ""].map(str::to_owned);
    table.row(all.into_iter().chain(times(&outcome.causeway.replayed.all)));
    table
}

fn verdicts(report: &mut Report, measured: &Measured) {
    report.item(match measured.hits_of_lru {
        Some(ratio) => {
            let met = if ratio >= HITS_BAR { "met" } else { "**missed**" };
            format!("Hits in memory are {ratio:.3} of the simulated LRU's; at least {HITS_BAR}: {met}.")
        }
        None => "No response had a tier.".to_owned(),
    });
    let Replayed { due, all, late, latest, statuses, wrong, failed, unsent, without_tier, .. } = &measured.replayed;
    let Replayed { due_per_second, answered_per_second, bytes_per_second, .. } = measured.replayed;
    report.item(format!(
        "Of {due} requests {} have a complete response; {statuses} had another status than 200, {wrong} wrong bytes, \
         {failed} no response to its end, {unsent} were not sent before the time was over. {without_tier} responses \
         had no tier.",
        all.count
    ));
    report.item(format!(
        "{due_per_second:.0} requests/s were due, {answered_per_second:.0} requests/s and {}/s were answered. {late} \
         were sent more than 10 ms late, at most {} late.",
        bytes(bytes_per_second),
        millis(*latest)
    ));
    if let Some(served) = measured.served {
        let tiers = Tier::ALL.map(|tier| {
            let of_tier = *served.of(tier) as f64;
            format!("{} {} ({})", tier.name(), bytes(of_tier), percent(of_tier / served.sum().max(1) as f64))
        });
        report.item(format!("Bytes of blocks by the gateway's metrics, the warm-up included: {}.", tiers.join(", ")));
    }
    if let Some(microseconds) = measured.cpu_microseconds_per_request {
        report.item(format!("The gateway took {microseconds:.0} µs of CPU for each request, the warm-up included."));
    }
}

/// Four columns; dashes if there were no responses.
fn times(responses: &Responses) -> [String; 4] {
    let Responses { count, first_byte, last_byte, .. } = responses;
    let times = [first_byte.median, first_byte.p99, last_byte.median, last_byte.p99];
    times.map(|time| if *count > 0 { millis(time) } else { "–".to_owned() })
}

fn bytes(count: f64) -> String {
    let units = [(1e9, "GB"), (1e6, "MB"), (1e3, "KB")];
    let (unit, name) = units.into_iter().find(|(unit, _)| count >= *unit).unwrap_or((1.0, "bytes"));
    format!("{:.1} {name}", count / unit)
}

#[cfg(test)]
mod tests {
    use super::super::Simulated;
    use super::super::simulate::Share;
    use super::super::tier::ByTier;
    use super::*;
    use crate::stats::Latency;
    use serde_json::json;
    use std::time::Duration;

    /// Shares of Causeway's and of a simulated LRU's memory.
    fn outcome(ours: f64, lru: f64) -> Outcome {
        let latency = Latency { median: Duration::from_millis(1), p99: Duration::from_millis(9) };
        let mut replayed = Replayed::of(&[]);
        let share = Share { requests: ours, bytes: ours };
        replayed.tiers.ram = Responses { count: 7, share, first_byte: latency, last_byte: latency };
        let share = |share| Share { requests: share, bytes: share };
        let tiers = ByTier { ram: share(lru), disk: share(1.0 - lru), network: share(0.0) };
        Outcome {
            trace: Workload {
                seed: 1,
                cids: 10,
                from_hour: 18.0,
                minutes: 20.0,
                warm_minutes: 5.0,
                speed: 20.0,
                objects: 3,
                object_bytes: 3_000_000,
                size_scale: 0.5,
                size_deviations: (2.0, 1.0),
                popularity_exponent: 1.3,
                popularity_knee: 0.001,
                connections: 512,
            },
            ram_bytes: 1_500_000,
            paper: paper::TABLE_5,
            simulated: vec![Simulated { name: "LRU, pins", tiers }],
            causeway: Measured {
                replayed,
                hits_of_lru: Some(ours / lru),
                served: Some(ByTier { ram: 75, disk: 25, network: 0 }),
                cpu_microseconds_per_request: Some(42.0),
            },
        }
    }

    fn described(outcome: &Outcome) -> String {
        let mut report = Report::new(json!({}), "trace", "A title");
        describe(&mut report, outcome);
        report.markdown().to_owned()
    }

    #[test]
    fn every_tier_has_the_paper_s_line_the_simulated_and_ours() {
        let text = described(&outcome(0.45, 0.46));
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
        let json = serde_json::to_value(outcome(0.45, 0.46)).expect("it can be serialised");
        assert_eq!(json["causeway"]["tiers"]["ram"]["count"], 7);
        assert_eq!(json["paper"]["disk"]["requests"], 0.402);
        assert_eq!(json["causeway"]["tiers"]["ram"]["first_byte"]["median_seconds"], 0.001);
    }

    #[test]
    fn hits_are_judged_by_the_simulated_lru_s() {
        for (ours, lru, verdict) in [(0.46, 0.46, "0.98: met"), (0.449, 0.46, "0.98: **missed**")] {
            let text = described(&outcome(ours, lru));
            assert!(text.contains(verdict), "{text}");
        }
    }
}
