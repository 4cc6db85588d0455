//! A file or a directory tree as a TAR archive (POSIX ustar with PAX records), streamed.
//!
//! Goals: the same content always gives the same archive; extracting it with any tool writes nothing outside its root
//! (on a file system that compares names as bytes); a tree that cannot be archived fails early, if the blocks of its
//! directories show it; malicious trees (endless nesting, the same directory a million times) take bounded memory and
//! end; the work is linear in the bytes that are emitted and the blocks that are read ([`crate::work`]).
//!
//! Non-goals: modes and times of UnixFS; resuming an archive, or ranges of one.
//!
//! Symlinks that point, or may point, outside the root are skipped, as Kubo does: ordinary software distributions have
//! some, and the rest is useful without them. If the root itself is such a symlink, it is an error.
//!
//! Names: an entry whose name has slashes cannot be reached by a URL and is not linked by listings. Old importers made
//! some, and in an archive the name is the path of the entry. Names that leave the root or are below a symlink are
//! errors, because an archive without the entry would be incomplete.

mod format;
mod names;

use self::format::{BLOCK_BYTES, Kind, header, padding};
use self::names::EntryPath;
use crate::block::Block;
use crate::cid::Cid;
use crate::dagpb::PbNode;
use crate::fingerprints::{FingerprintHasher, Fingerprints};
use crate::read_ahead::ReadAhead;
use crate::scope::expected_bytes;
use crate::source::{BlockSource, SourceError, peek_or_inline};
use crate::unixfs::dir::{self, DirEntry, DirError};
use crate::unixfs::file::{FileReader, ReadError, ReadLimits};
use crate::unixfs::{FileNode, Node, NodeError};
use crate::work::Work;
use bytes::Bytes;
use futures::future::{BoxFuture, ready};
use futures::stream::{self, BoxStream, FuturesOrdered, StreamExt as _};
use futures::{FutureExt as _, TryFutureExt as _};
use std::collections::HashSet;
use std::sync::Arc;
use std::task::Poll;

/// The maximum size of the directories that are being listed at a time, in bytes.
const LISTED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Path segments that are processed in one step of work.
const SEGMENTS_PER_STEP: u64 = 2;
/// The overhead of a prefetched entry besides its block and its path, in bytes.
const ENTRY_OVERHEAD_BYTES: usize = 4 * 1024;
/// The size that a sharded directory is counted with, in bytes: the shards down to the current one, and some
/// prefetched.
const SHARDED_BYTES: usize = 4 * 1024 * 1024;

/// Limits for the work and the memory of one archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TarLimits {
    /// The maximum nesting of directories.
    pub depth_max: usize,
    /// The maximum number of entries. A directory that occurs a thousand times is counted a thousand times.
    pub entries_max: u64,
    /// The maximum size of all files together, in bytes, repeats included.
    pub bytes_max: u64,
    /// The prefetch window, in bytes: of the file that is being read, and as much again for the next entries. Of the
    /// latter, half is for the root directory, a quarter for a directory in it, and so on.
    pub window_bytes_max: usize,
}

impl Default for TarLimits {
    /// 128 levels, 1 Mi entries, 256 GiB, 8 MiB of prefetch window.
    fn default() -> Self {
        Self {
            depth_max: 128,
            entries_max: 1024 * 1024,
            bytes_max: 256 * 1024 * 1024 * 1024,
            window_bytes_max: 8 * 1024 * 1024,
        }
    }
}

