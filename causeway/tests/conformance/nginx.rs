//! Answers cached by an nginx with defaults: it uses HTTP/1.0 upstream, which cannot signal the end of a body of
//! unknown length, and caches truncated bodies as complete. And what the shipped configuration of nginx decides in the
//! place of the gateway.

use crate::case::{get, judge};
use crate::fixtures::{FILES, HELLO, HELLO_TEXT, LISTING, MISSING, read_car};
use crate::socket::{Reply, exchange};
use crate::support::nginx::{Nginx, free_address, shipped};
use crate::world::{gateway, through_nginx};
use std::net::SocketAddr;
use std::path::Path;
use tempfile::TempDir;

#[tokio::test(flavor = "multi_thread")]
async fn only_complete_answers_are_cached() {
    let dir = TempDir::with_prefix("causeway-nginx-").expect("the temporary folder is writable");
    let nginx = World::start(dir.path(), gateway().await).await;

    for target in
        [format!("/ipfs/{MISSING}?format=car"), format!("/ipfs/{MISSING}?format=tar"), format!("/ipfs/{MISSING}")]
    {
        for turn in ["the first time", "again"] {
            match nginx.get(&target).await {
                Ok(reply) => {
                    let looks_good = reply.complete && reply.status < 500;
                    assert!(!looks_good, "{target} {turn}: {} with {} bytes", reply.status, reply.body.len());
                    assert_ne!(reply.header("x-cache").as_deref(), Some("HIT"), "{target} {turn}");
                }
                // No answer is fine as well.
                Err(_) => continue,
            }
        }
    }

    let good = [
        format!("/ipfs/{FILES}?format=car"),
        format!("/ipfs/{FILES}?format=tar"),
        format!("/ipfs/{FILES}/multiblock.txt"),
        format!("/ipfs/{LISTING}/"),
    ];
    for target in good {
        let first = nginx.whole(&target).await;
        let second = nginx.whole(&target).await;
        assert_eq!(second.header("x-cache").as_deref(), Some("HIT"), "{target} is to be cached");
        assert!(first.body == second.body, "{target} differs");
    }
    let car = nginx.whole(&format!("/ipfs/{FILES}?format=car")).await;
    assert_eq!(read_car(&car.body).expect("a good CAR").len(), 9);
    let listing = nginx.whole(&format!("/ipfs/{LISTING}/")).await;
    assert!(listing.text().contains("</html>"));
}

/// The header that the tables send as a proxy, and cannot send through one.
#[tokio::test(flavor = "multi_thread")]
async fn clients_of_nginx_do_not_choose_the_host() {
    let Some(front) = through_nginx().await else { return };
    let forged = |host: &str| {
        let (path, other) = (format!("/ipfs/{HELLO}"), "fake.domain.com");
        get(format!("{host} is forged"), path).at(other).with("X-Forwarded-Host", host).status(200).bytes(HELLO_TEXT)
    };
    judge(front, "forged hosts", vec![forged("example.com"), forged(&format!("{HELLO}.ipfs.example.com"))]).await;
}

/// From the second request of a URL on, when it may cache the answer, nginx would decide itself.
#[tokio::test(flavor = "multi_thread")]
async fn only_ranges_that_the_gateway_offers_are_offered() {
    let dir = TempDir::with_prefix("causeway-nginx-").expect("the temporary folder is writable");
    let (address, refresh, upstream) = (free_address(), free_address(), gateway().await.to_string());
    let configuration = shipped(&upstream, (address, false), refresh, dir.path());
    let nginx = World { address, _nginx: Nginx::start(dir.path(), &configuration, address).await };
    for (target, offered) in [
        (format!("/ipfs/{FILES}?format=car"), "none"),
        (format!("/ipfs/{FILES}?format=tar"), "none"),
        (format!("/ipfs/{FILES}/multiblock.txt"), "bytes"),
    ] {
        for turn in 1..=3 {
            let reply = nginx.whole(&target).await;
            assert_eq!(reply.header("accept-ranges").as_deref(), Some(offered), "{target}, request {turn}");
        }
        let reply = nginx.get_with(&target, "Range: bytes=1-2\r\n").await.expect("is answered");
        let expected = if offered == "bytes" { (206, 2) } else { (200, nginx.whole(&target).await.body.len()) };
        assert_eq!((reply.status, reply.body.len()), expected, "{target}");
    }
}

struct World {
    address: SocketAddr,
    _nginx: Nginx,
}

impl World {
    async fn start(dir: &Path, upstream: SocketAddr) -> Self {
        let address = free_address();
        let nginx = Nginx::start(dir, &configuration(address, upstream), address).await;
        Self { address, _nginx: nginx }
    }

    async fn get(&self, target: &str) -> Result<Reply, String> {
        self.get_with(target, "").await
    }

    async fn get_with(&self, target: &str, header: &str) -> Result<Reply, String> {
        let head = format!("GET {target} HTTP/1.1\r\nHost: gateway.example.net\r\nConnection: close\r\n{header}\r\n");
        exchange(self.address, &head).await
    }

    async fn whole(&self, target: &str) -> Reply {
        let reply = self.get(target).await.unwrap_or_else(|error| panic!("{target}: {error}"));
        assert!(reply.complete && reply.status == 200, "{target}: {} {}", reply.status, reply.text());
        reply
    }
}

/// As in nginx's documentation of caching.
fn configuration(listen: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        "proxy_cache_path cache keys_zone=gateway:1m;\n\
         server {{\n\
           listen {listen};\n\
           location / {{\n\
             proxy_pass http://{upstream};\n\
             proxy_http_version 1.0;\n\
             proxy_cache gateway;\n\
             add_header X-Cache $upstream_cache_status always;\n\
           }}\n\
         }}\n"
    )
}
