//! `add`: files and folders, imported by the upload service ([`services::uploads`]).
//!
//! The CIDs are those of `ipfs add` with the same options. A line is sent for each file as soon as its CID is known,
//! and for each folder at the end; with the option `progress`, lines in between have the number of bytes that were
//! read.

use crate::http::answer::{ErrorFormat, decoded, with_lingering_read};
use crate::http::extract::Authenticated;
use crate::kubo_rpc::answer::{self, Output};
use crate::kubo_rpc::call::Call;
use crate::kubo_rpc::cids::CidText;
use crate::kubo_rpc::command::{self, Answers, Arguments, Command, Input};
use crate::kubo_rpc::problem::RpcError;
use crate::kubo_rpc::{Rpc, files};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use content::hashes;
use content::importer::{Importer, Layout, Part, Profile, Version};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{self, Stream, StreamExt as _};
use serde::Serialize;
use services::uploads::{
    Destination, Event, Failed, FileFormat, FileOptions, PinDetails, ProgressReceivers, UploadOptions, UploadRequest,
    UploadResult,
};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;
use utoipa::ToSchema;

/// The maximum number of buffered events. Clients that send the whole body before they read the answer depend on it.
const EVENTS_MAX: usize = 16 * 1024;
/// The default maximum size of inlined blocks, in bytes.
const INLINE_BYTES: i64 = 32;

/// `add`
pub static ADD: Command = Command {
    path: "add",
    arguments: Arguments::NONE,
    options: &[
        command::flag("recursive", "For the client, which sends folders with their content.").or("r"),
        command::client("dereference-args", "For the client, which follows symlinks."),
        command::client("dereference-symlinks", "For the client, which follows symlinks."),
        command::client("stdin-name", "For the client, which names its standard input."),
        command::client("hidden", "For the client, which sends hidden files as well.").or("H"),
        command::client("ignore", "For the client, which leaves files out."),
        command::client("ignore-rules-path", "For the client, which leaves files out."),
        command::flag("empty-dirs", "Whether empty folders are added. They always are.").or("E"),
        command::flag("quiet", "For the client, which prints less.").or("q"),
        command::flag("quieter", "For the client, which prints less.").or("Q"),
        command::flag("silent", "For the client, which prints nothing."),
        command::flag("progress", "Whether lines report the number of bytes that were read.").or("p"),
        command::flag("only-hash", "Whether only the CIDs are computed and nothing is stored.").or("n"),
        command::flag("wrap-with-directory", "Whether the files are wrapped in a folder.").or("w"),
        command::flag("pin", "Whether the root is pinned; true by default. Unpinned content is only cached."),
        command::text("pin-name", "The name of the pins."),
        command::unsupported_value("to-files", "there is no MFS"),
        command::number("cid-version", "0 (the default) or 1, which has raw leaves."),
        command::text("hash", "The hash function; \"sha2-256\" by default. Others need version 1."),
        command::flag("raw-leaves", "Whether the leaves of files are raw blocks."),
        command::text("chunker", "The chunker: \"size-262144\" (the default), \"rabin-…\" or \"buzhash\".").or("s"),
        command::flag("trickle", "Whether files have the trickle layout.").or("t"),
        command::number("max-file-links", "The maximum number of links of an inner node of a file; 174 by default."),
        command::number("max-directory-links", "The number of entries beyond which a folder is sharded."),
        command::number("max-hamt-fanout", "The fanout of a HAMT shard; 256 by default."),
        command::flag("inline", "Whether small blocks are inlined in their CIDs."),
        command::number("inline-limit", "The maximum size of an inlined block in bytes; 32 by default."),
        command::unsupported_flag("nocopy", "there is no filestore"),
        command::unsupported_flag("fscache", "there is no filestore"),
        command::flag("preserve-mode", "Whether the permissions of the sent files are stored."),
        command::flag("preserve-mtime", "Whether the modification times of the sent files are stored."),
        command::unsupported_value("mode", "send the permissions with each file, and use \"preserve-mode\""),
        command::unsupported_value("mtime", "send the time with each file, and use \"preserve-mtime\""),
        command::unsupported_value("mtime-nsecs", "send the time with each file, and use \"preserve-mtime\""),
        command::FAST_PROVIDE_ROOT,
        command::FAST_PROVIDE_DAG,
        command::FAST_PROVIDE_WAIT,
    ],
    body: Input::Files,
    answers: Answers::Lines,
};

