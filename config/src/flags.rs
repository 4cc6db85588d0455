//! The command-line flags that set keys. They take values as text, which [`mod@crate::load`] validates, so that a flag,
//! an environment variable and a line of the file give the same errors.

use std::path::PathBuf;
use toml::Value;

/// Settings on the command line. They override the environment, which overrides the file, which overrides the defaults.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Flags {
    /// Read settings from this TOML file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Keep blocks, pins and the peer's identity in this folder
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<String>,
    /// Address and port of the public listener, or unix:/PATH (repeatable)
    #[arg(long, value_name = "ADDR")]
    pub listen: Vec<String>,
    /// Address and port of the admin listener, or unix:/PATH (repeatable; "none" turns it off)
    #[arg(long, value_name = "ADDR")]
    pub admin_listen: Vec<String>,
    /// Accept this bearer token on the admin listener; CAUSEWAY_ADMIN_TOKEN keeps it out of the process list
    #[arg(long, value_name = "TOKEN")]
    pub admin_token: Option<String>,
    /// Listen for peers on this multiaddr (repeatable)
    #[arg(long, value_name = "MULTIADDR")]
    pub p2p_listen: Vec<String>,
    /// Announce this multiaddr to peers, and no others (repeatable)
    #[arg(long, value_name = "MULTIADDR")]
    pub announce: Vec<String>,
    /// DHT mode: auto, server, client or off
    #[arg(long, value_name = "MODE")]
    pub dht: Option<String>,
    /// Dial private addresses from the DHT, provider records and routers; for tests and private networks
    #[arg(long)]
    pub dial_private: bool,
    /// Content to announce in the DHT: roots, pinned, all or none
    #[arg(long, value_name = "WHAT")]
    pub provide: Option<String>,
    /// Also query this /routing/v1 service for providers and IPNS records (repeatable)
    #[arg(long, value_name = "URL")]
    pub router: Vec<String>,
    /// Also fetch blocks from this trustless gateway (repeatable)
    #[arg(long, value_name = "URL")]
    pub gateway: Vec<String>,
    /// Join the private network with the pre-shared key in this file
    #[arg(long, value_name = "FILE")]
    pub swarm_key: Option<String>,
    /// Bootstrap peer (repeatable; "none" for no bootstrap peers)
    #[arg(long, value_name = "MULTIADDR")]
    pub bootstrap: Vec<String>,
    /// Stay connected to this peer and request blocks from it first (repeatable)
    #[arg(long, value_name = "MULTIADDR")]
    pub peering: Vec<String>,
    /// Resolve names from this file of NAME:PATH entries without lookups
    #[arg(long, value_name = "FILE")]
    pub dnslink_map: Option<String>,
    /// Serve only content that is stored locally, without connecting to peers
    #[arg(long)]
    pub offline: bool,
}

impl Flags {
    /// The flags that were given, as (flag, key, value).
    pub(crate) fn settings(&self) -> Vec<(&'static str, &'static str, Value)> {
        let text = |text: &Option<String>| text.as_ref().map(|text| Value::String(text.clone()));
        let list =
            |texts: &Vec<String>| (!texts.is_empty()).then(|| crate::values::list(texts.iter().map(String::as_str)));
        let yes = |given: bool| given.then_some(Value::Boolean(true));
        let all = [
            ("--data-dir", "data_dir", text(&self.data_dir)),
            ("--listen", "http.listen", list(&self.listen)),
            ("--admin-listen", "admin.listen", list(&self.admin_listen)),
            ("--admin-token", "admin.token", text(&self.admin_token)),
            ("--p2p-listen", "p2p.listen", list(&self.p2p_listen)),
            ("--announce", "p2p.announce", list(&self.announce)),
            ("--dht", "p2p.dht", text(&self.dht)),
            ("--dial-private", "p2p.dial_private", yes(self.dial_private)),
            ("--provide", "p2p.provide", text(&self.provide)),
            ("--router", "p2p.routers", list(&self.router)),
            ("--gateway", "p2p.gateways", list(&self.gateway)),
            ("--swarm-key", "p2p.swarm_key", text(&self.swarm_key)),
            ("--bootstrap", "p2p.bootstrap", list(&self.bootstrap)),
            ("--peering", "p2p.peering", list(&self.peering)),
            ("--dnslink-map", "names.dnslink_map", text(&self.dnslink_map)),
            ("--offline", "p2p.offline", yes(self.offline)),
        ];
        all.into_iter().filter_map(|(flag, key, value)| Some((flag, key, value?))).collect()
    }
}
