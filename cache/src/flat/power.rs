//! [`Power`]: simulates power loss and failing calls of a flat store. Compiled for tests only.
//!
//! The model is POSIX: a file's content is durable when the file was synced, a name when its directory was synced,
//! independently of each other. The changes of one directory are lost from some moment on.
//!
//! Non-goals: the behaviour of a real disk, which `tests/device.rs` covers.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

/// A file system call of the store.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Call<'a> {
    /// Creates a directory.
    Make(&'a Path),
    /// Writes to a file from an offset.
    Write(&'a Path, u64),
    Sync(&'a Path),
    Rename(&'a Path, &'a Path),
    Remove(&'a Path),
    SyncFolder(&'a Path),
}

/// Changes that are not synced.
#[derive(Debug, Default, Clone)]
pub(crate) struct Volatile {
    /// Files with unsynced content, and their synced lengths.
    contents: BTreeMap<PathBuf, u64>,
    /// The changes in each directory since it was synced.
    names: BTreeMap<PathBuf, Vec<Change>>,
}

/// A created, replaced or deleted name.
#[derive(Debug, Clone)]
struct Change {
    path: PathBuf,
    /// The previous content.
    former: Option<Vec<u8>>,
}

impl Volatile {
    fn record(&mut self, call: Call<'_>) {
        match call {
            Call::Make(path) => self.change(path, None),
            Call::Write(path, length) => {
                if !path.exists() {
                    self.change(path, None);
                }
                let synced = self.contents.entry(path.to_owned()).or_insert(length);
                *synced = (*synced).min(length);
            }
            Call::Sync(path) => _ = self.contents.remove(path),
            Call::Rename(from, to) => {
                let content = self.contents.remove(from);
                self.contents.remove(to);
                if let Some(synced) = content {
                    self.contents.insert(to.to_owned(), synced);
                }
                // The old, temporary name does not matter.
                self.change(to, fs::read(to).ok());
            }
            Call::Remove(path) => {
                self.contents.remove(path);
                if let Ok(former) = fs::read(path) {
                    self.change(path, Some(former));
                }
            }
            Call::SyncFolder(path) => _ = self.names.remove(path),
        }
    }

    fn change(&mut self, path: &Path, former: Option<Vec<u8>>) {
        let folder = path.parent().expect("a store is in a folder").to_owned();
        self.names.entry(folder).or_default().push(Change { path: path.to_owned(), former });
    }

    /// The same for a copy of the store.
    pub(crate) fn of_copy(&self, dir: &Path, copy: &Path) -> Self {
        let there = |path: &Path| copy.join(path.strip_prefix(dir).expect("it is of this store"));
        let contents = self.contents.iter().map(|(path, synced)| (there(path), *synced)).collect();
        let change = |change: &Change| Change { path: there(&change.path), former: change.former.clone() };
        let names = self.names.iter().map(|(folder, changes)| (there(folder), changes.iter().map(change).collect()));
        let names = names.collect();
        Self { contents, names }
    }

    /// Reverts lost changes: of each file's unsynced bytes and of each directory's changes, keeps as many as the
    /// functions return.
    pub(crate) fn lose(&self, mut kept_bytes: impl FnMut(u64) -> u64, mut kept_names: impl FnMut(u64) -> u64) {
        for (path, synced) in &self.contents {
            let Ok(file) = fs::File::options().write(true).open(path) else { continue };
            let len = file.metadata().expect("is there").len();
            let kept = synced + kept_bytes(len.saturating_sub(*synced));
            // The length may be synced before the content.
            file.set_len(kept)
                .and_then(|()| if kept.is_multiple_of(2) { file.set_len(len) } else { Ok(()) })
                .expect("cuts");
        }
        for changes in self.names.values() {
            let kept = usize::try_from(kept_names(changes.len() as u64)).expect("small");
            for Change { path, former } in changes[kept..].iter().rev() {
                // The directory itself may be lost.
                _ = match former {
                    Some(former) => fs::write(path, former),
                    None if path.is_dir() => fs::remove_dir_all(path),
                    None => fs::remove_file(path),
                };
            }
        }
    }
}

type Plan = Box<dyn FnMut(Call<'_>, &Volatile) -> io::Result<()> + Send>;

/// A store under test.
#[derive(Default)]
pub(crate) struct Power {
    pub(crate) volatile: Volatile,
    plan: Option<Plan>,
}

static WATCHED: Mutex<BTreeMap<PathBuf, &'static Mutex<Power>>> = Mutex::new(BTreeMap::new());

/// Starts watching the store in a directory. Holding the lock blocks all of its changes.
pub(crate) fn watch(dir: &Path, volatile: Volatile) -> &'static Mutex<Power> {
    // Leaked: it lives as long as the test process.
    let power: &'static Mutex<Power> = Box::leak(Box::new(Mutex::new(Power { volatile, plan: None })));
    WATCHED.lock().expect("not poisoned").insert(dir.to_owned(), power);
    power
}

impl Power {
    /// Runs `plan` before every later call, on the calling thread.
    pub(crate) fn plan(&mut self, plan: impl FnMut(Call<'_>, &Volatile) -> io::Result<()> + Send + 'static) {
        self.plan = Some(Box::new(plan));
    }

    /// Removes the plan.
    pub(crate) fn clear(&mut self) {
        self.plan = None;
    }
}

impl<'a> Call<'a> {
    fn path(self) -> &'a Path {
        match self {
            Call::Make(path) | Call::Write(path, _) | Call::Sync(path) | Call::Remove(path) => path,
            Call::SyncFolder(path) | Call::Rename(_, path) => path,
        }
    }
}

/// Records a call, which is made while the guard is held, or fails it.
pub(super) fn intercept(call: Call<'_>) -> io::Result<Option<MutexGuard<'static, Power>>> {
    let watched = {
        let watched = WATCHED.lock().expect("not poisoned");
        call.path().ancestors().find_map(|folder| watched.get(folder).copied())
    };
    let Some(power) = watched else { return Ok(None) };
    let mut power = power.lock().expect("no plan panics");
    let Power { volatile, plan } = &mut *power;
    if let Some(plan) = plan {
        plan(call, volatile)?;
    }
    volatile.record(call);
    Ok(Some(power))
}
