//! One run of `h2load`, the load generator for HTTP/2.

use crate::wrk::PathList;
use anyhow::{Context, Result, ensure};
use std::process::Command;

/// In every run: one thread, as of `wrk`.
pub const ARGUMENTS: [&str; 2] = ["-t1", "--warm-up-time=0"];

/// Over how many connections, with how many streams on each, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Load<'a> {
    /// Without a slash at the end.
    pub url: &'a str,
    pub paths: &'a PathList,
    pub connections: usize,
    pub streams: usize,
    pub seconds: u64,
}

/// The figures of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub requests: u64,
    pub requests_per_second: f64,
    /// Bytes of bodies, those of unfinished responses included.
    pub body_bytes: u64,
    /// The version of TLS and the cipher.
    pub encryption: String,
}

/// Loads a server over HTTP/2. Statuses of 300 and above, and requests that fail, are an error.
pub fn run(load: &Load<'_>) -> Result<Run> {
    let output =
        command(load).output().context("h2load does not start; `scripts/install-missing bench` installs it")?;
    let (text, url) = (String::from_utf8_lossy(&output.stdout), load.url);
    ensure!(output.status.success(), "h2load {url}: {text}{}", String::from_utf8_lossy(&output.stderr));
    parse(&text).with_context(|| format!("h2load {url}:\n{text}"))
}

fn command(load: &Load<'_>) -> Command {
    let mut command = Command::new("h2load");
    command.args(ARGUMENTS).arg(format!("-c{}", load.connections)).arg(format!("-m{}", load.streams));
    command.arg(format!("-D{}", load.seconds)).arg("-i").arg(load.paths.file()).arg(format!("--base-uri={}", load.url));
    command
}

fn parse(text: &str) -> Result<Run> {
    let after = |key: &str| {
        let found = text.lines().find_map(|line| line.trim().strip_prefix(key));
        found.map(str::trim).with_context(|| format!("no {key:?}"))
    };
    ensure!(after("Application protocol:")? == "h2", "not over HTTP/2");
    // "5.00s, 51234.20 req/s, 210.40MB/s".
    let rate = after("finished in ")?.split(", ").find_map(|part| part.strip_suffix(" req/s"));
    let count = |list: &str, what: &str| -> Result<u64> {
        let found = list.split(", ").find_map(|part| part.strip_suffix(what)?.trim().parse().ok());
        found.with_context(|| format!("no number of {what:?} in {list:?}"))
    };
    let (requests, statuses) = (after("requests:")?, after("status codes:")?);
    let done = count(requests, "done")?;
    ensure!(count(requests, "failed")? == 0 && count(requests, "errored")? == 0, "requests failed: {requests}");
    ensure!(count(statuses, "2xx")? >= done, "responses with errors: {statuses}");
    // "1.05GB (1129384931) total, 23.51MB (24645) headers (space savings 80.00%), 1.02GB (1049276416) data".
    let data = after("traffic:")?.rsplit(", ").next().and_then(|data| data.split_once('(')?.1.split_once(')'));
    Ok(Run {
        requests: done,
        requests_per_second: rate.context("no rate")?.parse()?,
        body_bytes: data.context("no bytes of data")?.0.parse()?,
        encryption: format!("{}, {}", after("TLS Protocol:")?, after("Cipher:")?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "starting benchmark...\nspawning thread #0: 8 total client(s). Timing-based test with 0s of \
        warm-up time and 5s of main duration for measurements.\nWarm-up started for thread #0.\n\
        TLS Protocol: TLSv1.3\nCipher: TLS_AES_256_GCM_SHA384\nServer Temp Key: X25519 253 bits\n\
        Application protocol: h2\n\nfinished in 5.00s, 51234.20 req/s, 210.40MB/s\n\
        requests: 256171 total, 256427 started, 256171 done, 256171 succeeded, 0 failed, 0 errored, 0 timeout\n\
        status codes: 256171 2xx, 0 3xx, 0 4xx, 0 5xx\n\
        traffic: 1.02GB (1093839234) total, 23.51MB (24652186) headers (space savings 80.00%), 1001.06MB \
        (1049276416) data\n";

    #[test]
    fn a_run_is_read() {
        let run = parse(OUTPUT).expect("this is what h2load prints");
        assert_eq!((run.requests, run.requests_per_second, run.body_bytes), (256_171, 51_234.2, 1_049_276_416));
        assert_eq!(run.encryption, "TLSv1.3, TLS_AES_256_GCM_SHA384");
    }

    #[test]
    fn responses_with_errors_are_no_result() {
        let changes = [
            ("0 failed", "4 failed"),
            ("0 errored", "4 errored"),
            ("256171 2xx", "256100 2xx"),
            ("protocol: h2", "protocol: http/1.1"),
        ];
        for (from, to) in changes {
            assert!(OUTPUT.contains(from) && parse(&OUTPUT.replace(from, to)).is_err(), "{to}");
        }
        assert!(parse("").is_err());
    }
}
