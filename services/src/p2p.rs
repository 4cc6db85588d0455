//! The settings of the peer-to-peer network: options of the bridge, files that settings name, the identity of the peer.

use anyhow::Context as _;
use config::{AddressPattern, ConfigError, Loaded, Origin};
use content::dnslink::StaticMap;
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use p2p_bridge::names::keystore::{KeyError, Keystore};
use p2p_bridge::network_policy::NetworkPolicy;
use p2p_bridge::options::{
    BitswapOptions, ConnectionBudget, DhtMode, DhtOptions, HttpOptions, NatOptions, NoAnnounce, PrivateNetwork,
    ProvideOptions, ProvideStrategy, PublishOptions, ServeTo,
};
use p2p_bridge::private_network::SwarmKey;
use p2p_bridge::{BridgeOptions, identity};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Validates the files that settings of the network name, as a start does.
///
/// # Errors
/// [`ConfigError`] about the setting whose file is unusable.
pub fn check(loaded: &Loaded) -> Result<(), ConfigError> {
    static_map(loaded)?;
    if loaded.config.p2p.offline {
        return Ok(());
    }
    let options = options(loaded, forced())?;
    let Some(path) = options.private.key_file else { return Ok(()) };
    let wrong = |error| loaded.error("p2p.swarm_key", format!("{}: {error}", path.display()));
    SwarmKey::read(&path).map(drop).map_err(wrong)
}

