//! `causeway add`, `get`, `cat` and `ls`: files and folders to and from a node's store.
//!
//! Goals: the output is that of Kubo for the same content; memory use does not grow with the content; acknowledged
//! content is not lost, and existing files are not overwritten.
//!
//! How: a running node has exclusive access to its store, and commands use its admin API ([`crate::remote`]). It
//! fetches missing blocks unless `--offline` is given; without a running node, there is no network.
//!
//! | module | concern |
//! |---|---|
//! | [`add`] | files and folders into the store |
//! | [`get`] | a file, a folder or an archive from the store |
//! | [`cat`] | files from the store to standard output |
//! | [`tree`] | writing a folder, entry by entry |
//! | [`ls`] | the entries of a folder |

pub mod add;
pub mod cat;
pub mod get;
pub mod ls;
pub mod tree;

use crate::local_policy;
use crate::options::NodeOptions;
use crate::remote::{Backend, open_or_connect};
use cache::BlockStore;
use clap::Args;
use config::Loaded;
use content::path::Root;
use content::{Block, BlockSource, Cid, ContentPath, Permitted, walk};
use services::logging::chain;
use services::stores;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use tokio::runtime::Runtime;

/// The maximum number of segments of a path.
const PATH_DEPTH_MAX: usize = 1024;

/// Opens or creates the store, or connects to the gateway that has it.
fn store_to_write(
    loaded: &Loaded,
    runtime: &Runtime,
    node: &NodeOptions,
) -> anyhow::Result<Backend<Arc<dyn BlockStore>>> {
    runtime.block_on(open_or_connect(loaded, node, async || stores::open_or_create(loaded).await))
}

/// Opens the existing store, or connects to the gateway that has it.
fn store_to_read(
    loaded: &Loaded,
    runtime: &Runtime,
    node: &NodeOptions,
) -> anyhow::Result<Backend<Arc<dyn BlockStore>>> {
    runtime.block_on(open_or_connect(loaded, node, async || stores::open_existing(loaded).await))
}

/// Options of commands that read content.
#[derive(Debug, Args)]
struct ReadOptions {
    /// Read only stored blocks, and fetch nothing
    #[arg(long)]
    offline: bool,
    /// The node.
    #[command(flatten)]
    node: NodeOptions,
}

/// Two views of the blocks that a command can read.
struct Blocks {
    /// Stored blocks.
    stored: Arc<dyn BlockSource>,
    /// Stored blocks, and those that the gateway can fetch.
    all: Arc<dyn BlockSource>,
}

/// Runs `work` with the blocks of the store, and those below `root` that the gateway can fetch.
fn with_blocks<T>(
    loaded: &Loaded,
    runtime: &Runtime,
    read_options: &ReadOptions,
    root: Cid,
    work: impl FnOnce(Blocks) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let remote = match store_to_read(loaded, runtime, &read_options.node)? {
        Backend::Local(store) => {
            let done = runtime.block_on(local_policy::load(loaded)).and_then(|policy| {
                let stored: Arc<dyn BlockSource> = Arc::new(Permitted::blocks(store.handle(), policy));
                work(Blocks { all: Arc::clone(&stored), stored })
            });
            return finish_and_close(runtime, &store, done);
        }
        Backend::Remote(remote) => remote,
    };
    let stored: Arc<dyn BlockSource> = Arc::new(remote.blocks());
    if read_options.offline {
        return work(Blocks { all: Arc::clone(&stored), stored });
    }
    let fetched = remote.blocks_below(root);
    let done = work(Blocks { stored, all: Arc::new(fetched.clone()) });
    done.map_err(|error| match fetched.failure() {
        Some(message) => anyhow::anyhow!("{} (the gateway could not fetch it: {message})", chain(&error)),
        None => error,
    })
}

/// Closes a store, and returns the result of the work.
fn finish_and_close<T>(runtime: &Runtime, store: &Arc<dyn BlockStore>, done: anyhow::Result<T>) -> anyhow::Result<T> {
    runtime.block_on(finish_and_close_async(&**store, done))
}

/// Closes a store, and returns the result of the work.
///
/// # Errors
/// The error of the work, or else that of closing.
pub async fn finish_and_close_async<T>(store: &dyn BlockStore, done: anyhow::Result<T>) -> anyhow::Result<T> {
    let closed = store.close().await;
    let done = done?;
    closed?;
    Ok(done)
}

