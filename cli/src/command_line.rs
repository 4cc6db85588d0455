//! The command line as a whole: its commands, their order in the help, and their dispatch.

use crate::block::{self, BlockCommand};
use crate::names_cli::{self, KeyCommand, NameCommand};
use crate::options::{DataDirOptions, GATEWAY_OPTIONAL};
use crate::output::{EXITS, exit_code, print};
use crate::ownership::Ownership;
use crate::pin::{self, PinCommand};
use crate::store_admin::{self, ImportArgs, StoreCommand};
use crate::store_cli::{add, cat, get, ls};
use crate::token::{self, TokenCommand};
use crate::{ops, report, shell};
use anyhow::Context as _;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use config::{ConfigError, Flags, Loaded};
use services::logging::chain;
use services::p2p;
use std::sync::OnceLock;

/// An IPFS HTTP gateway: run it, add content to it, and operate it
#[derive(Debug, Parser)]
#[command(name = "causeway", after_help = format!("{START}\n\n{PRECEDENCE}\n\n{EXITS}"))]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const START: &str = "\
Start a gateway:       causeway serve
Add content:           causeway add site/     prints its CID; it is served at /ipfs/CID
Help, with examples:   causeway help add      or as manual pages: causeway man DIR
Shell completion:      source <(causeway completions bash)";

const PRECEDENCE: &str = "Every setting is also a key of the configuration file and an environment variable:\n\
    http.listen is CAUSEWAY_HTTP_LISTEN. Flags override the environment, which overrides the file, which overrides the \
    defaults.\n\
    \"causeway config show\" prints all settings.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway until SIGTERM or SIGINT
    #[command(after_help = format!("{SERVE}\n\n{PRECEDENCE}"))]
    Serve(Box<Flags>),
    /// Check and print the settings
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print the node's peer ID, and create its identity if there is none
    #[command(after_help = "Example:\n  causeway id --data-dir /var/lib/causeway")]
    Id(DataDirOptions),
    /// Manage the keys that IPNS names are published with
    #[command(subcommand)]
    Key(KeyCommand),
    /// Publish IPNS names
    #[command(subcommand)]
    Name(NameCommand),
    /// Add files and folders to the store, and pin them
    Add(Box<add::AddArgs>),
    /// Write a file or folder to the disk, or as a CAR or TAR archive
    Get(get::GetArgs),
    /// Write files to standard output
    Cat(cat::CatArgs),
    /// List a folder
    Ls(ls::LsArgs),
    /// Show, check, repair and compact the store; import and export CAR files
    #[command(subcommand)]
    Store(StoreCommand),
    /// Import the blocks of a CAR file and pin its roots; the same as "store import"
    #[command(after_help = format!("Examples:\n\
        \x20 causeway import site.car\n\
        \x20 curl -s URL | causeway import -\n\n\
        {GATEWAY_OPTIONAL}"))]
    Import(ImportArgs),
    /// Pin DAGs: fetch all of their blocks, and keep them until they are unpinned
    #[command(subcommand)]
    Pin(PinCommand),
    /// Block content, and show what is blocked and why
    #[command(subcommand)]
    Block(BlockCommand),
    /// Create, list and revoke the tokens of the admin API
    #[command(subcommand)]
    Token(TokenCommand),
    /// Remove cached content, or the cached resolution of a name
    Purge(ops::caches::PurgeArgs),
    /// Prefetch content into the cache
    Warm(ops::caches::WarmArgs),
    /// Resolve a name now, without the cache
    Refresh(ops::caches::RefreshArgs),
    /// Show how the gateway would answer a request, and why: which blocks are stored, which peers have the rest, what
    /// is blocked
    Explain(ops::explain::ExplainArgs),
    /// List the connected peers, connect to a peer, or disconnect one
    Peers(ops::peers::PeersArgs),
    /// The site that the gateway belongs to: its gateways, pins and storage
    Site(ops::site::SiteArgs),
    /// Print statistics once, or every second
    Stats(ops::status::StatsArgs),
    /// List the requests in progress
    Requests(ops::status::RequestsArgs),
    /// Print the running node's version, peer ID and addresses
    Node(ops::status::NodeArgs),
    /// Print the URL of the console, a web page that shows and operates the gateway, or open it in a browser
    Console(ops::console::ConsoleArgs),
    /// Collect garbage: delete cached blocks now
    Gc(ops::control::GcArgs),
    /// Drain the gateway: tell load balancers to send no more traffic, or shut down gracefully
    Drain(ops::control::DrainArgs),
    /// Print or change the log level
    LogLevel(ops::control::LevelArgs),
    /// Print whether the gateway is ready for requests; exit with 1 if it is not, and with 3 if none is running
    Health(ops::node::HealthArgs),
    /// List the latest entries of the audit log: changes through the admin API and by commands
    Audit(ops::node::AuditArgs),
    /// Evaluate access logs: shares and latencies by tier, request rate, popularity, referrers
    Report(report::ReportArgs),
    /// Print a completion script for a shell
    Completions(shell::CompletionsArgs),
    /// Write the manual pages, one for each command
    Man(shell::ManArgs),
}

