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

/// `causeway health`
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  causeway health\n  causeway health --json\n\n{GATEWAY_REQUIRED}"))]
pub struct HealthArgs {
    /// Output format and node.
    #[command(flatten)]
    pub options: RequestOptions,
}

/// The gateway's readiness.
#[derive(Debug, Serialize)]
struct HealthView {
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
}

/// Prints whether the gateway is ready. This needs no token.
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
    let view = HealthView { ready, stage, degraded, version: version.ok().map(|view| view.version), peers, advice };
    print_view(json, &view, |view| {
        let version = view.version.as_deref().map(|version| format!(" (Causeway {version})")).unwrap_or_default();
        let degraded: String = view.degraded.iter().map(|reason| format!("  {reason}\n")).collect();
        let advice = view.advice.as_deref().map(|advice| format!("{advice}\n")).unwrap_or_default();
        format!("{}{version}\n{degraded}{advice}", view.stage)
    })?;
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
