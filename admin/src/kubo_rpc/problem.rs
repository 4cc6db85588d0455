//! [`RpcError`]: why a command failed, in the format of Kubo's clients.
//!
//! Departure from Kubo, which answers nearly all errors with 500: the status says whether the client, the content or
//! the node is the cause. Clients take the message from the body for any status except 404, which they take for an
//! unknown command. So 404 has only this meaning, and a path that does not exist is 422.

use crate::http::answer::{self, UnreadBody};
use api::error::KuboError;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use cache::{PinError, StoreError};
use content::dag::DagError;
use content::ipld::IpldError;
use content::names::NameError;
use content::scope::ScopeError;
use content::unixfs::NodeError;
use content::unixfs::dir::DirError;
use content::unixfs::file::ReadError;
use content::walk::WalkError;
use content::{BlockError, SourceError};
use gateway::errors::Problem;
use p2p_bridge::names::keystore::KeyError;
use p2p_bridge::names::publish::PublishError;
use std::fmt;

/// The `Retry-After` of 429 and 503, in seconds.
const RETRY_SECONDS: u16 = 5;

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcError {
    /// The status, if the answer has not begun.
    pub status: StatusCode,
    /// The message.
    pub message: String,
}

impl RpcError {
    /// 400: the command is invalid.
    pub fn bad_request(message: impl fmt::Display) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.to_string() }
    }

    /// 422: the command is valid, and fails on the content or state that it finds.
    pub fn unprocessable(message: impl fmt::Display) -> Self {
        Self { status: StatusCode::UNPROCESSABLE_ENTITY, message: message.to_string() }
    }

    /// 500: the node failed.
    pub fn internal(message: impl fmt::Display) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, message: message.to_string() }
    }

    /// 503: the node is stopping.
    pub fn stopping() -> Self {
        answer::stopping().into()
    }

    /// The error as Kubo's JSON object.
    pub fn view(&self) -> KuboError {
        let code = match self.status {
            StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::PAYLOAD_TOO_LARGE => 1,
            StatusCode::TOO_MANY_REQUESTS => 3,
            StatusCode::FORBIDDEN | StatusCode::GONE | StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS => 4,
            _ => 0,
        };
        KuboError { message: self.message.clone(), code, kind: "error".to_owned() }
    }

    /// The error as a JSON line.
    pub fn line(&self) -> Vec<u8> {
        // A view of strings and a number always serialises.
        let mut text = serde_json::to_vec(&self.view()).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// The error as a response to a client that may still be sending `body`.
    pub fn with_lingering_read(self, body: impl Into<UnreadBody>) -> Response {
        let UnreadBody(body) = body.into();
        answer::with_lingering_read(self.into_response(), body)
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RpcError {}

impl IntoResponse for RpcError {
    fn into_response(self) -> Response {
        let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
        let mut response = (self.status, headers, self.line()).into_response();
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_SECONDS));
        }
        response
    }
}

impl From<answer::ApiError> for RpcError {
    fn from(answer::ApiError(status, message): answer::ApiError) -> Self {
        let status = if status == StatusCode::NOT_FOUND { StatusCode::UNPROCESSABLE_ENTITY } else { status };
        Self { status, message }
    }
}

impl From<Problem> for RpcError {
    /// The gateway's status, except that 404 and errors that the content causes become 422.
    fn from(problem: Problem) -> Self {
        let status = match problem.status() {
            StatusCode::NOT_FOUND
            | StatusCode::NOT_ACCEPTABLE
            | StatusCode::PRECONDITION_FAILED
            | StatusCode::NOT_IMPLEMENTED
            | StatusCode::BAD_GATEWAY => StatusCode::UNPROCESSABLE_ENTITY,
            // The gateway answers exceeded limits with 403, which clients would take for missing authorisation.
            StatusCode::FORBIDDEN => StatusCode::UNPROCESSABLE_ENTITY,
            status => status,
        };
        Self { status, message: problem.to_string() }
    }
}

