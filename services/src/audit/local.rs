//! [`LocalChange`]: a change by a command that works on the data directory itself, whether a gateway runs on it or not.

use crate::audit::entry::{PendingChange, RECORD_BYTES_MAX, line};
use crate::audit::file::{AuditFile, ReserveLevel};
use crate::audit::{AuditEntry, AuditError};
use serde::Serialize;
use std::path::Path;

/// A change whose intent is on the disk.
pub struct LocalChange {
    begun: PendingChange,
    file: AuditFile,
}

impl LocalChange {
    /// Records that a change is about to be made: `words` are those of the command, `detail` its arguments. Blocks the
    /// thread.
    ///
    /// # Errors
    /// [`AuditError`]: the change must not be made.
    pub fn begin(data_dir: &Path, words: &str, detail: &impl Serialize) -> Result<Self, AuditError> {
        let (begun, mut file) = (PendingChange::by_command(words), AuditFile::open(data_dir)?);
        let line = line(&begun.intent(serde_json::to_value(detail).ok()));
        if file.reserve_level(line.len() as u64 + RECORD_BYTES_MAX)? == ReserveLevel::None {
            return Err(AuditError::Full);
        }
        let mut change = Self { begun, file };
        change.write(&line)?;
        Ok(change)
    }

    /// Records the outcome: `status` is the one that the admin API would answer with.
    ///
    /// # Errors
    /// [`AuditError`]: the change was made, and only its intent is recorded.
    pub fn end(mut self, status: u16, detail: &impl Serialize) -> Result<(), AuditError> {
        let entry: AuditEntry = self.begun.outcome(status, serde_json::to_value(detail).ok());
        self.write(&line(&entry))
    }

    fn write(&mut self, line: &[u8]) -> Result<(), AuditError> {
        self.file.append(line)?;
        Ok(self.file.sync()?)
    }
}
