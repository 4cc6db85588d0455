//! [`Paths`]: the cache of resolved paths.
//!
//! What a path below a CID leads to never changes, so [`Entity`] is cached under the path as it was sent: a hot file costs one
//! look-up instead of a parse and a walk. An entity carries its headers ready to be sent. The cache is bounded in bytes, and each
//! entry holds the generation of the policy that it was made under.

use crate::invalidate::{PurgeMode, invalidate_where};
use crate::resolve::Entity;
use moka::sync::Cache;
use std::sync::Arc;

/// What an entry takes beside its texts, in bytes: the entity, its small headers, and the cache's own book-keeping.
const ENTRY_BYTES: usize = 1024;

#[expect(clippy::borrowed_box, reason = "the cache hands its keys over as they are")]
fn weight(path: &Box<str>, entity: &Arc<Entity>) -> u32 {
    u32::try_from(path.len() + entity.roots.len() + ENTRY_BYTES).unwrap_or(u32::MAX)
}

/// The cache of resolved paths.
pub struct Paths {
    cache: Cache<Box<str>, Arc<Entity>>,
    /// Whether nothing is added to it.
    read_only: bool,
}

impl Paths {
    /// A cache of at most `bytes_max`.
    pub fn new(bytes_max: u64) -> Self {
        Self { cache: Cache::builder().name("paths").max_capacity(bytes_max).weigher(weight).build(), read_only: false }
    }

    /// What a path leads to, whenever that was found out.
    pub fn find(&self, path: &str) -> Option<Arc<Entity>> {
        self.cache.get(path)
    }

    /// The same cache, to which nothing is added.
    pub fn reader(&self) -> Self {
        Self { cache: self.cache.clone(), read_only: true }
    }

    /// Invalidates the paths that `concerns` selects; returns how many there were.
    pub fn invalidate_where(&self, concerns: impl Fn(&str, &Entity) -> bool, mode: PurgeMode) -> u64 {
        invalidate_where(&self.cache, |path, entity| concerns(path, entity), mode)
    }

    /// At most `max` of the paths that `concerns` selects.
    pub fn keys_where(&self, concerns: impl Fn(&str, &Entity) -> bool, max: usize) -> Vec<String> {
        let concerned = self.cache.iter().filter(|(path, entity)| concerns(path, entity));
        concerned.take(max).map(|(path, _)| path.to_string()).collect()
    }

    /// What an immutable path leads to, if that was found out under this generation of the policy.
    pub fn get(&self, path: &str, generation: u64) -> Option<Arc<Entity>> {
        self.cache.get(path).filter(|entity| entity.generation == generation)
    }

    /// Invalidates all of them.
    pub fn forget(&self) {
        self.cache.invalidate_all();
    }

    /// Caches a file whose media type is known.
    pub fn remember(&self, path: &str, entity: &Arc<Entity>) {
        if entity.content_type.is_some() && !self.read_only {
            self.cache.insert(path.into(), Arc::clone(entity));
        }
    }
}
