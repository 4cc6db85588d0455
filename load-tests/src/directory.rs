//! Directories on disk: temporary ones, the space that they take, and the page cache.

use anyhow::Result;
use rustix::fs::{Advice, fadvise};
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A temporary directory.
pub fn temp_dir(name: &str) -> Result<TempDir> {
    Ok(TempDir::with_prefix(format!("causeway-bench-{name}-"))?)
}

/// Space that the files in a directory take on disk, in bytes.
pub fn disk_bytes(dir: &Path) -> Result<u64> {
    Ok(files(dir)?.iter().map(|(_, metadata)| metadata.blocks() * 512).sum())
}

/// Drops a directory's files from the page cache, so that they are read from disk again. They must not be written
/// meanwhile; dirty pages stay in memory.
pub fn drop_page_cache(dir: &Path) -> Result<()> {
    files(dir)?.iter().try_for_each(|(path, _)| Ok(fadvise(File::open(path)?, 0, None, Advice::DontNeed)?))
}

fn files(dir: &Path) -> Result<Vec<(PathBuf, Metadata)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let (path, metadata) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
        if metadata.is_dir() {
            files.extend(self::files(&path)?);
        } else if metadata.is_file() {
            files.push((path, metadata));
        }
    }
    Ok(files)
}

#[test]
fn files_of_all_levels_count_and_can_be_dropped_from_the_page_cache() {
    let dir = TempDir::new().expect("the temporary directory is writable");
    let inner = dir.path().join("inner");
    std::fs::create_dir(&inner).expect("it is new");
    let content = crate::sample::bytes(100_000, 1);
    for path in [dir.path().join("one"), inner.join("two")] {
        let mut file = File::create(path).expect("it is new");
        std::io::Write::write_all(&mut file, &content).expect("there is space");
        file.sync_all().expect("the disk works");
    }
    drop_page_cache(dir.path()).expect("everything can be opened");
    assert!(disk_bytes(dir.path()).is_ok_and(|bytes| (200_000..300_000).contains(&bytes)));
    assert_eq!(std::fs::read(inner.join("two")).ok(), Some(content), "nothing is lost");
}
