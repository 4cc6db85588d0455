//! What the table is made of: turns of participants, cases, what is measured by them, and the goals.

use crate::goals::Goal;
use crate::median::{median, median_duration};
use std::fmt;
use std::time::Duration;

/// Who takes part in a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Causeway,
    /// Causeway, asked for a file by its own CID.
    File,
    /// Causeway, asked for the same file by a path through a directory.
    ByPath,
    /// Causeway, asked for it below the directory's own host.
    BySubdomain,
    /// nginx with `proxy_cache` in front of Kubo.
    NginxCache,
    /// nginx that serves files.
    NginxStatic,
    Kubo,
    /// The disk's limit: a copy that is synced.
    Copy,
    /// The processor's limit: every block hashed, and nothing else.
    Hashing,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Causeway => "Causeway",
            Self::File => "Causeway, the file",
            Self::ByPath => "Causeway, by path",
            Self::BySubdomain => "Causeway, by subdomain",
            Self::NginxCache => "nginx proxy_cache",
            Self::NginxStatic => "nginx static",
            Self::Kubo => "Kubo",
            Self::Copy => "synced copy",
            Self::Hashing => "hashing alone",
        })
    }
}

/// One participant's turn in one round.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// In the case's unit; more is better.
    pub rate: f64,
    /// CPU time of the server, user and kernel: for each request, or for each block of 256 KiB that is written.
    pub cpu_microseconds: f64,
    /// Median and 99th percentile, if requests were timed.
    pub latency: Option<[Duration; 2]>,
}

/// One participant's turns, in order.
#[derive(Debug, Clone)]
pub struct Series {
    pub who: Who,
    pub turns: Vec<Turn>,
}

impl Series {
    pub fn new(who: Who) -> Self {
        Self { who, turns: Vec::new() }
    }

    pub fn rate(&self) -> f64 {
        median(self.turns.iter().map(|turn| turn.rate))
    }

    pub fn cpu_microseconds(&self) -> f64 {
        median(self.turns.iter().map(|turn| turn.cpu_microseconds))
    }

    /// Medians of the rounds' medians and of their 99th percentiles.
    pub fn latency(&self) -> Option<[Duration; 2]> {
        let all: Vec<[Duration; 2]> = self.turns.iter().filter_map(|turn| turn.latency).collect();
        (!all.is_empty()).then(|| [0, 1].map(|which| median_duration(all.iter().map(|latency| latency[which]))))
    }
}

/// Something that is judged.
#[derive(Debug, Clone)]
pub struct Measure {
    pub value: f64,
    pub unit: String,
    /// Whether the value has to stay below its limits, instead of reaching them.
    pub below: bool,
    pub bar: Option<Goal>,
    pub aim: Option<Goal>,
}

impl Measure {
    /// More is better.
    pub fn of(value: f64, unit: impl Into<String>) -> Self {
        Self { value, unit: unit.into(), below: false, bar: None, aim: None }
    }

    /// Less is better.
    pub fn below(value: f64, unit: impl Into<String>) -> Self {
        Self { below: true, ..Self::of(value, unit) }
    }

    pub fn bar(self, text: impl Into<String>, limit: f64) -> Self {
        Self { bar: Some(Goal::new(text, limit)), ..self }
    }

    pub fn aim(self, text: impl Into<String>, limit: f64) -> Self {
        Self { aim: Some(Goal::new(text, limit)), ..self }
    }

    pub fn meets(&self, goal: &Goal) -> bool {
        if self.below { self.value < goal.limit } else { self.value >= goal.limit }
    }
}

/// One line of the table, or a part of it.
#[derive(Debug, Clone)]
pub struct Case {
    pub case: String,
    /// Of the rates.
    pub unit: &'static str,
    pub series: Vec<Series>,
    pub measures: Vec<Measure>,
    pub notes: Vec<String>,
}

impl Case {
    pub fn new(case: impl Into<String>, unit: &'static str, series: Vec<Series>) -> Self {
        Self { case: case.into(), unit, series, measures: Vec::new(), notes: Vec::new() }
    }

    /// How many times as fast somebody is as somebody else. Not a number if one of them took no part.
    pub fn ratio(&self, who: Who, rival: Who) -> f64 {
        let rate = |who| self.series.iter().find(|series| series.who == who).map_or(f64::NAN, Series::rate);
        rate(who) / rate(rival)
    }

    /// Causeway's ratio to somebody else, to be judged.
    pub fn against(&self, rival: Who) -> Measure {
        Measure::of(self.ratio(Who::Causeway, rival), format!("× {rival}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(who: Who, rates: &[f64]) -> Series {
        let latency = |rate: f64| [1.0, 2.0].map(|factor| Duration::from_secs_f64(rate * factor));
        let turn = |rate: &f64| Turn { rate: *rate, cpu_microseconds: *rate, latency: Some(latency(*rate)) };
        Series { who, turns: rates.iter().map(turn).collect() }
    }

    #[test]
    fn ratios_are_of_medians() {
        let all = vec![series(Who::Causeway, &[9.0, 3.0, 6.0]), series(Who::Kubo, &[2.0])];
        let case = Case::new("a case", "requests/s", all);
        assert_eq!(case.against(Who::Kubo).value, 3.0);
        assert_eq!(case.ratio(Who::Kubo, Who::Kubo), 1.0);
        assert!(case.against(Who::Copy).value.is_nan());
        assert_eq!(case.series[0].latency(), Some([Duration::from_secs(6), Duration::from_secs(12)]));
        assert_eq!(Series::new(Who::Kubo).latency(), None);
    }

    #[test]
    fn limits_are_reached_or_stayed_below_and_nothing_meets_none() {
        let meets = |measure: Measure| {
            let goals = [&measure.bar, &measure.aim];
            goals.map(|goal| goal.as_ref().map(|goal| measure.meets(goal)))
        };
        assert_eq!(meets(Measure::of(1.5, "×").bar("1.5 ×", 1.5).aim("2 ×", 2.0)), [Some(true), Some(false)]);
        assert_eq!(meets(Measure::below(1.0, "×").bar("fewer", 1.0)), [Some(false), None]);
        assert_eq!(meets(Measure::below(0.9, "×").bar("fewer", 1.0)), [Some(true), None]);
        for measure in [Measure::of(f64::NAN, "×"), Measure::below(f64::NAN, "×")] {
            assert_eq!(meets(measure.bar("1 ×", 1.0)), [Some(false), None]);
        }
    }
}
