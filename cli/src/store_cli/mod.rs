//! `causeway add`, `get` and `ls`: content of files and folders into a node's store, and out of it.
//!
//! Goals: what Kubo prints for the same content is printed here; memory does not grow with what is added or read; nothing
//! that was acknowledged is lost, and nothing that exists is overwritten.
//!
//! How: a node that runs has its store to itself, and is asked over its admin listener then ([`crate::remote`]). What is
//! read and not held it fetches, unless that is not wanted; without it, there is no network.
//!
//! | module | concern |
//! |---|---|
//! | [`add`] | files and folders into the store |
//! | [`get`] | a file, a folder or an archive out of it |
//! | [`cat`] | files out of it, to standard output |
//! | [`tree`] | a folder out of it, entry by entry |
//! | [`ls`] | what is in a folder |

pub mod add;
pub mod cat;
pub mod get;
pub mod ls;
pub mod tree;

use crate::place::NodePlace;
use crate::remote::{Worker, reach};
use crate::withheld;
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

/// How many names a path may have.
const PATH_DEPTH_MAX: usize = 1024;

/// Opens the store that is written to, which is created if need be, or finds the gateway that has it.
fn store_to_write(
    loaded: &Loaded,
    runtime: &Runtime,
    place: &NodePlace,
) -> anyhow::Result<Worker<Arc<dyn BlockStore>>> {
    runtime.block_on(reach(loaded, place, async || stores::open_or_create(loaded).await))
}

/// Opens the store that is read, or finds the gateway that has it.
fn store_to_read(loaded: &Loaded, runtime: &Runtime, place: &NodePlace) -> anyhow::Result<Worker<Arc<dyn BlockStore>>> {
    runtime.block_on(reach(loaded, place, async || stores::open_existing(loaded).await))
}

/// What is read, and how.
#[derive(Debug, Args)]
struct Reading {
    /// Read only what is held, and have a gateway that runs fetch nothing
    #[arg(long)]
    offline: bool,
    /// Which node is meant.
    #[command(flatten)]
    node: NodePlace,
}

/// What is held, and what is read of it.
struct Blocks {
    /// What is held.
    held: Arc<dyn BlockSource>,
    /// What can be had, which may be more.
    all: Arc<dyn BlockSource>,
}

/// Does something with what is in the store, or can be had below a root.
fn with_blocks<T>(
    loaded: &Loaded,
    runtime: &Runtime,
    reading: &Reading,
    root: Cid,
    work: impl FnOnce(Blocks) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let remote = match store_to_read(loaded, runtime, &reading.node)? {
        Worker::Here(store) => {
            let done = runtime.block_on(withheld::policy(loaded)).and_then(|policy| {
                let held: Arc<dyn BlockSource> = Arc::new(Permitted::blocks(store.handle(), policy));
                work(Blocks { all: Arc::clone(&held), held })
            });
            return and_close(runtime, &store, done);
        }
        Worker::There(remote) => remote,
    };
    let held: Arc<dyn BlockSource> = Arc::new(remote.blocks());
    if reading.offline {
        return work(Blocks { all: Arc::clone(&held), held });
    }
    let fetched = remote.blocks_below(root);
    let done = work(Blocks { held, all: Arc::new(fetched.clone()) });
    done.map_err(|error| match fetched.failure() {
        Some(words) => anyhow::anyhow!("{} (the gateway could not fetch it: {words})", chain(&error)),
        None => error,
    })
}

/// Closes a store with which something was done.
fn and_close<T>(runtime: &Runtime, store: &Arc<dyn BlockStore>, done: anyhow::Result<T>) -> anyhow::Result<T> {
    runtime.block_on(and_close_now(&**store, done))
}

/// The same for who is on a runtime already.
///
/// # Errors
/// What became of it, or that the store did not close.
pub async fn and_close_now<T>(store: &dyn BlockStore, done: anyhow::Result<T>) -> anyhow::Result<T> {
    let closed = store.close().await;
    let done = done?;
    closed?;
    Ok(done)
}

/// Content as somebody names it on a command line: a path below a CID, as it is said and not as an address encodes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    said: String,
    path: ContentPath,
    root: Cid,
}

impl Named {
    /// Reads `CID`, `CID/PATH`, `/ipfs/CID/PATH` or `ipfs://CID/PATH`.
    ///
    /// # Errors
    /// What is wrong with it, for whoever typed it.
    pub fn parse(said: &str) -> anyhow::Result<Self> {
        let bare = said.strip_prefix("ipfs://").unwrap_or(said);
        let path = if bare.starts_with('/') { bare.to_owned() } else { format!("/ipfs/{bare}") };
        let path = ContentPath::read(&path, PATH_DEPTH_MAX)?;
        match path.root {
            Root::Cid(root) => Ok(Self { said: said.to_owned(), path, root }),
            Root::Name(_) => anyhow::bail!("names are not resolved here: say /ipfs/CID"),
        }
    }

    /// As it was said.
    pub fn said(&self) -> &str {
        &self.said
    }

    /// What the path begins with.
    pub fn root(&self) -> Cid {
        self.root
    }

    /// Whether there is nothing behind that.
    pub fn is_root(&self) -> bool {
        self.path.segments.is_empty()
    }

    /// What a file or folder of it is called: the last name of the path, or the CID.
    fn name(&self) -> String {
        self.path.name().map_or_else(|| self.root.to_string(), str::to_owned)
    }

    /// The block that the path leads to.
    ///
    /// # Errors
    /// That it leads to none, or that one on the way cannot be had.
    pub async fn find(&self, source: &dyn BlockSource) -> anyhow::Result<Block> {
        let found = walk::resolve(source, self.root, &self.path.segments).await?;
        anyhow::ensure!(found.remainder.is_empty(), "it is a value inside the document {}", found.block.cid());
        Ok(found.block)
    }
}

/// A name as it can be shown in one line of a terminal: with control characters written as Kubo writes them.
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

/// Whether whoever reads our output is still there. One who has left has what he wanted.
fn still_read(written: io::Result<()>) -> io::Result<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// [`writeln!`] to an output whose reader may leave.
fn print_line(out: &mut impl Write, line: impl std::fmt::Display) -> io::Result<bool> {
    still_read(writeln!(out, "{line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CID: &str = "bafkqac3imvwgy3zao5xxe3de";

    #[test]
    fn content_is_named_in_every_usual_way() {
        for said in ["", "/", "/a b", "/a b/100%25", "/a/../b"] {
            let plain = Named::parse(&format!("{CID}{said}")).expect("a path");
            for prefix in ["/ipfs/", "ipfs://"] {
                let other = Named::parse(&format!("{prefix}{CID}{said}")).expect("a path");
                assert_eq!((&other.path, other.name()), (&plain.path, plain.name()), "{prefix} {said}");
            }
        }
        assert_eq!(Named::parse(CID).expect("a path").name(), CID);
        assert_eq!(Named::parse(&format!("{CID}/a/100%25")).expect("a path").name(), "100%25", "nothing is decoded");
        for wrong in ["", "/", "hello", "/ipns/example.org", "./file", &format!("{CID}/.."), &format!("/x/{CID}")] {
            assert!(Named::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_cannot_move_the_cursor() {
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
