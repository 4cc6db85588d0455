//! [`PinJournal`]: a second durable record of a store's pins, in a separate file.
//!
//! Goals: the index can be rebuilt without losing a pin; an index that lost acknowledged writes is detected when the
//! store is opened; damage to one entry affects only that entry; removing a pin needs no space.
//!
//! Non-goals: the members of pins, which traversing the stored blocks finds; who requested a pin.
//!
//! | bytes | the header |
//! |---|---|
//! | 8 | [`MAGIC`] |
//! | 4 | the schema of the store |
//! | 4 | CRC-32 of the above |
//! | 24 | the [`Watermark`]: three numbers |
//! | 4 | CRC-32 of the watermark |
//! | 20 | zeros |
//!
//! | bytes | an entry |
//! |---|---|
//! | 4 | [`ENTRY`] |
//! | 1 | 0 for an active pin, 255 for a removed one (tombstone); a flipped bit does not turn one into the other |
//! | 4 | length of the body, which follows the checksum |
//! | 4 | CRC-32 of the length and the body |
//! | … | body: length of the root (2 bytes), root CID, [`PinRecord`] |
//!
//! Numbers are big-endian. Entries are appended; the last entry of a pin applies, and a removal overwrites its state
//! byte.
//!
//! The write order makes the journal a check on the index: a pin is appended after the index has synced it and before
//! it is acknowledged, and is marked removed before the index deletes it. So an index that lost nothing has every
//! complete pin of the journal, whenever the process was killed or power failed.
//!
//! All functions here block.

use crate::folder;
use crate::pins::{PinId, PinRecord};
use content::Cid;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use tracing::warn;

/// The file name.
pub(crate) const NAME: &str = "pins.journal";

const MAGIC: [u8; 8] = *b"cw-pins\x01";
const ENTRY: [u8; 4] = [0xc5, b'p', b'i', b'n'];
const HEADER_BYTES: usize = 64;
const ENTRY_HEAD_BYTES: usize = 13;
/// The maximum size of an entry's body: a CID has at most some hundred bytes and a name at most 1,020.
const BODY_BYTES_MAX: usize = 16 * 1024;

/// Compaction starts only with more obsolete entries than this.
const OBSOLETE_ENTRIES_MIN: usize = 4_096;

/// The schema in a journal that was never written with pins.
const UNINITIALISED: u32 = 0;

const ACTIVE: u8 = 0;
const REMOVED: u8 = 255;

/// The position of the index at its last known sync.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Watermark {
    /// The sequence number of its last write; 0 if unknown.
    pub(crate) sequence: u64,
    /// The number and the length in bytes of its manifest; 0 if unknown.
    pub(crate) manifest: u64,
    pub(crate) manifest_bytes: u64,
}

/// The state in which a journal was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JournalState {
    /// There is no journal.
    Missing,
    /// A part before its end cannot be read.
    Damaged,
    /// All of it was read, except for an interrupted append at its end.
    Intact,
}

/// The contents of a journal.
#[derive(Debug)]
pub(crate) struct JournalContents {
    pub(crate) state: JournalState,
    /// The schema of the store, if it can be read.
    pub(crate) schema: Option<u32>,
    /// `None` if it cannot be read.
    pub(crate) watermark: Option<Watermark>,
    /// The active pins, with their last records.
    pub(crate) pins: BTreeMap<PinId, (Cid, PinRecord)>,
    /// Removed pins.
    pub(crate) removed: BTreeSet<PinId>,
    /// Obsolete entries: replaced by newer ones, or of removed pins.
    obsolete: usize,
}

impl JournalContents {
    fn missing() -> Self {
        Self {
            state: JournalState::Missing,
            schema: None,
            watermark: None,
            pins: BTreeMap::new(),
            removed: BTreeSet::new(),
            obsolete: 0,
        }
    }

    /// Whether rewriting would repair it, or make it much smaller.
    pub(crate) fn is_worth_rewriting(&self) -> bool {
        self.state != JournalState::Intact || is_mostly_obsolete(self.obsolete, self.pins.len())
    }
}

