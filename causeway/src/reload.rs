//! Reload on SIGHUP: reads the settings and the files that they name again, and applies what can change at run time.
//!
//! | setting | effect |
//! |---|---|
//! | `log.level` | immediate; a temporary level of an operator stays until it expires |
//! | denylists and allowlists | immediate: lists are read or fetched; a changed set of lists requires a restart |
//! | `names.dnslink_map` | immediate; earlier answers stay cached for their TTL of a minute |
//! | the file `log.access_file` | opened again; a changed name requires a restart |
//! | files of `http.tls_certificate`, `admin.tls_certificate` and their keys | immediate; a change needs no signal |
//! | certificates by ACME | failed orders are repeated at once |
//! | all others | the log has each changed setting that requires a restart |
//!
//! Invalid settings change nothing: the gateway keeps those that it has.

use cli::command_line;
use config::{ConfigError, Flags, Loaded, keys};
use content::dnslink::StaticMap;
use p2p_bridge::names::Names;
use services::denylists::Lists;
use services::{logging, p2p};
use std::sync::Arc;

/// The settings that are applied without a restart.
const RELOADED: [&str; 2] = ["log.level", "names.dnslink_map"];

/// Reads the settings and applies them. `running` has the settings of the start, `flags` those of the command line.
pub async fn reload(running: &Loaded, flags: &Flags, lists: &Arc<Lists>, names: &Names) {
    let (loaded, map) = match read(flags).await {
        Ok(read) => read,
        Err(error) => {
            tracing::warn!(%error, "the new settings are invalid and were not applied: fix them and send SIGHUP again");
            return;
        }
    };
    let level = logging::level().map_or(Ok(()), |level| level.configure(&loaded.config.log.level));
    if let Err(error) = level {
        tracing::warn!(error, "log.level is invalid and was not applied");
    }
    match map {
        Ok(map) => {
            names.set_static_map(map);
            tracing::info!("reloaded names.dnslink_map");
        }
        Err(error) => tracing::warn!(%error, "names.dnslink_map is invalid and was not applied"),
    }
    for key in need_restart(running, &loaded) {
        tracing::warn!(key, set_by = %loaded.origin(&key), "the change of this setting requires a restart");
    }
    let reloads = lists.entries().iter().map(|entry| async move { lists.look(entry).await.is_ok() });
    let read = futures::future::join_all(reloads).await;
    let usable = read.iter().filter(|usable| **usable).count();
    tracing::info!(lists = read.len(), usable, "reloaded the settings and the denylists");
}

/// Reads the settings, and the file of `names.dnslink_map`, on a blocking thread: a file may be on a slow disk.
async fn read(flags: &Flags) -> anyhow::Result<(Loaded, Result<StaticMap, ConfigError>)> {
    let flags = flags.clone();
    let reading = move || {
        let loaded = command_line::read(&flags)?;
        let map = p2p::static_map(&loaded);
        Ok((loaded, map))
    };
    tokio::task::spawn_blocking(reading).await?
}

/// The changed settings that require a restart.
fn need_restart(running: &Loaded, loaded: &Loaded) -> Vec<String> {
    let changed = keys::changed(&running.config, &loaded.config);
    changed.into_iter().filter(|key| !RELOADED.contains(&key.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::sync::mpsc;
    use std::time::Duration;

    #[tokio::test(flavor = "current_thread")]
    async fn other_tasks_run_while_a_file_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let fifo = dir.path().join("map");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().is_ok_and(|status| status.success()));
        let flags = Flags { dnslink_map: Some(fifo.display().to_string()), ..Flags::default() };
        let (another_task_runs, awaited) = mpsc::channel();
        // The read ends only when this thread has written the map.
        let writer = std::thread::spawn(move || {
            let mut file = std::fs::OpenOptions::new().write(true).open(&fifo).expect("is being read");
            let ran = awaited.recv_timeout(Duration::from_secs(10)).is_ok();
            file.write_all(b"example.org:/ipfs/bafkqaddjnzzxazldoqwxizltoq\n").expect("writes");
            ran
        });
        let another_task = async { another_task_runs.send(()).expect("is awaited") };
        let (read, ()) = tokio::join!(read(&flags), another_task);
        assert_ne!(read.expect("the settings are valid").1.expect("the map is valid"), StaticMap::default());
        assert!(writer.join().expect("no panics"), "the runtime was blocked");
    }

    #[test]
    fn changed_settings_that_require_a_restart_are_listed() {
        let settings = |variables: &[(&str, &str)]| {
            config::load(&config::Flags::default(), variables.iter().map(|(key, value)| (key.into(), value.into())))
                .expect("settings")
        };
        let running = settings(&[]);
        let table = [
            (vec![], vec![]),
            (vec![("CAUSEWAY_LOG_LEVEL", "debug"), ("CAUSEWAY_NAMES_DNSLINK_MAP", "/another")], vec![]),
            (vec![("CAUSEWAY_HTTP_LISTEN", "127.0.0.1:1")], vec!["http.listen"]),
            (
                vec![("CAUSEWAY_CACHE_RAM_BYTES_MAX", "1GiB"), ("CAUSEWAY_ADMIN_TOKEN", "secret")],
                vec!["admin.token", "cache.ram_bytes_max"],
            ),
        ];
        for (variables, expected) in table {
            let mut found = need_restart(&running, &settings(&variables));
            found.sort();
            assert_eq!(found, expected, "{variables:?}");
        }
    }
}
