//! What the figures were measured on, with what, and how to measure them again.

use crate::options::{Binaries, Run};
use crate::{Options, compression, network, servers, stores, tiers, trace, wrk};
use anyhow::Result;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// Versions and hardware, as a flat object, for the comparison.
pub fn describe(options: &Options) -> Result<Value> {
    beside_kubo("make bench", &options.run, &options.binaries)
}

/// The same for the local tiers' table.
pub fn describe_tiers(options: &tiers::Options) -> Result<Value> {
    let mut about = beside_kubo("make bench-tiers", &options.run, &options.binaries)?;
    let duration = options.duration().as_secs();
    about["load_generator"] = json!(format!("{} {} -d{duration}s", said("wrk", &["-v"]), wrk::ARGUMENTS.join(" ")));
    about["seed"] = json!(options.seed);
    about["folders"] = json!(folders());
    about["nginx"] = json!(said(servers::nginx_binary(), &["-v"]));
    Ok(about)
}

/// The same for the network's table.
pub fn describe_network(options: &network::Options) -> Result<Value> {
    let mut about = beside_kubo("make bench-network", &options.run, &options.binaries)?;
    about["delay_ms"] = json!(options.delay_ms);
    Ok(about)
}

/// The same for the replay of a trace.
pub fn describe_trace(options: &trace::Options) -> Result<Value> {
    let mut about = made_by("make bench-trace", options.quick)?;
    about["causeway"] = match &options.url {
        Some(url) => json!(format!("what ran at {url}")),
        None => version(&options.causeway),
    };
    Ok(about)
}

/// The same for the memory tier's policies.
pub fn describe_policies(quick: bool) -> Result<Value> {
    made_by("make bench-policies", quick)
}

/// The same for the datastores.
pub fn describe_stores(options: &stores::Options) -> Result<Value> {
    let mut about = beside_kubo("make bench-stores", &options.run, &options.binaries)?;
    about["seed"] = json!(options.seed);
    about["folders"] = json!(folders());
    Ok(about)
}

/// The same for compression.
pub fn describe_compression(options: &compression::Options) -> Result<Value> {
    let mut about = made_by("make bench-compression", options.run.quick)?;
    about["rounds"] = json!(options.run.rounds());
    about["seed"] = json!(options.seed);
    about["causeway"] = version(&options.causeway);
    Ok(about)
}

/// What is said of every run beside Kubo.
fn beside_kubo(command: &str, run: &Run, binaries: &Binaries) -> Result<Value> {
    let mut about = made_by(command, run.quick)?;
    about["rounds"] = json!(run.rounds());
    about["causeway"] = version(&binaries.causeway);
    about["kubo"] = version(&binaries.kubo);
    Ok(about)
}

/// What is said of every run.
fn made_by(command: &str, quick: bool) -> Result<Value> {
    let mut about = hardware()?;
    about["command"] = json!(if quick { format!("{command} ARGS=--quick") } else { command.to_owned() });
    about["quick"] = json!(quick);
    Ok(about)
}

fn version(binary: &Path) -> Value {
    json!(said(&binary.to_string_lossy(), &["--version"]))
}

/// The file system that folders lie on.
fn folders() -> String {
    said("stat", &["-f", "-c", "%T", &std::env::temp_dir().to_string_lossy()])
}

fn hardware() -> Result<Value> {
    let cpus = std::fs::read_to_string("/proc/cpuinfo")?;
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let memory = std::fs::read_to_string("/proc/meminfo")?;
    let kib = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let gib = kib.and_then(|kib| kib.parse::<f64>().ok()).unwrap_or_default() / 1024.0 / 1024.0;
    Ok(json!({
        "date": said("date", &["-u", "+%F"]),
        "commit": commit(),
        "cpu": model.map_or("unknown", |(_, name)| name.trim()),
        "cores": std::thread::available_parallelism()?.get(),
        "memory_gib": (gib * 10.0).round() / 10.0,
        "kernel": said("uname", &["-sr"]),
    }))
}

/// The commit, and whether anything differs from it.
fn commit() -> String {
    let changed = !said("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty();
    match said("git", &["rev-parse", "--short", "--verify", "HEAD"]).as_str() {
        id if id.is_empty() || id.contains(' ') => "none yet".to_owned(),
        id => format!("{id}{}", if changed { " with changes" } else { "" }),
    }
}

/// The first line that a program prints, on either output; some print versions on standard error.
fn said(program: &str, arguments: &[&str]) -> String {
    let Ok(output) = Command::new(program).args(arguments).output() else { return String::new() };
    let streams = [output.stdout, output.stderr].map(|stream| String::from_utf8_lossy(&stream).into_owned());
    let line = streams.iter().find_map(|text| text.lines().next()).unwrap_or_default();
    // "wrk 4.1.0 [epoll] Copyright (C) 2012 Will Glozer"
    line.split(" [").next().unwrap_or_default().trim().to_owned()
}
