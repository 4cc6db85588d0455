//! Many clients of all gateways of a site ask for one DAG that no gateway has: it is searched for and fetched once.
//!
//! The source is behind a link, which counts what it sends. A delegated router names it as the provider, and counts the
//! searches; there is no DHT.

use super::Options;
use super::gateways::Site;
use super::router::Router;
use crate::comparison::{Case, Measure, Series, System, Turn};
use crate::network::world::socket;
use crate::relay::{Protocol, Relay};
use crate::servers::{Causeway, Setup};
use crate::stats::Latency;
use crate::tiers::world::Content;
use crate::{report, sample};
use anyhow::{Context, Result, ensure};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const GATEWAYS: usize = 4;
const SEED: u64 = 22 << 32;
/// Of look-ups between gateways, as their metric names them.
const RESULTS: [&str; 8] = ["stored", "fetched", "not_stored", "not_found", "busy", "failed", "unavailable", "invalid"];
/// All clients have one address, and the default is 128 for each.
const LIMITS: [(&str, &str); 2] = [("CAUSEWAY_HTTP_MISSES_MAX", "1024"), ("CAUSEWAY_HTTP_CLIENT_MISSES_MAX", "1024")];
/// For all bytes of a response.
const TIMEOUT: Duration = Duration::from_secs(600);

pub async fn measure(options: &Options) -> Result<Vec<Case>> {
    let content = Arc::new(sample::bytes(options.dag_bytes(), SEED));
    let (archive, path) = Content::one(&content)?;
    let link = Relay::bind(Protocol::Tcp, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), options.link_between()).await?;
    let announced = format!("/ip4/127.0.0.1/tcp/{}", link.address().port());
    let flags = [vec!["--dht", "off", "--announce", &announced], options.flags.get()].concat();
    let file = archive.archive();
    let setup = Setup { archive: Some(&file), flags, ..Setup::default() };
    let source = Causeway::start(&options.binaries.causeway, setup).await?;
    let own: Vec<String> = source.listening.iter().filter(|address| **address != announced).cloned().collect();
    link.forward_to(socket(&own, "/tcp/")?);
    let router = Router::start(&source.peer_id, std::slice::from_ref(&announced)).await?;
    let flags = ["--dht", "off", "--router", &router.url];
    let site = Site::start(options, GATEWAYS, &flags, &LIMITS).await?;
    let begun = Instant::now();
    let times = ask(&site, options.clients(), &path, &content).await?;
    let took = begun.elapsed();
    let (sent, searches) = (link.passed().down, router.asked());
    let bytes = content.len() as u64;
    ensure!(sent >= bytes, "{sent} bytes of {bytes} passed the link");
    let clients = times.len();
    let rate = (bytes * clients as u64) as f64 / 1e6 / took.as_secs_f64();
    let mut series = Series::new(System::Causeway);
    series.push(0, Turn { latency: Some(Latency::of(times.into_iter())), ..Turn::from(rate) });
    let size = report::number(bytes as f64 / f64::from(1 << 20));
    let name = format!("{size} MiB cold, {GATEWAYS} gateways × {} clients", options.clients());
    let case = Case::new(name, "MB/s to all clients", vec![series])
        .measure(Measure::lower(sent as f64 / bytes as f64, "× its bytes from the source").bar("1.05 ×", 1.05))
        .measure(Measure::lower(searches as f64, "searches for providers").bar("one", 1.5))
        .note("bytes from the source are those on the link, with the overhead of libp2p")
        .note(format!("what the gateways asked each other for, by result: {}", lookups(&site).await?));
    Ok(vec![case])
}

/// Look-ups of all gateways, by result. Those that are late or busy are why something may be fetched twice.
async fn lookups(site: &Site) -> Result<String> {
    let mut counts = Vec::new();
    for result in RESULTS {
        let mut count = 0.0;
        for gateway in &site.gateways {
            count += gateway.metric(&format!("causeway_site_lookups_total{{result=\"{result}\"}}")).await?;
        }
        counts.push(format!("{result} {count}"));
    }
    Ok(counts.join(", "))
}

/// So many clients at each gateway, all at once. Returns the time of each.
async fn ask(site: &Site, clients: usize, path: &str, content: &Arc<Vec<u8>>) -> Result<Vec<Duration>> {
    let mut asking = JoinSet::new();
    for gateway in &site.gateways {
        for _ in 0..clients {
            asking.spawn(read(gateway.server.at(path), Arc::clone(content)));
        }
    }
    let mut times = Vec::new();
    while let Some(asked) = asking.join_next().await {
        times.push(asked.context("a client's task failed")??);
    }
    Ok(times)
}

/// Compares a response with what is expected as it is received: there are too many to keep.
async fn read(url: String, content: Arc<Vec<u8>>) -> Result<Duration> {
    let client = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build()?;
    let begun = Instant::now();
    let mut response = client.get(&url).send().await?.error_for_status()?;
    let mut rest = content.as_slice();
    while let Some(chunk) = response.chunk().await? {
        rest = rest.strip_prefix(&*chunk).with_context(|| format!("{url}: wrong bytes"))?;
    }
    ensure!(rest.is_empty(), "{url}: {} bytes are missing", rest.len());
    Ok(begun.elapsed())
}
