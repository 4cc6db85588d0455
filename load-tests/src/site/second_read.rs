//! Table II of the paper "An Object Store Service for a Fog/Edge Computing Infrastructure based on IPFS and Scale-out
//! NAS" (Confais, Lebre, Parrein, 2017): a file is written in one place, and read twice in another one.
//!
//! Goals: Causeways as sites, and as many Kubos, in the same run over the same kind of links; beside them Causeways
//! without a site, for what a site costs, and plain HTTP, for what the clients' link allows. The second read is always
//! at another gateway than the first one; in the paper it is in three of four reads. Bytes between the places are
//! counted by their links.
//!
//! Non-goals: the paper's machines, kernel and versions; its times, of which the ratio counts.

use super::Options;
use super::place::{Net, behind_link};
use super::postgres::Postgres;
use crate::comparison::{Case, Measure, Series, System, Turn};
use crate::directory::temp_dir;
use crate::http;
use crate::network::latency::seed;
use crate::relay::Relay;
use crate::report::number;
use crate::sample;
use crate::servers::{self, Server};
use crate::stats::{Latency, rotated};
use anyhow::{Context, Result, ensure};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Of the content's seeds.
const ROW: u64 = 20;
const ROW_OF_MANY: u64 = 21;
/// The paper's times for one file of 10 MB: 3.70 s by IPFS, 0.31 s with a shared storage.
const BAR_OF_ONE: (&str, f64) = ("12 × (the paper: 3.70 s / 0.31 s)", 12.0);
/// And for 100 of them: 6.08 s and 1.86 s each.
const BAR_OF_MANY: (&str, f64) = ("3.3 × (the paper: 6.08 s / 1.86 s)", 3.3);
/// More writes at once are not accepted of one token, with the default of `uploads.at_once_max`.
const WRITES_AT_ONCE: usize = 3;
/// Of the content, between the places.
const BETWEEN_PERCENT: f64 = 1.0;

/// One file in each round, and many at once.
pub async fn measure(options: &Options) -> Result<Vec<Case>> {
    let database = Postgres::start().await?;
    eprintln!("  starting {} sites of {} gateways, as many Kubos …", options.sites(), options.gateways());
    let world = World {
        nets: [Net::sites(options, &database).await?, Net::alone(options).await?, Net::kubos(options).await?],
        plain: Plain::start(options).await?,
    };
    let mut cases = one(options, &world).await?;
    cases.extend(many(options, &world).await?);
    drop(world);
    drop(database);
    Ok(cases)
}

struct World {
    /// Sites, Causeways without a site, Kubos.
    nets: [Net; 3],
    plain: Plain,
}

/// nginx with plain files, behind the clients' link.
struct Plain {
    link: Relay,
    _nginx: Server,
    files: TempDir,
}

impl Plain {
    async fn start(options: &Options) -> Result<Self> {
        let files = temp_dir("files")?;
        let nginx = servers::nginx("http://127.0.0.1:9", files.path()).await?;
        Ok(Self { link: behind_link(options.client_link(), &nginx.url).await?, _nginx: nginx, files })
    }

    /// Reads a new file.
    async fn read(&self, round: usize, content: &[u8]) -> Result<Duration> {
        // Another name each time: nginx caches descriptors.
        let name = format!("file-{round}");
        let file = self.files.path().join(&name);
        std::fs::write(&file, content)?;
        let url = format!("http://{}/files/{name}", self.link.address());
        let took = http::get(&url).await?.of_content(content)?.complete;
        std::fs::remove_file(&file)?;
        Ok(took)
    }
}

/// What is done with a file, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Write,
    Local,
    First,
    Second,
}

impl Step {
    const ALL: [Self; 4] = [Self::Write, Self::Local, Self::First, Self::Second];

    fn name(self) -> &'static str {
        match self {
            Self::Write => "written",
            Self::Local => "read where it was written, at another gateway",
            Self::First => "first read in another place",
            Self::Second => "second read there, at another gateway",
        }
    }
}

/// Series by step, and the bytes between the places.
#[derive(Default)]
struct Figures {
    steps: [Vec<Series>; 4],
    /// The highest share of the content, in per cent, by system and step.
    between: Vec<(System, Step, f64)>,
}

impl Figures {
    fn push(&mut self, step: Step, system: System, round: usize, turn: Turn) {
        let all = &mut self.steps[step as usize];
        let found = all.iter().position(|series| series.system == system);
        let index = found.unwrap_or_else(|| {
            all.push(Series::new(system));
            all.len() - 1
        });
        eprintln!("  {}:", step.name());
        all[index].push(round, turn);
    }

    fn push_between(&mut self, step: Step, system: System, bytes: u64, content: usize) {
        self.between.push((system, step, bytes as f64 * 100.0 / content.max(1) as f64));
    }

    /// The highest of any round; not a number if there was none.
    fn between(&self, step: Step, system: System) -> f64 {
        let of = self.between.iter().filter(|(one, at, _)| (*one, *at) == (system, step));
        of.map(|(.., percent)| *percent).fold(f64::NAN, f64::max)
    }

