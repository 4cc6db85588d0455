//! Validation across settings: values that parse but are too small, too large or inconsistent. Each error names one
//! key.

mod acme;
mod site;

use crate::caches::FrontCache;
use crate::listen::ListenAddress;
use crate::loaded::{ConfigError, Loaded, Origin};
use crate::schema::{AccessFormat, Config};

/// One year. Longer durations would overflow the clock.
const SECONDS_MAX: u64 = 365 * 24 * 3600;
const HOURS_MAX: u64 = SECONDS_MAX / 3600;
/// The maximum of rates per second, and of their bursts.
const RATE_MAX: u64 = 1_000_000;
/// The maximum number of resource attributes.
const RESOURCE_ATTRIBUTES_MAX: usize = 64;

/// Validates what the types of single values cannot.
///
/// # Errors
/// [`ConfigError::Value`] about the first invalid setting.
pub(crate) fn check(loaded: &Loaded) -> Result<(), ConfigError> {
    let Config { data_dir, http, .. } = &loaded.config;
    if data_dir.as_os_str().is_empty() {
        return Err(loaded.error("data_dir", "must not be empty"));
    }
    if http.listen.is_empty() {
        return Err(loaded.error("http.listen", "needs at least one address"));
    }
    values_reach_their_minimum(loaded)?;
    durations_are_at_most_a_year(loaded)?;
    rates_are_at_most_a_million(loaded)?;
    zstd_levels_are_valid(loaded)?;
    records_outlive_the_republish_interval(loaded)?;
    key_caches_have_surrogate_keys(loaded)?;
    url_caches_have_hosts(loaded)?;
    tls_is_complete(loaded)?;
    http3_has_an_address(loaded)?;
    access_file_has_a_format(loaded)?;
    telemetry_is_valid(loaded)?;
    acme::check(loaded)?;
    site::check(loaded)?;
    proxy_protocol_has_proxies(loaded)?;
    admin_is_not_exposed(loaded)
}

fn values_reach_their_minimum(loaded: &Loaded) -> Result<(), ConfigError> {
    let Config { http, uploads, p2p, names, cache, pinning, policy, .. } = &loaded.config;
    let at_least = [
        ("http.stall_timeout_seconds", http.stall_timeout_seconds, 1),
        ("http.header_timeout_seconds", http.header_timeout_seconds, 1),
        ("http.send_timeout_seconds", http.send_timeout_seconds, 1),
        ("http.connections_max", http.connections_max, 1),
        ("http.client_connections_max", http.client_connections_max, 1),
        ("http.rate_window_seconds", http.rate_window_seconds, 1),
        ("http.acme_on_demand_max", http.acme_on_demand_max, 1),
        ("http.acme_on_demand_hourly_max", http.acme_on_demand_hourly_max, 1),
        ("http.misses_max", http.misses_max, 1),
        ("http.client_misses_max", http.client_misses_max, 1),
        ("http.client_misses_burst", http.client_misses_burst, 1),
        ("http.request_timeout_seconds", http.request_timeout_seconds, 1),
        ("http.response_bytes_max", http.response_bytes_max, 1 << 20),
        ("http.read_ahead_total_bytes_max", http.read_ahead_total_bytes_max, 4 << 20),
        ("http.listing_entries_max", http.listing_entries_max, 1),
        ("http.archives_max", http.archives_max, 1),
        ("http.client_archives_max", http.client_archives_max, 1),
        ("http.dag_depth_max", http.dag_depth_max, 1),
        ("http.work_steps_max", http.work_steps_max, 1),
        ("http.dag_blocks_max", http.dag_blocks_max, 1),
        ("http.path_depth_max", http.path_depth_max, 1),
        ("http.read_ahead_bytes_max", http.read_ahead_bytes_max, 256 << 10),
        ("http.url_bytes_max", http.url_bytes_max, 128),
        ("http.head_bytes_max", http.head_bytes_max, 8192),
        ("uploads.bytes_max", uploads.bytes_max, 1),
        ("uploads.entries_max", uploads.entries_max, 1),
        ("uploads.at_once_max", uploads.at_once_max, 1),
        // What one import of the largest blocks and one DAG walk take.
        ("uploads.memory_bytes_max", uploads.memory_bytes_max, 64 << 20),
        ("uploads.parts_hours", uploads.parts_hours, 1),
        ("p2p.reprovide_hours", p2p.reprovide_hours, 1),
        ("p2p.connections_max", p2p.connections_max, 1),
        ("p2p.connections_per_ip_max", p2p.connections_per_ip_max, 1),
        ("p2p.connections_per_subnet_max", p2p.connections_per_subnet_max, 1),
        ("p2p.pending_dials_max", p2p.pending_dials_max, 1),
        // Twice the largest message of Bitswap: one to read and one to write.
        ("p2p.network_memory_bytes_max", p2p.network_memory_bytes_max, 8 << 20),
        ("names.timeout_seconds", names.timeout_seconds, 1),
        ("names.lookups_max", names.lookups_max, 1),
        ("names.client_lookups_max", names.client_lookups_max, 1),
        ("names.republish_hours", names.republish_hours, 1),
        ("names.publish_ttl_seconds", names.publish_ttl_seconds, 1),
        ("cache.ram_bytes_max", cache.ram_bytes_max, 1 << 20),
        ("cache.disk_bytes_max", cache.disk_bytes_max, 1 << 20),
        ("cache.memory_bytes_max", cache.memory_bytes_max, 16 << 20),
        ("cache.zstd_level", u64::from(cache.zstd_level), 1),
        ("cache.scrub_hours", cache.scrub_hours, 1),
        ("policy.refresh_seconds", policy.refresh_seconds, 1),
        ("policy.list_bytes_max", policy.list_bytes_max, 1 << 20),
        ("pinning.workers_max", pinning.workers_max, 1),
        ("pinning.give_up_hours", pinning.give_up_hours, 1),
    ];
    for (key, value, least) in at_least {
        if value < least {
            return Err(loaded.error(key, format!("{value} is too small: the minimum is {least}")));
        }
    }
    Ok(())
}

