//! [`Control`]: what an operator does about content: withhold it, let it out again, and find out why it is withheld.
//!
//! Withholding is adding a rule to the local list: it is on the disk and in force before anything else happens. Then what is
//! withheld leaves every tier:
//!
//! * Pins whose root is withheld from now on are removed, with what no other pin has of them; a block that a rule is about is
//!   forgotten even if another pin has it, which lacks it from then on.
//! * With `deep`, every block below that is held here is withheld by its own hash, and forgotten.
//! * A path or a name is withheld as such. Its blocks may belong to other content too, so that they go only with `deep`.
//!
//! Letting out again takes the rule away, and those that `deep` added for it: they say in a hint which order they are
//! of.
//!
//! Requests of the pin service for what is withheld fail, whoever's they are, so that they are not fetched again and again.
//!
//! What was remembered (paths, listings, what sites say, files as zstd) is forgotten with every change of the rules, and
//! work that is under way is checked at its next block.
//!
//! Caches in front of the gateway are told ([`crate::front_caches`]), once all of this is done.
//!
//! What the disk still has of a block that was forgotten is overwritten with what lies beside it: nobody gets it from here.

use crate::denylists::Refused;
use crate::denylists::lists::{Entry, Lists, ORDER_HINT, order_of};
use crate::front_caches::Caches;
use crate::pinning::Pins;
use crate::subject::Subject;
use cache::{Evict, Evicted, StoreError, Tiers};
use content::denylist::{Hit, Rule, RuleError, Target};
use content::path::Root;
use content::walk::{self, Resolved};
use content::{Block, BlockKey, BlockSource, Cid, SourceError, Verdict, dag};
use futures::future::BoxFuture;
use p2p_bridge::epoch;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};
use tokio::sync::{Mutex, MutexGuard};

/// Blocks below a root that are withheld with it at most. The rest is told of.
pub const DEEP_BLOCKS_MAX: usize = 1_000_000;
/// Rules that are added at once.
const RULES_AT_ONCE: usize = 4096;

/// See the module.
pub struct Control {
    /// Every list.
    pub lists: Arc<Lists>,
    tiers: Tiers,
    /// One change at a time.
    changing: Mutex<()>,
    /// Who keeps books of pins.
    pins: Option<Arc<Pins>>,
    /// What answers requests.
    answers: OnceLock<Answers>,
    /// What is in front of the gateway, and which paths are remembered that lead through a block.
    in_front: OnceLock<InFront>,
}

/// What is in front of the gateway.
pub struct InFront {
    /// Caches that are told.
    pub caches: Caches,
    /// Says which paths to files are remembered that lead through a block. Blocks the thread.
    pub paths_through: PathsThrough,
}

/// See [`InFront::paths_through`].
pub type PathsThrough = Arc<dyn Fn(&Cid) -> Vec<String> + Send + Sync>;

/// Says what a request for a subject would be answered with, by the code that answers requests and with what is held
/// here.
pub type Answers = Box<dyn Fn(Subject) -> BoxFuture<'static, Predicted> + Send + Sync>;

/// What a request would be answered with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Predicted {
    /// The status; none if that cannot be told.
    pub status: Option<u16>,
    /// What of it is refused, and how.
    pub refused: Option<(Refused, Verdict)>,
    /// Why it cannot be told, or not to its end.
    pub unknown: Option<String>,
}

/// A rule that is to be added.
#[derive(Debug, Clone)]
pub struct Order {
    /// The rule.
    pub rule: Rule,
    /// The line that it is written as.
    pub line: String,
    /// What it is about, if that is known: nobody can tell of a double hash.
    pub subject: Option<Subject>,
    /// Whether what lies below is withheld by its own hashes as well.
    pub deep: bool,
    /// Whether these are double hashes.
    pub double_hash: bool,
}

