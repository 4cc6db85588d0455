//! `causeway site`: the site that a gateway belongs to.
//!
//! | module | command |
//! |---|---|
//! | `import` | `site import`: the pins of another gateway, with their blocks |
//! | `reconcile` | `site reconcile`: the storage is compared with the index |

mod import;
mod reconcile;

use self::import::SiteImportArgs;
use self::reconcile::ReconcileArgs;
use crate::options::{GATEWAY_REQUIRED, RequestOptions};
use crate::output::{count, print_view, table};
use crate::progress::brief;
use crate::remote::connect;
use crate::store_cli::printable;
use api::site::{SiteGatewayView, SiteView};
use api::text::size;
use clap::{Args, Subcommand};
use config::{Flags, Loaded};
use std::time::SystemTime;

const HELP: &str = "\
A site is several gateways that share pins and blocks, in a database and a storage: see [site] in the settings.";

const STATUS: &str = "\
Examples:
  causeway site status
  causeway site status --json | jq -r '.gateways[] | select(.is_alive) | .host'

The gateways are the members of the site: those that run, and those that have stopped in the last 24 hours without \
leaving. A member leaves when its gateway is shut down, and is one again when it is started; no command is needed.";

/// `causeway site`
#[derive(Debug, Args)]
#[command(after_help = format!("{HELP}\n\n{GATEWAY_REQUIRED}"))]
pub struct SiteArgs {
    #[command(subcommand)]
    command: SiteCommand,
}

#[derive(Debug, Subcommand)]
enum SiteCommand {
    /// Print the gateways of the site (its members), and what is in its storage
    #[command(after_help = format!("{STATUS}\n\n{GATEWAY_REQUIRED}"))]
    Status {
        /// Output format and node.
        #[command(flatten)]
        options: RequestOptions,
    },
    /// Compare the storage of the site with the index in its database: delete objects that the index does not know, and
    /// have missing blocks of pins fetched again
    Reconcile(ReconcileArgs),
    /// Import the pins of another gateway, with their blocks: a gateway that is alone moves into a site, or one leaves
    /// it
    Import(SiteImportArgs),
}

impl SiteArgs {
    /// The flags that are settings.
    pub fn flags(&self) -> Flags {
        match &self.command {
            SiteCommand::Status { options } => options.flags(),
            SiteCommand::Reconcile(args) => args.options.flags(),
            SiteCommand::Import(args) => args.flags(),
        }
    }
}

/// Runs a command on a site.
///
/// # Errors
/// With a message for the user: the gateway rejects the request, belongs to no site, or cannot reach its engines.
pub async fn run(loaded: &Loaded, args: SiteArgs) -> anyhow::Result<()> {
    match args.command {
        SiteCommand::Status { options } => status(loaded, &options).await,
        SiteCommand::Reconcile(args) => reconcile::run(loaded, &args).await,
        SiteCommand::Import(args) => import::run(loaded, args).await,
    }
}

async fn status(loaded: &Loaded, options: &RequestOptions) -> anyhow::Result<()> {
    let site: SiteView = connect(loaded, &options.node).await?.get("/api/v1/site").await?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    print_view(options.json, &site, |site| text(site, now))
}

fn text(site: &SiteView, now: u64) -> String {
    let SiteView { name, database, storage, gateways, pins, partial_pins, .. } = site;
    let alive = gateways.iter().filter(|gateway| gateway.is_alive).count();
    let rows = gateways.iter().map(|gateway| row(gateway, now));
    let partial = if *partial_pins > 0 { format!(", {partial_pins} of them incomplete") } else { String::new() };
    let pending = match site.pending_objects {
        0 => String::new(),
        objects => format!("  pending   {}\n", count(objects, "object")),
    };
    format!(
        "site {}: {} of {} running\n  database  {}\n  storage   {}\n  pins      {}{partial}\n  pinned    {} in {}\n  \
         cached    {} of at most {} in {}\n{pending}\n{}",
        printable(name),
        alive,
        count(gateways.len() as u64, "gateway"),
        printable(database),
        printable(storage),
        count(pins + partial_pins, "pin"),
        size(site.pinned_bytes),
        count(site.pinned_blocks, "block"),
        size(site.cached_bytes),
        size(site.cache_bytes_max),
        count(site.cached_blocks, "block"),
        table(["PEER ID", "HOST", "VERSION", "UP", "SEEN"], rows),
    )
}

fn row(gateway: &SiteGatewayView, now: u64) -> [String; 5] {
    let SiteGatewayView { peer_id, host, version, started, seen_seconds_ago, is_alive, is_this } = gateway;
    let up = if *is_alive { brief(now.saturating_sub(*started)) } else { "stopped".to_owned() };
    // Less than a second is not worth a number.
    let seen = std::time::Duration::try_from_secs_f64(*seen_seconds_ago).unwrap_or_default().as_secs();
    let this = if *is_this { " (this one)" } else { "" };
    let text = |text: &str| printable(text).into_owned();
    [text(peer_id), text(host), text(version), up, format!("{} ago{this}", brief(seen))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_printed() {
        let gateway = |name: &str, is_alive| SiteGatewayView {
            peer_id: format!("12D3{name}"),
            host: format!("{name}\u{1b}[31m"),
            version: "0.1.0".to_owned(),
            started: 1000,
            seen_seconds_ago: 3.2,
            is_alive,
            is_this: name == "a",
        };
        let site = SiteView {
            name: "berlin".to_owned(),
            database: "causeway at db1".to_owned(),
            storage: "s3://bucket".to_owned(),
            gateways: vec![gateway("a", true), gateway("b", false)],
            pins: 3,
            partial_pins: 1,
            pinned_blocks: 20,
            pinned_bytes: 3 << 20,
            cached_blocks: 1,
            cached_bytes: 1 << 10,
            cache_bytes_max: 1 << 30,
            pending_objects: 2,
        };
        let printed = text(&site, 1060);
        for words in [
            "site berlin: 1 of 2 gateways running",
            "4 pins, 1 of them incomplete",
            "3.0 MiB in 20 blocks",
            "1.0 KiB of at most 1.0 GiB in 1 block\n",
            "pending   2 objects",
            "stopped",
            "3 s ago (this one)",
        ] {
            assert!(printed.contains(words), "{words:?} is not in\n{printed}");
        }
        assert!(!printed.contains('\u{1b}'), "{printed}");
    }
}
