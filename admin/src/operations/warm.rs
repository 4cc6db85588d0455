//! `POST /api/v1/warm`: prefetches a DAG, or its upper part, into the local tiers.
//!
//! Goals: bounded concurrency, and a fetch limiter apart from the public's; locally stored blocks are not fetched
//! again; JSON lines report progress; the operation ends when the client disconnects.
//!
//! Non-goals: keeping the blocks. They are cached and may be evicted; a pin keeps them.

use crate::http::answer::{Answer, ApiError};
use crate::http::error_responses::BadRequest;
use crate::http::extract::{Audited, Authenticated};
use crate::http::long_running::{self, PROGRESS_EVERY};
use crate::http::parameters::{bad_request, read_body};
use crate::operations::Operations;
use api::text::seconds;
use api::warm::{WarmFailure, WarmLine, WarmProgress, WarmReport, WarmRequest};
use axum::body::Body;
use axum::extract::State;
use bytes::Bytes;
use content::dag::DagError;
use content::frontier::{Frontier, Step};
use content::path::Root;
use content::{Block, BlockKey, BlockSource as _, Cid, ContentPath, ReadAhead, SourceError};
use futures::stream::{FuturesUnordered, StreamExt as _};
use gateway::resolve::source::{RootSource, Tier};
use gateway::resolve::{self, Target};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// The maximum number of concurrent fetches.
pub const FETCHES_MAX: usize = 32;
/// The number of failed blocks after which the operation stops.
const FAILURES_MAX: usize = 16;
/// The maximum number of buffered lines. A slow reader exerts backpressure.
const LINES_MAX: usize = 8;
/// The client address that the fetches count towards in the fetch limiter.
const WARM_CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Prefetches a DAG, or the upper part of it, into the local tiers. Ends when the client disconnects. The last line is
/// a report or an error.
#[utoipa::path(post, path = "/api/v1/warm", tag = "operations", security(("bearer" = ["operate"])),
    request_body(content = WarmRequest, content_type = "application/json"),
    responses((status = 200, description = "JSON lines", body = WarmLine, content_type = "application/x-ndjson"),
        BadRequest))]
pub async fn warm(
    State(operations): State<Operations>,
    Authenticated(bearer): Authenticated,
    Audited(audit_context): Audited,
    body: Bytes,
) -> Answer {
    let request: WarmRequest = read_body(&body)?;
    audit_context.note(&request);
    let path = operations.path_to_warm(&request)?;
    let permit = operations.begin(&bearer)?;
    let (lines, mut receiver) = mpsc::channel(LINES_MAX);
    let warming = AbortOnDropHandle::new(tokio::spawn(async move {
        let _permit = permit;
        operations.run_warm(path, request, lines).await;
    }));
    // A client that disconnects drops the stream, which aborts the task.
    let lines = futures::stream::poll_fn(move |cx| {
        let _work = &warming;
        receiver.poll_recv(cx).map(|line| line.map(Ok::<Bytes, Infallible>))
    });
    Ok(long_running::lines(Body::from_stream(lines)))
}

/// The result of a fetch: the block unless it need not be read, and whether it came from the network.
type Fetched = Result<(Option<Block>, bool), SourceError>;

/// The state of a running operation.
struct Warming {
    begun: Instant,
    progress: WarmProgress,
    failures: Vec<WarmFailure>,
    progress_sent: Option<Instant>,
    lines: mpsc::Sender<Bytes>,
}

impl Warming {
    /// An operation that begins now and sends its lines to `lines`.
    fn new(lines: mpsc::Sender<Bytes>) -> Self {
        let progress = WarmProgress::default();
        Self { begun: Instant::now(), progress, failures: Vec::new(), progress_sent: None, lines }
    }

    /// Sends a line; `false` if the client has disconnected.
    async fn send(&self, line: &WarmLine) -> bool {
        self.lines.send(long_running::line(line)).await.is_ok()
    }

    fn update_time(&mut self) {
        self.progress.seconds = seconds(self.begun.elapsed());
    }

    /// Sends a progress line if one is due; `false` if the client has disconnected.
    async fn send_progress(&mut self) -> bool {
        if self.progress_sent.is_some_and(|sent| sent.elapsed() < PROGRESS_EVERY) {
            return true;
        }
        self.progress_sent = Some(Instant::now());
        self.update_time();
        self.send(&WarmLine::Progress(self.progress.clone())).await
    }

