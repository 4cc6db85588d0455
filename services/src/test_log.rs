//! A log of metadata for tests: several connections to one in memory, each with faults.

use cache::metadata_store::{Appended, Change, LogPosition, MetadataLog};
use cache::{MetadataStore, StoreError};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// What becomes of an append.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// It succeeds.
    None,
    /// It fails.
    Fails,
    /// It succeeds, and the answer is lost.
    AnswerIsLost,
}

/// A service's connection to a log. It has the faults that it is given, one for each append of changes.
#[derive(Debug)]
pub struct Connection {
    log: MetadataStore,
    faults: Mutex<VecDeque<Fault>>,
    /// Before so many appends of changes, another writer appends.
    pub interfering: AtomicUsize,
    /// How often all records were read.
    pub reads: AtomicUsize,
    /// There are no hints.
    pub is_silent: AtomicBool,
    /// The log cannot be reached.
    pub is_unreachable: AtomicBool,
}

impl Connection {
    pub fn new(log: &MetadataStore) -> Arc<Self> {
        Arc::new(Self {
            log: log.clone(),
            faults: Mutex::default(),
            interfering: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            is_silent: AtomicBool::new(false),
            is_unreachable: AtomicBool::new(false),
        })
    }

    pub fn fail(&self, fault: Fault) {
        self.faults.lock().expect("a list").push_back(fault);
    }

    pub fn repair(&self) {
        self.faults.lock().expect("a list").clear();
    }

    fn check_reachable(&self) -> Result<(), StoreError> {
        let error = StoreError::Unavailable { reason: "no route to the database".into() };
        if self.is_unreachable.load(Ordering::Relaxed) { Err(error) } else { Ok(()) }
    }

    /// Appends as another service that has records of its own.
    fn interfere(&self) {
        let less = |count: usize| count.checked_sub(1);
        if self.interfering.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            self.log.write_now(vec![Change::Put(b"other/1".to_vec(), b"1".to_vec())]).expect("writes");
        }
    }
}

impl MetadataLog for Connection {
    fn read(&self, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<LogPosition, StoreError> {
        self.check_reachable()?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.log.read(visit)
    }

    fn append(&self, after: LogPosition, changes: Vec<Change>) -> BoxFuture<'static, Result<Appended, StoreError>> {
        if let Err(error) = self.check_reachable() {
            return async { Err(error) }.boxed();
        }
        let mut fault = Fault::None;
        if !changes.is_empty() {
            self.interfere();
            fault = self.faults.lock().expect("a list").pop_front().unwrap_or(fault);
        }
        let append = self.log.append(after, changes);
        async move {
            let lost = Err(StoreError::Io("the connection was lost".into()));
            match fault {
                Fault::Fails => lost,
                Fault::AnswerIsLost => append.await.and(lost),
                Fault::None => append.await,
            }
        }
        .boxed()
    }

    fn watch(&self) -> Option<watch::Receiver<LogPosition>> {
        match self.is_silent.load(Ordering::Relaxed) {
            true => Some(watch::Sender::default().subscribe()),
            false => self.log.watch(),
        }
    }
}
