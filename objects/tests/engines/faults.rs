//! Connections that break off, busy and stalled servers.

use crate::relay::{Fault, Relay};
use crate::server::{Server, open};
use crate::support::{TIMEOUT, assert_refused, assert_unavailable, names, noise};
use bytes::Bytes;
use futures::StreamExt as _;
use objects::StoreOptions;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_breaks_off_never_yields_a_short_object() {
    let server = Server::start().await;
    let relay = Relay::before(server.port).await;
    let objects = open(&Server::options_at(relay.port));
    let data = Bytes::from(noise(1, 300_000));
    objects.put("object", data.clone()).await.expect("puts");
    relay.connections();
    // Within the head, after it, within the body, and before its last byte.
    for bytes in [10, 600, 2_000, 150_000, 300_000] {
        relay.next([Fault::CutAnswer(bytes)]);
        assert_eq!(objects.get("object").await, Ok(Some(data.clone())), "{bytes}");
        assert_eq!(relay.connections(), 2, "{bytes}");
    }
    relay.always(Some(Fault::CutAnswer(100_000)));
    assert_unavailable(objects.get("object").await, "4 attempts");
    assert_eq!(relay.connections(), 4);
    // Absence is as safe: an answer that breaks off is none.
    relay.always(Some(Fault::CutAnswer(100)));
    assert_unavailable(objects.get("absent").await, "4 attempts");
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_and_connections_are_repeated() {
    let server = Server::start().await;
    let relay = Relay::before(server.port).await;
    let objects = open(&Server::options_at(relay.port));
    for (number, fault) in [Fault::LoseAnswer, Fault::Refuse, Fault::CutAnswer(20)].into_iter().enumerate() {
        let name = format!("lost/{number}");
        let data = Bytes::from(noise(number as u64, 50_000));
        relay.next([fault.clone(), fault.clone()]);
        objects.put(&name, data.clone()).await.expect("puts");
        assert_eq!(relay.connections(), 3, "{fault:?}");
        assert_eq!(server.objects().get(&name).await, Ok(Some(data)));
        relay.next([fault.clone()]);
        assert_eq!(names(&*objects, "lost/").await, [name.as_str()], "{fault:?}");
        relay.next([fault.clone()]);
        objects.delete(&name).await.expect("deletes");
        assert_eq!(server.objects().get(&name).await, Ok(None));
        relay.connections();
    }
    // If all answers are lost, the caller does not know whether it was written. It was.
    relay.always(Some(Fault::LoseAnswer));
    assert_unavailable(objects.put("unknown", Bytes::from_static(b"x")).await, "PUT");
    assert_eq!(server.objects().get("unknown").await, Ok(Some(Bytes::from_static(b"x"))));
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_servers_are_given_time() {
    let server = Server::start().await;
    let relay = Relay::before(server.port).await;
    let objects = open(&Server::options_at(relay.port));
    let busy = || Fault::error("503 Slow Down", "SlowDown", "");
    let failed = || Fault::error("500 Internal Server Error", "InternalError", "");
    relay.next([busy(), failed(), busy()]);
    objects.put("object", Bytes::from_static(b"x")).await.expect("puts");
    assert_eq!(relay.connections(), 4);
    relay.always(Some(busy()));
    assert_unavailable(objects.get("object").await, "503 SlowDown");
    assert_unavailable(objects.put("other", Bytes::from_static(b"x")).await, "503 SlowDown");
    assert_eq!(relay.connections(), 8);

    // The server's wish is respected.
    let wish = Fault::error("503 Slow Down", "SlowDown", "Retry-After: 1\r\n");
    relay.always(None);
    relay.next([wish]);
    let begun = Instant::now();
    assert_eq!(objects.get("object").await, Ok(Some(Bytes::from_static(b"x"))));
    assert!(begun.elapsed() >= Duration::from_secs(1));
    // A wish beyond the deadline is an answer.
    relay.next([Fault::error("503 Slow Down", "SlowDown", "Retry-After: 3600\r\n")]);
    let begun = Instant::now();
    assert_unavailable(objects.get("object").await, "1 attempt");
    assert!(begun.elapsed() < TIMEOUT);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_answers_are_waited_for() {
    let server = Server::start().await;
    let relay = Relay::before(server.port).await;
    let objects = open(&Server::options_at(relay.port));
    let delay = Duration::from_millis(300);
    let begun = Instant::now();
    relay.always(Some(Fault::Delay(delay)));
    objects.put("object", Bytes::from_static(b"x")).await.expect("puts");
    assert_eq!(objects.get("object").await, Ok(Some(Bytes::from_static(b"x"))));
    assert_eq!(relay.connections(), 2, "each is requested once");
    assert!(begun.elapsed() >= 2 * delay);
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_servers_are_left_in_time() {
    let server = Server::start().await;
    let relay = Relay::before(server.port).await;
    let request_timeout = Duration::from_millis(500);
    let objects = open(&StoreOptions { request_timeout, attempts: 3, ..Server::options_at(relay.port) });
    relay.next([Fault::Stall]);
    objects.put("object", Bytes::from_static(b"x")).await.expect("puts");
    relay.next([Fault::Stall]);
    assert_eq!(objects.get("object").await, Ok(Some(Bytes::from_static(b"x"))));
    relay.always(Some(Fault::Stall));
    assert_unavailable(objects.get("object").await, "timed out");
    // The deadline is that of all attempts.
    let options = StoreOptions { deadline: Duration::from_millis(200), ..Server::options_at(relay.port) };
    let begun = Instant::now();
    assert_unavailable(open(&options).get("object").await, "1 attempt");
    assert!(begun.elapsed() < TIMEOUT);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_other_servers_are_not_understood() {
    let server = Server::start().await;
    let relay = Relay::before(server.port).await;
    let objects = open(&StoreOptions { attempts: 2, ..Server::options_at(relay.port) });
    let page = "<html>not here</html>";
    let answer = |head: &str| {
        let len = page.len();
        Fault::Answer(format!("HTTP/1.1 {head}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{page}"))
    };
    // That there is nothing is believed of S3 only.
    relay.always(Some(answer("404 Not Found")));
    assert_refused(objects.get("object").await, "is the endpoint right");
    assert_refused(objects.delete("object").await, "is the endpoint right");
    relay.always(Some(answer("301 Moved\r\nLocation: http://127.0.0.1:1/")));
    assert_refused(objects.get("object").await, "endpoint is not that of the bucket");
    relay.always(Some(answer("200 OK")));
    assert_unavailable(objects.put("object", Bytes::new()).await, "not understood");
    assert_refused(objects.list("v1/").next().await.expect("an error"), "is the endpoint right");
    // A part of an object, of another server.
    relay.always(Some(answer("206 Partial Content\r\nETag: \"x\"\r\nContent-Range: bytes 0-20/30")));
    assert_refused(objects.get("object").await, "is the endpoint right");
    // Listings of buckets, and one of version 1 that goes on.
    let listings = [
        "<ListAllMyBucketsResult><Buckets></Buckets></ListAllMyBucketsResult>",
        "<ListBucketResult><IsTruncated>true</IsTruncated><NextMarker>x</NextMarker></ListBucketResult>",
    ];
    for listing in listings {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", listing.len());
        relay.always(Some(Fault::Answer(format!("{head}{listing}"))));
        assert_refused(objects.list("v1/").next().await.expect("an error"), "ListObjectsV2");
    }
    // An error that breaks off says nothing.
    let broken = "HTTP/1.1 404 Not Found\r\nContent-Length: 500\r\nConnection: close\r\n\r\n<Error><Code>NoSuchKey";
    relay.always(Some(Fault::Answer(broken.to_owned())));
    assert_unavailable(objects.get("object").await, "2 attempts");
    // More than it says, and less memory than it says.
    relay.always(Some(Fault::Answer(
        "HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: 999999999999\r\nConnection: close\r\n\r\nx".to_owned(),
    )));
    let error = objects.get("object").await.expect_err("is too long");
    assert!(matches!(error, objects::ObjectError::TooLong { bytes: 999_999_999_999, .. }), "{error}");
}
