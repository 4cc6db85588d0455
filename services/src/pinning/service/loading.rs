//! What a service begins with: the register, and what the store has.

use crate::pinning::index::{Entry, Index, Outcome, Root, millis};
use crate::pinning::record::{self, Work};
use crate::pinning::request::{Owner, Wanted};
use crate::pinning::service::{Pins, PinsError, progress};
use crate::pinning::workers::wait_max;
use cache::register::Change;
use cache::{PinState, PinSummary, Register, Salvage, StoreError};
use content::Cid;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};

impl Pins {
    /// Reads the register and looks at what the store has.
    pub(super) async fn load(self: &Arc<Self>) -> Result<(), StoreError> {
        self.change(self.load_now()).await
    }

    async fn load_now(&self) -> Result<(), StoreError> {
        let register = self.register.clone();
        let reading = tokio::task::spawn_blocking(move || record::load(&register));
        let found = reading.await.map_err(|_| StoreError::Closed)??;
        let held = self.store.pins().await?;
        let mut held: HashMap<Cid, PinSummary> = held.into_iter().map(|pin| (pin.root, pin)).collect();
        self.drop_orphans(&found.orphans, &mut held, &found.entries).await?;
        let (mut entries, mut changes, mut lost) = reconcile(found.entries, &held);
        let damage = Damage::of(&self.register, found.unreadable.len());
        changes.extend(record::put_aside(&found.unreadable));
        let taken_in = self.take_in(&mut entries, &held, damage.is_some(), &mut changes)?;
        lost.extend(taken_in.iter().filter(|root| held.get(root).is_some_and(|pin| pin.state == PinState::Partial)));
        self.save(changes).await?;
        if let Some(damage) = damage {
            damage.tell(&taken_in);
            self.metrics.show_damage(self.register.is_read_only());
            *self.damage.lock().unwrap_or_else(PoisonError::into_inner) = Some(damage.summary(taken_in));
        }
        {
            let mut index = self.index_mut();
            entries.into_iter().for_each(|entry| index.insert(entry));
            for (root, pin) in &held {
                index.note_progress(root, progress(pin), pin.state == PinState::Complete);
            }
            let wait_max = wait_max(&self.options);
            for (root, work) in found.works {
                let work = index.clock.adopt(work, wait_max);
                index.note_work(&root, work);
            }
            for root in lost {
                let work = index.root(&root).map(|root| root.work.clone()).unwrap_or_default();
                index.note_work(&root, Work { lost: true, ..work });
            }
        }
        // What was complete when the process was killed, and had not been said to be.
        let complete: Vec<Cid> = {
            let index = self.index();
            let waits = |(cid, root): &(&Cid, &Root)| root.complete && index.is_pending(cid);
            index.roots().filter(waits).map(|(cid, _)| *cid).collect()
        };
        for root in complete {
            match self.settle_complete(&root).await {
                // Its worker says it once there is space.
                Err(PinsError::Store(error)) => pass_if_full(Err(error))?,
                Err(error) => return Err(StoreError::Io(error.to_string().into())),
                Ok(()) => {}
            }
        }
        self.changed();
        Ok(())
    }

    /// Ends what a process that was killed had begun: pins that were to go.
    async fn drop_orphans(
        &self,
        orphans: &[(Cid, record::Orphan)],
        held: &mut HashMap<Cid, PinSummary>,
        entries: &[Entry],
    ) -> Result<(), StoreError> {
        let needed = needed(entries);
        let mut changes = Vec::new();
        for (root, orphan) in orphans {
            let is_that = |pin: &PinSummary| millis(pin.created) <= orphan.at_ms;
            if !needed.contains(root) && held.get(root).is_some_and(is_that) {
                held.remove(root);
                match self.store.remove_pin(root).await {
                    // It is to go at the next start then.
                    Err(error) if error.is_full() => {
                        pass_if_full(Err(error))?;
                        continue;
                    }
                    removed => removed?,
                };
            }
            changes.push(record::delete_orphan(root));
        }
        self.save(changes).await
    }

