//! How a request would be answered, and why.

use crate::names::NameStepView;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// What would be answered to a request, and why.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExplainView {
    /// The method: `GET`.
    pub method: String,
    /// The host that is asked; none if a path was to be explained.
    pub host: Option<String>,
    /// The path and query.
    pub path: String,
    /// Where the host and the path lead.
    pub route: Option<RouteView>,
    /// The format that is asked for.
    pub format: Option<String>,
    /// The names on the way, with what is known of each.
    pub names: Vec<NameStepView>,
    /// The path with what names stand for put in their place.
    pub resolved: Option<String>,
    /// Its root.
    pub root: Option<String>,
    /// Whether it may be served.
    pub policy: Option<PolicyView>,
    /// What is remembered of the path, so that it need not be walked.
    pub remembered: Option<RememberedView>,
    /// The blocks on the way, from the root to what the path leads to, as far as they are here.
    pub blocks: Vec<HeldView>,
    /// The first block on the way that is not here.
    pub missing: Option<String>,
    /// What the path leads to, and how much of it is here.
    pub content: Option<ContentView>,
    /// What the network knows of the root; none if the node is offline.
    pub network: Option<NetworkView>,
    /// What would be answered; none if that cannot be told without fetching something.
    pub answer: Option<AnswerView>,
    /// What became of fetching it, if that was asked for.
    pub fetched: Option<FetchedView>,
    /// What else is worth knowing.
    pub notes: Vec<String>,
    /// How long it took to find all this out.
    pub seconds: f64,
    /// The same for where the answer redirects to, if that is an address of this gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(no_recursion)]
    pub then: Option<Box<ExplainView>>,
}

/// Where a request leads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RouteView {
    /// `content`, `landing`, `redirect` or `error`.
    pub kind: String,
    /// The path to the content.
    pub path: Option<String>,
    /// How pages refer to other content: `path`, `subdomain` or `dnslink`.
    pub links: Option<String>,
    /// Whether the content has the origin for itself.
    pub isolated: Option<bool>,
    /// Whether files and pages are served there, and not only what clients can check.
    pub deserialized: Option<bool>,
    /// Where a redirect leads.
    pub location: Option<String>,
    /// Why it leads nowhere.
    pub error: Option<String>,
}

/// Whether content may be served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyView {
    /// `allow`, `gone` (410), `legal` (451), or `unlisted` (403).
    pub verdict: String,
    /// The block or path that is refused.
    pub refused: Option<String>,
    /// Which list says so, and where.
    pub decided_by: Option<String>,
    /// Changes with what is refused: what was remembered under another one counts no longer.
    pub generation: u64,
}

/// A path that is known to lead to a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RememberedView {
    /// What it is remembered under.
    pub key: String,
    /// The file.
    pub cid: String,
    /// Its length.
    pub bytes: u64,
    /// Its media type.
    pub content_type: Option<String>,
    /// The policy's generation when the path was walked.
    pub generation: u64,
    /// Whether that still counts.
    pub is_current: bool,
}

/// Where a block is held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HeldView {
    /// The block.
    pub cid: String,
    /// Whether it is in memory.
    pub ram: bool,
    /// Whether it is on the disk.
    pub disk: bool,
    /// How it lies there: `raw`, `zstd` or `envelope`.
    pub form: Option<String>,
    /// What it takes there.
    pub stored_bytes: Option<u64>,
    /// Whether a pin protects it.
    pub pinned: bool,
}

/// What a path leads to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ContentView {
    /// Its root.
    pub cid: String,
    /// `file`, `directory`, `symlink`, `raw`, `document` or `other`.
    pub kind: String,
    /// The length of a file.
    pub bytes: Option<u64>,
    /// Blocks below it that are here, with itself.
    pub blocks_here: u64,
    /// Those of them that are in memory.
    pub ram_blocks: u64,
    /// Those of them that are on the disk.
    pub disk_blocks: u64,
    /// Those of them that a pin protects.
    pub pinned_blocks: u64,
    /// Blocks below it that are not here. What is below these is not known.
    pub missing_blocks: u64,
    /// Whether all of it was counted.
    pub counted_all: bool,
    /// Whether it is known to be sent compressed to clients who accept zstd, and how many bytes of that are in memory.
    pub encoded: Option<EncodedView>,
}

