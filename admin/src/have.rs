//! `POST /api/v1/store/have`: which blocks of a list are stored locally, so that an uploading client need not send
//! them.
//!
//! Goals: one request checks many blocks and reads no block data. Eviction may delete a block after the check, so an
//! upload names the blocks that it leaves out, and fails if one of them is gone ([`content::car::reference`]).

use crate::http::answer::{Answer, json};
use crate::http::error_responses::DiskFailed;
use crate::http::parameters::{Parameters, bad_request};
use api::error::ErrorView;
use api::store::{HaveQuestion, HaveView};
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use bytes::Bytes;
use cache::{BlockStore, StoreError};
use content::{Block, BlockKey, Cid};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The maximum number of CIDs in one request.
pub const CIDS_MAX: usize = 4096;

/// The routes.
pub fn routes(store: &Arc<dyn BlockStore>) -> OpenApiRouter {
    OpenApiRouter::default().routes(routes!(have)).with_state(Arc::clone(store))
}

/// Says which blocks of a list are stored locally.
#[utoipa::path(post, path = "/api/v1/store/have", tag = "store", security(("bearer" = ["operate"])),
    request_body = HaveQuestion,
    responses((status = 200, description = "For each CID, whether its block is stored locally", body = HaveView),
        (status = 400, description = "The body is not a list of CIDs, or has too many", body = ErrorView), DiskFailed))]
async fn have(State(store): State<Arc<dyn BlockStore>>, uri: Uri, body: Bytes) -> Answer {
    Parameters::of(&uri, &[])?;
    let HaveQuestion { cids } = serde_json::from_slice(&body)
        .map_err(|error| bad_request(format!("the body must be {{\"cids\": [\"CID\", …]}}: {error}")))?;
    if cids.len() > CIDS_MAX {
        return Err(bad_request(format!("the body has {} CIDs; at most {CIDS_MAX} are allowed", cids.len())));
    }
    let cids = cids.iter().map(|cid| content::cid::parse(cid)).collect::<Result<Vec<Cid>, _>>().map_err(bad_request)?;
    Ok(json(StatusCode::OK, &HaveView { held: stored_locally(&*store, &cids).await? }))
}

async fn stored_locally(store: &dyn BlockStore, cids: &[Cid]) -> Result<Vec<bool>, StoreError> {
    // A block whose CID has an identity hash has no key and is always available.
    let keys = cids.iter().filter_map(BlockKey::of).collect();
    let mut shapes = store.shapes(keys).await?.into_iter();
    let is_here = |cid: &Cid| match BlockKey::of(cid) {
        Some(_) => shapes.next().flatten().is_some(),
        None => Block::inline(cid).is_some(),
    };
    Ok(cids.iter().map(is_here).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::http::Request;
    use axum::http::header::CONTENT_TYPE;
    use cache::memory::{self, MemoryOptions};
    use content::{codec, hashes};
    use http_body_util::BodyExt as _;
    use serde_json::Value;
    use tower::ServiceExt as _;

    async fn ask(store: &Arc<dyn BlockStore>, question: &str) -> (u16, Value) {
        let request = Request::post("/api/v1/store/have").header(CONTENT_TYPE, "application/json");
        let request = request.body(Body::from(question.to_owned())).expect("a request");
        let router: axum::Router = routes(store).into();
        let response = router.oneshot(request).await.expect("answers");
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    #[tokio::test]
    async fn each_block_is_reported_as_stored_or_not() {
        let store = memory::open(&MemoryOptions::default()).expect("opens");
        let block = |text: &'static str| Block::of(codec::RAW, hashes::SHA2_256, 32, text.into()).expect("a block");
        let (here, absent) = (block("here"), block("absent"));
        store.put_cached(here.clone()).await;
        store.flush().await.expect("flushes");
        let other_codec = Cid::new_v1(codec::DAG_PB, *here.cid().hash());
        let cids = [absent.cid().to_string(), here.cid().to_string(), "bafkqac3imvwgy3zao5xxe3de".to_owned()];
        let cids = [&cids[..], &[other_codec.to_string(), here.cid().to_string()]].concat();
        let question = serde_json::json!({ "cids": cids }).to_string();
        let (status, answer) = ask(&store, &question).await;
        assert_eq!((status, &answer["held"]), (200, &serde_json::json!([false, true, true, true, true])));
        assert_eq!(ask(&store, "{\"cids\": []}").await, (200, serde_json::json!({ "held": [] })));
    }

    #[tokio::test]
    async fn invalid_bodies_are_rejected() {
        let store = memory::open(&MemoryOptions::default()).expect("opens");
        let many = serde_json::json!({ "cids": vec!["bafkqac3imvwgy3zao5xxe3de"; CIDS_MAX + 1] }).to_string();
        let table = [
            ("", 400),
            ("[]", 400),
            ("{\"cids\": [\"nonsense\"]}", 400),
            ("{\"cids\": [], \"more\": 1}", 400),
            (many.as_str(), 400),
        ];
        for (question, status) in table {
            let (got, answer) = ask(&store, question).await;
            assert!(got == status && answer["error"].is_string(), "{question:.60}: {got} {answer}");
        }
    }
}
