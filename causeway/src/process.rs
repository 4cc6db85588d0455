//! Process metrics, with the standard names of Prometheus clients
//! (<https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics>), build information, readiness, and
//! the space of the data folder's file system.
//!
//! They are collected at each scrape. Without `/proc`, the resource usage of the process is left out.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};
use services::health::Health;
use services::process::{space_of, usage};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The abbreviated commit of the build; `None` for a build outside of a Git checkout. It ends in `-dirty` if the
/// checkout had uncommitted changes.
pub const COMMIT: Option<&str> = option_env!("SOURCE_COMMIT");

/// The version, and the commit if it is known: `0.1.0 (1a2b3c4d5e6f)`.
pub static VERSION_AND_COMMIT: LazyLock<String> = LazyLock::new(|| match COMMIT {
    Some(commit) => format!("{VERSION} ({commit})"),
    None => VERSION.to_owned(),
});

/// Registers the process metrics, the build information, whether `health` is ready, and the space of the file system
/// that contains `data_dir`. Call it once for a registry.
pub fn register(registry: &mut Registry, health: &Arc<Health>, data_dir: &Path) {
    let build = Family::<Vec<(&'static str, &'static str)>, Gauge>::default();
    build.get_or_create(&vec![("version", VERSION), ("commit", COMMIT.unwrap_or("unknown"))]).set(1);
    registry.register(
        "causeway_build_info",
        "The version and the commit of this build as labels; the value is always 1",
        build,
    );
    registry.register_collector(Box::new(Process::started_now()));
    registry.register_collector(Box::new(Node { health: Arc::clone(health), data_dir: data_dir.to_owned() }));
}

#[derive(Debug)]
struct Process {
    started: Instant,
    started_at_seconds: f64,
}

impl Process {
    fn started_now() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), started_at_seconds: now.as_secs_f64() }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut gauge = |name: &str, help: &str, unit: Option<&Unit>, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, unit, gauge.metric_type())?)
        };
        gauge(
            "process_start_time",
            "The start time of the process, in seconds since the Unix epoch",
            Some(&Unit::Seconds),
            self.started_at_seconds,
        )?;
        gauge(
            "causeway_uptime",
            "The time since the start of the process",
            Some(&Unit::Seconds),
            self.started.elapsed().as_secs_f64(),
        )?;
        let Some(usage) = usage() else { return Ok(()) };
        gauge("process_resident_memory", "Resident memory", Some(&Unit::Bytes), usage.resident_bytes as f64)?;
        gauge("process_virtual_memory", "Virtual memory", Some(&Unit::Bytes), usage.virtual_bytes as f64)?;
        gauge("process_threads", "Threads", None, usage.threads as f64)?;
        if let Some(files) = usage.open_files {
            gauge("process_open_fds", "Open file descriptors", None, files as f64)?;
        }
        if let Some(files) = usage.open_files_max {
            gauge("process_max_fds", "The maximum number of open file descriptors", None, files as f64)?;
        }
        let cpu = ConstCounter::new(usage.cpu_seconds);
        let help = "CPU time, in user space and in the kernel";
        cpu.encode(encoder.encode_descriptor("process_cpu", help, Some(&Unit::Seconds), cpu.metric_type())?)
    }
}

/// The node as its operator sees it: whether it is ready, and the space that it has.
#[derive(Debug)]
struct Node {
    health: Arc<Health>,
    data_dir: PathBuf,
}

impl Collector for Node {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let ready = ConstGauge::new(i64::from(self.health.is_ready()));
        let help = "1 while /readyz answers 200, else 0";
        ready.encode(encoder.encode_descriptor("causeway_ready", help, None, ready.metric_type())?)?;
        // Left out while the folder cannot be read, instead of a number that is wrong.
        let Ok(space) = space_of(&self.data_dir) else { return Ok(()) };
        let mut bytes = |name: &str, help: &str, bytes: u64| {
            let gauge = ConstGauge::new(bytes as f64);
            gauge.encode(encoder.encode_descriptor(name, help, Some(&Unit::Bytes), gauge.metric_type())?)
        };
        let available = "Space of the data folder's file system that the process may still use";
        bytes("causeway_data_dir_available", available, space.available_bytes)?;
        bytes("causeway_data_dir_size", "Size of the data folder's file system", space.size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use services::health::Stage;

    #[test]
    fn metrics_of_the_process_and_the_node_have_the_documented_names() {
        let mut registry = Registry::default();
        let health = Arc::<Health>::default();
        health.enter(Stage::Serving);
        register(&mut registry, &health, &std::env::temp_dir());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodes");
        let value = |name: &str| {
            let line = text.lines().find(|line| line.split([' ', '{']).next() == Some(name));
            let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
            line.rsplit(' ').next().and_then(|number| number.parse::<f64>().ok()).expect("a number")
        };
        assert_eq!(value("causeway_build_info"), 1.0);
        assert!(text.contains(&format!("version=\"{VERSION}\"")), "{text}");
        assert!(value("process_start_time_seconds") > 1.7e9 && value("causeway_uptime_seconds") >= 0.0);
        assert_eq!(value("causeway_ready"), 1.0);
        assert!(value("causeway_data_dir_size_bytes") >= value("causeway_data_dir_available_bytes"));
        assert!(value("causeway_data_dir_size_bytes") > 0.0);
        if cfg!(target_os = "linux") {
            assert!(value("process_cpu_seconds_total") >= 0.0);
            assert!(value("process_resident_memory_bytes") > 1e6 && value("process_virtual_memory_bytes") > 1e6);
            assert!(value("process_open_fds") >= 3.0 && value("process_threads") >= 1.0);
            assert!(value("process_max_fds") >= value("process_open_fds"));
        }
    }
}
