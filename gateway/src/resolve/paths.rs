//! [`Paths`]: the cache of resolved paths.
//!
//! The target of a path below a CID never changes, so [`Entity`] is cached under the path as sent: a hot file costs one
//! look-up instead of a parse and a resolution. An entity contains its headers. The cache is bounded in bytes, and each
//! entry has the policy's generation.

use crate::invalidate::{PurgeMode, invalidate_where};
use crate::resolve::Entity;
use moka::sync::Cache;
use std::sync::Arc;

/// The size of an entry besides its texts, in bytes: the entity, its small headers, and the cache's overhead.
const ENTRY_BYTES: usize = 1024;

#[expect(clippy::borrowed_box, reason = "the cache hands its keys over as they are")]
fn weight(path: &Box<str>, entity: &Arc<Entity>) -> u32 {
    u32::try_from(path.len() + entity.roots.len() + ENTRY_BYTES).unwrap_or(u32::MAX)
}

/// The cache of resolved paths.
pub struct Paths {
    cache: Cache<Box<str>, Arc<Entity>>,
    /// Whether no entries are added.
    read_only: bool,
}

impl Paths {
    /// A cache of at most `bytes_max`.
    pub fn new(bytes_max: u64) -> Self {
        Self { cache: Cache::builder().name("paths").max_capacity(bytes_max).weigher(weight).build(), read_only: false }
    }

    /// The cached target of a path, of any generation of the policy.
    pub fn find(&self, path: &str) -> Option<Arc<Entity>> {
        self.cache.get(path)
    }

    /// The same cache, without adding entries.
    pub fn reader(&self) -> Self {
        Self { cache: self.cache.clone(), read_only: true }
    }

    /// Invalidates the paths that `concerns` selects; returns their number.
    pub fn invalidate_where(&self, concerns: impl Fn(&str, &Entity) -> bool, mode: PurgeMode) -> u64 {
        invalidate_where(&self.cache, |path, entity| concerns(path, entity), mode)
    }

    /// At most `max` of the paths that `concerns` selects.
    pub fn keys_where(&self, concerns: impl Fn(&str, &Entity) -> bool, max: usize) -> Vec<String> {
        let concerned = self.cache.iter().filter(|(path, entity)| concerns(path, entity));
        concerned.take(max).map(|(path, _)| path.to_string()).collect()
    }

    /// The cached target of a path under this generation of the policy.
    pub fn get(&self, path: &str, generation: u64) -> Option<Arc<Entity>> {
        self.cache.get(path).filter(|entity| entity.generation == generation)
    }

    /// Invalidates all entries.
    pub fn invalidate_all(&self) {
        self.cache.invalidate_all();
    }

    /// Caches a file whose media type is known.
    pub fn insert(&self, path: &str, entity: &Arc<Entity>) {
        if entity.content_type.is_some() && !self.read_only {
            self.cache.insert(path.into(), Arc::clone(entity));
        }
    }
}
