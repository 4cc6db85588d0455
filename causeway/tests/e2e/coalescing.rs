//! A hundred readers of one cold file cost one fetch.

use crate::support::assert_same_bytes;
use crate::support::causeway::Launch;
use crate::support::kubo::Kubo;
use crate::support::noise::Noise;
use futures::future::join_all;
use tempfile::TempDir;

const READERS: usize = 100;

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_readers_fetch_each_block_once() {
    let content = Noise::bytes(100, 8_000_000);
    let kubo = Kubo::start().await;
    let cid = kubo.add(&content[..], &["--cid-version=1", "--raw-leaves"]);
    // 31 leaves of up to 262,144 bytes and their parent.
    let blocks = content.len().div_ceil(262_144) as u64 + 1;

    let dir = TempDir::new().expect("the temporary folder is writable");
    let causeway = Launch::new(dir.path()).peering(kubo.tcp()).start().await;
    let path = format!("/ipfs/{cid}");
    let answers = join_all((0..READERS).map(|_| causeway.get(&path))).await;
    for answer in &answers {
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_same_bytes(&path, &answer.body, &content);
    }

    let metrics = causeway.metrics().await;
    assert_eq!(metrics.hits("network"), blocks, "fetches");
    assert_eq!((metrics.received("wanted"), metrics.received("duplicate")), (blocks, 0), "(wanted, duplicate) blocks");
    assert_eq!(kubo.sent().await.blocks, blocks, "blocks that Kubo sent");
    causeway.stop().await;
}
