//! [`Pipeline`]: from bytes to blocks.
//!
//! One thread reads and cuts, others hash, and the first links what they made in the order in which it was read. What was
//! read and is not linked yet is a line of [`Step`]s, which several files share, so that many small ones keep every
//! processor as busy as one large one does. Memory: the chunks that are being hashed, two for each processor, and the links of
//! the folders from the root to here.

use super::report::Report;
use anyhow::Context as _;
use content::importer::{
    Attributes, BlockSink, Chunk, Directory, File, FileLayout, ImportError, Importer, Leaves, Part,
};
use content::{Block, BlockError};
use std::collections::VecDeque;
use std::io::Read;
use std::num::NonZero;
use std::thread;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// What is read at a time, in bytes.
const READ_BYTES: usize = 256 * 1024;
/// A chunk of less, in bytes, is hashed sooner than it is handed over.
const HANDED_BYTES_MIN: usize = 16 * 1024;
/// How many steps are in the line, so that small files do not pile up.
const STEPS_MAX: usize = 256;

/// Takes in files and folders, those in a folder between [`Pipeline::enter`] and [`Pipeline::leave`].
pub struct Pipeline<'a> {
    runtime: &'a Runtime,
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
    Symlink { name: Vec<u8>, target: Vec<u8> },
    Enter { name: Vec<u8> },
    Leave,
}

type Hashed = Result<(Part, Block), BlockError>;

enum Leaf {
    Ready(Box<Hashed>),
    Hashing(JoinHandle<Hashed>),
}

impl<'a> Pipeline<'a> {
    /// A pipeline whose blocks go to `sink`.
    pub fn new(importer: Importer, runtime: &'a Runtime, sink: &'a mut dyn BlockSink, report: &'a mut Report) -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let builder = Builder { importer, sink, report, layout: None, open: Vec::new(), roots: Vec::new() };
        let steps = VecDeque::with_capacity(STEPS_MAX + 1);
        Self { runtime, steps, hashing: 0, hashing_max: 2 * processors, builder, buffer: vec![0; READ_BYTES] }
    }

    /// Reads a file to its end. Without a name it is called by its CID.
    ///
    /// # Errors
    /// That it cannot be read, or what became of blocks, perhaps of another file.
    pub fn file(&mut self, name: Option<Vec<u8>>, mut content: impl Read) -> anyhow::Result<()> {
        let File { mut chunker, leaves, layout } = self.builder.importer.file(Attributes::default());
        self.push(Step::File(Box::new(layout)))?;
        let mut buffer = std::mem::take(&mut self.buffer);
        loop {
            let read = match content.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            self.builder.report.read(read);
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
    pub fn symlink(&mut self, name: Vec<u8>, target: Vec<u8>) -> anyhow::Result<()> {
        self.push(Step::Symlink { name, target })
    }

    /// Begins a folder, in the one that is open if there is one.
    ///
    /// # Errors
    /// What became of blocks.
    pub fn enter(&mut self, name: Vec<u8>) -> anyhow::Result<()> {
        self.push(Step::Enter { name })
    }

    /// Ends the folder that was begun last.
    ///
    /// # Errors
    /// What became of blocks.
    pub fn leave(&mut self) -> anyhow::Result<()> {
        self.push(Step::Leave)
    }

    /// The roots, in the order in which they came: all that was in no folder.
    ///
    /// # Errors
    /// What became of blocks.
    pub fn finish(mut self) -> anyhow::Result<Vec<Part>> {
        while self.take_step()? {}
        Ok(self.builder.roots)
    }

    fn hash(&mut self, leaves: &Leaves, chunk: Chunk) -> anyhow::Result<()> {
        let leaf = if chunk.data().len() < HANDED_BYTES_MIN {
            Leaf::Ready(Box::new(leaves.leaf(chunk)))
        } else {
            let leaves = leaves.clone();
            self.hashing += 1;
            Leaf::Hashing(self.runtime.spawn_blocking(move || leaves.leaf(chunk)))
        };
        self.push(Step::Leaf(leaf))
    }

    fn push(&mut self, step: Step) -> anyhow::Result<()> {
        self.steps.push_back(step);
        while self.steps.len() > STEPS_MAX || self.hashing > self.hashing_max {
            self.take_step()?;
        }
        Ok(())
    }

    /// Takes the first step; whether there was one.
    fn take_step(&mut self) -> anyhow::Result<bool> {
        let builder = &mut self.builder;
        match self.steps.pop_front() {
            None => return Ok(false),
            Some(Step::File(layout)) => builder.layout = Some(*layout),
            Some(Step::Leaf(leaf)) => {
                let hashed = match leaf {
                    Leaf::Ready(hashed) => *hashed,
                    Leaf::Hashing(task) => {
                        self.hashing -= 1;
                        self.runtime.block_on(task).context("a chunk could not be hashed")?
                    }
                };
                builder.leaf(hashed?)?;
            }
            Some(Step::FileEnd { name }) => builder.end_file(name)?,
            Some(Step::Symlink { name, target }) => builder.symlink(name, &target)?,
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
    report: &'a mut Report,
    /// The file whose leaves are coming.
    layout: Option<FileLayout>,
    /// The folders that are open, the innermost last, and their names.
    open: Vec<(Vec<u8>, Directory)>,
    roots: Vec<Part>,
}

impl Builder<'_> {
    fn leaf(&mut self, (part, block): (Part, Block)) -> Result<(), ImportError> {
        self.sink.put(block).map_err(ImportError::Sink)?;
        match &mut self.layout {
            Some(layout) => layout.push(part, self.sink),
            None => Ok(()),
        }
    }

    fn end_file(&mut self, name: Option<Vec<u8>>) -> Result<(), ImportError> {
        let Some(layout) = self.layout.take() else { return Ok(()) };
        let part = layout.finish(self.sink)?;
        self.place(name.unwrap_or_else(|| part.cid.to_string().into_bytes()), &part)
    }

    fn symlink(&mut self, name: Vec<u8>, target: &[u8]) -> Result<(), ImportError> {
        let part = self.importer.symlink(target, Attributes::default(), self.sink)?;
        self.place(name, &part)
    }

    fn enter(&mut self, name: Vec<u8>) {
        self.open.push((name, self.importer.directory(Attributes::default())));
    }

    fn leave(&mut self) -> Result<(), ImportError> {
        let Some((name, directory)) = self.open.pop() else { return Ok(()) };
        let part = directory.finish(self.sink)?;
        self.place(name, &part)
    }

    /// Puts something that is complete into the folder that is open.
    fn place(&mut self, name: Vec<u8>, part: &Part) -> Result<(), ImportError> {
        match self.open.last_mut() {
            Some((_, directory)) => directory.add(&name, part)?,
            None => self.roots.push(*part),
        }
        // The folder around everything has no name.
        let above = self.open.iter().map(|(name, _)| name.as_slice()).filter(|name| !name.is_empty());
        let path: Vec<&[u8]> = above.chain([name.as_slice()]).collect();
        self.report.added(part, &String::from_utf8_lossy(&path.join(&b'/')));
        Ok(())
    }
}
