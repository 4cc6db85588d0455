//! Error bodies: of the admin API, the Pinning Service API, and Kubo's RPC.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorView {
    /// The cause, and how to resolve it.
    pub error: String,
}

/// An error of the Pinning Service API (<https://ipfs.github.io/pinning-services-api-spec/>, schema "Failure").
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = PinningFailure)]
pub struct PinningError {
    /// The error.
    pub error: PinningErrorWords,
}

/// The reason and the details of an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PinningErrorWords {
    /// The reason for programs, in capitals, such as `UNAUTHORIZED`.
    pub reason: String,
    /// The cause, and how to resolve it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
}

/// An error of Kubo's RPC (`Error` of go-ipfs-cmds).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct KuboError {
    /// The cause, and how to resolve it.
    pub message: String,
    /// 0: any other error; 1: a client error; 2: not implemented; 3: rate limited; 4: forbidden.
    pub code: u32,
    /// Always "error".
    #[serde(rename = "Type")]
    pub kind: String,
}
