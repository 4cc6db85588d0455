//! `dag/get`, `dag/resolve`, `dag/stat` and `dag/export`: reading and exporting DAGs.

use crate::kubo_rpc::answer::{self, Answer, Output};
use crate::kubo_rpc::call::Call;
use crate::kubo_rpc::command::{self, Answers, Arguments, Command, Input};
use crate::kubo_rpc::problem::RpcError;
use crate::kubo_rpc::{Rpc, codecs};
use axum::extract::{Request, State};
use content::ipld::{self, Ipld};
use content::policy::check_inlined;
use content::scope::{self, ScopeLimits, ScopeOptions};
use content::{Block, BlockSource, Cid, car};
use futures::future::ready;
use futures::stream::{self, StreamExt as _};
use serde::Serialize;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::time::{Duration, Instant};
use utoipa::ToSchema;

/// The interval of progress values of `dag/stat`.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// `dag/get`
pub static DAG_GET: Command = Command {
    path: "dag/get",
    arguments: Arguments::one("The path of a document, or of a value inside a document."),
    options: &[command::text(
        "output-codec",
        "The codec of the answer: \"dag-json\" (the default), \"dag-cbor\", \"json\" …",
    )],
    body: Input::Arguments,
    answers: Answers::Bytes,
};

/// `dag/resolve`
pub static DAG_RESOLVE: Command = Command {
    path: "dag/resolve",
    arguments: Arguments::one("A path."),
    options: &[],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// `dag/stat`
pub static DAG_STAT: Command = Command {
    path: "dag/stat",
    arguments: Arguments::several(1, "Paths of roots."),
    options: &[command::flag("progress", "Whether values report progress; true by default.").or("p")],
    body: Input::Arguments,
    answers: Answers::Lines,
};

/// `dag/export`
pub static DAG_EXPORT: Command = Command {
    path: "dag/export",
    arguments: Arguments::one("The path of a root."),
    options: &[command::flag("progress", "For the client, which shows progress.").or("p")],
    body: Input::Arguments,
    answers: Answers::Bytes,
};

/// A CID, as a link in DAG-JSON.
#[derive(Debug, Serialize, ToSchema)]
pub struct LinkView {
    /// The CID.
    #[serde(rename = "/")]
    pub cid: String,
}

impl From<&Cid> for LinkView {
    fn from(cid: &Cid) -> Self {
        Self { cid: cid.to_string() }
    }
}

/// A resolved path.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct DagResolvedView {
    /// The block.
    pub cid: LinkView,
    /// The rest of the path inside the block.
    pub rem_path: String,
}

impl Output for DagResolvedView {
    fn text(&self) -> String {
        match self.rem_path.is_empty() {
            true => self.cid.cid.clone(),
            false => format!("{}/{}", self.cid.cid, self.rem_path),
        }
    }
}

/// Statistics of a DAG.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct DagStatView {
    /// Its root.
    pub cid: String,
    /// The size of its blocks in bytes.
    #[serde(skip_serializing_if = "is_zero")]
    pub size: u64,
    /// The number of its blocks.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_blocks: u64,
}

/// Statistics of several DAGs. Progress values have no ratio.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct DagStatsView {
    /// The number of distinct blocks.
    #[serde(skip_serializing_if = "is_zero")]
    pub unique_blocks: u64,
    /// The size of the distinct blocks in bytes.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_size: u64,
    /// The size of blocks that several of the DAGs share, counted once for each repetition, in bytes.
    #[serde(skip_serializing_if = "is_zero")]
    pub shared_size: u64,
    /// The sum of the DAGs' sizes, divided by the size of the distinct blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// The statistics of each DAG.
    #[serde(rename = "DagStats")]
    pub dag_stats: Vec<DagStatView>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Output for DagStatsView {
    fn text(&self) -> String {
        let rows = self.dag_stats.iter().map(|dag| format!("{}\t{}\t{}\n", dag.cid, dag.num_blocks, dag.size));
        let summary = format!(
            "\nSummary\nTotal Size: {}\nUnique Blocks: {}\nShared Size: {}\nRatio: {:.6}\n",
            self.total_size,
            self.unique_blocks,
            self.shared_size,
            self.ratio.unwrap_or_default()
        );
        std::iter::once("CID\tBlocks\tSize\n".to_owned()).chain(rows).chain([summary]).collect()
    }
}

/// Shows a document, or a value inside a document.
#[utoipa::path(post, path = "/api/v0/dag/get", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The document or value, in the requested codec.", body = String,
     content_type = "text/plain")))]
pub async fn dag_get(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::receive(&DAG_GET, request).await?;
    let codec = call.text("output-codec").map_or(Ok(content::codec::DAG_JSON), codecs::named)?;
    call.within(async {
        let found = rpc.find(&call, call.argument()).await?;
        found.below().await?;
        check_inlined(found.source.policy(), &found.resolved.block)?;
        let resolved = found.resolved;
        let written = if resolved.remainder.is_empty() {
            ipld::convert(&resolved.block, codec)?
        } else {
            let document = ipld::decode(&resolved.block)?;
            let value = resolved.remainder.iter().try_fold(&document, |value: &Ipld, segment| value.get(segment));
            // The path resolution has found the value.
            let value = value.ok_or_else(|| RpcError::unprocessable("the path does not exist in the document"))?;
            ipld::encode(value, codec).map_err(RpcError::unprocessable)?
        };
        answer::bytes(&call, "text/plain", stream::once(ready(Ok(written))).boxed()).await
    })
    .await
}

