//! CPU-bound responses do not delay others, and end with their clients.

use crate::control::{double, matcher};
use crate::dag::{directory, file, raw};
use crate::site::{PATIENCE, Setup, Site};
use content::Block;
use gateway::limits::RequestLimits;
use services::denylists::Running;
use services::denylists::running::Rules;
use std::sync::Arc;
use std::time::Instant;

const IN_FLIGHT: &str = "causeway_http_requests_in_flight";

/// A directory of `count` identical entries.
fn wide(count: usize, child: &Block) -> Block {
    let names: Vec<String> = (0..count).map(|number| format!("{number:05}")).collect();
    directory(&names.iter().map(|name| (name.as_str(), child)).collect::<Vec<_>>())
}

/// A gateway with a rule that is the hash of a path, and a DAG of a few blocks with `width` times `width` paths.
async fn site(width: usize, limits: RequestLimits) -> (Site, [String; 2], Block) {
    let leaf = raw("leaf");
    let inner = wide(width, &leaf);
    let root = wide(width, &inner);
    let policy = Arc::<Running>::default();
    policy.swap(Rules { deny: matcher(&double("nothing that is here")), allow: None });
    let setup = Setup { limits, policy, ..Setup::new(&[&leaf, &inner, &root]) };
    let paths = ["car", "tar"].map(|format| format!("/ipfs/{}?format={format}", root.cid()));
    (setup.start().await, paths, leaf)
}

#[tokio::test]
async fn health_checks_and_hits_are_answered_during_archives_which_end_with_their_clients() {
    let mut limits = RequestLimits { archives_max: 4, work_steps_max: u64::MAX, ..RequestLimits::default() };
    limits.tar.entries_max = u64::MAX;
    let (site, paths, leaf) = site(4000, limits).await;
    let mut hostile = Vec::new();
    for path in paths.iter().cycle().take(4) {
        hostile.push(site.connect(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await);
    }
    site.until_metric(IN_FLIGHT, 4).await;
    for _ in 0..20 {
        assert_eq!(site.get("/healthz").await.status(), 200);
        assert_eq!(site.get(&format!("/ipfs/{}", leaf.cid())).await.status(), 200);
    }
    assert_eq!(site.metric(IN_FLIGHT), 4, "they are at it still");
    drop(hostile);
    site.until_metric(IN_FLIGHT, 0).await;
    // A client holds its archive permit until the archive is aborted.
    let begun = Instant::now();
    while site.get(&format!("/ipfs/{}?format=car", leaf.cid())).await.status() != 200 {
        assert!(begun.elapsed() < PATIENCE, "the places come free");
    }
}

#[tokio::test]
async fn a_request_over_the_work_limit_is_rejected_or_aborted() {
    let limits = RequestLimits { work_steps_max: 100_000, ..RequestLimits::default() };
    let (site, paths, _) = site(1000, limits).await;
    for (times, path) in (1..).zip(&paths) {
        // The head may have been sent by then; a reset may discard it.
        let (answer, end) =
            site.exchange(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await;
        let refused = answer.starts_with(b"HTTP/1.1 403");
        assert!(refused || end.is_err(), "{path}: {}", String::from_utf8_lossy(&answer));
        if !refused {
            site.until_metric("causeway_http_responses_aborted_total{reason=\"limit\"}", times).await;
        }
    }
}

#[tokio::test]
async fn the_root_of_a_long_file_is_decoded_once_to_read_a_range() {
    let leaf = raw("leaf".repeat(64));
    let root = file(&vec![leaf.clone(); 20_000]);
    let top = directory(&[("a.bin", &root)]);
    let path = format!("/ipfs/{}/a.bin", top.cid());
    // Enough to decode the root once.
    let steps = root.data().len() as u64 / 32 * 3 / 2;
    let limits = RequestLimits { work_steps_max: steps, ..RequestLimits::default() };
    let site = Setup { limits, ..Setup::new(&[&leaf, &root, &top]) }.start().await;
    let response = site.send("GET", &path, &[("range", "bytes=40001-40004")]).await;
    assert_eq!(response.status(), 206);
    assert_eq!(response.bytes().await.expect("a complete body"), "eafl"[..]);
}
