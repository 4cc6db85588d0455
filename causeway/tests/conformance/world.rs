//! The servers of the tables: a Causeway with an empty store, and two Kubos with all content.
//!
//! One Kubo stores the content; the other is a second DHT node, which stores the records.

use crate::case::{Case, judge};
use crate::fixtures::{KEYS_BAD, files, folder, records};
use crate::support::causeway::{Causeway, Launch};
use crate::support::certificate;
use crate::support::eventually;
use crate::support::kubo::Kubo;
use crate::{http2, http3};
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
    /// The listener with TLS, and its certificate.
    encrypted: Option<(SocketAddr, PathBuf)>,
    _nodes: Option<(Peers, Causeway, TempDir, Undertaker)>,
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
        let encrypted = Some((parse(causeway.tls_address()), certificate));
        let estates = [peers.holder.estate(), peers.witness.estate(), (causeway.process.id(), dir.path())];
        let cleanup = Undertaker::engage(&estates);
        Self { gateway: address(&causeway), encrypted, _nodes: Some((peers, causeway, dir, cleanup)) }
    }
}

async fn shared() -> &'static Shared {
    static SHARED: OnceCell<Shared> = OnceCell::const_new();
    SHARED.get_or_init(Shared::start).await
}

/// The gateway that the tables are for.
pub async fn gateway() -> SocketAddr {
    shared().await.gateway
}

/// Sends a table to the shared gateway, over HTTP/1.1, HTTP/2 and HTTP/3.
pub async fn check(table: &str, cases: Vec<Case>) {
    let Shared { gateway, encrypted, .. } = shared().await;
    judge(*gateway, table, cases.clone()).await;
    if let Some((encrypted, certificate)) = encrypted {
        judge(http2::front(*encrypted, certificate).await, &format!("{table}, over HTTP/2"), cases.clone()).await;
        judge(http3::front(*encrypted, certificate).await, &format!("{table}, over HTTP/3"), cases).await;
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
