//! [`ControlLog`]: the rules and the tokens of a site, which all of its gateways obey.
//!
//! | module | concern |
//! |---|---|
//! | `records` | the records: a line of the denylist of the site each, or a token |
//! | `copy` | the copy of the denylist in a file, which is read as every other list |
//!
//! The changes are in a log that the gateways share ([`cache::MetadataLog`]), apart from that of pins. A gateway
//! appends what it has decided on the records that it knows; if others have appended meanwhile, it applies their
//! entries and decides again. It also asks for the entries of others every second, or when it is told that there are
//! some.
//!
//! Goals: a change is in the log, and in force at this gateway, before its request is answered; every gateway obeys the
//! log in its order; while the log cannot be reached, what is known stays in force, and changes fail and can be
//! repeated.
//!
//! Non-goals: what rules and tokens mean ([`crate::denylists`], [`crate::access`]); how blocks are deleted.
//!
//! Tokens are in memory, so that a revocation needs no space on the disk. The lines of the denylist, which may be a
//! million, are in the file only. An entry that only adds lines is appended to it; after any other change of rules, all
//! records are read again.

mod copy;
mod records;
#[cfg(test)]
mod tests;

pub use self::copy::ArrivedBlocks;
pub use self::records::{TokenRecords, put_token, remove_token};

use self::copy::RulesCopy;
use self::records::{Batch, Records, rule_key};
use cache::metadata_store::{Appended, Change, LogEntry, LogPosition};
use cache::{MetadataLog, StoreError};
use content::denylist::Rule;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use tokio::sync::watch;

/// How often a change is decided again because others have appended first.
const ATTEMPTS_MAX: usize = 64;
/// The number of lines that are removed in one entry.
const REMOVED_AT_ONCE: usize = 100_000;

/// Why the rules or tokens of the site could not be changed or read.
#[derive(Debug, thiserror::Error)]
pub enum ControlLogError {
    /// The log failed. The change may have been made; it can be repeated.
    #[error("the rules and tokens of the site cannot be changed or read: {0}")]
    Log(#[from] StoreError),
    /// The copy of the denylist could not be written: the latest rules are not in force at this gateway yet, which
    /// retries. The change may have been made; it can be repeated.
    #[error(
        "writing {path} failed, so the latest rules of the site are not in force at this gateway yet: {said}",
        path = path.display()
    )]
    Copy {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        said: io::Error,
    },
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
    state: tokio::sync::Mutex<State>,
    tokens: RwLock<Arc<TokenRecords>>,
    /// The blocks that the rules of others name, and that are to be deleted here.
    arrived: Mutex<ArrivedBlocks>,
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
    /// The copy could not be written: all records have to be read again for it.
    is_copy_stale: bool,
}

/// What a change is decided on.
struct Known {
    rule_next: u64,
    tokens: Arc<TokenRecords>,
}

/// What a change is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Concern {
    Rules,
    Tokens,
}

