//! Transfers between two Causeways: a DAG in one stream, and blocks as they are stored; and the paths beside it, from a
//! Kubo's gateway, from Kubo by Bitswap, and uploads.
//!
//! Goals: a row for each bar, measured in one run with its rival; the same link, with the same delay and rate, for TCP,
//! QUIC and HTTP; every byte compared after the clock has stopped; medians of rounds in rotated order. What the binary
//! does not support is said by its row, with the bar, and fails nothing.
//!
//! Non-goals: absolute figures: everything shares one machine. Rows that [`mod@crate::network`] has already are
//! measured by its code.
//!
//! The texts are public data sets, which `scripts/benchmark-data` fetches with pinned versions and checks. Without them
//! they are generated: other bytes, of the same form and about the same compression ratio.
//!
//! | module | concern |
//! |---|---|
//! | [`features`] | what the binary supports |
//! | [`texts`], [`generated`] | data sets, and their generators |
//! | [`held`] | content in a store, and the Causeway that has it |
//! | [`stored`] | text, media and noise, as they are stored |
//! | [`upload`] | text to the admin listener, on a slow link |
//! | [`space`] | the space of stored text |
//! | [`packed`] | files that are compressed as a whole (`add --packed`) |
//! | [`gateway`] | a CAR from a Kubo's gateway |

pub mod features;
pub mod gateway;
pub mod generated;
pub mod held;
pub mod packed;
pub mod space;
pub mod stored;
pub mod texts;
pub mod upload;

use crate::comparison::{self, Case};
use crate::machine;
use crate::network::{self, browser, bulk, latency};
use crate::options::{Binaries, Browser, CausewayFlags, Run};
use crate::relay::Link;
use crate::report::Report;
use crate::servers::Transport;
use anyhow::{Result, ensure};
use features::Features;
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;
use texts::Texts;

/// Longer than any row takes.
const ROW_TIMEOUT: Duration = Duration::from_secs(2400);
/// Of the rows with a slow link.
const SLOW_BITS_PER_SECOND: u64 = 20_000_000;

/// What to measure.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    #[command(flatten)]
    binaries: Binaries,
    #[command(flatten)]
    flags: CausewayFlags,
    #[command(flatten)]
    run: Run,
    #[command(flatten)]
    browser: Browser,
    /// The binary of an earlier build of Causeway, for the rows used-tcp and used-quic
    #[arg(long, value_name = "FILE")]
    earlier: Option<PathBuf>,
    /// Directory with the data sets ("scripts/benchmark-data" fetches them, and prints where they are); by default they
    /// are generated
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Half of the round trip that the link adds, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 25)]
    delay_ms: u64,
    /// Half of the round trip of the row text-far, in milliseconds: the paper's nodes are up to 265 ms apart
    #[arg(long, value_name = "MS", default_value_t = 132.5)]
    far_delay_ms: f64,
    /// Only these rows, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    rows: Vec<RowName>,
}

/// What the rows need.
pub struct Bench {
    options: network::Options,
    far_delay: Duration,
    features: Features,
    texts: Texts,
}

impl Bench {
    async fn new(options: &Options) -> Result<Self> {
        let Options { binaries, flags, run, browser, earlier, delay_ms, .. } = options.clone();
        let features = Features::of(&binaries.causeway).await?;
        let texts = Texts::load(options.data.as_deref(), run.quick)?;
        let network = network::Options {
            binaries,
            flags,
            run,
            browser,
            earlier,
            delay_ms,
            name: String::new(),
            rainbow: None,
            rows: Vec::new(),
        };
        let far_delay = Duration::try_from_secs_f64(options.far_delay_ms / 1e3)?;
        Ok(Self { options: network, far_delay, features, texts })
    }

    /// The link of the rows with a limited rate.
    fn slow_link(&self) -> Link {
        Link { bits_per_second: Some(SLOW_BITS_PER_SECOND), ..self.options.link() }
    }

    /// A case whose figures are those of Bitswap if the binary has nothing better.
    fn between(&self, case: Case) -> Vec<Case> {
        if self.features.dag {
            return vec![case];
        }
        vec![case.note(format!("`{}` is not supported by this binary: Bitswap was measured", features::DAG_PROTOCOL))]
    }
}

