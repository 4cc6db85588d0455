//! Commands of the store while the gateway runs: the same output, CIDs and bytes as without it; and errors.

use crate::support::causeway::{Causeway, Launch, TOKEN};
use crate::support::noise::Noise;
use crate::support::{assert_same_bytes, client, eventually};
use content::hashes::{self, SHA2_256};
use content::{Cid, codec};
use serde_json::Value;
use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);
const BIG_BYTES: usize = 3_000_000;
const LEAF_BYTES: usize = 256 << 10;

fn folder() -> TempDir {
    TempDir::new().expect("the temporary folder is writable")
}

/// A file of many chunks, small and empty ones, a folder in a folder, and a symlink.
fn fill(dir: &Path) {
    fs::create_dir_all(dir.join("site/images/empty")).expect("the folder is ours");
    let files: [(&str, Vec<u8>); 5] = [
        ("one", b"x".to_vec()),
        ("nothing", Vec::new()),
        ("big", Noise::bytes(31, BIG_BYTES)),
        ("site/index.html", b"<p>Hello.".to_vec()),
        ("site/images/large", Noise::bytes(32, 600_000)),
    ];
    files.iter().for_each(|(name, bytes)| fs::write(dir.join(name), bytes).expect("the folder is ours"));
    symlink("index.html", dir.join("site/same")).expect("the folder is ours");
}