/// The static names of `names.dnslink_map`.
///
/// # Errors
/// [`ConfigError`] about `names.dnslink_map` if its file cannot be read or parsed.
pub fn static_map(loaded: &Loaded) -> Result<StaticMap, ConfigError> {
    let path = &loaded.config.names.dnslink_map;
    if path.as_os_str().is_empty() {
        return Ok(StaticMap::default());
    }
    let wrong = |reason: String| loaded.error("names.dnslink_map", format!("{}: {reason}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    StaticMap::parse(&text).map_err(|error| wrong(error.to_string()))
}

/// How long opening the keystore waits for a command or node that has it open.
const KEYS_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens the keystore of IPNS keys exclusively.
///
/// # Errors
/// [`ConfigError`] about the data folder.
pub async fn open_keys(loaded: &Loaded) -> anyhow::Result<Keystore> {
    let dir = state_dir(&loaded.config.data_dir);
    let opening = tokio::task::spawn_blocking(move || Keystore::open(&dir, KEYS_TIMEOUT)).await;
    let opened = opening.context("opening the keystore failed")?;
    Ok(opened.map_err(|error: KeyError| loaded.error("data_dir", error.to_string()))?)
}

/// The folder of the state of the network.
pub fn state_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("p2p")
}

/// Set to "1" if the node must not join the public network, as in other libp2p implementations.
const FORCE_PRIVATE: &str = "LIBP2P_FORCE_PNET";

/// Whether the environment requires a private network.
pub fn forced() -> bool {
    std::env::var_os(FORCE_PRIVATE).is_some_and(|value| value == "1")
}

/// The bridge options of the settings. `forced`: the environment requires a private network.
///
/// # Errors
/// [`ConfigError`] when the settings do not give a private network that is required.
pub fn options(loaded: &Loaded, forced: bool) -> Result<BridgeOptions, ConfigError> {
    let (config, p2p) = (&loaded.config, &loaded.config.p2p);
    let private = private_network(loaded, forced)?;
    Ok(BridgeOptions {
        data_dir: state_dir(&config.data_dir),
        member_lookups: config.site.is_on(),
        listen: listen(loaded, &private)?,
        announce: p2p.announce.clone(),
        announce_also: p2p.announce_also.clone(),
        no_announce: no_announce(&p2p.no_announce),
        bootstrap: p2p.bootstrap.clone(),
        peering: p2p.peering.clone(),
        mdns: p2p.mdns,
        dial_private: p2p.dial_private,
        stall_timeout: Duration::from_secs(config.http.stall_timeout_seconds),
        dht: DhtOptions { mode: dht_mode(p2p.dht) },
        provide: ProvideOptions {
            strategy: provide_strategy(p2p.provide),
            every: hours(p2p.reprovide_hours),
            record_lifetime: hours(p2p.provider_record_hours),
        },
        publish: publish_options(loaded),
        http: HttpOptions {
            routers: p2p.routers.clone(),
            gateways: p2p.gateways.clone(),
            from_records: p2p.http_retrieval,
            cars: p2p.http_cars,
        },
        nat: NatOptions {
            relay_client: p2p.relay_client,
            relays: p2p.relays.clone(),
            hole_punching: p2p.hole_punching,
            upnp: p2p.upnp,
        },
        private,
        budget: budget(p2p),
        bitswap: BitswapOptions { serve_to: serve_to(p2p), dag_protocol: p2p.dag_protocol },
        policy: NetworkPolicy::default(),
    })
}

/// The defaults for publishing names.
pub fn publish_options(loaded: &Loaded) -> PublishOptions {
    let names = &loaded.config.names;
    PublishOptions {
        lifetime: hours(names.publish_lifetime_hours),
        every: hours(names.republish_hours),
        ttl: Duration::from_secs(names.publish_ttl_seconds),
        ..PublishOptions::default()
    }
}

/// The configured private network, or the public one if that is allowed.
fn private_network(loaded: &Loaded, forced: bool) -> Result<PrivateNetwork, ConfigError> {
    let p2p = &loaded.config.p2p;
    let key_file = key_file(&p2p.swarm_key, &loaded.config.data_dir);
    if key_file.is_some() {
        if let Some(public) = p2p.bootstrap.iter().find(|address| config::p2p::is_public_bootstrap(address)) {
            let reason = format!(
                "{public} belongs to the public network, but there is a swarm key: use bootstrap peers of the private \
                 network, or none"
            );
            return Err(loaded.error("p2p.bootstrap", reason));
        }
    } else if p2p.private_only || forced {
        let path = loaded.config.data_dir.join(SWARM_KEY);
        let reason = format!("there is no swarm key: set p2p.swarm_key, or copy the key to {}", path.display());
        let mut error = loaded.error("p2p.private_only", reason);
        if let (false, ConfigError::Value { origin, .. }) = (p2p.private_only, &mut error) {
            *origin = Origin::Variable(FORCE_PRIVATE.to_owned());
        }
        return Err(error);
    }
    Ok(PrivateNetwork { key_file })
}

/// The file name of the swarm key in the data directory.
const SWARM_KEY: &str = "swarm.key";

/// The file with the swarm key. Any directory entry of that name counts, also an unreadable one: a node whose key
/// cannot be read must fail, and not join the public network.
fn key_file(configured: &Path, data_dir: &Path) -> Option<PathBuf> {
    if !configured.as_os_str().is_empty() {
        return Some(configured.to_owned());
    }
    let path = data_dir.join(SWARM_KEY);
    let absent = std::fs::symlink_metadata(&path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    (!absent).then_some(path)
}

/// The listen addresses. QUIC does not support private networks: default addresses with QUIC are dropped, configured
/// ones are errors.
fn listen(loaded: &Loaded, private: &PrivateNetwork) -> Result<Vec<Multiaddr>, ConfigError> {
    let mut addresses = loaded.config.p2p.listen.clone();
    if private.key_file.is_none() {
        return Ok(addresses);
    }
    let over_udp = |address: &Multiaddr| address.iter().any(|part| matches!(part, Protocol::Udp(_)));
    match addresses.iter().find(|address| over_udp(address)) {
        Some(address) if loaded.origin("p2p.listen") != Origin::Default => {
            let reason = format!("{address} is not TCP, but there is a swarm key: private networks support TCP only");
            Err(loaded.error("p2p.listen", reason))
        }
        _ => {
            addresses.retain(|address| !over_udp(address));
            Ok(addresses)
        }
    }
}

fn no_announce(patterns: &[AddressPattern]) -> NoAnnounce {
    let mut hidden = NoAnnounce::default();
    for pattern in patterns {
        match pattern {
            AddressPattern::Network(network) => hidden.networks.push(*network),
            AddressPattern::Prefix(address) => hidden.prefixes.push(address.clone()),
        }
    }
    hidden
}

fn dht_mode(mode: config::DhtMode) -> DhtMode {
    match mode {
        config::DhtMode::Auto => DhtMode::Auto,
        config::DhtMode::Server => DhtMode::Server,
        config::DhtMode::Client => DhtMode::Client,
        config::DhtMode::Off => DhtMode::Off,
    }
}

fn provide_strategy(provide: config::Provide) -> ProvideStrategy {
    match provide {
        config::Provide::Roots => ProvideStrategy::Roots,
        config::Provide::Pinned => ProvideStrategy::Pinned,
        config::Provide::All => ProvideStrategy::All,
        config::Provide::Nothing => ProvideStrategy::Nothing,
    }
}

fn budget(p2p: &config::P2p) -> ConnectionBudget {
    let count = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    ConnectionBudget {
        connections_max: count(p2p.connections_max),
        per_ip_max: count(p2p.connections_per_ip_max),
        per_subnet_max: count(p2p.connections_per_subnet_max),
        pending_dials_max: count(p2p.pending_dials_max),
        memory_bytes_max: usize::try_from(p2p.network_memory_bytes_max).unwrap_or(usize::MAX),
        ban: Duration::from_secs(p2p.ban_seconds),
    }
}

/// The peers of `p2p.serve_to`.
pub fn serve_to(p2p: &config::P2p) -> ServeTo {
    let config::ServeTo::Only { peerings, peers } = &p2p.serve_to else { return ServeTo::Everyone };
    let peerings = p2p.peering.iter().filter(|_| *peerings);
    let peerings = peerings.filter_map(|address| match address.iter().last() {
        Some(Protocol::P2p(peer)) => Some(peer),
        _ => None,
    });
    ServeTo::Only(peerings.chain(peers.iter().copied()).collect())
}

/// A setting in hours, of which the settings allow at most a year.
fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours.saturating_mul(3600))
}

