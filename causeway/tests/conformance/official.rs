//! The official gateway conformance suite (<https://github.com/ipfs/gateway-conformance>) itself, a program in Go, against
//! the shared gateway: in the clear, over TLS with HTTP/1.1 and with HTTP/2, and over HTTP/2 through nginx.
//!
//! It takes minutes, so it is part of `make test-long` and `make test-conformance` only. `scripts/gateway-conformance`
//! installs the suite.

use crate::support::certificate;
use crate::support::nginx::{Nginx, free_address, shipped};
use crate::world::{encrypted, gateway};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// How the gateway is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// HTTP/1.1 without TLS.
    Clear,
    /// HTTP/1.1 over TLS.
    Tls,
    /// HTTP/2.
    Http2,
    /// HTTP/2 to an nginx with the shipped configuration.
    Nginx,
}

/// Cases that are left out, as patterns of `go test -skip`. With an `https` URL, the suite's client of an HTTP proxy opens
/// a tunnel and speaks TLS in it, where the gateway expects HTTP, and its client of a tunnel sends `CONNECT` without TLS
/// to the port for TLS. nginx says itself which host was asked for and by which scheme, so that clients cannot choose
/// others.
const PROXIES: &str = "^TestProxy(Tunnel)?GatewaySubdomains$";
const FORWARDED: &str = "/with_X-Forwarded-(Host|Proto):";

impl Way {
    /// The number of leaf cases of the pinned version.
    fn leaf_cases(self) -> usize {
        match self {
            Self::Clear => 893,
            Self::Tls | Self::Http2 => 881,
            Self::Nginx => 871,
        }
    }

    fn left_out(self) -> Option<String> {
        match self {
            Self::Clear => None,
            Self::Tls | Self::Http2 => Some(PROXIES.to_owned()),
            Self::Nginx => Some(format!("{PROXIES}|{FORWARDED}")),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the official suite; make test-conformance and make test-long run it"]
async fn the_official_suite_passes() {
    let suite = installed();
    let clear = gateway().await;
    let (tls, certificate) = encrypted().await.expect("the gateway is started here");
    let dir = TempDir::with_prefix("causeway-official-nginx-").expect("the temporary folder is writable");
    let (of_nginx, _) = certificate::write(dir.path());
    let (front, refresh) = (free_address(), free_address());
    let _nginx =
        Nginx::start(dir.path(), &shipped(&clear.to_string(), (front, true), refresh, dir.path()), front).await;
    let ways: [(Way, SocketAddr, Option<&Path>); 4] = [
        (Way::Clear, clear, None),
        (Way::Tls, tls, Some(certificate)),
        (Way::Http2, tls, Some(certificate)),
        (Way::Nginx, front, Some(&of_nginx)),
    ];
    let mut failures = Vec::new();
    for (way, address, certificate) in ways {
        for host in ["example.com", "localhost"] {
            let report = run(&suite, way, address, host, certificate);
            println!("{way:?}, {host}: {} leaf cases passed, {} failed", report.passed.len(), report.failed.len());
            failures.extend(report.failed.iter().map(|case| format!("{way:?}, {host}: {case}")));
            if report.passed.len() + report.failed.len() != way.leaf_cases() {
                failures.push(format!("{way:?}, {host}: not {} leaf cases", way.leaf_cases()));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Where the suite is.
fn installed() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/gateway-conformance");
    let output = Command::new(script).output().expect("the script starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a path").trim().into()
}

/// The names of leaf cases.
#[derive(Default)]
struct Report {
    passed: BTreeSet<String>,
    failed: BTreeSet<String>,
}

/// Runs the suite once.
fn run(suite: &Path, way: Way, address: SocketAddr, host: &str, certificate: Option<&Path>) -> Report {
    let dir = TempDir::with_prefix("causeway-official-").expect("the temporary folder is writable");
    let json = dir.path().join("report.json");
    let scheme = if certificate.is_some() { "https" } else { "http" };
    let mut command = Command::new(suite);
    command.args(["test", "--gateway-url", &format!("{scheme}://{address}")]);
    command.args(["--subdomain-url", &format!("{scheme}://{host}:{}", address.port())]);
    command.arg("--json-output").arg(&json).args(["--", "-count=1"]);
    command.args(way.left_out().map(|pattern| format!("-skip={pattern}")));
    if let Some(certificate) = certificate {
        command.env("SSL_CERT_FILE", certificate);
    }
    if way == Way::Tls {
        command.env("GODEBUG", "http2client=0");
    }
    let output = command.output().expect("the suite starts");
    read(&std::fs::read_to_string(&json).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stdout))))
}

/// Reads a report: a line of JSON for each event. A case is a leaf unless the name of another one continues its own.
fn read(report: &str) -> Report {
    let events = report.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ended: Vec<(String, bool)> = events
        .filter_map(|event| match event["Action"].as_str()? {
            action @ ("pass" | "fail") => Some((event["Test"].as_str()?.to_owned(), action == "pass")),
            _ => None,
        })
        .collect();
    let inner: BTreeSet<&str> = ended.iter().filter_map(|(name, _)| Some(name.rsplit_once('/')?.0)).collect();
    let mut report = Report::default();
    for (name, passed) in ended.iter().filter(|(name, _)| !inner.contains(name.as_str())) {
        let cases = if *passed { &mut report.passed } else { &mut report.failed };
        cases.insert(name.clone());
    }
    report
}
