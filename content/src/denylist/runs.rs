//! Sorted runs of rules in layers that are appended and merged, as in a log-structured merge tree: [`Layers`].
//!
//! A list usually has one large run, and a few small ones that were appended. Runs are immutable, so that readers and
//! snapshots of the list share them. When a run has grown to a fraction of the one before it, the two are merged, so
//! that there are few runs.
//!
//! A run of keys takes 20.5 bytes for each: the key, a [`RuleInfo`], and a part of an index by the first bits of the keys,
//! with which a look-up takes two memory accesses. A path takes 48 bytes and its text.

use super::keys::Key;
use crate::policy::Verdict;
use std::sync::Arc;

/// The properties of a rule: its line, whether it is an exception, and how content is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RuleInfo(u32);

impl RuleInfo {
    const ALLOWS: u32 = 1 << 31;
    const GONE: u32 = 1 << 29;
    const LEGAL: u32 = 2 << 29;
    const LINE: u32 = (1 << 29) - 1;

    /// Line numbers beyond the maximum are stored as the maximum.
    pub(super) fn new(line: u64, allows: bool, status: Option<Verdict>) -> Self {
        let line = u32::try_from(line).unwrap_or(Self::LINE).min(Self::LINE);
        let status = match status {
            Some(Verdict::Gone) => Self::GONE,
            Some(Verdict::Legal) => Self::LEGAL,
            _ => 0,
        };
        Self(line | status | if allows { Self::ALLOWS } else { 0 })
    }

    pub(super) fn line(self) -> u32 {
        self.0 & Self::LINE
    }

    pub(super) fn allows(self) -> bool {
        self.0 & Self::ALLOWS != 0
    }

    /// The verdict of the rule, in a list with the status `default`.
    pub(super) fn verdict(self, default: Verdict) -> Verdict {
        match self.0 & (Self::ALLOWS | Self::GONE | Self::LEGAL) {
            0 => default,
            Self::GONE => Verdict::Gone,
            Self::LEGAL => Verdict::Legal,
            _ => Verdict::Allow,
        }
    }

    /// The later one of two matching rules.
    pub(super) fn later(self, other: Self) -> Self {
        if self.line() > other.line() { self } else { other }
    }
}

/// The path of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Path {
    /// The key of its root.
    pub(super) key: Key,
    pub(super) text: Arc<str>,
    pub(super) prefix: bool,
    pub(super) info: RuleInfo,
}

impl Path {
    fn order(&self) -> (Key, &str, bool) {
        (self.key, &self.text, self.prefix)
    }
}

/// A sorted run.
pub(super) trait Run: Sized {
    /// The type of the entries.
    type Entry;

    /// Sorts entries; of several with the same key, the last line wins.
    fn of(entries: Vec<Self::Entry>) -> Self;

    /// The merge of both runs.
    fn merged(&self, other: &Self) -> Self;

    fn len(&self) -> usize;
}

/// A run of keys with their marks.
#[derive(Debug)]
pub(super) struct Keys {
    keys: Vec<Key>,
    infos: Vec<RuleInfo>,
    /// For each prefix of `bits` bits, the index of the first key with it.
    index: Vec<u32>,
    bits: u32,
}

impl Keys {
    fn sorted(entries: impl Iterator<Item = (Key, RuleInfo)>, capacity: usize) -> Self {
        let (mut keys, mut infos): (Vec<Key>, Vec<RuleInfo>) =
            (Vec::with_capacity(capacity), Vec::with_capacity(capacity));
        for (key, info) in entries {
            match (keys.last(), infos.last_mut()) {
                (Some(last), Some(existing)) if *last == key => *existing = existing.later(info),
                _ => {
                    keys.push(key);
                    infos.push(info);
                }
            }
        }
        keys.shrink_to_fit();
        infos.shrink_to_fit();
        // Eight keys for each prefix on average.
        let bits = (keys.len() / 8).next_power_of_two().trailing_zeros();
        let mut index = Vec::with_capacity((1 << bits) + 1);
        for bucket in 0..1_u64 << bits {
            let from = index.last().map_or(0, |last: &u32| *last as usize);
            let before = |key: &Key| bucket_of(*key, bits) < bucket;
            index.push(u32::try_from(from + keys[from..].partition_point(before)).unwrap_or(u32::MAX));
        }
        index.push(u32::try_from(keys.len()).unwrap_or(u32::MAX));
        Self { keys, infos, index, bits }
    }

    /// The mark of a key.
    pub(super) fn find(&self, key: Key) -> Option<RuleInfo> {
        let bucket = usize::try_from(bucket_of(key, self.bits)).ok()?;
        let (from, to) = (*self.index.get(bucket)? as usize, *self.index.get(bucket + 1)? as usize);
        let at = self.keys.get(from..to)?.binary_search(&key).ok()?;
        self.infos.get(from + at).copied()
    }

    fn iter(&self) -> impl Iterator<Item = (Key, RuleInfo)> {
        self.keys.iter().copied().zip(self.infos.iter().copied())
    }

    fn memory_bytes(&self) -> usize {
        self.keys.capacity() * size_of::<Key>()
            + self.infos.capacity() * size_of::<RuleInfo>()
            + self.index.capacity() * 4
    }
}

fn bucket_of(key: Key, bits: u32) -> u64 {
    u64::try_from(key >> 64).unwrap_or_default().checked_shr(64 - bits).unwrap_or_default()
}

