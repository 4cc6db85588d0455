//! Kubo reads content that only Causeway has: imported from a CAR, pinned, served over Bitswap, provided in the DHT.

use crate::support::causeway::{Causeway, Launch};
use crate::support::kubo::Kubo;
use crate::support::noise::Noise;
use crate::support::{assert_same_bytes, eventually};
use std::time::Duration;
use tempfile::TempDir;

const LEN: usize = 5_000_000;
/// A node provides its pins soon after its start, when it is connected to the DHT.
const ANNOUNCED_WITHIN: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
async fn kubo_reads_from_causeway_that_it_is_connected_to_over_tcp() {
    read_connected(1, "tcp", |causeway| causeway.tcp().to_owned()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubo_reads_from_causeway_that_it_is_connected_to_over_quic() {
    read_connected(3, "quic", |causeway| causeway.quic().to_owned()).await;
}

async fn read_connected(seed: u64, transport: &str, address: impl Fn(&Causeway) -> String) {
    let dir = TempDir::new().expect("the temporary folder is writable");
    let (launch, cid, content) = imported(&dir, seed).await;
    let causeway = launch.start().await;
    let kubo = Kubo::start().await;
    kubo.connect(&address(&causeway)).await;
    assert_same_bytes("ipfs cat", &kubo.cat(&cid).await, &content);

    // Causeway sent it; blocks are counted after they were sent.
    let metrics = causeway.metrics_when(|metrics| metrics.sample("causeway_bitswap_sent_bytes_total") >= LEN as u64);
    let metrics = metrics.await;
    assert_eq!(metrics.hits("network"), 0, "serving a peer never fetches");
    let carried = format!("causeway_p2p_carried_bytes_total{{transport=\"{transport}\",direction=\"out\"}}");
    assert!(metrics.sample(&carried) >= LEN as u64, "over {transport}");
    causeway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubo_finds_causeway_by_its_provider_record() {
    let dir = TempDir::new().expect("the temporary folder is writable");
    let (launch, cid, content) = imported(&dir, 2).await;
    let third = Kubo::start().await;
    let causeway = launch.bootstrap(third.tcp()).start().await;
    let kubo = Kubo::start().await;
    kubo.connect(third.tcp()).await;
    eventually("the DHT names Causeway as a provider", ANNOUNCED_WITHIN, async || {
        let found = kubo.find_providers(&cid).await;
        if found.iter().any(|peer| peer == causeway.peer_id()) { Ok(()) } else { Err(format!("providers: {found:?}")) }
    })
    .await;
    assert_same_bytes("ipfs cat", &kubo.cat(&cid).await, &content);
    causeway.stop().await;
}

/// The folder of a stopped node that has imported a file, which no other node has.
async fn imported(dir: &TempDir, seed: u64) -> (Launch, String, Vec<u8>) {
    let content = Noise::bytes(1000 + seed, LEN);
    let car = dir.path().join("content.car");
    let author = Kubo::start().await;
    let cid = author.add(&content[..], &["--cid-version=1", "--raw-leaves"]);
    author.export(&cid, &car);
    author.stop().await;
    let launch = Launch::new(dir.path());
    launch.import(&car);
    (launch, cid, content)
}
