//! [`Budget`]: bytes that many share.

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
