//! `id`, `version` and `repo/stat`: the identity, version and store size of the node.

use crate::kubo_rpc::Rpc;
use crate::kubo_rpc::answer::{self, Answer, Output};
use crate::kubo_rpc::call::Call;
use crate::kubo_rpc::cids::show_key;
use crate::kubo_rpc::command::{self, Answers, Arguments, Command, Input};
use crate::kubo_rpc::problem::RpcError;
use axum::extract::{Request, State};
use cid::multibase::Base;
use content::names::Key;
use p2p_bridge::names::keystore::SELF;
use serde::Serialize;
use utoipa::ToSchema;

/// The version of Kubo that the commands are compatible with. Clients choose the format of requests by it; for versions
/// before 0.23 they encode names differently.
const KUBO_VERSION: &str = "0.41.0";
/// The repository version of that version of Kubo.
const KUBO_REPO: &str = "18";
/// The agent version that the node sends to peers.
const AGENT: &str = concat!("causeway/", env!("CARGO_PKG_VERSION"));

/// `id`
pub static ID: Command = Command {
    path: "id",
    arguments: Arguments::perhaps("A peer ID; the node's own by default."),
    options: &[
        command::text("format", "For the client, which formats the output.").or("f"),
        command::text("peerid-base", "The multibase of the peer ID; \"b58mh\" by default."),
    ],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// `version`
pub static VERSION: Command = Command {
    path: "version",
    arguments: Arguments::NONE,
    options: &[
        command::flag("number", "For the client, which prints only the number.").or("n"),
        command::flag("commit", "For the client, which prints the commit."),
        command::flag("repo", "For the client, which prints the version of the repository."),
        command::flag("all", "For the client, which prints all versions."),
    ],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// `repo/stat`
pub static REPO_STAT: Command = Command {
    path: "repo/stat",
    arguments: Arguments::NONE,
    options: &[
        command::flag("size-only", "For the client, which prints only the sizes.").or("s"),
        command::flag("human", "For the client, which prints sizes with units.").or("H"),
    ],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// The identity of a node.
#[derive(Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct IdView {
    /// Its peer ID.
    #[serde(rename = "ID")]
    pub id: String,
    /// Its public key, in libp2p's protobuf encoding and base64.
    pub public_key: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Its agent version.
    pub agent_version: String,
    /// Its protocols, as far as they are known.
    pub protocols: Vec<String>,
}

impl Output for IdView {
    fn text(&self) -> String {
        // A view of strings always serialises.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

/// The versions of Kubo and of the gateway.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct RpcVersionView {
    /// The version of Kubo that the commands are compatible with.
    pub version: String,
    /// The agent version of the gateway, in place of a commit.
    pub commit: String,
    /// The repository version of that version of Kubo.
    pub repo: String,
    /// The architecture and the operating system.
    pub system: String,
    /// Empty: the gateway is not written in Go.
    pub golang: String,
}

impl Output for RpcVersionView {
    fn text(&self) -> String {
        format!("ipfs version {}\n", self.version)
    }
}

/// The size of the store.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct RepoStatView {
    /// The size of the blocks on the disk, in bytes.
    pub repo_size: u64,
    /// Always 0: the maximum size of the cache is not reported here.
    pub storage_max: u64,
    /// The number of blocks.
    pub num_objects: u64,
    /// Always empty: the path of the store is not disclosed.
    pub repo_path: String,
    /// The agent version of the gateway.
    pub version: String,
}

impl Output for RepoStatView {
    fn text(&self) -> String {
        format!("NumObjects: {}\nRepoSize: {}\nVersion: {}\n", self.num_objects, self.repo_size, self.version)
    }
}

/// Shows the identity of the node, or of a connected peer.
#[utoipa::path(post, path = "/api/v0/id", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The identity.", body = IdView)))]
pub async fn id(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::of(&ID, &request.into_parts().0)?;
    let key = match call.arguments.first() {
        None => Key::from(rpc.peer_id),
        Some(text) => Key::parse(text).ok_or_else(|| RpcError::bad_request("invalid peer id"))?,
    };
    let base = call.text("peerid-base").unwrap_or("b58mh");
    let id = show_key(&key, Some(base))?;
    if *key.peer_id() != rpc.peer_id {
        let message = format!("the peer {id} is not connected");
        let found = rpc.peer(&key).await.map(|view| answer::once(&call, &IdView { id, ..view }));
        return found.ok_or_else(|| RpcError::unprocessable(message));
    }
    let (_, keypair) = rpc.publisher.keys().get(SELF)?;
    let public_key = Base::Base64Pad.encode(keypair.public().encode_protobuf());
    let addresses = rpc.addresses().await;
    let view = IdView { id, public_key, addresses, agent_version: AGENT.to_owned(), protocols: Vec::new() };
    Ok(answer::once(&call, &view))
}

/// Shows the version of Kubo that the commands are compatible with.
#[utoipa::path(post, path = "/api/v0/version", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The versions.", body = RpcVersionView)))]
pub async fn version(request: Request) -> Answer {
    let call = Call::of(&VERSION, &request.into_parts().0)?;
    let view = RpcVersionView {
        version: KUBO_VERSION.to_owned(),
        commit: AGENT.to_owned(),
        repo: KUBO_REPO.to_owned(),
        system: format!("{}/{}", std::env::consts::ARCH, std::env::consts::OS),
        golang: String::new(),
    };
    Ok(answer::once(&call, &view))
}

/// Shows the size of the store.
#[utoipa::path(post, path = "/api/v0/repo/stat", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The size of the store.", body = RepoStatView)))]
pub async fn repo_stat(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::of(&REPO_STAT, &request.into_parts().0)?;
    let stats = rpc.store.stats();
    let view = RepoStatView {
        repo_size: stats.cached_bytes.saturating_add(stats.pinned_bytes),
        storage_max: 0,
        num_objects: stats.blocks,
        repo_path: String::new(),
        version: AGENT.to_owned(),
    };
    Ok(answer::once(&call, &view))
}

impl Rpc {
    /// The addresses on which peers reach the node.
    pub async fn addresses(&self) -> Vec<String> {
        let Some(bridge) = &self.bridge else { return Vec::new() };
        let mut addresses: Vec<_> = bridge.addresses().await.iter().map(ToString::to_string).collect();
        addresses.sort_unstable();
        addresses
    }
}