/// An added file or folder, or the progress of a file.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct AddView {
    /// Its path; its CID if it has no path.
    pub name: String,
    /// Its CID, once it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// The number of its bytes that were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The size of its DAG in bytes; each block counts once for each link to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
}

impl AddView {
    fn of(event: Event, cids: CidText) -> Self {
        match event {
            Event::Read { path, bytes } => Self { name: path.to_string(), hash: None, bytes: Some(bytes), size: None },
            Event::Added { path, part: Part { cid, dag_bytes, .. } } => {
                Self { name: path, hash: Some(cids.show(&cid)), bytes: None, size: Some(dag_bytes.to_string()) }
            }
        }
    }
}

impl Output for AddView {
    fn text(&self) -> String {
        self.hash.as_ref().map(|hash| format!("added {hash} {}\n", self.name)).unwrap_or_default()
    }
}

/// Adds files and folders.
#[utoipa::path(post, path = "/api/v0/add", tag = "kubo", security(("bearer" = ["pin"])), responses(
    (status = 200, description = "Each file and folder, the root last, and progress.", body = AddView),
    (status = 413, description = "The upload exceeds uploads.bytes_max.", body = api::error::KuboError)))]
pub async fn add(State(rpc): State<Rpc>, Authenticated(bearer): Authenticated, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = match decoded(&head.headers, body, ErrorFormat::Kubo) {
        Ok(body) => body,
        Err(response) => return response,
    };
    let read = Call::of(&ADD, &head).and_then(|call| {
        let message = "file argument 'path' is required: send files as multipart/form-data";
        let boundary = files::boundary(&head.headers).ok_or_else(|| RpcError::bad_request(message))?;
        Ok((options(&call, FileFormat::Multipart { boundary, kubo: true })?, call))
    });
    let (options, call) = match read {
        Ok(read) => read,
        Err(error) => return error.with_lingering_read(body),
    };
    let rest = Arc::<Mutex<Option<Body>>>::default();
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let watchers = ProgressReceivers { events: Some(sender), ..ProgressReceivers::default() };
    let upload = UploadRequest { owner: bearer, options: UploadOptions::Files(options), watchers, import: None };
    let taking = async move { rpc.uploads.take(upload, body).await }.boxed();
    let progress = call.flag("progress") == Some(true);
    let left = Arc::clone(&rest);
    let adding = AddStream { taking: Some(taking), events, rest: left, added: false, progress, cids: call.cids };
    let done = call.within(answer::lines(&call, adding.lines())).await;
    done.unwrap_or_else(|error| {
        let rest = rest.lock().unwrap_or_else(PoisonError::into_inner).take();
        with_lingering_read(error.into_response(), rest.unwrap_or_else(Body::empty))
    })
}

/// A running upload, as a stream of lines.
struct AddStream {
    taking: Option<BoxFuture<'static, Result<UploadResult, Failed>>>,
    events: mpsc::Receiver<Event>,
    /// The unread rest of the body of a rejected upload.
    rest: Arc<Mutex<Option<Body>>>,
    added: bool,
    progress: bool,
    cids: CidText,
}

