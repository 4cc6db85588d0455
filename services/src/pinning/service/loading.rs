//! The start of the service: reading the pin metadata store, and reconciling it with the block store.

use crate::pinning::index::{Index, PinOutcome, Root, StoredRequest, millis};
use crate::pinning::record::{self, Orphan, PinChange, Records, Work};
use crate::pinning::request::{Owner, PinParameters};
use crate::pinning::service::commit::Attempts;
use crate::pinning::service::{Pins, PinsError, progress};
use crate::pinning::workers::wait_max;
use cache::metadata_store::{Appended, Change, LogEntry, LogPosition};
use cache::{MetadataLog, PinState, PinSummary, Salvage, StoreError};
use content::Cid;
use futures::future::join_all;
use std::collections::{HashMap, HashSet};
use std::mem;
use std::sync::{Arc, PoisonError};

impl Pins {
    /// Loads the pin metadata store and reconciles it with the block store.
    pub(super) async fn load(self: &Arc<Self>) -> Result<(), StoreError> {
        let (loaded, follow_ups) = self.change(self.load_now()).await;
        join_all(follow_ups).await;
        loaded
    }

    async fn load_now(&self) -> Result<(), StoreError> {
        self.read_and_reconcile().await?;
        // Pins that were completed before the process was killed, but not recorded.
        let complete: Vec<Cid> = {
            let index = self.index();
            let waits = |(cid, root): &(&Cid, &Root)| root.complete && index.is_pending(cid);
            index.roots().filter(waits).map(|(cid, _)| *cid).collect()
        };
        for root in complete {
            match self.settle_complete(&root).await {
                // Its worker records it once there is space.
                Err(PinsError::Store(error)) => pass_if_full(Err(error), ())?,
                Err(error) => return Err(StoreError::Io(error.to_string().into())),
                Ok(()) => {}
            }
        }
        self.changed();
        Ok(())
    }

    /// Reads the records, reconciles them with the block store, and writes what has changed. If others have appended
    /// meanwhile, it takes their entries in, and reconciles again.
    async fn read_and_reconcile(&self) -> Result<(), StoreError> {
        let (mut found, mut stored) = self.read_all().await?;
        let mut attempts = Attempts::new();
        loop {
            // For another attempt.
            let kept = self.is_shared().then(|| found.clone());
            let mut reconciled = self.reconciled(found, &mut stored).await?;
            let changes = mem::take(&mut reconciled.changes);
            let (position, missed) = self.save(reconciled.position, changes).await?;
            let Some(missed) = missed else {
                self.show(reconciled, position, &stored);
                return Ok(());
            };
            attempts.next().await?;
            (found, stored) = match (kept, missed) {
                (Some(mut found), Missed::Entries(entries)) => {
                    for root in found.advance(&entries)? {
                        match self.store.pin(&root).await? {
                            Some(pin) => _ = stored.insert(root, pin),
                            None => _ = stored.remove(&root),
                        }
                    }
                    (found, stored)
                }
                _ => self.read_all().await?,
            };
        }
    }

    async fn read_all(&self) -> Result<(Records, HashMap<Cid, PinSummary>), StoreError> {
        let found = self.read_records().await?;
        if self.is_shared() {
            // A service of a later release has made them.
            found.check_readable()?;
        }
        let stored = self.store.pins().await?;
        Ok((found, stored.into_iter().map(|pin| (pin.root, pin)).collect()))
    }

    /// The state that follows from the records and the pins of the block store.
    async fn reconciled(
        &self,
        found: Records,
        stored: &mut HashMap<Cid, PinSummary>,
    ) -> Result<Reconciled, StoreError> {
        let damage = Damage::of(&*self.log, found.unreadable.len());
        let mut changes = match &damage {
            // The services agree on when they are removed. Until then, nothing of them is stored.
            None if self.is_shared() => {
                found.orphans.iter().for_each(|(root, _)| _ = stored.remove(root));
                Vec::new()
            }
            None => self.drop_orphans(&found, stored).await?,
            // The record of a later request for the root may be lost. The operator removes what is not needed.
            Some(_) => found.orphans.iter().map(|(root, _)| PinChange::RemoveOrphan(*root)).collect(),
        };
        let Records { position, format, entries, works, unreadable, orphans } = found;
        let orphans = if self.is_shared() { orphans } else { Vec::new() };
        let (mut entries, removed, mut lost) = reconcile(entries, stored);
        changes.extend(removed);
        let adopted = self.adopt_pins(&mut entries, stored, damage.is_some(), &mut changes)?;
        lost.extend(adopted.iter().filter(|root| stored.get(root).is_some_and(|pin| pin.state == PinState::Partial)));
        let mut records: Vec<Change> = changes.iter().map(PinChange::encode).collect::<Result<_, _>>()?;
        records.extend(record::move_unreadable(&unreadable));
        if format.is_none() {
            records.push(record::put_format()?);
        }
        Ok(Reconciled { position, entries, works, orphans, lost, adopted, damage, changes: records })
    }

