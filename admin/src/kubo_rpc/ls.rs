//! `ls`: the entries of folders.

use crate::kubo_rpc::Rpc;
use crate::kubo_rpc::answer::{self, Answer, Output};
use crate::kubo_rpc::call::Call;
use crate::kubo_rpc::cids::CidText;
use crate::kubo_rpc::command::{self, Answers, Arguments, Command, Input};
use crate::kubo_rpc::paths::ResolvedPath;
use crate::kubo_rpc::problem::RpcError;
use axum::extract::{Request, State};
use content::unixfs::dir::{self, DirEntry};
use content::unixfs::{Node, NodeError};
use content::{SourceError, codec};
use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use gateway::resolve::source::RootSource;
use serde::Serialize;
use std::fmt::Write as _;
use std::sync::Arc;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::ToSchema;

/// The maximum number of entries that are fetched concurrently.
const FETCHES_MAX: usize = 16;
/// The maximum number of entries in an answer that is not streamed.
const ENTRIES_MAX: usize = 100_000;
/// Go's format of a missing time.
const NO_TIME: &str = "0001-01-01T00:00:00Z";

/// UnixFS types (<https://specs.ipfs.tech/unixfs/#dag-pb-datatype>), in Kubo's numbers.
const DIRECTORY: u8 = 1;
const FILE: u8 = 2;
const SYMLINK: u8 = 4;

/// `ls`
pub static LS: Command = Command {
    path: "ls",
    arguments: Arguments::several(1, "Paths of folders."),
    options: &[
        command::flag("headers", "For the client, which prints a header line.").or("v"),
        command::flag("resolve-type", "Whether entries are fetched for their types; true by default."),
        command::flag("size", "Whether entries are fetched for their sizes; true by default."),
        command::flag(
            "stream",
            "Whether each entry is a value of its own, in stored order; without it, the number of entries is limited.",
        )
        .or("s"),
        command::flag("long", "For the client, which prints the time.").or("l"),
    ],
    body: Input::Arguments,
    answers: Answers::Lines,
};

/// Listings of folders.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct LsView {
    /// The folders.
    pub objects: Vec<LsFolderView>,
}

/// A folder.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct LsFolderView {
    /// Its path, as in the argument.
    pub hash: String,
    /// Its entries.
    pub links: Vec<LsLinkView>,
}

/// An entry of a folder.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct LsLinkView {
    /// Its name.
    pub name: String,
    /// Its CID.
    pub hash: String,
    /// The length of a file or of a symlink's target, in bytes.
    pub size: u64,
    /// 1 for a folder, 2 for a file, 4 for a symlink; 0 if the entry was not fetched.
    #[serde(rename = "Type")]
    pub kind: u8,
    /// The target of a symlink.
    pub target: String,
    /// Always 0: modes are not read.
    pub mode: u32,
    /// The modification time of a file; the year 1 if it has none.
    pub mod_time: String,
}

impl Output for LsView {
    fn text(&self) -> String {
        let mut out = String::new();
        for LsLinkView { name, hash, size, kind, .. } in self.objects.iter().flat_map(|folder| &folder.links) {
            _ = match *kind {
                DIRECTORY => writeln!(out, "{hash} - {name}/"),
                _ => writeln!(out, "{hash} {size} {name}"),
            };
        }
        out
    }
}

/// Lists folders.
#[utoipa::path(post, path = "/api/v0/ls", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The entries of the folders: one value for all, or one for each.", body = LsView)))]
pub async fn ls(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::receive(&LS, request).await?;
    call.within(async {
        let mut listings = Vec::with_capacity(call.arguments.len());
        for argument in &call.arguments {
            let found = rpc.find(&call, argument).await?.whole()?;
            listings.push((argument.clone(), Listing::of(&call, found)?));
        }
        match call.flag("stream") {
            Some(true) => {
                let folders = stream::iter(listings);
                let values = folders.flat_map(|(hash, listing)| {
                    let value =
                        move |link| LsView { objects: vec![LsFolderView { hash: hash.clone(), links: vec![link] }] };
                    listing.links().map_ok(value)
                });
                answer::lines(&call, values).await
            }
            _ => Ok(answer::once(&call, &collect(listings).await?)),
        }
    })
    .await
}

