//! Workloads for gateways, and comparisons of Causeway with what people run today, on one machine and in one run.
//!
//! Goals: one command, no preparation; every server answers the same bytes, checked; figures are medians of rounds in rotated
//! order, with the server's CPU time beside each; results are files that can be compared over time.
//!
//! Non-goals: absolute figures. Load generator and servers share the machine, so that ratios hold better than numbers. What
//! is compared is spoken to over HTTP; only [`mod@policies`] knows of Causeway's inside.
//!
//! | module | concern |
//! |---|---|
//! | [`mod@tiers`] | what is held: the table of the local tiers, beside nginx and Kubo |
//! | [`mod@stores`] | what datastores take to be added to and read, beside Kubo's |
//! | [`mod@compression`] | what is saved on disk and on the way, beside whole files |
//! | [`mod@compare`] | a cold file on one machine, by one GET |
//! | [`mod@network`] | misses over a long link: the table of the network tier |
//! | [`servers`] | Causeway, Kubo and nginx as child processes with folders of their own |
//! | [`child`] | a child process, what it says and the CPU time it and its children use |
//! | [`mod@trace`] | a public gateway's day, replayed: the paper's table of tiers beside ours |
//! | [`mod@policies`] | what the memory tier keeps, by policy, on the same day |
//! | [`mod@relay`] | a stretch of network between two programs: delay, rate, and a count of bytes |
//! | [`wrk`], [`timed`], [`folder`] | one run of `wrk`; of any command; what a folder takes on disk |
//! | [`fetch`], [`sample`], [`archive`] | one timed GET; content that is made up, and the same as blocks |
//! | [`rounds`], [`median`], [`zipf`] | whose turn it is, the middle of some figures, popularity |
//! | [`options`] | the flags that measurements have in common |
//! | [`goals`] | what figures are judged by |
//! | [`machine`] | what the figures were measured on |
//! | [`report`], [`results`] | figures to Markdown and JSON: of the comparison; what all kinds share |
//! | [`plot`] | figures to pictures |

mod archive;
mod child;
mod compare;
mod compression;
mod fetch;
mod folder;
mod goals;
mod machine;
mod median;
mod network;
mod options;
mod plot;
mod policies;
mod random;
mod relay;
mod report;
mod results;
mod rounds;
mod sample;
mod servers;
mod stores;
mod tiers;
mod timed;
mod trace;
mod wrk;
mod zipf;

use clap::Parser;
use options::{Binaries, Run};
use relay::{Link, Protocol, Relay};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Workloads and comparisons.
#[derive(Parser)]
enum Command {
    /// Measure what is held here, from memory to disk, beside nginx and Kubo
    Tiers(tiers::Options),
    /// Measure datastores, Causeway's and those of Kubo
    Stores(stores::Options),
    /// Measure what compression saves, by blocks and by whole files
    Compression(compression::Options),
    /// Compare Causeway with Kubo fetching a cold file
    Compare(Options),
    /// Measure misses over a long link, beside Kubo, plain HTTP and what the source can do
    Network(network::Options),
    /// Replay a trace that is shaped like a public gateway's day, and show which tiers answer
    Trace(Box<trace::Options>),
    /// Show which share of a public gateway's day the memory tier would answer by each policy, with and without a scan
    Policies(policies::Options),
    /// Put a stretch of network between two programs, until Ctrl-C
    Relay(RelayOptions),
}

/// A relay, for measurements by hand.
#[derive(clap::Args, Debug, Clone)]
struct RelayOptions {
    /// Where to listen; port 0 takes a free one, which is printed
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where to forward to
    #[arg(long, value_name = "ADDRESS")]
    to: SocketAddr,
    /// Delay of each direction in milliseconds: half a round trip
    #[arg(long, value_name = "MS", default_value_t = 25.0)]
    delay_ms: f64,
    /// Limit of each direction in Mbit/s
    #[arg(long, value_name = "MBIT/S")]
    rate_mbit: Option<f64>,
    /// UDP instead of TCP
    #[arg(long)]
    udp: bool,
}

impl RelayOptions {
    fn link(&self) -> anyhow::Result<Link> {
        let delay = Duration::try_from_secs_f64(self.delay_ms / 1e3)?;
        let bits_per_second = self.rate_mbit.map(|rate| (rate * 1e6) as u64);
        Ok(Link { delay, bits_per_second, lose_one_in: None })
    }
}

