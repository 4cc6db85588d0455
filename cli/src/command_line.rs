//! The command line: stable from the first release on.

use crate::block::{self, BlockCommand};
use crate::names_cli::{self, KeyCommand, NameCommand};
use crate::output::{EXITS, exit_code, print};
use crate::ownership::Ownership;
use crate::pin::{self, PinCommand};
use crate::place::{Place, REACH};
use crate::store_admin::{self, ImportArgs, StoreCommand};
use crate::store_cli::{add, cat, get, ls};
use crate::token::{self, TokenCommand};
use crate::{ops, shell};
use anyhow::Context as _;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use config::{ConfigError, Flags, Loaded};
use services::logging::chain;
use services::p2p;
use std::sync::OnceLock;

/// An IPFS HTTP gateway: runs it, fills it, and looks after it
#[derive(Debug, Parser)]
#[command(name = "causeway", after_help = format!("{START}\n\n{PRECEDENCE}\n\n{EXITS}"))]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const START: &str = "\
To begin:             causeway serve
Something of yours:   causeway add site/     prints its CID; it is at /ipfs/CID
Help, with examples:  causeway help add      or as manual pages: causeway man DIR
Completion on Tab:    source <(causeway completions bash)";

const PRECEDENCE: &str = "Every setting is also a key of the configuration file and an environment variable:\n\
    http.listen is CAUSEWAY_HTTP_LISTEN. Flags beat the environment, which beats the file, which beats the defaults.\n\
    \"causeway config show\" prints all of them.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway until SIGTERM or SIGINT
    #[command(after_help = format!("{SERVE}\n\n{PRECEDENCE}"))]
    Serve(Box<Flags>),
    /// Look at the settings without running anything
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print the node's peer id, making an identity if there is none
    #[command(after_help = "Example:\n  causeway id --data-dir /var/lib/causeway")]
    Id(Place),
    /// Manage the keys that IPNS names are published with
    #[command(subcommand)]
    Key(KeyCommand),
    /// Publish IPNS names
    #[command(subcommand)]
    Name(NameCommand),
    /// Take in files and folders and pin them
    Add(Box<add::AddArgs>),
    /// Write a file, a folder or an archive of it
    Get(get::GetArgs),
    /// Write files to standard output
    Cat(cat::CatArgs),
    /// List a folder
    Ls(ls::LsArgs),
    /// Look at the store, check it, mend it, and move CAR files in and out
    #[command(subcommand)]
    Store(StoreCommand),
    /// Take in the blocks of a CAR file and pin its roots; the same as "store import"
    #[command(after_help = format!("Examples:\n  causeway import site.car\n  curl -s URL | causeway import -\n\n{REACH}"))]
    Import(ImportArgs),
    /// Keep DAGs for good, and fetch what of them is not here
    #[command(subcommand)]
    Pin(PinCommand),
    /// Block content, and say what is blocked and why
    #[command(subcommand)]
    Block(BlockCommand),
    /// Make, list and revoke the tokens that the admin API asks for
    #[command(subcommand)]
    Token(TokenCommand),
    /// Remove cached copies of content, or what is known of a name
    Purge(ops::caches::PurgeArgs),
    /// Fetch content before anybody asks for it
    Warm(ops::caches::WarmArgs),
    /// Look up now what a name stands for
    Refresh(ops::caches::RefreshArgs),
    /// Say what would be answered to a request, and why: what is here, who has the rest, what is blocked
    Explain(ops::explain::ExplainArgs),
    /// List the connected peers; connect with one, or let one go
    Peers(ops::peers::PeersArgs),
    /// Print the figures of this moment, or of each second
    Stats(ops::figures::StatsArgs),
    /// List the requests that are being answered
    Requests(ops::figures::RequestsArgs),
    /// Print which node runs, and where it is to be found
    Node(ops::figures::NodeArgs),
    /// Delete cached blocks now, and not when their room is needed
    Gc(ops::changes::GcArgs),
    /// Say to balancers that no more traffic is wanted, or end the gateway in good order
    Drain(ops::changes::DrainArgs),
    /// Print how much the gateway says of its work, or change it
    LogLevel(ops::changes::LevelArgs),
    /// Say whether the gateway is ready for requests; exit with 1 if it is not, and with 3 if none runs
    Health(ops::node::HealthArgs),
    /// List the last changes that somebody made through the admin API
    Audit(ops::node::AuditArgs),
    /// Print what a shell needs to complete commands on Tab
    Completions(shell::CompletionsArgs),
    /// Write the manual pages, one for each command
    Man(shell::ManArgs),
}