comparison::rows! {
    (bench: &Bench) -> Result<Vec<Case>>;
    /// 100 MiB cold, Causeway from Causeway, over TCP
    OursTcp => Ok(bench.between(bulk::ours(&bench.options, Transport::Tcp).await?)),
    /// The same over QUIC
    OursQuic => Ok(bench.between(bulk::ours(&bench.options, Transport::Quic).await?)),
    /// 1 MiB cold, Causeway from Causeway, on a used connection, over TCP
    SmallTcp => Ok(bench.between(latency::used_from_causeway(&bench.options, Transport::Tcp).await?)),
    /// The same over QUIC
    SmallQuic => Ok(bench.between(latency::used_from_causeway(&bench.options, Transport::Quic).await?)),
    /// First byte of a page in a sub-directory, Causeway from Causeway, over TCP
    PageTcp => Ok(bench.between(latency::page_from_causeway(&bench.options, Transport::Tcp).await?)),
    /// The same over QUIC
    PageQuic => Ok(bench.between(latency::page_from_causeway(&bench.options, Transport::Quic).await?)),
    /// First byte of a page below six directories, over TCP
    DeepTcp => Ok(bench.between(latency::deep_page(&bench.options, Transport::Tcp).await?)),
    /// The same over QUIC
    DeepQuic => Ok(bench.between(latency::deep_page(&bench.options, Transport::Quic).await?)),
    /// A cold page with 40 assets in Chromium, Causeway from Causeway, over TCP
    BrowserTcp => Ok(bench.between(browser::page_from_causeway(&bench.options, Transport::Tcp).await?)),
    /// The same over QUIC
    BrowserQuic => Ok(bench.between(browser::page_from_causeway(&bench.options, Transport::Quic).await?)),
    /// 128 MiB of text on 20 Mbit/s, over TCP
    TextTcp => stored::slow(bench, Transport::Tcp).await,
    /// The same over QUIC
    TextQuic => stored::slow(bench, Transport::Quic).await,
    /// 128 MiB of text at a round trip of 265 ms, beside Kubo and Kubo with whole files as zstd, over TCP
    TextFar => stored::far(bench).await,
    /// WAV, JPEG-like, MP4-like and noise on 20 Mbit/s
    Media => stored::media(bench).await,
    /// 128 MiB of text on loopback
    TextLoopback => stored::loopback(bench).await,
    /// An upload of 128 MiB of text on 20 Mbit/s
    Upload => upload::text(bench).await,
    /// The space of text in leaves of 256 KiB and of 1 MiB, beside whole files as zstd
    Space => space::text(bench),
    /// 64 KiB out of 100 MiB that were added with --packed
    PackedRead => packed::read(bench).await,
    /// 100 MiB added with --packed
    PackedAdd => packed::add(bench),
    /// 100 MiB from a Kubo's gateway over HTTP
    Car => gateway::car(bench).await,
    /// 100 MiB cold from Kubo on loopback: processor time
    Loopback => Ok(vec![bulk::loopback(&bench.options, Transport::Tcp).await?]),
    /// 1 MiB cold from Kubo on a used connection, over TCP
    UsedTcp => Ok(vec![latency::used(&bench.options, Transport::Tcp).await?]),
    /// The same over QUIC
    UsedQuic => Ok(vec![latency::used(&bench.options, Transport::Quic).await?]),
}

/// Measures the rows that were chosen, and writes the report.
pub async fn run(options: &Options) -> Result<()> {
    options.binaries.check()?;
    if let Some(earlier) = &options.earlier {
        ensure!(earlier.exists(), "{} is missing", earlier.display());
    }
    let bench = Bench::new(options).await?;
    let results = comparison::measure(&options.rows, ROW_TIMEOUT, async |row| row.measure(&bench).await).await;
    let mut machine = machine::describe_with_kubo("bench-transfer", &options.run, &options.binaries)?;
    machine["delay_ms"] = json!(options.delay_ms);
    machine["far_delay_ms"] = json!(options.far_delay_ms);
    machine["features"] = json!(bench.features);
    machine["texts"] = json!(bench.texts.about());
    if let Some(earlier) = &options.earlier {
        machine["earlier"] = json!(machine::version(earlier));
    }
    let mut report = Report::new(machine, "transfer", "Transfers between Causeways, as blocks are stored");
    let [causeway, kubo, delay, rounds, texts] =
        ["causeway", "kubo", "delay_ms", "rounds", "texts"].map(|key| report.fact(key));
    report.paragraph(format!(
        "{} {causeway}; {kubo}.\nA link adds {delay} ms each way, unless a case says otherwise; everything shares the \
         machine. Medians of {rounds} rounds (five times as many where a row is cheap), in rotated order. {texts} The \
         binary {}.",
        report.measured(),
        bench.features,
    ));
    results.report(&mut report);
    report.write(&options.run.out, &results)?;
    results.check()
}
