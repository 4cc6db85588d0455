//! Gateways of one site, with a real PostgreSQL server, and blocks in a folder or in a real S3 server. What one gateway
//! has acknowledged the others have, whatever becomes of it.

use crate::engines::server::{BUCKET, KEY_ID, SECRET, Server};
use crate::engines::support::Postgres;
use crate::support::causeway::{Causeway, Launch, TOKEN};
use crate::support::noise::Noise;
use crate::support::{client, eventually};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);
const NAME: &str = "e2e";

fn folder() -> TempDir {
    TempDir::new().expect("the temporary folder is writable")
}

/// The engines of a site whose blocks are in a folder.
struct Site {
    database: Postgres,
    storage: TempDir,
}

impl Site {
    async fn new() -> Self {
        Self { database: Postgres::start().await, storage: folder() }
    }

    /// A gateway with a data folder.
    fn gateway(&self, dir: &Path) -> Launch {
        of_site(dir, &self.database, &format!("file://{}", self.storage.path().display()))
    }
}

fn of_site(dir: &Path, database: &Postgres, store: &str) -> Launch {
    Launch::new(dir)
        .set("CAUSEWAY_SITE_NAME", NAME)
        .set("CAUSEWAY_SITE_DATABASE", database.options(NAME).url)
        .set("CAUSEWAY_SITE_STORE", store)
        .set("CAUSEWAY_P2P_DIAL_PRIVATE", true)
}

/// Uploads a file: its CID and the number of its pin, or the status and `Retry-After` of a refusal.
async fn upload(node: &Causeway, content: &[u8]) -> Result<(String, String), (u16, Option<String>)> {
    let request = client().post(format!("{}/upload?pin-name=kept", node.admin_url())).bearer_auth(TOKEN);
    let response = request.body(content.to_vec()).send().await.expect("is answered");
    let retry_after = response.headers().get("retry-after").map(|value| value.to_str().expect("is text").to_owned());
    let status = response.status().as_u16();
    let body = response.bytes().await.expect("an answer");
    let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
    let text = |key: &str| answer["roots"][0][key].as_str().map(str::to_owned);
    text("cid").zip(text("pin")).filter(|_| status == 200).ok_or((status, retry_after))
}

async fn pin(node: &Causeway, id: &str) -> Option<Value> {
    let (status, pin) = node.admin("GET", &format!("/psa/pins/{id}"), None).await;
    (status == 200).then_some(pin)
}

