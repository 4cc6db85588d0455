//! What an operator does with a gateway that runs ([`crate::operations`]), as commands.
//!
//! Goals: a command is one request, and prints what was answered: as JSON what the API says, word for word, and as text what a
//! person wants to know of it.
//!
//! | module | commands |
//! |---|---|
//! | [`node`] | `health`, `audit`: whether it is well, and who changed what |

pub mod node;

use crate::commands::place::NodePlace;
use clap::Args;

/// How it is printed, and which gateway is asked.
#[derive(Debug, Args)]
pub struct Asking {
    /// Print JSON, as the admin API answers
    #[arg(long)]
    pub json: bool,
    /// Which node is meant.
    #[command(flatten)]
    pub node: NodePlace,
}
