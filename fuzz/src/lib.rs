//! The fuzz targets: each function takes any bytes and reads them as one kind of untrusted input.
//!
//! Goals: to find panics, and violations of properties that hold for all input: accepted input survives encoding and
//! decoding, limits are kept, and two ways to the same result agree.
//!
//! | module | untrusted input |
//! |---|---|
//! | [`content`] | all input of that crate |
//! | [`network`] | what peers, routers and operators send to `p2p-bridge` |
//!
//! Each module is used twice: as a part of this library, which the fuzzers call, and as a module of a test of its crate
//! (`tests/corpus.rs`), which runs every function on its corpus. So it may use only the dependencies of both.

pub mod content;
pub mod network;
