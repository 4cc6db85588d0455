//! `causeway get`.
//!
//! Goals: the output equals what was added; existing files are never overwritten, and incomplete ones are removed;
//! memory use does not grow with the content.
//!
//! Non-goals: modes and modification times.

use crate::options::GATEWAY_OPTIONAL;
use crate::progress;
use crate::store_cli::tree::{self, SkippedSymlinks};
use crate::store_cli::{ContentRef, ReadOptions, printable, unless_pipe_closed, with_blocks};
use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use clap::Args;
use config::{Flags, Loaded};
use content::scope::{self, ScopeLimits, ScopeOptions};
use content::tar::{self, TarLimits};
use content::unixfs::Node;
use content::unixfs::file::{FileReader, ReadLimits};
use content::{Block, BlockSource, car};
use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::Builder;
use tokio::runtime::Runtime;

const HELP: &str = "\
PATH is CID, CID/PATH or /ipfs/CID/PATH. A running gateway fetches missing blocks, unless --offline is given. Without \
a running gateway, only this node's store is read, and the error names a missing block.\n\n\
A file, a folder:       causeway get CID -o site\n\
One file of a folder:   causeway get CID/images/logo.svg\n\
To standard output:     causeway get CID/index.html -o - | less\n\
To another node:        causeway get --car CID -o site.car     and there: causeway import site.car\n\
As one stream:          causeway get --tar CID | ssh host tar x\n\n\
Existing files are never overwritten. Content is written under a temporary name, and renamed when it is complete. \
Symlinks are written as symlinks and never followed; symlinks that point out of the folder are skipped with a warning, \
and names that point out of it are an error. In a TAR, such symlinks are skipped without a warning.";

/// `causeway get`
#[derive(Debug, Args)]
#[command(after_help = format!("{HELP}\n\n{GATEWAY_OPTIONAL}"))]
pub struct GetArgs {
    /// What to read: CID, CID/PATH or /ipfs/CID/PATH
    path: String,
    /// The file or folder to write; "-" is standard output [default: the last name of PATH or the CID; standard output
    /// for archives]
    #[arg(long, short, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Write a CARv1 archive with all blocks below PATH
    #[arg(long, conflicts_with = "tar")]
    car: bool,
    /// Write a TAR archive
    #[arg(long, short = 'a', alias = "archive")]
    tar: bool,
    /// The node, and whether it may fetch.
    #[command(flatten)]
    read_options: ReadOptions,
}

impl GetArgs {
    /// The settings that the options override.
    pub fn flags(&self) -> Flags {
        (&self.read_options.node).into()
    }
}

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Plain,
    Car,
    Tar,
}

/// Writes the content.
///
/// # Errors
/// When a block is missing, the target exists, or the content is invalid.
pub fn run(loaded: &Loaded, runtime: &Runtime, args: &GetArgs) -> anyhow::Result<()> {
    let named = ContentRef::parse(&args.path)?;
    let format = match (args.car, args.tar) {
        (true, _) => Format::Car,
        (false, true) => Format::Tar,
        (false, false) => Format::Plain,
    };
    let target = match &args.output {
        Some(path) if path == Path::new("-") => Target::Stdout,
        Some(path) => Target::unused(path)?,
        None if format == Format::Plain => Target::unused(Path::new(&named.name()))?,
        None => Target::Stdout,
    };
    if target == Target::Stdout && format != Format::Plain {
        ensure!(!io::stdout().is_terminal(), "an archive is not written to a terminal: use -o FILE, or a pipe");
    }
    with_blocks(loaded, runtime, &args.read_options, named.root, |blocks| {
        let written = runtime.block_on(get(blocks.all, &named, format, &target));
        written.with_context(|| format!("{} was not written", named.text))
    })
}

/// Where the output is written.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Stdout,
    /// A path that does not exist.
    New(PathBuf),
}

