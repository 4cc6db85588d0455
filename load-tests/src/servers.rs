//! The servers that are compared, each a child process on free loopback ports with a directory of its own.

use crate::certificate::Certificate;
use crate::child::Process;
use crate::comparison::named;
use crate::directory::temp_dir;
use crate::timed;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a started node may take to connect to its peers. While a disk is saturated, its first connections wait for
/// the pages of code that they run, so that they may time out and are dialled again after a back-off.
const PEERS_TIMEOUT: Duration = Duration::from_secs(120);
/// Adds with raw leaves, and writes nothing but the CID.
const ADD: [&str; 5] = ["add", "-Q", "--cid-version=1", "--raw-leaves", "--fast-provide-root=false"];

/// Imports and pins without an announcement.
const DAG_IMPORT: [&str; 3] = ["dag", "import", "--fast-provide-root=false"];

named! {
    /// How two IPFS nodes are connected.
    pub enum Transport {
        Tcp = "TCP",
        Quic = "QUIC",
    }
}

/// A server that is measured.
pub struct Server {
    /// Without a slash at the end.
    pub url: String,
    pub process: Process,
    /// Deleted when the server is gone: fields are dropped in this order.
    dir: TempDir,
}

impl Server {
    /// The URL of a path.
    pub fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }
}

/// A Kubo node.
pub struct Kubo {
    pub server: Server,
    ipfs: PathBuf,
    api: String,
    multiaddrs: Vec<String>,
}

/// A Kubo repository that no node uses.
pub struct KuboRepo {
    ipfs: PathBuf,
    dir: TempDir,
}

/// A Causeway node.
pub struct Causeway {
    pub server: Server,
    binary: PathBuf,
    pub admin: String,
    pub peer_id: String,
    /// Its addresses for peers, without its peer id.
    pub listening: Vec<String>,
    /// The URL of its listener with TLS, without a slash at the end, if it has one.
    pub encrypted: Option<String>,
    /// When it was ready.
    pub ready: Instant,
}

impl KuboRepo {
    /// A fresh repository for a node without peers, with changes to its configuration.
    pub fn init(ipfs: &Path, change: impl FnOnce(&mut Value)) -> Result<Self> {
        Self::made_by(ipfs, "--profile=test", change)
    }

    /// The same with a datastore that Kubo has a profile for.
    pub fn init_as(ipfs: &Path, profile: &str) -> Result<Self> {
        Self::made_by(ipfs, format!("--profile=test,{profile}"), |_| {})
    }

    /// The same with any datastore, as `Datastore.Spec` has it.
    pub fn init_on(ipfs: &Path, datastore: Value) -> Result<Self> {
        // Only a configuration that exists before the repository can choose.
        let given = Self::init(ipfs, |settings| settings["Datastore"]["Spec"] = datastore)?;
        Self::made_by(ipfs, given.config(), |_| {})
    }

    fn made_by(ipfs: &Path, how: impl AsRef<OsStr>, change: impl FnOnce(&mut Value)) -> Result<Self> {
        let repo = Self { ipfs: ipfs.to_owned(), dir: temp_dir("kubo")? };
        timed::run(repo.command().arg("init").arg(how))
            .with_context(|| format!("{}; run `make kubo`", ipfs.display()))?;
        isolate(&repo.config(), change)?;
        Ok(repo)
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("config")
    }

    /// `ipfs` on this repository.
    pub fn command(&self) -> Command {
        ipfs(&self.ipfs, self.dir.path())
    }

