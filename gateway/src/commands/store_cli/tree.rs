//! A folder out of the store, entry by entry.
//!
//! Goals: nothing is written outside of the folder, whatever its entries are called and wherever its symlinks lead; memory
//! does not grow with the number of entries.
//!
//! How: a name is one component, as it is stored. Everything is made anew, in a folder that nobody else knows of, and by
//! calls that refuse what is there already and follow no symlink at the end of a path: a second entry of a name is an error,
//! so no path leads through a symlink that was written before.

use super::get::{bytes_of, copy};
use crate::commands::progress::{self, Progress};
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
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the folders may take together that are being listed at a time, from the root to the innermost, in bytes.
const LISTED_BYTES_MAX: usize = 256 * 1024 * 1024;
/// What a sharded folder counts for, in bytes: the shards down to the current one, and some ahead.
const SHARDED_BYTES: usize = 4 * 1024 * 1024;

/// A folder that is being listed.
struct Level {
    path: PathBuf,
    entries: BoxStream<'static, Result<Entry, DirError>>,
    /// What it takes in memory.
    bytes: usize,
}

/// Writes the folder below `root` to a path that is free.
///
/// # Errors
/// One that names the path where it ended, or the block that is missing. What was written until then stays.
pub(super) async fn write(source: Arc<dyn BlockSource>, root: Block, to: &Path) -> anyhow::Result<()> {
    let mut levels = vec![enter(&source, root, to.to_owned())?];
    let (mut progress, mut written) = (Progress::new(), 0);
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
                symlink(OsStr::from_bytes(&target), &path).with_context(|| unwritable(to, &path))?;
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
    Ok(())
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
        let target = outside.as_os_str().as_bytes();
        let link = importer.symlink(target, Attributes::default(), &mut sink).expect("short");
        let mut file = importer.file(Attributes::default());
        file.write(b"content", &mut sink).expect("taken");
        let file = file.finish(&mut sink).expect("taken");
        let mut inner = importer.directory(Attributes::default());
        inner.add(b"file", &file).expect("a name");
        let inner = inner.finish(&mut sink).expect("taken");
        // First a symlink that leads out; then a folder, a file or a symlink in the same place.
        for (number, second) in [inner, file, link].into_iter().enumerate() {
            let root = folder(&[("x", &link), ("x", &second)]);
            let to = dir.path().join(number.to_string());
            let error = write(blocks.clone(), root, &to).await.expect_err("refused");
            assert!(error.to_string().starts_with("x cannot be written"), "{number}: {error:#}");
            assert!(to.join("x").is_symlink(), "{number}");
        }
        assert_eq!(fs::read_dir(&outside).expect("lists").count(), 0, "nothing came out");
        assert_eq!(dir.path().join("outside"), fs::read_link(dir.path().join("0/x")).expect("as it was stored"));
    }
}
