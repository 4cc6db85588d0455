//! [`Reads`]: look-ups that have to wait for the disk, by a few threads for all of them.
//!
//! Goals: a reader that looks ahead costs one hand-over to a thread, one look-up in the index for all that it asks for, and one
//! read for what lies side by side; never more threads than so many; who has left costs no read.
//!
//! How: a look-up is a *want* that stands in a line. A thread takes some at a time, finds their places at once, reads the
//! first *run* of neighbours, and leaves the other runs to further threads, because a disk is faster when several ask. As
//! long as a thread is on its way that will take what stands in the line, nobody calls another: the busier the machine,
//! the more is done at a time.
//!
//! Non-goals: what needs no waiting ([`Store::stored_now`]); order; fairness beyond first come, first served.

use super::StoreError;
use super::record::record_bytes;
use super::schema::IndexRecord;
use super::store::{Store, unreadable};
use crate::stored::Stored;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot::{self, Receiver, Sender};

/// The most wants that a thread takes at a time.
const WANTS_MAX: usize = 16;

/// The most that one read brings, in bytes, unless a single value has more.
const RUN_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A look-up's result.
type Found<T> = Result<Option<T>, StoreError>;

/// Look-ups, and the threads that do them. They are those of the runtime, borrowed while there is something to do.
#[derive(Debug)]
pub(crate) struct Reads {
    store: Arc<Store>,
    threads_max: usize,
    line: Mutex<Line>,
}

/// What waits, and who works.
#[derive(Debug, Default)]
struct Line {
    wants: VecDeque<Want>,
    runs: VecDeque<Run>,
    /// Threads that work or have been called.
    threads: usize,
    /// Those that have been called and are not there yet.
    called: usize,
}

/// A block that somebody waits for.
#[derive(Debug)]
struct Want {
    block: Vec<u8>,
    reply: Reply,
}

/// In which form.
#[derive(Debug)]
enum Reply {
    Block(Sender<Found<Bytes>>),
    Stored(Sender<Found<Stored>>),
}

impl Reply {
    fn is_awaited(&self) -> bool {
        match self {
            Self::Block(reply) => !reply.is_closed(),
            Self::Stored(reply) => !reply.is_closed(),
        }
    }

    fn send(self, found: Found<Stored>) {
        match self {
            Self::Block(reply) => {
                let block = |stored: Stored| stored.block().map_err(unreadable);
                _ = reply.send(found.and_then(|stored| stored.map(block).transpose()));
            }
            Self::Stored(reply) => _ = reply.send(found),
        }
    }
}

/// Blocks whose values lie one behind the other.
type Run = Vec<(IndexRecord, Want)>;

/// What a thread takes out of the line.
enum Job {
    Find(Vec<Want>),
    Read(Run),
}

impl Line {
    /// Whether a thread has to be called for what stands here. It counts as called from then on.
    fn calls(&mut self, threads_max: usize) -> bool {
        let jobs = self.runs.len() + self.wants.len().div_ceil(WANTS_MAX);
        let calls = jobs > self.called && self.threads < threads_max;
        self.threads += usize::from(calls);
        self.called += usize::from(calls);
        calls
    }

    fn take(&mut self) -> Option<Job> {
        if let Some(run) = self.runs.pop_front() {
            return Some(Job::Read(run));
        }
        let some = self.wants.len().min(WANTS_MAX);
        (some > 0).then(|| Job::Find(self.wants.drain(..some).collect()))
    }
}

impl Reads {
    pub(crate) fn new(store: Arc<Store>, threads_max: usize) -> Arc<Self> {
        Arc::new(Self { store, threads_max: threads_max.max(1), line: Mutex::default() })
    }

    /// The bytes of a block.
    pub(crate) async fn block(self: &Arc<Self>, block: Vec<u8>) -> Found<Bytes> {
        self.ask(block, Reply::Block).await.unwrap_or(Err(StoreError::Closed))
    }

    /// A block as it is stored.
    pub(crate) async fn stored(self: &Arc<Self>, block: Vec<u8>) -> Found<Stored> {
        self.ask(block, Reply::Stored).await.unwrap_or(Err(StoreError::Closed))
    }

    fn ask<T>(self: &Arc<Self>, block: Vec<u8>, reply: fn(Sender<T>) -> Reply) -> Receiver<T> {
        let (sender, receiver) = oneshot::channel();
        let mut line = self.line();
        line.wants.push_back(Want { block, reply: reply(sender) });
        self.call(line);
        receiver
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        // Every change is one call: a panic leaves a line that is whole.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(self: &Arc<Self>, mut line: MutexGuard<'_, Line>) {
        let calls = line.calls(self.threads_max);
        drop(line);
        if calls {
            let reads = Arc::clone(self);
            tokio::task::spawn_blocking(move || reads.work());
        }
    }

    fn work(self: Arc<Self>) {
        let working = Working::begin(&self);
        loop {
            let mut line = self.line();
            let Some(job) = line.take() else { return working.end(line) };
            self.call(line);
            match job {
                Job::Find(wants) => self.find(wants),
                Job::Read(run) => self.read(run),
            }
        }
    }

