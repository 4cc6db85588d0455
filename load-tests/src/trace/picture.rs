//! The tiers as a plot: the paper's and ours.

use super::figures::{Replayed, Responses};
use super::paper;
use super::tier::Tier;
use crate::plot::{Axis, Marks, Panel, Plot, Scale};
use crate::report::Picture;
use anyhow::Result;
use std::time::Duration;

/// Shares of requests, and the latency of the first byte.
pub fn tiers(replayed: &Replayed) -> Result<Picture> {
    let panels = vec![shares(replayed), latencies(replayed)];
    let subtitle = "The paper's day beside ours, replayed";
    Plot::new("Shares and latencies of the tiers", subtitle, &["paper", "Causeway"], panels).picture("tiers")
}

fn shares(replayed: &Replayed) -> Panel {
    let ours = replayed.tiers.iter().map(|responses| responses.share.requests * 100.0).collect();
    let theirs = paper::TABLE_5.iter().map(|column| column.requests * 100.0).collect();
    let x = Axis::new("tier", Scale::names(Tier::ALL.map(Tier::name)));
    Panel::new("Share of requests", x, Axis::new("%", Scale::Linear), Marks::Bars(vec![theirs, ours]))
}

/// The paper has medians alone.
fn latencies(replayed: &Replayed) -> Panel {
    let names = Tier::ALL.iter().flat_map(|tier| ["median", "p99"].map(|which| format!("{}, {which}", tier.name())));
    let ours = replayed.tiers.iter().flat_map(|Responses { count, first_byte, .. }| {
        let millis = |time: Duration| if *count > 0 { time.as_secs_f64() * 1e3 } else { f64::NAN };
        [first_byte.median, first_byte.p99].map(millis)
    });
    let theirs = paper::TABLE_5.iter().flat_map(|column| [column.latency_seconds * 1e3, f64::NAN]).collect();
    let (x, marks) = (Axis::new("", Scale::names(names)), Marks::Bars(vec![theirs, ours.collect()]));
    Panel::new("First byte: lower is sooner", x, Axis::new("ms", Scale::Log), marks)
}

#[test]
fn tiers_without_responses_have_no_bar() {
    use crate::stats::Latency;
    let mut replayed = Replayed::of(&[]);
    let bars = |replayed: &Replayed| tiers(replayed).expect("it can be drawn").svg.matches("fill=\"#E69F00\"").count();
    let none = bars(&replayed);
    let millis = Duration::from_millis;
    let first_byte = Latency { median: millis(1), p99: millis(9) };
    replayed.tiers.disk = Responses { count: 7, first_byte, ..Responses::default() };
    assert_eq!(bars(&replayed), none + 2);
}
