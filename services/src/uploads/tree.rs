//! [`Catalogue`]: the entries of an upload, and building the folders around them.
//!
//! Entries come in any order, and a folder may have a million of them. So they are sorted by path ([`Sorter`]), and the
//! folders are built in that order: the entries of a folder follow it directly, so only the folders of the current path
//! are open, each with a sorter of its entries in the order that a sharded directory (HAMT) needs.

use crate::uploads::UploadError;
use crate::uploads::limits::ROOTS_MAX;
use crate::uploads::names::{self, Path, path_of_key};
use crate::uploads::sorter::{MemoryBudget, Record, Sorted, Sorter};
use content::Cid;
use content::importer::{Attributes, BlockSink, Estimate, Importer, Part, Profile, Sharded};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The memory budget of entries, in bytes; more are sorted on the disk.
const BUDGET_BYTES: usize = 16 << 20;
/// A folder with up to so many bytes of entries is built in memory.
const SMALL_BYTES: u64 = 4 << 20;
/// The maximum memory of a catalogue, in bytes: its entries, those of one folder that is built, and a growing list.
pub const MEMORY_BYTES_MAX: usize = BUDGET_BYTES + 2 * SMALL_BYTES as usize;

/// How repeated paths are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeats {
    /// The upload is rejected.
    Refused,
    /// The last entry counts, as when a TAR is extracted.
    LastCounts,
}

/// The entries of an upload.
#[derive(Debug)]
pub struct Catalogue {
    folder: PathBuf,
    budget: MemoryBudget,
    entries: Sorter,
    /// Hard links, by the path of their target.
    links: Option<Sorter>,
    count: u64,
    count_max: u64,
    /// The attributes of the wrapping folder, if the upload has an entry for it.
    top: Option<Attributes>,
}

/// An entry with a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TreeEntry {
    /// A file or symlink, or a complete folder.
    Complete(Part),
    /// A folder, whose entries have their own paths.
    Folder(Attributes),
}

/// How the folders are built.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Whether to add a wrapping folder.
    pub wrap: bool,
    /// How repeated paths are handled.
    pub repeats: Repeats,
}

/// A top-level entry: its name, and its root.
pub type Top = (Vec<u8>, Part);

/// Called for each complete folder, with its path.
pub type OnFolder<'a> = &'a mut dyn FnMut(Vec<u8>, &Part) -> Result<(), UploadError>;

impl Catalogue {
    /// An empty catalogue for at most so many entries, which writes to `folder` what exceeds the memory budget.
    pub fn new(folder: PathBuf, count_max: u64) -> Self {
        let budget = MemoryBudget::new(BUDGET_BYTES);
        let entries = Sorter::new(folder.clone(), budget.clone());
        Self { folder, budget, entries, links: None, count: 0, count_max, top: None }
    }

    /// Adds a complete file or symlink.
    ///
    /// # Errors
    /// [`UploadError::Invalid`] when there are too many entries, and the error of the disk.
    pub fn complete(&mut self, path: &Path, part: &Part) -> Result<(), UploadError> {
        if path.is_top() {
            return Err(UploadError::Invalid("a file must have a name".to_owned()));
        }
        self.count()?;
        self.entries.add(&path.to_key(), &TreeEntry::Complete(*part).to_bytes()).map_err(UploadError::TemporaryFile)
    }

    /// Adds a folder.
    ///
    /// # Errors
    /// As [`Catalogue::complete`].
    pub fn folder(&mut self, path: &Path, attributes: Attributes) -> Result<(), UploadError> {
        self.count()?;
        if path.is_top() {
            self.top = Some(attributes);
            return Ok(());
        }
        self.entries.add(&path.to_key(), &TreeEntry::Folder(attributes).to_bytes()).map_err(UploadError::TemporaryFile)
    }

    /// Adds a hard link to a file of the same upload.
    ///
    /// # Errors
    /// As [`Catalogue::complete`].
    pub fn hard_link(&mut self, path: &Path, target: &Path) -> Result<(), UploadError> {
        if path.is_top() || target.is_top() {
            return Err(UploadError::Invalid("a hard link must have a name and a target".to_owned()));
        }
        self.count()?;
        let links = self.links.get_or_insert_with(|| Sorter::new(self.folder.clone(), self.budget.clone()));
        links.add(&target.to_key(), path.as_bytes()).map_err(UploadError::TemporaryFile)
    }

