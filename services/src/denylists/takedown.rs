//! [`Control`]: the operator's control of content: take-downs, their removal, and why content is withheld.
//!
//! A take-down adds a rule to the local list, which is on the disk and in force before anything else happens. Then the
//! withheld content is deleted from every tier. A take-down that fails in between can be repeated.
//!
//! * Pins whose root is now withheld are removed, with the blocks that no other pin has. A block that a rule names is
//!   deleted even if another pin has it; that pin then lacks it.
//! * With `deep`, every block below that is stored locally is withheld by its own hash, and deleted after the walk,
//!   which reads blocks that are withheld already. A take-down without `deep` keeps the links of the block that it
//!   names ([`crate::denylists::deleted_links`]), for a later one with `deep`. Links of other deleted blocks are not
//!   kept, so that a later walk finds nothing below them.
//! * A path or a name is withheld as such. Its blocks may belong to other content too; those of a path are deleted only
//!   with `deep`.
//!
//! In a site, the rule is one of the site, and is put in force at the other gateways as well
//! ([`crate::denylists::site_rules`]).
//!
//! Removing a rule also removes those that `deep` added for it, which have a hint with the take-down.
//!
//! Pin requests for withheld content fail, of all tokens, so that it is not fetched again.
//!
//! Caches (paths, listings, redirect rules, compressed files) are invalidated with every change of the rules, and
//! requests in progress are checked at their next block.
//!
//! Finally, caches in front of the gateway are purged ([`crate::front_caches`]): of the subject, of cached paths through
//! it, and of every block that `deep` withholds, because a response has the CIDs on its path as surrogate keys,
//! whatever root it was requested under.
//!
//! The bytes of a deleted block stay on the disk until compaction overwrites them, but cannot be read through the
//! gateway.

use crate::control_log::ControlLogError;
use crate::denylists::Refused;
use crate::denylists::deleted_links;
use crate::denylists::lists::{ChangeError, ListEntry, Lists, TAKEDOWN_HINT, takedown_id};
use crate::front_caches::{Caches, PURGED_BLOCKS_MAX};
use crate::pinning::Pins;
use crate::subject::Subject;
use cache::{Evict, Evicted, StoreError, Tiers};
use content::cid_list::CidList;
use content::denylist::{Hit, Rule, RuleError, Target};
use content::frontier::{Frontier, Step};
use content::path::Root;
use content::walk::{self, Resolved};
use content::{Block, BlockKey, BlockSource, Cid, SourceError, Verdict, cid, codec, dag};
use futures::future::BoxFuture;
use p2p_bridge::epoch;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tokio::sync::{Mutex, MutexGuard, Semaphore, SemaphorePermit};

/// The maximum number of blocks below a root that are withheld with it. Whether there are more is reported.
pub const DEEP_BLOCKS_MAX: usize = 1_000_000;
/// The number of rules that are added in one write.
const RULES_BATCH: usize = 4096;
/// The number of changes that run or wait for others. Further ones are rejected.
pub(super) const CHANGES_MAX: usize = 1024;

/// The operator's control of content.
pub struct Control {
    /// All lists.
    pub lists: Arc<Lists>,
    pub(super) tiers: Tiers,
    /// Serialises changes.
    changing: Mutex<()>,
    /// Limits how many run or wait.
    admission: Semaphore,
    /// Serialises changes of the links of deleted blocks.
    keeping_links: Mutex<()>,
    /// The pin service, whose requests fail.
    pins: Option<Arc<Pins>>,
    /// Predicts responses.
    answers: OnceLock<Predictor>,
    /// Caches in front of the gateway.
    in_front: OnceLock<FrontCaches>,
}

/// The caches in front of the gateway.
pub struct FrontCaches {
    /// The caches to purge.
    pub caches: Caches,
    /// Finds the cached paths to files that traverse a block. Blocks the thread.
    pub paths_through: PathsThrough,
}

/// See [`FrontCaches::paths_through`].
pub type PathsThrough = Arc<dyn Fn(&Cid) -> Vec<String> + Send + Sync>;

