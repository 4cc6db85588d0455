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

/// Registers whose files are damaged.
mod damage {
    use super::*;
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::{Path, PathBuf};

    const RECORDS: usize = 6_000;

    /// What a test does to a file.
    #[derive(Debug, Clone, Copy)]
    enum Harm {
        /// A bit is flipped so far into the file, in hundredths.
        Flip(usize),
        /// What follows from there on is lost.
        Cut(usize),
        /// The file is gone.
        Gone,
    }

    fn records_of_all() -> BTreeMap<String, String> {
        // Names as those of requests, even over their digits.
        let name = |number: usize| {
            format!("request/{:032x}", (number as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
        };
        (0..RECORDS).map(|number| (name(number), format!("{number:0>400}"))).collect()
    }

    /// A register with tables and a log, in `dir`.
    fn make(dir: &Path) {
        let register = Register::open(dir).expect("opens");
        let all: Vec<_> = records_of_all().into_iter().collect();
        for some in all.chunks(50) {
            register.write_now(some.iter().map(|(key, value)| put(key, value)).collect()).expect("writes");
        }
    }

    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).expect("makes");
        for entry in fs::read_dir(from).expect("lists") {
            let entry = entry.expect("lists");
            fs::copy(entry.path(), to.join(entry.file_name())).expect("copies");
        }
    }

    fn harm(path: &Path, harm: Harm) {
        let mut bytes = fs::read(path).expect("reads");
        match harm {
            Harm::Flip(hundredths) => {
                let at = (bytes.len() - 1) * hundredths / 100;
                bytes[at] ^= 0x10;
                fs::write(path, bytes).expect("writes");
            }
            Harm::Cut(hundredths) => fs::write(path, &bytes[..bytes.len() * hundredths / 100]).expect("writes"),
            Harm::Gone => fs::remove_file(path).expect("deletes"),
        }
    }

