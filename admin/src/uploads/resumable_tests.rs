//! Resumable uploads, through the routes.

use crate::uploads::tests::{Answer, Setup, Site, bearer, site, site_at, zstd};
use axum::body::Body;
use axum::http::{Method, Request};
use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use proptest::prelude::*;
use serde_json::Value;
use services::access::Principal;
use services::supervision::Supervisor;
use services::uploads::request_body::boxed;
use services::uploads::resumable::parts::{Piece, Wanted};
use services::uploads::resumable::record::UploadOutcome;
use std::io;
use std::sync::Arc;
use std::time::Duration;

const PIECE: &str = "application/offset+octet-stream";
/// "hello world\n" as Kubo adds it.
const HELLO: &str = "QmT78zSuBmuS4z925WZfrqQ1qHaJ56DQaTfyMUF7F8ff5o";

impl Site {
    async fn create(&self, bearer: &Principal, query: &str, length: u64, metadata: &str) -> Answer {
        let request = Request::builder().method(Method::POST).uri(format!("/api/v1/uploads?{query}"));
        let request = request.header("tus-resumable", "1.0.0").header("upload-length", length);
        let request = if metadata.is_empty() { request } else { request.header("upload-metadata", metadata) };
        self.ask(bearer, request, Body::empty()).await
    }

    async fn send(&self, bearer: &Principal, location: &str, offset: u64, body: impl Into<Body>) -> Answer {
        let request = Request::builder().method(Method::PATCH).uri(location).header("tus-resumable", "1.0.0");
        let request = request.header("upload-offset", offset).header("content-type", PIECE);
        self.ask(bearer, request, body.into()).await
    }

    async fn does(&self, bearer: &Principal, method: Method, location: &str) -> Answer {
        let request = Request::builder().method(method).uri(location).header("tus-resumable", "1.0.0");
        self.ask(bearer, request, Body::empty()).await
    }
}

fn location(created: &Answer) -> String {
    assert_eq!(created.status, 201, "{}", created.error());
    created.headers["location"].to_str().expect("text").to_owned()
}

fn offset(answer: &Answer) -> u64 {
    answer.headers["upload-offset"].to_str().expect("text").parse().expect("a number")
}

#[tokio::test]
async fn an_upload_resumes_at_its_offset() {
    let site = site(Setup::default());
    let me = Principal::operator();
    let created = site.create(&me, "", 12, "filename aGVsbG8udHh0").await;
    assert_eq!(created.headers["tus-resumable"], "1.0.0");
    assert!(created.headers.contains_key("upload-expires"));
    let at = location(&created);
    let first = site.send(&me, &at, 0, "hello").await;
    assert_eq!((first.status, offset(&first)), (204, 5));
    let broken = stream::iter([Ok(Bytes::from_static(b" wor")), Err(io::Error::other("the sender is gone"))]);
    assert_eq!(site.send(&me, &at, 5, Body::from_stream(broken)).await.status, 400);
    let head = site.does(&me, Method::HEAD, &at).await;
    assert_eq!((head.status, offset(&head), head.headers["upload-length"].to_str().ok()), (200, 9, Some("12")));
    assert_eq!(head.headers["cache-control"], "no-store");
    let view = site.does(&me, Method::GET, &at).await.json();
    assert_eq!((&view["state"], &view["offset"], &view["name"]), (&"open".into(), &9.into(), &"hello.txt".into()));
    for wrong in [0, 8, 10, 12] {
        let answer = site.send(&me, &at, wrong, "x").await;
        assert!(answer.status == 409 && answer.error().contains("is 9:"), "{wrong}: {}", answer.error());
    }
    for (body, why) in [
        (Body::from("ld\nx"), "announced"),
        (Body::from_stream(stream::iter([Ok::<_, io::Error>("ld\nx")])), "streamed"),
    ] {
        let answer = site.send(&me, &at, offset(&site.does(&me, Method::HEAD, &at).await), body).await;
        assert_eq!(answer.status, 413, "{why}");
    }
    // A PATCH that exceeds the upload's length is rejected as a whole.
    let last = site.send(&me, &at, 9, "ld\n").await;
    assert_eq!(
        (last.status, offset(&last), last.headers["x-ipfs-path"].to_str().ok()),
        (204, 12, Some(&*format!("/ipfs/{HELLO}")))
    );
    let view = site.does(&me, Method::GET, &at).await.json();
    assert_eq!((&view["state"], &view["result"]["roots"][0]["cid"]), (&"done".into(), &HELLO.into()));
    assert_eq!(offset(&site.does(&me, Method::HEAD, &at).await), 12);
    let left: Vec<_> = std::fs::read_dir(site.dir.path().join("parts"))
        .expect("lists")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    assert!(left.len() == 1 && left[0].extension().is_some_and(|extension| extension == "json"), "{left:?}");
    assert_eq!(site.does(&me, Method::DELETE, &at).await.status, 204);
    for method in [Method::HEAD, Method::GET, Method::DELETE] {
        assert_eq!(site.does(&me, method.clone(), &at).await.status, 404, "{method}");
    }
}

