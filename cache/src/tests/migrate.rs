//! Migration of a store of an earlier release, which the tests write by hand.

use super::audit::audit;
use super::{key, noisy, open, open_with, raw};
use crate::disk::schema::{BLOCKS_BY_PIN, META, PINS, PINS_BY_BLOCK, PinId, PinRecord, block_of_pin, pin_of_block};
use crate::{Disk, DiskOptions, PinState};
use content::{Block, BlockSource};
use rocksdb::{DB, Options};
use std::path::Path;

/// Writes a store of schema 1: one pin of the first block, which was the 41st, and the others cached.
fn write_schema_1(dir: &Path, blocks: &[Block]) {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    let families = ["meta", "blocks", "index", "fifo", "pins", "pins_by_block", "blocks_by_pin"];
    let db = DB::open_cf(&options, dir, families).expect("opens");
    let put = |family: &str, key: &[u8], value: &[u8]| {
        db.put_cf(db.cf_handle(family).expect("the family"), key, value).expect("writes");
    };
    for (seq, block) in (0_u64..).zip(blocks) {
        let (data, hash) = (block.data(), key(block).to_bytes());
        let frame = zstd::bulk::compress(data, 3).expect("zstd");
        // Tag 0 is the raw block, tag 1 one frame.
        let value = if frame.len() < data.len() { [&[1], &frame[..]].concat() } else { [&[0], &data[..]].concat() };
        let size = |bytes: usize| u32::try_from(bytes).expect("small").to_be_bytes();
        let index = [&size(data.len())[..], &size(value.len()), &seq.to_be_bytes()].concat();
        put("blocks", &hash, &value);
        put("index", &hash, &index);
        if seq > 0 {
            put("fifo", &seq.to_be_bytes(), &hash);
        }
    }
    let (root, pin) = (key(&blocks[0]).to_bytes(), PinId(41));
    let record = PinRecord { state: PinState::Complete, blocks: 1, ..PinRecord::new(pin, Some("old".to_owned())) };
    put(PINS, &blocks[0].cid().to_bytes(), &record.to_bytes());
    put(PINS_BY_BLOCK, &pin_of_block(&root, pin), &[]);
    put(BLOCKS_BY_PIN, &block_of_pin(pin, &root), &[]);
    let totals: Vec<u8> = [0, 0, blocks.len() as u64, blocks.len() as u64, 1, 42].map(u64::to_be_bytes).concat();
    put(META, b"totals", &totals);
    put(META, b"schema", &1_u32.to_be_bytes());
}

fn blocks() -> Vec<Block> {
    let text = (0..20).map(|i| raw(format!("line {i} of many\n").repeat(500)));
    (0..30).map(|seed| noisy(seed, 1_000 + 1_000 * usize::try_from(seed).expect("small"))).chain(text).collect()
}

async fn check(disk: &Disk, blocks: &[Block]) {
    for block in blocks {
        assert_eq!(disk.get(block.cid()).await.as_ref(), Ok(block));
    }
    let pins = disk.pins().await.expect("lists");
    assert_eq!((pins.len(), pins[0].root, pins[0].name.as_deref()), (1, *blocks[0].cid(), Some("old")));
    assert!(disk.is_pinned(&key(&blocks[0])).await.expect("reads"));
    assert!(!disk.is_pinned(&key(&blocks[1])).await.expect("reads"));
    audit(disk);
}

#[tokio::test]
async fn a_store_of_schema_1_is_migrated() {
    let dir = tempfile::tempdir().expect("a directory");
    let blocks = blocks();
    write_schema_1(dir.path(), &blocks);
    for _ in 0..2 {
        check(&open(dir.path()), &blocks).await;
    }
    let disk = open(dir.path());
    let second = disk.pin_recursive(*blocks[1].cid(), None, super::supply(&blocks[1..2])).await.expect("pins");
    assert_eq!(second.id, 42, "no pin ID is reused");
}

#[tokio::test]
async fn an_interrupted_migration_is_continued() {
    let dir = tempfile::tempdir().expect("a directory");
    let blocks = blocks();
    write_schema_1(dir.path(), &blocks);
    drop(open(dir.path()));
    // Simulates an interruption near the end: two blocks are not migrated, and the schema version is the old one.
    let elsewhere = tempfile::tempdir().expect("a directory");
    write_schema_1(elsewhere.path(), &blocks);
    let families = ["meta", "blocks", "index", "fifo"];
    let old = DB::open_cf_for_read_only(&Options::default(), elsewhere.path(), families, false).expect("opens");
    let mut options = Options::default();
    options.create_missing_column_families(true);
    let mut all = DB::list_cf(&options, dir.path()).expect("lists");
    all.extend(["blocks".to_owned(), "fifo".to_owned()]);
    let new = DB::open_cf(&options, dir.path(), &all).expect("opens");
    for block in &blocks[4..6] {
        // The values in the segments stay unused.
        let place = new.get_cf(new.cf_handle("index").expect("index"), key(block).to_bytes()).expect("reads");
        new.delete_cf(new.cf_handle("places").expect("places"), &place.expect("moved")[12..]).expect("deletes");
        for family in ["blocks", "index"] {
            let row = old.get_cf(old.cf_handle(family).expect("the family"), key(block).to_bytes()).expect("reads");
            let family = new.cf_handle(family).expect("the family");
            new.put_cf(family, key(block).to_bytes(), row.expect("is there")).expect("writes");
        }
    }
    new.put_cf(new.cf_handle(META).expect("meta"), b"schema", 1_u32.to_be_bytes()).expect("writes");
    drop(new);
    let disk = open_with(dir.path(), DiskOptions::default()).expect("opens");
    for block in &blocks {
        assert_eq!(disk.get(block.cid()).await.as_ref(), Ok(block));
    }
}
