//! Requests whose content cannot be fetched, before and after the head.

use crate::dag::{broken_shard, directory, file, noise, raw};
use crate::site::{FailingNetwork, Setup, Site};
use content::{Block, Cid, DenyList, SourceError, Stall};
use futures::StreamExt as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;

fn stalled(cid: Cid) -> SourceError {
    let stall = Stall {
        waited: Duration::from_secs(30),
        providers_found: 3,
        peers_asked: 2,
        peers_answered: 1,
        ..Stall::default()
    };
    SourceError::Stalled { cid, stall }
}

fn corrupt(cid: Cid) -> SourceError {
    SourceError::Corrupt { cid }
}

#[tokio::test]
async fn content_that_cannot_be_fetched_is_a_504_with_statistics() {
    let absent = raw("absent");
    let root = directory(&[("absent", &absent)]);
    let site = Setup { upstream: Some(FailingNetwork::at_once(stalled)), ..Setup::new(&[&root]) }.start().await;
    for path in [format!("/ipfs/{}", absent.cid()), format!("/ipfs/{}/absent", root.cid())] {
        let response = site.get(&path).await;
        assert_eq!(response.status(), 504);
        assert_eq!(response.headers()["retry-after"], "30");
        assert_eq!(response.headers()["cache-control"], "no-store");
        assert_eq!(response.headers()["access-control-allow-origin"], "*");
        let text = response.text().await.expect("text");
        assert!(text.contains("3 providers found, 2 peers asked, 1 answered"), "{text}");
    }
    assert_eq!(site.metric("causeway_http_requests_total{method=\"GET\",code=\"5xx\"}"), 2);
}

#[tokio::test]
async fn invalid_blocks_are_a_502() {
    let site = Setup { upstream: Some(FailingNetwork::at_once(corrupt)), ..Setup::new(&[]) }.start().await;
    let response = site.get(&format!("/ipfs/{}", raw("absent").cid())).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["cache-control"]),
        (502, &"no-store".parse().expect("ok"))
    );
    assert!(response.text().await.expect("text").contains("Invalid content"));
}

#[tokio::test]
async fn a_missing_first_leaf_has_an_error_status() {
    let leaves = [raw(noise(1, 50_000)), raw(noise(2, 50_000))];
    let large = file(&leaves);
    let root = directory(&[("large.bin", &large)]);
    let site = Setup { upstream: Some(FailingNetwork::at_once(stalled)), ..Setup::new(&[&root, &large, &leaves[1]]) }
        .start()
        .await;
    let path = format!("/ipfs/{}/large.bin", root.cid());
    assert_eq!(site.get(&path).await.status(), 504);
    assert_eq!(site.send("HEAD", &path, &[]).await.status(), 200, "a HEAD needs no leaf");
    let part = site.send("GET", &path, &[("range", "bytes=60000-")]).await;
    assert_eq!((part.status().as_u16(), part.bytes().await.expect("a body").len()), (206, 40_000));
}

/// A file with two leaves, of which the second cannot be fetched; and the gate before that error.
async fn half_a_file(error: fn(Cid) -> SourceError) -> (Site, Block, Arc<tokio::sync::Semaphore>) {
    let leaves = [raw(noise(1, 200_000)), raw(noise(2, 200_000))];
    let large = file(&leaves);
    let (upstream, gate) = FailingNetwork::gated(error);
    let site = Setup { upstream: Some(upstream), ..Setup::new(&[&large, &leaves[0]]) }.start().await;
    (site, large, gate)
}

#[tokio::test]
async fn an_aborted_body_never_looks_complete() {
    for reason in ["stalled", "corrupt"] {
        let (site, large, gate) = half_a_file(if reason == "stalled" { stalled } else { corrupt }).await;
        let response = site.get(&format!("/ipfs/{}", large.cid())).await;
        assert_eq!((response.status().as_u16(), response.content_length()), (200, Some(400_000)));
        let mut body = response.bytes_stream();
        let mut received = 0;
        while received < 200_000 {
            received += body.next().await.expect("more").expect("so far so good").len();
        }
        gate.add_permits(1);
        assert!(body.next().await.expect("an end").is_err(), "the body is broken, not over");
        site.until_metric(&format!("causeway_http_responses_aborted_total{{reason=\"{reason}\"}}"), 1).await;
        site.until_metric("causeway_http_requests_in_flight", 0).await;
    }
}

