//! `causeway gc`, `drain`, `log-level` and `config running`: how a gateway runs, and changes of that.

use crate::output::{count, print_view};
use crate::place::{Asking, RUNNING};
use crate::remote::client::Wait;
use crate::remote::running;
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
  causeway gc                   all that is cached
  causeway gc --keep 10GiB      the oldest of it, until so much is left
  causeway gc --dry-run         nothing, but says what would go

Nothing that is pinned goes. What takes room and is needed by nothing: causeway store compact.";

/// `causeway gc`
#[derive(Debug, Args)]
#[command(after_help = format!("{GC}\n\n{RUNNING}"))]
pub struct GcArgs {
    /// Leave so much of what is cached, such as 10GiB
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    keep: Option<u64>,
    /// Say what would go, and leave it
    #[arg(long)]
    dry_run: bool,
    /// How it is asked.
    #[command(flatten)]
    pub asking: Asking,
}

/// Has cached blocks deleted.
///
/// # Errors
/// What was answered instead.
pub async fn gc(loaded: &Loaded, args: GcArgs) -> anyhow::Result<()> {
    let GcArgs { keep, dry_run, asking } = args;
    let request = CollectRequest { cached_bytes_max: keep, dry_run };
    let collected: CollectedView = running(loaded, &asking.node).await?.post("/api/v1/store/gc", &request).await?;
    print_view(asking.json, &collected, |collected| {
        let CollectedView { blocks, bytes, cached_bytes, pinned_bytes } = collected;
        let (cached, pinned, bytes) = (size(*cached_bytes), size(*pinned_bytes), size(*bytes));
        let blocks = blocks.map_or_else(|| "cached blocks".to_owned(), |blocks| count(blocks, "cached block"));
        match dry_run {
            true => format!("{blocks} would go, {bytes}; {cached} cached and {pinned} pinned would be left\n"),
            false => format!("{blocks} gone, {bytes} given back; {cached} cached and {pinned} pinned are left\n"),
        }
    })
}

const DRAIN: &str = "\
Examples:
  causeway drain           /readyz says 503: balancers send nobody more
  causeway drain --undo    traffic is welcome again
  causeway drain --stop    the gateway ends in good order, as after SIGTERM

Whoever comes while it drains is answered all the same.";

/// `causeway drain`
#[derive(Debug, Args)]
#[command(after_help = format!("{DRAIN}\n\n{RUNNING}"))]
pub struct DrainArgs {
    /// Have the gateway end in good order
    #[arg(long, conflicts_with = "undo")]
    stop: bool,
    /// Welcome traffic again
    #[arg(long)]
    undo: bool,
    /// How it is asked.
    #[command(flatten)]
    pub asking: Asking,
}

/// Has the gateway drain.
///
/// # Errors
/// What was answered instead.
pub async fn drain(loaded: &Loaded, args: DrainArgs) -> anyhow::Result<()> {
    let DrainArgs { stop, undo, asking } = args;
    let remote = running(loaded, &asking.node).await?;
    let stage: StageView = if undo {
        remote.delete("/api/v1/drain").await?
    } else {
        remote.post("/api/v1/drain", &DrainRequest { stop }).await?
    };
    print_view(asking.json, &stage, |stage| match stage.stage.as_str() {
        _ if stage.stopping => "it ends when open requests are finished\n".to_owned(),
        "draining" => "draining: /readyz says 503; \"causeway drain --undo\" ends that\n".to_owned(),
        stage => format!("{stage}\n"),
    })
}

const LEVEL: &str = "\
Examples:
  causeway log-level                        what is said now
  causeway log-level debug --for 10m        after that, what the settings say
  causeway log-level info,access=debug      a line for each request";

/// `causeway log-level`
#[derive(Debug, Args)]
#[command(after_help = format!("{LEVEL}\n\n{RUNNING}"))]
pub struct LevelArgs {
    /// As log.level has it; without it, the level is printed
    level: Option<String>,
    /// Go back to what the settings say after this, such as 10m; a week at most
    #[arg(long = "for", value_name = "TIME", requires = "level", value_parser = values::duration)]
    duration: Option<Duration>,
    /// How it is asked.
    #[command(flatten)]
    pub asking: Asking,
}

/// Prints the log level, or changes it.
///
/// # Errors
/// What was answered instead.
pub async fn log_level(loaded: &Loaded, args: LevelArgs) -> anyhow::Result<()> {
    let LevelArgs { level, duration, asking } = args;
    let remote = running(loaded, &asking.node).await?;
    let path = "/api/v1/log/level";
    let level: LevelView = match level {
        None => remote.get(path).await?,
        Some(level) => {
            let request = LevelRequest { level, duration_seconds: duration.map(|duration| duration.as_secs()) };
            remote.client().ask(Method::PUT, path, Some(&request), Wait::Short).await?
        }
    };
    print_view(asking.json, &level, |level| {
        let LevelView { level, configured, until_at } = level;
        let until = until_at.map(|at| format!(" until {}", values::moment(at))).unwrap_or_default();
        if level == configured { format!("{level}\n") } else { format!("{level}{until} (settings: {configured})\n") }
    })
}

/// `causeway config running`
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  causeway config running\n  causeway config running --json | jq '.settings[\"http.listen\"]'\n\n{RUNNING}"))]
pub struct SettingsArgs {
    /// How it is asked.
    #[command(flatten)]
    pub asking: Asking,
}

/// Prints the settings that the gateway goes by.
///
/// # Errors
/// What was answered instead.
pub async fn settings(loaded: &Loaded, args: SettingsArgs) -> anyhow::Result<()> {
    let settings: SettingsView = running(loaded, &args.asking.node).await?.get("/api/v1/config").await?;
    print_view(args.asking.json, &settings, |settings| {
        let lines = settings.settings.iter();
        lines.map(|(key, setting)| format!("{key} = {}    # {}\n", setting.value, setting.origin)).collect()
    })
}