/// An open journal.
#[derive(Debug)]
pub(crate) struct PinJournal {
    path: PathBuf,
    /// `None` if the file does not exist and could not be created.
    file: Option<File>,
    /// The offset of the next entry, in bytes.
    end: u64,
    /// The offset of the last entry of each active pin.
    entries: HashMap<PinId, u64>,
    /// The entry that was marked removed last.
    last_removed: Option<(PinId, u64)>,
    /// Obsolete entries: replaced by newer ones, or of removed pins.
    obsolete: usize,
}

impl PinJournal {
    /// Reads the journal in a directory, without keeping it open.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn read(dir: &Path) -> io::Result<JournalContents> {
        match fs::read(dir.join(NAME)) {
            Ok(bytes) => Ok(parse(&bytes).0),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(JournalContents::missing()),
            Err(error) => Err(error),
        }
    }

    /// Opens the journal in a directory, or creates it. A new journal counts as damaged until it is first
    /// [rewritten](Self::rewrite), since its lack of pins means nothing.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn open(dir: &Path) -> io::Result<(Self, JournalContents)> {
        let path = dir.join(NAME);
        let (found, entries) = match fs::read(&path) {
            Ok(bytes) => parse(&bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let mut journal =
                    Self { path, file: None, end: 0, entries: HashMap::new(), last_removed: None, obsolete: 0 };
                if let Err(error) = journal.create_uninitialised() {
                    warn!(%error, "the pin journal cannot be created, so that no pin can be completed");
                }
                return Ok((journal, JournalContents::missing()));
            }
            Err(error) => return Err(error),
        };
        let file = File::options().read(true).write(true).open(&path)?;
        let JournalOffsets { end, entries } = entries;
        let obsolete = found.obsolete;
        Ok((Self { path, file: Some(file), end, entries, last_removed: None, obsolete }, found))
    }

    fn create_uninitialised(&mut self) -> io::Result<()> {
        self.rewrite(UNINITIALISED, Watermark::default(), std::iter::empty())
    }

    /// Replaces the journal by one of these pins, durably.
    ///
    /// # Errors
    /// I/O errors; the old journal stays, unless only syncing the directory failed.
    pub(crate) fn rewrite(
        &mut self,
        schema: u32,
        watermark: Watermark,
        pins: impl Iterator<Item = (Cid, PinRecord)>,
    ) -> io::Result<()> {
        // The renamed file is the journal, even if syncing the directory fails.
        *self = Self::create(self.path.clone(), schema, watermark, pins)?;
        folder::sync(self.path.parent().unwrap_or(&self.path))
    }

    fn create(
        path: PathBuf,
        schema: u32,
        watermark: Watermark,
        pins: impl Iterator<Item = (Cid, PinRecord)>,
    ) -> io::Result<Self> {
        let mut bytes = header(schema, watermark);
        let mut entries = HashMap::new();
        for (root, record) in pins {
            entries.insert(record.id, bytes.len() as u64);
            put_entry(&mut bytes, &root, &record);
        }
        let temporary = path.with_extension("journal.new");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&temporary)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_data()?;
        fs::rename(&temporary, &path)?;
        Ok(Self { path, file: Some(file), end: bytes.len() as u64, entries, last_removed: None, obsolete: 0 })
    }

    /// Appends pins; syncs them if `durable`.
    ///
    /// # Errors
    /// I/O errors; the entries may or may not be written.
    pub(crate) fn append(&mut self, pins: &[(Cid, PinRecord)], durable: bool) -> io::Result<()> {
        if self.file.is_none() {
            self.create_uninitialised()?;
        }
        let Some(file) = &self.file else { return Ok(()) };
        let mut bytes = Vec::new();
        let mut offsets = Vec::with_capacity(pins.len());
        for (root, record) in pins {
            offsets.push((record.id, self.end + bytes.len() as u64));
            put_entry(&mut bytes, root, record);
        }
        let written = file.write_all_at(&bytes, self.end);
        if let Err(error) = written.and_then(|()| if durable { file.sync_data() } else { Ok(()) }) {
            // An entry that was not acknowledged must not become active later. Truncating needs no space.
            if let Err(error) = file.set_len(self.end) {
                warn!(%error, "an unacknowledged entry of the pin journal could not be truncated");
            }
            return Err(error);
        }
        self.end += bytes.len() as u64;
        for (pin, offset) in offsets {
            self.obsolete += usize::from(self.entries.insert(pin, offset).is_some());
        }
        // The entries are written, even if compaction fails.
        if is_mostly_obsolete(self.obsolete, self.entries.len())
            && let Err(error) = self.compact()
        {
            warn!(%error, "compacting the pin journal failed");
        }
        Ok(())
    }

    /// Rewrites the journal without obsolete entries.
    fn compact(&mut self) -> io::Result<()> {
        let found = parse(&fs::read(&self.path)?).0;
        match (found.state, found.schema, found.watermark) {
            (JournalState::Intact, Some(schema), Some(watermark)) => {
                self.rewrite(schema, watermark, found.pins.into_values())
            }
            // The next start repairs it from the index.
            _ => Ok(()),
        }
    }

    /// Marks a pin removed, durably. A pin without an entry is not an error.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn mark_removed(&mut self, pin: PinId) -> io::Result<()> {
        let Some(offset) = self.entries.get(&pin).copied() else { return Ok(()) };
        self.set_state(offset, REMOVED)?;
        self.file.as_ref().map_or(Ok(()), File::sync_data)?;
        self.entries.remove(&pin);
        (self.last_removed, self.obsolete) = (Some((pin, offset)), self.obsolete + 1);
        Ok(())
    }

    /// Reverts [`Self::mark_removed`] of a pin, if it was the last.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn restore(&mut self, pin: PinId) -> io::Result<()> {
        let Some((_, offset)) = self.last_removed.take().filter(|(last, _)| *last == pin) else { return Ok(()) };
        self.set_state(offset, ACTIVE)?;
        self.entries.insert(pin, offset);
        self.obsolete -= 1;
        Ok(())
    }

    fn set_state(&self, offset: u64, state: u8) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        file.write_all_at(&[state], offset + ENTRY.len() as u64)
    }

    /// Writes the index's watermark. It is advisory, so it is not synced.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn write_watermark(&self, watermark: Watermark) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        file.write_all_at(&watermark_bytes(watermark), (MAGIC.len() + 8) as u64)
    }
}

