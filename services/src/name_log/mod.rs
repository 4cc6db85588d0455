//! [`NameLog`]: the IPNS keys and the published names that all gateways of a site have.
//!
//! | module | concern |
//! |---|---|
//! | `records` | the records: a key or a publication each |
//! | `cipher` | private keys are encrypted |
//!
//! They are in a log that the gateways share ([`cache::MetadataLog`]), as the rules and tokens are in another one
//! ([`crate::control_log`]): a gateway appends what it has decided on the records that it knows; if others have
//! appended meanwhile, it applies their entries and decides again. So of two gateways that publish a name at the same
//! time, the second one in the log has the higher sequence number. A gateway asks for the entries of others every
//! second, or after a notification that there are some.
//!
//! Goals: a change is in the log before its request is answered; while the log cannot be reached, what is known can be
//! read and resolved, and changes fail in bounded time and can be repeated; without the key file, neither the database
//! nor its backups tell a private key.
//!
//! Non-goals: putting records ([`p2p_bridge::names::publish`]). Which gateway does that is decided by claims
//! ([`Claims`]), one for each name, for as long as something is to be done for it.

mod cipher;
mod records;
#[cfg(test)]
mod tests;

pub use self::cipher::NameCipher;

use crate::control_log::following::Following;
use crate::control_log::lock::BoundedLock;
use crate::pinning::coordination::{self, Claim, Claimed, Claims};
use crate::supervision::Supervisor;
use cache::metadata_store::{Appended, Change, LogEntry, LogPosition};
use cache::{MetadataLog, StoreError};
use content::names::Key;
use content::{Cid, codec, hashes};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use p2p_bridge::names::keystore::KeyError;
use p2p_bridge::names::shared::{ChangeFor, KnownNames, NameChange, SharedNames};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio_util::task::AbortOnDropHandle;

/// How often a change is decided again because others have appended first.
const ATTEMPTS_MAX: usize = 64;
/// The number of changes that wait for others. Further ones are rejected.
const WAITING_MAX: usize = 64;
/// How long a change waits for others, so that it is answered before the timeout of admin requests.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How long one gateway works for a name before others may. Searching for the peers of a record, and sending it to
/// them, mostly takes less than two minutes.
const TURN_MAX: Duration = Duration::from_secs(180);
/// How long a gateway waits that has not ended its work in time, so that others can claim it: they ask when a lease
/// that they know of would have ended.
const TURN_PAUSE: Duration = Duration::from_secs(45);
/// The number of names that a gateway works for at a time: each has a claim, which is renewed, and a thread while it
/// changes the log.
const WORKING_MAX: usize = 16;
/// How long a gateway waits at least while another one works for a name.
const HELD_RETRY_MIN: Duration = Duration::from_secs(1);
/// How long a gateway waits if it could not ask whether another one works for a name, or has lost its claim.
const CLAIM_RETRY: Duration = Duration::from_secs(15);

/// Why the log of names cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum NameLogError {
    /// The log failed.
    #[error("the keys and names of the site cannot be read: {0}")]
    Log(#[from] StoreError),
    /// The keys were encrypted with another key.
    #[error(
        "the key in the file is not the one that the keys of the site are encrypted with: use the file of the other \
         gateways of the site, or a copy of it"
    )]
    WrongKey,
    /// The system has no random numbers.
    #[error("the system has no random numbers")]
    Random,
}

impl NameLogError {
    /// The setting that it is about.
    pub fn setting(&self) -> &'static str {
        match self {
            Self::WrongKey => "site.names_key_file",
            Self::Log(_) | Self::Random => "site.database",
        }
    }
}

/// The IPNS keys and published names of a site.
#[derive(Debug)]
pub struct NameLog {
    log: Arc<dyn MetadataLog>,
    claims: Claiming,
    cipher: Arc<NameCipher>,
    /// Held while what is known changes, so that entries are applied in their order.
    state: BoundedLock<LogPosition>,
    known: watch::Sender<Arc<KnownNames>>,
    /// A permit for each name that is worked for.
    working: Semaphore,
}

/// The claims on the work for names.
struct Claiming(Arc<dyn Claims>);

impl std::fmt::Debug for Claiming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Claiming")
    }
}

