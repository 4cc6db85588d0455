//! [`Prefetch`]: reads a page, and fetches the paths that it finds, a few at a time.

use super::budget::PageBudget;
use super::fetch::NotFetched;
use super::html::{self, Found, Kind, Scan, Step};
use super::urls::Base;
use super::watch::PageWatch;
use super::{BYTES_MAX, IN_FLIGHT_MAX, Inner, PATHS_MAX, Page};
use crate::metrics::PrefetchOutcome;
use content::{ContentPath, SourceError, Work};
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use tokio::task::{JoinError, JoinSet};

/// The maximum length of a path below its root, in bytes.
const PATH_BYTES_MAX: usize = 2048;
/// The maximum number of URLs of a page that are resolved.
const URLS_MAX: usize = 1000;
/// The work of resolving one, in steps, besides that of its bytes and those of its base.
const STEPS_PER_URL: u64 = 32;
/// Bytes of a URL and its base that are resolved in one step of work.
const BYTES_PER_URL_STEP: usize = 4;
/// Bytes of a page that are read in one step of work.
const BYTES_PER_WORK_STEP: usize = 16;

/// The prefetch of one page.
pub(super) struct Prefetch {
    page: Arc<Page>,
    base: Base,
    /// The hashes of the paths that were found.
    known: HashSet<u64>,
    hasher: RandomState,
    /// Those that are not fetched yet, in the order in which browsers need them.
    waiting: BTreeMap<(Kind, usize), ContentPath>,
    /// A task for each path, so that all yield to the scheduler. Dropping the set aborts them.
    in_flight: JoinSet<Result<(), NotFetched>>,
    in_flight_max: usize,
    pub(super) budget: Arc<PageBudget>,
    /// The processor budget: that of one request.
    work: Work,
}

impl Prefetch {
    pub(super) fn new(page: &Arc<Page>) -> Self {
        let Inner { sources, limits, .. } = &*page.inner;
        Self {
            base: page.url.base(),
            known: HashSet::new(),
            hasher: RandomState::new(),
            waiting: BTreeMap::new(),
            in_flight: JoinSet::new(),
            in_flight_max: IN_FLIGHT_MAX.min(sources.fetches.spare_of_client()),
            budget: Arc::new(PageBudget::new(BYTES_MAX)),
            work: Work::new(limits.work_steps_max),
            page: Arc::clone(page),
        }
    }

    /// Reads the page and fetches its paths, to the end of both.
    pub(super) async fn run(&mut self, watch: &PageWatch) {
        let (mut bytes, mut scanned_bytes, mut is_read) = (Vec::new(), 0, false);
        let time_max = self.page.inner.limits.prefetch_time_max;
        loop {
            self.start_next();
            if is_read && self.in_flight.is_empty() {
                return;
            }
            tokio::select! {
                biased;
                Some(fetched) = self.in_flight.join_next() => self.count(fetched),
                ended = self.page.more(watch, &mut bytes), if !is_read => {
                    // The tokeniser cannot continue where the bytes end, so the page is scanned from its beginning, and
                    // as often as its length doubles.
                    if ended || bytes.len() >= 2 * scanned_bytes {
                        scanned_bytes = bytes.len();
                        if self.scan(&bytes).await.is_err() {
                            return;
                        }
                    }
                    if ended {
                        (bytes, is_read) = (Vec::new(), true);
                        watch.release();
                    }
                }
                () = watch.sent_for(time_max), if is_read => return,
            }
        }
    }

    /// Ends the paths that have not ended.
    pub(super) async fn end(&mut self) {
        while let Some(fetched) = self.in_flight.try_join_next() {
            self.count(fetched);
        }
        let unfinished = self.waiting.len() + self.in_flight.len();
        self.waiting.clear();
        self.in_flight.shutdown().await;
        self.page.inner.metrics.count(PrefetchOutcome::GaveUp, unfinished);
    }

    /// Counts a path that has ended. One that panicked has failed.
    fn count(&mut self, fetched: Result<Result<(), NotFetched>, JoinError>) {
        let metrics = &self.page.inner.metrics;
        match fetched.unwrap_or(Err(NotFetched::Failed)) {
            Ok(()) => metrics.count(PrefetchOutcome::Fetched, 1),
            Err(NotFetched::Failed) => metrics.count(PrefetchOutcome::Failed, 1),
            Err(NotFetched::GaveUp) => {
                metrics.count(PrefetchOutcome::GaveUp, 1 + self.waiting.len());
                self.waiting.clear();
                self.in_flight_max = 0;
            }
        }
    }

    /// Begins to fetch paths, as many as may be fetched at a time.
    fn start_next(&mut self) {
        while self.in_flight.len() < self.in_flight_max
            && let Some((_, path)) = self.waiting.pop_first()
        {
            let (page, budget, work) = (Arc::clone(&self.page), Arc::clone(&self.budget), self.work.clone());
            self.in_flight.spawn(async move { page.fetch(path, budget, work).await });
        }
    }

    /// Finds what the page loads.
    async fn scan(&mut self, page: &[u8]) -> Result<(), SourceError> {
        let bytes_per_step = html::BYTES_PER_STEP / BYTES_PER_WORK_STEP;
        self.base = self.page.url.base();
        let (mut has_base, mut urls) = (false, 0);
        for step in Scan::new(page) {
            self.work.charge(1);
            match step {
                Step::Pause => self.work.charge(bytes_per_step as u64),
                Step::Found(Found::Base(href)) if !has_base => {
                    (has_base, self.base) = (true, self.page.url.base_of(&href));
                }
                Step::Found(Found::Base(_)) => {}
                Step::Found(Found::Load(kind, url)) => {
                    urls += 1;
                    if urls > URLS_MAX || self.is_full() {
                        return Ok(());
                    }
                    let bytes = self.base.path_bytes() + url.len();
                    self.work.charge(STEPS_PER_URL + (bytes / BYTES_PER_URL_STEP) as u64);
                    self.add(kind, &url);
                }
            }
            self.work.turn().await?;
        }
        Ok(())
    }

    /// Whether no further paths count.
    fn is_full(&self) -> bool {
        self.known.len() >= PATHS_MAX || self.in_flight_max == 0
    }

    /// Adds a path, once.
    fn add(&mut self, kind: Kind, url: &str) {
        let order = self.known.len();
        let Some(path) = self.page.url.content(&self.base, url) else { return };
        let is_long = path.segments.iter().map(String::len).sum::<usize>() > PATH_BYTES_MAX;
        if !is_long && self.known.insert(self.hasher.hash_one((&path.segments, path.trailing_slash))) {
            self.waiting.insert((kind, order), path);
        }
    }
}
