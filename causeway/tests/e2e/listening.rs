//! Unix sockets behind nginx, the PROXY protocol of HAProxy, sockets of systemd, notifications to it, and its units.

use crate::support::causeway::{Causeway, Launch, TOKEN};
use crate::support::certificate;
use crate::support::haproxy::HaProxy;
use crate::support::nginx::{Nginx, free_address};
use crate::support::process::Process;
use crate::support::{eventually, get};
use nix::sys::signal::Signal;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::{TcpStream, UnixDatagram};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(60);
/// A block in its own CID.
const PATH: &str = "/ipfs/bafkqac3imvwgy3zao5xxe3de";
const TEXT: &str = "hello world";

fn folder() -> TempDir {
    TempDir::new().expect("the temporary folder is writable")
}

fn offline(dir: &TempDir) -> Launch {
    Launch::new(dir.path()).set("CAUSEWAY_P2P_OFFLINE", "true").set("CAUSEWAY_LOG_ACCESS", "log")
}

/// The status and the body, or why curl has failed.
fn curl(arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("curl");
    let output = command.args(["-sS", "--noproxy", "*", "-w", " %{http_code}", "--max-time", "60"]).args(arguments);
    let output = output.output().expect("curl is installed");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Waits for a line of the log with all these words.
async fn logged(node: &Causeway, words: &[&str]) {
    eventually(&format!("the log has {words:?}"), PATIENCE, async || {
        let log = node.process.stderr();
        let found = log.lines().any(|line| words.iter().all(|word| line.contains(word)));
        if found { Ok(()) } else { Err("no such line") }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_reaches_a_unix_socket_and_is_a_trusted_proxy_if_the_settings_say_so() {
    for (trusted, expected) in [("unix:,127.0.0.1", "client=192.0.2.9"), ("127.0.0.1", "client=unix:")] {
        let (dir, listens) = (folder(), free_address());
        let socket = dir.path().join("http.sock");
        let launch = offline(&dir)
            .set("CAUSEWAY_HTTP_TRUSTED_PROXIES", trusted)
            .set("CAUSEWAY_HTTP_UNIX_MODE", "0600")
            .flag("--listen", format!("unix:{}", socket.display()));
        let node = launch.start().await;
        assert!(node.process.stdout().contains(&format!("gateway   http://unix:{}", socket.display())));
        let mode = std::fs::metadata(&socket).expect("the socket exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let http = format!(
            "server {{ listen {listens}; location / {{ proxy_pass http://unix:{}; proxy_http_version 1.1; \
             proxy_set_header Host $http_host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; }} }}",
            socket.display()
        );
        let _nginx = Nginx::start(dir.path(), &http, listens).await;
        let url = format!("http://{listens}{PATH}");
        let answer = curl(&["-H", "X-Forwarded-For: 192.0.2.9", &url]).expect("nginx answers");
        assert_eq!(answer, format!("{TEXT} 200"));
        logged(&node, &[expected, PATH, "status=200"]).await;
        // Another gateway does not take the socket away.
        let second = folder();
        let refused = offline(&second).run(&["serve", "--listen", &format!("unix:{}", socket.display())]);
        let refused = refused.expect_err("the socket is in use");
        assert!(refused.contains("http.listen") && refused.contains("is in use"), "{refused}");
        node.stop().await;
        assert!(!socket.exists(), "the socket is removed");
    }
}

/// Commands reach the admin listener at a Unix socket, which needs no TLS, by the data folder and by its address. A
/// token is needed all the same.
#[tokio::test(flavor = "multi_thread")]
async fn commands_reach_the_admin_listener_at_a_unix_socket() {
    let dir = folder();
    let socket = dir.path().join("admin.sock");
    let (path, address) = (socket.display().to_string(), format!("unix:{}", socket.display()));
    let (certificate, key) = certificate::write(dir.path());
    let launch = offline(&dir)
        .admin_listen(&address)
        .set("CAUSEWAY_ADMIN_UNIX_MODE", "0600")
        .set("CAUSEWAY_ADMIN_TLS_CERTIFICATE", certificate.display())
        .set("CAUSEWAY_ADMIN_TLS_KEY", key.display());
    let node = launch.start().await;
    assert_eq!(node.admin_url(), format!("http://{address}"));
    let mode = std::fs::metadata(&socket).expect("the socket exists").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let request = |token: &str| {
        let authorization = format!("Authorization: Bearer {token}");
        let arguments = ["--unix-socket", &path, "-H", &authorization, "http://localhost/api/v1/version"];
        curl(&arguments).expect("is answered")
    };
    assert!(request(TOKEN).ends_with(" 200") && request("another").ends_with(" 401"));
    let ready = curl(&["--unix-socket", &path, "http://localhost/healthz"]);
    assert_eq!(ready, Ok("ok\n 200".to_owned()));

    let listed = launch.run(&["node"]).expect("the socket is found by the data folder");
    assert!(listed.contains(&format!("admin     {address}")), "{listed}");
    let other = folder();
    let elsewhere = offline(&other);
    let blocked = elsewhere.run(&["block", "add", "--admin", &address, "bafkqac3imvwgy3zao5xxe3de"]);
    blocked.expect("the socket is found by its address");
    let audit = elsewhere.run(&["audit", "--json", "--admin", &format!("http://{address}")]).expect("is answered");
    let audit: serde_json::Value = serde_json::from_str(&audit).expect("JSON");
    assert_eq!(audit["entries"][0]["from"], "unix:", "{audit}");
    node.stop().await;
    assert!(!socket.exists(), "the socket is removed");
    let unreachable = elsewhere.run(&["node", "--admin", &address]).expect_err("nothing listens");
    assert!(unreachable.contains(&format!("the gateway at {address} cannot be reached")), "{unreachable}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_a_killed_gateway_left_is_replaced() {
    let dir = folder();
    let socket = dir.path().join("http.sock");
    let launch = offline(&dir).flag("--listen", format!("unix:{}", socket.display()));
    // Dropping it kills it.
    drop(launch.start().await);
    assert!(socket.exists());
    let node = launch.start().await;
    let answer = curl(&["--unix-socket", &socket.display().to_string(), &format!("http://localhost{PATH}")]);
    assert!(answer.is_ok_and(|answer| answer.ends_with("200") || answer.ends_with("301")));
    node.stop().await;
}

/// A listener of HAProxy in front of a server.
fn proxy(name: &str, listens: SocketAddr, server: &str, options: &str) -> String {
    format!("listen {name}\n  bind {listens}\n  server gateway {server} {options}\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn haproxy_tells_the_address_of_the_client() {
    let dir = folder();
    let (certificate, key) = certificate::write(dir.path());
    let launch = offline(&dir)
        .set("CAUSEWAY_HTTP_TRUSTED_PROXIES", "127.0.0.1")
        .set("CAUSEWAY_HTTP_PROXY_PROTOCOL", "127.0.0.1:0")
        .set("CAUSEWAY_HTTP_TLS_LISTEN", "127.0.0.1:0")
        .set("CAUSEWAY_HTTP_HTTP2", "true")
        .set("CAUSEWAY_HTTP_TLS_CERTIFICATE", certificate.display())
        .set("CAUSEWAY_HTTP_TLS_KEY", key.display());
    let node = launch.start().await;
    let plain_server = node.url("").trim_start_matches("http://").to_owned();
    let [plain, tls, version_1] = [(); 3].map(|()| free_address());
    // Health checks have the command LOCAL.
    let checks = "send-proxy-v2 check inter 200ms check-send-proxy";
    let proxies = [
        proxy("plain", plain, &plain_server, checks) + "  option httpchk GET /readyz\n",
        proxy("tls", tls, node.tls_address(), "send-proxy-v2 proxy-v2-options crc32c,ssl"),
        proxy("version_1", version_1, &plain_server, "send-proxy"),
    ];
    let _haproxy = HaProxy::start(dir.path(), &proxies.concat(), plain).await;

    let forged = ["-H", "X-Forwarded-For: 6.6.6.6"];
    let (from_5, from_6) = (["--interface", "127.0.0.5"], ["--interface", "127.0.0.6"]);
    let url = format!("http://{plain}{PATH}");
    let answer = curl(&[&forged[..], &from_5, &[&url]].concat()).expect("is answered");
    assert_eq!(answer, format!("{TEXT} 200"));
    logged(&node, &["client=127.0.0.5", PATH, "status=200"]).await;
    // HAProxy's own requests.
    logged(&node, &["client=127.0.0.1", "/readyz", "status=200"]).await;

    let (_, port) =
        tls.to_string().rsplit_once(':').map(|(host, port)| (host.to_owned(), port.to_owned())).expect("a port");
    let (url, trusted) = (format!("https://localhost:{port}/healthz"), certificate.display().to_string());
    for version in ["--http1.1", "--http2"] {
        let resolve = format!("localhost:{port}:127.0.0.1");
        let arguments = [&from_6[..], &[version, "--resolve", &resolve, "--cacert", &trusted, &url]].concat();
        assert_eq!(curl(&arguments).expect("is answered"), "ok\n 200", "{version}");
    }
    logged(&node, &["client=127.0.0.6", "/healthz", "status=200"]).await;

    // Version 1 of HAProxy, and of curl, are refused with an explanation.
    curl(&[&format!("http://{version_1}{PATH}")]).expect_err("version 1 is refused");
    curl(&["--haproxy-protocol", &node.url(PATH)]).expect_err("version 1 is refused");
    logged(&node, &["WARN", "version 1", "send version 2"]).await;
    // A client that connects directly cannot choose an address, and has none without a header.
    curl(&[&from_5[..], &[&node.url(PATH)]].concat()).expect_err("is refused");
    curl(&[&node.url(PATH)]).expect_err("is refused");
    let refused = |reason: &str| format!("causeway_http_proxy_connections_refused_total{{reason=\"{reason}\"}}");
    let metrics = node.metrics().await;
    assert_eq!(metrics.sample(&refused("version_1")), 2);
    assert_eq!(metrics.sample(&refused("untrusted")), 1);
    assert_eq!(metrics.sample(&refused("invalid")), 1);
    node.stop().await;
}

/// The next notification.
async fn notification(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 1024];
    let length = timeout(PATIENCE, socket.recv(&mut bytes)).await.expect("in time").expect("a notification");
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_manager_is_notified() {
    let dir = folder();
    let path = dir.path().join("notify.sock");
    let socket = UnixDatagram::bind(&path).expect("binds");
    let mut node = offline(&dir).set("NOTIFY_SOCKET", path.display()).start().await;
    assert_eq!(notification(&socket).await, "READY=1\n");
    node.process.signal(Signal::SIGHUP);
    let reloading = notification(&socket).await;
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(notification(&socket).await, "READY=1\n");
    node.process.signal(Signal::SIGTERM);
    assert_eq!(notification(&socket).await, "STOPPING=1\n");
    assert!(node.process.ended(PATIENCE).await.success());
}

/// systemd's own program passes sockets, with names, to the gateway.
#[tokio::test(flavor = "multi_thread")]
async fn systemd_passes_sockets_with_names() {
    let dir = folder();
    let (http, admin, socket) = (free_address(), free_address(), dir.path().join("http.sock"));
    let start = |names: &str, dir: &Path| {
        let mut command = Command::new("systemd-socket-activate");
        command.args(["-l", &http.to_string(), "-l", &socket.display().to_string(), "-l", &admin.to_string()]);
        command.arg(format!("--fdname={names}")).args(["-E", "CAUSEWAY_P2P_OFFLINE=true"]);
        command.arg(env!("CARGO_BIN_EXE_causeway")).args(["serve", "--data-dir"]).arg(dir.join("data"));
        Process::spawn("causeway", &mut command, dir)
    };
    let mut node = start("http:http:admin", dir.path());
    // The first connection starts the gateway, and is answered by it.
    eventually("systemd listens", PATIENCE, async || TcpStream::connect(http).await.map(drop)).await;
    assert_eq!(get(&format!("http://{http}{PATH}")).await.body, TEXT);
    assert_eq!(get(&format!("http://{admin}/healthz")).await.status, 200);
    let of_socket = curl(&["--unix-socket", &socket.display().to_string(), "http://127.0.0.1/healthz"]);
    assert_eq!(of_socket.expect("is answered"), "ok\n 200");
    let printed = node.stdout();
    for line in [format!("http://{http}"), format!("http://unix:{}", socket.display()), format!("http://{admin}")] {
        assert!(printed.contains(&line), "{printed}");
    }
    assert!(node.terminate(PATIENCE).await.success());
    // The socket's file belongs to systemd.
    assert!(socket.exists());
    std::fs::remove_file(&socket).expect("the folder is ours");

    // The admin listener has a Unix socket without TLS and without admin.plaintext.
    let mut node = start("http:admin:admin", dir.path());
    eventually("systemd listens", PATIENCE, async || TcpStream::connect(http).await.map(drop)).await;
    let of_socket = curl(&["--unix-socket", &socket.display().to_string(), "http://localhost/api/v1/version"]);
    assert!(of_socket.is_ok_and(|answer| answer.ends_with(" 401")));
    node.says(&format!("admin     http://unix:{}", socket.display()), PATIENCE).await;
    assert!(node.terminate(PATIENCE).await.success());
    std::fs::remove_file(&socket).expect("the folder is ours");

    let mut node = start("http:http:operator", dir.path());
    eventually("systemd listens", PATIENCE, async || TcpStream::connect(http).await.map(drop)).await;
    assert!(!node.ended(PATIENCE).await.success());
    let error = node.stderr();
    assert!(error.contains("\"operator\"") && error.contains("FileDescriptorName="), "{error}");
}

/// The shipped units are valid, and their exposure is at most 2 of 10.
#[test]
fn the_units_of_systemd_are_valid_and_confined() {
    let dir = folder();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd");
    let units = ["causeway.service", "causeway.socket", "causeway-https.socket"].map(|name| {
        let text = std::fs::read_to_string(shipped.join(name)).expect("the unit is there");
        let copy = dir.path().join(name);
        std::fs::write(&copy, text.replace("/usr/local/bin/causeway", env!("CARGO_BIN_EXE_causeway")))
            .expect("the folder is ours");
        copy
    });
    let analyze = |arguments: &[&str], units: &[PathBuf]| {
        let output = Command::new("systemd-analyze").args(arguments).args(units).output().expect("is installed");
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert!(output.status.success(), "{arguments:?}: {text}");
    };
    analyze(&["verify", "--man=no"], &units);
    analyze(&["security", "--offline=true", "--threshold=20"], &units[..1]);
}
