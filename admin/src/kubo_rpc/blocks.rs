//! `block/get`, `block/stat` and `block/put`.

use crate::http::extract::Authenticated;
use crate::kubo_rpc::answer::{self, Answer, Output};
use crate::kubo_rpc::call::Call;
use crate::kubo_rpc::command::{self, Answers, Arguments, Command, Input};
use crate::kubo_rpc::problem::RpcError;
use crate::kubo_rpc::put::Put;
use crate::kubo_rpc::{Rpc, codecs};
use axum::extract::{Request, State};
use axum::response::Response;
use content::hashes::{self, IDENTITY, SHA2_256};
use content::policy::check_inlined;
use content::{Block, Cid, codec};
use futures::future::ready;
use futures::stream::{self, StreamExt as _};
use serde::Serialize;
use utoipa::ToSchema;

/// `block/get`
pub static BLOCK_GET: Command = Command {
    path: "block/get",
    arguments: Arguments::one("The CID of a block, or a path to one."),
    options: &[],
    body: Input::Arguments,
    answers: Answers::Bytes,
};

/// `block/stat`
pub static BLOCK_STAT: Command = Command {
    path: "block/stat",
    arguments: Arguments::one("The CID of a block, or a path to one."),
    options: &[],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// `block/put`
pub static BLOCK_PUT: Command = Command {
    path: "block/put",
    arguments: Arguments::NONE,
    options: &[
        command::text("cid-codec", "The codec of the CID; \"raw\" by default."),
        command::text("mhtype", "The hash function; \"sha2-256\" by default."),
        command::number("mhlen", "The length of the digest in bytes; the hash function's own by default."),
        command::flag("pin", "Whether the DAG below the block is fetched and pinned."),
        command::unsupported_flag("allow-big-block", "peers do not accept blocks of more than 2 MiB"),
        command::text("format", "Deprecated: the codec as \"v0\", \"protobuf\", \"cbor\" …; use \"cid-codec\".")
            .or("f"),
    ],
    body: Input::Files,
    answers: Answers::Lines,
};

/// A block.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct BlockView {
    /// Its CID.
    pub key: String,
    /// Its length in bytes.
    pub size: usize,
}

impl Output for BlockView {
    fn text(&self) -> String {
        format!("Key: {}\nSize: {}\n", self.key, self.size)
    }
}

/// Sends a block.
#[utoipa::path(post, path = "/api/v0/block/get", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The block.", body = String, content_type = "application/vnd.ipld.raw")))]
pub async fn block_get(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::receive(&BLOCK_GET, request).await?;
    call.within(async {
        let found = rpc.find(&call, call.argument()).await?;
        check_inlined(&*rpc.policy, &found.resolved.block)?;
        let data = found.resolved.block.data().clone();
        answer::bytes(&call, "application/vnd.ipld.raw", stream::once(ready(Ok(data))).boxed()).await
    })
    .await
}

/// Shows the length of a block.
#[utoipa::path(post, path = "/api/v0/block/stat", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "Its CID and length.", body = BlockView)))]
pub async fn block_stat(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::receive(&BLOCK_STAT, request).await?;
    call.within(async {
        let found = rpc.find(&call, call.argument()).await?;
        Ok(answer::once(&call, &view(&call, &found.resolved.block)))
    })
    .await
}

fn view(call: &Call, block: &Block) -> BlockView {
    BlockView { key: call.cids.show(block.cid()), size: block.data().len() }
}

/// Stores blocks. Unless they are pinned, they are only cached.
#[utoipa::path(post, path = "/api/v0/block/put", tag = "kubo", security(("bearer" = ["pin"])), responses(
    (status = 200, description = "The CID and length of each.", body = BlockView),
    (status = 413, description = "A block is larger than 2 MiB.", body = api::error::KuboError)))]
pub async fn block_put(State(rpc): State<Rpc>, Authenticated(bearer): Authenticated, request: Request) -> Response {
    let makes = |call: &Call| {
        let naming = CidFormat::of(call)?;
        Ok(move |data| naming.block(data))
    };
    Put { command: &BLOCK_PUT, argument: "data", makes, view }.answer(&rpc, &bearer, request).await
}

/// The options that determine the CID of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CidFormat {
    codec: u64,
    hash_code: u64,
    /// None for the identity hash, whose digest is the data itself.
    digest_bytes: Option<usize>,
    is_v0: bool,
}