/// Predicts the response to a request for a subject, with the code of the gateway and what is stored locally.
pub type Predictor = Box<dyn Fn(Subject) -> BoxFuture<'static, Predicted> + Send + Sync>;

/// A predicted response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Predicted {
    /// The status; `None` if unknown.
    pub status: Option<u16>,
    /// The withheld part, and the verdict.
    pub refused: Option<(Refused, Verdict)>,
    /// Why the response, or the rest of it, is unknown.
    pub unknown: Option<String>,
}

/// A rule to add.
#[derive(Debug, Clone)]
pub struct NewRule {
    /// The rule.
    pub rule: Rule,
    /// Its line in the list.
    pub line: String,
    /// What it withholds; unknown for a double hash.
    pub subject: Option<Subject>,
    /// Whether to withhold the blocks below by their own hashes.
    pub deep: bool,
    /// Whether to write these as double hashes.
    pub double_hash: bool,
}

/// The result of a take-down.
#[derive(Debug, Clone, Default)]
pub struct Done {
    /// Whether the rule is new.
    pub added: bool,
    /// The number of rules for blocks below.
    pub deep_rules: u64,
    /// Whether all blocks below are withheld that were found.
    pub complete: bool,
    /// The number of blocks below that are not stored, so that the blocks below them were not found.
    pub unread: u64,
    /// The number of withheld blocks below for which caches in front are sent no purge requests, because there are too
    /// many.
    pub unpurged: u64,
    /// What was deleted from the tiers.
    pub evicted: Evicted,
    /// The roots of pins that were removed.
    pub unpinned: Vec<Cid>,
    /// The number of caches in front that are notified.
    pub caches_notified: u64,
}

/// Why a change failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Reading or writing the list failed.
    #[error("{0}")]
    List(String),
    /// The rules of the site could not be changed.
    #[error(transparent)]
    Site(#[from] ControlLogError),
    /// Too many changes wait for others.
    #[error("{CHANGES_MAX} changes of the rules run or wait already: repeat the request later")]
    Busy,
    /// Deleting withheld content failed.
    #[error("the rule is in force, but deleting the withheld content failed: {0}")]
    Store(#[from] StoreError),
    /// Not all blocks below are withheld.
    #[error(
        "the rule is in force, and what it and {rules} rules for blocks below withhold was deleted, but no more of them \
         could be added: {error}. Remove the rule (causeway block rm) before you repeat a deep take-down"
    )]
    Below {
        /// The rules that were added for blocks below.
        rules: u64,
        /// Why no more were added.
        error: Box<ControlError>,
    },
}

impl From<ChangeError> for ControlError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::List(reason) => Self::List(reason),
            ChangeError::Site(error) => Self::Site(error),
        }
    }
}

/// A decision on a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The subject, as a path.
    pub of: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The rule that decided, if any.
    pub hit: Option<Hit>,
}

impl Control {
    /// Controls the content of these tiers by these lists.
    pub fn new(lists: Arc<Lists>, tiers: Tiers) -> Self {
        Self {
            lists,
            tiers,
            changing: Mutex::default(),
            admission: Semaphore::new(CHANGES_MAX),
            keeping_links: Mutex::default(),
            pins: None,
            answers: OnceLock::new(),
            in_front: OnceLock::new(),
        }
    }

    /// Sets the caches to notify of take-downs.
    pub fn with_front_caches(&self, in_front: FrontCaches) {
        // There is one gateway, which is created once.
        _ = self.in_front.set(in_front);
    }

    /// Sets how responses are predicted.
    pub fn with_predictor(&self, answers: Predictor) {
        // There is one gateway, which is created once.
        _ = self.answers.set(answers);
    }

    /// Lets pin requests for withheld content fail.
    pub fn with_pins(self, pins: &Arc<Pins>) -> Self {
        Self { pins: Some(Arc::clone(pins)), ..self }
    }

