//! First bytes, in round trips: a page in a sub-directory, a range deep in a file; and a small file on a used
//! connection.

use super::Options;
use super::world::{self, Remote};
use crate::comparison::{Case, Measure, System, rounds};
use crate::directory::temp_dir;
use crate::http::{get, get_range};
use crate::sample;
use crate::servers::{Kubo, Server, Transport};
use anyhow::{Context, Result, bail};

/// Fetched before the clock starts, so that the connection's windows are open.
const WARM_UP: usize = 8 << 20;
const SMALL: usize = 1 << 20;
const PAGE: usize = 24 << 10;
const HUGE: usize = 1 << 30;
/// Cheap measurements are repeated more often.
const REPETITIONS: usize = 5;

/// Kubo and Causeway, connected to a source, for measurements with content that is new each time.
pub struct Clients {
    kubo: Server,
    causeway: Server,
}

impl Clients {
    pub async fn start(options: &Options, source: &Remote<Kubo>, transport: Transport) -> Result<Self> {
        let peers = [source.multiaddr(transport)];
        Ok(Self {
            kubo: world::client(System::Kubo, options, &peers).await?,
            causeway: world::client(System::Causeway, options, &peers).await?,
        })
    }

    /// The gateway of a system.
    pub fn url(&self, system: System, source: &Remote<Kubo>) -> Result<String> {
        Ok(match system {
            System::Http => source.url(),
            System::Kubo => self.kubo.url.clone(),
            System::Causeway => self.causeway.url.clone(),
            _ => bail!("{system} is not measured here"),
        })
    }
}

pub const SYSTEMS: [System; 3] = [System::Http, System::Kubo, System::Causeway];

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
    fn new(source: &Remote<Kubo>) -> Result<Self> {
        let content = sample::bytes(WARM_UP, 5);
        Ok(Self { path: source.node.add(&content)?, content })
    }

    async fn fetch(&self, gateway: &str) -> Result<()> {
        get(&format!("{gateway}{}", self.path)).await?.of_content(&self.content).map(drop)
    }
}

/// A small file on a connection that has carried a larger one.
pub async fn used(options: &Options, transport: Transport) -> Result<Case> {
    let source = Remote::<Kubo>::start(options, options.link()).await?;
    let clients = Clients::start(options, &source, transport).await?;
    let warm_up = WarmUp::new(&source)?;
    for system in [System::Kubo, System::Causeway] {
        warm_up.fetch(&clients.url(system, &source)?).await?;
    }
    let series = rounds(options.run.rounds() * REPETITIONS, &SYSTEMS, async |system, round| {
        let content = sample::bytes(SMALL, seed(6, system, round));
        let url = format!("{}{}", clients.url(system, &source)?, source.node.add(&content)?);
        let before = source.passed(system, transport);
        let response = get(&url).await?.of_content(&content)?;
        source.check(system, transport, before, content.len())?;
        Ok(response.complete.as_secs_f64())
    });
    let name = format!("1 MiB cold from Kubo on a used connection, {}", transport.name());
    let case = Case::new(name, "s", series.await?);
    let measure = Measure::lower(case.value(System::Causeway), "s").bar("0.25 s", 0.25).aim("0.20 s", 0.20);
    Ok(case.measure(measure).note("HTTP makes a connection each time"))
}

/// A page of one block, two directories down, over an established connection.
pub async fn page(options: &Options, transport: Transport) -> Result<Case> {
    let source = Remote::<Kubo>::start(options, options.link()).await?;
    let clients = Clients::start(options, &source, transport).await?;
    let round_trip = options.link().round_trip().as_secs_f64();
    let series = rounds(options.run.rounds() * REPETITIONS, &SYSTEMS, async |system, round| {
        let content = sample::bytes(PAGE, seed(7, system, round));
        let site = temp_dir("site")?;
        std::fs::create_dir(site.path().join("articles"))?;
        std::fs::write(site.path().join("articles/page.html"), &content)?;
        let root = source.node.add_directory(site.path())?;
        let url = format!("{}{root}/articles/page.html", clients.url(system, &source)?);
        let before = source.passed(system, transport);
        let response = get(&url).await?.of_content(&content)?;
        source.check(system, transport, before, content.len())?;
        Ok(response.first_byte.as_secs_f64() / round_trip)
    });
    let name = format!("first byte of a page in a sub-directory, connected peer, {}", transport.name());
    let case = Case::new(name, "round trips", series.await?);
    let measure =
        Measure::lower(case.value(System::Causeway), "round trips").bar("4.5 round trips", 4.5).aim("3.2", 3.2);
    Ok(case.measure(measure).note("three blocks, each linked from the one before"))
}

/// Some bytes in the middle of a file that is deeper than one level of links.
pub async fn range(options: &Options, transport: Transport) -> Result<Case> {
    let source = Remote::<Kubo>::start(options, options.link()).await?;
    let content = sample::bytes(options.size(HUGE), 8);
    let path = source.node.add(&content)?;
    let depth = depth(&source.node, &path).await? as f64;
    let round_trip = options.link().round_trip().as_secs_f64();
    let warm_up = WarmUp::new(&source)?;
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
