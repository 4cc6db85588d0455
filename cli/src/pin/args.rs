//! The arguments of `causeway pin`.

use crate::options::{GATEWAY_REQUIRED, NodeOptions, RequestOptions};
use crate::pin::show::status_name;
use crate::values::{duration, pair};
use api::pins::StatusView;
use clap::{Args, Subcommand};
use config::Flags;
use content::Cid;
use std::time::Duration;

const HELP: &str = "\
A pin keeps a DAG with all of its blocks. The gateway fetches missing blocks, retries after failures, and provides the \
DAG to the network. A token sees and changes its own pins; commands on the gateway's data folder act as the operator.";

const ADD: &str = "\
Examples:
  causeway pin add bafy…
  causeway pin add --name site bafy…/docs
  causeway pin add --origin /dns4/peer.example.org/tcp/4001/p2p/12D3KooW… bafy…
  causeway pin add --no-wait --json bafy… | jq -r .requestid

This waits until the DAG is pinned, and shows the progress. Ctrl-C ends the command, and the gateway continues: \
\"causeway pin status\" shows the progress later. Without a running gateway, only DAGs that are complete in the store \
can be pinned.";

const LS: &str = "\
Examples:
  causeway pin ls                                  pinned DAGs
  causeway pin ls --status queued,pinning,failed
  causeway pin ls --all --name backup --json | jq -r '.results[].pin.cid'

Without a running gateway, this lists the pins of the store, of all owners.";

const STATUS: &str = "Without a running gateway, this shows the store's pin of a CID.";

/// `causeway pin`
#[derive(Debug, Subcommand)]
#[command(after_help = HELP)]
pub enum PinCommand {
    /// Pin DAGs, and fetch their missing blocks
    #[command(after_help = ADD)]
    Add(AddArgs),
    /// List pins, the newest first
    #[command(alias = "list", after_help = LS)]
    Ls(LsArgs),
    /// Unpin DAGs; their blocks without another pin may be evicted
    #[command(alias = "remove", after_help = format!("Examples:\n\
        \x20 causeway pin rm bafy…\n\
        \x20 causeway pin rm ID\n\n\
        {GATEWAY_REQUIRED}"))]
    Rm {
        /// The pins to remove: the ID of a pin request, or a CID for all requests for it
        #[arg(value_name = "ID|CID", required = true)]
        pins: Vec<String>,
        /// Remove pins of any token; only by ID
        #[arg(long)]
        everybody: bool,
        /// Print a JSON object for each removed pin
        #[arg(long)]
        json: bool,
        /// The node.
        #[command(flatten)]
        node: NodeOptions,
    },
    /// Show the status of a pin; exit with 1 if it has failed
    #[command(after_help = format!("Examples:\n\
        \x20 causeway pin status bafy…\n\
        \x20 causeway pin status --watch ID\n\n\
        {STATUS}"))]
    Status {
        /// The pin: the ID of a pin request, or a CID for the newest request for it
        #[arg(value_name = "ID|CID")]
        pin: String,
        /// Wait until the DAG is pinned, and show the progress
        #[arg(long, short)]
        watch: bool,
        /// Print JSON in the format of the Pinning Service API
        #[arg(long)]
        json: bool,
        /// The node.
        #[command(flatten)]
        node: NodeOptions,
    },
    /// Show the number of pins of each owner, and the work that is left
    #[command(after_help = format!("Examples:\n\
        \x20 causeway pin owners\n\
        \x20 causeway pin owners --json | jq .pending\n\n\
        {GATEWAY_REQUIRED}"))]
    Owners {
        /// Output format and node.
        #[command(flatten)]
        options: RequestOptions,
    },
    /// Replace a pin by another DAG; blocks that both contain stay pinned
    #[command(alias = "update", after_help = format!("Example:\n\
        \x20 causeway pin replace ID bafy…\n\n\
        {GATEWAY_REQUIRED}"))]
    Replace {
        /// The pin to replace: the ID of a pin request, or a CID for the newest request for it
        #[arg(value_name = "ID|CID")]
        old: String,
        /// The new DAG.
        #[command(flatten)]
        new: Box<AddArgs>,
    },
}

/// What to pin, and how long to wait.
#[derive(Debug, Args)]
pub struct AddArgs {
    /// What to pin: CID, CID/PATH or /ipfs/CID/PATH
    #[arg(value_name = "CID|PATH", required = true)]
    pub(super) paths: Vec<String>,
    /// The name of the pins
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Fetch from this peer first: a multiaddr that ends in /p2p/ID (repeatable)
    #[arg(long, value_name = "MULTIADDR")]
    pub(super) origin: Vec<String>,
    /// Store metadata with the pins (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub(super) meta: Vec<(String, String)>,
    /// Wait until the DAGs are pinned; this is the default
    #[arg(long, conflicts_with = "no_wait")]
    pub(super) wait: bool,
    /// Return without waiting
    #[arg(long)]
    pub(super) no_wait: bool,
    /// Wait at most this long, such as 10m; pinning continues after that
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) timeout: Option<Duration>,
    /// Print a JSON object for each pin, in the format of the Pinning Service API
    #[arg(long)]
    pub(super) json: bool,
    /// The node.
    #[command(flatten)]
    pub(super) node: NodeOptions,
}

/// The filter and the output of `causeway pin ls`.
#[derive(Debug, Args)]
pub struct LsArgs {
    /// Only pins with one of these statuses: queued, pinning, pinned, failed [default: pinned]
    #[arg(long, value_name = "STATUS", value_delimiter = ',', value_parser = status)]
    pub(super) status: Vec<StatusView>,
    /// Pins with any status
    #[arg(long, short, conflicts_with = "status")]
    pub(super) all: bool,
    /// Only pins with this name; with --partial, only pins whose name contains it
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Match a part of the name, ignoring case
    #[arg(long, requires = "name")]
    pub(super) partial: bool,
    /// Only pins of this CID (repeatable)
    #[arg(long, value_name = "CID")]
    pub(super) cid: Vec<Cid>,
    /// Pins of all tokens, with any status unless --status is given
    #[arg(long)]
    pub(super) everybody: bool,
    /// Pins of the token with this name or ID; implies --everybody
    #[arg(long, value_name = "NAME|ID")]
    pub(super) owner: Option<String>,
    /// The maximum number of pins, newest first
    #[arg(long, short, value_name = "NUMBER")]
    pub(super) limit: Option<usize>,
    /// Print JSON in the format of the Pinning Service API
    #[arg(long)]
    pub(super) json: bool,
    /// The node.
    #[command(flatten)]
    pub(super) node: NodeOptions,
}

impl PinCommand {
    /// The settings that the options override.
    pub fn flags(&self) -> Flags {
        match self {
            Self::Add(args) => (&args.node).into(),
            Self::Replace { new, .. } => (&new.node).into(),
            Self::Ls(args) => (&args.node).into(),
            Self::Rm { node, .. } | Self::Status { node, .. } => node.into(),
            Self::Owners { options } => options.flags(),
        }
    }
}

/// All statuses.
pub const STATUSES: [StatusView; 4] = [StatusView::Queued, StatusView::Pinning, StatusView::Pinned, StatusView::Failed];

fn status(text: &str) -> Result<StatusView, String> {
    let known = STATUSES.into_iter().find(|status| status_name(*status) == text);
    known.ok_or_else(|| "must be queued, pinning, pinned or failed".to_owned())
}
