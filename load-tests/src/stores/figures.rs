//! The figures: costs of adding, by store, directory and round; costs of reading.

use super::adding::Question;
use super::data::Set;
use crate::report::seconds;
use crate::stats::{Latency, median, median_duration};
use crate::timed::Ran;
use serde::Serialize;
use std::time::Duration;

/// Everything that was measured.
#[derive(Debug, Clone)]
pub struct Figures {
    /// The stores; in every list below, figures are in this order.
    pub names: Vec<String>,
    /// Stores that take no part, and why.
    pub notes: Vec<String>,
    /// Processes that have next to nothing to do, one for each round.
    pub starts: Vec<Vec<Cost>>,
    pub questions: Vec<Answer>,
    /// What was read.
    pub read: String,
    /// Bytes of the large file.
    pub large_bytes: u64,
    pub readings: Vec<Reading>,
}

/// The cost of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Cost {
    #[serde(rename = "wall_seconds", serialize_with = "seconds")]
    pub wall: Duration,
    #[serde(rename = "cpu_seconds", serialize_with = "seconds")]
    pub cpu: Duration,
    /// Bytes that the kernel wrote for it.
    pub written_bytes: u64,
    /// Growth of the store on disk.
    pub grown_bytes: u64,
}

impl Cost {
    pub fn of(ran: &Ran, grown_bytes: u64) -> Self {
        Self { wall: ran.wall, cpu: ran.cpu, written_bytes: ran.written_bytes, grown_bytes }
    }
}

/// A question's directories, and the costs of each store for each of them.
#[derive(Debug, Clone)]
pub struct Answer {
    pub question: Question,
    /// What tells this answer from others to the same question.
    pub heading: String,
    pub sets: Vec<Set>,
    /// By store, directory and round.
    pub costs: Vec<Vec<Vec<Cost>>>,
}

/// One of the costs of adding a directory, without the start of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Milliseconds for each file.
    FileMillis,
    /// Milliseconds of CPU for each file.
    FileCpuMillis,
    /// Megabytes a second.
    Rate,
    /// Bytes that were written for each byte that is new to the store.
    Written,
    /// Bytes on disk for each byte that is new to the store.
    Grown,
}

impl Figures {
    /// A figure of one store and one directory: the median of the rounds. Not a number if there is none: of a store
    /// that cannot be added to, the rate of what takes no longer than a start alone, a factor where nothing is new.
    pub fn figure(&self, answer: &Answer, store: usize, set: usize, measure: Measure) -> f64 {
        let (about, costs) = (&answer.sets[set], &answer.costs[store][set]);
        if costs.is_empty() {
            return f64::NAN;
        }
        let median_of = |of: &dyn Fn(&Cost) -> f64| median(costs.iter().map(of));
        let net = |of: fn(&Cost) -> Duration| {
            let start = median_duration(self.starts[store].iter().map(of));
            median_duration(costs.iter().map(of)).saturating_sub(start).as_secs_f64()
        };
        let factor = |bytes: f64| if about.new_bytes > 0 { bytes / about.new_bytes as f64 } else { f64::NAN };
        match measure {
            Measure::FileMillis => net(|cost| cost.wall) * 1e3 / about.files as f64,
            Measure::FileCpuMillis => net(|cost| cost.cpu) * 1e3 / about.files as f64,
            Measure::Rate => match net(|cost| cost.wall) {
                seconds if seconds > 0.0 => about.bytes as f64 / 1e6 / seconds,
                _ => f64::NAN,
            },
            Measure::Written => factor(median_of(&|cost| cost.written_bytes as f64)),
            Measure::Grown => factor(median_of(&|cost| cost.grown_bytes as f64)),
        }
    }

    /// The median of a store's starts, in milliseconds; not a number if there is none.
    pub fn start_millis(&self, store: usize) -> f64 {
        median(self.starts[store].iter().map(|cost| cost.wall.as_secs_f64() * 1e3))
    }
}

/// The costs of reading from a store. Nothing is cached before, neither by the process nor by the operating system.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Reading {
    /// Processes that read a large file and discard it, one for each round, with their start.
    pub whole: Vec<Cost>,
    /// Blocks of 256 KiB over HTTP, one after the other in random order.
    pub blocks: Option<Reads>,
    /// The same with blocks of 1 KiB.
    pub small: Option<Reads>,
    /// What could not be measured, and why.
    pub notes: Vec<String>,
}

