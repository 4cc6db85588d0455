use super::crash::{DIR, child, say};
use super::{key, noise, noisy, raw};
use crate::ram::{COPY_BELOW_BYTES, ENTRY_OVERHEAD_BYTES, Ram, RamPolicy};
use content::BlockKey;

const OVERHEAD: u64 = ENTRY_OVERHEAD_BYTES as u64;

#[test]
fn the_overhead_covers_the_key() {
    assert!(size_of::<BlockKey>() as u64 * 2 < OVERHEAD);
}

#[test]
fn the_budget_holds_at_every_moment_under_churn() {
    let budget = 16 * 1024 * 1024;
    let ram = Ram::new(budget);
    let data = noise(1, 1024 * 1024);
    for seed in 0..200_u64 {
        ram.insert(key(&raw(seed.to_le_bytes().to_vec())), &data);
        assert!(ram.bytes() <= budget + budget / 16 + data.len() as u64, "{}", ram.bytes());
    }
    ram.tidy();
    assert!(ram.bytes() <= budget);
    assert!(ram.entries() > 10, "{}", ram.entries());
}

#[test]
fn a_scan_does_not_evict_frequently_read_blocks() {
    let hits = |policy| {
        let ram = Ram::with_policy(1_000 * (100 + OVERHEAD), policy);
        let data = noise(1, 100);
        let read = |number: u64| {
            let key = key(&raw(number.to_le_bytes().to_vec()));
            let hit = ram.find(&key).is_some();
            if !hit {
                ram.insert(key, &data);
            }
            ram.tidy();
            hit
        };
        (0..4_000).for_each(|number| _ = read(number % 800));
        // At the same rate as the frequently read blocks, and ten times the budget.
        let read_both = |number: &u64| {
            read(1_000_000 + number);
            read(number % 800)
        };
        (0..10_000).filter(read_both).count()
    };
    let (lru, tiny_lfu) = (hits(RamPolicy::Lru), hits(RamPolicy::TinyLfu));
    assert!(lru < 1_000 && tiny_lfu > 9_000, "of 10,000: {lru}, {tiny_lfu}");
}

#[test]
fn the_least_recently_used_block_is_evicted_first() {
    let blocks: Vec<_> = (0..4).map(|seed| noisy(seed, 1_000)).collect();
    let ram = Ram::with_policy(3 * (1_000 + OVERHEAD), RamPolicy::Lru);
    for block in &blocks[..3] {
        ram.insert(key(block), block.data());
        ram.tidy();
    }
    assert!(ram.find(&key(&blocks[0])).is_some());
    ram.insert(key(&blocks[3]), blocks[3].data());
    ram.tidy();
    let held: Vec<_> = blocks.iter().map(|block| ram.holds(&key(block))).collect();
    assert_eq!(held, [true, false, true, true]);
}

#[test]
fn small_slices_are_copied_and_large_buffers_are_kept() {
    let ram = Ram::new(1 << 20);
    let message = noise(9, 4 * COPY_BELOW_BYTES);
    let (small, large) = (message.slice(..COPY_BELOW_BYTES - 1), message.slice(..COPY_BELOW_BYTES));
    let (small_key, large_key) = (key(&raw(small.clone())), key(&raw(large.clone())));
    ram.insert(small_key, &small);
    ram.insert(large_key, &large);
    let held = ram.find(&small_key).expect("held");
    assert_eq!(held, small);
    assert_ne!(held.as_ptr(), small.as_ptr());
    assert_eq!(ram.find(&large_key).expect("held").as_ptr(), large.as_ptr());
}

#[test]
fn larger_blocks_than_the_budget_are_not_cached_and_zero_disables_the_cache() {
    let block = noisy(1, 1_000);
    for budget in [0, 1_000] {
        let ram = Ram::new(budget);
        ram.insert(key(&block), block.data());
        assert!(!ram.holds(&key(&block)), "{budget}");
    }
    let ram = Ram::new(1_000 + OVERHEAD);
    ram.insert(key(&block), block.data());
    assert!(ram.holds(&key(&block)));
    ram.remove(&key(&block));
    assert!(!ram.holds(&key(&block)));
}

/// The resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("reads");
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    1024 * kib.expect("a line").parse::<u64>().expect("a number")
}

/// Runs in a child process, so that nothing else is counted.
#[test]
fn child_of_the_test_of_tiny_blocks() {
    if std::env::var_os(DIR).is_none() {
        return;
    }
    let (ram, before) = (Ram::new(1 << 30), resident_bytes());
    for number in 0..1_000_000_u64 {
        ram.insert(key(&raw(number.to_le_bytes().to_vec())), &noise(1, 40));
    }
    ram.tidy();
    let taken = resident_bytes() - before;
    say("taken for each", taken / ram.entries());
    assert_eq!((ram.entries(), ram.bytes()), (1_000_000, 1_000_000 * (40 + OVERHEAD)));
    assert!(taken <= ram.bytes(), "{taken} bytes are taken, {} are counted", ram.bytes());
}

#[test]
fn a_million_tiny_blocks_take_no_more_memory_than_their_weight() {
    let mut alone = child("tests::ram::child_of_the_test_of_tiny_blocks", std::path::Path::new("."));
    let output = alone.output().expect("starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("taken for each"), "{said}");
}
