//! What can be typed after `causeway pin`.

use crate::pin::show::word;
use crate::place::{Asking, NodePlace, RUNNING};
use crate::values::{duration, pair};
use api::pins::StatusView;
use clap::{Args, Subcommand};
use config::Flags;
use content::Cid;
use std::time::Duration;

const HELP: &str = "\
A pin keeps a DAG with all of its blocks. The gateway fetches what is not here, tries again when it fails, and announces what it has. \
A token sees and changes its own pins; commands on the gateway's data folder are the operator's.";

const ADD: &str = "\
Examples:
  causeway pin add bafy…
  causeway pin add --name site bafy…/docs
  causeway pin add --origin /dns4/peer.example.org/tcp/4001/p2p/12D3KooW… bafy…
  causeway pin add --no-wait --json bafy… | jq -r .requestid

This waits until it is here, and shows how far it is. Ctrl-C ends the waiting and not the work: \"causeway pin status\" goes on to \
tell. Without a gateway that runs, what is in the store is pinned.";

const LS: &str = "\
Examples:
  causeway pin ls                                  those that are here
  causeway pin ls --status queued,pinning,failed
  causeway pin ls --all --name backup --json | jq -r '.results[].pin.cid'

Without a gateway that runs, the pins of the store are listed, whoever asked for them.";

const STATUS: &str = "Without a gateway that runs, what the store has of a CID is told.";

/// `causeway pin`
#[derive(Debug, Subcommand)]
#[command(after_help = HELP)]
pub enum PinCommand {
    /// Pin a DAG, and fetch what of it is not here
    #[command(after_help = ADD)]
    Add(AddArgs),
    /// List pins, the newest first
    #[command(alias = "list", after_help = LS)]
    Ls(LsArgs),
    /// Remove pins; what no other pin has of them is let go
    #[command(alias = "remove", after_help = format!("Examples:\n  causeway pin rm bafy…\n  causeway pin rm ID\n\n{RUNNING}"))]
    Rm {
        /// Which: the ID of a request, or a CID for all requests for it
        #[arg(value_name = "ID|CID", required = true)]
        pins: Vec<String>,
        /// Those of whatever token; IDs only
        #[arg(long)]
        everybody: bool,
        /// Print an object of JSON for each: what it was
        #[arg(long)]
        json: bool,
        /// Which node is meant.
        #[command(flatten)]
        node: NodePlace,
    },
    /// Say how far a pin is; exit with 1 if it has failed
    #[command(after_help = format!("Examples:\n  causeway pin status bafy…\n  causeway pin status --watch ID\n\n{STATUS}"))]
    Status {
        /// Which: the ID of a request, or a CID for the newest request for it
        #[arg(value_name = "ID|CID")]
        pin: String,
        /// Wait until it is here, and show how far it is
        #[arg(long, short)]
        watch: bool,
        /// Print JSON, as the Pinning Service API has it
        #[arg(long)]
        json: bool,
        /// Which node is meant.
        #[command(flatten)]
        node: NodePlace,
    },
    /// Say who has how many pins, and how much there is to do
    #[command(after_help = format!("Examples:\n  causeway pin owners\n  causeway pin owners --json | jq .pending\n\n{RUNNING}"))]
    Owners {
        /// How it is asked.
        #[command(flatten)]
        asking: Asking,
    },
    /// Pin another DAG in the place of one; blocks that both have are not let go in between
    #[command(alias = "update", after_help = format!("Example:\n  causeway pin replace ID bafy…\n\n{RUNNING}"))]
    Replace {
        /// Which is replaced: the ID of a request, or a CID for the newest request for it
        #[arg(value_name = "ID|CID")]
        old: String,
        /// What comes in its place
        #[command(flatten)]
        new: Box<AddArgs>,
    },
}

/// What is to be pinned, and how it is waited for.
#[derive(Debug, Args)]
pub struct AddArgs {
    /// What to pin: CID, CID/PATH or /ipfs/CID/PATH
    #[arg(value_name = "CID|PATH", required = true)]
    pub(super) paths: Vec<String>,
    /// What to call it
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Ask this peer first: a multiaddr that ends in /p2p/ and the peer's id (repeatable)
    #[arg(long, value_name = "MULTIADDR")]
    pub(super) origin: Vec<String>,
    /// Keep a text with it (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub(super) meta: Vec<(String, String)>,
    /// Wait until it is here; this is what happens anyway
    #[arg(long, conflicts_with = "no_wait")]
    pub(super) wait: bool,
    /// Ask for it and leave
    #[arg(long)]
    pub(super) no_wait: bool,
    /// Wait no longer than this, such as 10m; it goes on all the same
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) timeout: Option<Duration>,
    /// Print an object of JSON for each, as the Pinning Service API has it
    #[arg(long)]
    pub(super) json: bool,
    /// Which node is meant.
    #[command(flatten)]
    pub(super) node: NodePlace,
}

/// Which pins are listed.
#[derive(Debug, Args)]
pub struct LsArgs {
    /// Only those with one of these: queued, pinning, pinned, failed; pinned if left out
    #[arg(long, value_name = "STATUS", value_delimiter = ',', value_parser = status)]
    pub(super) status: Vec<StatusView>,
    /// Whatever their status
    #[arg(long, short, conflicts_with = "status")]
    pub(super) all: bool,
    /// Only those that are called so; with --partial, whose name has this in it
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Compare parts of names, whatever their case
    #[arg(long, requires = "name")]
    pub(super) partial: bool,
    /// Only those of these CIDs (repeatable)
    #[arg(long, value_name = "CID")]
    pub(super) cid: Vec<Cid>,
    /// Those of all tokens, with whatever status unless --status says more
    #[arg(long)]
    pub(super) everybody: bool,
    /// Those of the token with this name or id; implies --everybody
    #[arg(long, value_name = "NAME|ID")]
    pub(super) owner: Option<String>,
    /// The newest so many
    #[arg(long, short, value_name = "NUMBER")]
    pub(super) limit: Option<usize>,
    /// Print JSON, as the Pinning Service API has it
    #[arg(long)]
    pub(super) json: bool,
    /// Which node is meant.
    #[command(flatten)]
    pub(super) node: NodePlace,
}

impl PinCommand {
    /// The settings that were given.
    pub fn flags(&self) -> Flags {
        match self {
            Self::Add(args) => (&args.node).into(),
            Self::Replace { new, .. } => (&new.node).into(),
            Self::Ls(args) => (&args.node).into(),
            Self::Rm { node, .. } | Self::Status { node, .. } => node.into(),
            Self::Owners { asking } => asking.flags(),
        }
    }
}

/// Every status there is.
pub const STATUSES: [StatusView; 4] = [StatusView::Queued, StatusView::Pinning, StatusView::Pinned, StatusView::Failed];

fn status(text: &str) -> Result<StatusView, String> {
    let known = STATUSES.into_iter().find(|status| word(*status) == text);
    known.ok_or_else(|| "this is queued, pinning, pinned or failed".to_owned())
}
