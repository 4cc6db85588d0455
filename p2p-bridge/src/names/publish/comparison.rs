//! [`Comparison`]: the newest record that others have of a key, searched for before a record is published.

use crate::lookups::RecordOrigin;
use crate::names::dht::RecordSource;
use content::ipns::Record;
use content::names::Key;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The result of a search for the records of a key.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// The newest valid record. An expired one counts as well, because its sequence number is used.
    pub newest: Option<Record>,
    /// Whether another node or a router was asked; if the search has not ended in time, whether one had a record.
    pub asked: bool,
}

impl Comparison {
    /// Searches for records, at most for `patience`.
    pub async fn search(records: &dyn RecordSource, key: Key, patience: Duration) -> Self {
        let deadline = Instant::now() + patience;
        let mut comparison = Self::default();
        let Ok(mut search) = timeout_at(deadline, records.find(key)).await else { return comparison };
        while let Ok(next) = timeout_at(deadline, search.next()).await {
            let Some(found) = next else {
                comparison.asked |= search.peers_asked() > 0;
                break;
            };
            // Routers count as a source although they are not DHT peers; this node does not.
            comparison.asked |= found.holder != RecordOrigin::LocalNode;
            if let Ok(record) = Record::verify(&key, found.bytes) {
                comparison.add(record);
            }
        }
        comparison
    }

    fn add(&mut self, record: Record) {
        if self.newest.as_ref().is_none_or(|newest| record.newer_than(newest)) {
            self.newest = Some(record);
        }
    }

    /// What a first publication has to supersede.
    pub fn known(&self) -> KnownRecords {
        KnownRecords { sequence: self.newest.as_ref().map(Record::sequence), compared: self.asked }
    }
}

/// What is known of the records of a key that is published.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KnownRecords {
    /// The highest known sequence number.
    pub sequence: Option<u64>,
    /// Whether other nodes were asked.
    pub compared: bool,
}
