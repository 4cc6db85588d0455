//! `pin/…`: what a token has pinned, in the pin service ([`services::pinning`]).
//!
//! A pin is a request of the token that asked. The operator is shown everybody's. Pins are recursive: everything below a root is
//! kept. What is kept because of that is shown as indirect, by a walk of the DAGs.
//!
//! Departure: single blocks cannot be pinned without what is below them.

use crate::http::extract::Authenticated;
use crate::kubo_rpc::Rpc;
use crate::kubo_rpc::answer::{self, Answer, Output};
use crate::kubo_rpc::call::Call;
use crate::kubo_rpc::command::{self, Answers, Arguments, Command, Input};
use crate::kubo_rpc::problem::RpcError;
use axum::extract::{Request, State};
use content::dag::{self, Visited};
use content::{BlockKey, Cid};
use futures::stream::{self, BoxStream, StreamExt as _};
use serde::Serialize;
use services::access::Principal;
use services::pinning::{Filter, NameMatch, Owner, Progress, Request as Pin, Status};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Duration;
use utoipa::ToSchema;

/// How often is said how far a pin has come.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);
/// How many pins an answer has that is one value.
const PINS_MAX: usize = 100_000;
/// How many blocks are walked through for one answer.
const BLOCKS_MAX: usize = 4 * 1024 * 1024;
/// Blocks that a walk reads at a time.
const WALK_CONCURRENCY: usize = 8;

/// `pin/add`
pub static PIN_ADD: Command = Command {
    path: "pin/add",
    arguments: Arguments::several(1, "Paths of what is to be kept."),
    options: &[
        command::flag("recursive", "Whether everything below is kept as well. It always is.").or("r"),
        command::text("name", "What to call the pins.").or("n"),
        command::flag("progress", "Whether values come while it is fetched."),
        command::FAST_PROVIDE_ROOT,
        command::FAST_PROVIDE_DAG,
        command::FAST_PROVIDE_WAIT,
    ],
    body: Input::Arguments,
    answers: Answers::Lines,
};

/// `pin/ls`
pub static PIN_LS: Command = Command {
    path: "pin/ls",
    arguments: Arguments::several(0, "Paths of what may be pinned; everything that is by default."),
    options: &[
        command::text("type", "\"recursive\", \"indirect\", \"direct\" or \"all\" (the default).").or("t"),
        command::flag("quiet", "Whether a text has the CIDs alone.").or("q"),
        command::text("name", "Only pins with this text in their names.").or("n"),
        command::flag("stream", "Whether each pin is a value of its own; that has no limit.").or("s"),
        command::flag("names", "Whether pins are shown with their names."),
    ],
    body: Input::Arguments,
    answers: Answers::Lines,
};

/// `pin/rm`
pub static PIN_RM: Command = Command {
    path: "pin/rm",
    arguments: Arguments::several(1, "Paths of what is pinned."),
    options: &[command::flag("recursive", "Whether recursive pins are meant. There are no others.").or("r")],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// `pin/update`
pub static PIN_UPDATE: Command = Command {
    path: "pin/update",
    arguments: Arguments {
        least: 2,
        most: 2,
        about: "The path of what is pinned, and of what is to be.",
        in_body: false,
    },
    options: &[
        command::flag("unpin", "Whether the former pin is removed; it is, by default."),
        command::FAST_PROVIDE_ROOT,
        command::FAST_PROVIDE_DAG,
        command::FAST_PROVIDE_WAIT,
    ],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// What was pinned or unpinned, or how far that is.
#[derive(Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct PinsView {
    /// The roots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pins: Option<Vec<String>>,
    /// Blocks that are here so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<u64>,
    /// Their bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl PinsView {
    fn of(pins: Vec<String>) -> Self {
        Self { pins: Some(pins), ..Self::default() }
    }
}

impl Output for PinsView {
    fn text(&self) -> String {
        self.pins.iter().flatten().map(|cid| format!("{cid}\n")).collect()
    }
}

/// Everything that is pinned.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct PinListView {
    /// By CID.
    pub keys: BTreeMap<String, PinTypeView>,
}

/// How something is pinned.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct PinTypeView {
    /// "recursive", or "indirect" if something above it is.
    #[serde(rename = "Type")]
    pub kind: String,
    /// What it is called.
    pub name: String,
}

/// Something that is pinned.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct PinLineView {
    /// Its CID.
    pub cid: String,
    /// What it is called.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// "recursive", or "indirect" if something above it is.
    #[serde(rename = "Type")]
    pub kind: String,
}

/// What is listed: everything in one value, or one pin in each.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum PinLsView {
    /// Without the option "stream".
    All(PinListView),
    /// With it.
    One(PinLineView),
}