    /// `ipfs dag import` of a CAR file.
    pub fn import(&self, archive: &Path) -> Command {
        let mut import = self.command();
        import.args(DAG_IMPORT).arg(archive);
        import
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Kubo {
    /// A fresh node without peers.
    pub async fn start(ipfs: &Path) -> Result<Self> {
        Self::start_with(ipfs, |_| {}).await
    }

    /// The same with changes to its configuration.
    pub async fn start_with(ipfs: &Path, change: impl FnOnce(&mut Value)) -> Result<Self> {
        Self::on(KuboRepo::init(ipfs, change)?, &[]).await
    }

    /// A node on a repository, with more flags of `ipfs daemon`.
    pub async fn on(repo: KuboRepo, flags: &[&str]) -> Result<Self> {
        let mut process = Process::spawn("kubo", repo.command().arg("daemon").args(flags), repo.path())?;
        let output = process.wait_for("Daemon is ready").await?;
        let (api, url) = (listening(&output, "RPC API server")?, listening(&output, "Gateway server")?);
        let id: Value = serde_json::from_str(&post(&format!("{api}/api/v0/id")).await?)?;
        // A node that is offline has none.
        let addresses = id["Addresses"].as_array().into_iter().flatten();
        let multiaddrs = addresses.filter_map(|address| address.as_str().map(str::to_owned)).collect();
        let KuboRepo { ipfs, dir } = repo;
        let server = Server { url, process, dir };
        Ok(Self { server, ipfs, api, multiaddrs })
    }

    /// `ipfs` as a client of this node.
    fn command(&self) -> Command {
        ipfs(&self.ipfs, self.server.dir.path())
    }

    /// Adds a file with raw leaves and returns its path on a gateway.
    pub fn add(&self, content: &[u8]) -> Result<String> {
        let mut add = self.command();
        add.args(ADD);
        let mut child = add.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        child.stdin.take().context("ipfs add has no input")?.write_all(content)?;
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "ipfs add: {}", output.status);
        Ok(format!("/ipfs/{}", String::from_utf8(output.stdout)?.trim()))
    }

    /// The address of its RPC API.
    pub fn api_address(&self) -> Result<SocketAddr> {
        let address = self.api.trim_start_matches("http://");
        address.parse().with_context(|| format!("{} is no address", self.api))
    }

    /// Adds a file as a client of its RPC API at another address, a link for instance. The last line of the output is
    /// the CID.
    pub fn add_through(&self, api: SocketAddr, file: &Path) -> Result<timed::Ran> {
        let mut add = self.command();
        add.arg(format!("--api=/ip4/{}/tcp/{}", api.ip(), api.port())).args(ADD).arg(file);
        timed::run(&mut add)
    }

    /// Its address for other nodes.
    pub fn multiaddr(&self, transport: Transport) -> Result<&str> {
        let part = if transport == Transport::Tcp { "/tcp/" } else { "/quic-v1/" };
        let found = self.multiaddrs.iter().find(|address| address.contains(part));
        Ok(found.with_context(|| format!("no {part} in {:?}", self.multiaddrs))?)
    }

    /// Adds a directory with raw leaves and returns its path on a gateway.
    pub fn add_directory(&self, directory: &Path) -> Result<String> {
        let added = timed::run(self.command().args(ADD).arg("-r").arg(directory))?;
        Ok(format!("/ipfs/{}", added.stdout.trim()))
    }

    /// Imports the blocks of a CAR file and pins its root.
    pub fn import(&self, archive: &Path) -> Result<()> {
        timed::run(self.command().args(DAG_IMPORT).arg(archive)).map(drop)
    }

    /// Connects to another node.
    pub async fn connect(&self, multiaddr: &str) -> Result<()> {
        self.call("swarm/connect", multiaddr).await.map(drop)
    }

    /// A command of its RPC API with one argument, and the response.
    pub async fn call(&self, command: &str, argument: &str) -> Result<String> {
        post(&format!("{}/api/v0/{command}?arg={argument}", self.api)).await
    }

    /// A command that responds with a line of JSON for each result.
    pub async fn lines(&self, command: &str, argument: &str) -> Result<Vec<Value>> {
        let answer = self.call(command, argument).await?;
        answer.lines().map(|line| serde_json::from_str(line).with_context(|| format!("{command}: {line}"))).collect()
    }

    /// A command without arguments, and the response.
    async fn query(&self, command: &str) -> Result<Value> {
        Ok(serde_json::from_str(&post(&format!("{}/api/v0/{command}", self.api)).await?)?)
    }

    /// Announces to the DHT that it has a path's root.
    pub async fn provide(&self, path: &str) -> Result<()> {
        let answer = self.call("routing/provide", path.trim_start_matches("/ipfs/")).await?;
        ensure!(!answer.contains("\"Type\":3"), "Kubo could not announce {path}: {answer}");
        Ok(())
    }

    /// Closes all connections but those with one peer.
    pub async fn disconnect_all_but(&self, kept: &str) -> Result<()> {
        let answer = self.query("swarm/peers").await?;
        let peers = answer["Peers"].as_array().into_iter().flatten();
        for peer in peers.filter_map(|peer| peer["Peer"].as_str()).filter(|peer| *peer != kept) {
            self.call("swarm/disconnect", &format!("/p2p/{peer}")).await?;
        }
        Ok(())
    }

    /// CIDs of all blocks below a path, without the root.
    pub async fn blocks_below(&self, path: &str) -> Result<Vec<String>> {
        let lines = self.lines("refs", &format!("{path}&recursive=true&unique=true")).await?;
        Ok(lines.iter().filter_map(|line| line["Ref"].as_str().map(str::to_owned)).collect())
    }

    /// Its peer id.
    pub async fn peer_id(&self) -> Result<String> {
        Ok(self.query("id").await?["ID"].as_str().context("no ID in what ipfs id returns")?.to_owned())
    }

    /// The addresses that it listens on, whatever it announces.
    pub async fn listening(&self) -> Result<Vec<String>> {
        let answer = self.query("swarm/addrs/listen").await?;
        let addresses = answer["Strings"].as_array().context("no addresses in what swarm/addrs/listen returns")?;
        Ok(addresses.iter().filter_map(|address| address.as_str().map(str::to_owned)).collect())
    }
}

/// A fresh Rainbow that dials peers, and finds providers and names by an HTTP router only.
pub async fn rainbow(binary: &Path, router: &str) -> Result<Server> {
    let dir = temp_dir("rainbow")?;
    let (gateway, control) = (format!("127.0.0.1:{}", free_port()?), format!("127.0.0.1:{}", free_port()?));
    let mut command = Command::new(binary);
    command.current_dir(dir.path()).env("RAINBOW_DATADIR", dir.path());
    command.args(["--autoconf=false", "--dht-routing=off", "--bootstrap=", "--dnslink-resolvers="]);
    command.args(["--libp2p-listen-addrs=/ip4/127.0.0.1/tcp/0", "--http-routers", router]);
    command.args(["--gateway-listen-address", &gateway, "--ctl-listen-address", &control]);
    let mut process = Process::spawn("rainbow", &mut command, dir.path())?;
    process.wait_for("IPFS Gateway listening").await?;
    Ok(Server { url: format!("http://{gateway}"), process, dir })
}

/// How a Causeway is started.
#[derive(Debug, Clone, Default)]
pub struct Setup<'a> {
    /// Nodes that it keeps connections with.
    pub peers: &'a [String],
    /// The node through which it joins the DHT.
    pub bootstrap: Option<&'a str>,
    /// The data directory of a node that ran before; otherwise a new one.
    pub data: Option<&'a Path>,
    /// A CAR file that is imported before it starts.
    pub archive: Option<&'a Path>,
    /// More flags of `causeway serve`.
    pub flags: Vec<&'a str>,
    /// Settings by their environment variables.
    pub settings: &'a [(&'a str, &'a str)],
}

