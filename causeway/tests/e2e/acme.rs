//! Certificates by ACME from a real authority (Pebble): all three challenges, renewal, certificates on demand, also of
//! clients over QUIC, and what goes on without the authority.

use crate::support::causeway::{Causeway, Launch};
use crate::support::certificate;
use crate::support::eventually;
use crate::support::nginx::free_address;
use crate::support::pebble::{DnsServer, Pebble};
use bytes::Buf as _;
use h3::error::{Code, StreamError};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use quinn::crypto::rustls::QuicClientConfig;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const NINETY_DAYS: Duration = Duration::from_secs(90 * 24 * 3600);
/// An IPNS key that an offline node has no record of.
const KEY: &str = "k51qzi5uqu5dk3v4rmjber23h16xnr23bsggmqqil9z2gduiis5se8dht36dam";
const ISSUED: &str = "causeway_acme_orders_total{result=\"issued\",on_demand=\"false\"}";
const ISSUED_ON_DEMAND: &str = "causeway_acme_orders_total{result=\"issued\",on_demand=\"true\"}";
const UNREACHABLE: &str = "causeway_acme_orders_total{result=\"unreachable\",on_demand=\"false\"}";
const OVERDUE: &str = "causeway_acme_certificates_overdue";
const LAST_FAILURE: &str = "causeway_acme_last_failure_timestamp_seconds";

/// An authority, and the addresses at which it validates the names of a gateway.
struct World {
    dir: TempDir,
    dns: DnsServer,
    pebble: Pebble,
    http: SocketAddr,
    tls: SocketAddr,
}

impl World {
    async fn start(lifetime: Duration) -> Self {
        let dir = TempDir::new().expect("the temporary folder is writable");
        let (http, tls) = (free_address(), free_address());
        let dns = DnsServer::start(dir.path()).await;
        let pebble = Pebble::start(dir.path(), &dns, http, tls, lifetime).await;
        Self { dir, dns, pebble, http, tls }
    }

    /// A gateway that uses the authority.
    fn launch(&self) -> Launch {
        Launch::new(self.dir.path())
            .http_listen(self.http)
            .set("CAUSEWAY_P2P_OFFLINE", "true")
            .set("CAUSEWAY_HTTP_TLS_LISTEN", self.tls)
            .set("CAUSEWAY_HTTP_ACME_DIRECTORY", self.pebble.directory())
            .set("CAUSEWAY_HTTP_ACME_CA", self.pebble.ca().display())
            .set("CAUSEWAY_HTTP_ACME_TERMS_AGREED", "true")
            .set("CAUSEWAY_HTTP_ACME_CONTACT", "operator@example.org")
    }