    async fn begin(&self) -> Result<(MutexGuard<'_, ()>, SemaphorePermit<'_>), ControlError> {
        let permit = self.admission.try_acquire().map_err(|_| ControlError::Busy)?;
        Ok((self.changing.lock().await, permit))
    }

    /// Adds a rule and deletes what it withholds. Idempotent.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn add(&self, order: NewRule) -> Result<Done, ControlError> {
        let _changing = self.begin().await?;
        // Another gateway may have added or removed the rule.
        self.lists.catch_up_with_site().await?;
        let mut done = Done { complete: true, ..Done::default() };
        // The rule is in force also if they cannot be read.
        let pins = self.pins().await;
        // Resolved before the rule is in force, which deletes the content.
        let below = match &order.subject {
            Some(subject) if order.deep && !order.rule.allows => self.start_of_walk(subject).await,
            _ => None,
        };
        done.unread = u64::from(order.deep && !order.rule.allows && below.is_none());
        let links = self.links_to_keep(&order).await;
        let traversing = self.traversing_paths(&order).await;
        // In a list of which the end is not read, a rule that is there may not be in force. Then this is refused.
        if !self.is_there(&order.rule).await? || self.lists.is_changed_list_cut_off() {
            self.write(vec![order.line.clone()]).await?;
            done.added = true;
        }
        if order.rule.allows {
            return Ok(done);
        }
        let pins = pins?;
        if let Some((block, links)) = links {
            self.keep_links(block, links).await;
        }
        let named = order.subject.as_ref().and_then(|subject| match &subject.root {
            Root::Cid(cid) => Some(*cid),
            Root::Name(_) => None,
        });
        let is_whole = order.subject.as_ref().is_some_and(|subject| subject.segments.is_empty());
        let (withheld, added) = match below {
            Some((root, block)) => self.add_below(&order, root, block, &mut done).await,
            None => (CidList::default(), Ok(())),
        };
        // Those that were found last first, so that a take-down that fails here can be repeated.
        for batch in withheld.batches_reversed() {
            self.evict(&batch, &mut done).await?;
        }
        // Last, because removing a pin deletes the blocks below.
        let removable = pins.into_removable(&withheld, named.filter(|_| is_whole)).into_iter();
        for (root, id) in removable.filter(|(root, _)| self.is_refused(root)) {
            // Not a later pin: the rule may be removed before this statement has its effect.
            if self.tiers.store().remove_pin_by_id(&root, Some(id)).await? {
                done.unpinned.push(root);
            }
        }
        let gone: Vec<Cid> = named.into_iter().chain(done.unpinned.iter().copied()).collect();
        let gone: Vec<Cid> = gone.into_iter().filter(|cid| self.is_refused(cid)).collect();
        self.evict(&gone, &mut done).await?;
        for root in &gone {
            self.fail_requests(root).await;
        }
        let purged: Vec<Cid> = withheld.iter().take(PURGED_BLOCKS_MAX).collect();
        self.notify_caches(&order, traversing, &purged, &mut done).await;
        match added {
            Ok(()) => Ok(done),
            Err(error) => Err(ControlError::Below { rules: done.deep_rules, error: Box::new(error) }),
        }
    }

    /// Where the walk of a deep take-down begins, and the block if it is stored.
    async fn start_of_walk(&self, subject: &Subject) -> Option<(Cid, Option<Block>)> {
        match (self.resolve_locally(subject).await, &subject.root) {
            (Some(resolved), _) => Some((*resolved.block.cid(), Some(resolved.block))),
            (None, Root::Cid(cid)) if subject.segments.is_empty() => Some((*cid, None)),
            (None, _) => None,
        }
    }

    /// The block that a take-down which is not deep deletes, and its links, if it has any.
    async fn links_to_keep(&self, order: &NewRule) -> Option<(Cid, Vec<Cid>)> {
        let is_kept = !order.deep && !order.double_hash && !order.rule.allows;
        let subject = order.subject.as_ref().filter(|subject| is_kept && subject.segments.is_empty())?;
        let Root::Cid(cid) = &subject.root else { return None };
        Some((*cid, self.links(cid).await?))
    }

    /// The links of a stored block, if it has any.
    pub(super) async fn links(&self, cid: &Cid) -> Option<Vec<Cid>> {
        let block = LocalBlocks { tiers: self.tiers.clone() }.get(cid).await.ok()?;
        dag::links(&block).ok().filter(|links| !links.is_empty())
    }

    /// Keeps the links of a block that is about to be deleted. If that fails, the take-down goes on.
    pub(super) async fn keep_links(&self, block: Cid, links: Vec<Cid>) {
        let Some(path) = self.deleted_links_path() else { return };
        let _keeping = self.keeping_links.lock().await;
        let writing = tokio::task::spawn_blocking(move || deleted_links::append(&path, &block, &links)).await;
        if let Ok(Err(error)) = writing {
            tracing::warn!(%block, %error, "the links of a deleted block are lost: a deep take-down needs them");
        }
    }

    fn deleted_links_path(&self) -> Option<PathBuf> {
        self.lists.local().map(|list| deleted_links::path(&list.file))
    }

    async fn deleted_links(&self) -> HashMap<BlockKey, Vec<Cid>> {
        let Some(path) = self.deleted_links_path() else { return HashMap::new() };
        let read = tokio::task::spawn_blocking(move || deleted_links::load(&path)).await;
        read.unwrap_or_else(|_| Ok(HashMap::new())).unwrap_or_else(|error| {
            tracing::warn!(%error, "the links of deleted blocks cannot be read");
            HashMap::new()
        })
    }

    /// The cached paths that traverse the subject: a cache in front may have responses for them.
    async fn traversing_paths(&self, order: &NewRule) -> Vec<Subject> {
        let Some(in_front) = self.in_front.get().filter(|in_front| !in_front.caches.is_empty()) else {
            return Vec::new();
        };
        let Some(subject) = order.subject.as_ref().filter(|_| !order.rule.allows) else { return Vec::new() };
        let cid = match (&subject.root, self.resolve_locally(subject).await) {
            (_, Some(resolved)) => *resolved.block.cid(),
            (Root::Cid(cid), None) if subject.segments.is_empty() => *cid,
            _ => return Vec::new(),
        };
        let through = Arc::clone(&in_front.paths_through);
        let paths = tokio::task::spawn_blocking(move || through(&cid)).await.unwrap_or_default();
        paths.iter().filter_map(|path| Subject::of_path(path).ok()).collect()
    }

    /// Notifies the caches in front of the subject, and of the blocks below that are withheld with it. A subject that is
    /// given by a double hash is not revealed, also not to the audit log.
    async fn notify_caches(&self, order: &NewRule, traversing: Vec<Subject>, withheld: &[Cid], done: &mut Done) {
        let Some(in_front) = self.in_front.get().filter(|in_front| !in_front.caches.is_empty()) else { return };
        let unpinned = done.unpinned.iter().map(|root| Subject { root: Root::Cid(*root), segments: Vec::new() });
        let mut subjects: Vec<Subject> = order.subject.iter().cloned().chain(unpinned).chain(traversing).collect();
        let mut seen = HashSet::new();
        subjects.retain(|subject| seen.insert(subject.request_path()));
        let hidden = order.double_hash.then(|| order.rule.target.to_string());
        done.caches_notified = in_front.caches.invalidate(&subjects, hidden.as_deref()).await;
        if let Some(subject) = &order.subject {
            let running = self.lists.running();
            let entry = |cid: &Cid| content::Policy::check_entry(&**running, &Root::Cid(*cid), "");
            let is_served = |cid: &Cid| entry(cid) != Verdict::Unlisted;
            let purged = in_front.caches.invalidate_blocks(subject, withheld, is_served, hidden.as_deref()).await;
            done.unpurged = done.deep_rules.saturating_sub(purged as u64);
        }
    }

    /// Lets pin requests for a root fail, with the reason.
    async fn fail_requests(&self, root: &Cid) {
        let Some(pins) = &self.pins else { return };
        if let Err(error) = pins.take_down(root, "the operator of this gateway withholds it").await {
            tracing::warn!(%root, %error, "pin requests for content that was taken down could not be marked as failed");
        }
    }

    pub(super) fn is_refused(&self, cid: &Cid) -> bool {
        self.lists.running().find_block(cid).is_some_and(|hit| hit.verdict != Verdict::Allow)
    }

    /// The roots of pins.
    async fn pins(&self) -> Result<PinnedRoots, ControlError> {
        let pins = self.tiers.store().pins().await?;
        let pins = pins.into_iter().map(|pin| (pin.root, pin.id));
        let (withheld, allowed) = pins.partition(|(root, _)| self.is_refused(root));
        Ok(PinnedRoots { allowed, withheld })
    }

    /// Whether the last rule for the target in the local list is the same.
    async fn is_there(&self, rule: &Rule) -> Result<bool, ControlError> {
        let rules = self.lists.local_rules(0, usize::MAX).await.map_err(ControlError::List)?;
        let last = rules.iter().rev().map(|known| &known.rule).find(|known| known.target == rule.target);
        Ok(last.is_some_and(|known| known.allows == rule.allows && known.status() == rule.status()))
    }

    async fn write(&self, lines: Vec<String>) -> Result<(), ControlError> {
        Ok(self.lists.add(lines).await?)
    }

    /// Deletes blocks from every tier, even if they are pinned.
    async fn evict(&self, cids: &[Cid], done: &mut Done) -> Result<(), ControlError> {
        let keys: Vec<BlockKey> = cids.iter().filter_map(BlockKey::of).collect();
        done.evicted += self.tiers.evict(&keys, Evict::Everything).await?;
        Ok(())
    }

    /// Withholds a block and all blocks below that are stored locally, and returns those that are withheld, and whether
    /// that are all. The caller deletes them when the walk has ended: a block can be read again under another codec.
    async fn add_below(
        &self,
        order: &NewRule,
        root: Cid,
        mut block: Option<Block>,
        done: &mut Done,
    ) -> (CidList, Result<(), ControlError>) {
        let mut deleted_links = self.deleted_links().await;
        // Blocks that were deleted before cannot be read again.
        let mut frontier = Frontier::new(root, None).with_blocks_max(DEEP_BLOCKS_MAX).without_rereads();
        let (mut batch, mut withheld) = (Vec::new(), CidList::default());
        while done.complete {
            let cid = match frontier.step() {
                Ok(Step::Visit(cid)) => cid,
                Ok(_) => break,
                Err(_) => {
                    done.complete = false;
                    break;
                }
            };
            let block = match block.take() {
                Some(block) => Some(block),
                None => self.tiers.look(&cid).await.ok().flatten(),
            };
            let Some(block) = block else {
                match BlockKey::of(&cid).and_then(|key| deleted_links.remove(&key)) {
                    Some(links) => done.complete = frontier.push_links(&cid, &links).is_ok(),
                    None => done.unread += u64::from(!matches!(cid.codec(), codec::RAW | codec::CBOR | codec::JSON)),
                }
                continue;
            };
            done.complete = frontier.push_if_decodable(&block).is_ok();
            if block.key().is_some() {
                batch.push(cid);
            }
            if batch.len() == RULES_BATCH {
                let added = self.add_blocks(order, std::mem::take(&mut batch), done, &mut withheld).await;
                if added.is_err() {
                    return (withheld, added);
                }
            }
        }
        let added = self.add_blocks(order, batch, done, &mut withheld).await;
        (withheld, added)
    }

    async fn add_blocks(
        &self,
        order: &NewRule,
        cids: Vec<Cid>,
        done: &mut Done,
        withheld: &mut CidList,
    ) -> Result<(), ControlError> {
        let mut lines = Vec::with_capacity(cids.len());
        let mut named = Vec::with_capacity(cids.len());
        let mut hints: String = order.rule.hints.iter().map(|(name, value)| format!(" {name}={value}")).collect();
        _ = write!(hints, " {TAKEDOWN_HINT}={}", takedown_id(&order.rule.target));
        for cid in cids {
            let subject = Subject { root: Root::Cid(cid), segments: Vec::new() };
            // The empty block is part of much other content.
            if Rule::parse(&subject.rule_text(false)) == Err(RuleError::Empty) {
                continue;
            }
            let item = if order.double_hash { subject.double_hash() } else { subject.rule_text(false) };
            lines.push(format!("{item}{hints}"));
            named.push(cid);
        }
        if lines.is_empty() {
            return Ok(());
        }
        self.write(lines).await?;
        done.deep_rules += named.len() as u64;
        named.iter().for_each(|cid| withheld.push(cid));
        Ok(())
    }

    /// Removes a rule from the local list, and returns the number of removed lines. Deleted content is fetched again
    /// when it is requested.
    ///
    /// # Errors
    /// [`ControlError::List`], [`ControlError::Site`] and [`ControlError::Busy`].
    pub async fn remove(&self, rule: Rule) -> Result<u64, ControlError> {
        let _changing = self.begin().await?;
        Ok(self.lists.remove(rule).await?)
    }

    /// The decisions on a subject at each step that can be resolved locally, in order. Names are not looked up.
    pub async fn decide(&self, subject: &Subject) -> Vec<Decision> {
        let (running, path) = (self.lists.running(), subject.path());
        let mut decisions = Vec::new();
        if let Some(of) = self.unlisted(subject) {
            decisions.push(Decision { of, verdict: Verdict::Unlisted, hit: None });
        }
        match &subject.root {
            Root::Name(name) => {
                decisions.push(decision(format!("/ipns/{name}"), running.find_name(name, "")));
                if !path.is_empty() {
                    decisions.push(decision(subject.to_string(), running.find_name(name, &path)));
                }
            }
            Root::Cid(cid) => {
                let Some(resolved) = self.resolve_locally(subject).await else {
                    decisions.extend(self.decide_step(cid, &subject.segments));
                    return decisions;
                };
                for (root, rest) in resolved.ways(&subject.segments) {
                    decisions.extend(self.decide_step(root, rest));
                }
            }
        }
        decisions
    }

    /// Predicts the response for a subject, and the decisions: at each step that can be resolved locally and, if none
    /// of them withholds it, that of the predicted response.
    pub async fn check(&self, subject: &Subject) -> (Predicted, Vec<Decision>) {
        let mut decisions = self.decide(subject).await;
        let predicted = match self.answers.get() {
            Some(answers) => answers(subject.clone()).await,
            None => Predicted::default(),
        };
        let is_decided = decisions.iter().any(|decision| decision.verdict != Verdict::Allow);
        if let Some((refused, verdict)) = predicted.refused.as_ref().filter(|_| !is_decided) {
            let (running, Refused { root, path }) = (self.lists.running(), refused);
            let (of, hit) = match root {
                Root::Cid(cid) if path.is_empty() => (format!("/ipfs/{refused}"), running.find_block(cid)),
                Root::Cid(cid) => (format!("/ipfs/{refused}"), running.find_path(cid, path)),
                Root::Name(name) => (format!("/ipns/{refused}"), running.find_name(name, path)),
            };
            decisions.push(Decision { of, verdict: *verdict, hit: hit.filter(|hit| hit.verdict == *verdict) });
        }
        (predicted, decisions)
    }

    fn decide_step(&self, root: &Cid, rest: &[String]) -> Vec<Decision> {
        let running = self.lists.running();
        let mut decisions = vec![decision(format!("/ipfs/{root}"), running.find_block(root))];
        if !rest.is_empty() {
            let subject = Subject { root: Root::Cid(*root), segments: rest.to_vec() };
            decisions.push(decision(subject.to_string(), running.find_path(root, &subject.path())));
        }
        decisions
    }

    fn unlisted(&self, subject: &Subject) -> Option<String> {
        let verdict = content::Policy::check_entry(&**self.lists.running(), &subject.root, &subject.path());
        (verdict == Verdict::Unlisted).then(|| subject.to_string())
    }

    /// Resolves a path with locally stored blocks, ignoring the policy.
    async fn resolve_locally(&self, subject: &Subject) -> Option<Resolved> {
        let Root::Cid(cid) = &subject.root else { return None };
        let local = LocalBlocks { tiers: self.tiers.clone() };
        walk::resolve(&local, *cid, &subject.segments).await.ok()
    }

    /// The list of a rule that matched.
    pub fn list_of(&self, hit: &Hit) -> Option<&Arc<ListEntry>> {
        self.lists.entry(&hit.list)
    }
}

