//! [`Lists`]: all lists, their files, and their state.

use crate::control_log::{self, ControlLog, ControlLogError};
use crate::denylists::local::LocalRule;
use crate::denylists::reader::{self, ListContent, Reader};
use crate::denylists::running::{Rules, Running};
use crate::denylists::subscription::{Fetched, Subscription};
use crate::denylists::{keeper, local};
use crate::supervision::Supervisor;
use config::{ListSetting, ListSource, PolicyMode, PolicySettings};
use content::denylist::{List, Matcher, PathPattern, Rule, Source, Target};
use content::{Verdict, hashes};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use p2p_bridge::durable;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

/// The folder of the lists in the data directory.
const FOLDER: &str = "denylists";
/// The ID of the local list.
pub const LOCAL: &str = "local";
/// The ID of the list of the site.
pub const SITE: &str = "site";
/// The ID of the rules in `policy.deny`.
pub const SETTINGS: &str = "settings";

/// Why the gateway cannot start with these lists.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct StartError {
    /// The setting that names the list.
    pub setting: &'static str,
    /// The list.
    pub place: String,
    /// Why it cannot be used.
    pub reason: String,
}

/// Why the rules could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// Reading or writing the list failed.
    #[error("{0}")]
    List(String),
    /// The list of the site could not be changed.
    #[error(transparent)]
    Site(#[from] ControlLogError),
}

impl From<String> for ChangeError {
    fn from(reason: String) -> Self {
        Self::List(reason)
    }
}

/// Called when the rules have changed, to invalidate what was cached under the former rules.
type OnChange = Box<dyn Fn() + Send + Sync>;

/// All lists. Shared by the update tasks and the admin API.
pub struct Lists {
    running: Arc<Running>,
    /// The rules of the site, if the gateway belongs to one.
    site: Option<Arc<ControlLog>>,
    /// In order of precedence, the lowest first.
    entries: Vec<Arc<ListEntry>>,
    mode: PolicyMode,
    denied: List,
    refresh: Duration,
    bytes_max: u64,
    /// How often the content of a list has changed.
    changes: AtomicU64,
    /// How many of these changes are in force. Held while the rules are assembled, so that of two concurrent changes
    /// none is lost.
    in_force: tokio::sync::Mutex<u64>,
    on_change: Mutex<Vec<OnChange>>,
}

/// The source of a list.
#[derive(Debug)]
pub enum ListKind {
    /// A file of the operator.
    File,
    /// A list that is fetched from a URL.
    Subscription(Subscription),
    /// The file that the admin API writes.
    Local,
    /// The copy of the rules of the site, which the admin API of every gateway changes.
    Site,
}

/// The list of a site, which is in force after the local one.
enum OfSite {
    /// There is none.
    None,
    /// The last copy, if there is one.
    Copy,
    /// That of a running gateway.
    Shared(Arc<ControlLog>),
}

/// A list.
#[derive(Debug)]
pub struct ListEntry {
    /// Its ID: the file or URL in the settings, [`LOCAL`] or [`SITE`].
    pub id: Arc<str>,
    /// Its source.
    pub kind: ListKind,
    /// Whether it is an allowlist.
    pub allows: bool,
    /// The verdict of its rules by default.
    pub status: Verdict,
    /// The file with its text.
    pub file: PathBuf,
    /// Serialises reading the file.
    reading: tokio::sync::Mutex<Option<Reader>>,
    state: RwLock<ListState>,
}

/// The state of a list.
#[derive(Debug, Clone, Default)]
pub struct ListState {
    /// Its rules.
    pub list: List,
    /// The size of its text, as far as it was read, in bytes.
    pub bytes: u64,
    /// Whether the text exceeds `policy.list_bytes_max`, and the rest was ignored.
    pub cut_off: bool,
    /// When it was last checked successfully.
    pub checked_at: Option<SystemTime>,
    /// When it last changed.
    pub changed_at: Option<SystemTime>,
    /// The last error, if the last check failed.
    pub error: Option<String>,
    /// The number of consecutive failures.
    pub failures: u32,
    /// The last fetch that changed a subscription.
    pub fetched: Option<Fetched>,
}

