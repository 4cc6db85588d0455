//! Checks the consistency of a store's column families, row by row.

use crate::disk::schema::{
    BLOCKS_BY_PIN, INDEX, IndexRecord, Kind, META, PINS, PINS_BY_BLOCK, PLACES, PinId, PinRecord, Place,
    ROW_OVERHEAD_BYTES, SegmentRecord, pin_of_block, released_pin,
};
use crate::disk::store::{Row, Store};
use crate::{Disk, PinState};
use std::collections::{BTreeMap, BTreeSet};

type Bytes = Box<[u8]>;

fn rows(store: &Store, family: &str) -> Vec<Row> {
    store.rows_from(family, &[]).expect("iterates").map(|row| row.expect("reads")).collect()
}

/// Panics at the first inconsistency. Nothing may be queued, and no pin may be incomplete.
pub(super) fn audit(disk: &Disk) {
    audit_lacking(disk, 0);
}

/// The same for a store from which `lacking` members of pins were deleted: a deleted member stays a member until it is
/// stored again.
pub(super) fn audit_lacking(disk: &Disk, lacking: usize) {
    let store = disk.store();
    let index: BTreeMap<Bytes, IndexRecord> = rows(store, INDEX)
        .into_iter()
        .map(|(key, value)| (key, IndexRecord::from_bytes(&value).expect("an index record")))
        .collect();
    audit_segments(disk, &index);

    let by_block: BTreeSet<Bytes> = rows(store, PINS_BY_BLOCK).into_iter().map(|(key, _)| key).collect();
    let mut members: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut mirrored, mut missing, mut lacking_pins) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (row, _) in rows(store, BLOCKS_BY_PIN) {
        let (pin, block) = row.split_at(8);
        let pin = u64::from_be_bytes(pin.try_into().expect("a pin id"));
        *members.entry(pin).or_default() += 1;
        mirrored.insert(pin_of_block(block, PinId(pin)).into_boxed_slice());
        match index.get(block) {
            Some(record) => assert!(record.pinned(), "a stored member is pinned"),
            None => {
                missing.insert(block.to_vec());
                lacking_pins.insert(pin);
            }
        }
    }
    assert_eq!(missing.len(), lacking, "all members are stored, except for the deleted ones");
    assert_eq!(by_block, mirrored, "the two families of members mirror each other");
    for (block, record) in index.iter().filter(|(_, record)| record.pinned()) {
        let has_pin = by_block.range(block.clone()..).next().is_some_and(|row| row.starts_with(block));
        assert!(has_pin, "a block is pinned by something: {record:?}");
    }

    for (block, base) in index.iter().filter_map(|(block, record)| Some((block, record.base?.to_bytes()))) {
        for row in by_block.range(block.clone()..).take_while(|row| row.starts_with(block)) {
            let pin = [&base, &row[block.len()..]].concat();
            assert!(by_block.contains(&*pin), "a pin that has a slice has its base");
        }
    }

    let pins = rows(store, PINS).into_iter().map(|(_, value)| PinRecord::from_bytes(&value).expect("a pin"));
    let pins: BTreeMap<u64, PinRecord> = pins.map(|pin| (pin.id.0, pin)).collect();
    for pin in pins.values() {
        assert_eq!(members.get(&pin.id.0).copied().unwrap_or_default(), pin.blocks, "a pin counts its members");
        assert!(pin.state == PinState::Partial || !lacking_pins.contains(&pin.id.0), "a complete pin has all blocks");
    }
    let released: BTreeSet<u64> =
        rows(store, META).iter().filter_map(|(key, _)| released_pin(key)).map(|pin| pin.0).collect();
    for pin in members.keys() {
        assert!(pins.contains_key(pin) || released.contains(pin), "members belong to a pin");
    }
}

/// Checks that every block in the index is valid and at its place, and that the segments' records count exactly those.
fn audit_segments(disk: &Disk, index: &BTreeMap<Bytes, IndexRecord>) {
    let store = disk.store();
    let places: BTreeMap<[u8; 8], Bytes> = rows(store, PLACES)
        .into_iter()
        .map(|(place, block)| (Place::from_key(&place).expect("a place").to_key(), block))
        .collect();
    let named: BTreeMap<[u8; 8], Bytes> =
        index.iter().map(|(block, record)| (record.place.to_key(), block.clone())).collect();
    assert_eq!(places, named, "the rows of places mirror the index");

    let segments: BTreeMap<u32, SegmentRecord> = store.segments().expect("reads").into_iter().collect();
    let mut counted: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for (block, record) in index {
        let value = store.value(block, *record).expect("a value is at its place in the index");
        assert_eq!(value.len(), record.value_bytes());
        let bytes = u32::try_from(10 + block.len() + value.len()).expect("small");
        let segment = segments.get(&record.place.segment).expect("its segment has a record");
        assert_eq!(segment.kind, record.kind);
        assert!(record.place.offset + bytes <= segment.written, "nothing lies beyond the end");
        let (live, blocks) = counted.entry(record.place.segment).or_default();
        (*live, *blocks) = (*live + bytes, *blocks + 1);
    }
    for (number, segment) in &segments {
        let counted = counted.get(number).copied().unwrap_or_default();
        assert_eq!((segment.live, segment.blocks), counted, "a segment's record has the right counts");
    }
    let mut files = store.files.list().expect("lists");
    files.sort_unstable();
    assert_eq!(files, segments.keys().copied().collect::<Vec<_>>(), "every file is a segment and every segment a file");

    let cost =
        |kind: Kind| segments.values().filter(|segment| segment.kind == kind).map(|segment| segment.cost()).sum();
    let stats = disk.stats();
    assert_eq!((stats.cached_bytes, stats.pinned_bytes), (cost(Kind::Cached), cost(Kind::Pinned)));
    assert_eq!(stats.blocks, index.len() as u64);
    let written: u64 = segments.values().map(|segment| u64::from(segment.written)).sum();
    assert_eq!(stats.cached_bytes + stats.pinned_bytes, written + stats.blocks * ROW_OVERHEAD_BYTES);
}
