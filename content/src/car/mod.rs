//! CARv1 archives (<https://ipld.io/specs/transport/car/carv1/>), read and written block by block.
//!
//! Goals: the reader returns no block that does not match its CID; its memory is one section, allocated as the bytes
//! arrive; a truncated archive is always an error. The writer copies no block.
//!
//! If the roots are known only at the end, the header may have none, and the last block is a list of them
//! ([`roots_block`]). This is a private extension for the admin API and its command-line tool.
//!
//! Non-goals: CARv2, whose index is useless for a stream. The caller of the writer chooses the blocks and their order;
//! see [`crate::scope`] for those of gateway responses.

mod reader;
mod writer;

pub use self::reader::{CarError, CarReader, Section, read_roots};
pub use self::writer::{header, reference, roots_block, section};