fn is_mostly_obsolete(obsolete: usize, active: usize) -> bool {
    obsolete > active + OBSOLETE_ENTRIES_MIN
}

fn header(schema: u32, watermark: Watermark) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(schema.to_be_bytes());
    bytes.extend(crc32fast::hash(&bytes).to_be_bytes());
    bytes.extend(watermark_bytes(watermark));
    bytes.resize(HEADER_BYTES, 0);
    bytes
}

fn watermark_bytes(watermark: Watermark) -> [u8; 28] {
    let mut out = [0; 28];
    out[..8].copy_from_slice(&watermark.sequence.to_be_bytes());
    out[8..16].copy_from_slice(&watermark.manifest.to_be_bytes());
    out[16..24].copy_from_slice(&watermark.manifest_bytes.to_be_bytes());
    let sum = crc32fast::hash(&out[..24]);
    out[24..].copy_from_slice(&sum.to_be_bytes());
    out
}

fn put_entry(bytes: &mut Vec<u8>, root: &Cid, record: &PinRecord) {
    let (root, record) = (root.to_bytes(), record.to_bytes());
    let length = u32::try_from(2 + root.len() + record.len()).unwrap_or(u32::MAX).to_be_bytes();
    let body = [&u16::try_from(root.len()).unwrap_or(u16::MAX).to_be_bytes()[..], &root, &record].concat();
    bytes.extend_from_slice(&ENTRY);
    bytes.push(ACTIVE);
    bytes.extend_from_slice(&length);
    bytes.extend_from_slice(&checksum(length, &body).to_be_bytes());
    bytes.extend_from_slice(&body);
}

fn checksum(length: [u8; 4], body: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&length);
    sum.update(body);
    sum.finalize()
}

/// Offsets of a parsed journal.
struct JournalOffsets {
    end: u64,
    entries: HashMap<PinId, u64>,
}

