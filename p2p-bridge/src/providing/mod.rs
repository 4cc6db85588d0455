//! Announcing stored blocks in the DHT (provider records), so that other peers find them.
//!
//! Goals: a million keys in minutes, and then once per interval; a new key at once; memory that is independent of the
//! number of keys. Non-goals: deciding which keys are announced (a [`KeySource`] does), and finding providers.
//!
//! `libp2p-kad` announces one key at a time: a look-up each, and then a record to each of the 20 closest peers. These
//! are some 40 messages per key, half of which go to the same peers for all keys of a region. A sweep does one look-up
//! per region and sends every peer in it all of its records over one stream.
//!
//! | module | concern |
//! |---|---|
//! | [`keyspace`] | positions, distances, prefixes |
//! | [`keys`] | the source of keys, and their memory layout |
//! | [`walk`] | finding the closest peers of one target |
//! | [`region`] | finding all peers of a region |
//! | [`schedule`] | when each slot is due, across restarts |
//! | [`desk`] | the queue of requests to the network |
//! | [`job`] | the sweep of one region |
//! | [`single`] | the first announcement of a new key |
//! | [`sweep`] | the planner of one scope |
//! | [`message`] | FIND_NODE and ADD_PROVIDER on the wire |
//! | [`announcer`], [`handler`] | dials, streams, timeouts |
//! | [`metrics`] | progress and lag |

pub mod announcer;
pub mod desk;
pub mod handler;
pub mod job;
pub mod keys;
pub mod keyspace;
pub mod message;
pub mod metrics;
pub mod region;
pub mod schedule;
pub mod single;
pub mod sweep;
pub mod walk;

#[cfg(test)]
mod tests;

pub use keys::KeySource;
