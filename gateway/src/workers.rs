//! [`Workers`]: threads for CPU-bound responses: archives, listings, documents, and checks of a DAG against the policy.
//!
//! Goals: CPU-bound responses do not delay health checks and cache hits, however many there are; work stops soon after
//! its client disconnects; little is produced ahead of the client.
//!
//! The workers are a Tokio runtime with half as many threads as there are processors, which starts with the first such
//! response. Each response is a task there, which sends its output over a channel that is bounded in bytes. The task
//! yields regularly ([`content::work`]), at which point it can be aborted and other tasks run.
//!
//! Non-goals: files. Their bytes are passed on without processing, which costs less than another thread.

use crate::errors::Problem;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::thread::available_parallelism;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::task::AbortOnDropHandle;

/// The maximum output ahead of a client in bytes, exceeded by its last chunk.
const AHEAD_BYTES: usize = 256 * 1024;

/// The worker threads. Clones share them; they stop with the last clone.
#[derive(Clone, Default)]
pub struct Workers {
    threads: Arc<Threads>,
}

#[derive(Default)]
struct Threads {
    /// `None` if the system cannot start threads.
    runtime: OnceLock<Option<Runtime>>,
}

/// A chunk with its permit, which is released when the chunk is read; `None` is the end.
type QueueItem = Option<(Result<Bytes, Problem>, OwnedSemaphorePermit)>;

impl Workers {
    /// Runs a future on the workers, and aborts it if this is dropped; `None` if it panicked or the process is
    /// stopping.
    pub async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        AbortOnDropHandle::new(self.threads.handle().spawn(work)).await.ok()
    }

    /// Produces a body on the workers. It starts when the returned stream is first polled, and is aborted when that is
    /// dropped.
    pub fn stream(
        &self,
        body: BoxStream<'static, Result<Bytes, Problem>>,
    ) -> BoxStream<'static, Result<Bytes, Problem>> {
        let workers = self.clone();
        let begun = async move {
            let (sender, received) = mpsc::unbounded_channel();
            let task = AbortOnDropHandle::new(workers.threads.handle().spawn(send_all(body, sender)));
            receive(received, (task, workers))
        };
        stream::once(begun).flatten().boxed()
    }
}

/// Sends chunks as long as there are permits, and an end marker.
async fn send_all(mut body: BoxStream<'static, Result<Bytes, Problem>>, sender: mpsc::UnboundedSender<QueueItem>) {
    let room = Arc::new(Semaphore::new(AHEAD_BYTES));
    while let Some(chunk) = body.next().await {
        let bytes = chunk.as_ref().map_or(1, |chunk| chunk.len().clamp(1, AHEAD_BYTES));
        let taken = Arc::clone(&room).acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX)).await;
        let Ok(taken) = taken else { return };
        if sender.send(Some((chunk, taken))).is_err() {
            return;
        }
    }
    _ = sender.send(None);
}

/// Receives chunks. If the sender is gone without an end marker, it has panicked, and the stream ends with an error.
fn receive<H: Send + 'static>(
    received: mpsc::UnboundedReceiver<QueueItem>,
    held: H,
) -> BoxStream<'static, Result<Bytes, Problem>> {
    let chunks = stream::unfold(Some((received, held)), |receiving| async move {
        let (mut received, held) = receiving?;
        match received.recv().await {
            Some(Some((Ok(chunk), _))) => Some((Ok(chunk), Some((received, held)))),
            Some(Some((Err(problem), _))) => Some((Err(problem), None)),
            Some(None) => None,
            None => Some((Err(Problem::closed()), None)),
        }
    });
    chunks.boxed()
}

impl Threads {
    fn handle(&self) -> Handle {
        let runtime = self.runtime.get_or_init(|| {
            let threads = available_parallelism().map_or(1, |processors| processors.get().div_ceil(2));
            let started =
                Builder::new_multi_thread().worker_threads(threads).thread_name("worker").enable_all().build();
            let log = |error: &std::io::Error| {
                tracing::error!(%error, "the worker threads cannot be started: the main threads are used instead");
            };
            started.inspect_err(log).ok()
        });
        runtime.as_ref().map_or_else(Handle::current, |runtime| runtime.handle().clone())
    }
}

impl Drop for Threads {
    /// The last clone may be dropped by a task, which must not block until the threads stop.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take().flatten() {
            runtime.shutdown_background();
        }
    }
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let begun = self.threads.runtime.get().is_some();
        f.debug_struct("Workers").field("begun", &begun).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    fn chunks(count: usize, bytes: usize, made: &Arc<AtomicUsize>) -> BoxStream<'static, Result<Bytes, Problem>> {
        let made = Arc::clone(made);
        let chunks = stream::iter(0..count).map(move |_| {
            made.fetch_add(1, Ordering::SeqCst);
            Ok(Bytes::from(vec![7; bytes]))
        });
        chunks.boxed()
    }

    async fn until(condition: impl Fn() -> bool) {
        let waited = tokio::time::timeout(Duration::from_secs(60), async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        waited.await.expect("in time");
    }

    #[tokio::test]
    async fn bodies_are_produced_on_workers_and_little_ahead() {
        let (workers, made) = (Workers::default(), Arc::<AtomicUsize>::default());
        let mut body = workers.stream(chunks(100, AHEAD_BYTES / 4, &made));
        assert_eq!(made.load(Ordering::SeqCst), 0, "nothing before it is asked for");
        body.next().await.expect("a chunk").expect("is good");
        // One chunk was read, four have permits, and one waits for a permit.
        until(|| made.load(Ordering::SeqCst) == 6).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(made.load(Ordering::SeqCst), 6);
        assert_eq!(body.count().await, 99);
        let here = std::thread::current().id();
        assert_ne!(workers.run(async { std::thread::current().id() }).await, Some(here));
    }

    #[tokio::test]
    async fn chunks_larger_than_the_buffer_pass_and_errors_are_last() {
        let workers = Workers::default();
        let items = vec![Ok(Bytes::from(vec![1; 2 * AHEAD_BYTES])), Err(Problem::TooSlow), Ok(Bytes::new())];
        let got: Vec<_> = workers.stream(stream::iter(items).boxed()).collect().await;
        assert_eq!(got.len(), 2);
        assert_eq!(got[1], Err(Problem::TooSlow));
    }

    #[tokio::test]
    async fn a_panic_is_an_error_and_not_an_end() {
        let workers = Workers::default();
        let body = stream::iter(0..2).map(|n| if n == 0 { Ok(Bytes::from_static(b"x")) } else { panic!("a test's") });
        let got: Vec<_> = workers.stream(body.boxed()).collect().await;
        assert_eq!(got, [Ok(Bytes::from_static(b"x")), Err(Problem::closed())]);
        assert_eq!(workers.run(async { panic!("a test's") }).await, None::<()>);
    }

    #[tokio::test]
    async fn a_body_that_is_dropped_ends_its_task() {
        struct Ends(Arc<AtomicUsize>);
        impl Drop for Ends {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let (workers, ended) = (Workers::default(), Arc::<AtomicUsize>::default());
        let ends = Ends(Arc::clone(&ended));
        let endless = stream::repeat_with(move || {
            let _held = &ends;
            Ok(Bytes::from_static(b"x"))
        });
        let mut body = workers.stream(endless.boxed());
        body.next().await.expect("a chunk").expect("is good");
        drop(body);
        until(|| ended.load(Ordering::SeqCst) == 1).await;
        drop(workers);
    }
}
