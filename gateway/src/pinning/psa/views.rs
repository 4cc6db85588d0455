//! The specification's objects.

use super::failure::PsaFailure;
use crate::pinning::{Page, Pins, Request, Status, Wanted};
use libp2p::Multiaddr;
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

impl PinResultsView {
    /// As it is sent.
    pub fn of(page: &Page, delegates: &[String]) -> Self {
        let results = page.requests.iter().map(|request| PinStatusView::of(request, delegates)).collect();
        Self { count: i32::try_from(page.count).unwrap_or(i32::MAX), results }
    }
}

impl PinStatusView {
    /// As it is sent.
    pub fn of(request: &Request, delegates: &[String]) -> Self {
        Self {
            requestid: request.id.to_string(),
            status: request.status.into(),
            created: rfc3339(request.created),
            pin: PinView::of(request),
            delegates: delegates.to_vec(),
            info: info(request),
        }
    }
}

impl PinView {
    fn of(request: &Request) -> Self {
        let origins: Vec<_> = request.origins.iter().map(ToString::to_string).collect();
        Self {
            cid: request.root.to_string(),
            name: request.name.clone(),
            origins: (!origins.is_empty()).then_some(origins),
            meta: (!request.meta.is_empty()).then(|| request.meta.clone()),
        }
    }
}

impl From<Status> for StatusView {
    fn from(status: Status) -> Self {
        match status {
            Status::Queued => Self::Queued,
            Status::Pinning => Self::Pinning,
            Status::Pinned => Self::Pinned,
            Status::Failed => Self::Failed,
        }
    }
}

impl From<StatusView> for Status {
    fn from(status: StatusView) -> Self {
        match status {
            StatusView::Queued => Self::Queued,
            StatusView::Pinning => Self::Pinning,
            StatusView::Pinned => Self::Pinned,
            StatusView::Failed => Self::Failed,
        }
    }
}

fn info(request: &Request) -> BTreeMap<String, String> {
    let mut info = BTreeMap::new();
    let mut say = |key: &str, value: String| _ = info.insert(key.to_owned(), value);
    // What failed has nothing here, but where the rest is withheld.
    if request.status != Status::Failed || request.progress.blocks > 0 {
        say("blocks", request.progress.blocks.to_string());
        say("bytes", request.progress.bytes.to_string());
    }
    if request.status == Status::Pinned {
        say("dag_size", request.progress.bytes.to_string());
    }
    if request.attempts > 0 {
        say("attempts", request.attempts.to_string());
    }
    let details = match (request.status, &request.details, request.next_attempt) {
        (Status::Queued, Some(why), Some(next)) => {
            Some(format!("attempt {} failed: {why}; the next one is due at {}", request.attempts, rfc3339(next)))
        }
        (Status::Queued | Status::Pinning, Some(why), _) if request.attempts == 0 => Some(why.to_string()),
        (Status::Queued, ..) => Some("waiting for its turn".to_owned()),
        (Status::Pinning, Some(why), _) => Some(format!("fetching again, after this failed: {why}")),
        (Status::Pinning, ..) => Some("fetching".to_owned()),
        (Status::Failed, Some(why), _) => Some(why.to_string()),
        _ => None,
    };
    details.into_iter().for_each(|details| say("status_details", details));
    info
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

/// Where clients may connect to.
pub async fn delegates(pins: &Pins) -> Vec<String> {
    pins.delegates().await.iter().map(Multiaddr::to_string).collect()
}

/// What a body asks for.
///
/// # Errors
/// 400, with what is wrong.
pub fn wanted(body: &[u8]) -> Result<Wanted, PsaFailure> {
    let no_pin = |error| PsaFailure::wrong(format!("the body is not a pin such as {{\"cid\": \"bafy…\"}}: {error}"));
    let PinView { cid, name, origins, meta } = serde_json::from_slice(body).map_err(no_pin)?;
    let origin = |text: &String| {
        let parsed = text.parse::<Multiaddr>();
        parsed.map_err(|error| PsaFailure::wrong(format!("the origin {text:?} is not a multiaddr: {error}")))
    };
    Ok(Wanted {
        root: content::cid::parse(&cid).map_err(PsaFailure::wrong)?,
        name,
        origins: origins.iter().flatten().map(origin).collect::<Result<_, _>>()?,
        meta: meta.unwrap_or_default(),
    })
}
