//! [`Lists`]: every list, where its text is, and what became of it when it was last read.

use crate::denylists::reader::{self, Found, Reader};
use crate::denylists::running::{Rules, Running};
use crate::denylists::subscription::{Fetched, Subscription};
use crate::denylists::{keeper, local};
use crate::supervision::Supervisor;
use config::{ListPlace, ListSetting, PolicyMode, PolicySettings};
use content::denylist::{List, Matcher, PathPattern, Rule, Source, Target};
use content::{Verdict, hashes};
use p2p_bridge::durable;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

/// Where lists are kept, below the data folder.
const FOLDER: &str = "denylists";
/// What the local list is called.
pub const LOCAL: &str = "local";
/// What `policy.deny` is called.
pub const SETTINGS: &str = "settings";

/// Why the gateway does not start with these lists.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct StartError {
    /// The setting that it is about.
    pub setting: &'static str,
    /// Which list.
    pub place: String,
    /// What is wrong with it.
    pub reason: String,
}

/// What is done whenever the rules have changed: what was remembered under former ones is of no use.
type OnChange = Box<dyn Fn() + Send + Sync>;

/// Every list. Shared by tasks and the admin API.
pub struct Lists {
    running: Arc<Running>,
    /// In the order in which they count.
    entries: Vec<Arc<Entry>>,
    mode: PolicyMode,
    denied: List,
    refresh: Duration,
    bytes_max: u64,
    /// Held while the rules are put together, so that none is lost of two that change at once.
    swapping: Mutex<()>,
    on_change: Mutex<Vec<OnChange>>,
}

/// Where a list comes from.
#[derive(Debug)]
pub enum Kind {
    /// A file of the operator's.
    File,
    /// An address.
    Subscription(Subscription),
    /// The file that the admin API writes.
    Local,
}

/// One list.
#[derive(Debug)]
pub struct Entry {
    /// What it is called: the place that the settings name, or [`LOCAL`].
    pub id: Arc<str>,
    /// Where it comes from.
    pub kind: Kind,
    /// Whether it says what is served, and not what is withheld.
    pub allows: bool,
    /// How it refuses content, unless it says otherwise.
    pub status: Verdict,
    /// Where its text is.
    pub file: PathBuf,
    /// One reads it at a time.
    reading: tokio::sync::Mutex<Option<Reader>>,
    state: RwLock<State>,
}

/// What became of a list.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// Its rules.
    pub list: List,
    /// Its text, as far as it is read, in bytes.
    pub bytes: u64,
    /// Whether there is more of it than is read.
    pub cut_off: bool,
    /// When it was last looked at with success.
    pub checked_at: Option<SystemTime>,
    /// When it last changed.
    pub changed_at: Option<SystemTime>,
    /// What was wrong the last time, if anything.
    pub error: Option<String>,
    /// How often in a row.
    pub failures: u32,
    /// What the last fetch that brought anything was, for a subscription.
    pub fetched: Option<Fetched>,
}

