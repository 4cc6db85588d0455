//! The memory of an import, and the size of its nodes.

use super::{Attributes, content, discard, importer};
use crate::block::{Block, MAX_BLOCK_BYTES};
use crate::cid::codec;
use crate::hashes;
use crate::importer::{Chunking, FileLayout, ImportError, Importer, Layout, Part, Profile, ProfileError, SinkError};
use proptest::prelude::*;

/// A profile with chunks of one byte, so that each byte becomes a link.
fn profile(layout: Layout, file_links_max: usize) -> Profile {
    Profile { layout, file_links_max, chunking: Chunking::size(1).expect("a size"), ..Profile::default() }
}

fn links_max(profile: &Profile) -> usize {
    match Importer::new(Profile { file_links_max: usize::MAX, ..profile.clone() }) {
        Err(ProfileError::FileNode { links_max, .. }) => links_max,
        other => panic!("{other:?}"),
    }
}

#[test]
fn profiles_with_nodes_larger_than_a_block_are_rejected() {
    let v1 = Profile::UNIXFS_V1_2025;
    let long = Profile::default().with_hash(hashes::named("sha2-512").expect("a function"));
    let inlined = Profile { inline_bytes_max: Some(128), ..v1.clone() };
    for profile in [Profile::default(), v1, long, inlined] {
        for layout in [Layout::Balanced, Layout::Trickle] {
            let profile = Profile { layout, ..profile.clone() };
            let most = links_max(&profile);
            assert!(most > 5_000, "{most}");
            let refused = Importer::new(Profile { file_links_max: most + 1, ..profile.clone() }).expect_err("too many");
            assert!(refused.to_string().contains(&most.to_string()), "{refused}");
            let importer = importer(&Profile { file_links_max: most, ..profile });
            // The longest CIDs and the largest sizes.
            let inline = importer.profile().inline_bytes_max.unwrap_or(0);
            let cid = match inline {
                0 => *importer.naming.block(codec::RAW, vec![1; 200].into()).expect("a block").cid(),
                bytes => *Block::of(codec::RAW, hashes::IDENTITY, bytes, vec![1; bytes].into()).expect("short").cid(),
            };
            let leaf = Part { cid, file_bytes: u64::MAX, dag_bytes: u64::MAX };
            let mut layout = FileLayout::new(importer.profile(), importer.naming, Attributes::default());
            let mut largest = 0;
            let mut sink = |block: Block| {
                largest = largest.max(block.data().len());
                Ok::<(), SinkError>(())
            };
            for _ in 0..most {
                layout.push(leaf, &mut sink).expect("fits");
            }
            layout.finish(&mut sink).expect("is a block");
            assert!(largest > MAX_BLOCK_BYTES / 2 && largest <= MAX_BLOCK_BYTES, "{largest}");
        }
    }
}

#[test]
fn large_directories_are_sharded_into_small_blocks() {
    let many = Profile {
        sharding: crate::importer::Sharding { fanout: 1024, ..Profile::default().sharding },
        ..Profile::default()
    };
    let importer = importer(&many);
    let part = importer.symlink(b"x", Attributes::default(), &mut discard).expect("short");
    let mut directory = importer.directory(Attributes::default());
    for number in 0..3_000 {
        directory.add(format!("{number:01024}").as_bytes(), &part).expect("a name");
    }
    let checked: Result<Part, ImportError> = directory.finish(&mut |block: Block| {
        assert!(block.data().len() <= MAX_BLOCK_BYTES);
        Ok(())
    });
    checked.expect("is sharded");
}

/// The maximum memory for each byte of input.
const MEMORY_PER_BYTE: usize = 4;

#[test]
fn chunks_of_one_byte_take_little_memory() {
    let sent = 1 << 18;
    for layout in [Layout::Balanced, Layout::Trickle] {
        for links in [2, 174, 1024, links_max(&profile(layout, 2))] {
            let profile = profile(layout, links);
            let importer = importer(&profile);
            let mut made = FileLayout::new(&profile, importer.naming, Attributes::default());
            let leaf = importer.symlink(b"x", Attributes::default(), &mut discard).expect("short");
            let mut memory_max = 0;
            for _ in 0..sent {
                made.push(leaf, &mut discard).expect("fits");
                memory_max = memory_max.max(made.memory_bytes());
            }
            let bound = profile.layout_bytes_max(sent as u64);
            assert!(memory_max <= bound, "{layout:?}, {links} links: {memory_max} of {bound} bytes");
            let most = MEMORY_PER_BYTE * sent + 2 * 3 * MAX_BLOCK_BYTES;
            assert!(memory_max <= most, "{layout:?}, {links} links: {memory_max} bytes for {sent}");
            assert!(
                bound <= 128 << 20 && profile.layout_bytes_max(u64::MAX) <= 512 << 20,
                "{layout:?}, {links}: {bound}"
            );
        }
    }
}

proptest! {
    #[test]
    fn memory_is_within_layout_bytes_max(
        trickle in any::<bool>(),
        links in 2_usize..200,
        chunk in 1_usize..50,
        size in 0_usize..20_000,
    ) {
        let layout = if trickle { Layout::Trickle } else { Layout::Balanced };
        let chunking = Chunking::size(chunk).expect("a size");
        let profile = Profile { chunking, ..profile(layout, links) };
        let importer = importer(&profile);
        let mut file = importer.file(Attributes::default());
        let bound = profile.layout_bytes_max(size as u64);
        for piece in content(7, size).chunks(1000) {
            file.write(piece, &mut discard).expect("the sink takes everything");
            prop_assert!(file.layout.memory_bytes() <= bound, "{} of {bound}", file.layout.memory_bytes());
        }
    }
}
