//! Caddy of the distribution, with the test's configuration.

use super::eventually;
use super::process::{Process, system_program};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tokio::net::TcpStream;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A running Caddy. Dropping it ends it.
pub struct Caddy {
    _process: Process,
}

impl Caddy {
    /// Starts it with sites, and waits until it listens.
    pub async fn start(dir: &Path, sites: &str, listens: SocketAddr) -> Self {
        // No port but that of the sites, and no files outside of the folder.
        let global = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n";
        std::fs::write(dir.join("Caddyfile"), format!("{global}{sites}")).expect("the folder is writable");
        let mut command = Command::new(system_program("caddy"));
        command.args(["run", "--adapter", "caddyfile", "--config", "Caddyfile"]).current_dir(dir);
        command.env("HOME", dir).env("XDG_DATA_HOME", dir).env("XDG_CONFIG_HOME", dir);
        let process = Process::spawn("caddy", &mut command, dir);
        eventually("Caddy listens", TIMEOUT, async || TcpStream::connect(listens).await.map(drop)).await;
        Self { _process: process }
    }
}
