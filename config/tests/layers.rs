//! The precedence of the layers, and the error messages.

use clap::Parser;
use config::{Config, ConfigError, DhtMode, Flags, Loaded, Origin, Provide, keys, load};
use std::ffi::OsString;
use std::path::PathBuf;
use toml::Value;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    flags: Flags,
}

fn with(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
    let cli = Cli::try_parse_from(["causeway"].iter().chain(arguments)).expect("arguments");
    load(&cli.flags, environment.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))))
}

fn file(text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("causeway.toml");
    std::fs::write(&path, text).expect("writes");
    (dir, path.display().to_string())
}

fn error_of(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let message = with(arguments, environment).expect_err("is rejected").to_string();
    assert!(!message.contains('\n'), "more than one line: {message}");
    message
}

#[test]
fn nothing_set_gives_the_defaults() {
    let loaded = with(&[], &[("PATH", "/bin"), ("OTHER", "x")]).expect("loads");
    assert_eq!(loaded.config, Config::default());
    assert!(loaded.origins.is_empty());
}

#[test]
fn flags_beat_the_environment_beats_the_file_beats_the_defaults() {
    let (_dir, path) = file("data_dir = \"from-file\"\n[http]\nlisten = [\"127.0.0.1:1\"]\nconnections_max = 7\n");
    let config = ["--config", path.as_str()];
    let listen = |loaded: &Loaded| loaded.config.http.listen[0].tcp().expect("an address").port();

    let loaded = with(&config, &[]).expect("loads");
    assert_eq!((listen(&loaded), loaded.config.http.connections_max), (1, 7));
    assert_eq!(loaded.config.data_dir, PathBuf::from("from-file"));
    assert_eq!(loaded.origin("http.listen"), Origin::File(path.clone().into(), 3));

    let environment = [("CAUSEWAY_HTTP_LISTEN", "127.0.0.1:2, [::1]:3")];
    let loaded = with(&config, &environment).expect("loads");
    assert_eq!((listen(&loaded), loaded.config.http.listen.len()), (2, 2));
    assert_eq!(loaded.config.http.connections_max, 7, "other keys keep the file's value");

    let loaded = with(&[config[0], config[1], "--listen", "127.0.0.1:4"], &environment).expect("loads");
    assert_eq!((listen(&loaded), loaded.config.http.listen.len()), (4, 1));
    assert_eq!(loaded.origin("http.listen"), Origin::Flag("--listen"));
}

#[test]
fn the_environment_can_name_the_file() {
    let (_dir, path) = file("[log]\nformat = \"json\"\n");
    let loaded = with(&[], &[("CAUSEWAY_CONFIG", &path)]).expect("loads");
    assert_eq!(loaded.config.log.format, config::LogFormat::Json);
}

/// A value other than the default, as the text of an environment variable.
fn other_value(key: &str, default: &Value) -> String {
    const PEER: &str = "/ip4/127.0.0.1/tcp/9/p2p/QmaCpDMGvV2BGHeYERUEnRQAwe3N8SzbUtfsmvsqQLuvuJ";
    match (key, default) {
        (_, Value::Integer(number)) => (number + 1).to_string(),
        (_, Value::Boolean(yes)) => (!yes).to_string(),
        (_, Value::Float(number)) => (number / 2.0).to_string(),
        ("http.listen" | "http.tls_listen" | "admin.listen", _) => "127.0.0.1:9,127.0.0.2:9".to_owned(),
        ("http.acme_directory", _) => "https://ca.example/directory".to_owned(),
        ("http.acme_contact", _) => "you@example.org,mailto:other@example.org".to_owned(),
        ("http.acme_names", _) => "example.org,*.ipfs.example.org".to_owned(),
        ("http.acme_challenges", _) => "http-01".to_owned(),
        ("http.hosts", _) => "example.com,example.org".to_owned(),
        ("http.trusted_proxies", _) => "10.0.0.0/8,::1,unix:".to_owned(),
        ("http.proxy_protocol", _) => "127.0.0.1:8080".to_owned(),
        ("http.unix_mode" | "admin.unix_mode", _) => "0600".to_owned(),
        ("policy.deny", _) => "QmaCpDMGvV2BGHeYERUEnRQAwe3N8SzbUtfsmvsqQLuvuJ".to_owned(),
        ("policy.caches", _) => "refresh+http://127.0.0.1,purge+https://example.org".to_owned(),
        ("policy.denylists" | "policy.allowlists", _) => "lists/a.deny,https://example.org/b.deny".to_owned(),
        ("policy.mode", _) => "allow".to_owned(),
        ("names.doh", _) => "eth=https://dns.example.org/".to_owned(),
        ("p2p.no_announce", _) => "10.0.0.0/8,/ip4/192.0.2.1".to_owned(),
        ("p2p.routers" | "p2p.gateways", _) => "https://example.org,http://127.0.0.1:8190".to_owned(),
        ("p2p.serve_to", _) => "peerings".to_owned(),
        ("p2p.dht", _) => "server".to_owned(),
        ("p2p.provide", _) => "all".to_owned(),
        ("cache.ram_policy", _) => "lru".to_owned(),
        ("cache.store", _) => "flat".to_owned(),
        ("site.database", _) => "postgresql://u:hunter2@db.example/d".to_owned(),
        ("site.store", _) => "s3://bucket/prefix".to_owned(),
        ("site.s3_addressing", _) => "virtual_host".to_owned(),
        ("site.isolated", _) => "refuse".to_owned(),
        ("site.names", _) => "shared".to_owned(),
        ("telemetry.otlp_endpoint", _) => "https://collector.example.org:4318".to_owned(),
        ("telemetry.resource_attributes", _) => "deployment.environment.name=test,a=b".to_owned(),
        (_, Value::Array(_)) => PEER.to_owned(),
        ("log.format", _) => "json".to_owned(),
        ("log.access", _) => "log".to_owned(),
        ("log.access_format", _) => "json".to_owned(),
        ("log.access_addresses", _) => "truncated".to_owned(),
        _ => "something".to_owned(),
    }
}

