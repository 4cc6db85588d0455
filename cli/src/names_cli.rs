//! `causeway key` and `causeway name`: keys, and what is published with them.
//!
//! A node that runs has the keys to itself, and a command talks to it over its admin listener, wherever it says that it
//! listens; while none runs, the command works on the files itself and has the keys to itself meanwhile. So it makes no
//! difference to whoever types it. Exports read the file in any case: a private key is never sent anywhere.

use crate::output::print_view;
use crate::place::NodePlace;
use crate::recorded::Recorded;
use crate::remote::client::Wait;
use crate::remote::{Remote, local, running};
use crate::values;
use anyhow::{Context as _, bail};
use api::keys::{CreateKey, ImportKey, KeyView, KeysView, Publish, PublishedList, PublishedView, RenameKey};
use cid::multibase::Base;
use clap::Subcommand;
use config::{Flags, Loaded};
use http::Method;
use p2p_bridge::names::key_format::{KEY_BYTES_MAX, KeyFormat, KeyKind};
use p2p_bridge::names::keystore::{KeyError, KeyInfo, Keystore, SELF};
use p2p_bridge::names::publish::{self, Book, Published, Terms};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use services::p2p;
use services::views;
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
    #[command(
        alias = "gen",
        after_help = "Examples:\n  causeway key create site\n  causeway key create other --type secp256k1"
    )]
    Create {
        /// What to call it: letters, digits, dots, hyphens and underscores
        name: String,
        /// ed25519, secp256k1 or ecdsa
        #[arg(long = "type", value_name = "TYPE", default_value = "ed25519")]
        kind: KeyKind,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Which node is meant.
        #[command(flatten)]
        node: NodePlace,
    },
    /// Print every key: its name, its ID and its type
    #[command(alias = "ls", after_help = "Example:\n  causeway key list")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Which node is meant.
        #[command(flatten)]
        node: NodePlace,
    },
    /// Write a private key to a file, which is not there yet and which only you can read
    #[command(
        after_help = "Examples:\n  causeway key export site -o site.key\n  causeway key export site --format pem-pkcs8-cleartext"
    )]
    Export {
        /// Which key
        name: String,
        /// libp2p-protobuf-cleartext, or pem-pkcs8-cleartext for OpenSSL
        #[arg(long, short, default_value_t)]
        format: KeyFormat,
        /// Where to write; NAME.key or NAME.pem in this folder if it is left out
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Which node is meant.
        #[command(flatten)]
        node: NodePlace,
    },
    /// Take in a private key that was exported here or by Kubo, or made by OpenSSL
    #[command(after_help = "Example:\n  causeway key import site site.key")]
    Import {
        /// What to call it
        name: String,
        /// The file; "-" for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// libp2p-protobuf-cleartext or pem-pkcs8-cleartext; what the file looks like if it is left out
        #[arg(long, short)]
        format: Option<KeyFormat>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Which node is meant.
        #[command(flatten)]
        node: NodePlace,
    },
    /// Give a key another name; what is published with it stays published
    #[command(after_help = "Example:\n  causeway key rename site old-site")]
    Rename {
        /// What it is called
        from: String,
        /// What it is to be called
        to: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Which node is meant.
        #[command(flatten)]
        node: NodePlace,
    },
    /// Remove a key for good, and publish no longer with it; export it first if it may be needed again
    #[command(alias = "rm", after_help = "Example:\n  causeway key remove old-site")]
    Remove {
        /// Which key
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Which node is meant.
        #[command(flatten)]
        node: NodePlace,
    },
}

/// `causeway name`
#[derive(Debug, Subcommand)]
#[command(after_help = NAME_HELP)]
pub enum NameCommand {
    /// Make a key's name stand for a path, and print what has become of it
    #[command(
        after_help = "Examples:\n  causeway name publish /ipfs/CID\n  causeway name publish --key site --ttl 5m /ipfs/CID"
    )]
    Publish {
        /// /ipfs/CID, perhaps with a path behind it, a bare CID, or another name: /ipns/NAME
        path: String,
        /// Which key; "causeway key list" prints them
        #[arg(long, short, default_value = SELF)]
        key: String,
        /// How long each record is valid, such as 48h; it is renewed for as long as the node runs
        #[arg(long, value_name = "TIME", value_parser = values::duration)]
        lifetime: Option<Duration>,
        /// How long others may remember it without asking again, such as 5m
        #[arg(long, value_name = "TIME", value_parser = values::duration)]
        ttl: Option<Duration>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Which node is meant.
        #[command(flatten)]
        node: NodePlace,
    },
    /// Print what is published here, and what has become of it
    #[command(after_help = "Example:\n  causeway name list --json")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Which node is meant.
        #[command(flatten)]
        node: NodePlace,
    },
}

impl KeyCommand {
    /// The settings that were given.
    pub fn flags(&self) -> Flags {
        self.terms().1.into()
    }

