//! What a service begins with: the register, and what the store has.

use super::super::index::{Entry, Index, Outcome, Root, millis};
use super::super::record;
use super::super::request::{Owner, Wanted};
use super::{Pins, progress};
use cache::register::Change;
use cache::{PinState, PinSummary, StoreError};
use content::Cid;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

impl Pins {
    /// Reads the register and looks at what the store has.
    pub(super) async fn load(self: &Arc<Self>) -> Result<(), StoreError> {
        let register = self.register.clone();
        let reading = tokio::task::spawn_blocking(move || record::load(&register));
        let found = reading.await.map_err(|_| StoreError::Closed)??;
        let held = self.store.pins().await?;
        let mut held: HashMap<Cid, PinSummary> = held.into_iter().map(|pin| (pin.root, pin)).collect();
        let _turn = self.changes.lock().await;
        self.drop_orphans(&found.orphans, &mut held, &found.entries).await?;
        let (mut entries, mut changes) = reconcile(found.entries, &held);
        self.take_in(&mut entries, &held, &mut changes)?;
        self.register.write(changes).await?;
        {
            let mut index = self.index_mut();
            entries.into_iter().for_each(|entry| index.insert(entry));
            for (root, pin) in &held {
                index.note_progress(root, progress(pin), pin.state == PinState::Complete);
            }
            found.works.into_iter().for_each(|(root, work)| index.note_work(&root, work));
        }
        // What was complete when the process was killed, and had not been said to be.
        let complete: Vec<Cid> = {
            let index = self.index();
            let waits = |(cid, root): &(&Cid, &Root)| root.complete && index.is_pending(cid);
            index.roots().filter(waits).map(|(cid, _)| *cid).collect()
        };
        for root in complete {
            self.settle_complete(&root).await.map_err(|error| StoreError::Io(error.to_string().into()))?;
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
                self.store.remove_pin(root).await?;
                held.remove(root);
            }
            changes.push(record::delete_orphan(root));
        }
        if changes.is_empty() { Ok(()) } else { self.register.write(changes).await }
    }

    /// Makes requests of pins that nobody asked for.
    fn take_in(
        &self,
        entries: &mut Vec<Entry>,
        held: &HashMap<Cid, PinSummary>,
        changes: &mut Vec<Change>,
    ) -> Result<(), StoreError> {
        let needed = needed(entries);
        let is_strange = |pin: &&PinSummary| pin.state == PinState::Complete && !needed.contains(&pin.root);
        let mut strange: Vec<&PinSummary> = held.values().filter(is_strange).collect();
        strange.sort_by_key(|pin| (pin.created, pin.id));
        let mut taken: HashSet<u64> = entries.iter().map(|entry| entry.created_ms).collect();
        let operator = Owner::operator();
        for pin in strange {
            let mut created_ms = millis(pin.created);
            while !taken.insert(created_ms) {
                created_ms += 1;
            }
            let wanted = Wanted { name: pin.name.clone(), ..Wanted::new(pin.root) };
            let entry = self.entry(&Index::default(), &operator, wanted, Outcome::Pinned, None)?;
            let entry = Entry { created_ms, taken_in: true, ..entry };
            changes.push(record::put(&entry)?);
            entries.push(entry);
        }
        Ok(())
    }
}

/// The roots whose pins somebody needs.
fn needed(entries: &[Entry]) -> HashSet<Cid> {
    let live = entries.iter().filter(|entry| entry.is_live());
    live.flat_map(|entry| [Some(entry.root), entry.keeps]).flatten().collect()
}

/// Makes requests agree with what the store has: whoever was told that something is pinned, and it is not, gets it
/// again; what was only taken in goes.
fn reconcile(entries: Vec<Entry>, held: &HashMap<Cid, PinSummary>) -> (Vec<Entry>, Vec<Change>) {
    let mut changes = Vec::new();
    let mut kept = Vec::with_capacity(entries.len());
    for entry in entries {
        let complete = held.get(&entry.root).is_some_and(|pin| pin.state == PinState::Complete);
        match entry.outcome {
            Outcome::Pinned if !complete && entry.taken_in => changes.push(record::delete(&entry.id)),
            Outcome::Pinned if !complete => kept.push(Entry { outcome: Outcome::Pending, ..entry }),
            _ => kept.push(entry),
        }
    }
    (kept, changes)
}