/// Why a change was not made, or may not have been made.
struct Failure {
    is_unavailable: bool,
    reason: String,
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self { is_unavailable: is_unavailable(&error), reason: error.to_string() }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self { is_unavailable: false, reason: error.to_string() }
    }
}

impl From<Failure> for KeyError {
    fn from(Failure { is_unavailable, reason }: Failure) -> Self {
        match is_unavailable {
            true => Self::Unavailable { reason },
            false => Self::Shared { reason },
        }
    }
}

/// Whether the log cannot be reached, or is busy: a change may succeed later.
fn is_unavailable(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable { .. } | StoreError::Busy | StoreError::Closed)
}

impl NameLog {
    /// Reads all records. The first gateway of a site that does so determines the key that private keys are encrypted
    /// with.
    ///
    /// # Errors
    /// [`NameLogError`].
    pub async fn open(
        log: Arc<dyn MetadataLog>,
        claims: Arc<dyn Claims>,
        cipher: NameCipher,
    ) -> Result<Arc<Self>, NameLogError> {
        let cipher = Arc::new(cipher);
        for _ in 0..ATTEMPTS_MAX {
            let Records { position, known, check } = read(&log, &cipher).await?;
            match check {
                Some(sealed) if !cipher.is_check(&sealed) => return Err(NameLogError::WrongKey),
                Some(_) => {
                    let state = BoundedLock::new(position, WAITING_MAX);
                    let known = watch::Sender::new(Arc::new(known));
                    let (claims, working) = (Claiming(claims), Semaphore::new(WORKING_MAX));
                    return Ok(Arc::new(Self { log, claims, cipher, state, known, working }));
                }
                None => {
                    let sealed = cipher.seal_check().ok_or(NameLogError::Random)?;
                    log.append(position, vec![Change::Put(records::CHECK.to_vec(), sealed)]).await?;
                }
            }
        }
        Err(StoreError::Busy.into())
    }

    /// Starts to follow the changes of other gateways, until the returned value is dropped.
    pub fn follow(self: &Arc<Self>, supervisor: &Supervisor) -> AbortOnDropHandle<()> {
        supervisor.spawn("the task that reads the names of the site", follow(Arc::clone(self)))
    }

    /// Applies what others have appended so far.
    async fn catch_up(&self) -> Result<(), StoreError> {
        let mut position = self.state.lock().await;
        for _ in 0..ATTEMPTS_MAX {
            if let Appended::At(_) = self.append(&mut position, Vec::new()).await? {
                return Ok(());
            }
        }
        Err(StoreError::Busy)
    }

    /// Makes the changes that are decided on.
    async fn decide(
        &self,
        made_for: ChangeFor,
        decide: &mut dyn FnMut(&KnownNames) -> Vec<NameChange>,
    ) -> Result<(), Failure> {
        let mut position = match made_for {
            ChangeFor::Request => self.state.lock_within(WAIT_MAX).await.ok_or(StoreError::Busy)?,
            ChangeFor::Task => self.state.lock().await,
        };
        for _ in 0..ATTEMPTS_MAX {
            let changes = decide(&self.current());
            let changes = changes.iter().map(|change| records::encode(change, &self.cipher));
            let changes = changes.collect::<io::Result<Vec<_>>>()?;
            if let Appended::At(_) = self.append(&mut position, changes).await? {
                return Ok(());
            }
        }
        Err(StoreError::Busy.into())
    }

    /// Appends changes, and applies them, or else what others have appended before. If that is cancelled, the next
    /// append applies what this one has not.
    async fn append(&self, position: &mut LogPosition, changes: Vec<Change>) -> Result<Appended, StoreError> {
        let appended = self.log.append(*position, changes.clone()).await?;
        match &appended {
            Appended::At(at) => self.apply(position, &[LogEntry { position: *at, changes }]),
            Appended::Behind(entries) => self.apply(position, entries),
            Appended::Truncated => {
                let records = read(&self.log, &self.cipher).await?;
                *position = records.position;
                self.known.send_replace(Arc::new(records.known));
            }
        }
        Ok(appended)
    }

