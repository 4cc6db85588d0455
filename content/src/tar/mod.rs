//! A file or a directory tree as a TAR archive (POSIX ustar with PAX records), streamed.
//!
//! Goals: the same content is always the same archive; extracting it touches nothing outside its root, whatever tool
//! does it (on a file system that tells names apart as bytes do); a tree that cannot be archived says so early, if its
//! directories' own blocks can tell; hostile trees (endless nesting, the same directory a million times) cost bounded
//! memory and end; the work for an archive is linear in what is emitted and in the blocks that are read
//! ([`crate::work`]).
//!
//! Non-goals: modes and times of UnixFS; resuming an archive, or ranges of one.
//!
//! Symlinks that lead out of the root, or may, are left out, as Kubo does: folders of ordinary software have some, and
//! whoever extracts the rest misses nothing that is in it. Alone, such a symlink is an error.
//!
//! Names: a name with slashes is no path segment, so no address leads to such an entry and no listing links to it; old
//! writers made some, and in an archive it says where the entry is. Names that leave the root or are below a symlink
//! are refused, for an archive without the entry would not be the directory's.

mod format;
mod names;

use self::format::{BLOCK_BYTES, Kind, header, padding};
use self::names::Place;
use crate::block::Block;
use crate::cid::Cid;
use crate::dagpb::PbNode;
use crate::fingerprints::{Fingerprints, Marker};
use crate::scope::expected_bytes;
use crate::source::{BlockSource, SourceError, at_hand};
use crate::unixfs::dir::{self, DirError, Entry};
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

/// What the directories take together that are being listed at a time, in bytes.
const LISTED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Parts of a path that are looked at in a step.
const PARTS_PER_STEP: u64 = 2;
/// What an entry that is fetched ahead counts for besides its block and its path, in bytes.
const ENTRY_OVERHEAD_BYTES: usize = 4 * 1024;
/// What a sharded directory counts for, in bytes: the shards down to the current one, and some ahead.
const SHARDED_BYTES: usize = 4 * 1024 * 1024;

/// How much work and memory one archive may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TarLimits {
    /// How many directories may be inside each other.
    pub depth_max: usize,
    /// How many entries the archive may have. A directory that occurs a thousand times is expanded a thousand times.
    pub entries_max: u64,
    /// How many bytes the files of the archive may have together, repeats included.
    pub bytes_max: u64,
    /// How much is fetched ahead, in bytes: of the file that is being read, and as much again of the entries that come
    /// next. A half of the latter is for the root directory, a quarter for one inside it, and so on.
    pub window_bytes_max: usize,
}

impl Default for TarLimits {
    /// 128 levels, 1 Mi entries, 256 GiB, 8 MiB of look-ahead.
    fn default() -> Self {
        Self {
            depth_max: 128,
            entries_max: 1024 * 1024,
            bytes_max: 256 * 1024 * 1024 * 1024,
            window_bytes_max: 8 * 1024 * 1024,
        }
    }
}

