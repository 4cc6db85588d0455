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

/// A running nginx. Dropping it ends it.
pub struct Nginx {
    _process: Process,
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
        Self { _process: process }
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
