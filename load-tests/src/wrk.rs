//! One run of `wrk`, the load generator.

use crate::directory::temp_dir;
use crate::stats::Latency;
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// In every run: one thread, because the servers need the other cores; and a longer timeout than the default of two
/// seconds.
pub const ARGUMENTS: [&str; 4] = ["-t1", "--latency", "--timeout", "10s"];

/// What is requested, over how many connections, for how long.
#[derive(Debug, Clone)]
pub struct Load<'a> {
    /// Without a path, and without a slash at the end.
    pub url: &'a str,
    pub paths: Paths<'a>,
    /// "Name: value".
    pub headers: &'a [String],
    pub connections: usize,
    pub seconds: u64,
}

/// Which paths.
#[derive(Debug, Clone, Copy)]
pub enum Paths<'a> {
    One(&'a str),
    List(&'a PathList),
}

/// A list of paths that are requested in order, again and again.
#[derive(Debug)]
pub struct PathList(TempDir);

impl PathList {
    pub fn new<'a>(paths: impl Iterator<Item = &'a str>) -> Result<Self> {
        let dir = temp_dir("drawn")?;
        let mut list = String::new();
        for path in paths {
            writeln!(list, "{path}")?;
        }
        ensure!(!list.is_empty(), "there is no path");
        std::fs::write(dir.path().join("paths"), list)?;
        std::fs::write(dir.path().join("drawn.lua"), include_str!("../wrk/drawn.lua"))?;
        Ok(Self(dir))
    }

    fn dir(&self) -> &Path {
        self.0.path()
    }

    /// The file with a path on each line.
    pub fn file(&self) -> PathBuf {
        self.dir().join("paths")
    }
}

/// The figures of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    pub requests: u64,
    pub requests_per_second: f64,
    /// Heads and bodies, those of unfinished responses included; `wrk` prints three digits.
    pub bytes_read: f64,
    pub latency: Latency,
}

/// Loads a server. Statuses of 400 and above, and broken connections, are an error.
pub fn run(load: &Load<'_>) -> Result<Run> {
    let output = command(load).output().context("wrk does not start; `scripts/install-missing bench` installs it")?;
    let (text, url) = (String::from_utf8_lossy(&output.stdout), load.url);
    ensure!(output.status.success(), "wrk {url}: {text}{}", String::from_utf8_lossy(&output.stderr));
    parse(&text).with_context(|| format!("wrk {url}:\n{text}"))
}

fn command(load: &Load<'_>) -> Command {
    let mut command = Command::new("wrk");
    command.args(ARGUMENTS).arg(format!("-c{}", load.connections)).arg(format!("-d{}s", load.seconds));
    command.args(load.headers.iter().flat_map(|header| ["-H", header.as_str()]));
    match load.paths {
        Paths::One(path) => command.arg(format!("{}{path}", load.url)),
        Paths::List(drawn) => {
            command.arg("-s").arg(drawn.dir().join("drawn.lua")).arg(load.url).arg("--").arg(drawn.file())
        }
    };
    command
}

fn parse(text: &str) -> Result<Run> {
    ensure!(!text.contains("Non-2xx"), "responses with errors");
    ensure!(!text.contains("Socket errors"), "broken connections");
    let after = |key: &str| {
        let found = text.lines().find_map(|line| line.trim().strip_prefix(key));
        found.map(str::trim).with_context(|| format!("no {key:?}"))
    };
    let requests = text.lines().find(|line| line.contains(" requests in ")).context("no number of requests")?;
    let read = requests.rsplit(", ").next().and_then(|read| read.strip_suffix(" read"));
    Ok(Run {
        requests: requests.split_whitespace().next().unwrap_or_default().parse()?,
        bytes_read: bytes(read.context("no number of bytes")?)?,
        requests_per_second: after("Requests/sec:")?.parse()?,
        latency: Latency { median: duration(after("50%")?)?, p99: duration(after("99%")?)? },
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

/// "2.11GB", "312.00B".
fn bytes(text: &str) -> Result<f64> {
    let end = text.find(|c: char| c.is_ascii_alphabetic()).context("a number of bytes without a unit")?;
    let (number, unit) = text.split_at(end);
    let power = ["B", "KB", "MB", "GB", "TB"].iter().position(|known| *known == unit);
    let power = power.with_context(|| format!("{text:?} has an unknown unit"))?;
    Ok(number.parse::<f64>()? * 1024_f64.powi(i32::try_from(power)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "Running 5s test @ http://127.0.0.1:8080/\n  1 threads and 32 connections\n  \
        Thread Stats   Avg      Stdev     Max   +/- Stdev\n    Latency   303.59us  100.44us   5.24ms   91.68%\n    \
        Req/Sec   103.59k     4.01k  110.67k    74.00%\n  Latency Distribution\n     50%  288.00us\n     75%  \
        320.00us\n     90%  377.00us\n     99%    1.25ms\n  515329 requests in 5.00s, 2.11GB read\nRequests/sec: \
        103061.33\n\
        Transfer/sec:    432.41MB\n";

    #[test]
    fn a_run_is_read() {
        let run = parse(OUTPUT).expect("this is what wrk prints");
        assert_eq!((run.requests, run.requests_per_second), (515_329, 103_061.33));
        let (median, p99) = (Duration::from_micros(288), Duration::from_micros(1250));
        assert_eq!(run.latency, Latency { median, p99 });
        assert_eq!(run.bytes_read, 2.11 * 1024.0 * 1024.0 * 1024.0);
    }

    #[test]
    fn bytes_have_units_of_1024() {
        for (text, expected) in [("312.00B", Some(312.0)), ("1.50KB", Some(1536.0)), ("7.00XB", None), ("7", None)] {
            assert_eq!(bytes(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn a_list_is_requested_by_the_script() {
        let drawn = PathList::new(["/a", "/b", "/a"].into_iter()).expect("the temporary directory is writable");
        let list = std::fs::read_to_string(drawn.dir().join("paths")).expect("it was written");
        assert_eq!(list, "/a\n/b\n/a\n");
        let headers = ["Accept-Encoding: zstd".to_owned()];
        let load =
            Load { url: "http://[::1]:80", paths: Paths::List(&drawn), headers: &headers, connections: 7, seconds: 3 };
        let command = command(&load);
        let arguments: Vec<&str> = command.get_args().filter_map(|argument| argument.to_str()).collect();
        let script = drawn.dir().join("drawn.lua").display().to_string();
        let paths = drawn.dir().join("paths").display().to_string();
        let expected = ["-c7", "-d3s", "-H", "Accept-Encoding: zstd", "-s", &script, "http://[::1]:80", "--", &paths];
        assert_eq!(arguments[ARGUMENTS.len()..], expected);
        assert!(PathList::new(std::iter::empty()).is_err());
    }

    #[test]
    fn responses_with_errors_are_no_result() {
        assert!(parse(&format!("{OUTPUT}  Non-2xx or 3xx responses: 4\n")).is_err());
        assert!(parse("").is_err());
    }
}