    /// Finds where wanted blocks are, reads the first run of them and leaves the others to whoever comes.
    fn find(self: &Arc<Self>, mut wants: Vec<Want>) {
        wants.retain(|want| want.reply.is_awaited());
        wants.sort_unstable_by(|a, b| a.block.cmp(&b.block));
        let records = self.store.indexes(wants.iter().map(|want| &*want.block));
        let mut found = Run::with_capacity(wants.len());
        for (want, record) in wants.into_iter().zip(records) {
            match record {
                Ok(Some(record)) => found.push((record, want)),
                Ok(None) => want.reply.send(Ok(None)),
                Err(error) => want.reply.send(Err(error)),
            }
        }
        let mut runs = runs(found);
        let Some(first) = runs.pop_front() else { return };
        if !runs.is_empty() {
            let mut line = self.line();
            line.runs.append(&mut runs);
            self.call(line);
        }
        self.read(first);
    }

    fn read(&self, mut run: Run) {
        run.retain(|(_, want)| want.reply.is_awaited());
        let lengths: Vec<usize> = run.iter().map(|(record, want)| length(*record, want)).collect();
        // Of a run that somebody has left, what remains may have gaps.
        let whole = run.windows(2).zip(&lengths).all(|(pair, length)| follows(&pair[0].0, *length, &pair[1].0));
        let place = run.first().filter(|_| whole).map(|(record, _)| record.place);
        let read = place.map(|place| self.store.files.read_many(place.segment, place.offset, &lengths));
        let mut values = read.and_then(Result::ok).unwrap_or_default().into_iter();
        for (record, want) in run {
            let value = values.next().and_then(|found| self.store.taken(record.place, found, &want.block));
            // What moved or went meanwhile, or is damaged, is looked for once more, by itself.
            let found = value.map_or_else(|| self.store.stored(&want.block), |stored| Ok(Some(stored)));
            want.reply.send(found);
        }
    }
}

/// A thread that works. If it panics, another takes its place.
struct Working {
    reads: Arc<Reads>,
    ended: bool,
}

impl Working {
    fn begin(reads: &Arc<Reads>) -> Self {
        reads.line().called -= 1;
        Self { reads: Arc::clone(reads), ended: false }
    }

    /// Under the same lock under which nothing was left to do: whoever asks next calls a thread.
    fn end(mut self, mut line: MutexGuard<'_, Line>) {
        line.threads -= 1;
        self.ended = true;
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        if !self.ended {
            let mut line = self.reads.line();
            line.threads -= 1;
            self.reads.call(line);
        }
    }
}

fn length(record: IndexRecord, want: &Want) -> usize {
    record_bytes(&want.block, record.shape.value_bytes())
}

/// Whether a value comes right behind one of that length.
fn follows(first: &IndexRecord, length: usize, next: &IndexRecord) -> bool {
    let end = u64::from(first.place.offset) + length as u64;
    (first.place.segment, end) == (next.place.segment, u64::from(next.place.offset))
}

/// Puts blocks in the order of the disk and those that are neighbours together.
fn runs(mut found: Run) -> VecDeque<Run> {
    found.sort_by_key(|(record, _)| (record.place.segment, record.place.offset));
    let (mut runs, mut bytes) = (VecDeque::<Run>::new(), 0);
    for (record, want) in found {
        let this = length(record, &want);
        let neighbour =
            |run: &Run| run.last().is_some_and(|(last, before)| follows(last, length(*last, before), &record));
        match runs.back_mut().filter(|run| bytes + this <= RUN_BYTES_MAX && neighbour(run)) {
            Some(run) => {
                run.push((record, want));
                bytes += this;
            }
            None => {
                runs.push_back(vec![(record, want)]);
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
    use crate::stored::Shape;

    fn want(block: u8) -> Want {
        Want { block: vec![block], reply: Reply::Block(oneshot::channel().0) }
    }

    fn record(segment: u32, offset: u32, block_bytes: usize) -> IndexRecord {
        IndexRecord { shape: Shape::Raw { block_bytes }, kind: Kind::Cached, place: Place { segment, offset } }
    }

    #[test]
    fn neighbours_are_read_together_as_far_as_a_run_goes() {
        let length = |block_bytes| length(record(0, 0, block_bytes), &want(0)) as u32;
        let (small, large) = (length(100), length(RUN_BYTES_MAX / 2));
        let found = vec![
            (record(1, small, 100), want(2)),
            (record(0, 2 * small, 100), want(3)),
            (record(1, 0, 100), want(1)),
            (record(0, 0, 100), want(4)),
            (record(1, 2 * small, RUN_BYTES_MAX / 2), want(5)),
            (record(1, 2 * small + large, RUN_BYTES_MAX / 2), want(6)),
        ];
        let blocks: Vec<Vec<u8>> =
            runs(found).iter().map(|run| run.iter().map(|(_, want)| want.block[0]).collect()).collect();
        assert_eq!(blocks, [vec![4], vec![3], vec![1, 2, 5], vec![6]]);
    }

    #[test]
    fn a_thread_is_called_for_what_nobody_on_the_way_will_take() {
        let mut line = Line::default();
        let add = |line: &mut Line, wants| {
            line.wants.extend((0..wants).map(|_| want(0)));
            line.calls(3)
        };
        assert!(!line.calls(3), "nothing is wanted");
        assert!(add(&mut line, 1));
        assert!(!add(&mut line, WANTS_MAX - 1), "who is called takes these as well");
        assert!(add(&mut line, 1));
        line.called -= 1;
        assert!(matches!(line.take(), Some(Job::Find(wants)) if wants.len() == WANTS_MAX));
        assert!(!line.calls(3), "the other one takes the last");
        assert!(add(&mut line, WANTS_MAX));
        assert!(!add(&mut line, 10 * WANTS_MAX), "there are three");
    }
}
