//! Which blocks of a path are stored locally, in memory, on the disk and in the shared storage of a site, and what the
//! gateway has cached about the path.

use crate::operations::Operations;
use api::explain::{ContentView, EncodedView, ExplainView, HeldView, RememberedView};
use content::frontier::{Frontier, Step};
use content::stored::Shape;
use content::unixfs::Node;
use content::walk::{Resolved, WalkError};
use content::{Block, BlockKey, BlockSource as _, Cid, SourceError, ipld};
use gateway::errors::Problem;
use gateway::resolve::Target;
use std::time::{Duration, Instant};

/// The maximum number of blocks that are counted below the end of a path.
const COUNTED_MAX: usize = 20_000;
/// The maximum time for which blocks are counted, since large blocks on a slow disk take long.
const COUNT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of blocks along the path that are shown one by one.
const PATH_CIDS_MAX: usize = 64;

impl Operations {
    /// Adds to the view what is stored locally of a path.
    pub(super) async fn explain_local_content(&self, key: &str, target: &Target, view: &mut ExplainView) {
        let generation = self.parts().gateway.policy().generation();
        let gateway = &self.parts().gateway;
        let resolved_key = target.key();
        let remembered = [key, &resolved_key].into_iter().find_map(|key| Some((key, gateway.cached_path(key)?)));
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
        let mut path_cids = vec![target.root];
        match self.inner.local_gateway.resolve_locally(target).await {
            Ok(resolved) => {
                path_cids = path_cids_of(&resolved);
                let begun = Instant::now();
                let is_late = || begun.elapsed() >= COUNT_TIMEOUT;
                view.content = Some(self.count(&resolved.block, generation, is_late).await);
            }
            Err(problem) => {
                view.missing = missing(&problem).map(|cid| cid.to_string());
                if view.missing.is_none() {
                    view.notes.push(problem.to_string());
                }
            }
        }
        view.policy = Some(self.verdicts(target, &path_cids));
        for cid in path_cids.iter().take(PATH_CIDS_MAX) {
            view.blocks.extend(self.tier_view(cid).await);
        }
    }

    /// The tiers that have a block; none if its CID has an identity hash.
    async fn tier_view(&self, cid: &Cid) -> Option<HeldView> {
        let key = BlockKey::of(cid)?;
        let (store, tiers) = (self.store(), &self.parts().tiers);
        let disk = tiers.disk().has(cid).await.unwrap_or(false);
        let site = tiers.is_in_site(cid).await.ok().flatten();
        let shape = store.shapes(vec![key]).await.ok().and_then(|shapes| shapes.into_iter().next()).flatten();
        let form = shape.map(|shape| match shape {
            Shape::Raw { .. } => "raw",
            Shape::Envelope { .. } => "envelope",
            Shape::Frame { .. } => "zstd",
        });
        Some(HeldView {
            cid: cid.to_string(),
            ram: tiers.ram().holds(&key),
            disk,
            site,
            form: form.map(str::to_owned),
            stored_bytes: shape.map(|shape| shape.value_bytes() as u64),
            pinned: (disk || site == Some(true)) && store.is_pinned(&key).await.unwrap_or(false),
        })
    }

    /// The kind of a block, and how many blocks of the DAG below it are stored locally, counted until `is_late`.
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
            site_blocks: None,
            pinned_blocks: 0,
            missing_blocks: 0,
            counted_all: true,
            encoded: encoded.map(|(compressed, ram_bytes)| EncodedView { compressed, ram_bytes }),
        };
        let frontier = Frontier::new(*block.cid(), None).with_blocks_max(COUNTED_MAX).without_rereads();
        view.counted_all = self.count_all(frontier, &mut view, is_late).await;
        view
    }

    /// Counts the blocks of a DAG, until `is_late`; returns whether all were counted.
    async fn count_all(&self, mut frontier: Frontier, view: &mut ContentView, is_late: impl Fn() -> bool) -> bool {
        loop {
            let cid = match frontier.step() {
                Ok(Step::Visit(cid)) if !is_late() => cid,
                ended => return ended == Ok(Step::Done),
            };
            if let Some(block) = self.count_one(&cid, frontier.follows(&cid), view).await
                && frontier.push_if_decodable(&block).is_err()
            {
                return false;
            }
        }
    }

    /// Counts a block, and returns it if `reads` is set and the block is stored locally.
    async fn count_one(&self, cid: &Cid, reads: bool, view: &mut ContentView) -> Option<Block> {
        let Some(key) = BlockKey::of(cid) else { return Block::inline(cid) };
        let (store, tiers) = (self.store(), &self.parts().tiers);
        let in_ram = tiers.ram().holds(&key);
        let on_disk = tiers.disk().has(cid).await.unwrap_or(false);
        // While the shared storage cannot be reached, it counts as without the block.
        let in_site = tiers.is_in_site(cid).await.unwrap_or(Some(false));
        view.ram_blocks += u64::from(in_ram);
        view.disk_blocks += u64::from(on_disk);
        if let Some(in_site) = in_site {
            *view.site_blocks.get_or_insert_default() += u64::from(in_site);
        }
        let is_stored = on_disk || in_site == Some(true);
        if !in_ram && !is_stored {
            view.missing_blocks += 1;
            return None;
        }
        view.blocks_here += 1;
        view.pinned_blocks += u64::from(is_stored && store.is_pinned(&key).await.unwrap_or(false));
        if reads { tiers.look(cid).await.ok().flatten() } else { None }
    }
}

/// The CIDs along the path, the root's first.
fn path_cids_of(resolved: &Resolved) -> Vec<Cid> {
    let mut path_cids = resolved.roots.clone();
    if path_cids.last() != Some(resolved.block.cid()) {
        path_cids.push(*resolved.block.cid());
    }
    path_cids
}

/// The block that a path resolution did not find.
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
