//! `POST /api/v1/purge`: deletes cached copies from every tier of the node and from the caches in front of it.
//!
//! Blocks are deleted after the traversal of the DAG, so that a purge that fails before can be repeated.
//!
//! Pinned blocks stay on the disk and are evicted from memory. Since content is immutable, a purge never corrects an
//! answer: it frees space, deletes unwanted content, and invalidates names, whose answers do change.

use crate::http::answer::{Answer, ApiError, json};
use crate::http::error_responses::{BadRequest, DiskFailed};
use crate::http::extract::{Audited, Authenticated};
use crate::http::long_running::run_to_completion;
use crate::http::parameters::{bad_request, read_body};
use crate::operations::Operations;
use api::error::ErrorView;
use api::purge::{PurgeRequest, PurgedView};
use axum::extract::State;
use axum::http::StatusCode;
use bytes::Bytes;
use cache::{Evict, Evicted, StoreError};
use content::cid_list::CidList;
use content::dag::DagError;
use content::frontier::{Frontier, Step};
use content::path::Root;
use content::{AllowAll, BlockKey, Cid, ContentPath, Name};
use gateway::errors::Problem;
use gateway::invalidate::PurgeMode;
use gateway::pipeline::InvalidatedEntries;
use gateway::resolve::Target;
use services::subject::Subject;
use services::surrogate_keys::SurrogateKey;

/// The maximum number of blocks that are evicted after the traversal. Of a larger DAG, these are evicted first.
const DEFERRED_BLOCKS_MAX: usize = 1_000_000;

fn whole(root: Root) -> Subject {
    Subject { root, segments: Vec::new() }
}

/// What to purge.
#[derive(Default)]
struct PurgePlan {
    root: Option<Cid>,
    names: Vec<Name>,
    missing: u64,
}

#[derive(Default)]
struct PurgeCounts {
    evicted: Evicted,
    ram: u64,
    missing: u64,
    forgotten: InvalidatedEntries,
}

/// Deletes the cached copies of a DAG, by CID, path or surrogate key, or the cached resolution of a name. Pinned blocks
/// stay on the disk.
#[utoipa::path(post, path = "/api/v1/purge", tag = "operations", security(("bearer" = ["operate"])),
    request_body(content = PurgeRequest, content_type = "application/json"),
    responses((status = 200, description = "The deleted copies", body = PurgedView), BadRequest,
        (status = 422, description = "The DAG has more blocks than http.dag_blocks_max",
            body = ErrorView), DiskFailed))]
pub async fn purge(
    State(operations): State<Operations>,
    Authenticated(bearer): Authenticated,
    Audited(audit_context): Audited,
    body: Bytes,
) -> Answer {
    let request: PurgeRequest = read_body(&body)?;
    audit_context.note(&request);
    let (below, mode) =
        (request.below.unwrap_or(true), if request.dry_run { PurgeMode::DryRun } else { PurgeMode::Remove });
    let permit = operations.begin(&bearer)?;
    let plan = operations.plan(request).await?;
    let purged = run_to_completion(permit, async move { operations.execute(plan, below, mode).await });
    Ok(json(StatusCode::OK, &purged.await??))
}

impl Operations {
    async fn plan(&self, request: PurgeRequest) -> Result<PurgePlan, ApiError> {
        let PurgeRequest { cid, path, surrogate_key, name, below: _, dry_run: _ } = request;
        match (cid, path, surrogate_key, name) {
            (Some(cid), None, None, None) => {
                let root = content::cid::parse(&cid).map_err(bad_request)?;
                Ok(PurgePlan { root: Some(root), ..PurgePlan::default() })
            }
            (None, Some(path), None, None) => self.plan_of_path(&path).await,
            (None, None, Some(key), None) => match SurrogateKey::parse(&key) {
                Some(SurrogateKey::Root(root)) => Ok(PurgePlan { root: Some(root), ..PurgePlan::default() }),
                Some(SurrogateKey::Name(name)) => Ok(self.plan_of_name(name).await),
                None => Err(bad_request("a surrogate key must be a CID, an IPNS key or a domain")),
            },
            (None, None, None, Some(name)) => {
                let name = Name::parse(&name).map_err(bad_request)?;
                Ok(PurgePlan { names: vec![name], ..PurgePlan::default() })
            }
            _ => Err(bad_request("exactly one of \"cid\", \"path\", \"surrogate_key\" and \"name\" is required")),
        }
    }

    /// A name, and its cached resolution.
    async fn plan_of_name(&self, name: Name) -> PurgePlan {
        let known = self.parts().names.cache_only().resolve(&name).await;
        PurgePlan { root: known.ok().map(|known| known.root), names: vec![name], missing: 0 }
    }

    async fn plan_of_path(&self, path: &str) -> Result<PurgePlan, ApiError> {
        let depth_max = self.parts().gateway.limits().path_depth_max;
        let path = ContentPath::parse(path, depth_max).map_err(bad_request)?;
        let names = match &path.root {
            Root::Name(name) => vec![name.clone()],
            Root::Cid(_) => Vec::new(),
        };
        let known = self.parts().names.cache_only();
        // No content is stored under a name without a cached resolution.
        let Ok(target) = Target::of(path, &*known, &AllowAll).await else {
            return Ok(PurgePlan { names, ..PurgePlan::default() });
        };
        if target.segments.is_empty() {
            return Ok(PurgePlan { root: Some(target.root), names, missing: 0 });
        }
        match self.inner.local_gateway.resolve_locally(&target).await {
            Ok(resolved) => Ok(PurgePlan { root: Some(*resolved.block.cid()), names, missing: 0 }),
            Err(problem) if problem.source_error().is_some() => {
                Ok(PurgePlan { names, missing: 1, ..PurgePlan::default() })
            }
            Err(problem @ Problem::Walk(_)) => Err(bad_request(problem)),
            Err(problem) => Err(ApiError(StatusCode::UNPROCESSABLE_ENTITY, problem.to_string())),
        }
    }

