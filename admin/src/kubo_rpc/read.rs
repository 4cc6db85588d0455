//! `cat` and `get`: files as bytes, and anything as a TAR.

use crate::kubo_rpc::Rpc;
use crate::kubo_rpc::answer::{self, Answer, CONTENT_LENGTH_HINT};
use crate::kubo_rpc::call::Call;
use crate::kubo_rpc::command::{self, Answers, Arguments, Command, Input};
use crate::kubo_rpc::paths::ResolvedPath;
use crate::kubo_rpc::problem::RpcError;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use bytes::Bytes;
use content::unixfs::Node;
use content::unixfs::file::{FileReader, ReadLimits};
use content::{Block, tar};
use futures::future::ready;
use futures::stream::{self, StreamExt as _};
use gateway::resolve::source::RootSource;
use std::ops::Range;
use std::sync::Arc;

/// `cat`
pub static CAT: Command = Command {
    path: "cat",
    arguments: Arguments::several(1, "Paths of files, whose bytes are concatenated."),
    options: &[
        command::long_number("offset", "The number of bytes to skip.").or("o"),
        command::long_number("length", "The maximum number of bytes to send.").or("l"),
        command::flag("progress", "For the client, which shows progress.").or("p"),
    ],
    body: Input::Arguments,
    answers: Answers::Bytes,
};

/// `get`
pub static GET: Command = Command {
    path: "get",
    arguments: Arguments::one("The path of a file or folder."),
    options: &[
        command::text("output", "For the client, which writes to this path.").or("o"),
        command::flag("archive", "For the client, which does not unpack the archive.").or("a"),
        command::unsupported_flag("compress", "compress the archive on the client").or("C"),
        command::number("compression-level", "Has no effect without \"compress\".").or("l"),
        command::flag("progress", "For the client, which shows progress.").or("p"),
    ],
    body: Input::Arguments,
    answers: Answers::Bytes,
};

/// Sends the bytes of files.
#[utoipa::path(post, path = "/api/v0/cat", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The bytes. X-Content-Length has their number.", body = String,
     content_type = "text/plain")))]
pub async fn cat(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::receive(&CAT, request).await?;
    call.within(async {
        let (parts, length) = rpc.open(&call).await?;
        let limits = rpc.limits.memory_of(call.client).read_limits();
        let chunks = stream::iter(parts).flat_map(move |part| part.read(limits.clone())).boxed();
        let mut response = answer::bytes(&call, "text/plain", chunks).await?;
        response.headers_mut().insert(CONTENT_LENGTH_HINT, HeaderValue::from(length));
        Ok(response)
    })
    .await
}

/// Sends a file or folder as a TAR.
#[utoipa::path(post, path = "/api/v0/get", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "A TAR archive.", body = String, content_type = "application/x-tar")))]
pub async fn get(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::receive(&GET, request).await?;
    call.within(async {
        let found = rpc.find(&call, call.argument()).await?.whole()?;
        let source = found.below().await?;
        let name = call.argument().trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
        let stream = tar::stream(source, name, found.resolved.block, rpc.limits.tar);
        let chunks = stream.map(|chunk| chunk.map_err(|error| gateway::errors::Problem::Tar(error).into())).boxed();
        answer::bytes(&call, "application/x-tar", chunks).await
    })
    .await
}

/// A range of a file that `cat` sends.
struct Part {
    source: Arc<RootSource>,
    file: Block,
    range: Range<u64>,
}

impl Part {
    fn read(self, limits: ReadLimits) -> answer::Chunks {
        match FileReader::new(self.source as _, self.file, self.range, limits) {
            Ok(reader) => reader.map(|chunk| chunk.map_err(RpcError::from)).boxed(),
            Err(error) => stream::once(ready(Err::<Bytes, _>(RpcError::from(error)))).boxed(),
        }
    }
}

/// The value of an option in bytes.
fn bytes_of(call: &Call, name: &str) -> Result<Option<u64>, RpcError> {
    let number = call.number(name);
    let bytes = number.map(u64::try_from).transpose();
    bytes.map_err(|_| RpcError::bad_request(format!("the option \"{name}\" cannot be negative")))
}

impl Rpc {
    /// The requested ranges of the files, and their total length. Also a file that is skipped completely is resolved,
    /// for its length.
    async fn open(&self, call: &Call) -> Result<(Vec<Part>, u64), RpcError> {
        let mut skip = bytes_of(call, "offset")?.unwrap_or(0);
        let mut left = bytes_of(call, "length")?.unwrap_or(u64::MAX);
        let (mut parts, mut total) = (Vec::new(), 0_u64);
        for argument in call.arguments.iter() {
            if left == 0 {
                break;
            }
            let ResolvedPath { source, resolved, .. } = self.find(call, argument).await?.whole()?;
            let size = match Node::decode(&resolved.block)? {
                Node::File(file) => file.size(),
                // Clients look for this message.
                Node::Directory(_) | Node::HamtShard(_) => {
                    return Err(RpcError::unprocessable("this dag node is a directory"));
                }
                Node::Symlink { .. } => return Err(RpcError::unprocessable("this is a symlink, which has no content")),
                Node::Plain(_) => {
                    return Err(RpcError::unprocessable("this is not a UnixFS file: use \"block get\""));
                }
            };
            let start = skip.min(size);
            skip -= start;
            let end = size.min(start.saturating_add(left));
            left -= end - start;
            total = total.saturating_add(end - start);
            if start < end {
                parts.push(Part { source, file: resolved.block, range: start..end });
            }
        }
        Ok((parts, total))
    }
}
