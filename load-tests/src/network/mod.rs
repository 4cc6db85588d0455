//! Cache misses over a long link, beside Kubo, plain HTTP and the limit of the source itself.
//!
//! Goals: one command for all rows; a real Kubo as the source, behind an emulated link ([`mod@crate::relay`]) that adds
//! the delay and counts bytes, so that a row fails when its bytes took another path; cold every time (a fresh node, or
//! new content); responses are compared byte for byte, after the clock has stopped; systems take turns in rotated order
//! and medians count. A row that fails does not keep the others from being measured.
//!
//! Non-goals: jitter (see the link), and absolute figures: everything shares one machine.
//!
//! | module | concern |
//! |---|---|
//! | [`world`] | sources behind links, fresh clients |
//! | [`peer`] | libp2p peers in this process |
//! | [`ceiling`], [`streams`], [`udp`] | the source's own limit: every block requested at once |
//! | [`bulk`] | 100 MiB: from Kubo, from Causeway, on loopback, from four sources |
//! | [`latency`] | first bytes: a page, a range, a small file on a used connection |
//! | [`routing`], [`dht`] | providers that only the DHT knows; a DHT of twenty nodes |
//! | [`stale`], [`unresponsive`] | the same among many unresponsive providers |
//! | [`names`] | how soon an update of an IPNS name is visible |
//! | [`browser`] | a page with 40 assets in Chromium |
//! | [`memory`] | resident memory with many connections and streaming misses |

pub mod browser;
pub mod bulk;
pub mod ceiling;
pub mod dht;
pub mod latency;
pub mod memory;
pub mod names;
pub mod peer;
pub mod routing;
pub mod stale;
pub mod streams;
pub mod udp;
pub mod unresponsive;
pub mod world;

use crate::comparison::{self, Case};
use crate::machine;
use crate::options::{Binaries, Browser, CausewayFlags, Run};
use crate::relay::Link;
use crate::report::Report;
use crate::servers::Transport;
use anyhow::{Result, ensure};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

/// Longer than any row takes.
const ROW_TIMEOUT: Duration = Duration::from_secs(900);

/// What to measure.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    #[command(flatten)]
    pub binaries: Binaries,
    #[command(flatten)]
    pub flags: CausewayFlags,
    #[command(flatten)]
    pub run: Run,
    /// Name of the results' files, after the date
    #[arg(long, value_name = "NAME", default_value = "network")]
    pub name: String,
    #[command(flatten)]
    pub browser: Browser,
    /// The binary of an earlier build of Causeway, which small files on a used connection are measured with as well
    #[arg(long, value_name = "FILE")]
    pub earlier: Option<PathBuf>,
    /// The binary of Rainbow, for the rows of names and of unresponsive providers, which leave it out otherwise (`go
    /// install github.com/ipfs/rainbow@v1.24.0` builds it)
    #[arg(long, value_name = "FILE")]
    pub rainbow: Option<PathBuf>,
    /// Half of the round trip that the link adds, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 25)]
    pub delay_ms: u64,
    /// Only these rows, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub rows: Vec<RowName>,
}

impl Options {
    /// The link between the source and all clients.
    pub fn link(&self) -> Link {
        Link::delay(Duration::from_millis(self.delay_ms))
    }

    /// A size in bytes that a quick run divides by 32.
    pub fn size(&self, bytes: usize) -> usize {
        if self.run.quick { bytes / 32 } else { bytes }
    }
}

