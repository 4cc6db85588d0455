//! Explanations of how a request would be answered.

use crate::names::NameStepView;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// How a request would be answered, and why.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExplainView {
    /// The method: `GET`.
    pub method: String,
    /// The requested host; `null` when a path is explained.
    pub host: Option<String>,
    /// The path and query.
    pub path: String,
    /// The route of the host and the path.
    pub route: Option<RouteView>,
    /// The requested format.
    pub format: Option<String>,
    /// The names on the path, with their cached state.
    pub names: Vec<NameStepView>,
    /// The path with the values of its names.
    pub resolved: Option<String>,
    /// The root CID.
    pub root: Option<String>,
    /// The policy's decision.
    pub policy: Option<PolicyView>,
    /// The cached resolution of the path.
    pub remembered: Option<RememberedView>,
    /// The blocks on the path that are stored locally, from the root to the target.
    pub blocks: Vec<HeldView>,
    /// The first block on the path that is not stored locally.
    pub missing: Option<String>,
    /// The target of the path, and how much of it is stored locally.
    pub content: Option<ContentView>,
    /// The packed file of which the root is the plain file, the zstd file or the packed CID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packed: Option<PackedFileView>,
    /// The network's state for the root; `null` if the node is offline.
    pub network: Option<NetworkView>,
    /// The response; `null` if it cannot be determined without fetching blocks.
    pub answer: Option<AnswerView>,
    /// The result of the fetch, if one was requested.
    pub fetched: Option<FetchedView>,
    /// Further notes.
    pub notes: Vec<String>,
    /// How long the explanation took, in seconds.
    pub seconds: f64,
    /// The same for the redirect's target, if it is on this gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(no_recursion)]
    pub then: Option<Box<ExplainView>>,
}

/// The route of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RouteView {
    /// `content`, `landing`, `redirect` or `error`.
    pub kind: String,
    /// The content path.
    pub path: Option<String>,
    /// The form of links to other content: `path`, `subdomain` or `dnslink`.
    pub links: Option<String>,
    /// Whether the content has its own origin.
    pub isolated: Option<bool>,
    /// Whether deserialised responses are served, and not only formats that clients can verify.
    pub deserialized: Option<bool>,
    /// The target of a redirect.
    pub location: Option<String>,
    /// The error, if the request has no route.
    pub error: Option<String>,
}

/// The policy's decision about content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyView {
    /// `allow`, `gone` (410), `legal` (451), or `unlisted` (403).
    pub verdict: String,
    /// The block or path that is withheld.
    pub refused: Option<String>,
    /// The list and the line of the decisive rule.
    pub decided_by: Option<String>,
    /// Changes with the rules; cached resolutions of another generation are not used.
    pub generation: u64,
}

/// A cached path of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RememberedView {
    /// The cache key.
    pub key: String,
    /// The CID of the file.
    pub cid: String,
    /// The length of the file, in bytes.
    pub bytes: u64,
    /// The media type.
    pub content_type: Option<String>,
    /// The policy's generation at the resolution.
    pub generation: u64,
    /// Whether the entry is valid under the current generation.
    pub is_current: bool,
}

/// A packed file that is pinned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PackedFileView {
    /// The CID of the plain file.
    pub plain: String,
    /// The CID of the zstd file.
    pub zstd: String,
    /// The CID of the plain content by the zstd file.
    pub packed: String,
}

/// Where a block is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HeldView {
    /// The block.
    pub cid: String,
    /// Whether it is in memory.
    pub ram: bool,
    /// Whether it is on the disk.
    pub disk: bool,
    /// Whether it is in the storage that the gateways of a site share; only if the gateway belongs to one, and that
    /// storage answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<bool>,
    /// The stored form: `raw`, `zstd` or `envelope`.
    pub form: Option<String>,
    /// The size on the disk, in bytes.
    pub stored_bytes: Option<u64>,
    /// Whether a pin protects it.
    pub pinned: bool,
}

/// The target of a path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ContentView {
    /// The CID.
    pub cid: String,
    /// `file`, `directory`, `symlink`, `raw`, `document` or `other`.
    pub kind: String,
    /// The length of a file, in bytes.
    pub bytes: Option<u64>,
    /// The number of blocks that are stored locally, with the root.
    pub blocks_here: u64,
    /// The number of these blocks in memory.
    pub ram_blocks: u64,
    /// The number of these blocks on the disk.
    pub disk_blocks: u64,
    /// The number of these blocks in the storage that the gateways of a site share; only if the gateway belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site_blocks: Option<u64>,
    /// The number of these blocks that a pin protects.
    pub pinned_blocks: u64,
    /// The number of known blocks that are not stored locally. Blocks below these are unknown.
    pub missing_blocks: u64,
    /// Whether the count is complete.
    pub counted_all: bool,
    /// Whether the file is known to be sent as zstd, and how much of that is in memory.
    pub encoded: Option<EncodedView>,
}

