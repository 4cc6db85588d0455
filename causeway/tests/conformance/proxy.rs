//! The gateway as an HTTP proxy: requests in absolute form, and tunnels.

use crate::case::{Case, get, page};
use crate::fixtures::*;
use crate::socket::{Reply, read};
use crate::world::{check, gateway};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn absolute_request_targets_are_accepted() {
    check("absolute form", absolute()).await;
}

/// RFC 9112, section 3.2.2: the host of the request target overrides the header Host.
fn absolute() -> Vec<Case> {
    let hosts =
        |case: Case, host: &str| [case.clone().at(host), case.called("another Host header").at("other.example.net")];
    let mut cases = Vec::new();
    let hello = format!("{HELLO}.ipfs.example.com");
    let case = get("content at its subdomain", format!("http://{hello}/")).status(200).bytes(HELLO_TEXT);
    cases.extend(hosts(case, &hello));
    let case = get("content at its subdomain, without a path", format!("http://{hello}")).status(200).bytes(HELLO_TEXT);
    cases.extend(hosts(case, &hello));
    let case = get("a path", format!("http://example.com/ipfs/{HELLO_V0}/"));
    cases.extend(hosts(case.redirects(301, format!("http://{HELLO_V0_AS_V1}.ipfs.example.com/")), "example.com"));
    let dir = format!("{ORIGIN_DIR}.ipfs.example.com");
    let case = get("a folder called ipfs", format!("http://{dir}/ipfs/file.txt")).status(200);
    cases.extend(hosts(case.body(page(["I am a txt file"])), &dir));
    let site = "dnslink-test.example.org";
    cases.extend(hosts(get("a website", format!("http://{site}/")).status(200).bytes(HELLO_TEXT), site));
    cases
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_tunnels_lead_to_the_gateway() {
    let address = gateway().await;
    let hello = format!("{HELLO}.ipfs.example.com");
    let dir = format!("{ORIGIN_DIR}.ipfs.example.com");
    let moved = format!("http://{HELLO_V0_AS_V1}.ipfs.example.com/");
    let table = [
        (hello.as_str(), "/".to_owned(), 200, HELLO_TEXT),
        (dir.as_str(), "/ipfs/file.txt".to_owned(), 200, "I am a txt file\n"),
        ("example.com", format!("/ipfs/{HELLO_V0}/"), 301, moved.as_str()),
    ];
    for (host, path, status, expected) in table {
        for authority in [address.to_string(), format!("{host}:80")] {
            for target in [path.clone(), format!("http://{host}{path}")] {
                let what = format!("CONNECT {authority}, then {target} at {host}");
                let reply =
                    tunnelled(&authority, host, &target).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(reply.status, status, "{what}: {}", reply.text());
                let found = reply.header("location").unwrap_or_else(|| reply.text());
                assert_eq!(found, expected, "{what}");
            }
        }
    }
}

async fn tunnelled(authority: &str, host: &str, target: &str) -> Result<Reply, String> {
    let mut stream = TcpStream::connect(gateway().await).await.map_err(|error| error.to_string())?;
    let connect = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    stream.write_all(connect.as_bytes()).await.map_err(|error| error.to_string())?;
    let head =
        tokio::time::timeout(TIMEOUT, head(&mut stream)).await.map_err(|_| "no answer to CONNECT".to_owned())??;
    // RFC 9110, section 9.3.6: after a 2xx, all bytes belong to the tunnel.
    if !head.starts_with("HTTP/1.1 200") {
        return Err(format!("CONNECT was answered with {head:?}"));
    }
    let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    read(&mut stream, false).await
}

/// Reads the head, up to its empty line.
async fn head(stream: &mut TcpStream) -> Result<String, String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        let byte = stream.read_u8().await;
        bytes.push(byte.map_err(|error| format!("{error} after {:?}", String::from_utf8_lossy(&bytes)))?);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