    fn count(&mut self) -> Result<(), UploadError> {
        self.count += 1;
        if self.count > self.count_max {
            let words = format!("the upload has more than {} files and folders (uploads.entries_max)", self.count_max);
            return Err(UploadError::Invalid(words));
        }
        Ok(())
    }

    /// Builds the folders, and returns the top-level entries by name.
    ///
    /// # Errors
    /// [`UploadError::Invalid`] for conflicting paths, and errors of the sink and the disk.
    pub fn build(
        mut self,
        importer: &Importer,
        shape: Shape,
        sink: &mut dyn BlockSink,
        on_folder: OnFolder<'_>,
    ) -> Result<Vec<Top>, UploadError> {
        let entries = match self.links.take() {
            None => self.entries.finish(),
            Some(links) => Ok(resolve(self.entries, links, &self.folder, &self.budget)?),
        };
        let mut entries = Distinct::new(entries.map_err(UploadError::TemporaryFile)?, shape.repeats)?;
        let base = (shape.wrap || self.top.is_some()).then(|| self.top.unwrap_or_default());
        let mut tree = Tree::new(self.folder, self.budget, importer, base);
        while let Some((key, value)) = entries.next()? {
            tree.add(&path_of_key(&key), TreeEntry::from_bytes(&value)?, sink, on_folder)?;
        }
        tree.finish(sink, on_folder)
    }
}

/// Resolves hard links to the content of their targets.
fn resolve(
    entries: Sorter,
    links: Sorter,
    folder: &std::path::Path,
    budget: &MemoryBudget,
) -> Result<Sorted, UploadError> {
    let mut all = Sorter::new(folder.to_owned(), budget.clone());
    let mut entries = Distinct::new(entries.finish().map_err(UploadError::TemporaryFile)?, Repeats::LastCounts)?;
    let mut links = links.finish().map_err(UploadError::TemporaryFile)?;
    let mut link = links.take().map_err(UploadError::TemporaryFile)?;
    let dangling = |(target, path): &Record| {
        let (path, target) = (names::shown(path), names::shown(&path_of_key(target)));
        Err(UploadError::Invalid(format!("the target {target} of the hard link {path} is not a file in the archive")))
    };
    while let Some((key, value)) = entries.next()? {
        all.add(&key, &value).map_err(UploadError::TemporaryFile)?;
        while let Some(next) = link.take_if(|(target, _)| *target <= key) {
            if next.0 != key || value.first() != Some(&COMPLETE) {
                return dangling(&next);
            }
            let path = Path::of(&next.1)?;
            all.add(&path.to_key(), &value).map_err(UploadError::TemporaryFile)?;
            link = links.take().map_err(UploadError::TemporaryFile)?;
        }
    }
    if let Some(next) = &link {
        return dangling(next);
    }
    all.finish().map_err(UploadError::TemporaryFile)
}

/// Sorted records with distinct paths.
struct Distinct {
    sorted: Sorted,
    ahead: Option<Record>,
    repeats: Repeats,
}

impl Distinct {
    fn new(mut sorted: Sorted, repeats: Repeats) -> Result<Self, UploadError> {
        let ahead = sorted.take().map_err(UploadError::TemporaryFile)?;
        Ok(Self { sorted, ahead, repeats })
    }

    fn next(&mut self) -> Result<Option<Record>, UploadError> {
        let Some((key, mut value)) = self.ahead.take() else { return Ok(None) };
        loop {
            self.ahead = self.sorted.take().map_err(UploadError::TemporaryFile)?;
            let Some((_, again)) = self.ahead.take_if(|(ahead, _)| *ahead == key) else { break };
            let is_folder = |value: &[u8]| value.first() == Some(&FOLDER);
            let allowed = match (is_folder(&value), is_folder(&again)) {
                (true, true) => true,
                (false, false) => self.repeats == Repeats::LastCounts,
                _ => false,
            };
            if !allowed {
                let path = names::shown(&path_of_key(&key));
                return Err(UploadError::Invalid(format!("two entries of the upload have the path {path}")));
            }
            value = again;
        }
        Ok(Some((key, value)))
    }
}