/// The zstd encoding of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EncodedView {
    /// Whether it is sent as zstd.
    pub compressed: bool,
    /// The size of the encoded body in memory, in bytes.
    pub ram_bytes: u64,
}

/// The network's state for a root.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = ExplainedNetworkView)]
pub struct NetworkView {
    /// The number of connected peers.
    pub peers: usize,
    /// The session of the root; `null` if there was none recently.
    pub session: Option<SessionView>,
    /// The last search for providers.
    pub search: Option<SearchView>,
    /// The cached providers of earlier reads.
    pub remembered_providers: Vec<ProviderView>,
}

/// A provider with its addresses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProviderView {
    /// The peer ID.
    pub peer_id: String,
    /// The addresses.
    pub addresses: Vec<String>,
}

/// The session that all readers of a DAG share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    /// The connected peers that have proved to have the root.
    pub members: Vec<MemberView>,
    /// The number of providers from routing.
    pub providers: usize,
    /// `idle`, `running` or `done`.
    pub search: String,
    /// The number of peers that were asked.
    pub asked: usize,
    /// The number of these that answered.
    pub answered: usize,
    /// The number of blocks that are waited for.
    pub wanted: usize,
    /// The first of these blocks.
    pub wants: Vec<WantView>,
    /// The time since the session was last used, in seconds.
    pub idle_seconds: f64,
}

/// A peer of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemberView {
    /// The peer ID.
    pub peer_id: String,
    /// Whether it has sent a block of the DAG.
    pub gave: bool,
    /// The number of outstanding blocks from this peer, of any DAG.
    pub owes_blocks: usize,
    /// The peer's response time, in seconds.
    pub response_seconds: Option<f64>,
    /// The peer's maximum transfer rate.
    pub bytes_per_second: Option<u64>,
    /// Whether the peer is stalled.
    pub is_silent: bool,
}

/// A block that is waited for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WantView {
    /// The block.
    pub cid: String,
    /// The waiting time, in seconds.
    pub waited_seconds: f64,
    /// The peers that were asked to send it.
    pub debtors: Vec<String>,
    /// The number of peers that were asked whether they have it and have not answered yet.
    pub probed: usize,
    /// The number of peers that do not have it.
    pub denied: usize,
}

/// A search for providers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SearchView {
    /// The time since its start, in seconds.
    pub seconds_ago: f64,
    /// Its duration, in seconds; `null` while it is in progress.
    pub seconds: Option<f64>,
    /// The routing systems that were asked: `dht-wan`, `dht-lan` or `router`.
    pub asked: Vec<AskedView>,
    /// The providers, in the order in which they were found.
    pub providers: Vec<FoundView>,
    /// The number of further providers.
    pub further: usize,
}

/// A routing system that was asked for providers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AskedView {
    /// The routing system.
    pub whom: String,
    /// When its answer was complete, in seconds after the start of the search.
    pub seconds: Option<f64>,
}

/// A provider that was found, with its connection state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FoundView {
    /// The peer ID.
    pub peer_id: String,
    /// The routing systems that returned it (`memory`, `caller`, `dht-wan`, `dht-lan` or `router`), with the time after
    /// the start of the search.
    pub named_by: Vec<NamedView>,
    /// Whether it was already connected.
    pub was_connected: bool,
    /// The last dial.
    pub dial: Option<DialView>,
    /// When it proved to have the root, in seconds after the start of the search.
    pub proved_seconds: Option<f64>,
}

/// A routing system that returned a provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedView {
    /// The routing system.
    pub whom: String,
    /// The time, in seconds after the start of the search.
    pub seconds: f64,
}

/// A dial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DialView {
    /// The start, in seconds after the start of the search.
    pub after_seconds: f64,
    /// The duration, in seconds; `null` while the dial is in progress.
    pub seconds: Option<f64>,
    /// The error, if it failed.
    pub error: Option<String>,
}

/// A response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AnswerView {
    /// The status.
    pub status: u16,
    /// The headers that depend on the content.
    pub headers: BTreeMap<String, String>,
    /// The length of the body, if known in advance.
    pub bytes: Option<u64>,
    /// The target of a redirect.
    pub location: Option<String>,
    /// The error, if the response is one.
    pub problem: Option<String>,
    /// The error that aborts the body after the head was sent, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaks_off: Option<String>,
}

/// The result of a fetch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FetchedView {
    /// The time until the response could begin, in seconds.
    pub seconds: f64,
    /// Whether the response could begin before the timeout.
    pub in_time: bool,
}
