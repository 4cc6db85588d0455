//! [`Abandoned`]: uploads whose creation was not answered, so that no client has their IDs.
//!
//! Goals: they do not count against the limits of their owners for longer than it takes to reach the database again; a
//! creation that the database completes late is found as well.
//!
//! Non-goals: those of a gateway that stops meanwhile, and those whose client has lost the response. They expire.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How many are known at most. Others expire.
const IDS_MAX: usize = 1024;
/// For how long one that was not there may still appear: a statement does not take as long.
const MAY_APPEAR: Duration = Duration::from_secs(60);

/// The IDs of uploads that may have been created, and until when those that were not there are looked for.
#[derive(Debug, Default)]
pub(super) struct Abandoned(Mutex<BTreeMap<String, Option<Instant>>>);

/// Which of them are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Those that were not looked for before.
    New,
    All,
}

/// The creation of an upload. If this is dropped before an answer, the upload is abandoned.
pub(super) struct Creation<'a> {
    abandoned: &'a Abandoned,
    id: Option<&'a str>,
}

impl Creation<'_> {
    /// It is known whether the upload was created.
    pub(super) fn answered(mut self) {
        self.id = None;
    }
}

impl Drop for Creation<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.abandoned.add(id);
        }
    }
}

impl Abandoned {
    pub(super) fn begin<'a>(&'a self, id: &'a str) -> Creation<'a> {
        Creation { abandoned: self, id: Some(id) }
    }

    fn ids(&self) -> MutexGuard<'_, BTreeMap<String, Option<Instant>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, id: &str) {
        let mut ids = self.ids();
        if ids.len() < IDS_MAX {
            ids.insert(id.to_owned(), None);
        }
    }

    /// The IDs of those that are to be removed.
    pub(super) fn due(&self, which: Which) -> Vec<String> {
        let ids = self.ids();
        let due = ids.iter().filter(|(_, until)| which == Which::All || until.is_none());
        due.map(|(id, _)| id.clone()).collect()
    }

    /// One was removed, or was not there.
    pub(super) fn looked_for(&self, id: &str, is_removed: bool, now: Instant) {
        let mut ids = self.ids();
        let Some(until) = ids.get_mut(id) else { return };
        if is_removed || now >= *until.get_or_insert(now + MAY_APPEAR) {
            ids.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_there_is_looked_for_again() {
        let (abandoned, begin) = (Abandoned::default(), Instant::now());
        abandoned.begin("answered").answered();
        for id in ["late", "never", "removed"] {
            drop(abandoned.begin(id));
        }
        assert_eq!(abandoned.due(Which::New), ["late", "never", "removed"]);
        abandoned.looked_for("removed", true, begin);
        for id in ["late", "never", "unknown"] {
            abandoned.looked_for(id, false, begin);
        }
        assert_eq!((abandoned.due(Which::New).len(), abandoned.due(Which::All).len()), (0, 2));
        abandoned.looked_for("late", true, begin + MAY_APPEAR / 2);
        abandoned.looked_for("never", false, begin + MAY_APPEAR / 2);
        assert_eq!(abandoned.due(Which::All), ["never"]);
        abandoned.looked_for("never", false, begin + MAY_APPEAR);
        assert_eq!(abandoned.due(Which::All).len(), 0);
    }

    #[test]
    fn their_number_is_bounded() {
        let abandoned = Abandoned::default();
        for number in 0..2 * IDS_MAX {
            drop(abandoned.begin(&number.to_string()));
        }
        assert_eq!(abandoned.due(Which::All).len(), IDS_MAX);
    }
}
