//! The whole command over generated logs.

use super::*;
use serde_json::Value;
use services::access_log::record::{AccessRecord, ContentTier, LineFormat};
use std::io::Write as _;
use std::path::Path;
use tempfile::TempDir;

const START_US: i64 = 1_795_651_200_000_000;
const HOUR_US: i64 = 3_600_000_000;

fn cid(number: u64) -> String {
    const SHA2_256: u64 = 0x12;
    let digest = content::hashes::digest(SHA2_256, 32, &number.to_be_bytes()).expect("a known function");
    format!("/ipfs/{}", content::Cid::new_v1(content::codec::RAW, digest))
}

/// A day with known answers: 460 requests from memory in 200 µs, 402 from disk in 8 ms, 138 from the network in 4.04 s,
/// and 100 without content. Root n of 10 has as many requests as its number, in turn.
fn day() -> Vec<AccessRecord<'static>> {
    let roots: Vec<u64> = (1..=10).flat_map(|root| std::iter::repeat_n(root, root as usize)).collect();
    let record = |index: u64| {
        let (tier, first_byte_us, bytes) = match index {
            0..460 => (Some(ContentTier::Ram), 200, 464_000),
            460..862 => (Some(ContentTier::Disk), 8_000, 434_696),
            862..1000 => (Some(ContentTier::Network), 4_040_000, 519_927),
            _ => (None, 100, 50),
        };
        let root = cid(roots[index as usize % roots.len()]);
        AccessRecord {
            received_us: START_US + index as i64 * 24 * HOUR_US / 1100,
            client: format!("203.0.113.{}", index % 50).into(),
            method: "GET".into(),
            host: "gateway.example.org".into(),
            path: if tier.is_some() { format!("{root}/file{}", index % 7).into() } else { "/missing".into() },
            protocol: "HTTP/1.1".into(),
            status: if tier.is_some() { 200 } else { 404 },
            bytes,
            duration_us: Some(first_byte_us * 2),
            first_byte_us: Some(first_byte_us),
            tier,
            root: if tier.is_some() { root.into() } else { "".into() },
            referer: match index % 4 {
                0 => "https://video.example.com".into(),
                1 => "https://nft.example.com".into(),
                2 => "https://gateway.example.org".into(),
                _ => "".into(),
            },
            user_agent: if index.is_multiple_of(10) { "curl/8.5.0".into() } else { "Firefox/145.0".into() },
            complete: Some(true),
            trace_id: "".into(),
        }
    };
    (0..1100).map(record).collect()
}

