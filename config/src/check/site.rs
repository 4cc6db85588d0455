//! Validation of the settings of a site. No error shows a URL, which may have a password where it does not belong.

use crate::loaded::{ConfigError, Loaded};
use crate::site::{Isolated, NAME_BYTES_MAX, Site, SiteNames};
use std::ops::RangeInclusive;
use std::path::Path;

/// Validates the settings of a site together.
///
/// # Errors
/// [`ConfigError`] about the first setting that is invalid or missing.
pub(super) fn check(loaded: &Loaded) -> Result<(), ConfigError> {
    let site = &loaded.config.site;
    if !site.is_on() {
        return nothing_needs_a_name(loaded);
    }
    let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    if site.name.len() > NAME_BYTES_MAX || !site.name.bytes().all(is_valid) {
        let reason = format!(
            "\"{}\" is not the name of a site: write 1 to {NAME_BYTES_MAX} lowercase letters, digits, \"-\" and \"_\", \
             such as \"berlin-1\"",
            site.name
        );
        return Err(loaded.error("site.name", reason));
    }
    database_is_named(loaded)?;
    store_is_named(loaded)?;
    if !ISOLATED_AFTER.contains(&site.isolated_after_seconds) {
        let reason = format!(
            "{} is not from {} to {} seconds: the rules are read every second, and a slow answer of the database is no \
             reason to refuse content",
            site.isolated_after_seconds,
            ISOLATED_AFTER.start(),
            ISOLATED_AFTER.end()
        );
        return Err(loaded.error("site.isolated_after_seconds", reason));
    }
    names_have_a_key(loaded)?;
    match site.store.starts_with(FOLDER) {
        true => nothing_is_for_s3(loaded),
        false => s3_is_valid(loaded),
    }
}

/// `site.isolated_after_seconds`.
const ISOLATED_AFTER: RangeInclusive<u64> = 5..=86_400;
const BUCKET: &str = "s3://";
const FOLDER: &str = "file:///";

/// A gateway whose operator has forgotten the name of the site would be alone.
fn nothing_needs_a_name(loaded: &Loaded) -> Result<(), ConfigError> {
    let site = &loaded.config.site;
    let set = [
        ("site.database", site.database.reveal().is_some()),
        ("site.database_file", is_set(&site.database_file)),
        ("site.store", !site.store.is_empty()),
        ("site.isolated", site.isolated != Isolated::Serve),
        ("site.names", site.names != SiteNames::Own),
        ("site.names_key_file", is_set(&site.names_key_file)),
    ];
    match set.into_iter().find(|(_, is_set)| *is_set) {
        None => Ok(()),
        Some((key, _)) => {
            let reason = "needs site.name as well, which turns the site on. Leave both out for a gateway alone";
            Err(loaded.error(key, reason))
        }
    }
}

fn database_is_named(loaded: &Loaded) -> Result<(), ConfigError> {
    let site = &loaded.config.site;
    match (site.database.reveal(), is_set(&site.database_file)) {
        (None, true) => Ok(()),
        (Some(_), true) => {
            Err(loaded.error("site.database_file", "is set in addition to site.database: set one of them"))
        }
        (None, false) => {
            let reason = "a site needs site.database as well, such as postgresql://USER:PASSWORD@HOST/DATABASE, or \
                          site.database_file";
            Err(loaded.error("site.name", reason))
        }
        (Some(url), false) => {
            let is_url = url.starts_with("postgresql://") || url.starts_with("postgres://");
            match is_url || (url.contains('=') && !url.contains("://")) {
                true => Ok(()),
                false => {
                    let reason = "is not the URL of a PostgreSQL database, such as \
                                  postgresql://USER:PASSWORD@HOST/DATABASE";
                    Err(loaded.error("site.database", reason))
                }
            }
        }
    }
}

