//! First bytes, in round trips: a page in a sub-directory, a range deep in a file; and a small file on a used
//! connection.

use super::Options;
use super::world::{self, Remote};
use crate::comparison::{Case, Measure, Series, System, rounds};
use crate::directory::temp_dir;
use crate::http::{Client, get, get_range};
use crate::sample;
use crate::servers::{Causeway, Kubo, Server, Setup, Transport};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// Fetched before the clock starts, so that the connection's windows are open.
const WARM_UP: usize = 8 << 20;
const SMALL: usize = 1 << 20;
const PAGE: usize = 24 << 10;
const HUGE: usize = 1 << 30;
/// Cheap measurements are repeated more often.
const REPETITIONS: usize = 5;

/// Clients that are connected to a source, for measurements with content that is new each time.
pub struct Clients(Vec<(System, Server)>);

impl Clients {
    /// Those of the systems that are clients; the others ask the source over HTTP.
    pub async fn start<Node>(
        options: &Options,
        source: &Remote<Node>,
        transport: Transport,
        systems: &[System],
    ) -> Result<Self> {
        let peers = [source.multiaddr(transport)];
        let mut clients = Vec::new();
        for system in systems.iter().filter(|system| is_client(**system)) {
            clients.push((*system, world::client(*system, options, &peers).await?));
        }
        Ok(Self(clients))
    }

    /// The gateway of a system.
    pub fn url<Node>(&self, system: System, source: &Remote<Node>) -> Result<String> {
        if !is_client(system) {
            return Ok(source.url());
        }
        let found = self.0.iter().find(|(one, _)| *one == system);
        Ok(found.with_context(|| format!("{system} is not measured here"))?.1.url.clone())
    }
}

fn is_client(system: System) -> bool {
    !matches!(system, System::Http | System::HttpUsed)
}

pub const SYSTEMS: [System; 3] = [System::Http, System::Kubo, System::Causeway];

/// Those, and HTTP without the round trip that a connection takes.
const SYSTEMS_AND_USED: [System; 4] = [System::Http, System::HttpUsed, System::Kubo, System::Causeway];

/// The seed of the content of one measurement.
pub fn seed(row: u64, system: System, round: usize) -> u64 {
    row << 32 | (system as u64) << 16 | round as u64
}

/// A larger file that a client fetches before.
struct WarmUp {
    path: String,
    content: Vec<u8>,
}

impl WarmUp {
    fn new(add: impl FnOnce(&[u8]) -> Result<String>) -> Result<Self> {
        let content = sample::bytes(WARM_UP, 5);
        Ok(Self { path: add(&content)?, content })
    }

    async fn fetch(&self, gateway: &str) -> Result<()> {
        get(&format!("{gateway}{}", self.path)).await?.of_content(&self.content).map(drop)
    }
}

/// A small file of Kubo's on a connection that has carried a larger one.
pub async fn used(options: &Options, transport: Transport) -> Result<Case> {
    let source = Remote::<Kubo>::start(options, options.link()).await?;
    let earlier = options.earlier.as_ref().map(|_| System::Earlier);
    let systems: Vec<System> = SYSTEMS.into_iter().chain(earlier).collect();
    let add = |content: &[u8]| source.node.add(content);
    let series = small(options, transport, &source, &systems, 6, add).await?;
    let case = Case::new(format!("1 MiB cold from Kubo on a used connection, {}", transport.name()), "s", series);
    let seconds = case.value(System::Causeway);
    let measure = Measure::lower(seconds, "s").bar("0.25 s", 0.25).aim("0.20 s", 0.20);
    let round_trips = Measure::lower(seconds / options.link().round_trip().as_secs_f64(), "round trips");
    // The results of 21 November 2026: 0.212 s and 0.126 s. An earlier build in the same run says more.
    let round_trips = match transport {
        Transport::Tcp => round_trips.bar("4.24, as before", 4.24).aim("3.2", 3.2),
        Transport::Quic => round_trips.bar("2.52, as before", 2.52),
    };
    let against = Measure::lower(seconds / case.value(System::Earlier), "× the earlier build").bar("1.0 ×", 1.0);
    let case = case.measure(measure).measure(round_trips).note("HTTP makes a connection each time");
    Ok(if earlier.is_some() { case.measure(against) } else { case })
}