#[test]
fn every_key_can_be_set_by_its_variable() {
    for (key, default) in keys::all() {
        let variable = keys::variable(&key);
        let mut environment = vec![(variable.clone(), other_value(&key, &default))];
        // Settings that are only valid together.
        let others: &[(&str, &str)] = match &*key {
            "http.tls_listen" => &[("http.tls_certificate", "other"), ("http.tls_key", "other")],
            "http.tls_certificate" => &[("http.tls_listen", "127.0.0.1:0"), ("http.tls_key", "other")],
            "http.tls_key" => &[("http.tls_listen", "127.0.0.1:0"), ("http.tls_certificate", "other")],
            "http.acme_directory" => &[
                ("http.tls_listen", "127.0.0.1:0"),
                ("http.acme_terms_agreed", "true"),
                ("http.acme_names", "example.org"),
            ],
            "http.acme_on_demand" => &[
                ("http.tls_listen", "127.0.0.1:0"),
                ("http.acme_directory", "https://ca.example/directory"),
                ("http.acme_terms_agreed", "true"),
            ],
            "http.http3" => {
                &[("http.tls_listen", "127.0.0.1:0"), ("http.tls_certificate", "other"), ("http.tls_key", "other")]
            }
            "http.proxy_protocol" => &[("http.trusted_proxies", "127.0.0.1")],
            "admin.tls_certificate" => &[("admin.tls_key", "other")],
            "admin.tls_key" => &[("admin.tls_certificate", "other")],
            "policy.caches" => &[("http.hosts", "other")],
            "log.access_file" => &[("log.access_format", "text")],
            "site.name" => &[("site.database_file", "other"), ("site.store", "file:///mnt/x")],
            "site.database" | "site.database_file" => &[("site.name", "other"), ("site.store", "file:///mnt/x")],
            "site.store" => &[("site.name", "other"), ("site.database_file", "other")],
            "site.isolated" => {
                &[("site.name", "other"), ("site.database_file", "other"), ("site.store", "file:///mnt/x")]
            }
            "site.names" => &[
                ("site.name", "other"),
                ("site.database_file", "other"),
                ("site.store", "file:///mnt/x"),
                ("site.names_key_file", "other"),
            ],
            "site.names_key_file" => &[
                ("site.name", "other"),
                ("site.database_file", "other"),
                ("site.store", "file:///mnt/x"),
                ("site.names", "shared"),
            ],
            _ => &[],
        };
        environment.extend(others.iter().map(|(other, value)| (keys::variable(other), (*value).to_owned())));
        let environment: Vec<_> = environment.iter().map(|(key, value)| (&**key, &**value)).collect();
        let loaded = with(&[], &environment).expect(&key);
        assert_ne!(loaded.config, Config::default(), "{variable} changes nothing");
        assert_eq!(loaded.origin(&key), Origin::Variable(variable));
    }
}

#[test]
fn every_key_can_be_set_by_the_file() {
    let text = toml::to_string(&Config::default()).expect("renders");
    let (_dir, path) = file(&text);
    let loaded = with(&["--config", &path], &[]).expect("loads");
    assert_eq!(loaded.config, Config::default());
    assert_eq!(loaded.origins.len(), keys::all().len());
}

#[test]
fn sizes_have_units_in_every_layer() {
    let (_dir, path) = file("[cache]\nram_bytes_max = \"2GiB\"\n[http]\nlisten = [\"localhost:81\"]\n");
    let loaded = with(&["--config", &path], &[("CAUSEWAY_CACHE_DISK_BYTES_MAX", "3 TB")]).expect("loads");
    assert_eq!(loaded.config.cache.ram_bytes_max, 2 << 30);
    assert_eq!(loaded.config.cache.disk_bytes_max, 3_000_000_000_000);
    assert_eq!(loaded.config.http.listen[0].to_string(), "127.0.0.1:81");
}

#[test]
fn lists_can_be_emptied() {
    for arguments in [&["--bootstrap", "none"][..], &[]] {
        let environment: &[(&str, &str)] = if arguments.is_empty() { &[("CAUSEWAY_P2P_BOOTSTRAP", "")] } else { &[] };
        assert!(with(arguments, environment).expect("loads").config.p2p.bootstrap.is_empty());
    }
    assert!(with(&[], &[("CAUSEWAY_ADMIN_LISTEN", "none")]).expect("loads").config.admin.listen.is_empty());
}

#[test]
fn doh_resolvers_are_suffixes_and_urls() {
    let names = with(&[], &[("CAUSEWAY_NAMES_DOH", "eth=https://a.example/q,.=https://b.example/")])
        .expect("loads")
        .config
        .names;
    let routes: Vec<String> = names.doh.iter().map(ToString::to_string).collect();
    assert_eq!(routes, ["eth=https://a.example/q", ".=https://b.example/"]);
    assert_eq!((names.doh[1].suffix.as_str(), names.doh[1].url.as_str()), (".", "https://b.example/"));
}