impl AddStream {
    fn lines(self) -> impl Stream<Item = Result<AddView, RpcError>> + Send + 'static {
        let lines = stream::unfold(Some(self), |adding| async move {
            let mut adding = adding?;
            let line = adding.next().await?;
            let goes_on = line.is_ok();
            Some((line, goes_on.then_some(adding)))
        });
        lines.boxed()
    }

    fn refused(&self, Failed { error, rest }: Failed) -> RpcError {
        *self.rest.lock().unwrap_or_else(PoisonError::into_inner) = Some(Body::new(rest));
        error.into()
    }

    async fn next(&mut self) -> Option<Result<AddView, RpcError>> {
        loop {
            match self.next_event().await {
                Err(failed) => return Some(Err(self.refused(failed))),
                Ok(Some(Event::Read { .. })) if !self.progress => {}
                Ok(Some(event)) => {
                    self.added |= matches!(event, Event::Added { .. });
                    return Some(Ok(AddView::of(event, self.cids)));
                }
                Ok(None) if self.added => return None,
                Ok(None) => {
                    self.added = true;
                    return Some(Err(RpcError::bad_request("expected a file argument")));
                }
            }
        }
    }

    /// The next event of the upload; after the last one its result, and then nothing.
    async fn next_event(&mut self) -> Result<Option<Event>, Failed> {
        let Some(taking) = &mut self.taking else { return Ok(self.events.recv().await) };
        let taken = tokio::select! {
            biased;
            Some(event) = self.events.recv() => return Ok(Some(event)),
            taken = taking => taken,
        };
        self.taking = None;
        taken?;
        // Events that the upload sent just before it returned.
        Ok(self.events.recv().await)
    }
}

/// The options of an upload.
fn options(call: &Call, format: FileFormat) -> Result<FileOptions, RpcError> {
    let set = |name| call.flag(name) == Some(true);
    if call.flag("empty-dirs") == Some(false) {
        return Err(RpcError::bad_request("empty folders are always added: \"empty-dirs=false\" is not supported"));
    }
    let pinned = call.flag("pin") != Some(false);
    let pin_name = call.text("pin-name").map(str::to_owned);
    if !pinned && pin_name.is_some() {
        return Err(RpcError::bad_request("pin-name option requires pin to be set"));
    }
    cache::pins::check_name(pin_name.as_deref()).map_err(RpcError::bad_request)?;
    let profile = profile(call)?;
    // Incompatible options are rejected before the body is read.
    Importer::new(profile.clone()).map_err(RpcError::bad_request)?;
    Ok(FileOptions {
        format,
        profile,
        wrap: set("wrap-with-directory"),
        destination: match (set("only-hash"), pinned) {
            (true, _) => Destination::Nothing,
            (false, true) => Destination::Pinned(PinDetails { name: pin_name, ..PinDetails::default() }),
            (false, false) => Destination::Cached,
        },
        modes: set("preserve-mode"),
        times: set("preserve-mtime"),
        packed: false,
    })
}