    fn case(&mut self, step: Step, size: &str) -> Case {
        let series = std::mem::take(&mut self.steps[step as usize]);
        Case::new(format!("{size}, {}", step.name()), "MB/s", series)
    }
}

/// One file at a time.
async fn one(options: &Options, world: &World) -> Result<Vec<Case>> {
    let systems = [System::Causeway, System::Alone, System::Kubo, System::Http];
    let mut figures = Figures::default();
    for (round, index) in rotated(options.turns(), systems.len()) {
        let system = systems[index];
        let content = sample::bytes(options.file_bytes(), seed(ROW, system, round));
        match world.nets.iter().find(|net| net.system == system) {
            Some(net) => in_turn(net, round, &content, &mut figures).await.with_context(|| system.to_string())?,
            None => {
                let turn = turn(world.plain.read(round, &content).await?, content.len());
                figures.push(Step::Second, system, round, turn);
            }
        }
    }
    Ok(cases(&mut figures, &size(options.file_bytes())))
}

/// A file is written and read at the nodes of one system.
async fn in_turn(net: &Net, round: usize, content: &[u8], figures: &mut Figures) -> Result<()> {
    let system = net.system;
    let [writers, others @ ..] = net.places.as_slice() else { anyhow::bail!("no place") };
    let readers = &others[round % others.len().max(1)];
    let written = writers[0].write(content).await?;
    figures.push(Step::Write, system, round, turn(written.took, content.len()));
    // Of single nodes there is no other one in the same place.
    let local = writers.get(1 + round % (writers.len() - 1).max(1)).filter(|_| net.is_joined);
    let reads = [
        (Step::Local, local),
        (Step::First, readers.get(round % readers.len())),
        (Step::Second, readers.get((round + 1) % readers.len()).filter(|_| readers.len() > 1)),
    ];
    for (step, node) in reads {
        let Some(node) = node else { continue };
        let before = net.bytes_between();
        let took = node.read(&written.path, content).await.with_context(|| step.name())?;
        let between = net.bytes_between() - before;
        // Otherwise it has bypassed the links.
        ensure!(step != Step::First || between >= content.len() as u64, "{between} bytes passed between the places");
        figures.push(step, system, round, turn(took, content.len()));
        figures.push_between(step, system, between, content.len());
    }
    Ok(())
}

fn cases(figures: &mut Figures, size: &str) -> Vec<Case> {
    let between = |figures: &Figures, step| {
        let percent = figures.between(step, System::Causeway);
        Measure::lower(percent, "% of the content between the places").bar("1 %", BETWEEN_PERCENT)
    };
    let [local, second] = [Step::Local, Step::Second].map(|step| between(figures, step));
    let of_kubo = [Step::Local, Step::Second].map(|step| {
        let percent = number(figures.between(step, System::Kubo));
        format!("Kubo, {}: {percent} % of the content between the places at most", step.name())
    });
    let [written, read_locally, first, again] = Step::ALL.map(|step| figures.case(step, size));
    let cost = |case: Case| {
        let times = time_ratio(&case, System::Alone);
        case.measure(Measure::lower(times, "× the time without a site").bar("1.05 ×", 1.05))
    };
    let (text, limit) = BAR_OF_ONE;
    let of_kubo_s = again.against(System::Kubo).bar(text, limit);
    let of_http = Measure::lower(time_ratio(&again, System::Http), "× the time of HTTP").bar("1.3 ×", 1.3);
    let [note_local, note_second] = of_kubo;
    // Kubos that know nothing of each other have no local read.
    let read_locally = match read_locally.of(System::Kubo) {
        Some(_) => {
            let of_kubo = read_locally.against(System::Kubo);
            read_locally.measure(of_kubo).note(note_local)
        }
        None => read_locally,
    };
    vec![
        cost(written).note("Causeway answers when the content is synced and pinned; Kubo does not sync"),
        read_locally.measure(local),
        cost(first),
        again.measure(of_kubo_s).measure(of_http).measure(second).note(note_second),
    ]
}

/// Causeway's time over another system's, by the rates.
fn time_ratio(case: &Case, rival: System) -> f64 {
    case.value(rival) / case.value(System::Causeway)
}

/// Many files, several at once.
async fn many(options: &Options, world: &World) -> Result<Option<Case>> {
    let count = options.files();
    if count == 0 {
        return Ok(None);
    }
    let mut series = Vec::new();
    let mut notes = Vec::new();
    let mut between = f64::NAN;
    for net in world.nets.iter().filter(|net| net.system != System::Alone) {
        let many = Many::measure(options, net).await.with_context(|| net.system.to_string())?;
        if net.system == System::Causeway {
            between = many.percent_between;
        }
        notes.push(many.note(net.system));
        let mut one = Series::new(net.system);
        one.push(0, many.second);
        series.push(one);
    }
    let name = format!("{count} × {}, second read, {} files at once", size(options.file_bytes()), options.parallel);
    let case = Case::new(name, "MB/s", series);
    let (text, limit) = BAR_OF_MANY;
    let of_kubo = case.against(System::Kubo).bar(text, limit);
    let between = Measure::lower(between, "% of the content between the places").bar("1 %", BETWEEN_PERCENT);
    let case = case.measure(of_kubo).measure(between);
    Ok(Some(notes.into_iter().fold(case, Case::note)))
}

