//! The specification's objects.

use crate::pins::psa::failure::PsaFailure;
use api::pins::{PinResultsView, PinStatusView, PinView, StatusView, rfc3339};
use content::Cid;
use content::packed::packed_cid;
use libp2p::Multiaddr;
use services::pinning::{Page, PinParameters, PinRequest, Pins, Status};
use std::collections::BTreeMap;

/// A page of pins.
pub fn results(page: &Page, pins: &Pins, delegates: &[String]) -> PinResultsView {
    let results = page.requests.iter().map(|request| pin_status(request, pins, delegates)).collect();
    PinResultsView { count: i32::try_from(page.count).unwrap_or(i32::MAX), results }
}

/// A pin and its status.
pub fn pin_status(request: &PinRequest, pins: &Pins, delegates: &[String]) -> PinStatusView {
    PinStatusView {
        requestid: request.id.to_string(),
        status: status(request.status),
        created: rfc3339(request.created),
        pin: pin(request),
        delegates: delegates.to_vec(),
        info: info(request, pins.zstd_file(&request.root)),
    }
}

fn pin(request: &PinRequest) -> PinView {
    let origins: Vec<_> = request.origins.iter().map(ToString::to_string).collect();
    PinView {
        cid: request.root.to_string(),
        name: request.name.clone(),
        origins: (!origins.is_empty()).then_some(origins),
        meta: (!request.meta.is_empty()).then(|| request.meta.clone()),
    }
}

/// A status in the specification's terms.
pub fn status(status: Status) -> StatusView {
    match status {
        Status::Queued => StatusView::Queued,
        Status::Pinning => StatusView::Pinning,
        Status::Pinned => StatusView::Pinned,
        Status::Failed => StatusView::Failed,
    }
}

fn info(request: &PinRequest, zstd_file: Option<Cid>) -> BTreeMap<String, String> {
    let mut info = BTreeMap::new();
    let mut say = |key: &str, value: String| _ = info.insert(key.to_owned(), value);
    // A failed pin has no blocks here, except where the policy withholds a part of the DAG.
    if request.status != Status::Failed || request.progress.blocks > 0 {
        say("blocks", request.progress.blocks.to_string());
        say("bytes", request.progress.bytes.to_string());
    }
    if request.status == Status::Pinned {
        say("dag_size", request.progress.bytes.to_string());
    }
    if let Some(zstd_file) = zstd_file {
        say("zstd", zstd_file.to_string());
        say("packed", packed_cid(&zstd_file).to_string());
    }
    if request.attempts > 0 {
        say("attempts", request.attempts.to_string());
    }
    let details = match (request.status, &request.details, request.next_attempt) {
        (Status::Queued, Some(why), Some(next)) => {
            Some(format!("attempt {} failed: {why}; the next one is due at {}", request.attempts, rfc3339(next)))
        }
        (Status::Queued | Status::Pinning, Some(why), _) if request.attempts == 0 => Some(why.to_string()),
        (Status::Queued, ..) => Some("waiting in the queue".to_owned()),
        (Status::Pinning, Some(why), _) => Some(format!("fetching again after an error: {why}")),
        (Status::Pinning, ..) => Some("fetching".to_owned()),
        (Status::Failed, Some(why), _) => Some(why.to_string()),
        _ => None,
    };
    details.into_iter().for_each(|details| say("status_details", details));
    info
}

/// The multiaddrs that clients may connect to, to provide content.
pub async fn delegates(pins: &Pins) -> Vec<String> {
    pins.delegates().await.iter().map(Multiaddr::to_string).collect()
}

/// Parses a pin from a body.
///
/// # Errors
/// 400 with what is wrong.
pub fn wanted(body: &[u8]) -> Result<PinParameters, PsaFailure> {
    let no_pin =
        |error| PsaFailure::bad_request(format!("the body is not a pin such as {{\"cid\": \"bafy…\"}}: {error}"));
    let PinView { cid, name, origins, meta } = serde_json::from_slice(body).map_err(no_pin)?;
    let origin = |text: &String| {
        let parsed = text.parse::<Multiaddr>();
        parsed.map_err(|error| PsaFailure::bad_request(format!("the origin {text:?} is not a multiaddr: {error}")))
    };
    Ok(PinParameters {
        root: content::cid::parse(&cid).map_err(PsaFailure::bad_request)?,
        name,
        origins: origins.iter().flatten().map(origin).collect::<Result<_, _>>()?,
        meta: meta.unwrap_or_default(),
    })
}
