//! Whose objects these are.

use crate::server::{BUCKET, Server};
use crate::support::{assert_refused, names};
use bytes::Bytes;
use futures::StreamExt as _;
use objects::{MARKER_NAME, Objects, StoreOptions, check_marker, require_marker};
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_is_one_sites() {
    let dir = tempfile::tempdir().expect("a folder");
    let open =
        |options: &StoreOptions| objects::open(&format!("file://{}", dir.path().display()), options).expect("opens");
    is_one_sites(&|| open(&StoreOptions::default())).await;
    // A gateway that starts later.
    check_marker(&*open(&StoreOptions::default()), "berlin").await.expect("is Berlin's");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_of_a_bucket_is_one_sites() {
    let server = Server::start().await;
    let open = |prefix: &str| objects::open(&format!("s3://{BUCKET}/{prefix}"), &server.options()).expect("opens");
    is_one_sites(&|| open("berlin/objects")).await;
    is_one_sites(&|| open("paris/objects/")).await;
    assert_eq!(names(&*server.objects(), "").await, ["berlin/objects/causeway-site", "paris/objects/causeway-site"]);
}

/// Opens a store again where its marker is changed: one that has had a marker may require it.
async fn is_one_sites(open: &dyn Fn() -> Arc<dyn Objects>) {
    let objects = &*open();
    assert_refused(require_marker(objects, "berlin").await, "is the file system mounted");
    objects.put("v1/blocks/x", Bytes::from_static(b"x")).await.expect("puts");
    assert_refused(check_marker(objects, "berlin").await, "v1/blocks/x");
    objects.delete("v1/blocks/x").await.expect("deletes");

    for _ in 0..2 {
        check_marker(objects, "berlin").await.expect("is Berlin's");
        require_marker(objects, "berlin").await.expect("is Berlin's");
    }
    assert_refused(check_marker(objects, "paris").await, "the site \"berlin\"");
    assert_refused(require_marker(objects, "paris").await, "the site \"berlin\"");

    objects.put("v1/blocks/x", Bytes::from_static(b"x")).await.expect("puts");
    check_marker(objects, "berlin").await.expect("is Berlin's");
    objects.delete(MARKER_NAME).await.expect("deletes");
    assert_refused(check_marker(objects, "berlin").await, MARKER_NAME);
    let objects = &*open();
    assert_refused(check_marker(objects, "berlin").await, MARKER_NAME);
    objects.put(MARKER_NAME, Bytes::from_static(b"format 2\n")).await.expect("puts");
    assert_refused(check_marker(objects, "berlin").await, "newer release");

    for name in ["v1/blocks/x", MARKER_NAME] {
        objects.delete(name).await.expect("deletes");
    }
    check_marker(&*open(), "berlin").await.expect("is new again");
}

/// A folder that was replaced, on the same file system.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_has_lost_its_marker_is_not_used() {
    let dir = tempfile::tempdir().expect("a folder");
    let root = dir.path().join("root");
    std::fs::create_dir(&root).expect("is created");
    let url = format!("file://{}", root.display());
    let objects = objects::open(&url, &StoreOptions::default()).expect("opens");
    check_marker(&*objects, "berlin").await.expect("is new");
    objects.put("v1/x", Bytes::from_static(b"x")).await.expect("puts");
    std::fs::rename(&root, dir.path().join("aside")).expect("is moved");
    std::fs::create_dir(&root).expect("is created");
    assert_refused(objects.get("v1/x").await, "is the file system mounted");
    assert_refused(objects.put("v1/y", Bytes::new()).await, "is the file system mounted");
    assert_refused(objects.list("").next().await.expect("an error"), "is the file system mounted");
    assert_eq!(std::fs::read_dir(&root).expect("is read").count(), 0, "nothing was written");
    std::fs::remove_dir(&root).expect("is empty");
    std::fs::rename(dir.path().join("aside"), &root).expect("is moved back");
    assert_eq!(objects.get("v1/x").await, Ok(Some(Bytes::from_static(b"x"))));
}
