//! [`Reader`]: reads a list file again when it has changed; if it was only appended to, from its former end.
//!
//! To detect an append, the former content is read and hashed again, which is cheap compared with parsing: an editor
//! may have changed a line in the middle and added others.

use crate::fingerprint::FileFingerprint;
use content::denylist::{HeaderError, List, ListBuilder};
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The read size, in bytes.
const PIECE_BYTES: usize = 256 * 1024;

/// Why a list cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file system failed.
    #[error("reading the file failed: {0}")]
    Io(#[from] io::Error),
    /// Its format version is unsupported.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The file is not a list.
    #[error("the file is not a denylist: none of its lines is a rule")]
    NoList,
}

/// The content of a list file.
#[derive(Debug, Clone)]
pub struct ListContent {
    /// Its rules.
    pub list: List,
    /// The size of the file, as far as it was read, in bytes.
    pub bytes: u64,
    /// Whether the file is longer than what was read.
    pub cut_off: bool,
    /// Whether only appended content was read.
    pub grew: bool,
}

/// An incremental reader. Its functions block the thread.
#[derive(Debug, Default)]
pub struct Reader {
    builder: ListBuilder,
    read: u64,
    sum: Sha256,
    fingerprint: Option<FileFingerprint>,
}

impl Reader {
    /// Reads at most `bytes_max` bytes of a file; `None` if it has not changed since the last call.
    ///
    /// # Errors
    /// [`ReadError`]; the next call reads the whole file.
    pub fn read_if_changed(&mut self, path: &Path, bytes_max: u64) -> Result<Option<ListContent>, ReadError> {
        let file = File::open(path)?;
        let fingerprint = FileFingerprint::of(&file.metadata()?);
        if self.fingerprint == Some(fingerprint) {
            return Ok(None);
        }
        self.fingerprint = None;
        let found = self.read(file, bytes_max);
        match found {
            Ok(_) => self.fingerprint = Some(fingerprint),
            Err(_) => *self = Self::default(),
        }
        found.map(Some)
    }

    fn read(&mut self, file: File, bytes_max: u64) -> Result<ListContent, ReadError> {
        let grew = self.read > 0 && self.is_as_it_was(&file)?;
        if !grew {
            *self = Self::default();
        }
        let mut rest = file;
        io::Seek::seek(&mut rest, io::SeekFrom::Start(self.read))?;
        let mut rest = rest.take(bytes_max.saturating_sub(self.read));
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let bytes = rest.read(&mut piece)?;
            if bytes == 0 {
                break;
            }
            self.builder.push(&piece[..bytes])?;
            self.sum.update(&piece[..bytes]);
            self.read += bytes as u64;
        }
        if !self.builder.is_list() {
            return Err(ReadError::NoList);
        }
        let cut_off = self.read >= bytes_max && rest.into_inner().read(&mut piece)? > 0;
        Ok(ListContent { list: self.builder.list(), bytes: self.read, cut_off, grew })
    }

    /// Whether the file begins with what was read before.
    fn is_as_it_was(&self, file: &File) -> io::Result<bool> {
        let mut before = file.take(self.read);
        let (mut sum, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; PIECE_BYTES]);
        loop {
            let read = before.read(&mut piece)?;
            if read == 0 {
                break;
            }
            sum.update(&piece[..read]);
            bytes += read as u64;
        }
        Ok(bytes == self.read && sum.finalize() == self.sum.clone().finalize())
    }
}

/// Reads the text of a line, if it exists.
///
/// # Errors
/// The error of the file system.
pub fn line(path: &Path, number: u32) -> io::Result<Option<String>> {
    use std::io::BufRead as _;
    let file = io::BufReader::new(File::open(path)?);
    let max = content::denylist::LINE_BYTES_MAX as u64 + 1;
    let mut file = file;
    for at in 1..=number {
        let mut text = Vec::new();
        if (&mut file).take(max).read_until(b'\n', &mut text)? == 0 {
            return Ok(None);
        }
        if at == number {
            return Ok(Some(String::from_utf8_lossy(&text).trim().to_owned()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    const A: &str = "/ipfs/QmecDgNqCRirkc3Cjz9eoRBNwXGckJ9WvTdmY16HP88768\n";
    const B: &str = "/ipns/example.org\n";
    const C: &str = "/ipns/example.net\n";

    #[test]
    fn a_file_is_read_when_it_changed_and_from_its_former_end_if_it_grew() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("x.deny");
        let mut reader = Reader::default();
        let mut look = |max: u64| {
            reader.read_if_changed(&path, max).map(|found| found.map(|f| (f.list.rules(), f.grew, f.cut_off)))
        };
        assert!(matches!(look(1 << 20), Err(ReadError::Io(_))));
        std::fs::write(&path, format!("{A}{B}")).expect("writes");
        assert_eq!(look(1 << 20).expect("reads"), Some((2, false, false)));
        assert_eq!(look(1 << 20).expect("reads"), None);
        let append = |text: &str| {
            let mut file = File::options().append(true).open(&path).expect("opens");
            file.write_all(text.as_bytes()).expect("writes");
        };
        append(C);
        assert_eq!(look(1 << 20).expect("reads"), Some((3, true, false)));
        append("/ipns/half");
        assert_eq!(look(1 << 20).expect("reads"), Some((3, true, false)), "the last line is incomplete");
        append(".example\n");
        assert_eq!(look(1 << 20).expect("reads"), Some((4, true, false)));
        // A line in the middle differs, and lines were appended.
        std::fs::write(&path, format!("{A}{C}{C}{B}{B}{B}{B}")).expect("writes");
        assert_eq!(look(1 << 20).expect("reads"), Some((7, false, false)));
        std::fs::write(&path, A).expect("writes");
        assert_eq!(look(A.len() as u64).expect("reads"), Some((1, false, false)));
        append(B);
        assert_eq!(look(A.len() as u64).expect("reads"), Some((1, true, true)), "at most bytes_max are read");
        for bad in ["<html>\n<body>\n", "version: 3\n---\n"] {
            std::fs::write(&path, bad).expect("writes");
            assert!(look(1 << 20).is_err(), "{bad}");
        }
        std::fs::write(&path, "# nothing yet\n\n").expect("writes");
        assert_eq!(look(1 << 20).expect("reads"), Some((0, false, false)));
    }

    #[test]
    fn a_line_is_found_by_its_number() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("x.deny");
        std::fs::write(&path, format!("{A}\n{B}last")).expect("writes");
        let line = |number| line(&path, number).expect("reads");
        assert_eq!((line(0), line(1).as_deref(), line(2).as_deref()), (None, Some(A.trim()), Some("")));
        assert_eq!((line(3).as_deref(), line(4).as_deref(), line(5)), (Some(B.trim()), Some("last"), None));
    }
}
