//! Malicious peers: requests get an error in time, never wrong bytes, and other requests are not affected.

use crate::support::causeway::Launch;
use crate::support::hostile::{Hostile, Malice};
use crate::support::kubo::Kubo;
use crate::support::noise::Noise;
use crate::support::{Answer, eventually};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const STALL: Duration = Duration::from_secs(2);
/// The tolerance for a busy machine, in addition to the stall timeout.
const SLACK: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_do_not_match() {
    survive(Malice::WrongBytes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_are_too_long() {
    survive(Malice::TooLong).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_four_gibibytes() {
    survive(Malice::EndlessLength).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage() {
    survive(Malice::Garbage).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silence() {
    survive(Malice::Silence).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn announced_blocks_that_are_never_sent() {
    survive(Malice::EmptyPromises).await;
}

async fn survive(malice: Malice) {
    let content = Noise::bytes(200, 1_000_000);
    let elsewhere = Noise::bytes(201, 1_000_000);
    let (author, honest) = (Kubo::start().await, Kubo::start().await);
    let flags = ["--cid-version=1", "--raw-leaves"];
    let nowhere = author.add(&content[..], &flags);
    author.stop().await;
    let available = honest.add(&elsewhere[..], &flags);
    let hostile = Hostile::start(malice).await;

    let dir = TempDir::new().expect("the temporary folder is writable");
    let causeway = Launch::new(dir.path())
        .peering(&hostile.multiaddr())
        .peering(honest.tcp())
        .set("CAUSEWAY_HTTP_STALL_TIMEOUT_SECONDS", STALL.as_secs())
        .set("CAUSEWAY_LOG_LEVEL", "info,p2p_bridge=debug")
        .start()
        .await;
    eventually("both peers are connected", Duration::from_secs(20), async || {
        let connections = causeway.metrics().await.sample("causeway_p2p_connections");
        let honest_too = honest.is_connected_to(causeway.peer_id()).await;
        if connections >= 2 && honest_too { Ok(()) } else { Err(format!("{connections} connections")) }
    })
    .await;
    let before = causeway.process.resident_bytes();

    let begun = Instant::now();
    assert_readable_error(&causeway.get(&format!("/ipfs/{nowhere}")).await);
    assert!(begun.elapsed() < STALL + SLACK, "{malice:?}: answered after {:?}", begun.elapsed());
    assert!(hostile.wants() > 0, "{malice:?}: the peer was never asked, so this proves nothing");

    causeway.expect(&format!("/ipfs/{available}"), &elsewhere).await;
    let again = causeway.get(&format!("/ipfs/{nowhere}")).await;
    assert_readable_error(&again);
    causeway.assert_healthy().await;
    let grown = causeway.process.resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{malice:?}: memory grew by {grown} bytes");
    causeway.stop().await;
}

fn assert_readable_error(answer: &Answer) {
    let text = answer.text();
    assert!([502, 504].contains(&answer.status), "{}: {text}", answer.status);
    assert!((20..2000).contains(&text.len()) && text.contains(' '), "not a text for people: {text:?}");
    assert_eq!(answer.header("cache-control"), "no-store");
    assert_eq!(answer.header("access-control-allow-origin"), "*");
    if answer.status == 504 {
        assert!(answer.header("retry-after").parse::<u32>().is_ok(), "Retry-After: {:?}", answer.header("retry-after"));
    }
}
