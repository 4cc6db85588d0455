//! Resumable uploads: tus 1.0 (<https://tus.io/protocols/resumable-upload>), with the extensions creation, termination
//! and expiration.
//!
//! | module | concern |
//! |---|---|
//! | [`headers`] | parsing the headers |
//! | [`parts`] | [`ResumableUploads`]: what requests do with resumable uploads, and their completion |
//! | [`record`] | what is known of one |
//! | [`store`] | [`UploadStore`]: where they are kept, and which request uses one |
//! | [`local`] | those of a gateway that is alone, in files |
//! | [`file`](mod@file) | these files |
//! | [`suite`] | the contract of a store, as tests of implementations |
//! | `memory` | the memory in which pieces are gathered |
//! | [`error`] | errors and their statuses |
//!
//! Goals: an acknowledged offset is durable, also after a crash or a power failure; the space is limited for
//! each token and in total, and uploads expire; tokens cannot access each other's uploads; when the last byte is
//! received, the content is imported as by `POST /upload`, also after a restart. In a site any gateway continues what
//! another one has begun.
//!
//! A client that lost its connection queries the offset while the gateway may still wait for that connection. So later
//! requests preempt earlier ones: the running request ends, its bytes are kept, and the returned offset is final.
//!
//! Non-goals: parallel uploads of parts (tus's concatenation), checksums (CIDs serve as such), deferred lengths.

pub mod error;
pub mod file;
pub mod headers;
pub mod local;
mod memory;
pub mod parts;
pub mod record;
pub mod store;
pub mod suite;
#[cfg(test)]
mod tests;

pub use self::error::ResumableError;
pub use self::parts::ResumableUploads;
pub use self::store::{LockedUpload, UploadStore};