/// Why there is no archive, or no more of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TarError {
    /// A directory has a name that an archive must not hold.
    #[error("{parent} has the name {name:?}, which cannot be in an archive: {reason}")]
    Name {
        /// The directory, or for the name of the root the root itself.
        parent: Cid,
        /// The name, shortened.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A symlink leads out of the root, or may.
    #[error("the symlink {cid} to {target:?} cannot be in an archive: {reason}")]
    Symlink {
        /// The symlink.
        cid: Cid,
        /// Where it points, shortened.
        target: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A block is neither a file nor a directory nor a symlink.
    #[error("{cid} is neither a file nor a directory nor a symlink")]
    NotUnixFs {
        /// The block.
        cid: Cid,
    },
    /// A block cannot be understood.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A file cannot be read: its parts do not add up.
    #[error(transparent)]
    File(ReadError),
    /// Directories are nested more deeply, or are larger, than is allowed.
    #[error("the directories above {cid} are too many or too large")]
    TooDeep {
        /// The directory that is not entered.
        cid: Cid,
    },
    /// The archive has too many entries.
    #[error("the archive has more than {max} entries")]
    TooManyEntries {
        /// How many are allowed.
        max: u64,
    },
    /// The archive's files are too large.
    #[error("the files of the archive have more than {max_bytes} bytes")]
    TooManyBytes {
        /// How many bytes are allowed.
        max_bytes: u64,
    },
    /// A block did not come.
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

/// The archive of everything below `root`, whose entry is called `name`; directories come before what is in them, and
/// their entries in stored order. No chunk is empty or larger than a block. The names of a directory are checked before
/// its header is emitted; those of a sharded one as they come. An archive ends with two blocks of zeros if it is whole;
/// after an error the stream ends without. Dropping it cancels what is in flight.
///
/// # Errors
/// In the stream, at its place: [`TarError`].
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
        place: Place::default(),
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

/// An archive under way.
struct Archive {
    work: Work,
    source: Arc<dyn BlockSource>,
    limits: TarLimits,
    /// The root and its name, before anything else.
    root: Option<(String, Block)>,
    /// The path of the deepest directory.
    place: Place,
    /// The directories that are being listed, the deepest last.
    levels: Vec<Level>,
    /// The file whose content is being emitted, and the zeros after it.
    content: Option<(FileReader, usize)>,
    ended: bool,
    entries: u64,
    /// What the files take that were emitted, in bytes.
    bytes: u64,
    /// What the directories take that are being listed, in bytes.
    listed_bytes: usize,
    symlinks: Symlinks,
}

/// A directory that is being listed.
struct Level {
    cid: Cid,
    listing: BoxStream<'static, Result<Entry, DirError>>,
    /// The listing has no more.
    listed: bool,
    /// The entries that come next.
    ahead: FuturesOrdered<BoxFuture<'static, Fetched>>,
    /// What they count for, in bytes.
    ahead_bytes: usize,
    /// What they may count for, in bytes.
    room_bytes: usize,
    /// What it takes itself, in bytes.
    bytes: usize,
}

/// An entry and its block, and what the fetch counted for.
struct Fetched {
    name: String,
    block: Result<Block, TarError>,
    cost_bytes: usize,
}

/// An entry that begins: its header, and what its path is left for.
enum Begun {
    /// A directory, which is listed next.
    Directory(Vec<u8>),
    /// Anything else.
    Leaf(Vec<u8>),
    /// A symlink that must not be in the archive, and why.
    LeftOut(TarError),
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
                return self.enter_root(name, &root).await.map(Some);
            }
            if self.levels.is_empty() {
                return Ok(self.end());
            }
            match self.next_entry().await? {
                None => self.leave(),
                Some((name, block)) => {
                    if let Some(header) = self.enter(&name, &block).await? {
                        return Ok(Some(header));
                    }
                }
            }
        }
    }

    /// What an archive ends with, once.
    fn end(&mut self) -> Option<Bytes> {
        let ended = std::mem::replace(&mut self.ended, true);
        (!ended).then(|| Bytes::from_static(&ZEROS))
    }

    /// Begins with the root. One that must not be in the archive leaves nothing to be in it.
    async fn enter_root(&mut self, name: String, root: &Block) -> Result<Bytes, TarError> {
        self.place = Place::root(&name).map_err(|reason| refused_name(root.cid(), &name, reason))?;
        match self.begin(root).await? {
            Begun::Directory(header) | Begun::Leaf(header) => Ok(self.emit(header)),
            Begun::LeftOut(error) => Err(error),
        }
    }

    /// Begins with an entry of the deepest directory: its header, or nothing if it is left out.
    async fn enter(&mut self, name: &str, block: &Block) -> Result<Option<Bytes>, TarError> {
        let parent = self.levels.last().map_or(*block.cid(), |level| level.cid);
        self.place.enter(name).map_err(|reason| refused_name(&parent, name, reason))?;
        self.work.charge_text(self.place.path().len());
        if self.symlinks.lead_to(&self.place, name, &self.work) {
            return Err(refused_name(&parent, name, "it is at the path of a symlink, or below it"));
        }
        let header = match self.begin(block).await? {
            Begun::Directory(header) => return Ok(Some(self.emit(header))),
            Begun::Leaf(header) => Some(self.emit(header)),
            Begun::LeftOut(_) => None,
        };
        self.place.leave();
        Ok(header)
    }

    fn emit(&self, header: Vec<u8>) -> Bytes {
        self.work.earn(header.len());
        header.into()
    }

    async fn begin(&mut self, block: &Block) -> Result<Begun, TarError> {
        self.entries += 1;
        if self.entries > self.limits.entries_max {
            return Err(TarError::TooManyEntries { max: self.limits.entries_max });
        }
        self.work.charge_decoding(block);
        match Node::decode(block)? {
            Node::File(file) => self.begin_file(&file, block).map(Begun::Leaf),
            Node::Directory(node) => {
                check_names(block.cid(), &node, &self.place, &self.work).await?;
                self.begin_dir(block, node.block_bytes()).map(Begun::Directory)
            }
            Node::HamtShard(_) => self.begin_dir(block, SHARDED_BYTES).map(Begun::Directory),
            Node::Symlink { target } => Ok(self.begin_symlink(block.cid(), &target)),
            Node::Plain(_) => Err(TarError::NotUnixFs { cid: *block.cid() }),
        }
    }

    fn begin_file(&mut self, file: &FileNode, block: &Block) -> Result<Vec<u8>, TarError> {
        let size = file.size();
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > self.limits.bytes_max {
            return Err(TarError::TooManyBytes { max_bytes: self.limits.bytes_max });
        }
        let limits = ReadLimits { window_bytes_max: self.limits.window_bytes_max, shared: None };
        let reader = FileReader::new(self.source.clone(), block.clone(), 0..size, limits)?;
        self.content = Some((reader, padding(size)));
        Ok(header(self.place.path(), Kind::File { size }))
    }

    fn begin_dir(&mut self, block: &Block, bytes: usize) -> Result<Vec<u8>, TarError> {
        let cid = *block.cid();
        self.listed_bytes += bytes;
        if self.levels.len() >= self.limits.depth_max || self.listed_bytes > LISTED_BYTES_MAX {
            return Err(TarError::TooDeep { cid });
        }
        let listing = dir::list(self.source.clone(), block.clone());
        let above = self.levels.last().map_or(self.limits.window_bytes_max, |level| level.room_bytes);
        self.levels.push(Level {
            cid,
            listing,
            listed: false,
            ahead: FuturesOrdered::new(),
            ahead_bytes: 0,
            room_bytes: above / 2,
            bytes,
        });
        Ok(header(self.place.path(), Kind::Directory))
    }

    fn begin_symlink(&mut self, cid: &Cid, target: &[u8]) -> Begun {
        match self.place.target(target) {
            Ok(target) => {
                self.symlinks.insert(&self.place);
                Begun::Leaf(header(self.place.path(), Kind::Symlink { target }))
            }
            Err(reason) => {
                let target = shorten(&String::from_utf8_lossy(target));
                Begun::LeftOut(TarError::Symlink { cid: *cid, target, reason })
            }
        }
    }

    /// Leaves the deepest directory.
    fn leave(&mut self) {
        if let Some(level) = self.levels.pop() {
            self.listed_bytes -= level.bytes;
            self.place.leave();
        }
    }

    /// The next entry of the deepest directory.
    async fn next_entry(&mut self) -> Result<Option<(String, Block)>, TarError> {
        let Some(level) = self.levels.last_mut() else { return Ok(None) };
        level.look_ahead(&self.source, &self.work).await;
        let Some(Fetched { name, block, cost_bytes }) = level.ahead.next().await else { return Ok(None) };
        level.ahead_bytes -= cost_bytes;
        Ok(Some((name, block?)))
    }
}

