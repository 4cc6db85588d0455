//! A soak test with budgets that are too small for the traffic: no errors, and no growth.
//!
//! `CAUSEWAY_SOAK_SECONDS` sets its duration; `make test-long` runs it.

use crate::support::causeway::{Causeway, Launch};
use crate::support::kubo::Kubo;
use crate::support::noise::Noise;
use crate::support::{assert_same_bytes, client};
use futures::StreamExt;
use futures::future::join_all;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const CLIENTS: u64 = 16;
const FILES: usize = 60;
const MIB: u64 = 1 << 20;
const RAM_BUDGET: u64 = 16 * MIB;
const DISK_BUDGET: u64 = 64 * MIB;
const GROWTH_MAX: u64 = 192 * MIB;

struct File {
    path: String,
    content: Vec<u8>,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes long; make test-long runs it"]
async fn soak() {
    let seconds = std::env::var("CAUSEWAY_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let kubo = Kubo::start().await;
    let files: Vec<File> = (0..FILES).map(|index| file(&kubo, index)).collect();
    let dir = TempDir::new().expect("the temporary folder is writable");
    let causeway = Launch::new(dir.path())
        .peering(kubo.tcp())
        .set("CAUSEWAY_CACHE_RAM_BYTES_MAX", RAM_BUDGET)
        .set("CAUSEWAY_CACHE_DISK_BYTES_MAX", DISK_BUDGET)
        .start()
        .await;
    let idle = causeway.process.resident_bytes();
    let until = Instant::now() + Duration::from_secs(seconds);
    let served = join_all((0..CLIENTS).map(|client| browse(&causeway, &files, client, until))).await;
    println!("{} answers in {seconds} s", served.iter().sum::<u64>());

    causeway.assert_healthy().await;
    let grown = causeway.process.resident_bytes().saturating_sub(idle);
    assert!(grown < RAM_BUDGET + GROWTH_MAX, "memory grew by {} MiB", grown / MIB);
    causeway.stop().await;
}

/// Sizes from a few bytes to 8 MB, most of them small.
fn file(kubo: &Kubo, index: usize) -> File {
    let len = 1 << (index % 24);
    let content = Noise::bytes(400 + index as u64, len);
    let cid = kubo.add(&content[..], &["--cid-version=1", "--raw-leaves"]);
    File { path: format!("/ipfs/{cid}"), content }
}

/// A client that requests random files, and aborts one answer in eight after its first bytes.
async fn browse(causeway: &Causeway, files: &[File], seed: u64, until: Instant) -> u64 {
    let (client, mut dice, mut served) = (client(), Noise::new(500 + seed), 0);
    while Instant::now() < until {
        let mut throw = [0; 2];
        dice.fill(&mut throw);
        let file = &files[usize::from(throw[0]) % files.len()];
        let response = client.get(causeway.url(&file.path)).send().await.expect("an answer");
        assert_eq!(response.status(), 200, "{}", file.path);
        if throw[1] % 8 == 0 {
            drop(response.bytes_stream().next().await);
            continue;
        }
        assert_same_bytes(&file.path, &response.bytes().await.expect("all of it"), &file.content);
        served += 1;
    }
    served
}
