//! The blocks that the gateways of a site share: objects in shared storage, and an index of them in the database.
//!
//! ```text
//! SharedBlocks ─┬─ BlockIndex ──→ DatabaseIndex ──→ PostgreSQL
//!               └─ Objects ─────→ S3, a shared folder
//! ```
//!
//! Goals: an object that a pinned block consists of is not deleted, whichever gateways stop, pause or lose their
//! connections between any two steps, and however late a request that they sent is carried out; what a gateway leaves
//! behind in the storage is found and deleted; no clock and no lease is needed for either. This assumes one primary
//! database at a time, and a storage whose reads see finished writes.
//!
//! Non-goals: which blocks are stored, and when they are evicted (the caller decides); the storage itself (`objects`).
//!
//! *How.* Each attempt to write a block has an object of its own, named by the block and a random number, its generation.
//! So no object is overwritten, and no name is used again: a request to write or to delete that is carried out late
//! concerns nothing else. The index has a row for each block, with the generation of its object, and one for each
//! *pending* object: one that may be in the storage, and that no block refers to. No object is deleted because of the
//! answer to a look-up, which a server that was replaced gives as well: the index has recorded it as pending before.
//!
//! | change | steps |
//! |---|---|
//! | a block is stored | a pending object → the object is written → in one transaction, the pending object becomes that of the block, and the block a member of its pin |
//! | a block is evicted | in one transaction, a block without pins is removed, and its object becomes pending → the object is deleted → the pending object is removed |
//! | a gateway has stopped between steps | an old pending object is marked, after which it cannot become that of a block → the object is deleted → the pending object is removed |
//! | an object is found that the index does not know (an orphan) | it becomes pending and marked → the object is deleted → the pending object is removed |
//!
//! | module | concern |
//! |---|---|
//! | `index` | [`BlockIndex`]: which blocks are stored, as which objects, and which pins have them |
//! | [`index_suite`] | its contract, as tests of implementations |
//! | `object` | names of objects, and what is in them |
//! | `shared` | [`SharedBlocks`]: the steps of each change |

mod index;
pub mod index_suite;
mod object;
mod shared;
#[cfg(test)]
mod tests;

pub use index::{
    BlockIndex, BlockRow, Committed, EvictedObject, FinishedPin, IndexFigures, IndexIdentity, Listed, LostBlock,
    PinAttempt, PinId, WrittenObject,
};
pub use object::{Form, ObjectId};
pub use shared::{Reconciled, SharedBlock, SharedBlocks};