/// The peer ID of the node, whose key is generated when it does not exist.
///
/// # Errors
/// When the key cannot be read or created.
pub fn peer_id(data_dir: &Path) -> anyhow::Result<PeerId> {
    Ok(identity(data_dir)?.public().to_peer_id())
}

/// A secret of this node for a use of its own, which is the same after a restart: derived from the peer's key, and
/// `None` if that key's type cannot derive any.
///
/// # Errors
/// When the key cannot be read or created.
pub fn derive_secret(data_dir: &Path, usage: &str) -> anyhow::Result<Option<[u8; 32]>> {
    Ok(identity(data_dir)?.derive_secret(usage.as_bytes()))
}

fn identity(data_dir: &Path) -> anyhow::Result<Keypair> {
    identity::load_or_create(&state_dir(data_dir)).context("reading or creating the peer's identity failed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    const PEER: &str = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";

    fn loaded(data_dir: &Path, variables: &[(&str, &str)]) -> Loaded {
        let data_dir = data_dir.to_str().expect("a name in UTF-8");
        let all = [("DATA_DIR", data_dir)].into_iter().chain(variables.iter().copied());
        let environment = all.map(|(key, value)| (OsString::from(format!("CAUSEWAY_{key}")), OsString::from(value)));
        config::load(&config::Flags::default(), environment).expect("good settings")
    }

    #[test]
    fn the_default_settings_are_the_defaults_of_the_bridge() {
        let dir = tempfile::tempdir().expect("a folder");
        let defaults = config::P2p::default();
        let (listen, bootstrap) = (defaults.listen, defaults.bootstrap);
        let expected = BridgeOptions { listen, bootstrap, ..BridgeOptions::new(dir.path().join("p2p")) };
        assert_eq!(options(&loaded(dir.path(), &[]), false).expect("good settings"), expected);
    }

    #[test]
    fn settings_that_make_a_private_network_public_are_rejected() {
        let none = ("P2P_BOOTSTRAP", "none");
        let quic = ("P2P_LISTEN", "/ip4/127.0.0.1/tcp/0,/ip4/127.0.0.1/udp/0/quic-v1");
        let key = ("P2P_SWARM_KEY", "some.key");
        let only = ("P2P_PRIVATE_ONLY", "true");
        type Row<'a> = (&'a [(&'a str, &'a str)], bool, bool, &'a str);
        let table: [Row<'_>; 9] = [
            (&[key], false, false, "p2p.bootstrap: /dnsaddr/bootstrap.libp2p.io/p2p/"),
            (&[none], true, true, ""),
            (&[], true, false, "p2p.bootstrap: "),
            (&[key, none], false, true, ""),
            (&[key, none, quic], false, false, "p2p.listen: /ip4/127.0.0.1/udp/0/quic-v1 is not TCP"),
            (&[quic], false, true, ""),
            (&[only], false, false, "p2p.private_only: there is no swarm key"),
            (&[only, none], true, true, ""),
            (&[only, key, none], false, true, ""),
        ];
        for (variables, file, good, expected) in table {
            let dir = tempfile::tempdir().expect("a folder");
            if file {
                std::fs::write(dir.path().join("swarm.key"), "").expect("writes");
            }
            match options(&loaded(dir.path(), variables), false) {
                Ok(_) => assert!(good, "{variables:?} should be rejected with {expected}"),
                Err(error) => assert!(!good && error.to_string().starts_with(expected), "{variables:?}: {error}"),
            }
        }
    }

    #[test]
    fn the_environment_can_force_a_private_network() {
        let dir = tempfile::tempdir().expect("a folder");
        let error = options(&loaded(dir.path(), &[]), true).expect_err("there is no key").to_string();
        assert!(error.ends_with("(set by environment variable LIBP2P_FORCE_PNET)"), "{error}");
        let private = loaded(dir.path(), &[("P2P_SWARM_KEY", "some.key"), ("P2P_BOOTSTRAP", "none")]);
        let options = options(&private, true).expect("there is a key");
        assert_eq!(options.private.key_file, Some(PathBuf::from("some.key")));
        assert_eq!(options.listen, ["/ip4/0.0.0.0/tcp/4001".parse().expect("a multiaddr")], "without QUIC");
    }

    #[test]
    fn transfers_of_dags_can_be_turned_on_and_off() {
        let dir = tempfile::tempdir().expect("a folder");
        for (variables, expected) in [
            (&[][..], [true, false]),
            (&[("P2P_DAG_PROTOCOL", "false")], [false; 2]),
            (&[("P2P_HTTP_CARS", "true")], [true; 2]),
        ] {
            let options = options(&loaded(dir.path(), variables), false).expect("good settings");
            assert_eq!([options.bitswap.dag_protocol, options.http.cars], expected);
        }
    }

    #[test]
    fn served_peers_include_the_peerings_if_configured() {
        let dir = tempfile::tempdir().expect("a folder");
        let other = PeerId::random();
        let peering = format!("/ip4/127.0.0.1/tcp/1/p2p/{PEER}");
        let peer: PeerId = PEER.parse().expect("a peer id");
        let table = [
            ("everyone".to_owned(), ServeTo::Everyone),
            ("none".to_owned(), ServeTo::Only([].into())),
            ("peerings".to_owned(), ServeTo::Only([peer].into())),
            (format!("peerings,{other}"), ServeTo::Only([peer, other].into())),
            (other.to_string(), ServeTo::Only([other].into())),
        ];
        for (setting, expected) in table {
            let loaded = loaded(dir.path(), &[("P2P_PEERING", &peering), ("P2P_SERVE_TO", &setting)]);
            let options = options(&loaded, false).expect("good settings");
            assert_eq!(options.bitswap.serve_to, expected, "{setting}");
        }
    }
}