#[tokio::test]
async fn encoded_pieces_are_appended_by_the_offset_of_their_content() {
    let site = site(Setup::default());
    let me = Principal::operator();
    let send = async |at: &str, offset: u64, coding: &str, body: Body| {
        let request = Request::builder().method(Method::PATCH).uri(at).header("tus-resumable", "1.0.0");
        let request = request.header("upload-offset", offset).header("content-type", PIECE);
        site.ask(&me, request.header("content-encoding", coding), body).await
    };
    let content = b"what is to be sent, ".repeat(20_000);
    let length = content.len() as u64;
    let at = location(&site.create(&me, "", length, "").await);
    let first = send(&at, 0, "zstd", Body::from(zstd(&content[..100_000]))).await;
    assert_eq!((first.status, offset(&first)), (204, 100_000), "{}", first.error());
    // What was decoded before the connection broke is kept.
    let rest = zstd(&content[100_000..]);
    let broken = stream::iter([Ok(Bytes::copy_from_slice(&rest[..rest.len() / 2])), Err(io::Error::other("gone"))]);
    assert_eq!(send(&at, 100_000, "zstd", Body::from_stream(broken)).await.status, 400);
    let reached = offset(&site.does(&me, Method::HEAD, &at).await);
    assert!((100_000..length).contains(&reached), "{reached}");
    let left = &content[reached as usize..];
    let (rest, half) = (zstd(left), left.len() / 2);
    let damaged = [&zstd(&left[..half])[..], b"damage", &zstd(&left[half..])].concat();
    let table = [
        ("gzip", Body::from("x"), 415),
        ("zstd", Body::from("garbage"), 400),
        ("zstd", Body::from(rest[..rest.len() - 1].to_vec()), 400),
        ("zstd", Body::from([&rest[..], b"x"].concat()), 400),
        (
            "zstd",
            Body::from_stream(stream::iter(
                rest.chunks(99)
                    .map(|piece| Ok::<_, io::Error>(Bytes::copy_from_slice(piece)))
                    .chain([Ok(Bytes::from_static(b"x"))])
                    .collect::<Vec<_>>(),
            )),
            400,
        ),
        ("zstd", Body::from(damaged), 400),
        ("zstd", Body::from(zstd(&vec![7; content.len()])), 413),
        ("zstd", Body::from(zstd(&vec![7; 64 << 20])), 413),
    ];
    for (coding, body, status) in table {
        let answer = send(&at, reached, coding, body).await;
        assert_eq!(answer.status, status, "{coding}: {}", answer.error());
        assert_eq!(answer.headers.contains_key("accept-encoding"), status == 415);
        assert_eq!(offset(&site.does(&me, Method::HEAD, &at).await), reached, "nothing of it is kept");
    }
    let last = send(&at, reached, "zstd", Body::from(zstd(&content[reached as usize..]))).await;
    assert_eq!((last.status, offset(&last)), (204, length), "{}", last.error());
    let plain = site.create(&me, "", length, "").await;
    let plain = site.send(&me, &location(&plain), 0, content).await;
    assert_eq!(last.headers["x-ipfs-path"], plain.headers["x-ipfs-path"]);
}