fn parse(bytes: &[u8]) -> (JournalContents, JournalOffsets) {
    let mut found = JournalContents { state: JournalState::Intact, ..JournalContents::missing() };
    let head = bytes.first_chunk::<HEADER_BYTES>();
    found.schema = head.and_then(parse_schema);
    found.watermark = head.and_then(parse_watermark);
    let mut parsed = JournalOffsets { end: HEADER_BYTES as u64, entries: HashMap::new() };
    let mut at = HEADER_BYTES;
    while at < bytes.len() {
        let Some(entry) = parse_entry(&bytes[at..]) else {
            at += 1;
            continue;
        };
        let former = parsed.entries.remove(&entry.record.id);
        // The unreadable part is followed by an entry, so it is not an interrupted append.
        if at as u64 != parsed.end {
            found.state = JournalState::Damaged;
        }
        found.obsolete += usize::from(former.is_some()) + usize::from(entry.removed);
        if !entry.removed {
            parsed.entries.insert(entry.record.id, at as u64);
        }
        found.apply(entry.root, entry.record, entry.removed);
        at += entry.bytes;
        parsed.end = at as u64;
    }
    if found.schema.is_none() || found.watermark.is_none() {
        found.state = JournalState::Damaged;
    }
    (found, parsed)
}

impl JournalContents {
    fn apply(&mut self, root: Cid, record: PinRecord, removed: bool) {
        let id = record.id;
        if removed {
            self.pins.remove(&id);
            self.removed.insert(id);
        } else {
            // The removal failed, and the root was pinned again.
            self.removed.remove(&id);
            self.pins.insert(id, (root, record));
        }
    }
}

fn parse_schema(head: &[u8; HEADER_BYTES]) -> Option<u32> {
    let (summed, rest) = head.split_at(12);
    let valid = summed.starts_with(&MAGIC) && rest[..4] == crc32fast::hash(summed).to_be_bytes();
    let schema = u32::from_be_bytes([summed[8], summed[9], summed[10], summed[11]]);
    Some(schema).filter(|schema| valid && *schema != UNINITIALISED)
}

fn parse_watermark(head: &[u8; HEADER_BYTES]) -> Option<Watermark> {
    let (numbers, sum) = head[16..44].split_at(24);
    let number = |at: usize| numbers[at..].first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    let valid = sum == crc32fast::hash(numbers).to_be_bytes();
    valid.then_some(Watermark { sequence: number(0)?, manifest: number(8)?, manifest_bytes: number(16)? })
}

struct JournalEntry {
    root: Cid,
    record: PinRecord,
    removed: bool,
    bytes: usize,
}

