//! [`RpcError`]: why a command did not do what it was asked for, as Kubo's clients read it.
//!
//! Departures from Kubo, which answers nearly everything with 500: a status says whose fault it is. Clients take the words
//! from the body whatever the status is, but for 404, which they read as "no such command": so that is what it means here, and
//! what a path does not lead to is 422.

use crate::http::answer;
use api::error::KuboError;
use axum::body::Body;
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

/// When whoever finds everything busy is to come back, in seconds.
const RETRY_SECONDS: u16 = 5;

/// Why a command did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcError {
    /// The status, where nothing was answered yet.
    pub status: StatusCode,
    /// The words.
    pub message: String,
}

impl RpcError {
    /// The command cannot be understood, or never could be followed.
    pub fn bad(message: impl fmt::Display) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.to_string() }
    }

    /// The command makes sense, and cannot be followed with what is there.
    pub fn cannot(message: impl fmt::Display) -> Self {
        Self { status: StatusCode::UNPROCESSABLE_ENTITY, message: message.to_string() }
    }

    /// Something of ours is broken.
    pub fn broken(message: impl fmt::Display) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, message: message.to_string() }
    }

    /// The node ends.
    pub fn stopping() -> Self {
        answer::stopping().into()
    }

    /// How it is written.
    pub fn view(&self) -> KuboError {
        let code = match self.status {
            StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::PAYLOAD_TOO_LARGE => 1,
            StatusCode::TOO_MANY_REQUESTS => 3,
            StatusCode::FORBIDDEN | StatusCode::GONE | StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS => 4,
            _ => 0,
        };
        KuboError { message: self.message.clone(), code, kind: "error".to_owned() }
    }

    /// A line of JSON.
    pub fn line(&self) -> Vec<u8> {
        // A view of texts and a number can be written.
        let mut text = serde_json::to_vec(&self.view()).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// The answer for somebody who may still be sending `body`.
    pub fn to_sender(self, body: Body) -> Response {
        answer::while_sending(self.into_response(), body)
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

impl From<answer::Refusal> for RpcError {
    fn from(answer::Refusal(status, message): answer::Refusal) -> Self {
        let status = if status == StatusCode::NOT_FOUND { StatusCode::UNPROCESSABLE_ENTITY } else { status };
        Self { status, message }
    }
}

impl From<Problem> for RpcError {
    /// The gateway's own choice, but for what there is no 404 of, and what a stranger's content is to blame for.
    fn from(problem: Problem) -> Self {
        let status = match problem.status() {
            StatusCode::NOT_FOUND
            | StatusCode::NOT_ACCEPTABLE
            | StatusCode::PRECONDITION_FAILED
            | StatusCode::NOT_IMPLEMENTED
            | StatusCode::BAD_GATEWAY => StatusCode::UNPROCESSABLE_ENTITY,
            // A limit is no question of who asks.
            StatusCode::FORBIDDEN => StatusCode::UNPROCESSABLE_ENTITY,
            status => status,
        };
        Self { status, message: problem.to_string() }
    }
}

/// What the gateway has a problem for.
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
        }
    }
}

impl From<BlockError> for RpcError {
    fn from(error: BlockError) -> Self {
        Self::bad(error)
    }
}

impl From<StoreError> for RpcError {
    fn from(error: StoreError) -> Self {
        answer::Refusal::from(error).into()
    }
}

impl From<PinError> for RpcError {
    fn from(error: PinError) -> Self {
        let words = error.to_string();
        match error {
            PinError::Store(error) => error.into(),
            PinError::NameTooLong { .. } => Self::bad(words),
            PinError::Removed { .. } | PinError::Lost { .. } => Self { status: StatusCode::CONFLICT, message: words },
            PinError::RootMissing { .. } => Self::cannot(words),
            PinError::Blocks(error) => match error.downcast::<DagError>() {
                Ok(error) => Self { message: words, ..Self::from(*error) },
                Err(_) => Self::cannot(words),
            },
        }
    }
}

impl From<KeyError> for RpcError {
    fn from(error: KeyError) -> Self {
        answer::Refusal::from(error).into()
    }
}

impl From<PublishError> for RpcError {
    fn from(error: PublishError) -> Self {
        answer::Refusal::from(error).into()
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
    fn a_status_says_whose_fault_it_is_and_is_never_404() {
        let table: [(RpcError, u16, u32); 9] = [
            (RpcError::bad("no"), 400, 1),
            (SourceError::NotFound { cid: cid() }.into(), 422, 0),
            (SourceError::Busy.into(), 429, 3),
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
        let line = RpcError::bad("say it \"so\"").line();
        assert_eq!(line, b"{\"Message\":\"say it \\\"so\\\"\",\"Code\":1,\"Type\":\"error\"}\n");
    }
}