/// The open folders of the current path.
struct Tree<'a> {
    folder: PathBuf,
    budget: MemoryBudget,
    importer: &'a Importer,
    /// The open folders. The first is the wrapping folder, if there is one.
    open: Vec<Folder>,
    /// Whether there is a wrapping folder.
    is_wrapped: bool,
    tops: Vec<Top>,
}

impl<'a> Tree<'a> {
    fn new(folder: PathBuf, budget: MemoryBudget, importer: &'a Importer, base: Option<Attributes>) -> Self {
        let mut tree =
            Self { folder, budget, importer, open: Vec::new(), is_wrapped: base.is_some(), tops: Vec::new() };
        if let Some(attributes) = base {
            tree.enter(Vec::new(), attributes);
        }
        tree
    }

    fn enter(&mut self, name: Vec<u8>, attributes: Attributes) {
        let entries = Sorter::new(self.folder.clone(), self.budget.clone());
        self.open.push(Folder { name, attributes, entries });
    }

    fn add(
        &mut self,
        path: &[u8],
        entry: TreeEntry,
        sink: &mut dyn BlockSink,
        on_folder: OnFolder<'_>,
    ) -> Result<(), UploadError> {
        let mut names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let last = names.pop().unwrap_or_default();
        let base = usize::from(self.is_wrapped);
        let shared = self.open[base..].iter().zip(&names).take_while(|(open, name)| open.name == **name).count();
        self.leave_to(base + shared, sink, on_folder)?;
        for name in &names[shared..] {
            self.enter(name.to_vec(), Attributes::default());
        }
        match entry {
            TreeEntry::Folder(attributes) => {
                self.enter(last.to_vec(), attributes);
                Ok(())
            }
            TreeEntry::Complete(part) => self.place(last, &part),
        }
    }

    fn place(&mut self, name: &[u8], part: &Part) -> Result<(), UploadError> {
        match self.open.last_mut() {
            Some(folder) => folder.add(name, part),
            None if self.tops.len() >= ROOTS_MAX => {
                let words =
                    format!("the upload has more than {ROOTS_MAX} top-level entries: wrap them into a folder (wrap)");
                Err(UploadError::Invalid(words))
            }
            None if self.tops.iter().any(|(top, _)| top == name) => Err(clash(name)),
            None => {
                self.tops.push((name.to_vec(), *part));
                Ok(())
            }
        }
    }

    fn leave_to(&mut self, depth: usize, sink: &mut dyn BlockSink, on_folder: OnFolder<'_>) -> Result<(), UploadError> {
        while self.open.len() > depth {
            let above = self.open.iter().map(|folder| folder.name.as_slice()).filter(|name| !name.is_empty());
            let path = above.collect::<Vec<_>>().join(&b'/');
            let Some(folder) = self.open.pop() else { break };
            let (name, part) = folder.finish(self.importer, sink)?;
            on_folder(path, &part)?;
            self.place(&name, &part)?;
        }
        Ok(())
    }

    fn finish(mut self, sink: &mut dyn BlockSink, on_folder: OnFolder<'_>) -> Result<Vec<Top>, UploadError> {
        self.leave_to(0, sink, on_folder)?;
        Ok(self.tops)
    }
}

fn clash(name: &[u8]) -> UploadError {
    let name = names::shown(name);
    UploadError::Invalid(format!("the upload has {name} both as a folder and as a file"))
}

/// An open folder.
struct Folder {
    name: Vec<u8>,
    attributes: Attributes,
    /// By the order in a sharded directory, and by name.
    entries: Sorter,
}

impl Folder {
    fn add(&mut self, name: &[u8], part: &Part) -> Result<(), UploadError> {
        let key = [&Sharded::order(name).to_be_bytes(), name].concat();
        self.entries.add(&key, &TreeEntry::Complete(*part).to_bytes()).map_err(UploadError::TemporaryFile)
    }

