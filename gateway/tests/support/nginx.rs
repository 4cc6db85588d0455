//! nginx, as distributions have it, with a configuration of the test's own.

use super::eventually;
use super::process::Process;
use std::net::{SocketAddr, TcpListener};
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

/// nginx takes no port 0. This one was free a moment ago.
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    listener.local_addr().expect("it is bound")
}

/// Distributions put it where only administrators look.
fn binary() -> &'static str {
    if Path::new("/usr/sbin/nginx").exists() { "/usr/sbin/nginx" } else { "nginx" }
}
