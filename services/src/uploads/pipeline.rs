//! [`Pipeline`]: chunking, hashing and linking.
//!
//! One thread reads and chunks, others hash, and the first links the results in the order of reading. A queue of
//! [`Step`]s holds what is not linked yet; several files share it, so that many small files use all CPUs as well as one
//! large file does. Memory: the chunks that are being hashed, two for each CPU, the inner nodes of the file
//! ([`memory_bytes_max`]), and the links of the open folders.

use crate::uploads::UploadError;
use crate::uploads::names::Path;
use content::Block;
use content::importer::{
    Attributes, BlockSink, Chunk, Directory, File, FileLayout, ImportError, Importer, Leaves, Packed, PackedLeaf,
    Packer, Packing, Part, packer,
};
use std::collections::VecDeque;
use std::io::Read;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// The read size, in bytes.
const READ_BYTES: usize = 256 * 1024;
/// Smaller chunks, in bytes, are hashed on the reading thread.
const OFFLOAD_BYTES_MIN: usize = 16 * 1024;
/// The maximum length of the queue, which limits small files.
const STEPS_MAX: usize = 256;
/// The maximum size of chunks that are hashed concurrently, in bytes, but at least two chunks.
const HASHING_BYTES_MAX: usize = 16 << 20;

/// The number of chunks that are hashed concurrently: two for each CPU.
fn hashing_max(chunk_bytes_max: usize) -> usize {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    (2 * processors).min((HASHING_BYTES_MAX / chunk_bytes_max.max(1)).max(2))
}

/// The working memory of zstd for a chunk that is being compressed, in bytes.
const ZSTD_BYTES: usize = 3 << 19;

/// The maximum memory of a pipeline, in bytes, for files of at most so many bytes: the read buffer, the current chunk,
/// those that are being hashed, small ones that wait to be linked, and the inner nodes of the file. A packed file has
/// frames beside its chunks, and inner nodes of its zstd file.
pub fn memory_bytes_max(importer: &Importer, file_bytes_max: u64, is_packed: bool) -> usize {
    let profile = importer.profile();
    let chunk = profile.chunking.bytes_max();
    if is_packed {
        let frames = hashing_max(chunk) * (chunk + ZSTD_BYTES) + packer::memory_bytes_max(chunk);
        let layout = packer::ZSTD_FILE_PROFILE.layout_bytes_max(file_bytes_max);
        return memory_bytes_max(importer, file_bytes_max, false) + frames + layout;
    }
    let waiting = STEPS_MAX * (chunk.min(OFFLOAD_BYTES_MIN) + size_of::<Step>() + size_of::<Hashed>());
    READ_BYTES + (hashing_max(chunk) + 2) * chunk + waiting + profile.layout_bytes_max(file_bytes_max)
}

/// Observes a pipeline, and records what is complete.
pub trait Watch {
    /// `more` bytes of a file were read, and `so_far` in total. The file is not complete before it is added.
    fn read(&mut self, name: Option<&[u8]>, more: usize, so_far: u64);

    /// A file, symlink or folder is complete.
    ///
    /// # Errors
    /// Any error aborts the import.
    fn added(&mut self, added: Added<'_>) -> Result<(), UploadError>;

    /// An entry without content. May be called before earlier entries are complete.
    ///
    /// # Errors
    /// Any error aborts the import.
    fn bare_entry(&mut self, entry: BareEntry) -> Result<(), UploadError> {
        _ = entry;
        Ok(())
    }
}

/// An entry without content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BareEntry {
    /// A folder, whose entries follow by their paths.
    Folder {
        /// Its path.
        path: Path,
        /// Its attributes.
        attributes: Attributes,
    },
    /// A hard link.
    HardLink {
        /// Its path.
        path: Path,
        /// The path of the file.
        target: Path,
    },
}

/// A complete entry.
#[derive(Debug)]
pub struct Added<'a> {
    /// Its path, from the outermost folder that was entered; the CID of a file without a path.
    pub path: Vec<u8>,
    /// Its root.
    pub part: &'a Part,
    /// Whether it is outside any folder that was entered.
    pub is_root: bool,
    /// Whether it is a packed file.
    pub packing: PackingResult,
}

/// Whether a file was packed.
#[allow(clippy::large_enum_variant, reason = "there is one for each file, and it is copied a few times")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PackingResult {
    /// It was not to be.
    #[default]
    NotRequested,
    /// Its first leaves do not shrink, so it is stored plain.
    Plain,
    /// It was.
    Packed(Packed),
}

/// Imports files and folders, those in a folder between [`Pipeline::enter`] and [`Pipeline::leave`]. Blocks, so it must
/// not be used on a runtime worker thread.
pub struct Pipeline<'a> {
    runtime: Handle,
    steps: VecDeque<Step>,
    /// The number of steps that are being hashed.
    hashing: usize,
    hashing_max: usize,
    builder: Builder<'a>,
    buffer: Vec<u8>,
    packing: Option<Packing>,
}

