//! The objects of a trace as content: bytes from seeds, blocks, archives.
//!
//! Goals: the same CIDs for the same trace, so that a running service can have the content already; one object in
//! memory at a time. Objects are the UnixFS files that `ipfs add --cid-version=1` makes ([`content::importer`]). An
//! archive has one root, so that it is one pin: a directory of directories of all its files.
//!
//! Non-goals: random access; objects larger than [`super::shape::OBJECT_BYTES_MAX`].

use super::workload::Object;
use crate::archive::{self, PLAIN, importer};
use crate::sample;
use anyhow::Result;
use content::Cid;
use content::importer::{BlockSink, Directory, Importer, Part};
use std::path::Path;

/// Files in a directory; and directories in the root, for a corpus of a million files in blocks of less than 100 KiB.
const ENTRIES_MAX: usize = 1_000;

/// The CID of an object.
pub fn cid(object: &Object) -> Result<Cid> {
    Ok(file(&importer()?, object, &mut |_| Ok(()))?.cid)
}

/// Writes an archive of some objects with one root. Returns each object's CID, in order.
pub fn archive<'a>(path: &Path, objects: impl Iterator<Item = &'a Object>) -> Result<Vec<Cid>> {
    archive::write(path, |sink| {
        let mut directories = Directories::new(importer()?);
        let mut cids = Vec::new();
        for object in objects {
            cids.push(directories.add(object, sink)?);
        }
        Ok((directories.finish(sink)?, cids))
    })
}

/// Two levels of directories, of which one is being filled.
struct Directories {
    importer: Importer,
    root: Directory,
    full: usize,
    folder: Directory,
    files: usize,
}

impl Directories {
    fn new(importer: Importer) -> Self {
        let [root, folder] = [(); 2].map(|()| importer.directory(PLAIN));
        Self { importer, root, full: 0, folder, files: 0 }
    }

    fn add(&mut self, object: &Object, sink: &mut dyn BlockSink) -> Result<Cid> {
        let part = file(&self.importer, object, sink)?;
        self.folder.add(name(self.files).as_bytes(), &part)?;
        self.files += 1;
        if self.files == ENTRIES_MAX {
            self.close(sink)?;
        }
        Ok(part.cid)
    }

    fn close(&mut self, sink: &mut dyn BlockSink) -> Result<()> {
        let folder = std::mem::replace(&mut self.folder, self.importer.directory(PLAIN));
        self.root.add(name(self.full).as_bytes(), &folder.finish(sink)?)?;
        (self.full, self.files) = (self.full + 1, 0);
        Ok(())
    }

    fn finish(mut self, sink: &mut dyn BlockSink) -> Result<Cid> {
        if self.files > 0 {
            self.close(sink)?;
        }
        Ok(self.root.finish(sink)?.cid)
    }
}

/// Names of one length, so that they have the order of the numbers.
fn name(index: usize) -> String {
    format!("{index:06}")
}