impl Concern {
    /// What fails a change: tokens do not need the copy of the rules.
    fn need(self, done: Result<(), ControlLogError>) -> Result<(), ControlLogError> {
        match done {
            Err(ControlLogError::Copy { .. }) if self == Self::Tokens => Ok(()),
            done => done,
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
        let (state, tokens, arrived) = Default::default();
        let control = Self { log, copy, state, tokens, arrived };
        control.reload(&mut *control.state.lock().await).await?;
        Ok(Arc::new(control))
    }

    /// The tokens, by their IDs.
    pub fn tokens(&self) -> Arc<TokenRecords> {
        Arc::clone(&self.tokens.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The latest position of the log, as a hint for [`Self::catch_up`].
    pub fn watch(&self) -> Option<watch::Receiver<LogPosition>> {
        self.log.watch()
    }

    /// Applies what others have appended so far.
    ///
    /// # Errors
    /// [`ControlLogError`]. What was known stays in force.
    pub async fn catch_up(&self) -> Result<(), ControlLogError> {
        self.change(Concern::Rules, |_| Ok((Vec::new(), ()))).await
    }

    /// The blocks that rules of others name, since the last call. The caller deletes them once the rules in the copy
    /// are in force.
    pub fn take_arrived(&self) -> ArrivedBlocks {
        std::mem::take(&mut *self.arrived())
    }

    /// Returns blocks that could not be deleted yet.
    pub fn put_back(&self, blocks: &ArrivedBlocks) {
        self.arrived().extend(blocks);
    }

    /// Adds lines after those that exist. They are in the copy when this returns.
    ///
    /// # Errors
    /// [`ControlLogError`].
    pub async fn add_rules(&self, lines: &[String]) -> Result<(), ControlLogError> {
        let put = |(number, line): (u64, &String)| Change::Put(rule_key(number), line.clone().into_bytes());
        let decide = |known: &Known| Ok(((known.rule_next..).zip(lines).map(put).collect(), ()));
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
        let (mut state, mut removed) = (self.state.lock().await, 0);
        for _ in 0..ATTEMPTS_MAX {
            let (after, keys) = self.find_rules(&is_meant).await?;
            state.is_stale |= !keys.is_empty();
            let (count, is_complete) = self.remove_keys(after, keys).await?;
            removed += count;
            if is_complete {
                self.refresh(&mut state).await?;
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

    async fn change<T, E: From<ControlLogError>>(
        &self,
        concern: Concern,
        decide: impl Fn(&Known) -> Result<(Vec<Change>, T), E>,
    ) -> Result<T, E> {
        let mut state = self.state.lock().await;
        for _ in 0..ATTEMPTS_MAX {
            concern.need(self.refresh(&mut state).await)?;
            let decided = decide(&Known { rule_next: state.rule_next, tokens: self.tokens() });
            let changes = decided.as_ref().map_or_else(|_| Vec::new(), |(changes, _)| changes.clone());
            match self.log.append(state.position, changes).await.map_err(ControlLogError::from)? {
                Appended::At(position) => {
                    let (changes, done) = decided?;
                    self.apply(&mut state, LogEntry { position, changes }, Origin::Own).await?;
                    return Ok(done);
                }
                Appended::Behind(entries) => concern.need(self.apply_all(&mut state, entries).await)?,
                Appended::Truncated => concern.need(self.reload(&mut state).await)?,
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
        // A copy that could not be written is replaced by the next reading of all records.
        if let Some(copy) = self.copy.clone().filter(|_| !lines.is_empty() && !state.is_copy_stale) {
            if origin == Origin::Other {
                self.arrived().add_entry(&lines);
            }
            blocking(move || copy.append(&lines)).await?;
        }
        if !tokens.is_empty() {
            let mut known = TokenRecords::clone(&self.tokens());
            tokens.into_iter().for_each(|change| change.apply(&mut known));
            self.set_tokens(known);
        }
        *state = State { position, rule_next, is_stale: false, is_copy_stale: state.is_copy_stale };
        Ok(())
    }

    /// Reads all records again if that is necessary.
    async fn refresh(&self, state: &mut State) -> Result<(), ControlLogError> {
        if state.is_stale || state.is_copy_stale { self.reload(state).await } else { Ok(()) }
    }

    /// Reads all records, and replaces the copy if it differs. If only that fails, the records are known.
    async fn reload(&self, state: &mut State) -> Result<(), ControlLogError> {
        state.is_stale = true;
        let (log, copy) = (Arc::clone(&self.log), self.copy.clone());
        let (position, records, copied) = blocking(move || {
            let mut records = Records::new(copy.is_some());
            let position = log.read(&mut |key, content| records.add(key, content))?;
            let lines = records.take_lines();
            Ok((position, records, copy.map(|copy| copy.replace(&lines)).transpose()))
        })
        .await?;
        let Records { rule_next, tokens, .. } = records;
        self.set_tokens(tokens);
        *state = State { position, rule_next, is_stale: false, is_copy_stale: copied.is_err() };
        copied?.iter().for_each(|arrived| self.arrived().extend(arrived));
        Ok(())
    }

    fn set_tokens(&self, tokens: TokenRecords) {
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tokens);
    }

    fn arrived(&self) -> MutexGuard<'_, ArrivedBlocks> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `work` on a thread where it may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ControlLogError> + Send + 'static,
) -> Result<T, ControlLogError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| StoreError::Closed)?
}
