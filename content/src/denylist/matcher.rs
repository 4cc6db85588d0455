//! [`Matcher`]: several lists, asked together.
//!
//! What a check costs: for a list of blocks, a look-up in each of its runs. As soon as any list has double hashes, the
//! texts that they may be of have to be hashed, five of them. So what was found to be allowed is remembered by a secret hash
//! of its multihash, in half a megabyte that no lock guards: what is asked for often costs one hash and one read of memory.
//! `what_a_check_costs` in `tests` measures all of it.

use super::keys::{self, Function, Key};
use super::list::{BEYOND, List};
use super::runs::Mark;
use crate::cid::{Cid, codec};
use crate::names::Name;
use crate::policy::{Policy, Verdict};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many blocks that are allowed are remembered.
const REMEMBERED: usize = 1 << 16;

/// A list and what it is to a matcher.
#[derive(Debug, Clone)]
pub struct Source {
    /// What it is called by whoever runs the matcher.
    pub id: Arc<str>,
    /// Its rules.
    pub list: List,
    /// How they refuse content, unless they or their list say otherwise.
    pub status: Verdict,
}

/// The rule that decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    /// The list that it is in.
    pub list: Arc<str>,
    /// Its line, from 1 on.
    pub line: u32,
    /// What it comes to: [`Verdict::Allow`] for an exception.
    pub verdict: Verdict,
}

/// Several lists. Of those that say anything, the last one counts.
#[derive(Debug, Default)]
pub struct Matcher {
    lists: Vec<Source>,
    functions: Vec<Function>,
    has_paths: bool,
    allowed: Option<Allowed>,
}

impl Matcher {
    /// Asks these lists.
    pub fn new(lists: impl IntoIterator<Item = Source>) -> Self {
        let lists: Vec<Source> = lists.into_iter().filter(|source| !source.list.is_empty()).collect();
        let mut functions: Vec<Function> = Vec::new();
        for function in lists.iter().flat_map(|source| source.list.functions()) {
            if !functions.contains(function) {
                functions.push(*function);
            }
        }
        let has_paths = lists.iter().any(|source| source.list.has_paths());
        let allowed = (!functions.is_empty()).then(Allowed::default);
        Self { lists, functions, has_paths, allowed }
    }

    /// Whether there are no rules at all.
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Whether any rule can be about a path and not about its root alone.
    pub fn has_paths(&self) -> bool {
        self.has_paths || !self.functions.is_empty()
    }

    /// The verdict on a block, whatever codec or version it is asked for by.
    pub fn check_block(&self, cid: &Cid) -> Verdict {
        if self.lists.is_empty() {
            return Verdict::Allow;
        }
        let Some(allowed) = &self.allowed else { return verdict(self.find_block(cid)) };
        let place = allowed.place(cid);
        if allowed.has(place) {
            return Verdict::Allow;
        }
        let verdict = verdict(self.find_block(cid));
        // Another codec may be one that a double hash names.
        if verdict == Verdict::Allow && is_common(cid) {
            allowed.remember(place);
        }
        verdict
    }

    /// The rule that decides about a block.
    pub fn find_block(&self, cid: &Cid) -> Option<Hit> {
        let mut doubles = Doubles::default();
        if !self.functions.is_empty() {
            keys::doubles_of_content(cid, "", &self.functions, &mut |key| doubles.put(key));
        }
        let key = keys::of_block(cid.hash());
        self.decide(|list| later(list.find(key), doubles.find(list)))
    }

    /// The rule that decides about a path below a root, decoded and without slashes at its ends. Whether its blocks are
    /// to be had is another question.
    pub fn find_path(&self, root: &Cid, path: &str) -> Option<Hit> {
        if path.is_empty() {
            return self.find_block(root);
        }
        if !self.has_paths() {
            return None;
        }
        let mut doubles = Doubles::default();
        if !self.functions.is_empty() {
            keys::doubles_of_content(root, path, &self.functions, &mut |key| doubles.put(key));
        }
        let key = keys::of_block(root.hash());
        self.decide(|list| later(list.find_path(key, path), doubles.find(list)))
    }

