//! IPNS keys, and the records that are published with them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// An IPNS key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyView {
    /// The name of the key.
    pub name: String,
    /// The IPNS name of the key, without `/ipns/`.
    pub id: String,
    /// The type of the key.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it is a key of all gateways of the site, and not of this one alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_site: bool,
}

/// The record that is published with a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PublishedView {
    /// The name of the key, if the key exists.
    pub key: Option<String>,
    /// The IPNS name: a path beginning with `/ipns/`.
    pub name: String,
    /// The path that the name resolves to.
    pub value: String,
    /// The sequence number of the record.
    pub sequence: u64,
    /// When the record expires, in seconds since the Unix epoch. It is republished long before.
    pub valid_until_at: u64,
    /// How long resolvers may cache the record, in seconds.
    pub ttl_seconds: u64,
    /// Where the record is stored: the number of peers in each DHT, and the routers.
    pub puts: BTreeMap<String, usize>,
    /// The state of publishing, as text.
    pub status: String,
}

/// All keys.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct KeysView {
    /// The keys, sorted by name.
    pub keys: Vec<KeyView>,
}

/// All published records.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PublishedList {
    /// The records, in no particular order.
    pub published: Vec<PublishedView>,
}

/// Creates a key.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// The name of the key.
    pub name: String,
    /// The type of the key; Ed25519 by default.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// Imports a key.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportKey {
    /// The name of the key.
    pub name: String,
    /// PEM text, or the protobuf message in base64 with padding.
    pub key: String,
    /// The format of the key; detected by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "a description would change the OpenAPI document, and the names say it")]
pub struct ExportKey {
    #[serde(default)]
    pub format: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[expect(missing_docs, reason = "a description would change the OpenAPI document, and the names say it")]
pub struct ExportedKey {
    pub name: String,
    pub format: String,
    pub key: String,
}

/// Renames a key.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenameKey {
    /// The new name.
    pub to: String,
}

/// Publishes a record.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Publish {
    /// The path that the name shall resolve to.
    pub path: String,
    /// The name of the key; the node's own by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The validity of each record, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime_seconds: Option<u64>,
    /// How long resolvers may cache the record, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
}
