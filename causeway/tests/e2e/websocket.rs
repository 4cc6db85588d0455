//! Blocks both ways over WebSocket, with no other transport to fall back on.

use crate::support::assert_same_bytes;
use crate::support::causeway::Launch;
use crate::support::kubo::{Kubo, Setup};
use crate::support::noise::Noise;
use tempfile::TempDir;

const LEN: usize = 3_000_000;
const WS: &[&str] = &["/ip4/127.0.0.1/tcp/0/ws"];

#[tokio::test(flavor = "multi_thread")]
async fn causeway_dials_kubo_over_websocket() {
    let kubo = Kubo::start_as(&Setup { listen: WS, ..Setup::default() }).await;
    let content = Noise::bytes(1301, LEN);
    let cid = kubo.add(&content[..], &["--cid-version=1", "--raw-leaves"]);
    let dir = TempDir::new().expect("the temporary folder is writable");
    let causeway = Launch::new(dir.path()).peering(kubo.websocket()).start().await;
    causeway.expect(&format!("/ipfs/{cid}"), &content).await;
    causeway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubo_dials_causeway_over_websocket() {
    let content = Noise::bytes(1302, LEN);
    let dir = TempDir::new().expect("the temporary folder is writable");
    let car = dir.path().join("content.car");
    let kubo = Kubo::start().await;
    let author = Kubo::start().await;
    let cid = author.add(&content[..], &["--cid-version=1", "--raw-leaves"]);
    author.export(&cid, &car);
    author.stop().await;
    let launch = Launch::new(dir.path()).listen(WS);
    launch.import(&car);
    let causeway = launch.start().await;
    kubo.connect(causeway.tcp()).await;
    assert_same_bytes("ipfs cat", &kubo.cat(&cid).await, &content);
    causeway.stop().await;
}
