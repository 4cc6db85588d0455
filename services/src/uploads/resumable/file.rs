//! One upload on the disk: a record, which is replaced whole, and the bytes that came.
//!
//! The record says up to where the bytes are synced, and is written after that. Bytes behind that were never acknowledged, and are cut
//! off when the gateway starts. Everything here blocks.

use api::uploads::{FailureView, UploadView};
use p2p_bridge::durable;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The largest record that is read, in bytes.
const RECORD_BYTES_MAX: usize = 4 << 20;
/// How the files are called, behind the identifier.
const RECORD: &str = "json";
const BYTES: &str = "part";

/// What is known of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Whose it is.
    pub owner: String,
    /// How many bytes it will have.
    pub length: u64,
    /// How many of them are here and synced.
    pub offset: u64,
    /// What it is to become: the parameters of `POST /upload`.
    pub query: String,
    /// What it is.
    pub media_type: String,
    /// What it is called.
    pub name: Option<String>,
    /// When it was begun, in seconds since the Unix epoch.
    pub created_at: u64,
    /// When something was last done with it.
    pub touched_at: u64,
    /// What became of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

/// What became of an upload whose bytes all came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is pinned.
    Done(UploadView),
    /// It was not taken in. The bytes are here still if that is the gateway's fault.
    Failed(FailureView),
}

impl Record {
    /// Whether bytes of it are to come, or to be taken in.
    pub fn is_open(&self) -> bool {
        match &self.outcome {
            None => true,
            Some(Outcome::Failed(failure)) => failure.status >= 500,
            Some(Outcome::Done(_)) => false,
        }
    }
}

/// The folder of all uploads.
#[derive(Debug, Clone)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes the folder, if it is not there.
    ///
    /// # Errors
    /// What the disk said.
    pub fn open(path: &Path) -> io::Result<Self> {
        durable::create_folder(path)?;
        Ok(Self(path.to_owned()))
    }

    fn path(&self, id: &str, extension: &str) -> PathBuf {
        self.0.join(format!("{id}.{extension}"))
    }

    /// Writes a record, durably.
    ///
    /// # Errors
    /// What the disk said. The record is then as it was.
    pub fn write(&self, id: &str, record: &Record) -> io::Result<()> {
        durable::write(&self.path(id, RECORD), &serde_json::to_vec(record)?)
    }

    /// Opens the bytes, for reading and for adding to them.
    ///
    /// # Errors
    /// What the disk said.
    pub fn bytes(&self, id: &str) -> io::Result<File> {
        let path = self.path(id, BYTES);
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
    }

    /// Removes the bytes, and leaves the record.
    ///
    /// # Errors
    /// What the disk said; that there are none is no error.
    pub fn remove_bytes(&self, id: &str) -> io::Result<()> {
        durable::remove(&self.path(id, BYTES))
    }

    /// Removes an upload. The record goes first: bytes without one are removed at the next start.
    ///
    /// # Errors
    /// What the disk said.
    pub fn remove(&self, id: &str) -> io::Result<()> {
        durable::remove(&self.path(id, RECORD))?;
        self.remove_bytes(id)
    }

    /// Every upload, cut to what was acknowledged. What belongs to none is removed.
    ///
    /// # Errors
    /// What the disk said.
    pub fn load(&self) -> io::Result<HashMap<String, Record>> {
        let mut found: HashMap<String, Record> = HashMap::new();
        let mut rest = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let path = entry?.path();
            let id = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some(RECORD) => {
                    match durable::read(&path, RECORD_BYTES_MAX).map(|bytes| serde_json::from_slice(&bytes)) {
                        Ok(Ok(record)) => _ = found.insert(id, record),
                        // What cannot be read was not acknowledged by this release. Somebody may want to look at it.
                        _ => tracing::warn!(path = %path.display(), "the record of an upload cannot be understood"),
                    }
                }
                _ => rest.push((id, path)),
            }
        }
        for (id, path) in rest {
            let of_record =
                path.extension().is_some_and(|extension| extension == BYTES) && self.path(&id, RECORD).exists();
            if !of_record {
                durable::remove(&path)?;
            }
        }
        for (id, record) in found.iter_mut().filter(|(_, record)| record.is_open()) {
            let bytes = self.bytes(id)?;
            let have = bytes.metadata()?.len();
            // Only a damaged file system has less.
            record.offset = record.offset.min(have);
            bytes.set_len(record.offset)?;
        }
        Ok(found)
    }
}
