//! `pin/…`: the pins of a token, in the pin service ([`services::pinning`]).
//!
//! Each pin belongs to the token that created it; the operator's own token lists the pins of all tokens. Pins are
//! recursive. Blocks below a root are listed as indirect pins, by a traversal of the DAGs.
//!
//! Departure: direct pins, of single blocks without the DAG below them, are not supported.

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
use services::pinning::{Filter, NameMatch, Owner, PinRequest, Progress, Status};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Duration;
use utoipa::ToSchema;

/// The interval of progress lines.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);
/// The maximum number of pins in an answer that is not streamed.
const PINS_MAX: usize = 100_000;
/// The maximum number of blocks that are traversed for one answer.
const BLOCKS_MAX: usize = 4 * 1024 * 1024;
/// The number of concurrent reads of a traversal.
const WALK_CONCURRENCY: usize = 8;

/// `pin/add`
pub static PIN_ADD: Command = Command {
    path: "pin/add",
    arguments: Arguments::several(1, "Paths of the roots to pin."),
    options: &[
        command::flag("recursive", "Whether the DAG below the root is pinned. It always is.").or("r"),
        command::text("name", "The name of the pins.").or("n"),
        command::flag("progress", "Whether values report progress."),
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
    arguments: Arguments::several(0, "Paths to look up; all pins by default."),
    options: &[
        command::text("type", "\"recursive\", \"indirect\", \"direct\" or \"all\" (the default).").or("t"),
        command::flag("quiet", "For the client, which prints only the CIDs.").or("q"),
        command::text("name", "Only pins with this text in their names.").or("n"),
        command::flag("stream", "Whether each pin is a value of its own; without it, the number of pins is limited.")
            .or("s"),
        command::flag("names", "Whether pins are shown with their names."),
    ],
    body: Input::Arguments,
    answers: Answers::Lines,
};

/// `pin/rm`
pub static PIN_RM: Command = Command {
    path: "pin/rm",
    arguments: Arguments::several(1, "Paths of the pinned roots."),
    options: &[command::flag("recursive", "Whether recursive pins are removed. There are no others.").or("r")],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// `pin/update`
pub static PIN_UPDATE: Command = Command {
    path: "pin/update",
    arguments: Arguments {
        least: 2,
        most: 2,
        about: "The path of the pinned root, and the path of the new root.",
        in_body: false,
    },
    options: &[
        command::flag("unpin", "Whether the former pin is removed; true by default."),
        command::FAST_PROVIDE_ROOT,
        command::FAST_PROVIDE_DAG,
        command::FAST_PROVIDE_WAIT,
    ],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// The pinned or unpinned roots, or progress.
#[derive(Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct PinsView {
    /// The roots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pins: Option<Vec<String>>,
    /// The number of blocks that are stored so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<u64>,
    /// Their size in bytes.
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

/// All pins.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct PinListView {
    /// The pins by CID.
    pub keys: BTreeMap<String, PinTypeView>,
}

/// The type and name of a pin.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct PinTypeView {
    /// "recursive", or "indirect" if the block is below a pinned root.
    #[serde(rename = "Type")]
    pub kind: String,
    /// The name of the pin.
    pub name: String,
}

/// A pin.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct PinLineView {
    /// Its CID.
    pub cid: String,
    /// The name of the pin.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// "recursive", or "indirect" if the block is below a pinned root.
    #[serde(rename = "Type")]
    pub kind: String,
}

/// All pins in one value, or one pin in each value.
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

/// Pins roots, and answers once they are pinned.
#[utoipa::path(post, path = "/api/v0/pin/add", tag = "kubo", security(("bearer" = ["pin"])), responses(
    (status = 200, description = "The roots; with \"progress\", preceded by progress values.", body = PinsView)))]
pub async fn pin_add(State(rpc): State<Rpc>, Authenticated(bearer): Authenticated, request: Request) -> Answer {
    let call = Call::receive(&PIN_ADD, request).await?;
    only_recursive(&call)?;
    call.within(async {
        let adding = PinAddition::begin(&rpc, &bearer, &call).await?;
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
        Some(false) => Err(RpcError::bad_request("only recursive pins are supported: \"recursive=false\" is not")),
        _ => Ok(()),
    }
}

/// A running `pin/add`, which pins the roots one after the other.
struct PinAddition {
    rpc: Rpc,
    owner: Owner,
    name: Option<String>,
    roots: Vec<Cid>,
    shown: Vec<String>,
}

impl PinAddition {
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
            let mut note = |pin: &PinRequest| {
                latest = pin.progress;
                let sum = Progress { blocks: before.blocks + latest.blocks, bytes: before.bytes + latest.bytes };
                *progress.lock().unwrap_or_else(PoisonError::into_inner) = sum;
            };
            self.rpc.pin(&self.owner, *root, self.name.clone(), Some(&mut note)).await?;
            before = Progress { blocks: before.blocks + latest.blocks, bytes: before.bytes + latest.bytes };
        }
        Ok(())
    }

    /// Progress at intervals, and the pinned roots at the end.
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

/// Removes pins of the token.
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
                return Err(RpcError::unprocessable(format!("{root} is not pinned or pinned indirectly")));
            }
            shown.push(call.cids.show(&root));
        }
        Ok(answer::once(&call, &PinsView::of(shown)))
    })
    .await
}

/// Replaces a pinned root by another. The former pin stays until the new root is pinned.
#[utoipa::path(post, path = "/api/v0/pin/update", tag = "kubo", security(("bearer" = ["pin"])), responses(
    (status = 200, description = "The former root and the new one.", body = PinsView)))]