/// Many files of one system.
struct Many {
    first: Turn,
    second: Turn,
    /// During the second read.
    percent_between: f64,
}

impl Many {
    async fn measure(options: &Options, net: &Net) -> Result<Self> {
        let [writers, readers, ..] = net.places.as_slice() else { anyhow::bail!("two places are needed") };
        let bytes = options.file_bytes();
        let contents: Vec<Vec<u8>> =
            (0..options.files()).map(|file| sample::bytes(bytes, seed(ROW_OF_MANY, net.system, file))).collect();
        eprintln!("  {}: writing {} × {} …", net.system, contents.len(), size(bytes));
        let writing = contents.iter().map(|content| writers[0].write(content));
        let written: Vec<_> = stream::iter(writing).buffered(WRITES_AT_ONCE).try_collect().await?;
        let paths: Vec<String> = written.into_iter().map(|written| written.path).collect();
        // Each file by the nodes in turn, the second time by the next one.
        let read = async |shift: usize| {
            let begun = Instant::now();
            let reads = paths.iter().zip(&contents).enumerate().map(|(file, (path, content))| {
                let node = &readers[(file + shift) % readers.len()];
                node.read(path, content)
            });
            let times: Vec<Duration> = stream::iter(reads).buffer_unordered(options.parallel()).try_collect().await?;
            let turn =
                Turn { latency: Some(Latency::of(times.into_iter())), ..turn(begun.elapsed(), bytes * contents.len()) };
            Ok::<_, anyhow::Error>(turn)
        };
        let first = read(0).await?;
        let before = net.bytes_between();
        let second = read(1).await?;
        let percent_between = (net.bytes_between() - before) as f64 * 100.0 / (bytes * contents.len()) as f64;
        Ok(Self { first, second, percent_between })
    }

    fn note(&self, system: System) -> String {
        let [first, second] = [self.first, self.second].map(|turn| number(turn.value));
        let percent = number(self.percent_between);
        format!(
            "{system}: {first} MB/s when first read, {second} MB/s the second time, with {percent} % of the content \
             between the places"
        )
    }
}

/// A rate in MB/s, with the time.
fn turn(took: Duration, bytes: usize) -> Turn {
    let value = bytes as f64 / 1e6 / took.as_secs_f64().max(1e-9);
    Turn { latency: Some(Latency::of(std::iter::once(took))), ..Turn::from(value) }
}

fn size(bytes: usize) -> String {
    format!("{} MB", number(bytes as f64 / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Figures {
        let mut figures = Figures::default();
        let rate = |value: f64| Turn::from(value);
        for (step, system, value) in [
            (Step::Write, System::Causeway, 10.0),
            (Step::Write, System::Alone, 20.0),
            (Step::First, System::Causeway, 10.0),
            (Step::First, System::Alone, 10.0),
            (Step::Second, System::Causeway, 50.0),
            (Step::Second, System::Kubo, 4.0),
            (Step::Second, System::Http, 60.0),
        ] {
            figures.push(step, system, 0, rate(value));
        }
        figures.push_between(Step::Second, System::Causeway, 5_000, 1_000_000);
        figures.push_between(Step::Second, System::Causeway, 2_000, 1_000_000);
        figures.push_between(Step::Local, System::Causeway, 20_000, 1_000_000);
        figures
    }

    #[test]
    fn ratios_are_those_of_the_paper() {
        let cases = cases(&mut figures(), "1 MB");
        let measured: Vec<Vec<(f64, bool)>> = cases
            .iter()
            .map(|case| {
                let judged =
                    case.measures.iter().filter_map(|measure| Some((measure.value, measure.bar.as_ref()?.met)));
                judged.map(|(value, met)| ((value * 1000.0).round() / 1000.0, met)).collect()
            })
            .collect();
        // Twice the time; too much between the places; as fast; 12.5 × Kubo, 1.2 × the time of HTTP, 0.5 %.
        let expected =
            [vec![(2.0, false)], vec![(2.0, false)], vec![(1.0, true)], vec![(12.5, true), (1.2, true), (0.5, true)]];
        assert_eq!(measured, expected);
    }

    #[test]
    fn rates_are_bytes_by_time() {
        let turn = turn(Duration::from_millis(500), 10_000_000);
        assert_eq!((turn.value, turn.latency.map(|latency| latency.median)), (20.0, Some(Duration::from_millis(500))));
        assert_eq!((size(10_000_000), size(312_000)), ("10.0 MB".to_owned(), "0.312 MB".to_owned()));
    }
}
