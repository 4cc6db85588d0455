//! `causeway cat`: files, or ranges of them, to standard output.

use crate::options::GATEWAY_OPTIONAL;
use crate::store_cli::get::{copy, range_of};
use crate::store_cli::{ContentRef, ReadOptions, unless_pipe_closed, with_blocks};
use anyhow::{Context as _, bail};
use clap::Args;
use config::{Flags, Loaded};
use content::unixfs::Node;
use std::io::{self, Write as _};
use tokio::runtime::Runtime;

const HELP: &str = "\
Examples:
  causeway cat CID/readme.txt
  causeway cat --offset 1000000 --length 100 CID/video.mp4 | xxd
  causeway cat CID/part-1 CID/part-2 > whole";

/// `causeway cat`
#[derive(Debug, Args)]
#[command(after_help = format!("{HELP}\n\n{GATEWAY_OPTIONAL}"))]
pub struct CatArgs {
    /// The files to concatenate: CID, CID/PATH or /ipfs/CID/PATH
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<String>,
    /// Skip this many bytes at the beginning of each file
    #[arg(long, short, value_name = "BYTES", default_value_t = 0)]
    offset: u64,
    /// Write at most this many bytes of each file
    #[arg(long, short, value_name = "BYTES")]
    length: Option<u64>,
    /// The node, and whether it may fetch.
    #[command(flatten)]
    read_options: ReadOptions,
}

impl CatArgs {
    /// The settings that the options override.
    pub fn flags(&self) -> Flags {
        (&self.read_options.node).into()
    }
}

/// Writes the files.
///
/// # Errors
/// When a block is missing or a path is not a file. What was written until then stays written.
pub fn run(loaded: &Loaded, runtime: &Runtime, args: &CatArgs) -> anyhow::Result<()> {
    let files = args.paths.iter().map(|path| ContentRef::parse(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut out = io::stdout();
    for named in &files {
        let is_read = with_blocks(loaded, runtime, &args.read_options, named.root, |blocks| {
            let writing = async {
                let block = named.find(&*blocks.all).await?;
                match Node::decode(&block)? {
                    Node::File(_) => {}
                    Node::Directory(_) | Node::HamtShard(_) => bail!("it is a folder: \"causeway ls\" lists it"),
                    Node::Symlink { .. } => bail!("it is a symlink, not a file"),
                    Node::Plain(_) => bail!("it is not a file"),
                }
                let part = range_of(blocks.all, block, args.offset, args.length)?;
                copy(part, |chunk| unless_pipe_closed(out.write_all(chunk))).await
            };
            runtime.block_on(writing).with_context(|| format!("{} cannot be read", named.text))
        });
        // The reader has closed the pipe.
        if !is_read? {
            return Ok(());
        }
    }
    unless_pipe_closed(out.flush())?;
    Ok(())
}
