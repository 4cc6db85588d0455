//! The comparison's figures as [`results`].

use crate::compare::{Cold, Figures};
use crate::results;
use anyhow::Result;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Writes both files and returns the path of the Markdown one.
pub fn write(dir: &Path, machine: &Value, figures: &Figures) -> Result<PathBuf> {
    results::write(dir, machine, "compare", &markdown(machine, figures)?, &as_json(machine, figures))
}

fn markdown(machine: &Value, figures: &Figures) -> Result<String> {
    let mut out = String::new();
    let say = |key| results::say(machine, key);
    results::heading(&mut out, machine, "A cold file through Causeway and Kubo on one machine")?;
    writeln!(out, "{}. Client and servers shared the machine,", results::measured(machine))?;
    writeln!(
        out,
        "all on loopback, so that ratios hold better than figures. {}; {}.\nMedians of {} rounds in rotated order.\n",
        say("causeway"),
        say("kubo"),
        say("rounds")
    )?;
    cold_table(&mut out, figures)?;
    Ok(out)
}

fn cold_table(out: &mut String, figures: &Figures) -> Result<()> {
    let mib = figures.cold_bytes >> 20;
    writeln!(out, "## Cold: {mib} MiB that only another Kubo node holds\n")?;
    writeln!(
        out,
        "A fresh node, connected to that one, is asked for the whole file over HTTP. CPU is that of the fresh node.\n"
    )?;
    writeln!(out, "| server | from the source by | first byte | last byte | MB/s | CPU s | Causeway is | rounds, s |")?;
    writeln!(out, "|---|---|--:|--:|--:|--:|--:|---|")?;
    for row in &figures.cold {
        let Cold { server, transport, first_byte, complete, rounds, cpu } = row;
        let rounds: Vec<String> = rounds.iter().map(|time| format!("{:.2}", time.as_secs_f64())).collect();
        let rate = figures.cold_bytes as f64 / 1e6 / complete.as_secs_f64();
        let ratio = cold_ratio(&figures.cold, row).map_or_else(String::new, times);
        let (first, complete, cpu) = (millis(*first_byte), complete.as_secs_f64(), cpu.as_secs_f64());
        let rounds = rounds.join(", ");
        writeln!(
            out,
            "| {server} | {transport} | {first} | {complete:.2} s | {rate:.0} | {cpu:.2} | {ratio} | {rounds} |"
        )?;
    }
    Ok(())
}

/// How many times as fast Causeway is over the same transport.
fn cold_ratio(all: &[Cold], row: &Cold) -> Option<f64> {
    let ours = all.iter().find(|cold| cold.server == "Causeway" && cold.transport == row.transport)?;
    (row.server != "Causeway").then(|| row.complete.as_secs_f64() / ours.complete.as_secs_f64())
}

fn times(ratio: f64) -> String {
    format!("{ratio:.2} × as fast")
}

fn millis(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1e3)
}

fn as_json(machine: &Value, figures: &Figures) -> Value {
    let cold = |row: &Cold| {
        json!({
            "server": row.server,
            "transport": row.transport,
            "bytes": figures.cold_bytes,
            "first_byte_seconds": row.first_byte.as_secs_f64(),
            "last_byte_seconds": row.complete.as_secs_f64(),
            "rounds_seconds": row.rounds.iter().map(Duration::as_secs_f64).collect::<Vec<_>>(),
            "cpu_seconds": row.cpu.as_secs_f64(),
            "causeway_times_as_fast": cold_ratio(&figures.cold, row),
        })
    };
    json!({
        "machine": machine,
        "cold": figures.cold.iter().map(cold).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_compare_like_with_like() {
        let cold = |server, transport, seconds| Cold {
            server,
            transport,
            first_byte: Duration::from_millis(1),
            complete: Duration::from_secs(seconds),
            rounds: vec![Duration::from_secs(seconds)],
            cpu: Duration::from_secs(1),
        };
        let all = [
            cold("Causeway", "TCP", 2),
            cold("Kubo", "TCP", 6),
            cold("Causeway", "QUIC", 4),
            cold("Kubo", "QUIC", 2),
            cold("Kubo", "HTTP", 1),
        ];
        let ratios: Vec<_> = all.iter().map(|row| cold_ratio(&all, row)).collect();
        assert_eq!(ratios, [None, Some(3.0), None, Some(0.5), None]);
    }
}