    /// Whether JSON is to be printed, and which node is meant.
    fn terms(&self) -> (bool, &NodePlace) {
        match self {
            Self::Create { json, node, .. }
            | Self::List { json, node }
            | Self::Export { json, node, .. }
            | Self::Import { json, node, .. }
            | Self::Rename { json, node, .. }
            | Self::Remove { json, node, .. } => (*json, node),
        }
    }
}

impl NameCommand {
    /// The settings that were given.
    pub fn flags(&self) -> Flags {
        self.terms().1.into()
    }

    /// The same as of keys.
    fn terms(&self) -> (bool, &NodePlace) {
        match self {
            Self::Publish { json, node, .. } | Self::List { json, node } => (*json, node),
        }
    }
}

/// Who does the work.
enum Worker {
    Files(Keystore, Book),
    Node(Remote),
}

impl Worker {
    async fn find(loaded: &Loaded, node: &NodePlace) -> anyhow::Result<Self> {
        if node.admin().is_some() {
            return Ok(Self::Node(running(loaded, node).await?));
        }
        let dir = p2p::state_dir(&loaded.config.data_dir);
        match Keystore::open(&dir, PATIENCE) {
            Ok(keys) => Ok(Self::Files(keys, Book::open(&dir)?)),
            Err(KeyError::InUse { word: Some(word), .. }) => Ok(Self::Node(local(loaded, node, &word).await?)),
            Err(error) => Err(error.into()),
        }
    }
}

/// What became of a command on keys.
enum Done {
    /// These are the keys.
    Listed(KeysView),
    /// This is the key that it was about.
    Key(KeyView),
}

/// Runs a command, and prints what became of it.
///
/// # Errors
/// One line of what went wrong, and what to do.
pub async fn keys(loaded: &Loaded, command: KeyCommand) -> anyhow::Result<()> {
    let (json, node) = command.terms();
    if let KeyCommand::Export { name, format, output, .. } = &command {
        anyhow::ensure!(
            node.admin().is_none(),
            "a private key is never sent anywhere: export it where its data folder is"
        );
        let view = export(loaded, name, *format, output.as_deref())?;
        return print_view(json, &view, |view| format!("{}\n", view.file));
    }
    let done = match Worker::find(loaded, node).await? {
        Worker::Files(keys, book) => keys_of_files(&loaded.config.data_dir, &keys, &book, command)?,
        Worker::Node(remote) => keys_of_node(&remote, command).await?,
    };
    match done {
        Done::Listed(all) => print_view(json, &all, |all| table(&all.keys)),
        Done::Key(key) => print_view(json, &key, |key| table(std::slice::from_ref(key))),
    }
}

fn keys_of_files(data_dir: &Path, keys: &Keystore, book: &Book, command: KeyCommand) -> anyhow::Result<Done> {
    let (words, asked) = match &command {
        KeyCommand::Create { name, kind, .. } => ("key create", json!({ "name": name, "kind": kind.to_string() })),
        KeyCommand::Import { name, .. } => ("key import", json!({ "name": name })),
        KeyCommand::Rename { from, to, .. } => ("key rename", json!({ "from": from, "to": to })),
        KeyCommand::Remove { name, .. } => ("key remove", json!({ "name": name })),
        KeyCommand::List { .. } | KeyCommand::Export { .. } => {
            return Ok(Done::Listed(KeysView { keys: keys.list().into_iter().map(views::keys::key).collect() }));
        }
    };
    let record = Recorded::begin(data_dir, words, asked)?;
    let key = record.end(changed(keys, book, &command).map(views::keys::key), |key| json!(key))?;
    Ok(Done::Key(key))
}

/// The key that a command has changed.
fn changed(keys: &Keystore, book: &Book, command: &KeyCommand) -> anyhow::Result<KeyInfo> {
    Ok(match command {
        KeyCommand::Create { name, kind, .. } => keys.create(name, *kind)?,
        KeyCommand::Import { name, file, format, .. } => keys.import(name, *format, &read(file)?)?,
        KeyCommand::Rename { from, to, .. } => keys.rename(from, to)?,
        KeyCommand::Remove { name, .. } => publish::remove_key(keys, book, &keys.get(name)?.0)?,
        KeyCommand::List { .. } | KeyCommand::Export { .. } => bail!("this command changes no key"),
    })
}

async fn keys_of_node(remote: &Remote, command: KeyCommand) -> anyhow::Result<Done> {
    let key: KeyView = match command {
        KeyCommand::Create { name, kind, .. } => {
            let request = CreateKey { name, kind: Some(kind.to_string()) };
            ask(remote, Method::POST, "keys", Some(&request)).await?
        }
        KeyCommand::Import { name, file, format, .. } => {
            let bytes = read(&file)?;
            let format = format.unwrap_or_else(|| KeyFormat::guess(&bytes));
            let key = match format {
                KeyFormat::Pem => String::from_utf8(bytes).context("the file is not PEM text")?,
                KeyFormat::Protobuf => Base::Base64Pad.encode(bytes),
            };
            let request = ImportKey { name, key, format: Some(format.to_string()) };
            ask(remote, Method::POST, "keys/import", Some(&request)).await?
        }
        KeyCommand::Rename { from, to, .. } => {
            ask(remote, Method::POST, &format!("keys/{}/rename", part(&from)?), Some(&RenameKey { to })).await?
        }
        KeyCommand::Remove { name, .. } => {
            ask(remote, Method::DELETE, &format!("keys/{}", part(&name)?), None::<&()>).await?
        }
        KeyCommand::List { .. } | KeyCommand::Export { .. } => {
            return Ok(Done::Listed(ask(remote, Method::GET, "keys", None::<&()>).await?));
        }
    };
    Ok(Done::Key(key))
}

