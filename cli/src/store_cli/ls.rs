//! `causeway ls`.
//!
//! Goals: the lines of `ipfs ls`; they come while the folder is still being read, so that a folder of a million entries is
//! listed in little memory.
//!
//! Departures from Kubo: entries come as they are stored, which in a sharded folder is by the hashes of names (as with
//! Kubo's `--stream`); columns do not line up, since the widest cell is not known; a file is listed as itself and not as
//! the chunks that it is cut into; what an entry is that is not held here is not known, and it is listed all the same: the folder
//! itself is fetched by a gateway that runs, and nothing for the sake of an entry's size.

use crate::place::REACH;
use crate::store_cli::{Blocks, Named, Reading, print_line, printable, with_blocks};
use anyhow::Context as _;
use clap::Args;
use config::{Flags, Loaded};
use content::unixfs::dir::{self, Entry};
use content::unixfs::{Node, NodeError};
use content::{Block, BlockSource, Cid, SourceError, codec};
use futures::stream::{StreamExt as _, TryStreamExt as _};
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use tokio::runtime::Runtime;

/// How many entries are looked at ahead of the line that is being printed.
const AHEAD: usize = 16;

const HELP: &str = "\
One line for each entry: CID, size in bytes, name. A folder's name ends in a slash, and its size is not counted (-). Of an \
entry that is not held here the size is not known (?). A gateway that runs fetches the folder if it does not hold it, unless \
--offline is given.\n\n\
\x20 causeway ls CID\n\
\x20 causeway ls CID/images\n\
\x20 causeway ls --json CID | jq -r 'select(.type == \"file\") | .cid'";

/// `causeway ls`
#[derive(Debug, Args)]
#[command(after_help = format!("{HELP}\n\n{REACH}"))]
pub struct LsArgs {
    /// What to list: CID, CID/PATH or /ipfs/CID/PATH
    path: String,
    /// Print an object of JSON on each line: cid, name, and if they are known type (file, directory, symlink) and size
    #[arg(long)]
    json: bool,
    /// What is read, and how.
    #[command(flatten)]
    reading: Reading,
}

impl LsArgs {
    /// The settings that were given.
    pub fn flags(&self) -> Flags {
        (&self.reading.node).into()
    }
}

/// Prints what is in the folder that the arguments name.
///
/// # Errors
/// One that says what is missing or wrong.
pub fn run(loaded: &Loaded, runtime: &Runtime, args: &LsArgs) -> anyhow::Result<()> {
    let named = Named::parse(&args.path)?;
    let line = if args.json { json_line } else { line };
    with_blocks(loaded, runtime, &args.reading, named.root, |blocks| {
        let mut out = BufWriter::new(io::stdout().lock());
        let listed = runtime.block_on(list(blocks, &named, |row| print_line(&mut out, line(row))));
        listed.with_context(|| format!("{} cannot be listed", named.said))?;
        crate::store_cli::still_read(out.flush())?;
        Ok(())
    })
}

/// One line.
#[derive(Debug)]
struct Row {
    cid: Cid,
    name: String,
    /// What it is, unless that is not known here.
    what: Option<What>,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// A file of so many bytes.
    File(u64),
    Directory,
    /// A symlink, and how long its target is in bytes.
    Symlink(u64),
}

/// Hands rows over for as long as they are taken.
async fn list(blocks: Blocks, named: &Named, mut take: impl FnMut(&Row) -> io::Result<bool>) -> anyhow::Result<()> {
    let block = named.find(&*blocks.all).await?;
    if !matches!(Node::decode(&block)?, Node::Directory(_) | Node::HamtShard(_)) {
        take(&Row { cid: *block.cid(), name: named.name(), what: what(&block)? })?;
        return Ok(());
    }
    let entries = dir::list(blocks.all, block).map_err(anyhow::Error::from);
    let rows = entries.map_ok(|entry| row(Arc::clone(&blocks.held), entry)).try_buffered(AHEAD);
    let mut rows = std::pin::pin!(rows);
    while let Some(row) = rows.next().await {
        if !take(&row?)? {
            break;
        }
    }
    Ok(())
}

async fn row(source: Arc<dyn BlockSource>, entry: Entry) -> anyhow::Result<Row> {
    let Entry { name, cid, tsize, .. } = entry;
    // A raw block has no envelope, so its size is the file's.
    if let (codec::RAW, Some(bytes)) = (cid.codec(), tsize) {
        return Ok(Row { cid, name, what: Some(What::File(bytes)) });
    }
    let what = match source.get(&cid).await {
        Ok(block) => what(&block)?,
        Err(SourceError::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    Ok(Row { cid, name, what })
}

fn what(block: &Block) -> Result<Option<What>, NodeError> {
    Ok(match Node::decode(block) {
        Ok(Node::File(file)) => Some(What::File(file.size())),
        Ok(Node::Directory(_) | Node::HamtShard(_)) => Some(What::Directory),
        Ok(Node::Symlink { target }) => Some(What::Symlink(target.len() as u64)),
        Ok(Node::Plain(_)) | Err(NodeError::Unsupported { .. }) => None,
        Err(error) => return Err(error),
    })
}

fn line(row: &Row) -> String {
    let (cid, name) = (row.cid, printable(&row.name));
    match row.what {
        Some(What::File(bytes) | What::Symlink(bytes)) => format!("{cid} {bytes} {name}"),
        Some(What::Directory) => format!("{cid} - {name}/"),
        None => format!("{cid} ? {name}"),
    }
}

fn json_line(row: &Row) -> String {
    let mut line = serde_json::json!({ "cid": row.cid.to_string(), "name": row.name });
    let (kind, size) = match row.what {
        Some(What::File(bytes)) => ("file", Some(bytes)),
        Some(What::Directory) => ("directory", None),
        Some(What::Symlink(bytes)) => ("symlink", Some(bytes)),
        None => return line.to_string(),
    };
    line["type"] = kind.into();
    if let Some(size) = size {
        line["size"] = size.into();
    }
    line.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_is_known() {
        let cid = content::cid::parse("bafkqac3imvwgy3zao5xxe3de").expect("a CID");
        let table = [
            (Some(What::File(7)), "7 a\\tb", r#"{"cid":"CID","name":"a\tb","size":7,"type":"file"}"#),
            (Some(What::Symlink(3)), "3 a\\tb", r#"{"cid":"CID","name":"a\tb","size":3,"type":"symlink"}"#),
            (Some(What::Directory), "- a\\tb/", r#"{"cid":"CID","name":"a\tb","type":"directory"}"#),
            (None, "? a\\tb", r#"{"cid":"CID","name":"a\tb"}"#),
        ];
        for (what, shown, json) in table {
            let row = Row { cid, name: "a\tb".to_owned(), what };
            assert_eq!(line(&row), format!("{cid} {shown}"));
            assert_eq!(json_line(&row), json.replace("CID", &cid.to_string()));
        }
    }
}
