//! `name/resolve`, `name/publish`, `resolve`, and `key/…`.
//!
//! Departures: the name resolver does not expose single steps of a DNSLink, so domains are always resolved recursively;
//! keys are only created and listed here, and `/api/v1/names/keys` does everything else.

use crate::kubo_rpc::answer::{self, Answer, Output};
use crate::kubo_rpc::call::Call;
use crate::kubo_rpc::cids::show_key;
use crate::kubo_rpc::command::{self, Answers, Arguments, Command, Input};
use crate::kubo_rpc::problem::RpcError;
use crate::kubo_rpc::{Rpc, paths};
use axum::extract::{Request, State};
use content::names::{Key, Name};
use content::path::Root;
use content::{Cid, ContentPath};
use futures::stream;
use p2p_bridge::names::key_format::KeyKind;
use p2p_bridge::names::keystore::{KeyInfo, SELF};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use utoipa::ToSchema;

/// How long `name/publish` waits until the first peer has the record.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);

/// `name/resolve`
pub static NAME_RESOLVE: Command = Command {
    path: "name/resolve",
    arguments: Arguments::perhaps("A name: a key or a domain, with or without /ipns/; the node's own by default."),
    options: &[
        command::flag("recursive", "Whether names are resolved recursively; true by default.").or("r"),
        command::unsupported_flag("nocache", "use POST /api/v1/names/refresh").or("n"),
        command::number("dht-record-count", "Has no effect: the best of all records is used.").or("dhtrc"),
        command::duration("dht-timeout", "Has no effect: the gateway has a setting for it.").or("dhtt"),
        command::flag("stream", "Whether the answer is streamed; it always has one value.").or("s"),
    ],
    body: Input::Arguments,
    answers: Answers::Lines,
};

/// `name/publish`
pub static NAME_PUBLISH: Command = Command {
    path: "name/publish",
    arguments: Arguments::one("The path to publish."),
    options: &[
        command::text("key", "The name or the ID of the key; \"self\" by default.").or("k"),
        command::flag("resolve", "Whether the path must resolve; true by default."),
        command::duration("lifetime", "The validity of the record, which is republished in time.").or("t"),
        command::duration("ttl", "How long resolvers may cache the record."),
        command::flag("quieter", "For the client, which prints less.").or("Q"),
        command::flag("v1compat", "Whether old clients can verify the record. They always can."),
        command::flag("allow-offline", "Whether the record may be stored until there is a network."),
        command::flag("allow-delegated", "The same as \"allow-offline\"."),
        command::unsupported_value("sequence", "the gateway counts the sequence"),
        command::text("ipns-base", "The multibase of the name; base36 by default."),
    ],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// `resolve`
pub static RESOLVE: Command = Command {
    path: "resolve",
    arguments: Arguments::one("A path."),
    options: &[
        command::flag("recursive", "Whether names are resolved recursively; true by default.").or("r"),
        command::number("dht-record-count", "Has no effect: the best of all records is used.").or("dhtrc"),
        command::duration("dht-timeout", "Has no effect: the gateway has a setting for it.").or("dhtt"),
    ],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// `key/gen`
pub static KEY_GEN: Command = Command {
    path: "key/gen",
    arguments: Arguments::one("The name of the key."),
    options: &[
        command::text("type", "The type of the key; \"ed25519\" by default.").or("t"),
        command::unsupported_value("size", "keys of the supported types have a fixed size").or("s"),
        command::text("ipns-base", "The multibase of the key's ID; base36 by default."),
    ],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// `key/list`
pub static KEY_LIST: Command = Command { path: "key/list", ..LIST };
/// `key/ls`
pub static KEY_LS: Command = Command { path: "key/ls", ..LIST };

const LIST: Command = Command {
    path: "",
    arguments: Arguments::NONE,
    options: &[
        command::flag("l", "For the client, which prints the IDs of the keys."),
        command::text("ipns-base", "The multibase of the keys' IDs; base36 by default."),
    ],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// A path.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct PathView {
    /// The path.
    pub path: String,
}

impl Output for PathView {
    fn text(&self) -> String {
        format!("{}\n", self.path)
    }
}

/// The published name.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct NamePublishedView {
    /// The name, without /ipns/.
    pub name: String,
    /// The published path.
    pub value: String,
}

impl Output for NamePublishedView {
    fn text(&self) -> String {
        format!("Published to {}: {}\n", self.name, self.value)
    }
}

/// A key.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct RpcKeyView {
    /// Its name.
    pub name: String,
    /// Its ID: the IPNS name that it publishes.
    pub id: String,
}

impl Output for RpcKeyView {
    fn text(&self) -> String {
        format!("{}\n", self.id)
    }
}

/// Keys.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct RpcKeysView {
    /// The keys, sorted by name.
    pub keys: Vec<RpcKeyView>,
}