/// Resolves a path to a block.
#[utoipa::path(post, path = "/api/v0/dag/resolve", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The block, and the rest of the path inside the block.", body = DagResolvedView)))]
pub async fn dag_resolve(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::receive(&DAG_RESOLVE, request).await?;
    call.within(async {
        let found = rpc.find(&call, call.argument()).await?;
        let rem_path = found.resolved.remainder.join("/");
        Ok(answer::once(&call, &DagResolvedView { cid: found.cid().into(), rem_path }))
    })
    .await
}

/// Exports the DAG below a root as a CARv1.
#[utoipa::path(post, path = "/api/v0/dag/export", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "A CARv1, in depth-first order, each block once.", body = String,
     content_type = "application/vnd.ipld.car")))]
pub async fn dag_export(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::receive(&DAG_EXPORT, request).await?;
    call.within(async {
        let found = rpc.find(&call, call.argument()).await?.whole()?;
        let header = stream::once(ready(Ok(car::header(&[*found.cid()]))));
        let policy = Arc::clone(found.source.policy_handle());
        let sections = blocks(found.below().await?, found.resolved.block, rpc.limits.scope).flat_map(move |block| {
            let block = block.and_then(|block| check_inlined(&*policy, &block).map(|()| block).map_err(RpcError::from));
            stream::iter(match block {
                Ok(block) => <[_; 2]>::from(car::section(&block)).map(Ok).to_vec(),
                Err(error) => vec![Err(error)],
            })
        });
        answer::bytes(&call, "application/vnd.ipld.car", header.chain(sections).boxed()).await
    })
    .await
}

type Blocks = stream::BoxStream<'static, Result<Block, RpcError>>;

/// The blocks of the DAG below a root, each once.
fn blocks(source: Arc<dyn BlockSource>, root: Block, limits: ScopeLimits) -> Blocks {
    let blocks = scope::blocks(source, Vec::new(), root, ScopeOptions::default(), limits);
    blocks.map(|block| block.map_err(RpcError::from)).boxed()
}

/// Counts the blocks and bytes of DAGs.
#[utoipa::path(post, path = "/api/v0/dag/stat", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The statistics; with \"progress\", preceded by progress values.",
        body = DagStatsView)))]
pub async fn dag_stat(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::receive(&DAG_STAT, request).await?;
    call.within(async {
        let mut dags = Vec::with_capacity(call.arguments.len());
        for argument in &call.arguments {
            let found = rpc.find(&call, argument).await?.whole()?;
            let stat = DagStatView { cid: call.cids.show(found.cid()), size: 0, num_blocks: 0 };
            dags.push((stat, blocks(found.below().await?, found.resolved.block, rpc.limits.scope)));
        }
        let progress = call.flag("progress") != Some(false);
        let counting = Counting::new(dags, progress, rpc.limits.scope.seen_max);
        let values = stream::try_unfold(Some(counting), |counting| async move {
            let Some(mut counting) = counting else { return Ok(None) };
            let (view, is_last) = counting.next().await?;
            Ok(Some((view, (!is_last).then_some(counting))))
        });
        answer::lines(&call, values).await
    })
    .await
}

/// A running `dag/stat`.
struct Counting {
    dags: Vec<(DagStatView, Blocks)>,
    /// The number of DAGs that are counted completely.
    done: usize,
    progress: bool,
    /// The seen blocks, by the first 16 bytes of their digests; not needed for a single DAG.
    seen: HashSet<u128>,
    seen_max: usize,
    sums: DagStatsView,
    /// The sum of the DAGs' sizes in bytes.
    redundant: u64,
}

impl Counting {
    fn new(dags: Vec<(DagStatView, Blocks)>, progress: bool, seen_max: usize) -> Self {
        let (seen, sums) = (HashSet::new(), DagStatsView::default());
        Self { dags, done: 0, progress, seen, seen_max, sums, redundant: 0 }
    }

    /// The next value, and whether it is the last.
    async fn next(&mut self) -> Result<(DagStatsView, bool), RpcError> {
        let due = Instant::now() + PROGRESS_EVERY;
        while self.done < self.dags.len() {
            let several = self.dags.len() > 1;
            let (stat, blocks) = &mut self.dags[self.done];
            let Some(block) = blocks.next().await else {
                self.done += 1;
                continue;
            };
            let block = block?;
            let bytes = block.data().len() as u64;
            stat.size += bytes;
            stat.num_blocks += 1;
            self.redundant += bytes;
            if !several || self.seen.insert(digest_prefix(&block)) {
                self.sums.unique_blocks += 1;
                self.sums.total_size += bytes;
            }
            if self.seen.len() > self.seen_max {
                let message = format!("the DAGs have more than {} blocks: request them one by one", self.seen_max);
                return Err(RpcError::unprocessable(message));
            }
            if self.progress && Instant::now() >= due {
                return Ok((self.view(), false));
            }
        }
        let mut view = self.view();
        view.shared_size = self.redundant - view.total_size;
        view.ratio = Some(if view.total_size == 0 { 1.0 } else { self.redundant as f64 / view.total_size as f64 });
        Ok((view, true))
    }

    fn view(&self) -> DagStatsView {
        DagStatsView { dag_stats: self.dags.iter().map(|(stat, _)| stat.clone()).collect(), ..self.sums.clone() }
    }
}

fn digest_prefix(block: &Block) -> u128 {
    let digest = block.cid().hash().digest().iter().take(16);
    digest.fold(0, |name, byte| name << 8 | u128::from(*byte))
}
