//! `GET /api/v1/fetch/ROOT/CID`: a block, stored locally or not, for commands that read content (`cli::store_cli`).
//!
//! Goals: the block is read as for a request to the public listener: from memory, from the disk, then from the network,
//! as far as the policy allows, and it is cached. All blocks below one root share one Bitswap session, which asks the
//! root's providers for them.
//!
//! The API serves blocks and not files, so that a command checks each block against its CID and chooses the order.
//!
//! Limits: sessions are kept for [`SESSIONS_MAX`] roots and [`IDLE`] after the last block. A search times out
//! (`http.stall_timeout_seconds`), and fetches count towards the same fetch limiter as all requests.

use crate::http::answer::{Answer, ApiError, status_of, stopping};
use crate::http::error_responses::DiskFailed;
use crate::http::parameters::{Parameters, bad_request};
use api::error::ErrorView;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse as _;
use content::{Block, Cid, SourceError};
use gateway::resolve::source::{RootSource, Sources};
use moka::sync::Cache;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The maximum number of roots whose sessions are kept.
const SESSIONS_MAX: u64 = 64;
/// How long an unused session is kept.
const IDLE: Duration = Duration::from_secs(60);
/// The client address that these fetches count towards in the fetch limiter.
const FETCH_CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The state of the route: the sources of blocks, and a session for each root.
#[derive(Clone)]
struct Fetcher {
    sources: Arc<Sources>,
    sessions: Cache<Cid, Arc<RootSource>>,
}

/// The routes. They have no timeout of their own, since a search may take long.
pub fn long_running_routes(sources: &Arc<Sources>) -> OpenApiRouter {
    let sessions = Cache::builder().max_capacity(SESSIONS_MAX).time_to_idle(IDLE).build();
    let fetcher = Fetcher { sources: Arc::clone(sources), sessions };
    OpenApiRouter::default().routes(routes!(fetch)).with_state(fetcher)
}

/// A block of a DAG, fetched from the network if it is not stored locally.
#[utoipa::path(get, path = "/api/v1/fetch/{root}/{cid}", tag = "store", security(("bearer" = ["read"])),
    params(("root" = String, Path, description = "The root of the DAG, whose providers are asked"),
        ("cid" = String, Path, description = "The block")),
    responses((status = 200, description = "The block's bytes", content_type = "application/vnd.ipld.raw"),
        (status = 400, description = "A CID is invalid", body = ErrorView),
        (status = 404, description = "The block is not stored locally, and no provider was found", body = ErrorView),
        (status = 410, description = "The policy withholds the block", body = ErrorView),
        (status = 451, description = "The policy withholds the block for legal reasons", body = ErrorView), DiskFailed,
        (status = 502, description = "The provider sent an invalid block", body = ErrorView)))]