impl Output for PinLsView {
    fn text(&self) -> String {
        match self {
            Self::All(pins) => pins.text(),
            Self::One(pin) => pin.text(),
        }
    }
}

impl Output for PinListView {
    fn text(&self) -> String {
        self.keys.iter().map(|(cid, pin)| format!("{cid} {}\n", pin.kind)).collect()
    }
}

impl Output for PinLineView {
    fn text(&self) -> String {
        format!("{} {}\n", self.cid, self.kind)
    }
}

/// Pins roots, and answers when they are.
#[utoipa::path(post, path = "/api/v0/pin/add", tag = "kubo", security(("bearer" = ["pin"])), responses(
    (status = 200, description = "The roots; with progress, values before them say how far it is.", body = PinsView)))]
pub async fn pin_add(State(rpc): State<Rpc>, Authenticated(bearer): Authenticated, request: Request) -> Answer {
    let call = Call::receive(&PIN_ADD, request).await?;
    only_recursive(&call)?;
    call.within(async {
        let adding = Adding::begin(&rpc, &bearer, &call).await?;
        match call.flag("progress") {
            Some(true) => answer::lines(&call, adding.values()).await,
            _ => {
                let shown = adding.shown.clone();
                adding.finish(Arc::default()).await?;
                Ok(answer::once(&call, &PinsView::of(shown)))
            }
        }
    })
    .await
}

fn only_recursive(call: &Call) -> Result<(), RpcError> {
    match call.flag("recursive") {
        Some(false) => Err(RpcError::bad("only whole DAGs are pinned here: leave \"recursive=false\" away")),
        _ => Ok(()),
    }
}

/// Pins that are being made, one after the other.
struct Adding {
    rpc: Rpc,
    owner: Owner,
    name: Option<String>,
    roots: Vec<Cid>,
    shown: Vec<String>,
}

impl Adding {
    async fn begin(rpc: &Rpc, bearer: &Principal, call: &Call) -> Result<Self, RpcError> {
        let name = call.text("name").map(str::to_owned);
        let mut roots = Vec::with_capacity(call.arguments.len());
        for argument in &call.arguments {
            roots.push(rpc.cid_of(call, argument).await?);
        }
        let shown = roots.iter().map(|root| call.cids.show(root)).collect();
        Ok(Self { rpc: rpc.clone(), owner: Owner::from(bearer), name, roots, shown })
    }

    async fn finish(self, progress: Arc<Mutex<Progress>>) -> Result<(), RpcError> {
        let mut before = Progress::default();
        for root in &self.roots {
            let mut latest = Progress::default();
            let mut note = |pin: &Pin| {
                latest = pin.progress;
                let sum = Progress { blocks: before.blocks + latest.blocks, bytes: before.bytes + latest.bytes };
                *progress.lock().unwrap_or_else(PoisonError::into_inner) = sum;
            };
            self.rpc.pin(&self.owner, *root, self.name.clone(), Some(&mut note)).await?;
            before = Progress { blocks: before.blocks + latest.blocks, bytes: before.bytes + latest.bytes };
        }
        Ok(())
    }

    /// How far it is, every now and then, and in the end what was pinned.
    fn values(self) -> BoxStream<'static, Result<PinsView, RpcError>> {
        let (shown, progress) = (self.shown.clone(), Arc::<Mutex<Progress>>::default());
        let finishing = Box::pin(self.finish(Arc::clone(&progress)));
        stream::try_unfold(Some((finishing, shown, progress)), |pinning| async move {
            let Some((mut finishing, shown, progress)) = pinning else { return Ok(None) };
            match tokio::time::timeout(PROGRESS_EVERY, &mut finishing).await {
                Ok(Ok(())) => Ok(Some((PinsView::of(shown), None))),
                Ok(Err(error)) => Err(error),
                Err(_) => {
                    let Progress { blocks, bytes } = *progress.lock().unwrap_or_else(PoisonError::into_inner);
                    let view = PinsView { pins: None, progress: Some(blocks), bytes: Some(bytes) };
                    Ok(Some((view, Some((finishing, shown, progress)))))
                }
            }
        })
        .boxed()
    }
}

/// Removes pins of the token that asks.
#[utoipa::path(post, path = "/api/v0/pin/rm", tag = "kubo", security(("bearer" = ["pin"])), responses(
    (status = 200, description = "The roots.", body = PinsView)))]