const SERVE: &str = "\
Examples:
  causeway serve           for this machine only, at http://127.0.0.1:8080
  causeway serve --config /etc/causeway.toml
  causeway serve --listen 0.0.0.0:8080 --data-dir /srv/ipfs";

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the settings that the gateway that runs goes by, and who set them
    Running(ops::changes::SettingsArgs),
    /// Say whether the settings are valid and the files that they name can be used
    #[command(after_help = "Example:\n  causeway config check --config /etc/causeway.toml")]
    Check(Box<Flags>),
    /// Print every setting as it would be used; secrets are shown as ***
    #[command(after_help = "Example:\n  causeway config show --config /etc/causeway.toml")]
    Show(Box<Flags>),
}

/// The program that the command line is of: what commands need that only the binary has.
pub struct Program {
    /// What `--version` prints after the name.
    pub version: &'static str,
    /// Runs a node until it is told to end: `causeway serve`.
    pub serve: fn(&Flags) -> anyhow::Result<()>,
    /// Checks what a start would read: `causeway config check`.
    pub check: fn(&Loaded) -> Result<(), ConfigError>,
}

impl Program {
    /// The command line as clap knows it, for parsing, completions and manual pages.
    pub fn command_line(&self) -> clap::Command {
        Cli::command().version(self.version)
    }
}

/// Runs the command line of the process and says with which code the process is to exit. Errors are one line on standard error.
pub fn run(program: &Program) -> i32 {
    let cli = Cli::from_arg_matches(&program.command_line().get_matches()).unwrap_or_else(|error| error.exit());
    let done = check_processor().and_then(|()| dispatch(program, cli.command));
    if let Some(Err(error)) = OWNERSHIP.get().and_then(Option::as_ref).map(Ownership::restore) {
        eprintln!(
            "warning: some files in the data folder belong to root, and the gateway may not be able to read them: {error}"
        );
    }
    match done {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("error: {}", chain(&error));
            exit_code(&error)
        }
    }
}

/// RocksDB is compiled for instructions that x86-64 processors have had since 2010. One that lacks them would end the process
/// without a word.
fn check_processor() -> anyhow::Result<()> {
    #[cfg(target_arch = "x86_64")]
    anyhow::ensure!(
        !option_env!("CXXFLAGS_x86_64_unknown_linux_gnu").is_some_and(|flags| flags.contains("-msse4.2"))
            || is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq"),
        "this processor lacks SSE 4.2 or PCLMULQDQ, which Causeway was compiled for; compile it without CXXFLAGS in .cargo/config.toml"
    );
    Ok(())
}