impl Run for Keys {
    type Entry = (Key, RuleInfo);

    fn of(mut entries: Vec<(Key, RuleInfo)>) -> Self {
        entries.sort_unstable_by_key(|(key, _)| *key);
        let capacity = entries.len();
        Self::sorted(entries.into_iter(), capacity)
    }

    fn merged(&self, other: &Self) -> Self {
        Self::sorted(merge_sorted(self.iter(), other.iter(), |a, b| a.0 <= b.0), self.len() + other.len())
    }

    fn len(&self) -> usize {
        self.keys.len()
    }
}

/// A run of paths, sorted by root and text.
#[derive(Debug)]
pub(super) struct Paths(Vec<Path>);

impl Paths {
    fn sorted(paths: impl Iterator<Item = Path>, capacity: usize) -> Self {
        let mut run: Vec<Path> = Vec::with_capacity(capacity);
        for path in paths {
            match run.last_mut() {
                Some(last) if last.order() == path.order() => last.info = last.info.later(path.info),
                _ => run.push(path),
            }
        }
        run.shrink_to_fit();
        Self(run)
    }

    /// The paths of a root.
    pub(super) fn of_root(&self, key: Key) -> &[Path] {
        let from = self.0.partition_point(|path| path.key < key);
        let rest = &self.0[from..];
        &rest[..rest.partition_point(|path| path.key == key)]
    }

    fn memory_bytes(&self) -> usize {
        let texts: usize = self.0.iter().map(|path| path.text.len() + 2 * size_of::<usize>()).sum();
        self.0.capacity() * size_of::<Path>() + texts
    }
}

/// The mark of the rule that matches a path, among the paths of its root.
pub(super) fn match_path(of_root: &[Path], path: &str) -> Option<RuleInfo> {
    /// Up to so many paths are searched linearly.
    const LINEAR_SEARCH_MAX: usize = 64;
    let matches = |rule: &&Path| if rule.prefix { path.starts_with(&*rule.text) } else { path == &*rule.text };
    if of_root.len() <= LINEAR_SEARCH_MAX {
        return of_root.iter().filter(matches).map(|rule| rule.info).reduce(RuleInfo::later);
    }
    let find = |text: &str, prefix: bool| {
        let at = of_root.binary_search_by(|rule| (&*rule.text, rule.prefix).cmp(&(text, prefix))).ok()?;
        Some(of_root.get(at)?.info)
    };
    let beginnings = path.char_indices().map(|(end, _)| end).chain([path.len()]);
    let prefixes = beginnings.filter_map(|end| find(&path[..end], true));
    prefixes.chain(find(path, false)).reduce(RuleInfo::later)
}

/// The paths below a path, among those of its root.
pub(super) fn paths_below<'a>(of_root: &'a [Path], path: &str) -> impl Iterator<Item = &'a Path> + use<'a> {
    let above = if path.is_empty() { String::new() } else { format!("{path}/") };
    let from = of_root.partition_point(|rule| *rule.text < *above);
    of_root[from..].iter().take_while(move |rule| rule.text.starts_with(&above)).filter(|rule| !rule.text.is_empty())
}

impl Run for Paths {
    type Entry = Path;

    fn of(mut paths: Vec<Path>) -> Self {
        paths.sort_unstable_by(|a, b| a.order().cmp(&b.order()));
        let capacity = paths.len();
        Self::sorted(paths.into_iter(), capacity)
    }

    fn merged(&self, other: &Self) -> Self {
        let paths = merge_sorted(self.0.iter().cloned(), other.0.iter().cloned(), |a, b| a.order() <= b.order());
        Self::sorted(paths, self.len() + other.len())
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Merges two sorted sequences.
fn merge_sorted<T>(
    a: impl Iterator<Item = T>,
    b: impl Iterator<Item = T>,
    in_order: fn(&T, &T) -> bool,
) -> impl Iterator<Item = T> {
    let (mut a, mut b) = (a.peekable(), b.peekable());
    std::iter::from_fn(move || match (a.peek(), b.peek()) {
        (Some(first), Some(second)) if !in_order(first, second) => b.next(),
        (Some(_), _) => a.next(),
        (None, _) => b.next(),
    })
}

/// Runs, from the largest to the smallest. Clones share them.
#[derive(Debug)]
pub(super) struct Layers<R>(Vec<Arc<R>>);

impl<R> Clone for Layers<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<R> Default for Layers<R> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// A run is merged into the one before it unless that is at least so many times larger.
const MERGE_FACTOR: usize = 8;

impl<R: Run> Layers<R> {
    /// Appends entries. Runs of similar size are merged, so that each entry is copied a few times in all.
    pub(super) fn add(&mut self, entries: Vec<R::Entry>) {
        if entries.is_empty() {
            return;
        }
        let mut run = R::of(entries);
        while let Some(last) = self.0.pop_if(|last| last.len() < MERGE_FACTOR * run.len()) {
            run = last.merged(&run);
        }
        self.0.push(Arc::new(run));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &R> {
        self.0.iter().map(|run| &**run)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Layers<Keys> {
    pub(super) fn memory_bytes(&self) -> usize {
        self.iter().map(Keys::memory_bytes).sum()
    }
}

impl Layers<Paths> {
    pub(super) fn memory_bytes(&self) -> usize {
        self.iter().map(Paths::memory_bytes).sum()
    }
}
