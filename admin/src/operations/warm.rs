//! `POST /api/v1/warm`: a DAG, or its upper part, is fetched into the local tiers before anybody asks for it.
//!
//! Goals: bounded concurrency, and places on the way to the network that are not the public's; what is here is not
//! fetched again; lines of JSON tell how far it has come; it ends when whoever asked leaves.
//!
//! Non-goals: keeping what is fetched. It is cached, and goes when there is no room for it; a pin keeps it.

use crate::http::answer::{Answer, Refusal};
use crate::http::extract::{Audited, Authenticated};
use crate::http::long::{self, PROGRESS_EVERY};
use crate::http::parameters::{read_body, wrong};
use crate::http::refusals::WrongRequest;
use crate::operations::Operations;
use crate::operations::dag::{Frontier, Step, TooMany};
use api::text::seconds;
use api::warm::{WarmFailure, WarmLine, WarmProgress, WarmReport, WarmRequest};
use axum::body::Body;
use axum::extract::State;
use bytes::Bytes;
use content::path::Root;
use content::{Block, BlockKey, BlockSource as _, Cid, ContentPath, SourceError, dag};
use futures::stream::{FuturesUnordered, StreamExt as _};
use gateway::resolve::source::{RootSource, Tier};
use gateway::resolve::{self, Target};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// Blocks that are fetched at a time.
pub const AT_ONCE: usize = 32;
/// Blocks that do not come before all of it is given up.
const FAILURES_MAX: usize = 16;
/// Lines that may wait for their reader. Whoever does not read is waited for.
const LINES_MAX: usize = 8;
/// Whom the places on the way to the network are given to.
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Fetches a DAG, or the upper part of it, into the local tiers. Ends when whoever asks leaves. The last line is a
/// report or an error.
#[utoipa::path(post, path = "/api/v1/warm", tag = "operations", security(("bearer" = ["operate"])),
    request_body(content = WarmRequest, content_type = "application/json"),
    responses((status = 200, description = "Lines of JSON", body = WarmLine, content_type = "application/x-ndjson"),
        WrongRequest))]
pub async fn warm(
    State(operations): State<Operations>,
    Authenticated(bearer): Authenticated,
    Audited(noted): Audited,
    body: Bytes,
) -> Answer {
    let request: WarmRequest = read_body(&body)?;
    noted.note(&request);
    let path = operations.path_to_warm(&request)?;
    let place = operations.begin(&bearer)?;
    let (lines, mut told) = mpsc::channel(LINES_MAX);
    let warming = AbortOnDropHandle::new(tokio::spawn(async move {
        let _place = place;
        operations.run_warm(path, request, lines).await;
    }));
    // The reader who leaves drops the stream, and with it the work.
    let lines = futures::stream::poll_fn(move |cx| {
        let _work = &warming;
        told.poll_recv(cx).map(|line| line.map(Ok::<Bytes, Infallible>))
    });
    Ok(long::lines(Body::from_stream(lines)))
}

/// A fetch that ended: the block unless nobody needs to read it, and whether it came from the network.
type Fetched = (Step, Result<(Option<Block>, bool), SourceError>);

/// Where warming is.
struct Warming {
    begun: Instant,
    progress: WarmProgress,
    failures: Vec<WarmFailure>,
    shown: Option<Instant>,
    lines: mpsc::Sender<Bytes>,
}

impl Warming {
    /// One that begins now, and tells its lines there.
    fn new(lines: mpsc::Sender<Bytes>) -> Self {
        let progress = WarmProgress::default();
        Self { begun: Instant::now(), progress, failures: Vec::new(), shown: None, lines }
    }

    /// Tells a line; `false` if nobody reads any more.
    async fn say(&self, line: &WarmLine) -> bool {
        self.lines.send(long::line(line)).await.is_ok()
    }

    fn note_time(&mut self) {
        self.progress.seconds = seconds(self.begun.elapsed());
    }

    /// Tells how far it has come, now and then.
    async fn show(&mut self) -> bool {
        if self.shown.is_some_and(|shown| shown.elapsed() < PROGRESS_EVERY) {
            return true;
        }
        self.shown = Some(Instant::now());
        self.note_time();
        self.say(&WarmLine::Progress(self.progress.clone())).await
    }

    /// A block is here; it was read, unless nobody needed to. One that comes again is counted if it had not come before.
    fn came(&mut self, cid: &Cid, again: bool, block: Option<&Block>, is_new: bool) {
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

    /// A block did not come, which is told once. That it came before, from farther below, does not help: what is below it may be
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

    /// Whether a block that comes again did not come before: it has not failed then.
    fn recovered(&mut self, cid: &Cid) -> bool {
        let cid = cid.to_string();
        let Some(at) = self.failures.iter().position(|failure| failure.cid == cid) else { return false };
        self.failures.remove(at);
        self.progress.failed_blocks = self.progress.failed_blocks.saturating_sub(1);
        true
    }
}

impl Operations {
    fn path_to_warm(&self, request: &WarmRequest) -> Result<ContentPath, Refusal> {
        match (&request.cid, &request.path) {
            (Some(cid), None) => {
                let root = Root::Cid(content::cid::parse(cid).map_err(wrong)?);
                Ok(ContentPath { root, segments: Vec::new(), trailing_slash: false })
            }
            (None, Some(path)) => ContentPath::parse(path, self.parts().gateway.limits().path_depth_max).map_err(wrong),
            _ => Err(wrong("name one of \"cid\" and \"path\"")),
        }
    }

