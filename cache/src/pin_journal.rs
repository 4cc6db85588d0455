//! [`PinJournal`]: a second durable record of the pins of a store, in a file of its own.
//!
//! Goals: the index of a store can be rebuilt without losing a pin; an index that lost acknowledged writes is found out
//! when the store is opened; damage to one entry costs that entry alone; removing a pin needs no space.
//!
//! Non-goals: the members of pins, which a walk over the stored blocks finds; who asked for a pin.
//!
//! | bytes | the header |
//! |---|---|
//! | 8 | [`MAGIC`] |
//! | 4 | the schema of the store |
//! | 4 | CRC-32 of all that |
//! | 24 | the [`Watermark`]: three numbers |
//! | 4 | CRC-32 of the watermark |
//! | 20 | zeros |
//!
//! | bytes | an entry |
//! |---|---|
//! | 4 | [`ENTRY`] |
//! | 1 | 0 for a pin that stands, 255 for one that was removed; a bit that flips makes neither of the other |
//! | 4 | length of what follows the checksum |
//! | 4 | CRC-32 of that length and of what follows |
//! | … | length of the root (2 bytes), root CID, [`PinRecord`] |
//!
//! Numbers are big-endian. Entries are appended; the last of a pin counts, and a removal is written over its state byte.
//!
//! The order is what makes the journal a witness: a pin is entered after the index has it on the disk and before it is
//! acknowledged, and is struck out before the index lets it go. So the index of a store that lost nothing has every
//! complete pin of the journal, whenever the process was killed or the power went.
//!
//! Everything here blocks.

use crate::folder;
use crate::pins::{PinId, PinRecord};
use content::Cid;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use tracing::warn;

/// What the file is called.
pub(crate) const NAME: &str = "pins.journal";

const MAGIC: [u8; 8] = *b"cw-pins\x01";
const ENTRY: [u8; 4] = [0xc5, b'p', b'i', b'n'];
const HEADER_BYTES: usize = 64;
const ENTRY_HEAD_BYTES: usize = 13;
/// No entry is longer: a CID has at most some hundred bytes and a name at most 1,020.
const BODY_BYTES_MAX: usize = 16 * 1024;

/// Fewer entries that do not count are left where they are.
const DEAD_ENTRIES_MIN: usize = 4_096;

/// The schema in a journal that is not filled yet.
const UNFILLED: u32 = 0;

const STANDS: u8 = 0;
const REMOVED: u8 = 255;

/// How far the index had come when it was last known to be on the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Watermark {
    /// The number of its last write; 0 if that is not known.
    pub(crate) sequence: u64,
    /// The number of its manifest, and how long that was, in bytes; 0 if that is not known.
    pub(crate) manifest: u64,
    pub(crate) manifest_bytes: u64,
}

/// In which state a journal was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    /// There was none.
    Missing,
    /// Part of it cannot be read, before its end.
    Damaged,
    /// All of it was read. What an append that was cut off left at its end does not count.
    Whole,
}

/// What a journal says.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) condition: Condition,
    /// The schema of the store, if that can be read.
    pub(crate) schema: Option<u32>,
    /// `None` if it cannot be read.
    pub(crate) watermark: Option<Watermark>,
    /// The pins that stand, as they were last entered.
    pub(crate) pins: BTreeMap<PinId, (Cid, PinRecord)>,
    /// Pins that were removed.
    pub(crate) removed: BTreeSet<PinId>,
    /// Entries that newer ones have replaced, or whose pins were removed.
    dead: usize,
}

impl Found {
    fn missing() -> Self {
        Self {
            condition: Condition::Missing,
            schema: None,
            watermark: None,
            pins: BTreeMap::new(),
            removed: BTreeSet::new(),
            dead: 0,
        }
    }

    /// Whether rewriting it would mend it, or make it much smaller.
    pub(crate) fn is_worth_rewriting(&self) -> bool {
        self.condition != Condition::Whole || is_mostly_dead(self.dead, self.pins.len())
    }
}

/// An open journal.
#[derive(Debug)]
pub(crate) struct PinJournal {
    path: PathBuf,
    /// `None` if it is not there and could not be made.
    file: Option<File>,
    /// Where the next entry goes, in bytes.
    end: u64,
    /// The last entry of each pin that stands.
    entries: HashMap<PinId, u64>,
    /// The entry that was struck out last.
    struck_out: Option<(PinId, u64)>,
    /// Entries that newer ones have replaced, or whose pins were removed.
    dead: usize,
}

