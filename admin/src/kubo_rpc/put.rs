//! [`Put`]: writes each file of a form as a block, for `block/put` and `dag/put`.
//!
//! Each file is a change of its own. If the client disconnects, the finished pins stay; a pin of locally stored blocks
//! is completed or rolled back, and a pin that waits for the network is withdrawn.

use crate::kubo_rpc::Rpc;
use crate::kubo_rpc::answer::{self, Output};
use crate::kubo_rpc::block_writer::BlockWriter;
use crate::kubo_rpc::call::Call;
use crate::kubo_rpc::command::Command;
use crate::kubo_rpc::files::{self, Files};
use crate::kubo_rpc::problem::RpcError;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use content::{Block, MAX_BLOCK_BYTES};
use futures::stream;
use services::access::Principal;

/// The maximum number of files in a request, since the answer is buffered.
const FILES_MAX: usize = 10_000;

/// A command that writes each file as a block.
pub struct Put<M, V> {
    /// The command.
    pub command: &'static Command,
    /// The name of the file argument, for errors.
    pub argument: &'static str,
    /// Makes the function that encodes a file as a block, by the options.
    pub makes: M,
    /// Makes the line of the answer for a block.
    pub view: V,
}

impl<M, V> Put<M, V> {
    /// Writes the files of a request, and answers with a line for each once all are stored.
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
            let (_permit, make) = (rpc.begin_put(bearer)?, makes(&call)?);
            let _memory = rpc.uploads.reserve(files.decoder_bytes_max())?;
            let mut writer = BlockWriter::begin(rpc, bearer, call.flag("pin") == Some(true)).await?;
            let mut views = Vec::new();
            while let Some(data) = next(&mut files).await? {
                if views.len() == FILES_MAX {
                    return Err(too_many());
                }
                let block = make(data)?;
                writer.keep(&block, &call).await?;
                views.push(Ok(view(&call, &block)));
            }
            if views.is_empty() {
                return Err(RpcError::bad_request(format!("file argument '{argument}' is required")));
            }
            writer.settle().await?;
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
    let message = format!("the form has more than {FILES_MAX} files: send the rest in another request");
    RpcError { status: StatusCode::PAYLOAD_TOO_LARGE, message }
}
