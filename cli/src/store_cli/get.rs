//! `causeway get`.
//!
//! Goals: what was added comes back as it was; nothing that exists is overwritten, and what could not be read whole is not
//! left behind; memory does not grow with the content.
//!
//! Non-goals: modes and times.

use crate::place::REACH;
use crate::progress::{self, Progress};
use crate::store_cli::tree::{self, LeftOut};
use crate::store_cli::{Named, Reading, printable, still_read, with_blocks};
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
PATH is CID, CID/PATH or /ipfs/CID/PATH. A gateway that runs fetches what it does not hold, unless --offline is given. Without \
one, only this node's store is read, and the error says which block is missing.\n\n\
A file, a folder:       causeway get CID -o site\n\
One file of a folder:   causeway get CID/images/logo.svg\n\
To look at:             causeway get CID/index.html -o - | less\n\
To move it elsewhere:   causeway get --car CID -o site.car     then there: causeway import site.car\n\
As one stream:          causeway get --tar CID | ssh host tar x\n\n\
What exists is never overwritten. Content is written under another name first, and gets its own when it is whole. Symlinks \
are written as they are and never followed; those that lead out of the folder are left out, which is said, and names that lead out \
of it are refused. In a TAR, symlinks that lead out of it are refused.";

/// `causeway get`
#[derive(Debug, Args)]
#[command(after_help = format!("{HELP}\n\n{REACH}"))]
pub struct GetArgs {
    /// What to read: CID, CID/PATH or /ipfs/CID/PATH
    path: String,
    /// Where to write; "-" is standard output. By default the last name of PATH or the CID, and standard output for archives
    #[arg(long, short, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Write a CARv1 with all blocks below PATH
    #[arg(long, conflicts_with = "tar")]
    car: bool,
    /// Write a TAR
    #[arg(long, short = 'a', alias = "archive")]
    tar: bool,
    /// What is read, and how.
    #[command(flatten)]
    reading: Reading,
}

impl GetArgs {
    /// The settings that were given.
    pub fn flags(&self) -> Flags {
        (&self.reading.node).into()
    }
}

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    Car,
    Tar,
}

/// Writes what the arguments name.
///
/// # Errors
/// One that says what is missing, in the way or wrong.
pub fn run(loaded: &Loaded, runtime: &Runtime, args: &GetArgs) -> anyhow::Result<()> {
    let named = Named::parse(&args.path)?;
    let form = match (args.car, args.tar) {
        (true, _) => Form::Car,
        (false, true) => Form::Tar,
        (false, false) => Form::Plain,
    };
    let target = match &args.output {
        Some(path) if path == Path::new("-") => Target::Stdout,
        Some(path) => Target::free(path)?,
        None if form == Form::Plain => Target::free(Path::new(&named.name()))?,
        None => Target::Stdout,
    };
    if target == Target::Stdout && form != Form::Plain {
        ensure!(!io::stdout().is_terminal(), "an archive is not for a terminal: give it a file with -o, or a pipe");
    }
    with_blocks(loaded, runtime, &args.reading, named.root, |blocks| {
        let written = runtime.block_on(get(blocks.all, &named, form, &target));
        written.with_context(|| format!("{} was not written", named.said))
    })
}

/// Where it is written.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Stdout,
    /// A path that is free.
    New(PathBuf),
}

impl Target {
    fn free(path: &Path) -> anyhow::Result<Self> {
        let path: PathBuf = path.components().collect();
        ensure!(path.file_name().is_some(), "{} cannot be made: give it a name with -o", path.display());
        match fs::symlink_metadata(&path) {
            Ok(_) => {
                bail!("{} exists already, and nothing is overwritten: choose another name with -o", path.display())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::New(path)),
            Err(error) => Err(error).with_context(|| format!("{} cannot be made", path.display())),
        }
    }
}

async fn get(source: Arc<dyn BlockSource>, named: &Named, form: Form, target: &Target) -> anyhow::Result<()> {
    let block = named.find(&*source).await?;
    let node = match form {
        Form::Plain => Node::decode(&block)?,
        Form::Car => return write(car_of(source, block), target).await,
        Form::Tar => return write(tar_of(source, named.name(), block), target).await,
    };
    match (node, target) {
        (Node::File(_), _) => write(bytes_of(source, block)?, target).await,
        (Node::Directory(_) | Node::HamtShard(_), Target::New(path)) => write_folder(source, block, path).await,
        (Node::Directory(_) | Node::HamtShard(_), Target::Stdout) => {
            bail!("it is a folder: standard output can take it as an archive (--tar, --car)")
        }
        (Node::Symlink { target }, Target::New(path)) => {
            let target = Path::new(OsStr::from_bytes(&target));
            ensure!(
                tree::stays_inside(target, 0),
                "it is a symlink to {}, which may lead anywhere: make it with \"ln -s\" if you want it",
                printable(&target.to_string_lossy())
            );
            symlink(target, path).with_context(|| unwritable(path))
        }
        (Node::Symlink { .. }, Target::Stdout) => bail!("it is a symlink, which has no content"),
        (Node::Plain(_), _) => bail!("it is no file or folder: --car can take it"),
    }
}

pub(super) type Chunks = BoxStream<'static, anyhow::Result<Bytes>>;

/// The content of a file.
pub(super) fn bytes_of(source: Arc<dyn BlockSource>, file: Block) -> anyhow::Result<Chunks> {
    part_of(source, file, 0, None)
}