/// Content as an argument names it: a path below a CID, without percent-encoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentRef {
    text: String,
    path: ContentPath,
    root: Cid,
}

impl ContentRef {
    /// Parses `CID`, `CID/PATH`, `/ipfs/CID/PATH` or `ipfs://CID/PATH`.
    ///
    /// # Errors
    /// When it is invalid, with a message for the user.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let bare = text.strip_prefix("ipfs://").unwrap_or(text);
        let path = if bare.starts_with('/') { bare.to_owned() } else { format!("/ipfs/{bare}") };
        let path = ContentPath::read(&path, PATH_DEPTH_MAX)?;
        match path.root {
            Root::Cid(root) => Ok(Self { text: text.to_owned(), path, root }),
            Root::Name(_) => anyhow::bail!("this command does not resolve names: use /ipfs/CID"),
        }
    }

    /// The argument as given.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The root of the path.
    pub fn root(&self) -> Cid {
        self.root
    }

    /// Whether the path has no segments.
    pub fn is_root(&self) -> bool {
        self.path.segments.is_empty()
    }

    /// The name of the file or folder: the last segment of the path, or the CID.
    fn name(&self) -> String {
        self.path.name().map_or_else(|| self.root.to_string(), str::to_owned)
    }

    /// The block that the path resolves to.
    ///
    /// # Errors
    /// When the path does not resolve, or a block on the way is missing.
    pub async fn find(&self, source: &dyn BlockSource) -> anyhow::Result<Block> {
        let found = walk::resolve(source, self.root, &self.path.segments).await?;
        anyhow::ensure!(found.remainder.is_empty(), "it is a value inside the document {}", found.block.cid());
        Ok(found.block)
    }
}

/// A name with control characters escaped as Kubo does, for printing on a line of a terminal.
pub fn printable(name: &str) -> Cow<'_, str> {
    if !name.chars().any(|c| c.is_control() || c == '\\') {
        return Cow::Borrowed(name);
    }
    let mut shown = String::with_capacity(name.len() + 8);
    for c in name.chars() {
        match c {
            '\\' => shown.push_str("\\\\"),
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            c if c.is_ascii_control() => _ = write!(shown, "\\x{:02x}", u32::from(c)),
            c if c.is_control() => _ = write!(shown, "\\u{:04x}", u32::from(c)),
            c => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Returns false instead of an error if the reader of the output has closed the pipe.
fn unless_pipe_closed(written: io::Result<()>) -> io::Result<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// [`writeln!`] that returns false if the reader has closed the pipe.
fn print_line(out: &mut impl Write, line: impl std::fmt::Display) -> io::Result<bool> {
    unless_pipe_closed(writeln!(out, "{line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CID: &str = "bafkqac3imvwgy3zao5xxe3de";

    #[test]
    fn cids_paths_and_urls_are_parsed() {
        for text in ["", "/", "/a b", "/a b/100%25", "/a/../b"] {
            let plain = ContentRef::parse(&format!("{CID}{text}")).expect("a path");
            for prefix in ["/ipfs/", "ipfs://"] {
                let other = ContentRef::parse(&format!("{prefix}{CID}{text}")).expect("a path");
                assert_eq!((&other.path, other.name()), (&plain.path, plain.name()), "{prefix} {text}");
            }
        }
        assert_eq!(ContentRef::parse(CID).expect("a path").name(), CID);
        assert_eq!(
            ContentRef::parse(&format!("{CID}/a/100%25")).expect("a path").name(),
            "100%25",
            "nothing is decoded"
        );
        for wrong in ["", "/", "hello", "/ipns/example.org", "./file", &format!("{CID}/.."), &format!("/x/{CID}")] {
            assert!(ContentRef::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        let table = [
            ("plain name.txt", "plain name.txt"),
            ("ä\"q'", "ä\"q'"),
            ("a\nb", "a\\nb"),
            ("a\\nb", "a\\\\nb"),
            ("\u{1b}[31m\r\t\u{7f}", "\\x1b[31m\\r\\t\\x7f"),
            ("\u{9b}", "\\u009b"),
        ];
        for (name, shown) in table {
            assert_eq!(printable(name), shown, "{name:?}");
        }
    }
}
