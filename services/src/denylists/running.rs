//! [`Running`]: the policy as it is at the moment, which lists replace while requests run.
//!
//! What a check costs beside the look-ups: a read lock that hardly anybody ever writes; nothing at all while there are no
//! rules. Who swaps the rules raises the generation after they are in force, so that what is remembered under a
//! generation was decided by its rules or later ones.

use content::denylist::{Hit, Matcher};
use content::path::Root;
use content::{Cid, Name, Policy, Verdict};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// The rules in force.
#[derive(Debug, Default)]
pub struct Rules {
    /// What is withheld.
    pub deny: Matcher,
    /// What is served, if nothing else is. Here too rules are written as what is withheld: a match that is no exception is
    /// on the list.
    pub allow: Option<Matcher>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Running {
    rules: RwLock<Arc<Rules>>,
    generation: AtomicU64,
    /// Whether there is anything to ask about.
    has_rules: AtomicBool,
    decides_paths: AtomicBool,
    lists_only: AtomicBool,
}

impl Running {
    /// Puts rules in force. Whatever is asked from now on is decided by them.
    pub fn swap(&self, rules: Rules) {
        let flags = (!rules.deny.is_empty(), rules.deny.has_paths(), rules.allow.is_some());
        let mut place = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        let former = std::mem::replace(&mut *place, Arc::new(rules));
        self.has_rules.store(flags.0, Ordering::SeqCst);
        self.decides_paths.store(flags.1, Ordering::SeqCst);
        self.lists_only.store(flags.2, Ordering::SeqCst);
        self.generation.fetch_add(1, Ordering::SeqCst);
        drop(place);
        // A million rules are not freed while everybody waits.
        drop(former);
    }

    fn rules(&self) -> RwLockReadGuard<'_, Arc<Rules>> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rule that decides about a block.
    pub fn find_block(&self, cid: &Cid) -> Option<Hit> {
        self.rules().deny.find_block(cid)
    }

    /// The rule that decides about a path.
    pub fn find_path(&self, root: &Cid, path: &str) -> Option<Hit> {
        self.rules().deny.find_path(root, path)
    }

    /// The rule that decides about a name.
    pub fn find_name(&self, name: &Name, path: &str) -> Option<Hit> {
        self.rules().deny.find_name(name, path)
    }

    /// The rule by which a request is on the list of what is served; `None` also if everything is.
    pub fn find_entry(&self, root: &Root, path: &str) -> Option<Hit> {
        let rules = self.rules();
        let allow = rules.allow.as_ref()?;
        // A rule about a root holds for everything below, and one that is more special comes before it.
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
