//! Writes a folder of the store to the disk, entry by entry.
//!
//! Goals: nothing is written outside of the folder, whatever the names of its entries and the targets of its symlinks;
//! no symlink is written that points out of it, through which another program would read or write elsewhere; memory use
//! does not grow with the number of entries.
//!
//! How: a name is one path component, as it is stored. Everything is created in a new temporary folder, by calls that
//! fail for existing paths and do not follow a symlink at the end of a path: a second entry with the same name is an
//! error, so no path contains a symlink that was written before.

use crate::progress;
use crate::store_cli::get::{bytes_of, copy};
use anyhow::{Context as _, bail, ensure};
use content::unixfs::Node;
use content::unixfs::dir::{self, DirEntry, DirError};
use content::{Block, BlockSource};
use futures::stream::{BoxStream, TryStreamExt as _};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// The maximum memory of the open folders, from the root to the innermost, in bytes.
const OPEN_BYTES_MAX: usize = 256 * 1024 * 1024;
/// The memory of a HAMT-sharded folder, in bytes: the shards down to the current one, and some read ahead.
const SHARDED_BYTES: usize = 4 * 1024 * 1024;
/// The maximum number of skipped symlinks that are listed one by one.
const SKIPPED_SHOWN_MAX: usize = 20;

/// A folder that is being read.
struct OpenFolder {
    path: PathBuf,
    entries: BoxStream<'static, Result<DirEntry, DirError>>,
    /// Its memory.
    bytes: usize,
}

/// Skipped symlinks.
#[derive(Debug, Default)]
pub(super) struct SkippedSymlinks {
    /// The first of them: the path below the folder, and the target.
    pub shown: Vec<(PathBuf, PathBuf)>,
    /// Their number.
    pub count: u64,
}

impl SkippedSymlinks {
    fn add(&mut self, path: &Path, target: &Path) {
        self.count += 1;
        if self.shown.len() < SKIPPED_SHOWN_MAX {
            self.shown.push((path.to_owned(), target.to_owned()));
        }
    }
}

/// Writes the folder `root` to a new path, without the symlinks that point out of it, which it returns.
///
/// # Errors
/// When a path cannot be written, or a block is missing. What was written until then stays.
pub(super) async fn write(source: Arc<dyn BlockSource>, root: Block, to: &Path) -> anyhow::Result<SkippedSymlinks> {
    let mut open = vec![enter(&source, root, to.to_owned())?];
    let (progress, mut skipped) = (progress::bytes(None), SkippedSymlinks::default());
    while let Some(folder) = open.last_mut() {
        let Some(entry) = folder.entries.try_next().await? else {
            open.pop();
            continue;
        };
        let path = folder.path.join(safe_name(&entry)?);
        let block = source.get(&entry.cid).await?;
        match Node::decode(&block)? {
            Node::File(_) => {
                let mut file = File::create_new(&path).with_context(|| unwritable(to, &path))?;
                copy(bytes_of(Arc::clone(&source), block)?, |chunk| {
                    progress.inc(chunk.len() as u64);
                    file.write_all(chunk).map(|()| true)
                })
                .await?;
            }
            Node::Symlink { target } => {
                let target = Path::new(OsStr::from_bytes(&target));
                // An existing path is an error, also for a symlink that is skipped.
                ensure!(!path.is_symlink() && !path.exists(), "{}", unwritable(to, &path));
                if stays_inside(target, open.len() - 1) {
                    symlink(target, &path).with_context(|| unwritable(to, &path))?;
                } else {
                    skipped.add(path.strip_prefix(to).unwrap_or(&path), target);
                }
            }
            Node::Directory(_) | Node::HamtShard(_) => {
                let folder = enter(&source, block, path.clone()).with_context(|| unwritable(to, &path))?;
                open.push(folder);
                let listed: usize = open.iter().map(|folder| folder.bytes).sum();
                ensure!(listed <= OPEN_BYTES_MAX, "the folders above {} are too deep or too large", entry.cid);
            }
            Node::Plain(_) => bail!("{} is not a file, folder or symlink", entry.cid),
        }
    }
    Ok(skipped)
}

