//! `causeway health` and `causeway audit`: whether the gateway is well, and who changed what.

use crate::admin::access_api::AuditView;
use crate::admin::audit::Entry;
use crate::admin::store_views::VersionView;
use crate::commands::output::{print_view, table};
use crate::commands::place::{Asking, RUNNING};
use crate::commands::remote::address::query;
use crate::commands::remote::client::{AskError, Wait};
use crate::commands::remote::{client_of, running};
use crate::commands::store_cli::printable;
use crate::commands::values::moment;
use anyhow::bail;
use clap::Args;
use config::Loaded;
use http::{Method, StatusCode};
use serde::Serialize;

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
    /// "ready", "starting" or "draining".
    stage: String,
    /// Which release answers, if a token is taken.
    version: Option<String>,
}

/// Says whether the gateway is ready. This needs no token.
///
/// # Errors
/// That it is not ready, or that none runs.
pub async fn health(loaded: &Loaded, args: HealthArgs) -> anyhow::Result<()> {
    let Asking { json, node } = args.asking;
    let client = client_of(loaded, &node).await?;
    let (ready, stage) = match client.bytes("/readyz", HEALTH_BYTES_MAX).await {
        Ok(said) => (true, String::from_utf8_lossy(&said).trim().to_owned()),
        Err(error) if AskError::status(&error) == Some(StatusCode::SERVICE_UNAVAILABLE) => {
            // The word is the last of what was answered.
            (false, error.to_string().rsplit(' ').next().unwrap_or_default().to_owned())
        }
        Err(error) => return Err(error),
    };
    let version = client.ask::<VersionView>(Method::GET, "/api/v1/version", None::<&()>, Wait::Short).await;
    let view = HealthView { ready, stage, version: version.ok().map(|view| view.version) };
    print_view(json, &view, |view| {
        let version = view.version.as_deref().map(|version| format!(" (Causeway {version})")).unwrap_or_default();
        format!("{}{version}\n", view.stage)
    })?;
    if !ready {
        bail!("the gateway at {} takes no requests: it is {}", client.url(), view.stage);
    }
    Ok(())
}

const AUDIT: &str = "\
Examples:
  causeway audit                         the last hundred changes
  causeway audit --json | jq -r '.entries[] | select(.status >= 400)'";

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
            entry.status.to_string(),
            entry.name.clone(),
            entry.from.clone().unwrap_or_else(|| "-".to_owned()),
            format!("{} {}{}", entry.method, printable(&entry.path), detail(entry)),
        ]
    };
    table(["TIME", "STATUS", "TOKEN", "FROM", "REQUEST"], changes.entries.iter().rev().map(row))
}