/// A small file of Causeway's on a connection that has carried a larger one.
pub async fn used_from_causeway(options: &Options, transport: Transport) -> Result<Case> {
    let source = Remote::<Causeway>::start_with(options, options.link(), Setup::default()).await?;
    let add = |content: &[u8]| added(&source.node, content);
    let series = small(options, transport, &source, &SYSTEMS_AND_USED, 9, add).await?;
    let name = format!("1 MiB cold, Causeway from Causeway, on a used connection, {}", transport.name());
    let case = Case::new(name, "s", series);
    let of = |rival| case.value(System::Causeway) / case.value(rival);
    let measure = Measure::lower(of(System::Http), "× HTTP").bar("1.6 × HTTP", 1.6).aim("1.2 ×", 1.2);
    let note = format!("{:.2} × HTTP on a used connection; the bar is beside HTTP on a new one", of(System::HttpUsed));
    Ok(case.measure(measure).note(note))
}

/// Adds a file to a running Causeway.
fn added(source: &Causeway, content: &[u8]) -> Result<String> {
    let dir = temp_dir("file")?;
    let file = dir.path().join("file");
    std::fs::write(&file, content)?;
    source.add(&file)
}

/// The seconds that new files of 1 MiB take, which `add` adds to the source.
async fn small<Node>(
    options: &Options,
    transport: Transport,
    source: &Remote<Node>,
    systems: &[System],
    row: u64,
    add: impl Fn(&[u8]) -> Result<String>,
) -> Result<Vec<Series>> {
    let clients = Clients::start(options, source, transport, systems).await?;
    let (warm_up, used) = (WarmUp::new(&add)?, Client::new()?);
    for system in systems.iter().filter(|system| is_client(**system)) {
        warm_up.fetch(&clients.url(*system, source)?).await?;
    }
    used.get(&format!("{}{}", source.url(), warm_up.path)).await?;
    rounds(options.run.rounds() * REPETITIONS, systems, async |system, round| {
        let content = sample::bytes(SMALL, seed(row, system, round));
        let url = format!("{}{}", clients.url(system, source)?, add(&content)?);
        let before = source.passed(system, transport);
        let response = if system == System::HttpUsed { used.get(&url).await? } else { get(&url).await? };
        let response = response.of_content(&content)?;
        source.check(system, transport, before, content.len())?;
        Ok(response.complete.as_secs_f64())
    })
    .await
}

/// A page of Kubo's of one block, two directories down, over an established connection.
pub async fn page(options: &Options, transport: Transport) -> Result<Case> {
    let source = Remote::<Kubo>::start(options, options.link()).await?;
    let page = Page { directories: 1, row: 7, is_warm: false };
    let series = page.first_bytes(options, transport, &source, &SYSTEMS, |site| source.node.add_directory(site));
    let name = format!("first byte of a page in a sub-directory, connected peer, {}", transport.name());
    let case = Case::new(name, "round trips", series.await?);
    let measure =
        Measure::lower(case.value(System::Causeway), "round trips").bar("4.5 round trips", 4.5).aim("3.2", 3.2);
    Ok(case.measure(measure).note("three blocks, each linked from the one before"))
}

/// A page of Causeway's of one block, in a sub-directory, on a used connection.
pub async fn page_from_causeway(options: &Options, transport: Transport) -> Result<Case> {
    let case = Page { directories: 1, row: 10, is_warm: true }.on_causeway(options, transport).await?;
    let measure =
        Measure::lower(case.value(System::Causeway), "round trips").bar("1.3 round trips", 1.3).aim("1.1", 1.1);
    Ok(case.measure(measure))
}

/// The same six directories down.
pub async fn deep_page(options: &Options, transport: Transport) -> Result<Case> {
    let case = Page { directories: 6, row: 11, is_warm: true }.on_causeway(options, transport).await?;
    let measure = Measure::lower(case.value(System::Causeway), "round trips").bar("2 round trips", 2.0).aim("1.2", 1.2);
    Ok(case.measure(measure))
}

/// A page of one block in directories below a root, each of which is one block.
#[derive(Debug, Clone, Copy)]
struct Page {
    directories: usize,
    /// Of the content's seeds.
    row: u64,
    /// Whether the clients fetch another file before.
    is_warm: bool,
}

impl Page {
    /// With a Causeway as the source.
    async fn on_causeway(self, options: &Options, transport: Transport) -> Result<Case> {
        let source = Remote::<Causeway>::start_with(options, options.link(), Setup::default()).await?;
        let add = |site: &Path| source.node.add(site);
        let series = self.first_bytes(options, transport, &source, &SYSTEMS_AND_USED, add).await?;
        let below = match self.directories {
            1 => "in a sub-directory".to_owned(),
            count => format!("below {count} directories"),
        };
        let name = format!("first byte of a page {below}, Causeway from Causeway, {}", transport.name());
        let blocks = self.directories + 2;
        let note = format!("{blocks} blocks, each linked from the one before; the connection has carried another file");
        Ok(Case::new(name, "round trips", series).note(note))
    }

