//! `causeway ls`.
//!
//! Goals: the lines of `ipfs ls`, streamed while the folder is being read, so that a folder of a million entries is
//! listed in little memory.
//!
//! Departures from Kubo: entries are in the order of the folder's blocks, which in a HAMT-sharded folder is that of the
//! names' hashes (as with Kubo's `--stream`); columns are not aligned, since the widest cell is not known; a file is
//! listed as itself and not as its chunks; an entry whose block is not stored is listed with an unknown type: a running
//! gateway fetches the folder itself, but not the entries' blocks.

use crate::options::GATEWAY_OPTIONAL;
use crate::store_cli::{Blocks, ContentRef, ReadOptions, print_line, printable, with_blocks};
use anyhow::Context as _;
use clap::Args;
use config::{Flags, Loaded};
use content::unixfs::dir::{self, DirEntry};
use content::unixfs::{Node, NodeError};
use content::{Block, BlockSource, Cid, SourceError, codec};
use futures::stream::{StreamExt as _, TryStreamExt as _};
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use tokio::runtime::Runtime;

/// The number of entries that are read ahead.
const READ_AHEAD: usize = 16;

const HELP: &str = "\
One line for each entry: CID, size in bytes, name. A folder's name ends in a slash, and it has no size (-). The size \
of an entry that is not stored is unknown (?). A running gateway fetches the folder if it is not stored, unless \
--offline is given.\n\n\
\x20 causeway ls CID\n\
\x20 causeway ls CID/images\n\
\x20 causeway ls --json CID | jq -r 'select(.type == \"file\") | .cid'";

/// `causeway ls`
#[derive(Debug, Args)]
#[command(after_help = format!("{HELP}\n\n{GATEWAY_OPTIONAL}"))]
pub struct LsArgs {
    /// What to list: CID, CID/PATH or /ipfs/CID/PATH
    path: String,
    /// Print a JSON object on each line: cid, name, and if known type (file, directory, symlink) and size
    #[arg(long)]
    json: bool,
    /// The node, and whether it may fetch.
    #[command(flatten)]
    read_options: ReadOptions,
}

impl LsArgs {
    /// The settings that the options override.
    pub fn flags(&self) -> Flags {
        (&self.read_options.node).into()
    }
}

/// Lists the folder.
///
/// # Errors
/// When a block is missing or invalid.
pub fn run(loaded: &Loaded, runtime: &Runtime, args: &LsArgs) -> anyhow::Result<()> {
    let named = ContentRef::parse(&args.path)?;
    let line = if args.json { json_line } else { line };
    with_blocks(loaded, runtime, &args.read_options, named.root, |blocks| {
        let mut out = BufWriter::new(io::stdout().lock());
        let listed = runtime.block_on(list(blocks, &named, |row| print_line(&mut out, line(row))));
        listed.with_context(|| format!("{} cannot be listed", named.text))?;
        crate::store_cli::unless_pipe_closed(out.flush())?;
        Ok(())
    })
}

/// A line of the list.
#[derive(Debug)]
struct Row {
    cid: Cid,
    name: String,
    /// The type, if it is known.
    kind: Option<EntryKind>,
}

/// The type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryKind {
    /// A file, with its size in bytes.
    File(u64),
    Directory,
    /// A symlink, with the length of its target in bytes.
    Symlink(u64),
}

/// Passes rows to `take` until it returns false.
async fn list(
    blocks: Blocks,
    named: &ContentRef,
    mut take: impl FnMut(&Row) -> io::Result<bool>,
) -> anyhow::Result<()> {
    let block = named.find(&*blocks.all).await?;
    if !matches!(Node::decode(&block)?, Node::Directory(_) | Node::HamtShard(_)) {
        take(&Row { cid: *block.cid(), name: named.name(), kind: kind_of(&block)? })?;
        return Ok(());
    }
    let entries = dir::list(blocks.all, block).map_err(anyhow::Error::from);
    let rows = entries.map_ok(|entry| row(Arc::clone(&blocks.stored), entry)).try_buffered(READ_AHEAD);
    let mut rows = std::pin::pin!(rows);
    while let Some(row) = rows.next().await {
        if !take(&row?)? {
            break;
        }
    }
    Ok(())
}

async fn row(source: Arc<dyn BlockSource>, entry: DirEntry) -> anyhow::Result<Row> {
    let DirEntry { name, cid, tsize, .. } = entry;
    // A raw block is the file's content, so its size is the file's size.
    if let (codec::RAW, Some(bytes)) = (cid.codec(), tsize) {
        return Ok(Row { cid, name, kind: Some(EntryKind::File(bytes)) });
    }
    let kind = match source.get(&cid).await {
        Ok(block) => kind_of(&block)?,
        Err(SourceError::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    Ok(Row { cid, name, kind })
}

fn kind_of(block: &Block) -> Result<Option<EntryKind>, NodeError> {
    Ok(match Node::decode(block) {
        Ok(Node::File(file)) => Some(EntryKind::File(file.size())),
        Ok(Node::Directory(_) | Node::HamtShard(_)) => Some(EntryKind::Directory),
        Ok(Node::Symlink { target }) => Some(EntryKind::Symlink(target.len() as u64)),
        Ok(Node::Plain(_)) | Err(NodeError::Unsupported { .. }) => None,
        Err(error) => return Err(error),
    })
}

fn line(row: &Row) -> String {
    let (cid, name) = (row.cid, printable(&row.name));
    match row.kind {
        Some(EntryKind::File(bytes) | EntryKind::Symlink(bytes)) => format!("{cid} {bytes} {name}"),
        Some(EntryKind::Directory) => format!("{cid} - {name}/"),
        None => format!("{cid} ? {name}"),
    }
}

fn json_line(row: &Row) -> String {
    let mut line = serde_json::json!({ "cid": row.cid.to_string(), "name": row.name });
    let (name, size) = match row.kind {
        Some(EntryKind::File(bytes)) => ("file", Some(bytes)),
        Some(EntryKind::Directory) => ("directory", None),
        Some(EntryKind::Symlink(bytes)) => ("symlink", Some(bytes)),
        None => return line.to_string(),
    };
    line["type"] = name.into();
    if let Some(size) = size {
        line["size"] = size.into();
    }
    line.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_show_what_is_known() {
        let cid = content::cid::parse("bafkqac3imvwgy3zao5xxe3de").expect("a CID");
        let table = [
            (Some(EntryKind::File(7)), "7 a\\tb", r#"{"cid":"CID","name":"a\tb","size":7,"type":"file"}"#),
            (Some(EntryKind::Symlink(3)), "3 a\\tb", r#"{"cid":"CID","name":"a\tb","size":3,"type":"symlink"}"#),
            (Some(EntryKind::Directory), "- a\\tb/", r#"{"cid":"CID","name":"a\tb","type":"directory"}"#),
            (None, "? a\\tb", r#"{"cid":"CID","name":"a\tb"}"#),
        ];
        for (kind, shown, json) in table {
            let row = Row { cid, name: "a\tb".to_owned(), kind };
            assert_eq!(line(&row), format!("{cid} {shown}"));
            assert_eq!(json_line(&row), json.replace("CID", &cid.to_string()));
        }
    }
}
