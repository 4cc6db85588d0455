//! [`Report`]: the lines of added files on standard output, and the progress on standard error.

use crate::progress;
use crate::store_cli::{print_line, printable};
use api::text::size;
use content::Cid;
use content::importer::Part;
use content::importer::packer::PLAIN_NOTE;
use indicatif::ProgressBar;
use services::uploads::UploadError;
use services::uploads::pipeline::{Added, PackingResult, Watch};
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
    /// The zstd files of roots of packed files.
    pub zstd_files: Vec<(Cid, Cid)>,
}

/// A file that was to be packed, as it is printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackedLine {
    /// It is stored plain, for this reason.
    Plain(String),
    /// It is packed.
    Packed {
        /// The CID of the zstd file.
        zstd: String,
        /// The CID of the plain content by the zstd file.
        packed: String,
        /// The size of the zstd file, in bytes.
        bytes: u64,
    },
}

impl PackedLine {
    fn of(packing: PackingResult) -> Option<Self> {
        match packing {
            PackingResult::NotRequested => None,
            PackingResult::Plain => Some(Self::Plain(PLAIN_NOTE.to_owned())),
            PackingResult::Packed(packed) => Some(Self::Packed {
                zstd: packed.zstd_file.cid.to_string(),
                packed: packed.cid.to_string(),
                bytes: packed.zstd_file.file_bytes,
            }),
        }
    }
}

impl Report {
    /// A report whose clock starts now.
    pub fn new(lines: Lines) -> Self {
        let (progress, zstd_files) = (progress::bytes(None), Vec::new());
        Self { lines, last: None, progress, failure: None, roots: Vec::new(), zstd_files }
    }

    /// Prints an added file, folder or symlink.
    pub fn print_entry(&mut self, cid: &str, bytes: u64, name: &str, packed: Option<&PackedLine>) {
        match self.lines {
            Lines::All { json: true } => self.print(&json_line(cid, bytes, name, packed)),
            Lines::All { json: false } => {
                self.print(&line(cid, name));
                packed_lines(name, packed).iter().for_each(|line| self.print(line));
            }
            Lines::Last { json: true } => self.last = Some(json_line(cid, bytes, name, packed)),
            Lines::Last { json: false } => self.last = Some(cid.to_owned()),
        }
        if let Some(PackedLine::Plain(note)) = packed {
            self.progress.suspend(|| eprintln!("{}: {note}", printable(name)));
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
        if let PackingResult::Packed(packed) = added.packing {
            self.zstd_files.push((added.part.cid, packed.zstd_file.cid));
        }
        let (cid, name) = (added.part.cid.to_string(), String::from_utf8_lossy(&added.path));
        self.print_entry(&cid, added.part.file_bytes, &name, PackedLine::of(added.packing).as_ref());
        Ok(())
    }
}

fn line(cid: &str, name: &str) -> String {
    format!("added {cid} {}", printable(name))
}

/// The lines of the other two CIDs of a packed file.
fn packed_lines(name: &str, packed: Option<&PackedLine>) -> Vec<String> {
    let Some(PackedLine::Packed { zstd, packed, bytes }) = packed else { return Vec::new() };
    let name = printable(name);
    vec![format!("zstd {zstd} {name}.zst ({})", size(*bytes)), format!("packed {packed} {name}")]
}

fn json_line(cid: &str, bytes: u64, name: &str, packed: Option<&PackedLine>) -> String {
    let mut line = serde_json::json!({ "cid": cid, "name": name, "size": bytes });
    match packed {
        None => {}
        Some(PackedLine::Plain(note)) => {
            line["packed"] = serde_json::Value::Null;
            line["note"] = note.clone().into();
        }
        Some(PackedLine::Packed { zstd, packed, bytes }) => {
            line["packed"] = packed.clone().into();
            line["zstd"] = zstd.clone().into();
            line["zstd_size"] = (*bytes).into();
        }
    }
    line.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_kubos_format_and_escaped_names() {
        let cid = content::cid::parse("bafkqac3imvwgy3zao5xxe3de").expect("a CID");
        let cid = cid.to_string();
        assert_eq!(line(&cid, "a/b\nc"), "added bafkqac3imvwgy3zao5xxe3de a/b\\nc");
        let json = json_line(&cid, 7, "a/b\nc", None);
        assert_eq!(json, r#"{"cid":"bafkqac3imvwgy3zao5xxe3de","name":"a/b\nc","size":7}"#);
    }

    #[test]
    fn a_packed_file_has_three_cids() {
        let packed = PackedLine::Packed { zstd: "bafyz".to_owned(), packed: "bpacked".to_owned(), bytes: 2048 };
        let lines = packed_lines("a.csv", Some(&packed));
        assert_eq!(lines, ["zstd bafyz a.csv.zst (2.0 KiB)", "packed bpacked a.csv"]);
        assert_eq!(
            json_line("bafy", 9000, "a.csv", Some(&packed)),
            r#"{"cid":"bafy","name":"a.csv","packed":"bpacked","size":9000,"zstd":"bafyz","zstd_size":2048}"#
        );
        let plain = PackedLine::Plain("it does not shrink".to_owned());
        assert_eq!(packed_lines("a.jpg", Some(&plain)), [""; 0]);
        assert_eq!(
            json_line("bafy", 9, "a.jpg", Some(&plain)),
            r#"{"cid":"bafy","name":"a.jpg","note":"it does not shrink","packed":null,"size":9}"#
        );
    }
}