impl CidFormat {
    fn of(call: &Call) -> Result<Self, RpcError> {
        let (name, format) = (call.text("cid-codec"), call.text("format"));
        if let (Some(name), Some(_)) = (name.filter(|name| *name != "raw"), format) {
            return Err(RpcError::bad_request(format!(
                "the options \"format\" and \"cid-codec={name}\" cannot be combined: use \"cid-codec\""
            )));
        }
        let codec = match format {
            Some("v0" | "protobuf") => codec::DAG_PB,
            Some("cbor") => codec::DAG_CBOR,
            Some(name) => codecs::named(name)?,
            None => name.map_or(Ok(codec::RAW), codecs::named)?,
        };
        let (hash_code, digest_bytes) = hash(call.text("mhtype").unwrap_or("sha2-256"))?;
        let digest_bytes = match call.number("mhlen").filter(|length| *length != -1) {
            None => digest_bytes,
            Some(length) => {
                let length = usize::try_from(length);
                Some(
                    length
                        .map_err(|_| RpcError::bad_request("the option \"mhlen\" must be a length in bytes, or -1"))?,
                )
            }
        };
        let is_v0 = format == Some("v0");
        if is_v0 && (hash_code, digest_bytes) != (SHA2_256, Some(32)) {
            return Err(RpcError::bad_request("CIDs of version 0 must have a full digest of sha2-256"));
        }
        Ok(Self { codec, hash_code, digest_bytes, is_v0 })
    }

    fn block(&self, data: bytes::Bytes) -> Result<Block, RpcError> {
        let digest_bytes = self.digest_bytes.unwrap_or(data.len());
        let block = Block::of(self.codec, self.hash_code, digest_bytes, data)?;
        let v0 = Cid::new_v0(*block.cid().hash()).ok().filter(|_| self.is_v0);
        Ok(v0.and_then(|cid| block.under(&cid)).unwrap_or(block))
    }
}

/// A hash function by its name, and the length of its digests.
pub fn hash(name: &str) -> Result<(u64, Option<usize>), RpcError> {
    if name == "identity" {
        return Ok((IDENTITY, None));
    }
    let known = hashes::named(name).map(|(code, bytes)| (code, Some(bytes)));
    known.ok_or_else(|| RpcError::bad_request(format!("unrecognized multihash function: \"{name}\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(query: &str) -> Result<String, RpcError> {
        let request = Request::builder().uri(format!("/api/v0/block/put?{query}")).body(()).expect("a request");
        let call = Call::of(&BLOCK_PUT, &request.into_parts().0)?;
        Ok(CidFormat::of(&call)?.block("hello".into())?.cid().to_string())
    }

    #[test]
    fn blocks_have_the_same_cids_as_in_kubo() {
        // What `echo -n hello | ipfs block put` prints with these options.
        let table = [
            ("", "bafkreibm6jg3ux5qumhcn2b3flc3tyu6dmlb4xa7u5bf44yegnrjhc4yeq"),
            ("cid-codec=raw&mhlen=-1", "bafkreibm6jg3ux5qumhcn2b3flc3tyu6dmlb4xa7u5bf44yegnrjhc4yeq"),
            ("cid-codec=dag-cbor", "bafyreibm6jg3ux5qumhcn2b3flc3tyu6dmlb4xa7u5bf44yegnrjhc4yeq"),
            ("format=cbor", "bafyreibm6jg3ux5qumhcn2b3flc3tyu6dmlb4xa7u5bf44yegnrjhc4yeq"),
            ("format=v0", "QmRN6wdp1S2A5EtjW9A3M1vKSBuQQGcgvuhoMUoEz4iiT5"),
            ("format=protobuf", "bafybeibm6jg3ux5qumhcn2b3flc3tyu6dmlb4xa7u5bf44yegnrjhc4yeq"),
            ("mhtype=identity", "bafkqablimvwgy3y"),
        ];
        for (query, expected) in table {
            assert_eq!(named(query).as_deref(), Ok(expected), "{query}");
        }
        let bad = [
            "mhtype=md5",
            "cid-codec=nothing",
            "format=v0&mhtype=sha2-512",
            "mhlen=4",
            "mhlen=-2",
            "f=v0&cid-codec=cbor",
        ];
        for query in bad {
            assert_eq!(named(query).expect_err(query).status, 400, "{query}");
        }
    }
}