    /// Shows the state of the start.
    fn show(&self, reconciled: Reconciled, position: LogPosition, stored: &HashMap<Cid, PinSummary>) {
        let Reconciled { entries, works, orphans, lost, adopted, damage, .. } = reconciled;
        if let Some(damage) = damage {
            damage.log(&adopted);
            self.metrics.show_damage(self.log.is_read_only());
            *self.damage.lock().unwrap_or_else(PoisonError::into_inner) = Some(damage.report(adopted));
        }
        let mut index = self.index_mut();
        index.position = position;
        entries.into_iter().for_each(|entry| index.insert(entry));
        for (root, pin) in stored {
            index.set_progress(root, progress(pin), pin.state == PinState::Complete);
        }
        let wait_max = wait_max(&self.options);
        for (root, work) in works {
            let work = index.clock.adopt(work, wait_max);
            index.set_work(&root, work);
        }
        for root in lost {
            let work = index.root(&root).map(|root| root.work.clone()).unwrap_or_default();
            index.set_work(&root, Work { lost: true, ..work });
        }
        let former = format!("{}/", self.reach.peer_id);
        for (root, orphan) in orphans {
            let by_former = orphan.removed_by.as_deref().is_some_and(|by| by.starts_with(&former));
            index.leave_noted(&root, orphan.removed_by.as_deref(), by_former);
        }
    }

    /// Completes removals of pins that a killed process had begun, which was the only one.
    async fn drop_orphans(
        &self,
        found: &Records,
        stored: &mut HashMap<Cid, PinSummary>,
    ) -> Result<Vec<PinChange>, StoreError> {
        let needed = needed(&found.entries);
        let mut changes = Vec::new();
        for (root, orphan) in &found.orphans {
            let is_that = |pin: &PinSummary| millis(pin.created) <= orphan.at_ms;
            if !needed.contains(root) && stored.get(root).is_some_and(is_that) {
                stored.remove(root);
                match self.store.remove_pin(root).await {
                    // The next start removes it.
                    Err(error) if error.is_full() => {
                        pass_if_full(Err(error), ())?;
                        continue;
                    }
                    removed => removed?,
                };
            }
            changes.push(PinChange::RemoveOrphan(*root));
        }
        Ok(changes)
    }

    /// Creates requests for pins of the store that have none, and returns their roots. A partial pin that a failed
    /// request names is a leftover, unless records were lost. A partial pin without any request was created by a
    /// command while no gateway ran, and has lost blocks or never was complete. In a store that services share, a pin
    /// without a request may be one that another service is making, and has to be old.
    fn adopt_pins(
        &self,
        entries: &mut Vec<StoredRequest>,
        stored: &HashMap<Cid, PinSummary>,
        partial_too: bool,
        changes: &mut Vec<PinChange>,
    ) -> Result<Vec<Cid>, StoreError> {
        let needed = needed(entries);
        let named: HashSet<Cid> = entries.iter().map(|entry| entry.root).collect();
        let has_no_request = |pin: &&PinSummary| {
            let is_left_over = pin.state == PinState::Partial && named.contains(&pin.root) && !partial_too;
            let may_be_in_progress =
                self.is_shared() && pin.created.elapsed().is_ok_and(|age| age < self.options.adopted_after);
            !needed.contains(&pin.root) && !is_left_over && !may_be_in_progress
        };
        let mut adopted: Vec<&PinSummary> = stored.values().filter(has_no_request).collect();
        adopted.sort_by_key(|pin| (pin.created, pin.id));
        let mut taken: HashSet<u64> = entries.iter().map(|entry| entry.created_ms).collect();
        let operator = Owner::operator();
        for pin in &adopted {
            let mut created_ms = millis(pin.created);
            while !taken.insert(created_ms) {
                created_ms += 1;
            }
            let wanted = PinParameters { name: pin.name.clone(), ..PinParameters::new(pin.root) };
            let outcome = if pin.state == PinState::Complete { PinOutcome::Pinned } else { PinOutcome::Pending };
            let entry = self.entry(&Index::default(), &operator, Arc::new(wanted), outcome, None)?;
            let entry = StoredRequest { created_ms, taken_in: true, ..entry };
            changes.push(PinChange::Request(entry.clone()));
            entries.push(entry);
        }
        Ok(adopted.into_iter().map(|pin| pin.root).collect())
    }