pub async fn pin_rm(State(rpc): State<Rpc>, Authenticated(bearer): Authenticated, request: Request) -> Answer {
    let call = Call::receive(&PIN_RM, request).await?;
    only_recursive(&call)?;
    call.within(async {
        let mut shown = Vec::with_capacity(call.arguments.len());
        for argument in &call.arguments {
            let root = rpc.cid_of(&call, argument).await?;
            if rpc.pins.remove_root(&bearer.id, &root).await? == 0 {
                return Err(RpcError::cannot(format!("{root} is not pinned or pinned indirectly")));
            }
            shown.push(call.cids.show(&root));
        }
        Ok(answer::once(&call, &PinsView::of(shown)))
    })
    .await
}

/// Pins a root in the place of another, whose blocks stay until it is here.
#[utoipa::path(post, path = "/api/v0/pin/update", tag = "kubo", security(("bearer" = ["pin"])), responses(
    (status = 200, description = "The former root and the new one.", body = PinsView)))]
pub async fn pin_update(State(rpc): State<Rpc>, Authenticated(bearer): Authenticated, request: Request) -> Answer {
    let call = Call::of(&PIN_UPDATE, &request.into_parts().0)?;
    let [from, to] = &call.arguments[..] else { return Err(RpcError::bad("two arguments are needed")) };
    call.within(async {
        let (from, to) = (rpc.cid_of(&call, from).await?, rpc.cid_of(&call, to).await?);
        let owner = Owner::from(&bearer);
        let pinned = |pin: &Pin| pin.status == Status::Pinned;
        let former = rpc.pins.of_root(&owner.id, &from).into_iter().find(pinned);
        let former = former.ok_or_else(|| RpcError::cannot("'from' cid was not recursively pinned already"))?;
        let name = former.name.as_deref().map(str::to_owned);
        if from != to {
            rpc.pin(&owner, to, name, None).await?;
            if call.flag("unpin") != Some(false) {
                rpc.pins.remove_root(&owner.id, &from).await?;
            }
        }
        let shown = [from, to].iter().map(|cid| call.cids.show(cid)).collect();
        Ok(answer::once(&call, &PinsView::of(shown)))
    })
    .await
}

/// Which pins are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kinds {
    recursive: bool,
    indirect: bool,
}

impl Kinds {
    fn of(call: &Call) -> Result<Self, RpcError> {
        let (recursive, indirect) = match call.text("type").unwrap_or("all") {
            "all" => (true, true),
            "recursive" => (true, false),
            "indirect" => (false, true),
            // There are none.
            "direct" => (false, false),
            other => {
                let words = format!("invalid type '{other}', must be one of {{direct, indirect, recursive, all}}");
                return Err(RpcError::bad(words));
            }
        };
        Ok(Self { recursive, indirect })
    }
}

/// Lists what the token that asks has pinned; everybody's pins for the operator.
#[utoipa::path(post, path = "/api/v0/pin/ls", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The pins: one value, or one for each.", body = PinLsView)))]
pub async fn pin_ls(State(rpc): State<Rpc>, Authenticated(bearer): Authenticated, request: Request) -> Answer {
    let call = Call::of(&PIN_LS, &request.into_parts().0)?;
    let kinds = Kinds::of(&call)?;
    call.within(async {
        let pins = match call.arguments.is_empty() {
            true => rpc.pinned(&bearer, &call, kinds).await,
            false => rpc.looked_up(&bearer, &call, kinds).await?,
        };
        if call.flag("stream") == Some(true) {
            return answer::lines(&call, pins.map(|pin| pin.map(PinLsView::One))).await;
        }
        let (mut keys, mut pins) = (BTreeMap::new(), pins);
        while let Some(PinLineView { cid, name, kind }) = pins.next().await.transpose()? {
            keys.insert(cid, PinTypeView { kind, name });
            if keys.len() > PINS_MAX {
                let words = format!("there are more than {PINS_MAX}: ask for them with the option \"stream\"");
                return Err(RpcError::cannot(words));
            }
        }
        Ok(answer::once(&call, &PinLsView::All(PinListView { keys })))
    })
    .await
}

type Lines = BoxStream<'static, Result<PinLineView, RpcError>>;

impl Rpc {
    /// What is pinned for somebody, newest first, each root once.
    async fn pinned_for(&self, bearer: &Principal, name: Option<&str>, roots: Vec<Cid>) -> Vec<Pin> {
        let name = name.map(|name| (name.to_owned(), NameMatch::Partial));
        let filter = Filter { statuses: vec![Status::Pinned], name, roots, limit: usize::MAX, ..Filter::default() };
        let page = match bearer.is_operator() {
            true => self.pins.list_all(&filter).await,
            false => self.pins.list(&bearer.id, &filter).await,
        };
        let mut seen = HashSet::new();
        page.requests.into_iter().filter(|pin| seen.insert(pin.root)).collect()
    }

