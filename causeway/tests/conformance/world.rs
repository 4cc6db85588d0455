//! The servers of the tables: a Causeway with an empty store, an nginx in front of it, and two Kubos with all content.
//!
//! One Kubo stores the content; the other is a second DHT node, which stores the records.

use crate::case::{Case, judge};
use crate::fixtures::{KEYS_BAD, files, folder, records};
use crate::support::causeway::{Causeway, Launch};
use crate::support::certificate;
use crate::support::eventually;
use crate::support::kubo::Kubo;
use crate::support::nginx::{Nginx, free_address, shipped};
use crate::{http2, http3, https};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::OnceCell;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Long compared with the latency of a local peer, short for requests of missing content.
const STALL_SECONDS: u32 = 6;

/// The two Kubos.
pub struct Peers {
    pub holder: Kubo,
    pub witness: Kubo,
}

impl Peers {
    /// Starts both and publishes all fixtures.
    pub async fn start() -> Self {
        let (holder, witness) = tokio::join!(Kubo::start(), Kubo::start());
        holder.connect(witness.tcp()).await;
        for car in files(".car") {
            holder.import(&car);
        }
        for (name, record) in records() {
            let put = async || holder.try_put_record(&name, &record);
            match KEYS_BAD.contains(&name.as_str()) {
                // Whether Kubo accepts it or not: Causeway must reject it.
                true => drop(put().await),
                false => eventually(&format!("Kubo publishes {name}"), TIMEOUT, put).await,
            }
        }
        Self { holder, witness }
    }
}

/// The launch of Causeway. `dir` must outlive it.
pub fn launch(dir: &Path, peers: &Peers) -> Launch {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/examples/conformance.toml");
    Launch::new(dir)
        .flag("--config", config.display())
        .flag("--dnslink-map", folder().join("dnslinks.IPFS_NS_MAP").display())
        .set("CAUSEWAY_HTTP_STALL_TIMEOUT_SECONDS", STALL_SECONDS)
        .peering(peers.holder.tcp())
}

/// Causeway's listeners.
pub fn address(causeway: &Causeway) -> SocketAddr {
    parse(&causeway.url(""))
}

fn parse(url: &str) -> SocketAddr {
    let authority = url.trim_start_matches("http://").trim_end_matches('/');
    authority.parse().unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// The servers that all tests of this binary share, since they start slowly.
struct Shared {
    gateway: SocketAddr,
    encrypted: Option<Encrypted>,
    _nodes: Option<(Peers, Causeway, Nginx, TempDir, Undertaker)>,
}

/// What is reached over TLS.
struct Encrypted {
    gateway: SocketAddr,
    nginx: SocketAddr,
    /// The certificate of both.
    certificate: PathBuf,
}

impl Shared {
    async fn start() -> Self {
        if let Ok(url) = std::env::var("CONFORMANCE_URL") {
            return Self { gateway: parse(&url), encrypted: None, _nodes: None };
        }
        let dir = TempDir::with_prefix("causeway-conformance-").expect("the temporary folder is writable");
        let peers = Peers::start().await;
        let (certificate, key) = certificate::write(dir.path());
        let launch = launch(dir.path(), &peers)
            .set("CAUSEWAY_HTTP_TLS_LISTEN", "127.0.0.1:0")
            .set("CAUSEWAY_HTTP_HTTP3", "true")
            .set("CAUSEWAY_HTTP_TLS_CERTIFICATE", certificate.display())
            .set("CAUSEWAY_HTTP_TLS_KEY", key.display());
        let causeway = launch.start().await;
        let (gateway, listen) = (address(&causeway), free_address());
        let nginx = Nginx::start(dir.path(), &nginx_in_front_of(gateway, listen, dir.path()), listen).await;
        let encrypted = Some(Encrypted { gateway: parse(causeway.tls_address()), nginx: listen, certificate });
        let of_gateway = [causeway.process.id(), nginx.id()].map(|process| (process, dir.path()));
        let cleanup = Undertaker::engage(&[&[peers.holder.estate(), peers.witness.estate()][..], &of_gateway].concat());
        Self { gateway, encrypted, _nodes: Some((peers, causeway, nginx, dir, cleanup)) }
    }
}

/// The shipped configuration of nginx. It caches nothing here, since every answer has to come from the gateway; and the
/// scheme is the one that a case names, since the tables expect redirects to it.
fn nginx_in_front_of(gateway: SocketAddr, listen: SocketAddr, dir: &Path) -> String {
    let shipped = shipped(&gateway.to_string(), (listen, true), free_address(), dir);
    let [uncached, by_case] =
        [("proxy_cache causeway;", "proxy_cache off;"), ("default  $scheme;", "default  $http_x_forwarded_proto;")];
    assert!([uncached, by_case].iter().all(|(line, _)| shipped.contains(line)), "the configuration has changed");
    shipped.replace(uncached.0, uncached.1).replace(by_case.0, by_case.1)
}

async fn shared() -> &'static Shared {
    static SHARED: OnceCell<Shared> = OnceCell::const_new();
    SHARED.get_or_init(Shared::start).await
}

