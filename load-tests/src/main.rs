//! Benchmarks of Causeway beside Kubo and nginx, on one machine and in one run.
//!
//! Goals: one command, no preparation; every server returns the same bytes, which are compared; figures are medians of
//! rounds in rotated order, with the server's CPU time beside each; results are files that can be compared over time.
//!
//! Non-goals: absolute figures. Load generator and servers share the machine, so that ratios hold better than numbers.
//! The systems are driven over HTTP and by commands; only [`mod@policies`], the simulated caches of [`mod@trace`] and
//! the encoder's estimate in [`mod@compression`] use Causeway's crates.
//!
//! | module | concern |
//! |---|---|
//! | [`mod@tiers`] | content that is stored locally, beside nginx and Kubo |
//! | [`mod@network`] | cache misses over a long link, beside Kubo |
//! | [`mod@transfer`] | transfers between Causeways, as blocks are stored, beside HTTP and Kubo |
//! | [`mod@site`] | several gateways as one site, beside Kubo, a single gateway and HTTP |
//! | [`mod@stores`] | what it takes to add to datastores and to read from them, beside Kubo's |
//! | [`mod@compression`] | what compression saves on disk and in transfer, by blocks and by whole files |
//! | [`mod@trace`] | a public gateway's day, replayed: the paper's table of tiers beside ours |
//! | [`mod@policies`] | the hit rates of the memory tier's policies on the same day |
//! | [`mod@relay`] | emulation of a network link between two programs |
//! | [`comparison`] | systems that are measured in turn and judged by goals |
//! | [`servers`], [`child`] | Causeway, Kubo and nginx as child processes, and what these use |
//! | [`wrk`], [`mod@h2load`], [`handshakes`] | one run of `wrk`, of `h2load`, of `openssl s_time` |
//! | [`timed`], [`http`] | one run of any command; one GET |
//! | [`certificate`] | the certificate of all servers with TLS |
//! | [`sample`], [`archive`], [`directory`] | synthetic content; the same as a CAR file; directories on disk |
//! | [`stats`], [`zipf`], [`random`] | medians and percentiles, popularity, random numbers |
//! | [`options`], [`machine`] | flags in common; what the figures were measured on |
//! | [`report`], [`plot`] | Markdown, JSON and SVG |

mod archive;
mod certificate;
mod child;
mod comparison;
mod compression;
mod directory;
mod h2load;
mod handshakes;
mod http;
mod machine;
mod network;
mod options;
mod plot;
mod policies;
mod random;
mod relay;
mod report;
mod sample;
mod servers;
mod site;
mod stats;
mod stores;
mod tiers;
mod timed;
mod trace;
mod transfer;
mod wrk;
mod zipf;

use clap::Parser;

/// Benchmarks of Causeway beside other gateways and datastores.
#[derive(Parser)]
enum Command {
    /// Measure content that is stored locally, in memory and on disk, beside nginx and Kubo
    Tiers(tiers::Options),
    /// Measure datastores, Causeway's and those of Kubo
    Stores(stores::Options),
    /// Measure what compression saves, by blocks and by whole files
    Compression(compression::Options),
    /// Measure cache misses over a long link, beside Kubo, plain HTTP and the limit of the source
    Network(network::Options),
    /// Measure transfers between Causeways, as blocks are stored, beside HTTP, plain blocks and Kubo
    Transfer(Box<transfer::Options>),
    /// Measure several gateways as one site, beside Kubo, a single gateway and plain HTTP
    ///
    /// Starts PostgreSQL, the gateways of each site with a folder as their storage, Kubo, nginx and HAProxy on
    /// loopback, with temporary folders, and ends them again. Rows say their bars, and whether these were met.
    /// "--quick" shows with little content that everything works, and measures nothing.
    ///
    /// Example: causeway-load-tests site --rows second-read,kill --kubo "$(scripts/kubo)" --causeway
    /// target/release/causeway
    Site(Box<site::Options>),
    /// Replay a trace that is shaped like a public gateway's day, and show which tiers answer
    Trace(Box<trace::Options>),
    /// Simulate the hit rates of the memory tier's policies on a public gateway's day, with and without a scan
    Policies(policies::Options),
    /// Emulate a network link between two programs, until Ctrl-C
    Relay(relay::Options),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // Everything here is plain HTTP, but a client is not made without a provider of cryptography. Only a second call
    // fails.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match Command::parse() {
        Command::Tiers(options) => tiers::run(&options).await,
        Command::Stores(options) => stores::run(&options).await,
        Command::Compression(options) => compression::run(&options).await,
        Command::Network(options) => network::run(&options).await,
        Command::Transfer(options) => transfer::run(&options).await,
        Command::Site(options) => site::run(&options).await,
        Command::Trace(options) => trace::run(&options).await,
        Command::Policies(options) => policies::run(&options),
        Command::Relay(options) => relay::run(&options).await,
    }
}
