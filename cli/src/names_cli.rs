//! `causeway key` and `causeway name`: IPNS keys, and the names published with them.
//!
//! A running node holds the lock of the keys, and commands use its admin API. Without a running node, a command takes
//! the lock and works on the files. The output is the same. `key export` always reads the file: a private key is never
//! sent to or by a gateway.
//!
//! If the gateways of a site share names (`site.names`), commands without a running node work on the database of the
//! site as well, where private keys are encrypted.

use crate::audited_change::AuditedChange;
use crate::options::NodeOptions;
use crate::output::print_view;
use crate::remote::client::Wait;
use crate::remote::{Remote, connect, connect_local};
use crate::values;
use anyhow::{Context as _, bail};
use api::keys::{CreateKey, ImportKey, KeyView, KeysView, Publish, PublishedList, PublishedView, RenameKey};
use cid::multibase::Base;
use clap::Subcommand;
use config::{Flags, Loaded, SiteNames};
use http::Method;
use p2p_bridge::names::key_format::{KEY_BYTES_MAX, KeyFormat, KeyKind};
use p2p_bridge::names::keystore::{KeyError, KeyInfo, Keystore, SELF};
use p2p_bridge::names::publish::{self, KnownRecords, Published, Terms};
use p2p_bridge::names::shared::SharedNames;
use p2p_bridge::names::store::NameStore;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use services::name_log::{NameCipher, NameLog};
use services::p2p;
use services::pinning::coordination::SingleService;
use services::views;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long to wait for another command that holds the lock of the keys.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

const KEY_HELP: &str = "An IPNS name is the ID of a key: the owner of the private key signs the records of /ipns/ID. \
    The key \"self\" is the node's own and always exists.\n\n\
    Exported keys are compatible with Kubo:\n\
    \x20 causeway key export site -o site.key        ipfs key import site site.key\n\
    \x20 ipfs key export blog -o blog.key            causeway key import blog blog.key\n\n\
    While a node runs on the data folder, it makes the changes; otherwise the command changes the files.\n\n\
    With site.names = \"shared\", keys are those of all gateways of the site, in its database, except for \"self\" and \
    keys that a gateway had before. A key can be given by its ID in place of its name.";

const NAME_HELP: &str = "To publish a site under a permanent name:\n\
    \x20 causeway key create site                    prints the name's ID\n\
    \x20 causeway name publish --key site /ipfs/CID  again for every new version\n\n\
    The running node publishes the record to the network and republishes it before it expires. Without a running node, \
    the record is signed and stored, and published when a node starts.";

/// `causeway key`
#[derive(Debug, Subcommand)]
#[command(after_help = KEY_HELP)]
pub enum KeyCommand {
    /// Create a key, and print its name, ID and type
    #[command(
        alias = "gen",
        after_help = "Examples:\n  causeway key create site\n  causeway key create other --type secp256k1"
    )]
    Create {
        /// The name of the key: letters, digits, dots, hyphens and underscores
        name: String,
        /// The type of the key: ed25519, secp256k1 or ecdsa
        #[arg(long = "type", value_name = "TYPE", default_value = "ed25519")]
        kind: KeyKind,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The node.
        #[command(flatten)]
        node: NodeOptions,
    },
    /// List the keys: name, ID and type
    #[command(alias = "ls", after_help = "Example:\n  causeway key list")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The node.
        #[command(flatten)]
        node: NodeOptions,
    },
    /// Export a private key to a new file that only you can read
    #[command(after_help = "Examples:\n\
            \x20 causeway key export site -o site.key\n\
            \x20 causeway key export site --format pem-pkcs8-cleartext")]
    Export {
        /// The name of the key
        name: String,
        /// The format: libp2p-protobuf-cleartext, or pem-pkcs8-cleartext for OpenSSL
        #[arg(long, short, default_value_t)]
        format: KeyFormat,
        /// The file to write [default: NAME.key or NAME.pem in the current folder]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The node.
        #[command(flatten)]
        node: NodeOptions,
    },
    /// Import a private key that Causeway or Kubo exported, or OpenSSL created
    #[command(after_help = "Example:\n  causeway key import site site.key")]
    Import {
        /// The name of the key
        name: String,
        /// The file; "-" for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The format: libp2p-protobuf-cleartext or pem-pkcs8-cleartext [default: detected]
        #[arg(long, short)]
        format: Option<KeyFormat>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The node.
        #[command(flatten)]
        node: NodeOptions,
    },
    /// Rename a key; the names published with it stay published
    #[command(after_help = "Example:\n  causeway key rename site old-site")]
    Rename {
        /// The current name
        from: String,
        /// The new name
        to: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The node.
        #[command(flatten)]
        node: NodeOptions,
    },
    /// Delete a key permanently, and stop publishing with it; export it first if you may need it again
    #[command(alias = "rm", after_help = "Example:\n  causeway key remove old-site")]
    Remove {
        /// The name of the key
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The node.
        #[command(flatten)]
        node: NodeOptions,
    },
}