/// Runs a command in a folder: its output, or its error, which is one line.
fn pipe(launch: &Launch, dir: &Path, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>, String> {
    let done = launch.pipe(dir, arguments, input);
    assert!(done.as_ref().err().is_none_or(|printed| printed.lines().count() == 1), "{done:?}");
    done
}

fn run(launch: &Launch, dir: &Path, arguments: &[&str]) -> String {
    let done = pipe(launch, dir, arguments, b"");
    let done = done.unwrap_or_else(|error_line| panic!("causeway {arguments:?}: {error_line}"));
    String::from_utf8(done).expect("text").trim_end().to_owned()
}

fn stats(launch: &Launch) -> Value {
    let printed = launch.run(&["store", "stats", "--json"]).unwrap_or_else(|error_line| panic!("stats: {error_line}"));
    serde_json::from_str(&printed).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn add_ls_and_get_are_the_same_with_a_running_gateway() {
    let (content, alone, through) = (folder(), folder(), folder());
    let dir = content.path();
    fill(dir);
    let (alone, through) = (Launch::new(alone.path()), Launch::new(through.path()));
    // Both have the welcome site.
    alone.start().await.stop().await;
    let node = through.start().await;
    let input = Noise::bytes(33, 700_000);
    let table: [&[&str]; 9] = [
        &["one"],
        &["nothing"],
        &["site", "big"],
        &["-w", "one", "big"],
        &["--profile", "unixfs-v1-2025", "--name", "my ä/site?", "site"],
        &["-Q", "--cid-version=1", "big"],
        &["--json", "--chunker=size-1000", "site/images"],
        &["-"],
        &["-w", "-", "one"],
    ];
    for arguments in table {
        let arguments = [&["add"], arguments].concat();
        let expected = pipe(&alone, dir, &arguments, &input).expect("is added");
        let printed = pipe(&through, dir, &arguments, &input).expect("is added");
        assert_eq!(String::from_utf8_lossy(&printed), String::from_utf8_lossy(&expected), "{arguments:?}");
    }
    let (expected, found) = (stats(&alone), stats(&through));
    for what in ["pins", "partial_pins"] {
        assert_eq!(found[what], expected[what], "{what}");
    }
    for what in ["blocks", "block_bytes"] {
        assert_eq!(found["pinned"][what], expected["pinned"][what], "{what}");
    }

    let site = run(&alone, dir, &["add", "-Q", "site"]);
    let lists: [&[&str]; 3] = [&["ls", &site], &["ls", "--json", &site], &["ls", &format!("{site}/images")]];
    for arguments in lists {
        assert_eq!(run(&through, dir, arguments), run(&alone, dir, arguments), "{arguments:?}");
    }
    for form in [&[][..], &["--car"], &["--tar"]] {
        let target = if form.is_empty() { format!("{site}/images/large") } else { format!("{site}/images") };
        let arguments = [&["get", &target, "-o", "-"], form].concat();
        let expected = pipe(&alone, dir, &arguments, b"").expect("is read");
        assert_same_bytes(&target, &pipe(&through, dir, &arguments, b"").expect("is read"), &expected);
    }
    run(&through, dir, &["get", &site, "-o", "back"]);
    assert_eq!(fs::read(dir.join("back/index.html")).expect("reads"), b"<p>Hello.");
    assert_eq!(fs::read_link(dir.join("back/same")).expect("a symlink"), Path::new("index.html"));
    assert!(dir.join("back/images/empty").is_dir());
    let large = fs::read(dir.join("site/images/large")).expect("reads");
    assert_same_bytes("large", &fs::read(dir.join("back/images/large")).expect("reads"), &large);
    node.expect(&format!("/ipfs/{site}/images/large"), &large).await;

    // Missing blocks are not fetched with --offline, and are named in the error.
    let absent = run(&alone, dir, &["add", "-n", "-Q", "--chunker=size-77777", "big"]);
    for command in ["get", "ls"] {
        let error_line = pipe(&through, dir, &[command, "--offline", &absent], b"").expect_err("it is not here");
        assert!(error_line.contains(&absent) && error_line.contains("is not stored locally"), "{error_line}");
    }
    // Nothing is pinned if a file cannot be read.
    let pins = stats(&through)["pins"].clone();
    let error_line = pipe(&through, dir, &["add", "big", "/proc/self/mem"], b"").expect_err("it cannot be read");
    assert!(error_line.contains("/proc/self/mem"), "{error_line}");
    assert_eq!(stats(&through)["pins"], pins);
    node.stop().await;
    assert!(run(&through, dir, &["store", "check"]).contains("0 damaged"));
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_are_moved_between_running_nodes() {
    let (one, other, third) = (folder(), folder(), folder());
    fill(one.path());
    let dir = one.path();
    let (from, to) = (Launch::new(one.path()), Launch::new(other.path()));
    let node = from.start().await;
    let site = run(&from, dir, &["add", "-Q", "site"]);
    assert_eq!(run(&from, dir, &["store", "export", &site, "site.car"]).split(' ').next(), Some("exported"));
    let archive = fs::read(dir.join("site.car")).expect("reads");
    assert_same_bytes("export", &pipe(&from, dir, &["store", "export", &site, "-"], b"").expect("is read"), &archive);
    let url = format!("{}/api/v1/store/export/{site}", node.admin_url());
    let answer = client().get(url).bearer_auth(TOKEN).send().await.expect("is answered");
    assert_same_bytes("over HTTP", &answer.bytes().await.expect("a whole body"), &archive);
    let missing = run(&from, dir, &["add", "-n", "-Q", "big"]);
    let error_line = pipe(&from, dir, &["store", "export", &missing, "-"], b"").expect_err("it is not here");
    assert!(error_line.contains("is not in the store"), "{error_line}");
    node.stop().await;
    assert_same_bytes("alone", &pipe(&from, dir, &["store", "export", &site, "-"], b"").expect("is read"), &archive);

    // By its data folder, through a pipe, and by its URL from another folder.
    let node = to.start().await;
    let elsewhere = Launch::new(third.path());
    let printed = run(&to, dir, &["store", "import", "site.car"]);
    assert!(printed.starts_with(&format!("pinned {site}\nimported ")), "{printed}");
    assert_eq!(
        String::from_utf8_lossy(&pipe(&to, dir, &["import", "-"], &archive).expect("imports")).trim_end(),
        printed
    );
    assert_eq!(run(&elsewhere, dir, &["store", "import", "--admin", node.admin_url(), "site.car"]), printed);
    let reported: Value = serde_json::from_str(&run(&to, dir, &["import", "--json", "site.car"])).expect("JSON");
    assert_eq!(reported["pins"][0]["root"], site.as_str(), "{reported}");
    assert!(!third.path().join("data/store").exists());
    let large = fs::read(dir.join("site/images/large")).expect("reads");
    node.expect(&format!("/ipfs/{site}/images/large"), &large).await;
    assert!(run(&to, dir, &["store", "compact"]).contains(" before, "));

    // Errors of an archive are reported while the upload continues.
    let mut damaged = archive.clone();
    damaged[5_000] ^= 1;
    damaged.extend(Noise::bytes(34, 30_000_000));
    let tables: [(&str, Vec<u8>, &str); 3] = [
        ("damaged.car", damaged, "do not match"),
        ("nonsense.car", Noise::bytes(35, 30_000_000), "header"),
        ("cut.car", archive[..archive.len() - 1].to_vec(), "ends in the middle of a section"),
    ];
    let before = stats(&to)["pinned"].clone();
    for (name, bytes, words) in tables {
        fs::write(dir.join(name), bytes).expect("writes");
        let error_line = pipe(&to, dir, &["store", "import", name], b"").expect_err("it is refused");
        assert!(error_line.contains(&format!("{name} was not imported")) && error_line.contains(words), "{error_line}");
    }
    eventually("no temporary pin of them is left", TIMEOUT, async || {
        let now = stats(&to)["pinned"]["blocks"].clone();
        if now == before["blocks"] { Ok(()) } else { Err(now) }
    })
    .await;
    node.stop().await;
}

/// Flips a bit of a leaf on the disk, and returns the leaf's CID.
fn damage(launch: &Path, leaf: &[u8]) -> String {
    let segments = fs::read_dir(launch.join("data/store/segments")).expect("there is a store");
    let flipped = segments.filter_map(|file| {
        let path = file.expect("lists").path();
        let bytes = fs::read(&path).expect("reads");
        let at = bytes.windows(64).position(|window| window == &leaf[..64])? + leaf.len() / 2;
        // The gateway keeps the file open.
        let file = fs::File::options().write(true).open(&path).expect("it is ours");
        file.write_all_at(&[bytes[at] ^ 1], at as u64).ok()
    });
    assert_eq!(flipped.count(), 1, "it is there once");
    Cid::new_v1(codec::RAW, hashes::digest(SHA2_256, 32, leaf).expect("hashes")).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_blocks_are_deleted_while_the_gateway_runs() {
    let home = folder();
    let dir = home.path();
    fill(dir);
    // Without the periodic scrub.
    let launch = Launch::new(dir).set("CAUSEWAY_CACHE_SCRUB_BYTES_PER_SECOND", 0);
    let root = run(&launch, dir, &["add", "-Q", "--cid-version=1", "big"]);
    let node = launch.start().await;
    let clean = run(&launch, dir, &["store", "check", "--rate", "1GiB"]);
    assert!(clean.starts_with("checked ") && clean.contains("0 damaged, 0 unreadable"), "{clean}");

    let big = fs::read(dir.join("big")).expect("reads");
    let damaged = damage(dir, &big[2 * LEAF_BYTES..3 * LEAF_BYTES]);
    let output = launch.output(&["store", "check"], &[]);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.starts_with(&format!("damaged {damaged}\npin {root} lacks 1 of 13 blocks\nchecked ")), "{printed}");
    let error_line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error_line.contains("damaged blocks have been deleted") && error_line.lines().count() == 1, "{error_line}");
    assert_eq!(node.metrics().await.sample("causeway_disk_corrupt_blocks_total"), 1);

    // The damaged block is deleted, and the pin still lacks it.
    let output = launch.output(&["store", "check", "--json"], &[]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (output.status.code(), &report["clean"], &report["damaged"]),
        (Some(1), &false.into(), &Vec::<Value>::new().into())
    );
    assert_eq!(report["pins_lacking_blocks"][0]["missing"], 1);
    let error_line = pipe(&launch, dir, &["store", "export", &root, "out.car"], b"").expect_err("a block is missing");
    assert!(
        error_line.contains(&format!("{damaged} is not in the store")) && !dir.join("out.car").exists(),
        "{error_line}"
    );
    let url = format!("{}/api/v1/store/export/{root}", node.admin_url());
    let broken = async { client().get(url).bearer_auth(TOKEN).send().await?.bytes().await };
    assert!(broken.await.is_err(), "an archive that lacks a block does not look complete");

    run(&launch, dir, &["add", "--cid-version=1", "big"]);
    assert!(run(&launch, dir, &["store", "check"]).starts_with("checked "), "it is repaired");
    let error_line = pipe(&launch, dir, &["store", "repair"], b"").expect_err("the gateway runs");
    assert!(error_line.contains("stop the gateway"), "{error_line}");
    let output = launch.output(&["store", "check", "--rate", "fast"], &[]);
    assert_eq!(output.status.code(), Some(2));
    node.stop().await;
    assert!(run(&launch, dir, &["store", "check", "--rate", "100MB"]).contains("0 damaged"));
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_access_and_unreachable_gateways_are_reported() {
    let home = folder();
    let dir = home.path();
    fill(dir);
    let launch = Launch::new(dir);
    let commands: [&[&str]; 7] = [
        &["add", "one"],
        &["get", "bafkqaddjnzzxazldoqwxizltoq"],
        &["ls", "bafkqaddjnzzxazldoqwxizltoq"],
        &["store", "stats"],
        &["store", "check"],
        &["store", "compact"],
        &["store", "import", "one"],
    ];
    let node = launch.start().await;
    let remote_client = launch.clone().set("CAUSEWAY_ADMIN_TOKEN", "guessed");
    for command in commands {
        let error_line = pipe(&remote_client, dir, command, b"").expect_err("a wrong token");
        assert!(error_line.contains("rejected the token of CAUSEWAY_ADMIN_TOKEN"), "{command:?}: {error_line}");
        let error_line = pipe(&launch, dir, &[command, &["--admin", "http://127.0.0.1:1"]].concat(), b"");
        let error_line = error_line.expect_err("the port is closed");
        assert!(
            error_line.contains("the gateway at http://127.0.0.1:1 cannot be reached"),
            "{command:?}: {error_line}"
        );
        let error_line = pipe(&launch, dir, &[command, &["--admin", "localhost"]].concat(), b"").expect_err("no URL");
        assert!(error_line.contains("is not the URL of an admin listener"), "{command:?}: {error_line}");
    }
    let page = client().post(format!("{}/api/v1/store/compact", node.admin_url())).bearer_auth(TOKEN);
    let status = page.header("origin", "https://example.com").send().await.expect("is answered").status();
    assert_eq!(status.as_u16(), 403);
    node.assert_healthy().await;
    node.stop().await;
}

/// Sends the head of an upload and the beginning of its body.
fn begin_upload(node: &Causeway, body_bytes: usize, begin: &[u8]) -> TcpStream {
    let host = node.admin_url().trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(host).expect("connects");
    let head = format!(
        "POST /api/v1/store/import HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Type: application/vnd.ipld.car\r\nContent-Length: {body_bytes}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(begin)).expect("sends");
    stream
}

async fn api(node: &Causeway, path: &str) -> (u16, Value) {
    node.admin("GET", &format!("/api/v1/store/{path}"), None).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_import_leaves_nothing_and_concurrent_imports_are_limited() {
    let (home, other) = (folder(), folder());
    let dir = home.path();
    fill(dir);
    let maker = Launch::new(other.path());
    let root = run(&maker, dir, &["add", "-Q", "big"]);
    run(&maker, dir, &["store", "export", &root, "big.car"]);
    let archive = fs::read(dir.join("big.car")).expect("reads");

    let launch = Launch::new(dir);
    let node = launch.start().await;
    let before = stats(&launch);
    let half = archive.len() / 2;
    // A concurrent request may take the last permit instead of an upload: then another upload is started.
    let mut uploads = Vec::new();
    let refusal = eventually("the token has its maximum of concurrent uploads", TIMEOUT, async || {
        uploads.push(begin_upload(&node, archive.len(), &archive[..half]));
        match api(&node, "stats").await {
            (429, refusal) => Ok(refusal),
            (status, _) => Err(format!("{status}")),
        }
    });
    let refusal = refusal.await;
    assert!(refusal["error"].as_str().is_some_and(|words| words.contains("this token has as many")), "{refusal}");
    let error_line = pipe(&launch, dir, &["store", "import", "big.car"], b"").expect_err("there is no permit left");
    assert!(error_line.contains("this token has as many such operations running"), "{error_line}");
    let absent = run(&maker, dir, &["add", "-n", "-Q", "one"]);
    assert_eq!(api(&node, &format!("blocks/{absent}")).await.0, 404, "short requests are still answered");

    drop(uploads);
    eventually("no blocks of them are left", TIMEOUT, async || {
        let (status, now) = api(&node, "stats").await;
        let same = status == 200 && now["pins"] == before["pins"] && now["partial_pins"] == before["partial_pins"];
        let same = same && now["pinned"]["blocks"] == before["pinned"]["blocks"];
        if same { Ok(()) } else { Err(format!("{status}: {now}")) }
    })
    .await;
    run(&launch, dir, &["store", "import", "big.car"]);
    node.expect(&format!("/ipfs/{root}"), &fs::read(dir.join("big")).expect("reads")).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_reported_to_uploaders() {
    let (home, other) = (folder(), folder());
    let launch = Launch::new(home.path()).in_small_file_system(64 << 20);
    if !launch.small_file_systems_can_be_mounted() {
        let printed = "WARNING: skipped the test of a full disk: this system does not allow unshare --mount";
        writeln!(std::io::stderr(), "{printed}").expect("standard error is writable");
        return;
    }
    let node = launch.set("CAUSEWAY_CACHE_DISK_FREE_BYTES_MIN", 16 << 20).start().await;
    let dir = other.path();
    fs::write(dir.join("huge"), Noise::bytes(36, 150_000_000)).expect("writes");
    let elsewhere = Launch::new(dir);
    let error_line = pipe(&elsewhere, dir, &["add", "-Q", "--admin", node.admin_url(), "huge"], b"");
    let error_line = error_line.expect_err("there is no room");
    assert!(error_line.contains("delete files on it"), "{error_line}");
    fs::write(dir.join("small"), b"there is room for this").expect("writes");
    eventually("small content is stored", TIMEOUT, async || {
        pipe(&elsewhere, dir, &["add", "-Q", "--admin", node.admin_url(), "small"], b"")
    })
    .await;
    // The store has noticed that there is room.
    node.assert_healthy().await;
    node.stop().await;
}
