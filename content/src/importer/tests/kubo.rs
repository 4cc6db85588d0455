//! Runs the cases of `cases.rs` with this importer, and in an ignored test with a real Kubo:
//!
//! ```text
//! IPFS=/path/to/ipfs cargo test -p causeway-content --lib importer::tests::kubo -- --ignored
//! ```

use super::cases::{CASES, Case, Item, Kind, time};
use super::{Attributes, Part, discard, import, importer};
use crate::importer::{Estimate, Importer, Profile, Sharding};
use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name of the imported content, which matters when it is wrapped in a directory.
const NAME: &str = "content";

#[test]
fn cids_are_those_of_kubo() {
    let wrong: Vec<String> = CASES.iter().filter_map(|case| differs(case, &imported(case).to_string())).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A line in the form of the table, if the CID differs.
fn differs(case: &Case, found: &str) -> Option<String> {
    let Case { profile, flags, content, cid } = case;
    (*cid != found).then(|| format!("case({profile:?}, {flags:?}, {content:?}, {found:?}), not {cid:?}"))
}

/// The CID that the importer computes for a case.
fn imported(case: &Case) -> crate::Cid {
    let importer = importer(&case.profile());
    let items = case.content.items();
    let part = match items.as_slice() {
        [Item { kind: Kind::Directory, .. }, ..] => tree(&importer, case, &items),
        [file] if !case.has("-w") => one(&importer, &file.kind, case.attributes_of(file)),
        items => tree(&importer, case, items),
    };
    part.cid
}

fn tree(importer: &Importer, case: &Case, items: &[Item]) -> Part {
    let (root, items) = match items {
        [root, below @ ..] if !case.has("-w") => (case.attributes_of(root), below),
        items => (case.custom(), items),
    };
    let mut tree = importer.tree(root);
    for item in items {
        let path = place(Path::new(if case.has("-w") { NAME } else { "" }), item);
        let path = path.to_str().expect("made of text").as_bytes();
        let added = match &item.kind {
            Kind::Directory => tree.directory(path, case.attributes_of(item), &mut discard),
            kind => tree.add(path, &one(importer, kind, case.attributes_of(item)), &mut discard),
        };
        added.expect("the sink takes everything");
    }
    tree.finish(&mut discard).expect("the sink takes everything")
}

/// The path of an item below the imported root.
fn place(top: &Path, item: &Item) -> PathBuf {
    if item.path.is_empty() { top.to_owned() } else { top.join(&item.path) }
}

/// Imports a file or a symlink.
fn one(importer: &Importer, kind: &Kind, attributes: Attributes) -> Part {
    match kind {
        Kind::File(bytes) => import(importer, bytes, attributes, &mut discard),
        Kind::Symlink(target) => {
            importer.symlink(target.as_bytes(), attributes, &mut discard).expect("the sink takes everything")
        }
        Kind::Directory => unreachable!("folders are made by the tree"),
    }
}

#[test]
#[ignore = "needs IPFS=/path/to/ipfs, a Kubo of version 0.41"]
fn the_table_has_the_cids_of_kubo() {
    let kubo = Kubo::new(std::env::var_os("IPFS").expect("IPFS is the path of an ipfs binary").into());
    let wrong: Vec<String> = CASES.iter().filter_map(|case| differs(case, &kubo.add(case))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A Kubo without a daemon, with a temporary folder for its repository.
struct Kubo {
    ipfs: PathBuf,
    folder: PathBuf,
    /// The profile and the settings that are applied. Applying them takes as long as adding.
    chosen: RefCell<String>,
}

impl Drop for Kubo {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).expect("the folder is ours");
    }
}

impl Kubo {
    fn new(ipfs: PathBuf) -> Self {
        let folder = std::env::temp_dir().join(format!("causeway-importer-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("the temporary folder is writable");
        let kubo = Self { ipfs, folder, chosen: RefCell::default() };
        kubo.run(&["init", "--profile=test"]);
        kubo
    }

    fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(&self.ipfs);
        command.env("IPFS_PATH", self.folder.join("repository")).env("IPFS_TELEMETRY", "off").args(arguments);
        let output = command.output().expect("ipfs starts");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// The CID that `ipfs add` computes for a case.
    fn add(&self, case: &Case) -> String {
        let top = self.folder.join(NAME);
        materialize(&top, &case.content.items());
        let (settings, flags): (Vec<&str>, Vec<&str>) = case.words().partition(|word| word.starts_with("Import."));
        if self.chosen.replace(format!("{} {settings:?}", case.profile)) != *self.chosen.borrow() {
            self.choose(case.profile, &settings);
        }
        let path = top.to_str().expect("made of text");
        let cid = self.run(&[&["add", "-Q", "-r"], flags.as_slice(), &[path]].concat());
        if top.is_dir() { fs::remove_dir_all(&top) } else { fs::remove_file(&top) }.expect("the folder is ours");
        cid
    }

    /// Applies a profile (one that Kubo no longer has as single settings) and settings.
    fn choose(&self, name: &str, settings: &[&str]) {
        let import = if name.starts_with("test-") { import_section(name) } else { "{}".to_owned() };
        self.run(&["config", "--json", "Import", &import]);
        if !name.is_empty() && !name.starts_with("test-") {
            self.run(&["config", "profile", "apply", name]);
        }
        for (key, value) in settings.iter().filter_map(|setting| setting.split_once('=')) {
            self.run(&["config", key, value]);
        }
    }
}

/// A profile with CIDv1 as Kubo's settings.
fn import_section(name: &str) -> String {
    let profile = Profile::named(name).expect("a published name");
    let Sharding { estimate, threshold_bytes, links_max, fanout } = profile.sharding;
    assert_eq!((estimate, links_max, profile.raw_leaves), (Estimate::Links, None, true));
    format!(
        r#"{{"CidVersion": 1, "UnixFSRawLeaves": true, "UnixFSChunker": "{}", "UnixFSFileMaxLinks": {},
        "UnixFSHAMTDirectoryMaxFanout": {fanout}, "UnixFSHAMTDirectorySizeThreshold": "{threshold_bytes}B"}}"#,
        profile.chunking, profile.file_links_max,
    )
}

/// Writes items to the disk, with their modes and times. Times of folders are set last, because writing entries changes
/// them.
fn materialize(top: &Path, items: &[Item]) {
    for item in items {
        let path = place(top, item);
        match &item.kind {
            Kind::File(bytes) => fs::write(&path, bytes),
            Kind::Directory => fs::create_dir(&path),
            Kind::Symlink(target) => symlink(target, &path),
        }
        .expect("the folder is ours");
    }
    for item in items.iter().rev() {
        let path = place(top, item);
        if let Kind::Symlink(_) = item.kind {
            let mut touch = Command::new("touch");
            let done = touch.arg("-h").arg("-d").arg(format!("@{}", item.modified.0)).arg(&path).status();
            assert!(done.expect("touch starts").success());
            continue;
        }
        let opened = fs::File::open(&path).expect("readable");
        opened.set_permissions(fs::Permissions::from_mode(item.mode)).expect("ours");
        opened.set_modified(time(item.modified.0, item.modified.1)).expect("ours");
    }
}
