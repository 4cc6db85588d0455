//! A private network of Causeway and Kubo: each reads content of the other, and a node without the key cannot connect.

use crate::support::assert_same_bytes;
use crate::support::causeway::Launch;
use crate::support::kubo::{Kubo, Setup};
use crate::support::noise::Noise;
use tempfile::TempDir;

const LEN: usize = 3_000_000;
const TCP: &[&str] = &["/ip4/127.0.0.1/tcp/0"];

fn key(text: &str) -> String {
    format!("/key/swarm/psk/1.0.0/\n{text}\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn kubo_and_causeway_share_a_private_network() {
    // The same 32 bytes in two encodings.
    let hex = key(&format!("/base16/\n{}", "5a".repeat(32)));
    let base64 = key("/base64/\nWlpaWlpaWlpaWlpaWlpaWlpaWlpaWlpaWlpaWlpaWlo=");
    let kubo = Kubo::start_as(&Setup { listen: TCP, swarm_key: Some(&hex) }).await;

    let dir = TempDir::new().expect("the temporary folder is writable");
    let (ours, theirs) = (Noise::bytes(1201, LEN), Noise::bytes(1202, LEN));
    let car = dir.path().join("content.car");
    let author = Kubo::start().await;
    let imported = author.add(&ours[..], &["--cid-version=1", "--raw-leaves"]);
    author.export(&imported, &car);
    author.stop().await;
    let file = dir.path().join("the.key");
    std::fs::write(&file, base64).expect("the temporary folder is writable");
    let launch = Launch::new(dir.path()).listen(TCP).set("CAUSEWAY_P2P_SWARM_KEY", file.display());
    launch.import(&car);
    let causeway = launch.set("LIBP2P_FORCE_PNET", "1").peering(kubo.tcp()).start().await;

    let cid = kubo.add(&theirs[..], &["--cid-version=1", "--raw-leaves"]);
    causeway.expect(&format!("/ipfs/{cid}"), &theirs).await;
    assert_same_bytes("ipfs cat", &kubo.cat(&imported).await, &ours);

    let other_key = key(&format!("/base16/\n{}", "a5".repeat(32)));
    for swarm_key in [None, Some(&*other_key)] {
        let outsider = Kubo::start_as(&Setup { listen: TCP, swarm_key }).await;
        let refusal = outsider.try_connect(causeway.tcp());
        assert!(refusal.is_err(), "a node with {swarm_key:?} was let in");
        assert!(!outsider.is_connected_to(causeway.peer_id()).await);
        outsider.stop().await;
    }
    assert_eq!(causeway.metrics().await.sample("causeway_p2p_connections"), 1, "with its peering alone");
    causeway.stop().await;
}