fn dispatch(program: &Program, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(flags) => (program.serve)(&flags),
        Command::Config(ConfigCommand::Check(flags)) => {
            let loaded = load(&flags)?;
            (program.check)(&loaded)?;
            print("The settings are valid, and the files that they name can be used.\n")
        }
        Command::Config(ConfigCommand::Show(flags)) => print(&toml::to_string(&load(&flags)?.config)?),
        Command::Config(ConfigCommand::Running(args)) => {
            asking(&args.asking.flags(), async |loaded| ops::changes::settings(loaded, args).await)
        }
        Command::Id(place) => {
            let loaded = load(&Flags::from(&place))?;
            print(&format!("{}\n", p2p::peer_id(&loaded.config.data_dir)?))
        }
        Command::Key(command) => asking(&command.flags(), async |loaded| names_cli::keys(loaded, command).await),
        Command::Name(command) => asking(&command.flags(), async |loaded| names_cli::names(loaded, command).await),
        Command::Add(args) => add::run(&load(&args.flags())?, &runtime()?, &args),
        Command::Get(args) => get::run(&load(&args.flags())?, &runtime()?, &args),
        Command::Cat(args) => cat::run(&load(&args.flags())?, &runtime()?, &args),
        Command::Ls(args) => ls::run(&load(&args.flags())?, &runtime()?, &args),
        Command::Store(command) => store_admin::run(&load(&command.flags())?, &runtime()?, command),
        Command::Import(args) => store_admin::import(&load(&args.flags())?, &runtime()?, &args),
        Command::Pin(command) => asking(&command.flags(), async |loaded| pin::run(loaded, command).await),
        Command::Block(command) => asking(&command.flags(), async |loaded| block::run(loaded, command).await),
        Command::Token(command) => asking(&command.flags(), async |loaded| token::run(loaded, command).await),
        Command::Purge(args) => asking(&args.asking.flags(), async |loaded| ops::caches::purge(loaded, args).await),
        Command::Warm(args) => asking(&args.asking.flags(), async |loaded| ops::caches::warm(loaded, args).await),
        Command::Refresh(args) => asking(&args.asking.flags(), async |loaded| ops::caches::refresh(loaded, args).await),
        Command::Explain(args) => {
            asking(&args.asking.flags(), async |loaded| ops::explain::explain(loaded, args).await)
        }
        Command::Peers(args) => asking(&args.flags(), async |loaded| ops::peers::run(loaded, args).await),
        Command::Stats(args) => asking(&args.asking.flags(), async |loaded| ops::figures::stats(loaded, args).await),
        Command::Requests(args) => {
            asking(&args.asking.flags(), async |loaded| ops::figures::requests(loaded, args).await)
        }
        Command::Node(args) => asking(&args.asking.flags(), async |loaded| ops::figures::node(loaded, args).await),
        Command::Gc(args) => asking(&args.asking.flags(), async |loaded| ops::changes::gc(loaded, args).await),
        Command::Drain(args) => asking(&args.asking.flags(), async |loaded| ops::changes::drain(loaded, args).await),
        Command::LogLevel(args) => {
            asking(&args.asking.flags(), async |loaded| ops::changes::log_level(loaded, args).await)
        }
        Command::Health(args) => asking(&args.asking.flags(), async |loaded| ops::node::health(loaded, args).await),
        Command::Audit(args) => asking(&args.asking.flags(), async |loaded| ops::node::audit(loaded, args).await),
        Command::Completions(args) => shell::completions(program.command_line(), &args),
        Command::Man(args) => shell::man(program.command_line(), &args),
    }
}

/// Reads the settings, and does what may ask a gateway.
fn asking(flags: &Flags, ask: impl AsyncFnOnce(&Loaded) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let loaded = load(flags)?;
    runtime()?.block_on(ask(&loaded))
}

/// Who owns the data folder that the command is about, if it leaves files there that are not its owner's.
static OWNERSHIP: OnceLock<Option<Ownership>> = OnceLock::new();

/// Reads the settings of a command other than `serve`.
fn load(flags: &Flags) -> Result<Loaded, ConfigError> {
    let loaded = read(flags)?;
    if let Some(ownership) = OWNERSHIP.get_or_init(|| Ownership::of(&loaded.config.data_dir))
        && let Err(error) = ownership.restore_when_ended()
    {
        eprintln!("warning: if this command is interrupted, it leaves files that belong to root: {error}");
    }
    Ok(loaded)
}

/// Reads the settings: flags, environment, file, defaults.
///
/// # Errors
/// [`ConfigError`].
pub fn read(flags: &Flags) -> Result<Loaded, ConfigError> {
    config::load(flags, std::env::vars_os())
}

/// The runtime of a command or a node.
///
/// # Errors
/// When the system gives no threads.
pub fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime cannot be started")
}
