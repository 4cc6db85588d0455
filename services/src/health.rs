//! [`Health`]: the responses of `/healthz` and `/readyz`, on both listeners.
//!
//! `/readyz` is 200 while everything works. It is 503 while the process starts or drains, and while a component is
//! degraded: if the store cannot write, because the disk is full, has no inodes left or fails, it still serves stored
//! content and fetches the rest from the network, but every miss is fetched again, and pins and uploads fail. Load
//! balancers then prefer another gateway; requests that arrive are answered. A gateway that is cut off from its site may
//! refuse content meanwhile ([`crate::isolation`]).

use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use serde::Serialize;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};

/// The status of `/readyz` while everything works.
const READY: &str = "ready";

/// The life cycle of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// The store is being opened, or a listener bound.
    Starting,
    /// The store is open and all listeners are bound.
    Serving,
    /// Load balancers should send no more traffic; requests are still answered.
    Draining,
    /// The process ends: after `http.drain_delay_seconds`, no further connections are accepted and open requests are
    /// finished.
    Ending,
}

/// Why load balancers should prefer another gateway although this one answers requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Degraded {
    /// The degraded component: "store" or "site".
    pub part: &'static str,
    /// The reason, as one word.
    pub reason: &'static str,
    /// The reason as a sentence, with what to do about it.
    pub message: String,
}

/// A health check of a component.
type Check = Box<dyn Fn() -> Option<Degraded> + Send + Sync>;

/// The stage of the process, and the health checks.
#[derive(Default)]
pub struct Health {
    stage: AtomicU8,
    /// The essential task that has ended, if any.
    failed: OnceLock<&'static str>,
    checks: RwLock<Vec<Check>>,
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("stage", &self.stage()).finish_non_exhaustive()
    }
}

/// The JSON of `/readyz`.
#[derive(Debug, Serialize)]
struct Readiness {
    status: &'static str,
    /// The essential task that has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    degraded: Vec<Degraded>,
}

impl Health {
    /// Enters a stage. Earlier stages are ignored.
    pub fn enter(&self, stage: Stage) {
        self.stage.fetch_max(stage as u8, Ordering::Relaxed);
    }

    /// Ends draining. Returns whether it is serving now: not while it starts, and not when it ends.
    pub fn resume(&self) -> bool {
        let (draining, serving) = (Stage::Draining as u8, Stage::Serving as u8);
        match self.stage.compare_exchange(draining, serving, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(stage) => stage == serving,
        }
    }

    /// The current stage.
    pub fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Relaxed) {
            0 => Stage::Starting,
            1 => Stage::Serving,
            2 => Stage::Draining,
            _ => Stage::Ending,
        }
    }

    /// Reports that an essential task has ended ([`crate::supervision`]). Only a restart recovers from that.
    pub fn fail(&self, part: &'static str) {
        // Only the first is reported: it may be the cause of the others.
        _ = self.failed.set(part);
    }

    /// The essential task that has ended, if any.
    pub fn failed(&self) -> Option<&'static str> {
        self.failed.get().copied()
    }

    /// The response of `/healthz`: always 200.
    pub fn alive() -> Response<String> {
        answer(StatusCode::OK, "ok\n")
    }

    /// Adds a health check, which must not block.
    pub fn watch(&self, check: impl Fn() -> Option<Degraded> + Send + Sync + 'static) {
        self.checks.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(check));
    }

    /// The degraded components.
    pub fn degraded(&self) -> Vec<Degraded> {
        self.checks.read().unwrap_or_else(PoisonError::into_inner).iter().filter_map(|check| check()).collect()
    }

    /// Whether `/readyz` is 200.
    pub fn is_ready(&self) -> bool {
        self.status().0 == READY
    }

    /// The status as one word, with the degraded components.
    fn status(&self) -> (&'static str, Vec<Degraded>) {
        match self.stage() {
            _ if self.failed().is_some() => ("failed", Vec::new()),
            Stage::Starting => ("starting", Vec::new()),
            Stage::Draining | Stage::Ending => ("draining", Vec::new()),
            Stage::Serving => match self.degraded() {
                degraded if degraded.is_empty() => (READY, degraded),
                degraded => ("degraded", degraded),
            },
        }
    }

    /// The response of `/readyz`: 200 while serving, else 503 with the reasons, as text or, if accepted, as JSON.
    pub fn ready(&self, asked: &HeaderMap) -> Response<String> {
        let failed = self.failed();
        let (status, degraded) = self.status();
        let code = if status == READY { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        if wants_json(asked) {
            return json(code, &Readiness { status, failed, degraded });
        }
        let reasons: String =
            degraded.iter().map(|Degraded { part, message, .. }| format!("{part}: {message}\n")).collect();
        match failed {
            Some(part) => answer(code, &format!("failed: {part} has ended\n")),
            None => answer(code, &format!("{status}\n{reasons}")),
        }
    }
}

