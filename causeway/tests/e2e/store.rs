//! `causeway add`, `get` and `ls`, compared with the commands of a real Kubo.

use crate::support::assert_same_bytes;
use crate::support::causeway::Launch;
use crate::support::ipfs::Ipfs;
use crate::support::noise::Noise;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Lines in any order.
type Lines = BTreeSet<String>;

fn lines(text: &str) -> Lines {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Regular and unusual content: empty files and folders, odd names, hidden files, several chunks,
/// symlinks that are dangling or point up and out of the folder.
fn fill(dir: &Path) {
    let at = |name: &str| dir.join(name);
    for folder in ["site/images/deep", "site/empty", "site/.git", "many"] {
        fs::create_dir_all(at(folder)).expect("the folder is ours");
    }
    let files: [(&str, Vec<u8>); 9] = [
        ("one", b"x".to_vec()),
        ("nothing", Vec::new()),
        ("big", Noise::bytes(1, 1_500_000)),
        ("site/index.html", b"<p>Hello.".to_vec()),
        ("site/.hidden", b"hidden".to_vec()),
        ("site/.git/config", b"hidden too".to_vec()),
        ("site/a b\\c\u{e9}", b"a name".to_vec()),
        ("site/images/large", Noise::bytes(2, 600_000)),
        ("site/images/deep/small", Noise::bytes(3, 20_000)),
    ];
    for (name, bytes) in &files {
        fs::write(at(name), bytes).expect("the folder is ours");
    }
    for number in 0..300 {
        fs::write(at(&format!("many/file {number}")), format!("{}", number % 7)).expect("the folder is ours");
    }
    let links = [("site/up", "../one"), ("site/out", "/nowhere"), ("link", "site"), ("site/images/same", "large")];
    for (link, target) in links {
        symlink(target, at(link)).expect("the folder is ours");
    }
}

/// A folder with content, a folder for a store, and Kubo.
struct World {
    content: TempDir,
    home: TempDir,
    ipfs: Ipfs,
}

impl World {
    fn new(set: impl FnOnce(&mut Value)) -> Self {
        let folder = || TempDir::new().expect("the temporary folder is writable");
        let world = Self { content: folder(), home: folder(), ipfs: Ipfs::new(set) };
        fill(world.content.path());
        world
    }

    fn launch(&self) -> Launch {
        Launch::new(self.home.path())
    }

    /// A command that succeeds, in the folder of the content.
    fn run(&self, arguments: &[&str]) -> String {
        String::from_utf8(self.bytes(arguments)).expect("text").trim_end_matches('\n').to_owned()
    }

    fn bytes(&self, arguments: &[&str]) -> Vec<u8> {
        let done = self.launch().pipe(self.content.path(), arguments, b"");
        done.unwrap_or_else(|error_line| panic!("causeway {arguments:?}: {error_line}"))
    }

    fn refusal(&self, arguments: &[&str]) -> String {
        self.launch().pipe(self.content.path(), arguments, b"").expect_err("it fails")
    }

    /// Adds with Kubo, and returns its output.
    fn kubo_adds(&self, arguments: &[&str]) -> String {
        self.ipfs.run(self.content.path(), &[&["add", "-r", "--progress=false"], arguments].concat())
    }
}

#[test]
fn cids_and_output_equal_kubos() {
    let world = World::new(|_| ());
    let table: &[&[&str]] = &[
        &["one"],
        &["nothing"],
        &["big"],
        &["site"],
        &["site/"],
        &["site/.."],
        &["link"],
        &["link/"],
        &["site/.hidden"],
        &["site", "one", "big"],
        &["--hidden", "site"],
        &["-H", "site/.git"],
        &["-w", "one"],
        &["-w", "site", "one", "link"],
        &["--wrap-with-directory", "--hidden", "site"],
        &["many"],
        &["--cid-version=1", "site"],
        &["--cid-version=0", "site"],
        &["--raw-leaves", "site"],
        &["--raw-leaves=false", "--cid-version=1", "site"],
        &["--chunker=size-1000", "big"],
        &["--chunker", "rabin-512-1024-2048", "big"],
        &["-s", "buzhash", "--cid-version=1", "big"],
        &["-n", "site"],
        &["-Q", "site"],
        &["-Q", "-w", "site", "one"],
        &["-Q", "-n", "one"],
    ];
    for arguments in table {
        let ours = world.run(&[&["add"], *arguments].concat());
        assert_eq!(lines(&ours), lines(&world.kubo_adds(arguments)), "{arguments:?}");
    }
    let input = Noise::bytes(9, 400_000);
    for arguments in [&["-"][..], &["-w", "-"], &["-", "one"], &["-Q", "--cid-version=1", "-"]] {
        let ours =
            world.launch().pipe(world.content.path(), &[&["add"], arguments].concat(), &input).expect("is added");
        let kubo = [&["add", "--progress=false"], arguments].concat();
        let kubo = world.ipfs.run_with(world.content.path(), &kubo, &input);
        assert_eq!(lines(&String::from_utf8_lossy(&ours)), lines(&kubo), "{arguments:?}");
    }
}

#[test]
fn cids_equal_those_of_the_profiles() {
    let world = World::new(|_| ());
    for profile in ["unixfs-v0-2015", "unixfs-v1-2025"] {
        world.ipfs.run(world.content.path(), &["config", "profile", "apply", profile]);
        for more in
            [&["--hidden", "site"][..], &["big", "one", "nothing"], &["-w", "many"], &["--raw-leaves=false", "big"]]
        {
            let ours = world.run(&[&["add", "--profile", profile], more].concat());
            assert_eq!(lines(&ours), lines(&world.kubo_adds(more)), "{profile} {more:?}");
        }
    }
}

/// Everything below a path: files with their bytes, symlinks with their targets.
fn contents(top: &Path, path: &Path, found: &mut BTreeSet<(Vec<u8>, Vec<u8>)>) {
    let name = path.strip_prefix(top).expect("it is below").as_os_str().as_bytes().to_vec();
    if path.is_symlink() {
        found.insert((name, [b"-> ", fs::read_link(path).expect("a symlink").as_os_str().as_bytes()].concat()));
    } else if path.is_dir() {
        found.insert((name, b"a folder".to_vec()));
        for entry in fs::read_dir(path).expect("lists") {
            contents(top, &entry.expect("lists").path(), found);
        }
    } else {
        found.insert((name, fs::read(path).expect("reads")));
    }
}

/// Asserts that two paths have the same content, except for modes and times.
pub fn assert_same_content(what: &str, one: &Path, other: &Path) {
    let read = |path: &Path| {
        let mut found = BTreeSet::new();
        contents(path, path, &mut found);
        found
    };
    let (one, other) = (read(one), read(other));
    let names = |found: &BTreeSet<(Vec<u8>, Vec<u8>)>| -> Vec<String> {
        found.iter().map(|(name, bytes)| format!("{} ({} bytes)", String::from_utf8_lossy(name), bytes.len())).collect()
    };
    assert_eq!(names(&one), names(&other), "{what}");
    assert!(one == other, "{what}: the same names and sizes with different content");
}

#[test]
fn get_restores_what_was_added() {
    let world = World::new(|_| ());
    let content = world.content.path();
    // A name that is not UTF-8 is preserved.
    fs::write(content.join(std::ffi::OsStr::from_bytes(b"site/\xff")), b"no text").expect("the folder is ours");
    let site = world.run(&["add", "-Q", "--hidden", "site"]);
    let big = world.run(&["add", "-Q", "big"]);
    world.run(&["get", &site, "-o", "back"]);
    // Only symlinks that point out of the folder are skipped.
    for (link, target) in [("back/up", "../one"), ("back/out", "/nowhere")] {
        symlink(target, content.join(link)).expect("it is not there");
    }
    assert_same_content("folder", &content.join("site"), &content.join("back"));
    world.run(&["get", &big]);
    assert_same_content("file, called by its CID", &content.join("big"), &content.join(&big));
    world.run(&["get", &format!("/ipfs/{site}/images/large")]);
    assert_same_content("file in a folder", &content.join("site/images/large"), &content.join("large"));
    world.run(&["get", &format!("{site}/images/same"), "-o", "symlink"]);
    assert_eq!(fs::read_link(content.join("symlink")).expect("a symlink"), Path::new("large"));
    for link in ["up", "out"] {
        assert!(
            world.refusal(&["get", &format!("{site}/{link}"), "-o", "other"]).contains("is a symlink to"),
            "{link}"
        );
    }
    let printed = world.bytes(&["get", &big, "-o", "-"]);
    assert_same_bytes("standard output", &printed, &fs::read(content.join("big")).expect("reads"));

    // Nothing is overwritten: no file, no folder, even if it is empty, and no dangling symlink.
    fs::create_dir(content.join("new")).expect("the folder is ours");
    for taken in ["one", "new", "site", "site/out"] {
        for path in [&site, &big] {
            assert!(world.refusal(&["get", path, "-o", taken]).contains("already exists"), "{taken}");
        }
    }
    let left = fs::read_dir(content)
        .expect("lists")
        .filter(|entry| entry.as_ref().expect("lists").file_name().as_bytes().starts_with(b".causeway"));
    assert_eq!(left.count(), 0, "no temporary files are left");
}

#[test]
fn archives_are_read_by_tar_and_by_kubo() {
    let world = World::new(|_| ());
    let content = world.content.path();
    let out = |name: &str| content.join(name).display().to_string();
    let images = world.run(&["add", "-Q", "site/images"]);
    world.run(&["get", "--tar", &images, "-o", &out("images.tar")]);
    assert_eq!(world.bytes(&["get", "--tar", &images]), fs::read(content.join("images.tar")).expect("reads"));
    let mut tar = Command::new("tar");
    let status = tar.arg("xf").arg(content.join("images.tar")).current_dir(content).status();
    assert!(status.expect("tar starts").success());
    assert_same_content("tar", &content.join("site/images"), &content.join(&images));

    // Kubo has none of these blocks, so all must be in the archive.
    let site = world.run(&["add", "-Q", "--hidden", "site"]);
    world.run(&["get", "--car", &site, "-o", &out("site.car")]);
    world.ipfs.run(content, &["dag", "import", &out("site.car")]);
    world.ipfs.run(content, &["get", &site, "-o", &out("kubo"), "--progress=false"]);
    assert_same_content("car", &content.join("site"), &content.join("kubo"));
    // A TAR has no symlinks that point out of the folder.
    world.run(&["get", "--tar", &site, "-o", &out("site.tar")]);
    let listed = Command::new("tar").arg("tvf").arg(content.join("site.tar")).output().expect("tar starts");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("images/") && !listed.contains("-> /"), "{listed}");
    assert!(world.refusal(&["get", &site, "-o", "-"]).contains("--tar"));
}

