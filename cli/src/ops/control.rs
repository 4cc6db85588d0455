//! `causeway gc`, `drain`, `log-level` and `config running`.

use crate::options::{GATEWAY_REQUIRED, RequestOptions};
use crate::output::{count, print_view};
use crate::remote::client::Wait;
use crate::remote::connect;
use crate::values;
use api::drain::{DrainRequest, StageView};
use api::gc::{CollectRequest, CollectedView};
use api::log_level::{LevelRequest, LevelView};
use api::settings::SettingsView;
use api::text::size;
use clap::Args;
use config::Loaded;
use http::Method;
use std::time::Duration;

const GC: &str = "\
Examples:
  causeway gc                   delete all cached blocks
  causeway gc --keep 10GiB      delete the oldest, until this much is left
  causeway gc --dry-run         only print what would be deleted

Pinned blocks are not deleted. \"causeway store compact\" reclaims the space of deleted blocks.";

/// `causeway gc`
#[derive(Debug, Args)]
#[command(after_help = format!("{GC}\n\n{GATEWAY_REQUIRED}"))]
pub struct GcArgs {
    /// Keep this much of the cached blocks, such as 10GiB
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    keep: Option<u64>,
    /// Print what would be deleted, without deleting it
    #[arg(long)]
    dry_run: bool,
    /// Output format and node.
    #[command(flatten)]
    pub options: RequestOptions,
}

/// Deletes cached blocks.
///
/// # Errors
/// When the gateway cannot be reached or rejects the request.
pub async fn gc(loaded: &Loaded, args: GcArgs) -> anyhow::Result<()> {
    let GcArgs { keep, dry_run, options } = args;
    let request = CollectRequest { cached_bytes_max: keep, dry_run };
    let collected: CollectedView = connect(loaded, &options.node).await?.post("/api/v1/store/gc", &request).await?;
    print_view(options.json, &collected, |collected| {
        let CollectedView { blocks, bytes, cached_bytes, pinned_bytes } = collected;
        let (cached, pinned, bytes) = (size(*cached_bytes), size(*pinned_bytes), size(*bytes));
        let blocks = blocks.map_or_else(|| "cached blocks".to_owned(), |blocks| count(blocks, "cached block"));
        match dry_run {
            true => format!("would delete {blocks}, {bytes}; {cached} cached and {pinned} pinned would be left\n"),
            false => format!("deleted {blocks}, {bytes}; {cached} cached and {pinned} pinned are left\n"),
        }
    })
}

const DRAIN: &str = "\
Examples:
  causeway drain           /readyz answers 503: load balancers stop traffic
  causeway drain --undo    /readyz answers 200 again
  causeway drain --stop    graceful shutdown, as after SIGTERM

A draining gateway still answers all requests that it receives.";

/// `causeway drain`
#[derive(Debug, Args)]
#[command(after_help = format!("{DRAIN}\n\n{GATEWAY_REQUIRED}"))]
pub struct DrainArgs {
    /// Shut the gateway down gracefully
    #[arg(long, conflicts_with = "undo")]
    stop: bool,
    /// Stop draining, and accept traffic again
    #[arg(long)]
    undo: bool,
    /// Output format and node.
    #[command(flatten)]
    pub options: RequestOptions,
}

/// Drains the gateway.
///
/// # Errors
/// When the gateway cannot be reached or rejects the request.
pub async fn drain(loaded: &Loaded, args: DrainArgs) -> anyhow::Result<()> {
    let DrainArgs { stop, undo, options } = args;
    let remote = connect(loaded, &options.node).await?;
    let stage: StageView = if undo {
        remote.delete("/api/v1/drain").await?
    } else {
        remote.post("/api/v1/drain", &DrainRequest { stop }).await?
    };
    print_view(options.json, &stage, |stage| match stage.stage.as_str() {
        _ if stage.stopping => "shutting down: open requests are finished first\n".to_owned(),
        "draining" => "draining: /readyz answers 503; \"causeway drain --undo\" stops that\n".to_owned(),
        stage => format!("{stage}\n"),
    })
}

const LEVEL: &str = "\
Examples:
  causeway log-level                        print the level
  causeway log-level debug --for 10m        then back to the settings' level
  causeway log-level info,access=debug      with the access log";

/// `causeway log-level`
#[derive(Debug, Args)]
#[command(after_help = format!("{LEVEL}\n\n{GATEWAY_REQUIRED}"))]
pub struct LevelArgs {
    /// The new level, as in log.level [default: print the current level]
    level: Option<String>,
    /// Return to the level of the settings after this time, such as 10m; at most a week
    #[arg(long = "for", value_name = "TIME", requires = "level", value_parser = values::duration)]
    duration: Option<Duration>,
    /// Output format and node.
    #[command(flatten)]
    pub options: RequestOptions,
}

/// Prints the log level, or changes it.
///
/// # Errors
/// When the gateway cannot be reached or rejects the request.
pub async fn log_level(loaded: &Loaded, args: LevelArgs) -> anyhow::Result<()> {
    let LevelArgs { level, duration, options } = args;
    let remote = connect(loaded, &options.node).await?;
    let path = "/api/v1/log/level";
    let level: LevelView = match level {
        None => remote.get(path).await?,
        Some(level) => {
            let request = LevelRequest { level, duration_seconds: duration.map(|duration| duration.as_secs()) };
            remote.client().call(Method::PUT, path, Some(&request), Wait::Short).await?
        }
    };
    print_view(options.json, &level, |level| {
        let LevelView { level, configured, until_at } = level;
        let until = until_at.map(|at| format!(" until {}", values::moment(at))).unwrap_or_default();
        if level == configured { format!("{level}\n") } else { format!("{level}{until} (settings: {configured})\n") }
    })
}

/// `causeway config running`
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n\
    \x20 causeway config running\n\
    \x20 causeway config running --json | jq '.settings[\"http.listen\"]'\n\n\
    {GATEWAY_REQUIRED}"))]
pub struct SettingsArgs {
    /// Output format and node.
    #[command(flatten)]
    pub options: RequestOptions,
}

/// Prints the gateway's effective settings.
///
/// # Errors
/// When the gateway cannot be reached or rejects the request.
pub async fn settings(loaded: &Loaded, args: SettingsArgs) -> anyhow::Result<()> {
    let settings: SettingsView = connect(loaded, &args.options.node).await?.get("/api/v1/config").await?;
    print_view(args.options.json, &settings, |settings| {
        let lines = settings.settings.iter();
        lines.map(|(key, setting)| format!("{key} = {}    # {}\n", setting.value, setting.origin)).collect()
    })
}
