//! A folder out of the store, entry by entry.
//!
//! Goals: nothing is written outside of the folder, whatever its entries are called and wherever its symlinks lead, and
//! no symlink is written that leads out of it, through which a later program would read or write elsewhere; memory does
//! not grow with the number of entries.
//!
//! How: a name is one component, as it is stored. Everything is made anew, in a folder that nobody else knows of, and by
//! calls that refuse what is there already and follow no symlink at the end of a path: a second entry of a name is an error,
//! so no path leads through a symlink that was written before.

use crate::progress::{self, Progress};
use crate::store_cli::get::{bytes_of, copy};
use anyhow::{Context as _, bail, ensure};
use content::unixfs::Node;
use content::unixfs::dir::{self, DirError, Entry};
use content::{Block, BlockSource};
use futures::stream::{BoxStream, TryStreamExt as _};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// What the folders may take together that are being listed at a time, from the root to the innermost, in bytes.
const LISTED_BYTES_MAX: usize = 256 * 1024 * 1024;
/// What a sharded folder counts for, in bytes: the shards down to the current one, and some ahead.
const SHARDED_BYTES: usize = 4 * 1024 * 1024;
/// Symlinks that were left out which are told one by one.
const LEFT_OUT_SHOWN_MAX: usize = 20;

/// A folder that is being listed.
struct Level {
    path: PathBuf,
    entries: BoxStream<'static, Result<Entry, DirError>>,
    /// What it takes in memory.
    bytes: usize,
}

/// Symlinks that were left out.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    /// The first of them: the path below the folder, and where it leads.
    pub shown: Vec<(PathBuf, PathBuf)>,
    /// How many there are.
    pub count: u64,
}

impl LeftOut {
    fn add(&mut self, path: &Path, target: &Path) {
        self.count += 1;
        if self.shown.len() < LEFT_OUT_SHOWN_MAX {
            self.shown.push((path.to_owned(), target.to_owned()));
        }
    }
}

/// Writes the folder below `root` to a path that is free, but for symlinks that lead out of it, which it returns.
///
/// # Errors
/// One that names the path where it ended, or the block that is missing. What was written until then stays.
pub(super) async fn write(source: Arc<dyn BlockSource>, root: Block, to: &Path) -> anyhow::Result<LeftOut> {
    let mut levels = vec![enter(&source, root, to.to_owned())?];
    let (mut progress, mut written, mut left_out) = (Progress::new(), 0, LeftOut::default());
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.entries.try_next().await? else {
            levels.pop();
            continue;
        };
        let path = level.path.join(safe_name(&entry)?);
        let block = source.get(&entry.cid).await?;
        match Node::decode(&block)? {
            Node::File(_) => {
                let mut file = File::create_new(&path).with_context(|| unwritable(to, &path))?;
                copy(bytes_of(Arc::clone(&source), block)?, |chunk| {
                    written += chunk.len() as u64;
                    progress.show(|time| progress::bytes(written, None, time));
                    file.write_all(chunk).map(|()| true)
                })
                .await?;
            }
            Node::Symlink { target } => {
                let target = Path::new(OsStr::from_bytes(&target));
                // What is in its place already is an error all the same.
                ensure!(!path.is_symlink() && !path.exists(), "{}", unwritable(to, &path));
                if stays_inside(target, levels.len() - 1) {
                    symlink(target, &path).with_context(|| unwritable(to, &path))?;
                } else {
                    left_out.add(path.strip_prefix(to).unwrap_or(&path), target);
                }
            }
            Node::Directory(_) | Node::HamtShard(_) => {
                let level = enter(&source, block, path.clone()).with_context(|| unwritable(to, &path))?;
                levels.push(level);
                let listed: usize = levels.iter().map(|level| level.bytes).sum();
                ensure!(listed <= LISTED_BYTES_MAX, "the folders above {} are too many or too large", entry.cid);
            }
            Node::Plain(_) => bail!("{} is no file, folder or symlink", entry.cid),
        }
    }
    Ok(left_out)
}

/// Whether a symlink leads to where nothing but what is in the folder is: `depth` is how many folders it is below that
/// one.
///
/// It may go up first, from the folder that it is in, which is no symlink, and then down, through symlinks that stay
/// inside themselves. If it went down and then up, it could have gone down by a symlink, and up from somewhere else
/// than it seems.
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

fn enter(source: &Arc<dyn BlockSource>, block: Block, path: PathBuf) -> anyhow::Result<Level> {
    fs::create_dir(&path)?;
    let bytes = match Node::decode(&block)? {
        Node::HamtShard(_) => SHARDED_BYTES,
        _ => block.data().len(),
    };
    Ok(Level { path, entries: dir::list(Arc::clone(source), block), bytes })
}

/// The name of an entry, if that is a name in the folder that it is in and nowhere else.
fn safe_name(entry: &Entry) -> anyhow::Result<&OsStr> {
    let name = entry.name_bytes();
    if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') || name.contains(&0) {
        bail!("a folder has an entry called {:?}, which could be written to another place", entry.name);
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
            Entry { name: text, not_text, cid: cid::parse("bafkqac3imvwgy3zao5xxe3de").expect("a CID"), tsize: None }
        };
        for name in [&b"a"[..], b"...", b"..a", b" ", b"a\nb", b"\xff", b"a\\b", "ä".as_bytes()] {
            assert_eq!(safe_name(&entry(name)).expect("is safe").as_bytes(), name);
        }
        for name in [&b""[..], b".", b"..", b"/", b"/etc", b"../a", b"a/b", b"a\0", b"\xff/../a"] {
            assert!(safe_name(&entry(name)).is_err(), "{name:?}");
        }
    }

    #[test]
    fn symlinks_that_lead_out_are_told_from_those_that_stay() {
        // The target, how deep the link is, and whether it stays.
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
            // Through "a", which may be a symlink to somewhere higher up.
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
    async fn symlinks_that_lead_out_are_left_out_and_told() {
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
        // A chain of symlinks that each seem to stay inside, and lead out together.
        let (to_root, chain) = (link(".."), link("inner/root/../../outside"));
        let mut inner = importer.directory(Attributes::default());
        inner.add(b"up", &up).expect("a name");
        inner.add(b"root", &to_root).expect("a name");
        let inner = inner.finish(&mut sink).expect("taken");
        let root = folder(&[("inner", &inner), ("stays", &stays), ("leaves", &leaves), ("chain", &chain)]);
        let to = dir.path().join("to");
        let left_out = write(blocks.clone(), root, &to).await.expect("writes");
        let told: Vec<_> = left_out.shown.iter().map(|(path, target)| (path.as_path(), target.as_path())).collect();
        let expected = [("leaves", "/etc/passwd"), ("chain", "inner/root/../../outside")];
        assert_eq!(told, expected.map(|(path, target)| (Path::new(path), Path::new(target))));
        for (path, target) in
            [("stays", Some("inner/x")), ("inner/up", Some("../stays")), ("leaves", None), ("chain", None)]
        {
            assert_eq!(fs::read_link(to.join(path)).ok().as_deref(), target.map(Path::new), "{path}");
        }
    }

    /// A dag-pb directory by hand, whose entries may be called anything, as often as one likes.
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