fn file(importer: &Importer, object: &Object, sink: &mut dyn BlockSink) -> Result<Part> {
    archive::file(importer, &sample::bytes(usize::try_from(object.bytes)?, object.seed), sink)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use content::Block;
    use content::car::CarReader;
    use content::unixfs::file::{FileReader, ReadLimits};
    use content::{BlockSource as _, MemoryBlocks, walk};
    use futures::TryStreamExt as _;
    use std::sync::Arc;

    /// Bytes of a leaf.
    const LEAF: u64 = 256 << 10;

    async fn read(path: &Path) -> (Cid, Arc<MemoryBlocks>) {
        let file = tokio::fs::File::open(path).await.expect("the archive is there");
        let reader = CarReader::new(file).await.expect("it has a header");
        let [root] = *reader.roots() else { panic!("{:?}", reader.roots()) };
        // The reader checks every block against its CID.
        let blocks: Vec<Block> = reader.into_blocks().try_collect().await.expect("it is complete");
        let memory = MemoryBlocks::new();
        blocks.iter().for_each(|block| memory.insert(block));
        (root, Arc::new(memory))
    }

    #[tokio::test]
    async fn an_archive_has_every_object_as_a_file_below_its_root() {
        let sizes = [1, 1000, LEAF, LEAF + 1, 3 * LEAF, 5 * LEAF + 77];
        let objects: Vec<Object> =
            sizes.iter().zip(0..).map(|(bytes, seed)| Object { bytes: *bytes, seed, pinned: false }).collect();
        let dir = tempfile::TempDir::new().expect("the temporary directory is writable");
        let path = dir.path().join("some.car");
        let cids = archive(&path, objects.iter()).expect("it can be written");
        let (root, blocks) = read(&path).await;
        for (index, (object, cid)) in objects.iter().zip(&cids).enumerate() {
            assert_eq!(super::cid(object).ok().as_ref(), Some(cid), "without an archive it is the same");
            let block = blocks.get(cid).await.expect("the archive has it");
            let (source, limits) = (Arc::clone(&blocks), ReadLimits::default());
            let reader = FileReader::new(source, block, 0..object.bytes, limits).expect("it is a file of that size");
            let content: Vec<Bytes> = reader.try_collect().await.expect("it can be read");
            let expected = sample::bytes(object.bytes as usize, object.seed);
            assert!(content.concat() == expected, "wrong bytes of {object:?}");
            let segments = ["000000".to_owned(), name(index)];
            let found = walk::resolve(&blocks, root, &segments).await.expect("the root leads to it");
            assert_eq!(found.block.cid(), cid);
        }
    }

    #[tokio::test]
    async fn a_full_directory_is_followed_by_another() {
        let object = |seed| Object { bytes: 8, seed, pinned: true };
        let objects: Vec<Object> = (0..ENTRIES_MAX as u64 + 1).map(object).collect();
        let dir = tempfile::TempDir::new().expect("the temporary directory is writable");
        let path = dir.path().join("many.car");
        let cids = archive(&path, objects.iter()).expect("it can be written");
        let (root, blocks) = read(&path).await;
        for (segments, expected) in [(["000000", "000999"], cids[999]), (["000001", "000000"], cids[1000])] {
            let found = walk::resolve(&blocks, root, &segments.map(str::to_owned)).await.expect("the root leads to it");
            assert_eq!(*found.block.cid(), expected);
        }
    }

    /// The CIDs of Kubo 0.41 for the same bytes: `ipfs add --only-hash --cid-version=1 --raw-leaves`.
    #[test]
    fn cids_are_those_of_kubo() {
        let table = [
            (1000, 1, "bafkreigaxff7toaan3qkez6sj26kica46na5mtvuke7ty7vbmtziddjcte"),
            (LEAF, 2, "bafkreihregotfli3g6njldh664xakoasfh4rkou6xgnhdjg3mbpx7fykhy"),
            (LEAF + 1, 3, "bafybeibcifcka2v4mywcqrjfsb5qcfhdgyftdazmh6bx7uubpvwh6jtkwm"),
            (5 * LEAF + 77, 4, "bafybeice4tqugzvkh7tmsycyysqs3p4r5zp2tbvcfvqewwvc7qjolasrmy"),
        ];
        for (bytes, seed, expected) in table {
            let cid = cid(&Object { bytes, seed, pinned: false }).expect("it is small");
            assert_eq!(cid.to_string(), expected, "{bytes} bytes");
        }
    }

    #[test]
    fn nothing_but_an_empty_root_is_an_archive_of_nothing() {
        let dir = tempfile::TempDir::new().expect("the temporary directory is writable");
        let path = dir.path().join("none.car");
        assert!(archive(&path, std::iter::empty()).expect("it can be written").is_empty());
        assert!(std::fs::metadata(&path).is_ok_and(|file| file.len() > 50));
    }
}
