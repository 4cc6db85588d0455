//! A real Kubo node with its own repository, which uses loopback only.

use super::client;
use super::process::Process;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const VERSION: &str = "0.41.0";
/// Long, since the machine may be busy.
const START: Duration = Duration::from_secs(60);

/// The configuration of a node.
pub struct Setup<'a> {
    /// Where it listens for peers.
    pub listen: &'a [&'a str],
    /// The content of its `swarm.key`; it refuses the public network then.
    pub swarm_key: Option<&'a str>,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self { listen: &["/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"], swarm_key: None }
    }
}

/// A running daemon. Dropping it stops it and deletes its repository.
pub struct Kubo {
    process: Process,
    ipfs: PathBuf,
    repository: TempDir,
    api: String,
    multiaddrs: Vec<String>,
}

impl Kubo {
    /// A new node without peers. It listens on TCP and QUIC.
    pub async fn start() -> Self {
        Self::start_as(&Setup::default()).await
    }

    /// A new node without peers.
    ///
    /// Nodes are connected only after their start, by [`Kubo::connect`]: Kubo registers Bitswap late in its start, and
    /// does not use it with peers that connected before.
    pub async fn start_as(setup: &Setup<'_>) -> Self {
        Self::start_full(setup, |_| ()).await
    }

    /// [`Kubo::start`] with other settings.
    pub async fn start_with(set: impl FnOnce(&mut Value)) -> Self {
        Self::start_full(&Setup::default(), set).await
    }

    async fn start_full(setup: &Setup<'_>, set: impl FnOnce(&mut Value)) -> Self {
        let ipfs = ipfs();
        let repository = TempDir::with_prefix("causeway-kubo-").expect("the temporary folder is writable");
        run(command(&ipfs, repository.path()).args(["init", "--profile=test"]));
        configure(&repository.path().join("config"), setup.listen, set);
        let mut daemon = command(&ipfs, repository.path());
        if let Some(key) = setup.swarm_key {
            std::fs::write(repository.path().join("swarm.key"), key).expect("the repository is writable");
            daemon.env("LIBP2P_FORCE_PNET", "1");
        }
        let mut process = Process::spawn("kubo", daemon.arg("daemon"), repository.path());
        process.says("Daemon is ready", START).await;
        let api = api_url(repository.path());
        let mut kubo = Self { process, ipfs, repository, api, multiaddrs: Vec::new() };
        let id = kubo.call("id", &[]).await;
        kubo.multiaddrs = texts(&id["Addresses"]);
        kubo
    }

    /// Where it listens on TCP, with its peer id.
    pub fn tcp(&self) -> &str {
        self.multiaddr("/tcp/")
    }

    /// Where it listens on QUIC, with its peer id.
    pub fn quic(&self) -> &str {
        self.multiaddr("/quic-v1/")
    }

    /// Where it listens on WebSocket, with its peer id.
    pub fn websocket(&self) -> &str {
        self.multiaddr("/ws/")
    }

    fn multiaddr(&self, transport: &str) -> &str {
        let found = self.multiaddrs.iter().find(|address| address.contains(transport));
        found.unwrap_or_else(|| panic!("no {transport} in {:?}", self.multiaddrs))
    }

