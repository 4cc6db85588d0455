//! [`BoundedLock`]: a lock with admission control.
//!
//! The lock is held while the database is asked, which may take as long as the database does not answer. Goals: those
//! that wait give up in time to be answered, and a flood of changes is rejected at once.

use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard, Semaphore};

/// A lock that at most so many wait for.
#[derive(Debug)]
pub(crate) struct BoundedLock<T> {
    value: Mutex<T>,
    /// A permit for each that waits.
    waiting: Semaphore,
}

impl<T> BoundedLock<T> {
    pub fn new(value: T, waiting_max: usize) -> Self {
        Self { value: Mutex::new(value), waiting: Semaphore::new(waiting_max) }
    }

    /// Waits for the lock, for at most `wait_max`; `None` after that time, or at once if too many wait.
    pub async fn lock_within(&self, wait_max: Duration) -> Option<MutexGuard<'_, T>> {
        let _permit = self.waiting.try_acquire().ok()?;
        tokio::time::timeout(wait_max, self.value.lock()).await.ok()
    }

    /// Waits for the lock without a limit: for tasks of the gateway, whose number is limited.
    pub async fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test]
    async fn waits_end_and_are_limited_in_number() {
        const LONG: Duration = Duration::from_secs(3600);
        let lock = BoundedLock::new((), 2);
        let held = lock.lock_within(LONG).await.expect("it is free");
        assert!(lock.lock_within(Duration::from_millis(1)).await.is_none(), "the wait ends");
        let mut waiting = [Box::pin(lock.lock_within(LONG)), Box::pin(lock.lock_within(LONG))];
        assert!(waiting.iter_mut().all(|wait| wait.now_or_never().is_none()));
        assert!(lock.lock_within(LONG).now_or_never().expect("it does not wait").is_none());
        drop(held);
        let [first, second] = waiting;
        drop(first.await.expect("it is free"));
        drop(second.await.expect("it is free"));
        assert!(lock.lock_within(LONG).await.is_some(), "the permits are released");
    }
}
