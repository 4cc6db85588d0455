//! `causeway health` and `causeway audit`: whether the gateway is well, and who changed what.

use crate::output::{print_view, table};
use crate::place::{Asking, RUNNING};
use crate::remote::address::query;
use crate::remote::client::Wait;
use crate::remote::{client_of, running};
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
use services::audit::Entry;

/// Characters of what a change was about that are shown to people.
const DETAIL_CHARS_MAX: usize = 160;
/// The longest answer of a health check, in bytes.
const HEALTH_BYTES_MAX: usize = 4096;

/// `causeway health`
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  causeway health\n  causeway health --json\n\n{RUNNING}"))]
pub struct HealthArgs {
    /// How it is asked.
    #[command(flatten)]
    pub asking: Asking,
}

/// Whether the gateway is well.
#[derive(Debug, Serialize)]
struct HealthView {
    /// Whether requests are welcome.
    ready: bool,
    /// "ready", "starting", "draining" or "degraded".
    stage: String,
    /// What is degraded and why, in sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    degraded: Vec<String>,
    /// Which release answers, if a token is taken.
    version: Option<String>,
    /// Connected peers, if a token is taken.
    peers: Option<usize>,
    /// What to do if there are none although the gateway is online.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

/// Says whether the gateway is ready. This needs no token.
///
/// # Errors
/// That it is not ready, or that none runs.
pub async fn health(loaded: &Loaded, args: HealthArgs) -> anyhow::Result<()> {
    let Asking { json, node } = args.asking;
    let client = client_of(loaded, &node).await?;
    let (status, said) = client.readiness("/readyz", HEALTH_BYTES_MAX).await?;
    let ready = status == StatusCode::OK;
    let said = String::from_utf8_lossy(&said);
    // A word, and a sentence for each part that is degraded.
    let mut lines = said.lines().map(|line| printable(line).into_owned());
    let (stage, degraded) = (lines.next().unwrap_or_default(), lines.collect());
    let version = client.ask::<VersionView>(Method::GET, "/api/v1/version", None::<&()>, Wait::Short).await;
    let node = client.ask::<NodeView>(Method::GET, "/api/v1/node", None::<&()>, Wait::Short).await.ok();
    let (peers, advice) = node.map_or((None, None), |node| (Some(node.peers), node.advice));
    let view = HealthView { ready, stage, degraded, version: version.ok().map(|view| view.version), peers, advice };
    print_view(json, &view, |view| {
        let version = view.version.as_deref().map(|version| format!(" (Causeway {version})")).unwrap_or_default();
        let degraded: String = view.degraded.iter().map(|reason| format!("  {reason}\n")).collect();
        let advice = view.advice.as_deref().map(|advice| format!("{advice}\n")).unwrap_or_default();
        format!("{}{version}\n{degraded}{advice}", view.stage)
    })?;
    if !ready {
        bail!("the gateway at {} had better get no requests: it is {}", client.url(), view.stage);
    }
    Ok(())
}

const AUDIT: &str = "\
Examples:
  causeway audit                         the last hundred changes
  causeway audit --json | jq -r '.entries[] | select(.status >= 400)'

A change without a status is under way, or the gateway ended while it was: then it may have been made or not.";

/// `causeway audit`
#[derive(Debug, Args)]
#[command(after_help = format!("{AUDIT}\n\n{RUNNING}"))]
pub struct AuditArgs {
    /// The last so many, up to 10000
    #[arg(long, short, value_name = "NUMBER", default_value_t = 100)]
    limit: u32,
    /// How it is asked.
    #[command(flatten)]
    pub asking: Asking,
}

/// Prints the last changes, the newest last, as a log is read.
///
/// # Errors
/// What was answered instead.
pub async fn audit(loaded: &Loaded, args: AuditArgs) -> anyhow::Result<()> {
    let AuditArgs { limit, asking } = args;
    let path = format!("/api/v1/audit{}", query(&[("limit", limit.to_string())]));
    let changes: AuditView = running(loaded, &asking.node).await?.get(&path).await?;
    print_view(asking.json, &changes, audit_text)
}

/// What the request was about, as far as its path does not say so.
fn detail(entry: &Entry) -> String {
    let Some(detail) = &entry.detail else { return String::new() };
    let text = printable(&detail.to_string()).into_owned();
    match text.char_indices().nth(DETAIL_CHARS_MAX) {
        Some((end, _)) => format!(" {}…", &text[..end]),
        None => format!(" {text}"),
    }
}

fn audit_text(changes: &AuditView) -> String {
    let row = |entry: &Entry| {
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
