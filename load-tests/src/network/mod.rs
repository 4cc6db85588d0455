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
//! | [`ceiling`], [`streams`] | the source's own limit: every block requested at once |
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
pub mod unresponsive;
pub mod world;

use crate::comparison::{self, Case};
use crate::machine;
use crate::options::{Binaries, CausewayFlags, Run};
use crate::relay::Link;
use crate::report::Report;
use crate::servers::Transport;
use anyhow::Result;
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
    /// Directory with the browser tests' packages ("scripts/browser-packages" prints where they are)
    #[arg(long, value_name = "DIR")]
    pub browser_modules: Option<PathBuf>,
    /// Chromium's binary
    #[arg(long, value_name = "FILE", default_value = "/usr/bin/chromium")]
    pub chromium: PathBuf,
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

/// The rows of the table, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum RowName {
    /// 100 MiB cold from Kubo over TCP
    ColdTcp,
    /// The same over QUIC
    ColdQuic,
    /// 100 MiB cold from Causeway over TCP
    OursTcp,
    /// The same over QUIC
    OursQuic,
    /// 1 MiB cold from Kubo on a used TCP connection
    UsedTcp,
    /// The same over QUIC
    UsedQuic,
    /// First byte of a page in a sub-directory, over TCP
    PageTcp,
    /// The same over QUIC
    PageQuic,
    /// First byte of a range deep in a cold 1 GiB file, over TCP
    RangeTcp,
    /// The same over QUIC
    RangeQuic,
    /// 100 MiB from four Causeway peers on slow lines
    Four,
    /// 100 MiB cold from Kubo without a link, over TCP
    Loopback,
    /// The same over QUIC
    LoopbackQuic,
    /// First byte, provider known only to the DHT, on loopback
    DhtNear,
    /// The same among twenty DHT nodes far away
    DhtFar,
    /// Publication of a provider record among them
    Publish,
    /// First byte, 20 of 21 providers are unresponsive
    #[value(name = "silent-20")]
    Silent20,
    /// 50 of 51
    #[value(name = "silent-50")]
    Silent50,
    /// 100 of 101
    #[value(name = "silent-100")]
    Silent100,
    /// The same unresponsive providers for several files in a row
    SilentAgain,
    /// 100 of 101 providers refuse
    Refusing,
    /// The responsive provider is far away, the others are unresponsive
    SilentSlow,
    /// The link to the responsive provider is lossy, the others are unresponsive
    SilentLossy,
    /// The other providers are behind circuit relays that are gone
    DeadRelays,
    /// Most addresses of the only provider are wrong
    WrongAddresses,
    /// From publishing a name until it is visible, with frequent requests
    NamesOften,
    /// The same with rare requests
    NamesRare,
    /// A cold page with 40 assets in Chromium, over TCP
    BrowserTcp,
    /// The same over QUIC
    BrowserQuic,
    /// Resident memory with 1,000 connections and 200 streaming misses
    Memory,
}

impl RowName {
    async fn measure(self, options: &Options) -> Result<Case> {
        match self {
            Self::ColdTcp => bulk::cold(options, Transport::Tcp).await,
            Self::ColdQuic => bulk::cold(options, Transport::Quic).await,
            Self::OursTcp => bulk::ours(options, Transport::Tcp).await,
            Self::OursQuic => bulk::ours(options, Transport::Quic).await,
            Self::UsedTcp => latency::used(options, Transport::Tcp).await,
            Self::UsedQuic => latency::used(options, Transport::Quic).await,
            Self::PageTcp => latency::page(options, Transport::Tcp).await,
            Self::PageQuic => latency::page(options, Transport::Quic).await,
            Self::RangeTcp => latency::range(options, Transport::Tcp).await,
            Self::RangeQuic => latency::range(options, Transport::Quic).await,
            Self::Four => bulk::four(options).await,
            Self::Loopback => bulk::loopback(options, Transport::Tcp).await,
            Self::LoopbackQuic => bulk::loopback(options, Transport::Quic).await,
            Self::DhtNear => routing::near(options).await,
            Self::DhtFar => routing::far(options).await,
            Self::Publish => routing::publish(options).await,
            Self::Silent20 => stale::silent(options, 20, 1.0).await,
            Self::Silent50 => stale::silent(options, 50, 1.0).await,
            Self::Silent100 => stale::silent(options, 100, 1.5).await,
            Self::SilentAgain => stale::again(options).await,
            Self::Refusing => stale::refusing(options).await,
            Self::SilentSlow => stale::slow(options).await,
            Self::SilentLossy => stale::lossy(options).await,
            Self::DeadRelays => stale::relays(options).await,
            Self::WrongAddresses => stale::wrong(options).await,
            Self::NamesOften => names::often(options).await,
            Self::NamesRare => names::rare(options).await,
            Self::BrowserTcp => browser::page(options, Transport::Tcp).await,
            Self::BrowserQuic => browser::page(options, Transport::Quic).await,
            Self::Memory => memory::resident(options).await,
        }
    }
}

/// Measures the rows that were chosen, and writes the report.
pub async fn run(options: &Options) -> Result<()> {
    options.binaries.check()?;
    let measure = async |row: RowName| Ok(vec![row.measure(options).await?]);
    let results = comparison::measure(&options.rows, ROW_TIMEOUT, measure).await;
    let mut machine = machine::describe_with_kubo("bench-network", &options.run, &options.binaries)?;
    machine["delay_ms"] = json!(options.delay_ms);
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