#[test]
fn every_flag_sets_its_key() {
    const PEER: &str = "/dns4/example.org/tcp/4001/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
    let arguments = [
        "--data-dir",
        "d",
        "--listen",
        "127.0.0.1:0",
        "--listen",
        "[::1]:0",
        "--admin-listen",
        "127.0.0.1:1",
        "--admin-token",
        "t",
        "--p2p-listen",
        "/ip4/0.0.0.0/tcp/0",
        "--announce",
        "/dns4/example.org/tcp/4001",
        "--bootstrap",
        PEER,
        "--peering",
        PEER,
        "--peering",
        PEER,
        "--dnslink-map",
        "map",
        "--offline",
        "--dht",
        "client",
        "--dial-private",
        "--provide",
        "none",
        "--router",
        "https://a.example",
        "--router",
        "http://b.example/",
        "--gateway",
        "https://c.example",
        "--swarm-key",
        "key",
    ];
    let Config { data_dir, http, admin, p2p, names, .. } = with(&arguments, &[]).expect("loads").config;
    assert_eq!((data_dir, http.listen.len(), admin.token.reveal()), (PathBuf::from("d"), 2, Some("t")));
    assert_eq!((p2p.listen.len(), p2p.announce.len(), p2p.bootstrap.len(), p2p.peering.len()), (1, 1, 1, 2));
    assert!(p2p.offline && admin.listen[0].to_string().ends_with(":1"));
    assert_eq!(names.dnslink_map, PathBuf::from("map"));
    assert_eq!((p2p.dht, p2p.dial_private, p2p.provide), (DhtMode::Client, true, Provide::Nothing));
    assert_eq!((p2p.routers, p2p.gateways.len()), (vec!["https://a.example".into(), "http://b.example".into()], 1));
    assert_eq!(p2p.swarm_key, PathBuf::from("key"));
}

