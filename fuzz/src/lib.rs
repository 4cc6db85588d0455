//! What is fuzzed: each function takes any bytes and reads them as one kind of thing that strangers write.
//!
//! Goals: not only that nothing panics, but what has to hold whatever was read: what is accepted survives being written
//! and read again, bounds are kept, and two ways to the same answer give the same answer.
//!
//! | module | what is read |
//! |---|---|
//! | [`content`] | everything of the crate of that name |
//! | [`network`] | what peers, routers and operators give to `p2p-bridge` |
//!
//! Each module is two things: a part of this library, which the fuzzers call, and a module of a test of its crate
//! (`tests/corpus.rs`), which runs every function on its corpus. So it may use only what both depend on.

pub mod content;
pub mod network;
