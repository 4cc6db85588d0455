//! `GET /api/v1/health`: what is wrong with the node, in words, and what to do about it.
//!
//! The state of the components is collected here, and [`findings`] makes sentences of it without I/O. The Prometheus
//! alerts in `deploy/prometheus` watch the same state; they know how long something lasts, and this does not.

pub mod findings;
mod memory;

use self::findings::{Facts, ListState, findings};
use crate::http::answer::{Answer, json};
use crate::http::error_responses::BadRequest;
use crate::http::parameters::Parameters;
use crate::operations::Operations;
use api::health::{HealthView, ReachabilityView};
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use p2p_bridge::reachability::Verdict;
use services::denylists::Lists;
use services::pinning::Pins;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The state of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateState {
    /// What it is for: a listener, or a name.
    pub subject: String,
    /// Whether it is obtained by ACME, and not read from files.
    pub by_acme: bool,
    /// When it expires, in seconds since 1970; `None` while there is none.
    pub expires_at: Option<i64>,
    /// Whether it should have been renewed long ago, as far as that is known.
    pub is_overdue: bool,
    /// Why it was not renewed, or the new files are not in use.
    pub failure: Option<String>,
}

/// An engine of a site that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineFailure {
    /// Which one.
    pub engine: SiteEngine,
    /// Its name and hosts, or its URL.
    pub name: String,
    /// How long it has lasted.
    pub lasting: Duration,
    /// What was said.
    pub reason: String,
}

/// An engine of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SiteEngine {
    /// The database.
    Database,
    /// The storage.
    Storage,
}

/// Returns the engines of a site that cannot be used.
pub type EngineFailures = Arc<dyn Fn() -> Vec<EngineFailure> + Send + Sync>;

/// The components that only [`read`] reads.
#[derive(Clone, Default)]
pub struct HealthSources {
    /// Returns the certificates of all listeners.
    pub certificates: Option<Arc<dyn Fn() -> Vec<CertificateState> + Send + Sync>>,
    /// The denylists.
    pub lists: Option<Arc<Lists>>,
    /// The pin service.
    pub pins: Option<Arc<Pins>>,
    /// The site of the gateway, if it belongs to one.
    pub site: Option<EngineFailures>,
}

fn list_states(lists: &Lists) -> Vec<ListState> {
    let state = |entry: &Arc<services::denylists::ListEntry>| {
        let state = entry.state();
        ListState {
            id: entry.id.to_string(),
            was_read: state.checked_at.is_some(),
            error: state.error,
            malformed: state.list.malformed(),
            cut_off: state.cut_off,
        }
    };
    lists.entries().iter().map(state).collect()
}

/// The health of the node: what is wrong, the most severe first.
#[utoipa::path(get, path = "/api/v1/health", tag = "operations", security(("bearer" = ["read"])),
    responses((status = 200, description = "The findings", body = HealthView), BadRequest))]
pub async fn read(State(operations): State<Operations>, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    Ok(json(StatusCode::OK, &operations.health_view().await))
}

impl Operations {
    async fn health_view(&self) -> HealthView {
        let parts = self.parts();
        let (peers, (verdict, addresses)) = match &parts.bridge {
            Some(bridge) => (Some(bridge.load().await.peers), bridge.reachability().await),
            None => (None, Default::default()),
        };
        let facts = self.facts(peers, verdict).await;
        let state = match verdict {
            Verdict::Reachable => "public",
            Verdict::Unreachable => "private",
            Verdict::Unknown => "unknown",
        };
        HealthView {
            ready: parts.health.is_ready(),
            stage: self.stage().stage,
            findings: findings(&facts),
            reachability: ReachabilityView {
                state: state.to_owned(),
                addresses: addresses.iter().map(ToString::to_string).collect(),
            },
        }
    }

    async fn facts(&self, peers: Option<usize>, reachability: Verdict) -> Facts {
        let parts = self.parts();
        let sources = &parts.health_sources;
        let system = self.system().await;
        let cache = &parts.loaded.config.cache;
        let (started_at, started) = self.inner.started;
        let pins = sources.pins.as_ref();
        Facts {
            stage: parts.health.stage(),
            failed: parts.health.failed(),
            degraded: parts.health.degraded(),
            store: self.store().stats(),
            is_on_disk: cache.store != config::StoreKind::Memory,
            disk_free_bytes_min: cache.disk_free_bytes_min,
            space: system.space,
            usage: system.usage,
            memory: memory::limit_of_container().await,
            peers,
            reachability,
            announces: !parts.loaded.config.p2p.announce.is_empty(),
            pins: pins.map(|pins| pins.counts()).unwrap_or_default(),
            pins_read_only: pins.is_some_and(|pins| pins.is_read_only()),
            lists: sources.lists.as_deref().map(list_states).unwrap_or_default(),
            certificates: sources.certificates.as_ref().map(|certificates| certificates()).unwrap_or_default(),
            site: sources.site.as_ref().map(|failures| failures()).unwrap_or_default(),
            uptime: started.elapsed(),
            started_at,
            now: SystemTime::now(),
        }
    }
}