fn wants_json(asked: &HeaderMap) -> bool {
    let accepted = asked.get(ACCEPT).and_then(|accepted| accepted.to_str().ok());
    accepted.is_some_and(|accepted| accepted.contains("application/json"))
}

fn json(status: StatusCode, readiness: &Readiness) -> Response<String> {
    let mut response = answer(status, &serde_json::to_string(readiness).unwrap_or_default());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn answer(status: StatusCode, text: &str) -> Response<String> {
    let mut response = Response::new(text.to_owned());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn ready_is_only_while_serving() {
        let health = Health::default();
        assert_eq!(health.ready(&HeaderMap::new()).status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(!health.is_ready());
        health.enter(Stage::Serving);
        assert_eq!(health.ready(&HeaderMap::new()).status(), StatusCode::OK);
        assert!(health.is_ready());
        health.enter(Stage::Draining);
        assert_eq!(
            (health.ready(&HeaderMap::new()).status(), health.ready(&HeaderMap::new()).body().as_str()),
            (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
        );
        assert_eq!(Health::alive().status(), StatusCode::OK);
    }

    #[test]
    fn a_degraded_component_is_reported_and_ends_readiness() {
        let health = Health::default();
        let (full, json) = (Arc::new(AtomicBool::new(false)), json_wanted());
        let is_full = Arc::clone(&full);
        health.watch(move || {
            let degraded = Degraded { part: "store", reason: "full", message: "the disk is full".to_owned() };
            is_full.load(Ordering::SeqCst).then_some(degraded)
        });
        let says = |asked: &HeaderMap| {
            let said = health.ready(asked);
            (said.status().as_u16(), said.into_body())
        };
        full.store(true, Ordering::SeqCst);
        assert_eq!(says(&HeaderMap::new()), (503, "starting\n".to_owned()), "health checks count only while serving");
        health.enter(Stage::Serving);
        assert_eq!(says(&HeaderMap::new()), (503, "degraded\nstore: the disk is full\n".to_owned()));
        let degraded = r#"[{"part":"store","reason":"full","message":"the disk is full"}]"#;
        assert_eq!(says(&json), (503, format!(r#"{{"status":"degraded","degraded":{degraded}}}"#)));
        full.store(false, Ordering::SeqCst);
        assert_eq!(says(&HeaderMap::new()), (200, "ready\n".to_owned()));
        assert_eq!(says(&json), (200, r#"{"status":"ready"}"#.to_owned()));
    }

    fn json_wanted() -> HeaderMap {
        [(ACCEPT, HeaderValue::from_static("application/json"))].into_iter().collect()
    }

    #[test]
    fn draining_can_be_undone_and_ending_cannot() {
        let health = Health::default();
        assert!(!health.resume() && health.stage() == Stage::Starting);
        // A drain that is requested during the start persists.
        health.enter(Stage::Draining);
        health.enter(Stage::Serving);
        assert_eq!(health.stage(), Stage::Draining);
        assert!(health.resume() && health.stage() == Stage::Serving);
        assert!(health.resume() && health.stage() == Stage::Serving);
        health.enter(Stage::Ending);
        health.enter(Stage::Draining);
        assert!(!health.resume() && health.stage() == Stage::Ending);
        assert_eq!(health.ready(&HeaderMap::new()).body(), "draining\n");
    }
}
