//! Opening the configured block store.
//!
//! Goals: each kind of store has its own folder in the data directory, so that stores of different kinds are never
//! mixed up; a store of another kind is left alone, and logged.
//!
//! Non-goals: moving content between kinds, which CAR files do.

use anyhow::{Context as _, ensure};
use cache::flat::{self, FlatOptions};
use cache::memory::{self, MemoryOptions};
use cache::store::IsWithheld;
use cache::{
    BlockStore, CheckReport, Disk, DiskOptions, Figures, Finding, MetadataStore, Offline, RebuildProgress, Repaired,
    ScrubProgress, StoreError,
};
use config::{Cache, Config, Loaded, StoreKind};
use content::Cid;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folder of the pin metadata store.
const REGISTER_DIR: &str = "pins";

/// Opens the store of a data directory, which is created if it does not exist.
///
/// # Errors
/// When creating the folder or opening the store fails.
pub async fn open(data_dir: &Path, settings: &Cache) -> anyhow::Result<Arc<dyn BlockStore>> {
    let (data_dir, settings) = (data_dir.to_owned(), settings.clone());
    let opening = tokio::task::spawn_blocking(move || open_now(&data_dir, &settings));
    opening.await.context("opening the store failed")?
}

fn open_now(data_dir: &Path, settings: &Cache) -> anyhow::Result<Arc<dyn BlockStore>> {
    fs::create_dir_all(data_dir).with_context(|| format!("{} cannot be created", data_dir.display()))?;
    let dir = dir(data_dir, settings.store);
    Ok(match settings.store {
        StoreKind::Rocksdb => Arc::new(Disk::open(&dir, disk_options(settings))?),
        StoreKind::Flat => flat::open(&dir, &flat_options(settings))?,
        StoreKind::Memory => memory::open(&memory_options(settings))?,
    })
}

/// Opens the pin metadata store. If it is damaged, what can be read is written to a new one, and the damaged files are
/// kept ([`MetadataLog::salvage`](cache::MetadataLog::salvage)).
///
/// # Errors
/// When creating the folder fails, or another process has the store open.
pub async fn open_register(data_dir: &Path, settings: &Cache) -> anyhow::Result<MetadataStore> {
    if settings.store == StoreKind::Memory {
        return Ok(MetadataStore::memory());
    }
    let dir = data_dir.join(REGISTER_DIR);
    let opening = tokio::task::spawn_blocking(move || MetadataStore::open_or_salvage(&dir));
    Ok(opening.await.context("opening the pin metadata store failed")??)
}