/// `causeway name`
#[derive(Debug, Subcommand)]
#[command(after_help = NAME_HELP)]
pub enum NameCommand {
    /// Publish a path under a key's name, and print the result
    #[command(after_help = "Examples:\n\
            \x20 causeway name publish /ipfs/CID\n\
            \x20 causeway name publish --key site --ttl 5m /ipfs/CID")]
    Publish {
        /// The path to publish: /ipfs/CID, /ipfs/CID/PATH, a bare CID, or another name as /ipns/NAME
        path: String,
        /// The name of the key; "causeway key list" lists the keys
        #[arg(long, short, default_value = SELF)]
        key: String,
        /// How long each record is valid, such as 48h; a running node renews it
        #[arg(long, value_name = "TIME", value_parser = values::duration)]
        lifetime: Option<Duration>,
        /// How long resolvers may cache the record, such as 5m
        #[arg(long, value_name = "TIME", value_parser = values::duration)]
        ttl: Option<Duration>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The node.
        #[command(flatten)]
        node: NodeOptions,
    },
    /// List the names that this node publishes, with their state
    #[command(after_help = "Example:\n  causeway name list --json")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The node.
        #[command(flatten)]
        node: NodeOptions,
    },
}

impl KeyCommand {
    /// The settings that the options override.
    pub fn flags(&self) -> Flags {
        self.output_and_node().1.into()
    }