/// The options that determine the CIDs.
fn profile(call: &Call) -> Result<Profile, RpcError> {
    let count = |name| {
        let number = call.number(name).map(usize::try_from).transpose();
        number.map_err(|_| RpcError::bad_request(format!("the option \"{name}\" cannot be negative")))
    };
    let name = call.text("hash").unwrap_or("sha2-256").to_ascii_lowercase();
    let hash =
        hashes::named(&name).ok_or_else(|| RpcError::bad_request(format!("unrecognized hash function: \"{name}\"")))?;
    let profile = Profile::default().with_hash(hash);
    let mut profile = match call.number("cid-version") {
        None | Some(-1) => profile,
        Some(0) if profile.cid_version == Version::V0 => profile,
        Some(0) => return Err(RpcError::bad_request("CIDv0 only supports sha2-256")),
        Some(1) => profile.with_cid_v1(),
        Some(other) => return Err(RpcError::bad_request(format!("unknown CID version: {other}"))),
    };
    if let Some(raw_leaves) = call.flag("raw-leaves") {
        profile.raw_leaves = raw_leaves;
    }
    if call.flag("preserve-mode") == Some(true) || call.flag("preserve-mtime") == Some(true) {
        if call.flag("raw-leaves") == Some(true) {
            let message = "raw-leaves can't be used with UnixFS metadata like mode or modification time";
            return Err(RpcError::bad_request(message));
        }
        profile.raw_leaves = false;
    }
    if let Some(chunker) = call.text("chunker") {
        profile.chunking = chunker.parse().map_err(RpcError::bad_request)?;
    }
    if call.flag("trickle") == Some(true) {
        profile.layout = Layout::Trickle;
    }
    if let Some(links) = count("max-file-links")?.filter(|links| *links > 0) {
        profile.file_links_max = links;
    }
    profile.sharding.links_max = count("max-directory-links")?.filter(|links| *links > 0);
    if let Some(fanout) = count("max-hamt-fanout")?.filter(|fanout| *fanout > 0) {
        profile.sharding.fanout = fanout;
    }
    if call.flag("inline") == Some(true) {
        let limit = call.number("inline-limit").unwrap_or(INLINE_BYTES);
        let bytes = usize::try_from(limit)
            .map_err(|_| RpcError::bad_request("the option \"inline-limit\" cannot be negative"))?;
        profile.inline_bytes_max = Some(bytes);
    }
    Ok(profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<FileOptions, RpcError> {
        let request = Request::builder().uri(format!("/api/v0/add?{query}")).body(()).expect("a request");
        options(&Call::of(&ADD, &request.into_parts().0)?, FileFormat::Tar)
    }

    #[test]
    fn the_call_becomes_options() {
        let options = |query: &str| read(query).expect(query);
        let pinned = |name: Option<&str>| {
            let name = name.map(str::to_owned);
            Destination::Pinned(PinDetails { name, ..PinDetails::default() })
        };
        let plain = options("");
        assert_eq!(plain.profile, Profile::default());
        assert_eq!((plain.wrap, plain.destination), (false, pinned(None)));
        assert_eq!(options("cid-version=1").profile, Profile::default().with_cid_v1());
        assert_eq!(options("cidVersion=1").profile, Profile::default());
        let v1 = options("cid-version=1&raw-leaves=false").profile;
        assert_eq!((v1.cid_version, v1.raw_leaves), (Version::V1, false));
        let blake = options("hash=blake2b-256").profile;
        assert_eq!((blake.cid_version, blake.raw_leaves, blake.hash_code), (Version::V1, true, 0xb220));
        assert_eq!(options("s=size-1000").profile.chunking.to_string(), "size-1000");
        assert_eq!(options("t").profile.layout, Layout::Trickle);
        assert_eq!(options("inline").profile.inline_bytes_max, Some(32));
        assert_eq!(options("inline&inline-limit=64").profile.inline_bytes_max, Some(64));
        assert_eq!(options("max-directory-links=5&max-hamt-fanout=16").profile.sharding.links_max, Some(5));
        assert!(!options("cid-version=1&preserve-mtime").profile.raw_leaves);
        let others = options("w&pin=false");
        assert_eq!((others.wrap, others.destination), (true, Destination::Cached));
        assert_eq!(options("n&pin=false").destination, Destination::Nothing);
        assert_eq!(options("n").destination, Destination::Nothing);
        assert_eq!(options("pin-name=x").destination, pinned(Some("x")));
        // The options that Kubo's command line sends by default.
        options(
            "chunker=&empty-dirs=true&encoding=json&inline-limit=32&pin=true&progress=true&stream-channels=true&nocopy=false",
        );
        options("ignore=a&ignore=b&hidden=true");
    }

    #[test]
    fn unsupported_options_are_rejected() {
        let bad = [
            "nocopy=true",
            "fscache",
            "to-files=/",
            "mode=0644",
            "mtime=5",
            "cid-version=2",
            "cid-version=0&hash=sha3-256",
            "hash=md5",
            "chunker=size-0",
            "inline&inline-limit=500",
            "raw-leaves&preserve-mode",
            "pin=false&pin-name=x",
            "empty-dirs=false",
            "max-hamt-fanout=3",
            "max-file-links=1",
            "max-file-links=2147483647",
            "only-hash=true&chunker=size-1&max-file-links=2147483647",
            "max-file-links=-1",
        ];
        for query in bad {
            assert_eq!(read(query).expect_err(query).status, 400, "{query}");
        }
    }
}
