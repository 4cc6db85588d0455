//! HAProxy with the configuration that operators get (`deploy/haproxy/causeway-site.cfg`), without TLS.

use crate::child::Process;
use crate::directory::temp_dir;
use crate::servers::free_port;
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::net::TcpStream;

const SHIPPED: &str = include_str!("../../../deploy/haproxy/causeway-site.cfg");
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A running HAProxy.
pub struct HaProxy {
    /// Host and port.
    pub authority: String,
    _process: Process,
    _dir: TempDir,
}

impl HaProxy {
    /// In front of these gateways: host and port of each.
    pub async fn start(gateways: &[&str]) -> Result<Self> {
        let dir = temp_dir("haproxy")?;
        let authority = format!("127.0.0.1:{}", free_port()?);
        let file = dir.path().join("haproxy.cfg");
        std::fs::write(&file, configuration(&authority, gateways)?)?;
        let mut command = Command::new(binary());
        // In the foreground, in one process.
        command.arg("-db").arg("-f").arg(&file);
        let mut process = Process::spawn("haproxy", &mut command, dir.path())
            .context("HAProxy; `scripts/install-missing bench` installs it")?;
        let begun = Instant::now();
        while TcpStream::connect(&authority).await.is_err() {
            process.check_running()?;
            ensure!(begun.elapsed() < START_TIMEOUT, "HAProxy does not listen");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(Self { authority, _process: process, _dir: dir })
    }
}

/// Debian installs it where only root's `PATH` leads.
pub fn binary() -> &'static str {
    if Path::new("/usr/sbin/haproxy").exists() { "/usr/sbin/haproxy" } else { "haproxy" }
}

/// The shipped configuration with this listener and these servers.
fn configuration(listen: &str, gateways: &[&str]) -> Result<String> {
    let kept = SHIPPED.lines().filter(|line| !line.trim().starts_with("server gateway-"));
    let mut text = String::new();
    for line in kept {
        match line.trim().strip_prefix("bind :443 ") {
            Some(_) => writeln!(text, "    bind {listen}")?,
            None => writeln!(text, "{line}")?,
        }
    }
    ensure!(text.contains(&format!("bind {listen}\n")), "the shipped configuration has no listener");
    for (number, gateway) in gateways.iter().enumerate() {
        writeln!(text, "    server gateway-{} {gateway}", number + 1)?;
    }
    Ok(text)
}

#[test]
fn the_shipped_configuration_has_our_listener_and_our_gateways() {
    let text = configuration("127.0.0.1:80", &["127.0.0.1:1", "127.0.0.1:2"]).expect("it has a listener");
    assert!(text.contains("    bind 127.0.0.1:80\n") && !text.contains(":443") && !text.contains("10.0.0."), "{text}");
    assert!(text.ends_with("    server gateway-1 127.0.0.1:1\n    server gateway-2 127.0.0.1:2\n"), "{text}");
    assert!(text.contains("retry-on conn-failure empty-response"), "{text}");
}
