//! [`Target`]: the collector of the settings, and how this service presents itself to it.

use super::otlp::{InstrumentationScope, Resource, text};
use config::{ConfigError, Loaded, Telemetry};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use p2p_bridge::durable;
use p2p_bridge::errors::innermost;
use p2p_bridge::http_source::dialling;
use percent_encoding::percent_decode_str;
use reqwest::{Certificate, Client, Url};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use std::path::Path;
use std::time::Duration;

/// The timeout of an export, as OpenTelemetry's default.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of the file with headers, in bytes.
const HEADERS_BYTES_MAX: usize = 64 << 10;
/// The path of traces below the base URL (<https://opentelemetry.io/docs/specs/otlp/#otlphttp-request>).
const TRACES_PATH: &str = "v1/traces";

/// The collector.
#[derive(Debug)]
pub struct Target {
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) client: Client,
    pub(super) resource: Resource,
    pub(super) scope: InstrumentationScope,
}

/// Checks the files that the settings name.
///
/// # Errors
/// [`ConfigError`] about the first one that cannot be used.
pub fn check(loaded: &Loaded) -> Result<(), ConfigError> {
    target(loaded, "").map(drop)
}

/// The collector, if the settings name one.
///
/// # Errors
/// [`ConfigError`] about a setting that cannot be used.
pub(super) fn target(loaded: &Loaded, version: &str) -> Result<Option<Target>, ConfigError> {
    let telemetry = &loaded.config.telemetry;
    if telemetry.otlp_endpoint.is_empty() {
        return Ok(None);
    }
    let base = telemetry.otlp_endpoint.trim_end_matches('/');
    let url = Url::parse(&format!("{base}/{TRACES_PATH}"));
    let url = url.map_err(|error| loaded.error("telemetry.otlp_endpoint", format!("is not a URL: {error}")))?;
    let headers = headers(telemetry).map_err(|(setting, reason)| loaded.error(setting, reason))?;
    let client = client(&telemetry.otlp_ca).map_err(|reason| loaded.error("telemetry.otlp_ca", reason))?;
    let scope = InstrumentationScope { name: "causeway".to_owned(), version: version.to_owned() };
    Ok(Some(Target { url, headers, client, resource: resource(telemetry, version), scope }))
}

/// The headers of the settings, then those of the file.
fn headers(telemetry: &Telemetry) -> Result<HeaderMap, (&'static str, String)> {
    let mut headers = HeaderMap::new();
    let (own, file) = ("telemetry.otlp_headers", "telemetry.otlp_headers_file");
    let of_settings = telemetry.otlp_headers.reveal().unwrap_or_default();
    add_headers(&mut headers, of_settings).map_err(|reason| (own, reason))?;
    let path = &telemetry.otlp_headers_file;
    if !path.as_os_str().is_empty() {
        let read = durable::read(path, HEADERS_BYTES_MAX);
        let bytes = read.map_err(|error| (file, format!("{} cannot be read: {error}", path.display())))?;
        let text = String::from_utf8(bytes).map_err(|_| (file, format!("{} is not text", path.display())))?;
        add_headers(&mut headers, &text).map_err(|reason| (file, reason))?;
    }
    Ok(headers)
}

