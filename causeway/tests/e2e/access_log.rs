//! The access log of a running gateway: each format, read by `causeway report` and by GoAccess; rotation; a full disk;
//! slow requests.

use crate::support::causeway::{Causeway, Launch};
use crate::support::noise::Noise;
use crate::support::{client, eventually, output_of};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);
const INLINE: &str = "/ipfs/bafkqac3imvwgy3zao5xxe3de";

/// A node with the access log of one format in a file.
fn launch(dir: &Path, format: &str, file: &Path) -> Launch {
    Launch::new(dir)
        .set("CAUSEWAY_LOG_ACCESS", "log")
        .set("CAUSEWAY_LOG_ACCESS_FORMAT", format)
        .set("CAUSEWAY_LOG_ACCESS_FILE", file.display())
}

/// `causeway report`, from a folder without a node.
fn report(arguments: &[&str], input: &[u8]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_causeway"));
    command.args(["report", "--json"]).args(arguments).current_dir("/");
    let (output, text) = output_of(&mut command, input);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&text).expect("JSON")
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

fn path_of(dir: &TempDir, name: &str) -> String {
    dir.path().join(name).display().to_string()
}

/// Requests for the content of another node, for content in a CID, and for what does not exist; returns how many.
async fn request_all(node: &Causeway, shared: (&str, &[u8])) -> u64 {
    node.expect(shared.0, shared.1).await;
    node.expect(shared.0, shared.1).await;
    let request = client().get(node.url(&format!("{INLINE}?secret=1")));
    let agent = http::HeaderValue::from_bytes(b"evil \"agent\"\t\xff 127.0.0.1 - -").expect("is accepted by HTTP");
    let request = request.header("user-agent", agent).header("referer", "https://video.example.com/private?q=1");
    assert_eq!(request.send().await.expect("is answered").status(), 200);
    assert_eq!(node.get("/ipfs/nonsense").await.status, 400);
    4
}

#[tokio::test(flavor = "multi_thread")]
async fn each_format_is_written_and_read_again_with_the_same_figures() {
    let (dir, of_holder) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let bytes = Noise::bytes(811, 900_000);
    let (holder, cid) = Causeway::with_file(of_holder.path(), &bytes).await;
    let shared = format!("/ipfs/{cid}");
    // Reports have one form for all ways to write a CID.
    let v1 = content::cid::parse(&cid).map(|cid| content::Cid::new_v1(cid.codec(), *cid.hash())).expect("a CID");

    for (format, first_tier) in [("json", "network"), ("text", "disk"), ("combined", "disk")] {
        let file = dir.path().join(format!("{format}.log"));
        let node = launch(dir.path(), format, &file).peering(holder.tcp()).start().await;
        if format == "json" {
            node.until_connected().await;
        }
        let requests = request_all(&node, (&shared, &bytes)).await;
        let metrics = node
            .metrics_when(|metrics| {
                let answered = |tier| metrics.sample(&format!("causeway_http_tier_requests_total{{tier=\"{tier}\"}}"));
                ["ram", "disk", "network", "none"].map(answered).iter().sum::<u64>() == requests
                    && metrics.sample("causeway_http_requests_in_flight") == 0
            })
            .await;
        assert_eq!(metrics.sample("causeway_access_log_dropped_total{reason=\"queue\"}"), 0);
        let stats = node.admin("GET", "/api/v1/stats", None).await.1;
        node.stop().await;

        let text = read(&file);
        assert_eq!(text.lines().count() as u64, requests, "{text}");
        assert!(text.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)), "{text}");
        assert!(!text.contains("secret") && !text.contains("private"), "{text}");
        let escaped = if format == "json" { r"evil \\x22agent\\x22\\x09\\xFF" } else { r"evil \x22agent\x22\x09\xFF" };
        assert!(text.contains(escaped) && text.contains("https://video.example.com\""), "{text}");
        let anonymised = path_of(&dir, &format!("{format}.jsonl"));
        let view = report(&[&file.display().to_string(), "--anonymise", &anonymised], b"");
        assert_eq!((&view["requests"], &view["lines"]["skipped"]), (&requests.into(), &0.into()), "{view}");
        assert_eq!(view["roots"]["top"][0]["name"], format!("/ipfs/{v1}"), "{view}");
        assert_eq!(view["referrers"]["top"][0]["name"], "video.example.com", "{view}");
        assert_eq!(report(&[&anonymised], b"")["requests"], requests);
        if format != "combined" {
            for tier in view["tiers"].as_array().expect("a list") {
                let name = tier["tier"].as_str().expect("a name");
                let counted = |metric: &str| metrics.sample(&format!("{metric}{{tier=\"{name}\"}}"));
                assert_eq!(tier["requests"], counted("causeway_http_tier_requests_total"), "{tier}");
                assert_eq!(tier["bytes"], counted("causeway_http_tier_bytes_total"), "{tier}");
                assert_eq!(tier["requests"], counted("causeway_http_tier_first_byte_seconds_count"), "{tier}");
                assert_eq!(tier["requests"], stats["http"]["tiers"][name]["requests"], "{stats}");
            }
            let of_first = view["tiers"].as_array().expect("a list").iter().find(|tier| tier["tier"] == first_tier);
            assert!(of_first.is_some_and(|tier| tier["requests"] == 1 && tier["bytes"] == 900_000), "{view}");
        }
        read_by_goaccess(format, &file, requests, &dir);
    }
    holder.stop().await;
}