#[tokio::test]
async fn a_post_may_be_overridden_by_other_methods() {
    let site = site(Setup::default());
    let me = Principal::operator();
    let at = location(&site.create(&me, "", 12, "").await);
    let post = |method: &'static str| {
        let request = Request::builder().method(Method::POST).uri(&at).header("tus-resumable", "1.0.0");
        request.header("x-http-method-override", method)
    };
    let piece = post("PATCH").header("upload-offset", 0).header("content-type", PIECE);
    let sent = site.ask(&me, piece, Body::from("hello")).await;
    assert_eq!((sent.status, offset(&sent)), (204, 5), "{}", sent.error());
    let head = site.ask(&me, post("HEAD"), Body::empty()).await;
    assert_eq!((head.status, offset(&head)), (200, 5));
    for other in ["", "patch", "PUT", "POST"] {
        let answer = site.ask(&me, post(other), Body::empty()).await;
        assert!(answer.status == 400 && answer.error().contains("X-HTTP-Method-Override"), "{other}");
    }
    assert_eq!(site.does(&me, Method::POST, &at).await.status, 400, "there is no such header");
    assert_eq!(offset(&site.does(&me, Method::HEAD, &at).await), 5, "nothing was done");
    assert_eq!(site.ask(&me, post("DELETE"), Body::empty()).await.status, 204);
    assert_eq!(site.ask(&me, post("HEAD"), Body::empty()).await.status, 404);
}

#[tokio::test]
async fn uploads_are_imported_by_their_media_type() {
    let site = site(Setup::default());
    let me = Principal::operator();
    let table = [
        ("cid-version=1", "", &b"hello world\n"[..], Ok("bafkreifjjcie6lypi6ny7amxnfftagclbuxndqonfipmb64f2km2devei4")),
        ("", "", b"", Ok("QmbFMke1KXqnYyBBWxB74N4c5SBnJMVAiMNRcGu6x1AwQH")),
        // An invalid TAR.
        ("", "filetype YXBwbGljYXRpb24veC10YXI=", b"hello world\n", Err(400)),
    ];
    for (query, metadata, content, expected) in table {
        let created = site.create(&me, query, content.len() as u64, metadata).await;
        let at = location(&created);
        if !content.is_empty() {
            let sent = site.send(&me, &at, 0, content).await;
            assert_eq!(sent.status, expected.map_or_else(|status| status, |_| 204), "{}", sent.error());
        }
        let view = site.does(&me, Method::GET, &at).await.json();
        match expected {
            Ok(cid) => assert_eq!(view["result"]["roots"][0]["cid"], cid),
            Err(status) => {
                assert_eq!((&view["state"], &view["failure"]["status"]), (&"failed".into(), &status.into()));
                assert_eq!(site.does(&me, Method::HEAD, &at).await.status, status);
                assert_eq!(site.send(&me, &at, content.len() as u64, "").await.status, status, "it stays so");
            }
        }
    }
}

#[tokio::test]
async fn a_later_request_interrupts_a_running_one() {
    let site = Arc::new(site(Setup::default()));
    let me = Principal::operator();
    let at = location(&site.create(&me, "", 12, "").await);
    let (sender, receiver) = tokio::sync::mpsc::channel::<io::Result<Bytes>>(1);
    let body =
        Body::from_stream(stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver))));
    let sending = {
        let (site, me, at) = (Arc::clone(&site), me.clone(), at.clone());
        tokio::spawn(async move { site.send(&me, &at, 0, body).await.status })
    };
    sender.send(Ok(Bytes::from_static(b"hello "))).await.expect("is read");
    sender.send(Ok(Bytes::from_static(b"w"))).await.expect("is read");
    let head = site.does(&me, Method::HEAD, &at).await;
    assert_eq!(head.status, 200);
    let stands = offset(&head);
    assert!((6..=7).contains(&stands), "{stands}");
    drop(sender);
    assert_eq!(sending.await.expect("ends"), 423);
    assert_eq!(offset(&site.does(&me, Method::HEAD, &at).await), stands);
    let rest = Bytes::from_static(b"hello world\n").slice(usize::try_from(stands).expect("small")..);
    assert_eq!(site.send(&me, &at, stands, rest).await.headers["x-ipfs-path"], format!("/ipfs/{HELLO}"));
}

