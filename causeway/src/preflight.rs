//! What `causeway config check` looks at beyond the settings themselves: the files that they name.
//!
//! Goals: whatever stops `causeway serve` because of a file that a setting names stops the check too, in the same words,
//! because both call the same functions; nothing is created, changed or listened on.
//!
//! Non-goals: whether ports are free and addresses belong to this machine, which the gateway that runs decides; whether
//! lists at a URL can be fetched, which a start does not wait for either.

use crate::node;
use config::{ConfigError, Loaded};
use services::denylists::Lists;
use services::{logging, p2p};
use std::path::Path;

/// Checks what a start would read.
///
/// # Errors
/// [`ConfigError`] about the first setting that a start would refuse.
pub fn check(loaded: &Loaded) -> Result<(), ConfigError> {
    logging::read(&loaded.config.log.level).map_err(|reason| loaded.error("log.level", reason))?;
    data_dir(&loaded.config.data_dir).map_err(|reason| loaded.error("data_dir", reason))?;
    node::admin_tls(loaded)?;
    p2p::check(loaded)?;
    services::front_caches::check(loaded)?;
    Lists::check(&loaded.config.policy, &loaded.config.data_dir)
        .map_err(|error| loaded.error(error.setting, error.to_string()))
}

/// Whether a data folder is one or can be created, as far as can be told without creating it.
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
    fn a_data_folder_is_a_folder_or_can_become_one() {
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
        for (path, good) in table {
            assert_eq!(data_dir(&path).is_ok(), good, "{}", path.display());
        }
    }
}
