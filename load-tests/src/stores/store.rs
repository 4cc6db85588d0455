//! The stores that are compared: Causeway's and Kubo's, each through its real binary.

use super::Options;
use crate::directory::temp_dir;
use crate::servers::{Causeway, Kubo, KuboRepo, Server, Setup, causeway_import, without_settings};
use crate::timed;
use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// The setting that chooses a store of Causeway's.
const SETTING: &str = "CAUSEWAY_CACHE_STORE";
/// The smallest memory tier that can be set: reads come from the store.
const LITTLE_RAM: (&str, &str) = ("CAUSEWAY_CACHE_RAM_BYTES_MAX", "1048576");
/// With the same CIDs as Causeway with `--cid-version=1`.
const KUBO_ADD: [&str; 5] = ["add", "-r", "-Q", "--cid-version=1", "--fast-provide-root=false"];

/// A store that is compared.
#[derive(Debug, Clone, Copy)]
pub struct Participant {
    pub name: &'static str,
    /// Whether a command can add to it. Otherwise only a server can fill it.
    pub adds: bool,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// By its name in the setting.
    Causeway(&'static str),
    Kubo(Datastore),
}

/// Kubo's datastores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Datastore {
    Flatfs { sync: bool },
    Pebble,
    LevelDb,
}

impl Participant {
    const ALL: [Self; 7] = [
        Self::causeway("causeway-rocksdb", "rocksdb"),
        Self::causeway("causeway-flat", "flat"),
        Self::causeway("causeway-memory", "memory"),
        Self::kubo("kubo-flatfs", Datastore::Flatfs { sync: true }),
        Self::kubo("kubo-flatfs-unsynced", Datastore::Flatfs { sync: false }),
        Self::kubo("kubo-pebble", Datastore::Pebble),
        Self::kubo("kubo-leveldb", Datastore::LevelDb),
    ];

    const fn causeway(name: &'static str, store: &'static str) -> Self {
        Self { name, adds: true, kind: Kind::Causeway(store) }
    }

    const fn kubo(name: &'static str, datastore: Datastore) -> Self {
        Self { name, adds: true, kind: Kind::Kubo(datastore) }
    }

    /// The chosen ones that are supported, and why others are not.
    pub fn all(options: &Options) -> Result<(Vec<Self>, Vec<String>)> {
        let unknown = options.stores.iter().find(|name| !Self::ALL.iter().any(|one| one.name == name.as_str()));
        ensure!(unknown.is_none(), "there is no store {unknown:?}");
        let (mut able, mut notes) = (Vec::new(), Vec::new());
        for participant in Self::ALL {
            if !options.stores.is_empty() && !options.stores.iter().any(|name| name == participant.name) {
                continue;
            }
            let note = match participant.try_to_add(options) {
                Ok(()) => {
                    able.push(participant);
                    continue;
                }
                Err(why) if participant.in_memory() && participant.is_known(options)? => {
                    able.push(Self { adds: false, ..participant });
                    format!("`{}` cannot be added to by a command: {}", participant.name, last_line(&why))
                }
                Err(why) => format!("`{}` is left out: {}", participant.name, last_line(&why)),
            };
            eprintln!("{note}");
            notes.push(note);
        }
        Ok((able, notes))
    }

    /// Adds a small file.
    fn try_to_add(self, options: &Options) -> Result<()> {
        let dir = temp_dir("try")?;
        std::fs::write(dir.path().join("file"), "something")?;
        self.fresh(options)?.add(dir.path()).map(drop)
    }

    /// Whether this Causeway knows the store.
    fn is_known(self, options: &Options) -> Result<bool> {
        let mut check = self.fresh(options)?.command();
        Ok(check.args(["config", "check"]).output()?.status.success())
    }

    /// An empty store.
    pub fn fresh(self, options: &Options) -> Result<Store<'_>> {
        Ok(match self.kind {
            Kind::Causeway(store) => {
                let (binary, data) = (&options.binaries.causeway, temp_dir("store")?);
                Store::Causeway { binary, store: Some(store), data }
            }
            Kind::Kubo(datastore) => Store::Kubo(datastore.init(&options.binaries.kubo)?),
        })
    }

    pub fn is_causeway(self) -> bool {
        matches!(self.kind, Kind::Causeway(_))
    }

    /// Whether its content is lost with its process.
    pub fn in_memory(self) -> bool {
        self.kind == Kind::Causeway("memory")
    }
}

/// The cause of a command's failure is in the last line of its output.
fn last_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let line = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    line.rsplit("error: ").next().unwrap_or_default().trim().trim_end_matches('.').to_owned()
}

impl Datastore {
    fn init(self, ipfs: &Path) -> Result<KuboRepo> {
        let repo = match self {
            Self::Flatfs { sync } => KuboRepo::init(ipfs, |settings| set_sync(settings, sync)),
            Self::Pebble => KuboRepo::init_as(ipfs, "pebbleds"),
            Self::LevelDb => KuboRepo::init_on(
                ipfs,
                json!({ "type": "levelds", "path": "datastore", "prefix": "leveldb.datastore", "compression": "none" }),
            ),
        }?;
        let spec = std::fs::read_to_string(repo.path().join("datastore_spec"))?;
        ensure!(spec.contains(self.kind()), "Kubo's datastore is not {}: {spec}", self.kind());
        Ok(repo)
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Flatfs { .. } => "\"flatfs\"",
            Self::Pebble => "\"pebbleds\"",
            Self::LevelDb => "{\"path\":\"datastore\",\"type\":\"levelds\"}",
        }
    }
}

