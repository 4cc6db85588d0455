//! [`Sorter`]: an external merge sort of records, in bounded memory.
//!
//! Records are collected in memory. When they exceed the budget, they are sorted and written as a run to an unnamed
//! temporary file; finally the runs are merged. The sort is stable: records with equal keys stay in order.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::rc::Rc;

/// The minimum size of a run, in bytes, because many short runs are slow to merge.
const RUN_BYTES_MIN: usize = 64 * 1024;
/// The total read buffer of all runs during the merge, and the minimum and maximum of one, in bytes.
const MERGE_BYTES: usize = 4 << 20;
const READ_BYTES: (usize, usize) = (4 * 1024, 64 * 1024);
/// The header of a record: the lengths of its key and its value.
const HEAD_BYTES: usize = 8;
/// The memory overhead of a record.
const OFFSET_BYTES: usize = 8;

/// A memory budget that several sorters share.
#[derive(Debug, Clone)]
pub struct MemoryBudget {
    bytes_max: usize,
    bytes: Rc<Cell<usize>>,
}

impl MemoryBudget {
    /// A budget of so many bytes. A sorter with less than 64 KiB may exceed it.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: Rc::default() }
    }
}

/// An unsorted collection of records.
#[derive(Debug)]
pub struct Sorter {
    folder: PathBuf,
    budget: MemoryBudget,
    /// The serialised records.
    bytes: Vec<u8>,
    /// The offset of each record.
    offsets: Vec<usize>,
    file: Option<File>,
    /// The end of each run in the file.
    ends: Vec<u64>,
    total_bytes: u64,
}

/// A record: its key and its value.
pub type Record = (Vec<u8>, Vec<u8>);

impl Sorter {
    /// A sorter that writes runs to a temporary file in `folder`.
    pub fn new(folder: PathBuf, budget: MemoryBudget) -> Self {
        let (bytes, offsets, ends) = (Vec::new(), Vec::new(), Vec::new());
        Self { folder, budget, bytes, offsets, file: None, ends, total_bytes: 0 }
    }

    /// The total size of all keys and values, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Adds a record.
    ///
    /// # Errors
    /// The error of the disk.
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput);
        let lengths = [length(key)?.to_le_bytes(), length(value)?.to_le_bytes()];
        self.offsets.push(self.bytes.len());
        lengths.iter().for_each(|length| self.bytes.extend_from_slice(length));
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.total_bytes += (key.len() + value.len()) as u64;
        self.budget.bytes.set(self.budget.bytes.get() + HEAD_BYTES + key.len() + value.len() + OFFSET_BYTES);
        if self.budget.bytes.get() > self.budget.bytes_max && self.bytes.len() >= RUN_BYTES_MIN {
            self.write_run()?;
        }
        Ok(())
    }

    /// Sorts the records, which can then be read once.
    ///
    /// # Errors
    /// The error of the disk, here and when they are read.
    pub fn finish(mut self) -> io::Result<Sorted> {
        if !self.ends.is_empty() {
            self.write_run()?;
        }
        self.sort();
        let runs = self.ends.len();
        let read_bytes = (MERGE_BYTES / runs.max(1)).clamp(READ_BYTES.0, READ_BYTES.1);
        let mut sorted = Sorted { sorter: self, position: 0, runs: Vec::with_capacity(runs), heap: BinaryHeap::new() };
        for index in 0..runs {
            let at = index.checked_sub(1).map_or(0, |before| sorted.sorter.ends[before]);
            sorted.runs.push(Run { at, end: sorted.sorter.ends[index], read_bytes, buffer: Vec::new(), position: 0 });
            sorted.advance(index)?;
        }
        Ok(sorted)
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        self.offsets.sort_by(|one, other| record(bytes, *one).0.cmp(record(bytes, *other).0));
    }

    fn write_run(&mut self) -> io::Result<()> {
        self.sort();
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile_in(&self.folder)?),
        };
        let mut at = self.ends.last().copied().unwrap_or(0);
        let mut piece = Vec::with_capacity(READ_BYTES.1);
        for offset in &self.offsets {
            let (key, value) = record(&self.bytes, *offset);
            piece.extend_from_slice(&self.bytes[*offset..*offset + HEAD_BYTES + key.len() + value.len()]);
            if piece.len() >= READ_BYTES.1 {
                file.write_all_at(&piece, at)?;
                at += piece.len() as u64;
                piece.clear();
            }
        }
        file.write_all_at(&piece, at)?;
        self.ends.push(at + piece.len() as u64);
        self.release();
        self.bytes.clear();
        self.offsets.clear();
        Ok(())
    }

    fn release(&self) {
        let held = self.bytes.len() + self.offsets.len() * OFFSET_BYTES;
        self.budget.bytes.set(self.budget.bytes.get().saturating_sub(held));
    }
}

