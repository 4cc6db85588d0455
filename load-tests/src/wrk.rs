//! One run of `wrk`, the load generator.

use anyhow::{Context, Result, ensure};
use std::process::Command;
use std::time::Duration;

/// What `make bench` uses: one thread, because the servers need the other cores.
pub const ARGUMENTS: [&str; 3] = ["-t1", "-c32", "--latency"];

/// What one run found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    pub requests: u64,
    pub requests_per_second: f64,
    pub p50: Duration,
    pub p99: Duration,
}

/// Loads a URL. Answers other than 2xx and broken connections are an error.
pub fn run(url: &str, duration: Duration) -> Result<Run> {
    let seconds = format!("-d{}s", duration.as_secs());
    let output = Command::new("wrk").args(ARGUMENTS).args([&seconds, url]).output();
    let output = output.context("wrk does not start; `make bench` installs it")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "wrk {url}: {text}{}", String::from_utf8_lossy(&output.stderr));
    parse(&text).with_context(|| format!("wrk {url}:\n{text}"))
}

fn parse(text: &str) -> Result<Run> {
    ensure!(!text.contains("Non-2xx"), "answers with errors");
    ensure!(!text.contains("Socket errors"), "broken connections");
    let after = |key: &str| {
        let found = text.lines().find_map(|line| line.trim().strip_prefix(key));
        found.map(str::trim).with_context(|| format!("no {key:?}"))
    };
    let requests = text.lines().find(|line| line.contains(" requests in ")).context("no number of requests")?;
    Ok(Run {
        requests: requests.split_whitespace().next().unwrap_or_default().parse()?,
        requests_per_second: after("Requests/sec:")?.parse()?,
        p50: duration(after("50%")?)?,
        p99: duration(after("99%")?)?,
    })
}

/// "1.27ms", "312.00us", "1.01s", "2.00m".
fn duration(text: &str) -> Result<Duration> {
    let end = text.find(|c: char| c.is_ascii_alphabetic()).context("a duration without a unit")?;
    let (number, unit) = text.split_at(end);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => anyhow::bail!("{text:?} has an unknown unit"),
    };
    Ok(Duration::from_secs_f64(number.parse::<f64>()? * seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "Running 5s test @ http://127.0.0.1:8080/\n  1 threads and 32 connections\n  \
        Thread Stats   Avg      Stdev     Max   +/- Stdev\n    Latency   303.59us  100.44us   5.24ms   91.68%\n    \
        Req/Sec   103.59k     4.01k  110.67k    74.00%\n  Latency Distribution\n     50%  288.00us\n     75%  320.00us\n     \
        90%  377.00us\n     99%    1.25ms\n  515329 requests in 5.00s, 2.11GB read\nRequests/sec: 103061.33\n\
        Transfer/sec:    432.41MB\n";

    #[test]
    fn a_run_is_read() {
        let run = parse(OUTPUT).expect("this is what wrk prints");
        assert_eq!((run.requests, run.requests_per_second), (515_329, 103_061.33));
        assert_eq!((run.p50, run.p99), (Duration::from_micros(288), Duration::from_micros(1250)));
    }

    #[test]
    fn answers_with_errors_are_no_result() {
        assert!(parse(&format!("{OUTPUT}  Non-2xx or 3xx responses: 4\n")).is_err());
        assert!(parse("").is_err());
    }
}