/// The paths of the symlinks of an archive. Nothing may be at one or below it: it would be extracted to wherever that
/// leads.
#[derive(Default)]
struct Symlinks {
    marker: Marker,
    /// The path of each as a text, and as it is told by its parts.
    paths: Fingerprints,
    /// Whether any name had more than one part until now.
    jumped: bool,
}

impl Symlinks {
    fn insert(&mut self, place: &Place) {
        self.paths.insert(place.path());
        if let Some(mark) = self.marks(place).last() {
            self.paths.insert(mark);
        }
    }

    /// Whether there is a symlink at a path that was entered by `name`, or above it. As long as each name is one part,
    /// what is above a directory that is being listed was looked at when that was entered, and no symlink has come
    /// there since.
    fn lead_to(&mut self, place: &Place, name: &str, work: &Work) -> bool {
        self.jumped |= name.contains('/');
        if self.paths.is_empty() || !self.jumped {
            return self.paths.contains(place.path());
        }
        work.charge(place.parts().count() as u64 / PARTS_PER_STEP);
        self.marks(place).any(|mark| self.paths.contains(mark))
    }

    /// What stands for each of the paths that lead to a place: it takes one look at each part.
    fn marks(&self, place: &Place) -> impl Iterator<Item = u128> {
        place.parts().scan(0, |above, part| {
            *above = self.marker.mark((*above, part));
            Some(*above)
        })
    }
}

