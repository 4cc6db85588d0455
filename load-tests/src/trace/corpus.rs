//! The objects of a trace as content: bytes from seeds, blocks, archives.
//!
//! Goals: the same CIDs for the same trace, so that a running service can have been given the content before; one object in
//! memory at a time. Objects are UnixFS files with raw leaves of 256 KiB (<https://specs.ipfs.tech/unixfs/>): up to one leaf
//! the leaf alone, above that one node over all leaves. An archive has one root, so that it is one pin: a directory of
//! directories of all its files.
//!
//! Non-goals: random access; sizes above [`super::shape::OBJECT_BYTES_MAX`].

use super::workload::Object;
use crate::sample;
use anyhow::{Context as _, Result};
use bytes::Bytes;
use content::hashes::SHA2_256;
use content::{Block, Cid, car, codec};
use std::fs::File;
use std::io::{BufWriter, Seek as _, Write as _};
use std::path::Path;

/// Bytes of a leaf: what `ipfs add` cuts files into.
const LEAF_BYTES: usize = 256 << 10;

/// Files in a directory; and directories in the root, for a corpus of a million files in blocks of less than 100 KiB.
const ENTRIES_MAX: usize = 1_000;

/// UnixFS types.
const DIRECTORY: u64 = 1;
const FILE: u64 = 2;

/// A link of a node: what it leads to, and the bytes of everything below.
struct Link {
    cid: Cid,
    name: String,
    total_bytes: u64,
}

/// The CID of an object.
pub fn cid(object: &Object) -> Result<Cid> {
    Ok(file(object, String::new(), &mut |_| Ok(()))?.cid)
}

/// Writes an archive of some objects with one root. Returns each object's CID, in order.
pub fn archive<'a>(path: &Path, objects: impl Iterator<Item = &'a Object>) -> Result<Vec<Cid>> {
    let file = File::create(path).with_context(|| path.display().to_string())?;
    let mut out = BufWriter::new(file);
    // The root is known last. Every CID here has the same length, and so has every header.
    let placeholder = raw(Bytes::new())?;
    out.write_all(&car::header(&[*placeholder.cid()]))?;
    let mut put = |block: &Block| {
        let (head, data) = car::section(block);
        out.write_all(&head)?;
        Ok(out.write_all(&data)?)
    };
    let mut folders = Folders::default();
    let mut cids = Vec::new();
    for object in objects {
        cids.push(folders.add(object, &mut put)?);
    }
    let root = folders.finish(&mut put)?;
    out.rewind()?;
    out.write_all(&car::header(&[root]))?;
    out.flush()?;
    Ok(cids)
}

/// Two levels of directories, of which one folder is being filled.
#[derive(Default)]
struct Folders {
    files: Vec<Link>,
    full: Vec<Link>,
}

impl Folders {
    fn add(&mut self, object: &Object, put: &mut impl FnMut(&Block) -> Result<()>) -> Result<Cid> {
        let link = file(object, name(self.files.len()), put)?;
        let cid = link.cid;
        self.files.push(link);
        if self.files.len() == ENTRIES_MAX {
            self.close(put)?;
        }
        Ok(cid)
    }

    fn close(&mut self, put: &mut impl FnMut(&Block) -> Result<()>) -> Result<()> {
        let files = std::mem::take(&mut self.files);
        self.full.push(node(name(self.full.len()), &unixfs(DIRECTORY, &[]), &files, put)?);
        Ok(())
    }

    fn finish(mut self, put: &mut impl FnMut(&Block) -> Result<()>) -> Result<Cid> {
        if !self.files.is_empty() {
            self.close(put)?;
        }
        Ok(node(String::new(), &unixfs(DIRECTORY, &[]), &self.full, put)?.cid)
    }
}

/// Entries are sorted by name, so that names have one length.
fn name(index: usize) -> String {
    format!("{index:06}")
}

fn file(object: &Object, name: String, put: &mut impl FnMut(&Block) -> Result<()>) -> Result<Link> {
    let content = Bytes::from(sample::bytes(usize::try_from(object.bytes)?, object.seed));
    if content.len() <= LEAF_BYTES {
        let leaf = raw(content)?;
        put(&leaf)?;
        return Ok(Link { cid: *leaf.cid(), name, total_bytes: object.bytes });
    }
    let mut leaves = Vec::new();
    for start in (0..content.len()).step_by(LEAF_BYTES) {
        let leaf = raw(content.slice(start..content.len().min(start + LEAF_BYTES)))?;
        put(&leaf)?;
        leaves.push(Link { cid: *leaf.cid(), name: String::new(), total_bytes: leaf.data().len() as u64 });
    }
    let sizes: Vec<u64> = leaves.iter().map(|leaf| leaf.total_bytes).collect();
    node(name, &unixfs(FILE, &sizes), &leaves, put)
}

fn raw(data: Bytes) -> Result<Block> {
    Ok(Block::of(codec::RAW, SHA2_256, 32, data)?)
}

