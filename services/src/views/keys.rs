//! API views of IPNS keys and published records.

use api::keys::{KeyView, PublishedView};
use http::StatusCode;
use p2p_bridge::epoch;
use p2p_bridge::names::keystore::{KeyError, KeyInfo};
use p2p_bridge::names::publish::Published;

/// The view of a key, without its private key.
pub fn key(info: KeyInfo) -> KeyView {
    let KeyInfo { name, key, kind, of_site } = info;
    KeyView { name, id: key.to_string(), kind: kind.to_string(), of_site }
}

/// The view of a published record. `targets` is where the node publishes; empty while no node runs or it is offline.
pub fn published(info: Option<KeyInfo>, entry: &Published, targets: &[String]) -> PublishedView {
    let status = match (targets.is_empty(), entry.puts.values().map(|put| put.peers).sum::<usize>()) {
        (true, 0) => "stored locally; it is published once a node is online".to_owned(),
        (false, 0) => "stored locally; it is published as soon as a peer accepts it".to_owned(),
        (_, 1) => "published to 1 peer or router".to_owned(),
        (_, takers) => format!("published to {takers} peers or routers"),
    };
    PublishedView {
        key: info.map(|info| info.name),
        name: format!("/ipns/{}", entry.key),
        value: entry.record.value().to_owned(),
        sequence: entry.record.sequence(),
        valid_until_at: epoch::seconds(entry.record.end_of_life()),
        ttl_seconds: entry.record.ttl().as_secs(),
        puts: entry.puts.iter().map(|(target, put)| (target.clone(), put.peers)).collect(),
        status,
    }
}

/// The HTTP status of an error of the keystore.
pub fn status(error: &KeyError) -> StatusCode {
    match error {
        KeyError::Name(_) | KeyError::Reserved | KeyError::Format(_) => StatusCode::BAD_REQUEST,
        KeyError::Missing(_) => StatusCode::NOT_FOUND,
        KeyError::Exists(_)
        | KeyError::Known(_)
        | KeyError::OfGateway(_)
        | KeyError::OwnKey(_)
        | KeyError::Ambiguous { .. }
        | KeyError::Full
        | KeyError::InUse { .. } => StatusCode::CONFLICT,
        KeyError::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
        KeyError::Shared { .. } | KeyError::Identity(_) | KeyError::Io { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