/// A queued step of linking.
enum Step {
    File(Box<(FileLayout, Option<Packer>)>),
    Leaf(Leaf),
    FileEnd { name: Option<Vec<u8>> },
    Symlink { name: Vec<u8>, target: Vec<u8>, attributes: Attributes },
    Enter { name: Vec<u8> },
    Leave,
}

/// A leaf, and its frame if the file is being packed.
enum HashedLeaf {
    Plain(Block),
    Packed(Box<PackedLeaf>),
}

type Hashed = Result<(Part, HashedLeaf), ImportError>;

/// Makes the leaves of a file, on any thread.
#[derive(Clone)]
struct LeafMaker {
    leaves: Leaves,
    packing: Option<Packing>,
    /// Set once the file turned out not to be worth packing.
    is_plain: Arc<AtomicBool>,
}

impl LeafMaker {
    fn leaf(&self, chunk: Chunk) -> Hashed {
        let (part, leaf) = self.leaves.leaf(chunk)?;
        let packing = self.packing.as_ref().filter(|_| !self.is_plain.load(Ordering::Relaxed));
        let leaf = match packing {
            None => HashedLeaf::Plain(leaf),
            Some(packing) => HashedLeaf::Packed(Box::new(packing.pack(leaf, part.file_bytes)?)),
        };
        Ok((part, leaf))
    }
}

enum Leaf {
    Ready(Box<Hashed>),
    Hashing(JoinHandle<Hashed>),
}

impl<'a> Pipeline<'a> {
    /// A pipeline that sends blocks to `sink`, and results to `watch`. Blocking threads of the runtime hash.
    pub fn new(importer: Importer, runtime: Handle, sink: &'a mut dyn BlockSink, watch: &'a mut dyn Watch) -> Self {
        let hashing_max = hashing_max(importer.profile().chunking.bytes_max());
        let builder = Builder { importer, sink, watch, layout: None, packer: None, open: Vec::new() };
        let steps = VecDeque::with_capacity(STEPS_MAX + 1);
        Self { runtime, steps, hashing: 0, hashing_max, builder, buffer: vec![0; READ_BYTES], packing: None }
    }

    /// Makes all files packed ones, if they shrink. They cannot be in folders then, since a pin has the zstd file of
    /// its root.
    #[must_use]
    pub fn packed(mut self, packing: Option<Packing>) -> Self {
        self.packing = packing;
        self
    }

    /// Imports a file to the end of its reader. Without a name, its CID is the name.
    ///
    /// # Errors
    /// Errors of reading, and of storing blocks, possibly of an earlier file.
    pub fn file(
        &mut self,
        name: Option<Vec<u8>>,
        attributes: Attributes,
        mut content: impl Read,
    ) -> Result<(), UploadError> {
        let File { mut chunker, leaves, layout } = self.builder.importer.file(attributes);
        let packing = self.packing.clone();
        let packer = packing.is_some().then(Packer::new).transpose().map_err(ImportError::from)?;
        let is_plain = packer.as_ref().map(Packer::is_plain).unwrap_or_default();
        let leaves = LeafMaker { leaves, packing, is_plain };
        self.push(Step::File(Box::new((layout, packer))))?;
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut so_far = 0;
        loop {
            let read = match content.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            so_far += read as u64;
            self.builder.watch.read(name.as_deref(), read, so_far);
            let mut bytes = &buffer[..read];
            while let Some(chunk) = chunker.push(&mut bytes) {
                self.hash(&leaves, chunk)?;
            }
        }
        self.buffer = buffer;
        if let Some(chunk) = chunker.finish() {
            self.hash(&leaves, chunk)?;
        }
        self.push(Step::FileEnd { name })
    }

    /// Imports a symlink.
    ///
    /// # Errors
    /// Errors of storing blocks.
    pub fn symlink(&mut self, name: Vec<u8>, target: Vec<u8>, attributes: Attributes) -> Result<(), UploadError> {
        self.check_unpacked()?;
        self.push(Step::Symlink { name, target, attributes })
    }

    /// Passes on an entry without content.
    ///
    /// # Errors
    /// The error of the observer.
    pub fn bare_entry(&mut self, entry: BareEntry) -> Result<(), UploadError> {
        self.builder.watch.bare_entry(entry)
    }

    /// Begins a folder, inside the current one if there is one.
    ///
    /// # Errors
    /// Errors of storing blocks.
    pub fn enter(&mut self, name: Vec<u8>) -> Result<(), UploadError> {
        self.check_unpacked()?;
        self.push(Step::Enter { name })
    }

    /// Ends the current folder.
    ///
    /// # Errors
    /// Errors of storing blocks.
    pub fn leave(&mut self) -> Result<(), UploadError> {
        self.push(Step::Leave)
    }

    /// Waits until everything is complete.
    ///
    /// # Errors
    /// Errors of storing blocks.
    pub fn finish(mut self) -> Result<(), UploadError> {
        while self.take_step()? {}
        Ok(())
    }

    fn check_unpacked(&self) -> Result<(), UploadError> {
        match self.packing {
            None => Ok(()),
            Some(_) => Err(UploadError::Invalid("only files can be packed, not folders or symlinks".to_owned())),
        }
    }

