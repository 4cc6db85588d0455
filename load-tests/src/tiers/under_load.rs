//! Servers that take turns under the load of `wrk`.

use super::Options;
use super::figures::{Series, Turn, Who};
use crate::rounds::rotated;
use crate::servers::Server;
use crate::wrk::{self, Asked, Load, Run};
use anyhow::{Context, Result, ensure};

/// Every server's heads are smaller.
const HEAD_BYTES_MAX: u64 = 2048;
/// `wrk` prints three digits of what it has read, and may have it cut off.
const ROUNDING: f64 = 0.02;

/// A server, and what it is asked for.
pub struct Participant<'a> {
    pub who: Who,
    pub server: &'a Server,
    pub asked: Asked<'a>,
    /// "Name: value".
    pub headers: Vec<String>,
    /// Bytes of the body of each answer, if they all have as many.
    pub body_bytes: Option<u64>,
}

/// Every participant once a round, in rotated order.
pub fn rounds(options: &Options, connections: usize, participants: &[Participant<'_>]) -> Result<Vec<Series>> {
    let mut all: Vec<Series> = participants.iter().map(|participant| Series::new(participant.who)).collect();
    for (round, index) in rotated(options.run.rounds(), participants.len()) {
        let turn = turn(options, connections, &participants[index])?;
        let who = all[index].who;
        eprintln!("  round {}: {who} {:.0}/s, {:.1} µs", round + 1, turn.rate, turn.cpu_microseconds);
        all[index].turns.push(turn);
    }
    Ok(all)
}

fn turn(options: &Options, connections: usize, participant: &Participant<'_>) -> Result<Turn> {
    let Participant { who, server, asked, headers, body_bytes } = participant;
    let load = Load { url: &server.url, asked: *asked, headers, connections, duration: options.duration() };
    let cpu = server.process.cpu();
    let run = wrk::run(&load).with_context(|| who.to_string())?;
    let cpu = server.process.cpu().saturating_sub(cpu);
    if let Some(bytes) = body_bytes {
        check(&run, *bytes, connections).with_context(|| who.to_string())?;
    }
    let cpu_microseconds = cpu.as_secs_f64() * 1e6 / run.requests.max(1) as f64;
    Ok(Turn { rate: run.requests_per_second, cpu_microseconds, latency: Some([run.p50, run.p99]) })
}

/// Whether as much came as so many answers have: `wrk` looks at no body, and takes any status below 400.
fn check(run: &Run, body_bytes: u64, connections: usize) -> Result<()> {
    ensure!(run.requests > 0, "nothing was answered");
    let least = run.requests as f64 * body_bytes as f64 * (1.0 - ROUNDING);
    let answers = run.requests as f64 + connections as f64;
    let most = answers * (body_bytes + HEAD_BYTES_MAX) as f64 * (1.0 + ROUNDING);
    let (read, requests) = (run.bytes_read, run.requests);
    ensure!(
        (least..=most).contains(&read),
        "{requests} answers with bodies of {body_bytes} bytes cannot be {read:.0} bytes"
    );
    Ok(())
}

#[test]
fn answers_of_another_size_are_noticed() {
    use std::time::Duration;
    let check = |requests, bytes_read, body_bytes| {
        let run = Run { requests, requests_per_second: 1.0, bytes_read, p50: Duration::ZERO, p99: Duration::ZERO };
        check(&run, body_bytes, 32).is_ok()
    };
    assert!(check(1000, 664_500_000.0, 664_000));
    assert!(check(1000, 664_500_000.0 + 31.0 * 664_000.0, 664_000), "others were under way");
    assert!(!check(1000, 400_000_000.0, 664_000), "cut off, or compressed");
    assert!(check(1000, 300_000.0, 0), "304 has only a head");
    assert!(!check(1000, 4_396_000.0, 0), "200 and a body of 4 KiB");
    assert!(!check(0, 0.0, 0));
}