/// Why an archive cannot be made or continued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TarError {
    /// A directory has a name that is not allowed in an archive.
    #[error("{parent} has the name {name:?}, which cannot be in an archive: {reason}")]
    Name {
        /// The directory; for the name of the root, the root itself.
        parent: Cid,
        /// The name, truncated.
        name: String,
        /// What is wrong with the name.
        reason: &'static str,
    },
    /// A symlink points, or may point, outside the root.
    #[error("the symlink {cid} to {target:?} cannot be in an archive: {reason}")]
    Symlink {
        /// The symlink.
        cid: Cid,
        /// Its target, truncated.
        target: String,
        /// What is wrong with the target.
        reason: &'static str,
    },
    /// A block is neither a file nor a directory nor a symlink.
    #[error("{cid} is neither a file nor a directory nor a symlink")]
    NotUnixFs {
        /// The block.
        cid: Cid,
    },
    /// A block cannot be decoded.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A file cannot be read: its declared size differs from that of its parts.
    #[error(transparent)]
    File(ReadError),
    /// The directories are nested too deeply, or are too large together.
    #[error("the directories above {cid} are nested too deeply, or are too large together")]
    TooDeep {
        /// The directory that is not entered.
        cid: Cid,
    },
    /// The archive has too many entries.
    #[error("the archive has more than {max} entries")]
    TooManyEntries {
        /// The maximum.
        max: u64,
    },
    /// The archive's files are too large.
    #[error("the files of the archive have more than {max_bytes} bytes")]
    TooManyBytes {
        /// The maximum, in bytes.
        max_bytes: u64,
    },
    /// A block was not received.
    #[error(transparent)]
    Source(#[from] SourceError),
}

impl From<ReadError> for TarError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Node(error) => error.into(),
            ReadError::Source(error) => error.into(),
            error => Self::File(error),
        }
    }
}

impl From<DirError> for TarError {
    fn from(error: DirError) -> Self {
        match error {
            DirError::NotADirectory { cid } => Self::NotUnixFs { cid },
            DirError::Node(error) => error.into(),
            DirError::Source(error) => error.into(),
        }
    }
}

/// An archive of the DAG below `root`, whose entry has the name `name`. Directories come before their entries, and
/// entries in stored order. No chunk is empty or larger than a block. The names of a directory are checked before its
/// header is emitted; those of a sharded directory one by one. A complete archive ends with two blocks of zeros; after
/// an error the stream ends without them. Dropping the stream cancels the fetches in flight.
///
/// # Errors
/// The stream ends with a [`TarError`].
pub fn stream(
    source: Arc<dyn BlockSource>,
    name: String,
    root: Block,
    limits: TarLimits,
) -> BoxStream<'static, Result<Bytes, TarError>> {
    let archive = Archive {
        work: source.work(),
        source,
        limits,
        root: Some((name, root)),
        entry_path: EntryPath::default(),
        levels: Vec::new(),
        content: None,
        ended: false,
        entries: 0,
        bytes: 0,
        listed_bytes: 0,
        symlinks: Symlinks::default(),
    };
    stream::try_unfold(archive, |mut archive| async move { Ok(archive.next().await?.map(|chunk| (chunk, archive))) })
        .boxed()
}

/// An archive that is being written.
struct Archive {
    work: Work,
    source: Arc<dyn BlockSource>,
    limits: TarLimits,
    /// The root and its name, until its header is emitted.
    root: Option<(String, Block)>,
    /// The path of the deepest directory.
    entry_path: EntryPath,
    /// The directories that are being listed, the deepest last.
    levels: Vec<Level>,
    /// The file whose content is being emitted, and the number of zeros after it.
    content: Option<(FileReader, usize)>,
    ended: bool,
    entries: u64,
    /// The size of the files that were emitted, in bytes.
    bytes: u64,
    /// The size of the directories that are being listed, in bytes.
    listed_bytes: usize,
    symlinks: Symlinks,
}

/// A directory that is being listed.
struct Level {
    cid: Cid,
    listing: BoxStream<'static, Result<DirEntry, DirError>>,
    /// The listing has ended.
    listing_ended: bool,
    /// The next entries, which are being fetched.
    prefetched: FuturesOrdered<BoxFuture<'static, Fetched>>,
    /// The size of the prefetched entries, in bytes.
    prefetched_bytes: usize,
    /// The maximum of `prefetched_bytes`.
    prefetch_bytes_max: usize,
    /// The size of the directory itself, in bytes.
    bytes: usize,
}

/// An entry with its block, and the size that the prefetch counted.
struct Fetched {
    name: String,
    block: Result<Block, TarError>,
    cost_bytes: usize,
}

