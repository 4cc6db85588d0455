//! [`CaClient`]: the HTTP client of an authority, for the ACME library and for renewal information (RFC 9773).
//!
//! Goals: only HTTPS; responses are bounded in size and time; the `Retry-After` of an error is kept, which the library
//! drops.

use super::schedule::{DAY, HOUR, Window};
use bytes::Bytes;
use http::header::USER_AGENT;
use http_body_util::{BodyExt as _, Full};
use instant_acme::{BodyWrapper, BytesResponse, CertificateIdentifier, Error, HttpClient};
use p2p_bridge::errors::innermost;
use p2p_bridge::http_source::dialling;
use p2p_bridge::retry_after::retry_after;
use reqwest::{Certificate, Client};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum size of a response, in bytes: chains of certificates are the longest.
const RESPONSE_BYTES_MAX: usize = 1 << 20;
/// The interval of inquiries when the authority asks for none, and its bounds.
const INQUIRY: i64 = 6 * HOUR;
const INQUIRY_BOUNDS: (i64, i64) = (60, DAY);

/// Builds the client, which trusts the system's certificates and those of a file.
///
/// # Errors
/// When the file cannot be read, or has no certificates.
pub fn build(ca: &Path) -> Result<Client, String> {
    let own = if ca.as_os_str().is_empty() { Vec::new() } else { read_certificates(ca)? };
    let builder = || dialling::builder(true).https_only(true).timeout(TIMEOUT);
    let merged = builder().tls_certs_merge(own.clone()).build();
    // A system without certificates can still use those of the file.
    merged.or_else(|_| builder().tls_certs_only(own).build()).map_err(|error| innermost(&error))
}

fn read_certificates(path: &Path) -> Result<Vec<Certificate>, String> {
    let chain = CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    if chain.is_empty() {
        return Err("the file has no certificate in PEM format".to_owned());
    }
    chain.iter().map(|der| Certificate::from_der(der).map_err(|error| innermost(&error))).collect()
}

/// What the responses to the requests of one order said.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen(Arc<Mutex<Option<Duration>>>);

impl Seen {
    /// The `Retry-After` of the last error.
    pub fn retry_after(&self) -> Option<Duration> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, retry_after: Option<Duration>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = retry_after;
    }
}

/// The client of one order.
pub(super) struct CaClient {
    pub client: Client,
    pub seen: Seen,
}

impl HttpClient for CaClient {
    fn request(
        &self,
        request: http::Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let (client, seen) = (self.client.clone(), self.seen.clone());
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let body = match body.collect().await {
                Ok(body) => body.to_bytes(),
                Err(never) => match never {},
            };
            // The client has its own.
            parts.headers.remove(USER_AGENT);
            let request = client.request(parts.method, parts.uri.to_string()).headers(parts.headers).body(body);
            let response = send(request).await.map_err(|error| Error::Other(error.into()))?;
            let status = response.status();
            if status.is_client_error() || status.is_server_error() {
                seen.set(retry_after(response.headers(), SystemTime::now()));
            }
            Ok(BytesResponse::from(response.map(Full::new)))
        })
    }
}

/// Sends a request, and reads its response within the bound.
async fn send(request: reqwest::RequestBuilder) -> io::Result<http::Response<Bytes>> {
    let failed = |error: reqwest::Error| io::Error::other(innermost(&error.without_url()));
    let mut response = request.send().await.map_err(failed)?;
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if bytes.len() + chunk.len() > RESPONSE_BYTES_MAX {
            return Err(io::Error::other(format!("the response is longer than {RESPONSE_BYTES_MAX} bytes")));
        }
        bytes.extend_from_slice(&chunk);
    }
    let mut read = http::Response::new(Bytes::from(bytes));
    *read.status_mut() = response.status();
    *read.headers_mut() = std::mem::take(response.headers_mut());
    Ok(read)
}

/// The answer to the question when to renew a certificate.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RenewalInformation {
    /// The suggested window, if the authority has suggestions.
    pub window: Option<Window>,
    /// In how many seconds to ask again.
    pub ask_again: i64,
}

/// The directory, of which only the resource of renewal information is needed here.
#[derive(Deserialize)]
struct Directory {
    #[serde(rename = "renewalInfo")]
    renewal_info: Option<String>,
}

#[derive(Deserialize)]
struct RenewalInfo {
    #[serde(rename = "suggestedWindow")]
    suggested_window: SuggestedWindow,
}

#[derive(Deserialize)]
struct SuggestedWindow {
    start: String,
    end: String,
}

/// Asks an authority when to renew a certificate (ARI).
///
/// # Errors
/// A sentence about the cause.
pub(super) async fn renewal_information(
    client: &Client,
    directory: &str,
    certificate: &CertificateDer<'_>,
) -> Result<RenewalInformation, String> {
    let get = async |url: &str| {
        let response = send(client.get(url)).await.map_err(|error| error.to_string())?;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(format!("the authority answered {}", response.status())),
        }
    };
    let directory: Directory = parse(get(directory).await?.body())?;
    let Some(base) = directory.renewal_info else {
        return Ok(RenewalInformation { window: None, ask_again: DAY });
    };
    let id = CertificateIdentifier::try_from(certificate)?;
    let response = get(&format!("{}/{id}", base.trim_end_matches('/'))).await?;
    let wait = retry_after(response.headers(), SystemTime::now());
    renewal_window(response.body(), wait)
}

fn renewal_window(body: &[u8], retry_after: Option<Duration>) -> Result<RenewalInformation, String> {
    let SuggestedWindow { start, end } = parse::<RenewalInfo>(body)?.suggested_window;
    let at = |text: &str| OffsetDateTime::parse(text, &Rfc3339).map(OffsetDateTime::unix_timestamp);
    let window = at(&start).and_then(|start| at(&end).map(|end| Window { start, end }));
    let window = window.map_err(|error| format!("the suggested window is invalid: {error}"))?;
    let (least, most) = INQUIRY_BOUNDS;
    let ask_again =
        retry_after.map_or(INQUIRY, |wait| i64::try_from(wait.as_secs()).unwrap_or(most).clamp(least, most));
    Ok(RenewalInformation { window: Some(window), ask_again })
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("the answer of the authority is invalid: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal_information_is_read() {
        let body = br#"{"suggestedWindow":{"start":"2026-01-02T04:00:00Z","end":"2026-01-03T04:00:00.5+01:00"},
            "explanationURL":"https://ca.example/docs"}"#;
        let window = Some(Window { start: 1_767_326_400, end: 1_767_409_200 });
        for (wait, expected) in [(None, 6 * HOUR), (Some(21_600), 21_600), (Some(0), 60), (Some(u64::MAX), DAY)] {
            let found = renewal_window(body, wait.map(Duration::from_secs));
            assert_eq!(found, Ok(RenewalInformation { window, ask_again: expected }), "{wait:?}");
        }
        for bad in ["", "{}", r#"{"suggestedWindow":{"start":"soon","end":"later"}}"#] {
            assert!(renewal_window(bad.as_bytes(), None).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_file_of_root_certificates_must_have_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("ca.pem");
        assert!(build(&file).is_err(), "there is no file");
        std::fs::write(&file, "nonsense").expect("writes");
        assert!(build(&file).expect_err("is rejected").contains("no certificate"));
        std::fs::write(&file, super::super::certificate::tests::pem("example.org", 2031)).expect("writes");
        assert!(build(&file).is_ok());
    }
}
