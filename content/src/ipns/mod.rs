//! IPNS records (<https://specs.ipfs.tech/ipns/ipns-record/>): what the owner of a key says that its name stands for.

use bytes::Bytes;
use std::time::{Duration, SystemTime};

/// A record whose signature was checked against its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    bytes: Bytes,
    value: String,
    sequence: u64,
    end_of_life: SystemTime,
    ttl: Duration,
}

impl Record {
    /// The record as it is stored and exchanged.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// What the name stands for: a path.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Which of two records is the later one.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// When the record ceases to hold.
    pub fn end_of_life(&self) -> SystemTime {
        self.end_of_life
    }

    /// How long its owner lets others remember it without asking again.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }
}