/// What was done.
#[derive(Debug, Clone, Default)]
pub struct Done {
    /// Whether the rule is new.
    pub added: bool,
    /// Rules for what lies below.
    pub deep_rules: u64,
    /// Whether these are all that there are to be.
    pub complete: bool,
    /// What left the tiers.
    pub evicted: Evicted,
    /// Pins that were removed.
    pub unpinned: Vec<Cid>,
    /// Caches in front that are told.
    pub caches_notified: u64,
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The list cannot be written or read.
    #[error("{0}")]
    List(String),
    /// What is withheld cannot be taken away.
    #[error("the rule is in force, but what is held here could not be forgotten: {0}")]
    Store(#[from] StoreError),
}

/// What decides about something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What was asked about, as a path.
    pub of: String,
    /// What is answered.
    pub verdict: Verdict,
    /// The rule, if there is one.
    pub hit: Option<Hit>,
}

impl Control {
    /// Controls what leaves these tiers by these lists.
    pub fn new(lists: Arc<Lists>, tiers: Tiers) -> Self {
        Self {
            lists,
            tiers,
            changing: Mutex::default(),
            pins: None,
            answers: OnceLock::new(),
            in_front: OnceLock::new(),
        }
    }

    /// Caches in front are told of what is taken down, from now on.
    pub fn with_in_front(&self, in_front: InFront) {
        // There is one gateway, which is made once.
        _ = self.in_front.set(in_front);
    }

    /// Checks are made by what answers requests, from now on.
    pub fn answered_by(&self, answers: Answers) {
        // There is one gateway, which is made once.
        _ = self.answers.set(answers);
    }

    /// The same, and requests for pins that are withheld fail.
    pub fn telling(self, pins: &Arc<Pins>) -> Self {
        Self { pins: Some(Arc::clone(pins)), ..self }
    }

    async fn begin(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().await
    }

    /// Adds a rule and takes away what it withholds. The same rule once more changes nothing but that.
    ///
    /// # Errors
    /// [`ControlError`].
    pub async fn add(&self, order: Order) -> Result<Done, ControlError> {
        let _changing = self.begin().await;
        let mut done = Done { complete: true, ..Done::default() };
        let pins = self.pins_allowed().await?;
        // Once the rule is in force, what it is about is gone.
        let below = match &order.subject {
            Some(subject) if order.deep && !order.rule.allows => self.held(subject).await,
            _ => None,
        };
        let passed = self.passed(&order).await;
        if !self.is_there(&order.rule).await? {
            self.write(vec![order.line.clone()]).await?;
            done.added = true;
        }
        if order.rule.allows {
            return Ok(done);
        }
        if let Some(resolved) = below {
            self.add_below(&order, resolved.block, &mut done).await?;
        }
        // Last, since a pin that is removed takes with it what lies below.
        for root in pins.iter().filter(|root| self.is_refused(root)) {
            if self.tiers.disk().remove_pin(root).await? {
                done.unpinned.push(*root);
            }
        }
        let named = order.subject.as_ref().and_then(|subject| match &subject.root {
            Root::Cid(cid) => Some(*cid),
            Root::Name(_) => None,
        });
        let gone: Vec<Cid> = named.into_iter().chain(done.unpinned.iter().copied()).collect();
        let gone: Vec<Cid> = gone.into_iter().filter(|cid| self.is_refused(cid)).collect();
        self.evict(&gone, &mut done).await?;
        for root in &gone {
            self.fail_requests(root).await;
        }
        done.caches_notified = self.notify_caches(&order, passed, &done.unpinned).await;
        Ok(done)
    }

    /// The paths that are remembered to lead through what an order is about: a cache in front may have answers to
    /// requests for them.
    async fn passed(&self, order: &Order) -> Vec<Subject> {
        let Some(in_front) = self.in_front.get().filter(|in_front| !in_front.caches.is_empty()) else {
            return Vec::new();
        };
        let Some(subject) = order.subject.as_ref().filter(|_| !order.rule.allows) else { return Vec::new() };
        let cid = match (&subject.root, self.held(subject).await) {
            (_, Some(resolved)) => *resolved.block.cid(),
            (Root::Cid(cid), None) if subject.segments.is_empty() => *cid,
            _ => return Vec::new(),
        };
        let through = Arc::clone(&in_front.paths_through);
        let paths = tokio::task::spawn_blocking(move || through(&cid)).await.unwrap_or_default();
        paths.iter().filter_map(|path| Subject::of_path(path).ok()).collect()
    }

