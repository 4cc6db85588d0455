//! [`Running`]: the policy in force, which lists replace while requests run.
//!
//! The cost of a check besides the look-ups is a read lock that is rarely contended; without rules there is no cost.
//! The generation is raised after new rules are in force, so that what is cached under a generation was decided by its
//! rules or later ones.

use content::denylist::{Hit, Matcher};
use content::path::Root;
use content::{Cid, Name, Policy, Verdict};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// The rules in force.
#[derive(Debug, Default)]
pub struct Rules {
    /// The rules of the denylists.
    pub deny: Matcher,
    /// The rules of the allowlists, in allowlist mode. A match that is not an exception is on the list.
    pub allow: Option<Matcher>,
}

/// The policy in force.
#[derive(Debug, Default)]
pub struct Running {
    rules: RwLock<Arc<Rules>>,
    generation: AtomicU64,
    /// Whether there are any rules, as a fast path.
    has_rules: AtomicBool,
    decides_paths: AtomicBool,
    lists_only: AtomicBool,
}

impl Running {
    /// Puts rules in force for all checks from now on.
    pub fn swap(&self, rules: Rules) {
        let flags = (!rules.deny.is_empty(), rules.deny.has_paths(), rules.allow.is_some());
        let mut place = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        let former = std::mem::replace(&mut *place, Arc::new(rules));
        self.has_rules.store(flags.0, Ordering::SeqCst);
        self.decides_paths.store(flags.1, Ordering::SeqCst);
        self.lists_only.store(flags.2, Ordering::SeqCst);
        self.generation.fetch_add(1, Ordering::SeqCst);
        drop(place);
        // Large rule sets are freed after the lock is released.
        drop(former);
    }

    fn rules(&self) -> RwLockReadGuard<'_, Arc<Rules>> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rule that decides on a block.
    pub fn find_block(&self, cid: &Cid) -> Option<Hit> {
        self.rules().deny.find_block(cid)
    }

    /// The rule that decides on a path.
    pub fn find_path(&self, root: &Cid, path: &str) -> Option<Hit> {
        self.rules().deny.find_path(root, path)
    }

    /// The rule that decides on a name.
    pub fn find_name(&self, name: &Name, path: &str) -> Option<Hit> {
        self.rules().deny.find_name(name, path)
    }

    /// The allowlist rule that a request matches; `None` also in denylist mode.
    pub fn find_entry(&self, root: &Root, path: &str) -> Option<Hit> {
        let rules = self.rules();
        let allow = rules.allow.as_ref()?;
        // A rule about a root applies to everything below, and a more specific one takes precedence.
        let of = |path: &str| match root {
            Root::Cid(cid) => allow.find_path(cid, path),
            Root::Name(name) => allow.find_name(name, path),
        };
        let own = if path.is_empty() { None } else { of(path) };
        own.or_else(|| of(""))
    }
}

impl Policy for Running {
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    fn check(&self, cid: &Cid) -> Verdict {
        if !self.has_rules.load(Ordering::Acquire) {
            return Verdict::Allow;
        }
        self.rules().deny.check_block(cid)
    }

    fn withholds(&self) -> bool {
        self.has_rules.load(Ordering::Acquire)
    }

    fn decides_paths(&self) -> bool {
        self.decides_paths.load(Ordering::Acquire)
    }

    fn hides_paths(&self) -> bool {
        self.decides_paths() && self.rules().deny.hides_paths()
    }

    fn check_path(&self, root: &Cid, path: &str) -> Verdict {
        self.rules().deny.check_path(root, path)
    }

    fn check_below(&self, root: &Cid, path: &str) -> Verdict {
        if !self.decides_paths() {
            return Verdict::Allow;
        }
        self.rules().deny.check_below(root, path)
    }

    fn check_name(&self, name: &Name, path: &str) -> Verdict {
        if !self.has_rules.load(Ordering::Acquire) {
            return Verdict::Allow;
        }
        self.rules().deny.check_name(name, path)
    }

    fn check_entry(&self, root: &Root, path: &str) -> Verdict {
        if !self.serves_only_listed() {
            return Verdict::Allow;
        }
        let listed = self.find_entry(root, path).is_some_and(|hit| hit.verdict != Verdict::Allow);
        if listed { Verdict::Allow } else { Verdict::Unlisted }
    }

    fn serves_only_listed(&self) -> bool {
        self.lists_only.load(Ordering::Acquire)
    }

    fn lists_block(&self, cid: &Cid) -> bool {
        let rules = self.rules();
        let Some(allow) = &rules.allow else { return true };
        allow.find_block(cid).is_some_and(|hit| hit.verdict != Verdict::Allow)
    }
}
