//! [`History`]: the position of a log within one process, and its latest entries, for services that are behind.

use super::Change;
use super::log::{Appended, LogEntry, LogPosition};
use std::collections::VecDeque;

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct History {
    last: LogPosition,
    /// The latest entries without gaps.
    entries: VecDeque<LogEntry>,
    bytes: usize,
    bytes_max: usize,
}

impl History {
    /// A history that keeps entries of so many bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// The position of the latest entry.
    pub(super) fn last(&self) -> LogPosition {
        self.last
    }

    /// What a caller at a position has missed; `None` if nothing.
    pub(super) fn missed(&self, after: LogPosition) -> Option<Appended> {
        if after == self.last {
            return None;
        }
        let is_kept =
            self.entries.front().is_some_and(|oldest| oldest.position.number <= after.number.saturating_add(1));
        let missed: Vec<LogEntry> = self.entries.iter().filter(|entry| entry.position > after).cloned().collect();
        // A position that is ahead of the log is not one of it.
        Some(if is_kept && !missed.is_empty() { Appended::Behind(missed) } else { Appended::Truncated })
    }

    /// Adds an entry that was written. Returns its position.
    pub(super) fn push(&mut self, changes: Vec<Change>) -> LogPosition {
        self.last = LogPosition::untagged(self.last.number + 1);
        if self.bytes_max > 0 {
            self.bytes += bytes_of(&changes);
            self.entries.push_back(LogEntry { position: self.last, changes });
        }
        while self.bytes > self.bytes_max
            && let Some(oldest) = self.entries.pop_front()
        {
            self.bytes -= bytes_of(&oldest.changes);
        }
        self.last
    }
}

/// The memory of changes, in bytes.
fn bytes_of(changes: &[Change]) -> usize {
    let bytes = |change: &Change| match change {
        Change::Put(key, value) => key.len() + value.len(),
        Change::Delete(key) => key.len(),
    };
    size_of_val(changes) + changes.iter().map(bytes).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u8) -> Vec<Change> {
        vec![Change::Delete(vec![number; 100])]
    }

    /// The numbers of the entries that a caller is told of; or whether it has to read all records, else it is up to
    /// date.
    type Told = Result<&'static [u8], bool>;

    #[test]
    fn what_was_missed_is_told_as_far_as_it_is_kept() {
        let of_one = bytes_of(&entry(0));
        // Bytes, appended entries, the position of the caller, what it is told.
        let table: [(usize, u8, u64, Told); 9] = [
            (0, 0, 0, Err(false)),
            (0, 1, 1, Err(false)),
            (0, 1, 0, Err(true)),
            (2 * of_one, 2, 0, Ok(&[1, 2])),
            (2 * of_one, 2, 1, Ok(&[2])),
            (2 * of_one, 2, 2, Err(false)),
            (2 * of_one, 3, 0, Err(true)),
            (2 * of_one - 1, 3, 2, Ok(&[3])),
            // A position that this log never had.
            (2 * of_one, 2, 7, Err(true)),
        ];
        for (bytes_max, appended, after, expected) in table {
            let mut history = History::new(bytes_max);
            let last = (1..=appended).map(|number| history.push(entry(number))).last();
            assert_eq!(last.unwrap_or_default(), history.last());
            let missed = history.missed(LogPosition::untagged(after));
            let expected = match expected {
                Err(false) => None,
                Err(true) => Some(Appended::Truncated),
                Ok(numbers) => Some(Appended::Behind(
                    numbers
                        .iter()
                        .map(|number| LogEntry {
                            position: LogPosition::untagged((*number).into()),
                            changes: entry(*number),
                        })
                        .collect(),
                )),
            };
            assert_eq!(missed, expected, "{bytes_max} {appended} {after}");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let bytes_max = 10 * bytes_of(&entry(0));
        let mut history = History::new(bytes_max);
        for number in 0..100 {
            history.push(entry(number));
            assert!(history.bytes <= bytes_max && history.entries.len() <= 10);
        }
        assert_eq!(history.entries.len(), 10);
        // One entry that exceeds the bound is not kept either.
        history.push(vec![Change::Put(Vec::new(), vec![0; bytes_max])]);
        assert_eq!((history.entries.len(), history.bytes), (0, 0));
        assert_eq!(history.missed(LogPosition::untagged(100)), Some(Appended::Truncated));
    }
}
