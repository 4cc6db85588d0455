//! [`SystemProbe`]: the resource usage of the process, and the space of the data folder's file system.
//!
//! Goals: a disk that does not answer delays an answer by a second at most, and keeps one thread at most. The last
//! known figures are shown then.

use crate::operations::Operations;
use services::process::{FileSystemSpace, ProcessUsage, space_of, usage};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long an answer waits for the figures.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The figures; each is `None` where the operating system does not tell it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SystemFigures {
    pub usage: Option<ProcessUsage>,
    pub space: Option<FileSystemSpace>,
}

/// Reads the figures.
#[derive(Debug, Default)]
pub(super) struct SystemProbe {
    last: Arc<Mutex<SystemFigures>>,
    /// Locked by the thread that reads.
    reading: Arc<tokio::sync::Mutex<()>>,
}

impl SystemProbe {
    async fn read(&self, data_dir: PathBuf) -> SystemFigures {
        let last = Arc::clone(&self.last);
        let read = async {
            let turn = Arc::clone(&self.reading).lock_owned().await;
            let read = move || {
                let found = SystemFigures { usage: usage(), space: space_of(&data_dir).ok() };
                *last.lock().unwrap_or_else(PoisonError::into_inner) = found;
                drop(turn);
            };
            _ = tokio::task::spawn_blocking(read).await;
        };
        _ = tokio::time::timeout(TIMEOUT, read).await;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Operations {
    /// The current figures.
    pub(super) async fn system(&self) -> SystemFigures {
        self.inner.system.read(self.parts().loaded.config.data_dir.clone()).await
    }
}
