//! [`Report`]: the lines about what was added on standard output, and on a terminal how fast it goes on standard error.

use crate::store_cli::{print_line, printable};
use content::importer::Part;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// Which lines are printed, and as what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lines {
    /// One for each file and folder.
    All {
        /// As JSON.
        json: bool,
    },
    /// The last of them, at the end.
    Last {
        /// As JSON.
        json: bool,
    },
}

/// Says what happens.
pub struct Report {
    lines: Lines,
    last: Option<String>,
    progress: Option<Progress>,
    /// What could not be printed: said at the end, as everything is added all the same.
    failure: Option<io::Error>,
}

impl Report {
    /// Progress begins to be measured here.
    pub fn new(lines: Lines) -> Self {
        let progress = io::stderr().is_terminal().then(Progress::new);
        Self { lines, last: None, progress, failure: None }
    }

    /// Some bytes of a file were read.
    pub fn read(&mut self, bytes: usize) {
        if let Some(progress) = &mut self.progress {
            progress.read(bytes);
        }
    }

    /// Something is complete.
    pub fn added(&mut self, part: &Part, name: &str) {
        match self.lines {
            Lines::All { json } => {
                let line = if json { json_line(part, name) } else { line(part, name) };
                self.print(&line);
            }
            Lines::Last { json: true } => self.last = Some(json_line(part, name)),
            Lines::Last { json: false } => self.last = Some(part.cid.to_string()),
        }
    }

    /// Everything is read; pins are being made.
    pub fn pinning(&mut self) {
        if let Some(progress) = &self.progress {
            progress.draw(", pinning");
        }
    }

    /// Everything is done.
    ///
    /// # Errors
    /// When a line could not be printed. That its reader has left is none.
    pub fn end(mut self) -> anyhow::Result<()> {
        if let Some(last) = self.last.take() {
            self.print(&last);
        }
        if let Some(progress) = &self.progress {
            progress.draw("");
        }
        self.failure.map_or(Ok(()), |error| Err(error.into()))
    }

    fn print(&mut self, line: &str) {
        if self.progress.is_some() {
            eprint!("{CLEAR}");
        }
        if let Err(error) = print_line(&mut io::stdout(), line) {
            self.failure.get_or_insert(error);
        }
    }
}

fn line(part: &Part, name: &str) -> String {
    format!("added {} {}", part.cid, printable(name))
}

fn json_line(part: &Part, name: &str) -> String {
    serde_json::json!({ "cid": part.cid.to_string(), "name": name, "size": part.file_bytes }).to_string()
}

/// To the start of the line, and away with what is on it (ECMA-48: erase in line).
const CLEAR: &str = "\r\u{1b}[K";
/// How often progress is drawn at most.
const GLANCE: Duration = Duration::from_millis(200);

struct Progress {
    begun: Instant,
    drawn: Instant,
    bytes: u64,
}

impl Progress {
    fn new() -> Self {
        let now = Instant::now();
        Self { begun: now, drawn: now, bytes: 0 }
    }

    fn read(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if self.drawn.elapsed() >= GLANCE {
            self.drawn = Instant::now();
            self.draw("");
        }
    }

    fn draw(&self, note: &str) {
        eprint!("{CLEAR}{}{note}", speed(self.bytes, self.begun.elapsed()));
        _ = io::stderr().flush();
    }
}

impl Drop for Progress {
    /// What comes next, perhaps an error, begins on a line of its own.
    fn drop(&mut self) {
        eprintln!();
    }
}

/// How much in how long, in units of 1000.
fn speed(bytes: u64, time: Duration) -> String {
    let per_second = bytes as f64 / time.as_secs_f64().max(0.001) / 1e6;
    format!("{}, {per_second:.0} MB/s", size(bytes))
}

fn size(bytes: u64) -> String {
    let (mut amount, mut units) = (bytes as f64, ["kB", "MB", "GB", "TB"].into_iter());
    let mut unit = "B";
    while amount >= 1000.0
        && let Some(larger) = units.next()
    {
        (amount, unit) = (amount / 1000.0, larger);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{amount:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_bytes_and_megabytes_a_second() {
        let table = [
            (0, 0, "0 B, 0 MB/s"),
            (999, 1_000, "999 B, 0 MB/s"),
            (1_500_000, 1_000, "1.5 MB, 2 MB/s"),
            (10_000_000_000, 20_000, "10.0 GB, 500 MB/s"),
            (5_000_000_000_000_000, 1_000_000, "5000.0 TB, 5000000 MB/s"),
        ];
        for (bytes, millis, expected) in table {
            assert_eq!(speed(bytes, Duration::from_millis(millis)), expected);
        }
    }

    #[test]
    fn lines_are_kubos_and_names_stay_on_them() {
        let cid = content::cid::parse("bafkqac3imvwgy3zao5xxe3de").expect("a CID");
        let part = Part { cid, file_bytes: 7, dag_bytes: 9 };
        assert_eq!(line(&part, "a/b\nc"), "added bafkqac3imvwgy3zao5xxe3de a/b\\nc");
        assert_eq!(json_line(&part, "a/b\nc"), r#"{"cid":"bafkqac3imvwgy3zao5xxe3de","name":"a/b\nc","size":7}"#);
    }
}