/// The header of an entry.
enum EntryHeader {
    /// A directory, whose entries come next.
    Directory(Vec<u8>),
    /// Anything else.
    Leaf(Vec<u8>),
    /// A symlink that is skipped, and why.
    Skipped(TarError),
}

impl Archive {
    async fn next(&mut self) -> Result<Option<Bytes>, TarError> {
        loop {
            self.work.turn().await?;
            if let Some((reader, zeros)) = &mut self.content {
                match reader.next().await.transpose()? {
                    Some(chunk) => return Ok(Some(chunk)),
                    None if *zeros == 0 => self.content = None,
                    None => {
                        let zeros = Bytes::from_static(&ZEROS[..*zeros]);
                        self.content = None;
                        return Ok(Some(zeros));
                    }
                }
            }
            if let Some((name, root)) = self.root.take() {
                return self.start_root(name, &root).await.map(Some);
            }
            if self.levels.is_empty() {
                return Ok(self.end());
            }
            match self.next_entry().await? {
                None => self.leave(),
                Some((name, block)) => {
                    if let Some(header) = self.start(&name, &block).await? {
                        return Ok(Some(header));
                    }
                }
            }
        }
    }

    /// The end of the archive, once.
    fn end(&mut self) -> Option<Bytes> {
        let ended = std::mem::replace(&mut self.ended, true);
        (!ended).then(|| Bytes::from_static(&ZEROS))
    }

    /// Starts with the root. If the root is a symlink that would be skipped, the archive fails.
    async fn start_root(&mut self, name: String, root: &Block) -> Result<Bytes, TarError> {
        self.entry_path = EntryPath::root(&name).map_err(|reason| invalid_name(root.cid(), &name, reason))?;
        match self.header_of(root).await? {
            EntryHeader::Directory(header) | EntryHeader::Leaf(header) => Ok(self.emit(header)),
            EntryHeader::Skipped(error) => Err(error),
        }
    }

    /// Starts an entry of the deepest directory: returns its header, or `None` if it is skipped.
    async fn start(&mut self, name: &str, block: &Block) -> Result<Option<Bytes>, TarError> {
        let parent = self.levels.last().map_or(*block.cid(), |level| level.cid);
        self.entry_path.enter(name).map_err(|reason| invalid_name(&parent, name, reason))?;
        self.work.charge_text(self.entry_path.as_str().len());
        if self.symlinks.contain_prefix_of(&self.entry_path, name, &self.work) {
            return Err(invalid_name(&parent, name, "it is at the path of a symlink, or below it"));
        }
        let header = match self.header_of(block).await? {
            EntryHeader::Directory(header) => return Ok(Some(self.emit(header))),
            EntryHeader::Leaf(header) => Some(self.emit(header)),
            EntryHeader::Skipped(_) => None,
        };
        self.entry_path.leave();
        Ok(header)
    }

    fn emit(&self, header: Vec<u8>) -> Bytes {
        self.work.earn(header.len());
        header.into()
    }

    async fn header_of(&mut self, block: &Block) -> Result<EntryHeader, TarError> {
        self.entries += 1;
        if self.entries > self.limits.entries_max {
            return Err(TarError::TooManyEntries { max: self.limits.entries_max });
        }
        self.work.charge_decoding(block);
        match Node::decode(block)? {
            Node::File(file) => self.file_header(&file, block).map(EntryHeader::Leaf),
            Node::Directory(node) => {
                check_names(block.cid(), &node, &self.entry_path, &self.work).await?;
                self.directory_header(block, node.block_bytes()).map(EntryHeader::Directory)
            }
            Node::HamtShard(_) => self.directory_header(block, SHARDED_BYTES).map(EntryHeader::Directory),
            Node::Symlink { target } => Ok(self.symlink_header(block.cid(), &target)),
            Node::Plain(_) => Err(TarError::NotUnixFs { cid: *block.cid() }),
        }
    }

