//! Tests of purging caches in front over HTTP, with a queue on the disk.

use crate::front_caches::*;
use axum::Router;
use axum::extract::Request;
use config::{CacheKind, Config};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(20);
const CID: &str = "bafybeiczsscdsbs7ffqz55asqdf3smv6klcw3gofszvwlyarci47bgf354";

/// A cache that answers with these statuses, repeating the last, and records its requests.
async fn cache(answers: Vec<u16>) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let (recorded, answers) = (Arc::clone(&asked), Arc::new(Mutex::new(answers)));
    let handler = move |request: Request| {
        let text =
            |name: &str| request.headers().get(name).map_or("-", |value| value.to_str().unwrap_or("?")).to_owned();
        let line = format!("{} {} {} {}", request.method(), request.uri().path(), text("host"), text("surrogate-key"));
        recorded.lock().expect("is sound").push(line);
        let mut answers = answers.lock().expect("is sound");
        let status = if answers.len() > 1 { answers.remove(0) } else { answers[0] };
        async move { http::StatusCode::from_u16(status).expect("a status") }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("is bound");
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(handler)).await });
    (address, asked)
}

fn settings(dir: &TempDir, caches: &[(CacheKind, SocketAddr)]) -> Config {
    let mut config = Config { data_dir: dir.path().to_owned(), ..Config::default() };
    let cache = |(kind, address): &(CacheKind, SocketAddr)| FrontCache {
        kind: *kind,
        url: format!("http://{address}"),
        hosts: vec!["a.example".to_owned()],
        token_file: None,
        token_env: None,
    };
    config.policy.caches = caches.iter().map(cache).collect();
    config
}

fn start(config: &Config) -> (Caches, Senders, Arc<AuditLog>) {
    let audit = Arc::new(AuditLog::open(&config.data_dir).expect("opens"));
    let (caches, senders) =
        Caches::start(config, &audit, &mut Registry::default(), &Supervisor::default()).expect("starts");
    (caches, senders, audit)
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TIMEOUT, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn waiting(caches: &Caches) -> usize {
    let inner = caches.inner.as_ref().expect("there are some");
    inner.caches.iter().map(|cache| inner.queue().waiting(&cache.to_string())).sum()
}

fn subject(text: &str) -> Subject {
    Subject::of_anything(text).expect("a subject")
}

#[tokio::test]
async fn purge_requests_are_retried_until_the_cache_confirms_them() {
    let dir = TempDir::new().expect("a folder");
    let (ban, banned) = cache(vec![503, 200]).await;
    let (purge, purged) = cache(vec![404]).await;
    let config = settings(&dir, &[(CacheKind::Ban, ban), (CacheKind::Purge, purge)]);
    let (caches, _senders, audit) = start(&config);
    assert_eq!(caches.invalidate(&[subject(CID)], None).await, 2);
    until("both caches", || waiting(&caches) == 0).await;
    let told = |asked: &Mutex<Vec<String>>| asked.lock().expect("is sound").clone();
    let line = format!("BAN / {ban} {CID}");
    assert_eq!(told(&banned), [line.clone(), line]);
    assert!(told(&purged).contains(&format!("PURGE /ipfs/{CID} a.example -")), "{:?}", told(&purged));
    assert!(told(&purged).contains(&format!("PURGE / {CID}.ipfs.a.example -")), "{:?}", told(&purged));
    let path = format!("/ipfs/{CID}");
    let results = || {
        let entries = audit.last(9).expect("reads");
        let result = |entry: &crate::audit::AuditEntry| {
            entry.detail.as_ref().and_then(|detail| detail["result"].as_str().map(str::to_owned))
        };
        let mut results: Vec<_> =
            entries.iter().map(|entry| (entry.path.clone(), entry.status, result(entry))).collect();
        results.sort();
        results
    };
    until("the audit log", || results().len() == 3).await;
    let entry = |status, result: &str| (path.clone(), Some(status), Some(result.to_owned()));
    assert_eq!(results(), [entry(200, "done"), entry(200, "done"), entry(503, "failed")]);
}

#[tokio::test]
async fn queued_requests_are_sent_after_a_restart() {
    let dir = TempDir::new().expect("a folder");
    let (address, asked) = cache(vec![503, 503, 503, 200]).await;
    let config = settings(&dir, &[(CacheKind::Ban, address)]);
    let (caches, senders, _audit) = start(&config);
    caches.invalidate(&[subject(CID), subject("docs.example.org")], Some("//hidden")).await;
    until("the first attempt", || !asked.lock().expect("is sound").is_empty()).await;
    drop((caches, senders));
    let seen = asked.lock().expect("is sound").len();
    let (caches, _senders, audit) = start(&config);
    assert_eq!(waiting(&caches), 2, "both are on the disk");
    until("both", || waiting(&caches) == 0).await;
    let asked = asked.lock().expect("is sound")[seen..].to_vec();
    assert!(
        asked.iter().any(|line| line.ends_with(CID)) && asked.iter().any(|line| line.ends_with("docs.example.org")),
        "{asked:?}"
    );
    until("the audit log", || {
        audit.last(9).expect("reads").iter().filter(|entry| entry.status == Some(200)).count() == 2
    })
    .await;
    assert!(
        audit.last(9).expect("reads").iter().all(|entry| entry.path == "//hidden"),
        "the log does not tell what it was"
    );
}

#[tokio::test]
async fn a_rejected_request_is_dropped_and_does_not_block_others() {
    let dir = TempDir::new().expect("a folder");
    let (address, asked) = cache(vec![400, 200]).await;
    let config = settings(&dir, &[(CacheKind::Xkey, address)]);
    let (caches, _senders, _audit) = start(&config);
    caches.invalidate(&[subject(CID), subject("docs.example.org")], None).await;
    until("both", || waiting(&caches) == 0).await;
    let told: Vec<String> = asked
        .lock()
        .expect("is sound")
        .iter()
        .map(|line| line.rsplit(' ').next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(told, [CID, "docs.example.org", CID], "a rejected request moves to the end");
    assert!(Caches::default().is_empty() && Caches::default().invalidate(&[subject(CID)], None).await == 0);
}

/// A cache that answers with a status that depends on the surrogate key, or else the path, and records its requests.
async fn cache_by_content(answer: impl Fn(&str) -> u16 + Clone + Send + Sync + 'static) -> (SocketAddr, Received) {
    let received = Received::default();
    let recorded = Arc::clone(&received);
    let handler = move |request: Request| {
        let key = request.headers().get("surrogate-key").map(|key| key.to_str().expect("text").to_owned());
        let content = key.unwrap_or_else(|| request.uri().path().to_owned());
        let status = http::StatusCode::from_u16(answer(&content)).expect("a status");
        recorded.lock().expect("is sound").push(content);
        async move { status }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("is bound");
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(handler)).await });
    (address, received)
}