/// A program that other servers' logs are read with, if it is installed.
fn read_by_goaccess(format: &str, file: &Path, requests: u64, dir: &TempDir) {
    if format != "combined" {
        return;
    }
    let out = dir.path().join("goaccess.json");
    let mut command = Command::new("goaccess");
    command.arg(file).args(["--log-format=COMBINED", "--no-global-config", "--invalid-requests"]);
    command.arg(dir.path().join("invalid")).arg("-o").arg(&out);
    match command.env("LC_ALL", "C").output() {
        Err(_) => writeln!(std::io::stderr(), "WARNING: GoAccess is not installed").expect("is writable"),
        Ok(output) => {
            let general: Value = serde_json::from_str(&read(&out)).unwrap_or_default();
            let (valid, failed) = (&general["general"]["valid_requests"], &general["general"]["failed_requests"]);
            let printed = String::from_utf8_lossy(&output.stderr);
            assert_eq!((valid, failed), (&requests.into(), &0.into()), "{general} {printed}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_log_is_opened_again_on_sighup_and_no_line_is_lost() {
    let dir = TempDir::new().expect("a folder");
    let (file, rotated) = (dir.path().join("access.log"), dir.path().join("access.log.1"));
    let node = launch(dir.path(), "json", &file).set("CAUSEWAY_P2P_OFFLINE", true).start().await;
    for _ in 0..3 {
        assert_eq!(node.get(INLINE).await.status, 200);
    }
    // As logrotate does: rename, then the signal.
    fs::rename(&file, &rotated).expect("renames");
    assert_eq!(node.get(INLINE).await.status, 200);
    // The line is queued when the request has ended, a moment after the response.
    node.metrics_when(|metrics| metrics.sample("causeway_http_requests_in_flight") == 0).await;
    kill(Pid::from_raw(node.process.id() as i32), Signal::SIGHUP).expect("is running");
    eventually("the file is opened again", TIMEOUT, async || {
        let reopened = node.process.stderr().contains("the access log was opened again");
        if reopened && file.exists() { Ok(()) } else { Err(node.process.stderr()) }
    })
    .await;
    for _ in 0..2 {
        assert_eq!(node.get(INLINE).await.status, 200);
    }
    node.stop().await;
    assert_eq!((read(&rotated).lines().count(), read(&file).lines().count()), (4, 2));
    let view = report(&[&rotated.display().to_string(), &file.display().to_string()], b"");
    assert_eq!(view["requests"], 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_no_request_and_lines_are_dropped_and_counted() {
    let dir = TempDir::new().expect("a folder");
    let file = dir.path().join("access.log");
    // Writing fails with ENOSPC.
    std::os::unix::fs::symlink("/dev/full", &file).expect("links");
    let node = launch(dir.path(), "text", &file).set("CAUSEWAY_P2P_OFFLINE", true).start().await;
    for _ in 0..5 {
        assert_eq!(node.get(INLINE).await.status, 200);
    }
    let dropped = "causeway_access_log_dropped_total{reason=\"write\"}";
    node.metrics_when(|metrics| metrics.sample(dropped) == 5).await;
    let printed = node.process.stderr();
    assert_eq!(printed.matches("the access log cannot be written").count(), 1, "{printed}");
    // There is room again.
    fs::remove_file(&file).expect("removes");
    kill(Pid::from_raw(node.process.id() as i32), Signal::SIGHUP).expect("is running");
    eventually("the file is created", TIMEOUT, async || if file.exists() { Ok(()) } else { Err("not yet") }).await;
    assert_eq!(node.get(INLINE).await.status, 200);
    eventually("a line is written", TIMEOUT, async || match read(&file).lines().count() {
        1 => Ok(()),
        lines => Err(lines),
    })
    .await;
    assert!(node.process.stderr().contains("the access log is written again"));
    assert_eq!(node.metrics().await.sample(dropped), 5);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_the_process_is_read_as_well_and_addresses_are_anonymised() {
    // (log.format, log.access_format, log.access_addresses, what the line has)
    let table = [
        ("text", "log", "truncated", "127.0.0.0"),
        ("json", "log", "none", "\"client\":\"-\""),
        ("text", "log", "hashed", ""),
        ("text", "json", "truncated", "\"client\":\"127.0.0.0\""),
    ];
    for (format, access_format, addresses, shown) in table {
        let dir = TempDir::new().expect("a folder");
        let node = Launch::new(dir.path())
            .set("CAUSEWAY_P2P_OFFLINE", true)
            .set("CAUSEWAY_LOG_ACCESS", "log")
            .set("CAUSEWAY_LOG_FORMAT", format)
            .set("CAUSEWAY_LOG_ACCESS_FORMAT", access_format)
            .set("CAUSEWAY_LOG_ACCESS_ADDRESSES", addresses)
            .start()
            .await;
        assert_eq!(node.get(INLINE).await.status, 200);
        // And one of another kind, such as that of the first scrub.
        let log = eventually("the line is written", TIMEOUT, async || {
            let log = node.process.stderr();
            if log.contains(INLINE) && log.lines().count() > 1 { Ok(log) } else { Err(log) }
        })
        .await;
        node.stop().await;
        let line = log.lines().find(|line| line.contains(INLINE)).expect("has it").to_owned();
        assert!(line.contains(shown), "{line}");
        // The host has a port, and the client has none.
        assert!(!line.replace("127.0.0.1:", "").contains("127.0.0.1"), "{line}");
        let view = report(&["-"], log.as_bytes());
        assert_eq!((&view["requests"], &view["lines"]["skipped"]), (&1.into(), &0.into()), "{view} {log}");
        assert_eq!((&view["tiers"][0]["requests"], &view["tiers"][0]["bytes"]), (&1.into(), &11.into()), "{view}");
        assert!(view["lines"]["other"].as_u64() > Some(0), "{view}");
        assert_eq!(view["clients"]["distinct"], u64::from(addresses != "none"), "{view}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_request_is_logged_with_where_its_time_went() {
    let (dir, of_peer) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    // A peer that lacks the content is asked for it until the timeout.
    let peer = Launch::new(of_peer.path()).start().await;
    let node = Launch::new(dir.path())
        .peering(peer.tcp())
        .set("CAUSEWAY_HTTP_STALL_TIMEOUT_SECONDS", 2)
        .set("CAUSEWAY_LOG_SLOW_REQUEST_SECONDS", 1)
        .set("CAUSEWAY_LOG_FORMAT", "json")
        .set("CAUSEWAY_LOG_ACCESS_ADDRESSES", "none")
        .start()
        .await;
    node.until_connected().await;
    assert_eq!(node.get(INLINE).await.status, 200);
    let absent = "/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy?secret=1";
    let status = node.get(absent).await.status;
    assert!(status >= 500, "{status}");
    let line = eventually("the slow request is logged", TIMEOUT, async || {
        let log = node.process.stderr();
        log.lines().find(|line| line.contains("slow request")).map(str::to_owned).ok_or(log.clone())
    })
    .await;
    let logged: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!((&logged["level"], &logged["target"]), (&"WARN".into(), &"gateway::slow_requests".into()), "{line}");
    let fields = &logged["fields"];
    let of = |name: &str| fields[name].as_f64().unwrap_or_else(|| panic!("no {name} in {line}"));
    assert_eq!((&fields["client"], &fields["status"]), (&"-".into(), &status.into()), "{line}");
    assert!(of("path_ms") >= 1000.0 && of("path_ms") <= of("first_byte_ms"), "{line}");
    let steps = of("admission_ms") + of("host_ms") + of("name_ms") + of("path_ms");
    // Between the end of the path and the first byte, a busy machine may do something else.
    assert!(steps <= of("first_byte_ms") + 1.0 && 2.0 * of("path_ms") > of("first_byte_ms"), "{line}");
    assert!(of("duration_ms") >= of("first_byte_ms"), "{line}");
    assert!(!line.contains("secret"), "{line}");
    let log = node.process.stderr();
    assert_eq!(log.matches("slow request").count(), 1, "fast requests are not logged: {log}");
    assert!(!log.contains("\"target\":\"access\""), "the access log is off: {log}");
    node.stop().await;
    peer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_written_is_reported_at_the_start_and_by_the_check() {
    let dir = TempDir::new().expect("a folder");
    let file = dir.path().join("missing/access.log");
    let launch = launch(dir.path(), "json", &file).set("CAUSEWAY_P2P_OFFLINE", true);
    for command in [&["config", "check"][..], &["serve", "--listen", "127.0.0.1:0", "--admin-listen", "none"]] {
        let error = launch.run(command).expect_err("is refused");
        assert!(error.contains("log.access_file") && error.contains("missing"), "{error}");
    }
    fs::create_dir(dir.path().join("missing")).expect("creates");
    launch.run(&["config", "check"]).expect("is valid now");
    assert!(!file.exists(), "a check creates nothing");
}
