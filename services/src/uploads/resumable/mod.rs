//! Resumable uploads: tus 1.0 (<https://tus.io/protocols/resumable-upload>), with the extensions creation, termination
//! and expiration.
//!
//! | module | concern |
//! |---|---|
//! | [`headers`] | parsing the headers |
//! | [`parts`] | [`ResumableUploads`]: the resumable uploads, their limits and their completion |
//! | [`file`](mod@file) | an upload on the disk |
//!
//! Goals: an acknowledged offset is on the disk, also after a crash or a power failure; the disk space is limited for
//! each token and in total, and uploads expire; tokens cannot access each other's uploads; when the last byte is
//! received, the content is imported as by `POST /upload`, also after a restart.
//!
//! A client that lost its connection queries the offset while the gateway may still wait for that connection. So later
//! requests preempt earlier ones: the running request ends, its bytes are kept, and the returned offset is final.
//!
//! Non-goals: parallel uploads of parts (tus's concatenation), checksums (CIDs serve as such), deferred lengths.

pub mod file;
pub mod headers;
pub mod parts;

pub use self::parts::ResumableUploads;
