//! Which node a command is about, and how its answer is printed, as it is said on the command line.

use clap::Args;
use config::Flags;
use std::path::{Path, PathBuf};

/// Which node is meant.
#[derive(Debug, Args)]
pub struct Place {
    /// Read settings from this TOML file
    #[arg(long, value_name = "FILE", help_heading = PLACE)]
    config: Option<PathBuf>,
    /// The node's data folder
    #[arg(long, value_name = "DIR", help_heading = PLACE)]
    data_dir: Option<String>,
}

/// What the options that say which node is meant stand below.
const PLACE: &str = "Which gateway";

impl From<&Place> for Flags {
    fn from(Place { config, data_dir }: &Place) -> Self {
        Self { config: config.clone(), data_dir: data_dir.clone(), ..Self::default() }
    }
}

/// Which node is meant, and how it is asked if it runs. A gateway that runs on the data folder is asked over its admin listener.
#[derive(Debug, Args)]
pub struct NodePlace {
    #[command(flatten)]
    place: Place,
    /// Ask the gateway whose admin listener is here, such as https://gateway.example.org:8081, wherever its data is
    #[arg(long = "admin", value_name = "URL", help_heading = PLACE)]
    admin: Option<String>,
    /// Trust the certificates in this PEM file beside those that the system trusts, for an admin listener with TLS
    #[arg(long, value_name = "FILE", help_heading = PLACE)]
    admin_ca: Option<PathBuf>,
    /// Show the gateway the token in this file
    #[arg(long, value_name = "FILE", help_heading = PLACE)]
    token_file: Option<PathBuf>,
}

impl NodePlace {
    /// The settings that were given.
    pub fn flags(&self) -> Flags {
        self.into()
    }

    /// The admin listener that was named.
    pub fn admin(&self) -> Option<&str> {
        self.admin.as_deref()
    }

    /// The file of certificates that was named.
    pub fn admin_ca(&self) -> Option<&Path> {
        self.admin_ca.as_deref()
    }

    /// The file of a token that was named.
    pub fn token_file(&self) -> Option<&Path> {
        self.token_file.as_deref()
    }

    /// One that says nothing but where a token is.
    #[cfg(test)]
    pub fn for_tests(token_file: Option<&Path>) -> Self {
        let place = Place { config: None, data_dir: None };
        Self { place, admin: None, admin_ca: None, token_file: token_file.map(Path::to_owned) }
    }
}

impl From<&NodePlace> for Flags {
    fn from(node: &NodePlace) -> Self {
        (&node.place).into()
    }
}

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

impl Asking {
    /// The settings that were given.
    pub fn flags(&self) -> Flags {
        self.node.flags()
    }
}

/// What the help of commands that work with and without a gateway that runs says about it.
pub(crate) const REACH: &str = "\
The gateway may run or not: if it does, it does the work, and is asked over its admin listener.";

/// What the help of commands that need a gateway that runs says about it.
pub(crate) const RUNNING: &str = "\
This asks the gateway that runs on the data folder, or the one that --admin names.";