/// Converts errors for which the gateway has a [`Problem`].
macro_rules! by_problem {
    ($($error:ty),*) => {
        $(impl From<$error> for RpcError {
            fn from(error: $error) -> Self {
                Problem::from(error).into()
            }
        })*
    };
}

by_problem!(WalkError, ReadError, DirError, NameError, IpldError);

impl From<ScopeError> for RpcError {
    fn from(error: ScopeError) -> Self {
        Problem::Scope(error).into()
    }
}

impl From<SourceError> for RpcError {
    fn from(error: SourceError) -> Self {
        WalkError::Source(error).into()
    }
}

impl From<NodeError> for RpcError {
    fn from(error: NodeError) -> Self {
        WalkError::from(error).into()
    }
}

impl From<DagError> for RpcError {
    fn from(error: DagError) -> Self {
        match error {
            DagError::Node(error) => error.into(),
            DagError::Source(error) => error.into(),
            DagError::Memory => Self { status: StatusCode::SERVICE_UNAVAILABLE, message: error.to_string() },
            DagError::TooManyBlocks { .. } | DagError::TooManyLinks { .. } => Self::unprocessable(error.to_string()),
        }
    }
}

impl From<BlockError> for RpcError {
    fn from(error: BlockError) -> Self {
        Self::bad_request(error)
    }
}

impl From<StoreError> for RpcError {
    fn from(error: StoreError) -> Self {
        answer::ApiError::from(error).into()
    }
}

impl From<PinError> for RpcError {
    fn from(error: PinError) -> Self {
        let message = error.to_string();
        match error {
            PinError::Store(error) => error.into(),
            PinError::NameTooLong { .. } => Self::bad_request(message),
            PinError::Removed { .. } | PinError::Lost { .. } => Self { status: StatusCode::CONFLICT, message },
            PinError::RootMissing { .. } => Self::unprocessable(message),
            PinError::Blocks(error) => match error.downcast::<DagError>() {
                Ok(error) => Self { message, ..Self::from(*error) },
                Err(_) => Self::unprocessable(message),
            },
        }
    }
}

impl From<KeyError> for RpcError {
    fn from(error: KeyError) -> Self {
        answer::ApiError::from(error).into()
    }
}

impl From<PublishError> for RpcError {
    fn from(error: PublishError) -> Self {
        answer::ApiError::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::{Cid, Stall, Verdict};

    fn cid() -> Cid {
        content::cid::parse("bafkqaddjnzzxazldoqwxizltoq").expect("a CID")
    }

    #[test]
    fn a_status_says_what_the_cause_is_and_is_never_404() {
        let table: [(RpcError, u16, u32); 9] = [
            (RpcError::bad_request("no"), 400, 1),
            (SourceError::NotFound { cid: cid() }.into(), 422, 0),
            (SourceError::Busy { retry_after: std::time::Duration::ZERO }.into(), 429, 3),
            (SourceError::Closed.into(), 503, 0),
            (SourceError::Stalled { cid: cid(), stall: Stall::default() }.into(), 504, 0),
            (SourceError::Refused { cid: cid(), verdict: Verdict::Gone }.into(), 410, 4),
            (SourceError::Refused { cid: cid(), verdict: Verdict::Legal }.into(), 451, 4),
            (WalkError::NoLink { parent: cid(), name: "x".to_owned() }.into(), 422, 0),
            (WalkError::Malformed { cid: cid(), reason: "bad".to_owned() }.into(), 422, 0),
        ];
        for (error, status, code) in table {
            assert_eq!((error.status.as_u16(), error.view().code), (status, code), "{error}");
        }
    }

    #[test]
    fn errors_are_written_as_kubo_writes_them() {
        let line = RpcError::bad_request("say it \"so\"").line();
        assert_eq!(line, b"{\"Message\":\"say it \\\"so\\\"\",\"Code\":1,\"Type\":\"error\"}\n");
    }
}
