//! A subset of Kubo's RPC (<https://docs.ipfs.tech/reference/kubo/rpc/>) under `/api/v0`, so that `kubo-rpc-client` and
//! `ipfs --api` can drive this node as they are.
//!
//! | module | concern |
//! |---|---|
//! | [`command`] | what each command takes, written down once, for requests and for the description of the API |
//! | [`call`], [`duration`], [`files`] | requests as commands: arguments, options, files in a form |
//! | [`answer`], [`cids`], [`problem`] | answers: values, lines of them, bytes; and errors |
//! | [`paths`] | what an argument leads to |
//! | [`read`], [`ls`], [`dag`], [`blocks`] | `cat`, `get`, `ls`, `dag/…`, `block/…` |
//! | [`add`], [`dag_in`], [`put`], [`keep`] | `add`, `dag/put`, `dag/import`: what is taken in |
//! | [`pins`] | `pin/…` |
//! | [`names`] | `name/…`, `key/…`, `resolve` |
//! | [`node`], [`swarm`] | `id`, `version`, `repo/stat`, `swarm/…` |
//!
//! Goals: answers that Kubo's clients read as Kubo's own, down to CIDs; what is read goes through the tiers and the network
//! session as the public gateway's reads do, so that the policy holds and misses are fetched; what is kept belongs to the token
//! that asked; no body and no answer is held in memory; known options that mean nothing here are refused with words.
//!
//! Non-goals: MFS, PubSub, the `object` and `files` commands, configuration. Web pages: a browser has no business here, and the
//! listener's guard turns it away.
//!
//! Departures from Kubo: statuses ([`problem`]); what is taken in and not pinned lives in the cache, and goes when it needs the
//! room, and what it does not keep is refused; an answer that breaks off resets its connection ([`answer`]).

pub mod add;
pub mod answer;
pub mod blocks;
pub mod call;
pub mod cids;
pub mod codecs;
pub mod command;
pub mod dag;
pub mod dag_in;
pub mod duration;
pub mod files;
pub mod keep;
pub mod ls;
pub mod names;
pub mod node;
pub mod paths;
pub mod pins;
pub mod problem;
pub mod put;
pub mod read;
pub mod swarm;
#[cfg(test)]
mod tests;

use self::command::Command;
use self::problem::RpcError;
use cache::BlockStore;
use cache::import::IMPORT_BYTES_MAX;
use content::budget::Share;
use content::{MAX_BLOCK_BYTES, NameResolver, Policy};
use gateway::limits::Limits;
use gateway::resolve::source::Sources;
use libp2p::PeerId;
use p2p_bridge::Bridge;
use p2p_bridge::names::publish::Publisher;
use services::access::Principal;
use services::limiter::{Limiter, Permit};
use services::pinning::Pins;
use services::uploads::{Uploads, memory_for};
use std::ops::Deref;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Imports that are under way at a time.
const IMPORTS_MAX: usize = 8;
/// Requests that put blocks or documents at a time. Pinned ones may wait for the network.
const PUTS_MAX: usize = 64;

/// What commands work with.
pub struct Parts {
    /// Where blocks come from.
    pub sources: Arc<Sources>,
    /// What names stand for.
    pub names: Arc<dyn NameResolver>,
    /// What may be emitted and taken in.
    pub policy: Arc<dyn Policy>,
    /// The node's store.
    pub store: Arc<dyn BlockStore>,
    /// What publishes names, and has the keys.
    pub publisher: Arc<Publisher>,
    /// The network, if there is one.
    pub bridge: Option<Bridge>,
    /// Who this node is.
    pub peer_id: PeerId,
    /// Who has what pinned.
    pub pins: Arc<Pins>,
    /// What takes uploads in.
    pub uploads: Uploads,
    /// What an answer may cost.
    pub limits: Limits,
}

/// The commands' state. Clones share it.
#[derive(Clone)]
pub struct Rpc(Arc<Inner>);

struct Inner {
    parts: Parts,
    imports: Arc<Limiter>,
    puts: Arc<Limiter>,
}

impl Deref for Rpc {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0.parts
    }
}

impl Rpc {
    /// Commands that work with these parts.
    pub fn new(parts: Parts) -> Self {
        let [imports, puts] = [IMPORTS_MAX, PUTS_MAX].map(|places| Arc::new(Limiter::shared(places)));
        Self(Arc::new(Inner { parts, imports, puts }))
    }