impl Causeway {
    /// A fresh node, connected to its peers and to the node through which it joins the DHT.
    pub async fn start(binary: &Path, setup: Setup<'_>) -> Result<Self> {
        let dir = temp_dir("causeway")?;
        let data = setup.data.map_or_else(|| dir.path().join("data"), Path::to_owned);
        if let Some(archive) = setup.archive {
            timed::run(causeway_import(binary, &data, archive).envs(setup.settings.iter().copied()))?;
        }
        let mut command = without_settings(binary);
        command.arg("serve").arg("--data-dir").arg(&data).envs(setup.settings.iter().copied());
        command.args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]).env(TOKEN_VARIABLE, token());
        command.args(["--p2p-listen", "/ip4/127.0.0.1/tcp/0", "--p2p-listen", "/ip4/127.0.0.1/udp/0/quic-v1"]);
        command.args(["--bootstrap", setup.bootstrap.unwrap_or("none")]);
        command.args(setup.peers.iter().flat_map(|peer| ["--peering", peer])).args(&setup.flags);
        let mut process = Process::spawn("causeway", &mut command, dir.path())
            .with_context(|| format!("{}; run `make build`", binary.display()))?;
        let output = process.wait_for("  welcome ").await?;
        let ready = Instant::now();
        let value = |key: &str| {
            let found = output.lines().find_map(|line| line.trim().strip_prefix(key));
            Ok::<_, anyhow::Error>(found.with_context(|| format!("no {key:?} in {output}"))?.trim().to_owned())
        };
        let (url, admin, peer_id) = (value("gateway ")?, value("admin ")?, value("peer id ")?);
        let gateways = output.lines().filter_map(|line| line.trim().strip_prefix("gateway "));
        let encrypted = gateways.map(str::trim).find(|url| url.starts_with("https://")).map(str::to_owned);
        let addresses = output.lines().filter_map(|line| line.trim().strip_prefix("p2p "));
        let bare = |address: &str| address.trim().split("/p2p/").next().unwrap_or_default().to_owned();
        let listening = addresses.map(bare).collect();
        let server = Server { url, process, dir };
        let binary = binary.to_owned();
        let causeway = Self { server, binary, admin, peer_id, listening, encrypted, ready };
        causeway.wait_for_peers(setup.peers.len() + usize::from(setup.bootstrap.is_some())).await?;
        Ok(causeway)
    }

    /// The connections to the peers are made while the node starts; a cold fetch is to measure fetching.
    async fn wait_for_peers(&self, count: usize) -> Result<()> {
        // A node that is offline has no such metric.
        if count == 0 {
            return Ok(());
        }
        let begun = Instant::now();
        while self.metric("causeway_p2p_connections").await? < count as f64 {
            ensure!(begun.elapsed() < PEERS_TIMEOUT, "Causeway does not connect to its {count} peers");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// The address of its admin listener.
    pub fn admin_address(&self) -> Result<SocketAddr> {
        let address = self.admin.trim_start_matches("http://").trim_end_matches('/');
        address.parse().with_context(|| format!("{} is no address", self.admin))
    }

    /// Adds a file or a directory with the CIDs of [`Kubo::add`], and returns its path on a gateway.
    pub fn add(&self, path: &Path) -> Result<String> {
        Ok(format!("/ipfs/{}", self.add_through(&self.admin, path)?.stdout.trim()))
    }

    /// The same at another URL of its admin listener, a link for instance. The output is the CID.
    pub fn add_through(&self, admin: &str, path: &Path) -> Result<timed::Ran> {
        let mut add = without_settings(&self.binary);
        add.args(["add", "-Q", "--cid-version=1", "--admin", admin]).env(TOKEN_VARIABLE, token());
        timed::run(add.arg(path))
    }

    /// Imports the blocks of a CAR file and pins its root, while it runs.
    pub fn import(&self, archive: &Path) -> Result<()> {
        let mut import = without_settings(&self.binary);
        import.args(["import", "--admin", &self.admin]).env(TOKEN_VARIABLE, token()).arg(archive);
        timed::run(&mut import).map(drop)
    }

    /// Its address over TCP for other nodes, with its peer id.
    pub fn multiaddr(&self) -> Result<String> {
        let address = self.listening.iter().find(|address| address.contains("/tcp/"));
        let address = address.with_context(|| format!("no TCP in {:?}", self.listening))?;
        Ok(format!("{address}/p2p/{}", self.peer_id))
    }

    /// The value of a metric: the name with its labels, as the exposition writes it.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        let metrics = scrape(&self.admin).await?;
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value.with_context(|| format!("no metric {name}"))?.trim().parse()?)
    }
}

