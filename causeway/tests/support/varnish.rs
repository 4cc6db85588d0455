//! Varnish of the distribution, with the test's configuration.

use super::eventually;
use super::process::{Process, system_program};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tokio::net::TcpStream;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A running Varnish. Dropping it ends it: its worker ends when its manager is gone.
pub struct Varnish {
    _process: Process,
}

impl Varnish {
    /// Starts it with a configuration in VCL, and waits until it listens.
    pub async fn start(dir: &Path, vcl: &str, listens: SocketAddr) -> Self {
        let file = dir.join("causeway.vcl");
        std::fs::write(&file, vcl).expect("the folder is writable");
        let mut command = Command::new(system_program("varnishd"));
        // In the foreground, as the user who runs the tests, with little storage and no management port.
        command.args([
            "-F",
            "-j",
            "none",
            "-T",
            "none",
            "-s",
            "malloc,16m",
            "-s",
            "Transient=malloc,16m",
            "-p",
            "thread_pools=1",
        ]);
        command.args(["-p", "thread_pool_min=10", "-p", "vsl_space=1m"]);
        command.arg("-f").arg(file).arg("-n").arg(dir.join("varnish")).arg("-a").arg(listens.to_string());
        let process = Process::spawn("varnish", &mut command, dir);
        eventually("Varnish listens", TIMEOUT, async || TcpStream::connect(listens).await.map(drop)).await;
        Self { _process: process }
    }
}