impl Output for RpcKeysView {
    fn text(&self) -> String {
        self.keys.iter().map(|key| format!("{} {}\n", key.id, key.name)).collect()
    }
}

/// Resolves a name.
#[utoipa::path(post, path = "/api/v0/name/resolve", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The path that the name resolves to.", body = PathView)))]
pub async fn name_resolve(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::of(&NAME_RESOLVE, &request.into_parts().0)?;
    call.within(async {
        let path = match call.arguments.first() {
            Some(name) if name.starts_with("/ipns/") => paths::parse(name)?,
            Some(name) => paths::parse(&format!("/ipns/{name}"))?,
            None => paths::parse(&format!("/ipns/{}", Key::from(rpc.peer_id)))?,
        };
        let path = match call.flag("recursive") {
            Some(false) => rpc.step(path).await?,
            _ => rpc.follow(path).await?,
        };
        match call.flag("stream") {
            Some(true) => answer::lines(&call, stream::iter([Ok(PathView { path })])).await,
            _ => Ok(answer::once(&call, &PathView { path })),
        }
    })
    .await
}

/// Resolves a path to a block.
#[utoipa::path(post, path = "/api/v0/resolve", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The path of the block, with the rest of the path inside the block.",
        body = PathView)))]
pub async fn resolve(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::receive(&RESOLVE, request).await?;
    call.within(async {
        let path = paths::parse(call.argument())?;
        let is_name = matches!(path.root, Root::Name(_));
        let path = match (call.flag("recursive"), &path.root) {
            (Some(false), Root::Name(_)) => rpc.step(path).await?,
            (_, Root::Cid(cid)) if !is_name && path.segments.is_empty() => below(&call.cids.show(cid), &[]),
            _ => {
                let found = rpc.find(&call, call.argument()).await?;
                below(&call.cids.show(found.cid()), &found.resolved.remainder)
            }
        };
        Ok(answer::once(&call, &PathView { path }))
    })
    .await
}

fn below(root: &str, segments: &[String]) -> String {
    std::iter::once("/ipfs").chain([root]).chain(segments.iter().map(String::as_str)).collect::<Vec<_>>().join("/")
}

impl Rpc {
    /// The immutable path that a path resolves to, without reading its blocks.
    async fn follow(&self, path: ContentPath) -> Result<String, RpcError> {
        let ContentPath { root, segments, .. } = path;
        let (cid, segments): (Cid, Vec<_>) = match root {
            Root::Cid(cid) => (cid, segments),
            Root::Name(name) => {
                let found = self.names.resolve(&name).await?;
                (found.root, found.segments.into_iter().chain(segments).collect())
            }
        };
        Ok(below(&cid.to_string(), &segments))
    }

    /// The value of a key's record.
    async fn step(&self, path: ContentPath) -> Result<String, RpcError> {
        match &path.root {
            Root::Name(Name::Key(key)) => {
                let record = self.names.record(key).await?;
                let segments = path.segments.iter().map(|segment| format!("/{segment}"));
                Ok(std::iter::once(record.value().to_owned()).chain(segments).collect())
            }
            _ => self.follow(path).await,
        }
    }
}

