//! The binary under test, run as by an operator.

use super::metrics::Metrics;
use super::process::Process;
use super::{Answer, client, get};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(60);
/// The token of the admin listener.
pub const TOKEN: &str = "end-to-end";

/// How to start Causeway: on free loopback ports, and without peers by default.
#[derive(Debug, Clone)]
pub struct Launch {
    dir: PathBuf,
    listen: Vec<String>,
    http_listen: String,
    admin_listen: String,
    peering: Vec<String>,
    bootstrap: Vec<String>,
    settings: Vec<(&'static str, String)>,
    flags: Vec<String>,
    data_bytes: Option<u64>,
    socket: Option<(Arc<TcpListener>, &'static str)>,
}

impl Launch {
    /// `dir` is for the node's data and output, and must outlive the node.
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            listen: ["/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"].map(str::to_owned).into(),
            http_listen: "127.0.0.1:0".to_owned(),
            admin_listen: "127.0.0.1:0".to_owned(),
            peering: Vec::new(),
            bootstrap: Vec::new(),
            settings: Vec::new(),
            flags: Vec::new(),
            data_bytes: None,
            socket: None,
        }
    }

    /// Replaces the default p2p listeners on TCP and QUIC.
    pub fn listen(mut self, multiaddrs: &[&str]) -> Self {
        self.listen = multiaddrs.iter().map(|&multiaddr| multiaddr.to_owned()).collect();
        self
    }

    /// Replaces the free port of the public listener.
    pub fn http_listen(mut self, address: impl ToString) -> Self {
        self.http_listen = address.to_string();
        self
    }

    /// Replaces the free port of the admin listener.
    pub fn admin_listen(mut self, address: impl ToString) -> Self {
        self.admin_listen = address.to_string();
        self
    }

    /// Adds a peer to `p2p.peering`.
    pub fn peering(mut self, multiaddr: &str) -> Self {
        self.peering.push(multiaddr.to_owned());
        self
    }

    /// Adds a bootstrap peer.
    pub fn bootstrap(mut self, multiaddr: &str) -> Self {
        self.bootstrap.push(multiaddr.to_owned());
        self
    }

    /// Sets a key by its environment variable.
    pub fn set(mut self, variable: &'static str, value: impl ToString) -> Self {
        self.settings.push((variable, value.to_string()));
        self
    }

    /// Adds a flag with a value to `causeway serve`.
    pub fn flag(mut self, flag: &str, value: impl ToString) -> Self {
        self.flags.extend([flag.to_owned(), value.to_string()]);
        self
    }

    /// Runs in a new mount namespace, in which the data folder is a tmpfs of `bytes`, which is deleted when
    /// the process ends.
    pub fn in_small_file_system(mut self, bytes: u64) -> Self {
        self.data_bytes = Some(bytes);
        self
    }

    /// Passes a listening socket as systemd does, with the name of the listener that it is for.
    pub fn activated_by(mut self, socket: TcpListener, name: &'static str) -> Self {
        self.socket = Some((Arc::new(socket), name));
        self
    }

    /// Whether the user may create mount namespaces.
    pub fn small_file_systems_can_be_mounted(&self) -> bool {
        self.program("true").output().is_ok_and(|output| output.status.success())
    }