#[tokio::test]
async fn a_token_sees_only_its_own_uploads() {
    let site = site(Setup::default());
    let (one, other) = (bearer("one", None), bearer("other", None));
    let at = location(&site.create(&one, "", 5, "").await);
    for method in [Method::HEAD, Method::GET, Method::DELETE] {
        assert_eq!(site.does(&other, method.clone(), &at).await.status, 404, "{method}");
    }
    assert_eq!(site.send(&other, &at, 0, "x").await.status, 404);
    assert_eq!(site.send(&other, "/api/v1/uploads/..%2Fx", 0, "x").await.status, 404);
    let listed = async |bearer: &Principal| {
        let list = site.does(bearer, Method::GET, "/api/v1/uploads").await.json();
        list["uploads"].as_array().expect("a list").len()
    };
    assert_eq!((listed(&one).await, listed(&other).await), (1, 0));
}

#[tokio::test]
async fn uploads_and_their_bytes_are_bounded() {
    let settings = config::Uploads {
        bytes_max: 1_000,
        parts_bytes_max: 1_500,
        parts_token_bytes_max: 1_000,
        parts_token_max: 3,
        ..config::Uploads::default()
    };
    let site = site(Setup { settings, ..Setup::default() });
    let [one, other] = ["one", "other"].map(|id| bearer(id, None));
    let create = async |bearer: &Principal, length: u64| site.create(bearer, "", length, "").await;
    assert_eq!(create(&one, 1_001).await.status, 413);
    assert_eq!(create(&bearer("poor", Some(10)), 11).await.status, 507);
    let at = location(&create(&one, 900).await);
    for (bearer, length, status) in
        [(&one, 101, 507), (&one, 100, 201), (&other, 501, 507), (&other, 500, 201), (&one, 0, 201)]
    {
        assert_eq!(create(bearer, length).await.status, status, "{} {length}", bearer.id);
    }
    // Ended uploads do not count towards the limit.
    assert_eq!(site.does(&one, Method::DELETE, &at).await.status, 204);
    assert_eq!(create(&one, 900).await.status, 201);
    for _ in 0..2 {
        assert_eq!(create(&bearer("small", None), 0).await.status, 201, "they are complete at once");
    }
    let abilities = site.does(&one, Method::OPTIONS, "/api/v1/uploads").await;
    assert_eq!((abilities.status, abilities.headers["tus-max-size"].to_str().ok()), (204, Some("1000")));
    assert_eq!(abilities.headers["tus-extension"], "creation,termination,expiration");
    for (name, value, status) in
        [("tus-resumable", "0.2.2", 412), ("upload-length", "x", 400), ("upload-metadata", "a *", 400)]
    {
        let request = Request::builder().method(Method::POST).uri("/api/v1/uploads");
        let request = if name == "upload-length" { request } else { request.header("upload-length", 1) };
        let answer = site.ask(&one, request.header(name, value), Body::empty()).await;
        assert_eq!(answer.status, status, "{name}");
        assert!(status != 412 || answer.headers["tus-version"] == "1.0.0");
    }
    let request = Request::builder().method(Method::PATCH).uri(&at).header("upload-offset", 0);
    assert_eq!(site.ask(&one, request, Body::from("x")).await.status, 415);
}

