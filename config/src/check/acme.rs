//! Validation of the settings of certificates by ACME.

use crate::acme::is_directory;
use crate::loaded::{ConfigError, Loaded};
use crate::schema::{AcmeChallenge, Config};

/// The maximum number of names: authorities limit the orders of an account.
const NAMES_MAX: usize = 200;
/// The maximum of stored certificates on demand, each of which takes some kilobytes of memory.
const ON_DEMAND_MAX: u64 = 100_000;

/// Validates the settings of ACME together.
///
/// # Errors
/// [`ConfigError`] about the first setting that is invalid or missing.
pub(super) fn check(loaded: &Loaded) -> Result<(), ConfigError> {
    let Config { http, .. } = &loaded.config;
    if http.acme_directory.is_empty() {
        return match http.acme_on_demand {
            true => Err(loaded.error("http.acme_on_demand", "certificates on demand need http.acme_directory as well")),
            false => Ok(()),
        };
    }
    if !is_directory(&http.acme_directory) {
        let reason = format!(
            "\"{}\" is not the URL of a directory, such as https://acme-v02.api.letsencrypt.org/directory",
            http.acme_directory
        );
        return Err(loaded.error("http.acme_directory", reason));
    }
    if !http.acme_terms_agreed {
        let reason = "read the terms of service of the certificate authority, and set http.acme_terms_agreed = true if \
                      you agree to them";
        return Err(loaded.error("http.acme_directory", reason));
    }
    if http.acme_on_demand && !http.dnslink_sites {
        let reason = "certificates on demand are for websites under their own domains: they need http.dnslink_sites as \
                      well";
        return Err(loaded.error("http.acme_on_demand", reason));
    }
    if http.acme_on_demand_max > ON_DEMAND_MAX {
        let reason = format!("{} is too large: the maximum is {ON_DEMAND_MAX}", http.acme_on_demand_max);
        return Err(loaded.error("http.acme_on_demand_max", reason));
    }
    if http.acme_challenges.is_empty() {
        return Err(loaded.error("http.acme_challenges", "needs at least one challenge, such as \"tls-alpn-01\""));
    }
    names_can_be_proved(loaded)
}

fn names_can_be_proved(loaded: &Loaded) -> Result<(), ConfigError> {
    let Config { http, .. } = &loaded.config;
    let names = http.certificate_names();
    if names.is_empty() && !http.acme_on_demand {
        let reason = "there is no name to obtain a certificate for: set http.hosts to the public host names of the \
                      gateway, or set http.acme_names";
        return Err(loaded.error("http.acme_directory", reason));
    }
    if names.len() > NAMES_MAX {
        let reason = format!("{} names are too many: the maximum is {NAMES_MAX}", names.len());
        return Err(loaded.error(if http.acme_names.is_empty() { "http.hosts" } else { "http.acme_names" }, reason));
    }
    if http.acme_dns_hook.as_os_str().is_empty() {
        if let Some(wildcard) = names.iter().find(|name| name.starts_with("*.")) {
            let reason = format!(
                "a certificate for {wildcard} needs http.acme_dns_hook as well, a program that sets DNS records. \
                 Without one, set subdomains = false for the host in http.hosts, or list the other names in http.acme_names"
            );
            return Err(loaded.error("http.acme_directory", reason));
        }
        if http.acme_challenges.contains(&AcmeChallenge::Dns01) {
            return Err(loaded.error("http.acme_challenges", "dns-01 needs http.acme_dns_hook as well"));
        }
    }
    Ok(())
}