impl PinJournal {
    /// What the journal of a folder says, without keeping it open.
    ///
    /// # Errors
    /// What the file system said.
    pub(crate) fn read(dir: &Path) -> io::Result<Found> {
        match fs::read(dir.join(NAME)) {
            Ok(bytes) => Ok(parse(&bytes).0),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Found::missing()),
            Err(error) => Err(error),
        }
    }

    /// Opens the journal of a folder. One that is not there is made, and counts as damaged until it is first
    /// [rewritten](Self::rewrite): that nothing is in it says nothing.
    ///
    /// # Errors
    /// What the file system said.
    pub(crate) fn open(dir: &Path) -> io::Result<(Self, Found)> {
        let path = dir.join(NAME);
        let (found, entries) = match fs::read(&path) {
            Ok(bytes) => parse(&bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let mut journal = Self { path, file: None, end: 0, entries: HashMap::new(), struck_out: None, dead: 0 };
                if let Err(error) = journal.make_unfilled() {
                    warn!(%error, "the pin journal cannot be made: no pin can be completed");
                }
                return Ok((journal, Found::missing()));
            }
            Err(error) => return Err(error),
        };
        let file = File::options().read(true).write(true).open(&path)?;
        let Parsed { end, entries } = entries;
        let dead = found.dead;
        Ok((Self { path, file: Some(file), end, entries, struck_out: None, dead }, found))
    }

    fn make_unfilled(&mut self) -> io::Result<()> {
        self.rewrite(UNFILLED, Watermark::default(), std::iter::empty())
    }

    /// Puts a journal of these pins in the place of the present one, durably.
    ///
    /// # Errors
    /// What the file system said; the present one stays then, unless it was the folder that could not be synced.
    pub(crate) fn rewrite(
        &mut self,
        schema: u32,
        watermark: Watermark,
        pins: impl Iterator<Item = (Cid, PinRecord)>,
    ) -> io::Result<()> {
        // From the renaming on it is the journal, whatever becomes of the folder.
        *self = Self::make(self.path.clone(), schema, watermark, pins)?;
        folder::sync(self.path.parent().unwrap_or(&self.path))
    }

    fn make(
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
        let unfinished = path.with_extension("journal.new");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&unfinished)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_data()?;
        fs::rename(&unfinished, &path)?;
        Ok(Self { path, file: Some(file), end: bytes.len() as u64, entries, struck_out: None, dead: 0 })
    }

    /// Enters pins. They are on the disk when this returns if they are to be `durable`.
    ///
    /// # Errors
    /// What the file system said; they may or may not be entered then.
    pub(crate) fn enter(&mut self, pins: &[(Cid, PinRecord)], durable: bool) -> io::Result<()> {
        if self.file.is_none() {
            self.make_unfilled()?;
        }
        let Some(file) = &self.file else { return Ok(()) };
        let mut bytes = Vec::new();
        let mut places = Vec::with_capacity(pins.len());
        for (root, record) in pins {
            places.push((record.id, self.end + bytes.len() as u64));
            put_entry(&mut bytes, root, record);
        }
        let written = file.write_all_at(&bytes, self.end);
        if let Err(error) = written.and_then(|()| if durable { file.sync_data() } else { Ok(()) }) {
            // An entry that is there by half would stand for a pin that is removed later. Cutting takes no space.
            if let Err(error) = file.set_len(self.end) {
                warn!(%error, "an entry of the pin journal that was not acknowledged could not be taken back");
            }
            return Err(error);
        }
        self.end += bytes.len() as u64;
        for (pin, place) in places {
            self.dead += usize::from(self.entries.insert(pin, place).is_some());
        }
        // They are entered, whether or not the others can be left out.
        if is_mostly_dead(self.dead, self.entries.len())
            && let Err(error) = self.compact()
        {
            warn!(%error, "the pin journal could not be made shorter");
        }
        Ok(())
    }

    /// Leaves out what does not count any more.
    fn compact(&mut self) -> io::Result<()> {
        let found = parse(&fs::read(&self.path)?).0;
        match (found.condition, found.schema, found.watermark) {
            (Condition::Whole, Some(schema), Some(watermark)) => {
                self.rewrite(schema, watermark, found.pins.into_values())
            }
            // Whoever opens it next has what it lacks.
            _ => Ok(()),
        }
    }

    /// Strikes a pin out, durably. One that was never entered is no error.
    ///
    /// # Errors
    /// What the file system said.
    pub(crate) fn strike_out(&mut self, pin: PinId) -> io::Result<()> {
        let Some(place) = self.entries.get(&pin).copied() else { return Ok(()) };
        self.set_state(place, REMOVED)?;
        self.file.as_ref().map_or(Ok(()), File::sync_data)?;
        self.entries.remove(&pin);
        (self.struck_out, self.dead) = (Some((pin, place)), self.dead + 1);
        Ok(())
    }

    /// Takes back that a pin was struck out, if it was the last.
    ///
    /// # Errors
    /// What the file system said.
    pub(crate) fn restore(&mut self, pin: PinId) -> io::Result<()> {
        let Some((_, place)) = self.struck_out.take().filter(|(last, _)| *last == pin) else { return Ok(()) };
        self.set_state(place, STANDS)?;
        self.entries.insert(pin, place);
        self.dead -= 1;
        Ok(())
    }

    fn set_state(&self, place: u64, state: u8) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        file.write_all_at(&[state], place + ENTRY.len() as u64)
    }

    /// Notes how far the index has come on the disk. That is no promise, so this is not synced.
    ///
    /// # Errors
    /// What the file system said.
    pub(crate) fn note(&self, watermark: Watermark) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        file.write_all_at(&watermark_bytes(watermark), (MAGIC.len() + 8) as u64)
    }
}