const SERVE: &str = "\
Examples:
  causeway serve           on this machine only, at http://127.0.0.1:8080
  causeway serve --config /etc/causeway.toml
  causeway serve --listen 0.0.0.0:8080 --data-dir /srv/ipfs";

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the settings of the running gateway, and the source of each
    Running(ops::control::SettingsArgs),
    /// Check that the settings are valid and that the files that they name can be used
    #[command(after_help = "Example:\n  causeway config check --config /etc/causeway.toml")]
    Check(Box<Flags>),
    /// Print the effective settings; secrets are shown as ***
    #[command(after_help = "Example:\n  causeway config show --config /etc/causeway.toml")]
    Show(Box<Flags>),
}

/// What commands need of the binary, which this crate cannot depend on.
pub struct Program {
    /// What `--version` prints after the name.
    pub version: &'static str,
    /// Runs a node until it is stopped: `causeway serve`.
    pub serve: fn(&Flags) -> anyhow::Result<()>,
    /// Checks what a start would read: `causeway config check`.
    pub check: fn(&Loaded) -> Result<(), ConfigError>,
}

impl Program {
    /// The command line for parsing, completions and manual pages.
    pub fn command_line(&self) -> clap::Command {
        Cli::command().version(self.version)
    }
}

/// Runs the command line of the process and returns its exit code. Prints errors as one line on standard error.
pub fn run(program: &Program) -> i32 {
    let cli = Cli::from_arg_matches(&program.command_line().get_matches()).unwrap_or_else(|error| error.exit());
    let done = check_processor().and_then(|()| dispatch(program, cli.command));
    if let Some(Err(error)) = OWNERSHIP.get().and_then(Option::as_ref).map(Ownership::restore) {
        eprintln!(
            "warning: some files in the data folder belong to root, so the gateway may be unable to read them: {error}"
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

/// RocksDB is compiled for instructions that x86-64 processors have had since 2010. On a processor without them, the
/// process would end with SIGILL and no message.
fn check_processor() -> anyhow::Result<()> {
    #[cfg(target_arch = "x86_64")]
    anyhow::ensure!(
        !option_env!("CXXFLAGS_x86_64_unknown_linux_gnu").is_some_and(|flags| flags.contains("-msse4.2"))
            || is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq"),
        "this processor lacks SSE 4.2 or PCLMULQDQ, which this build requires: build without CXXFLAGS in \
         .cargo/config.toml"
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
            run_async(&args.options.flags(), async |loaded| ops::control::settings(loaded, args).await)
        }
        Command::Id(place) => {
            let loaded = load(&Flags::from(&place))?;
            print(&format!("{}\n", p2p::peer_id(&loaded.config.data_dir)?))
        }
        Command::Key(command) => run_async(&command.flags(), async |loaded| names_cli::keys(loaded, command).await),
        Command::Name(command) => run_async(&command.flags(), async |loaded| names_cli::names(loaded, command).await),
        Command::Add(args) => add::run(&load(&args.flags())?, &runtime()?, &args),
        Command::Get(args) => get::run(&load(&args.flags())?, &runtime()?, &args),
        Command::Cat(args) => cat::run(&load(&args.flags())?, &runtime()?, &args),
        Command::Ls(args) => ls::run(&load(&args.flags())?, &runtime()?, &args),
        Command::Store(command) => store_admin::run(&load(&command.flags())?, &runtime()?, command),
        Command::Import(args) => store_admin::import(&load(&args.flags())?, &runtime()?, &args),
        Command::Pin(command) => run_async(&command.flags(), async |loaded| pin::run(loaded, command).await),
        Command::Block(command) => run_async(&command.flags(), async |loaded| block::run(loaded, command).await),
        Command::Token(command) => run_async(&command.flags(), async |loaded| token::run(loaded, command).await),
        Command::Purge(args) => run_async(&args.options.flags(), async |loaded| ops::caches::purge(loaded, args).await),
        Command::Warm(args) => run_async(&args.options.flags(), async |loaded| ops::caches::warm(loaded, args).await),
        Command::Refresh(args) => {
            run_async(&args.options.flags(), async |loaded| ops::caches::refresh(loaded, args).await)
        }
        Command::Explain(args) => {
            run_async(&args.options.flags(), async |loaded| ops::explain::explain(loaded, args).await)
        }
        Command::Peers(args) => run_async(&args.flags(), async |loaded| ops::peers::run(loaded, args).await),
        Command::Site(args) => run_async(&args.flags(), async |loaded| ops::site::run(loaded, args).await),
        Command::Stats(args) => run_async(&args.options.flags(), async |loaded| ops::status::stats(loaded, args).await),
        Command::Requests(args) => {
            run_async(&args.options.flags(), async |loaded| ops::status::requests(loaded, args).await)
        }
        Command::Node(args) => run_async(&args.options.flags(), async |loaded| ops::status::node(loaded, args).await),
        Command::Console(args) => {
            run_async(&args.node.flags(), async |loaded| ops::console::console(loaded, args).await)
        }
        Command::Gc(args) => run_async(&args.options.flags(), async |loaded| ops::control::gc(loaded, args).await),
        Command::Drain(args) => {
            run_async(&args.options.flags(), async |loaded| ops::control::drain(loaded, args).await)
        }
        Command::LogLevel(args) => {
            run_async(&args.options.flags(), async |loaded| ops::control::log_level(loaded, args).await)
        }
        Command::Health(args) => run_async(&args.options.flags(), async |loaded| ops::node::health(loaded, args).await),
        Command::Audit(args) => run_async(&args.options.flags(), async |loaded| ops::node::audit(loaded, args).await),
        Command::Report(args) => report::run(&args),
        Command::Completions(args) => shell::completions(program.command_line(), &args),
        Command::Man(args) => shell::man(program.command_line(), &args),
    }
}

/// Reads the settings and runs an asynchronous command.
fn run_async(flags: &Flags, command: impl AsyncFnOnce(&Loaded) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let loaded = load(flags)?;
    runtime()?.block_on(command(&loaded))
}

/// The owner of the command's data folder, if the command runs as root and the owner is another user.
static OWNERSHIP: OnceLock<Option<Ownership>> = OnceLock::new();

/// Reads the settings of a command other than `serve`.
fn load(flags: &Flags) -> Result<Loaded, ConfigError> {
    let loaded = read(flags)?;
    if let Some(ownership) = OWNERSHIP.get_or_init(|| Ownership::of(&loaded.config.data_dir))
        && let Err(error) = ownership.restore_when_ended()
    {
        eprintln!("warning: if this command is interrupted, files in the data folder may belong to root: {error}");
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

/// The Tokio runtime of a command or a node.
///
/// # Errors
/// When the system cannot start threads.
pub fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime cannot be started")
}
