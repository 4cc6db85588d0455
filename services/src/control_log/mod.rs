//! [`ControlLog`]: the rules and the tokens of a site, which are in force at all of its gateways.
//!
//! | module | concern |
//! |---|---|
//! | `records` | the records: a line of the denylist of the site each, or a token |
//! | `copy` | the copy of the denylist in a file, which is read as every other list |
//! | `lock` | the lock of what is known, with admission control |
//! | `following` | when the changes of others are read |
//!
//! The changes are in a log that the gateways share ([`cache::MetadataLog`]), apart from that of pins. A gateway
//! appends what it has decided on the records that it knows; if others have appended meanwhile, it applies their
//! entries and decides again. It also asks for the entries of others every second, or after a notification that there
//! are some.
//!
//! Goals: a change is in the log, and in force at this gateway, before its request is answered; every gateway applies
//! the log in its order; while the log cannot be reached, what is known stays in force, and changes fail in bounded
//! time and can be repeated; a rule that this gateway would not read is not accepted.
//!
//! Non-goals: what rules and tokens mean ([`crate::denylists`], [`crate::access`]); how blocks are deleted.
//!
//! Tokens are in memory, so that a revocation needs no space on the disk. The lines of the denylist, which may be a
//! million, are in the file only. An entry that only adds lines is appended to it; after any other change of rules, all
//! records are read again. While the file cannot be written, the task that polls the log writes it again after an
//! exponential back-off, since that takes a reading of all records; a change of rules does so at once.

mod copy;
pub(crate) mod following;
pub(crate) mod lock;
mod records;
#[cfg(test)]
mod tests;

pub use self::copy::{CopyError, PendingDeletions};
pub use self::records::{TokenRecords, put_token, remove_token};

use self::copy::{CopyFailure, RulesCopy, bytes_of};
use self::lock::BoundedLock;
use self::records::{Batch, Records, rule_key};
use cache::metadata_store::{Appended, Change, LogEntry, LogPosition};
use cache::{MetadataLog, StoreError};
use content::denylist::Rule;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How often a change is decided again because others have appended first.
const ATTEMPTS_MAX: usize = 64;
/// The number of lines that are removed in one entry.
const REMOVED_AT_ONCE: usize = 100_000;
/// The number of changes that wait for others. Further ones are rejected.
const WAITING_MAX: usize = 64;
/// How long a change of tokens waits for others, so that it is answered before the timeout of admin requests.
const TOKENS_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long a change of rules waits. Its requests have no timeout, and reading a million lines again takes some
/// seconds.
const RULES_WAIT_MAX: Duration = Duration::from_secs(30);

/// Why the rules or tokens of the site could not be changed or read.
#[derive(Debug, thiserror::Error)]
pub enum ControlLogError {
    /// The log failed. The change may have been made; it can be repeated.
    #[error("the rules and tokens of the site cannot be changed or read: {0}")]
    Log(#[from] StoreError),
    /// Other changes have not ended in time, or too many wait for them. Nothing was changed.
    #[error("the rules and tokens of the site are being changed, and that takes long: repeat the request later")]
    Busy,
    /// The copy of the denylist could not be written: the latest rules are not in force at this gateway yet, which
    /// retries. The change may have been made; it can be repeated.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// The gateway would not read all rules of the list. Nothing was changed.
    #[error(
        "the list of the site would have {bytes} bytes, and the gateway reads no more than {bytes_max} \
         (policy.list_bytes_max), so that the rules would not be in force: remove others with \"causeway block rm\", \
         or raise policy.list_bytes_max at all gateways of the site, and repeat the take-down"
    )]
    ListFull {
        /// The size of the list with the new rules.
        bytes: u64,
        /// The maximum.
        bytes_max: u64,
    },
    /// Another program has written the rule with the last number. Nothing was changed.
    #[error(
        "a rule of the site has the last number there is, so that none can be added after it: remove that rule (the \
         last one of \"causeway block ls --rules\") with \"causeway block rm\", and repeat the take-down"
    )]
    NoNumbersLeft,
}

