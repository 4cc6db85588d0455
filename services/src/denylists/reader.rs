//! [`Reader`]: a list in a file, which is read again when the file has changed; if it only grew, from where it ended.
//!
//! Whether it only grew is told by reading what was there before once more and summing it up, which is little beside parsing it:
//! an editor may have changed a line in the middle and added others.

use crate::fingerprint::Stamp;
use content::denylist::{HeaderError, List, ListBuilder};
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// What is read at a time, in bytes.
const PIECE_BYTES: usize = 256 * 1024;

/// Why a list cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// What the system said.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is of a version that is not understood.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// What is there is something else.
    #[error("it is no denylist: none of its lines is a rule")]
    NoList,
}

/// A list as it was found.
#[derive(Debug, Clone)]
pub struct Found {
    /// Its rules.
    pub list: List,
    /// How long the file is, in bytes, as far as it is read.
    pub bytes: u64,
    /// Whether the file has more than is read.
    pub cut_off: bool,
    /// Whether only what came since was read.
    pub grew: bool,
}

/// See the module. Everything here blocks.
#[derive(Debug, Default)]
pub struct Reader {
    builder: ListBuilder,
    read: u64,
    sum: Sha256,
    stamp: Option<Stamp>,
}

impl Reader {
    /// What is in a file now; `None` if that is what was found last. Of a longer file, so many bytes are read.
    ///
    /// # Errors
    /// [`ReadError`]; the next call reads the file as a whole.
    pub fn look(&mut self, path: &Path, bytes_max: u64) -> Result<Option<Found>, ReadError> {
        let file = File::open(path)?;
        let stamp = Stamp::of(&file.metadata()?);
        if self.stamp == Some(stamp) {
            return Ok(None);
        }
        self.stamp = None;
        let found = self.read(file, bytes_max);
        match found {
            Ok(_) => self.stamp = Some(stamp),
            Err(_) => *self = Self::default(),
        }
        found.map(Some)
    }

    fn read(&mut self, file: File, bytes_max: u64) -> Result<Found, ReadError> {
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
        Ok(Found { list: self.builder.list(), bytes: self.read, cut_off, grew })
    }

    /// Whether the file begins with what was read.
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

/// The text of a line, if there is one.
///
/// # Errors
/// What the system said.
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
    fn a_file_is_read_when_it_changed_and_from_its_end_if_it_grew() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("x.deny");
        let mut reader = Reader::default();
        let mut look =
            |max: u64| reader.look(&path, max).map(|found| found.map(|f| (f.list.rules(), f.grew, f.cut_off)));
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
        assert_eq!(look(1 << 20).expect("reads"), Some((3, true, false)), "the last line is no rule yet");
        append(".example\n");
        assert_eq!(look(1 << 20).expect("reads"), Some((4, true, false)));
        // One in the middle is another, and there is more at the end.
        std::fs::write(&path, format!("{A}{C}{C}{B}{B}{B}{B}")).expect("writes");
        assert_eq!(look(1 << 20).expect("reads"), Some((7, false, false)));
        std::fs::write(&path, A).expect("writes");
        assert_eq!(look(A.len() as u64).expect("reads"), Some((1, false, false)));
        append(B);
        assert_eq!(look(A.len() as u64).expect("reads"), Some((1, true, true)), "no more than is allowed");
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
