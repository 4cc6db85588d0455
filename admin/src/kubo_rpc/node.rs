//! `id`, `version`, `repo/stat` and `swarm/…`: who this node is, and whom it knows.

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

/// Whose commands these are: clients choose by it how they write their requests. Before 0.23 they write names in another way.
const KUBO_VERSION: &str = "0.41.0";
/// The layout of Kubo's repository that goes with that version.
const KUBO_REPO: &str = "18";
/// What peers are told that this is.
const AGENT: &str = concat!("causeway/", env!("CARGO_PKG_VERSION"));

/// `id`
pub static ID: Command = Command {
    path: "id",
    arguments: Arguments::perhaps("A peer id; that of this node by default."),
    options: &[
        command::text("format", "Clients write it so.").or("f"),
        command::text("peerid-base", "How the peer id is written: \"b58mh\" by default."),
    ],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// `version`
pub static VERSION: Command = Command {
    path: "version",
    arguments: Arguments::NONE,
    options: &[
        command::flag("number", "Clients show the number alone.").or("n"),
        command::flag("commit", "Clients show the commit."),
        command::flag("repo", "Clients show the version of the repository."),
        command::flag("all", "Clients show everything."),
    ],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// `repo/stat`
pub static REPO_STAT: Command = Command {
    path: "repo/stat",
    arguments: Arguments::NONE,
    options: &[
        command::flag("size-only", "Clients show the sizes alone.").or("s"),
        command::flag("human", "Clients write sizes with units.").or("H"),
    ],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// Who a node is.
#[derive(Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct IdView {
    /// Its peer id.
    #[serde(rename = "ID")]
    pub id: String,
    /// Its public key, as libp2p writes it, in base64.
    pub public_key: String,
    /// Where it is reached.
    pub addresses: Vec<String>,
    /// What it says that it is.
    pub agent_version: String,
    /// What it speaks, as far as is known.
    pub protocols: Vec<String>,
}

impl Output for IdView {
    fn text(&self) -> String {
        // A view of texts can be written.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

/// Whose commands are understood.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct RpcVersionView {
    /// The version of Kubo whose commands these are.
    pub version: String,
    /// What answers them, as a commit would be written.
    pub commit: String,
    /// The version of Kubo's repository that goes with it.
    pub repo: String,
    /// The machine.
    pub system: String,
    /// Empty: nothing of this is Go.
    pub golang: String,
}

impl Output for RpcVersionView {
    fn text(&self) -> String {
        format!("ipfs version {}\n", self.version)
    }
}

/// What the store takes.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct RepoStatView {
    /// What blocks take on the disk, in bytes.
    pub repo_size: u64,
    /// What cached blocks may take at most, in bytes; 0 if that is not known here.
    pub storage_max: u64,
    /// Blocks.
    pub num_objects: u64,
    /// Empty: where it is concerns nobody here.
    pub repo_path: String,
    /// What keeps them.
    pub version: String,
}

impl Output for RepoStatView {
    fn text(&self) -> String {
        format!("NumObjects: {}\nRepoSize: {}\nVersion: {}\n", self.num_objects, self.repo_size, self.version)
    }
}

/// Says who this node is.
#[utoipa::path(post, path = "/api/v0/id", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "Who it is.", body = IdView)))]
pub async fn id(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::of(&ID, &request.into_parts().0)?;
    let key = match call.arguments.first() {
        None => Key::from(rpc.peer_id),
        Some(text) => Key::parse(text).ok_or_else(|| RpcError::bad("invalid peer id"))?,
    };
    let base = call.text("peerid-base").unwrap_or("b58mh");
    let id = show_key(&key, Some(base))?;
    if *key.peer_id() != rpc.peer_id {
        let words = format!("nothing is known of the peer {id}");
        let found = rpc.peer(&key).await.map(|view| answer::once(&call, &IdView { id, ..view }));
        return found.ok_or_else(|| RpcError::cannot(words));
    }
    let (_, keypair) = rpc.publisher.keys().get(SELF)?;
    let public_key = Base::Base64Pad.encode(keypair.public().encode_protobuf());
    let addresses = rpc.addresses().await;
    let view = IdView { id, public_key, addresses, agent_version: AGENT.to_owned(), protocols: Vec::new() };
    Ok(answer::once(&call, &view))
}

/// Says whose commands are understood.
#[utoipa::path(post, path = "/api/v0/version", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The version of Kubo that this behaves as.", body = RpcVersionView)))]
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

/// Says what the store takes.
#[utoipa::path(post, path = "/api/v0/repo/stat", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "What the store takes.", body = RepoStatView)))]
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
    /// Where peers reach this node.
    pub async fn addresses(&self) -> Vec<String> {
        let Some(bridge) = &self.bridge else { return Vec::new() };
        let mut addresses: Vec<_> = bridge.addresses().await.iter().map(ToString::to_string).collect();
        addresses.sort_unstable();
        addresses
    }
}
