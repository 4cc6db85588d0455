//! First bytes, in round trips: a page in a sub-directory, a range deep in a file; and a small file on a used connection.

use super::Options;
use super::figures::{Rounds, Row, Who};
use super::world::{self, Far};
use crate::fetch::{get, get_range};
use crate::goals::Goal;
use crate::sample;
use crate::servers::{Kubo, Server, Transport};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

/// Fetched before the clock starts, so that a connection is used: its windows are open.
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
    pub async fn start(options: &Options, source: &Far<Kubo>, transport: Transport) -> Result<Self> {
        let peers = [source.multiaddr(transport)];
        Ok(Self {
            kubo: world::client(Who::Kubo, options, &peers).await?,
            causeway: world::client(Who::Causeway, options, &peers).await?,
        })
    }

    /// Whose gateway is asked.
    pub fn url(&self, who: Who, source: &Far<Kubo>) -> Result<String> {
        Ok(match who {
            Who::Http => source.url(),
            Who::Kubo => self.kubo.url.clone(),
            Who::Causeway => self.causeway.url.clone(),
            Who::Ceiling | Who::OneSource => bail!("{who} takes no part"),
        })
    }
}

const RIVALS: [Who; 3] = [Who::Http, Who::Kubo, Who::Causeway];

/// A number that names the content of one measurement.
fn seed(row: u64, who: Who, round: usize) -> u64 {
    row << 32 | (who as u64) << 16 | round as u64
}

/// A larger file that a client fetches first.
struct WarmUp {
    path: String,
    content: Vec<u8>,
}

impl WarmUp {
    fn new(source: &Far<Kubo>) -> Result<Self> {
        let content = sample::bytes(WARM_UP, 5);
        Ok(Self { path: source.node.add(&content)?, content })
    }

    async fn fetch(&self, gateway: &str) -> Result<()> {
        let body = get(&format!("{gateway}{}", self.path)).await?.1;
        ensure!(body == self.content, "{gateway}: wrong bytes");
        Ok(())
    }
}

/// A small file on a connection that has carried a larger one.
pub async fn used(options: &Options, transport: Transport) -> Result<Row> {
    let source = Far::<Kubo>::start(options, options.link()).await?;
    let clients = Clients::start(options, &source, transport).await?;
    let warm_up = WarmUp::new(&source)?;
    for who in [Who::Kubo, Who::Causeway] {
        warm_up.fetch(&clients.url(who, &source)?).await?;
    }
    let rounds = Rounds::measure(options.run.rounds() * REPETITIONS, &RIVALS, async |who, round| {
        let content = sample::bytes(SMALL, seed(6, who, round));
        let url = format!("{}{}", clients.url(who, &source)?, source.node.add(&content)?);
        let before = source.passed(who, transport);
        let (times, body) = get(&url).await?;
        ensure!(body == content, "{who}: wrong bytes");
        source.check(who, transport, before, content.len())?;
        Ok(times.complete.as_secs_f64())
    });
    let rounds = rounds.await?;
    Ok(Row {
        case: format!("1 MiB cold from Kubo on a used connection, {}", transport.name()),
        unit: "s",
        measured: rounds.of(Who::Causeway),
        measured_unit: "s",
        higher_is_better: false,
        bar: Goal::new("0.25 s", 0.25),
        aim: Goal::new("0.20 s", 0.20),
        notes: vec!["HTTP makes a connection each time".to_owned()],
        series: rounds.0,
    })
}

/// A page of one block, two directories down, over a connection that is there.
pub async fn page(options: &Options, transport: Transport) -> Result<Row> {
    let source = Far::<Kubo>::start(options, options.link()).await?;
    let clients = Clients::start(options, &source, transport).await?;
    let round_trip = options.link().round_trip().as_secs_f64();
    let rounds = Rounds::measure(options.run.rounds() * REPETITIONS, &RIVALS, async |who, round| {
        let content = sample::bytes(PAGE, seed(7, who, round));
        let site = TempDir::with_prefix("causeway-bench-site-")?;
        std::fs::create_dir(site.path().join("articles"))?;
        std::fs::write(site.path().join("articles/page.html"), &content)?;
        let root = source.node.add_folder(site.path())?;
        let url = format!("{}{root}/articles/page.html", clients.url(who, &source)?);
        let before = source.passed(who, transport);
        let (times, body) = get(&url).await?;
        ensure!(body == content, "{who}: wrong bytes");
        source.check(who, transport, before, content.len())?;
        Ok(times.first_byte.as_secs_f64() / round_trip)
    });
    let rounds = rounds.await?;
    Ok(Row {
        case: format!("first byte of a page in a sub-directory, connected peer, {}", transport.name()),
        unit: "round trips",
        measured: rounds.of(Who::Causeway),
        measured_unit: "round trips",
        higher_is_better: false,
        bar: Goal::new("4.5 round trips", 4.5),
        aim: Goal::new("3.2", 3.2),
        notes: vec!["three blocks, each named by the one before".to_owned()],
        series: rounds.0,
    })
}

/// Some bytes in the middle of a file that is deeper than one level of links.
pub async fn range(options: &Options, transport: Transport) -> Result<Row> {
    let source = Far::<Kubo>::start(options, options.link()).await?;
    let content = sample::bytes(options.size(HUGE), 8);
    let path = source.node.add(&content)?;
    let depth = depth(&source.node, &path).await? as f64;
    let round_trip = options.link().round_trip().as_secs_f64();
    let warm_up = WarmUp::new(&source)?;
    let first = content.len() / 3 * 2 + 12_345;
    let range = first..=first + 9_999;
    let rounds = Rounds::measure(options.run.rounds(), &RIVALS, async |who, _| {
        // The file is too large to be made anew each time; the client is.
        let client = match who {
            Who::Http => None,
            client => Some(world::client(client, options, &[source.multiaddr(transport)]).await?),
        };
        let url = client.as_ref().map_or_else(|| source.url(), |client| client.url.clone());
        if client.is_some() {
            warm_up.fetch(&url).await?;
        }
        let before = source.passed(who, transport);
        let (times, body) = get_range(&format!("{url}{path}"), range.clone()).await?;
        ensure!(body == content[range.clone()], "{who}: wrong bytes");
        source.check(who, transport, before, body.len())?;
        Ok(times.first_byte.as_secs_f64() / round_trip)
    });
    let rounds = rounds.await?;
    Ok(Row {
        case: format!("first byte of a range deep in a cold file of {} MiB, {}", content.len() >> 20, transport.name()),
        unit: "round trips",
        measured: rounds.of(Who::Causeway),
        measured_unit: "round trips",
        higher_is_better: false,
        bar: Goal::new(format!("depth + 2 = {}", depth + 2.0), depth + 2.0),
        aim: Goal::new("depth + 1.2", depth + 1.2),
        notes: vec![format!(
            "depth {depth}: that many blocks, each named by the one before; the connection has carried another file"
        )],
        series: rounds.0,
    })
}

/// Blocks on the way from the root to a leaf, both counted.
async fn depth(kubo: &Kubo, path: &str) -> Result<usize> {
    let mut at = path.trim_start_matches("/ipfs/").to_owned();
    for depth in 1..=16 {
        let answer = kubo.call("refs", &at).await?;
        let Some(line) = answer.lines().next() else { return Ok(depth) };
        let line: Value = serde_json::from_str(line)?;
        at = line["Ref"].as_str().context("no Ref in what refs says")?.to_owned();
    }
    bail!("{path} is too deep to be a file")
}
