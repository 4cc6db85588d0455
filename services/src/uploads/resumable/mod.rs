//! Uploads that go on where they broke off: tus 1.0 (<https://tus.io/protocols/resumable-upload>), with its extensions creation,
//! termination and expiration.
//!
//! | module | concern |
//! |---|---|
//! | [`headers`] | what its headers say |
//! | [`parts`] | [`Parts`]: the uploads that there are, their bounds and their ends |
//! | [`file`](mod@file) | one upload on the disk |
//!
//! Goals: an offset that was acknowledged is on the disk, whatever happens to the process or the power; what lies there is bounded, for
//! each token and in all, and goes away by itself; nobody sees another's upload; when the last byte has come, the content is taken in
//! as if it had been sent to `POST /upload`, also if the gateway was killed in between.
//!
//! A client who lost its connection asks for the offset while the gateway may still wait for that connection. So whoever comes later
//! wins: what is under way is ended, its bytes are kept, and the offset that is answered stands.
//!
//! Non-goals: parts sent at the same time (tus's concatenation), checksums (a CID is one), lengths that are not known at the start.

pub mod file;
pub mod headers;
pub mod parts;

pub use self::parts::Parts;
