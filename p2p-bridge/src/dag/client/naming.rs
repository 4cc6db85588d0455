//! [`Naming`]: which blocks the verified blocks of a transfer have named, and which of them have arrived.
//!
//! A block of a transfer is unpacked, hashed and delivered only if the request or a verified block has named it. The
//! answer comes over several streams, so a block can arrive before its parent; [`super::transfer`] keeps it until then.
//!
//! Bounded: the blocks that are named and have not arrived, and all blocks of a transfer. Blocks are known by a 64-bit
//! hash with a secret key, which is eight bytes instead of a CID; a collision makes a block count as another one of the
//! same transfer, whose CID is verified nevertheless, so that it costs a request by Bitswap at most.

use content::scope::{Child, Role};
use content::{BlockKey, Cid};
use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;

/// The maximum number of blocks of a transfer that are named and have not arrived.
pub const PENDING_MAX: usize = 16 * 1024;
/// The maximum number of blocks of a transfer.
pub const BLOCKS_MAX: usize = 256 * 1024;
/// The maximum number of ways in which a pending block is named. A directory can link to one file many times, but what is
/// below a block is the same for most of them.
const ROLES_MAX: usize = 4;

/// The approximate memory of a pending block, with the path to it that it shares with others, in bytes.
const PENDING_BYTES: usize = 256;
/// The approximate memory of a block that has arrived, in bytes: its ID, and what a hash table leaves free.
const PAST_BYTES: usize = 16;

/// A block of the transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockId(u64);

/// What is known of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// It is named, and has not arrived.
    Pending,
    /// It has arrived, and is being verified.
    Verifying,
    /// It has arrived before, or the server does not have it.
    Past,
    /// No verified block has named it so far.
    Unnamed,
}

/// The transfer has too many blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a transfer may have {PENDING_MAX} named blocks that have not arrived, and {BLOCKS_MAX} in all")]
pub struct TooManyBlocks;

/// A named block that has not arrived.
#[derive(Debug)]
struct Named {
    is_verifying: bool,
    roles: Vec<(u64, Role)>,
    /// The bytes that precede it in depth-first order, by the sizes that nodes declare, if they do. Not trustworthy.
    place: Option<u64>,
}

/// The named blocks of a transfer.
#[derive(Debug)]
pub struct Naming {
    hasher: RandomState,
    pending: HashMap<BlockId, Named>,
    past: HashSet<BlockId>,
}

impl Naming {
    /// Only the root is named.
    pub fn new(root: &Child) -> Self {
        let mut naming = Self { hasher: RandomState::new(), pending: HashMap::new(), past: HashSet::new() };
        // A single block is below every limit.
        let _ = naming.name(root, Some(0));
        naming
    }

    /// The ID of a block; `None` for an inline block, which is never sent.
    pub fn id(&self, cid: &Cid) -> Option<BlockId> {
        BlockKey::of(cid).map(|key| self.id_of(&key))
    }

    /// The ID of a block.
    pub fn id_of(&self, key: &BlockKey) -> BlockId {
        BlockId(self.hasher.hash_one(key))
    }

    /// What is known of a block.
    pub fn known(&self, id: BlockId) -> Known {
        match self.pending.get(&id) {
            Some(named) if named.is_verifying => Known::Verifying,
            Some(_) => Known::Pending,
            None if self.past.contains(&id) => Known::Past,
            None => Known::Unnamed,
        }
    }

    /// Where a pending block begins in its file, if it is a part of one.
    pub fn offset(&self, id: BlockId) -> Option<u64> {
        self.pending.get(&id)?.roles.iter().find_map(|(_, role)| role.range().map(|range| range.start))
    }

    /// The bytes that precede a pending block in depth-first order, by the sizes that nodes declare.
    pub fn place(&self, id: BlockId) -> Option<u64> {
        self.pending.get(&id)?.place
    }

    /// A named block has arrived, and is verified next.
    pub fn verify(&mut self, id: BlockId) {
        if let Some(named) = self.pending.get_mut(&id) {
            named.is_verifying = true;
        }
    }

    /// What a block that is being verified is named for: the codecs and the roles.
    pub fn roles(&self, id: BlockId) -> Vec<(u64, Role)> {
        self.pending.get(&id).map(|named| named.roles.clone()).unwrap_or_default()
    }

    /// A block was verified, or the server does not have it.
    ///
    /// # Errors
    /// [`TooManyBlocks`].
    pub fn settle(&mut self, id: BlockId) -> Result<(), TooManyBlocks> {
        self.pending.remove(&id);
        if self.past.len() >= BLOCKS_MAX && !self.past.contains(&id) {
            return Err(TooManyBlocks);
        }
        self.past.insert(id);
        Ok(())
    }

    /// A verified block names a child, with its place if that is known. Returns its ID if it was not named before.
    ///
    /// # Errors
    /// [`TooManyBlocks`].
    pub fn name(&mut self, child: &Child, place: Option<u64>) -> Result<Option<BlockId>, TooManyBlocks> {
        let Some(id) = self.id(&child.cid) else { return Ok(None) };
        if self.past.contains(&id) {
            return Ok(None);
        }
        let pending = self.pending.len();
        match self.pending.entry(id) {
            Entry::Occupied(mut named) => {
                let roles = &mut named.get_mut().roles;
                let role = (child.cid.codec(), child.role.clone());
                if roles.len() < ROLES_MAX && !roles.contains(&role) {
                    roles.push(role);
                }
                Ok(None)
            }
            Entry::Vacant(_) if pending >= PENDING_MAX => Err(TooManyBlocks),
            Entry::Vacant(entry) => {
                let roles = vec![(child.cid.codec(), child.role.clone())];
                entry.insert(Named { is_verifying: false, roles, place });
                Ok(Some(id))
            }
        }
    }

    /// Where the part of a file that has not arrived begins; `None` if nothing is missing, or something that is no part
    /// of a file.
    pub fn missing_from(&self) -> Option<u64> {
        let mut from = None;
        for named in self.pending.values() {
            let start = named.roles.iter().find_map(|(_, role)| role.range()).map(|range| range.start)?;
            from = Some(from.map_or(start, |from: u64| from.min(start)));
        }
        from
    }

    /// The approximate memory that it takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.pending.capacity() * PENDING_BYTES + self.past.capacity() * PAST_BYTES
    }

    /// Forgets all names: the transfer has ended.
    pub fn clear(&mut self) {
        self.pending = HashMap::new();
        self.past = HashSet::new();
    }

    /// The number of blocks that are named and have not arrived or are being verified.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }
}
