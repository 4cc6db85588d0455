//! [`NetworkRuntime`]: the threads that the network runs on, at a lower scheduling priority than those of HTTP.
//!
//! Goals: a response from memory or disk does not wait for network work, however much of it misses and peers cause. A
//! flood of misses costs a DHT search each, and hashing, encryption and the swarm take whole processors.
//!
//! How: the swarm task, the connections' tasks and the requests to routers and gateways run on a Tokio runtime of their
//! own, so that they never occupy a thread of HTTP. Its threads are *nicer* by [`NICE`], so that the kernel gives the
//! processors to HTTP first. A priority matters only if processors are short: on an idle machine, nothing is slower,
//! and on a busy one the network keeps a share of about a tenth.
//!
//! The local tiers are an exception ([`SpawnedSource`]): the threads that read the disk serve all readers together, so
//! they must not have the priority of the reader that happens to start them.
//!
//! Non-goals: bounds of the network's work, which its parts have themselves.

use content::stored::Stored;
use content::{Block, BlockSource, Cid, ReadAhead, SourceError};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::task::AbortOnDropHandle;

/// The name of the threads.
pub const THREAD_NAME: &str = "network";

/// What is added to the nice value of the threads: a ninth of the weight that a thread has by default.
pub const NICE: i32 = 10;

/// How often the end looks whether tasks are left.
const END_CHECK: Duration = Duration::from_millis(5);

/// The largest nice value.
const NICE_MAX: i32 = 19;

/// A runtime whose threads have the network's priority. When it is dropped, its tasks are aborted; dropping it does not
/// block, so one of its own tasks may do that.
#[derive(Debug)]
pub struct NetworkRuntime {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    handle: Handle,
}

impl NetworkRuntime {
    /// Starts the threads: as many as there are processors, and others for blocking work when they are needed.
    ///
    /// # Errors
    /// When the system cannot start threads.
    pub fn start() -> io::Result<Self> {
        let priority = LowPriority::below_caller();
        let runtime = Builder::new_multi_thread()
            .enable_all()
            .thread_name(THREAD_NAME)
            .on_thread_start(move || priority.take())
            .build()?;
        let handle = runtime.handle().clone();
        Ok(Self { runtime: Some(runtime), handle })
    }

    /// The handle, to spawn tasks.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Waits until no task is left but the caller's, which is one of them, and at most `max`.
    pub async fn others_ended(&self, max: Duration) {
        let metrics = self.handle.metrics();
        let ended = async {
            while metrics.num_alive_tasks() > 1 {
                tokio::time::sleep(END_CHECK).await;
            }
        };
        // Those that are left are aborted.
        let _ = tokio::time::timeout(max, ended).await;
    }
}

impl Drop for NetworkRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The priority of the network's threads. On Linux, the nice value belongs to a thread, and lowering the priority needs no
/// privilege; elsewhere it belongs to the process, and stays as it is.
struct LowPriority {
    /// Absolute, because a thread inherits the value of the thread that starts it.
    nice: i32,
    has_warned: AtomicBool,
}

impl LowPriority {
    #[cfg(target_os = "linux")]
    fn below_caller() -> Self {
        // Cannot fail for the calling thread.
        let nice = rustix::process::getpriority_process(None).unwrap_or_default();
        Self { nice: nice.saturating_add(NICE).min(NICE_MAX), has_warned: AtomicBool::new(false) }
    }

    #[cfg(not(target_os = "linux"))]
    fn below_caller() -> Self {
        Self { nice: 0, has_warned: AtomicBool::new(false) }
    }

    /// Gives the calling thread this priority.
    fn take(&self) {
        #[cfg(target_os = "linux")]
        if let Err(error) = rustix::process::setpriority_process(None, self.nice)
            && !self.has_warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(%error, "the network's threads have no lower priority: misses may delay cache hits");
        }
    }
}

/// A block source that is read by tasks on another runtime than the caller's.
///
/// Entering that runtime is not enough: a thread that it starts for blocking work would inherit the priority of the
/// thread that starts it.
pub struct SpawnedSource {
    source: Arc<dyn BlockSource>,
    runtime: Handle,
}

impl SpawnedSource {
    /// Reads `source` on `runtime`.
    pub fn new(source: Arc<dyn BlockSource>, runtime: Handle) -> Self {
        Self { source, runtime }
    }

    /// Runs a read, and aborts it if the returned future is dropped.
    fn run<T: Send + 'static>(
        &self,
        read: impl Future<Output = Result<T, SourceError>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, SourceError>> {
        let task = AbortOnDropHandle::new(self.runtime.spawn(read));
        async move { task.await.unwrap_or(Err(SourceError::Closed)) }.boxed()
    }
}

