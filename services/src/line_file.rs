//! Appending lines to a file, durably: to denylists, and to the links of deleted blocks.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Appends lines. They are on the disk when this returns; if it fails, none of them is in the file. A last line that a
/// power failure left incomplete is ended before.
///
/// # Errors
/// The error of the file system.
pub fn append(path: &Path, lines: &[String]) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).append(true).mode(0o600).open(path)?;
    let before = file.metadata()?.len();
    let mut text = String::new();
    if before > 0 && !ends_a_line(&mut file)? {
        text.push('\n');
    }
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    if written.is_err() {
        // Best effort: repeated lines do no harm.
        _ = file.set_len(before);
    }
    written
}

fn ends_a_line(file: &mut File) -> io::Result<bool> {
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}
