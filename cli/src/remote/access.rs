//! [`Access`]: the token that a command authenticates with, and the certificates that it trusts.
//!
//! Goals: a token is never on the command line, where every user of the machine can read it; the token of the data
//! folder is sent only to the gateway of the data folder; the error of a rejected token says where the token is from.

use crate::options::NodeOptions;
use anyhow::{Context as _, ensure};
use config::Loaded;
use std::fmt;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

/// The maximum length of a token file, in bytes.
const TOKEN_BYTES_MAX: u64 = 4096;
/// The file in the data folder to which a running gateway writes a token for commands.
const LOCAL_TOKEN: &str = "admin.token";

/// A token with its origin, and the trusted certificates.
#[derive(Debug, Clone, Default)]
pub struct Access {
    token: Option<String>,
    origin: Origin,
    /// The gateway runs on the data folder.
    pub is_local: bool,
    /// Certificates that are trusted in addition to the system's.
    pub ca: Option<PathBuf>,
}

/// The origin of a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Origin {
    /// There is no token.
    #[default]
    None,
    /// The data folder has a token, but this user may not read it.
    Unreadable(PathBuf),
    /// `--token-file`.
    File(PathBuf),
    /// `CAUSEWAY_ADMIN_TOKEN` or the settings file.
    Settings,
    /// The data folder.
    Local(PathBuf),
}

impl Access {
    /// The access that the options and settings give. `is_local`: the gateway runs on the data folder.
    ///
    /// # Errors
    /// When the file of `--token-file` cannot be read.
    pub fn of(loaded: &Loaded, node: &NodeOptions, is_local: bool) -> anyhow::Result<Self> {
        let ca = node.admin_ca().map(Path::to_owned);
        if let Some(path) = node.token_file() {
            let token = read(path).with_context(|| format!("the token in {} cannot be read", path.display()))?;
            return Ok(Self { token: Some(token), origin: Origin::File(path.to_owned()), is_local, ca });
        }
        if let Some(token) = loaded.config.admin.token.reveal() {
            return Ok(Self { token: Some(token.to_owned()), origin: Origin::Settings, is_local, ca });
        }
        if !is_local {
            return Ok(Self { ca, ..Self::default() });
        }
        let path = loaded.config.data_dir.join(LOCAL_TOKEN);
        Ok(match read(&path) {
            Ok(token) => Self { token: Some(token), origin: Origin::Local(path), is_local, ca },
            Err(error) => {
                let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
                let is_forbidden = kind == Some(ErrorKind::PermissionDenied);
                let origin = if is_forbidden { Origin::Unreadable(path) } else { Origin::None };
                Self { token: None, origin, is_local, ca }
            }
        })
    }

    /// The access by the token in a file, for a gateway that is not that of the settings.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn of_file(token_file: &Path, ca: Option<PathBuf>) -> anyhow::Result<Self> {
        let token =
            read(token_file).with_context(|| format!("the token in {} cannot be read", token_file.display()))?;
        Ok(Self { token: Some(token), origin: Origin::File(token_file.to_owned()), is_local: false, ca })
    }

    /// The token, if there is one.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }
}

/// The second half of an error about a missing or rejected token, after "the gateway at URL".
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::None => write!(
                f,
                "requires a token: set CAUSEWAY_ADMIN_TOKEN, or use --token-file (\"causeway token create\" on the \
                 gateway's machine creates one)"
            ),
            Origin::Unreadable(path) => write!(
                f,
                "requires a token, and this user may not read {}: run this as the gateway's user, or set \
                 CAUSEWAY_ADMIN_TOKEN",
                path.display()
            ),
            Origin::File(path) => write!(
                f,
                "rejected the token in {}: \"causeway token ls\" on the gateway's machine lists the valid tokens",
                path.display()
            ),
            Origin::Settings => write!(
                f,
                "rejected the token of CAUSEWAY_ADMIN_TOKEN or of the settings: \"causeway token ls\" on the gateway's \
                 machine lists the valid tokens"
            ),
            Origin::Local(path) => {
                write!(f, "rejected the token in {}: the gateway may just have restarted, so try again", path.display())
            }
        }
    }
}

/// Reads a token from a file, without leading and trailing whitespace.
fn read(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(TOKEN_BYTES_MAX + 1).read_to_string(&mut text)?;
    let token = text.trim();
    ensure!(text.len() as u64 <= TOKEN_BYTES_MAX, "the file is too long for a token");
    ensure!(!token.is_empty(), "the file is empty");
    ensure!(token.bytes().all(|byte| byte.is_ascii_graphic()), "a token must be one word");
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Flags;

    fn access(dir: &Path, token_file: Option<&Path>, settings: Option<&str>, is_local: bool) -> anyhow::Result<Access> {
        let flags = Flags {
            data_dir: Some(dir.display().to_string()),
            admin_token: settings.map(str::to_owned),
            ..Flags::default()
        };
        let loaded = config::load(&flags, std::iter::empty()).expect("good settings");
        Access::of(&loaded, &NodeOptions::for_tests(token_file), is_local)
    }

    #[test]
    fn the_token_comes_from_the_option_then_the_settings_then_the_data_folder() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("file");
        std::fs::write(&file, "from-file\n").expect("writes");
        std::fs::write(dir.path().join(LOCAL_TOKEN), "local").expect("writes");
        let table = [
            (Some(file.as_path()), Some("settings"), true, Some("from-file")),
            (None, Some("settings"), true, Some("settings")),
            (None, None, true, Some("local")),
            (None, None, false, None),
        ];
        for (token_file, settings, is_local, expected) in table {
            let access = access(dir.path(), token_file, settings, is_local).expect("reads");
            assert_eq!(access.token(), expected, "{token_file:?} {settings:?} {is_local}");
        }
    }

    #[test]
    fn files_without_a_token_are_rejected_with_their_path() {
        let dir = tempfile::tempdir().expect("a folder");
        let long = "a".repeat(5000);
        let table = [("", "empty"), ("two words", "one word"), ("tab\there", "one word"), (long.as_str(), "too long")];
        for (text, words) in table {
            let file = dir.path().join("file");
            std::fs::write(&file, text).expect("writes");
            let error = access(dir.path(), Some(&file), None, true).expect_err("is rejected");
            let message = format!("{error:#}");
            assert!(message.contains(words) && message.contains("file cannot be read"), "{message}");
        }
        assert!(access(dir.path(), Some(&dir.path().join("nowhere")), None, true).is_err());
        let none = access(dir.path(), None, None, true).expect("has no token");
        assert!(none.token().is_none() && none.to_string().contains("set CAUSEWAY_ADMIN_TOKEN"), "{none}");
    }
}
