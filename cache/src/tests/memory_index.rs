use crate::memory_index::{Key, MemoryIndex, ValueInfo};
use crate::pins::{PinId, PinRecord};
use content::Cid;
use content::stored::Shape;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashSet};

fn name(n: u8) -> Key {
    Key::from(vec![n])
}

fn value_info(bytes: u64) -> ValueInfo {
    ValueInfo { bytes, shape: None, durable: false }
}

fn root(n: u8) -> Cid {
    *super::raw(vec![n]).cid()
}

fn keys(index: &MemoryIndex) -> BTreeSet<u8> {
    index.keys().map(|(key, ..)| key[0]).collect()
}

fn not_hot(_: &[u8]) -> bool {
    false
}

#[test]
fn the_oldest_is_evicted_first_and_hot_blocks_become_the_newest() {
    let mut index = MemoryIndex::default();
    (1..=6).for_each(|n| index.put(&name(n), value_info(10)));
    assert!(index.touch(&[1]) && !index.touch(&[9]));
    let gone = index.evict(40, 100, |key| key == [2]);
    assert_eq!(gone, [(name(3), 10), (name(4), 10)]);
    assert_eq!((index.cached_bytes(), index.count()), (40, 4));
    // It gets a second chance, but not a third.
    assert_eq!(index.evict(20, 100, not_hot), [(name(5), 10), (name(6), 10)]);
    assert_eq!(index.evict(0, 100, not_hot), [(name(1), 10), (name(2), 10)]);
    assert_eq!(index.evict(0, 100, not_hot), []);
}

#[test]
fn eviction_makes_progress_with_hot_blocks_and_is_bounded() {
    let mut index = MemoryIndex::default();
    (0..100).for_each(|n| index.put(&name(n), value_info(10)));
    assert_eq!(index.evict(500, 10, |_| true), [], "all examined blocks were spared");
    let mut gone = 0;
    for _ in 0..20 {
        gone += index.evict(500, 10, |_| true).len();
    }
    assert_eq!((gone, index.cached_bytes()), (50, 500));
    // From now on, as many bytes are spared as are evicted.
    index.put(&name(200), value_info(10));
    assert_eq!(index.evict(500, 10, |_| true).len(), 1);
}

#[test]
fn members_are_counted_for_each_pin_and_stay() {
    let mut index = MemoryIndex::default();
    let (first, second, temporary_pin) = (PinId(1), PinId(2), PinId(3));
    index.set_pin(Some(root(1)), PinRecord::new(first, Some("one".to_owned())));
    index.set_pin(Some(root(2)), PinRecord::new(second, None));
    index.set_pin(None, PinRecord::new(temporary_pin, None));
    (1..=4).for_each(|n| index.put(&name(n), value_info(10)));
    assert!(index.add_member(first, &name(1), 7) && !index.add_member(first, &name(1), 7));
    assert!(index.add_member(second, &name(1), 7) && index.add_member(second, &name(2), 7));
    assert!(index.add_member(temporary_pin, &name(3), 7) && !index.add_member(PinId(9), &name(4), 7));
    assert_eq!((index.cached_bytes(), index.pinned_bytes()), (10, 30));
    assert_eq!(index.evict(0, 100, not_hot), [(name(4), 10)]);
    let counts = |index: &MemoryIndex| -> Vec<_> {
        index
            .summaries()
            .into_iter()
            .map(|pin| (pin.id, pin.blocks, pin.bytes))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    };
    assert_eq!(counts(&index), [(1, 1, 7), (2, 2, 14)], "a temporary pin is not listed");
    index.remove_pin(second);
    index.remove_pin(temporary_pin);
    assert_eq!((index.pin_of(&root(2)), index.pin_of(&root(1))), (None, Some(first)));
    let mut gone: Vec<_> =
        std::iter::from_fn(|| index.is_unpinning().then(|| index.unpin_chunk(1, not_hot))).flatten().collect();
    gone.sort();
    assert_eq!(gone, [name(2), name(3)]);
    assert_eq!((keys(&index), index.pinned_bytes(), index.count()), (BTreeSet::from([1]), 10, 1));
    index.remove_pin(first);
    assert_eq!(index.unpin_chunk(100, |_| true), [] as [Key; 0], "it is hot");
    assert_eq!((index.cached_bytes(), index.pinned_bytes(), index.is_unpinning()), (10, 0, false));
}

#[test]
fn a_lost_member_is_missing_and_becomes_a_member_again() {
    let mut index = MemoryIndex::default();
    index.set_pin(Some(root(1)), PinRecord::new(PinId(1), None));
    index.put(&name(1), ValueInfo { durable: true, ..value_info(10) });
    index.add_member(PinId(1), &name(1), 7);
    index.add_member(PinId(1), &name(2), 7);
    assert_eq!(index.lacking(&HashSet::new(), &|_| false)[0].missing, 1);
    assert_eq!(index.lacking(&HashSet::from([name(1)]), &|_| false)[0].missing, 2);
    assert!(index.remove_value(&[1]) && !index.remove_value(&[1]));
    assert!(index.has_pin(&[1]) && index.value(&[1]).is_none() && !index.touch(&[1]));
    [1, 2].iter().for_each(|n| index.put(&name(*n), value_info(20)));
    let shape = Shape::Raw { block_bytes: 7 };
    index.set_shape(&[1], shape);
    index.mark_durable(&[1]);
    assert_eq!(index.value(&[1]), Some(ValueInfo { bytes: 20, shape: Some(shape), durable: true }));
    assert_eq!((index.lacking(&HashSet::new(), &|_| false), index.pinned_bytes()), (Vec::new(), 40));
}