    /// Has caches in front told of what is gone. A double hash is to tell nobody what it is about, the audit log
    /// included.
    async fn notify_caches(&self, order: &Order, passed: Vec<Subject>, unpinned: &[Cid]) -> u64 {
        let Some(in_front) = self.in_front.get() else { return 0 };
        let unpinned = unpinned.iter().map(|root| Subject { root: Root::Cid(*root), segments: Vec::new() });
        let mut subjects: Vec<Subject> = order.subject.iter().cloned().chain(unpinned).chain(passed).collect();
        let mut seen = HashSet::new();
        subjects.retain(|subject| seen.insert(subject.request_path()));
        let hidden = order.double_hash.then(|| order.rule.target.to_string());
        in_front.caches.invalidate(&subjects, hidden.as_deref()).await
    }

    /// Whoever asked for it to be kept hears why it is not.
    async fn fail_requests(&self, root: &Cid) {
        let Some(pins) = &self.pins else { return };
        if let Err(error) = pins.take_down(root, "the operator of this gateway withholds it").await {
            tracing::warn!(%root, %error, "requests for a pin that was taken down stand as they were");
        }
    }

    fn is_refused(&self, cid: &Cid) -> bool {
        self.lists.running().find_block(cid).is_some_and(|hit| hit.verdict != Verdict::Allow)
    }

    /// The roots of pins that nothing withholds yet.
    async fn pins_allowed(&self) -> Result<Vec<Cid>, ControlError> {
        let pins = self.tiers.disk().pins().await?;
        Ok(pins.into_iter().map(|pin| pin.root).filter(|root| !self.is_refused(root)).collect())
    }

    /// Whether the same rule is what the local list says last about its target.
    async fn is_there(&self, rule: &Rule) -> Result<bool, ControlError> {
        let rules = self.lists.local_rules(0, usize::MAX).await.map_err(ControlError::List)?;
        let last = rules.iter().rev().find(|(_, known)| known.target == rule.target);
        Ok(last.is_some_and(|(_, known)| known.allows == rule.allows && known.status() == rule.status()))
    }

    async fn write(&self, lines: Vec<String>) -> Result<(), ControlError> {
        self.lists.add(lines).await.map_err(ControlError::List)
    }

    /// Takes blocks out of every tier, whatever pins have them.
    async fn evict(&self, cids: &[Cid], done: &mut Done) -> Result<(), ControlError> {
        let keys: Vec<BlockKey> = cids.iter().filter_map(BlockKey::of).collect();
        done.evicted += self.tiers.evict(&keys, Evict::Everything).await?;
        Ok(())
    }

    /// Withholds every block that is held here from a root on.
    async fn add_below(&self, order: &Order, root: Block, done: &mut Done) -> Result<(), ControlError> {
        let held = Held { tiers: self.tiers.clone() };
        let (mut waiting, mut seen, mut batch) = (vec![*root.cid()], HashSet::new(), Vec::new());
        let mut root = Some(root);
        while let Some(cid) = waiting.pop() {
            if BlockKey::of(&cid).is_some_and(|key| !seen.insert(short(&key))) {
                continue;
            }
            if seen.len() > DEEP_BLOCKS_MAX {
                done.complete = false;
                break;
            }
            let block = match root.take() {
                Some(block) => Some(block),
                None => held.get(&cid).await.ok(),
            };
            let Some(block) = block else { continue };
            waiting.extend(dag::links(&block).unwrap_or_default());
            if block.key().is_some() {
                batch.push(cid);
            }
            if batch.len() == RULES_AT_ONCE {
                self.add_blocks(order, std::mem::take(&mut batch), done).await?;
            }
        }
        self.add_blocks(order, batch, done).await
    }

    async fn add_blocks(&self, order: &Order, cids: Vec<Cid>, done: &mut Done) -> Result<(), ControlError> {
        let mut lines = Vec::with_capacity(cids.len());
        let mut withheld = Vec::with_capacity(cids.len());
        let mut hints: String = order.rule.hints.iter().map(|(name, value)| format!(" {name}={value}")).collect();
        _ = write!(hints, " {ORDER_HINT}={}", order_of(&order.rule.target));
        for cid in cids {
            let subject = Subject { root: Root::Cid(cid), segments: Vec::new() };
            // What is empty is part of much else.
            if Rule::parse(&subject.rule_text(false)) == Err(RuleError::Empty) {
                continue;
            }
            let item = if order.double_hash { subject.double_hash() } else { subject.rule_text(false) };
            lines.push(format!("{item}{hints}"));
            withheld.push(cid);
        }
        if lines.is_empty() {
            return Ok(());
        }
        done.deep_rules += lines.len() as u64;
        self.write(lines).await?;
        self.evict(&withheld, done).await
    }

