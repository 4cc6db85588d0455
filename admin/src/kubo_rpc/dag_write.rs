//! `dag/put` and `dag/import`: storing IPLD documents, and importing CAR archives.
//!
//! An import stores the blocks of all archives before it pins their roots, so that a DAG may be split over several
//! archives. Nothing is fetched: a root with a missing block is not pinned, and its line of the answer has the error.
//! Without pinning, archives may contain incomplete DAGs, whose blocks are only cached.

use crate::http::extract::Authenticated;
use crate::kubo_rpc::answer::{self, Output};
use crate::kubo_rpc::block_writer::BlockWriter;
use crate::kubo_rpc::blocks::hash;
use crate::kubo_rpc::call::Call;
use crate::kubo_rpc::command::{self, Answers, Arguments, Command, Input};
use crate::kubo_rpc::dag::LinkView;
use crate::kubo_rpc::files::{self, Files};
use crate::kubo_rpc::problem::RpcError;
use crate::kubo_rpc::put::Put;
use crate::kubo_rpc::{Rpc, codecs};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use cache::import::verified;
use content::car::{CarError, CarReader};
use content::{Block, Cid, codec, ipld};
use futures::stream::{self, StreamExt as _};
use serde::Serialize;
use services::access::Principal;
use std::collections::HashSet;
use std::io;
use std::pin::pin;
use tokio_util::io::StreamReader;
use utoipa::ToSchema;

/// The maximum number of roots in the archives of a request.
const ROOTS_MAX: usize = 10_000;

/// `dag/put`
pub static DAG_PUT: Command = Command {
    path: "dag/put",
    arguments: Arguments::NONE,
    options: &[
        command::text("store-codec", "The codec in which the document is stored; \"dag-cbor\" by default."),
        command::text("input-codec", "The codec of the document in the body; \"dag-json\" by default."),
        command::flag("pin", "Whether the DAG below the document is fetched and pinned."),
        command::text("hash", "The hash function; \"sha2-256\" by default."),
        command::unsupported_flag("allow-big-block", "peers do not accept blocks of more than 2 MiB"),
    ],
    body: Input::Files,
    answers: Answers::Lines,
};

/// `dag/import`
pub static DAG_IMPORT: Command = Command {
    path: "dag/import",
    arguments: Arguments::NONE,
    options: &[
        command::flag(
            "pin-roots",
            "Whether the roots of the archives are pinned; true by default. Unpinned blocks are only cached.",
        ),
        command::flag("silent", "For the client, which prints nothing."),
        command::flag("stats", "Whether the answer has statistics."),
        command::FAST_PROVIDE_ROOT,
        command::FAST_PROVIDE_DAG,
        command::FAST_PROVIDE_WAIT,
        command::unsupported_flag("allow-big-block", "peers do not accept blocks of more than 2 MiB"),
    ],
    body: Input::Files,
    answers: Answers::Lines,
};

/// A stored document.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct DagPutView {
    /// Its CID.
    pub cid: LinkView,
}

impl Output for DagPutView {
    fn text(&self) -> String {
        format!("{}\n", self.cid.cid)
    }
}

/// A line of an import: a root or the statistics.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct DagImportView {
    /// The result of pinning a root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<ImportedRootView>,
    /// The statistics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stats: Option<ImportStatsView>,
}

/// A root of an archive.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct ImportedRootView {
    /// The root.
    pub cid: LinkView,
    /// Why it is not pinned; empty if it is.
    pub pin_error_msg: String,
}

/// Statistics of an import.
#[derive(Debug, Clone, Copy, Default, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct ImportStatsView {
    /// The number of blocks, including repeated ones.
    pub block_count: u64,
    /// Their size in bytes.
    pub block_bytes_count: u64,
}

impl Output for DagImportView {
    fn text(&self) -> String {
        let root = self.root.as_ref().map(|root| match root.pin_error_msg.as_str() {
            "" => format!("Pinned root\t{}\tsuccess\n", root.cid.cid),
            message => format!("pinning root \"{}\" FAILED: {message}\n", root.cid.cid),
        });
        let stats = self
            .stats
            .map(|stats| format!("Imported {} blocks ({} bytes)\n", stats.block_count, stats.block_bytes_count));
        root.into_iter().chain(stats).collect()
    }
}

/// Stores documents. Unless they are pinned, they are only cached.
#[utoipa::path(post, path = "/api/v0/dag/put", tag = "kubo", security(("bearer" = ["pin"])), responses(
    (status = 200, description = "The CID of each.", body = DagPutView),
    (status = 413, description = "A document is larger than 2 MiB.", body = api::error::KuboError)))]
pub async fn dag_put(State(rpc): State<Rpc>, Authenticated(bearer): Authenticated, request: Request) -> Response {
    let view = |_: &Call, block: &Block| DagPutView { cid: block.cid().into() };
    Put { command: &DAG_PUT, argument: "object data", makes: writer, view }.answer(&rpc, &bearer, request).await
}

