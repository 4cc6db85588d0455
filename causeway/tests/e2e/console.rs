//! The console: its files, the command that prints its URL, and what the page shows of a running gateway.

use crate::support::causeway::{Causeway, Launch, TOKEN};
use crate::support::{client, eventually, get};
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Content that no peer has.
const ABSENT: &str = "/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy";

async fn view(causeway: &Causeway, path: &str) -> Value {
    let (status, view) = causeway.admin("GET", &format!("/api/v1/{path}"), None).await;
    assert_eq!(status, 200, "{path}: {view}");
    view
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_is_served_and_its_url_is_printed() {
    let home = TempDir::new().expect("the temporary folder is writable");
    let launch = Launch::new(home.path());
    let causeway = launch.start().await;
    let url = causeway.admin_url().to_owned();
    let started = causeway.process.stdout();
    assert!(started.contains(&format!("  console   {url}/ (")) && !started.contains(TOKEN), "{started}");
    let page = get(&format!("{url}/")).await;
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    assert!(page.header("content-security-policy").contains("frame-ancestors 'none'"));
    let again = client().get(format!("{url}/")).header("if-none-match", page.header("etag")).send().await;
    assert_eq!(again.expect("is answered").status(), 304);
    // What the page refers to is there, and compressed for browsers.
    let script = client().get(format!("{url}/console/app.js")).header("accept-encoding", "gzip").send().await;
    assert_eq!(script.expect("is answered").status(), 200);

    // The printed URL has a token that the API admits.
    let printed = launch.run(&["console"]).expect("it runs");
    let token = printed.strip_prefix(&format!("{url}/#token=")).unwrap_or_else(|| panic!("{printed}"));
    let own = client().get(format!("{url}/api/v1/token")).bearer_auth(token).send().await.expect("is answered");
    assert_eq!(own.status(), 200);
    causeway.stop().await;

    let launch = launch.set("CAUSEWAY_ADMIN_CONSOLE", false);
    let causeway = launch.start().await;
    assert_eq!(get(&format!("{}/", causeway.admin_url())).await.status, 401);
    assert!(!causeway.process.stdout().contains("  console "));
    let error = launch.run(&["console"]).expect_err("it has none");
    assert!(error.contains("admin.console = true"), "{error}");
    causeway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn history_health_and_errors_are_those_of_the_gateway() {
    let home = TempDir::new().expect("the temporary folder is writable");
    let launch = Launch::new(home.path()).set("CAUSEWAY_HTTP_STALL_TIMEOUT_SECONDS", 2);
    let causeway = launch.start().await;
    assert_eq!(get(causeway.welcome()).await.status, 200);
    let sample = eventually("a sample with a request", TIMEOUT, async || {
        get(causeway.welcome()).await;
        let history = view(&causeway, "history").await;
        assert_eq!(history["interval_seconds"], json!(5));
        let samples = history["samples"].as_array().expect("a list");
        let times: Vec<u64> = samples.iter().filter_map(|sample| sample["at"].as_u64()).collect();
        assert!(times.is_sorted() && times.len() <= 720, "{times:?}");
        let found = samples.iter().find(|sample| sample["requests"].as_f64() > Some(0.0)).cloned();
        found.ok_or_else(|| history.to_string())
    })
    .await;
    assert!(sample["p99_seconds"].as_f64() >= sample["p50_seconds"].as_f64(), "{sample}");
    assert!(
        sample["disk_used_bytes"].as_u64() > Some(0) && sample["resident_bytes"].as_u64() > Some(1 << 20),
        "{sample}"
    );
    assert_eq!((&sample["peers"], &sample["errors"]), (&json!(0), &json!(0.0)), "{sample}");

    let answer = causeway.get(ABSENT).await;
    assert_eq!(answer.status, 504, "{}", answer.text());
    let errors = view(&causeway, "requests/errors").await;
    let error = &errors["errors"][0];
    assert_eq!(
        (&error["path"], &error["status"], &error["client"]),
        (&json!(ABSENT), &json!(504), &json!("127.0.0.1"))
    );
    assert!(error["reason"].as_str().is_some_and(|reason| answer.text().contains(reason)), "{error}");

    // By now the node has looked for peers long enough.
    let health = eventually("the lack of peers is found", TIMEOUT, async || {
        let health = view(&causeway, "health").await;
        if health["findings"][0]["subject"] == "peers" { Ok(health) } else { Err(health.to_string()) }
    })
    .await;
    assert_eq!((&health["ready"], &health["findings"][0]["level"]), (&json!(true), &json!("error")), "{health}");
    assert_eq!(health["reachability"]["state"], "unknown", "{health}");
    let printed = launch.run(&["health"]).expect("it is ready");
    assert!(printed.starts_with("ready") && printed.contains("\nerror: peers: This node has no peers"), "{printed}");
    let printed = launch.run(&["health", "--json"]).expect("it is ready");
    let printed: Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!(printed["findings"][0]["subject"], "peers", "{printed}");

    let stats = view(&causeway, "stats").await;
    assert_eq!(stats["recent"]["none"]["requests"].as_u64(), Some(1), "the failed request: {stats}");
    assert!(stats["store"]["disk_free_bytes"].as_u64() > Some(0), "{stats}");
    assert!(stats["process"]["open_files"].as_u64() > Some(10), "{stats}");
    causeway.stop().await;
}