#[test]
fn ls_equals_kubos() {
    let world = World::new(|settings| settings["Import"]["UnixFSHAMTDirectorySizeThreshold"] = json!("1000B"));
    let content = world.content.path();
    let site = world.run(&["add", "-Q", "site"]);
    let raw = world.run(&["add", "-Q", "--cid-version=1", "site"]);
    world.kubo_adds(&["site"]);
    world.kubo_adds(&["--cid-version=1", "site"]);
    // A sharded folder of Kubo: its CID and its blocks.
    let sharded = world.kubo_adds(&["-Q", "many"]);
    let car = content.join("many.car");
    export(&world, &sharded, &car);
    world.launch().import(&car);
    for path in [site.clone(), raw, format!("{site}/images"), sharded.clone(), format!("{site}/empty")] {
        let ours = world.run(&["ls", &path]);
        assert_eq!(lines(&ours), lines(&world.ipfs.run(content, &["ls", &path])), "{path}");
    }
    assert_eq!(world.run(&["ls", &sharded]).lines().count(), 300);

    let json: Vec<Value> =
        world.run(&["ls", "--json", &site]).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let entry = |name: &str| json.iter().find(|entry| entry["name"] == name).expect("is listed");
    assert_eq!((&entry("index.html")["type"], &entry("index.html")["size"]), (&json!("file"), &json!(9)));
    assert_eq!((&entry("empty")["type"], &entry("empty")["size"]), (&json!("directory"), &Value::Null));
    assert_eq!((&entry("up")["type"], &entry("up")["size"]), (&json!("symlink"), &json!(6)));
}

