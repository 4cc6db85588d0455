//! The saved IPNS records, so that a restarted node answers known names at once.
//!
//! One JSON file, replaced atomically a few seconds after a change; bounded in number and bytes. Each name has its
//! record in base64 and the time of its last confirmation, in seconds since the Unix epoch, separated by a space.
//! Records are verified when they are loaded, like those from a peer.

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
/// Maximum saved records.
const RECORDS_MAX: usize = 4096;
/// Maximum bytes of all records.
const BYTES_MAX: usize = 4 << 20;
/// The maximum size of a file to read: base64 and names take more space than records.
const FILE_BYTES_MAX: u64 = 2 * BYTES_MAX as u64 + 128 * RECORDS_MAX as u64;

/// The maximum length of one encoded record.
const TEXT_BYTES_MAX: usize = 1 + RECORD_BYTES_MAX.div_ceil(3) * 4;

/// Decodes a record. Other bases than base64 are rejected, because decoding them takes quadratic time.
fn decode(text: &str) -> Option<Bytes> {
    if text.len() > TEXT_BYTES_MAX || !text.starts_with(Base::Base64.code()) {
        return None;
    }
    let (_, bytes) = multibase::decode(text).ok()?;
    Some(Bytes::from(bytes)).filter(|bytes| bytes.len() <= RECORD_BYTES_MAX)
}

/// A record and its age, which files of older versions do not have.
fn read(text: &str, wall: SystemTime) -> Option<(Bytes, Option<Duration>)> {
    let Some((record, confirmed)) = text.split_once(' ') else { return Some((decode(text)?, None)) };
    let age = epoch::seconds(wall).saturating_sub(confirmed.parse().ok()?);
    Some((decode(record)?, Some(Duration::from_secs(age))))
}

/// The file of the saved records.
#[derive(Debug, Clone)]
pub(super) struct SavedNames {
    path: PathBuf,
}

impl SavedNames {
    pub fn new(directory: &Path) -> Self {
        Self { path: directory.join(FILE) }
    }

    /// Loads the unexpired records with their ages. A missing or corrupt file has none.
    pub fn load(&self, wall: SystemTime) -> Vec<(Key, Record, Option<Duration>)> {
        let text = match self.read() {
            Ok(text) => text,
            Err(error) => {
                let path = self.path.display();
                tracing::debug!(%path, %error, "could not load the saved names: starting without them");
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
            return Err(io::Error::other("the file exceeds the maximum size"));
        }
        fs::read(&self.path)
    }

    /// Saves the records with their ages, up to the maximum.
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
            tracing::warn!(path = %self.path.display(), %error, "could not save the names");
        }
    }
}