impl Entry {
    /// What became of it.
    pub fn state(&self) -> State {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Bytes that came so far of what is being fetched.
    pub fn progress(&self) -> Option<u64> {
        let Kind::Subscription(subscription) = &self.kind else { return None };
        Some(subscription.progress.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    /// The text of one of its lines, as it is now.
    pub async fn line(&self, number: u32) -> Option<String> {
        let file = self.file.clone();
        tokio::task::spawn_blocking(move || reader::line(&file, number)).await.ok()?.ok()?
    }
}

impl std::fmt::Debug for Lists {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lists").field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl Lists {
    /// Reads every list that there is a text of, and puts the rules in force. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    /// [`StartError`] about a file that is not there or no list: a gateway that was told to withhold something does not start
    /// without. A list from an address that was never fetched is not waited for.
    pub async fn open(settings: &PolicySettings, data_dir: &Path) -> Result<Arc<Self>, StartError> {
        Self::open_as(settings, data_dir, true).await
    }

    /// The same for a command beside which no gateway runs: nothing is made that is not there.
    ///
    /// # Errors
    /// The same.
    pub async fn open_as_they_are(settings: &PolicySettings, data_dir: &Path) -> Result<Arc<Self>, StartError> {
        Self::open_as(settings, data_dir, false).await
    }

    async fn open_as(settings: &PolicySettings, data_dir: &Path, makes: bool) -> Result<Arc<Self>, StartError> {
        let dir = data_dir.join(FOLDER);
        let unusable = |place: &Path, error: &dyn std::fmt::Display| StartError {
            setting: "data_dir",
            place: place.display().to_string(),
            reason: format!("cannot be used: {error}"),
        };
        let subscriptions = dir.join("subscriptions");
        let local = local::path(&dir);
        if makes {
            durable::create_folder(&subscriptions).map_err(|error| unusable(&subscriptions, &error))?;
            local::ensure(&local).map_err(|error| unusable(&local, &error))?;
        }
        let bytes_max = settings.list_bytes_max;
        let mut entries = Vec::new();
        for (allows, list) in settings
            .denylists
            .iter()
            .map(|list| (false, list))
            .chain(settings.allowlists.iter().map(|list| (true, list)))
        {
            entries.push(Arc::new(entry(allows, list, &subscriptions, bytes_max)?));
        }
        if makes || local.try_exists().map_err(|error| unusable(&local, &error))? {
            let id = LOCAL.into();
            entries.push(Arc::new(Entry::new(id, Kind::Local, false, Verdict::Gone, local)));
        }
        let denied = settings.deny.iter().map(|cid| {
            let path = PathPattern::default();
            Rule::deny(Target::Content { hash: *cid.hash(), path })
        });
        let lists = Arc::new(Self {
            running: Arc::default(),
            entries,
            mode: settings.mode,
            denied: List::of(denied),
            refresh: Duration::from_secs(settings.refresh_seconds),
            bytes_max,
            swapping: Mutex::default(),
            on_change: Mutex::default(),
        });
        for entry in &lists.entries {
            let read = lists.take_in(entry).await;
            match (&entry.kind, read) {
                (_, Ok(_)) => succeed(entry),
                (Kind::Subscription(_), Err(reason)) => {
                    tracing::warn!(list = %entry.id, %reason, "a list was never fetched, and withholds nothing until it is");
                    // Nobody asked its source yet, so that it has not failed.
                    entry.change(|state| state.error = Some(reason));
                }
                (Kind::File | Kind::Local, Err(reason)) => {
                    let setting = if entry.allows { "policy.allowlists" } else { "policy.denylists" };
                    return Err(StartError { setting, place: entry.file.display().to_string(), reason });
                }
            }
        }
        lists.swap();
        Ok(lists)
    }

    /// Reads every list that is a file, as [`Self::open`] does, and keeps nothing of it.
    ///
    /// # Errors
    /// [`StartError`] about a file that is not there or is no list.
    pub fn check(settings: &PolicySettings, data_dir: &Path) -> Result<(), StartError> {
        let local = local::path(&data_dir.join(FOLDER));
        let of_settings = [("policy.denylists", &settings.denylists), ("policy.allowlists", &settings.allowlists)];
        let named = of_settings.into_iter().flat_map(|(setting, lists)| {
            lists.iter().filter_map(move |list| match &list.from {
                ListPlace::File(path) => Some((setting, path)),
                ListPlace::Url(_) => None,
            })
        });
        for (setting, path) in named.chain(local.exists().then_some(("data_dir", &local))) {
            let looked = Reader::default().look(path, settings.list_bytes_max);
            looked.map_err(|error| StartError {
                setting,
                place: path.display().to_string(),
                reason: error.to_string(),
            })?;
        }
        Ok(())
    }

    /// Looks after the lists for as long as the tasks are held.
    pub fn keep(self: &Arc<Self>, supervisor: &Supervisor) -> keeper::Keeper {
        keeper::Keeper::start(self, supervisor)
    }

    /// The policy that the lists make.
    pub fn running(&self) -> &Arc<Running> {
        &self.running
    }

    /// What is served.
    pub fn mode(&self) -> PolicyMode {
        self.mode
    }

    /// How many rules the settings have themselves.
    pub fn denied(&self) -> u64 {
        self.denied.rules()
    }

    /// How long after a list was fetched it is asked for again.
    pub fn refresh_every(&self) -> Duration {
        self.refresh
    }

    /// Every list, in the order in which they count.
    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// A list by what it is called.
    pub fn entry(&self, id: &str) -> Option<&Arc<Entry>> {
        self.entries.iter().find(|entry| &*entry.id == id)
    }

    /// The local list.
    pub fn local(&self) -> Option<&Arc<Entry>> {
        self.entry(LOCAL)
    }

    /// Calls this whenever the rules have changed, once they are in force.
    pub fn on_change(&self, watcher: impl Fn() + Send + Sync + 'static) {
        self.watchers().push(Box::new(watcher));
    }

    fn watchers(&self) -> MutexGuard<'_, Vec<OnChange>> {
        self.on_change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at a list now: fetches it if it has an address, reads what is new, and puts it in force.
    ///
    /// # Errors
    /// What is wrong with it. What was known of it stays in force.
    pub async fn look(&self, entry: &Arc<Entry>) -> Result<(), String> {
        if let Kind::Subscription(subscription) = &entry.kind {
            match subscription.fetch().await {
                Ok(fetched) => {
                    entry.change(|state| {
                        if fetched != Fetched::Same {
                            state.fetched = Some(fetched);
                        }
                    });
                }
                Err(error) => {
                    // What came before it broke off may be more of the list. That it can be read does not mend its source.
                    if self.take_in(entry).await == Ok(true) {
                        self.swap();
                    }
                    return Err(fail(entry, error.to_string()));
                }
            }
        }
        match self.read(entry).await {
            Ok(changed) => {
                if changed {
                    self.swap();
                }
                Ok(())
            }
            Err(reason) => Err(reason),
        }
    }

    /// Reads what is new of a list's text, and notes how that went; whether there is anything.
    async fn read(&self, entry: &Arc<Entry>) -> Result<bool, String> {
        match self.take_in(entry).await {
            Ok(changed) => {
                succeed(entry);
                Ok(changed)
            }
            Err(reason) => Err(fail(entry, reason)),
        }
    }

    /// Reads what is new of a list's text; whether there is anything.
    async fn take_in(&self, entry: &Arc<Entry>) -> Result<bool, String> {
        let mut reading = entry.reading.lock().await;
        let mut reader = reading.take().unwrap_or_default();
        let (file, max) = (entry.file.clone(), self.bytes_max);
        let looking = tokio::task::spawn_blocking(move || {
            let found = reader.look(&file, max);
            (reader, found)
        });
        let (reader, found) = looking.await.map_err(|_| "the gateway is stopping".to_owned())?;
        *reading = Some(reader);
        let Some(found) = found.map_err(|error| error.to_string())? else { return Ok(false) };
        log(entry, &found);
        entry.change(|state| {
            (state.list, state.bytes, state.cut_off) = (found.list, found.bytes, found.cut_off);
            state.changed_at = Some(SystemTime::now());
        });
        Ok(true)
    }

    /// Puts what the lists say now in force.
    fn swap(&self) {
        let swapping = self.swapping.lock().unwrap_or_else(PoisonError::into_inner);
        let source =
            |entry: &Arc<Entry>| Source { id: Arc::clone(&entry.id), list: entry.state().list, status: entry.status };
        let settings = Source { id: SETTINGS.into(), list: self.denied.clone(), status: Verdict::Gone };
        let of = |allows: bool| self.entries.iter().filter(move |entry| entry.allows == allows).map(source);
        let deny = Matcher::new(of(false).chain([settings]));
        let allow = (self.mode == PolicyMode::Allow).then(|| Matcher::new(of(true)));
        self.running.swap(Rules { deny, allow });
        drop(swapping);
        self.watchers().iter().for_each(|watcher| watcher());
    }

    /// Adds lines to the local list. They are on the disk and in force when this returns.
    ///
    /// # Errors
    /// What is wrong; none of them is in force then.
    pub async fn add(&self, lines: Vec<String>) -> Result<(), String> {
        self.change_local(move |path| local::append(path, &lines)).await
    }

    /// Takes rules away from the local list, with those that were added for the blocks below (`deep`), and says how
    /// many. They are out of force when this returns.
    ///
    /// # Errors
    /// What is wrong.
    pub async fn remove(&self, rule: Rule) -> Result<u64, String> {
        let order = order_of(&rule.target);
        let is_meant = move |other: &Rule| {
            other.allows == rule.allows
                && (other.target == rule.target || other.hint(ORDER_HINT).is_some_and(|hint| hint == order))
        };
        self.change_local(move |path| local::remove(path, is_meant)).await
    }

    async fn change_local<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Path) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        let Some(local) = self.local() else { return Err("there is no local list".to_owned()) };
        let (reading, file) = (local.reading.lock().await, local.file.clone());
        let changed = tokio::task::spawn_blocking(move || change(&file)).await;
        let changed = changed.map_err(|_| "the gateway is stopping".to_owned())?;
        drop(reading);
        let changed = changed.map_err(|error| format!("the local list cannot be written: {error}"))?;
        self.read(local).await?;
        self.swap();
        Ok(changed)
    }

    /// The rules of the local list behind a line, at most so many, each with the number of its line.
    ///
    /// # Errors
    /// What the system said.
    pub async fn local_rules(&self, after: u64, max: usize) -> Result<Vec<(u64, Rule)>, String> {
        let Some(local) = self.local() else { return Ok(Vec::new()) };
        let file = local.file.clone();
        let read = tokio::task::spawn_blocking(move || local::rules(&file, after, max)).await;
        read.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }
}

/// The hint of a rule that was added for a block below what an order was about: which order that was.
pub const ORDER_HINT: &str = "order";

/// What an order about a target is called in that hint. It tells no more than the rule itself does.
pub fn order_of(target: &Target) -> String {
    fingerprint(&target.to_string())[..ORDER_CHARS].to_owned()
}

/// As much of a hash as tells the orders of a list apart.
const ORDER_CHARS: usize = 16;

/// Lines that are no rules and are logged one by one.
const REPORTED_MAX: usize = 5;

/// Logs what was read of a list. One that says nothing, as it said nothing before, and one that is as it was are no news.
fn log(entry: &Entry, found: &Found) {
    let (rules, malformed, former) = (found.list.rules(), found.list.malformed(), entry.state());
    let is_empty = rules == 0 && malformed == 0 && former.list.rules() == 0;
    let is_as_it_was = found.grew && found.bytes == former.bytes;
    if is_empty || is_as_it_was {
        tracing::debug!(list = %entry.id, rules, malformed, grew = found.grew, "a list of content was read");
    } else {
        tracing::info!(list = %entry.id, rules, malformed, grew = found.grew, "a list of content was read");
    }
    for reported in found.list.reported().iter().take(REPORTED_MAX).filter(|_| !found.grew) {
        tracing::warn!(list = %entry.id, line = reported.line, error = %reported.error, "a line of a list is no rule");
    }
}

/// Notes that looking at a list went well.
fn succeed(entry: &Entry) {
    entry.change(|state| (state.checked_at, state.error, state.failures) = (Some(SystemTime::now()), None, 0));
}

/// Notes that looking at a list failed.
fn fail(entry: &Entry, reason: String) -> String {
    entry.change(|state| {
        if state.error.as_ref() != Some(&reason) {
            tracing::warn!(list = %entry.id, %reason, "a list of content cannot be read anew: it stays as it was");
        }
        state.error = Some(reason.clone());
        state.failures = state.failures.saturating_add(1);
    });
    reason
}

impl Entry {
    fn new(id: Arc<str>, kind: Kind, allows: bool, status: Verdict, file: PathBuf) -> Self {
        Self { id, kind, allows, status, file, reading: tokio::sync::Mutex::default(), state: RwLock::default() }
    }
}

fn entry(allows: bool, list: &ListSetting, dir: &Path, bytes_max: u64) -> Result<Entry, StartError> {
    let status = if list.status == 451 { Verdict::Legal } else { Verdict::Gone };
    let id: Arc<str> = shown(&list.from).into();
    let (kind, file) = match &list.from {
        ListPlace::File(path) => (Kind::File, path.clone()),
        ListPlace::Url(url) => {
            let file = dir.join(format!("{}.deny", fingerprint(url)));
            let subscription = Subscription::new(url, file.clone(), bytes_max).map_err(|error| StartError {
                setting: if allows { "policy.allowlists" } else { "policy.denylists" },
                place: id.to_string(),
                reason: error.to_string(),
            })?;
            (Kind::Subscription(subscription), file)
        }
    };
    Ok(Entry::new(id, kind, allows, status, file))
}

/// A list's place without what an address may hold of secrets. Two that differ in nothing else are told apart all the same.
fn shown(place: &ListPlace) -> String {
    let text = place.to_string();
    let shown = config::values::without_secrets(&text);
    match place {
        ListPlace::Url(url) if shown != text => format!("{shown} ({})", &fingerprint(url)[..8]),
        _ => shown,
    }
}

/// The beginning of a digest of an address, in hexadecimal.
fn fingerprint(url: &str) -> String {
    let digest = hashes::digest(hashes::SHA2_256, 32, url.as_bytes()).ok();
    digest.iter().flat_map(|hash| hash.digest().iter().take(12)).fold(String::new(), |mut hex, byte| {
        _ = write!(hex, "{byte:02x}");
        hex
    })
}
