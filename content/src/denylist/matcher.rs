//! [`Matcher`]: matches several lists.
//!
//! Cost of a check: a look-up in each run of each list. If any list has double hashes, their texts for the block have
//! to be hashed as well, five of them. So blocks that are allowed are cached by a keyed hash of the multihash, in a
//! lock-free table of half a megabyte: a check of a cached block costs one hash and one memory access. The test
//! `cost_of_a_check` measures this.

use super::keys::{self, Function, Key};
use super::list::{ANY_FURTHER, List};
use super::runs::RuleInfo;
use crate::cid::{Cid, codec};
use crate::names::Name;
use crate::policy::{Policy, Verdict};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of slots in the cache of allowed blocks.
const CACHE_SLOTS: usize = 1 << 16;

/// A list in a matcher.
#[derive(Debug, Clone)]
pub struct Source {
    /// The ID of the list.
    pub id: Arc<str>,
    /// The rules.
    pub list: List,
    /// How the list denies content, unless the rule or the list has a status.
    pub status: Verdict,
}

/// The rule that decides a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    /// The ID of its list.
    pub list: Arc<str>,
    /// Its line number, starting at 1.
    pub line: u32,
    /// The verdict: [`Verdict::Allow`] for an exception.
    pub verdict: Verdict,
}

/// Several lists. The last one with a matching rule wins.
#[derive(Debug, Default)]
pub struct Matcher {
    lists: Vec<Source>,
    functions: Vec<Function>,
    has_paths: bool,
    allowed: Option<AllowedCache>,
}

impl Matcher {
    /// A matcher of these lists.
    pub fn new(lists: impl IntoIterator<Item = Source>) -> Self {
        let lists: Vec<Source> = lists.into_iter().filter(|source| !source.list.is_empty()).collect();
        let mut functions: Vec<Function> = Vec::new();
        for function in lists.iter().flat_map(|source| source.list.functions()) {
            if !functions.contains(function) {
                functions.push(*function);
            }
        }
        let has_paths = lists.iter().any(|source| source.list.has_paths());
        let allowed = (!functions.is_empty()).then(AllowedCache::default);
        Self { lists, functions, has_paths, allowed }
    }

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Whether any rule can deny a path without denying its root.
    pub fn has_paths(&self) -> bool {
        self.has_paths || !self.functions.is_empty()
    }

    /// The verdict on a block, whatever the codec and version of its CID.
    pub fn check_block(&self, cid: &Cid) -> Verdict {
        if self.lists.is_empty() {
            return Verdict::Allow;
        }
        let Some(allowed) = &self.allowed else { return verdict(self.find_block(cid)) };
        let slot = allowed.slot(cid);
        if allowed.contains(slot) {
            return Verdict::Allow;
        }
        let verdict = verdict(self.find_block(cid));
        // A legacy double hash may deny the block under another codec only.
        if verdict == Verdict::Allow && is_common(cid) {
            allowed.insert(slot);
        }
        verdict
    }

    /// The rule that decides for a block.
    pub fn find_block(&self, cid: &Cid) -> Option<Hit> {
        let mut doubles = DoubleHashKeys::default();
        if !self.functions.is_empty() {
            keys::doubles_of_content(cid, "", &self.functions, &mut |key| doubles.push(key));
        }
        let key = keys::of_block(cid.hash());
        self.decide(|list| later_of(list.find(key), doubles.find(list)))
    }

    /// The rule that decides for a path below a root, decoded and without leading and trailing slashes. The blocks of
    /// the path are not checked.
    pub fn find_path(&self, root: &Cid, path: &str) -> Option<Hit> {
        if path.is_empty() {
            return self.find_block(root);
        }
        if !self.has_paths() {
            return None;
        }
        let mut doubles = DoubleHashKeys::default();
        if !self.functions.is_empty() {
            keys::doubles_of_content(root, path, &self.functions, &mut |key| doubles.push(key));
        }
        let key = keys::of_block(root.hash());
        self.decide(|list| later_of(list.find_path(key, path), doubles.find(list)))
    }

    /// The rule that decides for a name, or for a path below it.
    pub fn find_name(&self, name: &Name, path: &str) -> Option<Hit> {
        if self.lists.is_empty() {
            return None;
        }
        let mut doubles = DoubleHashKeys::default();
        if !self.functions.is_empty() {
            keys::doubles_of_name(name, path, &self.functions, &mut |key| doubles.push(key));
        }
        let key = keys::of_name(name);
        self.decide(|list| {
            let own = if path.is_empty() { list.find(key) } else { list.find_path(key, path) };
            later_of(own, doubles.find(list))
        })
    }

