//! Directories of synthetic files, the same for the same seed. They are incompressible, so that no store gains by
//! compression.

use crate::sample;
use anyhow::{Context, Result};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// The size of a file's chunks.
pub const BLOCK_BYTES: usize = 256 << 10;

/// A directory that is added by one process.
#[derive(Debug, Clone)]
pub struct Set {
    /// What distinguishes it.
    pub label: String,
    pub directory: PathBuf,
    pub files: u64,
    /// Of all files.
    pub bytes: u64,
    /// Of those blocks of files that are new to the store.
    pub new_bytes: u64,
}

/// A part of a file: one or more blocks, or the end of one. Copies are of the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stretch {
    pub bytes: usize,
    seed: u64,
}

impl Stretch {
    pub fn content(self) -> Vec<u8> {
        sample::bytes(self.bytes, self.seed)
    }
}

/// The content of a store.
pub type Stored = HashSet<Stretch>;

/// Makes directories below one.
pub struct Maker<'a> {
    dir: &'a Path,
    next_seed: u64,
    sets: usize,
}

impl<'a> Maker<'a> {
    pub fn new(dir: &'a Path, seed: u64) -> Self {
        Self { dir, next_seed: seed << 32, sets: 0 }
    }

    /// Bytes that are in no other stretch.
    pub fn stretch(&mut self, bytes: usize) -> Stretch {
        self.next_seed += 1;
        Stretch { bytes, seed: self.next_seed }
    }

    /// A directory of files, each of them made of stretches, for a store with some content.
    pub fn directory(&mut self, label: impl Into<String>, files: &[Vec<Stretch>], stored: &mut Stored) -> Result<Set> {
        let directory = self.dir.join(format!("{:03}", self.sets));
        self.sets += 1;
        std::fs::create_dir(&directory).with_context(|| directory.display().to_string())?;
        for (index, file) in files.iter().enumerate() {
            let content: Vec<u8> = file.iter().flat_map(|stretch| stretch.content()).collect();
            std::fs::write(directory.join(format!("{index:06}")), content)?;
        }
        let all = || files.iter().flatten();
        let new_bytes = all().filter(|stretch| stored.insert(**stretch)).map(|stretch| stretch.bytes as u64).sum();
        let bytes = all().map(|stretch| stretch.bytes as u64).sum();
        Ok(Set { label: label.into(), directory, files: files.len() as u64, bytes, new_bytes })
    }
}

/// A number of bytes with the unit that suits it.
pub fn size(bytes: usize) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two directories of two files that share their first block, and the contents.
    fn made(seed: u64) -> ([Set; 2], Vec<Vec<u8>>) {
        let dir = tempfile::TempDir::new().expect("the temporary directory is writable");
        let (mut maker, mut stored) = (Maker::new(dir.path(), seed), Stored::new());
        let shared = maker.stretch(10);
        let sets = ["one", "two"].map(|label| {
            let files = [(); 2].map(|()| vec![shared, maker.stretch(5)]);
            maker.directory(label, &files, &mut stored).expect("there is room")
        });
        let files = sets.iter().flat_map(|set| ["000000", "000001"].map(|file| set.directory.join(file)));
        let contents = files.map(|file| std::fs::read(file).expect("it was written")).collect();
        (sets, contents)
    }

    #[test]
    fn directories_are_the_seed_s_and_share_blocks() {
        let (sets, contents) = made(1);
        let amounts = sets.map(|set| (set.files, set.bytes, set.new_bytes));
        assert_eq!(amounts, [(2, 30, 20), (2, 30, 10)], "a shared block is new once");
        assert_eq!(contents, made(1).1);
        assert_ne!(contents[0], made(2).1[0]);
        let ends: HashSet<&[u8]> = contents.iter().map(|content| &content[10..]).collect();
        assert!(contents.iter().all(|content| content[..10] == contents[0][..10]) && ends.len() == 4, "{contents:?}");
    }

    #[test]
    fn sizes_are_said_in_the_unit_that_suits_them() {
        assert_eq!([16, 1 << 10, 256 << 10, 64 << 20].map(size), ["16 B", "1 KiB", "256 KiB", "64 MiB"]);
    }
}
