//! What is here of a path: in memory, on the disk, and in the memories of what was made of it.

use crate::operations::Operations;
use crate::operations::dag::{Frontier, Step};
use api::explain::{ContentView, EncodedView, ExplainView, HeldView, RememberedView};
use bytes::Bytes;
use cache::stored::Shape;
use content::unixfs::Node;
use content::walk::{Resolved, WalkError};
use content::{Block, BlockKey, BlockSource as _, Cid, SourceError, dag, ipld};
use gateway::errors::Problem;
use gateway::resolve::Target;
use std::time::{Duration, Instant};

/// Blocks that are counted below what a path leads to.
const COUNTED_MAX: usize = 20_000;
/// For how long they are counted: large blocks on a slow disk take their time.
const COUNTED_FOR: Duration = Duration::from_secs(10);
/// Blocks on the way that are told one by one.
const WAY_MAX: usize = 64;

impl Operations {
    /// Tells what is here of a path.
    pub(super) async fn explain_holdings(&self, key: &str, target: &Target, view: &mut ExplainView) {
        let generation = self.parts().gateway.policy().generation();
        let gateway = &self.parts().gateway;
        let resolved_key = target.key();
        let remembered = [key, &resolved_key].into_iter().find_map(|key| Some((key, gateway.remembered_path(key)?)));
        view.remembered = remembered.map(|(key, entity)| RememberedView {
            key: key.to_owned(),
            cid: entity.cid.to_string(),
            bytes: entity.size,
            content_type: entity
                .content_type
                .as_ref()
                .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()),
            generation: entity.generation,
            is_current: entity.generation == generation,
        });
        let mut way = vec![target.root];
        match self.inner.looking.walk_here(target).await {
            Ok(resolved) => {
                way = way_of(&resolved);
                let begun = Instant::now();
                let is_late = || begun.elapsed() >= COUNTED_FOR;
                view.content = Some(self.count(&resolved.block, generation, is_late).await);
            }
            Err(problem) => {
                view.missing = missing(&problem).map(|cid| cid.to_string());
                if view.missing.is_none() {
                    view.notes.push(problem.to_string());
                }
            }
        }
        view.policy = Some(self.verdicts(target, &way));
        for cid in way.iter().take(WAY_MAX) {
            view.blocks.extend(self.held(cid).await);
        }
    }

    /// Where a block is; none for one that carries its content itself.
    async fn held(&self, cid: &Cid) -> Option<HeldView> {
        let key = BlockKey::of(cid)?;
        let store = self.store();
        let shape = store.shapes(vec![key]).await.ok().and_then(|shapes| shapes.into_iter().next()).flatten();
        let form = shape.map(|shape| match shape {
            Shape::Raw { .. } => "raw",
            Shape::Envelope { .. } => "envelope",
            Shape::Frame { .. } => "zstd",
        });
        Some(HeldView {
            cid: cid.to_string(),
            ram: self.parts().tiers.ram().holds(&key),
            disk: shape.is_some(),
            form: form.map(str::to_owned),
            stored_bytes: shape.map(|shape| shape.value_bytes() as u64),
            pinned: shape.is_some() && store.is_pinned(&key).await.unwrap_or(false),
        })
    }

    /// What a block is, and how much of what is below it is here, as far as that can be counted before it is late.
    pub(in crate::operations) async fn count(
        &self,
        block: &Block,
        generation: u64,
        is_late: impl Fn() -> bool + Send,
    ) -> ContentView {
        let (kind, bytes) = kind_of(block);
        let encoded = self.parts().gateway.encoded().and_then(|encoded| encoded.known(block.cid(), generation));
        let mut view = ContentView {
            cid: block.cid().to_string(),
            kind: kind.to_owned(),
            bytes,
            blocks_here: 0,
            ram_blocks: 0,
            disk_blocks: 0,
            pinned_blocks: 0,
            missing_blocks: 0,
            counted_all: true,
            encoded: encoded.map(|(compressed, ram_bytes)| EncodedView { compressed, ram_bytes }),
        };
        let mut frontier = Frontier::new(&[*block.cid()], None, COUNTED_MAX);
        while let Some(Step { cid, depth, .. }) = frontier.next() {
            if is_late() {
                view.counted_all = false;
                break;
            }
            let Some(links) = self.count_one(&cid, frontier.goes_below(&cid, depth), &mut view).await else { continue };
            if frontier.links(&links, depth).is_err() {
                view.counted_all = false;
                break;
            }
        }
        view
    }

    /// Counts a block, and says what it links to if that is wanted and known.
    async fn count_one(&self, cid: &Cid, reads: bool, view: &mut ContentView) -> Option<Vec<Cid>> {
        let links = |data: Bytes| dag::links(&Block::from_checked(*cid, data)).unwrap_or_default();
        let Some(key) = BlockKey::of(cid) else {
            return Block::inline(cid).map(|block| dag::links(&block).unwrap_or_default());
        };
        let (store, held) = (self.store(), self.parts().tiers.ram().find(&key));
        let on_disk = store.has(cid).await.unwrap_or(false);
        view.ram_blocks += u64::from(held.is_some());
        view.disk_blocks += u64::from(on_disk);
        if held.is_none() && !on_disk {
            view.missing_blocks += 1;
            return None;
        }
        view.blocks_here += 1;
        view.pinned_blocks += u64::from(on_disk && store.is_pinned(&key).await.unwrap_or(false));
        if !reads {
            return None;
        }
        match held {
            Some(data) => Some(links(data)),
            None => store.look(&key).await.ok().flatten().map(links),
        }
    }
}

/// The CIDs on the way, the root's first.
fn way_of(resolved: &Resolved) -> Vec<Cid> {
    let mut way = resolved.roots.clone();
    if way.last() != Some(resolved.block.cid()) {
        way.push(*resolved.block.cid());
    }
    way
}

/// The block that a walk did not find.
fn missing(problem: &Problem) -> Option<Cid> {
    match problem.source_error() {
        Some(SourceError::NotFound { cid } | SourceError::Stalled { cid, .. }) => Some(*cid),
        _ => match problem {
            Problem::NotCached { cid } | Problem::Walk(WalkError::Source(SourceError::NotFound { cid })) => Some(*cid),
            _ => None,
        },
    }
}

fn kind_of(block: &Block) -> (&'static str, Option<u64>) {
    if ipld::is_document(block.cid().codec()) {
        return ("document", None);
    }
    match Node::decode(block) {
        Ok(Node::File(file)) if block.cid().codec() == content::codec::RAW => ("raw", Some(file.size())),
        Ok(Node::File(file)) => ("file", Some(file.size())),
        Ok(Node::Symlink { target }) => ("symlink", Some(target.len() as u64)),
        Ok(Node::Directory(_) | Node::HamtShard(_)) => ("directory", None),
        _ => ("other", None),
    }
}
