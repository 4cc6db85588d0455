//! `POST /api/v1/purge`: cached copies go, from every place that has any here.
//!
//! What is pinned stays on the disk, and leaves memory. Content does not change, so a purge makes no answer more right:
//! it is for room, for what should not lie around, and for names, whose answers do change.

use crate::http::answer::{Answer, Refusal, json};
use crate::http::extract::{Audited, Authenticated};
use crate::http::long::apart;
use crate::http::parameters::{read_body, wrong};
use crate::http::refusals::{DiskFailed, WrongRequest};
use crate::operations::Operations;
use crate::operations::dag::{Frontier, Step};
use api::error::ErrorView;
use api::purge::{PurgeRequest, PurgedView};
use axum::extract::State;
use axum::http::StatusCode;
use bytes::Bytes;
use cache::{Evict, Evicted, StoreError};
use content::path::Root;
use content::{AllowAll, Block, BlockKey, Cid, ContentPath, Name, dag};
use gateway::errors::Problem;
use gateway::invalidate::PurgeMode;
use gateway::pipeline::Forgotten;
use gateway::resolve::Target;
use services::subject::Subject;
use services::surrogate_keys::SurrogateKey;

/// Blocks that are forgotten at a time, so that others read and write in between.
const AT_ONCE: usize = 1024;

fn whole(root: Root) -> Subject {
    Subject { root, segments: Vec::new() }
}

/// What goes.
#[derive(Default)]
struct Order {
    roots: Vec<Cid>,
    names: Vec<Name>,
    missing: u64,
}

#[derive(Default)]
struct Gone {
    evicted: Evicted,
    ram: u64,
    missing: u64,
    forgotten: Forgotten,
}

/// Removes cached copies of a block, of what a path or a surrogate key stands for, or what is known of a name. What is
/// pinned stays on the disk.
#[utoipa::path(post, path = "/api/v1/purge", tag = "operations", security(("bearer" = ["operate"])),
    request_body(content = PurgeRequest, content_type = "application/json"),
    responses((status = 200, description = "What was removed", body = PurgedView), WrongRequest,
        (status = 422, description = "It has more blocks than are walked", body = ErrorView), DiskFailed))]
pub async fn purge(
    State(operations): State<Operations>,
    Authenticated(bearer): Authenticated,
    Audited(noted): Audited,
    body: Bytes,
) -> Answer {
    let request: PurgeRequest = read_body(&body)?;
    noted.note(&request);
    let (below, mode) =
        (request.below.unwrap_or(true), if request.dry_run { PurgeMode::DryRun } else { PurgeMode::Remove });
    let place = operations.begin(&bearer)?;
    let order = operations.order(request).await?;
    let purged = apart(place, async move { operations.carry_out(order, below, mode).await });
    Ok(json(StatusCode::OK, &purged.await??))
}

impl Operations {
    async fn order(&self, request: PurgeRequest) -> Result<Order, Refusal> {
        let PurgeRequest { cid, path, surrogate_key, name, below: _, dry_run: _ } = request;
        match (cid, path, surrogate_key, name) {
            (Some(cid), None, None, None) => {
                let root = content::cid::parse(&cid).map_err(wrong)?;
                Ok(Order { roots: vec![root], ..Order::default() })
            }
            (None, Some(path), None, None) => self.order_of_path(&path).await,
            (None, None, Some(key), None) => match SurrogateKey::parse(&key) {
                Some(SurrogateKey::Root(root)) => Ok(Order { roots: vec![root], ..Order::default() }),
                Some(SurrogateKey::Name(name)) => Ok(self.order_of_name(name).await),
                None => Err(wrong("a surrogate key is a CID, an IPNS key or a domain")),
            },
            (None, None, None, Some(name)) => {
                let name = Name::parse(&name).map_err(wrong)?;
                Ok(Order { names: vec![name], ..Order::default() })
            }
            _ => Err(wrong("name one of \"cid\", \"path\", \"surrogate_key\" and \"name\"")),
        }
    }

    /// A name, and where it is known to lead.
    async fn order_of_name(&self, name: Name) -> Order {
        let known = self.parts().names.known_only().resolve(&name).await;
        Order { roots: known.map(|known| known.root).into_iter().collect(), names: vec![name], missing: 0 }
    }