    /// Runs `causeway import` to its end.
    pub fn import(&self, car: &Path) {
        let output = self.command(&["import"]).arg(car).output().expect("causeway starts");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "causeway import {}: {}: {printed}", car.display(), output.status);
    }

    /// Runs a command to its end: its output, or its error message.
    pub fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.command(arguments).output().expect("causeway starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// [`Launch::run`] in a folder, with standard input; returns the bytes of standard output.
    pub fn pipe(&self, folder: &Path, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>, String> {
        let (output, _) = super::output_of(self.command(arguments).current_dir(folder), input);
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    /// Runs a command with standard input to its end.
    pub fn output(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("causeway starts");
        child.stdin.take().expect("is piped").write_all(input).expect("it reads its input");
        child.wait_with_output().expect("causeway ends")
    }

    /// Starts a command that runs until it is killed.
    pub fn spawn(&self, arguments: &[&str], stdout: Stdio) -> Child {
        self.command(arguments).stdin(Stdio::null()).stdout(stdout).spawn().expect("causeway starts")
    }

    /// Starts `causeway serve`, and waits for the start-up message.
    pub async fn start(&self) -> Causeway {
        let mut command = match self.socket {
            Some(_) => self.as_command(&["sh", "-c", ACTIVATE, "sh", env!("CARGO_BIN_EXE_causeway"), "serve"]),
            None => self.command(&["serve"]),
        };
        command.args(["--listen", &self.http_listen, "--admin-listen", &self.admin_listen]);
        for multiaddr in &self.listen {
            command.args(["--p2p-listen", multiaddr]);
        }
        command.args(&self.flags);
        for multiaddr in &self.peering {
            command.args(["--peering", multiaddr]);
        }
        if self.bootstrap.is_empty() {
            command.args(["--bootstrap", "none"]);
        }
        for multiaddr in &self.bootstrap {
            command.args(["--bootstrap", multiaddr]);
        }
        if let Some((_, name)) = self.socket {
            command.env("LISTEN_FDNAMES", name);
        }
        let socket = self.socket.as_ref().map(|(socket, _)| socket.try_clone().expect("a descriptor").into());
        let stdin = socket.map_or_else(Stdio::null, |socket: OwnedFd| socket.into());
        let mut process = Process::spawn_with_input("causeway", &mut command, stdin, &self.dir);
        // The last line of the start-up message.
        process.says("  welcome ", START).await;
        let printed = process.stdout();
        let all = |key: &str| printed.lines().filter_map(|line| value_of(line, key)).collect::<Vec<String>>();
        let one = |key: &str| all(key).into_iter().next().unwrap_or_else(|| panic!("no {key:?} in {printed}"));
        Causeway {
            gateway: one("gateway"),
            gateway_tls: all("gateway").into_iter().find(|url| url.starts_with("https://")),
            admin: one("admin"),
            peer_id: one("peer id"),
            multiaddrs: all("p2p"),
            welcome: one("welcome"),
            process,
        }
    }

    /// A program, in a new mount namespace if the data folder has a size.
    fn program(&self, program: &str) -> Command {
        let Some(bytes) = self.data_bytes else { return Command::new(program) };
        let data = self.dir.join("data");
        std::fs::create_dir_all(&data).expect("the folder is ours");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", MOUNT, "sh"]).arg(data).arg(bytes.to_string()).arg(program);
        command
    }

    fn command(&self, subcommand: &[&str]) -> Command {
        self.as_command(&[&[env!("CARGO_BIN_EXE_causeway")], subcommand].concat())
    }

    /// A command with the settings and the data folder.
    fn as_command(&self, words: &[&str]) -> Command {
        let mut command = self.program(words[0]);
        self.prepare(&mut command);
        command.args(&words[1..]).arg("--data-dir").arg(self.dir.join("data"));
        command
    }

    fn prepare(&self, command: &mut Command) {
        // Ignore the settings of the caller's environment.
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("CAUSEWAY_") {
                command.env_remove(variable);
            }
        }
        // No port mappings at routers.
        command.env("CAUSEWAY_P2P_UPNP", "false");
        command.env("CAUSEWAY_ADMIN_TOKEN", TOKEN).envs(self.settings.iter().map(|(key, value)| (key, value)));
        command.current_dir(&self.dir);
    }

    /// Runs a command on a pseudo-terminal, and returns its output; `None` if this system has no `script`.
    pub fn on_terminal(&self, arguments: &[&str]) -> Option<String> {
        let data = self.dir.join("data").display().to_string();
        let words = [&[env!("CARGO_BIN_EXE_causeway")], arguments, &["--data-dir", &data]].concat();
        let line = words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
        let mut command = Command::new("script");
        self.prepare(&mut command);
        let output =
            command.env("TERM", "xterm").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output().ok()?;
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "causeway {arguments:?}: {shown}");
        Some(shown)
    }
}

/// Mounts a tmpfs with the size of the second argument at the first, and executes the command of the others.
const MOUNT: &str = "mount -t tmpfs -o size=\"$2\" tmpfs \"$1\" && shift 2 && exec \"$@\"";

/// Executes a command with its standard input as a socket of systemd (sd_listen_fds(3)), whose name is in
/// `LISTEN_FDNAMES`.
const ACTIVATE: &str = "exec 3<&0 0</dev/null && export LISTEN_PID=$$ LISTEN_FDS=1 && exec \"$@\"";

/// "  peer id   12D3Koo…" has the value "12D3Koo…" for the key "peer id".
fn value_of(line: &str, key: &str) -> Option<String> {
    let value = line.strip_prefix("  ")?.strip_prefix(key)?;
    value.starts_with(' ').then(|| value.trim().to_owned())
}

/// A running node. Dropping it kills it with SIGKILL; [`Causeway::stop`] shuts it down gracefully.
pub struct Causeway {
    gateway: String,
    gateway_tls: Option<String>,
    admin: String,
    peer_id: String,
    multiaddrs: Vec<String>,
    welcome: String,
    pub process: Process,
}