async fn fetch(State(fetcher): State<Fetcher>, Path((root, cid)): Path<(String, String)>, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    let parse = |text: &str| content::cid::parse(text).map_err(bad_request);
    let (root, cid) = (parse(&root)?, parse(&cid)?);
    // No tier checks the policy for a block whose CID has an identity hash.
    content::policy::admit(&*fetcher.sources.policy, &cid).map_err(fetch_error)?;
    let block = match Block::inline(&cid) {
        Some(block) => block,
        None => fetcher.session(root).fetch(&cid).await.map_err(fetch_error)?,
    };
    let headers =
        [(CONTENT_TYPE, "application/vnd.ipld.raw"), (CACHE_CONTROL, "no-store"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    Ok((headers, Body::from(block.data().clone())).into_response())
}

impl Fetcher {
    fn session(&self, root: Cid) -> Arc<RootSource> {
        self.sessions.get_with(root, || RootSource::new(&self.sources, root, FETCH_CLIENT, false))
    }
}

/// Maps a failed fetch to a status. A block without providers is 404 and not an error of the gateway.
fn fetch_error(error: SourceError) -> ApiError {
    let status = match error {
        SourceError::NotFound { .. } | SourceError::Stalled { .. } => StatusCode::NOT_FOUND,
        SourceError::Busy { .. } | SourceError::RateLimited { .. } => StatusCode::TOO_MANY_REQUESTS,
        SourceError::Corrupt { .. } => StatusCode::BAD_GATEWAY,
        SourceError::Refused { verdict, .. } | SourceError::RefusedPath { verdict, .. } => status_of(verdict),
        SourceError::TooMuchWork { .. } => StatusCode::FORBIDDEN,
        SourceError::Unacceptable(_) => StatusCode::BAD_REQUEST,
        SourceError::Store(_) => StatusCode::INTERNAL_SERVER_ERROR,
        SourceError::Closed => return stopping(),
    };
    ApiError(status, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;
    use content::{BlockSource, MemoryBlocks, codec, hashes};
    use http_body_util::BodyExt as _;
    use services::limiter::Limiter;
    use std::sync::Mutex;
    use tower::ServiceExt as _;

    fn block(text: &'static str) -> Block {
        Block::of(codec::RAW, hashes::SHA2_256, 32, text.into()).expect("a block")
    }

    /// Sources with local blocks and network blocks, and the roots of the sessions that were opened.
    fn sources(here: &[&Block], there: &[&Block]) -> (Arc<Sources>, Arc<Mutex<Vec<Cid>>>) {
        let held = |blocks: &[&Block]| {
            let all = Arc::new(MemoryBlocks::new());
            blocks.iter().for_each(|block| all.insert(block));
            all
        };
        let (local, network, session_roots) = (held(here), held(there), Arc::<Mutex<Vec<Cid>>>::default());
        let recorded = Arc::clone(&session_roots);
        let sources = Sources {
            local: local as _,
            open_session: Box::new(move |root, _gate| {
                recorded.lock().expect("is sound").push(*root);
                Arc::clone(&network) as Arc<dyn BlockSource>
            }),
            fetches: Arc::new(Limiter::new(8, 8)),
            policy: Arc::new(content::AllowAll),
        };
        (Arc::new(sources), session_roots)
    }

    async fn get(router: &axum::Router, path: &str) -> (u16, Vec<u8>) {
        let request = Request::get(format!("/api/v1/fetch/{path}")).body(Body::empty()).expect("a request");
        let response = router.clone().oneshot(request).await.expect("answers");
        let status = response.status().as_u16();
        (status, response.into_body().collect().await.expect("a body").to_bytes().to_vec())
    }

    #[tokio::test]
    async fn blocks_below_one_root_are_one_search() {
        let (root, leaf, here, nowhere) = (block("root"), block("leaf"), block("here"), block("nowhere"));
        let (sources, session_roots) = sources(&[&here], &[&root, &leaf]);
        let router: axum::Router = long_running_routes(&sources).into();
        let of = |block: &Block| format!("{}/{}", root.cid(), block.cid());
        assert_eq!(get(&router, &of(&here)).await, (200, b"here".to_vec()));
        assert_eq!(*session_roots.lock().expect("is sound"), [], "no session is opened for a local block");
        for wanted in [&root, &leaf, &leaf] {
            assert_eq!(get(&router, &of(wanted)).await, (200, wanted.data().to_vec()));
        }
        assert_eq!(*session_roots.lock().expect("is sound"), [*root.cid()]);
        let (status, message) = get(&router, &of(&nowhere)).await;
        assert_eq!((status, String::from_utf8_lossy(&message).contains("is not stored locally")), (404, true));
        assert_eq!(get(&router, "bafkqac3imvwgy3zao5xxe3de/bafkqac3imvwgy3zao5xxe3de").await.0, 200);
        for wrong in ["a/b", &format!("{}/b", root.cid()), &format!("{}?fetch=1", of(&leaf))] {
            assert_eq!(get(&router, wrong).await.0, 400, "{wrong}");
        }
    }
}