async fn until_pinned(node: &Causeway, id: &str) {
    eventually("it is pinned", TIMEOUT, async || match pin(node, id).await {
        Some(pin) if pin["status"] == "pinned" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

async fn until_unknown(node: &Causeway, id: &str) {
    let is_unknown = async || pin(node, id).await.map_or(Ok(()), |pin| Err(pin.to_string()));
    eventually("the pin is removed", TIMEOUT, is_unknown).await;
}

/// One gateway stores, is killed, and loses its disk; others read, list and remove.
async fn check_that_gateways_are_one(gateway: impl Fn(&Path) -> Launch) {
    let dirs = [folder(), folder(), folder()];
    let [one, other] = [gateway(dirs[0].path()).start().await, gateway(dirs[1].path()).start().await];
    let (noise, text) = (Noise::bytes(51, 3_000_000), b"a line of many\n".repeat(100_000));
    let (noise_cid, noise_pin) = upload(&one, &noise).await.expect("is stored");
    let (text_cid, text_pin) = upload(&one, &text).await.expect("is stored");
    for (cid, content) in [(&noise_cid, &noise), (&text_cid, &text)] {
        other.expect(&format!("/ipfs/{cid}"), content).await;
    }
    let metrics = other.metrics().await;
    assert!(metrics.hits("site") > 0 && metrics.hits("network") == 0, "from the shared storage");
    // SIGKILL, and its disk is lost.
    drop(one);
    std::fs::remove_dir_all(dirs[0].path().join("data")).expect("is removed");
    until_pinned(&other, &noise_pin).await;
    let third = gateway(dirs[2].path()).start().await;
    until_pinned(&third, &text_pin).await;
    third.expect(&format!("/ipfs/{text_cid}"), &text).await;
    let again = third.get(&format!("/ipfs/{noise_cid}?format=car")).await;
    assert!(again.status == 200 && again.body.len() > noise.len());
    let (status, answer) = third.admin("DELETE", &format!("/psa/pins/{noise_pin}"), None).await;
    assert_eq!(status, 202, "{answer}");
    until_unknown(&other, &noise_pin).await;
    let (status, listed) = other.admin("GET", "/psa/pins?name=kept", None).await;
    assert_eq!((status, &listed["count"]), (200, &json!(1)), "{listed}");
    let (_, state) = third.admin("GET", "/api/v1/site", None).await;
    let listed = state["gateways"].as_array().map(Vec::len);
    assert_eq!((&state["name"], listed), (&json!(NAME), Some(3)), "{state}");
    let printed = gateway(dirs[2].path()).run(&["site", "status", "--admin", third.admin_url()]);
    let printed = printed.expect("is printed");
    assert!(printed.contains(other.peer_id()) && printed.contains("(this one)"), "{printed}");
    let returned = gateway(dirs[0].path()).start().await;
    until_pinned(&returned, &text_pin).await;
    returned.expect(&format!("/ipfs/{text_cid}"), &text).await;
    for node in [other, third, returned] {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_with_a_shared_folder_are_one() {
    let site = Site::new().await;
    check_that_gateways_are_one(|dir| site.gateway(dir)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_with_a_bucket_are_one() {
    let (database, s3) = (Postgres::start().await, Server::start().await);
    check_that_gateways_are_one(|dir| {
        of_site(dir, &database, &format!("s3://{BUCKET}/a/prefix"))
            .set("CAUSEWAY_SITE_S3_ENDPOINT", format!("http://127.0.0.1:{}", s3.port))
            .set("AWS_ACCESS_KEY_ID", KEY_ID)
            .set("AWS_SECRET_ACCESS_KEY", SECRET)
    })
    .await;
}

/// What one has fetched from the network, the others read from the shared storage.
#[tokio::test(flavor = "multi_thread")]
async fn content_is_fetched_once_for_the_site() {
    let (site, dirs) = (Site::new().await, [folder(), folder(), folder()]);
    let content = Noise::bytes(52, 3_000_000);
    let (source, cid) = Causeway::with_file(dirs[0].path(), &content).await;
    let one = site.gateway(dirs[1].path()).peering(source.tcp()).start().await;
    let other = site.gateway(dirs[2].path()).start().await;
    one.until_connected().await;
    one.expect(&format!("/ipfs/{cid}"), &content).await;
    // It is put there in the background.
    source.stop().await;
    eventually("the other one has it", TIMEOUT, async || {
        let answer = other.get(&format!("/ipfs/{cid}")).await;
        if answer.status == 200 && answer.body == content { Ok(()) } else { Err(answer.status) }
    })
    .await;
    assert_eq!(other.metrics().await.hits("network"), 0);
    // A pin of it is requested at the one that was not asked for it before.
    let wanted = json!({ "cid": cid, "name": "a name" }).to_string();
    let (status, pin) = other.admin("POST", "/psa/pins", Some(&wanted)).await;
    assert_eq!(status, 202, "{pin}");
    let id = pin["requestid"].as_str().expect("an id");
    for node in [&one, &other] {
        until_pinned(node, id).await;
    }
    for node in [one, other] {
        node.stop().await;
    }
}

/// Reads go on; changes are refused, and can be repeated later.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_database_content_is_served_and_nothing_is_acknowledged() {
    let (mut site, dirs) = (Site::new().await, [folder(), folder()]);
    let one = site.gateway(dirs[0].path()).start().await;
    let other = site.gateway(dirs[1].path()).start().await;
    let content = Noise::bytes(53, 600_000);
    let (cid, id) = upload(&one, &content).await.expect("is stored");
    until_pinned(&other, &id).await;
    let (withheld, _) = upload(&one, b"to be taken down").await.expect("is stored");
    site.database.stop();
    one.expect(&format!("/ipfs/{cid}"), &content).await;
    other.expect(&format!("/ipfs/{cid}"), &content).await;
    for node in [&one, &other] {
        assert_eq!(node.get("/readyz").await.status, 200, "it serves");
        until_pinned(node, &id).await;
    }
    // A take-down is in force at once, and says that it is not complete.
    let rule = json!({ "cid": withheld }).to_string();
    let (status, answer) = one.admin("POST", "/api/v1/denylists/local/rules", Some(&rule)).await;
    assert_eq!(status, 503, "{answer}");
    assert_eq!(one.get(&format!("/ipfs/{withheld}")).await.status, 410);
    let refused = upload(&one, b"another file").await.expect_err("it cannot be pinned");
    assert!(refused.0 == 503 && refused.1.is_some(), "{refused:?}");
    site.database.restart().await;
    let stored = async || upload(&one, b"another file").await.map_err(|refused| format!("{refused:?}"));
    let (cid, _) = eventually("uploads are accepted again", TIMEOUT, stored).await;
    other.expect(&format!("/ipfs/{cid}"), b"another file").await;
    for node in [one, other] {
        node.stop().await;
    }
}

/// Wrong lines end the start with a sentence, and commands do not use the own disk of a gateway of a site.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_lines_end_the_start() {
    let (site, dir) = (Site::new().await, folder());
    site.gateway(dir.path()).start().await.stop().await;
    let store = format!("file://{}", site.storage.path().display());
    let serve = ["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--bootstrap", "none"];
    let table = [
        ("CAUSEWAY_SITE_NAME", "another".to_owned(), "is that of the site"),
        ("CAUSEWAY_SITE_STORE", format!("{store}/missing"), "site.store"),
        ("CAUSEWAY_SITE_STORE", "ftp://host/x".to_owned(), "site.store"),
        ("CAUSEWAY_SITE_DATABASE", "postgresql://u:hunter2@127.0.0.1:1/d".to_owned(), "site.database"),
    ];
    for (setting, value, words) in table {
        let other = folder();
        let printed = site.gateway(other.path()).set(setting, &value).run(&serve).expect_err("it does not start");
        assert!(printed.contains(words) && !printed.contains("hunter2"), "{setting} = {value}: {printed}");
    }
    let node = site.gateway(dir.path()).start().await;
    let pins = site.gateway(dir.path()).run(&["pin", "ls"]).expect("the running gateway answers");
    assert!(pins.contains("no pins"), "{pins}");
    node.stop().await;
    let refused = site.gateway(dir.path()).run(&["pin", "ls"]).expect_err("no gateway runs");
    assert!(refused.contains("one of the site"), "{refused}");
}
