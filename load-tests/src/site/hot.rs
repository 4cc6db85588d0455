//! Hits in memory at a gateway of a site, and at one that is alone: what a site costs there, which should be nothing.

use super::Options;
use super::gateways::Site;
use crate::comparison::{Case, System, Turn, rounds};
use crate::http::Client;
use crate::servers::{Causeway, Server, Setup};
use crate::tiers::hot::by_zipf;
use crate::tiers::world::Content;
use crate::wrk::{self, Load, PathList, Paths};
use anyhow::{Result, ensure};

const URLS: usize = 1_000;
const BYTES: u64 = 4_096;
const CONNECTIONS: usize = 32;
const SEED: u64 = 24;
const GATEWAYS: usize = 2;
/// The two differ by less than the machine's noise.
const REPETITIONS: usize = 3;

pub async fn measure(options: &Options) -> Result<Vec<Case>> {
    let urls = if options.run.quick { 50 } else { URLS };
    let content = Content::make(SEED, std::iter::repeat_n(BYTES, urls))?;
    let site = Site::start(options, GATEWAYS, &[], &[]).await?;
    let setup = Setup { flags: options.flags.get(), ..Setup::default() };
    let alone = Causeway::start(&options.binaries.causeway, setup).await?;
    let [member, ..] = site.gateways.as_slice() else { anyhow::bail!("no gateway") };
    for node in [member, &alone] {
        node.import(&content.archive())?;
        warm_up(&node.server, &content).await?;
    }
    let paths = by_zipf(SEED, &content.files)?;
    let systems = [System::Causeway, System::Alone];
    let series = rounds(options.run.rounds() * REPETITIONS, &systems, async |system, _| {
        let node = if system == System::Alone { &alone } else { member };
        turn(&node.server, &paths, options.seconds())
    });
    let name = format!("hot 4 KiB at a gateway of a site, {urls} URLs by Zipf, {CONNECTIONS} connections");
    let case = Case::new(name, "requests/s", series.await?);
    let ratio = case.against(System::Alone).bar("0.98 ×", 0.98);
    Ok(vec![case.measure(ratio).note("the two take turns, and each begins every second round")])
}

/// Twice, so that the second response is a cached one.
async fn warm_up(server: &Server, content: &Content) -> Result<()> {
    let client = Client::new()?;
    for file in content.files.iter().chain(&content.files) {
        client.get(&server.at(&file.path)).await?.of_content(&file.content()?)?;
    }
    Ok(())
}

fn turn(server: &Server, paths: &PathList, seconds: u64) -> Result<Turn> {
    let load = Load { url: &server.url, paths: Paths::List(paths), headers: &[], connections: CONNECTIONS, seconds };
    let cpu = server.process.cpu();
    let run = wrk::run(&load)?;
    let cpu = server.process.cpu().saturating_sub(cpu);
    ensure!(run.requests > 0 && run.bytes_read >= 0.98 * run.requests as f64 * BYTES as f64, "responses are too short");
    let cpu_microseconds = cpu.as_secs_f64() * 1e6 / run.requests as f64;
    Ok(Turn { value: run.requests_per_second, cpu_microseconds, latency: Some(run.latency) })
}