    fn hash(&mut self, leaves: &LeafMaker, chunk: Chunk) -> Result<(), UploadError> {
        let leaf = if chunk.data().len() < OFFLOAD_BYTES_MIN {
            Leaf::Ready(Box::new(leaves.leaf(chunk)))
        } else {
            let leaves = leaves.clone();
            self.hashing += 1;
            Leaf::Hashing(self.runtime.spawn_blocking(move || leaves.leaf(chunk)))
        };
        self.push(Step::Leaf(leaf))
    }

    fn push(&mut self, step: Step) -> Result<(), UploadError> {
        self.steps.push_back(step);
        while self.steps.len() > STEPS_MAX || self.hashing > self.hashing_max {
            self.take_step()?;
        }
        Ok(())
    }

    /// Executes the first step; returns whether there was one.
    fn take_step(&mut self) -> Result<bool, UploadError> {
        let builder = &mut self.builder;
        match self.steps.pop_front() {
            None => return Ok(false),
            Some(Step::File(file)) => {
                let (layout, packer) = *file;
                (builder.layout, builder.packer) = (Some(layout), packer);
            }
            Some(Step::Leaf(leaf)) => {
                let hashed = match leaf {
                    Leaf::Ready(hashed) => *hashed,
                    Leaf::Hashing(task) => {
                        self.hashing -= 1;
                        self.runtime.block_on(task).map_err(|error| UploadError::Read(error.into()))?
                    }
                };
                builder.leaf(hashed?)?;
            }
            Some(Step::FileEnd { name }) => builder.end_file(name)?,
            Some(Step::Symlink { name, target, attributes }) => builder.symlink(name, &target, attributes)?,
            Some(Step::Enter { name }) => builder.enter(name),
            Some(Step::Leave) => builder.leave()?,
        }
        Ok(true)
    }
}

/// Links hashed chunks.
struct Builder<'a> {
    importer: Importer,
    sink: &'a mut dyn BlockSink,
    watch: &'a mut dyn Watch,
    /// The current file.
    layout: Option<FileLayout>,
    /// Its zstd file, if it is being packed.
    packer: Option<Packer>,
    /// The open folders with their names, the innermost last.
    open: Vec<(Vec<u8>, Directory)>,
}

impl Builder<'_> {
    fn leaf(&mut self, (part, leaf): (Part, HashedLeaf)) -> Result<(), ImportError> {
        match (leaf, &mut self.packer) {
            (HashedLeaf::Packed(leaf), Some(packer)) => packer.push(*leaf, self.sink)?,
            (HashedLeaf::Plain(block), Some(packer)) => packer.push_plain(block, self.sink)?,
            // A block whose CID has an identity hash is not stored.
            (HashedLeaf::Plain(block), None) if block.key().is_none() => {}
            (HashedLeaf::Plain(block), None) => self.sink.put(block).map_err(ImportError::Sink)?,
            // There are no frames without a packer.
            (HashedLeaf::Packed(_), None) => {}
        }
        match &mut self.layout {
            Some(layout) => layout.push(part, self.sink),
            None => Ok(()),
        }
    }

    fn end_file(&mut self, name: Option<Vec<u8>>) -> Result<(), UploadError> {
        let Some(layout) = self.layout.take() else { return Ok(()) };
        let packing = match self.packer.take() {
            None => PackingResult::NotRequested,
            Some(packer) => packer.finish(self.sink)?.map_or(PackingResult::Plain, PackingResult::Packed),
        };
        let part = layout.finish(self.sink)?;
        self.place(name.unwrap_or_else(|| part.cid.to_string().into_bytes()), &part, packing)
    }

    fn symlink(&mut self, name: Vec<u8>, target: &[u8], attributes: Attributes) -> Result<(), UploadError> {
        let part = self.importer.symlink(target, attributes, self.sink)?;
        self.place(name, &part, PackingResult::NotRequested)
    }

    fn enter(&mut self, name: Vec<u8>) {
        self.open.push((name, self.importer.directory(Attributes::default())));
    }

    fn leave(&mut self) -> Result<(), UploadError> {
        let Some((name, directory)) = self.open.pop() else { return Ok(()) };
        let part = directory.finish(self.sink)?;
        self.place(name, &part, PackingResult::NotRequested)
    }

    /// Adds a complete entry to the current folder.
    fn place(&mut self, name: Vec<u8>, part: &Part, packing: PackingResult) -> Result<(), UploadError> {
        match self.open.last_mut() {
            Some((_, directory)) => directory.add(&name, part)?,
            None => return self.watch.added(Added { path: name, part, is_root: true, packing }),
        }
        // A wrapping folder has no name.
        let above = self.open.iter().map(|(name, _)| name.as_slice()).filter(|name| !name.is_empty());
        let path = above.chain([name.as_slice()]).collect::<Vec<_>>().join(&b'/');
        self.watch.added(Added { path, part, is_root: false, packing })
    }
}