    /// Builds its blocks, and returns its name and its root.
    fn finish(self, importer: &Importer, sink: &mut dyn BlockSink) -> Result<Top, UploadError> {
        let Self { name, attributes, entries } = self;
        let is_small = entries.total_bytes() <= small_bytes(importer.profile());
        let mut entries = entries.finish().map_err(UploadError::TemporaryFile)?;
        let mut next = || -> Result<Option<(Vec<u8>, Part)>, UploadError> {
            let Some((key, value)) = entries.take().map_err(UploadError::TemporaryFile)? else { return Ok(None) };
            match TreeEntry::from_bytes(&value)? {
                TreeEntry::Complete(part) => Ok(Some((key[8..].to_vec(), part))),
                TreeEntry::Folder(_) => Err(damaged()),
            }
        };
        let clashing = |error: content::importer::ImportError| match error {
            content::importer::ImportError::Repeated { name } => clash(name.as_bytes()),
            error => error.into(),
        };
        let part = if is_small {
            let mut directory = importer.directory(attributes);
            while let Some((name, part)) = next()? {
                directory.add(&name, &part)?;
            }
            directory.finish(sink).map_err(clashing)?
        } else {
            let mut sharded = importer.sharded(attributes);
            while let Some((name, part)) = next()? {
                sharded.add(&name, &part, sink).map_err(clashing)?
            }
            sharded.finish(sink).map_err(clashing)?
        };
        Ok((name, part))
    }
}

/// Up to how many bytes of entries a folder is built in memory. Any profile that shards by size shards a larger folder:
/// at least a sixth of an entry's bytes here are its name and CID.
fn small_bytes(profile: &Profile) -> u64 {
    let sharding = profile.sharding;
    match sharding.estimate {
        Estimate::Off if sharding.links_max.is_none() => u64::MAX,
        _ => SMALL_BYTES.max(8 * sharding.threshold_bytes as u64),
    }
}

const COMPLETE: u8 = 0;
const FOLDER: u8 = 1;

impl TreeEntry {
    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Complete(part) => {
                let numbers = [part.file_bytes.to_be_bytes(), part.dag_bytes.to_be_bytes()].concat();
                [&[COMPLETE], &numbers[..], &part.cid.to_bytes()].concat()
            }
            Self::Folder(Attributes { mode, modified }) => {
                let (seconds, nanoseconds) = modified.map_or((0, 0), since_epoch);
                let mut bytes = vec![FOLDER, u8::from(mode.is_some()), u8::from(modified.is_some())];
                bytes.extend_from_slice(&mode.unwrap_or(0).to_be_bytes());
                bytes.extend_from_slice(&seconds.to_be_bytes());
                bytes.extend_from_slice(&nanoseconds.to_be_bytes());
                bytes
            }
        }
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, UploadError> {
        Self::read(bytes).ok_or_else(damaged)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        if *kind == COMPLETE {
            let (file_bytes, rest) = rest.split_first_chunk()?;
            let (dag_bytes, cid) = rest.split_first_chunk()?;
            let cid = Cid::try_from(cid).ok()?;
            let (file_bytes, dag_bytes) = (u64::from_be_bytes(*file_bytes), u64::from_be_bytes(*dag_bytes));
            return Some(Self::Complete(Part { cid, file_bytes, dag_bytes }));
        }
        let (flags, rest) = rest.split_first_chunk::<2>().filter(|_| *kind == FOLDER)?;
        let (mode, rest) = rest.split_first_chunk()?;
        let (seconds, nanoseconds) = rest.split_first_chunk()?;
        let time = at(i64::from_be_bytes(*seconds), u32::from_be_bytes(nanoseconds.try_into().ok()?));
        Some(Self::Folder(Attributes {
            mode: (flags[0] == 1).then_some(u32::from_be_bytes(*mode)),
            modified: if flags[1] == 1 { time } else { None },
        }))
    }
}

fn damaged() -> UploadError {
    UploadError::TemporaryFile(io::Error::other("the temporary file is corrupt"))
}

/// A time as whole seconds since the Unix epoch, and nanoseconds.
fn since_epoch(time: SystemTime) -> (i64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (i64::try_from(after.as_secs()).unwrap_or(i64::MAX), after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let rest = before.subsec_nanos();
            let whole = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            if rest == 0 { (-whole, 0) } else { (-whole - 1, 1_000_000_000 - rest) }
        }
    }
}