    /// Adds a file from a stream, without pinning or announcing it, and returns its CID. `flags` are those of `ipfs
    /// add`.
    pub fn add(&self, mut content: impl Read, flags: &[&str]) -> String {
        let mut add = self.command();
        add.args(["add", "-Q", "--pin=false", "--fast-provide-root=false"]).args(flags);
        let mut child = add.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("ipfs starts");
        let mut input = child.stdin.take().expect("it was asked for");
        let mut buffer = vec![0; 1 << 20];
        loop {
            let len = content.read(&mut buffer).expect("the test's own content");
            if len == 0 {
                break;
            }
            input.write_all(&buffer[..len]).expect("ipfs add reads all of its input");
        }
        drop(input);
        let output = child.wait_with_output().expect("ipfs ends");
        assert!(output.status.success(), "ipfs add: {}", output.status);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Adds a folder recursively, and returns its CID.
    pub fn add_folder(&self, folder: &Path, flags: &[&str]) -> String {
        let mut add = self.command();
        add.args(["add", "-r", "-Q", "--pin=false", "--fast-provide-root=false"]).args(flags).arg(folder);
        run(&mut add)
    }

    /// Imports the blocks of a CAR file, which may be incomplete.
    pub fn import(&self, car: &Path) {
        run(self.command().args(["dag", "import", "--pin-roots=false"]).arg(car));
    }

    /// Writes the DAG under a CID to a CAR file.
    pub fn export(&self, cid: &str, car: &Path) {
        let file = std::fs::File::create(car).expect("the test's own folder is writable");
        let status = self.command().args(["dag", "export", "--progress=false", cid]).stdout(file).status();
        assert!(status.expect("ipfs starts").success(), "ipfs dag export {cid}");
    }

    /// Its peer id.
    pub fn peer_id(&self) -> &str {
        self.tcp().rsplit('/').next().unwrap_or_default()
    }

    /// The URL of its gateway, which also answers `/routing/v1`.
    pub fn gateway(&self) -> String {
        let url = std::fs::read_to_string(self.repository.path().join("gateway"));
        url.expect("a running daemon has a gateway").trim().trim_end_matches('/').to_owned()
    }

    /// Connects to a peer.
    pub async fn connect(&self, multiaddr: &str) {
        self.call("swarm/connect", &[multiaddr]).await;
    }

    /// [`Kubo::connect`], which may fail.
    pub fn try_connect(&self, multiaddr: &str) -> Result<(), String> {
        let output = self.command().args(["swarm", "connect", multiaddr]).output().expect("ipfs starts");
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
    }

    /// Whether it is connected to a peer.
    pub async fn is_connected_to(&self, peer_id: &str) -> bool {
        let peers = self.call("swarm/peers", &[]).await;
        peers["Peers"].as_array().is_some_and(|peers| peers.iter().any(|peer| peer["Peer"] == peer_id))
    }

    /// Provides these CIDs in the DHT. A DHT server must be connected.
    pub async fn provide(&self, cids: &[&str]) {
        self.call("routing/provide", cids).await;
    }

    /// Puts any IPNS record into the DHT. A DHT server must be connected.
    pub fn put_record(&self, name: &str, record: &Path) {
        self.try_put_record(name, record).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    }

    /// [`Kubo::put_record`], which may fail.
    pub fn try_put_record(&self, name: &str, record: &Path) -> Result<(), String> {
        let put = self.command().args(["routing", "put", &format!("/ipns/{name}")]).arg(record).output();
        let put = put.expect("ipfs starts");
        if put.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&put.stderr).trim().to_owned()) }
    }

    /// Publishes a record of the node's own key, and returns the name. A DHT server must be connected.
    pub fn publish(&self, path: &str) -> String {
        run(self.command().args(["name", "publish", "-Q", "--resolve=false", path]))
    }

    /// [`Kubo::publish`] with a TTL, such as "2s".
    pub fn publish_for(&self, ttl: &str, path: &str) -> String {
        run(self.command().args(["name", "publish", "-Q", "--resolve=false", "--ttl", ttl, path]))
    }

    /// Resolves a name, only with the DHT.
    pub fn try_resolve(&self, name: &str) -> Result<String, String> {
        let resolve = self.command().args(["name", "resolve", "--nocache", "--recursive=false", name]).output();
        let resolve = resolve.expect("ipfs starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if resolve.status.success() { Ok(text(&resolve.stdout)) } else { Err(text(&resolve.stderr)) }
    }

    /// Makes a key, and returns its name.
    pub fn make_key(&self, name: &str, kind: &str) -> String {
        run(self.command().args(["key", "gen", "--type", kind, name]))
    }

    /// Writes a key to a file.
    pub fn export_key(&self, name: &str, format: &str, file: &Path) {
        run(self.command().args(["key", "export", "--format", format, "-o"]).arg(file).arg(name));
    }

    /// Imports a key, and returns its name.
    pub fn import_key(&self, name: &str, format: &str, file: &Path) -> String {
        run(self.command().args(["key", "import", "--allow-any-key-type", "--format", format, name]).arg(file))
    }

    /// [`Kubo::publish`], which may fail.
    pub fn try_publish(&self, path: &str) -> Result<String, String> {
        try_run(self.command().args(["name", "publish", "-Q", "--resolve=false", path]))
    }

    /// [`Kubo::provide`], which may fail.
    pub fn try_provide(&self, cid: &str) -> Result<String, String> {
        try_run(self.command().args(["routing", "provide", cid]))
    }

    /// The providers of a CID in the DHT.
    pub async fn find_providers(&self, cid: &str) -> Vec<String> {
        let events = self.call_text("routing/findprovs", &[cid]).await;
        let events = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let responses = events.flat_map(|event| event["Responses"].as_array().cloned().unwrap_or_default());
        responses.filter_map(|response| response["ID"].as_str().map(str::to_owned)).collect()
    }

    /// The addresses of a peer, by any routing of the node.
    pub async fn find_peer(&self, peer_id: &str) -> Vec<String> {
        let events = self.call_text("routing/findpeer", &[peer_id]).await;
        let events = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let responses = events.flat_map(|event| event["Responses"].as_array().cloned().unwrap_or_default());
        responses.flat_map(|response| texts(&response["Addrs"])).collect()
    }

    /// Resolves a name, by any routing of the node.
    pub async fn resolve(&self, name: &str) -> String {
        let resolved = self.call("name/resolve", &[name]).await;
        resolved["Path"].as_str().unwrap_or_else(|| panic!("no path in {resolved}")).to_owned()
    }

    /// The content of a file.
    pub async fn cat(&self, path: &str) -> bytes::Bytes {
        let response = self.post("cat", &[path]).await;
        response.bytes().await.unwrap_or_else(|error| panic!("ipfs cat {path}: {error:?}"))
    }

    /// [`Kubo::cat`] with a timeout of a few seconds, which may fail.
    pub fn try_cat(&self, path: &str) -> Result<String, String> {
        try_run(self.command().args(["--timeout=4s", "cat", path]))
    }

    /// The blocks sent over Bitswap so far.
    pub async fn sent(&self) -> Sent {
        let stat = self.call("bitswap/stat", &[]).await;
        let number = |key: &str| stat[key].as_u64().unwrap_or_else(|| panic!("no {key} in {stat}"));
        Sent { blocks: number("BlocksSent"), bytes: number("DataSent") }
    }

    async fn call(&self, command: &str, arguments: &[&str]) -> Value {
        let text = self.call_text(command, arguments).await;
        let last = text.lines().next_back().unwrap_or("null");
        serde_json::from_str(last).unwrap_or_else(|error| panic!("ipfs {command}: {error} in {text}"))
    }

    async fn call_text(&self, command: &str, arguments: &[&str]) -> String {
        let response = self.post(command, arguments).await;
        response.text().await.unwrap_or_else(|error| panic!("ipfs {command}: {error:?}"))
    }

    async fn post(&self, command: &str, arguments: &[&str]) -> reqwest::Response {
        let arguments: Vec<String> = arguments.iter().map(|argument| format!("arg={argument}")).collect();
        let url = format!("{}/api/v0/{command}?{}", self.api, arguments.join("&"));
        let response = client().post(&url).send().await.unwrap_or_else(|error| panic!("ipfs {command}: {error:?}"));
        if !response.status().is_success() {
            panic!("ipfs {command} {arguments:?}: {}", response.text().await.unwrap_or_default());
        }
        response
    }

    /// Runs a command to its end, and returns its output.
    pub fn run(&self, arguments: &[&str]) -> String {
        run(self.command().args(arguments))
    }

    /// [`Kubo::run`], which may fail.
    pub fn try_run(&self, arguments: &[&str]) -> Result<String, String> {
        try_run(self.command().args(arguments))
    }

    /// The daemon's process ID and folder, for cleaning up without a drop.
    pub fn estate(&self) -> (u32, &Path) {
        (self.process.id(), self.repository.path())
    }

    fn command(&self) -> Command {
        command(&self.ipfs, self.repository.path())
    }

    /// Stops the daemon, and deletes its repository.
    pub async fn stop(mut self) {
        self.process.terminate(Duration::from_secs(30)).await;
    }
}

