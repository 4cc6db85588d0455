//! `POST /api/v1/store/gc`: evicts cached blocks now, before the space is needed.

use crate::http::answer::{Answer, ApiError, json};
use crate::http::error_responses::{BadRequest, DiskFailed};
use crate::http::extract::{Audited, Authenticated};
use crate::http::long_running::run_to_completion;
use crate::http::parameters::read_body;
use crate::operations::Operations;
use api::gc::{CollectRequest, CollectedView};
use axum::extract::State;
use axum::http::StatusCode;
use bytes::Bytes;
use cache::StoreError;

/// The number of rounds without progress after which the eviction stops: new cached blocks may fill the freed space.
const STALLED_ROUNDS_MAX: usize = 64;

/// Evicts the oldest cached blocks until the cache has the requested size. Pinned blocks stay.
#[utoipa::path(post, path = "/api/v1/store/gc", tag = "operations", security(("bearer" = ["operate"])),
    request_body(content = CollectRequest, content_type = "application/json"),
    responses((status = 200, description = "The evicted blocks", body = CollectedView), BadRequest, DiskFailed))]
pub async fn collect(
    State(operations): State<Operations>,
    Authenticated(bearer): Authenticated,
    Audited(audit_context): Audited,
    body: Bytes,
) -> Answer {
    let request: CollectRequest = read_body(&body)?;
    audit_context.note(&request);
    let CollectRequest { cached_bytes_max, dry_run } = request;
    let cached_bytes = cached_bytes_max.unwrap_or(0);
    if dry_run {
        return Ok(json(StatusCode::OK, &operations.estimate(cached_bytes).await?));
    }
    let permit = operations.begin(&bearer)?;
    let collected = run_to_completion(permit, async move { operations.shrink(cached_bytes).await });
    Ok(json(StatusCode::OK, &collected.await?.map_err(ApiError::from)?))
}

impl Operations {
    async fn shrink(&self, cached_bytes: u64) -> Result<CollectedView, StoreError> {
        let store = self.store();
        let before = store.stats();
        let (mut smallest, mut stalled_rounds) = (u64::MAX, 0);
        while store.shrink(cached_bytes).await? && stalled_rounds < STALLED_ROUNDS_MAX {
            let now = store.stats().cached_bytes;
            stalled_rounds = if now < smallest { 0 } else { stalled_rounds + 1 };
            smallest = smallest.min(now);
        }
        store.flush().await?;
        let after = store.stats();
        let blocks = after.evicted_blocks.saturating_sub(before.evicted_blocks);
        let bytes = after.evicted_bytes.saturating_sub(before.evicted_bytes);
        tracing::info!(blocks, bytes, after.cached_bytes, "cached blocks were evicted on request");
        let (cached_bytes, pinned_bytes) = (after.cached_bytes, after.pinned_bytes);
        Ok(CollectedView { blocks: Some(blocks), bytes, cached_bytes, pinned_bytes })
    }

    async fn estimate(&self, cached_bytes: u64) -> Result<CollectedView, StoreError> {
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
