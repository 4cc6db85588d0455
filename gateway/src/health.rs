//! [`Health`]: what `/healthz` and `/readyz` answer, on both listeners.

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use std::sync::atomic::{AtomicU8, Ordering};

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

/// The stage that the process is in.
#[derive(Debug, Default)]
pub struct Health(AtomicU8);

impl Health {
    /// Goes on to a stage. One that is over is not come back to.
    pub fn enter(&self, stage: Stage) {
        self.0.fetch_max(stage as u8, Ordering::Relaxed);
    }

    /// Serves again instead of draining. Returns whether it serves now: not while it starts, and not when it ends.
    pub fn resume(&self) -> bool {
        let (draining, serving) = (Stage::Draining as u8, Stage::Serving as u8);
        match self.0.compare_exchange(draining, serving, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(stage) => stage == serving,
        }
    }

    /// The stage that it is in.
    pub fn stage(&self) -> Stage {
        match self.0.load(Ordering::Relaxed) {
            0 => Stage::Starting,
            1 => Stage::Serving,
            2 => Stage::Draining,
            _ => Stage::Ending,
        }
    }

    /// 200 whenever anything answers at all.
    pub fn alive() -> Response<String> {
        answer(StatusCode::OK, "ok\n")
    }

    /// 200 while requests are welcome, else 503.
    pub fn ready(&self) -> Response<String> {
        match self.stage() {
            Stage::Serving => answer(StatusCode::OK, "ready\n"),
            Stage::Starting => answer(StatusCode::SERVICE_UNAVAILABLE, "starting\n"),
            Stage::Draining | Stage::Ending => answer(StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
        }
    }
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

    #[test]
    fn ready_is_only_while_serving() {
        let health = Health::default();
        assert_eq!(health.ready().status(), StatusCode::SERVICE_UNAVAILABLE);
        health.enter(Stage::Serving);
        assert_eq!(health.ready().status(), StatusCode::OK);
        health.enter(Stage::Draining);
        assert_eq!(
            (health.ready().status(), health.ready().body().as_str()),
            (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
        );
        assert_eq!(Health::alive().status(), StatusCode::OK);
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
        assert_eq!(health.ready().body(), "draining\n");
    }
}