    fn file_header(&mut self, file: &FileNode, block: &Block) -> Result<Vec<u8>, TarError> {
        let size = file.size();
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > self.limits.bytes_max {
            return Err(TarError::TooManyBytes { max_bytes: self.limits.bytes_max });
        }
        let limits = ReadLimits { window_bytes_max: self.limits.window_bytes_max, shared: None };
        let reader = FileReader::new(self.source.clone(), block.clone(), 0..size, limits)?;
        self.content = Some((reader, padding(size)));
        Ok(header(self.entry_path.as_str(), Kind::File { size }))
    }

    fn directory_header(&mut self, block: &Block, bytes: usize) -> Result<Vec<u8>, TarError> {
        let cid = *block.cid();
        self.listed_bytes += bytes;
        if self.levels.len() >= self.limits.depth_max || self.listed_bytes > LISTED_BYTES_MAX {
            return Err(TarError::TooDeep { cid });
        }
        let listing = dir::list(self.source.clone(), block.clone());
        let parent = self.levels.last().map_or(self.limits.window_bytes_max, |level| level.prefetch_bytes_max);
        self.levels.push(Level {
            cid,
            listing,
            listing_ended: false,
            prefetched: FuturesOrdered::new(),
            prefetched_bytes: 0,
            prefetch_bytes_max: parent / 2,
            bytes,
        });
        Ok(header(self.entry_path.as_str(), Kind::Directory))
    }

    fn symlink_header(&mut self, cid: &Cid, target: &[u8]) -> EntryHeader {
        match self.entry_path.target(target) {
            Ok(target) => {
                self.symlinks.insert(&self.entry_path);
                EntryHeader::Leaf(header(self.entry_path.as_str(), Kind::Symlink { target }))
            }
            Err(reason) => {
                let target = shorten(&String::from_utf8_lossy(target));
                EntryHeader::Skipped(TarError::Symlink { cid: *cid, target, reason })
            }
        }
    }

    /// Leaves the deepest directory.
    fn leave(&mut self) {
        if let Some(level) = self.levels.pop() {
            self.listed_bytes -= level.bytes;
            self.entry_path.leave();
        }
    }

    /// The next entry of the deepest directory.
    async fn next_entry(&mut self) -> Result<Option<(String, Block)>, TarError> {
        let Some(level) = self.levels.last_mut() else { return Ok(None) };
        level.prefetch(&self.source, &self.work).await;
        let Some(Fetched { name, block, cost_bytes }) = level.prefetched.next().await else { return Ok(None) };
        level.prefetched_bytes -= cost_bytes;
        Ok(Some((name, block?)))
    }
}

/// The paths of the symlinks in an archive. No entry may have the path of a symlink or a path below it, because it
/// would be extracted to the target of the symlink.
#[derive(Default)]
struct Symlinks {
    marker: FingerprintHasher,
    /// For each symlink the fingerprint of its path, and the chained fingerprint of its segments.
    paths: Fingerprints,
    /// Whether any name had more than one segment so far.
    has_compound_names: bool,
}

impl Symlinks {
    fn insert(&mut self, entry_path: &EntryPath) {
        self.paths.insert(entry_path.as_str());
        if let Some(fingerprint) = self.prefix_fingerprints(entry_path).last() {
            self.paths.insert(fingerprint);
        }
    }

    /// Whether the entry `name` at `entry_path` is at or below a symlink. As long as every name has one segment, the
    /// parents of a directory were checked when it was entered, and no symlink was added above it since.
    fn contain_prefix_of(&mut self, entry_path: &EntryPath, name: &str, work: &Work) -> bool {
        self.has_compound_names |= name.contains('/');
        if self.paths.is_empty() || !self.has_compound_names {
            return self.paths.contains(entry_path.as_str());
        }
        work.charge(entry_path.segments().count() as u64 / SEGMENTS_PER_STEP);
        self.prefix_fingerprints(entry_path).any(|fingerprint| self.paths.contains(fingerprint))
    }

