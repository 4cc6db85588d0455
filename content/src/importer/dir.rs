//! [`Directory`]: imports entries as a plain directory (<https://specs.ipfs.tech/unixfs/#dag-pb-directory>), or as a
//! HAMT if there are many.
//!
//! Entries may be added in any order. All of them are kept in memory, with their name and some 100 bytes each, because
//! a plain directory is sorted by name, and a shard is made after its child shards.

use super::pb::{Message, link_bytes, put_link};
use super::profile::{Estimate, Sharding};
use super::{Attributes, BlockSink, ImportError, Naming, Output, Part, hamt};
use crate::unixfs::Data;

/// A directory that is being imported.
#[derive(Debug)]
pub struct Directory {
    sharding: Sharding,
    naming: Naming,
    attributes: Attributes,
    entries: Vec<Entry>,
    /// The size of the directory, as estimated by the profile.
    estimated_bytes: usize,
    file_bytes: u64,
}

/// A named link in a compact form.
#[derive(Debug)]
pub(super) struct Entry {
    /// The CID, followed by the name.
    bytes: Box<[u8]>,
    cid_bytes: usize,
    pub tsize: u64,
}

impl Entry {
    pub fn new(name: &[u8], part: &Part) -> Self {
        let cid = part.cid.to_bytes();
        Self { bytes: [&cid, name].concat().into(), cid_bytes: cid.len(), tsize: part.dag_bytes }
    }

    pub fn cid(&self) -> &[u8] {
        &self.bytes[..self.cid_bytes]
    }

    pub fn name(&self) -> &[u8] {
        &self.bytes[self.cid_bytes..]
    }

    /// What the entry adds to the estimated size of its directory, in bytes.
    fn estimated_bytes(&self, estimate: Estimate) -> usize {
        match estimate {
            Estimate::Links => self.bytes.len(),
            Estimate::Block => link_bytes(self.cid().len(), self.name().len(), self.tsize),
            Estimate::Off => 0,
        }
    }
}

impl Directory {
    pub(super) fn new(sharding: Sharding, naming: Naming, attributes: Attributes) -> Self {
        let estimated_bytes = match sharding.estimate {
            Estimate::Block => message(attributes).field_bytes(),
            Estimate::Links | Estimate::Off => 0,
        };
        Self { sharding, naming, attributes, entries: Vec::new(), estimated_bytes, file_bytes: 0 }
    }

    /// Adds an entry. The name need not be UTF-8.
    ///
    /// # Errors
    /// [`ImportError::Name`] for a name that is not a valid path segment.
    pub fn add(&mut self, name: &[u8], part: &Part) -> Result<(), ImportError> {
        check_name(name)?;
        let entry = Entry::new(name, part);
        self.estimated_bytes = self.estimated_bytes.saturating_add(entry.estimated_bytes(self.sharding.estimate));
        self.file_bytes = self.file_bytes.saturating_add(part.file_bytes);
        self.entries.push(entry);
        Ok(())
    }

    /// Makes the blocks of the directory.
    ///
    /// # Errors
    /// [`ImportError`], such as for duplicate names.
    pub fn finish(mut self, sink: &mut dyn BlockSink) -> Result<Part, ImportError> {
        self.entries.sort_unstable_by(|one, other| one.name().cmp(other.name()));
        if let Some([entry, _]) = self.entries.array_windows().find(|[one, other]| one.name() == other.name()) {
            return Err(ImportError::Repeated { name: lossy(entry.name()) });
        }
        let mut output = Output { naming: &self.naming, sink };
        if self.is_sharded() {
            let part = hamt::finish(self.entries, self.sharding.fanout, self.attributes, &mut output)?;
            return Ok(Part { file_bytes: self.file_bytes, ..part });
        }
        let (mut links, mut linked_bytes) = (Vec::new(), 0_u64);
        for entry in self.entries {
            put_link(&mut links, entry.cid(), [&[], entry.name()], entry.tsize);
            linked_bytes = linked_bytes.saturating_add(entry.tsize);
        }
        output.node(message(self.attributes).into_node(links), self.file_bytes, linked_bytes)
    }

    fn is_sharded(&self) -> bool {
        let Sharding { estimate, threshold_bytes, links_max, .. } = self.sharding;
        let too_large = estimate != Estimate::Off && self.estimated_bytes > threshold_bytes;
        too_large || links_max.is_some_and(|links_max| self.entries.len() > links_max)
    }
}

/// The message of a plain directory.
fn message(attributes: Attributes) -> Message<'static> {
    Message { kind: Data::DIRECTORY, attributes, ..Message::default() }
}

/// Checks that a name is a valid path segment (<https://specs.ipfs.tech/unixfs/#dag-pb-directory>).
pub(super) fn check_name(name: &[u8]) -> Result<(), ImportError> {
    let reason = match name {
        b"" => "it is empty",
        b"." | b".." => "it has a special meaning in paths",
        name if name.contains(&b'/') => "it has a slash",
        name if name.contains(&0) => "it has a zero byte",
        _ => return Ok(()),
    };
    Err(ImportError::Name { name: lossy(name), reason })
}

pub(super) fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