    async fn execute(&self, plan: PurgePlan, below: bool, mode: PurgeMode) -> Result<PurgedView, ApiError> {
        let PurgePlan { root, names, missing } = plan;
        let mut forgotten = Vec::new();
        let name_subjects: Vec<Subject> = names.iter().map(|name| whole(Root::Name(name.clone()))).collect();
        for name in names {
            let known = match mode {
                PurgeMode::Remove => self.parts().names.invalidate(&name),
                PurgeMode::DryRun => self.parts().names.is_cached(&name),
            };
            if known {
                forgotten.push(name.to_string());
            }
        }
        let in_front: Vec<Subject> = name_subjects.into_iter().chain(root.map(Root::Cid).map(whole)).collect();
        let mut gone = PurgeCounts::default();
        if let Some(root) = root {
            gone = self.remove(root, below, mode).await?;
        }
        let caches_notified = match mode {
            PurgeMode::Remove => self.parts().caches.invalidate(&in_front, None).await,
            PurgeMode::DryRun => self.parts().caches.count(),
        };
        tracing::info!(?root, gone.evicted.blocks, gone.evicted.bytes, names = forgotten.len(), ?mode, "purged");
        let PurgeCounts { evicted, ram, forgotten: InvalidatedEntries { paths, listings, sites, encoded }, .. } = gone;
        Ok(PurgedView {
            roots: root.iter().map(ToString::to_string).collect(),
            ram_blocks: ram,
            disk_blocks: evicted.blocks,
            disk_bytes: evicted.bytes,
            pinned_blocks: evicted.pinned,
            missing_blocks: missing + gone.missing,
            paths,
            listings,
            sites,
            encoded,
            names: forgotten,
            caches_notified,
        })
    }

    /// Deletes the blocks below a root from the tiers, and what is derived from them from the gateway's caches.
    async fn remove(&self, root: Cid, below: bool, mode: PurgeMode) -> Result<PurgeCounts, ApiError> {
        // Blocks may be evicted meanwhile, and cannot be read again.
        let frontier = Frontier::new(root, None).with_blocks_max(self.dag_blocks_max()).without_rereads();
        let mut frontier = if below { frontier } else { frontier.with_depth_max(0) };
        // A block that is evicted earlier could not be read when it is found again under a codec with links.
        let (mut gone, mut found) = (PurgeCounts::default(), CidList::default());
        let mut walked = Ok(());
        while walked.is_ok() {
            let cid = match frontier.step() {
                Ok(Step::Visit(cid)) => cid,
                Ok(_) => break,
                Err(error) => {
                    walked = Err(error);
                    break;
                }
            };
            if frontier.follows(&cid) {
                // The policy is not checked, so that withheld blocks are purged as well.
                match self.parts().tiers.look(&cid).await? {
                    Some(block) => walked = frontier.push_if_decodable(&block),
                    None => gone.missing += 1,
                }
            }
            found.push(&cid);
            if found.len() >= DEFERRED_BLOCKS_MAX {
                self.evict(std::mem::take(&mut found), &mut gone, mode).await?;
            }
        }
        self.evict(found, &mut gone, mode).await?;
        // Scanning the gateway's caches may take a while.
        let gateway = self.parts().gateway.clone();
        let is_purged = move |cid: &Cid| cid.hash() == root.hash() || frontier.has_visited(cid);
        let forget = move || gateway.purge(&is_purged, mode);
        gone.forgotten = tokio::task::spawn_blocking(forget).await.unwrap_or_default();
        walked.map_err(|too_many| {
            let so_far = if mode == PurgeMode::Remove { ": the blocks that were found before are deleted" } else { "" };
            let setting = match too_many {
                DagError::TooManyBlocks { .. } => " (http.dag_blocks_max)",
                _ => "",
            };
            ApiError(StatusCode::UNPROCESSABLE_ENTITY, format!("{too_many}{setting}{so_far}"))
        })?;
        Ok(gone)
    }

    /// Evicts blocks, those that were found last first, so that an eviction that fails can be repeated.
    async fn evict(&self, cids: CidList, gone: &mut PurgeCounts, mode: PurgeMode) -> Result<(), StoreError> {
        let tiers = &self.parts().tiers;
        // Other reads and writes run between the batches.
        for batch in cids.batches_reversed() {
            let keys: Vec<BlockKey> = batch.iter().filter_map(BlockKey::of).collect();
            gone.ram += keys.iter().filter(|key| tiers.ram().holds(key)).count() as u64;
            gone.evicted += match mode {
                PurgeMode::Remove => tiers.evict(&keys, Evict::Unpinned).await?,
                PurgeMode::DryRun => self.store().evictable(keys).await?,
            };
        }
        Ok(())
    }
}