    /// The chained fingerprints of all prefixes of a path, each computed from the one before.
    fn prefix_fingerprints(&self, entry_path: &EntryPath) -> impl Iterator<Item = u128> {
        entry_path.segments().scan(0, |parent, segment| {
            *parent = self.marker.mark((*parent, segment));
            Some(*parent)
        })
    }
}

/// The two blocks at the end of an archive; a slice of them is the padding of files.
static ZEROS: [u8; 2 * BLOCK_BYTES] = [0; 2 * BLOCK_BYTES];

impl Level {
    /// Prefetches the next entries within the window: at least one, and no second one if the block of the first is
    /// available at once.
    async fn prefetch(&mut self, source: &Arc<dyn BlockSource>, work: &Work) {
        while !self.listing_ended
            && (self.prefetched.is_empty() || self.prefetched_bytes < self.prefetch_bytes_max && !work.is_due())
        {
            let first = self.prefetched.is_empty();
            let entry = if first {
                self.listing.next().await
            } else {
                let Poll::Ready(entry) = futures::poll!(self.listing.next()) else { return };
                entry
            };
            let Some(entry) = entry else { return self.listing_ended = true };
            if self.prefetch_entry(source, entry) && first {
                return;
            }
        }
    }

    /// Takes the block of an entry if it is available at once, or fetches it; `true` if there is nothing to wait for.
    fn prefetch_entry(&mut self, source: &Arc<dyn BlockSource>, entry: Result<DirEntry, DirError>) -> bool {
        let entry = match self.checked(entry) {
            Ok(entry) => entry,
            Err(error) => {
                self.push(String::new(), 0, ready(Err(error)));
                return true;
            }
        };
        match peek_or_inline(&**source, &entry.cid) {
            Some(block) => {
                self.push(entry.name, block.data().len(), ready(Ok(block)));
                true
            }
            None => {
                let fetch = source.get_ahead(&entry.cid, &ReadAhead::all(entry.cid)).map_err(TarError::from);
                self.push(entry.name, expected_bytes(entry.tsize), fetch);
                false
            }
        }
    }

    fn checked(&self, entry: Result<DirEntry, DirError>) -> Result<DirEntry, TarError> {
        let entry = entry?;
        match entry.not_text {
            Some(_) => Err(invalid_name(&self.cid, &entry.name, NOT_UTF8)),
            None => Ok(entry),
        }
    }

    fn push(
        &mut self,
        name: String,
        bytes: usize,
        block: impl Future<Output = Result<Block, TarError>> + Send + 'static,
    ) {
        let cost_bytes = bytes + name.len() + ENTRY_OVERHEAD_BYTES;
        self.prefetched_bytes += cost_bytes;
        self.prefetched.push_back(block.map(move |block| Fetched { name, block, cost_bytes }).boxed());
    }
}

/// Names that are not UTF-8 would be written alike, and extracting would overwrite one by the other.
const NOT_UTF8: &str = "it is not UTF-8 text";
const DUPLICATE: &str = "the directory has it more than once";

/// Checks the names of an unsharded directory at `entry_path`.
async fn check_names(cid: &Cid, node: &PbNode, entry_path: &EntryPath, work: &Work) -> Result<(), TarError> {
    let mut names = HashSet::new();
    for link in node.links() {
        let link = link.map_err(|reason| NodeError::malformed(cid, reason))?;
        let invalid = |reason| invalid_name(cid, &String::from_utf8_lossy(link.name), reason);
        let name = str::from_utf8(link.name).map_err(|_| invalid(NOT_UTF8))?;
        entry_path.check(name).map_err(invalid)?;
        if !names.insert(link.name) {
            return Err(invalid(DUPLICATE));
        }
        work.charge_text(link.name.len());
        work.turn().await?;
    }
    Ok(())
}

fn invalid_name(parent: &Cid, name: &str, reason: &'static str) -> TarError {
    TarError::Name { parent: *parent, name: shorten(name), reason }
}

fn shorten(text: &str) -> String {
    const SHOWN: usize = 200;
    match text.char_indices().nth(SHOWN) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