impl Reading {
    /// Of the large file, megabytes a second.
    pub fn whole_rate(&self, bytes: u64) -> f64 {
        bytes as f64 / 1e6 / median(self.whole.iter().map(|cost| cost.wall.as_secs_f64()))
    }

    /// Of the large file, milliseconds of CPU for each megabyte.
    pub fn whole_cpu(&self, bytes: u64) -> f64 {
        median(self.whole.iter().map(|cost| cost.cpu.as_secs_f64())) * 1e9 / bytes as f64
    }
}

/// Blocks that were read one after the other.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Reads {
    pub count: usize,
    #[serde(flatten)]
    pub latency: Latency,
    /// Of the server, for each block.
    pub cpu_microseconds: f64,
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn cost(millis: u64) -> Cost {
        let wall = Duration::from_millis(millis);
        Cost { wall, cpu: wall / 2, written_bytes: 3_000_000, grown_bytes: 2_000_000 }
    }

    /// Two stores, of which the second takes twice as long.
    pub fn figures() -> Figures {
        let set = |label: &str, new_bytes| Set {
            label: label.to_owned(),
            directory: std::path::PathBuf::new(),
            files: 10,
            bytes: 1_000_000,
            new_bytes,
        };
        let answer = |question| Answer {
            question,
            heading: String::new(),
            sets: vec![set("first", 1_000_000), set("second", 0)],
            costs: [1, 2].map(|times| [110, 40].map(|millis| vec![cost(millis * times)]).to_vec()).to_vec(),
        };
        let latency = Latency { median: Duration::from_millis(1), p99: Duration::from_millis(4) };
        let reads = Reads { count: 9, latency, cpu_microseconds: 70.0 };
        let reading = Reading { whole: vec![cost(500)], blocks: Some(reads), small: None, notes: Vec::new() };
        Figures {
            names: ["Causeway flat", "Kubo pebble"].map(str::to_owned).to_vec(),
            notes: vec!["Causeway memory is left out: it is not supported".to_owned()],
            starts: vec![vec![cost(20), cost(10), cost(10)], vec![cost(20)]],
            questions: Question::ALL.map(answer).to_vec(),
            read: "one file".to_owned(),
            large_bytes: 1 << 20,
            readings: vec![reading.clone(), reading],
        }
    }

    #[test]
    fn starts_are_taken_off_and_only_new_bytes_count() {
        let figures = figures();
        let figure = |store, set, measure| figures.figure(&figures.questions[0], store, set, measure);
        assert_eq!(figure(0, 0, Measure::FileMillis), 10.0);
        assert_eq!(figure(1, 0, Measure::FileMillis), 20.0);
        assert_eq!(figure(0, 1, Measure::FileCpuMillis), 1.5);
        assert_eq!(figure(0, 0, Measure::Rate), 10.0);
        assert_eq!((figure(0, 0, Measure::Written), figure(0, 0, Measure::Grown)), (3.0, 2.0));
        assert!(figure(0, 1, Measure::Written).is_nan());
        assert_eq!(figures.start_millis(0), 10.0);
    }

    #[test]
    fn a_store_that_cannot_be_added_to_has_no_figures() {
        let mut figures = figures();
        figures.starts[1].clear();
        figures.questions[0].costs[1][0].clear();
        assert!(figures.figure(&figures.questions[0], 1, 0, Measure::FileMillis).is_nan());
        assert!(figures.start_millis(1).is_nan());
        assert!(Reading::default().whole_rate(7).is_nan() && Reading::default().whole_cpu(7).is_nan());
    }

    #[test]
    fn what_takes_no_longer_than_a_start_has_no_rate() {
        let mut figures = figures();
        figures.starts[0] = vec![cost(1000)];
        assert_eq!(figures.figure(&figures.questions[0], 0, 0, Measure::FileMillis), 0.0);
        assert!(figures.figure(&figures.questions[0], 0, 0, Measure::Rate).is_nan());
    }
}
