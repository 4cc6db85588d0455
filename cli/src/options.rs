//! Options of many commands: which node the command works on, and the output format.

use clap::Args;
use config::Flags;
use std::path::{Path, PathBuf};

/// The node of this machine that a command works on.
#[derive(Debug, Args)]
pub struct DataDirOptions {
    /// Read settings from this TOML file
    #[arg(long, value_name = "FILE", help_heading = NODE_HEADING)]
    config: Option<PathBuf>,
    /// The node's data folder
    #[arg(long, value_name = "DIR", help_heading = NODE_HEADING)]
    data_dir: Option<String>,
}

/// The help heading of the options that select a node.
const NODE_HEADING: &str = "Which gateway";

impl From<&DataDirOptions> for Flags {
    fn from(DataDirOptions { config, data_dir }: &DataDirOptions) -> Self {
        Self { config: config.clone(), data_dir: data_dir.clone(), ..Self::default() }
    }
}

/// The node that a command works on, and the access to its admin API. A gateway that runs on the data folder is
/// contacted at its admin listener.
#[derive(Debug, Args)]
pub struct NodeOptions {
    #[command(flatten)]
    local: DataDirOptions,
    /// Contact the gateway with its admin listener at this URL, such as https://gateway.example.org:8081 or
    /// unix:/run/causeway/admin.sock, instead of the gateway of the data folder
    #[arg(long = "admin", value_name = "URL", help_heading = NODE_HEADING)]
    admin: Option<String>,
    /// Trust the certificates in this PEM file as well as those that the system trusts, for an admin listener with TLS
    #[arg(long, value_name = "FILE", help_heading = NODE_HEADING)]
    admin_ca: Option<PathBuf>,
    /// Authenticate with the token in this file
    #[arg(long, value_name = "FILE", help_heading = NODE_HEADING)]
    token_file: Option<PathBuf>,
}

impl NodeOptions {
    /// The settings that the options override.
    pub fn flags(&self) -> Flags {
        self.into()
    }

    /// The URL of `--admin`.
    pub fn admin(&self) -> Option<&str> {
        self.admin.as_deref()
    }

    /// The file of `--admin-ca`.
    pub fn admin_ca(&self) -> Option<&Path> {
        self.admin_ca.as_deref()
    }

    /// The file of `--token-file`.
    pub fn token_file(&self) -> Option<&Path> {
        self.token_file.as_deref()
    }

    /// Options with nothing but a token file.
    #[cfg(test)]
    pub fn for_tests(token_file: Option<&Path>) -> Self {
        let local = DataDirOptions { config: None, data_dir: None };
        Self { local, admin: None, admin_ca: None, token_file: token_file.map(Path::to_owned) }
    }
}

impl From<&NodeOptions> for Flags {
    fn from(node: &NodeOptions) -> Self {
        (&node.local).into()
    }
}

/// Options of commands with one result: the output format, and which gateway is contacted.
#[derive(Debug, Args)]
pub struct RequestOptions {
    /// Print the JSON answer of the admin API
    #[arg(long)]
    pub json: bool,
    /// The node.
    #[command(flatten)]
    pub node: NodeOptions,
}

impl RequestOptions {
    /// The settings that the options override.
    pub fn flags(&self) -> Flags {
        self.node.flags()
    }
}

/// Help of commands that work with and without a running gateway.
pub(crate) const GATEWAY_OPTIONAL: &str = "\
This works with and without a running gateway. A gateway that runs on the data folder does the work, over its admin \
API.";

/// Help of commands that need a running gateway.
pub(crate) const GATEWAY_REQUIRED: &str = "\
This contacts the gateway that runs on the data folder, or the one that --admin names.";