    /// Everything that is pinned for somebody.
    async fn pinned(&self, bearer: &Principal, call: &Call, kinds: Kinds) -> Lines {
        let wanted = call.text("name");
        let names = call.flag("names") == Some(true) || wanted.is_some();
        let pins = self.pinned_for(bearer, wanted, Vec::new()).await;
        let cids = call.cids;
        let roots: Vec<Cid> = pins.iter().map(|pin| pin.root).collect();
        let line = move |pin: Pin| PinLineView {
            cid: cids.show(&pin.root),
            name: pin.name.as_deref().filter(|_| names).unwrap_or_default().to_owned(),
            kind: "recursive".to_owned(),
        };
        let recursive = stream::iter(pins.into_iter().filter(move |_| kinds.recursive)).map(line).map(Ok);
        // Names are those of recursive pins.
        if !kinds.indirect || wanted.is_some() {
            return recursive.boxed();
        }
        let indirect = self.below(roots).map(move |found| {
            let (cid, _) = found?;
            Ok(PinLineView { cid: cids.show(&cid), name: String::new(), kind: "indirect".to_owned() })
        });
        recursive.chain(indirect).boxed()
    }

    /// Every block below roots once, but not the roots, with the root that it was found below.
    fn below(&self, roots: Vec<Cid>) -> BoxStream<'static, Result<(Cid, Cid), RpcError>> {
        let mut seen: HashSet<u128> = roots.iter().map(short).collect();
        let store = self.store.handle();
        let of_root = move |root: Cid| {
            let visited = dag::walk_links(Arc::clone(&store) as _, root, WALK_CONCURRENCY, None);
            visited.map(move |visited| Ok((visited?, root)))
        };
        let visited = stream::iter(roots).flat_map(of_root);
        visited
            .filter_map(move |found: Result<(Visited, Cid), dag::DagError>| {
                let found = found.map_err(RpcError::from).map(|(visited, root)| match visited {
                    Visited::Block(block) => (*block.cid(), root),
                    Visited::Leaf(cid) => (cid, root),
                });
                let is_new = match &found {
                    Ok((cid, _)) => seen.insert(short(cid)),
                    Err(_) => true,
                };
                let too_many = seen.len() > BLOCKS_MAX;
                let words = || format!("more than {BLOCKS_MAX} blocks are pinned: ask for the type \"recursive\"");
                futures::future::ready(match (is_new, too_many) {
                    (false, _) => None,
                    (true, true) => Some(Err(RpcError::cannot(words()))),
                    (true, false) => Some(found),
                })
            })
            .boxed()
    }

    /// How each of the arguments is pinned.
    async fn looked_up(&self, bearer: &Principal, call: &Call, kinds: Kinds) -> Result<Lines, RpcError> {
        let names = call.flag("names") == Some(true) || call.text("name").is_some();
        let mut lines = Vec::with_capacity(call.arguments.len());
        for argument in &call.arguments {
            let cid = self.cid_of(call, argument).await?;
            let pins = self.pinned_for(bearer, None, vec![cid]).await;
            let own = pins.iter().find(|pin| pin.root == cid && kinds.recursive);
            let line =
                |name: &str, kind: String| PinLineView { cid: call.cids.show(&cid), name: name.to_owned(), kind };
            let found = match own {
                Some(pin) => {
                    Some(line(pin.name.as_deref().filter(|_| names).unwrap_or_default(), "recursive".to_owned()))
                }
                None if kinds.indirect => {
                    let above = self.above(bearer, &cid).await?;
                    above.map(|root| line("", format!("indirect through {}", call.cids.show(&root))))
                }
                None => None,
            };
            lines.push(found.ok_or_else(|| RpcError::cannot(format!("path '{argument}' is not pinned")))?);
        }
        Ok(stream::iter(lines.into_iter().map(Ok)).boxed())
    }

    /// A pinned root that a block is below.
    async fn above(&self, bearer: &Principal, cid: &Cid) -> Result<Option<Cid>, RpcError> {
        let Some(key) = BlockKey::of(cid) else { return Ok(None) };
        if !self.store.is_pinned(&key).await? {
            return Ok(None);
        }
        let pins = self.pinned_for(bearer, None, Vec::new()).await;
        let mut below = self.below(pins.iter().map(|pin| pin.root).collect());
        while let Some((found, root)) = below.next().await.transpose()? {
            if found.hash() == cid.hash() {
                return Ok(Some(root));
            }
        }
        Ok(None)
    }
}

/// The first half of a digest, which tells blocks apart. Blocks that are written into their CID are not walked to.
fn short(cid: &Cid) -> u128 {
    let digest = cid.hash().digest().iter().take(16);
    digest.fold(0, |short, byte| short << 8 | u128::from(*byte))
}