/// Blocks and their bytes that were sent over Bitswap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    pub blocks: u64,
    pub bytes: u64,
}

/// Where `make kubo` puts the binary: the same rule as in `scripts/kubo`.
pub(super) fn ipfs() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let tools = variable("CAUSEWAY_TOOLS").or_else(|| Some(cache()?.join("causeway")));
    let ipfs = tools.expect("HOME is set").join(format!("kubo-{VERSION}/ipfs"));
    assert!(ipfs.exists(), "{} is missing. Run `make kubo` first: it builds it.", ipfs.display());
    ipfs
}

pub(super) fn command(ipfs: &Path, repository: &Path) -> Command {
    let mut command = Command::new(ipfs);
    command.env("IPFS_PATH", repository).env("IPFS_TELEMETRY", "off").env("DO_NOT_TRACK", "1");
    command
}

/// Runs a command to its end, and returns its output or its error.
fn try_run(command: &mut Command) -> Result<String, String> {
    let output = command.output().expect("ipfs starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Runs a command to its end, and returns its output.
pub(super) fn run(command: &mut Command) -> String {
    let output = command.output().expect("ipfs starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// In addition to the "test" profile: no connections beyond this machine, and loopback addresses take part in
/// the DHT as those of a server.
pub(super) fn configure(config: &Path, listen: &[&str], set: impl FnOnce(&mut Value)) {
    let text = std::fs::read_to_string(config).expect("ipfs init wrote it");
    let mut settings: Value = serde_json::from_str(&text).expect("Kubo's configuration is JSON");
    settings["Addresses"]["Swarm"] = json!(listen);
    settings["Bootstrap"] = json!([]);
    settings["AutoConf"] = json!({ "Enabled": false });
    settings["DNS"] = json!({ "Resolvers": {} });
    settings["Routing"]["Type"] = json!("dhtserver");
    settings["Routing"]["DelegatedRouters"] = json!([]);
    settings["Routing"]["LoopbackAddressesOnLanDHT"] = json!(true);
    settings["Ipns"]["DelegatedPublishers"] = json!([]);
    set(&mut settings);
    std::fs::write(config, settings.to_string()).expect("the repository is writable");
}

/// The daemon writes where its API listens into its repository: "/ip4/127.0.0.1/tcp/46661".
fn api_url(repository: &Path) -> String {
    let multiaddr = std::fs::read_to_string(repository.join("api")).expect("a running daemon has an API");
    let port = multiaddr.trim().rsplit('/').next().unwrap_or_default();
    format!("http://127.0.0.1:{port}")
}

fn texts(value: &Value) -> Vec<String> {
    let values = value.as_array().into_iter().flatten();
    values.filter_map(|text| text.as_str().map(str::to_owned)).collect()
}