    /// Applies entries in their order.
    fn apply(&self, position: &mut LogPosition, entries: &[LogEntry]) {
        let changes: Vec<&Change> = entries.iter().flat_map(|entry| &entry.changes).collect();
        if !changes.is_empty() {
            let mut known = KnownNames::clone(&self.current());
            for change in changes {
                match change {
                    Change::Put(key, content) => records::apply(&mut known, key, Some(content), &self.cipher),
                    Change::Delete(key) => records::apply(&mut known, key, None, &self.cipher),
                }
            }
            self.known.send_replace(Arc::new(known));
        }
        if let Some(last) = entries.last() {
            *position = last.position;
        }
    }

    fn current(&self) -> Arc<KnownNames> {
        Arc::clone(&self.known.borrow())
    }

    /// Runs work for a name under a claim.
    async fn work_claimed(&self, claim: Claim, work: BoxFuture<'_, ()>) -> Result<(), Duration> {
        let claims = &*self.claims.0;
        let mut latest = claim.clone();
        let work = async {
            // Another gateway may just have done it.
            if self.catch_up().await.is_err() {
                return Err(CLAIM_RETRY);
            }
            work.await;
            Ok(())
        };
        let done = tokio::select! {
            done = work => done,
            () = coordination::keep(claims, claim, |renewed| latest = renewed.clone()) => Err(CLAIM_RETRY),
            () = tokio::time::sleep(TURN_MAX) => Err(TURN_PAUSE),
        };
        coordination::release(claims, latest).await;
        done
    }
}

impl SharedNames for NameLog {
    fn watch(&self) -> watch::Receiver<Arc<KnownNames>> {
        self.known.subscribe()
    }

    fn change(
        &self,
        made_for: ChangeFor,
        decide: &mut dyn FnMut(&KnownNames) -> Vec<NameChange>,
    ) -> Result<(), KeyError> {
        Ok(Handle::current().block_on(self.decide(made_for, decide))?)
    }

    fn work<'a>(&'a self, key: Key, work: BoxFuture<'a, ()>) -> BoxFuture<'a, Result<(), Duration>> {
        async move {
            let root = claimed(&key).ok_or(CLAIM_RETRY)?;
            let _permit = self.working.acquire().await.map_err(|_| CLAIM_RETRY)?;
            match self.claims.0.claim(&root).await {
                Ok(Claimed::Granted(claim)) => self.work_claimed(claim, work).await,
                Ok(Claimed::Held { retry_after }) => Err(retry_after.max(HELD_RETRY_MIN)),
                Err(error) => {
                    tracing::debug!(name = %key, %error, "it is not known whether another gateway works for a name");
                    Err(CLAIM_RETRY)
                }
            }
        }
        .boxed()
    }
}

/// What the claim on the work for a name is for, in the place of a root: no block has it as its content.
fn claimed(key: &Key) -> Option<Cid> {
    let text = format!("causeway: the records of a name of a site are put: {key}");
    hashes::digest(hashes::SHA2_256, 32, text.as_bytes()).ok().map(|hash| Cid::new_v1(codec::RAW, hash))
}

/// All records, as they are read.
struct Records {
    position: LogPosition,
    known: KnownNames,
    check: Option<Vec<u8>>,
}

/// Reads all records on a thread that may block.
async fn read(log: &Arc<dyn MetadataLog>, cipher: &Arc<NameCipher>) -> Result<Records, StoreError> {
    let (log, cipher) = (Arc::clone(log), Arc::clone(cipher));
    let reading = tokio::task::spawn_blocking(move || {
        let (mut known, mut check) = (KnownNames::default(), None);
        let position = log.read(&mut |key, content| match key {
            records::CHECK => check = Some(content.to_vec()),
            _ => records::apply(&mut known, key, Some(content), &cipher),
        })?;
        Ok(Records { position, known, check })
    });
    reading.await.map_err(|_| StoreError::Closed)?
}

/// Applies the changes of others one after the other.
async fn follow(names: Arc<NameLog>) {
    let mut following = Following::new(names.log.watch());
    loop {
        following.next().await;
        following.log(
            &names.catch_up().await,
            "changes of the site's keys and names cannot be read: what is known is used",
            "changes of the site's keys and names are read again",
        );
    }
}
