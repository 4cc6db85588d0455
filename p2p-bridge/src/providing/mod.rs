//! Announcing in the DHT what we hold, so that others find it.
//!
//! Goals: a million keys in minutes, and then once in an interval; a new key at once; memory that does not grow with the
//! number of keys. Non-goals: deciding what is worth announcing (a [`KeySource`] does), and finding providers.
//!
//! `libp2p-kad` announces one key at a time: a walk each, and then a record to each of the 20 closest peers. That is some
//! 40 messages a key, of which half go to the same peers for all keys of a neighbourhood. A sweep walks once for a
//! neighbourhood and gives every peer in it all of its records over one stream.
//!
//! | module | concern |
//! |---|---|
//! | [`keyspace`] | positions, distances, prefixes |
//! | [`keys`] | where keys come from, and how they lie in memory |
//! | [`walk`] | finding the closest peers of one target |
//! | [`region`] | finding all peers of a neighbourhood |
//! | [`schedule`] | when what is due; what outlives a restart |
//! | [`desk`] | what is wanted of the network |
//! | [`job`] | the sweep of one neighbourhood |
//! | [`single`] | the first announcement of a new key |
//! | [`sweep`] | the planner of one scope |
//! | [`message`] | FIND_NODE and ADD_PROVIDER on the wire |
//! | [`announcer`], [`handler`] | dialling, streams, time-outs |
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