/// The two blocks at the end of an archive; a part of them fills up the last block of a file.
static ZEROS: [u8; 2 * BLOCK_BYTES] = [0; 2 * BLOCK_BYTES];

impl Level {
    /// Asks for the blocks of entries to come while there is room: for one at least, and for no second one if the first is
    /// at hand.
    async fn look_ahead(&mut self, source: &Arc<dyn BlockSource>, work: &Work) {
        while !self.listed && (self.ahead.is_empty() || self.ahead_bytes < self.room_bytes && !work.is_due()) {
            let first = self.ahead.is_empty();
            let entry = if first {
                self.listing.next().await
            } else {
                let Poll::Ready(entry) = futures::poll!(self.listing.next()) else { return };
                entry
            };
            let Some(entry) = entry else { return self.listed = true };
            if self.ask(source, entry) && first {
                return;
            }
        }
    }

    /// Takes an entry's block if it is at hand, or fetches it; whether there is nothing to wait for.
    fn ask(&mut self, source: &Arc<dyn BlockSource>, entry: Result<Entry, DirError>) -> bool {
        let entry = match self.checked(entry) {
            Ok(entry) => entry,
            Err(error) => {
                self.push(String::new(), 0, ready(Err(error)));
                return true;
            }
        };
        match at_hand(&**source, &entry.cid) {
            Some(block) => {
                self.push(entry.name, block.data().len(), ready(Ok(block)));
                true
            }
            None => {
                self.push(entry.name, expected_bytes(entry.tsize), source.get(&entry.cid).map_err(TarError::from));
                false
            }
        }
    }

    fn checked(&self, entry: Result<Entry, DirError>) -> Result<Entry, TarError> {
        let entry = entry?;
        match entry.not_text {
            Some(_) => Err(refused_name(&self.cid, &entry.name, NOT_TEXT)),
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
        self.ahead_bytes += cost_bytes;
        self.ahead.push_back(block.map(move |block| Fetched { name, block, cost_bytes }).boxed());
    }
}

/// Names that are no text would all look alike, and of equal names the last would win when the archive is extracted.
const NOT_TEXT: &str = "it is not UTF-8 text";
const TWICE: &str = "the directory has it twice";

/// Checks the names of a directory at `place` that is one block.
async fn check_names(cid: &Cid, node: &PbNode, place: &Place, work: &Work) -> Result<(), TarError> {
    let mut names = HashSet::new();
    for link in node.links() {
        let link = link.map_err(|reason| NodeError::malformed(cid, reason))?;
        let refused = |reason| refused_name(cid, &String::from_utf8_lossy(link.name), reason);
        let name = str::from_utf8(link.name).map_err(|_| refused(NOT_TEXT))?;
        place.check(name).map_err(refused)?;
        if !names.insert(link.name) {
            return Err(refused(TWICE));
        }
        work.charge_text(link.name.len());
        work.turn().await?;
    }
    Ok(())
}

fn refused_name(parent: &Cid, name: &str, reason: &'static str) -> TarError {
    TarError::Name { parent: *parent, name: shorten(name), reason }
}

fn shorten(text: &str) -> String {
    const SHOWN: usize = 200;
    match text.char_indices().nth(SHOWN) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