fn rates_are_at_most_a_million(loaded: &Loaded) -> Result<(), ConfigError> {
    let http = &loaded.config.http;
    let at_most = [
        ("http.client_misses_per_second", http.client_misses_per_second),
        ("http.client_misses_burst", http.client_misses_burst),
    ];
    match at_most.into_iter().find(|(_, value)| *value > RATE_MAX) {
        None => Ok(()),
        Some((key, value)) => Err(loaded.error(key, format!("{value} is too large: the maximum is {RATE_MAX}"))),
    }
}

fn durations_are_at_most_a_year(loaded: &Loaded) -> Result<(), ConfigError> {
    let Config { http, uploads, p2p, names, cache, pinning, policy, log, .. } = &loaded.config;
    let at_most = [
        ("http.stall_timeout_seconds", http.stall_timeout_seconds, SECONDS_MAX),
        ("http.header_timeout_seconds", http.header_timeout_seconds, SECONDS_MAX),
        ("http.send_timeout_seconds", http.send_timeout_seconds, SECONDS_MAX),
        ("http.drain_delay_seconds", http.drain_delay_seconds, SECONDS_MAX),
        ("http.drain_timeout_seconds", http.drain_timeout_seconds, SECONDS_MAX),
        ("http.request_timeout_seconds", http.request_timeout_seconds, SECONDS_MAX),
        ("http.shared_max_age_seconds", http.shared_max_age_seconds, SECONDS_MAX),
        ("uploads.parts_hours", uploads.parts_hours, HOURS_MAX),
        ("p2p.ban_seconds", p2p.ban_seconds, SECONDS_MAX),
        ("p2p.provider_record_hours", p2p.provider_record_hours, HOURS_MAX),
        ("names.timeout_seconds", names.timeout_seconds, SECONDS_MAX),
        ("names.stale_while_revalidate_seconds", names.stale_while_revalidate_seconds, SECONDS_MAX),
        ("names.refresh_wait_seconds", names.refresh_wait_seconds, SECONDS_MAX),
        ("names.stale_if_error_seconds", names.stale_if_error_seconds, SECONDS_MAX),
        ("names.publish_lifetime_hours", names.publish_lifetime_hours, HOURS_MAX),
        ("cache.scrub_hours", cache.scrub_hours, HOURS_MAX),
        ("policy.refresh_seconds", policy.refresh_seconds, SECONDS_MAX),
        ("pinning.give_up_hours", pinning.give_up_hours, HOURS_MAX),
        ("log.slow_request_seconds", log.slow_request_seconds, SECONDS_MAX),
    ];
    for (key, value, most) in at_most {
        if value > most {
            return Err(loaded.error(key, format!("{value} is too large: the maximum is {most}, a year")));
        }
    }
    Ok(())
}

fn zstd_levels_are_valid(loaded: &Loaded) -> Result<(), ConfigError> {
    let cache = &loaded.config.cache;
    let levels = [("cache.zstd_level", cache.zstd_level), ("cache.zstd_pinned_level", cache.zstd_pinned_level)];
    match levels.into_iter().find(|(_, level)| *level > 22) {
        None => Ok(()),
        Some((key, level)) => Err(loaded.error(key, format!("{level} is too large: the highest zstd level is 22"))),
    }
}