impl Drop for Sorter {
    fn drop(&mut self) {
        self.release();
    }
}

/// The record at an offset.
fn record(bytes: &[u8], offset: usize) -> (&[u8], &[u8]) {
    let (key_bytes, value_bytes) = lengths(&bytes[offset..]);
    let key = offset + HEAD_BYTES;
    (&bytes[key..key + key_bytes], &bytes[key + key_bytes..key + key_bytes + value_bytes])
}

fn lengths(head: &[u8]) -> (usize, usize) {
    let length = |at: usize| head[at..at + 4].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    (length(0), length(4))
}

/// The next record of a run: its key, the index of the run, its value.
type Head = (Vec<u8>, usize, Vec<u8>);

/// Sorted records.
#[derive(Debug)]
pub struct Sorted {
    sorter: Sorter,
    /// The number of records in memory that were read.
    position: usize,
    runs: Vec<Run>,
    /// The next record of each run.
    heap: BinaryHeap<Reverse<Head>>,
}

/// A run during the merge.
#[derive(Debug)]
struct Run {
    at: u64,
    end: u64,
    read_bytes: usize,
    buffer: Vec<u8>,
    position: usize,
}

impl Run {
    fn next(&mut self, file: &File) -> io::Result<Option<Record>> {
        if self.position == self.buffer.len() && self.at == self.end {
            return Ok(None);
        }
        self.fill(HEAD_BYTES, file)?;
        let (key_bytes, value_bytes) = lengths(&self.buffer[self.position..]);
        self.fill(HEAD_BYTES + key_bytes + value_bytes, file)?;
        let (key, value) = record(&self.buffer, self.position);
        let found = (key.to_vec(), value.to_vec());
        self.position += HEAD_BYTES + key_bytes + value_bytes;
        Ok(Some(found))
    }

    /// Fills the buffer to at least so many unread bytes.
    fn fill(&mut self, bytes: usize, file: &File) -> io::Result<()> {
        let have = self.buffer.len() - self.position;
        if have >= bytes {
            return Ok(());
        }
        self.buffer.drain(..self.position);
        self.position = 0;
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let more = (bytes - have).max(self.read_bytes).min(left);
        self.buffer.resize(have + more, 0);
        file.read_exact_at(&mut self.buffer[have..], self.at)?;
        self.at += more as u64;
        if self.buffer.len() < bytes { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

impl Sorted {
    /// The next record.
    ///
    /// # Errors
    /// The error of the disk.
    pub fn take(&mut self) -> io::Result<Option<Record>> {
        if let Some(Reverse((key, run, value))) = self.heap.pop() {
            self.advance(run)?;
            return Ok(Some((key, value)));
        }
        let Some(offset) = self.sorter.offsets.get(self.position) else { return Ok(None) };
        self.position += 1;
        let (key, value) = record(&self.sorter.bytes, *offset);
        Ok(Some((key.to_vec(), value.to_vec())))
    }

    fn advance(&mut self, run: usize) -> io::Result<()> {
        let Some(file) = &self.sorter.file else { return Ok(()) };
        if let Some((key, value)) = self.runs[run].next(file)? {
            self.heap.push(Reverse((key, run, value)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drained(mut sorted: Sorted) -> Vec<Record> {
        std::iter::from_fn(|| sorted.take().expect("reads")).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
        #[test]
        fn records_are_sorted_in_memory_and_on_disk(
            records in prop::collection::vec((prop::collection::vec(0..3_u8, 0..5), 0..400_usize), 0..2_000),
            bytes_max in prop::sample::select(vec![0, 100_000, 10_000_000]),
        ) {
            let budget = MemoryBudget::new(bytes_max);
            let mut sorter = Sorter::new(std::env::temp_dir(), budget.clone());
            let mut expected = Vec::new();
            for (number, (key, bytes)) in records.into_iter().enumerate() {
                let value = [&number.to_le_bytes()[..], &vec![7; bytes]].concat();
                sorter.add(&key, &value).expect("adds");
                prop_assert!(sorter.bytes.len() < bytes_max.max(RUN_BYTES_MIN) + 1_000);
                expected.push((key, value));
            }
            expected.sort_by(|one, other| one.0.cmp(&other.0));
            prop_assert!(bytes_max < 1_000_000 || sorter.ends.is_empty());
            prop_assert_eq!(drained(sorter.finish().expect("sorts")), expected);
            prop_assert_eq!(budget.bytes.get(), 0);
        }
    }
}