pub async fn pin_update(State(rpc): State<Rpc>, Authenticated(bearer): Authenticated, request: Request) -> Answer {
    let call = Call::of(&PIN_UPDATE, &request.into_parts().0)?;
    let [from, to] = &call.arguments[..] else { return Err(RpcError::bad_request("two arguments are needed")) };
    call.within(async {
        let (from, to) = (rpc.cid_of(&call, from).await?, rpc.cid_of(&call, to).await?);
        let owner = Owner::from(&bearer);
        let pinned = |pin: &PinRequest| pin.status == Status::Pinned;
        let former = rpc.pins.of_root(&owner.id, &from).into_iter().find(pinned);
        let former = former.ok_or_else(|| RpcError::unprocessable("'from' cid was not recursively pinned already"))?;
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

/// The types of pins to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PinTypes {
    recursive: bool,
    indirect: bool,
}

impl PinTypes {
    fn of(call: &Call) -> Result<Self, RpcError> {
        let (recursive, indirect) = match call.text("type").unwrap_or("all") {
            "all" => (true, true),
            "recursive" => (true, false),
            "indirect" => (false, true),
            // There are no direct pins.
            "direct" => (false, false),
            other => {
                let message = format!("invalid type '{other}', must be one of {{direct, indirect, recursive, all}}");
                return Err(RpcError::bad_request(message));
            }
        };
        Ok(Self { recursive, indirect })
    }
}

/// Lists the pins of the token, or of all tokens for the operator's own token.
#[utoipa::path(post, path = "/api/v0/pin/ls", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The pins: one value for all, or one for each.", body = PinLsView)))]
pub async fn pin_ls(State(rpc): State<Rpc>, Authenticated(bearer): Authenticated, request: Request) -> Answer {
    let call = Call::of(&PIN_LS, &request.into_parts().0)?;
    let kinds = PinTypes::of(&call)?;
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
                let message = format!("there are more than {PINS_MAX} pins: use the option \"stream\"");
                return Err(RpcError::unprocessable(message));
            }
        }
        Ok(answer::once(&call, &PinLsView::All(PinListView { keys })))
    })
    .await
}

type Lines = BoxStream<'static, Result<PinLineView, RpcError>>;

impl Rpc {
    /// The pins that the client may list, the newest first, each root once.
    async fn pinned_for(&self, bearer: &Principal, name: Option<&str>, roots: Vec<Cid>) -> Vec<PinRequest> {
        let name = name.map(|name| (name.to_owned(), NameMatch::Partial));
        let filter = Filter { statuses: vec![Status::Pinned], name, roots, limit: usize::MAX, ..Filter::default() };
        let page = match bearer.is_operator() {
            true => self.pins.list_all(&filter).await,
            false => self.pins.list(&bearer.id, &filter).await,
        };
        let mut seen = HashSet::new();
        page.requests.into_iter().filter(|pin| seen.insert(pin.root)).collect()
    }

    /// All pins that the client may list.
    async fn pinned(&self, bearer: &Principal, call: &Call, kinds: PinTypes) -> Lines {
        let wanted = call.text("name");
        let names = call.flag("names") == Some(true) || wanted.is_some();
        let pins = self.pinned_for(bearer, wanted, Vec::new()).await;
        let cids = call.cids;
        let roots: Vec<Cid> = pins.iter().map(|pin| pin.root).collect();
        let line = move |pin: PinRequest| PinLineView {
            cid: cids.show(&pin.root),
            name: pin.name.as_deref().filter(|_| names).unwrap_or_default().to_owned(),
            kind: "recursive".to_owned(),
        };
        let recursive = stream::iter(pins.into_iter().filter(move |_| kinds.recursive)).map(line).map(Ok);
        // Only recursive pins have names.
        if !kinds.indirect || wanted.is_some() {
            return recursive.boxed();
        }
        let indirect = self.below(roots).map(move |found| {
            let (cid, _) = found?;
            Ok(PinLineView { cid: cids.show(&cid), name: String::new(), kind: "indirect".to_owned() })
        });
        recursive.chain(indirect).boxed()
    }

    /// Every block below the roots once, without the roots themselves, with the root above it.
    fn below(&self, roots: Vec<Cid>) -> BoxStream<'static, Result<(Cid, Cid), RpcError>> {
        let mut seen: HashSet<u128> = roots.iter().map(digest_prefix).collect();
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
                    Ok((cid, _)) => seen.insert(digest_prefix(cid)),
                    Err(_) => true,
                };
                let too_many = seen.len() > BLOCKS_MAX;
                let message = || format!("more than {BLOCKS_MAX} blocks are pinned: list only the type \"recursive\"");
                futures::future::ready(match (is_new, too_many) {
                    (false, _) => None,
                    (true, true) => Some(Err(RpcError::unprocessable(message()))),
                    (true, false) => Some(found),
                })
            })
            .boxed()
    }

    /// The pin of each argument.
    async fn looked_up(&self, bearer: &Principal, call: &Call, kinds: PinTypes) -> Result<Lines, RpcError> {
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
            lines.push(found.ok_or_else(|| RpcError::unprocessable(format!("path '{argument}' is not pinned")))?);
        }
        Ok(stream::iter(lines.into_iter().map(Ok)).boxed())
    }

    /// A pinned root above a block.
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

/// The first 16 bytes of a digest, which identify a block. The traversal leaves out blocks with an identity hash.
fn digest_prefix(cid: &Cid) -> u128 {
    let digest = cid.hash().digest().iter().take(16);
    digest.fold(0, |digest_prefix, byte| digest_prefix << 8 | u128::from(*byte))
}