comparison::rows! {
    (options: &Options) -> Result<Case>;
    /// 100 MiB cold from Kubo over TCP
    ColdTcp => bulk::cold(options, Transport::Tcp).await,
    /// The same over QUIC
    ColdQuic => bulk::cold(options, Transport::Quic).await,
    /// 100 MiB cold from Causeway over TCP
    OursTcp => bulk::ours(options, Transport::Tcp).await,
    /// The same over QUIC
    OursQuic => bulk::ours(options, Transport::Quic).await,
    /// 1 MiB cold from Kubo on a used TCP connection
    UsedTcp => latency::used(options, Transport::Tcp).await,
    /// The same over QUIC
    UsedQuic => latency::used(options, Transport::Quic).await,
    /// First byte of a page in a sub-directory, over TCP
    PageTcp => latency::page(options, Transport::Tcp).await,
    /// The same over QUIC
    PageQuic => latency::page(options, Transport::Quic).await,
    /// First byte of a range deep in a cold 1 GiB file, over TCP
    RangeTcp => latency::range(options, Transport::Tcp).await,
    /// The same over QUIC
    RangeQuic => latency::range(options, Transport::Quic).await,
    /// 100 MiB from four Causeway peers on slow lines
    Four => bulk::four(options).await,
    /// 100 MiB cold from Kubo without a link, over TCP
    Loopback => bulk::loopback(options, Transport::Tcp).await,
    /// The same over QUIC
    LoopbackQuic => bulk::loopback(options, Transport::Quic).await,
    /// First byte, provider known only to the DHT, on loopback
    DhtNear => routing::near(options).await,
    /// The same among twenty DHT nodes far away
    DhtFar => routing::far(options).await,
    /// Publication of a provider record among them
    Publish => routing::publish(options).await,
    /// First byte, 20 of 21 providers are unresponsive
    #[value(name = "silent-20")]
    Silent20 => stale::silent(options, 20, 1.0).await,
    /// 50 of 51
    #[value(name = "silent-50")]
    Silent50 => stale::silent(options, 50, 1.0).await,
    /// 100 of 101
    #[value(name = "silent-100")]
    Silent100 => stale::silent(options, 100, 1.5).await,
    /// The same unresponsive providers for several files in a row
    SilentAgain => stale::again(options).await,
    /// 100 of 101 providers refuse
    Refusing => stale::refusing(options).await,
    /// The responsive provider is far away, the others are unresponsive
    SilentSlow => stale::slow(options).await,
    /// The link to the responsive provider is lossy, the others are unresponsive
    SilentLossy => stale::lossy(options).await,
    /// The other providers are behind circuit relays that are gone
    DeadRelays => stale::relays(options).await,
    /// Most addresses of the only provider are wrong
    WrongAddresses => stale::wrong(options).await,
    /// From publishing a name until it is visible, with frequent requests
    NamesOften => names::often(options).await,
    /// The same with rare requests
    NamesRare => names::rare(options).await,
    /// A cold page with 40 assets in Chromium, over TCP
    BrowserTcp => browser::page(options, Transport::Tcp).await,
    /// The same over QUIC
    BrowserQuic => browser::page(options, Transport::Quic).await,
    /// Resident memory with 1,000 connections and 200 streaming misses
    Memory => memory::resident(options).await,
}

/// Measures the rows that were chosen, and writes the report.
pub async fn run(options: &Options) -> Result<()> {
    options.binaries.check()?;
    for binary in [&options.rainbow, &options.earlier].into_iter().flatten() {
        ensure!(binary.exists(), "{} is missing", binary.display());
    }
    let measure = async |row: RowName| Ok(vec![row.measure(options).await?]);
    let results = comparison::measure(&options.rows, ROW_TIMEOUT, measure).await;
    let mut machine = machine::describe_with_kubo("bench-network", &options.run, &options.binaries)?;
    machine["delay_ms"] = json!(options.delay_ms);
    if let Some(rainbow) = &options.rainbow {
        machine["rainbow"] = json!(machine::version(rainbow));
    }
    let mut report = Report::new(machine, &options.name, "Cache misses");
    let [causeway, kubo, delay, rounds] = ["causeway", "kubo", "delay_ms", "rounds"].map(|key| report.fact(key));
    report.paragraph(format!(
        "{} {causeway}; {kubo}.\nA link adds {delay} ms each way, unless a case is on loopback; everything shares the \
         machine. Medians of {rounds} rounds (five times as many where a row is cheap), in rotated order.",
        report.measured(),
    ));
    results.report(&mut report);
    report.write(&options.run.out, &results)?;
    results.check()
}
