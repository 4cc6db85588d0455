//! [`Reads`]: look-ups that wait for the disk, batched on a few threads.
//!
//! Goals: a caller that prefetches costs one thread hand-over, one index look-up for all of its blocks, and one read
//! for adjacent values; a bounded number of threads; no reads for callers that are gone.
//!
//! How: look-ups are queued. A thread takes several at a time, finds their places with one index query, reads the first
//! *run* of adjacent values, and queues the other runs for further threads, because disks are faster with several
//! concurrent requests. A new thread is started only if those already starting will not take everything that is queued,
//! so that batches grow with the load.
//!
//! Non-goals: reads from memory ([`Store::stored_now`]); order; fairness beyond first come, first served.

use super::StoreError;
use super::record::record_bytes;
use super::schema::IndexRecord;
use super::store::{Store, unreadable};
use bytes::Bytes;
use content::stored::Stored;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot::{self, Receiver, Sender};

/// The maximum number of look-ups that a thread takes at a time.
const LOOKUPS_MAX: usize = 16;

/// The maximum size of one read, in bytes, unless a single value is larger.
const RUN_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A look-up's result.
type ReadResult<T> = Result<Option<T>, StoreError>;

/// Queued look-ups, and the runtime's blocking threads that do them.
#[derive(Debug)]
pub(crate) struct Reads {
    store: Arc<Store>,
    threads_max: usize,
    queue: Mutex<ReadQueue>,
}

/// Queued look-ups and the state of threads.
#[derive(Debug, Default)]
struct ReadQueue {
    lookups: VecDeque<LookUp>,
    runs: VecDeque<Run>,
    /// Threads that run or are starting.
    threads: usize,
    /// Threads that are starting.
    starting: usize,
}

/// A queued look-up of a block.
#[derive(Debug)]
struct LookUp {
    block: Vec<u8>,
    reply: Reply,
}

/// The reply channel, by the requested form.
#[derive(Debug)]
enum Reply {
    Block(Sender<ReadResult<Bytes>>),
    Stored(Sender<ReadResult<Stored>>),
}

impl Reply {
    fn is_awaited(&self) -> bool {
        match self {
            Self::Block(reply) => !reply.is_closed(),
            Self::Stored(reply) => !reply.is_closed(),
        }
    }

    fn send(self, found: ReadResult<Stored>) {
        match self {
            Self::Block(reply) => {
                let block = |stored: Stored| stored.block().map_err(unreadable);
                _ = reply.send(found.and_then(|stored| stored.map(block).transpose()));
            }
            Self::Stored(reply) => _ = reply.send(found),
        }
    }
}

/// Look-ups whose values are adjacent on the disk.
type Run = Vec<(IndexRecord, LookUp)>;

/// A thread's work item.
enum Job {
    Find(Vec<LookUp>),
    Read(Run),
}

impl ReadQueue {
    /// Whether another thread is needed for what is queued. If so, it counts as starting from then on.
    fn reserve_thread(&mut self, threads_max: usize) -> bool {
        let jobs = self.runs.len() + self.lookups.len().div_ceil(LOOKUPS_MAX);
        let is_needed = jobs > self.starting && self.threads < threads_max;
        self.threads += usize::from(is_needed);
        self.starting += usize::from(is_needed);
        is_needed
    }

    fn take(&mut self) -> Option<Job> {
        if let Some(run) = self.runs.pop_front() {
            return Some(Job::Read(run));
        }
        let some = self.lookups.len().min(LOOKUPS_MAX);
        (some > 0).then(|| Job::Find(self.lookups.drain(..some).collect()))
    }
}

impl Reads {
    pub(crate) fn new(store: Arc<Store>, threads_max: usize) -> Arc<Self> {
        Arc::new(Self { store, threads_max: threads_max.max(1), queue: Mutex::default() })
    }

    /// The bytes of a block.
    pub(crate) async fn block(self: &Arc<Self>, block: Vec<u8>) -> ReadResult<Bytes> {
        self.ask(block, Reply::Block).await.unwrap_or(Err(StoreError::Closed))
    }