impl Causeway {
    /// Starts a node that has stored a file with this content; returns it, and the CID of the file. `dir` must outlive
    /// it.
    pub async fn with_file(dir: &Path, content: &[u8]) -> (Self, String) {
        let launch = Launch::new(dir);
        std::fs::write(dir.join("file"), content).expect("the folder is ours");
        let cid = launch.run(&["add", "-Q", "file"]).expect("is added");
        (launch.start().await, cid)
    }

    /// Waits until it is connected to a peer.
    pub async fn until_connected(&self) {
        super::eventually("a peer is connected", START, async || {
            let (_, peers) = self.admin("GET", "/api/v1/peers", None).await;
            if peers["count"].as_u64() > Some(0) { Ok(()) } else { Err(peers.to_string()) }
        })
        .await;
    }

    /// The URL of a path on the public listener.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.gateway.trim_end_matches('/'))
    }

    /// The address of the public listener with TLS.
    pub fn tls_address(&self) -> &str {
        let url = self.gateway_tls.as_ref().expect("the node has a listener with TLS");
        url.trim_start_matches("https://").trim_end_matches('/')
    }

    /// The welcome page's URL, as printed.
    pub fn welcome(&self) -> &str {
        &self.welcome
    }

    /// The peer id, as printed.
    pub fn peer_id(&self) -> &str {
        &self.peer_id
    }

    /// The multiaddr on TCP, as printed.
    pub fn tcp(&self) -> &str {
        let found = self.multiaddrs.iter().find(|address| address.contains("/tcp/"));
        found.unwrap_or_else(|| panic!("no TCP address in {:?}", self.multiaddrs))
    }

    /// Where it listens on QUIC, with its peer id.
    pub fn quic(&self) -> &str {
        let found = self.multiaddrs.iter().find(|address| address.contains("/quic-v1/"));
        found.unwrap_or_else(|| panic!("no QUIC address in {:?}", self.multiaddrs))
    }

    /// GETs a path from the public listener.
    pub async fn get(&self, path: &str) -> Answer {
        get(&self.url(path)).await
    }

    /// GETs a path, and asserts 200 with these bytes.
    pub async fn expect(&self, path: &str, expected: &[u8]) -> Answer {
        let answer = self.get(path).await;
        assert_eq!(answer.status, 200, "GET {path}: {}", answer.text());
        super::assert_same_bytes(path, &answer.body, expected);
        answer
    }

    /// The URL of the admin listener.
    pub fn admin_url(&self) -> &str {
        &self.admin
    }

    /// Sends a request to the admin listener with its token, and with a JSON body if there is one.
    pub async fn admin(&self, method: &str, path: &str, body: Option<&str>) -> (u16, serde_json::Value) {
        let method = method.parse().expect("a method");
        let mut request = client().request(method, format!("{}{path}", self.admin)).bearer_auth(TOKEN);
        if let Some(body) = body {
            request = request.body(body.to_owned());
        }
        let response = request.send().await.expect("the admin listener answers");
        let status = response.status().as_u16();
        (status, serde_json::from_slice(&response.bytes().await.expect("an answer")).unwrap_or_default())
    }

    /// The metrics once `done` holds: requests are counted a moment after their end.
    pub async fn metrics_when(&self, done: impl Fn(&Metrics) -> bool) -> Metrics {
        let polling = async {
            loop {
                let metrics = self.metrics().await;
                if done(&metrics) {
                    return metrics;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), polling).await.expect("the metrics change in time")
    }

    /// Scrapes the metrics.
    pub async fn metrics(&self) -> Metrics {
        Metrics::parse(&self.exposition().await)
    }

    /// The metrics in the text format of Prometheus.
    pub async fn exposition(&self) -> String {
        let request = client().get(format!("{}/metrics", self.admin)).bearer_auth(TOKEN);
        let response = request.send().await.expect("the admin listener answers");
        assert_eq!(response.status(), 200, "GET /metrics");
        response.text().await.expect("metrics are text")
    }

    /// Asserts that both listeners report the node as healthy.
    pub async fn assert_healthy(&self) {
        for base in [&self.gateway, &self.admin] {
            for path in ["healthz", "readyz"] {
                let answer = get(&format!("{base}/{path}")).await;
                assert_eq!(answer.status, 200, "GET {base}/{path}: {}", answer.text());
            }
        }
    }

    /// SIGTERM; cached and pinned blocks are on the disk afterwards.
    pub async fn stop(mut self) {
        let status = self.process.terminate(STOP).await;
        assert!(status.success(), "causeway serve ended with {status} after SIGTERM");
    }
}
