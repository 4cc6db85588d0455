//! The URLs of requests.

use crate::error::OpenError;
use crate::options::{Addressing, StoreOptions};
use reqwest::Url;
use std::net::IpAddr;

/// Where requests go.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// The URL that `object_store` wants: with the bucket in its host in the virtual-host style, else without it.
    pub(super) url: String,
    /// Its host and port.
    pub(super) authority: String,
    /// It is `http://`.
    pub(super) is_plain: bool,
}

/// The endpoint for a bucket.
pub(super) fn of(bucket: &str, options: &StoreOptions) -> Result<Endpoint, OpenError> {
    let region = options.region.as_str();
    if region.is_empty() || !region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Err(OpenError::new(format!("the region {region:?} is invalid: it is a word such as us-east-1")));
    }
    let default = format!("https://s3.{region}.amazonaws.com");
    let text = if options.endpoint.is_empty() { &default } else { &options.endpoint };
    let mut url = parse(text)?;
    let host = url.host_str().unwrap_or_default().to_owned();
    let is_plain = url.scheme() == "http";
    if is_plain && !options.allow_http && !is_loopback(&host) {
        return Err(OpenError::new(format!(
            "the endpoint {url} is not encrypted: it has to begin with https://, unless it is this machine or plain \
             HTTP is allowed (allow_http)"
        )));
    }
    if options.addressing == Addressing::VirtualHost {
        let is_name = host.parse::<IpAddr>().is_err() && !host.starts_with('[');
        if !is_name || url.set_host(Some(&format!("{bucket}.{host}"))).is_err() {
            return Err(OpenError::new(format!(
                "the endpoint {url} has no host that the bucket's name can be put before: use path style"
            )));
        }
    }
    let authority = url.authority().to_owned();
    Ok(Endpoint { url: url.as_str().trim_end_matches('/').to_owned(), authority, is_plain })
}

/// The messages show no part of the URL that may be a secret.
fn parse(text: &str) -> Result<Url, OpenError> {
    let invalid = |reason: &str| {
        OpenError::new(format!(
            "the endpoint of S3 is invalid: {reason}. It has the form https://HOST or https://HOST:PORT, without the \
             bucket"
        ))
    };
    let url = Url::parse(text).map_err(|_| invalid("it is no URL"))?;
    match () {
        () if !matches!(url.scheme(), "http" | "https") => Err(invalid("it begins with https://")),
        () if !url.username().is_empty() || url.password().is_some() => Err(invalid("credentials are not part of it")),
        () if url.query().is_some() || url.fragment().is_some() => Err(invalid("it has no '?' and no '#'")),
        () if url.host_str().is_none() => Err(invalid("it has no host")),
        () => Ok(url),
    }
}

/// Whether a host is this machine.
fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(endpoint: &str, addressing: Addressing) -> StoreOptions {
        StoreOptions { endpoint: endpoint.to_owned(), addressing, ..StoreOptions::default() }
    }

    #[test]
    fn the_bucket_is_in_the_path_or_in_the_host() {
        use Addressing::{Path, VirtualHost};
        let table = [
            ("", Path, "https://s3.us-east-1.amazonaws.com", "s3.us-east-1.amazonaws.com"),
            ("", VirtualHost, "https://bkt.s3.us-east-1.amazonaws.com", "bkt.s3.us-east-1.amazonaws.com"),
            ("https://s3.example:9000/", Path, "https://s3.example:9000", "s3.example:9000"),
            ("https://s3.example:9000", VirtualHost, "https://bkt.s3.example:9000", "bkt.s3.example:9000"),
            ("https://s3.example/storage/", Path, "https://s3.example/storage", "s3.example"),
            ("http://127.0.0.1:7070", Path, "http://127.0.0.1:7070", "127.0.0.1:7070"),
            ("http://[::1]:7070", Path, "http://[::1]:7070", "[::1]:7070"),
            ("http://localhost:7070", VirtualHost, "http://bkt.localhost:7070", "bkt.localhost:7070"),
        ];
        for (endpoint, addressing, url, authority) in table {
            let found = of("bkt", &options(endpoint, addressing)).expect(endpoint);
            assert_eq!((found.url.as_str(), found.authority.as_str()), (url, authority));
            assert_eq!(found.is_plain, url.starts_with("http:"));
        }
    }

    #[test]
    fn wrong_endpoints_have_sentences_without_secrets() {
        use Addressing::{Path, VirtualHost};
        let table = [
            ("s3.example", Path, "no URL"),
            ("ftp://s3.example", Path, "https://"),
            ("https://", Path, "no URL"),
            ("https://u:secret@s3.example", Path, "credentials are not part"),
            ("https://s3.example/?x=secret", Path, "'?'"),
            ("http://s3.example", Path, "allow_http"),
            ("http://192.0.2.1:9000", Path, "allow_http"),
            ("http://127.0.0.1.example", Path, "allow_http"),
            ("https://192.0.2.1", VirtualHost, "path style"),
            ("https://[2001:db8::1]", VirtualHost, "path style"),
        ];
        for (endpoint, addressing, words) in table {
            let error = of("bkt", &options(endpoint, addressing)).expect_err(endpoint).to_string();
            assert!(error.contains(words), "{endpoint}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let allowed = StoreOptions { allow_http: true, ..options("http://s3.example", Path) };
        assert!(of("bkt", &allowed).is_ok());
        let region = StoreOptions { region: "eu west".to_owned(), ..StoreOptions::default() };
        assert!(of("bkt", &region).expect_err("is invalid").to_string().contains("region"));
    }
}
