//! Nodes with the same swarm key connect only to each other.

use super::support::{NEVER, Node, options};
use p2p_bridge::{Bridge, BridgeOptions, StartError};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use tempfile::TempDir;

const TCP: &str = "/ip4/127.0.0.1/tcp/0";

/// Options with a swarm key of 32 times this byte, or on the public network.
fn member(key: Option<u8>, peering: Option<&Node>) -> (BridgeOptions, TempDir) {
    let (mut options, dir) = options(&[TCP]);
    if let Some(key) = key {
        let path = dir.path().join("swarm.key");
        let text = format!("/key/swarm/psk/1.0.0/\n/base16/\n{}\n", format!("{key:02x}").repeat(32));
        std::fs::write(&path, text).expect("the temporary folder is writable");
        options.private.key_file = Some(path);
    }
    options.peering = peering.iter().map(|node| node.address("/tcp/")).collect();
    (options, dir)
}

#[tokio::test]
async fn nodes_with_the_key_connect_and_others_do_not() {
    let node = Node::start(member(Some(1), None)).await;
    let block = node.hold(b"for members only");
    let other = Node::start(member(Some(2), Some(&node))).await;
    let public = Node::start(member(None, Some(&node))).await;
    tokio::time::sleep(NEVER).await;
    for (who, node) in [("the node", &node), ("another key", &other), ("no key", &public)] {
        assert_eq!(node.sample("causeway_p2p_connections"), 0.0, "{who}");
    }
    let other = Node::start(member(Some(1), Some(&node))).await;
    other.fetch(&block).await;
    assert_eq!(node.sample("causeway_p2p_connections"), 1.0);
}

#[tokio::test]
async fn a_member_does_not_enter_the_public_network() {
    let public = Node::start(member(None, None)).await;
    let node = Node::start(member(Some(1), Some(&public))).await;
    tokio::time::sleep(NEVER).await;
    assert_eq!((node.sample("causeway_p2p_connections"), public.sample("causeway_p2p_connections")), (0.0, 0.0));
}

#[tokio::test]
async fn a_node_does_not_start_without_its_key_or_with_quic() {
    let (mut options, dir) = member(Some(1), None);
    let path = dir.path().join("swarm.key");
    let start = async |options: &BridgeOptions| {
        let local = Arc::new(content::MemoryBlocks::new());
        Bridge::start(options.clone(), local, &mut Registry::default()).await.err().expect("refuses")
    };
    options.listen = vec!["/ip4/127.0.0.1/udp/0/quic-v1".parse().expect("a multiaddr")];
    assert!(matches!(start(&options).await, StartError::Listen { .. }), "QUIC has no private networks");
    std::fs::write(&path, "lost").expect("writes");
    let error = start(&options).await.to_string();
    assert!(error.starts_with("cannot use the swarm key ") && error.contains("first line"), "{error}");
    std::fs::remove_file(&path).expect("removes");
    assert!(matches!(start(&options).await, StartError::Private { .. }));
}
