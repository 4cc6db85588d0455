//! The comparison: hot files under load from every server, and a cold file through a fresh node.

use crate::Options;
use crate::fetch::{Times, get};
use crate::median::{median, median_duration};
use crate::sample;
use crate::servers::{self, Kubo, Server, Transport};
use crate::wrk;
use anyhow::{Result, ensure};
use std::time::Duration;

/// A small object, and the median object that public gateways serve (in bytes).
const HOT: [(&str, usize); 2] = [("4 KiB", 4096), ("664 KB", 664_000)];

/// Everything that was measured.
pub struct Figures {
    pub hot: Vec<Hot>,
    pub cold: Vec<Cold>,
    pub cold_bytes: usize,
}

/// One server under load with one file. Every field is the median of the rounds.
#[derive(Debug, Clone)]
pub struct Hot {
    pub file: &'static str,
    pub server: &'static str,
    pub requests_per_second: f64,
    /// Requests a second of each round, in order.
    pub rounds: Vec<f64>,
    pub cpu_microseconds_per_request: f64,
    pub p50: Duration,
    pub p99: Duration,
}

/// One way to get a file that is not at hand. Every duration is the median of the rounds.
#[derive(Debug, Clone)]
pub struct Cold {
    pub server: &'static str,
    pub transport: &'static str,
    pub first_byte: Duration,
    pub complete: Duration,
    /// Time to the last byte of each round, in order.
    pub rounds: Vec<Duration>,
    /// CPU time of the server that was asked, without the source's.
    pub cpu: Duration,
}

/// Measures everything.
pub async fn run(options: &Options) -> Result<Figures> {
    let source = Kubo::start(&options.kubo).await?;
    let hot = hot(options, &source).await?;
    let cold = cold(options, &source).await?;
    Ok(Figures { hot, cold, cold_bytes: options.cold_bytes() })
}

async fn hot(options: &Options, source: &Kubo) -> Result<Vec<Hot>> {
    let causeway = servers::causeway(&options.causeway, source.multiaddr(Transport::Tcp)?).await?;
    let nginx = servers::nginx(&source.server.url).await?;
    let servers = [&causeway, &nginx, &source.server];
    let mut figures = Vec::new();
    for (file, len) in HOT {
        let content = sample::bytes(len, len as u64);
        let path = source.add(&content)?;
        for server in servers {
            // Twice: the first answer fills caches, the second shows that what they hold is right.
            for _ in 0..2 {
                let (_, body) = get(&format!("{}{path}", server.url)).await?;
                ensure!(body == content, "{}: wrong bytes of {path}", server.name);
            }
        }
        figures.extend(rotated_rounds(options, file, &path, &servers)?);
    }
    Ok(figures)
}

/// Every server once a round; each round begins with another one.
fn rotated_rounds(options: &Options, file: &'static str, path: &str, servers: &[&Server]) -> Result<Vec<Hot>> {
    let mut runs: Vec<Vec<(wrk::Run, f64)>> = vec![Vec::new(); servers.len()];
    for round in 0..options.rounds() {
        for turn in 0..servers.len() {
            let index = (round + turn) % servers.len();
            let server = servers[index];
            let cpu = server.process.cpu();
            let run = wrk::run(&format!("{}{path}", server.url), options.duration())?;
            let microseconds = (server.process.cpu() - cpu).as_secs_f64() * 1e6 / run.requests.max(1) as f64;
            eprintln!("{file}, round {}: {} {:.0}/s", round + 1, server.name, run.requests_per_second);
            runs[index].push((run, microseconds));
        }
    }
    let hot = |(server, runs): (&&Server, Vec<(wrk::Run, f64)>)| Hot {
        file,
        server: server.name,
        requests_per_second: median(runs.iter().map(|(run, _)| run.requests_per_second)),
        rounds: runs.iter().map(|(run, _)| run.requests_per_second).collect(),
        cpu_microseconds_per_request: median(runs.iter().map(|(_, microseconds)| *microseconds)),
        p50: median_duration(runs.iter().map(|(run, _)| run.p50)),
        p99: median_duration(runs.iter().map(|(run, _)| run.p99)),
    };
    Ok(servers.iter().zip(runs).map(hot).collect())
}

async fn cold(options: &Options, source: &Kubo) -> Result<Vec<Cold>> {
    let content = sample::bytes(options.cold_bytes(), options.cold_bytes() as u64);
    let path = source.add(&content)?;
    let mut figures = Vec::new();
    for transport in [Transport::Tcp, Transport::Quic] {
        let (mut causeway, mut kubo) = (Vec::new(), Vec::new());
        for round in 0..options.rounds() {
            let ours = async || {
                let server = servers::causeway(&options.causeway, source.multiaddr(transport)?).await?;
                cold_get(&server, &path, &content).await
            };
            let theirs = async || {
                let client = Kubo::start(&options.kubo).await?;
                client.connect(source.multiaddr(transport)?).await?;
                cold_get(&client.server, &path, &content).await
            };
            if round % 2 == 0 {
                causeway.push(ours().await?);
                kubo.push(theirs().await?);
            } else {
                kubo.push(theirs().await?);
                causeway.push(ours().await?);
            }
        }
        figures.push(summary("Causeway", transport.name(), causeway));
        figures.push(summary("Kubo", transport.name(), kubo));
    }
    // What the same bytes cost over plain HTTP from the node that has them: the bound that the others are measured by.
    let mut plain = Vec::new();
    for _ in 0..options.rounds() {
        plain.push(cold_get(&source.server, &path, &content).await?);
    }
    figures.push(summary("Kubo, which holds it", "HTTP", plain));
    Ok(figures)
}

/// Times and CPU of one cold GET.
struct ColdRun {
    times: Times,
    cpu: Duration,
}

async fn cold_get(server: &Server, path: &str, content: &[u8]) -> Result<ColdRun> {
    let cpu = server.process.cpu();
    let (times, body) = get(&format!("{}{path}", server.url)).await?;
    let cpu = server.process.cpu() - cpu;
    // After the clock has stopped.
    ensure!(body == content, "{}: wrong bytes of {path}", server.name);
    eprintln!("cold: {} {:.2} s", server.name, times.complete.as_secs_f64());
    Ok(ColdRun { times, cpu })
}

fn summary(server: &'static str, transport: &'static str, runs: Vec<ColdRun>) -> Cold {
    Cold {
        server,
        transport,
        first_byte: median_duration(runs.iter().map(|run| run.times.first_byte)),
        complete: median_duration(runs.iter().map(|run| run.times.complete)),
        rounds: runs.iter().map(|run| run.times.complete).collect(),
        cpu: median_duration(runs.iter().map(|run| run.cpu)),
    }
}
