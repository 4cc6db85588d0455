//! The network's table: how fast misses are over a long link, beside Kubo, plain HTTP and what the source itself can do.
//!
//! Goals: one command for all rows; a real Kubo as the source, behind a relay ([`mod@crate::relay`]) that adds the delay and
//! counts, so that a row fails when its bytes went another way; cold every time (a fresh node, or content that nobody has
//! seen); what arrives is compared byte for byte, after the clock has stopped; rivals take turns in rotated order and
//! medians count. A row that fails does not keep the others from being measured.
//!
//! Non-goals: jitter (see the relay), and absolute figures: everything shares one machine.
//!
//! | module | concern |
//! |---|---|
//! | [`figures`] | series, goals, rows |
//! | [`world`] | sources behind relays, fresh clients |
//! | [`asker`], [`streams`] | the source's own ceiling: every block asked for at once |
//! | [`bulk`] | 100 MiB: from Kubo, from Causeway, on loopback, from four sources |
//! | [`latency`] | first bytes: a page, a range, a small file on a used connection |
//! | [`routing`], [`neighbourhood`] | providers that only the DHT knows; a DHT of twenty nodes |
//! | [`stale`], [`silent`] | the same beside many providers that do not answer |
//! | [`names`] | how soon a change of a name is seen |
//! | [`browser`] | a page with 40 assets in Chromium |
//! | [`memory`] | resident memory with many connections and streaming misses |
//! | [`table`] | rows to Markdown and JSON |

pub mod asker;
pub mod browser;
pub mod bulk;
pub mod figures;
pub mod latency;
pub mod memory;
pub mod names;
pub mod neighbourhood;
pub mod routing;
pub mod silent;
pub mod stale;
pub mod streams;
pub mod table;
pub mod world;

use crate::options::{Binaries, Run};
use crate::relay::Link;
use crate::servers::Transport;
use anyhow::{Context, Result};
use figures::Row;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::timeout;

/// Longer than any row takes that will ever end.
const ROW_TIMEOUT: Duration = Duration::from_secs(900);

/// What to measure.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    #[command(flatten)]
    pub binaries: Binaries,
    /// More flags for every "causeway serve", such as one that a branch needs (repeatable; use --causeway-flag=--flag)
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    pub causeway_flag: Vec<String>,
    #[command(flatten)]
    pub run: Run,
    /// Folder with the browser tests' packages ("scripts/browser-packages" prints where they are)
    #[arg(long, value_name = "DIR")]
    pub browser_modules: Option<PathBuf>,
    /// Chromium's binary
    #[arg(long, value_name = "FILE", default_value = "/usr/bin/chromium")]
    pub chromium: PathBuf,
    /// Half of the round trip that the relay adds, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 25)]
    pub delay_ms: u64,
    /// Only these rows, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub rows: Vec<RowName>,
}

impl Options {
    /// The stretch of network between the source and everybody else.
    pub fn link(&self) -> Link {
        Link::delay(Duration::from_millis(self.delay_ms))
    }

    /// A size in bytes that a quick run divides by 32.
    pub fn size(&self, bytes: usize) -> usize {
        if self.run.quick { bytes / 32 } else { bytes }
    }

    /// More flags for `causeway serve`.
    pub fn flags(&self) -> Vec<&str> {
        self.causeway_flag.iter().map(String::as_str).collect()
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
    /// 100 MiB cold from Kubo without a relay
    Loopback,
    /// First byte, provider known only to the DHT, on loopback
    DhtNear,
    /// The same among twenty DHT nodes far away
    DhtFar,
    /// Publication of a provider record among them
    Publish,
    /// First byte, 20 of 21 providers are silent
    #[value(name = "silent-20")]
    Silent20,
    /// 50 of 51
    #[value(name = "silent-50")]
    Silent50,
    /// 100 of 101
    #[value(name = "silent-100")]
    Silent100,
    /// The same silent providers for several files in a row
    SilentAgain,
    /// 100 of 101 providers refuse
    Refusing,
    /// The living provider is far away, the others are silent
    SilentSlow,
    /// The living provider's packets are lost, the others are silent
    SilentLossy,
    /// The other providers are behind relays that are gone
    DeadRelays,
    /// Most addresses of the only provider are wrong
    WrongAddresses,
    /// From publishing a name until it is seen by those who visit often
    NamesOften,
    /// The same for those who visit rarely
    NamesRare,
    /// A cold page with 40 assets in Chromium, over TCP
    BrowserTcp,
    /// The same over QUIC
    BrowserQuic,
    /// Resident memory with 1,000 connections and 200 streaming misses
    Memory,
}

impl RowName {
    /// Its name on the command line.
    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map_or_else(String::new, |value| value.get_name().to_owned())
    }

    async fn measure(self, options: &Options) -> Result<Row> {
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
            Self::Loopback => bulk::loopback(options).await,
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

/// A row's name and what came of it.
pub type Outcome = (RowName, Result<Row>);

/// Measures the rows that were asked for, one after the other.
pub async fn run(options: &Options) -> Result<Vec<Outcome>> {
    options.binaries.check()?;
    let all = <RowName as clap::ValueEnum>::value_variants();
    let rows = if options.rows.is_empty() { all } else { &options.rows };
    let mut outcomes = Vec::new();
    for row in rows {
        eprintln!("{}", row.name());
        let measured = timeout(ROW_TIMEOUT, row.measure(options)).await;
        let outcome = measured.with_context(|| format!("not done within {ROW_TIMEOUT:?}")).flatten();
        if let Err(error) = &outcome {
            eprintln!("  failed: {error:#}");
        }
        outcomes.push((*row, outcome));
    }
    Ok(outcomes)
}
