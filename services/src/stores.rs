//! Which store the settings want, where it is, and how it is opened.
//!
//! Goals: each kind has a place of its own below the data folder, so that what one wrote is never taken for another's; what
//! lies there of another kind is left alone, and the log says so.
//!
//! Non-goals: moving content from one kind to another, which CAR files do.

use anyhow::{Context as _, ensure};
use cache::flat::{self, FlatOptions};
use cache::memory::{self, MemoryOptions};
use cache::{
    BlockStore, CheckReport, Disk, DiskOptions, Figures, Finding, Offline, RebuildProgress, Register, Repaired,
    ScrubProgress, StoreError,
};
use config::{Cache, Config, Loaded, StoreKind};
use content::Cid;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the list of pins is.
const REGISTER_DIR: &str = "pins";

/// Opens the store of a data folder, which is created if need be.
///
/// # Errors
/// When the folder cannot be made or the store does not open.
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

/// Opens the list of who asked for which pin, beside the store that has them. What can be read of a damaged one is written anew,
/// and the damaged files are kept ([`Register::salvage`]).
///
/// # Errors
/// When the folder cannot be made, or another process has it open.
pub async fn open_register(data_dir: &Path, settings: &Cache) -> anyhow::Result<Register> {
    if settings.store == StoreKind::Memory {
        return Ok(Register::memory());
    }
    let dir = data_dir.join(REGISTER_DIR);
    let opening = tokio::task::spawn_blocking(move || Register::open_or_salvage(&dir));
    Ok(opening.await.context("opening the list of pins failed")??)
}