/// The variable with the token of admin listeners; a node of our own gets it from there too.
const TOKEN_VARIABLE: &str = "CAUSEWAY_ADMIN_TOKEN";

/// The token of the admin listeners of nodes that this program starts.
pub fn token() -> String {
    std::env::var(TOKEN_VARIABLE).unwrap_or_else(|_| "load-tests".to_owned())
}

/// The metrics of a gateway, by its admin listener.
pub async fn scrape(admin: &str) -> Result<String> {
    let asked = reqwest::Client::new().get(format!("{admin}/metrics")).bearer_auth(token()).send().await?;
    Ok(asked.error_for_status()?.text().await?)
}

/// `causeway import` of a CAR file into a data directory.
pub fn causeway_import(binary: &Path, data: &Path, archive: &Path) -> Command {
    let mut command = without_settings(binary);
    command.arg("import").arg("--data-dir").arg(data).arg(archive);
    command
}

/// The binary without settings: the environment may have some for another node.
pub fn without_settings(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("CAUSEWAY_") {
            command.env_remove(variable);
        }
    }
    command
}

fn ipfs(binary: &Path, repo: &Path) -> Command {
    let mut command = Command::new(binary);
    command.env("IPFS_PATH", repo).env("IPFS_TELEMETRY", "off");
    command
}

/// nginx with `proxy_cache` in front of another server, configured to be as fast as possible. Under `/files/` it serves
/// a directory by `sendfile`, and compressed files (`NAME.gz`) to clients that accept them.
pub async fn nginx(upstream: &str, files: &Path) -> Result<Server> {
    start_nginx(upstream, files, "").await
}