    /// A slot and memory for an import whose body has so many bytes at most.
    fn begin_import(&self, bearer: &Principal, body_bytes_max: Option<u64>) -> Result<(Permit, Share), RpcError> {
        let words = || format!("{IMPORTS_MAX} imports are under way: try again when one has ended");
        let bytes = memory_for(IMPORT_BYTES_MAX, MAX_BLOCK_BYTES, body_bytes_max);
        Ok((place(&self.0.imports, bearer, words)?, self.uploads.reserve(bytes)?))
    }

    /// A place for blocks or documents that are put.
    fn begin_put(&self, bearer: &Principal) -> Result<Permit, RpcError> {
        place(&self.0.puts, bearer, || format!("{PUTS_MAX} requests put blocks: try again when one has ended"))
    }
}

fn place(limiter: &Arc<Limiter>, bearer: &Principal, words: impl FnOnce() -> String) -> Result<Permit, RpcError> {
    Ok(crate::http::long::place(limiter, bearer, words)?)
}

/// Every command.
pub static COMMANDS: [&Command; 30] = [
    &add::ADD,
    &blocks::BLOCK_GET,
    &blocks::BLOCK_PUT,
    &blocks::BLOCK_STAT,
    &read::CAT,
    &dag::DAG_EXPORT,
    &dag::DAG_GET,
    &dag_in::DAG_IMPORT,
    &dag_in::DAG_PUT,
    &dag::DAG_RESOLVE,
    &dag::DAG_STAT,
    &read::GET,
    &node::ID,
    &names::KEY_GEN,
    &names::KEY_LIST,
    &names::KEY_LS,
    &ls::LS,
    &names::NAME_PUBLISH,
    &names::NAME_RESOLVE,
    &pins::PIN_ADD,
    &pins::PIN_LS,
    &pins::PIN_RM,
    &pins::PIN_UPDATE,
    &node::REPO_STAT,
    &names::RESOLVE,
    &swarm::ADDRS,
    &swarm::ADDRS_LOCAL,
    &swarm::CONNECT,
    &swarm::PEERS,
    &node::VERSION,
];

/// The routes, which take as long as they need.
pub fn long_routes(rpc: Rpc) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(add::ADD.describe(routes!(add::add)))
        .routes(blocks::BLOCK_GET.describe(routes!(blocks::block_get)))
        .routes(blocks::BLOCK_PUT.describe(routes!(blocks::block_put)))
        .routes(blocks::BLOCK_STAT.describe(routes!(blocks::block_stat)))
        .routes(read::CAT.describe(routes!(read::cat)))
        .routes(dag::DAG_EXPORT.describe(routes!(dag::dag_export)))
        .routes(dag::DAG_GET.describe(routes!(dag::dag_get)))
        .routes(dag_in::DAG_IMPORT.describe(routes!(dag_in::dag_import)))
        .routes(dag_in::DAG_PUT.describe(routes!(dag_in::dag_put)))
        .routes(dag::DAG_RESOLVE.describe(routes!(dag::dag_resolve)))
        .routes(dag::DAG_STAT.describe(routes!(dag::dag_stat)))
        .routes(read::GET.describe(routes!(read::get)))
        .routes(node::ID.describe(routes!(node::id)))
        .routes(names::KEY_GEN.describe(routes!(names::key_gen)))
        .routes(names::KEY_LIST.describe(routes!(names::key_list)))
        .routes(names::KEY_LS.describe(routes!(names::key_ls)))
        .routes(ls::LS.describe(routes!(ls::ls)))
        .routes(names::NAME_PUBLISH.describe(routes!(names::name_publish)))
        .routes(names::NAME_RESOLVE.describe(routes!(names::name_resolve)))
        .routes(pins::PIN_ADD.describe(routes!(pins::pin_add)))
        .routes(pins::PIN_LS.describe(routes!(pins::pin_ls)))
        .routes(pins::PIN_RM.describe(routes!(pins::pin_rm)))
        .routes(pins::PIN_UPDATE.describe(routes!(pins::pin_update)))
        .routes(node::REPO_STAT.describe(routes!(node::repo_stat)))
        .routes(names::RESOLVE.describe(routes!(names::resolve)))
        .routes(swarm::ADDRS.describe(routes!(swarm::addrs)))
        .routes(swarm::ADDRS_LOCAL.describe(routes!(swarm::addrs_local)))
        .routes(swarm::CONNECT.describe(routes!(swarm::connect)))
        .routes(swarm::PEERS.describe(routes!(swarm::peers)))
        .routes(node::VERSION.describe(routes!(node::version)))
        .with_state(rpc)
}

/// What is said where there is no command.
pub fn no_such_command() -> String {
    let names: Vec<_> = COMMANDS.iter().map(|command| command.path).collect();
    format!("there is no such command here, but {}", names.join(", "))
}