impl Target {
    fn unused(path: &Path) -> anyhow::Result<Self> {
        let path: PathBuf = path.components().collect();
        ensure!(path.file_name().is_some(), "{} cannot be created: choose a name with -o", path.display());
        match fs::symlink_metadata(&path) {
            Ok(_) => {
                bail!("{} already exists: choose another name with -o", path.display())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::New(path)),
            Err(error) => Err(error).with_context(|| format!("{} cannot be created", path.display())),
        }
    }
}

async fn get(source: Arc<dyn BlockSource>, named: &ContentRef, format: Format, target: &Target) -> anyhow::Result<()> {
    let block = named.find(&*source).await?;
    let node = match format {
        Format::Plain => Node::decode(&block)?,
        Format::Car => return write(car_of(source, block), target).await,
        Format::Tar => return write(tar_of(source, named.name(), block), target).await,
    };
    match (node, target) {
        (Node::File(_), _) => write(bytes_of(source, block)?, target).await,
        (Node::Directory(_) | Node::HamtShard(_), Target::New(path)) => write_folder(source, block, path).await,
        (Node::Directory(_) | Node::HamtShard(_), Target::Stdout) => {
            bail!("it is a folder: write it as an archive (--tar, --car)")
        }
        (Node::Symlink { target }, Target::New(path)) => {
            let target = Path::new(OsStr::from_bytes(&target));
            ensure!(
                tree::stays_inside(target, 0),
                "it is a symlink to {}, which may point anywhere: create it with \"ln -s\" if you want it",
                printable(&target.to_string_lossy())
            );
            symlink(target, path).with_context(|| unwritable(path))
        }
        (Node::Symlink { .. }, Target::Stdout) => bail!("it is a symlink, not a file"),
        (Node::Plain(_), _) => bail!("it is not a file or folder: use --car"),
    }
}

pub(super) type ByteStream = BoxStream<'static, anyhow::Result<Bytes>>;

/// The content of a file.
pub(super) fn bytes_of(source: Arc<dyn BlockSource>, file: Block) -> anyhow::Result<ByteStream> {
    range_of(source, file, 0, None)
}

/// A range of a file, clamped to its size.
pub(super) fn range_of(
    source: Arc<dyn BlockSource>,
    file: Block,
    offset: u64,
    length: Option<u64>,
) -> anyhow::Result<ByteStream> {
    let size = content::unixfs::file::file_size(&file)?;
    let begin = offset.min(size);
    let end = length.map_or(size, |length| begin.saturating_add(length).min(size));
    Ok(FileReader::new(source, file, begin..end, ReadLimits::default())?.err_into().boxed())
}

fn car_of(source: Arc<dyn BlockSource>, root: Block) -> ByteStream {
    let header = car::header(&[*root.cid()]);
    // Clients' requests are bounded, but not the operator's.
    let limits = ScopeLimits { seen_max: usize::MAX, ..ScopeLimits::default() };
    let blocks = scope::blocks(source, Vec::new(), root, ScopeOptions::default(), limits);
    let sections =
        blocks.map_err(anyhow::Error::from).map_ok(|block| stream::iter(<[_; 2]>::from(car::section(&block)).map(Ok)));
    stream::iter([Ok(header)]).chain(sections.try_flatten()).boxed()
}

fn tar_of(source: Arc<dyn BlockSource>, name: String, root: Block) -> ByteStream {
    let limits = TarLimits { entries_max: u64::MAX, bytes_max: u64::MAX, ..TarLimits::default() };
    tar::stream(source, name, root, limits).err_into().boxed()
}

async fn write(chunks: ByteStream, target: &Target) -> anyhow::Result<()> {
    match target {
        Target::Stdout => {
            let mut out = io::stdout();
            // A closed pipe is not an error.
            if copy(chunks, |chunk| unless_pipe_closed(out.write_all(chunk))).await? {
                unless_pipe_closed(out.flush())?;
            }
            Ok(())
        }
        Target::New(path) => write_file(chunks, path).await,
    }
}

