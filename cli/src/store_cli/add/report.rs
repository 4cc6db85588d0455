//! [`Report`]: the lines about what was added on standard output, and on a terminal how fast it goes on standard error.

use crate::progress::{self, Progress};
use crate::store_cli::{print_line, printable};
use content::importer::Part;
use services::uploads::UploadError;
use services::uploads::pipeline::{Added, Watch};
use std::io;
use std::sync::{Arc, OnceLock};

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
    progress: Progress,
    /// Bytes of files that were read.
    bytes: u64,
    /// How many there are to read, once that is known.
    total: Arc<OnceLock<u64>>,
    /// What could not be printed: said at the end, as everything is added all the same.
    failure: Option<io::Error>,
    /// The roots, in the order in which they came: all that was in no folder.
    pub roots: Vec<Part>,
}

impl Report {
    /// Progress begins to be measured here.
    pub fn new(lines: Lines) -> Self {
        Self {
            lines,
            last: None,
            progress: Progress::new(),
            bytes: 0,
            total: Arc::default(),
            failure: None,
            roots: Vec::new(),
        }
    }

    /// Whether anybody sees how far it is.
    pub fn is_watched(&self) -> bool {
        self.progress.is_watched()
    }

    /// Where it is said how many bytes there are to read, once that is known.
    pub fn total(&self) -> Arc<OnceLock<u64>> {
        Arc::clone(&self.total)
    }

    fn say(&mut self, part: &Part, name: &str) {
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
        self.progress.show_now(|time| format!("{}, pinning", progress::bytes(self.bytes, None, time)));
    }

    /// Everything is done.
    ///
    /// # Errors
    /// When a line could not be printed. That its reader has left is none.
    pub fn end(mut self) -> anyhow::Result<()> {
        if let Some(last) = self.last.take() {
            self.print(&last);
        }
        self.progress.leave(|time| progress::bytes(self.bytes, None, time));
        self.failure.map_or(Ok(()), |error| Err(error.into()))
    }

    fn print(&mut self, line: &str) {
        self.progress.hide();
        if let Err(error) = print_line(&mut io::stdout(), line) {
            self.failure.get_or_insert(error);
        }
    }
}

impl Watch for Report {
    fn read(&mut self, _name: Option<&[u8]>, more: usize, _so_far: u64) {
        self.bytes += more as u64;
        self.progress.show(|time| progress::bytes(self.bytes, self.total.get().copied(), time));
    }

    fn added(&mut self, added: Added<'_>) -> Result<(), UploadError> {
        if added.is_root {
            self.roots.push(*added.part);
        }
        self.say(added.part, &String::from_utf8_lossy(&added.path));
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
    fn lines_are_kubos_and_names_stay_on_them() {
        let cid = content::cid::parse("bafkqac3imvwgy3zao5xxe3de").expect("a CID");
        let part = Part { cid, file_bytes: 7, dag_bytes: 9 };
        assert_eq!(line(&part, "a/b\nc"), "added bafkqac3imvwgy3zao5xxe3de a/b\\nc");
        assert_eq!(json_line(&part, "a/b\nc"), r#"{"cid":"bafkqac3imvwgy3zao5xxe3de","name":"a/b\nc","size":7}"#);
    }
}
