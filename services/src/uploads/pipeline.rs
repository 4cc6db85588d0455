//! [`Pipeline`]: from bytes to blocks.
//!
//! One thread reads and cuts, others hash, and the first links what they made in the order in which it was read. What was
//! read and is not linked yet is a line of [`Step`]s, which several files share, so that many small ones keep every
//! processor as busy as one large one does. Memory: the chunks that are being hashed, two for each processor, the inner nodes of
//! the file ([`memory_bytes_max`]), and the links of the folders from the root to here.

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

/// What is read at a time, in bytes.
const READ_BYTES: usize = 256 * 1024;
/// A chunk of less, in bytes, is hashed sooner than it is handed over.
const HANDED_BYTES_MIN: usize = 16 * 1024;
/// How many steps are in the line, so that small files do not pile up.
const STEPS_MAX: usize = 256;
/// Bytes of chunks that are hashed at a time, unless two chunks have more.
const HASHING_BYTES_MAX: usize = 16 << 20;

/// Chunks of a size that are hashed at a time: two for each processor.
fn hashed_at_once(chunk_bytes_max: usize) -> usize {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    (2 * processors).min((HASHING_BYTES_MAX / chunk_bytes_max.max(1)).max(2))
}

/// What a pipeline holds in memory at most, in bytes, if no file has more than so many: what is read, the chunk that is cut, those that
/// are hashed, small ones that wait to be linked, and the inner nodes of the file.
pub fn memory_bytes_max(importer: &Importer, file_bytes_max: u64) -> usize {
    let profile = importer.profile();
    let chunk = profile.chunking.bytes_max();
    let waiting = STEPS_MAX * (chunk.min(HANDED_BYTES_MIN) + size_of::<Step>() + size_of::<Hashed>());
    READ_BYTES + (hashed_at_once(chunk) + 2) * chunk + waiting + profile.layout_bytes_max(file_bytes_max)
}

/// Who is told what happens, and keeps what is complete.
pub trait Watch {
    /// So many more bytes of a file were read, and so many so far. What is read last is not complete before it is added.
    fn read(&mut self, name: Option<&[u8]>, more: usize, so_far: u64);

    /// Something is complete.
    ///
    /// # Errors
    /// Any error ends the import.
    fn added(&mut self, added: Added<'_>) -> Result<(), UploadError>;

    /// Something came that is no content. It may be told before what came earlier is complete.
    ///
    /// # Errors
    /// Any error ends the import.
    fn noted(&mut self, note: Note) -> Result<(), UploadError> {
        _ = note;
        Ok(())
    }
}

/// What has a path and no content of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A folder, whose entries come by their paths.
    Folder {
        /// Its path.
        path: Path,
        /// What is kept of it besides.
        attributes: Attributes,
    },
    /// Another path for a file.
    HardLink {
        /// That path.
        path: Path,
        /// The file's path.
        target: Path,
    },
}

/// What is complete.
#[derive(Debug)]
pub struct Added<'a> {
    /// What it is called: its path, from the outermost folder that was entered.
    pub path: Vec<u8>,
    /// Its root.
    pub part: &'a Part,
    /// Whether no folder that was entered holds it.
    pub is_root: bool,
}

/// Takes in files and folders, those in a folder between [`Pipeline::enter`] and [`Pipeline::leave`]. Must not be used by a thread
/// that drives tasks: it waits.
pub struct Pipeline<'a> {
    runtime: Handle,
    steps: VecDeque<Step>,
    /// How many of them are being hashed.
    hashing: usize,
    hashing_max: usize,
    builder: Builder<'a>,
    buffer: Vec<u8>,
}

/// What is to be linked next.
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
    /// A pipeline whose blocks go to `sink`, and what is complete to `watch`. The runtime's threads hash.
    pub fn new(importer: Importer, runtime: Handle, sink: &'a mut dyn BlockSink, watch: &'a mut dyn Watch) -> Self {
        let hashing_max = hashed_at_once(importer.profile().chunking.bytes_max());
        let builder = Builder { importer, sink, watch, layout: None, open: Vec::new() };
        let steps = VecDeque::with_capacity(STEPS_MAX + 1);
        Self { runtime, steps, hashing: 0, hashing_max, builder, buffer: vec![0; READ_BYTES] }
    }

    /// Reads a file to its end. Without a name it is called by its CID.
    ///
    /// # Errors
    /// That it cannot be read, or what became of blocks, perhaps of another file.
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

    /// Takes in a symlink.
    ///
    /// # Errors
    /// What became of blocks.
    pub fn symlink(&mut self, name: Vec<u8>, target: Vec<u8>, attributes: Attributes) -> Result<(), UploadError> {
        self.push(Step::Symlink { name, target, attributes })
    }

    /// Hands on what has no content.
    ///
    /// # Errors
    /// What was said to it.
    pub fn note(&mut self, note: Note) -> Result<(), UploadError> {
        self.builder.watch.noted(note)
    }

    /// Begins a folder, in the one that is open if there is one.
    ///
    /// # Errors
    /// What became of blocks.
    pub fn enter(&mut self, name: Vec<u8>) -> Result<(), UploadError> {
        self.push(Step::Enter { name })
    }

    /// Ends the folder that was begun last.
    ///
    /// # Errors
    /// What became of blocks.
    pub fn leave(&mut self) -> Result<(), UploadError> {
        self.push(Step::Leave)
    }

    /// Done when everything is complete.
    ///
    /// # Errors
    /// What became of blocks.
    pub fn finish(mut self) -> Result<(), UploadError> {
        while self.take_step()? {}
        Ok(())
    }

    fn hash(&mut self, leaves: &Leaves, chunk: Chunk) -> Result<(), UploadError> {
        let leaf = if chunk.data().len() < HANDED_BYTES_MIN {
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

    /// Takes the first step; whether there was one.
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

/// Links what is hashed.
struct Builder<'a> {
    importer: Importer,
    sink: &'a mut dyn BlockSink,
    watch: &'a mut dyn Watch,
    /// The file whose leaves are coming.
    layout: Option<FileLayout>,
    /// The folders that are open, the innermost last, and their names.
    open: Vec<(Vec<u8>, Directory)>,
}

impl Builder<'_> {
    fn leaf(&mut self, (part, block): (Part, Block)) -> Result<(), ImportError> {
        // A block that its CID holds needs no place.
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

    /// Puts something that is complete into the folder that is open.
    fn place(&mut self, name: Vec<u8>, part: &Part) -> Result<(), UploadError> {
        match self.open.last_mut() {
            Some((_, directory)) => directory.add(&name, part)?,
            None => return self.watch.added(Added { path: name, part, is_root: true }),
        }
        // The folder around everything has no name.
        let above = self.open.iter().map(|(name, _)| name.as_slice()).filter(|name| !name.is_empty());
        let path = above.chain([name.as_slice()]).collect::<Vec<_>>().join(&b'/');
        self.watch.added(Added { path, part, is_root: false })
    }
}
