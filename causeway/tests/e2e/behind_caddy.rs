//! The configuration of Caddy (`deploy/caddy/Caddyfile`) in front of a gateway: origins, forwarding headers, ranges, and
//! responses that are truncated, over HTTP/1.1 and HTTP/2.

use crate::support::caddy::Caddy;
use crate::support::causeway::Launch;
use crate::support::certificate;
use crate::support::nginx::free_address;
use crate::support::noise::Noise;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

const CONFIGURATION: &str = include_str!("../../../deploy/caddy/Caddyfile");
const CHUNK_BYTES: usize = 1 << 20;
/// curl's exit codes for a response that ended too early: over HTTP/1.1, and a reset stream of HTTP/2.
const TRUNCATED: [i32; 2] = [18, 92];

/// Caddy's configuration for this machine: another host name, other ports, and a certificate of the test.
fn sites(port: u16, upstream: &str, certificate: &Path, key: &Path) -> String {
    let [localhost, ipfs, ipns] = ["", "*.ipfs.", "*.ipns."].map(|prefix| format!("{prefix}localhost:{port}"));
    let ours = CONFIGURATION
        .replace(
            "gateway.example.org, *.ipfs.gateway.example.org, *.ipns.gateway.example.org {",
            &format!("{localhost}, {ipfs}, {ipns} {{"),
        )
        .replace("/etc/ssl/causeway/fullchain.pem", &certificate.display().to_string())
        .replace("/etc/ssl/causeway/key.pem", &key.display().to_string())
        .replace("127.0.0.1:8080", upstream);
    assert!(ours.contains(&ipfs) && ours.contains(upstream) && !ours.contains("/etc/ssl"), "it has changed: {ours}");
    ours
}

/// Asks curl for a page through Caddy.
fn curl(certificate: &Path, port: u16, arguments: &[&str], host: &str, path: &str) -> Output {
    let mut command = Command::new("curl");
    command.args(["-s", "--noproxy", "*", "--connect-to", &format!("::127.0.0.1:{port}")]).args(arguments);
    command.arg("--cacert").arg(certificate).arg(format!("https://{host}:{port}{path}"));
    command.output().expect("curl is installed")
}

#[tokio::test(flavor = "multi_thread")]
async fn caddy_forwards_origins_ranges_and_truncated_responses() {
    let dir = TempDir::with_prefix("causeway-caddy-").expect("the temporary folder is writable");
    let (certificate, key) = certificate::write(dir.path());
    let launch = Launch::new(dir.path()).set("CAUSEWAY_HTTP_TRUSTED_PROXIES", "127.0.0.1");
    let chunks: Vec<Vec<u8>> = (0..8).map(|seed| Noise::bytes(seed, CHUNK_BYTES)).collect();
    let add = |name: &str, content: &[u8]| {
        let file = dir.path().join(name);
        std::fs::write(&file, content).expect("the folder is ours");
        launch.run(&["add", "-Q", "--profile", "unixfs-v1-2025", &file.display().to_string()]).expect("is added")
    };
    let (file, last) = (add("file", &chunks.concat()), add("last", &chunks[7]));
    let node = launch.start().await;
    let upstream = node.url("").trim_start_matches("http://").trim_end_matches('/').to_owned();
    let listen = free_address();
    let port = listen.port();
    let _caddy = Caddy::start(dir.path(), &sites(port, &upstream, &certificate, &key), listen).await;
    let ask = |arguments: &[&str], host: &str, path: &str| curl(&certificate, port, arguments, host, path);
    let origin = format!("{file}.ipfs.localhost");

    // A client cannot choose what Causeway takes for the host and the scheme of the request.
    let forged = ["-H", "X-Forwarded-Host: other.example", "-H", "X-Forwarded-Proto: http", "-w", "%{redirect_url}"];
    let redirect = ask(&[&forged[..], &["-o", "/dev/null"]].concat(), "localhost", &format!("/ipfs/{file}"));
    assert_eq!(String::from_utf8_lossy(&redirect.stdout), format!("https://{origin}:{port}/"));

    for version in ["--http1.1", "--http2"] {
        let whole = ask(&[version], &origin, "/");
        assert!(whole.status.success() && whole.stdout == chunks.concat(), "{version}: {}", whole.status);
        let range = ask(&[version, "-r", "1048570-1048579", "-w", "%{http_code}"], &origin, "/");
        let expected = [&chunks.concat()[1_048_570..1_048_580], b"206"].concat();
        assert_eq!(range.stdout, expected, "{version}");
        let head = ask(&[version, "-I"], &origin, "/");
        let head = String::from_utf8_lossy(&head.stdout).to_lowercase();
        for line in ["content-length: 8388608", "cache-control: public, max-age=29030400, immutable", "etag: \""] {
            assert!(head.contains(line), "{version}: no {line} in {head}");
        }
    }

    // The last block is withheld: the head and the first blocks are sent, and the rest cannot be.
    let rule = serde_json::json!({ "cid": last, "status": 451 }).to_string();
    assert_eq!(node.admin("POST", "/api/v1/denylists/local/rules", Some(&rule)).await.0, 201);
    for version in ["--http1.1", "--http2"] {
        let answer = ask(&[version, "-w", "%{http_code}", "-o", "/dev/null"], &origin, "/");
        assert_eq!(String::from_utf8_lossy(&answer.stdout), "200", "{version}");
        assert!(TRUNCATED.contains(&answer.status.code().unwrap_or_default()), "{version}: {}", answer.status);
    }
    node.stop().await;
}
