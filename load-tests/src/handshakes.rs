//! One run of `openssl s_time`: connections that end after a full TLS handshake.

use anyhow::{Context, Result, ensure};
use std::process::Command;
use std::time::Instant;

/// In every run: new sessions only.
pub const ARGUMENTS: [&str; 3] = ["s_time", "-new", "-tls1_3"];

/// The figures of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    pub handshakes: u64,
    pub per_second: f64,
}

/// Shakes hands with a server again and again, one connection at a time.
pub fn run(url: &str, seconds: u64) -> Result<Run> {
    let begun = Instant::now();
    let mut command = Command::new("openssl");
    command.args(ARGUMENTS).args(["-connect", url.trim_start_matches("https://"), "-time", &seconds.to_string()]);
    let output = command.output().context("openssl does not start; `scripts/install-missing bench` installs it")?;
    let (text, elapsed) = (String::from_utf8_lossy(&output.stdout), begun.elapsed());
    ensure!(output.status.success(), "openssl {url}: {text}{}", String::from_utf8_lossy(&output.stderr));
    let handshakes = parse(&text).with_context(|| format!("openssl {url}:\n{text}"))?;
    Ok(Run { handshakes, per_second: handshakes as f64 / elapsed.as_secs_f64() })
}

/// "1234 connections in 6 real seconds, 0 bytes read per connection".
fn parse(text: &str) -> Result<u64> {
    let line = text.lines().find(|line| line.contains(" connections in ") && line.contains(" real seconds"));
    let count = line.and_then(|line| line.split_whitespace().next()).context("no number of connections")?.parse()?;
    ensure!(count > 0, "there was no handshake");
    Ok(count)
}

#[test]
fn a_run_is_read() {
    let output = "Collecting connection statistics for 5 seconds\n***\n\n7216 connections in 3.24s; 2227.16 \
        connections/user sec, bytes read 0\n7216 connections in 6 real seconds, 0 bytes read per connection\n";
    assert_eq!(parse(output).ok(), Some(7216));
    for bad in [String::new(), output.replace("7216", "0")] {
        assert!(parse(&bad).is_err(), "{bad}");
    }
}