impl ControlLogError {
    /// Whether the log cannot be reached, or is busy: the change may succeed later.
    pub fn is_unavailable(&self) -> bool {
        use StoreError::{Busy, Closed, Unavailable};
        matches!(self, Self::Busy | Self::Log(Unavailable { .. } | Busy | Closed))
    }
}

/// The path of the copy of the denylist of the site.
pub fn rules_path(data_dir: &Path) -> PathBuf {
    data_dir.join("denylists").join("site.deny")
}

/// The rules and the tokens of a site.
#[derive(Debug)]
pub struct ControlLog {
    log: Arc<dyn MetadataLog>,
    /// A command has none.
    copy: Option<RulesCopy>,
    /// Held while the records change, so that entries are applied in their order.
    state: BoundedLock<State>,
    tokens: RwLock<Arc<TokenRecords>>,
    /// The blocks that the rules of others name, and that are to be deleted here.
    pending: Mutex<PendingDeletions>,
    /// The rules in force are at least those of this time.
    in_force: Mutex<Instant>,
}

/// What is known of the log.
#[derive(Debug, Default)]
struct State {
    /// The latest entry that was applied.
    position: LogPosition,
    /// The number of the next line.
    rule_next: u64,
    /// An entry was applied in part, or a line is to be removed: all records have to be read again.
    is_stale: bool,
    /// The size of the copy, in bytes.
    copy_bytes: u64,
    /// The copy could not be written: all records have to be read again for it.
    copy_failure: Option<CopyFailure>,
}

impl State {
    /// Notes whether the copy could be written, and returns that.
    fn note_copy<T>(&mut self, written: Result<T, CopyError>) -> Result<T, CopyError> {
        let failure = written.as_ref().err().cloned();
        self.copy_failure = failure.map(|error| CopyFailure::after(self.copy_failure.as_ref(), error, Instant::now()));
        written
    }
}

/// What a change is decided on.
struct Known {
    rule_next: u64,
    copy_bytes: u64,
    tokens: Arc<TokenRecords>,
}

/// What a change is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Concern {
    Rules,
    Tokens,
    /// Nothing is changed: the task that polls the log, at a time.
    Poll(Instant),
}

impl Concern {
    /// What fails a change: only one of rules needs the copy.
    fn need(self, done: Result<(), ControlLogError>) -> Result<(), ControlLogError> {
        match done {
            Err(ControlLogError::Copy(_)) if self != Self::Rules => Ok(()),
            done => done,
        }
    }

    /// Whether a copy that could not be written is written again now.
    fn retries(self, failure: &CopyFailure) -> bool {
        match self {
            Self::Rules => true,
            Self::Tokens => false,
            Self::Poll(now) => failure.is_due(now),
        }
    }
}

/// Who has appended an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// This gateway, which deletes what its rules name itself.
    Own,
    /// Another one.
    Other,
}

impl ControlLog {
    /// Reads all records, and brings the copy of the denylist in a data directory up to date.
    ///
    /// # Errors
    /// [`ControlLogError`].
    pub async fn open(log: Arc<dyn MetadataLog>, data_dir: &Path) -> Result<Arc<Self>, ControlLogError> {
        Self::open_with(log, Some(RulesCopy::at(rules_path(data_dir)))).await
    }

    /// The same for a command, which changes no file.
    ///
    /// # Errors
    /// [`ControlLogError::Log`].
    pub async fn open_without_copy(log: Arc<dyn MetadataLog>) -> Result<Arc<Self>, ControlLogError> {
        Self::open_with(log, None).await
    }