#[tokio::test]
async fn http_10_sees_a_reset() {
    let (site, large, gate) = half_a_file(stalled).await;
    let mut stream = site.connect(&format!("GET /ipfs/{} HTTP/1.0\r\n\r\n", large.cid())).await;
    let mut first = vec![0; 1000];
    stream.read_exact(&mut first).await.expect("a head");
    gate.add_permits(1);
    let mut rest = Vec::new();
    let error = stream.read_to_end(&mut rest).await.expect_err("no orderly end");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert!(rest.len() < 250_000);
}

#[tokio::test]
async fn an_aborted_listing_never_looks_complete() {
    let leaf = raw("x");
    let root = broken_shard("first", &leaf, directory(&[]).cid());
    let (upstream, gate) = FailingNetwork::gated(stalled);
    let site = Setup { upstream: Some(upstream), ..Setup::new(&[&root]) }.start().await;
    let path = format!("/ipfs/{}/", root.cid());
    let response = site.get(&path).await;
    assert_eq!(response.status(), 200);
    let mut body = response.bytes_stream();
    let first = body.next().await.expect("more").expect("the first entries");
    assert!(String::from_utf8_lossy(&first).contains(">first<"));
    gate.add_permits(1);
    assert!(body.next().await.expect("an end").is_err(), "the page is broken, not over");
    site.until_metric("causeway_http_responses_aborted_total{reason=\"stalled\"}", 1).await;

    gate.add_permits(1);
    let (answer, _) = site.exchange(&format!("GET {path} HTTP/1.0\r\n\r\n")).await;
    let text = String::from_utf8_lossy(&answer);
    assert!(text.starts_with("HTTP/1.0 504") && !text.contains("</ul>"), "{text}");
}

#[tokio::test]
async fn disconnected_clients_are_counted() {
    let (site, large, _gate) = half_a_file(stalled).await;
    let mut stream = site.connect(&format!("GET /ipfs/{} HTTP/1.1\r\nHost: x\r\n\r\n", large.cid())).await;
    let mut first = vec![0; 1000];
    stream.read_exact(&mut first).await.expect("a head");
    assert_eq!(site.metric("causeway_http_requests_in_flight"), 1);
    drop(stream);
    site.until_metric("causeway_http_responses_aborted_total{reason=\"client\"}", 1).await;
    let waiting = site.connect(&format!("GET /ipfs/{} HTTP/1.1\r\nHost: x\r\n\r\n", raw("absent").cid())).await;
    site.until_metric("causeway_http_requests_in_flight", 1).await;
    drop(waiting);
    site.until_metric("causeway_http_requests_cancelled_total", 1).await;
    site.until_metric("causeway_http_requests_in_flight", 0).await;
}

#[tokio::test]
async fn withheld_content_is_410_in_every_format() {
    let denied = raw("denied");
    let root = directory(&[("denied", &denied), ("fine", &raw("fine"))]);
    let policy = Arc::new(DenyList::new([*denied.cid()]));
    let site = Setup { policy, ..Setup::new(&[&denied, &root, &raw("fine")]) }.start().await;
    let tag = format!("\"{}\"", denied.cid());
    let by_cid = format!("/ipfs/{}", denied.cid());
    for path in [by_cid.clone(), format!("/ipfs/{}/denied", root.cid()), format!("{by_cid}?format=raw")] {
        let response = site.get(&path).await;
        assert_eq!(response.status(), 410, "{path}");
        assert!(response.text().await.expect("text").contains("Removed by the operator"));
    }
    assert_eq!(site.send("GET", &by_cid, &[("if-none-match", &tag)]).await.status(), 410);
    assert_eq!(site.get(&format!("/ipfs/{}/fine", root.cid())).await.status(), 200);
}
