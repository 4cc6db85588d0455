//! The command line: stable from the first release on.

use crate::names_cli::{self, KeyCommand, NameCommand};
use crate::network;
use crate::node::Node;
use crate::store_admin::{self, StoreCommand};
use crate::store_cli::{add, get, ls};
use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use config::{ConfigError, Flags, Loaded, LogFormat};
use std::io::Write as _;
use std::path::PathBuf;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// An IPFS HTTP gateway.
#[derive(Debug, Parser)]
#[command(name = "causeway", version, about, after_help = PRECEDENCE)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const PRECEDENCE: &str = "Every setting is also a key of the configuration file and an environment variable:\n\
    http.listen is CAUSEWAY_HTTP_LISTEN. Flags beat the environment, which beats the file, which beats the defaults.\n\
    \"causeway config show\" prints all of them.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway until SIGTERM or SIGINT
    #[command(after_help = PRECEDENCE)]
    Serve(Flags),
    /// Look at the settings without running anything
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print the node's peer id, making an identity if there is none
    Id(Place),
    /// Manage the keys that IPNS names are published with
    #[command(subcommand)]
    Key(KeyCommand),
    /// Publish IPNS names
    #[command(subcommand)]
    Name(NameCommand),
    /// Take in files and folders and pin them
    Add(add::AddArgs),
    /// Write a file, a folder or an archive of what is in the store
    Get(get::GetArgs),
    /// List a folder that is in the store
    Ls(ls::LsArgs),
    /// Look at the store, check it, mend it, and move CAR files in and out
    #[command(subcommand)]
    Store(StoreCommand),
    /// Take in the blocks of a CAR file and pin its roots; the same as "store import"
    #[command(after_help = REACH)]
    Import {
        /// A CARv1 file; "-" for standard input
        #[arg(value_name = "FILE.car")]
        file: PathBuf,
        #[command(flatten)]
        store: StorePlace,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Say whether the settings are valid
    Check(Flags),
    /// Print every setting as it would be used; secrets are shown as ***
    Show(Flags),
}

/// Which node is meant.
#[derive(Debug, Args)]
pub struct Place {
    /// Read settings from this TOML file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The node's data folder
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
}

impl From<&Place> for Flags {
    fn from(Place { config, data_dir }: &Place) -> Self {
        Self { config: config.clone(), data_dir: data_dir.clone(), ..Self::default() }
    }
}

/// Whose store is meant. A gateway that runs on the data folder is asked over its admin listener.
#[derive(Debug, Args)]
pub struct StorePlace {
    #[command(flatten)]
    place: Place,
    /// Ask the gateway whose admin listener is here, such as http://127.0.0.1:8081, wherever its data is
    #[arg(long = "admin", value_name = "URL")]
    admin: Option<String>,
}

impl StorePlace {
    /// The admin listener that was named.
    pub fn admin(&self) -> Option<&str> {
        self.admin.as_deref()
    }
}

impl From<&StorePlace> for Flags {
    fn from(store: &StorePlace) -> Self {
        (&store.place).into()
    }
}

/// What the help of commands that use a store says about a gateway that runs.
pub(crate) const REACH: &str = "\
The gateway may run or not: if it does, it does the work, and is asked over its admin listener. That needs its token, if it has \
one: CAUSEWAY_ADMIN_TOKEN, or its settings by --config.";

/// What a wrong command line or setting exits with; clap's own choice.
const EXIT_USAGE: i32 = 2;
/// What everything else that goes wrong exits with.
const EXIT_FAILURE: i32 = 1;
/// What a second signal exits with.
const EXIT_FORCED: i32 = 130;

/// Runs a command line and says with which code the process is to exit. Errors are one line on standard error.
pub fn run(cli: Cli) -> i32 {
    match check_processor().and_then(|()| dispatch(cli.command)) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("error: {error:#}");
            let usage = error.downcast_ref::<ConfigError>().is_some();
            if usage { EXIT_USAGE } else { EXIT_FAILURE }
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
        Command::Serve(flags) => serve(&load(&flags)?),
        Command::Config(ConfigCommand::Check(flags)) => {
            let loaded = load(&flags)?;
            filter(&loaded)?;
            print("The settings are valid.\n")
        }
        Command::Config(ConfigCommand::Show(flags)) => print(&toml::to_string(&load(&flags)?.config)?),
        Command::Id(place) => {
            let loaded = load(&Flags::from(&place))?;
            print(&format!("{}\n", network::peer_id(&loaded.config.data_dir)?))
        }
        Command::Key(command) => {
            let loaded = load(&command.flags())?;
            print(&runtime()?.block_on(names_cli::keys(&loaded, command))?)
        }
        Command::Name(command) => {
            let loaded = load(&command.flags())?;
            print(&runtime()?.block_on(names_cli::names(&loaded, command))?)
        }
        Command::Add(args) => add::run(&load(&args.flags())?, &runtime()?, &args),
        Command::Get(args) => get::run(&load(&args.flags())?, &runtime()?, &args),
        Command::Ls(args) => ls::run(&load(&args.flags())?, &runtime()?, &args),
        Command::Store(command) => store_admin::run(&load(&command.flags())?, &runtime()?, command),
        Command::Import { file, store } => {
            store_admin::import(&load(&Flags::from(&store))?, &runtime()?, &file, store.admin())
        }
    }
}

fn load(flags: &Flags) -> Result<Loaded, ConfigError> {
    config::load(flags, std::env::vars_os())
}

/// Writes to standard output; a reader who has left is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Said unless the settings name the same module: it warns of every malformed request, which any stranger can send.
const HUSHED: &str = "libp2p_autonat=error";

fn filter(loaded: &Loaded) -> Result<EnvFilter, ConfigError> {
    let levels = format!("{HUSHED},{}", loaded.config.log.level);
    EnvFilter::try_new(levels).map_err(|error| loaded.error("log.level", error.to_string()))
}

/// Log lines go to standard error, so that standard output can be read by scripts.
fn start_logging(loaded: &Loaded) -> Result<(), ConfigError> {
    let lines = tracing_subscriber::fmt().with_env_filter(filter(loaded)?).with_writer(std::io::stderr);
    match loaded.config.log.format {
        LogFormat::Text => lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => lines.json().init(),
    }
    Ok(())
}

fn serve(loaded: &Loaded) -> anyhow::Result<()> {
    start_logging(loaded)?;
    // A connection is a file: the soft limit that most systems set is far below what they allow.
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
    let runtime = runtime()?;
    let result = runtime.block_on(until_signalled(loaded));
    // Whatever still runs after the drain is not waited for.
    runtime.shutdown_background();
    result
}

async fn until_signalled(loaded: &Loaded) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let node = tokio::select! {
        node = Node::start(loaded) => node?,
        () = signals.next() => return Ok(()),
    };
    print(&node.places.to_string())?;
    signals.next().await;
    tracing::info!("draining; a second signal ends the process at once");
    tokio::select! {
        result = node.drain() => result,
        // Not `std::process::exit`: it runs RocksDB's destructors, which wait for compactions.
        () = signals.next() => signal_hook::low_level::exit(EXIT_FORCED),
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("signals cannot be listened for");
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime cannot be started")
}
