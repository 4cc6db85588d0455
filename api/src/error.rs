//! Error bodies: those of our own API, of the Pinning Service API, and of Kubo's RPC.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What is answered when something goes wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorView {
    /// What went wrong, and what to do.
    pub error: String,
}

/// The same in the Pinning Service API (<https://ipfs.github.io/pinning-services-api-spec/>, schema "Failure").
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = PinningFailure)]
pub struct PinningError {
    /// What went wrong.
    pub error: PinningErrorWords,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PinningErrorWords {
    /// For programs: the reason in capitals, such as `UNAUTHORIZED`.
    pub reason: String,
    /// For people: what went wrong, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
}

/// The same in Kubo's RPC (`Error` of go-ipfs-cmds).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct KuboError {
    /// What went wrong, and what to do.
    pub message: String,
    /// 0: anything; 1: the client's fault; 2: not implemented; 3: too many requests; 4: forbidden.
    pub code: u32,
    /// Always "error".
    #[serde(rename = "Type")]
    pub kind: String,
}