/// What to compare.
#[derive(clap::Args, Debug, Clone)]
struct Options {
    #[command(flatten)]
    binaries: Binaries,
    #[command(flatten)]
    run: Run,
}

impl Options {
    fn cold_bytes(&self) -> usize {
        if self.run.quick { 10 << 20 } else { 100 << 20 }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // Everything here is plain HTTP, but a client is not made without a provider of cryptography. Only a second call fails.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match Command::parse() {
        Command::Tiers(options) => tiers(&options).await,
        Command::Stores(options) => stores(&options).await,
        Command::Compression(options) => compression(&options).await,
        Command::Compare(options) => compare(&options).await,
        Command::Network(options) => network(&options).await,
        Command::Trace(options) => trace(&options).await,
        Command::Policies(options) => policies(&options),
        Command::Relay(options) => relay(&options).await,
    }
}

async fn tiers(options: &tiers::Options) -> anyhow::Result<()> {
    let outcomes = tiers::run(options).await?;
    let written = tiers::table::write(options, &machine::describe_tiers(options)?, &outcomes)?;
    println!("{}", std::fs::read_to_string(&written)?);
    println!("Written to {} and .json beside it.", written.display());
    let failed = outcomes.iter().filter(|(_, outcome)| outcome.is_err()).count();
    anyhow::ensure!(failed == 0, "{failed} rows could not be measured");
    Ok(())
}

async fn stores(options: &stores::Options) -> anyhow::Result<()> {
    let figures = stores::run(options).await?;
    let written = stores::table::write(options, &machine::describe_stores(options)?, &figures)?;
    println!("{}", std::fs::read_to_string(&written)?);
    println!("Written to {}, .json and pictures beside it.", written.display());
    Ok(())
}

async fn compression(options: &compression::Options) -> anyhow::Result<()> {
    let figures = compression::run(options).await?;
    let written = compression::table::write(options, &machine::describe_compression(options)?, &figures)?;
    println!("{}", std::fs::read_to_string(&written)?);
    println!("Written to {}, .json and pictures beside it.", written.display());
    Ok(())
}

async fn compare(options: &Options) -> anyhow::Result<()> {
    let figures = compare::run(options).await?;
    let written = report::write(&options.run.out, &machine::describe(options)?, &figures)?;
    println!("{}", std::fs::read_to_string(&written)?);
    println!("Written to {} and .json beside it.", written.display());
    Ok(())
}

async fn network(options: &network::Options) -> anyhow::Result<()> {
    let outcomes = network::run(options).await?;
    let written = network::table::write(options, &machine::describe_network(options)?, &outcomes)?;
    println!("{}", std::fs::read_to_string(&written)?);
    println!("Written to {} and .json beside it.", written.display());
    let failed = outcomes.iter().filter(|(_, outcome)| outcome.is_err()).count();
    anyhow::ensure!(failed == 0, "{failed} rows could not be measured");
    Ok(())
}

async fn trace(options: &trace::Options) -> anyhow::Result<()> {
    if let Some(dir) = &options.write {
        trace::write(options, dir)?;
        println!("Written to {}: pinned.car is for the gateway, others.car for a node that it reaches.", dir.display());
        return Ok(());
    }
    let outcome = trace::run(options).await?;
    let written = trace::table::write(options, &machine::describe_trace(options)?, &outcome)?;
    println!("{}", std::fs::read_to_string(&written)?);
    println!("Written to {} and .json beside it.", written.display());
    let unanswered = outcome.replayed.unanswered();
    anyhow::ensure!(unanswered == 0, "{unanswered} requests were not answered as they should be");
    Ok(())
}

fn policies(options: &policies::Options) -> anyhow::Result<()> {
    let written = policies::run(options)?;
    println!("{}", std::fs::read_to_string(&written)?);
    println!("Written to {} and .json beside it.", written.display());
    Ok(())
}

async fn relay(options: &RelayOptions) -> anyhow::Result<()> {
    let protocol = if options.udp { Protocol::Udp } else { Protocol::Tcp };
    let relay = Relay::bind(protocol, options.listen, options.link()?).await?;
    relay.forward_to(options.to);
    println!("{} -> {} ({protocol:?})", relay.address(), options.to);
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        _ = terminated.recv() => {}
    }
    println!("{:?}", relay.passed());
    Ok(())
}