    /// A block in its stored form.
    pub(crate) async fn stored(self: &Arc<Self>, block: Vec<u8>) -> ReadResult<Stored> {
        self.ask(block, Reply::Stored).await.unwrap_or(Err(StoreError::Closed))
    }

    fn ask<T>(self: &Arc<Self>, block: Vec<u8>, reply: fn(Sender<T>) -> Reply) -> Receiver<T> {
        let (sender, receiver) = oneshot::channel();
        let mut queue = self.queue();
        queue.lookups.push_back(LookUp { block, reply: reply(sender) });
        self.start_thread_if_needed(queue);
        receiver
    }

    fn queue(&self) -> MutexGuard<'_, ReadQueue> {
        // Every change is one call, so that a panic leaves a consistent queue.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_thread_if_needed(self: &Arc<Self>, mut queue: MutexGuard<'_, ReadQueue>) {
        let is_needed = queue.reserve_thread(self.threads_max);
        drop(queue);
        if is_needed {
            let reads = Arc::clone(self);
            tokio::task::spawn_blocking(move || reads.work());
        }
    }

    fn work(self: Arc<Self>) {
        let worker = Worker::begin(&self);
        loop {
            let mut queue = self.queue();
            let Some(job) = queue.take() else { return worker.end(queue) };
            self.start_thread_if_needed(queue);
            match job {
                Job::Find(lookups) => self.find(lookups),
                Job::Read(run) => self.read(run),
            }
        }
    }

    /// Finds the places of blocks, reads the first run and queues the others.
    fn find(self: &Arc<Self>, mut lookups: Vec<LookUp>) {
        lookups.retain(|lookup| lookup.reply.is_awaited());
        lookups.sort_unstable_by(|a, b| a.block.cmp(&b.block));
        let records = self.store.multi_index(lookups.iter().map(|lookup| &*lookup.block));
        let mut found = Run::with_capacity(lookups.len());
        for (lookup, record) in lookups.into_iter().zip(records) {
            match record {
                Ok(Some(record)) => found.push((record, lookup)),
                Ok(None) => lookup.reply.send(Ok(None)),
                Err(error) => lookup.reply.send(Err(error)),
            }
        }
        let mut runs = runs(found);
        let Some(first) = runs.pop_front() else { return };
        if !runs.is_empty() {
            let mut queue = self.queue();
            queue.runs.append(&mut runs);
            self.start_thread_if_needed(queue);
        }
        self.read(first);
    }

    fn read(&self, mut run: Run) {
        run.retain(|(_, lookup)| lookup.reply.is_awaited());
        let lengths: Vec<usize> = run.iter().map(|(record, lookup)| length(*record, lookup)).collect();
        // The run may have gaps if look-ups were cancelled.
        let contiguous = run.windows(2).zip(&lengths).all(|(pair, length)| follows(&pair[0].0, *length, &pair[1].0));
        let place = run.first().filter(|_| contiguous).map(|(record, _)| record.place);
        let read = place.map(|place| self.store.files.read_many(place.segment, place.offset, &lengths));
        let mut values = read.and_then(Result::ok).unwrap_or_default().into_iter();
        for (record, lookup) in run {
            let value = values.next().and_then(|found| self.store.decode_record(record.place, found, &lookup.block));
            // If the value was moved or deleted concurrently, is corrupt or a slice, it is looked up once more, alone.
            let found = value.map_or_else(|| self.store.stored(&lookup.block), |stored| Ok(Some(stored)));
            lookup.reply.send(found);
        }
    }
}

/// A running thread. If it panics, another one replaces it.
struct Worker {
    reads: Arc<Reads>,
    ended: bool,
}

impl Worker {
    fn begin(reads: &Arc<Reads>) -> Self {
        reads.queue().starting -= 1;
        Self { reads: Arc::clone(reads), ended: false }
    }