/// The same, which serves over TLS as well, with HTTP/1.1 and HTTP/2, and the URL of that.
pub async fn encrypted_nginx(upstream: &str, files: &Path, certificate: &Certificate) -> Result<(Server, String)> {
    let (port, path, key) = (free_port()?, certificate.path(), certificate.key());
    let tls = format!(
        "listen 127.0.0.1:{port} ssl http2 backlog=4096;
        ssl_certificate {};
        ssl_certificate_key {};
        ssl_protocols TLSv1.3;",
        path.display(),
        key.display()
    );
    Ok((start_nginx(upstream, files, &tls).await?, format!("https://127.0.0.1:{port}")))
}

async fn start_nginx(upstream: &str, files: &Path, tls: &str) -> Result<Server> {
    let dir = temp_dir("nginx")?;
    let port = free_port()?;
    let upstream = upstream.trim_start_matches("http://");
    let listen = format!("listen 127.0.0.1:{port} backlog=4096;\n        {tls}");
    let configuration = nginx_configuration(upstream, files, &listen, &user()?, dir.path());
    let file = dir.path().join("nginx.conf");
    std::fs::write(&file, configuration)?;
    let mut command = Command::new(nginx_binary());
    command.arg("-p").arg(dir.path()).arg("-c").arg(&file).arg("-e").arg(dir.path().join("error.log"));
    let process = Process::spawn("nginx", &mut command, dir.path())?;
    let url = format!("http://127.0.0.1:{port}");
    let begun = Instant::now();
    while reqwest::get(format!("{url}/up")).await.is_err() {
        let log = || std::fs::read_to_string(dir.path().join("error.log")).unwrap_or_default();
        ensure!(begun.elapsed() < Duration::from_secs(20), "nginx does not start: {}", log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(Server { url, process, dir })
}

/// Debian installs it where only root's PATH leads.
pub fn nginx_binary() -> &'static str {
    if Path::new("/usr/sbin/nginx").exists() { "/usr/sbin/nginx" } else { "nginx" }
}

fn nginx_configuration(upstream: &str, files: &Path, listen: &str, user: &str, dir: &Path) -> String {
    let (dir, files) = (dir.display(), files.display());
    format!(
        "daemon off;
user {user};
worker_processes auto;
pid {dir}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000000;
    open_file_cache max=2000 inactive=1h;
    client_body_temp_path {dir}/body;
    proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi;
    scgi_temp_path {dir}/scgi;
    proxy_cache_path {dir}/cache levels=1:2 keys_zone=ipfs:32m max_size=10g inactive=1d use_temp_path=off;
    upstream gateway {{ server {upstream}; keepalive 32; }}
    server {{
        {listen}
        location = /up {{ return 204; }}
        location /files/ {{
            alias {files}/;
            gzip_static on;
        }}
        location / {{
            proxy_pass http://gateway;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_cache ipfs;
            proxy_cache_valid 200 1d;
            add_header X-Cache $upstream_cache_status;
        }}
    }}
}}
"
    )
}

/// No peer or service outside this machine is contacted.
fn isolate(config: &Path, change: impl FnOnce(&mut Value)) -> Result<()> {
    let mut settings: Value = serde_json::from_str(&std::fs::read_to_string(config)?)?;
    settings["Addresses"]["Swarm"] = json!(["/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"]);
    settings["Bootstrap"] = json!([]);
    settings["AutoConf"] = json!({ "Enabled": false });
    settings["DNS"] = json!({ "Resolvers": {} });
    settings["Routing"]["Type"] = json!("dhtserver");
    settings["Routing"]["DelegatedRouters"] = json!([]);
    settings["Ipns"]["DelegatedPublishers"] = json!([]);
    change(&mut settings);
    Ok(std::fs::write(config, settings.to_string())?)
}

/// "… listening on /ip4/127.0.0.1/tcp/5001" as a URL.
fn listening(output: &str, what: &str) -> Result<String> {
    let line = output.lines().find(|line| line.starts_with(what)).with_context(|| format!("no {what} in {output}"))?;
    let port = line.rsplit('/').next().unwrap_or_default();
    Ok(format!("http://127.0.0.1:{port}"))
}

async fn post(url: &str) -> Result<String> {
    let response = reqwest::Client::new().post(url).send().await?;
    let (status, text) = (response.status(), response.text().await?);
    ensure!(status.is_success(), "{url}: {status}: {text}");
    Ok(text)
}

/// A port that was free a moment ago.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn user() -> Result<String> {
    Ok(timed::run(Command::new("id").arg("-un"))?.stdout.trim().to_owned())
}
