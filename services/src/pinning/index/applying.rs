//! Applying changes, which are durable: those of this service, and those of others that append to the same log.

use crate::pinning::index::{Index, Root, StoredRequest};
use crate::pinning::record::{PinChange, Records, Work};
use content::Cid;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

impl Index {
    /// Applies changes in their order. The roots of new pending requests are due now.
    pub fn apply(&mut self, changes: &[PinChange]) {
        let mut requested = Vec::new();
        for change in changes {
            match change {
                PinChange::Request(entry) if self.ids.contains_key(&entry.id) => {
                    self.settle(&entry.id, entry.outcome.clone());
                }
                PinChange::Request(entry) => {
                    requested.extend(entry.is_pending().then_some(entry.root));
                    self.insert(entry.clone());
                }
                PinChange::RemoveRequest(id) => _ = self.remove(id),
                PinChange::Work(root, work) => self.set_work(root, work.clone()),
                PinChange::RemoveWork(root) => self.set_work(root, Work::default()),
                PinChange::Orphan(root, _) => self.decide_removal(root),
                PinChange::RemoveOrphan(root) => self.clear_removal(root),
            }
        }
        let now_ms = self.clock.now_ms();
        for root in requested {
            self.schedule_now(&root, now_ms);
        }
    }

    /// Applies changes that another service has made; or this service, named `own`, if the answer to its append was
    /// lost. Returns the roots that they affect.
    pub fn apply_foreign(&mut self, changes: &[PinChange], own: &str, wait_max: Duration) -> Vec<Cid> {
        let mut affected = Vec::new();
        for change in changes {
            match change {
                PinChange::Request(entry) => affected.push(entry.root),
                PinChange::RemoveRequest(id) => affected.extend(self.entry(id).map(|entry| entry.root)),
                PinChange::Work(root, work) => {
                    let work = self.clock.adopt(work.clone(), wait_max);
                    self.set_work(root, work);
                    continue;
                }
                PinChange::Orphan(root, orphan) => {
                    affected.push(*root);
                    if orphan.removed_by.as_deref() != Some(own) {
                        self.remove_elsewhere(root, orphan.removed_by.as_deref());
                        continue;
                    }
                }
                PinChange::RemoveOrphan(root) => affected.push(*root),
                PinChange::RemoveWork(_) => {}
            }
            self.apply(std::slice::from_ref(change));
        }
        affected
    }

    /// The changes that make this index one of the records.
    pub fn difference(&self, records: Records) -> Vec<PinChange> {
        let Records { entries, works, orphans, .. } = records;
        let (ids, removing): (HashSet<&str>, HashSet<Cid>) =
            (entries.iter().map(|entry| &*entry.id).collect(), orphans.iter().map(|(root, _)| *root).collect());
        let working: HashSet<Cid> = works.iter().map(|(root, _)| *root).collect();
        let removed =
            self.ids.keys().filter(|id| !ids.contains(&***id)).map(|id| PinChange::RemoveRequest(Arc::clone(id)));
        let has_work = |root: &Root| root.work.attempts > 0 || root.work.lost;
        let idle = self.roots.iter().filter(|(cid, root)| has_work(root) && !working.contains(cid));
        let mut changes: Vec<PinChange> = removed.collect();
        changes.extend(idle.map(|(cid, _)| PinChange::RemoveWork(*cid)));
        let cleared = self.noted_removals().filter(|cid| !removing.contains(*cid));
        changes.extend(cleared.map(|cid| PinChange::RemoveOrphan(*cid)));
        let is_other = |entry: &StoredRequest| self.entry(&entry.id) != Some(entry);
        changes.extend(entries.into_iter().filter(is_other).map(PinChange::Request));
        changes.extend(works.into_iter().map(|(root, work)| PinChange::Work(root, work)));
        changes.extend(orphans.into_iter().map(|(root, orphan)| PinChange::Orphan(root, orphan)));
        changes
    }
}
