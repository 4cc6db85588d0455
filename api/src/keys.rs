//! IPNS keys, and what is published with them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A key, as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyView {
    /// What the operator calls it.
    pub name: String,
    /// The name that it publishes, after `/ipns/`.
    pub id: String,
    /// What it signs with.
    #[serde(rename = "type")]
    pub kind: String,
}

/// What is published with a key, as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PublishedView {
    /// What the operator calls the key, if it is there.
    pub key: Option<String>,
    /// The name: a path beginning with `/ipns/`.
    pub name: String,
    /// What it stands for.
    pub value: String,
    /// How often it has changed.
    pub sequence: u64,
    /// Until when the record holds, in seconds since the Unix epoch. It is renewed long before.
    pub valid_until_at: u64,
    /// How long others may remember it.
    pub ttl_seconds: u64,
    /// Where the record is: on how many peers of which DHT, or with which routers.
    pub puts: BTreeMap<String, usize>,
    /// What has become of it, in words.
    pub status: String,
}

/// The keys, in the answer to a question for all.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct KeysView {
    /// Sorted by name.
    pub keys: Vec<KeyView>,
}

/// What is published, in the answer to a question for all.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PublishedList {
    /// In no order that means anything.
    pub published: Vec<PublishedView>,
}

/// Asks for a new key.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// What to call it.
    pub name: String,
    /// What it is to sign with; Ed25519 if that is left out.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// Brings a key.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportKey {
    /// What to call it.
    pub name: String,
    /// PEM text, or the protobuf message in base64 with padding.
    pub key: String,
    /// Which of the two; what it looks like if that is left out.
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

/// Asks for another name of a key.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenameKey {
    /// The name that it gets.
    pub to: String,
}

/// Asks to publish.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Publish {
    /// What the name is to stand for.
    pub path: String,
    /// What the key is called; the node's own if that is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// How long each record lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime_seconds: Option<u64>,
    /// How long others may remember it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
}
