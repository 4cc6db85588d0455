//! The command-line flags that set keys. Values are taken as text here and checked in [`mod@crate::load`], so that a flag,
//! a variable and a line of the file are refused with the same words.

use std::path::PathBuf;
use toml::Value;

/// Settings on the command line; they beat the environment, which beats the file, which beats the defaults.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Flags {
    /// Read settings from this TOML file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Keep blocks, pins and the peer's identity in this folder
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<String>,
    /// Answer the public on this address and port (repeatable)
    #[arg(long, value_name = "ADDR")]
    pub listen: Vec<String>,
    /// Answer the operator on this address and port (repeatable; "none" for no admin listener)
    #[arg(long, value_name = "ADDR")]
    pub admin_listen: Vec<String>,
    /// Ask for this bearer token on the admin listener; CAUSEWAY_ADMIN_TOKEN keeps it out of the process list
    #[arg(long, value_name = "TOKEN")]
    pub admin_token: Option<String>,
    /// Listen for peers on this multiaddr (repeatable)
    #[arg(long, value_name = "MULTIADDR")]
    pub p2p_listen: Vec<String>,
    /// Tell peers to reach this node on this multiaddr, and on no other (repeatable)
    #[arg(long, value_name = "MULTIADDR")]
    pub announce: Vec<String>,
    /// Take this part in the DHT: auto, server, client or off
    #[arg(long, value_name = "MODE")]
    pub dht: Option<String>,
    /// Dial private addresses that the network names; for tests and private networks
    #[arg(long)]
    pub dial_private: bool,
    /// Announce this as to be had here: roots, pinned, all or none
    #[arg(long, value_name = "WHAT")]
    pub provide: Option<String>,
    /// Ask this /routing/v1 service for providers and IPNS records too (repeatable)
    #[arg(long, value_name = "URL")]
    pub router: Vec<String>,
    /// Ask this trustless gateway for blocks too (repeatable)
    #[arg(long, value_name = "URL")]
    pub gateway: Vec<String>,
    /// Join the private network of the key in this file
    #[arg(long, value_name = "FILE")]
    pub swarm_key: Option<String>,
    /// Join the network through this peer (repeatable; "none" for nobody)
    #[arg(long, value_name = "MULTIADDR")]
    pub bootstrap: Vec<String>,
    /// Stay connected to this peer and ask it first (repeatable)
    #[arg(long, value_name = "MULTIADDR")]
    pub peering: Vec<String>,
    /// Resolve the names in this file of NAME:PATH entries without looking them up
    #[arg(long, value_name = "FILE")]
    pub dnslink_map: Option<String>,
    /// Serve only what is held here, without any peer
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