#[test]
fn errors_in_the_file_name_the_line() {
    let table = [
        ("\n[http]\nlistn = []\n", 3, "unknown setting \"http.listn\"; the most similar one is \"http.listen\""),
        ("x = 1\n", 1, "unknown setting \"x\""),
        ("[htp]\nlisten = []\n", 1, "unknown setting \"htp\""),
        ("http = 3\n", 1, "http: is a section"),
        ("[http]\n\nlisten = [\"localhost\"]\n", 3, "http.listen: \"localhost\" is not an address and port"),
        ("[http]\nlisten = 8080\n", 2, "http.listen: 8080 is not a list: write strings"),
        ("[http]\nconnections_max = -1\n", 2, "http.connections_max: -1 is less than zero"),
        ("[http]\nconnections_max = 0\n", 2, "http.connections_max: 0 is too small"),
        ("[p2p]\nlisten = [\"127.0.0.1\"]\n", 2, "p2p.listen: \"127.0.0.1\" is not a multiaddr"),
        ("[p2p]\npeering = [\"/ip4/127.0.0.1/tcp/1\"]\n", 2, "p2p.peering: \"/ip4/127.0.0.1/tcp/1\" has no peer ID"),
        ("[names]\ndoh = [\"eth\"]\n", 2, "names.doh: \"eth\" is not SUFFIX=URL"),
        ("[names]\ndoh = [\"eth=http://127.0.0.1/\"]\n", 2, "names.doh: \"eth=http://127.0.0.1/\" is not SUFFIX=URL"),
        ("[names]\ntimeout_seconds = 0\n", 2, "names.timeout_seconds: 0 is too small"),
        ("[names]\nrepublish_hours = 48\n", 2, "names.republish_hours: names.republish_hours (48) must be less than"),
        ("[names]\npublish_lifetime_hours = 3\n", 2, "names.publish_lifetime_hours: names.republish_hours (4) must be"),
        ("[names]\npublish_lifetime_hours = 9999\n", 2, "names.publish_lifetime_hours: 9999 is too large"),
        ("[names]\npublish_ttl_seconds = 999999\n", 2, "names.publish_ttl_seconds: names.publish_ttl_seconds (999999)"),
        (
            "[names]\nstale_if_error_seconds = 59\n",
            2,
            "names.stale_if_error_seconds (59) must not be less than names.stale_while_revalidate_seconds",
        ),
        ("[names]\nrefresh_wait_seconds = 99999999\n", 2, "names.refresh_wait_seconds: 99999999 is too large"),
        ("[names]\npublish_ttl_seconds = 0\n", 2, "names.publish_ttl_seconds: 0 is too small"),
        ("[p2p]\ndht = \"on\"\n", 2, "p2p.dht: \"on\" is not one of auto,"),
        ("[cache]\nstore = \"sqlite\"\n", 2, "cache.store: \"sqlite\" is not one of rocksdb, flat"),
        ("[p2p]\nprovide = \"everything\"\n", 2, "p2p.provide: \"everything\" is not one of roots,"),
        ("[p2p]\nreprovide_hours = 0\n", 2, "p2p.reprovide_hours: 0 is too small"),
        ("[p2p]\nreprovide_hours = 48\n", 2, "p2p.reprovide_hours: p2p.reprovide_hours (48) must be less than"),
        ("[p2p]\nprovider_record_hours = 22\n", 2, "p2p.provider_record_hours: p2p.reprovide_hours (22) must be less"),
        ("[p2p]\nprovider_record_hours = 9999\n", 2, "p2p.provider_record_hours: 9999 is too large"),
        ("[p2p]\nannounce_also = [\"example.org\"]\n", 2, "p2p.announce_also: \"example.org\" is not a multiaddr"),
        ("[p2p]\nno_announce = [\"10.0.0.0/99\"]\n", 2, "p2p.no_announce: \"10.0.0.0/99\" is neither an address nor"),
        ("[p2p]\nno_announce = [\"/ip4\"]\n", 2, "p2p.no_announce: \"/ip4\" is not a multiaddr"),
        ("[p2p]\nrouters = [\"example.org\"]\n", 2, "p2p.routers: \"example.org\" is not a base URL"),
        ("[p2p]\nrouters = [\"https://a.example/routing/v1\"]\n", 2, "leave out /routing/v1"),
        ("[p2p]\ngateways = [\"https://a.example/ipfs/\"]\n", 2, "leave out /ipfs"),
        ("[p2p]\nrelays = [\"/ip4/127.0.0.1/tcp/1\"]\n", 2, "p2p.relays: \"/ip4/127.0.0.1/tcp/1\" has no peer ID"),
        ("[p2p]\nconnections_max = 0\n", 2, "p2p.connections_max: 0 is too small"),
        ("[p2p]\nconnections_per_ip_max = 0\n", 2, "p2p.connections_per_ip_max: 0 is too small"),
        ("[p2p]\nconnections_per_subnet_max = 0\n", 2, "p2p.connections_per_subnet_max: 0 is too small"),
        ("[p2p]\npending_dials_max = 0\n", 2, "p2p.pending_dials_max: 0 is too small"),
        ("[p2p]\nnetwork_memory_bytes_max = 1000\n", 2, "p2p.network_memory_bytes_max: 1000 is too small"),
        ("[cache]\nscrub_hours = 0\n", 2, "cache.scrub_hours: 0 is too small"),
        ("[pinning]\nworkers_max = 0\n", 2, "pinning.workers_max: 0 is too small"),
        ("[pinning]\ngive_up_hours = 9999\n", 2, "pinning.give_up_hours: 9999 is too large"),
        ("[cache]\nscrub_hours = 9999\n", 2, "cache.scrub_hours: 9999 is too large"),
        ("[cache]\nzstd_level = 23\n", 2, "cache.zstd_level: 23 is too large"),
        ("[cache]\nzstd_pinned_level = 23\n", 2, "cache.zstd_pinned_level: 23 is too large"),
        ("[p2p]\nban_seconds = 99999999\n", 2, "p2p.ban_seconds: 99999999 is too large"),
        ("[p2p]\nserve_to = [\"everybody\"]\n", 2, "p2p.serve_to: \"everybody\" is neither \"everyone\" nor"),
        ("[p2p]\nserve_to = [\"everyone\", \"peerings\"]\n", 2, "p2p.serve_to: \"everyone\" cannot be combined"),
        ("[policy]\ndenylists = [\"ftp://a/b\"]\n", 2, "policy.denylists: \"ftp://a/b\" is not a URL of a list"),
        ("[policy]\ncaches = [\"ban+http://a\"]\n", 2, "policy.caches: a ban cache is purged by surrogate key"),
        ("[policy]\ncaches = [\"refresh+http://a\"]\n", 2, "policy.caches: a refresh cache is purged by URL"),
        (
            "[policy]\ncaches = [\"purge+http://a\"]\n[http]\nhosts = []\n",
            2,
            "policy.caches: a purge cache is purged by URL",
        ),
        ("[policy]\ndenylists = [{ from = \"a\", status = 404 }]\n", 2, "policy.denylists: 404 is not a status"),
        ("[policy]\nmode = \"some\"\n", 2, "policy.mode: "),
        ("[policy]\ndeny = [\"hello\"]\n", 2, "policy.deny: \"hello\" is not a CID"),
        ("[log]\nformat = \"xml\"\n", 2, "log.format: \"xml\" is not one of text, json"),
        ("[http]\nlisten = [\n", 2, "not valid TOML"),
        (
            "cache.ram_bytes_max = \"1 GiBs\"\n",
            1,
            "cache.ram_bytes_max: \"1 GiBs\" is not a size: write a whole number",
        ),
        ("cache.ram_bytes_max = true\n", 1, "cache.ram_bytes_max: true is not a size: write a whole number"),
        ("http.listen = [8080]\n", 1, "http.listen: 8080 is not a string: write each entry"),
        ("data_dir = 3\n", 1, "data_dir: 3 is not a string: write it in quotes"),
        ("data_dir = \"\"\n", 1, "data_dir: must not be empty"),
        ("p2p.offline = \"yes\"\n", 1, "p2p.offline: \"yes\" is not true or false"),
    ];
    for (text, line, expected) in table {
        let (_dir, path) = file(text);
        let message = error_of(&["--config", &path], &[]);
        assert!(message.contains(expected), "{message}");
        assert!(message.contains(&format!("{path}:{line}")), "{message} should name line {line}");
    }
    assert!(error_of(&["--config", "/nowhere.toml"], &[]).contains("/nowhere.toml cannot be read"));
}