/// Writes a file atomically.
async fn write_file(chunks: ByteStream, path: &Path) -> anyhow::Result<()> {
    // The default of new files, to which the umask is applied.
    let permissions = Permissions::from_mode(0o666);
    let temporary = Builder::new().prefix(TEMPORARY_PREFIX).permissions(permissions).tempfile_in(folder_of(path));
    let mut temporary = temporary.with_context(|| unwritable(path))?;
    let progress = progress::bytes(None);
    copy(chunks, |chunk| {
        progress.inc(chunk.len() as u64);
        temporary.write_all(chunk).map(|()| true)
    })
    .await?;
    temporary.persist_noclobber(path).map(drop).with_context(|| unwritable(path))
}

/// Writes a folder atomically.
async fn write_folder(source: Arc<dyn BlockSource>, root: Block, path: &Path) -> anyhow::Result<()> {
    let temporary = Builder::new().prefix(TEMPORARY_PREFIX).tempdir_in(folder_of(path));
    let temporary = temporary.with_context(|| unwritable(path))?;
    let whole = temporary.path().join("content");
    let skipped = tree::write(source, root, &whole).await?;
    // If the path was created meanwhile, this replaces an empty folder, and fails for anything else.
    fs::rename(&whole, path).with_context(|| unwritable(path))?;
    warn_skipped(&skipped);
    Ok(())
}

/// Warns about skipped symlinks.
fn warn_skipped(skipped: &SkippedSymlinks) {
    for (path, target) in &skipped.shown {
        let (path, target) = (path.to_string_lossy(), target.to_string_lossy());
        eprintln!(
            "warning: skipped {}, a symlink to {}, which points out of the folder",
            printable(&path),
            printable(&target)
        );
    }
    let more = skipped.count - skipped.shown.len() as u64;
    if more > 0 {
        eprintln!("warning: skipped {more} more such symlinks");
    }
}

/// Passes chunks to `take` until it returns false. Returns whether all were taken.
pub(super) async fn copy(
    mut chunks: ByteStream,
    mut take: impl FnMut(&[u8]) -> io::Result<bool>,
) -> anyhow::Result<bool> {
    while let Some(chunk) = chunks.try_next().await? {
        if !take(&chunk)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The prefix of temporary files: hidden, and identifiable if the process is killed.
const TEMPORARY_PREFIX: &str = ".causeway-get-";

/// The parent folder of a path.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn unwritable(path: &Path) -> String {
    format!("{} cannot be written", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(parts: &[&'static str], whole: bool) -> ByteStream {
        let end = (!whole).then(|| Err(anyhow::anyhow!("a block is missing")));
        let parts: Vec<_> = parts.iter().map(|part| Ok(Bytes::from_static(part.as_bytes()))).chain(end).collect();
        stream::iter(parts).boxed()
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).expect("lists");
        entries.map(|entry| entry.expect("lists").file_name().to_string_lossy().into_owned()).collect()
    }

    #[tokio::test]
    async fn a_file_is_written_atomically_and_replaces_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("file");
        assert!(write_file(chunks(&["some"], false), &path).await.is_err());
        assert!(names(dir.path()).is_empty(), "{:?}", names(dir.path()));
        write_file(chunks(&["wh", "ole"], true), &path).await.expect("writes");
        assert_eq!(fs::read(&path).expect("is there"), b"whole");
        assert!(write_file(chunks(&["other"], true), &path).await.is_err());
        assert_eq!(fs::read(&path).expect("is there"), b"whole");
        assert_eq!(names(dir.path()), ["file"]);
    }

    #[test]
    fn existing_targets_are_rejected() {
        let dir = tempfile::tempdir().expect("a folder");
        symlink("/nowhere", dir.path().join("dangling")).expect("a symlink");
        fs::create_dir(dir.path().join("folder")).expect("a folder");
        for taken in ["dangling", "folder", "folder/", "folder/.."] {
            assert!(Target::unused(&dir.path().join(taken)).is_err(), "{taken}");
        }
        assert_eq!(Target::unused(&dir.path().join("new/")).expect("is free"), Target::New(dir.path().join("new")));
        for nameless in [".", "..", "/"] {
            assert!(Target::unused(Path::new(nameless)).is_err(), "{nameless}");
        }
    }
}