/// How a file is sent to clients who accept zstd.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EncodedView {
    /// Whether it is sent compressed.
    pub compressed: bool,
    /// Bytes of that in memory.
    pub ram_bytes: u64,
}

/// What the network knows of a root.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = ExplainedNetworkView)]
pub struct NetworkView {
    /// Connected peers.
    pub peers: usize,
    /// What those who read it share; none if nobody has of late.
    pub session: Option<SessionView>,
    /// How the last search for its providers went.
    pub search: Option<SearchView>,
    /// Who had it when it was last read.
    pub remembered_providers: Vec<ProviderView>,
}

/// A provider and where it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProviderView {
    /// Its name.
    pub peer_id: String,
    /// Where it was.
    pub addresses: Vec<String>,
}

/// What those who read a DAG share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    /// Connected peers that proved to hold it.
    pub members: Vec<MemberView>,
    /// Peers that routing named.
    pub providers: usize,
    /// `idle`, `running` or `done`.
    pub search: String,
    /// Peers that were asked.
    pub asked: usize,
    /// Those of them that answered.
    pub answered: usize,
    /// Blocks that somebody waits for.
    pub wanted: usize,
    /// The first of these.
    pub wants: Vec<WantView>,
    /// How long ago it was last used.
    pub idle_seconds: f64,
}

/// A peer that proved to hold a DAG.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemberView {
    /// Its name.
    pub peer_id: String,
    /// Whether it sent a block of the DAG.
    pub gave: bool,
    /// Blocks that it owes us, of whatever DAG.
    pub owes_blocks: usize,
    /// How long it takes to answer.
    pub response_seconds: Option<f64>,
    /// What it sends at best.
    pub bytes_per_second: Option<u64>,
    /// Whether it lets us wait for too long.
    pub is_silent: bool,
}

/// A block that somebody waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WantView {
    /// The block.
    pub cid: String,
    /// For how long.
    pub waited_seconds: f64,
    /// Who owes it.
    pub debtors: Vec<String>,
    /// Peers that were asked whether they have it and did not answer yet.
    pub probed: usize,
    /// Peers that said no.
    pub denied: usize,
}

/// How a search for providers went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SearchView {
    /// How long ago it began.
    pub seconds_ago: f64,
    /// How long it took; none while it is under way.
    pub seconds: Option<f64>,
    /// Who was asked: `dht-wan`, `dht-lan` or `router`.
    pub asked: Vec<AskedView>,
    /// Those that were named, in order.
    pub providers: Vec<FoundView>,
    /// How many more were named.
    pub further: usize,
}

/// Somebody who was asked for providers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AskedView {
    /// Who.
    pub whom: String,
    /// When they had said all that they know, after the search began.
    pub seconds: Option<f64>,
}

/// A provider that was named, and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FoundView {
    /// Its name.
    pub peer_id: String,
    /// Who named it (`memory`, `caller`, `dht-wan`, `dht-lan` or `router`), and when after the search began.
    pub named_by: Vec<NamedView>,
    /// Whether it was connected when it was first named.
    pub was_connected: bool,
    /// Its last dial.
    pub dial: Option<DialView>,
    /// When it proved to hold the DAG, after the search began.
    pub proved_seconds: Option<f64>,
}

/// Who named a provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedView {
    /// Who.
    pub whom: String,
    /// When, after the search began.
    pub seconds: f64,
}

/// A dial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DialView {
    /// When, after the search began.
    pub after_seconds: f64,
    /// How long it took; none while it is under way.
    pub seconds: Option<f64>,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AnswerView {
    /// The status.
    pub status: u16,
    /// The headers that say something of the content.
    pub headers: BTreeMap<String, String>,
    /// The length of the body, if that is known beforehand.
    pub bytes: Option<u64>,
    /// Where it redirects to.
    pub location: Option<String>,
    /// What went wrong, if the answer is no content.
    pub problem: Option<String>,
    /// What the body breaks off with after the head was sent, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaks_off: Option<String>,
}

/// What became of fetching.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FetchedView {
    /// How long it took until the answer could begin.
    pub seconds: f64,
    /// Whether it could, before this was given up.
    pub in_time: bool,
}
