//! The tiers as a picture: the paper's and ours.

use super::figures::{Answers, Latency, Replayed};
use super::paper;
use super::tier::Tier;
use crate::plot::{self, Axis, Marks, Panel, Plot, Scale};
use crate::results::Picture;
use anyhow::Result;
use std::time::Duration;

/// Shares of requests, and how long the first byte takes.
pub fn tiers(replayed: &Replayed) -> Result<Picture> {
    let title = "Who answers, and how soon".to_owned();
    let plot = Plot {
        title: title.clone(),
        subtitle: "The paper's day beside ours, replayed".to_owned(),
        legend: ["paper", "Causeway"].map(str::to_owned).to_vec(),
        panels: vec![shares(replayed), latencies(replayed)],
    };
    Ok(Picture { name: "tiers", shows: title, svg: plot::svg(&plot)? })
}

fn shares(replayed: &Replayed) -> Panel {
    let ours = replayed.tiers.iter().map(|answers| answers.share.requests * 100.0).collect();
    Panel {
        heading: "Share of requests".to_owned(),
        x: Axis::new("tier", Scale::Names(Tier::ALL.map(|tier| tier.name().to_owned()).to_vec())),
        y: Axis::new("%", Scale::Linear),
        marks: Marks::Bars(vec![paper::TABLE_5.map(|column| column.requests * 100.0).to_vec(), ours]),
    }
}

/// The paper has medians alone.
fn latencies(replayed: &Replayed) -> Panel {
    let names = Tier::ALL.iter().flat_map(|tier| ["median", "p99"].map(|which| format!("{}, {which}", tier.name())));
    let ours = replayed.tiers.iter().flat_map(|Answers { count, first_byte, .. }| {
        let Latency { median, p99 } = *first_byte;
        let millis = |time: Duration| if *count > 0 { time.as_secs_f64() * 1e3 } else { f64::NAN };
        [median, p99].map(millis)
    });
    let theirs = paper::TABLE_5.iter().flat_map(|column| [column.latency_seconds * 1e3, f64::NAN]);
    Panel {
        heading: "First byte: lower is sooner".to_owned(),
        x: Axis::new("", Scale::Names(names.collect())),
        y: Axis::new("ms", Scale::Log),
        marks: Marks::Bars(vec![theirs.collect(), ours.collect()]),
    }
}

#[test]
fn tiers_that_answered_nothing_have_no_bar() {
    let mut replayed = Replayed::of(&[]);
    let bars = |replayed: &Replayed| tiers(replayed).expect("it can be drawn").svg.matches("fill=\"#E69F00\"").count();
    let none = bars(&replayed);
    let millis = Duration::from_millis;
    let first_byte = Latency { median: millis(1), p99: millis(9) };
    replayed.tiers[1] = Answers { count: 7, first_byte, ..Answers::default() };
    assert_eq!(bars(&replayed), none + 2);
}
