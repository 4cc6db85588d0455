//! A resumable upload on the disk: a record, which is replaced atomically, and the received bytes.
//!
//! The record has the offset up to which the bytes are synced, and is written after the sync. Bytes after it were not
//! acknowledged, and are truncated when the gateway starts. All functions block the thread.

use crate::uploads::resumable::record::Record;
use p2p_bridge::durable;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The maximum size of a record, in bytes.
const RECORD_BYTES_MAX: usize = 4 << 20;
/// The extensions of the files; the ID is the stem.
const RECORD: &str = "json";
const BYTES: &str = "part";

/// The folder of all resumable uploads.
#[derive(Debug, Clone)]
pub struct Folder(PathBuf);

impl Folder {
    /// Opens the folder, and creates it if it does not exist.
    ///
    /// # Errors
    /// The error of the disk.
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
    /// The error of the disk. The record is then unchanged.
    pub fn write(&self, id: &str, record: &Record) -> io::Result<()> {
        durable::write(&self.path(id, RECORD), &serde_json::to_vec(record)?)
    }

    /// Opens the file of the bytes.
    ///
    /// # Errors
    /// The error of the disk.
    pub fn bytes(&self, id: &str) -> io::Result<File> {
        let path = self.path(id, BYTES);
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
    }

    /// Removes the bytes, and keeps the record.
    ///
    /// # Errors
    /// The error of the disk. Missing bytes are not an error.
    pub fn remove_bytes(&self, id: &str) -> io::Result<()> {
        durable::remove(&self.path(id, BYTES))
    }

    /// Removes an upload. The record is removed first: the next start removes bytes without a record.
    ///
    /// # Errors
    /// The error of the disk.
    pub fn remove(&self, id: &str) -> io::Result<()> {
        durable::remove(&self.path(id, RECORD))?;
        self.remove_bytes(id)
    }

    /// Loads all uploads, truncated to the acknowledged bytes. Files without a record are removed.
    ///
    /// # Errors
    /// The error of the disk.
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
                        // An invalid record was not acknowledged by this release. It is kept for the operator.
                        _ => tracing::warn!(path = %path.display(), "the record of a resumable upload is invalid"),
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
            // The file is shorter only after damage of the file system.
            record.offset = record.offset.min(have);
            bytes.set_len(record.offset)?;
        }
        Ok(found)
    }
}