    async fn run_warm(&self, path: ContentPath, request: WarmRequest, lines: mpsc::Sender<Bytes>) {
        let mut warming = Warming::new(lines);
        let line = match self.warm_path(path, &request, &mut warming).await {
            Ok(stopped_by) => {
                warming.note_time();
                let complete = stopped_by.is_none() && warming.progress.failed_blocks == 0;
                let (progress, failures) = (warming.progress.clone(), std::mem::take(&mut warming.failures));
                WarmLine::Report(WarmReport { progress, complete, stopped_by: stopped_by.map(str::to_owned), failures })
            }
            Err(words) => WarmLine::Error(words),
        };
        warming.say(&line).await;
    }

    /// Fetches; says why it stopped before the end.
    async fn warm_path(
        &self,
        path: ContentPath,
        request: &WarmRequest,
        warming: &mut Warming,
    ) -> Result<Option<&'static str>, String> {
        let names: &dyn content::NameResolver = &*self.parts().names;
        let policy: &dyn content::Policy = &**self.parts().gateway.policy();
        let target = Target::of(path, names, policy).await.map_err(|problem| problem.to_string())?;
        let source = RootSource::new(&self.parts().sources, target.root, NOBODY, false);
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
        let blocks_max = usize::try_from(self.parts().loaded.config.http.dag_blocks_max).unwrap_or(usize::MAX);
        let mut frontier = Frontier::new(&[root], request.depth, blocks_max);
        let mut fetches = FuturesUnordered::new();
        loop {
            while fetches.len() < AT_ONCE
                && let Some(step) = frontier.next()
            {
                let reads = frontier.goes_below(&step.cid, step.depth);
                fetches.push(self.fetch_one(Arc::clone(source), step, reads));
            }
            let Some((step, outcome)) = fetches.next().await else { return Ok(None) };
            let Step { cid, depth, again } = step;
            match outcome {
                Ok((block, is_new)) => {
                    warming.came(&cid, again, block.as_ref(), is_new);
                    let links = block.filter(|_| frontier.goes_below(&cid, depth)).map(|block| dag::links(&block));
                    // What cannot be understood has nothing below that could be wanted.
                    if let Some(Ok(links)) = links
                        && let Err(too_many) = frontier.links(&links, depth)
                    {
                        return Ok(Some(match too_many {
                            TooMany::Blocks(_) => "blocks",
                            TooMany::Waiting(_) => "links",
                        }));
                    }
                }
                Err(error) => {
                    warming.failed(&cid, &error);
                    if warming.failures.len() >= FAILURES_MAX {
                        return Ok(Some("failures"));
                    }
                }
            }
            if !warming.show().await {
                return Ok(None);
            }
            if request.bytes_max.is_some_and(|max| warming.progress.bytes >= max) {
                return Ok((!fetches.is_empty() || frontier.next().is_some()).then_some("bytes_max"));
            }
        }
    }

    /// Brings one block here. One that is here and has nothing below that is wanted is not read.
    async fn fetch_one(&self, source: Arc<RootSource>, step: Step, reads: bool) -> Fetched {
        let cid = step.cid;
        let tiers = &self.parts().tiers;
        let held = BlockKey::of(&cid).is_none_or(|key| tiers.ram().holds(&key));
        let held = held || tiers.disk().has(&cid).await.unwrap_or(false);
        if held && !reads {
            return (step, Ok((None, false)));
        }
        // Whether it came from the network is known of a source that serves this block alone.
        let own = RootSource::new(&self.parts().sources, *source.root(), NOBODY, false);
        let fetched = own.fetch(&cid).await;
        let is_new = own.tier() == Tier::Network;
        (step, fetched.map(|block| (Some(block), is_new)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::{codec, hashes};

    #[test]
    fn a_block_that_comes_when_it_is_asked_for_again_has_not_failed() {
        let block = |text: &'static [u8]| {
            Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::from_static(text)).expect("a block")
        };
        let (one, other) = (block(b"one"), block(b"another"));
        let mut warming = Warming::new(mpsc::channel(1).0);
        let mut told = |block: &Block, again: bool, comes: bool| {
            let cid = *block.cid();
            if comes {
                warming.came(&cid, again, Some(block), true);
            } else {
                warming.failed(&cid, &SourceError::NotFound { cid });
            }
            let WarmProgress { blocks, fetched_bytes, failed_blocks, .. } = warming.progress;
            assert_eq!(warming.failures.len() as u64, failed_blocks);
            (blocks, fetched_bytes, failed_blocks)
        };
        assert_eq!(told(&one, false, false), (0, 0, 1));
        assert_eq!(told(&other, false, true), (1, 7, 1));
        assert_eq!(told(&one, true, false), (1, 7, 1), "it is told once");
        assert_eq!(told(&one, true, true), (2, 10, 0));
        assert_eq!(told(&one, true, true), (2, 10, 0), "it is counted once");
        // What is below it is wanted now, and is not known.
        assert_eq!(told(&other, true, false), (2, 10, 1));
    }
}
