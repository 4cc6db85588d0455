//! Mounts, permissions, symbolic links, leftovers.

use crate::support::{assert_refused, child, child_args, is_root, names, noise, run};
use bytes::Bytes;
use futures::StreamExt as _;
use objects::{Objects, OpenError, StoreOptions, check_marker};
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Names the folder that a child works in.
const DIR: &str = "CAUSEWAY_OBJECTS_DIR";

fn open(folder: &Path) -> Result<Arc<dyn Objects>, OpenError> {
    objects::open(&format!("file://{}", folder.display()), &StoreOptions::default())
}

/// The folder of a child; `None` if this is no child.
fn given() -> Option<PathBuf> {
    std::env::var_os(DIR).map(PathBuf::from)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_that_is_missing_is_refused_and_not_created() {
    let dir = tempfile::tempdir().expect("a folder");
    let root = dir.path().join("root");
    let error = open(&root).expect_err("there is none").to_string();
    assert!(error.contains("is the file system mounted") && !root.exists(), "{error}");
    fs::write(&root, "").expect("writes");
    let error = open(&root).expect_err("is a file").to_string();
    assert!(error.contains("is not a folder"), "{error}");
    fs::remove_file(&root).expect("is there");

    fs::create_dir(&root).expect("creates");
    let objects = open(&root).expect("opens");
    objects.put("a/b", Bytes::from_static(b"x")).await.expect("puts");
    let away = dir.path().join("away");
    fs::rename(&root, &away).expect("renames");
    // It is missing while a gateway runs: nothing is absent because of that.
    assert_refused(objects.get("a/b").await, "is the file system mounted");
    assert_refused(objects.put("a/c", Bytes::new()).await, "is the file system mounted");
    assert_refused(objects.delete("a/b").await, "is the file system mounted");
    assert_refused(objects.list("").next().await.expect("an error"), "is the file system mounted");
    assert!(!root.exists());
    fs::rename(&away, &root).expect("renames");
    assert_eq!(objects.get("a/b").await, Ok(Some(Bytes::from_static(b"x"))));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_leads_out_of_the_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
    for folder in [&root, &outside] {
        fs::create_dir(folder).expect("creates");
    }
    fs::write(outside.join("secret"), "secret").expect("writes");
    let objects = open(&root).expect("opens");
    objects.put("in/side", Bytes::from_static(b"x")).await.expect("puts");
    symlink(&outside, root.join("folder")).expect("links");
    symlink(outside.join("secret"), root.join("file")).expect("links");

    assert_refused(objects.get("folder/secret").await, "symbolic link");
    assert_refused(objects.get("file").await, "symbolic link");
    assert_refused(objects.put("folder/new", Bytes::from_static(b"x")).await, "symbolic link");
    assert_refused(objects.delete("folder/secret").await, "symbolic link");
    assert_refused(objects.list("folder/").next().await.expect("an error"), "symbolic link");
    assert_eq!(names(&*objects, "").await, ["in/side"]);
    // A link is replaced and deleted itself.
    objects.put("file", Bytes::from_static(b"x")).await.expect("puts");
    assert_eq!(fs::read_to_string(outside.join("secret")).expect("is there"), "secret");
    assert_eq!(fs::read_dir(&outside).expect("is there").count(), 1);

    let (pipe, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, root.join("pipe"), pipe, mode, 0).expect("creates");
    assert_refused(objects.get("pipe").await, "is not a file");
    // The root itself may be one.
    symlink(&root, dir.path().join("link")).expect("links");
    let linked = open(&dir.path().join("link")).expect("opens");
    assert_eq!(linked.get("in/side").await, Ok(Some(Bytes::from_static(b"x"))));
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_folders_are_no_objects() {
    let dir = tempfile::tempdir().expect("a folder");
    let objects = open(dir.path()).expect("opens");
    objects.put("a/b", Bytes::from_static(b"x")).await.expect("puts");
    assert_refused(objects.put("a", Bytes::new()).await, "in place of");
    assert_refused(objects.put("a/b/c", Bytes::new()).await, "in place of");
    assert_eq!(objects.get("a/b/c").await, Ok(None));
    objects.delete("a/b/c").await.expect("nothing is to be deleted");
    assert_eq!(names(&*objects, "a/b/").await, Vec::<String>::new());
    assert_eq!(names(&*objects, "").await, ["a/b"]);
    assert_eq!(fs::read_dir(dir.path().join(".tmp")).expect("is there").count(), 0, "what has failed left nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_others_are_no_objects_and_stay_for_a_day() {
    let dir = tempfile::tempdir().expect("a folder");
    let objects = open(dir.path()).expect("opens");
    check_marker(&*objects, "berlin").await.expect("is new");
    let temporary = dir.path().join(".tmp");
    let aged = |name: &str, hours: u64| {
        let file = File::create(temporary.join(name)).expect("creates");
        let time = SystemTime::now() - Duration::from_secs(hours * 3_600);
        file.set_times(FileTimes::new().set_modified(time)).expect("is ours");
    };
    aged("0123456789abcdef-0", 0);
    aged("0123456789abcdef-1", 23);
    aged("0123456789abcdef-2", 25);
    fs::create_dir(dir.path().join("lost+found")).expect("creates");
    fs::write(dir.path().join("lost+found/x"), "").expect("writes");
    fs::write(dir.path().join(".nfs0001"), "").expect("writes");

    let objects = open(dir.path()).expect("opens");
    let mut left: Vec<_> =
        fs::read_dir(&temporary).expect("is there").map(|entry| entry.expect("reads").file_name()).collect();
    left.sort();
    assert_eq!(left, ["0123456789abcdef-0", "0123456789abcdef-1"]);
    assert_eq!(names(&*objects, "").await, ["causeway-site"]);
    assert!(dir.path().join(".nfs0001").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_folder_is_not_written_to_before_it_has_a_marker() {
    let dir = tempfile::tempdir().expect("a folder");
    open(dir.path()).expect("opens");
    assert_eq!(fs::read_dir(dir.path()).expect("is there").count(), 0);
}

/// In a child of another user, if this is root: root may do everything.
#[test]
fn permissions_are_the_operators_to_give() {
    let dir = tempfile::tempdir().expect("a folder");
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("is ours");
    let root = dir.path().join("root");
    fs::create_dir(&root).expect("creates");
    for (folder, mode) in [("root", 0o755), ("root/unreadable", 0o000), ("root/readable", 0o555)] {
        fs::create_dir_all(dir.path().join(folder)).expect("creates");
        fs::set_permissions(dir.path().join(folder), Permissions::from_mode(mode)).expect("is ours");
    }
    fs::set_permissions(&root, Permissions::from_mode(0o555)).expect("is ours");
    let (program, args) = child(dir.path(), "folder::child_without_permissions");
    let mut command = Command::new(program);
    command.args(args).env(DIR, &root);
    if is_root() {
        command.uid(65_534).gid(65_534);
    }
    run(&mut command);
    for folder in ["root", "root/unreadable"] {
        fs::set_permissions(dir.path().join(folder), Permissions::from_mode(0o755)).expect("is ours");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn child_without_permissions() {
    let Some(root) = given() else { return };
    let objects = open(&root).expect("opens");
    let words = "needs to read and write";
    assert_refused(objects.put("new", Bytes::new()).await, words);
    assert_refused(objects.put("readable/new", Bytes::new()).await, words);
    assert_refused(objects.get("unreadable/a").await, words);
    assert_refused(objects.delete("unreadable/a").await, words);
    assert_refused(objects.list("").collect::<Vec<_>>().await.pop().expect("an error"), words);
    let error = open(&root.join("unreadable")).expect_err("is refused").to_string();
    assert!(error.contains(words), "{error}");
}

/// In a mount namespace, if the system allows one.
#[test]
fn mounts_that_are_full_or_away_are_no_empty_stores() {
    let unshared = |command: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--map-root-user", "sh", "-c", command]);
        unshare
    };
    let dir = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| {
        fs::create_dir(dir.path().join(name)).expect("creates");
        dir.path().join(name)
    };
    let (root, elsewhere) = (folder("root"), folder("elsewhere"));
    let mount = "mount -t tmpfs -o size=1m tmpfs \"$ROOT\"";
    if !unshared(mount).env("ROOT", &root).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: no mounts without privileges on this system");
        return;
    }
    let program = std::env::current_exe().expect("it has a path");
    let command = format!("{mount} && exec \"$0\" \"$@\"");
    let mut child = unshared(&command);
    child.arg(program).args(child_args("folder::child_with_a_mount"));
    run(child.env("ROOT", &root).env("ELSEWHERE", elsewhere).env(DIR, &root));
    assert_eq!(fs::read_dir(&root).expect("is there").count(), 0, "nothing was written below the mount point");
}

#[tokio::test(flavor = "multi_thread")]
async fn child_with_a_mount() {
    let (Some(root), Some(elsewhere)) = (given(), std::env::var_os("ELSEWHERE").map(PathBuf::from)) else { return };
    let mount = |args: &[&str], path: &Path| {
        assert!(Command::new(args[0]).args(&args[1..]).arg(path).status().expect("runs").success(), "{args:?}");
    };
    let objects = open(&root).expect("opens");
    check_marker(&*objects, "berlin").await.expect("is new");
    objects.put("v1/whole", Bytes::from_static(b"x")).await.expect("puts");

    let large = Bytes::from(noise(1, 700_000));
    objects.put("v1/large", large.clone()).await.expect("puts");
    assert_refused(objects.put("v1/more", large.clone()).await, "is full");
    assert_eq!(names(&*objects, "v1/").await, ["v1/large", "v1/whole"]);
    objects.delete("v1/large").await.expect("deletes");
    objects.put("v1/more", large).await.expect("there is space again: the failed file is away");

    mount(&["mount", "--bind", root.to_str().expect("a name")], &elsewhere);
    mount(&["umount"], &root);
    assert_refused(objects.get("v1/whole").await, "is the file system mounted");
    assert_refused(objects.put("v1/new", Bytes::new()).await, "is the file system mounted");
    assert_refused(objects.list("").next().await.expect("an error"), "is the file system mounted");
    // Another file system without a marker, and then the former one.
    mount(&["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs"], &root);
    assert_refused(objects.get("v1/whole").await, "is the file system mounted");
    mount(&["mount", "--bind", elsewhere.to_str().expect("a name")], &root);
    assert_eq!(objects.get("v1/whole").await, Ok(Some(Bytes::from_static(b"x"))));

    // One that was mounted read-only: what is there can be read.
    mount(&["mount", "-o", "remount,bind,ro"], &root);
    assert_eq!(objects.get("v1/whole").await, Ok(Some(Bytes::from_static(b"x"))));
    assert_refused(objects.put("v1/new", Bytes::new()).await, "read-only");
    let error = open(&root).expect_err("cannot be written to").to_string();
    assert!(error.contains("read-only"), "{error}");
}
