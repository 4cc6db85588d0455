//! Folders of stores: what they take on disk, and how to make sure that what is read comes from there.

use anyhow::Result;
use rustix::fs::{Advice, fadvise};
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// What the files in a folder take on disk, in bytes.
pub fn disk_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for_each(dir, &mut |_, about| {
        bytes += about.blocks() * 512;
        Ok(())
    })?;
    Ok(bytes)
}

/// Lets the operating system forget what it has in memory of a folder's files, so that they are read from disk again. Nobody may
/// write to them; what has not reached the disk yet stays in memory.
pub fn forget(dir: &Path) -> Result<()> {
    for_each(dir, &mut |path, _| Ok(fadvise(File::open(path)?, 0, None, Advice::DontNeed)?))
}

fn for_each(dir: &Path, with: &mut dyn FnMut(&Path, &Metadata) -> Result<()>) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let (path, about) = (entry.path(), entry.metadata()?);
        if about.is_dir() {
            for_each(&path, with)?;
        } else if about.is_file() {
            with(&path, &about)?;
        }
    }
    Ok(())
}

#[test]
fn files_of_all_levels_count_and_can_be_forgotten() {
    let dir = tempfile::TempDir::new().expect("the temporary folder is writable");
    let inner = dir.path().join("inner");
    std::fs::create_dir(&inner).expect("it is new");
    let content = crate::sample::bytes(100_000, 1);
    for path in [dir.path().join("one"), inner.join("two")] {
        let mut file = File::create(path).expect("it is new");
        std::io::Write::write_all(&mut file, &content).expect("there is room");
        file.sync_all().expect("the disk works");
    }
    forget(dir.path()).expect("everything can be opened");
    assert!(disk_bytes(dir.path()).is_ok_and(|bytes| (200_000..300_000).contains(&bytes)));
    assert_eq!(std::fs::read(inner.join("two")).ok(), Some(content), "nothing is lost");
}
