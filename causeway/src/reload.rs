//! What SIGHUP does: the settings and the files that they name are read again, and what can change while the gateway runs
//! is put in force.
//!
//! | what | how |
//! |---|---|
//! | `log.level` | at once; a level that an operator set for a time stays until then |
//! | denylists and allowlists | files are read and subscriptions fetched at once; which lists there are needs a restart |
//! | `names.dnslink_map` | its file is read at once; what was answered from the former one holds for the minute that it was given |
//! | `admin.tls_certificate`, `admin.tls_key` | the files are read again by the next connection, without a signal ([`gateway::listen::tls`]) |
//! | everything else | the log names each setting that differs and needs a restart |
//!
//! Settings that cannot be read change nothing: the gateway goes on with those that it has.

use config::{ConfigError, Loaded, keys};
use p2p_bridge::names::Names;
use services::denylists::Lists;
use services::{logging, p2p};
use std::sync::Arc;

/// The settings that are put in force.
const IN_FORCE: [&str; 2] = ["log.level", "names.dnslink_map"];

/// Reads everything again. `running` is what the gateway was started with, `read` what the settings say now.
pub async fn reload(running: &Loaded, read: Result<Loaded, ConfigError>, lists: &Arc<Lists>, names: &Names) {
    let loaded = match read {
        Ok(loaded) => loaded,
        Err(error) => {
            tracing::warn!(%error, "the settings cannot be used, and stay as they were: mend them and send SIGHUP again");
            return;
        }
    };
    let level = logging::level().map_or(Ok(()), |level| level.configure(&loaded.config.log.level));
    if let Err(error) = level {
        tracing::warn!(error, "log.level stays as it was");
    }
    match p2p::static_map(&loaded) {
        Ok(map) => {
            names.set_static_map(map);
            tracing::info!("the names of names.dnslink_map were read again");
        }
        Err(error) => tracing::warn!(%error, "the names of names.dnslink_map stay as they were"),
    }
    for key in need_restart(running, &loaded) {
        tracing::warn!(key, set_by = %loaded.origin(&key), "this setting was changed, which needs a restart");
    }
    let looks = lists.entries().iter().map(|entry| async move { lists.look(entry).await.is_ok() });
    let read = futures::future::join_all(looks).await;
    let usable = read.iter().filter(|usable| **usable).count();
    tracing::info!(lists = read.len(), usable, "the settings and the lists of content were read again");
}

/// The settings that differ and cannot change while the gateway runs.
fn need_restart(running: &Loaded, loaded: &Loaded) -> Vec<String> {
    let changed = keys::changed(&running.config, &loaded.config);
    changed.into_iter().filter(|key| !IN_FORCE.contains(&key.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_but_for_what_is_put_in_force() {
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