/// Adds `NAME=VALUE` pairs, separated by commas or line ends
/// (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/#specifying-headers-via-environment-variables>). No
/// error repeats a value.
fn add_headers(headers: &mut HeaderMap, text: &str) -> Result<(), String> {
    let pairs = text.split([',', '\n', '\r']).map(str::trim).filter(|pair| !pair.is_empty());
    for (number, pair) in pairs.enumerate() {
        let number = number + 1;
        let (name, value) = pair.split_once('=').ok_or_else(|| format!("pair {number} is not NAME=VALUE"))?;
        let name: HeaderName = name.trim().parse().map_err(|_| format!("the name of pair {number} is invalid"))?;
        if [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, HOST].contains(&name) {
            return Err(format!("{name} is set by the exporter"));
        }
        let value: Vec<u8> = percent_decode_str(value.trim()).collect();
        let mut value = HeaderValue::from_bytes(&value)
            .map_err(|_| format!("the value of {name} has characters that are invalid in a header"))?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(())
}

/// A client that trusts the system's certificates and those of a file. A system without certificates can still use
/// plain HTTP, or the certificates of the file.
fn client(ca: &Path) -> Result<Client, String> {
    let own = if ca.as_os_str().is_empty() { Vec::new() } else { certificates(ca)? };
    let builder = || dialling::builder(true).timeout(TIMEOUT);
    let merged = builder().tls_certs_merge(own.clone()).build();
    merged.or_else(|_| builder().tls_certs_only(own).build()).map_err(|error| innermost(&error))
}

fn certificates(path: &Path) -> Result<Vec<Certificate>, String> {
    let unreadable = |error: &dyn std::fmt::Display| format!("{} cannot be read: {error}", path.display());
    let chain = CertificateDer::pem_file_iter(path).map_err(|error| unreadable(&error))?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(|error| unreadable(&error))?;
    if chain.is_empty() {
        return Err(format!("{} has no certificate in PEM format", path.display()));
    }
    chain.iter().map(|der| Certificate::from_der(der).map_err(|error| innermost(&error))).collect()
}

/// The resource: attributes of the settings precede those of the process.
fn resource(telemetry: &Telemetry, version: &str) -> Resource {
    let mut attributes = vec![text("service.name", &telemetry.service_name)];
    let pairs = telemetry.resource_attributes.iter().filter_map(|pair| pair.split_once('='));
    for (name, value) in pairs.map(|(name, value)| (name.trim(), value.trim())) {
        if !attributes.iter().any(|known| known.key == name) {
            attributes.push(text(name, value));
        }
    }
    let own = [("service.version", version), ("telemetry.sdk.name", "causeway"), ("telemetry.sdk.language", "rust")];
    for (name, value) in own {
        if !attributes.iter().any(|known| known.key == name) {
            attributes.push(text(name, value));
        }
    }
    Resource { attributes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_pairs_and_errors_do_not_repeat_their_values() {
        type Parsed<'a> = Result<&'a [(&'a str, &'a str)], &'a str>;
        let table: [(&str, Parsed<'_>); 8] = [
            ("", Ok(&[])),
            (
                "Authorization=Bearer%20secret,x-scope = a b ",
                Ok(&[("authorization", "Bearer secret"), ("x-scope", "a b")]),
            ),
            ("a=1\nb=2=3\r\n\n", Ok(&[("a", "1"), ("b", "2=3")])),
            ("a=1,secret", Err("pair 2 is not NAME=VALUE")),
            ("a b=secret", Err("the name of pair 1 is invalid")),
            ("=secret", Err("the name of pair 1 is invalid")),
            ("a=secret%0d%0ab", Err("the value of a has characters that are invalid in a header")),
            ("Content-Type=text/plain", Err("content-type is set by the exporter")),
        ];
        for (text, expected) in table {
            let mut headers = HeaderMap::new();
            let added = add_headers(&mut headers, text).map(|()| {
                let pairs = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().expect("is text")));
                pairs.collect::<Vec<_>>()
            });
            assert_eq!(added, expected.map(<[_]>::to_vec).map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn attributes_of_the_settings_replace_those_of_the_process() {
        let attributes = ["deployment.environment.name = test", "service.version=9", "service.name=other", "a=b=c"];
        let telemetry = Telemetry {
            service_name: "gateway-1".to_owned(),
            resource_attributes: attributes.map(str::to_owned).to_vec(),
            ..Telemetry::default()
        };
        let expected = [
            text("service.name", "gateway-1"),
            text("deployment.environment.name", "test"),
            text("service.version", "9"),
            text("a", "b=c"),
            text("telemetry.sdk.name", "causeway"),
            text("telemetry.sdk.language", "rust"),
        ];
        assert_eq!(resource(&telemetry, "1.0").attributes, expected);
    }

    #[test]
    fn a_missing_file_is_an_error_of_its_setting() {
        let mut loaded = config::load(&config::Flags::default(), []).expect("the defaults are valid");
        assert!(target(&loaded, "1").expect("is valid").is_none());
        loaded.config.telemetry.otlp_endpoint = "http://127.0.0.1:4318/base/".to_owned();
        let url = target(&loaded, "1").expect("is valid").expect("a target").url;
        assert_eq!(url.as_str(), "http://127.0.0.1:4318/base/v1/traces");
        loaded.config.telemetry.otlp_ca = "/missing/ca.pem".into();
        let error = check(&loaded).expect_err("is rejected").to_string();
        assert!(error.contains("telemetry.otlp_ca") && error.contains("/missing/ca.pem"), "{error}");
        loaded.config.telemetry.otlp_headers_file = "/missing/headers".into();
        let error = check(&loaded).expect_err("is rejected").to_string();
        assert!(error.contains("telemetry.otlp_headers_file") && error.contains("/missing/headers"), "{error}");
    }
}