#[test]
fn errors_in_the_environment_name_the_variable() {
    let table = [
        ("CAUSEWAY_HTTP_LISTN", "x", "the most similar one is CAUSEWAY_HTTP_LISTEN (\"http.listen\")"),
        ("CAUSEWAY_HTTP_LISTEN", "x", "http.listen: \"x\" is not an address and port"),
        ("CAUSEWAY_HTTP_LISTEN", "", "http.listen: needs at least one address"),
        ("CAUSEWAY_P2P_OFFLINE", "maybe", "p2p.offline: \"maybe\" is not true or false"),
        ("CAUSEWAY_CACHE_RAM_BYTES_MAX", "lots", "cache.ram_bytes_max: \"lots\" is not a size: write a whole number"),
        ("CAUSEWAY_CACHE_RAM_BYTES_MAX", "5", "cache.ram_bytes_max: 5 is too small"),
    ];
    for (variable, value, expected) in table {
        let message = error_of(&[], &[(variable, value)]);
        assert!(message.contains(expected) && message.contains(variable), "{message}");
    }
}

#[test]
fn variables_that_kubernetes_sets_for_a_service_are_ignored() {
    let environment = [
        ("CAUSEWAY_SERVICE_HOST", "10.0.0.1"),
        ("CAUSEWAY_PORT", "tcp://10.0.0.1:80"),
        ("CAUSEWAY_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
    ];
    assert!(with(&[], &environment).is_ok());
}

#[test]
fn errors_on_the_command_line_name_the_flag() {
    let message = error_of(&["--listen", "8080"], &[]);
    assert!(message.contains("http.listen: \"8080\"") && message.ends_with("(set by --listen)"), "{message}");
}

#[test]
fn a_reachable_admin_listener_needs_tls_or_plaintext() {
    let public = &["--admin-listen", "0.0.0.0:8081"];
    let (certificate, key) = (("CAUSEWAY_ADMIN_TLS_CERTIFICATE", "a.pem"), ("CAUSEWAY_ADMIN_TLS_KEY", "b.pem"));
    for environment in [&[][..], &[("CAUSEWAY_ADMIN_TOKEN", "t")]] {
        let message = error_of(public, environment);
        assert!(message.starts_with("admin.listen: 0.0.0.0:8081 can be reached"), "{message}");
    }
    for environment in [&[("CAUSEWAY_ADMIN_PLAINTEXT", "true")][..], &[certificate, key]] {
        assert!(with(public, environment).is_ok(), "{environment:?}");
    }
    // A Unix socket is reached from this machine only.
    assert!(with(&["--admin-listen", "unix:/run/admin.sock", "--admin-listen", "[::1]:8081"], &[]).is_ok());
    let message = error_of(&["--admin-listen", "unix:admin.sock"], &[]);
    assert!(message.contains("not an absolute path"), "{message}");
    for (environment, other) in [(certificate, "tls_key"), (key, "tls_certificate")] {
        let message = error_of(&[], &[environment]);
        assert!(message.contains(&format!("needs admin.{other}")), "{message}");
    }
}

#[test]
fn tls_of_the_public_listener_needs_an_address_a_certificate_and_a_key() {
    let (address, certificate, key) = (
        ("CAUSEWAY_HTTP_TLS_LISTEN", "0.0.0.0:8443"),
        ("CAUSEWAY_HTTP_TLS_CERTIFICATE", "a.pem"),
        ("CAUSEWAY_HTTP_TLS_KEY", "b.pem"),
    );
    assert!(with(&[], &[address, certificate, key]).is_ok());
    let table = [
        (&[address][..], "http.tls_listen: TLS needs http.tls_certificate and http.tls_key"),
        (&[certificate], "http.tls_certificate: TLS needs http.tls_key"),
        (&[address, key], "http.tls_key: TLS needs http.tls_certificate"),
        (&[certificate, key], "http.tls_certificate: TLS needs http.tls_listen"),
    ];
    for (environment, expected) in table {
        let message = error_of(&[], environment);
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn http3_needs_an_address_with_tls_and_without_the_proxy_protocol() {
    let http3 = ("CAUSEWAY_HTTP_HTTP3", "true");
    let message = error_of(&[], &[http3]);
    assert!(message.starts_with("http.http3: HTTP/3 needs http.tls_listen"), "{message}");
    let tls = [
        http3,
        ("CAUSEWAY_HTTP_TLS_LISTEN", "127.0.0.1:8443,127.0.0.2:8443"),
        ("CAUSEWAY_HTTP_TLS_CERTIFICATE", "a.pem"),
        ("CAUSEWAY_HTTP_TLS_KEY", "b.pem"),
        ("CAUSEWAY_HTTP_TRUSTED_PROXIES", "127.0.0.9"),
    ];
    let with_proxies = |addresses| [&tls[..], &[("CAUSEWAY_HTTP_PROXY_PROTOCOL", addresses)]].concat();
    assert!(with(&[], &tls).is_ok() && with(&[], &with_proxies("127.0.0.2:8443")).is_ok());
    let message = error_of(&[], &with_proxies("127.0.0.1:8443,127.0.0.2:8443"));
    assert!(message.starts_with("http.http3: all addresses of http.tls_listen"), "{message}");
}

#[test]
fn certificates_by_acme_need_an_agreement_names_and_ways_to_prove_them() {
    let valid = [
        ("CAUSEWAY_HTTP_TLS_LISTEN", "0.0.0.0:8443"),
        ("CAUSEWAY_HTTP_ACME_DIRECTORY", "https://ca.example/directory"),
        ("CAUSEWAY_HTTP_ACME_TERMS_AGREED", "true"),
        ("CAUSEWAY_HTTP_HOSTS", "gateway.example,localhost"),
        ("CAUSEWAY_HTTP_ACME_DNS_HOOK", "/usr/local/bin/hook"),
    ];
    let names = with(&[], &valid).expect("is valid").config.http.certificate_names();
    assert_eq!(names, ["gateway.example", "*.ipfs.gateway.example", "*.ipns.gateway.example"]);
    let listed = [&valid[..], &[("CAUSEWAY_HTTP_ACME_NAMES", "B.example,a.example,b.example")]].concat();
    let names = with(&[], &listed).expect("is valid").config.http.certificate_names();
    assert_eq!(names, ["b.example", "a.example"]);
    let table = [
        ("CAUSEWAY_HTTP_TLS_LISTEN", "none", "http.acme_directory: TLS needs http.tls_listen"),
        ("CAUSEWAY_HTTP_ACME_DIRECTORY", "http://ca.example/", "is not the URL of a directory"),
        ("CAUSEWAY_HTTP_ACME_TERMS_AGREED", "false", "http.acme_directory: read the terms of service"),
        ("CAUSEWAY_HTTP_HOSTS", "localhost", "http.acme_directory: there is no name"),
        ("CAUSEWAY_HTTP_ACME_DNS_HOOK", "", "a certificate for *.ipfs.gateway.example needs http.acme_dns_hook"),
        ("CAUSEWAY_HTTP_ACME_NAMES", "10.0.0.1", "http.acme_names: \"10.0.0.1\" is not a name for a certificate"),
        ("CAUSEWAY_HTTP_ACME_CONTACT", "a@b.c?x", "http.acme_contact: \"a@b.c?x\" is not an e-mail address"),
        ("CAUSEWAY_HTTP_ACME_CHALLENGES", "http-02", "http.acme_challenges: \"http-02\" is not one of http-01"),
        ("CAUSEWAY_HTTP_ACME_CHALLENGES", "none", "http.acme_challenges: needs at least one challenge"),
        ("CAUSEWAY_HTTP_ACME_ON_DEMAND_MAX", "1000000", "http.acme_on_demand_max: 1000000 is too large"),
    ];
    for (variable, value, expected) in table {
        let environment: Vec<_> =
            valid.into_iter().filter(|(name, _)| *name != variable).chain([(variable, value)]).collect();
        let message = error_of(&[], &environment);
        assert!(message.contains(expected), "{message}");
    }
    let on_demand = ("CAUSEWAY_HTTP_ACME_ON_DEMAND", "true");
    assert!(error_of(&[], &[on_demand]).starts_with("http.acme_on_demand: certificates on demand need"));
    let without_names = [valid[0], valid[1], valid[2], on_demand];
    assert!(with(&[], &without_names).is_ok());
    let without_sites =
        [without_names[0], without_names[1], without_names[2], on_demand, ("CAUSEWAY_HTTP_DNSLINK_SITES", "false")];
    assert!(error_of(&[], &without_sites).contains("they need http.dnslink_sites"));
    // dns-01 for a name without wildcard needs the hook as well.
    let mut plain = vec![valid[0], valid[1], valid[2], ("CAUSEWAY_HTTP_ACME_NAMES", "a.example")];
    assert!(with(&[], &plain).is_ok());
    plain.push(("CAUSEWAY_HTTP_ACME_CHALLENGES", "dns-01"));
    assert!(error_of(&[], &plain).starts_with("http.acme_challenges: dns-01 needs http.acme_dns_hook"));
}

#[test]
fn the_proxy_protocol_needs_an_address_and_trusted_proxies() {
    let (of_proxies, trusted) = ("CAUSEWAY_HTTP_PROXY_PROTOCOL", ("CAUSEWAY_HTTP_TRUSTED_PROXIES", "unix:"));
    let socket = ("CAUSEWAY_HTTP_LISTEN", "unix:/run/a.sock");
    let table = [
        (&[(of_proxies, "127.0.0.1:9"), trusted][..], "http.proxy_protocol: 127.0.0.1:9 is neither in http.listen"),
        (&[(of_proxies, "unix:/run/b.sock"), socket, trusted], "http.proxy_protocol: unix:/run/b.sock is neither in"),
        (&[(of_proxies, "unix:/run/a.sock"), socket], "http.proxy_protocol: needs http.trusted_proxies"),
    ];
    for (environment, expected) in table {
        let message = error_of(&[], environment);
        assert!(message.starts_with(expected), "{message}");
    }
    with(&[], &[(of_proxies, "unix:/run/a.sock"), socket, trusted]).expect("loads");
}

#[test]
fn a_secret_is_never_shown() {
    let loaded = with(&["--admin-token", "hunter2"], &[]).expect("loads");
    let shown = toml::to_string(&loaded.config).expect("renders");
    assert!(shown.contains("token = \"***\"") && !shown.contains("hunter2"), "{shown}");
    assert!(!format!("{loaded:?}").contains("hunter2"));
    let headers = ("CAUSEWAY_TELEMETRY_OTLP_HEADERS", "authorization=Bearer%20hunter2");
    let loaded = with(&[], &[headers]).expect("loads");
    let shown = toml::to_string(&loaded.config).expect("renders");
    assert!(shown.contains("otlp_headers = \"***\"") && !format!("{shown}{loaded:?}").contains("hunter2"), "{shown}");
    let before = with(&[], &[]).expect("loads").config;
    assert_eq!(keys::changed(&before, &loaded.config), ["telemetry.otlp_headers"]);
    let of_site = |password: &str| {
        let url = format!("postgresql://u:{password}@db.example/d");
        let environment = [
            ("CAUSEWAY_SITE_NAME", "berlin"),
            ("CAUSEWAY_SITE_DATABASE", &*url),
            ("CAUSEWAY_SITE_STORE", "s3://bucket"),
        ];
        with(&[], &environment).expect("loads")
    };
    let (before, loaded) = (of_site("other"), of_site("hunter2"));
    let shown = toml::to_string(&loaded.config).expect("renders");
    assert!(shown.contains("database = \"***\"") && !format!("{shown}{loaded:?}").contains("hunter2"), "{shown}");
    assert_eq!(keys::changed(&before.config, &loaded.config), ["site.database"]);
}

#[test]
fn a_site_needs_a_name_a_database_and_a_store() {
    let (name, database, file) = (
        ("NAME", "berlin-1"),
        ("DATABASE", "postgresql://u:hunter2@a.example,b.example/d"),
        ("DATABASE_FILE", "/run/secrets/database"),
    );
    let (bucket, folder) = (("STORE", "s3://bucket/prefix"), ("STORE", "file:///mnt/x"));
    let load = |settings: &[(&str, &str)]| {
        let settings: Vec<_> = settings.iter().map(|(key, value)| (format!("CAUSEWAY_SITE_{key}"), *value)).collect();
        with(&[], &settings.iter().map(|(name, value)| (&**name, *value)).collect::<Vec<_>>())
    };
    let longest = "x".repeat(40);
    let valid: [&[(&str, &str)]; 11] = [
        &[],
        // What can be prepared without a site.
        &[("CACHE_BYTES_MAX", "0"), ("S3_REGION", "eu-central-1"), ("DATABASE_CA", "ca.pem")],
        &[name, database, bucket],
        &[name, file, folder, ("DATABASE_CA", "ca.pem"), ("CACHE_BYTES_MAX", "2TB")],
        &[("NAME", "a_b-9"), ("DATABASE", "postgres://h/d"), folder],
        &[("NAME", &longest), ("DATABASE", "host=/run/postgresql user=u dbname=d"), folder],
        &[name, database, folder, ("S3_REGION", "us-east-1"), ("S3_ADDRESSING", "path"), ("S3_ENDPOINT", "")],
        &[name, database, ("STORE", "s3://bucket"), ("S3_ENDPOINT", "https://s3.example:9000/below")],
        &[name, database, bucket, ("S3_ENDPOINT", "http://10.0.0.9:9000"), ("S3_ALLOW_HTTP", "true")],
        &[name, database, bucket, ("S3_CREDENTIALS_FILE", "keys"), ("S3_CREDENTIALS_PROFILE", "site")],
        &[name, database, bucket, ("S3_ADDRESSING", "virtual_host"), ("S3_CA", "ca.pem")],
    ];
    for settings in valid {
        let site = load(settings).unwrap_or_else(|error| panic!("{settings:?}: {error}")).config.site;
        assert_eq!(site.is_on(), settings.iter().any(|(key, _)| *key == "NAME"));
    }
    let too_long = "x".repeat(41);
    let invalid: [(&[(&str, &str)], &str); 43] = [
        (&[name], "site.name: a site needs site.database as well"),
        (&[name, bucket], "site.name: a site needs site.database as well"),
        (&[name, database], "site.name: a site needs site.store as well"),
        (&[database], "site.database: needs site.name as well"),
        (&[file], "site.database_file: needs site.name as well"),
        (&[bucket], "site.store: needs site.name as well"),
        (&[name, database, file, bucket], "site.database_file: is set in addition to site.database"),
        (&[("NAME", "Berlin"), database, bucket], "site.name: \"Berlin\" is not the name of a site"),
        (&[("NAME", "a b"), database, bucket], "is not the name of a site"),
        (&[("NAME", "a\"b"), database, bucket], "is not the name of a site"),
        (&[("NAME", "ä"), database, bucket], "is not the name of a site"),
        (&[("NAME", &too_long), database, bucket], "write 1 to 40 lowercase letters"),
        (&[name, ("DATABASE", "mysql://u:hunter2@h/d"), bucket], "site.database: is not the URL of a PostgreSQL"),
        (&[name, ("DATABASE", "mysql://u:hunter2@h/d?a=b"), bucket], "site.database: is not the URL of a PostgreSQL"),
        (&[name, ("DATABASE", "hunter2"), bucket], "site.database: is not the URL of a PostgreSQL"),
        (&[name, database, ("STORE", "https://u:hunter2@bucket.example")], "site.store: begins with neither s3:// nor"),
        (&[name, database, ("STORE", "S3://bucket")], "site.store: begins with neither s3:// nor"),
        (&[name, database, ("STORE", "file://server/x")], "site.store: begins with neither s3:// nor"),
        (&[name, database, ("STORE", "/mnt/x")], "site.store: is not a URL: write a folder as file:///PATH"),
        (&[name, database, ("STORE", "s3://")], "site.store: has no bucket"),
        (&[name, database, ("STORE", "s3:///prefix")], "site.store: has no bucket"),
        (&[name, database, ("STORE", "s3://key:hunter2@bucket")], "site.store: has credentials, which belong in"),
        (&[name, database, folder, ("S3_ENDPOINT", "https://s3.example")], "site.s3_endpoint: is for S3"),
        (&[name, database, folder, ("S3_REGION", "eu-west-1")], "site.s3_region: is for S3"),
        (&[name, database, folder, ("S3_ADDRESSING", "virtual_host")], "site.s3_addressing: is for S3"),
        (&[name, database, folder, ("S3_CREDENTIALS_FILE", "keys")], "site.s3_credentials_file: is for S3"),
        (&[name, database, folder, ("S3_CREDENTIALS_PROFILE", "x")], "site.s3_credentials_profile: is for S3"),
        (&[name, database, folder, ("S3_CA", "ca.pem")], "site.s3_ca: is for S3"),
        (&[name, database, folder, ("S3_ALLOW_HTTP", "true")], "site.s3_allow_http: is for S3"),
        (&[name, database, bucket, ("S3_ENDPOINT", "s3.example")], "site.s3_endpoint: is not the URL of a server"),
        (&[name, database, bucket, ("S3_ENDPOINT", "https://k:hunter2@h")], "site.s3_endpoint: is not the URL"),
        (&[name, database, bucket, ("S3_REGION", "eu west")], "site.s3_region: \"eu west\" is not a region"),
        (&[name, database, bucket, ("S3_CREDENTIALS_PROFILE", "x")], "needs site.s3_credentials_file as well"),
        (&[name, database, bucket, ("S3_ADDRESSING", "dns")], "site.s3_addressing: \"dns\" is not one of path"),
        (&[("ISOLATED", "refuse")], "site.isolated: needs site.name as well"),
        (&[name, database, bucket, ("ISOLATED", "hide")], "site.isolated: \"hide\" is not one of serve"),
        (&[name, database, bucket, ("ISOLATED_AFTER_SECONDS", "4")], "site.isolated_after_seconds: 4 is not from 5 to"),
        (&[name, database, bucket, ("ISOLATED_AFTER_SECONDS", "86401")], "site.isolated_after_seconds: 86401 is not"),
        (&[("NAMES", "shared")], "site.names: needs site.name as well"),
        (&[("NAMES_KEY_FILE", "key")], "site.names_key_file: needs site.name as well"),
        (&[name, database, bucket, ("NAMES", "shared")], "site.names: \"shared\" needs site.names_key_file as well"),
        (&[name, database, bucket, ("NAMES_KEY_FILE", "key")], "site.names_key_file: needs site.names = \"shared\""),
        (&[name, database, bucket, ("NAMES", "all")], "site.names: \"all\" is not one of own"),
    ];
    for (settings, expected) in invalid {
        let message = load(settings).expect_err(expected).to_string();
        assert!(message.contains(expected), "{settings:?}: {message}");
        assert!(!message.contains("hunter2") && !message.contains('\n'), "{message}");
    }
}

#[test]
fn every_store_of_its_own_is_the_cache_of_a_gateway_of_a_site() {
    for store in ["rocksdb", "flat", "memory"] {
        let (_dir, path) = file(&format!(
            "[site]\nname = \"a\"\ndatabase_file = \"f\"\nstore = \"file:///mnt/x\"\n[cache]\nstore = \"{store}\"\n"
        ));
        assert!(with(&["--config", &path], &[]).expect(store).config.site.is_on());
    }
}

#[test]
fn settings_of_telemetry_are_checked() {
    let table = [
        ("OTLP_ENDPOINT", "127.0.0.1:4317", "telemetry.otlp_endpoint"),
        ("OTLP_ENDPOINT", "grpc://127.0.0.1:4317", "telemetry.otlp_endpoint"),
        ("OTLP_ENDPOINT", "http://user:secret@127.0.0.1", "telemetry.otlp_headers"),
        ("OTLP_ENDPOINT", "http://127.0.0.1/?a", "telemetry.otlp_endpoint"),
        ("OTLP_ENDPOINT", "https://", "telemetry.otlp_endpoint"),
        ("SAMPLE_RATIO", "1.01", "from 0 to 1"),
        ("SAMPLE_RATIO", "-0.1", "from 0 to 1"),
        ("SAMPLE_RATIO", "NaN", "from 0 to 1"),
        ("SAMPLE_RATIO", "1%", "is not a number"),
        ("SERVICE_NAME", "", "telemetry.service_name"),
        ("RESOURCE_ATTRIBUTES", "nonsense", "NAME=VALUE"),
        ("RESOURCE_ATTRIBUTES", "=b", "NAME=VALUE"),
    ];
    for (name, value, expected) in table {
        let variable = format!("CAUSEWAY_TELEMETRY_{name}");
        let error = error_of(&[], &[(&*variable, value)]);
        assert!(error.contains(expected), "{name}={value}: {error}");
    }
    let (_dir, path) = file("[telemetry]\nsample_ratio = 1\notlp_endpoint = \"https://collector.example/base\"\n");
    let loaded = with(&["--config", &path], &[]).expect("loads");
    assert_eq!(loaded.config.telemetry.sample_ratio, 1.0);
}

#[test]
fn a_file_of_the_access_log_needs_a_format_of_its_own() {
    let file = ("CAUSEWAY_LOG_ACCESS_FILE", "access.log");
    let error = error_of(&[], &[file]);
    assert!(error.contains("log.access_file") && error.contains("log.access_format = \"text\""), "{error}");
    for format in ["text", "json", "combined"] {
        let loaded = with(&[], &[file, ("CAUSEWAY_LOG_ACCESS_FORMAT", format)]).expect("loads");
        assert_eq!(loaded.config.log.access_file, PathBuf::from("access.log"));
    }
}
