//! `causeway key` and `causeway name`: keys, and what is published with them.
//!
//! A node that runs has the keys to itself, and a command talks to it over its admin listener, wherever it says that it
//! listens; while none runs, the command works on the files itself and has the keys to itself meanwhile. So it makes no
//! difference to whoever types it. Exports read the file in any case: a private key is never sent anywhere.

use crate::admin::names_api::{
    CreateKey, ImportKey, KeyView, KeysView, Publish, PublishedList, PublishedView, RenameKey,
};
use crate::cli::Place;
use crate::network;
use crate::node::NO_ADMIN;
use crate::remote;
use crate::remote::client::{Client, Wait};
use anyhow::{Context as _, bail};
use cid::multibase::Base;
use clap::Subcommand;
use config::{Flags, Loaded};
use http::Method;
use p2p_bridge::names::key_format::{KEY_BYTES_MAX, KeyFormat, KeyKind};
use p2p_bridge::names::keystore::{KeyError, KeyInfo, Keystore, SELF};
use p2p_bridge::names::publish::{self, Book, Published, Terms};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long another command may take that has the keys open.
const PATIENCE: Duration = Duration::from_secs(5);

const KEY_HELP: &str = "A key is what an IPNS name stands for: whoever has it decides what /ipns/ID leads to. The key \"self\" is \
    the node's own and always there.\n\n\
    Kubo reads what is exported here, and the other way round:\n\
    \x20 causeway key export site -o site.key        ipfs key import site site.key\n\
    \x20 ipfs key export blog -o blog.key            causeway key import blog blog.key\n\n\
    While a node runs on the data folder, it does the work; otherwise the files are changed in place.";

const NAME_HELP: &str = "To publish a site under a name that stays the same:\n\
    \x20 causeway key create site                    prints the name's ID\n\
    \x20 causeway name publish --key site /ipfs/CID  again for every new version\n\n\
    The running node puts the record into the network and renews it for as long as it runs. Without a running node the record \
    is signed and kept, and put once a node runs.";

/// `causeway key`
#[derive(Debug, Subcommand)]
#[command(after_help = KEY_HELP)]
pub enum KeyCommand {
    /// Make a key, and print its name, its ID and its type
    Create {
        /// What to call it: letters, digits, dots, hyphens and underscores
        name: String,
        /// ed25519, secp256k1 or ecdsa
        #[arg(long = "type", value_name = "TYPE", default_value = "ed25519")]
        kind: KeyKind,
        /// Which node is meant.
        #[command(flatten)]
        place: Place,
    },
    /// Print every key: its name, its ID and its type
    List {
        /// Which node is meant.
        #[command(flatten)]
        place: Place,
    },
    /// Write a private key to a file, which is not there yet and which only you can read
    Export {
        /// Which key
        name: String,
        /// libp2p-protobuf-cleartext, or pem-pkcs8-cleartext for OpenSSL
        #[arg(long, short, default_value_t)]
        format: KeyFormat,
        /// Where to write; NAME.key or NAME.pem in this folder if it is left out
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Which node is meant.
        #[command(flatten)]
        place: Place,
    },
    /// Take in a private key that was exported here or by Kubo, or made by OpenSSL
    Import {
        /// What to call it
        name: String,
        /// The file; "-" for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// libp2p-protobuf-cleartext or pem-pkcs8-cleartext; what the file looks like if it is left out
        #[arg(long, short)]
        format: Option<KeyFormat>,
        /// Which node is meant.
        #[command(flatten)]
        place: Place,
    },
    /// Give a key another name; what is published with it stays published
    Rename {
        /// What it is called
        from: String,
        /// What it is to be called
        to: String,
        /// Which node is meant.
        #[command(flatten)]
        place: Place,
    },
    /// Remove a key for good, and publish no longer with it; export it first if it may be needed again
    Remove {
        /// Which key
        name: String,
        /// Which node is meant.
        #[command(flatten)]
        place: Place,
    },
}

/// `causeway name`
#[derive(Debug, Subcommand)]
#[command(after_help = NAME_HELP)]
pub enum NameCommand {
    /// Make a key's name stand for a path, and print what has become of it
    Publish {
        /// /ipfs/CID, perhaps with a path behind it, a bare CID, or another name: /ipns/NAME
        path: String,
        /// Which key; "causeway key list" prints them
        #[arg(long, short, default_value = SELF)]
        key: String,
        /// How long each record is valid, such as 48h; it is renewed for as long as the node runs
        #[arg(long, value_name = "TIME", value_parser = duration)]
        lifetime: Option<Duration>,
        /// How long others may remember it without asking again, such as 5m
        #[arg(long, value_name = "TIME", value_parser = duration)]
        ttl: Option<Duration>,
        /// Which node is meant.
        #[command(flatten)]
        place: Place,
    },
    /// Print what is published here, and what has become of it
    List {
        /// Which node is meant.
        #[command(flatten)]
        place: Place,
    },
}

