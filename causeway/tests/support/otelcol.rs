//! The OpenTelemetry Collector, with an OTLP receiver over HTTP and a file of received spans. It uses loopback only.

use super::eventually;
use super::nginx::free_address;
use super::process::Process;
use serde_json::Value;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const START: Duration = Duration::from_secs(60);

/// The program. Its folder is named after the sources that it was built from, which the script knows.
fn program() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/otelcol");
    let printed = Command::new(&script).output().expect("bash is installed");
    assert!(printed.status.success(), "{}: {}", script.display(), String::from_utf8_lossy(&printed.stderr));
    PathBuf::from(String::from_utf8(printed.stdout).expect("UTF-8").trim_end())
}

/// A span as the collector has decoded it.
#[derive(Debug, Clone)]
pub struct ReceivedSpan {
    /// The attributes of its resource.
    pub resource: Value,
    /// The span in OTLP/JSON.
    pub span: Value,
}

impl ReceivedSpan {
    pub fn text(&self, field: &str) -> &str {
        self.span[field].as_str().unwrap_or_default()
    }

    /// An attribute's value; numbers as text, as OTLP/JSON has them.
    pub fn attribute(&self, key: &str) -> Option<String> {
        attribute(&self.span["attributes"], key)
    }

    /// An attribute of its resource.
    pub fn of_resource(&self, key: &str) -> Option<String> {
        attribute(&self.resource, key)
    }
}

fn attribute(attributes: &Value, key: &str) -> Option<String> {
    let found = attributes.as_array()?.iter().find(|attribute| attribute["key"] == key)?;
    let value = found["value"].as_object()?.values().next()?;
    Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// A running collector.
pub struct Collector {
    address: SocketAddr,
    scheme: &'static str,
    spans: PathBuf,
    _process: Process,
}

impl Collector {
    /// Starts it, with this certificate and key if it speaks TLS.
    pub async fn start(dir: &Path, tls: Option<(&Path, &Path)>) -> Self {
        let (address, spans) = (free_address(), dir.join("spans.jsonl"));
        let tls_lines = tls.map_or_else(String::new, |(certificate, key)| {
            let (certificate, key) = (certificate.display(), key.display());
            format!("        tls:\n          cert_file: {certificate}\n          key_file: {key}\n")
        });
        let settings = format!(
            "receivers:\n  otlp:\n    protocols:\n      http:\n        endpoint: {address}\n{tls_lines}\
             exporters:\n  file:\n    path: {}\n    flush_interval: 100ms\n\
             service:\n  telemetry:\n    metrics:\n      level: none\n\
             \x20 pipelines:\n    traces:\n      receivers: [otlp]\n      exporters: [file]\n",
            spans.display()
        );
        let file = dir.join("otelcol.yaml");
        fs::write(&file, settings).expect("the folder is ours");
        let mut command = Command::new(program());
        command.arg("--config").arg(format!("file:{}", file.display()));
        let process = Process::spawn("otelcol", &mut command, dir);
        eventually("the collector listens", START, async || tokio::net::TcpStream::connect(address).await).await;
        Self { address, scheme: if tls.is_some() { "https" } else { "http" }, spans, _process: process }
    }

    /// Its base URL.
    pub fn endpoint(&self) -> String {
        format!("{}://localhost:{}", self.scheme, self.address.port())
    }

    /// The received spans.
    pub fn spans(&self) -> Vec<ReceivedSpan> {
        let text = fs::read_to_string(&self.spans).unwrap_or_default();
        // The last line may be incomplete.
        let batches = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let of_resource = |resource: Value| {
            let attributes = resource["resource"]["attributes"].clone();
            let scopes = list(&resource["scopeSpans"]).into_iter();
            let spans = scopes.flat_map(|scope| list(&scope["spans"])).collect::<Vec<_>>();
            spans.into_iter().map(move |span| ReceivedSpan { resource: attributes.clone(), span })
        };
        batches.flat_map(|batch| list(&batch["resourceSpans"])).flat_map(of_resource).collect()
    }

    /// Waits for the spans of a trace, of which one is a request's.
    pub async fn trace(&self, id: &str, timeout: Duration) -> Vec<ReceivedSpan> {
        eventually("the collector has the trace", timeout, async || {
            let spans: Vec<_> = self.spans().into_iter().filter(|span| span.text("traceId") == id).collect();
            if spans.iter().any(|span| span.span["kind"] == 2) { Ok(spans) } else { Err(format!("{spans:?}")) }
        })
        .await
    }
}
