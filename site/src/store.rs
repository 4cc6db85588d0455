//! [`SiteStore`]: the block store of a gateway of a site: its own disk as a cache, and the blocks that gateways share.
//!
//! ```text
//! SiteStore ─┬─ its own disk     cached blocks, and what temporary pins protect
//!            ├─ SharedBlocks     pins and their blocks, and blocks that any gateway has fetched
//!            ├─ writer           batches of blocks for the shared storage
//!            ├─ ahead            blocks of uploads, before their roots are known
//!            └─ upkeep           what any gateway does for all: unpinning, eviction, putting in order
//! ```
//!
//! Goals: pins are those of the site, whichever gateway is asked; a pin is complete when its blocks are in the shared
//! storage, and the disk of no gateway matters; what the own disk has is read without the database; the shared storage
//! is asked for each block that the own disk lacks, because its absence may end at any moment.
//!
//! Non-goals: the order of the tiers for requests (`cache::Tiers`, which reads the own disk and [`SharedSource`]
//! itself); which gateway works on which pin (`services`).
//!
//! *Temporary pins* are those of the own disk: an upload is pinned in the shared storage when its roots are known, and is
//! acknowledged after that. By then, much of it has been written ahead.
//!
//! | module | concern |
//! |---|---|
//! | `block_store` | implements [`cache::BlockStore`] |
//! | `source` | [`SharedSource`]: the blocks in the shared storage as a source |
//! | `writer` | batches of blocks for the shared storage |
//! | `ahead` | the blocks of uploads, before their roots are known |
//! | `encoding` | their stored forms |
//! | `upkeep` | the work in the background |
//! | [`reconcile`] | comparing all of the storage with the index, when an operator asks for it |

mod ahead;
mod block_store;
mod encoding;
pub mod reconcile;
mod source;
mod upkeep;
mod writer;

pub use source::SharedSource;

use self::ahead::WriteAhead;
use self::source::UsedBlocks;
use self::upkeep::Upkeep;
use self::writer::{Target, Writer};
use crate::blocks::{IndexFigures, SharedBlocks};
use crate::engine_state::EngineState;
use crate::members::Members;
use cache::pins::PinChanges;
use cache::store::IsWithheld;
use cache::{BlockStore, StoreError};
use content::stored::CompressionOptions;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// How a gateway uses the shared storage.
#[derive(Debug, Clone)]
pub struct SiteStoreOptions {
    /// The size of the blocks that no pin has and that the shared storage may keep, for all gateways together, in bytes.
    /// 0: blocks that are fetched are not put there.
    pub cached_bytes_max: u64,
    /// How blocks are compressed for the shared storage.
    pub zstd: CompressionOptions,
    /// How often a gateway looks for what is to be done for all.
    pub upkeep_interval: Duration,
}

impl Default for SiteStoreOptions {
    fn default() -> Self {
        let zstd = CompressionOptions::default();
        Self { cached_bytes_max: 100_000_000_000, zstd, upkeep_interval: Duration::from_secs(5) }
    }
}

/// Which blocks are withheld, when it is known.
type Withheld = Arc<OnceLock<IsWithheld>>;

fn is_withheld(withheld: &Withheld, key: &content::BlockKey) -> bool {
    withheld.get().is_some_and(|is_withheld| is_withheld(key))
}

/// The store of a gateway of a site. Clones are handles to the same one.
#[derive(Debug, Clone)]
pub struct SiteStore {
    inner: Arc<Inner>,
}

struct Inner {
    disk: Arc<dyn BlockStore>,
    shared: SharedBlocks,
    source: SharedSource,
    writer: Writer,
    ahead: WriteAhead,
    storage: EngineState,
    keeps_cached: bool,
    changes: Arc<PinChanges>,
    /// Pins were removed.
    removed: Arc<Notify>,
    is_withheld: Withheld,
    /// Of whom each provides a part of the keys. All keys without.
    members: OnceLock<Arc<Members>>,
    /// For callers that block their thread.
    runtime: Handle,
    upkeep: JoinHandle<()>,
    /// Locked while this gateway compares the storage with the index for an operator.
    reconciling: Arc<tokio::sync::Mutex<()>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("disk", &self.disk).field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.upkeep.abort();
    }
}

impl SiteStore {
    /// The store of a gateway with this disk. Pins on the disk, of a time when the gateway was alone, stay there, and are
    /// not part of the site. Call it in a Tokio runtime.
    pub fn new(disk: Arc<dyn BlockStore>, shared: SharedBlocks, options: &SiteStoreOptions) -> Self {
        let (changes, removed) = (Arc::<PinChanges>::default(), Arc::<Notify>::default());
        let shared = shared.reporting_to(Arc::clone(&changes));
        let used = UsedBlocks::default();
        let upkeep = Upkeep {
            shared: shared.clone(),
            used: used.clone(),
            changes: Arc::clone(&changes),
            removed: Arc::clone(&removed),
            storage: EngineState::default(),
            cached_bytes_max: options.cached_bytes_max,
            interval: options.upkeep_interval,
        };
        let is_withheld = Withheld::default();
        let ahead = WriteAhead::new(shared.clone(), options.zstd, Arc::clone(&is_withheld));
        let target = Target {
            shared: shared.clone(),
            ahead: ahead.clone(),
            disk: Arc::clone(&disk),
            zstd: options.zstd,
            is_withheld: Arc::clone(&is_withheld),
        };
        let inner = Inner {
            storage: upkeep.storage.clone(),
            source: SharedSource::new(shared.clone(), used),
            writer: Writer::start(target),
            ahead,
            keeps_cached: options.cached_bytes_max > 0,
            disk,
            shared,
            changes,
            removed,
            is_withheld,
            members: OnceLock::new(),
            runtime: Handle::current(),
            upkeep: tokio::spawn(upkeep.run()),
            reconciling: Arc::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The state of the storage, as upkeep finds out.
    pub fn storage(&self) -> &EngineState {
        &self.inner.storage
    }

    /// Visits only the keys that this member provides from now on ([`BlockStore::visit_keys`]).
    pub fn set_members(&self, members: Arc<Members>) {
        _ = self.inner.members.set(members);
    }

    /// What is in the shared storage.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn shared_figures(&self) -> Result<IndexFigures, StoreError> {
        self.inner.shared.figures().await
    }

    /// The blocks in the shared storage, without the own disk.
    pub fn source(&self) -> &SharedSource {
        &self.inner.source
    }
}

impl Inner {
    fn is_withheld(&self, key: &content::BlockKey) -> bool {
        is_withheld(&self.is_withheld, key)
    }
}
