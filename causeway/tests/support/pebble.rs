//! Pebble, an ACME server for tests, with the DNS server that it validates names with. Both use loopback only.

use super::nginx::free_address;
use super::process::Process;
use super::{client, eventually};
use serde_json::json;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const VERSION: &str = "2.10.1";
const START: Duration = Duration::from_secs(60);

/// The folder of both programs.
fn programs() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let tools = variable("CAUSEWAY_TOOLS").or_else(|| Some(cache()?.join("causeway")));
    let folder = tools.expect("HOME is set").join(format!("pebble-{VERSION}"));
    assert!(folder.join("pebble").exists(), "{} is missing. Run `make pebble` first: it builds it.", folder.display());
    folder
}

/// A DNS server that answers every name with 127.0.0.1, and TXT records as they are set over HTTP.
pub struct DnsServer {
    address: SocketAddr,
    management: SocketAddr,
    _process: Process,
}

impl DnsServer {
    /// Starts it, and waits until it can be managed.
    pub async fn start(dir: &Path) -> Self {
        let (address, management) = (free_address(), free_address());
        let mut command = Command::new(programs().join("pebble-challtestsrv"));
        command.args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "", "-defaultIPv6", ""]);
        command.args(["-dnsserver", &address.to_string(), "-management", &management.to_string()]);
        let process = Process::spawn("pebble-challtestsrv", &mut command, dir);
        let url = format!("http://{management}/clear-txt");
        eventually("the DNS server can be managed", START, async || {
            client().post(&url).body(r#"{"host":"nothing."}"#).send().await
        })
        .await;
        Self { address, management, _process: process }
    }

    /// A hook for dns-01 that sets records in this server, and appends its arguments to a file.
    pub fn hook(&self, dir: &Path, log: &Path) -> PathBuf {
        let hook = dir.join("dns-hook");
        let (management, log) = (self.management, log.display());
        let post = "curl -sf --noproxy '*' -d";
        let script = format!(
            "#!/bin/sh\nset -e\necho \"$1 $2 $(env | grep -c ^CAUSEWAY_ || true)\" >> '{log}'\n\
             case $1 in\n\
             present) {post} \"{{\\\"host\\\":\\\"$2.\\\",\\\"value\\\":\\\"$3\\\"}}\" http://{management}/set-txt ;;\n\
             cleanup) {post} \"{{\\\"host\\\":\\\"$2.\\\"}}\" http://{management}/clear-txt ;;\n\
             esac\n"
        );
        fs::write(&hook, script).expect("the folder is ours");
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).expect("the file is ours");
        hook
    }
}

/// The addresses of a server, which it keeps over restarts, and its files.
pub struct Pebble {
    dir: PathBuf,
    api: SocketAddr,
    management: SocketAddr,
    dns: SocketAddr,
    process: Option<Process>,
}

impl Pebble {
    /// Starts a server that validates names at these addresses of a gateway, and issues certificates of this lifetime.
    pub async fn start(dir: &Path, dns: &DnsServer, http: SocketAddr, tls: SocketAddr, lifetime: Duration) -> Self {
        let (api, management) = (free_address(), free_address());
        let names = ["localhost", "127.0.0.1"].map(str::to_owned);
        let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(names).expect("is created");
        let settings = json!({ "pebble": {
            "listenAddress": api.to_string(),
            "managementListenAddress": management.to_string(),
            "certificate": dir.join("api.pem"),
            "privateKey": dir.join("api.key"),
            "httpPort": http.port(),
            "tlsPort": tls.port(),
            "keyAlgorithm": "ecdsa",
            "retryAfter": { "authz": 1, "order": 1 },
            "profiles": { "default": { "description": "for tests", "validityPeriod": lifetime.as_secs() } },
        }});
        let files =
            [("api.pem", cert.pem()), ("api.key", signing_key.serialize_pem()), ("pebble.json", settings.to_string())];
        files.into_iter().for_each(|(name, text)| fs::write(dir.join(name), text).expect("the folder is ours"));
        let mut pebble = Self { dir: dir.to_owned(), api, management, dns: dns.address, process: None };
        pebble.restart().await;
        pebble
    }

    /// Starts it again, without any memory of accounts and certificates.
    pub async fn restart(&mut self) {
        let mut command = Command::new(programs().join("pebble"));
        command.arg("-config").arg(self.dir.join("pebble.json")).args(["-dnsserver", &self.dns.to_string()]);
        // Validations begin at once, and each name is validated again for each order.
        command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_AUTHZREUSE", "0");
        self.process = Some(Process::spawn("pebble", &mut command, &self.dir));
        let root = self.dir.join("root.pem");
        let url = format!("https://{}/roots/0", self.management);
        eventually("Pebble has a root certificate", START, async || {
            let output =
                Command::new("curl").args(["-skf", "--noproxy", "*", &url]).output().expect("curl is installed");
            let is_pem = output.stdout.starts_with(b"-----BEGIN CERTIFICATE");
            is_pem.then(|| fs::write(&root, output.stdout).expect("the folder is ours")).ok_or("not yet")
        })
        .await;
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// The URL of its directory.
    pub fn directory(&self) -> String {
        format!("https://{}/dir", self.api)
    }

    /// The certificate of its own API, which a client must trust.
    pub fn ca(&self) -> PathBuf {
        self.dir.join("api.pem")
    }

    /// The root of the certificates that it issues.
    pub fn root(&self) -> PathBuf {
        self.dir.join("root.pem")
    }
}