/// The roots of the pins before a take-down, with the IDs of these pins.
struct PinnedRoots {
    allowed: Vec<(Cid, u64)>,
    withheld: Vec<(Cid, u64)>,
}

impl PinnedRoots {
    /// The roots whose pins a take-down removes if it withholds them: those that were not withheld before, and those
    /// that it names or found, which an earlier attempt may have withheld.
    fn into_removable(self, found: &CidList, named: Option<Cid>) -> Vec<(Cid, u64)> {
        let withheld: HashSet<BlockKey> = self.withheld.iter().filter_map(|(root, _)| BlockKey::of(root)).collect();
        let found = found.iter().chain(named).filter_map(|cid| BlockKey::of(&cid));
        let repeated: HashSet<BlockKey> = found.filter(|key| withheld.contains(key)).collect();
        let is_repeated = |(root, _): &(Cid, u64)| BlockKey::of(root).is_some_and(|key| repeated.contains(&key));
        self.allowed.into_iter().chain(self.withheld.into_iter().filter(is_repeated)).collect()
    }
}

fn decision(of: String, hit: Option<Hit>) -> Decision {
    let verdict = hit.as_ref().map_or(Verdict::Allow, |hit| hit.verdict);
    Decision { of, verdict, hit }
}

/// Locally stored blocks, ignoring the policy. For internal use; never served.
struct LocalBlocks {
    tiers: Tiers,
}

