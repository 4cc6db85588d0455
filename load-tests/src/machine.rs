//! What the figures were measured on, with what, and how to measure them again.

use crate::options::{Binaries, Run};
use anyhow::Result;
use procfs::{CpuInfo, Current as _, Meminfo};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// Hardware and command of any run, as a flat object.
pub fn describe(target: &str, quick: bool) -> Result<Value> {
    let gib = Meminfo::current()?.mem_total as f64 / f64::from(1 << 30);
    Ok(json!({
        "command": format!("make {target}{}", if quick { " ARGS=--quick" } else { "" }),
        "quick": quick,
        "date": first_line("date", &["-u", "+%F"]),
        "commit": commit(),
        "cpu": CpuInfo::current()?.model_name(0).unwrap_or("unknown"),
        "cores": std::thread::available_parallelism()?.get(),
        "memory_gib": (gib * 10.0).round() / 10.0,
        "kernel": first_line("uname", &["-sr"]),
    }))
}

/// The same with what is compared: Causeway and Kubo.
pub fn describe_with_kubo(target: &str, run: &Run, binaries: &Binaries) -> Result<Value> {
    let mut machine = describe(target, run.quick)?;
    machine["rounds"] = json!(run.rounds());
    machine["causeway"] = json!(version(&binaries.causeway));
    machine["kubo"] = json!(version(&binaries.kubo));
    Ok(machine)
}

pub fn version(binary: &Path) -> String {
    first_line(&binary.to_string_lossy(), &["--version"])
}

/// The file system of temporary directories.
pub fn temporary_file_system() -> String {
    first_line("stat", &["-f", "-c", "%T", &std::env::temp_dir().to_string_lossy()])
}

/// The commit, and whether anything differs from it.
fn commit() -> String {
    let changed = !first_line("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty();
    match first_line("git", &["rev-parse", "--short", "--verify", "HEAD"]).as_str() {
        id if id.is_empty() || id.contains(' ') => "none yet".to_owned(),
        id => format!("{id}{}", if changed { " with changes" } else { "" }),
    }
}

/// The first line that a program prints, on either output; some print versions on standard error.
pub fn first_line(program: &str, arguments: &[&str]) -> String {
    let Ok(output) = Command::new(program).args(arguments).output() else { return String::new() };
    let streams = [output.stdout, output.stderr].map(|stream| String::from_utf8_lossy(&stream).into_owned());
    let line = streams.iter().find_map(|text| text.lines().next()).unwrap_or_default();
    // "wrk 4.1.0 [epoll] Copyright (C) 2012 Will Glozer"
    line.split(" [").next().unwrap_or_default().trim().to_owned()
}
