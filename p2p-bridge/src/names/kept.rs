//! The records that outlive a restart, so that a node that was just started answers the names it knows at once.
//!
//! Written as one JSON file, whole or not at all, a moment after something changed; bounded in number and bytes. Each name has
//! its record in base64 and the moment at which it was last confirmed, in seconds since the Unix epoch, with a space between.
//! What is read back is verified again: the file is as trustworthy as a peer.

use crate::{epoch, peerbook};
use bytes::Bytes;
use cid::multibase::{self, Base};
use content::ipns::{RECORD_BYTES_MAX, Record};
use content::names::Key;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

const FILE: &str = "names.json";
/// Records that are kept.
const RECORDS_MAX: usize = 4096;
/// Bytes that they may have together.
const BYTES_MAX: usize = 4 << 20;
/// The largest file that is read: base64 and names take more room than records.
const FILE_BYTES_MAX: u64 = 2 * BYTES_MAX as u64 + 128 * RECORDS_MAX as u64;

/// The longest text of one record.
const TEXT_BYTES_MAX: usize = 1 + RECORD_BYTES_MAX.div_ceil(3) * 4;

/// A record's bytes. Only what is written is read: other bases take a time that grows with the square of the text.
fn decode(text: &str) -> Option<Bytes> {
    if text.len() > TEXT_BYTES_MAX || !text.starts_with(Base::Base64.code()) {
        return None;
    }
    let (_, bytes) = multibase::decode(text).ok()?;
    Some(Bytes::from(bytes)).filter(|bytes| bytes.len() <= RECORD_BYTES_MAX)
}

/// A record and how long it has been known, which files of older versions do not tell.
fn read(text: &str, wall: SystemTime) -> Option<(Bytes, Option<Duration>)> {
    let Some((record, confirmed)) = text.split_once(' ') else { return Some((decode(text)?, None)) };
    let age = epoch::seconds(wall).saturating_sub(confirmed.parse().ok()?);
    Some((decode(record)?, Some(Duration::from_secs(age))))
}

/// Where the records are kept.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    path: PathBuf,
}

impl Kept {
    pub fn new(directory: &Path) -> Self {
        Self { path: directory.join(FILE) }
    }

    /// The records that still hold, and how long they have been known if that is. A missing or damaged file has none.
    pub fn load(&self, wall: SystemTime) -> Vec<(Key, Record, Option<Duration>)> {
        let text = match self.read() {
            Ok(text) => text,
            Err(error) => {
                tracing::debug!(path = %self.path.display(), %error, "starting without remembered names");
                return Vec::new();
            }
        };
        let entries: BTreeMap<String, String> = serde_json::from_slice(&text).unwrap_or_default();
        let records = entries.iter().take(RECORDS_MAX).filter_map(|(name, record)| {
            let key = Key::parse(name)?;
            let (bytes, age) = read(record, wall)?;
            Some((key, Record::verify(&key, bytes).ok()?, age))
        });
        records.filter(|(_, record, _)| record.is_valid_at(wall)).collect()
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        if fs::metadata(&self.path)?.len() > FILE_BYTES_MAX {
            return Err(io::Error::other("the file is too large"));
        }
        fs::read(&self.path)
    }

    /// Writes the records, and how long they have been known: the first ones if they are too many.
    pub fn save<'a>(&self, records: impl Iterator<Item = (Key, &'a Record, Duration)>, wall: SystemTime) {
        let mut bytes = 0;
        let fitting = records.take(RECORDS_MAX).take_while(|(_, record, _)| {
            bytes += record.bytes().len();
            bytes <= BYTES_MAX
        });
        let entry = |(key, record, age): (Key, &Record, Duration)| {
            let confirmed = epoch::seconds(wall).saturating_sub(age.as_secs());
            (key.to_string(), format!("{} {confirmed}", multibase::encode(Base::Base64, record.bytes())))
        };
        let entries: BTreeMap<String, String> = fitting.map(entry).collect();
        let written = serde_json::to_vec(&entries).map_err(io::Error::other);
        if let Err(error) = written.and_then(|text| peerbook::save(&self.path, &text)) {
            tracing::warn!(path = %self.path.display(), %error, "could not write the remembered names");
        }
    }
}
