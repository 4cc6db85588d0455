//! Pins: objects of the Pinning Service API (<https://ipfs.github.io/pinning-services-api-spec/>), and the pins of all
//! owners.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::SystemTime;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::ToSchema;

/// A pin request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Pin)]
pub struct PinView {
    /// The root of the DAG that is pinned, with all of its blocks.
    #[schema(max_length = 1200)]
    pub cid: String,
    /// The name of the pin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 255, nullable = false)]
    pub name: Option<String>,
    /// Multiaddrs of peers that have the DAG, each ending in `/p2p/` and the peer ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 20, nullable = false)]
    pub origins: Option<Vec<String>>,
    /// Metadata: at most 1000 entries, and at most 16 KiB with their keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub meta: Option<BTreeMap<String, String>>,
}

/// The status of a pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Status)]
pub enum StatusView {
    /// Waiting for a slot, or for the next attempt.
    Queued,
    /// Being fetched.
    Pinning,
    /// Complete.
    Pinned,
    /// Failed permanently.
    Failed,
}

/// A pin with its status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = PinStatus)]
pub struct PinStatusView {
    /// The ID of the pin.
    pub requestid: String,
    /// The status.
    pub status: StatusView,
    /// When it was requested (RFC 3339), in milliseconds; unique among pins.
    #[schema(format = DateTime)]
    pub created: String,
    /// The pin request.
    pub pin: PinView,
    /// Multiaddrs of this node, for providers of the DAG.
    #[schema(min_items = 1, max_items = 20)]
    pub delegates: Vec<String>,
    /// `blocks` and `bytes` so far, `dag_size` when complete, the number of failed `attempts`, and `status_details`; of
    /// a packed file also the CIDs of its `zstd` file and of its plain content by that file (`packed`).
    #[serde(default)]
    pub info: BTreeMap<String, String>,
}

/// A page of pins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = PinResults)]
pub struct PinResultsView {
    /// The number of pins on all pages.
    #[schema(minimum = 0)]
    pub count: i32,
    /// The pins, the newest first.
    #[schema(max_items = 1000)]
    pub results: Vec<PinStatusView>,
}

/// A time in RFC 3339, in milliseconds.
pub fn rfc3339(time: SystemTime) -> String {
    let time = OffsetDateTime::from(time);
    let fine = time.replace_nanosecond(time.nanosecond() / 1_000_000 * 1_000_000).unwrap_or(time);
    let text = fine.format(&Rfc3339).unwrap_or_default();
    // Always with a fraction, so that the lexical order is that of time.
    match text.split_once('.') {
        Some((whole, fraction)) => format!("{whole}.{:0<3}Z", fraction.trim_end_matches('Z')),
        None => format!("{}.000Z", text.trim_end_matches('Z')),
    }
}

/// A pin with its owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnedPinView {
    /// The ID of the pin.
    pub requestid: String,
    /// The ID of the owner's token.
    pub owner: String,
    /// The name of that token; omitted if it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_name: Option<String>,
    /// The root of the DAG.
    pub cid: String,
    /// The name of the pin.
    pub name: Option<String>,
    /// The metadata.
    pub meta: BTreeMap<String, String>,
    /// The providers from the request.
    pub origins: Vec<String>,
    /// The status.
    pub status: StatusView,
    /// The number of distinct blocks so far.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Why it failed, or the error of the last attempt.
    pub details: Option<String>,
    /// The number of failed attempts.
    pub attempts: u32,
    /// The time of the next attempt.
    pub next_attempt_at: Option<u64>,
    /// When it was requested.
    pub created_at: u64,
}

/// A new pin of the request's own token, or of another owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewPinView {
    /// The pin.
    #[serde(flatten)]
    pub pin: PinView,
    /// The ID or the name of the token that owns it, or `operator`; by default the request's own. Needs the scope
    /// `operate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub owner: Option<String>,
}

/// Pins, the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnedPinsView {
    /// The number of pins on all pages.
    pub count: u64,
    /// The number of pins that match the filter apart from `status`, by status: `queued`, `pinning`, `pinned` and
    /// `failed`.
    #[serde(default)]
    pub by_status: BTreeMap<String, u64>,
    /// The pins of this page. For the next page, pass the last one as `older_than`.
    pub pins: Vec<OwnedPinView>,
}

/// The pins of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnerView {
    /// The ID of the token.
    pub owner: String,
    /// The name of the token; omitted if it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_name: Option<String>,
    /// The number of pins, in any state.
    pub pins: u64,
    /// The size of their locally stored blocks in bytes, each DAG counted in full and once.
    pub bytes: u64,
}

/// The pins of all owners.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnersView {
    /// All owners with pins.
    pub owners: Vec<OwnerView>,
    /// The number of pins that are queued or being fetched.
    pub pending: u64,
    /// The number of complete pins.
    pub pinned: u64,
    /// The number of failed pins.
    pub failed: u64,
    /// The number of DAGs that are queued.
    pub queued_roots: u64,
    /// The number of DAGs that are being fetched.
    pub active_roots: u64,
}
