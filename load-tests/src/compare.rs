//! The comparison of what is cold: a file through a fresh node that has to fetch it. What is held already, hot or on disk, is
//! compared by [`mod@crate::tiers`].

use crate::Options;
use crate::fetch::{Times, get};
use crate::median::median_duration;
use crate::sample;
use crate::servers::{self, Kubo, Server, Transport};
use anyhow::{Result, ensure};
use std::time::Duration;

/// Everything that was measured.
pub struct Figures {
    pub cold: Vec<Cold>,
    pub cold_bytes: usize,
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
    let source = Kubo::start(&options.binaries.kubo).await?;
    let cold = cold(options, &source).await?;
    Ok(Figures { cold, cold_bytes: options.cold_bytes() })
}

async fn cold(options: &Options, source: &Kubo) -> Result<Vec<Cold>> {
    let content = sample::bytes(options.cold_bytes(), options.cold_bytes() as u64);
    let path = source.add(&content)?;
    let mut figures = Vec::new();
    for transport in [Transport::Tcp, Transport::Quic] {
        let (mut causeway, mut kubo) = (Vec::new(), Vec::new());
        for round in 0..options.run.rounds() {
            let ours = async || {
                let server = servers::causeway(&options.binaries.causeway, source.multiaddr(transport)?).await?;
                cold_get(&server, &path, &content).await
            };
            let theirs = async || {
                let client = Kubo::start(&options.binaries.kubo).await?;
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
    for _ in 0..options.run.rounds() {
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
