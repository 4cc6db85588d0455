//! [`Report`]: the lines of added files on standard output, and the progress on standard error.

use crate::progress;
use crate::store_cli::{print_line, printable};
use content::importer::Part;
use indicatif::ProgressBar;
use services::uploads::UploadError;
use services::uploads::pipeline::{Added, Watch};
use std::io;
use std::time::Duration;

/// Which lines are printed, and their format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lines {
    /// A line for each file and folder.
    All {
        /// As JSON.
        json: bool,
    },
    /// Only the last line, at the end.
    Last {
        /// As JSON.
        json: bool,
    },
}

/// Prints the lines and the progress.
pub struct Report {
    lines: Lines,
    last: Option<String>,
    /// The bytes of files that were read, and their total once it is known.
    pub progress: ProgressBar,
    /// The first error of printing, returned at the end, since everything is added all the same.
    failure: Option<io::Error>,
    /// The roots in the order of the inputs: all files and folders outside of any folder.
    pub roots: Vec<Part>,
}

impl Report {
    /// A report whose clock starts now.
    pub fn new(lines: Lines) -> Self {
        Self { lines, last: None, progress: progress::bytes(None), failure: None, roots: Vec::new() }
    }

    fn print_part(&mut self, part: &Part, name: &str) {
        match self.lines {
            Lines::All { json } => {
                let line = if json { json_line(part, name) } else { line(part, name) };
                self.print(&line);
            }
            Lines::Last { json: true } => self.last = Some(json_line(part, name)),
            Lines::Last { json: false } => self.last = Some(part.cid.to_string()),
        }
    }

    /// All inputs are read; the roots are being pinned.
    pub fn pinning(&mut self) {
        progress::unset_total(&self.progress);
        self.progress.set_message(", pinning");
        // The message might be too soon after the last one to be drawn, and there may be no other for long.
        self.progress.enable_steady_tick(Duration::from_secs(1));
    }

    /// Ends the report, and prints what is left.
    ///
    /// # Errors
    /// When a line could not be printed. A closed pipe is not an error.
    pub fn end(mut self) -> anyhow::Result<()> {
        if let Some(last) = self.last.take() {
            self.print(&last);
        }
        if !self.progress.is_hidden() {
            let total = progress::rate(self.progress.position(), self.progress.elapsed());
            self.progress.finish_and_clear();
            eprintln!("{total}");
        }
        self.failure.map_or(Ok(()), |error| Err(error.into()))
    }

    fn print(&mut self, line: &str) {
        if let Err(error) = self.progress.suspend(|| print_line(&mut io::stdout(), line)) {
            self.failure.get_or_insert(error);
        }
    }
}

impl Watch for Report {
    fn read(&mut self, _name: Option<&[u8]>, more: usize, _so_far: u64) {
        self.progress.inc(more as u64);
    }

    fn added(&mut self, added: Added<'_>) -> Result<(), UploadError> {
        if added.is_root {
            self.roots.push(*added.part);
        }
        self.print_part(added.part, &String::from_utf8_lossy(&added.path));
        Ok(())
    }
}

fn line(part: &Part, name: &str) -> String {
    format!("added {} {}", part.cid, printable(name))
}

fn json_line(part: &Part, name: &str) -> String {
    serde_json::json!({ "cid": part.cid.to_string(), "name": name, "size": part.file_bytes }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_kubos_format_and_escaped_names() {
        let cid = content::cid::parse("bafkqac3imvwgy3zao5xxe3de").expect("a CID");
        let part = Part { cid, file_bytes: 7, dag_bytes: 9 };
        assert_eq!(line(&part, "a/b\nc"), "added bafkqac3imvwgy3zao5xxe3de a/b\\nc");
        assert_eq!(json_line(&part, "a/b\nc"), r#"{"cid":"bafkqac3imvwgy3zao5xxe3de","name":"a/b\nc","size":7}"#);
    }
}