    /// Makes requests of pins that nobody asked for, and returns their roots. A pin that is not complete and that a request names
    /// is what is left of one that was given up, unless records were lost. One that no request names was made by a command
    /// while no gateway ran, and has lost blocks since or never had all of them.
    fn take_in(
        &self,
        entries: &mut Vec<Entry>,
        held: &HashMap<Cid, PinSummary>,
        partial_too: bool,
        changes: &mut Vec<Change>,
    ) -> Result<Vec<Cid>, StoreError> {
        let needed = needed(entries);
        let named: HashSet<Cid> = entries.iter().map(|entry| entry.root).collect();
        let is_strange = |pin: &&PinSummary| {
            let is_left_over = pin.state == PinState::Partial && named.contains(&pin.root) && !partial_too;
            !needed.contains(&pin.root) && !is_left_over
        };
        let mut strange: Vec<&PinSummary> = held.values().filter(is_strange).collect();
        strange.sort_by_key(|pin| (pin.created, pin.id));
        let mut taken: HashSet<u64> = entries.iter().map(|entry| entry.created_ms).collect();
        let operator = Owner::operator();
        for pin in &strange {
            let mut created_ms = millis(pin.created);
            while !taken.insert(created_ms) {
                created_ms += 1;
            }
            let wanted = Wanted { name: pin.name.clone(), ..Wanted::new(pin.root) };
            let outcome = if pin.state == PinState::Complete { Outcome::Pinned } else { Outcome::Pending };
            let entry = self.entry(&Index::default(), &operator, wanted, outcome, None)?;
            let entry = Entry { created_ms, taken_in: true, ..entry };
            changes.push(record::put(&entry)?);
            entries.push(entry);
        }
        Ok(strange.into_iter().map(|pin| pin.root).collect())
    }

    /// Writes what was decided at the start. A register that cannot be changed is served from as it was read.
    async fn save(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        if changes.is_empty() || self.register.is_read_only() {
            return Ok(());
        }
        pass_if_full(self.register.write(changes).await)
    }
}

/// A full disk is no reason not to start: what could not be written is decided again at the next start.
fn pass_if_full(written: Result<(), StoreError>) -> Result<(), StoreError> {
    match written {
        Err(error) if error.is_full() => {
            tracing::warn!(%error, "the list of pins is served as it was read: the disk is full");
            Ok(())
        }
        written => written,
    }
}

/// Roots that are logged one by one.
const ROOTS_LOGGED_MAX: usize = 100;

/// What was lost of the register.
struct Damage {
    salvage: Option<Salvage>,
    unreadable: usize,
}

/// What a damaged register came to, for the operator.
#[derive(Debug, Clone)]
pub struct DamageReport {
    /// What was done about its files, if they were damaged.
    pub salvage: Option<Salvage>,
    /// Records that could not be understood.
    pub unreadable: usize,
    /// The roots of pins of which no record was left: they are the operator's now. Their names are those in the store; what else
    /// was kept with them, and whose they were, is lost.
    pub taken_in: Vec<Cid>,
}

impl Damage {
    fn of(register: &Register, unreadable: usize) -> Option<Self> {
        let salvage = register.salvage().cloned();
        (salvage.is_some() || unreadable > 0).then_some(Self { salvage, unreadable })
    }

    fn tell(&self, taken_in: &[Cid]) {
        let records = self.salvage.as_ref().map(|salvage| salvage.records);
        let kept = self.salvage.as_ref().and_then(|salvage| salvage.kept.as_deref()).map(|kept| kept.display());
        let kept = kept.map(|kept| kept.to_string());
        tracing::error!(
            records,
            unreadable = self.unreadable,
            pins_without_record = taken_in.len(),
            damaged_files = kept,
            "the list of pins was damaged and is made anew; no block was lost by it"
        );
        for root in taken_in.iter().take(ROOTS_LOGGED_MAX) {
            tracing::warn!(%root, "whose pin this is was lost, and what was kept with it: it is the operator's now");
        }
    }

    fn summary(self, taken_in: Vec<Cid>) -> DamageReport {
        DamageReport { salvage: self.salvage, unreadable: self.unreadable, taken_in }
    }
}

/// The roots whose pins somebody needs.
fn needed(entries: &[Entry]) -> HashSet<Cid> {
    let live = entries.iter().filter(|entry| entry.is_live());
    live.flat_map(|entry| [Some(entry.root), entry.keeps]).flatten().collect()
}

/// Makes requests agree with what the store has: whoever was told that something is pinned, and it is not or lacks blocks, gets
/// it again, as does whoever was told that something is withheld, which may have changed; what was only taken in goes with its
/// pin. Returns the roots of pins that lost something as well.
fn reconcile(entries: Vec<Entry>, held: &HashMap<Cid, PinSummary>) -> (Vec<Entry>, Vec<Change>, HashSet<Cid>) {
    let (mut changes, mut lost) = (Vec::new(), HashSet::new());
    let mut kept = Vec::with_capacity(entries.len());
    for entry in entries {
        let state = held.get(&entry.root).map(|pin| pin.state);
        match entry.outcome {
            Outcome::Pinned if state.is_none() && entry.taken_in => changes.push(record::delete(&entry.id)),
            Outcome::Pinned if state != Some(PinState::Complete) => {
                lost.insert(entry.root);
                kept.push(Entry { outcome: Outcome::Pending, ..entry });
            }
            Outcome::Withheld(_) => {
                lost.insert(entry.root);
                kept.push(Entry { outcome: Outcome::Pending, ..entry });
            }
            _ => kept.push(entry),
        }
    }
    (kept, changes, lost)
}