fn store_is_named(loaded: &Loaded) -> Result<(), ConfigError> {
    let store = loaded.config.site.store.as_str();
    let wrong = |reason: &str| Err(loaded.error("site.store", reason));
    if store.is_empty() {
        let reason = "a site needs site.store as well: s3://BUCKET/PREFIX, or file:///PATH for a folder of a shared \
                      file system";
        return Err(loaded.error("site.name", reason));
    }
    match store.strip_prefix(BUCKET) {
        Some(bucket) if bucket.contains('@') => {
            wrong("has credentials, which belong in site.s3_credentials_file: write s3://BUCKET/PREFIX")
        }
        Some(bucket) if bucket.is_empty() || bucket.starts_with('/') => {
            wrong("has no bucket: write s3://BUCKET/PREFIX")
        }
        Some(_) => Ok(()),
        None if store.starts_with(FOLDER) => Ok(()),
        None if store.starts_with('/') => wrong("is not a URL: write a folder as file:///PATH"),
        None => wrong("begins with neither s3:// nor file:///: write s3://BUCKET/PREFIX or file:///PATH"),
    }
}

fn names_have_a_key(loaded: &Loaded) -> Result<(), ConfigError> {
    let site = &loaded.config.site;
    match (site.names, is_set(&site.names_key_file)) {
        (SiteNames::Shared, true) | (SiteNames::Own, false) => Ok(()),
        (SiteNames::Shared, false) => {
            let reason = "\"shared\" needs site.names_key_file as well, a file with 32 random bytes that private keys \
                          are encrypted with: create one with \"openssl rand -base64 32\", the same for all gateways \
                          of the site";
            Err(loaded.error("site.names", reason))
        }
        (SiteNames::Own, true) => {
            let reason = "needs site.names = \"shared\" as well: leave it out if each gateway has IPNS keys of its own";
            Err(loaded.error("site.names_key_file", reason))
        }
    }
}

fn nothing_is_for_s3(loaded: &Loaded) -> Result<(), ConfigError> {
    let (site, default) = (&loaded.config.site, Site::default());
    let set = [
        ("site.s3_endpoint", site.s3_endpoint != default.s3_endpoint),
        ("site.s3_region", site.s3_region != default.s3_region),
        ("site.s3_addressing", site.s3_addressing != default.s3_addressing),
        ("site.s3_credentials_file", site.s3_credentials_file != default.s3_credentials_file),
        ("site.s3_credentials_profile", site.s3_credentials_profile != default.s3_credentials_profile),
        ("site.s3_ca", site.s3_ca != default.s3_ca),
        ("site.s3_allow_http", site.s3_allow_http != default.s3_allow_http),
    ];
    match set.into_iter().find(|(_, is_set)| *is_set) {
        None => Ok(()),
        Some((key, _)) => {
            let reason =
                "is for S3, and site.store is a folder: leave it out, or set site.store = \"s3://BUCKET/PREFIX\"";
            Err(loaded.error(key, reason))
        }
    }
}

fn s3_is_valid(loaded: &Loaded) -> Result<(), ConfigError> {
    let (site, default) = (&loaded.config.site, Site::default());
    let endpoint = site.s3_endpoint.as_str();
    let below = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
    if !endpoint.is_empty()
        && below.is_none_or(|below| below.is_empty() || below.starts_with('/') || below.contains(['?', '#', '@', ' ']))
    {
        let reason = "is not the URL of a server, such as https://s3.example.org:9000: it has a host, and no \
                      credentials, query or fragment, and the bucket belongs in site.store";
        return Err(loaded.error("site.s3_endpoint", reason));
    }
    let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if site.s3_region.is_empty() || !is_word(&site.s3_region) {
        let reason = format!("\"{}\" is not a region, such as us-east-1", site.s3_region);
        return Err(loaded.error("site.s3_region", reason));
    }
    if site.s3_credentials_profile != default.s3_credentials_profile && !is_set(&site.s3_credentials_file) {
        let reason = "needs site.s3_credentials_file as well. The profile of AWS_SHARED_CREDENTIALS_FILE is that of \
                      AWS_PROFILE";
        return Err(loaded.error("site.s3_credentials_profile", reason));
    }
    Ok(())
}

fn is_set(path: &Path) -> bool {
    !path.as_os_str().is_empty()
}