    /// The files that a register cannot do without: the manifest, the one that names it, tables and logs.
    fn files(dir: &Path) -> Vec<PathBuf> {
        let is_data = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let table = [".sst", ".log"].iter().any(|end| name.ends_with(end));
            (table || name == "CURRENT" || name.starts_with("MANIFEST-"))
                && fs::metadata(path).is_ok_and(|file| file.len() > 0)
        };
        let mut files: Vec<_> = fs::read_dir(dir).expect("lists").map(|entry| entry.expect("lists").path()).collect();
        files.retain(is_data);
        files.sort_unstable();
        files
    }

    #[test]
    fn whatever_is_damaged_what_can_be_read_is_found() {
        let home = tempfile::tempdir().expect("a directory");
        let sound = home.path().join("sound");
        make(&sound);
        let all = records_of_all();
        let mut files = files(&sound);
        // Two tables stand for all of them.
        let mut tables = 0;
        files.retain(|file| {
            let is_table = file.to_string_lossy().ends_with(".sst");
            tables += usize::from(is_table);
            !is_table || tables <= 2
        });
        let of_kind = |end: &str| files.iter().filter(|file| file.to_string_lossy().ends_with(end)).count();
        assert!(of_kind(".sst") > 0 && of_kind(".log") > 0, "{files:?}");
        let harms = [Harm::Flip(3), Harm::Flip(50), Harm::Flip(97), Harm::Cut(60), Harm::Gone];
        for (number, (file, kind)) in files.iter().flat_map(|file| harms.map(|harm| (file, harm))).enumerate() {
            let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
            let dir = home.path().join(format!("trial-{number}"));
            copy(&sound, &dir);
            harm(&dir.join(name), kind);
            let what = format!("{name} {kind:?}");
            let register = Register::open_or_salvage(&dir).unwrap_or_else(|error| panic!("{what}: {error}"));
            let found = records(&register, "");
            assert!(found.iter().all(|(key, value)| all.get(key) == Some(value)), "{what}: nothing is made up");
            // What the file alone has may be gone with it: the end of a log that is cut, a table that is deleted.
            let most = match (kind, name.rsplit_once('.')) {
                // The end of a table is what leads to the rest of it: without that, none of its records is found.
                (Harm::Flip(97), Some((_, "sst"))) => RECORDS / 4,
                (Harm::Flip(_), Some((_, "sst"))) => 50,
                (Harm::Flip(_), Some((_, "log"))) => 150,
                (_, None) => 0,
                _ => RECORDS,
            };
            assert!(found.len() + most >= RECORDS, "{what}: {} of {RECORDS}", found.len());
            if let Some(salvage) = register.salvage() {
                assert_eq!((salvage.records, &salvage.unwritten), (found.len() as u64, &None), "{what}");
                let kept = salvage.kept.as_ref().expect("kept");
                assert!(kept.join(name).exists() || matches!(kind, Harm::Gone), "{what}: the damaged file is kept");
            } else {
                // What a process that was killed leaves looks the same.
                assert!(matches!(kind, Harm::Cut(_) | Harm::Gone | Harm::Flip(97)), "{what}: that is told of");
            }
            // It is as good as any from then on.
            register.write_now(vec![put("later", "one")]).expect("writes");
            drop(register);
            let register = Register::open_or_salvage(&dir).expect("opens");
            assert!(register.salvage().is_none(), "{what}: once");
            assert_eq!(records(&register, "").len(), found.len() + 1, "{what}");
            drop(register);
            fs::remove_dir_all(&dir).expect("cleans up");
        }
    }

    #[test]
    fn a_check_finds_damage_and_changes_nothing() {
        let home = tempfile::tempdir().expect("a directory");
        let dir = home.path().join("pins");
        make(&dir);
        assert_eq!(Register::check(&dir).expect("is sound"), RECORDS as u64);
        let table = files(&dir).into_iter().find(|file| file.extension().is_some_and(|end| end == "sst"));
        let table = table.expect("a table");
        harm(&table, Harm::Flip(50));
        let before = fs::read(&table).expect("reads");
        for _ in 0..2 {
            let error = Register::check(&dir).expect_err("it is damaged");
            assert!(matches!(error, StoreError::Corrupt(_)), "{error}");
        }
        assert_eq!(fs::read(&table).expect("reads"), before);
        assert_eq!(fs::read_dir(home.path()).expect("lists").count(), 1, "nothing is put beside it");
    }

    #[test]
    fn what_was_cut_off_is_ended_or_done_once_more() {
        let home = tempfile::tempdir().expect("a directory");
        let (dir, beside) = (home.path().join("pins"), |what: &str| home.path().join(format!("pins.{what}")));
        make(&dir);
        // Killed between the two names.
        fs::create_dir(beside("rebuilding")).expect("makes");
        fs::rename(&dir, beside("rebuilt")).expect("renames");
        assert_eq!(records(&Register::open_or_salvage(&dir).expect("opens"), "").len(), RECORDS);
        assert!(!beside("rebuilt").exists() && !beside("rebuilding").exists());
        // Killed before the first.
        fs::create_dir(beside("rebuilt")).expect("makes");
        assert_eq!(records(&Register::open_or_salvage(&dir).expect("opens"), "").len(), RECORDS);
        assert!(!beside("rebuilt").exists());
    }

    #[test]
    fn a_log_that_ends_in_the_middle_of_a_record_is_sound() {
        let home = tempfile::tempdir().expect("a directory");
        let dir = home.path().join("pins");
        make(&dir);
        let log =
            files(&dir).into_iter().rfind(|file| file.extension().is_some_and(|end| end == "log")).expect("a log");
        let bytes = fs::read(&log).expect("reads");
        fs::write(&log, &bytes[..bytes.len() - 7]).expect("writes");
        let register = Register::open_or_salvage(&dir).expect("opens");
        assert!(register.salvage().is_none());
        assert_eq!(records(&register, "").len(), RECORDS - 50);
        drop(register);
        // As a power cut may leave it: the length is there, and the last bytes are not.
        let home = tempfile::tempdir().expect("a directory");
        let dir = home.path().join("pins");
        make(&dir);
        let log =
            files(&dir).into_iter().rfind(|file| file.extension().is_some_and(|end| end == "log")).expect("a log");
        let mut bytes = fs::read(&log).expect("reads");
        let end = bytes.len();
        bytes[end - 100..].fill(0);
        fs::write(&log, bytes).expect("writes");
        let register = Register::open_or_salvage(&dir).expect("opens");
        assert!(register.salvage().is_none());
        assert_eq!(records(&register, "").len(), RECORDS - 50);
    }
}