async fn collect(listings: Vec<(String, Listing)>) -> Result<LsView, RpcError> {
    let (mut objects, mut room) = (Vec::with_capacity(listings.len()), ENTRIES_MAX);
    for (hash, listing) in listings {
        let mut links: Vec<_> = listing.links().take(room + 1).try_collect().await?;
        let Some(left) = room.checked_sub(links.len()) else {
            let message = format!("there are more than {ENTRIES_MAX} entries: use the option \"stream\"");
            return Err(RpcError::unprocessable(message));
        };
        room = left;
        links.sort_by(|one, other| one.name.cmp(&other.name));
        objects.push(LsFolderView { hash, links });
    }
    Ok(LsView { objects })
}

/// A running listing of a folder.
struct Listing {
    /// The resolved path of the folder, against which the policy checks its entries.
    folder: Arc<ResolvedPath>,
    entries: BoxStream<'static, Result<DirEntry, dir::DirError>>,
    fetches_entries: bool,
    cids: CidText,
}

impl Listing {
    /// The links of a file are entries without names. Other nodes have no entries.
    fn of(call: &Call, folder: ResolvedPath) -> Result<Self, RpcError> {
        let fetches_entries = call.flag("resolve-type") != Some(false) || call.flag("size") != Some(false);
        let block = &folder.resolved.block;
        let entries = match Node::decode(block)? {
            Node::Directory(_) | Node::HamtShard(_) => dir::list(Arc::clone(&folder.source) as _, block.clone()),
            Node::File(file) => {
                let part = |(cid, size)| DirEntry { name: String::new(), not_text: None, cid, tsize: Some(size) };
                let parts: Result<Vec<_>, _> = file.children().map(|child| child.map(part)).collect();
                stream::iter(parts.map_err(RpcError::unprocessable)?.into_iter().map(Ok)).boxed()
            }
            Node::Symlink { .. } | Node::Plain(_) => stream::empty().boxed(),
        };
        Ok(Self { folder: Arc::new(folder), entries, fetches_entries, cids: call.cids })
    }

    fn links(self) -> BoxStream<'static, Result<LsLinkView, RpcError>> {
        let Self { folder, entries, fetches_entries, cids } = self;
        let link = move |entry: Result<DirEntry, dir::DirError>| {
            let folder = Arc::clone(&folder);
            async move {
                let entry = entry?;
                let fetches_entries = fetches_entries && folder.may_be_read(&entry.name);
                link_of(&folder.source, entry, fetches_entries, cids).await
            }
        };
        entries.map(link).buffered(FETCHES_MAX).boxed()
    }
}

/// The view of an entry. A raw leaf is a file by its codec, and its size is the one in the folder.
async fn link_of(
    source: &RootSource,
    entry: DirEntry,
    fetches_entries: bool,
    cids: CidText,
) -> Result<LsLinkView, RpcError> {
    let DirEntry { name, cid, tsize, .. } = entry;
    let (hash, size) = (cids.show(&cid), tsize.unwrap_or(0));
    let mut link =
        LsLinkView { name, hash, size: 0, kind: 0, target: String::new(), mode: 0, mod_time: NO_TIME.to_owned() };
    if cid.codec() == codec::RAW {
        return Ok(LsLinkView { size, kind: FILE, ..link });
    }
    if !fetches_entries {
        return Ok(link);
    }
    let block = match source.fetch(&cid).await {
        Ok(block) => block,
        // A withheld entry is listed without its type and size.
        Err(SourceError::Refused { .. }) => return Ok(link),
        Err(error) => return Err(error.into()),
    };
    match Node::decode(&block) {
        Ok(Node::File(file)) => {
            (link.kind, link.size) = (FILE, file.size());
            let modified = file.modified().map(OffsetDateTime::from);
            link.mod_time = modified.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| NO_TIME.to_owned());
        }
        Ok(Node::Directory(_) | Node::HamtShard(_)) => link.kind = DIRECTORY,
        Ok(Node::Symlink { target }) => {
            (link.kind, link.size) = (SYMLINK, target.len() as u64);
            link.target = String::from_utf8_lossy(&target).into_owned();
        }
        // Other nodes are listed without a type.
        Ok(Node::Plain(_)) | Err(NodeError::Unsupported { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(link)
}