#[test]
fn missing_members_of_a_partial_pin_are_listed_in_chunks() {
    let mut index = MemoryIndex::default();
    let pin = PinId(1);
    index.set_pin(Some(root(1)), PinRecord::new(pin, None));
    (0..10).for_each(|n| _ = index.add_member(pin, &name(n), u64::from(n)));
    [0, 3, 4, 5, 9].iter().for_each(|n| index.put(&name(*n), value_info(10)));
    for members_max in [1, 3, 5, 10, 20] {
        let (mut missing, mut last) = (Vec::new(), None);
        while let Some(chunk) = index.missing_chunk(pin, last.as_ref(), members_max) {
            assert!(chunk.missing.len() <= members_max);
            missing.extend(chunk.missing);
            last = Some(chunk.last);
        }
        assert_eq!(missing, [1, 2, 6, 7, 8].map(|n| (name(n), u32::from(n))), "{members_max}");
    }
    assert!(index.missing_chunk(PinId(2), None, 10).is_none());
}

#[derive(Debug, Clone)]
enum Step {
    Put(u8, u64),
    Lose(u8),
    Touch(u8),
    Evict(u64),
    Pin(u64),
    Add(u64, u8),
    Remove(u64),
    LetGo(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..20_u8, 1..50_u64).prop_map(|(n, bytes)| Step::Put(n, bytes)),
        1 => (0..20_u8).prop_map(Step::Lose),
        2 => (0..20_u8).prop_map(Step::Touch),
        2 => (0..300_u64).prop_map(Step::Evict),
        1 => (0..5_u64).prop_map(Step::Pin),
        4 => (0..5_u64, 0..20_u8).prop_map(|(pin, n)| Step::Add(pin, n)),
        1 => (0..5_u64).prop_map(Step::Remove),
        2 => (0..9_usize).prop_map(Step::LetGo),
    ]
}

proptest! {
    /// The model has the stored blocks and the members of pins.
    #[test]
    fn sums_and_protection_match_the_model(steps in proptest::collection::vec(step(), 0..80)) {
        let (mut index, mut blocks) = (MemoryIndex::default(), BTreeMap::<u8, u64>::new());
        let mut pins: BTreeMap<u64, BTreeSet<u8>> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Put(n, bytes) => {
                    index.put(&name(n), value_info(bytes));
                    blocks.insert(n, bytes);
                }
                Step::Lose(n) => prop_assert_eq!(index.remove_value(&[n]), blocks.remove(&n).is_some()),
                Step::Touch(n) => prop_assert_eq!(index.touch(&[n]), blocks.contains_key(&n)),
                Step::Evict(target) => {
                    for (key, bytes) in index.evict(target, 1_000, not_hot) {
                        prop_assert!(!pins.values().any(|members| members.contains(&key[0])), "it is pinned");
                        prop_assert_eq!(blocks.remove(&key[0]), Some(bytes));
                    }
                    prop_assert!(index.cached_bytes() <= target);
                }
                Step::Pin(pin) => {
                    index.set_pin(None, PinRecord::new(PinId(pin), None));
                    pins.entry(pin).or_default();
                }
                Step::Add(pin, n) => {
                    let news = pins.get_mut(&pin).is_some_and(|members| members.insert(n));
                    prop_assert_eq!(index.add_member(PinId(pin), &name(n), 1), news);
                }
                Step::Remove(pin) => {
                    index.remove_pin(PinId(pin));
                    pins.remove(&pin);
                }
                Step::LetGo(members_max) => {
                    for key in index.unpin_chunk(members_max, not_hot) {
                        blocks.remove(&key[0]);
                    }
                }
            }
            prop_assert_eq!(keys(&index), blocks.keys().copied().collect::<BTreeSet<_>>());
            prop_assert_eq!(index.count(), blocks.len() as u64);
            prop_assert_eq!(index.cached_bytes() + index.pinned_bytes(), blocks.values().sum::<u64>());
            for n in pins.values().flatten() {
                prop_assert!(index.has_pin(&[*n]));
            }
        }
        while index.is_unpinning() {
            index.unpin_chunk(7, not_hot);
        }
        let pinned: BTreeSet<u8> = pins.values().flatten().copied().collect();
        let kept: u64 = blocks.iter().filter(|(n, _)| pinned.contains(n)).map(|(_, bytes)| bytes).sum();
        prop_assert_eq!(index.pinned_bytes(), kept);
        prop_assert!((0..20).all(|n| index.has_pin(&[n]) == pinned.contains(&n)));
    }
}