impl KeyCommand {
    /// The settings that were given.
    pub fn flags(&self) -> Flags {
        match self {
            Self::Create { place, .. }
            | Self::List { place }
            | Self::Export { place, .. }
            | Self::Import { place, .. }
            | Self::Rename { place, .. }
            | Self::Remove { place, .. } => place.into(),
        }
    }
}

impl NameCommand {
    /// The settings that were given.
    pub fn flags(&self) -> Flags {
        match self {
            Self::Publish { place, .. } | Self::List { place } => place.into(),
        }
    }
}

/// "90s", "5m", "48h" or "7d".
fn duration(text: &str) -> Result<Duration, String> {
    let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    let parsed = units.iter().find_map(|(unit, seconds)| {
        let number: u64 = text.strip_suffix(*unit)?.parse().ok()?;
        number.checked_mul(*seconds)
    });
    parsed.map(Duration::from_secs).ok_or_else(|| "a time is a whole number and s, m, h or d, such as 48h".to_owned())
}

/// Who does the work.
enum Worker {
    Files(Keystore, Book),
    Node(Box<Client>),
}

impl Worker {
    fn find(loaded: &Loaded) -> anyhow::Result<Self> {
        let dir = network::state_dir(&loaded.config.data_dir);
        match Keystore::open(&dir, PATIENCE) {
            Ok(keys) => Ok(Self::Files(keys, Book::open(&dir)?)),
            Err(KeyError::InUse { word: Some(word), .. }) if word == NO_ADMIN => {
                bail!("a node runs on this data folder without an admin listener: set admin.listen, or stop it first")
            }
            Err(KeyError::InUse { word: Some(url), .. }) => {
                Ok(Self::Node(Box::new(Client::new(&url, remote::token(loaded).as_deref())?)))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Runs a command; returns what is to be printed.
///
/// # Errors
/// One line of what went wrong, and what to do.
pub async fn keys(loaded: &Loaded, command: KeyCommand) -> anyhow::Result<String> {
    if let KeyCommand::Export { name, format, output, .. } = command {
        return export(loaded, &name, format, output);
    }
    let worker = Worker::find(loaded)?;
    let Worker::Files(keys, book) = &worker else { return keys_of_node(&worker, command).await };
    let shown = match command {
        KeyCommand::Create { name, kind, .. } => vec![keys.create(&name, kind)?],
        KeyCommand::Import { name, file, format, .. } => vec![keys.import(&name, format, &read(&file)?)?],
        KeyCommand::Rename { from, to, .. } => vec![keys.rename(&from, &to)?],
        KeyCommand::Remove { name, .. } => vec![publish::remove_key(keys, book, &keys.get(&name)?.0)?],
        KeyCommand::List { .. } | KeyCommand::Export { .. } => keys.list(),
    };
    Ok(table(shown.into_iter().map(KeyView::from)))
}

async fn keys_of_node(node: &Worker, command: KeyCommand) -> anyhow::Result<String> {
    let one = |view: KeyView| table([view]);
    match command {
        KeyCommand::Create { name, kind, .. } => {
            let request = CreateKey { name, kind: Some(kind.to_string()) };
            Ok(one(node.ask(Method::POST, "keys", Some(&request)).await?))
        }
        KeyCommand::Import { name, file, format, .. } => {
            let bytes = read(&file)?;
            let format = format.unwrap_or_else(|| KeyFormat::guess(&bytes));
            let key = match format {
                KeyFormat::Pem => String::from_utf8(bytes).context("the file is not PEM text")?,
                KeyFormat::Protobuf => Base::Base64Pad.encode(bytes),
            };
            let request = ImportKey { name, key, format: Some(format.to_string()) };
            Ok(one(node.ask(Method::POST, "keys/import", Some(&request)).await?))
        }
        KeyCommand::Rename { from, to, .. } => {
            let path = format!("keys/{}/rename", part(&from)?);
            Ok(one(node.ask(Method::POST, &path, Some(&RenameKey { to })).await?))
        }
        KeyCommand::Remove { name, .. } => {
            Ok(one(node.ask(Method::DELETE, &format!("keys/{}", part(&name)?), None::<&()>).await?))
        }
        KeyCommand::List { .. } | KeyCommand::Export { .. } => {
            let all: KeysView = node.ask(Method::GET, "keys", None::<&()>).await?;
            Ok(table(all.keys))
        }
    }
}

/// Runs a command; returns what is to be printed.
///
/// # Errors
/// One line of what went wrong, and what to do.
pub async fn names(loaded: &Loaded, command: NameCommand) -> anyhow::Result<String> {
    let worker = Worker::find(loaded)?;
    match (&worker, command) {
        (Worker::Files(keys, book), NameCommand::Publish { path, key, lifetime, ttl, .. }) => {
            let (info, keypair) = keys.get(&key)?;
            let options = network::publish_options(loaded);
            let terms = Terms { lifetime: lifetime.unwrap_or(options.lifetime), ttl: ttl.unwrap_or(options.ttl) };
            let published = publish::sign(book, &keypair, &path, terms, None, SystemTime::now())?;
            Ok(describe(&PublishedView::new(Some(info), &published, &[])))
        }
        (Worker::Files(keys, book), NameCommand::List { .. }) => {
            let view = |entry: Published| {
                let info: Option<KeyInfo> = keys.find(&entry.key).map(|(info, _)| info);
                PublishedView::new(info, &entry, &[])
            };
            Ok(book.list().into_iter().map(|entry| describe(&view(entry))).collect())
        }
        (Worker::Node(_), NameCommand::Publish { path, key, lifetime, ttl, .. }) => {
            let seconds = |duration: Duration| duration.as_secs();
            let (lifetime_seconds, ttl_seconds) = (lifetime.map(seconds), ttl.map(seconds));
            let request = Publish { path, key: Some(key), lifetime_seconds, ttl_seconds };
            let published: PublishedView = worker.ask(Method::POST, "publish", Some(&request)).await?;
            Ok(describe(&published))
        }
        (Worker::Node(_), NameCommand::List { .. }) => {
            let all: PublishedList = worker.ask(Method::GET, "publish", None::<&()>).await?;
            Ok(all.published.iter().map(describe).collect())
        }
    }
}

/// One line for each key.
fn table(keys: impl IntoIterator<Item = KeyView>) -> String {
    let keys: Vec<KeyView> = keys.into_iter().collect();
    let width = keys.iter().map(|key| key.name.len()).max().unwrap_or_default();
    keys.iter().fold(String::new(), |mut text, key| {
        _ = writeln!(text, "{:width$}  {}  {}", key.name, key.id, key.kind);
        text
    })
}

/// A few lines about a name.
fn describe(published: &PublishedView) -> String {
    let PublishedView { key, name, value, sequence, valid_until, status, .. } = published;
    let key = key.as_deref().unwrap_or("a key that is not here");
    let until = UNIX_EPOCH.checked_add(Duration::from_secs(*valid_until)).unwrap_or(UNIX_EPOCH);
    // What dates can be written as ends with the year 9999, as it does for records.
    let until = httpdate::fmt_http_date(until);
    format!("{name} -> {value}\n  key {key}, sequence number {sequence}, valid until {until}\n  {status}\n")
}

fn export(loaded: &Loaded, name: &str, format: KeyFormat, output: Option<PathBuf>) -> anyhow::Result<String> {
    let bytes = Keystore::peek(&network::state_dir(&loaded.config.data_dir), name, format)?;
    let ending = match format {
        KeyFormat::Protobuf => "key",
        KeyFormat::Pem => "pem",
    };
    let path = output.unwrap_or_else(|| PathBuf::from(format!("{name}.{ending}")));
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let mut file = file.with_context(|| format!("{} cannot be made", path.display()))?;
    file.write_all(&bytes).with_context(|| format!("{} cannot be written", path.display()))?;
    Ok(format!("{}\n", path.display()))
}

/// A key's file, which is never large.
fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = KEY_BYTES_MAX as u64 + 1;
    let taken = if path.as_os_str() == "-" {
        std::io::stdin().take(limit).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes))
    };
    taken.with_context(|| format!("{} cannot be read", path.display()))?;
    Ok(bytes)
}

/// A key's name as a part of a path. Whatever else it may be, it names no key.
fn part(name: &str) -> anyhow::Result<&str> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if name.is_empty() || !name.bytes().all(good) {
        bail!(KeyError::Missing(name.to_owned()));
    }
    Ok(name)
}

impl Worker {
    /// Asks the node that runs.
    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> anyhow::Result<T> {
        let Self::Node(client) = self else { bail!("no node runs") };
        client.ask(method, &format!("/api/v1/names/{path}"), body, Wait::Short).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_numbers_with_a_unit() {
        let table = [
            ("90s", Some(90)),
            ("5m", Some(300)),
            ("48h", Some(172_800)),
            ("7d", Some(604_800)),
            ("", None),
            ("48", None),
            ("h", None),
            ("-1h", None),
            ("99999999999999999999d", None),
            ("18446744073709551615d", None),
        ];
        for (text, expected) in table {
            assert_eq!(duration(text).ok(), expected.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn what_is_shown_of_keys_lines_up() {
        let key = |name: &str| KeyView { name: name.to_owned(), id: "k51".to_owned(), kind: "ed25519".to_owned() };
        assert_eq!(table([key("a"), key("site")]), "a     k51  ed25519\nsite  k51  ed25519\n");
        for name in ["", "a/b", "../x", "a b"] {
            assert!(part(name).is_err(), "{name}");
        }
    }
}
