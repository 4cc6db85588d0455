//! Servers that take turns under the load of `wrk`.

use super::Options;
use crate::comparison::{self, Series, System, Turn};
use crate::servers::Server;
use crate::wrk::{self, Load, Paths, Run};
use anyhow::{Context, Result, ensure};

/// Every server's heads are smaller.
const HEAD_BYTES_MAX: u64 = 2048;
/// `wrk` prints three digits of what it has read, and may have it cut off.
const ROUNDING: f64 = 0.02;

/// A server, and what is requested from it.
pub struct Target<'a> {
    pub system: System,
    pub server: &'a Server,
    /// Without a slash at the end.
    pub url: &'a str,
    pub paths: Paths<'a>,
    /// "Name: value".
    pub headers: Vec<String>,
    /// Bytes of each response's body, if they are all of one size.
    pub body_bytes: Option<u64>,
}

impl<'a> Target<'a> {
    pub fn new(system: System, server: &'a Server, paths: Paths<'a>, body_bytes: Option<u64>) -> Self {
        Self { system, server, url: &server.url, paths, headers: Vec::new(), body_bytes }
    }
}

/// Every target once in each round, in rotated order.
pub async fn rounds(options: &Options, connections: usize, targets: &[Target<'_>]) -> Result<Vec<Series>> {
    let systems: Vec<System> = targets.iter().map(|target| target.system).collect();
    comparison::rounds(options.run.rounds(), &systems, async |system, _| {
        let target = targets.iter().find(|target| target.system == system).context("a system without a target")?;
        turn(options, connections, target)
    })
    .await
}

fn turn(options: &Options, connections: usize, target: &Target<'_>) -> Result<Turn> {
    let Target { server, url, paths, headers, body_bytes, .. } = target;
    let load = Load { url, paths: *paths, headers, connections, seconds: options.seconds };
    let cpu = server.process.cpu();
    let run = wrk::run(&load)?;
    let cpu = server.process.cpu().saturating_sub(cpu);
    if let Some(bytes) = body_bytes {
        check(&run, *bytes, connections)?;
    }
    let cpu_microseconds = cpu.as_secs_f64() * 1e6 / run.requests.max(1) as f64;
    Ok(Turn { value: run.requests_per_second, cpu_microseconds, latency: Some(run.latency) })
}

/// Whether as many bytes were received as so many responses have: `wrk` does not look at bodies, and accepts any status
/// below 400.
fn check(run: &Run, body_bytes: u64, connections: usize) -> Result<()> {
    ensure!(run.requests > 0, "there was no response");
    let least = run.requests as f64 * body_bytes as f64 * (1.0 - ROUNDING);
    let responses = run.requests as f64 + connections as f64;
    let most = responses * (body_bytes + HEAD_BYTES_MAX) as f64 * (1.0 + ROUNDING);
    let (read, requests) = (run.bytes_read, run.requests);
    ensure!(
        (least..=most).contains(&read),
        "{requests} responses with bodies of {body_bytes} bytes cannot be {read:.0} bytes"
    );
    Ok(())
}

#[test]
fn responses_of_another_size_are_noticed() {
    use crate::stats::Latency;
    let check = |requests, bytes_read, body_bytes| {
        let run = Run { requests, requests_per_second: 1.0, bytes_read, latency: Latency::default() };
        check(&run, body_bytes, 32).is_ok()
    };
    assert!(check(1000, 664_500_000.0, 664_000));
    assert!(check(1000, 664_500_000.0 + 31.0 * 664_000.0, 664_000), "others were under way");
    assert!(!check(1000, 400_000_000.0, 664_000), "cut off, or compressed");
    assert!(check(1000, 300_000.0, 0), "304 has only a head");
    assert!(!check(1000, 4_396_000.0, 0), "200 and a body of 4 KiB");
    assert!(!check(0, 0.0, 0));
}