    /// Counts a fetched block, whose data is given if it was read. A revisited block counts only if it had failed
    /// before.
    fn block_ready(&mut self, cid: &Cid, again: bool, block: Option<&Block>, is_new: bool) {
        if again && !self.recovered(cid) {
            return;
        }
        let bytes = block.map_or(0, |block| block.data().len() as u64);
        self.progress.blocks += 1;
        self.progress.bytes += bytes;
        if is_new {
            self.progress.fetched_blocks += 1;
            self.progress.fetched_bytes += bytes;
        }
    }

    /// Counts a failed block once, also if an earlier visit at a greater depth succeeded: blocks below it may be
    /// missing.
    fn failed(&mut self, cid: &Cid, error: &SourceError) {
        let cid = cid.to_string();
        if self.failures.iter().any(|failure| failure.cid == cid) {
            return;
        }
        self.progress.failed_blocks += 1;
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(WarmFailure { cid, error: error.to_string() });
        }
    }

    /// Records one fetch and queues the links of its block; returns the limit that ends the traversal, if one is reached.
    fn record(&mut self, cid: &Cid, again: bool, fetched: Fetched, frontier: &mut Frontier) -> Option<&'static str> {
        let (block, is_new) = match fetched {
            Ok(fetched) => fetched,
            Err(error) => {
                self.failed(cid, &error);
                return (self.failures.len() >= FAILURES_MAX).then_some("failures");
            }
        };
        if BlockKey::of(cid).is_some() {
            self.block_ready(cid, again, block.as_ref(), is_new);
        }
        frontier.push_if_decodable(&block?).err().map(|error| stop_reason(&error))
    }

    /// Whether a revisited block had failed before; it no longer counts as failed then.
    fn recovered(&mut self, cid: &Cid) -> bool {
        let cid = cid.to_string();
        let Some(at) = self.failures.iter().position(|failure| failure.cid == cid) else { return false };
        self.failures.remove(at);
        self.progress.failed_blocks = self.progress.failed_blocks.saturating_sub(1);
        true
    }
}

/// The name of the limit that ends a traversal.
fn stop_reason(error: &DagError) -> &'static str {
    match error {
        DagError::TooManyBlocks { .. } => "blocks",
        _ => "links",
    }
}

impl Operations {
    fn path_to_warm(&self, request: &WarmRequest) -> Result<ContentPath, ApiError> {
        match (&request.cid, &request.path) {
            (Some(cid), None) => {
                let root = Root::Cid(content::cid::parse(cid).map_err(bad_request)?);
                Ok(ContentPath { root, segments: Vec::new(), trailing_slash: false })
            }
            (None, Some(path)) => {
                ContentPath::parse(path, self.parts().gateway.limits().path_depth_max).map_err(bad_request)
            }
            _ => Err(bad_request("exactly one of \"cid\" and \"path\" is required")),
        }
    }

    async fn run_warm(&self, path: ContentPath, request: WarmRequest, lines: mpsc::Sender<Bytes>) {
        let mut warming = Warming::new(lines);
        let line = match self.warm_path(path, &request, &mut warming).await {
            Ok(stopped_by) => {
                warming.update_time();
                let complete = stopped_by.is_none() && warming.progress.failed_blocks == 0;
                let (progress, failures) = (warming.progress.clone(), std::mem::take(&mut warming.failures));
                WarmLine::Report(WarmReport { progress, complete, stopped_by: stopped_by.map(str::to_owned), failures })
            }
            Err(message) => WarmLine::Error(message),
        };
        warming.send(&line).await;
    }

