//! [`Budget`]: bytes that many share, and [`Share`]: what one of them has of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number of bytes that many may take from and give back to.
#[derive(Debug)]
pub struct Budget {
    left: AtomicUsize,
}

impl Budget {
    /// A budget of that many bytes.
    pub fn new(bytes: usize) -> Self {
        Self { left: AtomicUsize::new(bytes) }
    }

    /// Takes bytes, if as many are left.
    pub fn take(&self, bytes: usize) -> bool {
        self.left.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    /// Gives bytes back that were taken.
    pub fn give(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }
}

/// What somebody took from a budget, and gives back when this is dropped.
#[derive(Debug)]
pub struct Share {
    /// Without one there is no limit.
    budget: Option<Arc<Budget>>,
    bytes: usize,
}

impl Share {
    /// Nothing of it yet.
    pub fn of(budget: Option<Arc<Budget>>) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Takes more bytes, if as many are left; whether they were.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let granted = self.budget.as_ref().is_none_or(|budget| budget.take(bytes));
        self.bytes += if granted { bytes } else { 0 };
        granted
    }

    /// Has so many bytes from now on, more or fewer than before; whether more were left. If not, it has what it had.
    pub fn hold(&mut self, bytes: usize) -> bool {
        if let Some(more) = bytes.checked_sub(self.bytes) {
            return more == 0 || self.grow(more);
        }
        if let Some(budget) = &self.budget {
            budget.give(self.bytes - bytes);
        }
        self.bytes = bytes;
        true
    }

    /// Takes `bytes`, or less if they are more than a small part of what is left, so that there is something for those who
    /// come later.
    pub fn grow_modestly(&mut self, bytes: usize) {
        let modest = self.budget.as_ref().map_or(bytes, |budget| bytes.min(budget.left() / MODEST_PART));
        self.grow(modest);
    }

    /// How many bytes were taken.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.give(self.bytes);
        }
    }
}

/// Of what is left, nobody modest takes more than this part.
const MODEST_PART: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_go_back_to_their_budget() {
        let budget = Arc::new(Budget::new(1600));
        let mut first = Share::of(Some(Arc::clone(&budget)));
        assert!(first.grow(1000) && !first.grow(601) && first.grow(500));
        let mut second = Share::of(Some(Arc::clone(&budget)));
        second.grow_modestly(1000);
        assert_eq!((first.bytes(), second.bytes(), budget.left()), (1500, 6, 94));
        drop(first);
        second.grow_modestly(50);
        assert_eq!((second.bytes(), budget.left()), (56, 1544));
        assert!(second.hold(1600) && !second.hold(1601) && second.hold(10));
        assert_eq!((second.bytes(), budget.left()), (10, 1590));
        drop(second);
        assert_eq!(budget.left(), 1600);
        let mut unlimited = Share::of(None);
        unlimited.grow_modestly(7);
        assert!(unlimited.grow(usize::MAX - 7));
    }
}