    /// The rule that decides about a name, or about a path below what it stands for.
    pub fn find_name(&self, name: &Name, path: &str) -> Option<Hit> {
        if self.lists.is_empty() {
            return None;
        }
        let mut doubles = Doubles::default();
        if !self.functions.is_empty() {
            keys::doubles_of_name(name, path, &self.functions, &mut |key| doubles.put(key));
        }
        let key = keys::of_name(name);
        self.decide(|list| {
            let own = if path.is_empty() { list.find(key) } else { list.find_path(key, path) };
            later(own, doubles.find(list))
        })
    }

    /// How the first path that is found below a path is refused, if any is. Of double hashes nobody can tell beforehand.
    pub fn find_below(&self, root: &Cid, path: &str) -> Option<Hit> {
        let (key, mut found) = (keys::of_block(root.hash()), None);
        let mut is_refused = |path: &str| {
            found = self.find_path(root, path).filter(|hit| hit.verdict != Verdict::Allow);
            found.is_some()
        };
        let slash = if path.is_empty() { "" } else { "/" };
        // First what a rule about something above says of everything below.
        if self.has_paths && !is_refused(&format!("{path}{slash}{BEYOND}")) {
            self.lists.iter().any(|source| source.list.any_below(key, path, &mut is_refused));
        }
        found
    }

    fn decide(&self, find: impl Fn(&List) -> Option<Mark>) -> Option<Hit> {
        self.lists.iter().rev().find_map(|source| {
            let mark = find(&source.list)?;
            let status = source.list.status().unwrap_or(source.status);
            Some(Hit { list: Arc::clone(&source.id), line: mark.line(), verdict: mark.verdict(status) })
        })
    }
}

/// What a decision comes to.
fn verdict(hit: Option<Hit>) -> Verdict {
    hit.map_or(Verdict::Allow, |hit| hit.verdict)
}

fn later(a: Option<Mark>, b: Option<Mark>) -> Option<Mark> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.later(b)),
        (a, b) => a.or(b),
    }
}

/// Whether a CID's codec is one that content is commonly served by, so that what holds for it holds for all of them.
fn is_common(cid: &Cid) -> bool {
    matches!(cid.codec(), codec::DAG_PB | codec::RAW | codec::DAG_CBOR | codec::DAG_JSON)
}

/// The keys of the double hashes that may be asked for, on the stack.
#[derive(Default)]
struct Doubles {
    keys: [Key; Self::MAX],
    len: usize,
    /// What has no room there: of lists that use many functions.
    more: Vec<Key>,
}

impl Doubles {
    /// A function or two, and the older form by each codec.
    const MAX: usize = 8;

    fn put(&mut self, key: Key) {
        match self.keys.get_mut(self.len) {
            Some(place) => {
                *place = key;
                self.len += 1;
            }
            None => self.more.push(key),
        }
    }

    fn find(&self, list: &List) -> Option<Mark> {
        if list.functions().is_empty() {
            return None;
        }
        self.keys[..self.len].iter().chain(&self.more).filter_map(|key| list.find(*key)).reduce(Mark::later)
    }
}

/// Blocks that were found to be allowed, by a hash that nobody outside can foresee.
struct Allowed {
    places: Box<[AtomicU64]>,
    hasher: RandomState,
}

impl Default for Allowed {
    fn default() -> Self {
        Self { places: (0..REMEMBERED).map(|_| AtomicU64::new(0)).collect(), hasher: RandomState::new() }
    }
}

impl Allowed {
    /// Never zero, which stands for nothing.
    fn place(&self, cid: &Cid) -> u64 {
        // Of another codec, nothing that holds for the common ones is known.
        if is_common(cid) { self.hasher.hash_one((cid.hash().code(), cid.hash().digest())) | 1 } else { 0 }
    }

    fn has(&self, place: u64) -> bool {
        place != 0 && self.at(place).is_some_and(|known| known.load(Ordering::Relaxed) == place)
    }

    fn remember(&self, place: u64) {
        if let Some(known) = self.at(place) {
            known.store(place, Ordering::Relaxed);
        }
    }

    fn at(&self, place: u64) -> Option<&AtomicU64> {
        self.places.get(usize::try_from(place >> 48).ok()? % REMEMBERED)
    }
}

impl std::fmt::Debug for Allowed {
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