    /// Writes the decisions of the start. A read-only pin metadata store is served as it was read. Returns the position
    /// of the state, or what others have appended meanwhile.
    async fn save(
        &self,
        after: LogPosition,
        changes: Vec<Change>,
    ) -> Result<(LogPosition, Option<Missed>), StoreError> {
        if changes.is_empty() || self.log.is_read_only() {
            return Ok((after, None));
        }
        match self.log.append(after, changes).await {
            Ok(Appended::At(position)) => Ok((position, None)),
            Ok(Appended::Behind(entries)) => Ok((after, Some(Missed::Entries(entries)))),
            Ok(Appended::Truncated) => Ok((after, Some(Missed::Truncated))),
            Err(error) => pass_if_full(Err(error), (after, None)),
        }
    }
}

/// What others have appended during the start.
enum Missed {
    Entries(Vec<LogEntry>),
    /// The log no longer has all of it.
    Truncated,
}

/// The state of the start, and the changes by which the records become it.
struct Reconciled {
    /// The position of the records.
    position: LogPosition,
    entries: Vec<StoredRequest>,
    works: Vec<(Cid, Work)>,
    /// The notes of removals that the services of a log are to complete.
    orphans: Vec<(Cid, Orphan)>,
    /// The roots of pins that lost blocks.
    lost: HashSet<Cid>,
    /// The roots of pins that had no request.
    adopted: Vec<Cid>,
    damage: Option<Damage>,
    changes: Vec<Change>,
}

/// Ignores a full disk, which must not prevent the start: the next start decides again.
fn pass_if_full<T>(written: Result<T, StoreError>, unwritten: T) -> Result<T, StoreError> {
    match written {
        Err(error) if error.is_full() => {
            tracing::warn!(%error, "the disk is full: changes of the start to the pin metadata store are not written");
            Ok(unwritten)
        }
        written => written,
    }
}

/// The maximum number of roots that are logged individually.
const ROOTS_LOGGED_MAX: usize = 100;

/// Damage of the pin metadata store.
struct Damage {
    salvage: Option<Salvage>,
    unreadable: usize,
}

/// A damaged pin metadata store, for the operator.
#[derive(Debug, Clone)]
pub struct DamageReport {
    /// What was salvaged from its files, if they were damaged.
    pub salvage: Option<Salvage>,
    /// The number of records that could not be parsed.
    pub unreadable: usize,
    /// The roots of pins whose records were lost: they now belong to the operator. Their names are those in the block
    /// store; their owners and metadata are lost.
    pub taken_in: Vec<Cid>,
}

impl Damage {
    fn of(log: &dyn MetadataLog, unreadable: usize) -> Option<Self> {
        let salvage = log.salvage().cloned();
        (salvage.is_some() || unreadable > 0).then_some(Self { salvage, unreadable })
    }

    fn log(&self, adopted: &[Cid]) {
        let records = self.salvage.as_ref().map(|salvage| salvage.records);
        let kept = self.salvage.as_ref().and_then(|salvage| salvage.kept.as_deref()).map(|kept| kept.display());
        let kept = kept.map(|kept| kept.to_string());
        tracing::error!(
            records,
            unreadable = self.unreadable,
            pins_without_record = adopted.len(),
            damaged_files = kept,
            "the pin metadata store was damaged and was rebuilt; no blocks were lost"
        );
        for root in adopted.iter().take(ROOTS_LOGGED_MAX) {
            tracing::warn!(%root, "the owner and metadata of a pin were lost: the pin now belongs to the operator");
        }
    }

    fn report(self, adopted: Vec<Cid>) -> DamageReport {
        DamageReport { salvage: self.salvage, unreadable: self.unreadable, taken_in: adopted }
    }
}

/// The roots whose pins are needed.
fn needed(entries: &[StoredRequest]) -> HashSet<Cid> {
    let live = entries.iter().filter(|entry| entry.is_live());
    live.flat_map(|entry| [Some(entry.root), entry.keeps]).flatten().collect()
}

/// Reconciles requests with the pins of the block store: requests whose pin is missing, partial or withheld become
/// pending; requests that were created for a pin are removed with it. Also returns the roots of pins that lost blocks.
fn reconcile(
    entries: Vec<StoredRequest>,
    stored: &HashMap<Cid, PinSummary>,
) -> (Vec<StoredRequest>, Vec<PinChange>, HashSet<Cid>) {
    let (mut changes, mut lost) = (Vec::new(), HashSet::new());
    let mut kept = Vec::with_capacity(entries.len());
    for entry in entries {
        let state = stored.get(&entry.root).map(|pin| pin.state);
        match entry.outcome {
            PinOutcome::Pinned if state.is_none() && entry.taken_in => changes.push(PinChange::RemoveRequest(entry.id)),
            PinOutcome::Pinned if state != Some(PinState::Complete) => {
                lost.insert(entry.root);
                kept.push(StoredRequest { outcome: PinOutcome::Pending, ..entry });
            }
            PinOutcome::Withheld(_) => {
                lost.insert(entry.root);
                kept.push(StoredRequest { outcome: PinOutcome::Pending, ..entry });
            }
            _ => kept.push(entry),
        }
    }
    (kept, changes, lost)
}