/// Published records must be published again before they expire.
fn records_outlive_the_republish_interval(loaded: &Loaded) -> Result<(), ConfigError> {
    let Config { p2p, names, .. } = &loaded.config;
    let pairs = [
        ("p2p.reprovide_hours", p2p.reprovide_hours, "p2p.provider_record_hours", p2p.provider_record_hours),
        ("names.republish_hours", names.republish_hours, "names.publish_lifetime_hours", names.publish_lifetime_hours),
    ];
    for (renewal, often, lifetime, long) in pairs {
        if often >= long {
            let reason =
                format!("{renewal} ({often}) must be less than {lifetime} ({long}), or records expire in between");
            return Err(loaded.error(key_to_report(loaded, renewal, lifetime), reason));
        }
    }
    let (revalidate, if_error) = (names.stale_while_revalidate_seconds, names.stale_if_error_seconds);
    if if_error < revalidate {
        let key = key_to_report(loaded, "names.stale_if_error_seconds", "names.stale_while_revalidate_seconds");
        let reason = format!(
            "names.stale_if_error_seconds ({if_error}) must not be less than names.stale_while_revalidate_seconds \
             ({revalidate})"
        );
        return Err(loaded.error(key, reason));
    }
    let (ttl, lifetime) = (names.publish_ttl_seconds, names.publish_lifetime_hours * 3600);
    if ttl > lifetime {
        let key = key_to_report(loaded, "names.publish_ttl_seconds", "names.publish_lifetime_hours");
        let reason =
            format!("names.publish_ttl_seconds ({ttl}) must not exceed the validity of the record ({lifetime})");
        return Err(loaded.error(key, reason));
    }
    Ok(())
}

/// Caches that are purged by surrogate key need `http.surrogate_keys`.
fn key_caches_have_surrogate_keys(loaded: &Loaded) -> Result<(), ConfigError> {
    let Config { http, policy, .. } = &loaded.config;
    match policy.caches.iter().find(|cache| cache.kind.purges_by_surrogate_key()) {
        Some(cache) if !http.surrogate_keys => {
            let kind = cache.kind.as_str();
            let reason = format!("a {kind} cache is purged by surrogate key: set http.surrogate_keys = true");
            Err(loaded.error("policy.caches", reason))
        }
        _ => Ok(()),
    }
}

/// Caches that are purged by URL need the public host names, which the default of `http.hosts` does not have.
fn url_caches_have_hosts(loaded: &Loaded) -> Result<(), ConfigError> {
    let by_url = |cache: &&FrontCache| !cache.kind.purges_by_surrogate_key() && cache.hosts.is_empty();
    match loaded.config.policy.caches.iter().find(by_url) {
        Some(cache) if loaded.origin("http.hosts") == Origin::Default || loaded.config.http.hosts.is_empty() => {
            let kind = cache.kind.as_str();
            let reason = format!(
                "a {kind} cache is purged by URL: set http.hosts to the public host names of the gateway, or set the \
                 hosts of the cache"
            );
            Err(loaded.error("policy.caches", reason))
        }
        _ => Ok(()),
    }
}

/// The key to name in an error about two inconsistent keys: the first, unless only the second was set.
fn key_to_report<'a>(loaded: &Loaded, first: &'a str, second: &'a str) -> &'a str {
    if loaded.origin(first) == Origin::Default { second } else { first }
}

/// A certificate needs its key, and the public listener an address for TLS beside both.
fn tls_is_complete(loaded: &Loaded) -> Result<(), ConfigError> {
    let Config { http, admin, .. } = &loaded.config;
    let sections = [("http", &http.tls_certificate, &http.tls_key), ("admin", &admin.tls_certificate, &admin.tls_key)];
    for (section, certificate, key) in sections {
        let (certificate, key) = (!certificate.as_os_str().is_empty(), !key.as_os_str().is_empty());
        if certificate != key {
            let (set, other) = if key { ("tls_key", "tls_certificate") } else { ("tls_certificate", "tls_key") };
            return Err(loaded.error(&format!("{section}.{set}"), format!("TLS needs {section}.{other} as well")));
        }
    }
    let (from_files, by_acme) = (!http.tls_certificate.as_os_str().is_empty(), !http.acme_directory.is_empty());
    if http.tls_listen.is_empty() && (from_files || by_acme) {
        let key = if from_files { "http.tls_certificate" } else { "http.acme_directory" };
        return Err(loaded.error(key, "TLS needs http.tls_listen as well, such as [\"0.0.0.0:8443\"]"));
    }
    if !http.tls_listen.is_empty() && !from_files && !by_acme {
        let reason = "TLS needs http.tls_certificate and http.tls_key, or http.acme_directory, as well";
        return Err(loaded.error("http.tls_listen", reason));
    }
    Ok(())
}

