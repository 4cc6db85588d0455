//! [`Sorter`]: any number of records in order, in bounded memory.
//!
//! Records are collected in memory, sorted there when they are too many and written as a run to a file that has no name and is gone
//! with the process; in the end the runs are merged. Records of the same key come in the order in which they were added.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::rc::Rc;

/// A run of less, in bytes, is not written: many short ones would have to be merged.
const RUN_BYTES_MIN: usize = 64 * 1024;
/// What is read of all runs together while they are merged, in bytes; one of them is read this much at a time at most and at least.
const MERGE_BYTES: usize = 4 << 20;
const READ_BYTES: (usize, usize) = (4 * 1024, 64 * 1024);
/// Before each record: the lengths of its key and its value.
const HEAD_BYTES: usize = 8;
/// What a record takes in memory besides its bytes.
const OFFSET_BYTES: usize = 8;

/// What several sorters may have in memory together.
#[derive(Debug, Clone)]
pub struct Room {
    bytes_max: usize,
    bytes: Rc<Cell<usize>>,
}

impl Room {
    /// Room for so many bytes. A sorter that has less than 64 KiB may go beyond that.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: Rc::default() }
    }
}

/// Records that are being collected.
#[derive(Debug)]
pub struct Sorter {
    folder: PathBuf,
    room: Room,
    /// Records as they are written.
    bytes: Vec<u8>,
    /// Where each begins.
    offsets: Vec<usize>,
    file: Option<File>,
    /// Where each run ends in the file.
    ends: Vec<u64>,
    total_bytes: u64,
}

/// A record: its key and its value.
pub type Record = (Vec<u8>, Vec<u8>);

impl Sorter {
    /// A sorter that writes to `folder` what finds no room in memory.
    pub fn new(folder: PathBuf, room: Room) -> Self {
        let (bytes, offsets, ends) = (Vec::new(), Vec::new(), Vec::new());
        Self { folder, room, bytes, offsets, file: None, ends, total_bytes: 0 }
    }

    /// The bytes of all keys and values.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Adds a record.
    ///
    /// # Errors
    /// What the disk said.
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput);
        let lengths = [length(key)?.to_le_bytes(), length(value)?.to_le_bytes()];
        self.offsets.push(self.bytes.len());
        lengths.iter().for_each(|length| self.bytes.extend_from_slice(length));
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.total_bytes += (key.len() + value.len()) as u64;
        self.room.bytes.set(self.room.bytes.get() + HEAD_BYTES + key.len() + value.len() + OFFSET_BYTES);
        if self.room.bytes.get() > self.room.bytes_max && self.bytes.len() >= RUN_BYTES_MIN {
            self.write_run()?;
        }
        Ok(())
    }

    /// The records in order. They can be read once.
    ///
    /// # Errors
    /// What the disk said, here and while they are read.
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
        self.give_back();
        self.bytes.clear();
        self.offsets.clear();
        Ok(())
    }

    fn give_back(&self) {
        let held = self.bytes.len() + self.offsets.len() * OFFSET_BYTES;
        self.room.bytes.set(self.room.bytes.get().saturating_sub(held));
    }
}

impl Drop for Sorter {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// The record that begins at an offset.
fn record(bytes: &[u8], offset: usize) -> (&[u8], &[u8]) {
    let (key_bytes, value_bytes) = lengths(&bytes[offset..]);
    let key = offset + HEAD_BYTES;
    (&bytes[key..key + key_bytes], &bytes[key + key_bytes..key + key_bytes + value_bytes])
}

fn lengths(head: &[u8]) -> (usize, usize) {
    let length = |at: usize| head[at..at + 4].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    (length(0), length(4))
}

/// A run's next record: its key, the run, its value.
type Ahead = (Vec<u8>, usize, Vec<u8>);

/// Records in order.
#[derive(Debug)]
pub struct Sorted {
    sorter: Sorter,
    /// How many of the records in memory were read.
    position: usize,
    runs: Vec<Run>,
    /// The next record of each run.
    heap: BinaryHeap<Reverse<Ahead>>,
}

/// A run that is being read.
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

    /// Has so many bytes in the buffer that were not read.
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
    /// What the disk said.
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
        fn records_come_in_order_whatever_finds_room(
            records in prop::collection::vec((prop::collection::vec(0..3_u8, 0..5), 0..400_usize), 0..2_000),
            bytes_max in prop::sample::select(vec![0, 100_000, 10_000_000]),
        ) {
            let room = Room::new(bytes_max);
            let mut sorter = Sorter::new(std::env::temp_dir(), room.clone());
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
            prop_assert_eq!(room.bytes.get(), 0);
        }
    }
}
