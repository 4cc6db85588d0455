//! Blocks over WebSocket, on public and on private networks.

use super::support::{Node, options};

const WS: &str = "/ip4/127.0.0.1/tcp/0/ws";

#[tokio::test]
async fn blocks_are_exchanged_over_websocket() {
    for private in [false, true] {
        let node = |peering: Option<&Node>| {
            let (mut options, dir) = options(&[WS]);
            if private {
                let path = dir.path().join("swarm.key");
                let key = [&b"/key/swarm/psk/1.0.0/\n/bin/\n"[..], &[7; 32]].concat();
                std::fs::write(&path, key).expect("the temporary folder is writable");
                options.private.key_file = Some(path);
            }
            options.peering = peering.iter().map(|node| node.address("/ws")).collect();
            (options, dir)
        };
        let holder = Node::start(node(None)).await;
        let block = holder.hold(b"for browsers");
        Node::start(node(Some(&holder))).await.fetch(&block).await;
    }
}