impl ListEntry {
    /// The state.
    pub fn state(&self) -> ListState {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut ListState)) {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// The number of bytes that a fetch in progress has received.
    pub fn progress(&self) -> Option<u64> {
        let ListKind::Subscription(subscription) = &self.kind else { return None };
        Some(subscription.progress.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    /// The current text of a line.
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
    /// Reads all lists that have a file, and puts the rules in force. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    /// [`StartError`] about a file that does not exist or is not a list: the gateway does not start without configured
    /// rules. A subscription that was never fetched is not waited for.
    pub fn open<'a>(settings: &'a PolicySettings, data_dir: &'a Path) -> BoxFuture<'a, Result<Arc<Self>, StartError>> {
        Self::open_as(settings, data_dir, true, OfSite::None).boxed()
    }

    /// Like [`Self::open`], for a gateway of a site.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_in_site<'a>(
        settings: &'a PolicySettings,
        data_dir: &'a Path,
        site: Arc<ControlLog>,
    ) -> BoxFuture<'a, Result<Arc<Self>, StartError>> {
        Self::open_as(settings, data_dir, true, OfSite::Shared(site)).boxed()
    }

    /// Like [`Self::open`], for a command that runs without a gateway: creates nothing. `is_in_site`: the rules of the
    /// site are in force as the gateway has last copied them.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_read_only<'a>(
        settings: &'a PolicySettings,
        data_dir: &'a Path,
        is_in_site: bool,
    ) -> BoxFuture<'a, Result<Arc<Self>, StartError>> {
        Self::open_as(settings, data_dir, false, if is_in_site { OfSite::Copy } else { OfSite::None }).boxed()
    }

    async fn open_as(
        settings: &PolicySettings,
        data_dir: &Path,
        creates: bool,
        site: OfSite,
    ) -> Result<Arc<Self>, StartError> {
        let dir = data_dir.join(FOLDER);
        let unusable = |place: &Path, error: &dyn std::fmt::Display| StartError {
            setting: "data_dir",
            place: place.display().to_string(),
            reason: format!("cannot be used: {error}"),
        };
        let subscriptions = dir.join("subscriptions");
        let local = local::path(&dir);
        if creates {
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
        if creates || local.try_exists().map_err(|error| unusable(&local, &error))? {
            let id = LOCAL.into();
            entries.push(Arc::new(ListEntry::new(id, ListKind::Local, false, Verdict::Gone, local)));
        }
        let copy = control_log::rules_path(data_dir);
        let (is_there, site) = match site {
            OfSite::None => (false, None),
            OfSite::Copy => (copy.try_exists().map_err(|error| unusable(&copy, &error))?, None),
            OfSite::Shared(site) => (true, Some(site)),
        };
        if is_there {
            entries.push(Arc::new(ListEntry::new(SITE.into(), ListKind::Site, false, Verdict::Gone, copy)));
        }
        let denied = settings.deny.iter().map(|cid| {
            let path = PathPattern::default();
            Rule::deny(Target::Content { hash: *cid.hash(), path })
        });
        let lists = Arc::new(Self {
            running: Arc::default(),
            site,
            entries,
            mode: settings.mode,
            denied: List::of(denied),
            refresh: Duration::from_secs(settings.refresh_seconds),
            bytes_max,
            // The rules of the settings.
            changes: AtomicU64::new(1),
            in_force: tokio::sync::Mutex::default(),
            on_change: Mutex::default(),
        });
        for entry in &lists.entries {
            let read = lists.reload(entry).await;
            match (&entry.kind, read) {
                (_, Ok(_)) => succeed(entry),
                (ListKind::Subscription(_), Err(reason)) => {
                    tracing::warn!(list = %entry.id, %reason, "a denylist was never fetched and is not in force");
                    // The source was not requested yet, so this is not a failure.
                    entry.change(|state| state.error = Some(reason));
                }
                (kind, Err(reason)) => {
                    let setting = match kind {
                        ListKind::Site => "data_dir",
                        _ if entry.allows => "policy.allowlists",
                        _ => "policy.denylists",
                    };
                    return Err(StartError { setting, place: entry.file.display().to_string(), reason });
                }
            }
        }
        lists.put_in_force().await;
        Ok(lists)
    }

    /// Validates all lists that are files, as [`Self::open`] does.
    ///
    /// # Errors
    /// [`StartError`] about a file that does not exist or is not a list.
    pub fn check(settings: &PolicySettings, data_dir: &Path) -> Result<(), StartError> {
        let local = local::path(&data_dir.join(FOLDER));
        let of_settings = [("policy.denylists", &settings.denylists), ("policy.allowlists", &settings.allowlists)];
        let named = of_settings.into_iter().flat_map(|(setting, lists)| {
            lists.iter().filter_map(move |list| match &list.from {
                ListSource::File(path) => Some((setting, path)),
                ListSource::Url(_) => None,
            })
        });
        for (setting, path) in named.chain(local.exists().then_some(("data_dir", &local))) {
            let result = Reader::default().read_if_changed(path, settings.list_bytes_max);
            result.map_err(|error| StartError {
                setting,
                place: path.display().to_string(),
                reason: error.to_string(),
            })?;
        }
        Ok(())
    }

    /// Starts the update tasks, which run until the returned value is dropped.
    pub fn keep(self: &Arc<Self>, supervisor: &Supervisor) -> keeper::ListUpdater {
        keeper::ListUpdater::start(self, supervisor)
    }

    /// The policy of the lists.
    pub fn running(&self) -> &Arc<Running> {
        &self.running
    }

    /// Whether unlisted content is served.
    pub fn mode(&self) -> PolicyMode {
        self.mode
    }

    /// The number of rules in `policy.deny`.
    pub fn denied(&self) -> u64 {
        self.denied.rules()
    }

    /// The interval at which subscriptions are fetched.
    pub fn refresh_every(&self) -> Duration {
        self.refresh
    }

    /// All lists in order of precedence, the lowest first.
    pub fn entries(&self) -> &[Arc<ListEntry>] {
        &self.entries
    }

    /// Finds a list by its ID.
    pub fn entry(&self, id: &str) -> Option<&Arc<ListEntry>> {
        self.entries.iter().find(|entry| &*entry.id == id)
    }

    /// The local list.
    pub fn local(&self) -> Option<&Arc<ListEntry>> {
        self.entry(LOCAL)
    }

    /// The rules of the site, if the gateway belongs to one.
    pub fn site(&self) -> Option<&Arc<ControlLog>> {
        self.site.as_ref()
    }

    /// The list that the admin API changes: the local one, or that of the site.
    fn changed_list(&self) -> Option<&Arc<ListEntry>> {
        self.entry(if self.site.is_some() { SITE } else { LOCAL })
    }

    /// Whether the end of the list that is changed is not read, because the list is longer than lists may be.
    pub(super) fn is_changed_list_cut_off(&self) -> bool {
        self.changed_list().is_some_and(|list| list.state().cut_off)
    }

    /// Registers a callback, which is called after changed rules are in force.
    pub fn on_change(&self, watcher: impl Fn() + Send + Sync + 'static) {
        self.watchers().push(Box::new(watcher));
    }

    fn watchers(&self) -> MutexGuard<'_, Vec<OnChange>> {
        self.on_change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks a list now: fetches a subscription, reads what is new, and puts it in force.
    ///
    /// # Errors
    /// Why the list could not be updated. Its former rules stay in force.
    pub fn look<'a>(&'a self, entry: &'a Arc<ListEntry>) -> BoxFuture<'a, Result<(), String>> {
        async move {
            if let ListKind::Subscription(subscription) = &entry.kind {
                match subscription.fetch().await {
                    Ok(fetched) => {
                        entry.change(|state| {
                            if fetched != Fetched::Same {
                                state.fetched = Some(fetched);
                            }
                        });
                    }
                    Err(error) => {
                        // Before the failure, more of the list may have been received. Reading it successfully does not
                        // clear the failure of the source.
                        _ = self.reload(entry).await;
                        self.put_in_force().await;
                        return Err(fail(entry, error.to_string()));
                    }
                }
            }
            self.read(entry).await
        }
        .boxed()
    }

    /// Reads what is new of a list's text, puts it in force, and records the result in the state of the list.
    async fn read(&self, entry: &Arc<ListEntry>) -> Result<(), String> {
        self.reload(entry).await.map_err(|reason| fail(entry, reason))?;
        succeed(entry);
        self.put_in_force().await;
        Ok(())
    }

    /// Reads what is new of a list's text.
    async fn reload(&self, entry: &Arc<ListEntry>) -> Result<(), String> {
        let mut reading = entry.reading.lock().await;
        let mut reader = reading.take().unwrap_or_default();
        let (file, max) = (entry.file.clone(), self.bytes_max);
        let task = tokio::task::spawn_blocking(move || {
            let content = reader.read_if_changed(&file, max);
            (reader, content)
        });
        let (reader, content) = task.await.map_err(|_| "the gateway is stopping".to_owned())?;
        *reading = Some(reader);
        let Some(content) = content.map_err(|error| error.to_string())? else { return Ok(()) };
        log(entry, &content);
        entry.change(|state| {
            (state.list, state.bytes, state.cut_off) = (content.list, content.bytes, content.cut_off);
            state.changed_at = Some(SystemTime::now());
        });
        self.changes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Puts the current rules of the lists in force, unless they are. Waits for another task that does so.
    async fn put_in_force(&self) {
        let mut in_force = self.in_force.lock().await;
        let changes = self.changes.load(Ordering::SeqCst);
        if *in_force == changes {
            return;
        }
        let source = |entry: &Arc<ListEntry>| Source {
            id: Arc::clone(&entry.id),
            list: entry.state().list,
            status: entry.status,
        };
        let settings = Source { id: SETTINGS.into(), list: self.denied.clone(), status: Verdict::Gone };
        let of = |allows: bool| self.entries.iter().filter(move |entry| entry.allows == allows).map(source);
        let deny = Matcher::new(of(false).chain([settings]));
        let allow = (self.mode == PolicyMode::Allow).then(|| Matcher::new(of(true)));
        self.running.swap(Rules { deny, allow });
        *in_force = changes;
        self.watchers().iter().for_each(|watcher| watcher());
    }

    /// Adds lines to the local list or, in a site, to that of the site. They are on the disk and in force when this
    /// returns. A list does not become larger than `policy.list_bytes_max`, of which the rest would be ignored.
    ///
    /// # Errors
    /// The error. None of the lines is in force then.
    pub async fn add(&self, lines: Vec<String>) -> Result<(), ChangeError> {
        let Some(site) = &self.site else {
            let bytes_max = self.bytes_max;
            return Ok(self.change_local(move |path| local::add(path, &lines, bytes_max)).await?);
        };
        site.add_rules(&lines, self.bytes_max).await?;
        Ok(self.read_site().await?)
    }

    /// Removes rules from the local list and, in a site, from that of the site, with those that were added for the
    /// blocks below (`deep`). Returns the number of removed rules. They are no longer in force when this returns.
    ///
    /// # Errors
    /// The error.
    pub async fn remove(&self, rule: Rule) -> Result<u64, ChangeError> {
        let takedown = takedown_id(&rule.target);
        let is_meant = move |other: &Rule| {
            other.allows == rule.allows
                && (other.target == rule.target || other.hint(TAKEDOWN_HINT).is_some_and(|hint| hint == takedown))
        };
        let is_meant: Arc<dyn Fn(&Rule) -> bool + Send + Sync> = Arc::new(is_meant);
        let mut removed = 0;
        if let Some(site) = &self.site {
            removed = site.remove_rules(Arc::clone(&is_meant)).await?;
            self.read_site().await?;
        }
        Ok(removed + self.change_local(move |path| local::remove(path, |rule| is_meant(rule))).await?)
    }

    /// Puts in force what other gateways of the site have changed so far, if there is a site.
    ///
    /// # Errors
    /// [`ChangeError`]. What is known stays in force.
    pub async fn catch_up_with_site(&self) -> Result<(), ChangeError> {
        let Some(site) = self.site() else { return Ok(()) };
        site.catch_up().await?;
        Ok(self.read_site().await?)
    }

    /// Reads the list of the site, if there is one. Its rules are in force when this returns, also if another task has
    /// read them.
    ///
    /// # Errors
    /// Why the list could not be read. Its former rules stay in force.
    pub async fn read_site(&self) -> Result<(), String> {
        let Some(entry) = self.entry(SITE) else { return Ok(()) };
        self.read(entry).await
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
        let changed = changed.map_err(|error| format!("writing the local denylist failed: {error}"))?;
        self.read(local).await?;
        Ok(changed)
    }

    /// The rules of the local list or, in a site, of that of the site, after a line, at most `max`.
    ///
    /// # Errors
    /// The error of the file system.
    pub async fn local_rules(&self, after: u64, max: usize) -> Result<Vec<LocalRule>, String> {
        let Some(list) = self.changed_list() else { return Ok(Vec::new()) };
        let file = list.file.clone();
        let read = tokio::task::spawn_blocking(move || local::rules(&file, after, max)).await;
        read.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }
}

/// The name of the hint of a rule that a deep take-down added: which take-down that was.
pub const TAKEDOWN_HINT: &str = "order";

/// The value of that hint for the take-down of a target. It reveals no more than the rule itself does.
pub fn takedown_id(target: &Target) -> String {
    fingerprint(&target.to_string())[..TAKEDOWN_ID_CHARS].to_owned()
}

/// The number of characters of the hash, enough to distinguish the take-downs of a list.
const TAKEDOWN_ID_CHARS: usize = 16;

/// The maximum number of invalid rules that are logged individually.
const REPORTED_MAX: usize = 5;

/// Logs that a list was read: at debug level if it is empty as before, or unchanged.
fn log(entry: &ListEntry, content: &ListContent) {
    let (rules, malformed, former) = (content.list.rules(), content.list.malformed(), entry.state());
    let is_empty = rules == 0 && malformed == 0 && former.list.rules() == 0;
    let is_unchanged = content.grew && content.bytes == former.bytes;
    if is_empty || is_unchanged {
        tracing::debug!(list = %entry.id, rules, malformed, grew = content.grew, "a denylist was read");
    } else {
        tracing::info!(list = %entry.id, rules, malformed, grew = content.grew, "a denylist was read");
    }
    for reported in content.list.reported().iter().take(REPORTED_MAX).filter(|_| !content.grew) {
        tracing::warn!(list = %entry.id, line = reported.line, error = %reported.error, "invalid denylist rule");
    }
}

/// Records a successful check of a list.
fn succeed(entry: &ListEntry) {
    entry.change(|state| (state.checked_at, state.error, state.failures) = (Some(SystemTime::now()), None, 0));
}

/// Records a failed check of a list.
fn fail(entry: &ListEntry, reason: String) -> String {
    entry.change(|state| {
        if state.error.as_ref() != Some(&reason) {
            tracing::warn!(list = %entry.id, %reason, "updating a denylist failed: its former rules stay in force");
        }
        state.error = Some(reason.clone());
        state.failures = state.failures.saturating_add(1);
    });
    reason
}

impl ListEntry {
    fn new(id: Arc<str>, kind: ListKind, allows: bool, status: Verdict, file: PathBuf) -> Self {
        Self { id, kind, allows, status, file, reading: tokio::sync::Mutex::default(), state: RwLock::default() }
    }
}

fn entry(allows: bool, list: &ListSetting, dir: &Path, bytes_max: u64) -> Result<ListEntry, StartError> {
    let status = if list.status == 451 { Verdict::Legal } else { Verdict::Gone };
    let id: Arc<str> = shown(&list.from).into();
    let (kind, file) = match &list.from {
        ListSource::File(path) => (ListKind::File, path.clone()),
        ListSource::Url(url) => {
            let file = dir.join(format!("{}.deny", fingerprint(url)));
            let subscription = Subscription::new(url, file.clone(), bytes_max).map_err(|error| StartError {
                setting: if allows { "policy.allowlists" } else { "policy.denylists" },
                place: id.to_string(),
                reason: error.to_string(),
            })?;
            (ListKind::Subscription(subscription), file)
        }
    };
    Ok(ListEntry::new(id, kind, allows, status, file))
}

/// The ID of a list: its file, or its URL without secrets and, if it has any, with a fingerprint that distinguishes it.
fn shown(place: &ListSource) -> String {
    let text = place.to_string();
    let shown = config::values::without_secrets(&text);
    match place {
        ListSource::Url(url) if shown != text => format!("{shown} ({})", &fingerprint(url)[..8]),
        _ => shown,
    }
}

/// The beginning of a digest of a URL, in hexadecimal.
fn fingerprint(url: &str) -> String {
    let digest = hashes::digest(hashes::SHA2_256, 32, url.as_bytes()).ok();
    digest.iter().flat_map(|hash| hash.digest().iter().take(12)).fold(String::new(), |mut hex, byte| {
        _ = write!(hex, "{byte:02x}");
        hex
    })
}