impl BlockSource for LocalBlocks {
    fn get(&self, cid: &Cid) -> futures::future::BoxFuture<'static, Result<Block, SourceError>> {
        let (tiers, cid) = (self.tiers.clone(), *cid);
        Box::pin(async move { tiers.look(&cid).await?.ok_or(SourceError::NotFound { cid }) })
    }

    fn has(&self, cid: &Cid) -> futures::future::BoxFuture<'static, Result<bool, SourceError>> {
        self.tiers.store().has(cid)
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("lists", &self.lists).finish_non_exhaustive()
    }
}

/// Sets the hints of a new rule.
pub fn hints(mut rule: Rule, status: Option<u16>, reason: Option<&str>) -> Rule {
    let set = |rule: &mut Rule, name: &str, value: &str| {
        rule.hints.retain(|(own, _)| own != name);
        *rule = rule.clone().with_hint(name, value);
    };
    if let Some(status) = status {
        set(&mut rule, "status", &status.to_string());
    }
    if let Some(reason) = reason {
        set(&mut rule, "reason", reason);
    }
    set(&mut rule, "added", &epoch::now().to_string());
    rule
}

/// The subject of a rule; `None` for a double hash. Its CID has the codec and the version of the rule's text. A bare
/// multihash, which is text in base58, stands for a CID of version 0.
pub fn subject_of(target: &Target, text: &str) -> Option<Subject> {
    let written = || cid::parse(text.split(['/', ' ']).nth(2)?).ok();
    let (root, path) = match target {
        Target::Content { hash, path } => {
            let cid = written().filter(|cid| cid.hash() == hash);
            (Root::Cid(cid.unwrap_or_else(|| Cid::new_v1(codec::DAG_PB, *hash))), path)
        }
        Target::Name { name, path } => (Root::Name(name.clone()), path),
        Target::Double { .. } => return None,
    };
    let segments = path.text.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    Some(Subject { root, segments })
}