    /// The rule that denies some path below a path, if there is one. Paths of double hashes cannot be enumerated.
    pub fn find_below(&self, root: &Cid, path: &str) -> Option<Hit> {
        let (key, mut found) = (keys::of_block(root.hash()), None);
        let mut is_refused = |path: &str| {
            found = self.find_path(root, path).filter(|hit| hit.verdict != Verdict::Allow);
            found.is_some()
        };
        let slash = if path.is_empty() { "" } else { "/" };
        // First the rules with a prefix that covers everything below.
        if self.has_paths && !is_refused(&format!("{path}{slash}{ANY_FURTHER}")) {
            self.lists.iter().any(|source| source.list.any_below(key, path, &mut is_refused));
        }
        found
    }

    fn decide(&self, find: impl Fn(&List) -> Option<RuleInfo>) -> Option<Hit> {
        self.lists.iter().rev().find_map(|source| {
            let info = find(&source.list)?;
            let status = source.list.status().unwrap_or(source.status);
            Some(Hit { list: Arc::clone(&source.id), line: info.line(), verdict: info.verdict(status) })
        })
    }
}

/// The verdict of a rule.
fn verdict(hit: Option<Hit>) -> Verdict {
    hit.map_or(Verdict::Allow, |hit| hit.verdict)
}

fn later_of(a: Option<RuleInfo>, b: Option<RuleInfo>) -> Option<RuleInfo> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.later(b)),
        (a, b) => a.or(b),
    }
}

/// Whether a CID has a common codec, so that its verdict holds for all common codecs.
fn is_common(cid: &Cid) -> bool {
    matches!(cid.codec(), codec::DAG_PB | codec::RAW | codec::DAG_CBOR | codec::DAG_JSON)
}

/// The keys of the double hashes of an item, without heap allocation.
#[derive(Default)]
struct DoubleHashKeys {
    keys: [Key; Self::MAX],
    len: usize,
    /// The overflow, for lists with many functions.
    overflow: Vec<Key>,
}

impl DoubleHashKeys {
    /// One or two functions, and the legacy form for each codec.
    const MAX: usize = 8;

    fn push(&mut self, key: Key) {
        match self.keys.get_mut(self.len) {
            Some(slot) => {
                *slot = key;
                self.len += 1;
            }
            None => self.overflow.push(key),
        }
    }

    fn find(&self, list: &List) -> Option<RuleInfo> {
        if list.functions().is_empty() {
            return None;
        }
        self.keys[..self.len].iter().chain(&self.overflow).filter_map(|key| list.find(*key)).reduce(RuleInfo::later)
    }
}

/// A cache of allowed blocks, by a keyed hash that attackers cannot predict.
struct AllowedCache {
    slots: Box<[AtomicU64]>,
    hasher: RandomState,
}

impl Default for AllowedCache {
    fn default() -> Self {
        Self { slots: (0..CACHE_SLOTS).map(|_| AtomicU64::new(0)).collect(), hasher: RandomState::new() }
    }
}

impl AllowedCache {
    /// The hash of a block; zero for uncommon codecs, which are not cached, and never zero otherwise.
    fn slot(&self, cid: &Cid) -> u64 {
        // The verdicts on common codecs do not hold for others.
        if is_common(cid) { self.hasher.hash_one((cid.hash().code(), cid.hash().digest())) | 1 } else { 0 }
    }

    fn contains(&self, slot: u64) -> bool {
        slot != 0 && self.at(slot).is_some_and(|cached| cached.load(Ordering::Relaxed) == slot)
    }

    fn insert(&self, slot: u64) {
        if let Some(cached) = self.at(slot) {
            cached.store(slot, Ordering::Relaxed);
        }
    }

    fn at(&self, slot: u64) -> Option<&AtomicU64> {
        self.slots.get(usize::try_from(slot >> 48).ok()? % CACHE_SLOTS)
    }
}

impl std::fmt::Debug for AllowedCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Allowed").finish_non_exhaustive()
    }
}

impl Policy for Matcher {
    fn generation(&self) -> u64 {
        0
    }

    fn check(&self, cid: &Cid) -> Verdict {
        self.check_block(cid)
    }

    fn decides_paths(&self) -> bool {
        self.has_paths()
    }

    fn withholds(&self) -> bool {
        !self.is_empty()
    }

    fn hides_paths(&self) -> bool {
        !self.functions.is_empty()
    }

    fn check_path(&self, root: &Cid, path: &str) -> Verdict {
        if path.is_empty() { self.check_block(root) } else { verdict(self.find_path(root, path)) }
    }

    fn check_below(&self, root: &Cid, path: &str) -> Verdict {
        verdict(self.find_below(root, path))
    }

    fn check_name(&self, name: &Name, path: &str) -> Verdict {
        verdict(self.find_name(name, path))
    }
}
