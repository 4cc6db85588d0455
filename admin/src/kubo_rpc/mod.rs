//! A subset of Kubo's RPC (<https://docs.ipfs.tech/reference/kubo/rpc/>) under `/api/v0`, so that `kubo-rpc-client` and
//! `ipfs --api` can drive this node as they are.
//!
//! | module | concern |
//! |---|---|
//! | [`command`] | the specification of each command: arguments, options, body and answer |
//! | [`call`] | parses a request as a command with arguments and options |
//! | [`duration`] | durations in Go's format |
//! | [`codecs`] | codecs by name |
//! | [`files`] | the files of a form |
//! | [`answer`] | answers: a value, lines of values, or bytes |
//! | [`cids`] | CIDs and keys as text, in a multibase |
//! | [`problem`] | errors |
//! | [`paths`] | resolves path arguments |
//! | [`read`] | `cat`, `get` |
//! | [`ls`] | `ls` |
//! | [`dag`] | `dag/get`, `dag/resolve`, `dag/stat`, `dag/export` |
//! | [`blocks`] | `block/get`, `block/stat`, `block/put` |
//! | [`add`] | `add` |
//! | [`dag_write`] | `dag/put`, `dag/import` |
//! | [`put`] | shared by `block/put` and `dag/put` |
//! | [`block_writer`] | writes blocks to the cache or as pins |
//! | [`pins`] | `pin/…` |
//! | [`names`] | `name/…`, `key/…`, `resolve` |
//! | [`node`] | `id`, `version`, `repo/stat` |
//! | [`swarm`] | `swarm/…` |
//!
//! Goals: answers that Kubo's clients parse like Kubo's own, with the same CIDs; reads go through the tiers and a
//! Bitswap session like reads of the public gateway, so that the policy applies and misses are fetched; pins belong to
//! the token that creates them; bodies and answers are streamed; known but unsupported options are rejected with a
//! message.
//!
//! Non-goals: MFS, PubSub, the `object` and `files` commands, configuration; use by web pages, whose cross-site
//! requests the listener's guard rejects.
//!
//! Departures from Kubo: statuses ([`problem`]); content that is added without a pin is only cached and may be evicted,
//! and content that exceeds the cache is rejected; an incomplete answer resets its connection ([`answer`]).

pub mod add;
pub mod answer;
pub mod block_writer;
pub mod blocks;
pub mod call;
pub mod cids;
pub mod codecs;
pub mod command;
pub mod dag;
pub mod dag_write;
pub mod duration;
pub mod files;
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
use content::budget::Share;
use content::{NameResolver, Policy};
use gateway::limits::RequestLimits;
use gateway::resolve::source::Sources;
use libp2p::PeerId;
use p2p_bridge::Bridge;
use p2p_bridge::names::publish::Publisher;
use services::access::Principal;
use services::limiter::{Limiter, Permit};
use services::pinning::Pins;
use services::uploads::Uploads;
use std::ops::Deref;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The maximum number of concurrent imports.
const IMPORTS_MAX: usize = 8;
/// The maximum number of concurrent requests that put blocks or documents. With a pin they may wait for the network.
const PUTS_MAX: usize = 64;

/// The components of the node that commands use.
pub struct Dependencies {
    /// The sources of blocks.
    pub sources: Arc<Sources>,
    /// The name resolver.
    pub names: Arc<dyn NameResolver>,
    /// The content policy.
    pub policy: Arc<dyn Policy>,
    /// The node's block store.
    pub store: Arc<dyn BlockStore>,
    /// The IPNS publisher, with the keystore.
    pub publisher: Arc<Publisher>,
    /// The network, unless the node is offline.
    pub bridge: Option<Bridge>,
    /// The node's peer ID.
    pub peer_id: PeerId,
    /// The pin service.
    pub pins: Arc<Pins>,
    /// The upload service.
    pub uploads: Uploads,
    /// The limits of answers.
    pub limits: RequestLimits,
}

/// The state of the commands. Clones share it.
#[derive(Clone)]
pub struct Rpc(Arc<Inner>);

struct Inner {
    parts: Dependencies,
    imports: Arc<Limiter>,
    puts: Arc<Limiter>,
}

impl Deref for Rpc {
    type Target = Dependencies;

    fn deref(&self) -> &Dependencies {
        &self.0.parts
    }
}

impl Rpc {
    /// Commands on these components.
    pub fn new(parts: Dependencies) -> Self {
        let [imports, puts] = [IMPORTS_MAX, PUTS_MAX].map(|permits| Arc::new(Limiter::shared(permits)));
        Self(Arc::new(Inner { parts, imports, puts }))
    }

    /// A permit and reserved memory for an import.
    fn begin_import(&self, bearer: &Principal, memory_bytes: usize) -> Result<(Permit, Share), RpcError> {
        let message = || format!("{IMPORTS_MAX} imports are running: try again when one has ended");
        Ok((acquire(&self.0.imports, bearer, message)?, self.uploads.reserve(memory_bytes)?))
    }

    /// A permit for a request that puts blocks or documents.
    fn begin_put(&self, bearer: &Principal) -> Result<Permit, RpcError> {
        acquire(&self.0.puts, bearer, || {
            format!("{PUTS_MAX} requests are putting blocks: try again when one has ended")
        })
    }
}

fn acquire(limiter: &Arc<Limiter>, bearer: &Principal, message: impl FnOnce() -> String) -> Result<Permit, RpcError> {
    Ok(crate::http::long_running::acquire(limiter, bearer, message)?)
}

/// All commands.
pub static COMMANDS: [&Command; 30] = [
    &add::ADD,
    &blocks::BLOCK_GET,
    &blocks::BLOCK_PUT,
    &blocks::BLOCK_STAT,
    &read::CAT,
    &dag::DAG_EXPORT,
    &dag::DAG_GET,
    &dag_write::DAG_IMPORT,
    &dag_write::DAG_PUT,
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

/// The long-running routes, which have no timeout of their own.
pub fn long_running_routes(rpc: Rpc) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(add::ADD.describe(routes!(add::add)))
        .routes(blocks::BLOCK_GET.describe(routes!(blocks::block_get)))
        .routes(blocks::BLOCK_PUT.describe(routes!(blocks::block_put)))
        .routes(blocks::BLOCK_STAT.describe(routes!(blocks::block_stat)))
        .routes(read::CAT.describe(routes!(read::cat)))
        .routes(dag::DAG_EXPORT.describe(routes!(dag::dag_export)))
        .routes(dag::DAG_GET.describe(routes!(dag::dag_get)))
        .routes(dag_write::DAG_IMPORT.describe(routes!(dag_write::dag_import)))
        .routes(dag_write::DAG_PUT.describe(routes!(dag_write::dag_put)))
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

/// The error for an unknown command.
pub fn no_such_command() -> String {
    let names: Vec<_> = COMMANDS.iter().map(|command| command.path).collect();
    format!("there is no such command; the supported commands are {}", names.join(", "))
}