    /// Fetches the DAG at a path; returns why it stopped early.
    async fn warm_path(
        &self,
        path: ContentPath,
        request: &WarmRequest,
        warming: &mut Warming,
    ) -> Result<Option<&'static str>, String> {
        let names: &dyn content::NameResolver = &*self.parts().names;
        let policy: &dyn content::Policy = &**self.parts().gateway.policy();
        let target = Target::of(path, names, policy).await.map_err(|problem| problem.to_string())?;
        let source = RootSource::new(&self.parts().sources, target.root, WARM_CLIENT, false);
        let mut root = target.root;
        if !target.segments.is_empty() {
            let resolved = resolve::walk(&source, &target).await.map_err(|problem| problem.to_string())?;
            root = *resolved.block.cid();
        }
        warming.progress.root = root.to_string();
        self.fetch_below(&source, root, request, warming).await
    }

    async fn fetch_below(
        &self,
        source: &Arc<RootSource>,
        root: Cid,
        request: &WarmRequest,
        warming: &mut Warming,
    ) -> Result<Option<&'static str>, String> {
        // Blocks that are fetched again would count twice.
        let frontier = Frontier::new(root, None).with_blocks_max(self.dag_blocks_max()).without_rereads();
        let mut frontier = match request.depth {
            Some(depth) => frontier.with_depth_max(depth),
            None => frontier,
        };
        let mut fetches = FuturesUnordered::new();
        loop {
            while fetches.len() < FETCHES_MAX {
                let (cid, again) = match frontier.step() {
                    Ok(Step::Visit(cid)) => (cid, false),
                    Ok(Step::Revisit(cid)) => (cid, true),
                    Ok(_) => break,
                    Err(error) => return Ok(Some(stop_reason(&error))),
                };
                let ahead = request.depth.is_none().then(|| ReadAhead::all(cid));
                let fetch = self.fetch_one(Arc::clone(source), cid, frontier.follows(&cid), ahead);
                fetches.push(async move { (cid, again, fetch.await) });
            }
            let Some((cid, again, fetched)) = fetches.next().await else { return Ok(None) };
            if let Some(limit) = warming.record(&cid, again, fetched, &mut frontier) {
                return Ok(Some(limit));
            }
            if !warming.send_progress().await {
                return Ok(None);
            }
            if request.bytes_max.is_some_and(|max| warming.progress.bytes >= max) {
                let has_more = !fetches.is_empty() || frontier.step() != Ok(Step::Done);
                return Ok(has_more.then_some("bytes_max"));
            }
        }
    }

    /// Fetches one block. A block in memory or on the disk whose links are not needed is not read.
    async fn fetch_one(&self, source: Arc<RootSource>, cid: Cid, reads: bool, ahead: Option<ReadAhead>) -> Fetched {
        let tiers = &self.parts().tiers;
        let held = BlockKey::of(&cid).is_none_or(|key| tiers.ram().holds(&key));
        let held = held || tiers.disk().has(&cid).await.unwrap_or(false);
        if held && !reads {
            return Ok((None, false));
        }
        // A source of its own tells whether this block came from the network.
        let own = RootSource::new(&self.parts().sources, *source.root(), WARM_CLIENT, false);
        let fetched = match (own.peek(&cid), ahead.filter(|ahead| !ahead.is_single_block())) {
            (Some(block), _) => Ok(block),
            (None, Some(ahead)) => own.get_ahead(&cid, &ahead).await,
            (None, None) => own.get(&cid).await,
        };
        let is_new = own.tier() == Tier::Network;
        fetched.map(|block| (Some(block), is_new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::{codec, hashes};

    #[test]
    fn a_block_that_is_fetched_at_a_second_visit_has_not_failed() {
        let block = |text: &'static [u8]| {
            Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::from_static(text)).expect("a block")
        };
        let (one, other) = (block(b"one"), block(b"another"));
        let mut warming = Warming::new(mpsc::channel(1).0);
        let mut record = |block: &Block, again: bool, comes: bool| {
            let cid = *block.cid();
            if comes {
                warming.block_ready(&cid, again, Some(block), true);
            } else {
                warming.failed(&cid, &SourceError::NotFound { cid });
            }
            let WarmProgress { blocks, fetched_bytes, failed_blocks, .. } = warming.progress;
            assert_eq!(warming.failures.len() as u64, failed_blocks);
            (blocks, fetched_bytes, failed_blocks)
        };
        assert_eq!(record(&one, false, false), (0, 0, 1));
        assert_eq!(record(&other, false, true), (1, 7, 1));
        assert_eq!(record(&one, true, false), (1, 7, 1), "it is reported once");
        assert_eq!(record(&one, true, true), (2, 10, 0));
        assert_eq!(record(&one, true, true), (2, 10, 0), "it is counted once");
        // The second visit is nearer to the root and needs its links, which are unknown.
        assert_eq!(record(&other, true, false), (2, 10, 1));
    }
}