/// Whether flatfs syncs what it writes; as it is shipped, it does not.
fn set_sync(settings: &mut Value, sync: bool) {
    for mount in settings["Datastore"]["Spec"]["mounts"].as_array_mut().into_iter().flatten() {
        if mount["type"] == "flatfs" {
            mount["sync"] = json!(sync);
        }
    }
}

/// Blocks in a directory. A Causeway has its default store unless another is set.
pub enum Store<'a> {
    Causeway { binary: &'a Path, store: Option<&'static str>, data: TempDir },
    Kubo(KuboRepo),
}

/// A server on a store. Fields are dropped in this order: the server ends, then its directory is deleted.
pub struct Node {
    pub server: Server,
    _data: Option<TempDir>,
}

impl Store<'_> {
    pub fn path(&self) -> &Path {
        match self {
            Self::Causeway { data, .. } => data.path(),
            Self::Kubo(repo) => repo.path(),
        }
    }

    /// Adds a file or a directory and pins it. The last line of the output is its CID.
    pub fn add(&self, path: &Path) -> Result<timed::Ran> {
        let mut command = self.command();
        match self {
            Self::Causeway { data, .. } => {
                command.args(["add", "-Q", "--cid-version=1", "--data-dir"]).arg(data.path()).arg(path)
            }
            Self::Kubo(_) => command.args(KUBO_ADD).arg(path),
        };
        timed::settled(&mut command)
    }

    /// Imports a CAR file and pins its root.
    pub fn import(&self, archive: &Path) -> Result<timed::Ran> {
        timed::settled(&mut match self {
            Self::Causeway { binary, data, .. } => causeway_import(binary, data.path(), archive),
            Self::Kubo(repo) => repo.import(archive),
        })
    }

    /// Writes a file to standard output.
    pub fn cat(&self, path: &str) -> Command {
        let mut command = self.command();
        match self {
            Self::Causeway { data, .. } => command.args(["get", path, "-o", "-", "--data-dir"]).arg(data.path()),
            Self::Kubo(_) => command.args(["cat", path]),
        };
        command
    }

    fn command(&self) -> Command {
        match self {
            Self::Causeway { binary, store, .. } => {
                let mut command = without_settings(binary);
                command.envs(store.map(|store| (SETTING, store)));
                command
            }
            Self::Kubo(repo) => repo.command(),
        }
    }

    /// A server on it, offline.
    pub async fn serve(self) -> Result<Node> {
        match self {
            Self::Causeway { binary, store, data } => {
                let setup = Setup { data: Some(data.path()), flags: vec!["--offline"], ..Setup::default() };
                let causeway = causeway(binary, store, setup).await?;
                Ok(Node { server: causeway.server, _data: Some(data) })
            }
            Self::Kubo(repo) => Ok(Node { server: Kubo::on(repo, &["--offline"]).await?.server, _data: None }),
        }
    }

    /// A server on this one, which is empty, with a server on another one as its peer.
    pub async fn serve_behind(self, source: &Self) -> Result<(Node, Causeway)> {
        let (Self::Causeway { binary, store, data }, Self::Causeway { store: from, data: held, .. }) = (self, source)
        else {
            bail!("only Causeway is filled through the network");
        };
        let source = causeway(binary, *from, Setup { data: Some(held.path()), ..Setup::default() }).await?;
        let peer = source.multiaddr()?;
        let setup = Setup { data: Some(data.path()), peers: &[peer], ..Setup::default() };
        let causeway = causeway(binary, store, setup).await?;
        Ok((Node { server: causeway.server, _data: Some(data) }, source))
    }
}

async fn causeway(binary: &Path, store: Option<&str>, setup: Setup<'_>) -> Result<Causeway> {
    let settings: Vec<(&str, &str)> = [LITTLE_RAM].into_iter().chain(store.map(|store| (SETTING, store))).collect();
    Causeway::start(binary, Setup { settings: &settings, ..setup }).await
}

#[test]
fn the_cause_is_in_the_last_line() {
    let error = anyhow::anyhow!("\"causeway\" \"add\": exit status: 2: error: there is no such setting.\n\n");
    assert_eq!(last_line(&error), "there is no such setting");
    assert_eq!(last_line(&anyhow::anyhow!("one\ntwo")), "two");
}

#[test]
fn flatfs_is_told_to_sync_and_nothing_else_is() {
    let mut settings = json!({ "Datastore": { "Spec": { "mounts": [
        { "type": "flatfs", "sync": false },
        { "type": "levelds" },
    ] } } });
    set_sync(&mut settings, true);
    assert_eq!(
        settings["Datastore"]["Spec"]["mounts"],
        json!([{ "type": "flatfs", "sync": true }, { "type": "levelds" }])
    );
}
