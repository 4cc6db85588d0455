//! HTTPS and HTTP/2 with certificates from files, asked by curl.

use crate::support::causeway::{Causeway, Launch};
use crate::support::certificate;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const FAILURES: &str = "causeway_tls_certificate_reload_failures_total{listener=\"public\"}";
const EXPIRY: &str = "causeway_tls_certificate_expiry_timestamp_seconds{listener=\"public\"}";

/// Writes a new certificate and its key, and returns a copy of the certificate for a client that trusts it.
fn renew(dir: &Path, copy: &str) -> PathBuf {
    let (certificate, _) = certificate::write(dir);
    let copy = dir.join(copy);
    fs::copy(certificate, &copy).expect("the folder is ours");
    copy
}

/// Asks curl, which trusts only this certificate; its output: the version of HTTP, the status, and the body.
fn curl(node: &Causeway, trusted: &Path, arguments: &[&str], host: &str, path: &str) -> Option<String> {
    let (_, port) = node.tls_address().rsplit_once(':').expect("an address");
    let mut command = Command::new("curl");
    command.args(["-s", "--noproxy", "*", "-w", "HTTP/%{http_version} %{http_code} %{redirect_url}\n"]).arg("--cacert");
    command.arg(trusted).args(["--connect-to", &format!("::127.0.0.1:{port}")]).args(arguments);
    let output = command.arg(format!("https://{host}:{port}{path}")).output().expect("curl is installed");
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_is_answered_over_http2_and_a_renewed_certificate_needs_no_restart() {
    let dir = TempDir::new().expect("the temporary folder is writable");
    let first = renew(dir.path(), "first.pem");
    fs::write(dir.path().join("page.txt"), "hello over TLS").expect("the folder is ours");
    let launch = Launch::new(dir.path())
        .set("CAUSEWAY_P2P_OFFLINE", "true")
        .set("CAUSEWAY_HTTP_TLS_LISTEN", "127.0.0.1:0")
        .set("CAUSEWAY_HTTP_TLS_CERTIFICATE", dir.path().join("certificate.pem").display())
        .set("CAUSEWAY_HTTP_TLS_KEY", dir.path().join("key.pem").display());
    let root = launch.run(&["add", "-Q", "--profile", "unixfs-v1-2025", "page.txt"]).expect("is added");
    let node = launch.start().await;
    let path = format!("/ipfs/{root}");
    let (_, port) = node.tls_address().rsplit_once(':').expect("an address");

    // The content has an origin of its own, with the scheme of the request.
    let origin = format!("{root}.ipfs.localhost");
    let redirect = curl(&node, &first, &["--http2"], "localhost", &path).expect("is answered");
    let location = redirect.lines().last().expect("a line").to_owned();
    assert_eq!(location, format!("HTTP/2 301 https://{origin}:{port}/"));
    for (version, expected) in [("--http2", "HTTP/2"), ("--http1.1", "HTTP/1.1")] {
        let answer = curl(&node, &first, &[version], &origin, "/").expect("is answered");
        assert_eq!(answer, format!("hello over TLS{expected} 200 \n"), "{version}");
        let answer = curl(&node, &first, &[version, "-r", "6-9"], &origin, "/").expect("is answered");
        assert_eq!(answer, format!("over{expected} 206 \n"), "{version}");
        let answer = curl(&node, &first, &[version], "localhost", "/healthz").expect("is answered");
        assert_eq!(answer, format!("ok\n{expected} 200 \n"), "{version}");
    }
    // Without TLS, on the other port.
    node.expect("/healthz", b"ok\n").await;

    // An invalid certificate changes nothing, and is reported.
    let expiry = node.metrics().await.sample(EXPIRY);
    fs::write(dir.path().join("certificate.pem"), "nonsense").expect("the folder is ours");
    node.metrics_when(|metrics| metrics.sample(FAILURES) > 0).await;
    assert!(curl(&node, &first, &[], "localhost", "/healthz").is_some());
    assert_eq!(node.metrics().await.sample(EXPIRY), expiry);

    // A renewed one is used, at the latest after a signal.
    let second = renew(dir.path(), "second.pem");
    kill(Pid::from_raw(i32::try_from(node.process.id()).expect("fits")), Signal::SIGHUP).expect("is running");
    let begun = Instant::now();
    while curl(&node, &second, &[], "localhost", "/healthz").is_none() {
        assert!(begun.elapsed() < PATIENCE, "the new certificate is not used");
    }
    assert!(curl(&node, &first, &[], "localhost", "/healthz").is_none(), "the old one is not used any more");
    node.stop().await;
}