/// Writes a DAG of Kubo's to an archive.
fn export(world: &World, cid: &str, car: &Path) {
    let file = fs::File::create(car).expect("the folder is ours");
    let mut command = world.ipfs.command(world.content.path());
    let status = command.args(["dag", "export", "--progress=false", cid]).stdout(file).status();
    assert!(status.expect("ipfs starts").success(), "ipfs dag export {cid}");
}

#[tokio::test(flavor = "multi_thread")]
async fn added_content_is_pinned_and_served() {
    let world = World::new(|_| ());
    let big = fs::read(world.content.path().join("big")).expect("reads");
    let added = world.run(&["add", "-Q", "--name", "my file", "-w", "big"]);
    // The cache is smaller than the file, which is complete because it is pinned.
    let launch = world.launch().set("CAUSEWAY_CACHE_DISK_BYTES_MAX", 1 << 20);
    let node = launch.start().await;
    node.expect(&format!("/ipfs/{added}/big"), &big).await;
    assert_eq!(world.run(&["add", "-n", "-Q", "-w", "big"]), added, "a CID can be computed without the store");
    node.stop().await;
}

#[test]
fn missing_content_and_invalid_arguments_are_reported() {
    let world = World::new(|_| ());
    let absent = world.run(&["add", "-n", "-Q", "big"]);
    assert!(world.refusal(&["get", &absent]).contains("there is no store in "));
    world.run(&["add", "-Q", "one"]);
    let table: [(&[&str], &str); 8] = [
        (&["add", "one", "nowhere"], "nowhere cannot be read"),
        (&["add", "-", "-"], "standard input can be given only once"),
        (&["add", "-w", "one", "./one"], "have the same name one"),
        (&["get", &absent], &absent),
        (&["ls", &absent], &absent),
        (&["get", "hello"], "CID"),
        (&["ls", "/ipns/example.org"], "does not resolve names"),
        (&["get", "--car", "--tar", &absent], "cannot be used with"),
    ];
    for (arguments, words) in table {
        let error_line = world.refusal(arguments);
        assert!(error_line.contains(words), "{arguments:?}: {error_line}");
    }
    // A file of which only the root is stored: nothing is written.
    let content = world.content.path();
    let root = world.kubo_adds(&["-Q", "big"]);
    let block = world.ipfs.command(content).args(["block", "get", &root]).output().expect("ipfs starts").stdout;
    let car = content.join("root.car");
    fs::write(&car, one_block_car(&root, &block)).expect("the folder is ours");
    assert!(world.launch().run(&["import", &car.display().to_string()]).is_err(), "incomplete, but stored");
    let error_line = world.refusal(&["get", &root, "-o", "part"]);
    let leaf = world.ipfs.run(content, &["refs", &root]);
    assert!(
        leaf.lines().any(|leaf| error_line.contains(leaf)) && error_line.contains("is not stored locally"),
        "{error_line}"
    );
    assert!(!content.join("part").exists());
    assert!(world.run(&["ls", &root]).contains("1500000"), "the root has the file's size");
}

/// A CARv1 of one block, which is a dag-pb node with a CIDv0.
fn one_block_car(cid: &str, block: &[u8]) -> Vec<u8> {
    let cid = content::cid::parse(cid).expect("a CID");
    let block = content::Block::verify(cid, block.to_vec().into()).expect("Kubo's blocks match");
    let (head, data) = content::car::section(&block);
    [&content::car::header(&[cid])[..], &head, &data].concat()
}
