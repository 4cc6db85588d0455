//! [`SyncedSequence`]: the sequence number of the last acknowledged write, in a file beside those of the database.
//!
//! RocksDB takes a damaged record at the end of its log for a torn write, and drops it. If the write was acknowledged,
//! the number in this file exceeds that of the database when it is opened, and the damage is reported.
//!
//! The number is written after the database has synced the write, and is not synced itself: after power loss it may be
//! too low, which hides damage, but never too high.
//!
//! | bytes | the file |
//! |---|---|
//! | 8 | the sequence number, big-endian |
//! | 4 | CRC-32 of the number |

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use tracing::debug;

/// The file name.
pub(super) const NAME: &str = "causeway.sequence";

/// See the module documentation.
#[derive(Debug)]
pub(super) struct SyncedSequence {
    path: PathBuf,
    /// The number in the file; 0 if unknown.
    written: Mutex<u64>,
}

impl SyncedSequence {
    /// Reads the number in a directory; 0 if there is none, or it is damaged.
    pub(super) fn read(dir: &Path) -> u64 {
        fs::read(dir.join(NAME)).ok().and_then(|bytes| parse(&bytes)).unwrap_or_default()
    }

    /// The number in a directory.
    pub(super) fn of(dir: &Path) -> Self {
        Self { path: dir.join(NAME), written: Mutex::new(Self::read(dir)) }
    }

    /// Writes the number of a synced write, unless that of a later one is written.
    pub(super) fn record(&self, sequence: u64) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if sequence <= *written {
            return;
        }
        match self.write(sequence) {
            Ok(()) => *written = sequence,
            Err(error) => debug!(%error, "the sequence number of the list of pins could not be recorded"),
        }
    }

    fn write(&self, sequence: u64) -> io::Result<()> {
        let number = sequence.to_be_bytes();
        let bytes = [&number[..], &crc32fast::hash(&number).to_be_bytes()].concat();
        File::options().write(true).create(true).truncate(false).open(&self.path)?.write_all_at(&bytes, 0)
    }
}

fn parse(bytes: &[u8]) -> Option<u64> {
    let (number, sum) = bytes.split_first_chunk::<8>()?;
    (sum == crc32fast::hash(number).to_be_bytes()).then(|| u64::from_be_bytes(*number))
}