    /// Ends under the lock under which the queue was empty, so that the next look-up starts a thread.
    fn end(mut self, mut queue: MutexGuard<'_, ReadQueue>) {
        queue.threads -= 1;
        self.ended = true;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.ended {
            let mut queue = self.reads.queue();
            queue.threads -= 1;
            self.reads.start_thread_if_needed(queue);
        }
    }
}

fn length(record: IndexRecord, lookup: &LookUp) -> usize {
    record_bytes(&lookup.block, record.value_bytes())
}

/// Whether a value directly follows one of that length.
fn follows(first: &IndexRecord, length: usize, next: &IndexRecord) -> bool {
    let end = u64::from(first.place.offset) + length as u64;
    (first.place.segment, end) == (next.place.segment, u64::from(next.place.offset))
}

/// Sorts look-ups by place and groups adjacent values into runs.
fn runs(mut found: Run) -> VecDeque<Run> {
    found.sort_by_key(|(record, _)| (record.place.segment, record.place.offset));
    let (mut runs, mut bytes) = (VecDeque::<Run>::new(), 0);
    for (record, lookup) in found {
        let this = length(record, &lookup);
        let neighbour =
            |run: &Run| run.last().is_some_and(|(last, before)| follows(last, length(*last, before), &record));
        match runs.back_mut().filter(|run| bytes + this <= RUN_BYTES_MAX && neighbour(run)) {
            Some(run) => {
                run.push((record, lookup));
                bytes += this;
            }
            None => {
                runs.push_back(vec![(record, lookup)]);
                bytes = this;
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::super::schema::{Kind, Place};
    use super::*;
    use content::stored::Shape;

    fn lookup(block: u8) -> LookUp {
        LookUp { block: vec![block], reply: Reply::Block(oneshot::channel().0) }
    }

    fn record(segment: u32, offset: u32, block_bytes: usize) -> IndexRecord {
        IndexRecord {
            shape: Shape::Raw { block_bytes },
            kind: Kind::Cached,
            place: Place { segment, offset },
            base: None,
        }
    }

    #[test]
    fn adjacent_values_are_read_together_up_to_the_maximum_of_a_run() {
        let length = |block_bytes| length(record(0, 0, block_bytes), &lookup(0)) as u32;
        let (small, large) = (length(100), length(RUN_BYTES_MAX / 2));
        let found = vec![
            (record(1, small, 100), lookup(2)),
            (record(0, 2 * small, 100), lookup(3)),
            (record(1, 0, 100), lookup(1)),
            (record(0, 0, 100), lookup(4)),
            (record(1, 2 * small, RUN_BYTES_MAX / 2), lookup(5)),
            (record(1, 2 * small + large, RUN_BYTES_MAX / 2), lookup(6)),
        ];
        let blocks: Vec<Vec<u8>> =
            runs(found).iter().map(|run| run.iter().map(|(_, lookup)| lookup.block[0]).collect()).collect();
        assert_eq!(blocks, [vec![4], vec![3], vec![1, 2, 5], vec![6]]);
    }

    #[test]
    fn a_thread_is_started_only_for_what_starting_threads_will_not_take() {
        let mut queue = ReadQueue::default();
        let add = |queue: &mut ReadQueue, lookups| {
            queue.lookups.extend((0..lookups).map(|_| lookup(0)));
            queue.reserve_thread(3)
        };
        assert!(!queue.reserve_thread(3), "nothing is queued");
        assert!(add(&mut queue, 1));
        assert!(!add(&mut queue, LOOKUPS_MAX - 1), "the starting thread takes these as well");
        assert!(add(&mut queue, 1));
        queue.starting -= 1;
        assert!(matches!(queue.take(), Some(Job::Find(lookups)) if lookups.len() == LOOKUPS_MAX));
        assert!(!queue.reserve_thread(3), "the other starting thread takes the last");
        assert!(add(&mut queue, LOOKUPS_MAX));
        assert!(!add(&mut queue, 10 * LOOKUPS_MAX), "three threads are the maximum");
    }
}