/// HTTP/3 is spoken at an address of the listener with TLS, unless that speaks the PROXY protocol, which QUIC has not.
fn http3_has_an_address(loaded: &Loaded) -> Result<(), ConfigError> {
    let http = &loaded.config.http;
    if !http.http3 {
        return Ok(());
    }
    if http.tls_listen.is_empty() {
        let reason = "HTTP/3 needs http.tls_listen as well, such as [\"0.0.0.0:8443\"], and a certificate";
        return Err(loaded.error("http.http3", reason));
    }
    if http.tls_listen.iter().all(|address| http.proxy_protocol.contains(&ListenAddress::from(*address))) {
        let reason = "all addresses of http.tls_listen are in http.proxy_protocol, where HTTP/3 cannot be spoken: add \
                      an address without it, or let the proxy speak HTTP/3";
        return Err(loaded.error("http.http3", reason));
    }
    Ok(())
}

/// Lines in the log's own format are lines of the log.
fn access_file_has_a_format(loaded: &Loaded) -> Result<(), ConfigError> {
    let log = &loaded.config.log;
    if log.access_file.as_os_str().is_empty() || log.access_format != AccessFormat::Log {
        return Ok(());
    }
    let reason = "needs log.access_format = \"text\", \"json\" or \"combined\": lines in the format \"log\" are part of the \
                  log";
    Err(loaded.error("log.access_file", reason))
}

/// The collector is at an HTTP URL without credentials, which logs show, and the ratio is a share.
fn telemetry_is_valid(loaded: &Loaded) -> Result<(), ConfigError> {
    let telemetry = &loaded.config.telemetry;
    // Not a number is in no range.
    if !(0.0..=1.0).contains(&telemetry.sample_ratio) {
        let reason = format!("{} is not a share: write a number from 0 to 1", telemetry.sample_ratio);
        return Err(loaded.error("telemetry.sample_ratio", reason));
    }
    if telemetry.service_name.is_empty() {
        return Err(loaded.error("telemetry.service_name", "must not be empty"));
    }
    if telemetry.resource_attributes.len() > RESOURCE_ATTRIBUTES_MAX {
        let reason = format!("has more than {RESOURCE_ATTRIBUTES_MAX} attributes");
        return Err(loaded.error("telemetry.resource_attributes", reason));
    }
    let endpoint = &telemetry.otlp_endpoint;
    let below = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    match below {
        _ if endpoint.is_empty() => Ok(()),
        Some(below) if below.is_empty() || below.starts_with('/') || below.contains(['?', '#', '@', ' ']) => {
            let reason = "is a base URL with a host, and without credentials, a query or a fragment: credentials belong \
                          in telemetry.otlp_headers";
            Err(loaded.error("telemetry.otlp_endpoint", reason))
        }
        Some(_) => Ok(()),
        None => {
            let reason = "is neither an http:// nor an https:// URL, such as http://127.0.0.1:4318 (OTLP over gRPC is \
                          not spoken)";
            Err(loaded.error("telemetry.otlp_endpoint", reason))
        }
    }
}

/// The PROXY protocol is spoken at addresses of the public listener, by trusted proxies.
fn proxy_protocol_has_proxies(loaded: &Loaded) -> Result<(), ConfigError> {
    let http = &loaded.config.http;
    let listens = |address: &ListenAddress| {
        http.listen.contains(address) || address.tcp().is_some_and(|address| http.tls_listen.contains(&address))
    };
    if let Some(address) = http.proxy_protocol.iter().find(|address| !listens(address)) {
        let reason = format!("{address} is neither in http.listen nor in http.tls_listen");
        return Err(loaded.error("http.proxy_protocol", reason));
    }
    if !http.proxy_protocol.is_empty() && http.trusted_proxies.is_empty() {
        let reason = "needs http.trusted_proxies: only connections from there may begin with a PROXY header";
        return Err(loaded.error("http.proxy_protocol", reason));
    }
    Ok(())
}

fn admin_is_not_exposed(loaded: &Loaded) -> Result<(), ConfigError> {
    let admin = &loaded.config.admin;
    let certificate = !admin.tls_certificate.as_os_str().is_empty();
    let exposed = admin.listen.iter().filter_map(ListenAddress::tcp).find(|address| !address.ip().is_loopback());
    if let Some(address) = exposed.filter(|_| !certificate && !admin.plaintext) {
        let reason = format!(
            "{address} can be reached from other machines: set admin.tls_certificate and admin.tls_key, use a loopback \
             address behind a TLS proxy, or set admin.plaintext on a trusted network"
        );
        return Err(loaded.error("admin.listen", reason));
    }
    Ok(())
}
