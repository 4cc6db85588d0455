//! Registers of both kinds keep what they are given; those on a disk find it again.

use crate::StoreError;
use crate::register::{Change, Register};
use std::ops::ControlFlow;

fn put(key: &str, value: &str) -> Change {
    Change::Put(key.into(), value.into())
}

fn delete(key: &str) -> Change {
    Change::Delete(key.into())
}

fn records(register: &Register, prefix: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    register
        .scan(prefix.as_bytes(), |key, value| {
            found.push((text(key), text(value)));
            ControlFlow::Continue(())
        })
        .expect("scans");
    found
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

#[tokio::test]
async fn changes_are_made_in_their_order() {
    let dir = tempfile::tempdir().expect("a directory");
    for register in [Register::memory(), Register::open(dir.path()).expect("opens")] {
        assert_eq!(records(&register, ""), []);
        register.write(Vec::new()).await.expect("nothing to do is no error");
        let changes = vec![put("a/1", "one"), put("b/1", "x"), put("a/2", "two"), put("a/1", "uno"), delete("b/1")];
        register.write(changes).await.expect("writes");
        assert_eq!(records(&register, "a/"), [pair("a/1", "uno"), pair("a/2", "two")]);
        assert_eq!(records(&register, "b"), []);
        assert_eq!(records(&register, "a/2"), [pair("a/2", "two")]);
        assert_eq!(register.get(b"a/1").expect("reads"), Some(b"uno".to_vec()));
        register.write(vec![delete("a/1"), delete("never there")]).await.expect("writes");
        assert_eq!(register.get(b"a/1").expect("reads"), None);
        let mut seen = 0;
        register.write(vec![put("a/3", "three")]).await.expect("writes");
        let once = |_: &[u8], _: &[u8]| {
            seen += 1;
            ControlFlow::Break(())
        };
        register.scan(b"", once).expect("scans");
        assert_eq!(seen, 1, "a visitor may leave");
    }
}

#[tokio::test]
async fn what_was_written_is_found_by_the_next_process_and_by_one_at_a_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pins");
    assert!(!Register::is_in(&path));
    let many: Vec<_> = (0..5_000).map(|n| put(&format!("{n:05}"), &"v".repeat(600))).collect();
    {
        let register = Register::open(&path).expect("opens");
        register.write(many).await.expect("writes");
        register.write(vec![delete("00007")]).await.expect("writes");
        let error = Register::open(&path).expect_err("somebody has it open");
        assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    }
    assert!(Register::is_in(&path));
    let found = records(&Register::open(&path).expect("opens"), "");
    assert_eq!(found.len(), 4_999);
    assert!(!found.contains(&pair("00007", &"v".repeat(600))));
}