    /// Takes a rule away from the local list, and says how many lines that were. What was forgotten is fetched when it is wanted.
    ///
    /// # Errors
    /// [`ControlError::List`].
    pub async fn remove(&self, rule: Rule) -> Result<u64, ControlError> {
        let _changing = self.begin().await;
        self.lists.remove(rule).await.map_err(ControlError::List)
    }

    /// What decides about something, at every step that can be told from what is held here, first the one that comes first. Of
    /// a name, what it stands for is not looked up.
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
                let Some(resolved) = self.held(subject).await else {
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

    /// What a request for something would be answered with, and what decides about it: at every step that can be told
    /// from what is held here, and last what the answer is refused for, if none of these is.
    pub async fn check(&self, subject: &Subject) -> (Predicted, Vec<Decision>) {
        let mut decisions = self.decide(subject).await;
        let predicted = match self.answers.get() {
            Some(answers) => answers(subject.clone()).await,
            None => Predicted::default(),
        };
        let is_told = decisions.iter().any(|decision| decision.verdict != Verdict::Allow);
        if let Some((refused, verdict)) = predicted.refused.as_ref().filter(|_| !is_told) {
            let (of, hit) = match refused {
                Refused::Content(cid) => (format!("/ipfs/{cid}"), self.lists.running().find_block(cid)),
                Refused::Name(name) => (format!("/ipns/{name}"), self.lists.running().find_name(name, "")),
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

    /// Where a path leads by what is held here, whatever is withheld of it.
    async fn held(&self, subject: &Subject) -> Option<Resolved> {
        let Root::Cid(cid) = &subject.root else { return None };
        let held = Held { tiers: self.tiers.clone() };
        walk::resolve(&held, *cid, &subject.segments).await.ok()
    }

    /// The list that a rule was found in.
    pub fn list_of(&self, hit: &Hit) -> Option<&Arc<Entry>> {
        self.lists.entry(&hit.list)
    }
}

fn decision(of: String, hit: Option<Hit>) -> Decision {
    let verdict = hit.as_ref().map_or(Verdict::Allow, |hit| hit.verdict);
    Decision { of, verdict, hit }
}

/// Enough of a block's key to know it again.
fn short(key: &BlockKey) -> u128 {
    key.multihash().digest().last_chunk().map_or(0, |last| u128::from_be_bytes(*last))
}

/// What is held here, without asking the policy. Nothing of it is shown to anybody.
struct Held {
    tiers: Tiers,
}

impl BlockSource for Held {
    fn get(&self, cid: &Cid) -> futures::future::BoxFuture<'static, Result<Block, SourceError>> {
        let (tiers, cid) = (self.tiers.clone(), *cid);
        Box::pin(async move {
            let missing = SourceError::NotFound { cid };
            let Some(key) = BlockKey::of(&cid) else { return Block::inline(&cid).ok_or(missing) };
            let data = match tiers.ram().find(&key) {
                Some(data) => data,
                None => tiers.disk().look(&key).await?.ok_or(missing)?,
            };
            Ok(Block::from_checked(cid, data))
        })
    }

    fn has(&self, cid: &Cid) -> futures::future::BoxFuture<'static, Result<bool, SourceError>> {
        self.tiers.disk().has(cid)
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("lists", &self.lists).finish_non_exhaustive()
    }
}

/// The hints of a rule that is added now.
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

/// The subject of a rule in plain.
pub fn subject_of(target: &Target) -> Option<Subject> {
    let (root, path) = match target {
        Target::Content { hash, path } => (Root::Cid(Cid::new_v1(content::codec::DAG_PB, *hash)), path),
        Target::Name { name, path } => (Root::Name(name.clone()), path),
        Target::Double { .. } => return None,
    };
    let segments = path.text.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    Some(Subject { root, segments })
}
