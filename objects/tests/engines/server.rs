//! A versitygw of a test.

use super::support::{Killed, TIMEOUT};
use objects::{Credentials, Environment, Objects, StoreOptions};
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The bucket of tests.
pub const BUCKET: &str = "site-objects";
/// The access key id.
pub const KEY_ID: &str = "access-key";
/// The secret key.
pub const SECRET: &str = "secret-key";

/// A server with a bucket, which ends with this.
pub struct Server {
    // Before its folder.
    child: Option<Killed>,
    dir: TempDir,
    pub port: u16,
    args: Vec<String>,
}

impl Server {
    /// Starts one that speaks plain HTTP.
    pub async fn start() -> Self {
        Self::with(|_| Vec::new()).await
    }

    /// Starts one with further arguments, which may name files in its folder.
    pub async fn with(args: impl FnOnce(&Path) -> Vec<String>) -> Self {
        let dir = TempDir::new().expect("a folder");
        fs::create_dir_all(dir.path().join("data").join(BUCKET)).expect("the folder is ours");
        let args = args(dir.path());
        let mut server = Self { child: None, dir, port: 0, args };
        server.restart().await;
        server
    }

    /// Starts it, at the port that it had.
    pub async fn restart(&mut self) {
        self.stop();
        let deadline = Instant::now() + TIMEOUT;
        let is_known = self.port != 0;
        loop {
            if !is_known {
                self.port = free_port();
            }
            let log = File::create(self.dir.path().join("log")).expect("the folder is ours");
            let mut command = Command::new(program());
            command.args(["--port", &format!("127.0.0.1:{}", self.port), "--quiet"]).args(&self.args);
            command.env("ROOT_ACCESS_KEY_ID", KEY_ID).env("ROOT_SECRET_ACCESS_KEY", SECRET);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            command.args(["--health", &self.health()]).arg("posix").arg(self.dir.path().join("data"));
            let mut child = Killed(command.spawn().expect("versitygw starts"));
            while Instant::now() < deadline {
                if self.is_ready().await {
                    self.child = Some(child);
                    return;
                }
                // The port was taken.
                if child.0.try_wait().is_ok_and(|status| status.is_some()) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "it does not start:\n{log}");
        }
    }

    /// A path that only this server knows.
    fn health(&self) -> String {
        format!("/{}", self.dir.path().file_name().unwrap_or_default().display())
    }

    /// Whether it answers, and not another one that was given the same port.
    async fn is_ready(&self) -> bool {
        let Ok(mut connection) = TcpStream::connect(("127.0.0.1", self.port)).await else { return false };
        if self.args.iter().any(|arg| arg == "--cert") {
            return true;
        }
        let request = format!("GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", self.health());
        let mut answer = Vec::new();
        connection.write_all(request.as_bytes()).await.is_ok()
            && connection.read_to_end(&mut answer).await.is_ok()
            && answer.starts_with(b"HTTP/1.1 200 ")
    }

    /// Ends it.
    pub fn stop(&mut self) {
        self.child = None;
    }

    /// The folder of its bucket.
    pub fn bucket(&self) -> PathBuf {
        self.dir.path().join("data").join(BUCKET)
    }

    /// Options for it at a port: its own, or that of a relay.
    pub fn options_at(port: u16) -> StoreOptions {
        StoreOptions {
            endpoint: format!("http://127.0.0.1:{port}"),
            credentials: Credentials::Environment,
            environment: Environment::of([("AWS_ACCESS_KEY_ID", KEY_ID), ("AWS_SECRET_ACCESS_KEY", SECRET)]),
            backoff: Duration::from_millis(10),
            bytes_max: 1 << 20,
            ..StoreOptions::default()
        }
    }

    /// Options for it.
    pub fn options(&self) -> StoreOptions {
        Self::options_at(self.port)
    }

    /// Its bucket.
    pub fn objects(&self) -> Arc<dyn Objects> {
        open(&self.options())
    }
}

/// Opens the bucket of tests.
pub fn open(options: &StoreOptions) -> Arc<dyn Objects> {
    objects::open(&format!("s3://{BUCKET}"), options).expect("the options are valid")
}

/// The path of the real server.
fn program() -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/versitygw");
    let found = Command::new(script).output().expect("scripts/versitygw runs");
    let error = String::from_utf8_lossy(&found.stderr);
    assert!(found.status.success(), "versitygw is missing. Run `make versitygw`: {error}");
    String::from_utf8_lossy(&found.stdout).trim().to_owned()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}