    async fn open_with(log: Arc<dyn MetadataLog>, copy: Option<RulesCopy>) -> Result<Arc<Self>, ControlLogError> {
        let (tokens, pending) = Default::default();
        let state = BoundedLock::new(State::default(), WAITING_MAX);
        let control = Self { log, copy, state, tokens, pending, in_force: Mutex::new(Instant::now()) };
        control.reload(&mut *control.state.lock().await).await?;
        Ok(Arc::new(control))
    }

    /// The tokens, by their IDs.
    pub fn tokens(&self) -> Arc<TokenRecords> {
        Arc::clone(&self.tokens.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The latest position of the log, as a hint for [`Self::poll`].
    pub fn watch(&self) -> Option<watch::Receiver<LogPosition>> {
        self.log.watch()
    }

    /// Applies what others have appended so far, before a change of rules.
    ///
    /// # Errors
    /// [`ControlLogError`]. What was known stays in force.
    pub async fn catch_up(&self) -> Result<(), ControlLogError> {
        self.change(Concern::Rules, |_| Ok((Vec::new(), ()))).await
    }

    /// The same, for the one task that does so again and again. A copy that could not be written is written again after
    /// a back-off; tokens are applied meanwhile.
    ///
    /// # Errors
    /// [`ControlLogError`]. What was known stays in force.
    pub async fn poll(&self, now: Instant) -> Result<(), ControlLogError> {
        let mut state = self.state.lock().await;
        self.change_locked(&mut state, Concern::Poll(now), |_| Ok::<_, ControlLogError>((Vec::new(), ()))).await?;
        state.copy_failure.as_ref().map_or(Ok(()), |failure| Err(failure.error.clone().into()))
    }

    /// Notes that the rules that were in the log at a time are in force here.
    pub fn set_in_force(&self, as_of: Instant) {
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        *in_force = as_of.max(*in_force);
    }

    /// For how long the rules in force may have been out of date: since the log was last read and put in force, or was
    /// opened.
    pub fn age_in_force(&self) -> Duration {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// The blocks that rules of others name, since the last call. The caller deletes them once the rules in the copy
    /// are in force.
    pub fn take_pending(&self) -> PendingDeletions {
        std::mem::take(&mut *self.pending())
    }

    /// Returns blocks that could not be deleted yet.
    pub fn put_back(&self, blocks: PendingDeletions) {
        self.pending().extend(blocks);
    }

    /// Adds lines after those that exist, unless the file with all lines would have more than `bytes_max` bytes. They
    /// are in the copy when this returns.
    ///
    /// # Errors
    /// [`ControlLogError`].
    pub async fn add_rules(&self, lines: &[String], bytes_max: u64) -> Result<(), ControlLogError> {
        let put = |(number, line): (u64, &String)| Change::Put(rule_key(number), line.clone().into_bytes());
        let decide = |known: &Known| {
            let bytes = known.copy_bytes.saturating_add(bytes_of(lines));
            if bytes > bytes_max {
                return Err(ControlLogError::ListFull { bytes, bytes_max });
            }
            // The last number is not used, so that there is one after each.
            let end = known.rule_next.checked_add(lines.len() as u64).ok_or(ControlLogError::NoNumbersLeft)?;
            Ok(((known.rule_next..end).zip(lines).map(put).collect(), ()))
        };
        self.change(Concern::Rules, decide).await
    }

    /// Removes the lines whose rules match, and returns their number. They are not in the copy when this returns.
    ///
    /// # Errors
    /// [`ControlLogError`]. Some of the lines may have been removed.
    pub async fn remove_rules(
        &self,
        is_meant: Arc<dyn Fn(&Rule) -> bool + Send + Sync>,
    ) -> Result<u64, ControlLogError> {
        let (mut state, mut removed) = (self.lock(Concern::Rules).await?, 0);
        for _ in 0..ATTEMPTS_MAX {
            let (after, keys) = self.find_rules(&is_meant).await?;
            state.is_stale |= !keys.is_empty();
            let (count, is_complete) = self.remove_keys(after, keys).await?;
            removed += count;
            if is_complete {
                self.refresh(&mut state, Concern::Rules).await?;
                return Ok(removed);
            }
        }
        Err(StoreError::Busy.into())
    }

    /// The keys of lines whose rules match, as of a position.
    async fn find_rules(
        &self,
        is_meant: &Arc<dyn Fn(&Rule) -> bool + Send + Sync>,
    ) -> Result<(LogPosition, Vec<Vec<u8>>), ControlLogError> {
        let (log, is_meant) = (Arc::clone(&self.log), Arc::clone(is_meant));
        blocking(move || {
            let mut keys = Vec::new();
            let position = log.read(&mut |key, content| {
                if records::rule_of(key, content).is_some_and(|rule| is_meant(&rule)) {
                    keys.push(key.to_vec());
                }
            })?;
            Ok((position, keys))
        })
        .await
    }

    /// Removes records, in entries that are not too large. Returns their number, and whether they are all: others may
    /// have appended.
    async fn remove_keys(
        &self,
        mut after: LogPosition,
        mut keys: Vec<Vec<u8>>,
    ) -> Result<(u64, bool), ControlLogError> {
        let mut removed = 0;
        while !keys.is_empty() {
            let batch = keys.split_off(keys.len().saturating_sub(REMOVED_AT_ONCE));
            let count = batch.len() as u64;
            match self.log.append(after, batch.into_iter().map(Change::Delete).collect()).await? {
                Appended::At(position) => after = position,
                Appended::Behind(_) | Appended::Truncated => return Ok((removed, false)),
            }
            removed += count;
        }
        Ok((removed, true))
    }

    /// Decides on the tokens, and appends the changes. Decides again if others have appended meanwhile, also if an
    /// error was decided. Needs no space on the disk.
    ///
    /// # Errors
    /// What was decided, or [`ControlLogError`].
    pub async fn change_tokens<T, E: From<ControlLogError>>(
        &self,
        decide: impl Fn(&TokenRecords) -> Result<(Vec<Change>, T), E>,
    ) -> Result<T, E> {
        self.change(Concern::Tokens, |known| decide(&known.tokens)).await
    }

    async fn lock(&self, concern: Concern) -> Result<tokio::sync::MutexGuard<'_, State>, ControlLogError> {
        let wait_max = if concern == Concern::Rules { RULES_WAIT_MAX } else { TOKENS_WAIT_MAX };
        self.state.lock_within(wait_max).await.ok_or(ControlLogError::Busy)
    }

    async fn change<T, E: From<ControlLogError>>(
        &self,
        concern: Concern,
        decide: impl Fn(&Known) -> Result<(Vec<Change>, T), E>,
    ) -> Result<T, E> {
        let mut state = self.lock(concern).await?;
        self.change_locked(&mut state, concern, decide).await
    }

    async fn change_locked<T, E: From<ControlLogError>>(
        &self,
        state: &mut State,
        concern: Concern,
        decide: impl Fn(&Known) -> Result<(Vec<Change>, T), E>,
    ) -> Result<T, E> {
        for _ in 0..ATTEMPTS_MAX {
            concern.need(self.refresh(state, concern).await)?;
            let State { rule_next, copy_bytes, .. } = *state;
            let decided = decide(&Known { rule_next, copy_bytes, tokens: self.tokens() });
            let changes = decided.as_ref().map_or_else(|_| Vec::new(), |(changes, _)| changes.clone());
            match self.log.append(state.position, changes).await.map_err(ControlLogError::from)? {
                Appended::At(position) => {
                    let (changes, done) = decided?;
                    self.apply(state, LogEntry { position, changes }, Origin::Own).await?;
                    return Ok(done);
                }
                Appended::Behind(entries) => concern.need(self.apply_all(state, entries).await)?,
                Appended::Truncated => concern.need(self.reload(state).await)?,
            }
        }
        Err(ControlLogError::from(StoreError::Busy).into())
    }

    /// Applies entries of others in their order.
    async fn apply_all(&self, state: &mut State, entries: Vec<LogEntry>) -> Result<(), ControlLogError> {
        for entry in entries {
            let position = entry.position;
            self.apply(state, entry, Origin::Other).await?;
            // All records were read, as of a later entry.
            if state.position != position {
                break;
            }
        }
        Ok(())
    }

    /// Applies an entry. If that fails or is cancelled, all records are read again before the next change.
    async fn apply(&self, state: &mut State, entry: LogEntry, origin: Origin) -> Result<(), ControlLogError> {
        let LogEntry { position, changes } = entry;
        let Some(batch) = Batch::of(changes, state.rule_next) else { return self.reload(state).await };
        state.is_stale = true;
        let Batch { lines, rule_next, tokens } = batch;
        let copied = self.append_to_copy(state, lines, origin).await?;
        if !tokens.is_empty() {
            let mut known = TokenRecords::clone(&self.tokens());
            tokens.into_iter().for_each(|change| change.apply(&mut known));
            self.set_tokens(known);
        }
        (state.position, state.rule_next, state.is_stale) = (position, rule_next, false);
        Ok(copied?)
    }

    /// Appends the lines of an entry to the copy. One that could not be written is replaced by the next reading of all
    /// records.
    async fn append_to_copy(
        &self,
        state: &mut State,
        lines: Vec<String>,
        origin: Origin,
    ) -> Result<Result<(), CopyError>, ControlLogError> {
        let is_written = !lines.is_empty() && state.copy_failure.is_none();
        let Some(copy) = self.copy.clone().filter(|_| is_written) else { return Ok(Ok(())) };
        let bytes = bytes_of(&lines);
        let (appended, lines) = blocking(move || Ok((copy.append(&lines), lines))).await?;
        if appended.is_ok() {
            state.copy_bytes = state.copy_bytes.saturating_add(bytes);
            // Not before: the task that takes them deletes what the rules of the copy withhold by then.
            if origin == Origin::Other {
                self.pending().add_entry(&lines);
            }
        }
        Ok(state.note_copy(appended))
    }

    /// Reads all records again if that is necessary.
    async fn refresh(&self, state: &mut State, concern: Concern) -> Result<(), ControlLogError> {
        let is_copy_retried = state.copy_failure.as_ref().is_some_and(|failure| concern.retries(failure));
        if state.is_stale || is_copy_retried { self.reload(state).await } else { Ok(()) }
    }

    /// Reads all records, and replaces the copy if it differs. If only that fails, the records are known.
    async fn reload(&self, state: &mut State) -> Result<(), ControlLogError> {
        state.is_stale = true;
        let (log, copy) = (Arc::clone(&self.log), self.copy.clone());
        let (position, records, copy_bytes, copied) = blocking(move || {
            let mut records = Records::new(copy.is_some());
            let position = log.read(&mut |key, content| records.add(key, content))?;
            let lines = records.take_lines();
            let copied = copy.map(|copy| copy.replace(&lines)).transpose();
            Ok((position, records, RulesCopy::size(lines.len() as u64), copied))
        })
        .await?;
        let Records { rule_next, tokens, .. } = records;
        self.set_tokens(tokens);
        (state.position, state.rule_next, state.copy_bytes) = (position, rule_next, copy_bytes);
        state.is_stale = false;
        let pending = state.note_copy(copied)?;
        pending.into_iter().for_each(|pending| self.pending().extend(pending));
        Ok(())
    }

    fn set_tokens(&self, tokens: TokenRecords) {
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tokens);
    }

    fn pending(&self) -> MutexGuard<'_, PendingDeletions> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `work` on a thread where it may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ControlLogError> + Send + 'static,
) -> Result<T, ControlLogError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| StoreError::Closed)?
}