fn parse_entry(bytes: &[u8]) -> Option<JournalEntry> {
    let (head, rest) = bytes.strip_prefix(&ENTRY)?.split_first_chunk::<{ ENTRY_HEAD_BYTES - ENTRY.len() }>()?;
    let [state, length @ .., a, b, c, d] = *head;
    let body_bytes = usize::try_from(u32::from_be_bytes(length)).ok().filter(|bytes| *bytes <= BODY_BYTES_MAX)?;
    let body = rest.get(..body_bytes)?;
    if checksum(length, body) != u32::from_be_bytes([a, b, c, d]) {
        return None;
    }
    let (root_bytes, body) = body.split_first_chunk()?;
    let (root, record) = body.split_at_checked(usize::from(u16::from_be_bytes(*root_bytes)))?;
    Some(JournalEntry {
        root: Cid::try_from(root).ok()?,
        record: PinRecord::from_bytes(record)?,
        removed: state.count_ones() > 4,
        bytes: ENTRY_HEAD_BYTES + body_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pins::PinState;
    use content::{codec, hashes};
    use proptest::prelude::*;

    fn pin(id: u64) -> (Cid, PinRecord) {
        let hash = hashes::digest(hashes::SHA2_256, 32, &id.to_be_bytes()).expect("sha2-256 is accepted");
        let name = id.is_multiple_of(3).then(|| format!("pin {id}"));
        let (created, state) = (std::time::UNIX_EPOCH, PinState::Complete);
        (Cid::new_v1(codec::RAW, hash), PinRecord { created, state, blocks: id, ..PinRecord::new(PinId(id), name) })
    }

    fn filled(dir: &Path, ids: std::ops::Range<u64>) -> PinJournal {
        let (mut journal, found) = PinJournal::open(dir).expect("opens");
        assert_eq!(found.state, JournalState::Missing);
        journal.rewrite(7, Watermark::default(), std::iter::empty()).expect("rewrites");
        for id in ids {
            journal.append(&[pin(id)], true).expect("appends");
        }
        journal
    }

    fn ids(found: &JournalContents) -> Vec<u64> {
        found.pins.keys().map(|id| id.0).collect()
    }

    #[test]
    fn appended_pins_are_found_and_removed_ones_are_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut journal = filled(dir.path(), 1..6);
        journal.mark_removed(PinId(2)).expect("marks removed");
        journal.mark_removed(PinId(3)).expect("marks removed");
        journal.restore(PinId(3)).expect("restores");
        journal.mark_removed(PinId(99)).expect("has no entry");
        let named = PinRecord { name: Some("another".to_owned()), ..pin(5).1 };
        journal.append(&[(pin(5).0, named.clone())], false).expect("appends");
        journal.mark_removed(PinId(1)).expect("marks removed");
        journal.append(&[pin(1)], false).expect("appends a pin again");
        let watermark = Watermark { sequence: 10, manifest: 20, manifest_bytes: 30 };
        journal.write_watermark(watermark).expect("writes");
        let (_, found) = PinJournal::open(dir.path()).expect("opens");
        assert_eq!((found.state, found.schema, found.watermark), (JournalState::Intact, Some(7), Some(watermark)));
        assert_eq!(ids(&found), [1, 3, 4, 5]);
        assert_eq!(found.pins[&PinId(5)].1, named);
        assert_eq!(found.removed, [PinId(2)].into());
    }

    #[test]
    fn obsolete_entries_are_compacted() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut journal = filled(dir.path(), 1..4);
        let length = || dir.path().join(NAME).metadata().expect("is there").len();
        let before = length();
        journal.mark_removed(PinId(2)).expect("marks removed");
        for _ in 0..2 * OBSOLETE_ENTRIES_MIN + 9 {
            journal.append(&[pin(1)], false).expect("appends");
        }
        assert!(length() < before * OBSOLETE_ENTRIES_MIN as u64);
        assert_eq!(ids(&PinJournal::read(dir.path()).expect("reads")), [1, 3]);
        journal.mark_removed(PinId(1)).expect("marks removed");
        assert_eq!(ids(&PinJournal::read(dir.path()).expect("reads")), [3]);
    }

    #[test]
    fn an_uninitialised_journal_counts_as_damaged() {
        let dir = tempfile::tempdir().expect("a directory");
        drop(PinJournal::open(dir.path()).expect("opens"));
        assert_eq!(PinJournal::read(dir.path()).expect("reads").state, JournalState::Damaged);
    }

    #[test]
    fn an_interrupted_append_is_overwritten() {
        let dir = tempfile::tempdir().expect("a directory");
        drop(filled(dir.path(), 1..4));
        let path = dir.path().join(NAME);
        let bytes = fs::read(&path).expect("reads");
        for torn in [bytes.len() - 1, bytes.len() - 50] {
            fs::write(&path, &bytes[..torn]).expect("writes");
            let (mut journal, found) = PinJournal::open(dir.path()).expect("opens");
            assert_eq!((found.state, ids(&found)), (JournalState::Intact, vec![1, 2]));
            journal.append(&[pin(9)], true).expect("appends");
            assert_eq!(ids(&PinJournal::read(dir.path()).expect("reads")), [1, 2, 9]);
        }
    }

    proptest! {
        #[test]
        fn a_flipped_bit_costs_one_entry_at_most_and_is_detected(at in any::<prop::sample::Index>(), bit in 0..8_u32) {
            let dir = tempfile::tempdir().expect("a directory");
            filled(dir.path(), 1..8).mark_removed(PinId(4)).expect("marks removed");
            let path = dir.path().join(NAME);
            let mut bytes = fs::read(&path).expect("reads");
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let (found, parsed) = parse(&bytes);
            let active = ids(&found);
            prop_assert!(active.len() >= 5 && !active.contains(&4), "{:?}", active);
            for (id, (root, record)) in &found.pins {
                prop_assert_eq!((*root, record.clone()), pin(id.0));
            }
            // At the end it looks like an interrupted append, which only the index can detect.
            let of_last = at as u64 >= parsed.end;
            let is_undetected = found.state == JournalState::Intact;
            prop_assert!(active.len() == 6 || of_last || !is_undetected);
        }
    }
}
