//! `causeway health` and `causeway audit`.

use crate::options::{GATEWAY_REQUIRED, RequestOptions};
use crate::output::{print_view, table};
use crate::remote::address::query;
use crate::remote::client::Wait;
use crate::remote::{client_for, connect};
use crate::store_cli::printable;
use crate::values::moment;
use anyhow::bail;
use api::audit::AuditView;
use api::health::{HealthFindingView, HealthView, ReachabilityView};
use api::node::NodeView;
use api::store::VersionView;
use clap::Args;
use config::Loaded;
use http::{Method, StatusCode};
use serde::Serialize;
use services::audit::AuditEntry;

/// The maximum length of an entry's detail in the table, in characters.
const DETAIL_CHARS_MAX: usize = 160;
/// The maximum length of an answer of `/readyz`, in bytes.
const HEALTH_BYTES_MAX: usize = 4096;

const HEALTH: &str = "\
Examples:
  causeway health
  causeway health --json | jq -r '.findings[].text'

It prints whether the gateway is ready, and what it found about its store, disk, memory, peers, pins, denylists and \
certificates, with what to do about it. Only readiness decides the exit status. Without a token of the gateway, it \
prints readiness only.";

/// `causeway health`
#[derive(Debug, Args)]
#[command(after_help = format!("{HEALTH}\n\n{GATEWAY_REQUIRED}"))]
pub struct HealthArgs {
    /// Output format and node.
    #[command(flatten)]
    pub options: RequestOptions,
}

/// The gateway's readiness, and its findings.
#[derive(Debug, Serialize)]
struct Readiness {
    /// Whether load balancers should send requests.
    ready: bool,
    /// "ready", "starting", "draining" or "degraded".
    stage: String,
    /// What is degraded and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    degraded: Vec<String>,
    /// The gateway's version, if it accepts the token.
    version: Option<String>,
    /// Connected peers, if the gateway accepts the token.
    peers: Option<usize>,
    /// What to do if an online gateway has no peers.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
    /// What is wrong, the most severe first, if the gateway accepts the token.
    findings: Option<Vec<HealthFindingView>>,
    /// Whether peers can open connections to the node, if the gateway accepts the token.
    reachability: Option<ReachabilityView>,
}

impl Readiness {
    /// The first line, and a line for each finding with its advice below it.
    fn text(&self) -> String {
        let version = self.version.as_deref().map(|version| format!(" (Causeway {version})")).unwrap_or_default();
        let mut text = format!("{}{version}\n", self.stage);
        let Some(findings) = &self.findings else {
            self.degraded.iter().for_each(|reason| text.push_str(&format!("  {reason}\n")));
            self.advice.iter().for_each(|advice| text.push_str(&format!("{advice}\n")));
            return text;
        };
        for HealthFindingView { level, subject, text: finding, advice } in findings {
            text.push_str(&format!("{}: {}: {}\n", level.word(), printable(subject), printable(finding)));
            advice.iter().for_each(|advice| text.push_str(&format!("  {}\n", printable(advice))));
        }
        // A gateway that has just started does not count a lack of peers as a finding yet.
        if !findings.iter().any(|finding| finding.subject == "peers") {
            self.advice.iter().for_each(|advice| text.push_str(&format!("{advice}\n")));
        }
        text
    }
}

/// Prints whether the gateway is ready, which needs no token, and its findings.
///
/// # Errors
/// When it is not ready, or none is running.
pub async fn health(loaded: &Loaded, args: HealthArgs) -> anyhow::Result<()> {
    let RequestOptions { json, node } = args.options;
    let client = client_for(loaded, &node).await?;
    let (status, body) = client.readiness("/readyz", HEALTH_BYTES_MAX).await?;
    let ready = status == StatusCode::OK;
    let body = String::from_utf8_lossy(&body);
    // The first line is the stage, and each further line a degraded part.
    let mut lines = body.lines().map(|line| printable(line).into_owned());
    let (stage, degraded) = (lines.next().unwrap_or_default(), lines.collect());
    let version = client.call::<VersionView>(Method::GET, "/api/v1/version", None::<&()>, Wait::Short).await;
    let node = client.call::<NodeView>(Method::GET, "/api/v1/node", None::<&()>, Wait::Short).await.ok();
    let (peers, advice) = node.map_or((None, None), |node| (Some(node.peers), node.advice));
    let health = client.call::<HealthView>(Method::GET, "/api/v1/health", None::<&()>, Wait::Short).await.ok();
    let (findings, reachability) = health.map(|health| (health.findings, health.reachability)).unzip();
    let version = version.ok().map(|view| view.version);
    let view = Readiness { ready, stage, degraded, version, peers, advice, findings, reachability };
    print_view(json, &view, Readiness::text)?;
    if !ready {
        bail!("the gateway at {} is not ready: it is {}", client.url(), view.stage);
    }
    Ok(())
}

const AUDIT: &str = "\
Examples:
  causeway audit                         the last hundred changes
  causeway audit --json | jq -r '.entries[] | select(.status >= 400)'

A change without a status is in progress, or was interrupted by the end of the gateway: its result is unknown then.";

/// `causeway audit`
#[derive(Debug, Args)]
#[command(after_help = format!("{AUDIT}\n\n{GATEWAY_REQUIRED}"))]
pub struct AuditArgs {
    /// The number of latest entries, up to 10000
    #[arg(long, short, value_name = "NUMBER", default_value_t = 100)]
    limit: u32,
    /// Output format and node.
    #[command(flatten)]
    pub options: RequestOptions,
}

/// Prints the latest entries in the order of their time.
///
/// # Errors
/// When the gateway cannot be reached or rejects the request.
pub async fn audit(loaded: &Loaded, args: AuditArgs) -> anyhow::Result<()> {
    let AuditArgs { limit, options } = args;
    let path = format!("/api/v1/audit{}", query(&[("limit", limit.to_string())]));
    let changes: AuditView = connect(loaded, &options.node).await?.get(&path).await?;
    print_view(options.json, &changes, audit_text)
}

/// The detail of an entry, cut to [`DETAIL_CHARS_MAX`].
fn detail(entry: &AuditEntry) -> String {
    let Some(detail) = &entry.detail else { return String::new() };
    let text = printable(&detail.to_string()).into_owned();
    match text.char_indices().nth(DETAIL_CHARS_MAX) {
        Some((end, _)) => format!(" {}…", &text[..end]),
        None => format!(" {text}"),
    }
}

fn audit_text(changes: &AuditView) -> String {
    let row = |entry: &AuditEntry| {
        [
            moment(entry.at as u64),
            entry.status.map_or_else(|| "-".to_owned(), |status| status.to_string()),
            entry.name.clone(),
            entry.from.clone().unwrap_or_else(|| "-".to_owned()),
            format!("{} {}{}", entry.method, printable(&entry.path), detail(entry)),
        ]
    };
    table(["TIME", "STATUS", "TOKEN", "FROM", "REQUEST"], changes.entries.iter().rev().map(row))
}