/// A part of a file: what there is of it.
pub(super) fn part_of(
    source: Arc<dyn BlockSource>,
    file: Block,
    offset: u64,
    length: Option<u64>,
) -> anyhow::Result<Chunks> {
    let size = content::unixfs::file::file_size(&file)?;
    let begin = offset.min(size);
    let end = length.map_or(size, |length| begin.saturating_add(length).min(size));
    Ok(FileReader::new(source, file, begin..end, ReadLimits::default())?.err_into().boxed())
}

fn car_of(source: Arc<dyn BlockSource>, root: Block) -> Chunks {
    let header = car::header(&[*root.cid()]);
    // A stranger's request is bounded; whoever types a command may have all that is here.
    let limits = ScopeLimits { seen_max: usize::MAX, ..ScopeLimits::default() };
    let blocks = scope::blocks(source, Vec::new(), root, ScopeOptions::default(), limits);
    let sections =
        blocks.map_err(anyhow::Error::from).map_ok(|block| stream::iter(<[_; 2]>::from(car::section(&block)).map(Ok)));
    stream::iter([Ok(header)]).chain(sections.try_flatten()).boxed()
}

fn tar_of(source: Arc<dyn BlockSource>, name: String, root: Block) -> Chunks {
    let limits = TarLimits { entries_max: u64::MAX, bytes_max: u64::MAX, ..TarLimits::default() };
    tar::stream(source, name, root, limits).err_into().boxed()
}

async fn write(chunks: Chunks, target: &Target) -> anyhow::Result<()> {
    match target {
        Target::Stdout => {
            let mut out = io::stdout();
            // One who has left has what he wanted.
            if copy(chunks, |chunk| still_read(out.write_all(chunk))).await? {
                still_read(out.flush())?;
            }
            Ok(())
        }
        Target::New(path) => write_file(chunks, path).await,
    }
}

/// Writes a file whole or not at all.
async fn write_file(chunks: Chunks, path: &Path) -> anyhow::Result<()> {
    // What new files may have; the process's mask takes away from it.
    let permissions = Permissions::from_mode(0o666);
    let unfinished = Builder::new().prefix(UNFINISHED).permissions(permissions).tempfile_in(folder_of(path));
    let mut unfinished = unfinished.with_context(|| unwritable(path))?;
    let (mut progress, mut written) = (Progress::new(), 0);
    copy(chunks, |chunk| {
        written += chunk.len() as u64;
        progress.show(|time| progress::bytes(written, None, time));
        unfinished.write_all(chunk).map(|()| true)
    })
    .await?;
    unfinished.persist_noclobber(path).map(drop).with_context(|| unwritable(path))
}

/// Writes a folder whole or not at all.
async fn write_folder(source: Arc<dyn BlockSource>, root: Block, path: &Path) -> anyhow::Result<()> {
    let unfinished = Builder::new().prefix(UNFINISHED).tempdir_in(folder_of(path));
    let unfinished = unfinished.with_context(|| unwritable(path))?;
    let whole = unfinished.path().join("content");
    let left_out = tree::write(source, root, &whole).await?;
    // Of what may have come into being here meanwhile, this takes the place of an empty folder and of nothing else.
    fs::rename(&whole, path).with_context(|| unwritable(path))?;
    tell(&left_out);
    Ok(())
}

/// Says which symlinks were left out.
fn tell(left_out: &LeftOut) {
    for (path, target) in &left_out.shown {
        let (path, target) = (path.to_string_lossy(), target.to_string_lossy());
        eprintln!("left out: {} is a symlink to {}, which is not in the folder", printable(&path), printable(&target));
    }
    let more = left_out.count - left_out.shown.len() as u64;
    if more > 0 {
        eprintln!("left out: {more} more such symlinks");
    }
}

/// Hands chunks over for as long as they are taken; whether all were.
pub(super) async fn copy(mut chunks: Chunks, mut take: impl FnMut(&[u8]) -> io::Result<bool>) -> anyhow::Result<bool> {
    while let Some(chunk) = chunks.try_next().await? {
        if !take(&chunk)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// How the names of unfinished files begin: hidden, and telling whose they are if the process is killed.
const UNFINISHED: &str = ".causeway-get-";

/// What a path is in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn unwritable(path: &Path) -> String {
    format!("{} cannot be written", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(parts: &[&'static str], whole: bool) -> Chunks {
        let end = (!whole).then(|| Err(anyhow::anyhow!("a block is missing")));
        let parts: Vec<_> = parts.iter().map(|part| Ok(Bytes::from_static(part.as_bytes()))).chain(end).collect();
        stream::iter(parts).boxed()
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).expect("lists");
        entries.map(|entry| entry.expect("lists").file_name().to_string_lossy().into_owned()).collect()
    }

    #[tokio::test]
    async fn a_file_is_written_whole_or_not_at_all_and_replaces_nothing() {
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
    fn only_what_is_free_is_written_to() {
        let dir = tempfile::tempdir().expect("a folder");
        symlink("/nowhere", dir.path().join("dangling")).expect("a symlink");
        fs::create_dir(dir.path().join("folder")).expect("a folder");
        for taken in ["dangling", "folder", "folder/", "folder/.."] {
            assert!(Target::free(&dir.path().join(taken)).is_err(), "{taken}");
        }
        assert_eq!(Target::free(&dir.path().join("new/")).expect("is free"), Target::New(dir.path().join("new")));
        for nameless in [".", "..", "/"] {
            assert!(Target::free(Path::new(nameless)).is_err(), "{nameless}");
        }
    }
}