impl BlockSource for SpawnedSource {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        self.source.peek(cid)
    }

    fn inline(&self, cid: &Cid) -> Option<Block> {
        self.source.inline(cid)
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (source, cid) = (Arc::clone(&self.source), *cid);
        // A source may do some of its work, and take locks, before it returns the future.
        self.run(async move { source.get(&cid).await })
    }

    fn get_ahead(&self, cid: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (source, cid, ahead) = (Arc::clone(&self.source), *cid, ahead.clone());
        self.run(async move { source.get_ahead(&cid, &ahead).await })
    }

    fn get_stored(&self, cid: &Cid) -> BoxFuture<'static, Result<Option<Stored>, SourceError>> {
        let (source, cid) = (Arc::clone(&self.source), *cid);
        self.run(async move { source.get_stored(&cid).await })
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        let (source, cid) = (Arc::clone(&self.source), *cid);
        self.run(async move { source.has(&cid).await })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use content::{MemoryBlocks, codec, hashes};
    use std::sync::Mutex;
    use std::thread;

    fn nice() -> i32 {
        rustix::process::getpriority_process(None).expect("is known")
    }

    /// The name and the nice value of the thread that runs this.
    fn thread_state() -> (Option<String>, i32) {
        (thread::current().name().map(str::to_owned), nice())
    }

    #[tokio::test]
    async fn the_networks_threads_have_a_lower_priority_and_others_keep_theirs() {
        let before = nice();
        let network = NetworkRuntime::start().expect("starts");
        let expected = (Some(THREAD_NAME.to_owned()), (before + NICE).min(NICE_MAX));
        let task = network.handle().spawn(async {
            let blocking = tokio::task::spawn_blocking(thread_state).await.expect("runs");
            (thread_state(), blocking)
        });
        assert_eq!(task.await.expect("runs"), (expected.clone(), expected));
        assert_eq!(nice(), before);
        let other = tokio::task::spawn_blocking(nice).await.expect("runs");
        assert_eq!(other, before);
    }

    #[tokio::test]
    async fn a_task_may_end_the_runtime_that_it_runs_on() {
        let network = NetworkRuntime::start().expect("starts");
        let handle = network.handle().clone();
        let endless = handle.spawn(std::future::pending::<()>());
        handle.spawn(async move { drop(network) }).await.expect("does not panic");
        assert!(endless.await.expect_err("is aborted").is_cancelled());
    }

    #[tokio::test]
    async fn the_end_waits_for_other_tasks_but_not_for_ever() {
        let network = NetworkRuntime::start().expect("starts");
        let handle = network.handle().clone();
        let (release, released) = tokio::sync::oneshot::channel::<()>();
        let other = handle.spawn(released);
        let waiting = handle.spawn(async move {
            network.others_ended(Duration::from_secs(3600)).await;
            network
        });
        assert!(!waiting.is_finished());
        release.send(()).expect("it waits");
        let network = waiting.await.expect("runs");
        assert!(other.is_finished());
        handle.spawn(std::future::pending::<()>());
        let waiting = handle.spawn(async move { network.others_ended(Duration::from_millis(1)).await });
        waiting.await.expect("ends");
    }

    /// Blocks in memory, which records the nice values of the threads that read it.
    struct Recorded {
        blocks: MemoryBlocks,
        values: Arc<Mutex<Vec<i32>>>,
    }

    impl BlockSource for Recorded {
        fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
            let (values, found) = (Arc::clone(&self.values), self.blocks.get(cid));
            values.lock().expect("is free").push(nice());
            async move {
                let value = tokio::task::spawn_blocking(nice).await.expect("runs");
                values.lock().expect("is free").push(value);
                found.await
            }
            .boxed()
        }

        fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
            self.values.lock().expect("is free").push(nice());
            self.blocks.has(cid)
        }
    }

    #[tokio::test]
    async fn the_local_tiers_read_at_the_priority_of_http_even_for_peers() {
        let (network, before) = (NetworkRuntime::start().expect("starts"), nice());
        let (blocks, values) = (MemoryBlocks::new(), Arc::<Mutex<Vec<i32>>>::default());
        let block = Block::of(codec::RAW, hashes::SHA2_256, 32, b"x".as_slice().into()).expect("a block");
        blocks.insert(&block);
        let recorded = Recorded { blocks, values: Arc::clone(&values) };
        let local = SpawnedSource::new(Arc::new(recorded), Handle::current());
        let cid = *block.cid();
        let read = network.handle().spawn(async move { (local.get(&cid).await, local.has(&cid).await) });
        let (got, has) = read.await.expect("runs");
        assert_eq!((got.expect("is stored"), has.expect("is known")), (block, true));
        assert_eq!(*values.lock().expect("is free"), [before; 3]);
    }

    #[tokio::test]
    async fn http_goes_on_while_every_thread_of_the_network_is_occupied() {
        let network = NetworkRuntime::start().expect("starts");
        let (release, released) = tokio::sync::watch::channel(false);
        let threads = thread::available_parallelism().expect("is known").get();
        let occupied = Arc::new(tokio::sync::Semaphore::new(0));
        for _ in 0..threads {
            let (occupied, released) = (Arc::clone(&occupied), released.clone());
            network.handle().spawn(async move {
                occupied.add_permits(1);
                while !*released.borrow() {
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let all = occupied.acquire_many(u32::try_from(threads).expect("few")).await;
        drop(all);
        let waiting = network.handle().spawn(async {});
        // Tasks of this runtime run, and those of the network wait.
        for _ in 0..100 {
            tokio::spawn(async {}).await.expect("runs");
        }
        assert!(!waiting.is_finished());
        release.send_replace(true);
        waiting.await.expect("runs");
    }
}