/// A MerkleDAG node (<https://ipld.io/specs/codecs/dag-pb/spec/>): its links, then its data.
fn node(name: String, data: &[u8], links: &[Link], put: &mut impl FnMut(&Block) -> Result<()>) -> Result<Link> {
    let mut out = Vec::new();
    for link in links {
        let mut encoded = Vec::new();
        put_bytes(&mut encoded, 1, &link.cid.to_bytes());
        put_bytes(&mut encoded, 2, link.name.as_bytes());
        put_number(&mut encoded, 3, link.total_bytes);
        put_bytes(&mut out, 2, &encoded);
    }
    put_bytes(&mut out, 1, data);
    let block = Block::of(codec::DAG_PB, SHA2_256, 32, out.into())?;
    put(&block)?;
    let below: u64 = links.iter().map(|link| link.total_bytes).sum();
    Ok(Link { cid: *block.cid(), name, total_bytes: below + block.data().len() as u64 })
}

/// A node's UnixFS message. Directories have no sizes.
fn unixfs(kind: u64, sizes: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    put_number(&mut out, 1, kind);
    if kind == FILE {
        put_number(&mut out, 3, sizes.iter().sum());
    }
    sizes.iter().for_each(|size| put_number(&mut out, 4, *size));
    out
}

/// A protobuf field of wire type 0.
fn put_number(out: &mut Vec<u8>, field: u64, number: u64) {
    put_varint(out, field << 3);
    put_varint(out, number);
}

/// A protobuf field of wire type 2.
fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_varint(out, field << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::car::CarReader;
    use content::unixfs::file::{FileReader, ReadLimits};
    use content::{BlockSource as _, MemoryBlocks, walk};
    use futures::TryStreamExt as _;
    use std::sync::Arc;

    const LEAF: u64 = LEAF_BYTES as u64;

    async fn read(path: &Path) -> (Cid, Arc<MemoryBlocks>) {
        let file = tokio::fs::File::open(path).await.expect("the archive is there");
        let reader = CarReader::new(file).await.expect("it has a header");
        let [root] = *reader.roots() else { panic!("{:?}", reader.roots()) };
        // The reader checks every block against its CID.
        let blocks: Vec<Block> = reader.into_blocks().try_collect().await.expect("it is complete");
        let held = MemoryBlocks::new();
        blocks.iter().for_each(|block| held.insert(block));
        (root, Arc::new(held))
    }

    #[tokio::test]
    async fn an_archive_holds_every_object_as_a_file_below_its_root() {
        let sizes = [1, 1000, LEAF, LEAF + 1, 3 * LEAF, 5 * LEAF + 77];
        let objects: Vec<Object> =
            sizes.iter().zip(0..).map(|(bytes, seed)| Object { bytes: *bytes, seed, pinned: false }).collect();
        let dir = tempfile::TempDir::new().expect("the temporary folder is writable");
        let path = dir.path().join("some.car");
        let cids = archive(&path, objects.iter()).expect("it can be written");
        let (root, held) = read(&path).await;
        for (index, (object, cid)) in objects.iter().zip(&cids).enumerate() {
            assert_eq!(super::cid(object).ok().as_ref(), Some(cid), "without an archive it is the same");
            let block = held.get(cid).await.expect("the archive holds it");
            let (source, limits) = (Arc::clone(&held), ReadLimits::default());
            let reader = FileReader::new(source, block, 0..object.bytes, limits).expect("it is a file of that size");
            let content: Vec<Bytes> = reader.try_collect().await.expect("it can be read");
            let expected = sample::bytes(object.bytes as usize, object.seed);
            assert!(content.concat() == expected, "wrong bytes of {object:?}");
            let segments = ["000000".to_owned(), name(index)];
            let found = walk::resolve(&held, root, &segments).await.expect("the root leads to it");
            assert_eq!(found.block.cid(), cid);
        }
    }

    #[tokio::test]
    async fn a_full_folder_is_followed_by_another() {
        let object = |seed| Object { bytes: 8, seed, pinned: true };
        let objects: Vec<Object> = (0..ENTRIES_MAX as u64 + 1).map(object).collect();
        let dir = tempfile::TempDir::new().expect("the temporary folder is writable");
        let path = dir.path().join("many.car");
        let cids = archive(&path, objects.iter()).expect("it can be written");
        let (root, held) = read(&path).await;
        for (segments, expected) in [(["000000", "000999"], cids[999]), (["000001", "000000"], cids[1000])] {
            let found = walk::resolve(&held, root, &segments.map(str::to_owned)).await.expect("the root leads to it");
            assert_eq!(*found.block.cid(), expected);
        }
    }

    /// What Kubo 0.41 says of the same bytes: `ipfs add --only-hash --cid-version=1 --raw-leaves`.
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
        let dir = tempfile::TempDir::new().expect("the temporary folder is writable");
        let path = dir.path().join("none.car");
        assert!(archive(&path, std::iter::empty()).expect("it can be written").is_empty());
        assert!(std::fs::metadata(&path).is_ok_and(|file| file.len() > 50));
    }
}