/// Publishes a path under a name.
#[utoipa::path(post, path = "/api/v0/name/publish", tag = "kubo", security(("bearer" = ["operate"])), responses(
    (status = 200, description = "The published name.", body = NamePublishedView)))]
pub async fn name_publish(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::receive(&NAME_PUBLISH, request).await?;
    call.within(async {
        let publisher = &rpc.publisher;
        let offline = call.offline || publisher.targets().is_empty();
        let allowed = [call.flag("allow-offline"), call.flag("allow-delegated")].contains(&Some(true));
        if offline && !allowed {
            let message =
                "can't publish while offline: pass \"allow-offline\" to store the record until there is a network";
            return Err(RpcError::unprocessable(message));
        }
        let path = paths::parse(call.argument())?;
        if call.flag("resolve") != Some(false) {
            rpc.find(&call, call.argument()).await?;
        }
        let value = written(&path);
        let key = call.text("key").unwrap_or(SELF);
        let (lifetime, ttl) = (call.duration("lifetime"), call.duration("ttl"));
        let published = publisher.publish(key, &value, lifetime, ttl).await?;
        let settled = publisher.settled(published, PUBLISH_TIMEOUT).await;
        let name = show_key(&settled.key, call.text("ipns-base"))?;
        Ok(answer::once(&call, &NamePublishedView { name, value }))
    })
    .await
}

/// A path in its normal form.
fn written(path: &ContentPath) -> String {
    let segments = path.segments.iter().map(|segment| format!("/{segment}"));
    let root = match &path.root {
        Root::Cid(cid) => format!("/ipfs/{cid}"),
        Root::Name(Name::Key(key)) => format!("/ipns/{key}"),
        Root::Name(Name::Domain(domain)) => format!("/ipns/{domain}"),
    };
    std::iter::once(root).chain(segments).collect()
}

fn view(info: &KeyInfo, call: &Call) -> Result<RpcKeyView, RpcError> {
    Ok(RpcKeyView { name: info.name.clone(), id: show_key(&info.key, call.text("ipns-base"))? })
}

/// Creates a key.
#[utoipa::path(post, path = "/api/v0/key/gen", tag = "kubo", security(("bearer" = ["operate"])), responses(
    (status = 200, description = "The key.", body = RpcKeyView)))]
pub async fn key_gen(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::receive(&KEY_GEN, request).await?;
    let kind: KeyKind = call.text("type").map_or(Ok(KeyKind::Ed25519), str::parse).map_err(RpcError::bad_request)?;
    // An invalid multibase is rejected before the key is created.
    show_key(&Key::from(rpc.peer_id), call.text("ipns-base"))?;
    let (name, publisher) = (call.argument().to_owned(), Arc::clone(&rpc.publisher));
    let creating = tokio::task::spawn_blocking(move || {
        let creating = publisher.keys().create(&name, kind);
        publisher.keys_changed();
        creating
    });
    let info = creating.await.map_err(|_| RpcError::stopping())??;
    Ok(answer::once(&call, &view(&info, &call)?))
}

/// Lists the keys.
#[utoipa::path(post, path = "/api/v0/key/list", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The keys.", body = RpcKeysView)))]
pub async fn key_list(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::of(&KEY_LIST, &request.into_parts().0)?;
    let keys = rpc.publisher.keys().list();
    let keys = keys.iter().map(|info| view(info, &call)).collect::<Result<_, _>>()?;
    Ok(answer::once(&call, &RpcKeysView { keys }))
}

/// Lists the keys; the newer name of the command.
#[utoipa::path(post, path = "/api/v0/key/ls", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The keys.", body = RpcKeysView)))]
pub async fn key_ls(rpc: State<Rpc>, request: Request) -> Answer {
    key_list(rpc, request).await
}
