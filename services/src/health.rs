//! [`Health`]: what `/healthz` and `/readyz` answer, on both listeners.
//!
//! `/readyz` is 200 while everything works. It is 503 while the process starts or drains, and while a part of it is degraded: a
//! store that stores nothing, because the disk is full, has no inodes left or fails, still serves what it holds and fetches
//! the rest from the network, but every miss is fetched again, and pins and uploads fail. Balancers prefer another gateway then;
//! who asks this one all the same is answered.

use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use serde::Serialize;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};

/// How far along its life the process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// The store or a listener is not there yet.
    Starting,
    /// The store is open and every listener bound.
    Serving,
    /// No more traffic is wanted; whoever comes is answered all the same.
    Draining,
    /// Open requests are being finished, no further connections are taken, and then the process ends.
    Ending,
}

/// Why requests had better go to another gateway although this one answers them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Degraded {
    /// What it is that does not work as it should: "store".
    pub part: &'static str,
    /// Why, in a word.
    pub reason: &'static str,
    /// The same in a sentence, with what to do about it.
    pub message: String,
}

/// Asked whenever somebody wants to know.
type Check = Box<dyn Fn() -> Option<Degraded> + Send + Sync>;

/// The stage that the process is in, and what to ask besides.
#[derive(Default)]
pub struct Health {
    stage: AtomicU8,
    /// A part without which requests cannot be answered, once it has ended.
    failed: OnceLock<&'static str>,
    checks: RwLock<Vec<Check>>,
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("stage", &self.stage()).finish_non_exhaustive()
    }
}

/// What `/readyz` says in JSON.
#[derive(Debug, Serialize)]
struct Readiness {
    status: &'static str,
    /// The part that has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    degraded: Vec<Degraded>,
}

impl Health {
    /// Goes on to a stage. One that is over is not come back to.
    pub fn enter(&self, stage: Stage) {
        self.stage.fetch_max(stage as u8, Ordering::Relaxed);
    }

    /// Serves again instead of draining. Returns whether it serves now: not while it starts, and not when it ends.
    pub fn resume(&self) -> bool {
        let (draining, serving) = (Stage::Draining as u8, Stage::Serving as u8);
        match self.stage.compare_exchange(draining, serving, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(stage) => stage == serving,
        }
    }

    /// The stage that it is in.
    pub fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Relaxed) {
            0 => Stage::Starting,
            1 => Stage::Serving,
            2 => Stage::Draining,
            _ => Stage::Ending,
        }
    }

    /// A part of the process has ended that it cannot do without ([`crate::supervision`]). That is not mended but by a start.
    pub fn fail(&self, part: &'static str) {
        // The first one is told: it may be what ended the others.
        _ = self.failed.set(part);
    }

    /// The part that has ended, if one has.
    pub fn failed(&self) -> Option<&'static str> {
        self.failed.get().copied()
    }

    /// 200 whenever anything answers at all.
    pub fn alive() -> Response<String> {
        answer(StatusCode::OK, "ok\n")
    }

    /// Asks this from now on. It must not wait for anything.
    pub fn watch(&self, check: impl Fn() -> Option<Degraded> + Send + Sync + 'static) {
        self.checks.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(check));
    }

    /// What does not work as it should.
    pub fn degraded(&self) -> Vec<Degraded> {
        self.checks.read().unwrap_or_else(PoisonError::into_inner).iter().filter_map(|check| check()).collect()
    }

    /// 200 while requests are welcome, else 503 with why: a word and then sentences, or JSON for those who accept that.
    pub fn ready(&self, asked: &HeaderMap) -> Response<String> {
        let failed = self.failed();
        let (status, degraded) = match self.stage() {
            _ if failed.is_some() => ("failed", Vec::new()),
            Stage::Starting => ("starting", Vec::new()),
            Stage::Draining | Stage::Ending => ("draining", Vec::new()),
            Stage::Serving => match self.degraded() {
                degraded if degraded.is_empty() => ("ready", degraded),
                degraded => ("degraded", degraded),
            },
        };
        let code = if status == "ready" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
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
        health.enter(Stage::Serving);
        assert_eq!(health.ready(&HeaderMap::new()).status(), StatusCode::OK);
        health.enter(Stage::Draining);
        assert_eq!(
            (health.ready(&HeaderMap::new()).status(), health.ready(&HeaderMap::new()).body().as_str()),
            (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
        );
        assert_eq!(Health::alive().status(), StatusCode::OK);
    }

    #[test]
    fn a_degraded_part_is_told_and_ends_readiness() {
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
        assert_eq!(says(&HeaderMap::new()), (503, "starting\n".to_owned()), "nothing else counts before it serves");
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
    fn draining_is_taken_back_and_ending_is_not() {
        let health = Health::default();
        assert!(!health.resume() && health.stage() == Stage::Starting);
        // Whoever wants no traffic while it starts gets none afterwards either.
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
