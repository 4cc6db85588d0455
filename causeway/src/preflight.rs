//! `causeway config check`: checks the files that the settings name.
//!
//! Goals: an unusable file fails the check with the same error as `causeway serve`, because both call the same
//! functions; the check creates and changes nothing, and opens no ports.
//!
//! Non-goals: whether ports are free and addresses belong to this machine; whether subscribed lists can be fetched,
//! which a start does not wait for either.

use crate::node;
use config::{ConfigError, Loaded};
use services::denylists::Lists;
use services::{access_log, logging, p2p};
use std::path::Path;

/// Checks the files that a start reads.
///
/// # Errors
/// [`ConfigError`] with the first setting that a start would reject.
pub fn check(loaded: &Loaded) -> Result<(), ConfigError> {
    logging::read(&loaded.config.log.level).map_err(|reason| loaded.error("log.level", reason))?;
    access_log::writer::check(&loaded.config.log).map_err(|reason| loaded.error("log.access_file", reason))?;
    data_dir(&loaded.config.data_dir).map_err(|reason| loaded.error("data_dir", reason))?;
    node::Certificates::load(loaded, None)?;
    services::acme::check(loaded)?;
    p2p::check(loaded)?;
    services::front_caches::check(loaded)?;
    services::telemetry::check(loaded)?;
    Lists::check(&loaded.config.policy, &loaded.config.data_dir)
        .map_err(|error| loaded.error(error.setting, error.to_string()))
}

/// Checks that a data folder is a folder or can be created, without creating it.
fn data_dir(path: &Path) -> Result<(), String> {
    let nearest = path.ancestors().find(|folder| folder.as_os_str().is_empty() || folder.exists());
    match nearest {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            Err(format!("{} cannot be created: {} is a file", path.display(), folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_folder_is_a_folder_or_can_be_created() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("file");
        std::fs::write(&file, "").expect("writes");
        let table = [
            (dir.path().to_owned(), true),
            (dir.path().join("new/folder"), true),
            ("data".into(), true),
            (file.clone(), false),
            (file.join("below"), false),
        ];
        for (path, valid) in table {
            assert_eq!(data_dir(&path).is_ok(), valid, "{}", path.display());
        }
    }
}
