//! The size of the index by the number of blocks, and how long what gateways ask of it takes.
//!
//! `cargo test --release --workspace --test database sizes -- --ignored --nocapture` prints the table in
//! docs/internals/shared-blocks.md.

use crate::blocks::index;
use crate::support::Postgres;
use content::{BlockKey, Cid, codec, hashes};
use site::blocks::Listed;
use std::time::{Duration, Instant};

/// The numbers of blocks. Each step adds those that are missing.
const STEPS: [u64; 3] = [100_000, 1_000_000, 10_000_000];
/// The blocks of each pin.
const PIN_BLOCKS: u64 = 1_000;
/// The blocks that are looked up at once.
const BATCH: u64 = 256;
/// How often each statement is run; the median counts.
const RUNS: u64 = 21;

fn cid(number: u64) -> Cid {
    Cid::new_v1(codec::RAW, hashes::digest(hashes::SHA2_256, 32, &number.to_be_bytes()).expect("a digest"))
}

fn key(number: u64) -> BlockKey {
    BlockKey::of(&cid(number)).expect("has a key")
}

/// Adds blocks and their pins, of which every tenth block is in two.
async fn fill(server: &Postgres, from: u64, to: u64) {
    let schema = "\"causeway_sizes\"";
    let digest = "sha256(int8send(n))";
    server
        .sql(&format!(
            "INSERT INTO {schema}.pin (id, root, complete, blocks, bytes)
             SELECT n + 1, '\\x01551220' || sha256(int8send(n * {PIN_BLOCKS})), true, {PIN_BLOCKS}, 262158 * {PIN_BLOCKS}
             FROM generate_series({}, {}) AS n;
             INSERT INTO {schema}.block (key, generation, bytes, block_bytes, form, slot, pinned)
             SELECT '\\x1220' || {digest}, n + 1, 262158, 262144, 0, get_byte({digest}, 31), true
             FROM generate_series({from}, {}) AS n;
             INSERT INTO {schema}.member (pin, key)
             SELECT n / {PIN_BLOCKS} + 1, '\\x1220' || {digest} FROM generate_series({from}, {}) AS n;
             INSERT INTO {schema}.member (pin, key)
             SELECT (n / {PIN_BLOCKS} + 1) % {} + 1, '\\x1220' || {digest} FROM generate_series({from}, {}, 10) AS n
             ON CONFLICT DO NOTHING;
             ANALYZE;",
            from / PIN_BLOCKS,
            to / PIN_BLOCKS - 1,
            to - 1,
            to - 1,
            to / PIN_BLOCKS,
            to - 1,
        ))
        .await
        .expect("is filled");
}

/// The median of the times of a statement.
async fn median(mut run: impl AsyncFnMut(u64)) -> Duration {
    let mut times = Vec::new();
    for round in 0..RUNS {
        let began = Instant::now();
        run(round).await;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    times[times.len() / 2]
}

async fn bytes_of(server: &Postgres, table: &str, rows: u64) -> f64 {
    let size = server.sql(&format!("SELECT pg_total_relation_size('\"causeway_sizes\".{table}')::text")).await;
    size.expect("has a size")[0].parse::<f64>().expect("a number") / rows as f64
}

#[tokio::test]
#[ignore = "takes ten minutes and 5 GB of disk; make test-long runs it"]
async fn sizes_and_times_by_the_number_of_blocks() {
    let server = Postgres::with_settings("shared_buffers = '256MB'\nmax_wal_size = '4GB'").await;
    // Opening a log creates the tables.
    drop(server.open("sizes").await);
    let index = index(&server, "sizes");
    println!(
        "| blocks | bytes a block | bytes a membership | look-up of {BATCH} | pin | 1,000 pins | figures | eviction | slot |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut from = 0;
    for blocks in STEPS {
        fill(&server, from, blocks).await;
        from = blocks;
        let keys = |round: u64| (0..BATCH).map(|n| key((round * BATCH + n) * 7_919 % blocks)).collect::<Vec<_>>();
        let look_up = median(async |round| {
            assert_eq!(index.locate(keys(round)).await.expect("is answered").len() as u64, BATCH);
        });
        let pin = median(async |round| {
            assert!(index.pin(cid(round * PIN_BLOCKS)).await.expect("is answered").is_some());
        });
        let pins = median(async |_| assert!(!index.pins(None, 1_000).await.expect("is answered").is_empty()));
        let figures = median(async |_| {
            assert_eq!(index.figures().await.expect("is answered").pinned_blocks, blocks);
        });
        let evict = median(async |_| assert!(index.evict(0, 1_000).await.expect("is answered").is_empty()));
        let slot = median(async |round| {
            let slot = u8::try_from(round).expect("few");
            assert!(!index.objects_of_slot(slot, Listed::Stored, None, 1_000).await.expect("is answered").is_empty());
        });
        let times = [look_up.await, pin.await, pins.await, figures.await, evict.await, slot.await];
        let times = times.map(|time| format!("{:.1} ms", time.as_secs_f64() * 1e3)).join(" | ");
        let (row, member) =
            (bytes_of(&server, "block", blocks).await, bytes_of(&server, "member", blocks * 11 / 10).await);
        println!("| {blocks} | {row:.0} | {member:.0} | {times} |");
    }
}
