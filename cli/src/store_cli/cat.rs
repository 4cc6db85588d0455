//! `causeway cat`: files to standard output, or parts of them.

use crate::place::REACH;
use crate::store_cli::get::{copy, part_of};
use crate::store_cli::{Named, Reading, still_read, with_blocks};
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
#[command(after_help = format!("{HELP}\n\n{REACH}"))]
pub struct CatArgs {
    /// Which files, one after the other: CID, CID/PATH or /ipfs/CID/PATH
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<String>,
    /// Leave out so many bytes of each at its beginning
    #[arg(long, short, value_name = "BYTES", default_value_t = 0)]
    offset: u64,
    /// Write at most so many bytes of each
    #[arg(long, short, value_name = "BYTES")]
    length: Option<u64>,
    /// What is read, and how.
    #[command(flatten)]
    reading: Reading,
}

impl CatArgs {
    /// The settings that were given.
    pub fn flags(&self) -> Flags {
        (&self.reading.node).into()
    }
}

/// Writes what the arguments name.
///
/// # Errors
/// One that says what is missing or wrong. What was written before stays written.
pub fn run(loaded: &Loaded, runtime: &Runtime, args: &CatArgs) -> anyhow::Result<()> {
    let files = args.paths.iter().map(|path| Named::parse(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut out = io::stdout();
    for named in &files {
        let is_read = with_blocks(loaded, runtime, &args.reading, named.root, |blocks| {
            let writing = async {
                let block = named.find(&*blocks.all).await?;
                match Node::decode(&block)? {
                    Node::File(_) => {}
                    Node::Directory(_) | Node::HamtShard(_) => bail!("it is a folder: \"causeway ls\" lists it"),
                    Node::Symlink { .. } => bail!("it is a symlink, which has no content"),
                    Node::Plain(_) => bail!("it is no file"),
                }
                let part = part_of(blocks.all, block, args.offset, args.length)?;
                copy(part, |chunk| still_read(out.write_all(chunk))).await
            };
            runtime.block_on(writing).with_context(|| format!("{} cannot be read", named.said))
        });
        // One who has left has what he wanted.
        if !is_read? {
            return Ok(());
        }
    }
    still_read(out.flush())?;
    Ok(())
}