    /// Asks curl, which trusts only the authority; the body, or the error.
    fn curl(&self, host: &str, path: &str) -> Result<String, String> {
        let mut command = Command::new("curl");
        command
            .args(["-sS", "--fail-with-body", "--noproxy", "*", "--max-time", "30", "--cacert"])
            .arg(self.pebble.root());
        command.args(["--connect-to", &format!("::{}", self.tls)]);
        let output = command.arg(format!("https://{host}{path}")).output().expect("curl is installed");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    async fn until_answered(&self, host: &str, path: &str) -> String {
        eventually(&format!("https://{host}{path} is answered"), PATIENCE, async || self.curl(host, path)).await
    }
}

/// GETs the root of a host over HTTP/3, of a client that trusts only the authority; the body, or why QUIC has failed.
async fn get_over_http3(world: &World, host: &str) -> Result<String, quinn::ConnectionError> {
    let tls = QuicClientConfig::try_from(certificate::trusting(&world.pebble.root(), "h3")).expect("TLS 1.3");
    let endpoint = quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let config = quinn::ClientConfig::new(Arc::new(tls));
    let connection = endpoint.connect_with(config, world.tls, host).expect("can connect").await?;
    let (mut connection, mut requests) = h3::client::new(h3_quinn::Connection::new(connection)).await.expect("begins");
    let driving = tokio::spawn(async move { connection.wait_idle().await });
    let request = http::Request::get(format!("https://{host}/")).body(()).expect("a request");
    let mut stream = requests.send_request(request).await.expect("sends");
    match stream.finish().await {
        // The answer is complete, and the end of the request is not awaited (RFC 9114, section 4.1).
        Err(StreamError::RemoteTerminate { code: Code::H3_NO_ERROR, .. }) | Ok(()) => (),
        Err(error) => panic!("{error}"),
    }
    assert_eq!(stream.recv_response().await.expect("is answered").status(), 200);
    let mut body = Vec::new();
    while let Some(mut data) = stream.recv_data().await.expect("is whole") {
        body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
    }
    driving.abort();
    Ok(String::from_utf8_lossy(&body).into_owned())
}

async fn sample(node: &Causeway, name: &str) -> u64 {
    node.metrics().await.sample(name)
}

fn sighup(node: &Causeway) {
    kill(Pid::from_raw(i32::try_from(node.process.id()).expect("fits")), Signal::SIGHUP).expect("is running");
}

/// The serial number of the certificate that is used for a name, also of one that has expired.
fn serial(world: &World, name: &str) -> String {
    let script = format!(
        "openssl s_client -connect {} -servername {name} </dev/null 2>/dev/null | openssl x509 -noout -serial",
        world.tls
    );
    let output = Command::new("sh").args(["-c", &script]).output().expect("openssl is installed");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(path).expect("is there").permissions().mode() & 0o777
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_and_its_wildcards_get_certificates_that_survive_restarts_without_the_authority() {
    let mut world = World::start(NINETY_DAYS).await;
    let log = world.dir.path().join("hook.log");
    let hook = world.dns.hook(world.dir.path(), &log);
    let launch = world
        .launch()
        .set("CAUSEWAY_HTTP_HOSTS", "gateway.test,localhost")
        .set("CAUSEWAY_HTTP_ACME_DNS_HOOK", hook.display());
    let node = launch.start().await;
    // Plain HTTP works meanwhile.
    node.expect("/healthz", b"ok\n").await;
    // The host by tls-alpn-01, its wildcards by dns-01.
    assert_eq!(world.until_answered("gateway.test", "/healthz").await, "ok\n");
    let origin = "bafkqaddimvwgy3zao5xxe3debi.ipfs.gateway.test";
    assert_eq!(world.until_answered(origin, "/").await, "hello world\n");
    node.metrics_when(|metrics| metrics.sample(ISSUED) == 3).await;
    assert!(!serial(&world, &format!("{KEY}.ipns.gateway.test")).is_empty());
    assert_eq!((sample(&node, ISSUED).await, sample(&node, OVERDUE).await), (3, 0));
    let mut runs: Vec<String> = fs::read_to_string(&log).expect("the hook ran").lines().map(str::to_owned).collect();
    runs.sort();
    // Without the gateway's own variables.
    let record = |action: &str, space: &str| format!("{action} _acme-challenge.{space}.gateway.test 0");
    let expected = ["cleanup", "present"].map(|action| ["ipfs", "ipns"].map(|space| record(action, space)));
    assert_eq!(runs, expected.concat());

    // A name without a certificate ends in an alert, and tokens that are not pending in 404.
    let error = world.curl("other.test", "/healthz").expect_err("has no certificate");
    assert!(error.contains("unrecognized name"), "{error}");
    let answer = node.get("/.well-known/acme-challenge/token").await;
    assert_eq!(answer.status, 404);
    let folder =
        fs::read_dir(world.dir.path().join("data/acme")).expect("reads").next().expect("a folder").expect("reads");
    let files = ["account.json", "certificates/gateway.test.pem", "certificates/_wildcard.ipfs.gateway.test.pem"];
    assert_eq!(files.map(|file| mode(&folder.path().join(file))), [0o600; 3]);
    let first = serial(&world, "gateway.test");
    node.stop().await;

    // A restart needs no authority.
    world.pebble.kill();
    let node = launch.start().await;
    assert_eq!(world.curl(origin, "/").expect("is answered at once"), "hello world\n");
    assert_eq!(serial(&world, "gateway.test"), first);
    let metrics = node.metrics().await;
    assert_eq!([ISSUED, UNREACHABLE, OVERDUE].map(|name| metrics.sample(name)), [0; 3]);
    // There is no certificate from files to watch.
    assert!(!metrics.has("causeway_tls_certificate_expiry_timestamp_seconds{listener=\"public\"}"));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_renewed_and_stay_in_use_while_the_authority_is_down() {
    let mut world = World::start(Duration::from_secs(12)).await;
    let launch =
        world.launch().set("CAUSEWAY_HTTP_ACME_NAMES", "site.test").set("CAUSEWAY_HTTP_ACME_CHALLENGES", "http-01");
    let node = launch.start().await;
    world.until_answered("site.test", "/healthz").await;
    let first = serial(&world, "site.test");
    node.metrics_when(|metrics| metrics.sample(ISSUED) >= 2).await;
    eventually("another certificate is used", PATIENCE, async || {
        let used = serial(&world, "site.test");
        if !used.is_empty() && used != first { Ok(()) } else { Err(used) }
    })
    .await;

    world.pebble.kill();
    node.metrics_when(|metrics| metrics.sample(UNREACHABLE) > 0).await;
    assert!(sample(&node, LAST_FAILURE).await > 0);
    node.metrics_when(|metrics| metrics.sample(OVERDUE) > 0).await;
    assert!(!serial(&world, "site.test").is_empty(), "the last certificate is still used");
    node.assert_healthy().await;

    // The authority has forgotten the account: another one is created.
    world.pebble.restart().await;
    let issued = sample(&node, ISSUED).await;
    eventually("a certificate is issued again", PATIENCE, async || {
        sighup(&node);
        tokio::time::sleep(Duration::from_millis(500)).await;
        if sample(&node, ISSUED).await > issued { Ok(()) } else { Err("not yet") }
    })
    .await;
    world.until_answered("site.test", "/healthz").await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_domain_with_a_dnslink_gets_a_certificate_when_a_client_first_asks_for_it() {
    let mut world = World::start(NINETY_DAYS).await;
    let map = world.dir.path().join("map");
    let sites =
        ["one.test", "www.two.test", "three.test"].map(|site| format!("{site}:/ipfs/bafkqaddimvwgy3zao5xxe3debi\n"));
    fs::write(&map, format!("{}none.test:/ipns/{KEY}\n", sites.concat())).expect("the folder is ours");
    let launch = world
        .launch()
        .set("CAUSEWAY_HTTP_HOSTS", "gateway.test,localhost")
        .set("CAUSEWAY_HTTP_ACME_NAMES", "gateway.test")
        .set("CAUSEWAY_HTTP_ACME_ON_DEMAND", "true")
        .set("CAUSEWAY_HTTP_ACME_ON_DEMAND_HOURLY_MAX", "2")
        .set("CAUSEWAY_NAMES_DNSLINK_MAP", map.display());
    let node = launch.start().await;
    let demands = |result: &str| format!("causeway_acme_on_demand_total{{result=\"{result}\"}}");

    assert_eq!(world.until_answered("one.test", "/").await, "hello world\n");
    // Neither a domain whose DNSLink does not resolve, nor the gateway's own names, nor names that cannot be public.
    for name in ["none.test", "none.test", "x.gateway.test", "printer.local"] {
        let error = world.curl(name, "/").expect_err("has no certificate");
        assert!(error.contains("unrecognized name"), "{name}: {error}");
    }
    world.until_answered("www.two.test", "/").await;
    // The third in an hour.
    assert!(world.curl("three.test", "/").is_err());
    let metrics = node.metrics().await;
    let counts = ["ordered", "no_dnslink", "cached", "invalid_name", "rate_limited"]
        .map(|result| metrics.sample(&demands(result)));
    assert_eq!(counts, [2, 1, 1, 2, 1]);
    assert_eq!(metrics.sample("causeway_acme_on_demand_certificates"), 2);
    node.metrics_when(|metrics| metrics.sample(ISSUED) + metrics.sample(ISSUED_ON_DEMAND) == 3).await;
    node.stop().await;

    world.pebble.kill();
    let node = launch.start().await;
    assert_eq!(world.curl("one.test", "/").expect("is answered at once"), "hello world\n");
    // An order that fails does not keep other handshakes waiting.
    assert!(world.curl("three.test", "/").is_err());
    assert_eq!(world.curl("www.two.test", "/").expect("is answered at once"), "hello world\n");
    node.stop().await;
}

/// The handshake does not wait: it is refused at once, and the certificate is there later. The address of the client is
/// not validated, so that all such clients together have the share of one.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_over_quic_has_a_certificate_ordered() {
    let world = World::start(NINETY_DAYS).await;
    let map = world.dir.path().join("map");
    let sites = ["one.test", "two.test"].map(|site| format!("{site}:/ipfs/bafkqaddimvwgy3zao5xxe3debi\n"));
    fs::write(&map, format!("{}none.test:/ipns/{KEY}\n", sites.concat())).expect("the folder is ours");
    let launch = world
        .launch()
        .set("CAUSEWAY_HTTP_HTTP3", "true")
        .set("CAUSEWAY_HTTP_HOSTS", "gateway.test,localhost")
        .set("CAUSEWAY_HTTP_ACME_NAMES", "gateway.test")
        .set("CAUSEWAY_HTTP_ACME_ON_DEMAND", "true")
        .set("CAUSEWAY_HTTP_ACME_ON_DEMAND_HOURLY_MAX", "1")
        .set("CAUSEWAY_NAMES_DNSLINK_MAP", map.display());
    let node = launch.start().await;
    let demands = |result: &str| format!("causeway_acme_on_demand_total{{result=\"{result}\"}}");

    for (name, result) in [
        ("none.test", "no_dnslink"),
        ("x.gateway.test", "invalid_name"),
        ("one.test", "ordered"),
        ("two.test", "rate_limited"),
        ("none.test", "cached"),
    ] {
        let refused = get_over_http3(&world, name).await.expect_err("there is no certificate");
        assert!(matches!(refused, quinn::ConnectionError::ConnectionClosed(_)), "{name}: {refused}");
        node.metrics_when(|metrics| metrics.sample(&demands(result)) == 1).await;
    }
    node.metrics_when(|metrics| metrics.sample(ISSUED_ON_DEMAND) == 1).await;
    assert_eq!(get_over_http3(&world, "one.test").await.expect("has a certificate"), "hello world\n");
    assert_eq!(world.curl("one.test", "/").expect("over TCP as well"), "hello world\n");
    // Handshakes that found a certificate have asked for none.
    let metrics = node.metrics().await;
    let counts = ["ordered", "no_dnslink", "cached", "invalid_name", "rate_limited"]
        .map(|result| metrics.sample(&demands(result)));
    assert_eq!(counts, [1; 5]);
    node.stop().await;
}