/// Opens the pin metadata store read-only, for a command without a gateway, if it exists and can be read.
///
/// # Errors
/// When it is in use, or the disk fails.
pub fn open_register_alone(loaded: &Loaded) -> anyhow::Result<Option<MetadataStore>> {
    let dir = loaded.config.data_dir.join(REGISTER_DIR);
    if !MetadataStore::is_in(&dir) {
        return Ok(None);
    }
    match MetadataStore::open_read_only(&dir) {
        Ok(register) => Ok(Some(register)),
        // Reported separately ([`check_register`]).
        Err(StoreError::Corrupt(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Checks the pin metadata store read-only. The number of records, or the damage; `None` if there is no store.
///
/// # Errors
/// When another process has it open, or the disk fails.
pub fn check_register(data_dir: &Path, settings: &Cache) -> anyhow::Result<Option<Result<u64, String>>> {
    let dir = data_dir.join(REGISTER_DIR);
    if settings.store == StoreKind::Memory || !dir.exists() {
        return Ok(None);
    }
    match MetadataStore::check(&dir) {
        Ok(records) => Ok(Some(Ok(records))),
        Err(StoreError::Corrupt(damage)) => Ok(Some(Err(damage.to_string()))),
        Err(error) => Err(error.into()),
    }
}

/// Opens the store for a command that writes to it. If it creates one, it names it on standard error: a command that
/// was run in another folder than the gateway's would otherwise write to a store that nothing serves.
///
/// # Errors
/// As [`open`], and when the store is in memory, which a command cannot share with the gateway, or that of a gateway of
/// a site.
pub async fn open_or_create(loaded: &Loaded) -> anyhow::Result<Arc<dyn BlockStore>> {
    let Config { data_dir, cache, .. } = &loaded.config;
    refuse_memory(cache)?;
    refuse_site(loaded)?;
    let is_new = !is_in(data_dir, cache.store);
    let store = open(data_dir, cache).await?;
    if is_new {
        let place = absolute(data_dir);
        eprintln!(
            "created a store in {}; if the gateway uses another data directory, name it with --data-dir",
            place.display()
        );
    }
    Ok(store)
}

/// Opens the store for a command that needs an existing one.
///
/// # Errors
/// As [`open_or_create`], and when there is no store.
pub async fn open_existing(loaded: &Loaded) -> anyhow::Result<Arc<dyn BlockStore>> {
    let Config { data_dir, cache, .. } = &loaded.config;
    refuse_memory(cache)?;
    refuse_site(loaded)?;
    ensure!(
        is_in(data_dir, cache.store),
        "there is no store in {}: name the gateway's data directory with --data-dir",
        absolute(data_dir).display()
    );
    open(data_dir, cache).await
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn refuse_memory(settings: &Cache) -> anyhow::Result<()> {
    ensure!(
        settings.store != StoreKind::Memory,
        "cache.store is \"memory\": the content is stored in the running gateway only"
    );
    Ok(())
}

/// The own disk of a gateway of a site has no pins of the site, and a command would make pins that nothing lists.
fn refuse_site(loaded: &Loaded) -> anyhow::Result<()> {
    let site = &loaded.config.site;
    ensure!(
        !site.is_on(),
        "this gateway is one of the site {:?}, whose content is reached by a running gateway: start it, or name another \
         one of the site with --admin",
        site.name
    );
    Ok(())
}

/// Logs stores in a data directory that are not used.
pub fn log_unused(data_dir: &Path, settings: &Cache) {
    for kind in unused(data_dir, settings.store) {
        let path = dir(data_dir, kind);
        tracing::info!(path = %path.display(), "there is a store of another kind, which is not used: see cache.store");
    }
}

/// The kinds other than `used` for which a store exists.
fn unused(data_dir: &Path, used: StoreKind) -> Vec<StoreKind> {
    let others = [StoreKind::Rocksdb, StoreKind::Flat].into_iter().filter(|kind| *kind != used);
    others.filter(|kind| is_in(data_dir, *kind)).collect()
}

/// Whether a data directory has a store of a kind.
fn is_in(data_dir: &Path, kind: StoreKind) -> bool {
    match kind {
        StoreKind::Rocksdb => Disk::is_in(&dir(data_dir, kind)),
        StoreKind::Flat => flat::is_in(&dir(data_dir, kind)),
        StoreKind::Memory => false,
    }
}

/// The folder of a store of a kind. A store in memory has none.
fn dir(data_dir: &Path, kind: StoreKind) -> PathBuf {
    match kind {
        StoreKind::Rocksdb => data_dir.join("store"),
        StoreKind::Flat => data_dir.join("flat"),
        StoreKind::Memory => PathBuf::new(),
    }
}

/// The file in which a store records that the welcome site was pinned. A store in memory has none.
pub fn welcome_record_path(data_dir: &Path, settings: &Cache) -> Option<PathBuf> {
    (settings.store != StoreKind::Memory).then(|| dir(data_dir, settings.store).join("welcome"))
}

fn disk_options(settings: &Cache) -> DiskOptions {
    DiskOptions {
        cache_bytes_max: settings.disk_bytes_max,
        free_bytes_min: settings.disk_free_bytes_min,
        zstd: zstd(settings),
        ..DiskOptions::default()
    }
}

fn flat_options(settings: &Cache) -> FlatOptions {
    FlatOptions {
        cache_bytes_max: settings.disk_bytes_max,
        free_bytes_min: settings.disk_free_bytes_min,
        zstd: zstd(settings),
        ..FlatOptions::default()
    }
}

fn memory_options(settings: &Cache) -> MemoryOptions {
    MemoryOptions {
        bytes_max: settings.memory_bytes_max,
        cache_bytes_max: settings.disk_bytes_max,
        zstd: zstd(settings),
        ..MemoryOptions::default()
    }
}

fn zstd(settings: &Cache) -> content::stored::CompressionOptions {
    content::stored::CompressionOptions { level: i32::from(settings.zstd_level) }
}

/// A store opened read-only, while no gateway uses it.
pub enum OfflineStore {
    /// A store with an index, which can be repaired.
    Rocksdb(Box<Offline>),
    /// A store of files.
    Flat(Box<flat::offline::Offline>),
}

impl OfflineStore {
    /// Opens the configured store.
    ///
    /// # Errors
    /// When it does not exist, is in use, or cannot be opened.
    pub fn open(loaded: &Loaded) -> anyhow::Result<Self> {
        let Config { data_dir, cache: settings, .. } = &loaded.config;
        refuse_memory(settings)?;
        let dir = dir(data_dir, settings.store);
        Ok(match settings.store {
            StoreKind::Flat => Self::Flat(Box::new(flat::offline::Offline::open(&dir)?)),
            StoreKind::Rocksdb | StoreKind::Memory => {
                Self::Rocksdb(Box::new(Offline::open(&dir, &disk_options(settings))?))
            }
        })
    }

    /// The amounts of stored content.
    ///
    /// # Errors
    /// The error of the disk.
    pub fn figures(&self) -> anyhow::Result<Figures> {
        Ok(match self {
            Self::Rocksdb(store) => store.figures()?,
            Self::Flat(store) => store.figures()?,
        })
    }

    /// Verifies all stored blocks and the index. After each step, `on_progress` is called with the findings of the
    /// step. Missing blocks that are withheld are counted as such.
    ///
    /// # Errors
    /// Errors of the disk or the index; corrupt blocks are not errors.
    pub fn check(
        &self,
        is_withheld: &IsWithheld,
        on_progress: impl FnMut(&ScrubProgress, &[Finding]),
    ) -> anyhow::Result<CheckReport> {
        Ok(match self {
            Self::Rocksdb(store) => store.check(is_withheld, on_progress)?,
            Self::Flat(store) => store.check(is_withheld, on_progress)?,
        })
    }

    /// Blocks that a check found corrupt and recorded, to be deleted when the store is next opened.
    ///
    /// # Errors
    /// The error of the disk.
    pub fn noted(&self) -> anyhow::Result<Vec<Finding>> {
        Ok(match self {
            Self::Rocksdb(store) => store.noted()?,
            Self::Flat(_) => Vec::new(),
        })
    }

    /// The roots of the pins in the store.
    ///
    /// # Errors
    /// The error of the disk.
    pub fn pinned_roots(&self) -> anyhow::Result<HashSet<Cid>> {
        Ok(match self {
            Self::Rocksdb(store) => store.pins()?,
            Self::Flat(store) => store.pins(),
        }
        .into_iter()
        .map(|pin| pin.root)
        .collect())
    }

    /// Makes blocks evictable that are kept although no known pin has them.
    ///
    /// # Errors
    /// The error of the disk.
    pub fn release_unclaimed(&self) -> anyhow::Result<()> {
        match self {
            Self::Rocksdb(store) => store.release_unclaimed()?,
            Self::Flat(_) => {}
        }
        Ok(())
    }
}

/// Repairs what can be repaired of the configured store except corrupt blocks, while no gateway uses it. That withheld
/// blocks are missing needs no repair.
///
/// # Errors
/// When it does not exist, is in use, or the disk fails. Completed repairs stay.
pub fn repair(
    loaded: &Loaded,
    is_withheld: &IsWithheld,
    on_progress: &mut dyn FnMut(&RebuildProgress),
) -> anyhow::Result<Repaired> {
    let Config { data_dir, cache: settings, .. } = &loaded.config;
    refuse_memory(settings)?;
    let dir = dir(data_dir, settings.store);
    Ok(match settings.store {
        StoreKind::Flat => flat::offline::Offline::repair(&dir)?,
        StoreKind::Rocksdb | StoreKind::Memory => {
            Offline::repair(&dir, &disk_options(settings), is_withheld, on_progress)?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_kind_has_its_own_folder_and_detects_the_others() {
        let data = tempfile::tempdir().expect("a directory");
        let settings = |store| Cache { store, disk_free_bytes_min: 0, ..Cache::default() };
        let kinds = [StoreKind::Memory, StoreKind::Flat, StoreKind::Rocksdb];
        let unused_after = [vec![], vec![], vec![StoreKind::Flat]];
        for (kind, expected) in kinds.into_iter().zip(unused_after) {
            assert_eq!(unused(data.path(), kind), expected, "{kind:?}");
            open(data.path(), &settings(kind)).await.expect("opens").close().await.expect("closes");
        }
        assert_eq!(unused(data.path(), StoreKind::Memory), [StoreKind::Rocksdb, StoreKind::Flat]);
    }
}
