//! nginx, as distributions have it, with a configuration of the test's own.

use super::eventually;
use super::process::Process;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(30);

/// A running nginx. Dropping it ends it.
pub struct Nginx {
    _process: Process,
}

impl Nginx {
    /// Starts it with what belongs into the section "http", and waits until it listens.
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
        let mut command = Command::new(binary());
        command.arg("-p").arg(dir).args(["-c", "nginx.conf", "-e", "error.log"]);
        let process = Process::spawn("nginx", &mut command, dir);
        eventually("nginx listens", PATIENCE, async || TcpStream::connect(listens).await.map(drop)).await;
        Self { _process: process }
    }
}

/// A free port for what takes no port 0. It is none of those that the system gives to whoever asks for any: between this look and
/// the start of a server, which may take seconds, many are asked for.
pub fn free_address() -> SocketAddr {
    let asked = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let first_of_system = asked.split_whitespace().next().and_then(|port| port.parse().ok()).unwrap_or(32_768);
    let ports = 10_240..first_of_system.max(10_241);
    let random = || RandomState::new().hash_one(()) % (u64::from(ports.end) - u64::from(ports.start));
    let candidates = (0..1_000).map(|_| SocketAddr::from((Ipv4Addr::LOCALHOST, ports.start + random() as u16)));
    let is_free = |address: &SocketAddr| TcpListener::bind(address).is_ok();
    candidates.into_iter().find(is_free).expect("loopback has a free port")
}

/// Distributions put it where only administrators look.
fn binary() -> &'static str {
    if Path::new("/usr/sbin/nginx").exists() { "/usr/sbin/nginx" } else { "nginx" }
}
