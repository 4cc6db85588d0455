//! nginx of the distribution, with the test's configuration.

use super::eventually;
use super::process::{Process, system_program};
use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;
use tokio::net::TcpStream;

const TIMEOUT: Duration = Duration::from_secs(30);

/// The file of the shipped configuration.
const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/nginx/causeway.conf");
/// Where clients connect to it, and the files of its certificate.
const SHIPPED_LISTEN: &str = "listen 443 ssl http2;";
const SHIPPED_FILES: &str = "/etc/ssl/causeway/";

/// The shipped configuration (`deploy/nginx/causeway.conf`) for this machine: its server with the content, in front of
/// the gateway at `upstream`, with refresh requests to `refresh`, and a cache in `dir`. Clients connect to `listen`:
/// over TLS with a certificate of `support::certificate` in `dir`, or without, as if TLS had been terminated.
pub fn shipped(upstream: &str, (listen, tls): (SocketAddr, bool), refresh: SocketAddr, dir: &Path) -> String {
    let shipped = std::fs::read_to_string(SHIPPED).expect("the configuration is there");
    let servers: Vec<&str> = shipped.split("\nserver {\n").collect();
    // The second server has the content; the first redirects to it.
    assert!(servers.len() == 3 && servers[2].contains(SHIPPED_LISTEN), "the configuration has changed");
    let whole = format!("{}\nserver {{\n{}", servers[0], servers[2]);
    let is_kept = |line: &&str| !line.contains("listen [::]") && (tls || !line.contains("ssl_"));
    let lines: String = whole.lines().filter(is_kept).map(|line| format!("{line}\n")).collect();
    let (listen, scheme) = match tls {
        true => (format!("listen {listen} ssl http2;"), "default  $scheme;"),
        false => (format!("listen {listen};"), "default  https;"),
    };
    lines
        .replace("8079", &refresh.port().to_string())
        .replace(SHIPPED_LISTEN, &listen)
        .replace("default  $scheme;", scheme)
        .replace(&format!("{SHIPPED_FILES}fullchain.pem"), &dir.join("certificate.pem").display().to_string())
        .replace(SHIPPED_FILES, &format!("{}/", dir.display()))
        .replace("127.0.0.1:8080", upstream)
        .replace("/var/cache/nginx/causeway", &dir.join("cache").display().to_string())
}

/// A gateway of a site behind nginx: the addresses of its public and of its admin listener.
pub type SiteGateway<'a> = (&'a str, &'a str);

/// The shipped configuration for a site (`deploy/nginx/causeway-site.conf`) for this machine: without TLS, for clients
/// that connect to `public` and to `admin`, in front of two gateways.
pub fn shipped_site(public: SocketAddr, admin: SocketAddr, gateways: [SiteGateway<'_>; 2]) -> String {
    let shipped = include_str!("../../../deploy/nginx/causeway-site.conf");
    let listens = [("listen 443 ssl http2;", public), ("listen 8443 ssl http2;", admin)];
    assert!(listens.iter().all(|(listen, _)| shipped.contains(listen)), "the configuration has changed");
    let is_kept = |line: &&str| !["listen [::]", "ssl_", "server 10.0.0.3:"].iter().any(|part| line.contains(part));
    let kept: String = shipped.lines().filter(is_kept).map(|line| format!("{line}\n")).collect();
    let [(one, one_admin), (other, other_admin)] = gateways;
    let addresses = [
        ("10.0.0.1:8080", one),
        ("10.0.0.1:8081", one_admin),
        ("10.0.0.2:8080", other),
        ("10.0.0.2:8081", other_admin),
    ];
    let kept = addresses.iter().fold(kept, |kept, (shipped, address)| kept.replace(shipped, address));
    listens.iter().fold(kept, |kept, (shipped, address)| kept.replace(shipped, &format!("listen {address};")))
}

/// A running nginx. Dropping it ends it.
pub struct Nginx {
    process: Process,
}

impl Nginx {
    /// Starts it with the content of the block "http", and waits until it listens.
    pub async fn start(dir: &Path, http: &str, listens: SocketAddr) -> Self {
        // One process, so that none outlives the test.
        let configuration = format!(
            "daemon off;\nmaster_process off;\npid nginx.pid;\nevents {{}}\n\
             http {{\n\
               access_log off;\n\
               client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;\n\
               scgi_temp_path scgi;\n\
               {http}\n\
             }}\n"
        );
        std::fs::write(dir.join("nginx.conf"), configuration).expect("the folder is writable");
        let mut command = Command::new(system_program("nginx"));
        command.arg("-p").arg(dir).args(["-c", "nginx.conf", "-e", "error.log"]);
        let process = Process::spawn("nginx", &mut command, dir);
        eventually("nginx listens", TIMEOUT, async || TcpStream::connect(listens).await.map(drop)).await;
        Self { process }
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

/// Ports that this process has already used.
static USED_PORTS: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A free port for a server that does not support port 0. It is used once, and is outside of the ephemeral range:
/// before the server has started, other sockets may bind many ephemeral ports.
pub fn free_address() -> SocketAddr {
    let asked = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut of_system = asked.split_whitespace().filter_map(|port| port.parse::<u16>().ok());
    let (first, last) = (of_system.next().unwrap_or(32_768), of_system.next().unwrap_or(60_999));
    let ports = if first > 20_000 { 10_240..first } else { last.min(60_999)..u16::MAX };
    let random = || RandomState::new().hash_one(()) % u64::from(ports.end - ports.start);
    let candidates = (0..1_000).map(|_| ports.start + u16::try_from(random()).unwrap_or_default());
    let mut used = USED_PORTS.lock().expect("no test panics here");
    let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let is_free = |port: &u16| used.insert(*port) && TcpListener::bind(address(*port)).is_ok();
    candidates.into_iter().find(is_free).map(address).expect("loopback has a free port")
}