/// The time at so many seconds and nanoseconds after the Unix epoch.
pub fn at(seconds: i64, nanoseconds: u32) -> Option<SystemTime> {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let whole = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    whole?.checked_add(Duration::from_nanos(nanoseconds.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::Block;
    use std::collections::BTreeMap;

    fn importer() -> Importer {
        Importer::new(Profile::UNIXFS_V1_2025).expect("a profile")
    }

    fn part(importer: &Importer, text: &str) -> Part {
        importer.symlink(text.as_bytes(), Attributes::default(), &mut |_| Ok(())).expect("short")
    }

    fn path(text: &str) -> Path {
        Path::of(text.as_bytes()).expect("a path")
    }

    fn catalogue() -> Catalogue {
        Catalogue::new(std::env::temp_dir(), 10_000_000)
    }

    /// The top-level entries by name, and the paths of folders in the order of completion.
    type Built = Result<(BTreeMap<String, String>, Vec<String>), UploadError>;

    fn build(catalogue: Catalogue, wrap: bool, repeats: Repeats) -> Built {
        let mut folders = Vec::new();
        let mut on_folder = |path: Vec<u8>, _: &Part| {
            folders.push(String::from_utf8_lossy(&path).into_owned());
            Ok(())
        };
        let tops = catalogue.build(&importer(), Shape { wrap, repeats }, &mut |_| Ok(()), &mut on_folder)?;
        let tops =
            tops.into_iter().map(|(name, part)| (String::from_utf8_lossy(&name).into_owned(), part.cid.to_string()));
        Ok((tops.collect(), folders))
    }

    #[test]
    fn the_order_of_entries_does_not_matter() {
        let paths = ["site/index.html", "site/a/1", "site/a/2", "site/b/c/3", "note"];
        let mut found = Vec::new();
        for turn in 0..paths.len() {
            let mut catalogue = catalogue();
            for at in 0..paths.len() {
                let text = paths[(at + turn) % paths.len()];
                catalogue.complete(&path(text), &part(&importer(), text)).expect("takes");
            }
            catalogue.folder(&path("site/empty"), Attributes::default()).expect("takes");
            found.push(build(catalogue, false, Repeats::Refused).expect("builds"));
        }
        assert!(found.iter().all(|built| *built == found[0]));
        assert_eq!(found[0].0.keys().collect::<Vec<_>>(), ["note", "site"]);
        assert_eq!(found[0].1, ["site/a", "site/b/c", "site/b", "site/empty", "site"]);
        let importer = importer();
        let mut tree = importer.tree(Attributes::default());
        let sink = &mut |_| Ok(());
        for text in ["index.html", "a/1", "a/2", "b/c/3"] {
            tree.add(text.as_bytes(), &part(&importer, &format!("site/{text}")), sink).expect("adds");
        }
        tree.directory(b"empty", Attributes::default(), sink).expect("adds");
        assert_eq!(found[0].0["site"], tree.finish(sink).expect("finishes").cid.to_string());
    }

    #[test]
    fn repeated_paths_are_rejected_or_the_last_counts() {
        let importer = importer();
        let build_of = |texts: &[(&str, &str)], repeats| {
            let mut catalogue = catalogue();
            for (at, text) in texts {
                match *text {
                    "folder" => catalogue.folder(&path(at), Attributes::default()).expect("takes"),
                    text => catalogue.complete(&path(at), &part(&importer, text)).expect("takes"),
                }
            }
            build(catalogue, false, repeats)
        };
        let twice = [("d/a", "one"), ("d/a", "two")];
        assert!(build_of(&twice, Repeats::Refused).is_err());
        let last = build_of(&twice, Repeats::LastCounts).expect("builds");
        assert_eq!(last, build_of(&twice[1..], Repeats::Refused).expect("builds"));
        for repeats in [Repeats::Refused, Repeats::LastCounts] {
            assert!(build_of(&[("d", "folder"), ("d/a", "x"), ("d", "folder")], repeats).is_ok());
            for both in [[("d/a", "x"), ("d/a", "folder")], [("d/a", "x"), ("d/a/b", "y")], [("a", "x"), ("a/b", "y")]]
            {
                let error = build_of(&both, repeats).expect_err("rejected").to_string();
                assert!(error.contains("\"a\"") || error.contains("\"d/a\""), "{error}");
            }
        }
    }

    #[test]
    fn hard_links_have_the_content_of_their_targets() {
        let importer = importer();
        let linked = |links: &[(&str, &str)]| {
            let mut catalogue = catalogue();
            catalogue.complete(&path("d/a"), &part(&importer, "x")).expect("takes");
            catalogue.folder(&path("d/f"), Attributes::default()).expect("takes");
            for (at, target) in links {
                catalogue.hard_link(&path(at), &path(target)).expect("takes");
            }
            build(catalogue, false, Repeats::LastCounts)
        };
        let (tops, _) = linked(&[("d/b", "d/a"), ("c", "d/a")]).expect("resolves");
        let mut same = catalogue();
        for at in ["d/a", "d/b", "c"] {
            same.complete(&path(at), &part(&importer, "x")).expect("takes");
        }
        same.folder(&path("d/f"), Attributes::default()).expect("takes");
        assert_eq!(tops, build(same, false, Repeats::Refused).expect("builds").0);
        for dangling in ["nothing", "d", "d/f", "zzz", "d/b"] {
            assert!(linked(&[("d/b", dangling)]).is_err(), "{dangling}");
        }
    }

    #[test]
    fn a_wrapping_folder_has_no_name() {
        let importer = importer();
        for (wrap, top) in [(true, false), (false, true), (true, true)] {
            let mut catalogue = catalogue();
            catalogue.complete(&path("a"), &part(&importer, "x")).expect("takes");
            if top {
                catalogue.folder(&path("./"), Attributes::default()).expect("takes");
            }
            let (tops, folders) = build(catalogue, wrap, Repeats::Refused).expect("builds");
            let names: Vec<&str> = tops.keys().map(String::as_str).collect();
            assert_eq!((names, folders), (vec![""], vec![String::new()]));
        }
    }

    #[test]
    fn entries_and_roots_are_limited() {
        let importer = importer();
        let one = part(&importer, "x");
        let mut few = Catalogue::new(std::env::temp_dir(), 2);
        few.complete(&path("a"), &one).expect("takes");
        few.folder(&path("b"), Attributes::default()).expect("takes");
        assert!(few.complete(&path("c"), &one).is_err());
        let mut many = catalogue();
        for number in 0..=ROOTS_MAX {
            many.complete(&path(&number.to_string()), &one).expect("takes");
        }
        assert!(build(many, false, Repeats::Refused).is_err());
    }

    #[test]
    fn a_large_folder_equals_one_that_is_built_in_memory() {
        let importer = importer();
        let mut catalogue = catalogue();
        let mut directory = importer.directory(Attributes::default());
        let one = part(&importer, "x");
        for number in 0..120_000 {
            let name = format!("some-longer-name-{number}");
            catalogue.complete(&path(&format!("d/{name}")), &one).expect("takes");
            directory.add(name.as_bytes(), &one).expect("adds");
        }
        let (mut blocks, mut expected_blocks) = (0_u64, 0_u64);
        let mut sink = |_: Block| -> Result<(), content::importer::SinkError> {
            blocks += 1;
            Ok(())
        };
        let shape = Shape { wrap: false, repeats: Repeats::Refused };
        let tops = catalogue.build(&importer, shape, &mut sink, &mut |_, _| Ok(())).expect("builds");
        let expected = directory.finish(&mut |_| {
            expected_blocks += 1;
            Ok(())
        });
        assert_eq!(tops, [(b"d".to_vec(), expected.expect("finishes"))]);
        assert_eq!(blocks, expected_blocks);
    }

    #[test]
    fn attributes_survive_serialisation() {
        let times = [None, at(0, 0), at(-5, 7), at(1_700_000_000, 999_999_999), at(-1, 0)];
        for modified in times {
            for mode in [None, Some(0), Some(0o7777)] {
                let found = TreeEntry::Folder(Attributes { mode, modified });
                assert_eq!(TreeEntry::read(&found.to_bytes()), Some(found));
            }
        }
        assert_eq!(at(-5, 7).map(since_epoch), Some((-5, 7)));
        for damaged in [&[][..], &[0], &[1, 0], &[0; 17], &[2; 40]] {
            assert!(TreeEntry::read(damaged).is_none(), "{damaged:?}");
        }
    }
}
