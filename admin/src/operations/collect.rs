//! `POST /api/v1/store/gc`: cached blocks go now, and not when their room is needed.

use crate::http::answer::{Answer, Refusal, json};
use crate::http::extract::{Audited, Authenticated};
use crate::http::long::apart;
use crate::http::parameters::read_body;
use crate::http::refusals::{DiskFailed, WrongRequest};
use crate::operations::Operations;
use api::gc::{CollectRequest, CollectedView};
use axum::extract::State;
use axum::http::StatusCode;
use bytes::Bytes;
use cache::StoreError;

/// Rounds without any progress before it is given up: what is cached meanwhile may fill what is freed.
const IN_VAIN_MAX: usize = 64;

/// Deletes the blocks that were cached longest ago, until the rest is as small as was asked for. Nothing that is pinned
/// goes.
#[utoipa::path(post, path = "/api/v1/store/gc", tag = "operations", security(("bearer" = ["operate"])),
    request_body(content = CollectRequest, content_type = "application/json"),
    responses((status = 200, description = "What went", body = CollectedView), WrongRequest, DiskFailed))]
pub async fn collect(
    State(operations): State<Operations>,
    Authenticated(bearer): Authenticated,
    Audited(noted): Audited,
    body: Bytes,
) -> Answer {
    let request: CollectRequest = read_body(&body)?;
    noted.note(&request);
    let CollectRequest { cached_bytes_max, dry_run } = request;
    let cached_bytes = cached_bytes_max.unwrap_or(0);
    if dry_run {
        return Ok(json(StatusCode::OK, &operations.would_go(cached_bytes).await?));
    }
    let place = operations.begin(&bearer)?;
    let collected = apart(place, async move { operations.shrink(cached_bytes).await });
    Ok(json(StatusCode::OK, &collected.await?.map_err(Refusal::from)?))
}

impl Operations {
    async fn shrink(&self, cached_bytes: u64) -> Result<CollectedView, StoreError> {
        let store = self.store();
        let before = store.stats();
        let (mut smallest, mut in_vain) = (u64::MAX, 0);
        while store.shrink(cached_bytes).await? && in_vain < IN_VAIN_MAX {
            let now = store.stats().cached_bytes;
            in_vain = if now < smallest { 0 } else { in_vain + 1 };
            smallest = smallest.min(now);
        }
        store.flush().await?;
        let after = store.stats();
        let blocks = after.evicted_blocks.saturating_sub(before.evicted_blocks);
        let bytes = after.evicted_bytes.saturating_sub(before.evicted_bytes);
        tracing::info!(blocks, bytes, after.cached_bytes, "cached blocks were deleted on request");
        let (cached_bytes, pinned_bytes) = (after.cached_bytes, after.pinned_bytes);
        Ok(CollectedView { blocks: Some(blocks), bytes, cached_bytes, pinned_bytes })
    }

    async fn would_go(&self, cached_bytes: u64) -> Result<CollectedView, StoreError> {
        let now = self.store().stats();
        let bytes = now.cached_bytes.saturating_sub(cached_bytes);
        let blocks = match bytes {
            0 => Some(0),
            _ if cached_bytes == 0 => Some(self.store().figures().await?.cached.blocks),
            _ => None,
        };
        Ok(CollectedView { blocks, bytes, cached_bytes: now.cached_bytes - bytes, pinned_bytes: now.pinned_bytes })
    }
}
