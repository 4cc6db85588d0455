//! [`Access`]: what a command shows the gateway, and whom it takes for the gateway.
//!
//! Goals: a token is never on the command line, where every user of the machine can read it; the gateway's own token goes to
//! the gateway of the data folder and to nobody else; whoever is refused hears which token it was.

use crate::place::NodePlace;
use anyhow::{Context as _, ensure};
use config::Loaded;
use std::fmt;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

/// The longest token, in bytes. They are lines, and short.
const TOKEN_BYTES_MAX: u64 = 4096;
/// What a gateway that runs writes a token to, for commands on its data folder.
const LOCAL_TOKEN: &str = "admin.token";

/// A token and where it is from, and which certificates are trusted.
#[derive(Debug, Clone, Default)]
pub struct Access {
    token: Option<String>,
    origin: Origin,
    /// The gateway is that of the data folder.
    pub is_local: bool,
    /// Certificates that are trusted beside the system's.
    pub ca: Option<PathBuf>,
}

/// Where a token is from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Origin {
    /// There is none.
    #[default]
    Nowhere,
    /// There would be one, but this user may not read it.
    Unreadable(PathBuf),
    /// `--token-file`.
    File(PathBuf),
    /// `CAUSEWAY_ADMIN_TOKEN` or the file of settings.
    Settings,
    /// The data folder.
    Local(PathBuf),
}

impl Access {
    /// What a command line and settings say. `is_local` says that the gateway is that of the data folder.
    ///
    /// # Errors
    /// When a file of a token was named and cannot be read.
    pub fn of(loaded: &Loaded, place: &NodePlace, is_local: bool) -> anyhow::Result<Self> {
        let ca = place.admin_ca().map(Path::to_owned);
        if let Some(path) = place.token_file() {
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
                let is_another_users = kind == Some(ErrorKind::PermissionDenied);
                let origin = if is_another_users { Origin::Unreadable(path) } else { Origin::Nowhere };
                Self { token: None, origin, is_local, ca }
            }
        })
    }

    /// The token, if there is one.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }
}

/// What to do when the gateway does not take it.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Nowhere => write!(
                f,
                "asks for a token: set CAUSEWAY_ADMIN_TOKEN, or name a file with --token-file (\"causeway token create\" on \
                 the gateway's machine makes one)"
            ),
            Origin::Unreadable(path) => write!(
                f,
                "asks for a token, and {} cannot be read by this user: be the gateway's user, or set CAUSEWAY_ADMIN_TOKEN",
                path.display()
            ),
            Origin::File(path) => write!(
                f,
                "does not take the token in {}: \"causeway token ls\" on the gateway's machine lists those that it takes",
                path.display()
            ),
            Origin::Settings => write!(
                f,
                "does not take the token of CAUSEWAY_ADMIN_TOKEN or of the settings: \"causeway token ls\" on the \
                 gateway's machine lists those that it takes"
            ),
            Origin::Local(path) => write!(
                f,
                "does not take the token in {}: it may have been started anew this moment, so try again",
                path.display()
            ),
        }
    }
}

/// A token out of a file, without blanks around it.
fn read(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(TOKEN_BYTES_MAX + 1).read_to_string(&mut text)?;
    let token = text.trim();
    ensure!(text.len() as u64 <= TOKEN_BYTES_MAX, "it is too long for a token");
    ensure!(!token.is_empty(), "it is empty");
    ensure!(token.bytes().all(|byte| byte.is_ascii_graphic()), "a token is one word");
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
        Access::of(&loaded, &NodePlace::for_tests(token_file), is_local)
    }

    #[test]
    fn tokens_are_taken_from_the_nearest_place() {
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
    fn files_that_hold_no_token_are_refused_and_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let long = "a".repeat(5000);
        let table = [("", "empty"), ("two words", "one word"), ("tab\there", "one word"), (long.as_str(), "too long")];
        for (text, words) in table {
            let file = dir.path().join("file");
            std::fs::write(&file, text).expect("writes");
            let error = access(dir.path(), Some(&file), None, true).expect_err("is refused");
            let said = format!("{error:#}");
            assert!(said.contains(words) && said.contains("file cannot be read"), "{said}");
        }
        assert!(access(dir.path(), Some(&dir.path().join("nowhere")), None, true).is_err());
        let none = access(dir.path(), None, None, true).expect("there is none");
        assert!(none.token().is_none() && none.to_string().contains("set CAUSEWAY_ADMIN_TOKEN"), "{none}");
    }
}
