//! Support of the end-to-end tests: real processes, real peers, reproducible content, and conditions to
//! wait for.
//!
//! Goals: everything on loopback and on free ports; processes and files are removed when the test ends, also when
//! it fails; a failure shows the output of the processes.
//!
//! Non-goals: mocks of Causeway or Kubo. Only misbehaving peers are implemented here.

pub mod caddy;
pub mod causeway;
pub mod certificate;
pub mod corpus;
pub mod haproxy;
pub mod hostile;
pub mod ipfs;
pub mod kubo;
pub mod metrics;
pub mod nginx;
pub mod noise;
pub mod otelcol;
pub mod pebble;
pub mod process;
pub mod varnish;
pub mod wire;

use std::fmt::Display;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The interval of polling a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// Polls `condition` until it succeeds; panics with `what` and the last error after `timeout`.
pub async fn eventually<T, E: Display>(
    what: &str,
    timeout: Duration,
    mut condition: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let begun = Instant::now();
    loop {
        match condition().await {
            Ok(value) => return value,
            Err(error) if begun.elapsed() > timeout => panic!("{what}: not after {timeout:?}: {error}"),
            Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}

/// A response with its whole body.
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: bytes::Bytes,
}

impl Answer {
    /// A header's text, or nothing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The body as text, for error messages.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).chars().take(2000).collect()
    }
}

/// GETs a URL on a new connection; panics after two minutes, or if the answer is cut short.
pub async fn get(url: &str) -> Answer {
    try_get(url).await.unwrap_or_else(|error| panic!("GET {url}: {error:?}"))
}

/// [`get`] for answers that may be cut short.
pub async fn try_get(url: &str) -> Result<Answer, reqwest::Error> {
    let response = client().get(url).send().await?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Ok(Answer { status, headers, body: response.bytes().await? })
}

/// A client that does not follow redirects.
pub fn client() -> reqwest::Client {
    p2p_bridge::tls::use_ring();
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(Duration::from_secs(120))
        .build()
        .expect("a client without TLS needs nothing that could be missing")
}

/// Runs a command with standard input to its end: its output, and its trimmed standard output.
pub fn output_of(command: &mut Command, input: &[u8]) -> (Output, String) {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let mut stdin = child.stdin.take().expect("it was asked for");
    std::thread::scope(|scope| {
        // A command that does not read its input to the end reports the reason.
        scope.spawn(move || _ = stdin.write_all(input));
        let output = child.wait_with_output().expect("ends");
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        (output, text)
    })
}

/// Panics with the offset of the first difference: whole files are too long to print.
pub fn assert_same_bytes(what: &str, got: &[u8], expected: &[u8]) {
    if let Some(at) = got.iter().zip(expected).position(|(a, b)| a != b) {
        panic!("{what}: byte {at} of {} differs: {:#04x} instead of {:#04x}", expected.len(), got[at], expected[at]);
    }
    assert_eq!(got.len(), expected.len(), "{what}: length");
}
