//! Tests of registers in memory and on disk.

use crate::StoreError;
use crate::metadata_store::{Appended, Change, LogPosition, MetadataLog, MetadataStore, log_suite};
use futures::future::{BoxFuture, FutureExt as _};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn put(key: &str, value: &str) -> Change {
    Change::Put(key.into(), value.into())
}

fn delete(key: &str) -> Change {
    Change::Delete(key.into())
}

fn records(register: &MetadataStore, prefix: &str) -> Vec<(String, String)> {
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
async fn changes_are_applied_in_order() {
    let dir = tempfile::tempdir().expect("a directory");
    for register in [MetadataStore::memory(), MetadataStore::open(dir.path()).expect("opens")] {
        assert_eq!(records(&register, ""), []);
        register.write(Vec::new()).await.expect("an empty batch is not an error");
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
        assert_eq!(seen, 1, "a visitor may break off");
    }
}

#[tokio::test]
async fn records_are_durable_and_the_register_is_locked() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pins");
    assert!(!MetadataStore::is_in(&path));
    let many: Vec<_> = (0..5_000).map(|n| put(&format!("{n:05}"), &"v".repeat(600))).collect();
    {
        let register = MetadataStore::open(&path).expect("opens");
        register.write(many).await.expect("writes");
        register.write(vec![delete("00007")]).await.expect("writes");
        let error = MetadataStore::open(&path).expect_err("it is open");
        assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    }
    assert!(MetadataStore::is_in(&path));
    let found = records(&MetadataStore::open(&path).expect("opens"), "");
    assert_eq!(found.len(), 4_999);
    assert!(!found.contains(&pair("00007", &"v".repeat(600))));
}

/// Some entries, so that members are told of them, or have to read all records again.
const ENTRIES_BYTES_MAX: [usize; 3] = [0, 300, 1 << 20];

