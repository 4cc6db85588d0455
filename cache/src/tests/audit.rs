//! Whether a store's families agree with each other, row by row.

use crate::Disk;
use crate::disk::schema::{
    BLOCKS, BLOCKS_BY_PIN, FIFO, INDEX, IndexRecord, META, PINS, PINS_BY_BLOCK, PinId, PinRecord, Totals, pin_of_block,
    released_pin,
};
use crate::disk::store::{Row, Store};
use std::collections::{BTreeMap, BTreeSet};

type Bytes = Box<[u8]>;

fn rows(store: &Store, family: &str) -> Vec<Row> {
    store.rows_from(family, &[]).expect("iterates").map(|row| row.expect("reads")).collect()
}

/// Panics with the first disagreement. Nothing may be queued.
pub(super) fn audit(disk: &Disk) {
    let store = disk.store();
    let blocks: BTreeSet<Bytes> = rows(store, BLOCKS).into_iter().map(|(key, _)| key).collect();
    let index: BTreeMap<Bytes, IndexRecord> = rows(store, INDEX)
        .into_iter()
        .map(|(key, value)| (key, IndexRecord::from_bytes(&value).expect("an index record")))
        .collect();
    assert_eq!(blocks, index.keys().cloned().collect(), "every block is indexed, and nothing else is");

    let fifo: BTreeMap<u64, Bytes> = rows(store, FIFO)
        .into_iter()
        .map(|(seq, block)| (u64::from_be_bytes(seq.as_ref().try_into().expect("a sequence")), block))
        .collect();
    let unpinned = index.iter().filter(|(_, record)| !record.pinned());
    let expected: BTreeMap<u64, Bytes> = unpinned.map(|(key, record)| (record.seq, key.clone())).collect();
    assert_eq!(fifo, expected, "the fifo holds exactly what is not pinned");

    let by_block: BTreeSet<Bytes> = rows(store, PINS_BY_BLOCK).into_iter().map(|(key, _)| key).collect();
    let mut members: BTreeMap<u64, u64> = BTreeMap::new();
    let mut mirrored = BTreeSet::new();
    for (row, _) in rows(store, BLOCKS_BY_PIN) {
        let (pin, block) = row.split_at(8);
        let pin = u64::from_be_bytes(pin.try_into().expect("a pin id"));
        *members.entry(pin).or_default() += 1;
        mirrored.insert(pin_of_block(block, PinId(pin)).into_boxed_slice());
        assert!(index.get(block).is_some_and(|record| record.pinned()), "a member is held and pinned");
    }
    assert_eq!(by_block, mirrored, "the two families of members mirror each other");
    for (block, record) in index.iter().filter(|(_, record)| record.pinned()) {
        let has_pin = by_block.range(block.clone()..).next().is_some_and(|row| row.starts_with(block));
        assert!(has_pin, "a block is pinned by something: {record:?}");
    }

    let pins = rows(store, PINS).into_iter().map(|(_, value)| PinRecord::from_bytes(&value).expect("a pin"));
    let pins: BTreeMap<u64, PinRecord> = pins.map(|pin| (pin.id.0, pin)).collect();
    for pin in pins.values() {
        assert_eq!(members.get(&pin.id.0).copied().unwrap_or_default(), pin.blocks, "a pin counts its members");
    }
    let released: BTreeSet<u64> =
        rows(store, META).iter().filter_map(|(key, _)| released_pin(key)).map(|pin| pin.0).collect();
    for pin in members.keys() {
        assert!(pins.contains_key(pin) || released.contains(pin), "members belong to a pin");
    }

    let totals = store.totals().expect("reads");
    let mut expected = Totals { cached_bytes: 0, pinned_bytes: 0, blocks: 0, ..totals };
    index.values().for_each(|record| expected.add(*record));
    assert_eq!(totals, expected, "the sums are right");
    let (first, last) = (fifo.keys().next(), fifo.keys().next_back());
    assert!(first.is_none_or(|seq| *seq >= totals.head), "no row lies before the head");
    assert!(last.is_none_or(|seq| *seq < totals.next_seq), "no sequence is used before its turn");
    let stats = disk.stats();
    assert_eq!((stats.cached_bytes, stats.pinned_bytes), (totals.cached_bytes, totals.pinned_bytes));
}