/// The gateway that the tables are for.
pub async fn gateway() -> SocketAddr {
    shared().await.gateway
}

/// The nginx in front of the shared gateway, at its front; `None` with `CONFORMANCE_URL`.
pub async fn through_nginx() -> Option<SocketAddr> {
    let Encrypted { nginx, certificate, .. } = shared().await.encrypted.as_ref()?;
    Some(http2::front(*nginx, certificate).await)
}

/// The shared gateway over TLS, and its certificate; `None` with `CONFORMANCE_URL`.
pub async fn encrypted() -> Option<(SocketAddr, &'static Path)> {
    let Encrypted { gateway, certificate, .. } = shared().await.encrypted.as_ref()?;
    Some((*gateway, certificate))
}

/// Sends a table to the shared gateway, over each version of HTTP, and through nginx.
pub async fn check(table: &str, cases: Vec<Case>) {
    let Shared { gateway, encrypted, .. } = shared().await;
    judge(*gateway, table, cases.clone()).await;
    if let Some(Encrypted { gateway, certificate, .. }) = encrypted {
        let fronts = [
            ("TLS and HTTP/1.1", https::front(*gateway, certificate).await),
            ("HTTP/2", http2::front(*gateway, certificate).await),
            ("HTTP/3", http3::front(*gateway, certificate).await),
        ];
        for (version, front) in fronts {
            judge(front, &format!("{table}, over {version}"), cases.clone()).await;
        }
    }
    if let Some(front) = through_nginx().await {
        // It says itself which host was asked for, so that clients cannot choose another one: `nginx.rs` checks that.
        let cases = cases.into_iter().filter(|case| !case.has_header("X-Forwarded-Host")).collect();
        judge(front, &format!("{table}, over HTTP/2 through nginx"), cases).await;
    }
}

/// Ends processes and removes their folders after the tests, also after a failure: statics are never dropped, but
/// the pipe to the cleanup process closes with this process.
struct Undertaker {
    _child: Child,
    _pipe: ChildStdin,
}

impl Undertaker {
    const WORK: &str = "trap '' INT TERM HUP; pids=$1; shift; cat; kill -KILL $pids; sleep 1; rm -rf -- \"$@\"";

    fn engage(estates: &[(u32, &Path)]) -> Self {
        let pids: Vec<String> = estates.iter().map(|(pid, _)| pid.to_string()).collect();
        let mut shell = Command::new("sh");
        shell.args(["-c", Self::WORK, "cleanup", &pids.join(" ")]).args(estates.iter().map(|(_, folder)| folder));
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("sh");
        let pipe = child.stdin.take().expect("it was asked for");
        Self { _child: child, _pipe: pipe }
    }
}
