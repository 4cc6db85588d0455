//! `name/resolve`, `name/publish`, `resolve` and the keys that names are published with.
//!
//! Departures: a step of a DNSLink cannot be told from the next, so domains are always followed to their end; keys are made and
//! listed here, and everything else is done with them at `/api/v1/names/keys`.

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

/// How long whoever publishes waits for the first peer to have the record.
const PATIENCE: Duration = Duration::from_secs(5);

/// `name/resolve`
pub static NAME_RESOLVE: Command = Command {
    path: "name/resolve",
    arguments: Arguments::perhaps("A name: a key or a domain, with or without /ipns/. By default that of this node."),
    options: &[
        command::flag("recursive", "Whether names that stand for names are followed; they are, by default.").or("r"),
        command::no_flag("nocache", "have it refreshed with the operator's own API").or("n"),
        command::number("dht-record-count", "Has no effect: the best record of all is taken.").or("dhtrc"),
        command::duration("dht-timeout", "Has no effect: the gateway's own setting holds.").or("dhtt"),
        command::flag("stream", "Whether the answer is a line; there is never more than one.").or("s"),
    ],
    body: Input::Arguments,
    answers: Answers::Lines,
};

/// `name/publish`
pub static NAME_PUBLISH: Command = Command {
    path: "name/publish",
    arguments: Arguments::one("The path that the name is to stand for."),
    options: &[
        command::text("key", "What the key is called, or its name; \"self\" by default.").or("k"),
        command::flag("resolve", "Whether there has to be something at the path; it has to, by default."),
        command::duration("lifetime", "How long a record holds. It is renewed long before.").or("t"),
        command::duration("ttl", "How long others may remember it."),
        command::flag("quieter", "Clients write less.").or("Q"),
        command::flag("v1compat", "Whether old clients can read the record. They always can."),
        command::flag("allow-offline", "Whether it may be kept here until there is a network."),
        command::flag("allow-delegated", "The same."),
        command::no_value("sequence", "it is counted here"),
        command::text("ipns-base", "How the name is written: base36 by default."),
    ],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// `resolve`
pub static RESOLVE: Command = Command {
    path: "resolve",
    arguments: Arguments::one("A path."),
    options: &[
        command::flag("recursive", "Whether names that stand for names are followed; they are, by default.").or("r"),
        command::number("dht-record-count", "Has no effect: the best record of all is taken.").or("dhtrc"),
        command::duration("dht-timeout", "Has no effect: the gateway's own setting holds.").or("dhtt"),
    ],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// `key/gen`
pub static KEY_GEN: Command = Command {
    path: "key/gen",
    arguments: Arguments::one("What to call the key."),
    options: &[
        command::text("type", "What it signs with; \"ed25519\" by default.").or("t"),
        command::no_value("size", "the kinds that are made here have one size").or("s"),
        command::text("ipns-base", "How its name is written: base36 by default."),
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
        command::flag("l", "Clients show the names of keys."),
        command::text("ipns-base", "How names are written: base36 by default."),
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

/// What was published.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct NamePublishedView {
    /// The name, without /ipns/.
    pub name: String,
    /// What it stands for.
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
    /// What it is called.
    pub name: String,
    /// The name that it publishes.
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
    /// Sorted by what they are called.
    pub keys: Vec<RpcKeyView>,
}

impl Output for RpcKeysView {
    fn text(&self) -> String {
        self.keys.iter().map(|key| format!("{} {}\n", key.id, key.name)).collect()
    }
}

/// Says what a name stands for.
#[utoipa::path(post, path = "/api/v0/name/resolve", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The path that the name stands for.", body = PathView)))]
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

/// Says which block a path leads to.
#[utoipa::path(post, path = "/api/v0/resolve", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The path of the block, with what of the path leads into it.", body = PathView)))]
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
    /// The immutable path that a path means now, without a look at what is there.
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

    /// What a key's record says.
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

    /// What a key is called that is named by that or by its name.
    fn key_called(&self, named: &str) -> String {
        let keys = self.publisher.keys();
        let by_key = || Key::parse(named).and_then(|key| keys.find(&key)).map(|(info, _)| info.name);
        match keys.get(named) {
            Ok(_) => named.to_owned(),
            Err(_) => by_key().unwrap_or_else(|| named.to_owned()),
        }
    }
}

/// Publishes a path under a name.
#[utoipa::path(post, path = "/api/v0/name/publish", tag = "kubo", security(("bearer" = ["operate"])), responses(
    (status = 200, description = "What was published.", body = NamePublishedView)))]
pub async fn name_publish(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::receive(&NAME_PUBLISH, request).await?;
    call.within(async {
        let publisher = &rpc.publisher;
        let offline = call.offline || publisher.targets().is_empty();
        let allowed = [call.flag("allow-offline"), call.flag("allow-delegated")].contains(&Some(true));
        if offline && !allowed {
            let words =
                "can't publish while offline: pass \"allow-offline\" to have it kept here until there is a network";
            return Err(RpcError::cannot(words));
        }
        let path = paths::parse(call.argument())?;
        if call.flag("resolve") != Some(false) {
            rpc.find(&call, call.argument()).await?;
        }
        let value = written(&path);
        let key = rpc.key_called(call.text("key").unwrap_or(SELF));
        let (lifetime, ttl) = (call.duration("lifetime"), call.duration("ttl"));
        let published = publisher.publish(&key, &value, lifetime, ttl).await?;
        let settled = publisher.settled(published, PATIENCE).await;
        let name = show_key(&settled.key, call.text("ipns-base"))?;
        Ok(answer::once(&call, &NamePublishedView { name, value }))
    })
    .await
}

/// A path as it was asked for, tidied.
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

/// Makes a key.
#[utoipa::path(post, path = "/api/v0/key/gen", tag = "kubo", security(("bearer" = ["operate"])), responses(
    (status = 200, description = "The key.", body = RpcKeyView)))]
pub async fn key_gen(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::receive(&KEY_GEN, request).await?;
    let kind: KeyKind = call.text("type").map_or(Ok(KeyKind::Ed25519), str::parse).map_err(RpcError::bad)?;
    // That the name can be written is found out before there is a key.
    show_key(&Key::from(rpc.peer_id), call.text("ipns-base"))?;
    let (name, publisher) = (call.argument().to_owned(), Arc::clone(&rpc.publisher));
    let made = tokio::task::spawn_blocking(move || {
        let made = publisher.keys().create(&name, kind);
        publisher.keys_changed();
        made
    });
    let info = made.await.map_err(|_| RpcError::stopping())??;
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

/// Lists the keys, by the newer name of the command.
#[utoipa::path(post, path = "/api/v0/key/ls", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The keys.", body = RpcKeysView)))]
pub async fn key_ls(rpc: State<Rpc>, request: Request) -> Answer {
    key_list(rpc, request).await
}
