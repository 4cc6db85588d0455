//! [`Pipeline`]: chunking, hashing and linking.
//!
//! One thread reads and chunks, others hash, and the first links the results in the order of reading. A queue of
//! [`Step`]s holds what is not linked yet; several files share it, so that many small files use all CPUs as well as one
//! large file does. Memory: the chunks that are being hashed, two for each CPU, the inner nodes of the file
//! ([`memory_bytes_max`]), and the links of the open folders.

use crate::uploads::UploadError;
use crate::uploads::names::Path;
use content::importer::{
    Attributes, BlockSink, Chunk, Directory, File, FileLayout, ImportError, Importer, Leaves, Part,
};
use content::{Block, BlockError};
use std::collections::VecDeque;
use std::io::Read;
use std::num::NonZero;
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

/// The maximum memory of a pipeline, in bytes, for files of at most so many bytes: the read buffer, the current chunk,
/// those that are being hashed, small ones that wait to be linked, and the inner nodes of the file.
pub fn memory_bytes_max(importer: &Importer, file_bytes_max: u64) -> usize {
    let profile = importer.profile();
    let chunk = profile.chunking.bytes_max();
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
}

/// A queued step of linking.
enum Step {
    File(Box<FileLayout>),
    Leaf(Leaf),
    FileEnd { name: Option<Vec<u8>> },
    Symlink { name: Vec<u8>, target: Vec<u8>, attributes: Attributes },
    Enter { name: Vec<u8> },
    Leave,
}

type Hashed = Result<(Part, Block), BlockError>;

enum Leaf {
    Ready(Box<Hashed>),
    Hashing(JoinHandle<Hashed>),
}

impl<'a> Pipeline<'a> {
    /// A pipeline that sends blocks to `sink`, and results to `watch`. Blocking threads of the runtime hash.
    pub fn new(importer: Importer, runtime: Handle, sink: &'a mut dyn BlockSink, watch: &'a mut dyn Watch) -> Self {
        let hashing_max = hashing_max(importer.profile().chunking.bytes_max());
        let builder = Builder { importer, sink, watch, layout: None, open: Vec::new() };
        let steps = VecDeque::with_capacity(STEPS_MAX + 1);
        Self { runtime, steps, hashing: 0, hashing_max, builder, buffer: vec![0; READ_BYTES] }
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
        self.push(Step::File(Box::new(layout)))?;
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

    fn hash(&mut self, leaves: &Leaves, chunk: Chunk) -> Result<(), UploadError> {
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
            Some(Step::File(layout)) => builder.layout = Some(*layout),
            Some(Step::Leaf(leaf)) => {
                let hashed = match leaf {
                    Leaf::Ready(hashed) => *hashed,
                    Leaf::Hashing(task) => {
                        self.hashing -= 1;
                        self.runtime.block_on(task).map_err(|error| UploadError::Read(error.into()))?
                    }
                };
                builder.leaf(hashed.map_err(ImportError::from)?)?;
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
    /// The open folders with their names, the innermost last.
    open: Vec<(Vec<u8>, Directory)>,
}

impl Builder<'_> {
    fn leaf(&mut self, (part, block): (Part, Block)) -> Result<(), ImportError> {
        // A block whose CID has an identity hash is not stored.
        if block.key().is_some() {
            self.sink.put(block).map_err(ImportError::Sink)?;
        }
        match &mut self.layout {
            Some(layout) => layout.push(part, self.sink),
            None => Ok(()),
        }
    }

    fn end_file(&mut self, name: Option<Vec<u8>>) -> Result<(), UploadError> {
        let Some(layout) = self.layout.take() else { return Ok(()) };
        let part = layout.finish(self.sink)?;
        self.place(name.unwrap_or_else(|| part.cid.to_string().into_bytes()), &part)
    }

    fn symlink(&mut self, name: Vec<u8>, target: &[u8], attributes: Attributes) -> Result<(), UploadError> {
        let part = self.importer.symlink(target, attributes, self.sink)?;
        self.place(name, &part)
    }

    fn enter(&mut self, name: Vec<u8>) {
        self.open.push((name, self.importer.directory(Attributes::default())));
    }

    fn leave(&mut self) -> Result<(), UploadError> {
        let Some((name, directory)) = self.open.pop() else { return Ok(()) };
        let part = directory.finish(self.sink)?;
        self.place(name, &part)
    }

    /// Adds a complete entry to the current folder.
    fn place(&mut self, name: Vec<u8>, part: &Part) -> Result<(), UploadError> {
        match self.open.last_mut() {
            Some((_, directory)) => directory.add(&name, part)?,
            None => return self.watch.added(Added { path: name, part, is_root: true }),
        }
        // A wrapping folder has no name.
        let above = self.open.iter().map(|(name, _)| name.as_slice()).filter(|name| !name.is_empty());
        let path = above.chain([name.as_slice()]).collect::<Vec<_>>().join(&b'/');
        self.watch.added(Added { path, part, is_root: false })
    }
}