type Received = Arc<Mutex<Vec<String>>>;

fn blocks(count: u8) -> Vec<Cid> {
    let block = |n: u8| content::Block::of(content::codec::RAW, content::hashes::SHA2_256, 32, vec![n].into());
    (0..count).map(|n| *block(n).expect("a block").cid()).collect()
}

#[tokio::test]
async fn of_several_blocks_only_those_that_failed_are_retried() {
    let blocks = blocks(4);
    for (kind, status) in [(CacheKind::Ban, 403), (CacheKind::Ban, 429), (CacheKind::Ban, 400), (CacheKind::Purge, 403)]
    {
        let dir = TempDir::new().expect("a folder");
        let fails = blocks[0].to_string();
        let (address, received) = cache_by_content(move |of| if of.contains(&fails) { status } else { 200 }).await;
        let (caches, _senders, _audit) = start(&settings(&dir, &[(kind, address)]));
        caches.invalidate_blocks(&subject(CID), &blocks, |_| true, None).await;
        let count = |cid: &Cid| {
            let of = cid.to_string();
            received.lock().expect("is sound").iter().filter(|content| content.contains(&of)).count()
        };
        until("all blocks", || blocks.iter().all(|block| count(block) > 0)).await;
        let inner = Arc::clone(caches.inner.as_ref().expect("there is one"));
        let queued = || inner.queue().next(&inner.caches[0].to_string()).map(|item| item.blocks);
        until("the failed block alone", || queued() == Some(vec![blocks[0].to_string()])).await;
        let attempts = count(&blocks[0]);
        until("its retry", || count(&blocks[0]) > attempts).await;
        // Two URLs of a block have its CID in the path, and both are requested although the first request fails.
        let requests = if kind == CacheKind::Purge { 2 } else { 1 };
        assert!(attempts >= requests, "{attempts}");
        let sent: Vec<_> = blocks[1..].iter().map(count).collect();
        assert_eq!(sent, [requests; 3], "{kind:?} {status}");
    }
}

#[tokio::test]
async fn blocks_that_are_not_served_by_their_own_cid_are_not_refreshed() {
    let dir = TempDir::new().expect("a folder");
    let blocks = blocks(3);
    let (refresh, refreshed) = cache_by_content(|_| 200).await;
    let (ban, banned) = cache_by_content(|_| 200).await;
    let (caches, _senders, _audit) = start(&settings(&dir, &[(CacheKind::Refresh, refresh), (CacheKind::Ban, ban)]));
    let listed = blocks[1];
    assert_eq!(caches.invalidate_blocks(&subject(CID), &blocks, |cid| *cid == listed, None).await, 3);
    until("both caches", || waiting(&caches) == 0).await;
    let refreshed = refreshed.lock().expect("is sound").clone();
    let is_of_listed = |path: &String| path == "/" || path.contains(&listed.to_string());
    assert!(!refreshed.is_empty() && refreshed.iter().all(is_of_listed), "{refreshed:?}");
    let banned = banned.lock().expect("is sound").clone();
    assert_eq!(banned, blocks.iter().map(Cid::to_string).collect::<Vec<_>>());
}