/// Makes the function that encodes a document as a block, by the options.
fn writer(call: &Call) -> Result<impl Fn(Bytes) -> Result<Block, RpcError> + use<>, RpcError> {
    let input = call.text("input-codec").map_or(Ok(codec::DAG_JSON), codecs::named)?;
    let output = call.text("store-codec").map_or(Ok(codec::DAG_CBOR), codecs::named)?;
    let (hash_code, digest_bytes) = hash(call.text("hash").unwrap_or("sha2-256"))?;
    Ok(move |read| {
        let written = rewritten(read, input, output)?;
        let digest_bytes = digest_bytes.unwrap_or(written.len());
        Ok(Block::of(output, hash_code, digest_bytes, written)?)
    })
}

/// Converts a document to another codec. The input must be valid even if the codecs are the same.
fn rewritten(data: Bytes, input: u64, output: u64) -> Result<Bytes, RpcError> {
    let block = Block::of(input, content::hashes::SHA2_256, 32, data)?;
    let document = ipld::decode(&block).map_err(RpcError::bad_request)?;
    match ipld::is_document(output) || output == codec::RAW {
        true => ipld::encode(&document, output).map_err(RpcError::bad_request),
        false if input == output => Ok(block.data().clone()),
        false => Err(RpcError::bad_request(format!("documents cannot be stored in the codec 0x{output:x}"))),
    }
}

/// Imports CAR archives, and pins their roots.
#[utoipa::path(post, path = "/api/v0/dag/import", tag = "kubo", security(("bearer" = ["pin"])), responses(
    (status = 200, description = "The result of each root, and the statistics.", body = DagImportView)))]
pub async fn dag_import(State(rpc): State<Rpc>, Authenticated(bearer): Authenticated, request: Request) -> Response {
    let (call, files) = match files::receive(&DAG_IMPORT, request) {
        Ok(received) => received,
        Err(response) => return response,
    };
    let rest = files.rest();
    let done = call.within(async {
        let (permit, pins) =
            (rpc.begin_import(&bearer, files.import_memory_bytes())?, call.flag("pin-roots") != Some(false));
        // Fully received archives are pinned even if the client disconnects.
        let importing = tokio::spawn(async move {
            let imported = import(&rpc, &bearer, files, pins).await;
            drop(permit);
            imported
        });
        let (roots, stats) = importing.await.map_err(|_| RpcError::stopping())??;
        let roots = roots.into_iter().map(|root| DagImportView { root: Some(root), stats: None });
        let stats = (call.flag("stats") == Some(true)).then_some(DagImportView { root: None, stats: Some(stats) });
        answer::lines(&call, stream::iter(roots.chain(stats).map(Ok).collect::<Vec<_>>())).await
    });
    rest.answer(done.await)
}

async fn import(
    rpc: &Rpc,
    bearer: &Principal,
    mut files: Files,
    pins: bool,
) -> Result<(Vec<ImportedRootView>, ImportStatsView), RpcError> {
    let mut writer = BlockWriter::begin(rpc, bearer, pins).await?;
    let (mut roots, mut seen, mut stats, mut archives) = (Vec::new(), HashSet::new(), ImportStatsView::default(), 0);
    while let Some(file) = files.next().await? {
        archives += 1;
        let car = CarReader::new(StreamReader::new(file.into_pieces())).await.map_err(unreadable)?;
        roots.extend(car.roots().iter().copied().filter(|root| seen.insert(*root)));
        if roots.len() > ROOTS_MAX {
            return Err(RpcError::bad_request(format!("the archives have more than {ROOTS_MAX} roots")));
        }
        let mut blocks = pin!(verified(car.into_sections()));
        while let Some(block) = blocks.next().await {
            let block = block.map_err(unreadable)?;
            stats.block_count += 1;
            stats.block_bytes_count += block.data().len() as u64;
            writer.check_room(stats.block_bytes_count)?;
            writer.put(&block).await?;
        }
    }
    if archives == 0 {
        return Err(RpcError::bad_request("file argument 'path' is required"));
    }
    writer.settle().await?;
    let mut views = Vec::with_capacity(roots.len());
    for root in roots.into_iter().filter(|_| pins) {
        views.push(pin_root(&writer, root).await);
    }
    Ok((views, stats))
}

async fn pin_root(writer: &BlockWriter<'_>, root: Cid) -> ImportedRootView {
    let pinned = writer.pin_held(root, None).await;
    let pin_error_msg = pinned.err().map(|error| RpcError::from(error).message).unwrap_or_default();
    ImportedRootView { cid: (&root).into(), pin_error_msg }
}

fn unreadable(error: CarError) -> RpcError {
    let message = format!("import failed: {error}");
    match error {
        CarError::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
            RpcError { status: StatusCode::REQUEST_TIMEOUT, message }
        }
        CarError::Io(error) => RpcError { message, ..files::unread(&error) },
        _ => RpcError::bad_request(message),
    }
}