/// Whether a symlink's target is inside the written folder; `depth` is the number of folders between that folder and
/// the symlink.
///
/// The target may go up first, from the symlink's own folder, which is not a symlink, and then down, through symlinks
/// that stay inside. A target that goes down and then up is rejected: it could go down through a symlink, and up from
/// another folder than it seems.
pub(super) fn stays_inside(target: &Path, depth: usize) -> bool {
    let mut ups = 0;
    let mut went_down = false;
    for component in target.components() {
        match component {
            Component::Normal(_) => went_down = true,
            Component::CurDir => {}
            Component::ParentDir if went_down => return false,
            Component::ParentDir => ups += 1,
            Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    ups <= depth && !target.as_os_str().is_empty()
}

fn enter(source: &Arc<dyn BlockSource>, block: Block, path: PathBuf) -> anyhow::Result<OpenFolder> {
    fs::create_dir(&path)?;
    let bytes = match Node::decode(&block)? {
        Node::HamtShard(_) => SHARDED_BYTES,
        _ => block.data().len(),
    };
    Ok(OpenFolder { path, entries: dir::list(Arc::clone(source), block), bytes })
}

/// The name of an entry, if it is a single path component.
fn safe_name(entry: &DirEntry) -> anyhow::Result<&OsStr> {
    let name = entry.name_bytes();
    if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') || name.contains(&0) {
        bail!("a folder has an entry with the name {:?}, which points out of the folder", entry.name);
    }
    Ok(OsStr::from_bytes(name))
}

fn unwritable(root: &Path, path: &Path) -> String {
    let below = path.strip_prefix(root).unwrap_or(path);
    format!("{} cannot be written", below.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::importer::{Attributes, Importer, Part, Profile};
    use content::{MemoryBlocks, cid};

    #[test]
    fn names_stay_in_their_folder() {
        let entry = |name: &[u8]| {
            let text = String::from_utf8_lossy(name).into_owned();
            let not_text = (text.as_bytes() != name).then(|| name.into());
            DirEntry { name: text, not_text, cid: cid::parse("bafkqac3imvwgy3zao5xxe3de").expect("a CID"), tsize: None }
        };
        for name in [&b"a"[..], b"...", b"..a", b" ", b"a\nb", b"\xff", b"a\\b", "ä".as_bytes()] {
            assert_eq!(safe_name(&entry(name)).expect("is safe").as_bytes(), name);
        }
        for name in [&b""[..], b".", b"..", b"/", b"/etc", b"../a", b"a/b", b"a\0", b"\xff/../a"] {
            assert!(safe_name(&entry(name)).is_err(), "{name:?}");
        }
    }

    #[test]
    fn symlinks_that_point_out_of_the_folder_are_recognised() {
        // The target, the depth of the symlink, and whether the target is inside.
        let table = [
            ("a", 0, true),
            ("a/b", 0, true),
            (".", 0, true),
            ("./a", 0, true),
            ("...", 0, true),
            ("..", 0, false),
            ("../a", 0, false),
            ("../a", 1, true),
            ("..", 1, true),
            ("../../a", 1, false),
            ("../../a", 2, true),
            ("./../a", 1, true),
            // Through "a", which may be a symlink to a folder above.
            ("a/../b", 0, false),
            ("a/../../b", 3, false),
            ("../a/../b", 3, false),
            ("/etc/passwd", 5, false),
            ("//a", 5, false),
            ("", 0, false),
        ];
        for (target, depth, stays) in table {
            assert_eq!(stays_inside(Path::new(target), depth), stays, "{target} at {depth}");
        }
    }

    #[tokio::test]
    async fn symlinks_that_point_out_of_the_folder_are_skipped_and_returned() {
        let dir = tempfile::tempdir().expect("a folder");
        let blocks = Arc::new(MemoryBlocks::new());
        let mut sink = |block: Block| {
            blocks.insert(&block);
            Ok(())
        };
        let importer = Importer::new(Profile::default()).expect("a profile");
        let mut link =
            |target: &str| importer.symlink(target.as_bytes(), Attributes::default(), &mut sink).expect("short");
        let (stays, leaves, up) = (link("inner/x"), link("/etc/passwd"), link("../stays"));
        // A chain of symlinks that each seem to stay inside, but together point out of the folder.
        let (to_root, chain) = (link(".."), link("inner/root/../../outside"));
        let mut inner = importer.directory(Attributes::default());
        inner.add(b"up", &up).expect("a name");
        inner.add(b"root", &to_root).expect("a name");
        let inner = inner.finish(&mut sink).expect("taken");
        let root = folder(&[("inner", &inner), ("stays", &stays), ("leaves", &leaves), ("chain", &chain)]);
        let to = dir.path().join("to");
        let skipped = write(blocks.clone(), root, &to).await.expect("writes");
        let skipped: Vec<_> = skipped.shown.iter().map(|(path, target)| (path.as_path(), target.as_path())).collect();
        let expected = [("leaves", "/etc/passwd"), ("chain", "inner/root/../../outside")];
        assert_eq!(skipped, expected.map(|(path, target)| (Path::new(path), Path::new(target))));
        for (path, target) in
            [("stays", Some("inner/x")), ("inner/up", Some("../stays")), ("leaves", None), ("chain", None)]
        {
            assert_eq!(fs::read_link(to.join(path)).ok().as_deref(), target.map(Path::new), "{path}");
        }
    }

    /// A hand-made dag-pb directory, whose entries may have any names, also twice.
    fn folder(entries: &[(&str, &Part)]) -> Block {
        let field = |tag: u8, bytes: &[u8]| {
            let length = u8::try_from(bytes.len()).expect("short");
            assert!(length < 0x80);
            [&[tag, length][..], bytes].concat()
        };
        let links = entries.iter().flat_map(|(name, part)| {
            field(0x12, &[field(0x0a, &part.cid.to_bytes()), field(0x12, name.as_bytes())].concat())
        });
        let data: Vec<u8> = links.chain(field(0x0a, &[0x08, 0x01])).collect();
        Block::of(content::codec::DAG_PB, content::hashes::SHA2_256, 32, data.into()).expect("a block")
    }

    #[tokio::test]
    async fn nothing_is_written_through_a_symlink() {
        let dir = tempfile::tempdir().expect("a folder");
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).expect("a folder");
        let blocks = Arc::new(MemoryBlocks::new());
        let mut sink = |block: Block| {
            blocks.insert(&block);
            Ok(())
        };
        let importer = Importer::new(Profile::default()).expect("a profile");
        let link = importer.symlink(b"elsewhere", Attributes::default(), &mut sink).expect("short");
        let mut file = importer.file(Attributes::default());
        file.write(b"content", &mut sink).expect("taken");
        let file = file.finish(&mut sink).expect("taken");
        let mut inner = importer.directory(Attributes::default());
        inner.add(b"file", &file).expect("a name");
        let inner = inner.finish(&mut sink).expect("taken");
        // First a symlink; then a folder, a file or a symlink in the same place.
        for (number, second) in [inner, file, link].into_iter().enumerate() {
            let root = folder(&[("x", &link), ("x", &second)]);
            let to = dir.path().join(number.to_string());
            let error = write(blocks.clone(), root, &to).await.expect_err("refused");
            assert!(error.to_string().starts_with("x cannot be written"), "{number}: {error:#}");
            assert!(to.join("x").is_symlink(), "{number}");
        }
        assert_eq!(fs::read_dir(&outside).expect("lists").count(), 0, "nothing came out");
        assert_eq!(Path::new("elsewhere"), fs::read_link(dir.path().join("0/x")).expect("as it was stored"));
    }
}
