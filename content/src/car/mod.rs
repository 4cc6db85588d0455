//! CARv1 archives (<https://ipld.io/specs/transport/car/carv1/>), read and written block by block.
//!
//! Goals: nothing leaves the reader that does not match its CID; memory of one section, taken only as its bytes really
//! arrive; every way in which an archive can be cut short is an error. The writer copies no block.
//!
//! An archive whose roots are known last may name none in its header and bring a list of them as its last block
//! ([`roots_block`]): an agreement between a node and its commands, and no part of the specification.
//!
//! Non-goals: CARv2, whose index a stream has no use for. Which blocks an archive holds, and in which order, is decided
//! by who writes it: for what gateways answer with, see [`crate::scope`].

mod reader;
mod writer;

pub use self::reader::{CarError, CarReader, Section, read_roots};
pub use self::writer::{header, reference, roots_block, section};
