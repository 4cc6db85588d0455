//! [`PageWatch`]: the first bytes of a page, as they pass to its client, for a task that reads them.
//!
//! Goals: the page does not wait for the task: its bytes are copied, up to [`LOOKED_BYTES_MAX`], and nothing else is
//! done where it is sent. The copy counts against the client's memory.

use content::budget::Share;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The number of a page's first bytes that are read.
pub const LOOKED_BYTES_MAX: usize = 512 * 1024;

/// The first bytes of a page.
#[derive(Debug)]
pub struct PageWatch {
    passed: Mutex<Passed>,
    changed: Notify,
    /// Cancelled when the client leaves before it has the page.
    left: CancellationToken,
    /// Cancelled when the whole page was sent.
    sent: CancellationToken,
    sent_at: OnceLock<Instant>,
}

#[derive(Debug)]
struct Passed {
    /// Bytes that the task has not taken yet.
    bytes: Vec<u8>,
    seen_bytes: usize,
    ended: bool,
    memory: Share,
}

impl PageWatch {
    /// No bytes yet. The copy counts against `memory`.
    pub fn new(memory: Share) -> Self {
        let passed = Passed { bytes: Vec::new(), seen_bytes: 0, ended: false, memory };
        let (left, sent) = (CancellationToken::new(), CancellationToken::new());
        Self { passed: Mutex::new(passed), changed: Notify::new(), left, sent, sent_at: OnceLock::new() }
    }

    /// The page's next bytes pass.
    pub fn pass(&self, bytes: &[u8]) {
        let mut passed = self.passed();
        if passed.ended {
            return;
        }
        let room = LOOKED_BYTES_MAX - passed.seen_bytes;
        let kept = &bytes[..bytes.len().min(room)];
        if passed.memory.grow(kept.len()) {
            passed.bytes.extend_from_slice(kept);
            passed.seen_bytes += kept.len();
            passed.ended = passed.seen_bytes == LOOKED_BYTES_MAX;
        } else {
            passed.ended = true;
        }
        drop(passed);
        self.changed.notify_one();
    }

    /// The whole page has passed.
    pub fn end(&self) {
        self.passed().ended = true;
        self.changed.notify_one();
    }

    /// The task needs the bytes no longer that it has taken.
    pub fn release(&self) {
        self.passed().memory.resize(0);
    }

    /// The task has ended: it needs no bytes, neither those that it has not taken nor further ones.
    pub fn close(&self) {
        let mut passed = self.passed();
        passed.ended = true;
        passed.bytes = Vec::new();
        passed.memory.resize(0);
    }

    /// The whole page was sent, as it is or in a content coding.
    pub fn sent(&self) {
        _ = self.sent_at.set(Instant::now());
        self.sent.cancel();
    }

    /// Waits until so much time has passed since the whole page was sent.
    pub async fn sent_for(&self, time: Duration) {
        self.sent.cancelled().await;
        tokio::time::sleep_until(*self.sent_at.get_or_init(Instant::now) + time).await;
    }

    /// The client has left.
    pub fn leave(&self) {
        self.left.cancel();
    }

    /// Waits until the client leaves.
    pub async fn left(&self) {
        self.left.cancelled().await;
    }

    /// Waits for further bytes, and moves them to `page`. Returns whether they are the last ones.
    pub async fn more(&self, page: &mut Vec<u8>) -> bool {
        loop {
            let changed = self.changed.notified();
            {
                let mut passed = self.passed();
                if !passed.bytes.is_empty() || passed.ended {
                    match page.is_empty() {
                        true => *page = std::mem::take(&mut passed.bytes),
                        false => page.append(&mut passed.bytes),
                    }
                    return passed.ended;
                }
            }
            changed.await;
        }
    }

    fn passed(&self) -> MutexGuard<'_, Passed> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::budget::Budget;
    use futures::FutureExt as _;
    use std::sync::Arc;

    #[tokio::test]
    async fn bytes_are_passed_on_up_to_the_bound() {
        let watch = PageWatch::new(Share::of(None));
        let mut page = Vec::new();
        assert!(watch.more(&mut page).now_or_never().is_none());
        watch.pass(b"ab");
        watch.pass(b"c");
        assert!(!watch.more(&mut page).await);
        assert_eq!(page, b"abc");
        watch.pass(&vec![b'x'; LOOKED_BYTES_MAX]);
        watch.pass(b"y");
        assert!(watch.more(&mut page).await);
        assert_eq!((page.len(), page.contains(&b'y')), (LOOKED_BYTES_MAX, false));
        assert!(watch.more(&mut page).now_or_never().is_some(), "the end does not pass");
    }

    #[tokio::test]
    async fn it_ends_with_the_page_or_the_memory() {
        let watch = PageWatch::new(Share::of(None));
        watch.pass(b"a");
        watch.end();
        let mut page = Vec::new();
        assert!(watch.more(&mut page).await);
        assert_eq!(page, b"a");

        let budget = Arc::new(Budget::new(3));
        let watch = PageWatch::new(Share::of(Some(Arc::clone(&budget))));
        watch.pass(b"ab");
        watch.pass(b"cd");
        let mut page = Vec::new();
        assert!(watch.more(&mut page).await);
        assert_eq!((&*page, budget.left()), (&b"ab"[..], 1));
        watch.release();
        assert_eq!(budget.left(), 3);
    }

    #[tokio::test]
    async fn nothing_is_kept_once_the_task_has_ended() {
        let budget = Arc::new(Budget::new(10));
        let watch = PageWatch::new(Share::of(Some(Arc::clone(&budget))));
        watch.pass(b"ab");
        assert_eq!(budget.left(), 8);
        watch.close();
        watch.pass(b"cd");
        assert_eq!(budget.left(), 10);
        let mut page = Vec::new();
        assert!(watch.more(&mut page).await && page.is_empty());
    }

    #[tokio::test]
    async fn time_is_counted_from_when_the_page_was_sent() {
        let watch = PageWatch::new(Share::of(None));
        assert!(watch.sent_for(Duration::ZERO).now_or_never().is_none());
        watch.sent();
        assert!(watch.sent_for(Duration::from_secs(3600)).now_or_never().is_none());
        watch.sent_for(Duration::from_millis(1)).await;
    }
}