fn members(register: MetadataStore, entries_bytes_max: usize, count: usize) -> Vec<Arc<dyn MetadataLog>> {
    let register = register.shared(entries_bytes_max);
    (0..count).map(|_| Arc::new(register.clone()) as _).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_register_in_memory_is_a_log() {
    for bytes_max in ENTRIES_BYTES_MAX {
        log_suite::check_all(&|count| members(MetadataStore::memory(), bytes_max, count)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_register_on_disk_is_a_log() {
    let (dir, opened) = (tempfile::tempdir().expect("a directory"), AtomicUsize::new(0));
    for bytes_max in ENTRIES_BYTES_MAX {
        let open = |count| {
            let dir = dir.path().join(opened.fetch_add(1, Ordering::Relaxed).to_string());
            members(MetadataStore::open(&dir).expect("opens"), bytes_max, count)
        };
        log_suite::check_all(&open).await;
    }
}

/// A log whose answers fail in turn: before the changes are appended, after that, and not at all.
#[derive(Debug)]
struct Failing(MetadataStore, AtomicUsize);

impl MetadataLog for Failing {
    fn read(&self, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<LogPosition, StoreError> {
        self.0.read(visit)
    }

    fn append(&self, after: LogPosition, changes: Vec<Change>) -> BoxFuture<'static, Result<Appended, StoreError>> {
        let turn = if changes.is_empty() { 2 } else { self.1.fetch_add(1, Ordering::Relaxed) % 3 };
        let append = self.0.append(after, changes);
        async move {
            match turn {
                0 => Err(StoreError::Closed),
                1 => append.await.and(Err(StoreError::Closed)),
                _ => append.await,
            }
        }
        .boxed()
    }
}

#[tokio::test]
async fn a_log_whose_answers_are_lost_loses_no_entry() {
    for bytes_max in ENTRIES_BYTES_MAX {
        let open = |_| {
            let log = MetadataStore::memory().shared(bytes_max);
            vec![Arc::new(Failing(log, AtomicUsize::new(0))) as Arc<dyn MetadataLog>]
        };
        log_suite::an_error_hides_no_entry(&open).await;
    }
}

#[tokio::test]
#[should_panic(expected = "before it is cloned")]
async fn a_store_with_clones_cannot_be_made_shared() {
    let register = MetadataStore::memory();
    let _clone = register.clone();
    _ = register.shared(0);
}

#[tokio::test]
async fn a_register_of_one_service_keeps_no_entries_and_has_no_hints() {
    let register = MetadataStore::memory();
    assert!(register.watch().is_none());
    let after = register.read(&mut |_, _| {}).expect("reads");
    register.write(vec![put("a", "1")]).await.expect("writes");
    assert_eq!(register.append(after, vec![put("a", "2")]).await.expect("appends"), Appended::Truncated);
    assert_eq!(records(&register, ""), [pair("a", "1")]);
}

#[tokio::test]
async fn entries_are_durable_and_positions_are_those_of_a_process() {
    let dir = tempfile::tempdir().expect("a directory");
    for opened in 0..3_u64 {
        let register = MetadataStore::open(dir.path()).expect("opens");
        let mut count = 0;
        let after = register.read(&mut |_, _| count += 1).expect("reads");
        assert_eq!((after, count), (LogPosition::untagged(0), opened));
        let appended = register.append(after, vec![put(&opened.to_string(), "x")]).await.expect("appends");
        assert_eq!(appended, Appended::At(LogPosition::untagged(1)));
    }
}

/// Registers whose files are damaged.
mod damage {
    use super::*;
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::{Path, PathBuf};

    const RECORDS: usize = 6_000;

    /// A kind of damage to a file.
    #[derive(Debug, Clone, Copy)]
    enum Damage {
        /// Flips a bit at this percentage of the file.
        Flip(usize),
        /// Truncates the file at this percentage.
        Cut(usize),
        /// Deletes the file.
        Gone,
    }

    fn records_of_all() -> BTreeMap<String, String> {
        // Names like those of requests, with evenly distributed digits.
        let name = |number: usize| {
            format!("request/{:032x}", (number as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
        };
        (0..RECORDS).map(|number| (name(number), format!("{number:0>400}"))).collect()
    }

    /// A register with tables and a log, in `dir`.
    fn make(dir: &Path) {
        let register = MetadataStore::open(dir).expect("opens");
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

    fn damage(path: &Path, damage: Damage) {
        let mut bytes = fs::read(path).expect("reads");
        match damage {
            Damage::Flip(hundredths) => {
                let at = (bytes.len() - 1) * hundredths / 100;
                bytes[at] ^= 0x10;
                fs::write(path, bytes).expect("writes");
            }
            Damage::Cut(hundredths) => fs::write(path, &bytes[..bytes.len() * hundredths / 100]).expect("writes"),
            Damage::Gone => fs::remove_file(path).expect("deletes"),
        }
    }

    /// The files that a register needs: the manifest, `CURRENT`, tables and logs.
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
    fn readable_records_are_salvaged_whatever_is_damaged() {
        let home = tempfile::tempdir().expect("a directory");
        let sound = home.path().join("sound");
        make(&sound);
        let all = records_of_all();
        let mut files = files(&sound);
        // Two tables are enough.
        let mut tables = 0;
        files.retain(|file| {
            let is_table = file.to_string_lossy().ends_with(".sst");
            tables += usize::from(is_table);
            !is_table || tables <= 2
        });
        let of_kind = |end: &str| files.iter().filter(|file| file.to_string_lossy().ends_with(end)).count();
        assert!(of_kind(".sst") > 0 && of_kind(".log") > 0, "{files:?}");
        let damages = [Damage::Flip(3), Damage::Flip(50), Damage::Flip(97), Damage::Cut(60), Damage::Gone];
        for (number, (file, kind)) in files.iter().flat_map(|file| damages.map(|damage| (file, damage))).enumerate() {
            let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
            let dir = home.path().join(format!("trial-{number}"));
            copy(&sound, &dir);
            damage(&dir.join(name), kind);
            let what = format!("{name} {kind:?}");
            let register = MetadataStore::open_or_salvage(&dir).unwrap_or_else(|error| panic!("{what}: {error}"));
            let found = records(&register, "");
            assert!(found.iter().all(|(key, value)| all.get(key) == Some(value)), "{what}: no record is invented");
            // Records only in the damaged file may be lost: the end of a truncated log, a deleted table.
            let most = match (kind, name.rsplit_once('.')) {
                // Without the end of a table, which has its index, none of its records are found.
                (Damage::Flip(97), Some((_, "sst"))) => RECORDS / 4,
                (Damage::Flip(_), Some((_, "sst"))) => 50,
                (Damage::Flip(_), Some((_, "log"))) => 150,
                (_, None) => 0,
                _ => RECORDS,
            };
            assert!(found.len() + most >= RECORDS, "{what}: {} of {RECORDS}", found.len());
            if let Some(salvage) = register.salvage() {
                assert_eq!((salvage.records, &salvage.unwritten), (found.len() as u64, &None), "{what}");
                let kept = salvage.kept.as_ref().expect("kept");
                assert!(kept.join(name).exists() || matches!(kind, Damage::Gone), "{what}: the damaged file is kept");
            } else {
                assert_eq!(found.len(), RECORDS, "{what}: every loss is reported");
            }
            // The salvaged register works normally.
            register.write_now(vec![put("later", "one")]).expect("writes");
            drop(register);
            let register = MetadataStore::open_or_salvage(&dir).expect("opens");
            assert!(register.salvage().is_none(), "{what}: salvaged only once");
            assert_eq!(records(&register, "").len(), found.len() + 1, "{what}");
            drop(register);
            fs::remove_dir_all(&dir).expect("cleans up");
        }
    }

    #[test]
    fn a_check_detects_damage_and_changes_nothing() {
        let home = tempfile::tempdir().expect("a directory");
        let dir = home.path().join("pins");
        make(&dir);
        assert_eq!(MetadataStore::check(&dir).expect("is sound"), RECORDS as u64);
        let table = files(&dir).into_iter().find(|file| file.extension().is_some_and(|end| end == "sst"));
        let table = table.expect("a table");
        damage(&table, Damage::Flip(50));
        let before = fs::read(&table).expect("reads");
        for _ in 0..2 {
            let error = MetadataStore::check(&dir).expect_err("it is damaged");
            assert!(matches!(error, StoreError::Corrupt(_)), "{error}");
        }
        assert_eq!(fs::read(&table).expect("reads"), before);
        assert_eq!(fs::read_dir(home.path()).expect("lists").count(), 1, "no files are created beside it");
    }

    #[test]
    fn an_interrupted_salvage_is_completed_or_repeated() {
        let home = tempfile::tempdir().expect("a directory");
        let (dir, beside) = (home.path().join("pins"), |what: &str| home.path().join(format!("pins.{what}")));
        make(&dir);
        // Killed between the two renames.
        fs::create_dir(beside("rebuilding")).expect("makes");
        fs::rename(&dir, beside("rebuilt")).expect("renames");
        assert_eq!(records(&MetadataStore::open_or_salvage(&dir).expect("opens"), "").len(), RECORDS);
        assert!(!beside("rebuilt").exists() && !beside("rebuilding").exists());
        // Killed before the first rename.
        fs::create_dir(beside("rebuilt")).expect("makes");
        assert_eq!(records(&MetadataStore::open_or_salvage(&dir).expect("opens"), "").len(), RECORDS);
        assert!(!beside("rebuilt").exists());
    }

    /// Changes the bytes of the last log.
    fn change_last_log(dir: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let log = files(dir).into_iter().rfind(|file| file.extension().is_some_and(|end| end == "log"));
        let log = log.expect("a log");
        let mut bytes = fs::read(&log).expect("reads");
        change(&mut bytes);
        fs::write(&log, bytes).expect("writes");
    }

    fn truncate(bytes: &mut Vec<u8>) {
        bytes.truncate(bytes.len() - 7);
    }

    // The functions that damage a log share a type, for the tables below.
    /// As after power loss: the file has its length, but not its last bytes.
    #[allow(clippy::ptr_arg)]
    fn zero_end(bytes: &mut Vec<u8>) {
        let end = bytes.len();
        bytes[end - 100..].fill(0);
    }

    #[allow(clippy::ptr_arg)]
    fn flip_bit(bytes: &mut Vec<u8>) {
        let end = bytes.len();
        bytes[end - 10] ^= 0x10;
    }

    #[test]
    fn a_log_with_a_torn_record_at_its_end_is_intact() {
        for tear in [truncate, zero_end] {
            let home = tempfile::tempdir().expect("a directory");
            let dir = home.path().join("pins");
            make(&dir);
            // The process ends before the last write is acknowledged.
            let sequence = dir.join("causeway.sequence");
            let before = fs::read(&sequence).expect("reads");
            let register = MetadataStore::open(&dir).expect("opens");
            register.write_now(vec![put("torn", &"v".repeat(400))]).expect("writes");
            drop(register);
            fs::write(&sequence, before).expect("writes");
            change_last_log(&dir, tear);
            let register = MetadataStore::open_or_salvage(&dir).expect("opens");
            assert!(register.salvage().is_none());
            assert_eq!(records(&register, "").len(), RECORDS);
        }
    }

    #[test]
    fn an_acknowledged_record_at_the_end_of_the_log_is_not_taken_for_a_torn_one() {
        for damage in [truncate, zero_end, flip_bit] {
            let home = tempfile::tempdir().expect("a directory");
            let dir = home.path().join("pins");
            make(&dir);
            change_last_log(&dir, damage);
            for _ in 0..2 {
                let error = MetadataStore::check(&dir).expect_err("it has lost records");
                assert!(error.to_string().contains("acknowledged"), "{error}");
            }
            let register = MetadataStore::open_or_salvage(&dir).expect("opens");
            let salvage = register.salvage().expect("it is reported");
            assert_eq!((salvage.records, records(&register, "").len()), (RECORDS as u64 - 50, RECORDS - 50));
            drop(register);
            assert_eq!(MetadataStore::check(&dir).expect("is sound"), RECORDS as u64 - 50);
        }
    }

    #[test]
    fn a_damaged_sequence_file_is_replaced() {
        let home = tempfile::tempdir().expect("a directory");
        let dir = home.path().join("pins");
        make(&dir);
        let sequence = dir.join("causeway.sequence");
        let sound = fs::read(&sequence).expect("reads");
        for kind in [Damage::Flip(3), Damage::Flip(97), Damage::Cut(60), Damage::Gone] {
            damage(&sequence, kind);
            assert_eq!(MetadataStore::check(&dir).expect("is sound"), RECORDS as u64, "{kind:?}");
            assert!(MetadataStore::open_or_salvage(&dir).expect("opens").salvage().is_none(), "{kind:?}");
            assert_eq!(fs::read(&sequence).expect("reads"), sound, "{kind:?}");
        }
        // All of the database's own files are lost.
        files(&dir).iter().for_each(|file| fs::remove_file(file).expect("deletes"));
        let register = MetadataStore::open_or_salvage(&dir).expect("opens");
        assert_eq!(register.salvage().expect("it is reported").records, 0);
    }
}
