//! The command line: stable from the first release on.

use super::block::{self, BlockCommand};
use super::names_cli::{self, KeyCommand, NameCommand};
use super::ops;
use super::output::{EXIT_FAILURE, EXIT_FORCED, EXITS, exit_code, print};
use super::ownership::Ownership;
use super::pin::{self, PinCommand};
use super::place::{Place, REACH};
use super::shell;
use super::signals::{Signals, Wanted};
use super::store_admin::{self, ImportArgs, StoreCommand};
use super::store_cli::{add, cat, get, ls};
use super::token::{self, TokenCommand};
use crate::logging::chain;
use crate::network;
use crate::node::Node;
use crate::process::VERSION_AND_COMMIT;
use crate::supervision::EssentialTaskEnded;
use crate::{logging, preflight};
use anyhow::Context as _;
use clap::{Parser, Subcommand};
use config::{ConfigError, Flags, Loaded};
use std::sync::OnceLock;
use std::time::Duration;

/// An IPFS HTTP gateway: runs it, fills it, and looks after it
#[derive(Debug, Parser)]
#[command(name = "causeway", version = VERSION_AND_COMMIT.as_str(), after_help = format!("{START}\n\n{PRECEDENCE}\n\n{EXITS}"))]
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

/// Runs a command line and says with which code the process is to exit. Errors are one line on standard error.
pub fn run(cli: Cli) -> i32 {
    let done = check_processor().and_then(|()| dispatch(cli.command));
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

fn dispatch(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(flags) => serve(&flags),
        Command::Config(ConfigCommand::Check(flags)) => {
            let loaded = load(&flags)?;
            preflight::check(&loaded)?;
            print("The settings are valid, and the files that they name can be used.\n")
        }
        Command::Config(ConfigCommand::Show(flags)) => print(&toml::to_string(&load(&flags)?.config)?),
        Command::Config(ConfigCommand::Running(args)) => {
            asking(&args.asking.flags(), async |loaded| ops::changes::settings(loaded, args).await)
        }
        Command::Id(place) => {
            let loaded = load(&Flags::from(&place))?;
            print(&format!("{}\n", network::peer_id(&loaded.config.data_dir)?))
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
        Command::Completions(args) => shell::completions(&args),
        Command::Man(args) => shell::man(&args),
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

fn read(flags: &Flags) -> Result<Loaded, ConfigError> {
    config::load(flags, std::env::vars_os())
}

fn serve(flags: &Flags) -> anyhow::Result<()> {
    let loaded = read(flags)?;
    logging::start(&loaded)?;
    // A connection is a file: the soft limit that most systems set is far below what they allow.
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
    let runtime = runtime()?;
    let result = runtime.block_on(until_signalled(&loaded, flags));
    // Whatever still runs after the drain is not waited for.
    runtime.shutdown_background();
    result
}

async fn until_signalled(loaded: &Loaded, flags: &Flags) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let node = tokio::select! {
        node = Node::start(loaded) => node?,
        () = signals.end() => return Ok(()),
    };
    print(&node.places.to_string())?;
    loop {
        tokio::select! {
            wanted = signals.next() => match wanted {
                Wanted::End => break,
                // Lists may be fetched meanwhile, which an end does not wait for.
                Wanted::Reload => tokio::select! {
                    () = node.reload(loaded, read(flags)) => {}
                    () = signals.end() => break,
                    () = node.asked_to_stop() => break,
                    failure = node.failed() => return Err(end_after(failure, node).await),
                },
            },
            () = node.asked_to_stop() => break,
            failure = node.failed() => return Err(end_after(failure, node).await),
        }
    }
    tracing::info!("draining; a second signal ends the process at once");
    tokio::select! {
        result = node.drain() => result,
        // Not `std::process::exit`: it runs RocksDB's destructors, which wait for compactions.
        () = signals.end() => signal_hook::low_level::exit(EXIT_FORCED),
    }
}

/// How long a node of which a part is gone may take to end.
const FAILED_DRAIN_MAX: Duration = Duration::from_secs(10);

/// Ends a node of which a part is gone, in good order as far as that is still possible: soon, for as long as it answers nothing,
/// nobody starts it again.
async fn end_after(failure: EssentialTaskEnded, node: Node) -> anyhow::Error {
    match tokio::time::timeout(FAILED_DRAIN_MAX, node.drain()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(error = chain(&error), "the end was not an orderly one"),
        Err(_) => {
            tracing::error!("the process ends at once: what is left of it did not end in time");
            signal_hook::low_level::exit(EXIT_FAILURE);
        }
    }
    failure.into()
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime cannot be started")
}
