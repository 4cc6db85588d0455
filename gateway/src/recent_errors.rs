//! [`RecentErrors`]: the latest responses of the public listener that failed, for operators.
//!
//! They are the responses with a status of the class 5xx, and those that were aborted because the rest of the content
//! did not arrive or is invalid. A client that leaves is no error of the gateway.
//!
//! Goals: a response that succeeds costs nothing; the list has a fixed size, of which one client fills a quarter at
//! most; no address is kept other than as `log.access_addresses` has it, and no query, as in the access log.
//!
//! Non-goals: a log: it is lost with the process.

use crate::access_log::RequestLog;
use crate::errors::Problem;
use crate::request::client::Client;
use crate::running::{RequestSnapshot, truncated};
use http::StatusCode;
use http::request::Parts;
use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// The number of errors that are kept, and those of one client.
const ERRORS_MAX: usize = 200;
const CLIENT_ERRORS_MAX: usize = ERRORS_MAX / 4;
/// What an aborted response's reason begins with.
const ABORTED: &str = "aborted: ";

/// A response that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentError {
    /// When it failed.
    pub at: SystemTime,
    /// The method.
    pub method: String,
    /// The path without its query, truncated if long.
    pub path: String,
    /// The requested host, as sent, truncated if long.
    pub host: String,
    /// The client, as limits count it and the access log shows it; empty if it shows no addresses.
    pub client: String,
    /// The status of the response.
    pub status: Option<StatusCode>,
    /// The error that was sent, or "aborted: " and the error.
    pub reason: String,
    /// The time since the request was received.
    pub took: Duration,
    /// The trace, if the request is traced.
    pub trace_id: Option<String>,
}

/// The latest errors.
#[derive(Debug, Default)]
pub struct RecentErrors {
    log: Arc<RequestLog>,
    /// Tells clients apart, without their addresses.
    hasher: RandomState,
    /// The hash of each one's client, oldest first.
    errors: Mutex<VecDeque<(u64, RecentError)>>,
}

fn without_query(path: &str) -> &str {
    path.split_once('?').map_or(path, |(path, _)| path)
}

impl RecentErrors {
    /// An empty list, which shows addresses as this log does.
    pub fn new(log: Arc<RequestLog>) -> Self {
        Self { log, ..Self::default() }
    }

    /// Records the answer to a request if its status is of the class 5xx.
    pub fn answered(&self, head: &Parts, client: &Client, status: StatusCode, problem: &Problem, took: Duration) {
        if !status.is_server_error() {
            return;
        }
        let error = RecentError {
            at: SystemTime::now(),
            method: head.method.as_str().chars().take(16).collect(),
            path: truncated(head.uri.path()),
            host: truncated(&client.authority),
            client: self.log.address(client.group()),
            status: Some(status),
            reason: truncated(&problem.to_string()),
            took,
            trace_id: client.trace.as_ref().map(|trace| trace.id().to_string()),
        };
        self.add(client.group(), error);
    }

    /// Records a response that was aborted after its head was sent.
    pub fn aborted(&self, request: RequestSnapshot, problem: &Problem, trace_id: Option<String>) {
        let error = RecentError {
            at: SystemTime::now(),
            method: request.method,
            path: without_query(&request.path).to_owned(),
            host: request.host,
            client: self.log.address(request.client),
            status: request.status,
            reason: truncated(&format!("{ABORTED}{problem}")),
            took: request.since,
            trace_id,
        };
        self.add(request.client, error);
    }

    fn add(&self, client: IpAddr, error: RecentError) {
        let client = self.hasher.hash_one(client);
        let mut errors = self.errors();
        let of_client = errors.iter().filter(|(other, _)| *other == client).count();
        if of_client >= CLIENT_ERRORS_MAX {
            let oldest = errors.iter().position(|(other, _)| *other == client);
            oldest.into_iter().for_each(|oldest| _ = errors.remove(oldest));
        } else if errors.len() >= ERRORS_MAX {
            errors.pop_front();
        }
        errors.push_back((client, error));
    }

    /// The errors, the newest first.
    pub fn list(&self) -> Vec<RecentError> {
        self.errors().iter().rev().map(|(_, error)| error.clone()).collect()
    }

    fn errors(&self) -> MutexGuard<'_, VecDeque<(u64, RecentError)>> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{AccessAddresses, Log};
    use http::Request;

    fn fail(errors: &RecentErrors, client: [u8; 4], path: &str, status: u16) {
        let head = Request::builder().uri(path).body(()).expect("a request").into_parts().0;
        let client = Client::new(client.into(), "a.example".to_owned(), false);
        let status = StatusCode::from_u16(status).expect("a status");
        errors.answered(&head, &client, status, &Problem::TooSlow, Duration::from_secs(3));
    }

    #[test]
    fn one_client_fills_a_quarter_and_the_newest_are_kept() {
        let errors = RecentErrors::default();
        let paths = || errors.list().into_iter().map(|error| error.path).collect::<Vec<_>>();
        fail(&errors, [192, 0, 2, 1], "/first", 500);
        (0..500).for_each(|number| fail(&errors, [192, 0, 2, 7], &format!("/flood/{number}"), 504));
        assert_eq!(paths().len(), CLIENT_ERRORS_MAX + 1);
        assert_eq!((&*paths()[0], &*paths()[CLIENT_ERRORS_MAX]), ("/flood/499", "/first"));
        for client in 10..30 {
            (0..20).for_each(|number| fail(&errors, [192, 0, 2, client], &format!("/{client}/{number}"), 503));
        }
        assert_eq!(paths().len(), ERRORS_MAX);
        assert!(paths().iter().all(|path| !path.starts_with("/flood") && path != "/first"), "the oldest are gone");
        assert_eq!(paths()[0], "/29/19");
    }

    #[test]
    fn an_error_says_what_failed_without_queries_and_in_bounds() {
        let errors = RecentErrors::default();
        fail(&errors, [192, 0, 2, 1], "/fine", 404);
        assert_eq!(errors.list(), []);
        fail(&errors, [192, 0, 2, 1], &format!("/{}?token=secret", "a".repeat(9000)), 504);
        let error = errors.list().remove(0);
        assert!(error.path.len() < 1024 && !error.path.contains("secret"), "{error:?}");
        assert_eq!((&*error.method, &*error.host, &*error.client), ("GET", "a.example", "192.0.2.1"));
        assert_eq!((error.status, error.took), (Some(StatusCode::GATEWAY_TIMEOUT), Duration::from_secs(3)));
        assert!(!error.reason.is_empty() && !error.reason.starts_with(ABORTED));
    }

    #[test]
    fn addresses_are_those_of_the_access_log() {
        for (mode, expected) in [
            (AccessAddresses::Full, Some("192.0.2.7")),
            (AccessAddresses::Truncated, Some("192.0.2.0")),
            (AccessAddresses::None, Some("")),
            (AccessAddresses::Hashed, None),
        ] {
            let log = RequestLog::new(&Log { access_addresses: mode, ..Log::default() }, None);
            let errors = RecentErrors::new(Arc::new(log));
            fail(&errors, [192, 0, 2, 7], "/", 500);
            let client = errors.list().remove(0).client;
            match expected {
                Some(expected) => assert_eq!(client, expected, "{mode:?}"),
                None => assert!(client.len() == 16 && !client.contains('.'), "{client}"),
            }
        }
    }
}
