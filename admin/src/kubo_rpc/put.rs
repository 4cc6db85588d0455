//! [`Put`]: each file of a form as a block, which `block/put` and `dag/put` have in common.
//!
//! Each file is a change of its own. Whoever leaves has what was pinned until then; the pin that is being made of what is here is
//! made to its end or not at all, and one that waits for the network is taken back.

use crate::kubo_rpc::Rpc;
use crate::kubo_rpc::answer::{self, Output};
use crate::kubo_rpc::call::Call;
use crate::kubo_rpc::command::Command;
use crate::kubo_rpc::files::{self, Files};
use crate::kubo_rpc::keep::Keeper;
use crate::kubo_rpc::problem::RpcError;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use content::{Block, MAX_BLOCK_BYTES};
use futures::stream;
use services::access::Principal;

/// Files of one request: what is said of each waits in memory.
const FILES_MAX: usize = 10_000;

/// A command that makes a block of each file.
pub struct Put<M, V> {
    /// The command.
    pub command: &'static Command,
    /// What clients call a file.
    pub argument: &'static str,
    /// What makes blocks, by what was asked for.
    pub makes: M,
    /// What is said of a block.
    pub view: V,
}

impl<M, V> Put<M, V> {
    /// Takes the files of a request in: a line for each, once all are kept.
    pub async fn answer<B, T>(self, rpc: &Rpc, bearer: &Principal, request: Request) -> Response
    where
        M: FnOnce(&Call) -> Result<B, RpcError>,
        B: Fn(Bytes) -> Result<Block, RpcError>,
        V: Fn(&Call, &Block) -> T,
        T: Output + Send + 'static,
    {
        let Self { command, argument, makes, view } = self;
        let (call, mut files) = match files::receive(command, request) {
            Ok(received) => received,
            Err(response) => return response,
        };
        let rest = files.rest();
        let done = call.within(async {
            let (_place, make) = (rpc.begin_put(bearer)?, makes(&call)?);
            let mut keeper = Keeper::begin(rpc, bearer, call.flag("pin") == Some(true)).await?;
            let mut views = Vec::new();
            while let Some(data) = next(&mut files).await? {
                if views.len() == FILES_MAX {
                    return Err(too_many());
                }
                let block = make(data)?;
                keeper.keep(&block, &call).await?;
                views.push(Ok(view(&call, &block)));
            }
            if views.is_empty() {
                return Err(RpcError::bad(format!("file argument '{argument}' is required")));
            }
            keeper.settle().await?;
            answer::lines(&call, stream::iter(views)).await
        });
        rest.answer(done.await)
    }
}

async fn next(files: &mut Files) -> Result<Option<Bytes>, RpcError> {
    match files.next().await? {
        Some(mut file) => Ok(Some(file.read(MAX_BLOCK_BYTES).await?)),
        None => Ok(None),
    }
}

fn too_many() -> RpcError {
    let message = format!("there are more than {FILES_MAX} files: send the rest in another request");
    RpcError { status: StatusCode::PAYLOAD_TOO_LARGE, message }
}
