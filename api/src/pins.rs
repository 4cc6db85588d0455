//! Pins: objects of the Pinning Service API (<https://ipfs.github.io/pinning-services-api-spec/>), and the pins of all owners.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::SystemTime;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::ToSchema;

/// What is to be pinned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Pin)]
pub struct PinView {
    /// The root of the DAG that is pinned, with all of its blocks.
    #[schema(max_length = 1200)]
    pub cid: String,
    /// What it is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 255, nullable = false)]
    pub name: Option<String>,
    /// Multiaddrs of peers who have it, each ending in `/p2p/` and the peer's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 20, nullable = false)]
    pub origins: Option<Vec<String>>,
    /// Texts that are kept with it: 1000 at most, and 16 KiB of them with their keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub meta: Option<BTreeMap<String, String>>,
}

/// How far a pin has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Status)]
pub enum StatusView {
    /// It waits for its turn, or for the next attempt.
    Queued,
    /// It is being fetched.
    Pinning,
    /// It is here.
    Pinned,
    /// It will not come.
    Failed,
}

/// A pin, and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = PinStatus)]
pub struct PinStatusView {
    /// What it is called by.
    pub requestid: String,
    /// How far it has come.
    pub status: StatusView,
    /// When it was asked for (RFC 3339), to the millisecond; no other pin has the same time.
    #[schema(format = DateTime)]
    pub created: String,
    /// What was asked for.
    pub pin: PinView,
    /// Multiaddrs of this node, for those who have what is to be pinned.
    #[schema(min_items = 1, max_items = 20)]
    pub delegates: Vec<String>,
    /// `blocks` and `bytes` so far, `dag_size` when that is all, `attempts` that failed, and `status_details`.
    #[serde(default)]
    pub info: BTreeMap<String, String>,
}

/// A page of pins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = PinResults)]
pub struct PinResultsView {
    /// How many there are on all pages.
    #[schema(minimum = 0)]
    pub count: i32,
    /// The newest of them, the newest first.
    #[schema(max_items = 1000)]
    pub results: Vec<PinStatusView>,
}

/// A time as the specification has it, to the millisecond.
pub fn rfc3339(time: SystemTime) -> String {
    let time = OffsetDateTime::from(time);
    let fine = time.replace_nanosecond(time.nanosecond() / 1_000_000 * 1_000_000).unwrap_or(time);
    let text = fine.format(&Rfc3339).unwrap_or_default();
    // Always with a fraction, so that texts are in the order of the times.
    match text.split_once('.') {
        Some((whole, fraction)) => format!("{whole}.{:0<3}Z", fraction.trim_end_matches('Z')),
        None => format!("{}.000Z", text.trim_end_matches('Z')),
    }
}

/// A pin, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnedPinView {
    /// What it is called by.
    pub requestid: String,
    /// The identifier of the token that asked for it.
    pub owner: String,
    /// What that token is called; left out if it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_name: Option<String>,
    /// The root of the DAG.
    pub cid: String,
    /// What it is called.
    pub name: Option<String>,
    /// What is kept with it.
    pub meta: BTreeMap<String, String>,
    /// Who was said to have it.
    pub origins: Vec<String>,
    /// How far it has come.
    pub status: StatusView,
    /// Distinct blocks so far.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Why it failed, or what stopped the last attempt.
    pub details: Option<String>,
    /// Attempts that failed.
    pub attempts: u32,
    /// When the next one is due.
    pub next_attempt_at: Option<u64>,
    /// When it was asked for.
    pub created_at: u64,
}

/// Pins, the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnedPinsView {
    /// How many there are on all pages.
    pub count: u64,
    /// Those of this page. The next page is of those that are `older_than` the last.
    pub pins: Vec<OwnedPinView>,
}

/// What somebody has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnerView {
    /// The identifier of the token.
    pub owner: String,
    /// What it is called; left out if it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_name: Option<String>,
    /// Pins, whatever became of them.
    pub pins: u64,
    /// Bytes of their DAGs as far as they are here, each counted in full and once.
    pub bytes: u64,
}

/// Who has how much.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnersView {
    /// Everybody who has pins.
    pub owners: Vec<OwnerView>,
    /// Pins that wait or are being fetched.
    pub pending: u64,
    /// Pins that are here.
    pub pinned: u64,
    /// Pins that failed.
    pub failed: u64,
    /// DAGs that wait to be fetched.
    pub queued_roots: u64,
    /// DAGs that are being fetched.
    pub active_roots: u64,
}
