//! [`Budget`]: a memory quota that many tasks share, and [`Share`]: the part of it that one task has reserved.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number of bytes that tasks reserve and release.
#[derive(Debug)]
pub struct Budget {
    left: AtomicUsize,
    /// The budget that this one is a part of.
    parent: Option<Arc<Budget>>,
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self { left: AtomicUsize::new(bytes), parent: None }
    }

    /// A budget of so many bytes, which are reserved of `parent` as well.
    pub fn within(bytes: usize, parent: Option<Arc<Self>>) -> Self {
        Self { left: AtomicUsize::new(bytes), parent }
    }

    /// Reserves bytes; `false` if fewer are left.
    pub fn try_reserve(&self, bytes: usize) -> bool {
        let is_left =
            self.left.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok();
        let reserved = is_left && self.parent.as_ref().is_none_or(|parent| parent.try_reserve(bytes));
        if is_left && !reserved {
            self.left.fetch_add(bytes, Ordering::AcqRel);
        }
        reserved
    }

    /// Releases reserved bytes.
    pub fn release(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::AcqRel);
        if let Some(parent) = &self.parent {
            parent.release(bytes);
        }
    }

    /// The number of bytes that are left.
    pub fn left(&self) -> usize {
        let left = self.left.load(Ordering::Relaxed);
        self.parent.as_ref().map_or(left, |parent| left.min(parent.left()))
    }
}

/// The bytes that a task has reserved of a budget. Dropping it releases them.
#[derive(Debug)]
pub struct Share {
    /// `None` for no limit.
    budget: Option<Arc<Budget>>,
    bytes: usize,
}

impl Share {
    /// A share of zero bytes.
    pub fn of(budget: Option<Arc<Budget>>) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Reserves further bytes; `false` if fewer are left.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let reserved = self.budget.as_ref().is_none_or(|budget| budget.try_reserve(bytes));
        self.bytes += if reserved { bytes } else { 0 };
        reserved
    }

    /// Changes the share to so many bytes. If it grows and the budget has fewer left, it is unchanged, and the result
    /// `false`.
    pub fn resize(&mut self, bytes: usize) -> bool {
        if let Some(more) = bytes.checked_sub(self.bytes) {
            return more == 0 || self.grow(more);
        }
        if let Some(budget) = &self.budget {
            budget.release(self.bytes - bytes);
        }
        self.bytes = bytes;
        true
    }

    /// Reserves `bytes`, or less if they exceed a small part of what is left, so that some is left for later tasks.
    pub fn grow_within_fair_share(&mut self, bytes: usize) {
        let modest = self.budget.as_ref().map_or(bytes, |budget| bytes.min(budget.left() / MODEST_DIVISOR));
        self.grow(modest);
    }

    /// The number of reserved bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.release(self.bytes);
        }
    }
}

/// [`Share::grow_within_fair_share`] reserves at most one part in so many of what is left.
const MODEST_DIVISOR: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_budget_reserves_of_both() {
        let all = Arc::new(Budget::new(100));
        let [one, other] = [60, 60].map(|bytes| Arc::new(Budget::within(bytes, Some(Arc::clone(&all)))));
        let mut first = Share::of(Some(Arc::clone(&one)));
        assert!(!first.grow(61) && first.grow(50));
        assert_eq!((one.left(), other.left(), all.left()), (10, 50, 50));
        // What the whole budget lacks is not taken of the part either.
        assert!(!Share::of(Some(Arc::clone(&other))).grow(55));
        assert_eq!((other.left(), all.left()), (50, 50));
        drop(first);
        assert_eq!((one.left(), other.left(), all.left()), (60, 60, 100));
    }

    #[test]
    fn dropped_shares_are_released() {
        let budget = Arc::new(Budget::new(1600));
        let mut first = Share::of(Some(Arc::clone(&budget)));
        assert!(first.grow(1000) && !first.grow(601) && first.grow(500));
        let mut second = Share::of(Some(Arc::clone(&budget)));
        second.grow_within_fair_share(1000);
        assert_eq!((first.bytes(), second.bytes(), budget.left()), (1500, 6, 94));
        drop(first);
        second.grow_within_fair_share(50);
        assert_eq!((second.bytes(), budget.left()), (56, 1544));
        assert!(second.resize(1600) && !second.resize(1601) && second.resize(10));
        assert_eq!((second.bytes(), budget.left()), (10, 1590));
        drop(second);
        assert_eq!(budget.left(), 1600);
        let mut unlimited = Share::of(None);
        unlimited.grow_within_fair_share(7);
        assert!(unlimited.grow(usize::MAX - 7));
    }
}