fn log(records: &[AccessRecord<'_>], format: LineFormat) -> String {
    let mut log = String::new();
    records.iter().for_each(|record| record.append_to(&mut log, format));
    log
}

fn args(logs: &[&Path]) -> ReportArgs {
    ReportArgs {
        logs: logs.iter().map(|log| (*log).to_owned()).collect(),
        format: ReportFormat::Json,
        json: false,
        top: 10,
        svg: None,
        anonymise: None,
        hash_roots: false,
    }
}

/// The view of a log, as JSON.
fn report(logs: &[&Path]) -> Value {
    let mut summary = Summary::default();
    for path in logs {
        input::for_each_line(path, &mut |line| add_line(&mut summary, None, line, &|| "place".to_owned()))
            .expect("reads");
    }
    serde_json::to_value(ReportView::of(&summary, 10)).expect("JSON")
}

fn close(found: &Value, expected: f64, tolerance: f64) {
    let found = found.as_f64().expect("a number");
    assert!((found - expected).abs() <= expected * tolerance, "{found} is not {expected}");
}

fn check_table_5(view: &Value, tolerance: f64) {
    let expected =
        [("ram", 460, 0.46, 0.464, 200e-6), ("disk", 402, 0.402, 0.380, 8e-3), ("network", 138, 0.138, 0.156, 4.04)];
    for (tier, (name, requests, requests_share, bytes_share, median)) in
        view["tiers"].as_array().expect("a list").iter().zip(expected)
    {
        assert_eq!((tier["tier"].as_str(), tier["requests"].as_u64()), (Some(name), Some(requests)), "{tier}");
        close(&tier["requests_share"], requests_share, 1e-6);
        close(&tier["bytes_share"], bytes_share, tolerance);
        close(&tier["first_byte_median_seconds"], median, tolerance);
        close(&tier["first_byte_p95_seconds"], median, tolerance);
    }
    close(&view["fast_share"], 0.862, 1e-6);
}

#[test]
fn a_known_day_gives_the_table_of_the_paper_from_every_format_with_tiers() {
    let dir = TempDir::new().expect("a folder");
    for format in [LineFormat::Text, LineFormat::Json] {
        let path = dir.path().join("access.log");
        std::fs::write(&path, log(&day(), format)).expect("writes");
        let view = report(&[&path]);
        check_table_5(&view, 0.011);
        assert_eq!((&view["requests"], &view["lines"]["skipped"]), (&1100.into(), &0.into()));
        assert_eq!(
            (view["from"].as_str(), &view["clients"]["distinct"]),
            (Some("2026-11-26T00:00:00.000Z"), &50.into())
        );
        let statuses: Vec<_> =
            view["statuses"].as_array().expect("a list").iter().map(|class| &class["requests"]).collect();
        assert_eq!(statuses, [1000, 100]);
        // 55 requests make a turn, of which root 10 has 10; 18 turns and 10 requests of the first four roots.
        let roots = &view["roots"];
        assert_eq!((&roots["distinct"], &roots["exact"], &roots["requests"]), (&10.into(), &true.into(), &1000.into()));
        assert_eq!((roots["top"][0]["name"].as_str(), &roots["top"][0]["requests"]), (Some(&*cid(10)), &180.into()));
        let popularity = roots["popularity"].as_array().expect("a list");
        assert_eq!(popularity.first(), Some(&serde_json::json!([1, 180])));
        assert_eq!(popularity.last(), Some(&serde_json::json!([10, 19])));
        let referrers = &view["referrers"];
        assert_eq!(
            (&referrers["none"], &referrers["same_site"], &referrers["others"]),
            (&275.into(), &275.into(), &550.into())
        );
        assert_eq!(referrers["top"][0]["name"], "nft.example.com");
        assert_eq!(
            (&view["user_agents"][0]["name"], &view["user_agents"][1]["requests"]),
            (&"Firefox".into(), &110.into())
        );
        let rate = &view["rate"];
        assert_eq!(rate["interval_seconds"], 300);
        let intervals = rate["intervals"].as_array().expect("a list");
        assert!(intervals.len() == 288 && intervals[0]["ram"] == 4, "{rate}");
        close(&view["sizes"]["median_bytes"], 464_000.0, 0.011);
    }
}

#[test]
fn a_combined_log_has_everything_but_tiers() {
    let dir = TempDir::new().expect("a folder");
    let path = dir.path().join("access.log");
    std::fs::write(&path, log(&day(), LineFormat::Combined)).expect("writes");
    let view = report(&[&path]);
    assert_eq!(
        (&view["requests"], &view["roots"]["requests"], &view["tiers"][0]["requests"]),
        (&1100.into(), &1000.into(), &0.into())
    );
    assert_eq!((&view["fast_share"], &view["referrers"]["none"]), (&Value::Null, &275.into()));
}

#[test]
fn mixed_formats_and_unreadable_lines_are_counted() {
    let dir = TempDir::new().expect("a folder");
    let path = dir.path().join("access.log");
    let day = day();
    let mut text = log(&day[..400], LineFormat::Text);
    text.push_str("2026-11-26T08:00:00Z  INFO causeway::serve: draining\n\nnonsense\n\u{1b}[31m\n");
    text.push_str(&"x".repeat(input::LINE_BYTES_MAX + 1));
    text.push('\n');
    text.push_str(&log(&day[400..700], LineFormat::Json));
    std::fs::write(&path, text).expect("writes");
    let compressed = dir.path().join("access.log.zst");
    let rest = log(&day[700..], LineFormat::Text);
    std::fs::write(&compressed, zstd::encode_all(rest.as_bytes(), 1).expect("compresses")).expect("writes");
    let view = report(&[&path, &compressed]);
    check_table_5(&view, 0.011);
    assert_eq!(
        (&view["lines"]["read"], &view["lines"]["other"], &view["lines"]["skipped"]),
        (&1104.into(), &1.into(), &3.into())
    );
    assert_eq!(view["lines"]["first_skipped"], "place: the line is in none of the known formats");
}

#[test]
fn an_anonymised_log_gives_the_same_report_and_has_nothing_private() {
    let dir = TempDir::new().expect("a folder");
    let path = dir.path().join("access.log");
    std::fs::write(&path, log(&day(), LineFormat::Text)).expect("writes");
    for hash_roots in [false, true] {
        let out = dir.path().join(format!("published-{hash_roots}.jsonl"));
        let run_with = ReportArgs { anonymise: Some(out.clone()), hash_roots, ..args(&[&path]) };
        execute(&run_with).expect("writes");
        let published = std::fs::read_to_string(&out).expect("reads");
        assert_eq!(published.lines().count(), 1100);
        for private in ["203.0.113", "example", "file", "missing", "145.0"] {
            assert!(!published.contains(private), "{private} is in {published:.1000}");
        }
        assert_eq!(published.contains(&cid(3)), !hash_roots);
        let view = report(&[&out]);
        check_table_5(&view, 0.03);
        assert_eq!((&view["clients"]["distinct"], &view["roots"]["distinct"]), (&50.into(), &10.into()));
        assert_eq!((&view["referrers"]["others"], &view["referrers"]["same_site"]), (&550.into(), &275.into()));
        assert_eq!(view["roots"]["top"][0]["requests"], 180);
        // Once more.
        let again = dir.path().join(format!("again-{hash_roots}.jsonl"));
        execute(&ReportArgs { anonymise: Some(again.clone()), hash_roots, ..args(&[&out]) }).expect("writes");
        check_table_5(&report(&[&again]), 0.03);
    }
    let exists = ReportArgs { anonymise: Some(path.clone()), ..args(&[&path]) };
    assert!(execute(&exists).is_err_and(|error| error.to_string().contains("exists")));
}

#[test]
fn charts_are_written_for_any_log() {
    let dir = TempDir::new().expect("a folder");
    let day = day();
    let one = AccessRecord { status: 200, ..AccessRecord::default() };
    for (name, records, format) in [
        ("day", &day[..], LineFormat::Text),
        ("combined", &day[..], LineFormat::Combined),
        ("one", &day[..1], LineFormat::Json),
        ("least", std::slice::from_ref(&one), LineFormat::Combined),
    ] {
        let path = dir.path().join(format!("{name}.log"));
        std::fs::write(&path, log(records, format)).expect("writes");
        let svg = dir.path().join("charts").join(name);
        execute(&ReportArgs { svg: Some(svg.clone()), ..args(&[&path]) }).expect("writes");
        for file in ["requests.svg", "tiers.svg", "popularity.svg", "latency.svg", "sizes.svg"] {
            let text = std::fs::read_to_string(svg.join(file)).expect("is written");
            assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"), "{name} {file}");
            assert!(!text.contains("NaN") && !text.contains("inf"), "{name} {file}: {text}");
        }
    }
    let latency = std::fs::read_to_string(dir.path().join("charts/day/latency.svg")).expect("reads");
    let texts = ["memory", "disk", "network", "seconds", "share of requests", "100 %", "0.001"];
    texts.into_iter().for_each(|text| assert!(latency.contains(text), "{text} in {latency}"));
}

#[test]
fn the_shared_storage_of_a_site_has_a_row_if_the_log_has_it() {
    let dir = TempDir::new().expect("a folder");
    let path = dir.path().join("access.log");
    let mut records = day();
    let view = |records: &[AccessRecord<'_>]| {
        std::fs::write(&path, log(records, LineFormat::Json)).expect("writes");
        report(&[&path])
    };
    let names = |view: &Value| {
        let tiers = view["tiers"].as_array().expect("a list").iter();
        tiers.map(|tier| tier["tier"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    let without = view(&records);
    assert_eq!(names(&without), ["ram", "disk", "network"]);
    assert!(without["rate"]["intervals"][0].get("site").is_none(), "{}", without["rate"]["intervals"][0]);

    records.iter_mut().filter(|record| record.tier == Some(ContentTier::Disk)).take(100).for_each(|record| {
        record.tier = Some(ContentTier::Site);
    });
    let with = view(&records);
    assert_eq!(names(&with), ["ram", "disk", "site", "network"]);
    assert_eq!((&with["tiers"][1]["requests"], &with["tiers"][2]["requests"]), (&302.into(), &100.into()));
    assert_eq!(with["rate"]["intervals"][0]["site"], 0);
    execute(&ReportArgs { svg: Some(dir.path().to_owned()), ..args(&[&path]) }).expect("writes");
    let chart = std::fs::read_to_string(dir.path().join("tiers.svg")).expect("reads");
    ["memory", "disk", "site", "network"].into_iter().for_each(|name| assert!(chart.contains(name), "{name}"));
}

#[test]
fn the_text_has_the_tables() {
    let dir = TempDir::new().expect("a folder");
    let path = dir.path().join("access.log");
    std::fs::write(&path, log(&day(), LineFormat::Text)).expect("writes");
    let mut summary = Summary::default();
    input::for_each_line(&path, &mut |line| add_line(&mut summary, None, line, &String::new)).expect("reads");
    let text = ReportView::of(&summary, 3).text();
    for words in [
        "CONTENT FROM  REQUESTS  BYTES   FIRST BYTE (MEDIAN)  95 %\n",
        "memory        46.0 %    46.4 %  ",
        "disk          40.2 %    38.0 %  8.0",
        "network       13.8 %    15.6 %  4.0",
        "1000 requests, 438.6 MiB; 86.2 % of them within 250 ms\n",
        "REFERRER\n275       50.0 %  nft.example.com\n",
        "roots        10\n",
        "status       2xx 90.9 %, 4xx 9.1 %\n",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    assert!(text.bytes().all(|byte| byte == b'\n' || !byte.is_ascii_control()), "{text}");
}

#[test]
fn logs_without_requests_and_missing_ones_are_errors() {
    let dir = TempDir::new().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::File::create(&path).and_then(|mut file| file.write_all(text.as_bytes())).expect("writes");
        path
    };
    let other = "2026-11-26T08:00:00Z  INFO causeway::serve: draining\n";
    let table = [
        (file("empty", ""), "there are no lines"),
        (file("other", other), "set log.access = \"log\""),
        (file("nonsense", "nonsense\n"), "nonsense:1: the line is in none of the known formats"),
        (dir.path().join("missing"), "missing cannot be read"),
        (dir.path().to_owned(), "cannot be read"),
    ];
    for (path, expected) in table {
        let error = execute(&args(&[&path])).expect_err("is refused");
        assert!(format!("{error:#}").contains(expected), "{}: {error:#}", path.display());
    }
}
