//! What every engine does, for each of them.

use crate::server::Server;
use crate::support::{folder_in_memory, listed, names, noise};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::join_all;
use objects::{ListedObject, ObjectError, Objects, StoreOptions};
use std::path::Path;

const BYTES_MAX: u64 = 1 << 20;
/// More than two pages of S3.
const MANY: usize = 2_005;

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_stores_objects() {
    let dir = folder_in_memory();
    let options = StoreOptions { bytes_max: BYTES_MAX, ..StoreOptions::default() };
    let objects = objects::open(&format!("file://{}", dir.path().display()), &options).expect("opens");
    stores_objects(&*objects, dir.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_stores_objects() {
    // Connections are used for many requests, as with most servers.
    let server = Server::with(|_| vec!["--keep-alive".to_owned()]).await;
    stores_objects(&*server.objects(), &server.bucket()).await;
}

/// The suite. `files` is where a file of a name is an object.
async fn stores_objects(objects: &dyn Objects, files: &Path) {
    whole_objects_are_put_read_and_deleted(objects).await;
    lengths_are_limited(objects, files).await;
    invalid_names_are_refused(objects).await;
    prefixes_select_objects(objects).await;
    many_objects_are_listed(objects, files).await;
    operations_are_concurrent(objects).await;
}

async fn whole_objects_are_put_read_and_deleted(objects: &dyn Objects) {
    for (name, len) in [("v1/blocks/ab/one.0", 1), ("v1/blocks/ab/two.0", 256 << 10), ("top-level_object.x", 0)] {
        assert_eq!(objects.get(name).await, Ok(None), "{name}");
        let data = Bytes::from(noise(len as u64, len));
        objects.put(name, data.clone()).await.expect("puts");
        assert_eq!(objects.get(name).await, Ok(Some(data)), "{name}");
        // A part of a name is none.
        assert_eq!(objects.get(&name[..name.len() - 1]).await, Ok(None), "{name}");
        objects.delete(name).await.expect("deletes");
        assert_eq!(objects.get(name).await, Ok(None), "{name}");
        objects.delete(name).await.expect("nothing is to be deleted");
    }
    for absent in ["v1/blocks/ab", "v1/blocks", "absent/of/all"] {
        assert_eq!(objects.get(absent).await, Ok(None), "{absent}");
        objects.delete(absent).await.expect("nothing is to be deleted");
    }
    assert_eq!(names(objects, "").await, Vec::<String>::new());
    // The same bytes under the same name, as when an answer was lost.
    for _ in 0..2 {
        objects.put("again.0", Bytes::from_static(b"same")).await.expect("puts");
    }
    assert_eq!(objects.get("again.0").await, Ok(Some(Bytes::from_static(b"same"))));
    objects.delete("again.0").await.expect("deletes");
}

async fn lengths_are_limited(objects: &dyn Objects, files: &Path) {
    let longest = Bytes::from(noise(7, usize::try_from(BYTES_MAX).expect("small")));
    objects.put("longest", longest.clone()).await.expect("puts");
    assert_eq!(objects.get("longest").await, Ok(Some(longest.clone())));
    let longer = [&longest[..], b"x"].concat();
    let too_long = |name: &str| ObjectError::TooLong { name: name.into(), bytes: BYTES_MAX + 1, bytes_max: BYTES_MAX };
    assert_eq!(objects.put("longer", longer.clone().into()).await, Err(too_long("longer")));
    std::fs::write(files.join("foreign"), longer).expect("writes");
    assert_eq!(objects.get("foreign").await, Err(too_long("foreign")));
    assert_eq!(names(objects, "").await, ["foreign", "longest"]);
    for name in ["longest", "foreign"] {
        objects.delete(name).await.expect("deletes");
    }
}

async fn invalid_names_are_refused(objects: &dyn Objects) {
    for name in ["", "/a", "a/", "a//b", "../a", "a/../b", ".tmp/a", "a b", "ä"] {
        let is_refused = |error: Option<ObjectError>| matches!(error, Some(ObjectError::Name { .. }));
        assert!(is_refused(objects.put(name, Bytes::new()).await.err()), "{name:?}");
        assert!(is_refused(objects.get(name).await.err()), "{name:?}");
        assert!(is_refused(objects.delete(name).await.err()), "{name:?}");
    }
    let mut refused = objects.list("../");
    assert!(matches!(refused.next().await, Some(Err(ObjectError::Name { .. }))));
    assert!(refused.next().await.is_none());
}

async fn prefixes_select_objects(objects: &dyn Objects) {
    let all = ["p/ab/1", "p/ab/12", "p/ab/2", "p/abc/1", "p/b/deep/er/1", "q"];
    join_all(all.map(|name| objects.put(name, Bytes::from(name)))).await.into_iter().for_each(|put| put.expect("puts"));
    let table: [(&str, &[&str]); 13] = [
        ("", &all),
        ("p/", &all[..5]),
        ("p", &all[..5]),
        ("p/ab", &all[..4]),
        ("p/ab/", &all[..3]),
        ("p/ab/1", &all[..2]),
        ("p/ab/12", &all[1..2]),
        ("p/a", &all[..4]),
        ("p/b/deep/er/", &all[4..5]),
        ("p/b/de", &all[4..5]),
        ("q", &all[5..]),
        ("q/", &[]),
        ("none/at/all", &[]),
    ];
    for (prefix, expected) in table {
        assert_eq!(names(objects, prefix).await, expected, "{prefix:?}");
    }
    let expected: Vec<ListedObject> =
        all.map(|name| ListedObject { name: name.to_owned(), bytes: name.len() as u64 }).to_vec();
    assert_eq!(listed(objects, "").await, expected);
    for name in all {
        objects.delete(name).await.expect("deletes");
    }
}

async fn many_objects_are_listed(objects: &dyn Objects, files: &Path) {
    let mut expected = Vec::new();
    for number in 0..MANY {
        let name = format!("many/{:02x}/{number:05}.0", number % 7);
        let file = files.join(&name);
        std::fs::create_dir_all(file.parent().expect("it has one")).expect("creates");
        std::fs::write(file, "x".repeat(number % 5)).expect("writes");
        expected.push(ListedObject { name, bytes: (number % 5) as u64 });
    }
    expected.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(listed(objects, "many/").await == expected);
    // Nothing else happens if a listing is dropped.
    assert!(objects.list("many/").next().await.is_some_and(|object| object.is_ok()));
    std::fs::remove_dir_all(files.join("many")).expect("removes");
    assert_eq!(names(objects, "many/").await, Vec::<String>::new());
}

async fn operations_are_concurrent(objects: &dyn Objects) {
    let count = 64_usize;
    let name = |number: usize| format!("concurrent/{:x}/{number}", number % 3);
    let data = |number: usize| Bytes::from(noise(number as u64, 1_000 * number));
    let put_and_read = async |number: usize| {
        // Readers in the meantime get all of it or nothing.
        let (name, data) = (name(number), data(number));
        let (put, read) = futures::join!(objects.put(&name, data.clone()), objects.get(&name));
        put.expect("puts");
        assert!(read.expect("reads").is_none_or(|read| read == data), "{number}");
        assert_eq!(objects.get(&name).await, Ok(Some(data)), "{number}");
    };
    join_all((0..count).map(put_and_read)).await;
    assert_eq!(names(objects, "concurrent/").await.len(), count);
    join_all((0..count).map(async |number| objects.delete(&name(number)).await.expect("deletes"))).await;
    assert_eq!(names(objects, "").await, Vec::<String>::new());
}