fn is_mostly_dead(dead: usize, standing: usize) -> bool {
    dead > standing + DEAD_ENTRIES_MIN
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
    bytes.push(STANDS);
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

/// Where things are in a file.
struct Parsed {
    end: u64,
    entries: HashMap<PinId, u64>,
}

fn parse(bytes: &[u8]) -> (Found, Parsed) {
    let mut found = Found { condition: Condition::Whole, ..Found::missing() };
    let head = bytes.first_chunk::<HEADER_BYTES>();
    found.schema = head.and_then(parse_schema);
    found.watermark = head.and_then(parse_watermark);
    let mut parsed = Parsed { end: HEADER_BYTES as u64, entries: HashMap::new() };
    let mut at = HEADER_BYTES;
    while at < bytes.len() {
        let Some(entry) = parse_entry(&bytes[at..]) else {
            at += 1;
            continue;
        };
        let former = parsed.entries.remove(&entry.record.id);
        // What cannot be read lies before something that can: it is no torn end.
        if at as u64 != parsed.end {
            found.condition = Condition::Damaged;
        }
        found.dead += usize::from(former.is_some()) + usize::from(entry.removed);
        if !entry.removed {
            parsed.entries.insert(entry.record.id, at as u64);
        }
        found.take(entry.root, entry.record, entry.removed);
        at += entry.bytes;
        parsed.end = at as u64;
    }
    if found.schema.is_none() || found.watermark.is_none() {
        found.condition = Condition::Damaged;
    }
    (found, parsed)
}

impl Found {
    fn take(&mut self, root: Cid, record: PinRecord, removed: bool) {
        let id = record.id;
        if removed {
            self.pins.remove(&id);
            self.removed.insert(id);
        } else {
            // Its removal failed, and it was pinned again.
            self.removed.remove(&id);
            self.pins.insert(id, (root, record));
        }
    }
}

fn parse_schema(head: &[u8; HEADER_BYTES]) -> Option<u32> {
    let (summed, rest) = head.split_at(12);
    let whole = summed.starts_with(&MAGIC) && rest[..4] == crc32fast::hash(summed).to_be_bytes();
    let schema = u32::from_be_bytes([summed[8], summed[9], summed[10], summed[11]]);
    Some(schema).filter(|schema| whole && *schema != UNFILLED)
}

fn parse_watermark(head: &[u8; HEADER_BYTES]) -> Option<Watermark> {
    let (numbers, sum) = head[16..44].split_at(24);
    let number = |at: usize| numbers[at..].first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    let whole = sum == crc32fast::hash(numbers).to_be_bytes();
    whole.then_some(Watermark { sequence: number(0)?, manifest: number(8)?, manifest_bytes: number(16)? })
}

struct Entry {
    root: Cid,
    record: PinRecord,
    removed: bool,
    bytes: usize,
}

fn parse_entry(bytes: &[u8]) -> Option<Entry> {
    let (head, rest) = bytes.strip_prefix(&ENTRY)?.split_first_chunk::<{ ENTRY_HEAD_BYTES - ENTRY.len() }>()?;
    let [state, length @ .., a, b, c, d] = *head;
    let body_bytes = usize::try_from(u32::from_be_bytes(length)).ok().filter(|bytes| *bytes <= BODY_BYTES_MAX)?;
    let body = rest.get(..body_bytes)?;
    if checksum(length, body) != u32::from_be_bytes([a, b, c, d]) {
        return None;
    }
    let (root_bytes, body) = body.split_first_chunk()?;
    let (root, record) = body.split_at_checked(usize::from(u16::from_be_bytes(*root_bytes)))?;
    Some(Entry {
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
        assert_eq!(found.condition, Condition::Missing);
        journal.rewrite(7, Watermark::default(), std::iter::empty()).expect("rewrites");
        for id in ids {
            journal.enter(&[pin(id)], true).expect("enters");
        }
        journal
    }

    fn ids(found: &Found) -> Vec<u64> {
        found.pins.keys().map(|id| id.0).collect()
    }

    #[test]
    fn what_was_entered_is_found_and_what_was_struck_out_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut journal = filled(dir.path(), 1..6);
        journal.strike_out(PinId(2)).expect("strikes out");
        journal.strike_out(PinId(3)).expect("strikes out");
        journal.restore(PinId(3)).expect("restores");
        journal.strike_out(PinId(99)).expect("was never there");
        let named = PinRecord { name: Some("another".to_owned()), ..pin(5).1 };
        journal.enter(&[(pin(5).0, named.clone())], false).expect("enters");
        journal.strike_out(PinId(1)).expect("strikes out");
        journal.enter(&[pin(1)], false).expect("enters what is pinned again");
        let watermark = Watermark { sequence: 10, manifest: 20, manifest_bytes: 30 };
        journal.note(watermark).expect("notes");
        let (_, found) = PinJournal::open(dir.path()).expect("opens");
        assert_eq!((found.condition, found.schema, found.watermark), (Condition::Whole, Some(7), Some(watermark)));
        assert_eq!(ids(&found), [1, 3, 4, 5]);
        assert_eq!(found.pins[&PinId(5)].1, named);
        assert_eq!(found.removed, [PinId(2)].into());
    }

    #[test]
    fn what_does_not_count_any_more_is_left_out_in_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut journal = filled(dir.path(), 1..4);
        let length = || dir.path().join(NAME).metadata().expect("is there").len();
        let before = length();
        journal.strike_out(PinId(2)).expect("strikes out");
        for _ in 0..2 * DEAD_ENTRIES_MIN + 9 {
            journal.enter(&[pin(1)], false).expect("enters");
        }
        assert!(length() < before * DEAD_ENTRIES_MIN as u64);
        assert_eq!(ids(&PinJournal::read(dir.path()).expect("reads")), [1, 3]);
        journal.strike_out(PinId(1)).expect("strikes out");
        assert_eq!(ids(&PinJournal::read(dir.path()).expect("reads")), [3]);
    }

    #[test]
    fn one_that_was_never_filled_is_not_believed() {
        let dir = tempfile::tempdir().expect("a directory");
        drop(PinJournal::open(dir.path()).expect("opens"));
        assert_eq!(PinJournal::read(dir.path()).expect("reads").condition, Condition::Damaged);
    }

    #[test]
    fn a_torn_end_is_written_over() {
        let dir = tempfile::tempdir().expect("a directory");
        drop(filled(dir.path(), 1..4));
        let path = dir.path().join(NAME);
        let bytes = fs::read(&path).expect("reads");
        for torn in [bytes.len() - 1, bytes.len() - 50] {
            fs::write(&path, &bytes[..torn]).expect("writes");
            let (mut journal, found) = PinJournal::open(dir.path()).expect("opens");
            assert_eq!((found.condition, ids(&found)), (Condition::Whole, vec![1, 2]));
            journal.enter(&[pin(9)], true).expect("enters");
            assert_eq!(ids(&PinJournal::read(dir.path()).expect("reads")), [1, 2, 9]);
        }
    }

    proptest! {
        #[test]
        fn a_flipped_bit_costs_one_entry_at_most_and_is_told(at in any::<prop::sample::Index>(), bit in 0..8_u32) {
            let dir = tempfile::tempdir().expect("a directory");
            filled(dir.path(), 1..8).strike_out(PinId(4)).expect("strikes out");
            let path = dir.path().join(NAME);
            let mut bytes = fs::read(&path).expect("reads");
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let (found, parsed) = parse(&bytes);
            let standing = ids(&found);
            prop_assert!(standing.len() >= 5 && !standing.contains(&4), "{:?}", standing);
            for (id, (root, record)) in &found.pins {
                prop_assert_eq!((*root, record.clone()), pin(id.0));
            }
            // At the end it looks like an append that was cut off: the index knows better.
            let of_last = at as u64 >= parsed.end;
            let is_silent = found.condition == Condition::Whole;
            prop_assert!(standing.len() == 6 || of_last || !is_silent);
        }
    }
}
