//! What comes of it: costs of adding, by store, folder and round; costs of reading.

use super::adding::Question;
use super::data::Set;
use crate::median::{median, median_duration};
use crate::timed::Ran;
use std::time::Duration;

/// Everything that was measured.
#[derive(Debug, Clone)]
pub struct Figures {
    /// Who takes part; in every list below, figures are in this order.
    pub names: Vec<String>,
    /// Who does not, and why.
    pub notes: Vec<String>,
    /// A process that has next to nothing to do, one for each round.
    pub starts: Vec<Vec<Cost>>,
    pub questions: Vec<Answer>,
    /// What was read.
    pub read: String,
    pub readings: Vec<Reading>,
}

/// What one process took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    pub wall: Duration,
    pub cpu: Duration,
    /// What it made the kernel write.
    pub written_bytes: u64,
    /// What the store takes on disk more than before.
    pub grown_bytes: u64,
}

impl Cost {
    pub fn of(ran: &Ran, grown_bytes: u64) -> Self {
        Self { wall: ran.wall, cpu: ran.cpu, written_bytes: ran.written_bytes, grown_bytes }
    }
}

/// A question's folders, and what each store took for each of them.
#[derive(Debug, Clone)]
pub struct Answer {
    pub question: Question,
    /// What tells this answer from others to the same question.
    pub heading: String,
    pub sets: Vec<Set>,
    /// By store, folder and round.
    pub costs: Vec<Vec<Vec<Cost>>>,
}

/// One of the things that adding a folder costs, the start of the process taken off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Milliseconds for each file.
    FileMillis,
    /// Milliseconds of CPU for each file.
    FileCpuMillis,
    /// Megabytes a second.
    Rate,
    /// Bytes that were written for each byte that the store had not before.
    Written,
    /// Bytes that the store takes more for each byte that is new.
    Grown,
}

impl Figures {
    /// A figure of one store and one folder: of the rounds, the middle one. Not a number if there is none: of a store that cannot
    /// be added to, the rate of what takes no longer than a start alone, a factor where nothing is new.
    pub fn figure(&self, answer: &Answer, store: usize, set: usize, measure: Measure) -> f64 {
        let (about, costs) = (&answer.sets[set], &answer.costs[store][set]);
        if costs.is_empty() {
            return f64::NAN;
        }
        let middle = |of: &dyn Fn(&Cost) -> f64| median(costs.iter().map(of));
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
            Measure::Written => factor(middle(&|cost| cost.written_bytes as f64)),
            Measure::Grown => factor(middle(&|cost| cost.grown_bytes as f64)),
        }
    }

    /// The middle of a store's starts, in milliseconds; not a number if there is none.
    pub fn start_millis(&self, store: usize) -> f64 {
        median(self.starts[store].iter().map(|cost| cost.wall.as_secs_f64() * 1e3))
    }
}

/// What a store takes to be read. Nothing is in memory before, neither the process's own nor the operating system's.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// A process that writes a large file to nowhere, one for each round; its start is in it.
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
#[derive(Debug, Clone, Copy)]
pub struct Reads {
    pub count: usize,
    pub median: Duration,
    pub p99: Duration,
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
            folder: std::path::PathBuf::new(),
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
        let reads =
            Reads { count: 9, median: Duration::from_millis(1), p99: Duration::from_millis(4), cpu_microseconds: 70.0 };
        let reading = Reading { whole: vec![cost(500)], blocks: Some(reads), small: None, notes: Vec::new() };
        Figures {
            names: ["Causeway flat", "Kubo pebble"].map(str::to_owned).to_vec(),
            notes: vec!["Causeway memory takes no part: it is not there".to_owned()],
            starts: vec![vec![cost(20), cost(10), cost(10)], vec![cost(20)]],
            questions: Question::ALL.map(answer).to_vec(),
            read: "one file".to_owned(),
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