    async fn order_of_path(&self, path: &str) -> Result<Order, Refusal> {
        let depth_max = self.parts().gateway.limits().path_depth_max;
        let path = ContentPath::parse(path, depth_max).map_err(wrong)?;
        let names = match &path.root {
            Root::Name(name) => vec![name.clone()],
            Root::Cid(_) => Vec::new(),
        };
        let known = self.parts().names.known_only();
        // What is not known leads to nothing that is here.
        let Ok(target) = Target::of(path, &*known, &AllowAll).await else {
            return Ok(Order { names, ..Order::default() });
        };
        if target.segments.is_empty() {
            return Ok(Order { roots: vec![target.root], names, missing: 0 });
        }
        match self.inner.looking.walk_here(&target).await {
            Ok(resolved) => Ok(Order { roots: vec![*resolved.block.cid()], names, missing: 0 }),
            Err(problem) if problem.source_error().is_some() => Ok(Order { names, missing: 1, ..Order::default() }),
            Err(problem @ Problem::Walk(_)) => Err(wrong(problem)),
            Err(problem) => Err(Refusal(StatusCode::UNPROCESSABLE_ENTITY, problem.to_string())),
        }
    }

    async fn carry_out(&self, order: Order, below: bool, mode: PurgeMode) -> Result<PurgedView, Refusal> {
        let Order { roots, names, missing } = order;
        let mut forgotten = Vec::new();
        let told: Vec<Subject> = names.iter().map(|name| whole(Root::Name(name.clone()))).collect();
        for name in names {
            let known = match mode {
                PurgeMode::Remove => self.parts().names.forget(&name),
                PurgeMode::DryRun => self.parts().names.remembers(&name),
            };
            if known {
                forgotten.push(name.to_string());
            }
        }
        let in_front: Vec<Subject> =
            told.into_iter().chain(roots.iter().map(|root| Root::Cid(*root)).map(whole)).collect();
        let mut gone = Gone::default();
        if !roots.is_empty() {
            gone = self.remove(&roots, below, mode).await?;
        }
        let caches_notified = match mode {
            PurgeMode::Remove => self.parts().caches.invalidate(&in_front, None).await,
            PurgeMode::DryRun => self.parts().caches.count(),
        };
        tracing::info!(?roots, gone.evicted.blocks, gone.evicted.bytes, names = forgotten.len(), ?mode, "purged");
        let Gone { evicted, ram, forgotten: Forgotten { paths, listings, sites, encoded }, .. } = gone;
        Ok(PurgedView {
            roots: roots.iter().map(ToString::to_string).collect(),
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

    /// Takes the blocks below some roots out of the tiers, and what is made of them out of the memories above.
    async fn remove(&self, roots: &[Cid], below: bool, mode: PurgeMode) -> Result<Gone, Refusal> {
        let blocks_max = usize::try_from(self.parts().loaded.config.http.dag_blocks_max).unwrap_or(usize::MAX);
        let mut frontier = Frontier::new(roots, (!below).then_some(0), blocks_max);
        let (mut gone, mut batch) = (Gone::default(), Vec::with_capacity(AT_ONCE));
        let mut walked = Ok(());
        while let Some(Step { cid, depth, .. }) = frontier.next() {
            if frontier.goes_below(&cid, depth) {
                match self.links_of(&cid).await? {
                    Some(links) => walked = frontier.links(&links, depth),
                    None => gone.missing += 1,
                }
            }
            batch.extend(BlockKey::of(&cid));
            if batch.len() >= AT_ONCE {
                self.evict(&mut batch, &mut gone, mode).await?;
            }
            if walked.is_err() {
                break;
            }
        }
        self.evict(&mut batch, &mut gone, mode).await?;
        // Reading all that is remembered may take a while.
        let gateway = self.parts().gateway.clone();
        let forget = move || gateway.purge(&|cid| frontier.has_met(cid), mode);
        gone.forgotten = tokio::task::spawn_blocking(forget).await.unwrap_or_default();
        walked.map_err(|too_many| {
            let so_far = if mode == PurgeMode::Remove { ": what was found first is gone" } else { "" };
            Refusal(StatusCode::UNPROCESSABLE_ENTITY, format!("{too_many}{so_far}"))
        })?;
        Ok(gone)
    }

    /// What a block links to, if it is here and can be understood. The policy is not asked: what is refused is purged
    /// as well.
    async fn links_of(&self, cid: &Cid) -> Result<Option<Vec<Cid>>, Refusal> {
        let Some(key) = BlockKey::of(cid) else {
            return Ok(Block::inline(cid).map(|block| dag::links(&block).unwrap_or_default()));
        };
        let data = match self.parts().tiers.ram().find(&key) {
            Some(data) => Some(data),
            None => self.store().look(&key).await?,
        };
        Ok(data.map(|data| dag::links(&Block::from_checked(*cid, data)).unwrap_or_default()))
    }

    async fn evict(&self, batch: &mut Vec<BlockKey>, gone: &mut Gone, mode: PurgeMode) -> Result<(), StoreError> {
        let tiers = &self.parts().tiers;
        gone.ram += batch.iter().filter(|key| tiers.ram().holds(key)).count() as u64;
        gone.evicted += match mode {
            PurgeMode::Remove => tiers.evict(batch, Evict::Unpinned).await?,
            PurgeMode::DryRun => self.store().evictable(batch.clone()).await?,
        };
        batch.clear();
        Ok(())
    }
}
