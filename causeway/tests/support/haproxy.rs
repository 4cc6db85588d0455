//! HAProxy of the distribution, with the test's configuration.

use super::eventually;
use super::process::{Process, system_program};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tokio::net::TcpStream;

const TIMEOUT: Duration = Duration::from_secs(30);

/// The shipped configuration (`deploy/haproxy/causeway-site.cfg`) for this machine: without TLS, for clients that connect to
/// `listen`, in front of these gateways.
pub fn shipped(listen: SocketAddr, gateways: &[&str]) -> String {
    let shipped = include_str!("../../../deploy/haproxy/causeway-site.cfg");
    let is_kept = |line: &&str| !line.trim().starts_with("server gateway-");
    let kept: String = shipped.lines().filter(is_kept).map(|line| format!("{line}\n")).collect();
    let (before, bind) = kept.split_once("bind :443 ").expect("it listens");
    let (_, after) = bind.split_once('\n').expect("a line");
    let servers: String = gateways.iter().map(|address| format!("    server {address} {address}\n")).collect();
    format!("{before}bind {listen}\n{after}{servers}")
}

/// A running HAProxy. Dropping it ends it.
pub struct HaProxy {
    /// The process.
    pub process: Process,
}

impl HaProxy {
    /// Starts it with proxies, for TCP unless they have defaults of their own, and waits until it listens.
    pub async fn start(dir: &Path, proxies: &str, listens: SocketAddr) -> Self {
        let configuration = format!(
            "defaults\n  mode tcp\n  timeout connect 10s\n  timeout client 60s\n  timeout server 60s\n\
             {proxies}"
        );
        let file = dir.join("haproxy.cfg");
        std::fs::write(&file, configuration).expect("the folder is writable");
        let mut command = Command::new(system_program("haproxy"));
        // In the foreground, in one process.
        command.arg("-db").arg("-f").arg(file);
        let process = Process::spawn("haproxy", &mut command, dir);
        eventually("HAProxy listens", TIMEOUT, async || TcpStream::connect(listens).await.map(drop)).await;
        Self { process }
    }
}