    /// The round trips until the first byte of new pages, which `add` adds to the source with their directories.
    async fn first_bytes<Node>(
        self,
        options: &Options,
        transport: Transport,
        source: &Remote<Node>,
        systems: &[System],
        add: impl Fn(&Path) -> Result<String>,
    ) -> Result<Vec<Series>> {
        let clients = Clients::start(options, source, transport, systems).await?;
        let round_trip = options.link().round_trip().as_secs_f64();
        let used = Client::new()?;
        if self.is_warm {
            let (path, content) = self.add_new(WARM_UP, seed(self.row, System::Copy, 0), &add)?;
            for system in systems.iter().filter(|system| is_client(**system)) {
                get(&format!("{}{path}", clients.url(*system, source)?)).await?.of_content(&content)?;
            }
            used.get(&format!("{}{path}", source.url())).await?;
        }
        rounds(options.run.rounds() * REPETITIONS, systems, async |system, round| {
            let (path, content) = self.add_new(PAGE, seed(self.row, system, round), &add)?;
            let url = format!("{}{path}", clients.url(system, source)?);
            let before = source.passed(system, transport);
            let response = if system == System::HttpUsed { used.get(&url).await? } else { get(&url).await? };
            let response = response.of_content(&content)?;
            source.check(system, transport, before, content.len())?;
            Ok(response.first_byte.as_secs_f64() / round_trip)
        })
        .await
    }

    /// The path and the bytes of a new page.
    fn add_new(self, bytes: usize, seed: u64, add: impl Fn(&Path) -> Result<String>) -> Result<(String, Vec<u8>)> {
        let (site, content) = (temp_dir("site")?, sample::bytes(bytes, seed));
        let names = (1..=self.directories).map(|depth| format!("articles-{depth}"));
        let below: PathBuf = names.chain(["page.html".to_owned()]).collect();
        let file = site.path().join(&below);
        std::fs::create_dir_all(file.parent().context("a page without a directory")?)?;
        std::fs::write(&file, &content)?;
        Ok((format!("{}/{}", add(site.path())?, below.display()), content))
    }
}

/// Some bytes in the middle of a file that is deeper than one level of links.
pub async fn range(options: &Options, transport: Transport) -> Result<Case> {
    let source = Remote::<Kubo>::start(options, options.link()).await?;
    let content = sample::bytes(options.size(HUGE), 8);
    let path = source.node.add(&content)?;
    let depth = depth(&source.node, &path).await? as f64;
    let round_trip = options.link().round_trip().as_secs_f64();
    let warm_up = WarmUp::new(|content| source.node.add(content))?;
    let first = content.len() / 3 * 2 + 12_345;
    let range = first..=first + 9_999;
    let series = rounds(options.run.rounds(), &SYSTEMS, async |system, _| {
        // The file is too large to be made anew each time; the client is.
        let client = match system {
            System::Http => None,
            client => Some(world::client(client, options, &[source.multiaddr(transport)]).await?),
        };
        let url = client.as_ref().map_or_else(|| source.url(), |client| client.url.clone());
        if client.is_some() {
            warm_up.fetch(&url).await?;
        }
        let before = source.passed(system, transport);
        let response = get_range(&format!("{url}{path}"), &range).await?.of_content(&content[range.clone()])?;
        source.check(system, transport, before, response.body.len())?;
        Ok(response.first_byte.as_secs_f64() / round_trip)
    });
    let size = content.len() >> 20;
    let name = format!("first byte of a range deep in a cold file of {size} MiB, {}", transport.name());
    let case = Case::new(name, "round trips", series.await?);
    let measure = Measure::lower(case.value(System::Causeway), "round trips")
        .bar(format!("depth + 2 = {}", depth + 2.0), depth + 2.0)
        .aim("depth + 1.2", depth + 1.2);
    let note = format!(
        "depth {depth}: that many blocks, each linked from the one before; the connection has carried another file"
    );
    Ok(case.measure(measure).note(note))
}

/// Blocks on the way from the root to a leaf, both counted.
async fn depth(kubo: &Kubo, path: &str) -> Result<usize> {
    let mut at = path.trim_start_matches("/ipfs/").to_owned();
    for depth in 1..=16 {
        let lines = kubo.lines("refs", &at).await?;
        let Some(line) = lines.first() else { return Ok(depth) };
        at = line["Ref"].as_str().context("no Ref in what refs returns")?.to_owned();
    }
    bail!("{path} is too deep to be a file")
}