    /// Whether to print JSON, and the node.
    fn output_and_node(&self) -> (bool, &NodeOptions) {
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
    /// The settings that the options override.
    pub fn flags(&self) -> Flags {
        self.output_and_node().1.into()
    }

    /// Whether to print JSON, and the node.
    fn output_and_node(&self) -> (bool, &NodeOptions) {
        match self {
            Self::Publish { json, node, .. } | Self::List { json, node } => (*json, node),
        }
    }
}

/// Where a command runs.
enum Backend {
    Files(Arc<NameStore>),
    Node(Remote),
}

impl Backend {
    /// Where a command runs. With the name of an own key of the gateway, it needs the keys of the site only as far as
    /// they can be read.
    async fn find(loaded: &Loaded, node: &NodeOptions, key: Option<&str>) -> anyhow::Result<Self> {
        if node.admin().is_some() {
            return Ok(Self::Node(connect(loaded, node).await?));
        }
        let dir = p2p::state_dir(&loaded.config.data_dir);
        match Keystore::open(&dir, LOCK_TIMEOUT) {
            Ok(keys) => {
                let is_own = key.is_some_and(|key| keys.get(key).is_ok());
                let shared = shared_names_for(loaded, is_own).await?;
                Ok(Self::Files(Arc::new(NameStore::open(&dir, keys, shared)?)))
            }
            Err(KeyError::InUse { admin_address: Some(word), .. }) => {
                Ok(Self::Node(connect_local(loaded, node, &word).await?))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The keys and published names of the site, if the settings have one that shares them.
async fn shared_names(loaded: &Loaded) -> anyhow::Result<Option<Arc<dyn SharedNames>>> {
    let site = &loaded.config.site;
    if site.names == SiteNames::Own {
        return Ok(None);
    }
    let cipher = NameCipher::read(&site.names_key_file, &site.name);
    let cipher = cipher.map_err(|reason| loaded.error("site.names_key_file", reason))?;
    let log = site::open_name_log(site).await.map_err(|error| loaded.error(error.setting, error.reason))?;
    // A command puts no records.
    let names = NameLog::open(Arc::new(log), Arc::new(SingleService), cipher).await;
    Ok(Some(names.map_err(|error| loaded.error(error.setting(), error.to_string()))?))
}

/// The keys and published names of the site; none if they cannot be read and the command is for an own key.
async fn shared_names_for(loaded: &Loaded, is_own: bool) -> anyhow::Result<Option<Arc<dyn SharedNames>>> {
    match shared_names(loaded).await {
        Err(error) if is_own => {
            eprintln!("warning: {error:#}: the gateway's own key is used");
            Ok(None)
        }
        shared => shared,
    }
}

/// Runs work on a thread where it may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> anyhow::Result<T> + Send + 'static) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(work).await?
}

/// The result of a command on keys.
enum Done {
    /// All keys.
    Listed(KeysView),
    /// The key that was created, imported, renamed or removed.
    Key(KeyView),
}

/// Runs a command, and prints the result.
///
/// # Errors
/// With a message for the user.
pub async fn keys(loaded: &Loaded, command: KeyCommand) -> anyhow::Result<()> {
    let (json, node) = command.output_and_node();
    if let KeyCommand::Export { name, format, output, .. } = &command {
        anyhow::ensure!(
            node.admin().is_none(),
            "a private key is never sent over a connection: run the export on the machine of the data folder"
        );
        let view = export(loaded, name, *format, output.as_deref()).await?;
        return print_view(json, &view, |view| format!("{}\n", view.file));
    }
    let done = match Backend::find(loaded, node, None).await? {
        Backend::Files(keys) => {
            let data_dir = loaded.config.data_dir.clone();
            blocking(move || keys_of_files(&data_dir, &keys, command)).await?
        }
        Backend::Node(remote) => keys_of_node(&remote, command).await?,
    };
    match done {
        Done::Listed(all) => print_view(json, &all, |all| table(&all.keys)),
        Done::Key(key) => print_view(json, &key, |key| table(std::slice::from_ref(key))),
    }
}

fn keys_of_files(data_dir: &Path, keys: &NameStore, command: KeyCommand) -> anyhow::Result<Done> {
    let (name, request) = match &command {
        KeyCommand::Create { name, kind, .. } => ("key create", json!({ "name": name, "kind": kind.to_string() })),
        KeyCommand::Import { name, .. } => ("key import", json!({ "name": name })),
        KeyCommand::Rename { from, to, .. } => ("key rename", json!({ "from": from, "to": to })),
        KeyCommand::Remove { name, .. } => ("key remove", json!({ "name": name })),
        KeyCommand::List { .. } | KeyCommand::Export { .. } => {
            return Ok(Done::Listed(KeysView { keys: keys.list().into_iter().map(views::keys::key).collect() }));
        }
    };
    let record = AuditedChange::begin(data_dir, name, request)?;
    let key = record.end(change_key(keys, &command).map(views::keys::key), |key| json!(key))?;
    Ok(Done::Key(key))
}

/// Runs a command that changes a key, and returns the key.
fn change_key(keys: &NameStore, command: &KeyCommand) -> anyhow::Result<KeyInfo> {
    Ok(match command {
        KeyCommand::Create { name, kind, .. } => keys.create(name, *kind)?,
        KeyCommand::Import { name, file, format, .. } => keys.import(name, *format, &read(file)?)?,
        KeyCommand::Rename { from, to, .. } => keys.rename(from, to)?,
        KeyCommand::Remove { name, .. } => keys.remove(name)?,
        KeyCommand::List { .. } | KeyCommand::Export { .. } => bail!("this command does not change a key"),
    })
}

async fn keys_of_node(remote: &Remote, command: KeyCommand) -> anyhow::Result<Done> {
    let key: KeyView = match command {
        KeyCommand::Create { name, kind, .. } => {
            let request = CreateKey { name, kind: Some(kind.to_string()) };
            call(remote, Method::POST, "keys", Some(&request)).await?
        }
        KeyCommand::Import { name, file, format, .. } => {
            let bytes = read(&file)?;
            let format = format.unwrap_or_else(|| KeyFormat::guess(&bytes));
            let key = match format {
                KeyFormat::Pem => String::from_utf8(bytes).context("the file is not PEM text")?,
                KeyFormat::Protobuf => Base::Base64Pad.encode(bytes),
            };
            let request = ImportKey { name, key, format: Some(format.to_string()) };
            call(remote, Method::POST, "keys/import", Some(&request)).await?
        }
        KeyCommand::Rename { from, to, .. } => {
            call(remote, Method::POST, &format!("keys/{}/rename", path_segment(&from)?), Some(&RenameKey { to }))
                .await?
        }
        KeyCommand::Remove { name, .. } => {
            call(remote, Method::DELETE, &format!("keys/{}", path_segment(&name)?), None::<&()>).await?
        }
        KeyCommand::List { .. } | KeyCommand::Export { .. } => {
            return Ok(Done::Listed(call(remote, Method::GET, "keys", None::<&()>).await?));
        }
    };
    Ok(Done::Key(key))
}

/// Runs a command, and prints the result.
///
/// # Errors
/// With a message for the user.
pub async fn names(loaded: &Loaded, command: NameCommand) -> anyhow::Result<()> {
    let (json, node) = command.output_and_node();
    let key = match &command {
        NameCommand::Publish { key, .. } => Some(key.as_str()),
        NameCommand::List { .. } => None,
    };
    let backend = Backend::find(loaded, node, key).await?;
    match command {
        NameCommand::Publish { path, key, lifetime, ttl, .. } => {
            let published = match &backend {
                Backend::Files(keys) => {
                    let (reading, name) = (Arc::clone(keys), key.clone());
                    let (info, _) = blocking(move || Ok(reading.get(&name)?)).await?;
                    let options = p2p::publish_options(loaded);
                    let terms =
                        Terms { lifetime: lifetime.unwrap_or(options.lifetime), ttl: ttl.unwrap_or(options.ttl) };
                    let request = json!({ "key": key, "path": path });
                    let record = AuditedChange::begin(&loaded.config.data_dir, "name publish", request)?;
                    // The node that puts it compares it with the records of others.
                    let (keys, known, name) = (Arc::clone(keys), KnownRecords::default(), info.key);
                    let sign = move || Ok(publish::sign(&keys, &name, &path, terms, known, SystemTime::now())?);
                    let view = |published: Published| views::keys::published(Some(info), &published, &[]);
                    record.end(blocking(sign).await.map(view), |view| json!(view))?
                }
                Backend::Node(remote) => {
                    let seconds = |duration: Duration| duration.as_secs();
                    let (lifetime_seconds, ttl_seconds) = (lifetime.map(seconds), ttl.map(seconds));
                    let request = Publish { path, key: Some(key), lifetime_seconds, ttl_seconds };
                    call(remote, Method::POST, "publish", Some(&request)).await?
                }
            };
            print_view(json, &published, describe)
        }
        NameCommand::List { .. } => {
            let all = match &backend {
                Backend::Files(keys) => {
                    let view = |entry: Published| {
                        let info: Option<KeyInfo> = keys.find(&entry.key).map(|(info, _)| info);
                        views::keys::published(info, &entry, &[])
                    };
                    PublishedList { published: keys.publications().into_iter().map(view).collect() }
                }
                Backend::Node(remote) => call(remote, Method::GET, "publish", None::<&()>).await?,
            };
            print_view(json, &all, |all| all.published.iter().map(describe).collect())
        }
    }
}

/// One line for each key.
fn table(keys: &[KeyView]) -> String {
    let width = keys.iter().map(|key| key.name.len()).max().unwrap_or_default();
    keys.iter().fold(String::new(), |mut text, key| {
        let of_site = if key.of_site { "  site" } else { "" };
        _ = writeln!(text, "{:width$}  {}  {}{of_site}", key.name, key.id, key.kind);
        text
    })
}

/// The lines of a published name.
fn describe(published: &PublishedView) -> String {
    let PublishedView { key, name, value, sequence, valid_until_at, status, .. } = published;
    let key = key.as_deref().unwrap_or("(deleted)");
    let until = UNIX_EPOCH.checked_add(Duration::from_secs(*valid_until_at)).unwrap_or(UNIX_EPOCH);
    // HTTP dates end with the year 9999, as do the dates of IPNS records.
    let until = httpdate::fmt_http_date(until);
    format!("{name} -> {value}\n  key {key}, sequence number {sequence}, valid until {until}\n  {status}\n")
}

/// The file of an exported key.
#[derive(Debug, Serialize)]
struct ExportView {
    file: String,
}

async fn export(loaded: &Loaded, name: &str, format: KeyFormat, output: Option<&Path>) -> anyhow::Result<ExportView> {
    let dir = p2p::state_dir(&loaded.config.data_dir);
    let is_own = Keystore::peek(&dir, name, KeyFormat::Protobuf).is_ok();
    let shared = shared_names_for(loaded, is_own).await?;
    let bytes = NameStore::peek(&dir, shared.as_deref(), name, format)?;
    let ending = match format {
        KeyFormat::Protobuf => "key",
        KeyFormat::Pem => "pem",
    };
    let path = output.map_or_else(|| PathBuf::from(format!("{name}.{ending}")), Path::to_owned);
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let mut file = file.with_context(|| format!("{} cannot be created", path.display()))?;
    file.write_all(&bytes).with_context(|| format!("{} cannot be written", path.display()))?;
    Ok(ExportView { file: path.display().to_string() })
}

/// Reads the file of a key, up to its maximum size.
fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = KEY_BYTES_MAX as u64 + 1;
    let read = if path.as_os_str() == "-" {
        std::io::stdin().take(limit).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes))
    };
    read.with_context(|| format!("{} cannot be read", path.display()))?;
    Ok(bytes)
}

/// A key's name as a segment of a URL path. Invalid names are those of no key.
fn path_segment(name: &str) -> anyhow::Result<&str> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if name.is_empty() || !name.bytes().all(good) {
        bail!(KeyError::Missing(name.to_owned()));
    }
    Ok(name)
}

/// Calls the API of the running node.
async fn call<T: DeserializeOwned>(
    remote: &Remote,
    method: Method,
    path: &str,
    body: Option<&impl Serialize>,
) -> anyhow::Result<T> {
    remote.client().call(method, &format!("/api/v1/names/{path}"), body, Wait::Short).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_keys_is_aligned() {
        let key = |name: &str, of_site| KeyView {
            name: name.to_owned(),
            id: "k51".to_owned(),
            kind: "ed25519".to_owned(),
            of_site,
        };
        assert_eq!(table(&[key("a", false), key("blog", true)]), "a     k51  ed25519\nblog  k51  ed25519  site\n");
        for name in ["", "a/b", "../x", "a b"] {
            assert!(path_segment(name).is_err(), "{name}");
        }
    }
}