/// Runs a command, and prints what became of it.
///
/// # Errors
/// One line of what went wrong, and what to do.
pub async fn names(loaded: &Loaded, command: NameCommand) -> anyhow::Result<()> {
    let (json, node) = command.terms();
    let worker = Worker::find(loaded, node).await?;
    match command {
        NameCommand::Publish { path, key, lifetime, ttl, .. } => {
            let published = match &worker {
                Worker::Files(keys, book) => {
                    let (info, keypair) = keys.get(&key)?;
                    let options = p2p::publish_options(loaded);
                    let terms =
                        Terms { lifetime: lifetime.unwrap_or(options.lifetime), ttl: ttl.unwrap_or(options.ttl) };
                    let asked = json!({ "key": key, "path": path });
                    let record = Recorded::begin(&loaded.config.data_dir, "name publish", asked)?;
                    let signed = publish::sign(book, &keypair, &path, terms, None, SystemTime::now());
                    let view = |published: Published| views::keys::published(Some(info), &published, &[]);
                    record.end(signed.map(view).map_err(Into::into), |view| json!(view))?
                }
                Worker::Node(remote) => {
                    let seconds = |duration: Duration| duration.as_secs();
                    let (lifetime_seconds, ttl_seconds) = (lifetime.map(seconds), ttl.map(seconds));
                    let request = Publish { path, key: Some(key), lifetime_seconds, ttl_seconds };
                    ask(remote, Method::POST, "publish", Some(&request)).await?
                }
            };
            print_view(json, &published, describe)
        }
        NameCommand::List { .. } => {
            let all = match &worker {
                Worker::Files(keys, book) => {
                    let view = |entry: Published| {
                        let info: Option<KeyInfo> = keys.find(&entry.key).map(|(info, _)| info);
                        views::keys::published(info, &entry, &[])
                    };
                    PublishedList { published: book.list().into_iter().map(view).collect() }
                }
                Worker::Node(remote) => ask(remote, Method::GET, "publish", None::<&()>).await?,
            };
            print_view(json, &all, |all| all.published.iter().map(describe).collect())
        }
    }
}

/// One line for each key.
fn table(keys: &[KeyView]) -> String {
    let width = keys.iter().map(|key| key.name.len()).max().unwrap_or_default();
    keys.iter().fold(String::new(), |mut text, key| {
        _ = writeln!(text, "{:width$}  {}  {}", key.name, key.id, key.kind);
        text
    })
}

/// A few lines about a name.
fn describe(published: &PublishedView) -> String {
    let PublishedView { key, name, value, sequence, valid_until_at, status, .. } = published;
    let key = key.as_deref().unwrap_or("a key that is not here");
    let until = UNIX_EPOCH.checked_add(Duration::from_secs(*valid_until_at)).unwrap_or(UNIX_EPOCH);
    // What dates can be written as ends with the year 9999, as it does for records.
    let until = httpdate::fmt_http_date(until);
    format!("{name} -> {value}\n  key {key}, sequence number {sequence}, valid until {until}\n  {status}\n")
}

/// Where a key was written to.
#[derive(Debug, Serialize)]
struct ExportView {
    file: String,
}

fn export(loaded: &Loaded, name: &str, format: KeyFormat, output: Option<&Path>) -> anyhow::Result<ExportView> {
    let bytes = Keystore::peek(&p2p::state_dir(&loaded.config.data_dir), name, format)?;
    let ending = match format {
        KeyFormat::Protobuf => "key",
        KeyFormat::Pem => "pem",
    };
    let path = output.map_or_else(|| PathBuf::from(format!("{name}.{ending}")), Path::to_owned);
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let mut file = file.with_context(|| format!("{} cannot be made", path.display()))?;
    file.write_all(&bytes).with_context(|| format!("{} cannot be written", path.display()))?;
    Ok(ExportView { file: path.display().to_string() })
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

/// Asks the node that runs.
async fn ask<T: DeserializeOwned>(
    remote: &Remote,
    method: Method,
    path: &str,
    body: Option<&impl Serialize>,
) -> anyhow::Result<T> {
    remote.client().ask(method, &format!("/api/v1/names/{path}"), body, Wait::Short).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_of_keys_lines_up() {
        let key = |name: &str| KeyView { name: name.to_owned(), id: "k51".to_owned(), kind: "ed25519".to_owned() };
        assert_eq!(table(&[key("a"), key("site")]), "a     k51  ed25519\nsite  k51  ed25519\n");
        for name in ["", "a/b", "../x", "a b"] {
            assert!(part(name).is_err(), "{name}");
        }
    }
}