/// The list of pins, for a command that only looks at it while no gateway runs, if there is one that can be read.
///
/// # Errors
/// When it is in use, or the disk fails.
pub fn open_register_alone(loaded: &Loaded) -> anyhow::Result<Option<Register>> {
    let dir = loaded.config.data_dir.join(REGISTER_DIR);
    if !Register::is_in(&dir) {
        return Ok(None);
    }
    match Register::open_to_look(&dir) {
        Ok(register) => Ok(Some(register)),
        // Told of by itself ([`check_register`]).
        Err(StoreError::Corrupt(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// How many records the list of pins has, if all of it can be read, and what is wrong with it if not; `None` if there is none.
/// Nothing of it is changed.
///
/// # Errors
/// When another process has it open, or the disk fails.
pub fn check_register(data_dir: &Path, settings: &Cache) -> anyhow::Result<Option<Result<u64, String>>> {
    let dir = data_dir.join(REGISTER_DIR);
    if settings.store == StoreKind::Memory || !dir.exists() {
        return Ok(None);
    }
    match Register::check(&dir) {
        Ok(records) => Ok(Some(Ok(records))),
        Err(StoreError::Corrupt(damage)) => Ok(Some(Err(damage.to_string()))),
        Err(error) => Err(error.into()),
    }
}

/// Opens the store for a command that writes to it. A store that is created for that is named on standard error: a command
/// that was typed in another folder than the gateway's would otherwise write where nothing is served from.
///
/// # Errors
/// As [`open`], and when the store is one in memory, which a command cannot share with the gateway.
pub async fn open_or_create(loaded: &Loaded) -> anyhow::Result<Arc<dyn BlockStore>> {
    let Config { data_dir, cache, .. } = &loaded.config;
    refuse_memory(cache)?;
    let is_new = !is_in(data_dir, cache.store);
    let store = open(data_dir, cache).await?;
    if is_new {
        let place = absolute(data_dir);
        eprintln!(
            "created a store in {}; if the gateway's data folder is another one, name it with --data-dir",
            place.display()
        );
    }
    Ok(store)
}

/// Opens the store for a command that has no use for an empty one.
///
/// # Errors
/// As [`open_or_create`], and when there is no store.
pub async fn open_existing(loaded: &Loaded) -> anyhow::Result<Arc<dyn BlockStore>> {
    let Config { data_dir, cache, .. } = &loaded.config;
    refuse_memory(cache)?;
    ensure!(
        is_in(data_dir, cache.store),
        "there is no store in {}: name the gateway's data folder with --data-dir",
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
        "cache.store is \"memory\": what is stored is in the running gateway and nowhere else"
    );
    Ok(())
}

/// Says what lies in a data folder and is not used.
pub fn note_unused(data_dir: &Path, settings: &Cache) {
    for kind in unused(data_dir, settings.store) {
        let path = dir(data_dir, kind);
        tracing::info!(path = %path.display(), "a store of another kind lies here and is not used: see cache.store");
    }
}

/// The kinds other than `used` of which there is a store.
fn unused(data_dir: &Path, used: StoreKind) -> Vec<StoreKind> {
    let others = [StoreKind::Rocksdb, StoreKind::Flat].into_iter().filter(|kind| *kind != used);
    others.filter(|kind| is_in(data_dir, *kind)).collect()
}

/// Whether there is a store of a kind in a data folder.
fn is_in(data_dir: &Path, kind: StoreKind) -> bool {
    match kind {
        StoreKind::Rocksdb => Disk::is_in(&dir(data_dir, kind)),
        StoreKind::Flat => flat::is_in(&dir(data_dir, kind)),
        StoreKind::Memory => false,
    }
}

/// Where a store of a kind is. One in memory is nowhere.
fn dir(data_dir: &Path, kind: StoreKind) -> PathBuf {
    match kind {
        StoreKind::Rocksdb => data_dir.join("store"),
        StoreKind::Flat => data_dir.join("flat"),
        StoreKind::Memory => PathBuf::new(),
    }
}

/// Where a store notes that the welcome site was pinned in it. One in memory has nothing to note.
pub fn welcome_note(data_dir: &Path, settings: &Cache) -> Option<PathBuf> {
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

fn zstd(settings: &Cache) -> cache::stored::Options {
    cache::stored::Options { level: i32::from(settings.zstd_level) }
}

/// A store that no gateway runs on, to look at. Nothing of it is changed.
pub enum Looked {
    /// With an index, which can be mended.
    Rocksdb(Box<Offline>),
    /// Of files.
    Flat(Box<flat::offline::Offline>),
}

impl Looked {
    /// Opens the store that the settings want, if there is one.
    ///
    /// # Errors
    /// When there is none, or it is in use or does not open.
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

    /// What the store holds.
    ///
    /// # Errors
    /// What the disk said.
    pub fn figures(&self) -> anyhow::Result<Figures> {
        Ok(match self {
            Self::Rocksdb(store) => store.figures()?,
            Self::Flat(store) => store.figures()?,
        })
    }

    /// Reads every value and checks it, and whatever else there is to check. After each step the progress is shown, with what
    /// the step found.
    ///
    /// # Errors
    /// What the disk said of the index; damaged values are no errors.
    pub fn check(&self, on_progress: impl FnMut(&ScrubProgress, &[Finding])) -> anyhow::Result<CheckReport> {
        Ok(match self {
            Self::Rocksdb(store) => store.check(on_progress)?,
            Self::Flat(store) => store.check(on_progress)?,
        })
    }

    /// What a check found damaged and noted, to be forgotten when the store is next opened.
    ///
    /// # Errors
    /// What the disk said.
    pub fn noted(&self) -> anyhow::Result<Vec<Finding>> {
        Ok(match self {
            Self::Rocksdb(store) => store.noted()?,
            Self::Flat(_) => Vec::new(),
        })
    }

    /// The roots of the pins that the store has.
    ///
    /// # Errors
    /// What the disk said.
    pub fn pinned_roots(&self) -> anyhow::Result<HashSet<Cid>> {
        Ok(match self {
            Self::Rocksdb(store) => store.pins()?,
            Self::Flat(store) => store.pins(),
        }
        .into_iter()
        .map(|pin| pin.root)
        .collect())
    }

    /// Has the blocks let go that stay although no pin is known to have them.
    ///
    /// # Errors
    /// What the disk said.
    pub fn release_unclaimed(&self) -> anyhow::Result<()> {
        match self {
            Self::Rocksdb(store) => store.release_unclaimed()?,
            Self::Flat(_) => {}
        }
        Ok(())
    }
}

/// Mends what can be mended of the store that the settings want, values aside, while no gateway runs on it.
///
/// # Errors
/// When there is none, or it is in use, or what the disk said. What was mended before stays so.
pub fn repair(loaded: &Loaded, on_progress: &mut dyn FnMut(&RebuildProgress)) -> anyhow::Result<Repaired> {
    let Config { data_dir, cache: settings, .. } = &loaded.config;
    refuse_memory(settings)?;
    let dir = dir(data_dir, settings.store);
    Ok(match settings.store {
        StoreKind::Flat => flat::offline::Offline::repair(&dir)?,
        StoreKind::Rocksdb | StoreKind::Memory => Offline::repair(&dir, &disk_options(settings), on_progress)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_kind_has_a_place_of_its_own_and_sees_those_of_others() {
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
