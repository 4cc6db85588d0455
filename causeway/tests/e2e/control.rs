//! Take-downs while the gateway runs: the content is served to no client and no peer, it is not fetched, and its
//! providers are not returned; also after a restart. With a real Kubo, which would serve and fetch all of it.

use crate::support::causeway::{Causeway, Launch};
use crate::support::kubo::Kubo;
use crate::support::{client, eventually};
use std::time::Duration;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(30);
const RULES: &str = "/api/v1/denylists/local/rules";

async fn status(causeway: &Causeway, path: &str) -> u16 {
    causeway.get(path).await.status
}

async fn check_of(causeway: &Causeway, subject: &str) -> serde_json::Value {
    let (status, check) = causeway.admin("GET", &format!("/api/v1/denylists/check?subject={subject}"), None).await;
    assert_eq!(status, 200, "{check}");
    check
}

async fn add(causeway: &Causeway, rule: &str) -> serde_json::Value {
    let (status, answer) = causeway.admin("POST", RULES, Some(rule)).await;
    assert_eq!(status, 201, "{rule}: {answer}");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn taken_down_content_is_neither_served_nor_fetched() {
    let author = Kubo::start().await;
    // It uses no DHT, in which it would find the author.
    let reader = Kubo::start_with(|settings| settings["Routing"]["Type"] = serde_json::json!("none")).await;
    let dir = TempDir::new().expect("the temporary folder is writable");
    let folder = TempDir::new().expect("the temporary folder is writable");
    for name in ["bad.txt", "good.txt"] {
        std::fs::write(folder.path().join(name), format!("this is {name}")).expect("writes");
    }
    let root = author.add_folder(folder.path(), &["--cid-version=1"]);
    let flags = ["--cid-version=1", "--raw-leaves"];
    let bad = author.add(&b"this is bad.txt"[..], &flags);
    let good = author.add(&b"this is good.txt"[..], &flags);
    let unseen = author.add(&b"nobody asked for this yet"[..], &flags);
    let launch = Launch::new(dir.path()).peering(author.tcp()).set("CAUSEWAY_HTTP_ROUTING_V1", true);
    let causeway = launch.start().await;
    let page = format!("/ipfs/{root}/bad.txt");
    causeway.expect(&page, b"this is bad.txt").await;
    causeway.expect(&format!("/ipfs/{root}/good.txt"), b"this is good.txt").await;
    causeway.expect(&format!("/ipfs/{bad}"), b"this is bad.txt").await;

    let order = serde_json::json!({ "url": format!("https://some.gateway{page}"), "deep": true, "status": 451, "reason": "a court order" });
    let done = add(&causeway, &order.to_string()).await;
    assert_eq!((&done["deep_rules"], &done["complete"]), (&1.into(), &true.into()), "{done}");
    for path in [page.clone(), format!("{page}?format=raw"), format!("/ipfs/{bad}"), format!("/ipfs/{bad}?format=car")]
    {
        assert_eq!(status(&causeway, &path).await, 451, "{path}");
    }
    assert_eq!(status(&causeway, &format!("/ipfs/{root}?format=tar")).await, 451);
    assert_eq!(status(&causeway, &format!("/ipfs/{root}/")).await, 200, "the listing is served");
    assert_eq!(status(&causeway, &format!("/routing/v1/providers/{bad}")).await, 451);
    // It is not requested, although its author is connected.
    add(&causeway, &serde_json::json!({ "cid": unseen, "double_hash": true }).to_string()).await;
    let sent = author.sent().await.blocks;
    assert_eq!((status(&causeway, &format!("/ipfs/{unseen}")).await, status(&causeway, &page).await), (410, 451));
    assert_eq!(author.sent().await.blocks, sent);

    // Peers are served stored content, but not taken-down content.
    reader.connect(causeway.tcp()).await;
    reader.try_cat(&bad).expect_err("no connected peer serves it");
    assert_eq!(&reader.cat(&good).await[..], b"this is good.txt");
    let local = format!("{}/api/v1/store/blocks/{bad}", causeway.admin_url().trim_end_matches('/'));
    let held = client().get(local).bearer_auth(crate::support::causeway::TOKEN).send().await.expect("answers");
    assert_eq!(held.status(), 451, "it is withheld from operators, too");
    assert_eq!(check_of(&causeway, &page).await["status"], 451, "the path resolves to it, although it is not stored");

    let (found, check) = causeway.admin("GET", &format!("/api/v1/denylists/check?subject={bad}"), None).await;
    assert!(found == 200 && check["blocked"] == true && check["status"] == 451, "{check}");
    let decision = &check["decisions"][0];
    assert_eq!((&decision["list"], &decision["line"]), (&"local".into(), &6.into()), "{check}");
    assert!(decision["rule"].as_str().is_some_and(|rule| rule.contains("reason=a%20court%20order")), "{check}");
    let (_, log) = causeway.admin("GET", "/api/v1/audit", None).await;
    assert!(log.to_string().contains(RULES), "{log}");

    // After SIGKILL, acknowledged rules are in force.
    drop(causeway);
    let causeway = launch.start().await;
    assert_eq!((status(&causeway, &page).await, status(&causeway, &format!("/ipfs/{unseen}")).await), (451, 410));
    let sent = author.sent().await.blocks;
    assert_eq!(status(&causeway, &format!("/ipfs/{bad}")).await, 451);
    assert_eq!(author.sent().await.blocks, sent);
    // Unblocked content is fetched again.
    let (listed, rules) = causeway.admin("GET", RULES, None).await;
    assert_eq!((listed, rules["rules"].as_array().map(Vec::len)), (200, Some(3)), "{rules}");
    let (removed, answer) = causeway.admin("DELETE", &format!("{RULES}?rule={page}"), None).await;
    assert_eq!((removed, &answer["removed"]), (200, &2.into()), "including the rules of \"deep\": {answer}");
    let (removed, answer) = causeway.admin("DELETE", &format!("{RULES}?rule=/ipfs/{unseen}"), None).await;
    assert_eq!((removed, &answer["removed"]), (200, &1.into()), "the double hash is removed by its subject: {answer}");
    eventually("the author is connected again", TIMEOUT, async || {
        let status = status(&causeway, &page).await;
        if status == 200 { Ok(()) } else { Err(status) }
    })
    .await;
    causeway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn denylists_apply_from_the_start_and_when_they_change() {
    let author = Kubo::start().await;
    let dir = TempDir::new().expect("the temporary folder is writable");
    let (one, two) = (author.add(&b"one"[..], &["--cid-version=1"]), author.add(&b"two"[..], &["--cid-version=1"]));
    let list = dir.path().join("some.deny");
    std::fs::write(&list, format!("/ipfs/{one}\n")).expect("writes");
    let launch = Launch::new(dir.path()).peering(author.tcp()).set("CAUSEWAY_POLICY_DENYLISTS", list.display());
    let causeway = launch.start().await;
    causeway.expect(&format!("/ipfs/{two}"), b"two").await;
    assert_eq!(status(&causeway, &format!("/ipfs/{one}")).await, 410);
    std::fs::write(&list, format!("/ipfs/{two} status=451\n")).expect("writes");
    eventually("the list is read again", TIMEOUT, async || {
        let statuses =
            (status(&causeway, &format!("/ipfs/{one}")).await, status(&causeway, &format!("/ipfs/{two}")).await);
        if statuses == (200, 451) { Ok(()) } else { Err(format!("{statuses:?}")) }
    })
    .await;
    causeway.stop().await;

    // In allowlist mode, peers are served allowed or pinned content, but not other cached content.
    let (allowed, pinned) = (dir.path().join("good.allow"), dir.path().join("pinned.car"));
    std::fs::write(&allowed, format!("/ipfs/{one}\n")).expect("writes");
    let three = author.add(&b"three"[..], &["--cid-version=1"]);
    author.export(&three, &pinned);
    author.stop().await;
    launch.import(&pinned);
    let launch = Launch::new(dir.path())
        .set("CAUSEWAY_POLICY_MODE", "allow")
        .set("CAUSEWAY_POLICY_ALLOWLISTS", allowed.display());
    let causeway = launch.start().await;
    causeway.expect(&format!("/ipfs/{one}"), b"one").await;
    assert_eq!(status(&causeway, &format!("/ipfs/{two}")).await, 403);
    assert_eq!(status(&causeway, &format!("/ipfs/{three}")).await, 403);
    let reader = Kubo::start().await;
    reader.connect(causeway.tcp()).await;
    assert_eq!((&reader.cat(&one).await[..], &reader.cat(&three).await[..]), (&b"one"[..], &b"three"[..]));
    reader.try_cat(&two).expect_err("it is stored but not served");
    causeway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_neither_store_nor_read_withheld_content() {
    let dir = TempDir::new().expect("the temporary folder is writable");
    let launch = Launch::new(dir.path());
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (bad, car) = (at("bad.txt"), at("bad.car"));
    std::fs::write(&bad, "this is withheld later").expect("writes");
    let cid = launch.run(&["add", "-Q", "--cid-version=1", &bad]).expect("adds");
    launch.run(&["store", "export", &cid, &car]).expect("exports");
    let refused = |when: &str| {
        let out = at("out");
        let commands: [&[&str]; 5] = [
            &["add", "--cid-version=1", &bad],
            &["import", &car],
            &["get", &cid, "-o", &out],
            &["cat", &cid],
            &["store", "export", &cid, &out],
        ];
        for command in commands {
            let error_line = launch.run(command).expect_err(&format!("{when}: {command:?}"));
            assert!(error_line.contains("not served here"), "{when}: {command:?}: {error_line}");
        }
    };
    let causeway = launch.start().await;
    launch.run(&["block", "add", &cid]).expect("blocks");
    launch.run(&["block", "check", &cid]).expect_err("it is blocked");
    refused("while the gateway runs");
    causeway.stop().await;
    refused("while it does not");
    let causeway = launch.start().await;
    launch.run(&["block", "rm", &cid]).expect("unblocks");
    launch.run(&["import", &car]).expect("imports");
    assert_eq!(launch.run(&["cat", &cid]).as_deref(), Ok("this is withheld later"));
    let check = launch.run(&["block", "check", &cid]).expect("it is served");
    assert!(check.contains("is served: 200"), "{check}");
    // Tokens are in the audit log with and without a running gateway.
    launch.run(&["token", "create", "--scope", "read", "--name", "console"]).expect("creates a token");
    let audit = launch.run(&["audit"]).expect("lists");
    assert!(audit.contains("command token create") && audit.contains("console"), "{audit}");
    causeway.stop().await;
}
