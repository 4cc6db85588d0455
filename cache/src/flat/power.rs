//! [`Power`]: what power loss would take of a flat store, noted call by call; and calls that fail. Exists in tests alone.
//!
//! The model is what POSIX promises: the content of a file is on the disk when the file was synced, a name when its folder was,
//! and neither says anything of the other. What was done to the names of one folder is lost from some moment on.
//!
//! Non-goals: what the system itself does with a real disk, which `tests/device.rs` shows.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

/// What the store asks of the file system.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Call<'a> {
    /// Make a folder.
    Make(&'a Path),
    /// Write to a file, behind so many bytes.
    Write(&'a Path, u64),
    Sync(&'a Path),
    Rename(&'a Path, &'a Path),
    Remove(&'a Path),
    SyncFolder(&'a Path),
}

/// What is not on the disk.
#[derive(Debug, Default, Clone)]
pub(crate) struct Volatile {
    /// Files with content that is not, and how much of it is.
    contents: BTreeMap<PathBuf, u64>,
    /// What was done in each folder since it was synced.
    names: BTreeMap<PathBuf, Vec<Change>>,
}

/// A name that has another file now, or none.
#[derive(Debug, Clone)]
struct Change {
    path: PathBuf,
    /// What it had before.
    former: Option<Vec<u8>>,
}

impl Volatile {
    fn note(&mut self, call: Call<'_>) {
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
                // The name that it had is of no account.
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

    /// The same of a copy of the store.
    pub(crate) fn of_copy(&self, dir: &Path, copy: &Path) -> Self {
        let there = |path: &Path| copy.join(path.strip_prefix(dir).expect("it is of this store"));
        let contents = self.contents.iter().map(|(path, synced)| (there(path), *synced)).collect();
        let change = |change: &Change| Change { path: there(&change.path), former: change.former.clone() };
        let names = self.names.iter().map(|(folder, changes)| (there(folder), changes.iter().map(change).collect()));
        let names = names.collect();
        Self { contents, names }
    }

    /// Takes away what is lost: of each file's content, and of what was done in each folder, what `kept` says, of so many.
    pub(crate) fn lose(&self, mut kept_bytes: impl FnMut(u64) -> u64, mut kept_names: impl FnMut(u64) -> u64) {
        for (path, synced) in &self.contents {
            let Ok(file) = fs::File::options().write(true).open(path) else { continue };
            let len = file.metadata().expect("is there").len();
            let kept = synced + kept_bytes(len.saturating_sub(*synced));
            // Its length may be there before its content is.
            file.set_len(kept)
                .and_then(|()| if kept.is_multiple_of(2) { file.set_len(len) } else { Ok(()) })
                .expect("cuts");
        }
        for changes in self.names.values() {
            let kept = usize::try_from(kept_names(changes.len() as u64)).expect("small");
            for Change { path, former } in changes[kept..].iter().rev() {
                // In a folder that is lost itself there is nothing to be done.
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

/// A store that is watched.
#[derive(Default)]
pub(crate) struct Power {
    pub(crate) volatile: Volatile,
    plan: Option<Plan>,
}

static WATCHED: Mutex<BTreeMap<PathBuf, &'static Mutex<Power>>> = Mutex::new(BTreeMap::new());

/// Watches the store in a folder from now on. Whoever holds the lock holds up everything that it changes.
pub(crate) fn watch(dir: &Path, volatile: Volatile) -> &'static Mutex<Power> {
    // As long as the process lives, which is that of a test.
    let power: &'static Mutex<Power> = Box::leak(Box::new(Mutex::new(Power { volatile, plan: None })));
    WATCHED.lock().expect("nobody panics").insert(dir.to_owned(), power);
    power
}

impl Power {
    /// Asks this before every call from now on, on the thread that makes it.
    pub(crate) fn plan(&mut self, plan: impl FnMut(Call<'_>, &Volatile) -> io::Result<()> + Send + 'static) {
        self.plan = Some(Box::new(plan));
    }

    /// Lets everything go on.
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

/// Notes a call, which is made while the guard is held, or says that it fails.
pub(super) fn meet(call: Call<'_>) -> io::Result<Option<MutexGuard<'static, Power>>> {
    let watched = {
        let watched = WATCHED.lock().expect("nobody panics");
        call.path().ancestors().find_map(|folder| watched.get(folder).copied())
    };
    let Some(power) = watched else { return Ok(None) };
    let mut power = power.lock().expect("no plan panics");
    let Power { volatile, plan } = &mut *power;
    if let Some(plan) = plan {
        plan(call, volatile)?;
    }
    volatile.note(call);
    Ok(Some(power))
}