#[tokio::test]
async fn abandoned_uploads_expire() {
    let settings = config::Uploads { parts_hours: 0, ..config::Uploads::default() };
    let site = site(Setup { settings, ..Setup::default() });
    let me = Principal::operator();
    let at = location(&site.create(&me, "", 5, "").await);
    assert_eq!(site.does(&me, Method::HEAD, &at).await.status, 404, "it expired at once");
    site.create(&me, "", 6, "").await;
    let left = std::fs::read_dir(site.dir.path().join("parts")).expect("lists").count();
    assert_eq!(left, 2, "the record and the bytes of the second alone");
}

/// Simulates a crash: another process opens the folder.
fn restarted(site: Site) -> Site {
    let Site { store, dir, parts, router, pins, uploads, tokens: _ } = site;
    drop((parts, router, pins, uploads));
    site_at(dir, &store, Setup::default())
}

#[tokio::test]
async fn complete_uploads_are_imported_after_a_restart() {
    let first = site(Setup::default());
    let me = Principal::operator();
    let at = location(&first.create(&me, "", 12, "").await);
    assert_eq!(first.send(&me, &at, 0, "hello ").await.status, 204);
    // The state that a gateway leaves if it is killed between the last byte and the pin.
    let folder = first.dir.path().join("parts");
    let id = at.rsplit('/').next().expect("an id").to_owned();
    let record = folder.join(format!("{id}.json"));
    let text = std::fs::read_to_string(&record).expect("reads").replace("\"offset\":6", "\"offset\":12");
    std::fs::write(&record, text).expect("writes");
    std::fs::write(folder.join(format!("{id}.part")), "hello world\n and what was never acknowledged").expect("writes");
    std::fs::write(folder.join("orphan.part"), "x").expect("writes");
    std::fs::write(folder.join("broken.json"), "x").expect("writes");
    let second = restarted(first);
    assert!(!folder.join("orphan.part").exists() && folder.join("broken.json").exists());
    let _sweeper = second.parts.start(&Supervisor::default());
    let done = async {
        loop {
            let view = second.does(&me, Method::GET, &at).await.json();
            if view["state"] == "done" {
                return view;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let view = tokio::time::timeout(Duration::from_secs(20), done).await.expect("is taken in");
    assert_eq!(view["result"]["roots"][0]["cid"], HELLO);
}

/// A step of the property test.
#[derive(Debug, Clone)]
enum Step {
    /// Sends a number of bytes at an offset that may be wrong, completely or not.
    Send {
        bytes: usize,
        wrong_by: i64,
        breaks: bool,
        piece: usize,
    },
    Ask,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let sends = (0..40_usize, prop::sample::select(vec![0, 0, 0, 1, -1, 7]), any::<bool>(), 1..16_usize)
        .prop_map(|(bytes, wrong_by, breaks, piece)| Step::Send { bytes, wrong_by, breaks, piece });
    prop_oneof![6 => sends, 2 => Just(Step::Ask), 1 => Just(Step::Restart)]
}

async fn follow(steps: Vec<Step>, length: usize) -> Result<(), TestCaseError> {
    let content: Vec<u8> = (0..length).map(|at| at as u8).collect();
    let me = Principal::operator();
    let mut site = site(Setup::default());
    let created = site.parts.create(&me, Wanted { length: length as u64, ..Wanted::default() }).await;
    let (id, _) = created.map_err(|error| TestCaseError::fail(error.to_string()))?;
    let mut known = 0;
    for step in steps.into_iter().chain([Step::Send { bytes: length, wrong_by: 0, breaks: false, piece: 5 }]) {
        match step {
            Step::Restart => site = restarted(site),
            Step::Ask => {}
            Step::Send { bytes, wrong_by, breaks, piece } => {
                let from = u64::try_from(known as i64 + wrong_by).unwrap_or(0);
                let end = (known + bytes).min(length);
                let pieces: Vec<io::Result<Bytes>> =
                    content[known..end].chunks(piece).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
                let end_of_body = stream::iter(breaks.then(|| Err(io::Error::other("gone"))));
                let body = Body::from_stream(stream::iter(pieces).chain(end_of_body));
                let (sent, _) = site.parts.append(&me, &id, Piece::new(from, boxed(body))).await;
                let is_right = from == known as u64;
                prop_assert_eq!(sent.is_ok(), is_right && (!breaks || end == length), "{:?}", sent);
                if is_right {
                    known = end;
                }
                if let Ok(record) = sent {
                    prop_assert_eq!(record.offset, known as u64);
                }
            }
        }
        let record = site.parts.offset(&me, &id).await.map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(record.offset, known as u64, "acknowledged bytes are stored");
    }
    let (sent, _) = site.parts.append(&me, &id, Piece::new(length as u64, boxed(Body::empty()))).await;
    let record = sent.map_err(|error| TestCaseError::fail(error.to_string()))?;
    let Some(UploadOutcome::Done(view)) = record.outcome else { return Err(TestCaseError::fail("it is not done")) };
    let whole = Request::builder().method(Method::POST).uri("/upload");
    let expected = site.ask(&me, whole, Body::from(content)).await.json();
    prop_assert_eq!(Value::from(view.roots[0].cid.as_str()), expected["roots"][0]["cid"].clone());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn offsets_equal_the_number_of_stored_bytes(steps in prop::collection::vec(step(), 0..12), length in 1..200_usize) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("starts");
        runtime.block_on(follow(steps, length))?;
    }
}

#[tokio::test]
async fn a_patch_is_checked_against_the_current_quota_of_the_token() {
    let site = site(Setup::default());
    let at = location(&site.create(&bearer("alice", None), "", 12, "").await);
    assert_eq!(site.send(&bearer("alice", Some(12)), &at, 0, "hello").await.status, 204);
    let less = bearer("alice", Some(11));
    let refused = site.send(&less, &at, 5, " world\n").await;
    assert!(refused.status == 507 && refused.error().contains("quota"), "{} {}", refused.status, refused.error());
    assert_eq!(site.send(&bearer("alice", None), &at, 5, " world\n").await.status, 204);
}

#[tokio::test]
async fn uploads_of_a_revoked_token_are_not_pinned() {
    let site = site(Setup::default());
    let alice = bearer("alice", None);
    let at = location(&site.create(&alice, "", 12, "").await);
    let tokens = Arc::clone(&site.tokens);
    let last = stream::once(async move {
        tokens.lock().expect("is sound").clear();
        Ok::<_, io::Error>(Bytes::from_static(b"hello world\n"))
    });
    let refused = site.send(&alice, &at, 0, Body::from_stream(last)).await;
    assert!(refused.status == 403 && refused.error().contains("revoked"), "{} {}", refused.status, refused.error());
    assert_eq!(site.store.pins().await.expect("lists"), []);
    // The upload has failed, and its bytes are deleted.
    let view = site.does(&alice, Method::GET, &at).await.json();
    assert_eq!((&view["state"], &view["failure"]["status"]), (&"failed".into(), &403.into()));
    let left = std::fs::read_dir(site.dir.path().join("parts")).expect("lists").count();
    assert_eq!(left, 1, "the record alone");
}

#[tokio::test]
async fn a_reduced_quota_applies_to_a_running_upload() {
    let site = site(Setup::default());
    let at = location(&site.create(&bearer("alice", None), "", 12, "").await);
    let tokens = Arc::clone(&site.tokens);
    let last = stream::once(async move {
        tokens.lock().expect("is sound").insert("alice".to_owned(), bearer("alice", Some(3)));
        Ok::<_, io::Error>(Bytes::from_static(b"hello world\n"))
    });
    let refused = site.send(&bearer("alice", None), &at, 0, Body::from_stream(last)).await;
    assert!(refused.status == 507 && refused.error().contains("quota"), "{} {}", refused.status, refused.error());
    assert_eq!(site.store.pins().await.expect("lists"), []);
}
