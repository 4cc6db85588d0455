//! [`PinFiles`]: pins and their members as files.
//!
//! | file | content |
//! |---|---|
//! | `ID.pin` | format (1 byte), length of the root (2 bytes), root CID, [`PinRecord`], CRC-32 of the above (4 bytes) |
//! | `ID.members` | per member: multihash length (1 byte), multihash, block size (4 bytes), CRC-32 of the above |
//! | `next` | the first pin ID that is certainly unused: 8 bytes |
//!
//! The pin journal ([`crate::pin_journal`]) has a copy of each pin's record, from which a damaged or lost `ID.pin` is
//! recreated. Without either, the pin keeps its members but has no root.
//!
//! Numbers are big-endian. `ID.pin` is replaced atomically, and deleted to remove the pin; members are appended. A torn
//! tail is detected by its checksum, and acknowledged members precede it.

use super::files::entries;
use super::{SCHEMA, calls, failed, names, replace, sync_folder};
use crate::disk::StoreError;
use crate::memory_index::Key;
use crate::pin_journal::{self, JournalContents, PinJournal, Watermark};
use crate::pins::{PinId, PinRecord, PinState};
use content::{BlockKey, Cid};
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tracing::{error, warn};

const FORMAT: u8 = 1;
const HEADER: &str = "pin";
const MEMBERS: &str = "members";
const NEXT: &str = "next";

/// The number of pin IDs reserved at a time, so that most pins need no write for theirs.
const ID_BATCH: u64 = 1024;

/// The maximum plausible ID.
const NEXT_MAX: u64 = 1 << 48;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct PinFiles {
    dir: PathBuf,
    journal: Mutex<PinJournal>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// The first ID that is not reserved.
    reserved: u64,
    /// The valid length of each list of members, in bytes.
    lengths: HashMap<PinId, u64>,
    /// Lists with unsynced writes, kept open.
    unsynced: HashMap<PinId, File>,
}

/// A pin loaded from its files.
#[derive(Debug)]
pub(super) struct FoundPin {
    /// `None` if it is lost.
    pub(super) root: Option<Cid>,
    pub(super) record: PinRecord,
    /// Members and their sizes as blocks, in the order of insertion.
    pub(super) members: Vec<(Key, u64)>,
}

impl PinFiles {
    /// The pins in `dir`, which may be created later, with their journal.
    pub(super) fn new(dir: PathBuf, journal: PinJournal) -> Self {
        Self { dir, journal: journal.into(), state: Mutex::default() }
    }

    fn journal(&self) -> MutexGuard<'_, PinJournal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn journal_error(&self, error: &io::Error) -> StoreError {
        failed(&self.dir.with_file_name(pin_journal::NAME), error)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, pin: PinId, what: &str) -> PathBuf {
        self.dir.join(format!("{:016x}.{what}", pin.0))
    }

    pub(super) fn allocate_id(&self) -> Result<PinId, StoreError> {
        let mut state = self.state();
        if state.next >= state.reserved {
            let reserved = state.next + ID_BATCH;
            replace(&self.dir.join(NEXT), &reserved.to_be_bytes())?;
            state.reserved = reserved;
        }
        state.next += 1;
        Ok(PinId(state.next - 1))
    }

    pub(super) fn write(&self, root: &Cid, record: &PinRecord) -> Result<(), StoreError> {
        replace(&self.path(record.id, HEADER), &header(root, record))?;
        let appended = self.journal().append(&[(*root, record.clone())], record.state == PinState::Complete);
        appended.map_err(|error| self.journal_error(&error))
    }

    pub(super) fn add(&self, pin: PinId, members: &[(Key, u64)]) -> Result<(), StoreError> {
        let (path, mut state) = (self.path(pin, MEMBERS), self.state());
        let length = state.lengths.get(&pin).copied().unwrap_or_default();
        let mut bytes = Vec::new();
        for (key, block_bytes) in members {
            put_member(&mut bytes, key, *block_bytes);
        }
        // Bytes after `length` are a torn tail.
        let file = calls::append(&path, length, &bytes).map_err(|error| failed(&path, &error))?;
        state.lengths.insert(pin, length + bytes.len() as u64);
        state.unsynced.entry(pin).or_insert(file);
        Ok(())
    }

    /// Removes a pin by deleting its header.
    pub(super) fn remove(&self, pin: PinId) -> Result<(), StoreError> {
        let path = self.path(pin, HEADER);
        self.journal().mark_removed(pin).map_err(|error| self.journal_error(&error))?;
        match calls::remove(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                _ = self.journal().restore(pin);
                return Err(failed(&path, &error));
            }
            _ => {}
        }
        sync_folder(&self.dir)?;
        let mut state = self.state();
        state.lengths.remove(&pin);
        state.unsynced.remove(&pin);
        // If this fails, the next start deletes the file.
        _ = calls::remove(&self.path(pin, MEMBERS));
        Ok(())
    }

    /// Syncs every list of members.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        let unsynced = std::mem::take(&mut self.state().unsynced);
        for (pin, file) in &unsynced {
            let path = self.path(*pin, MEMBERS);
            calls::sync(file, &path).map_err(|error| failed(&path, &error))?;
        }
        if unsynced.is_empty() { Ok(()) } else { sync_folder(&self.dir) }
    }

    /// Every pin, from its file, or from the contents of the journal when it was opened. With `clean_up`, temporary
    /// files are deleted, lost files are recreated, and the next ID is determined.
    pub(super) fn load(&self, journal: &JournalContents, clean_up: bool) -> Result<Vec<FoundPin>, StoreError> {
        let listed = self.list()?;
        let mut pins = Vec::new();
        for pin in &listed.headers {
            // The removal was interrupted.
            if journal.removed.contains(pin) {
                if clean_up {
                    self.remove(*pin)?;
                }
                continue;
            }
            pins.push(self.read(*pin, journal, clean_up)?);
        }
        for (pin, (root, record)) in journal.pins.iter().filter(|(pin, _)| !listed.headers.contains(pin)) {
            // A pin that was only begun may have no file.
            if record.state == PinState::Complete {
                warn!(%root, "the file of a pin is missing and is recreated from the pin journal");
                if clean_up {
                    replace(&self.path(*pin, HEADER), &header(root, record))?;
                }
                pins.push(self.with_members(Some(*root), record.clone(), clean_up)?);
            }
        }
        if clean_up {
            let is_known = |path: &PathBuf| pins.iter().any(|found| *path == self.path(found.record.id, MEMBERS));
            listed.leftovers.iter().filter(|path| !is_known(path)).for_each(|path| _ = fs::remove_file(path));
            self.update_journal(journal, &pins);
            let ids = journal.pins.keys().chain(&journal.removed).map(|pin| pin.0 + 1).max().unwrap_or_default();
            let next = listed.next.max(ids);
            let mut state = self.state();
            (state.next, state.reserved) = (next, next);
        }
        Ok(pins)
    }

    fn list(&self) -> Result<Listed, StoreError> {
        let mut listed = Listed { next: 1, ..Listed::default() };
        for path in entries(&self.dir)? {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name == NEXT {
                listed.next = listed.next.max(read_next(&path)?);
            } else if let Some(pin) = pin_of(name, HEADER) {
                listed.next = listed.next.max(pin.0 + 1);
                listed.headers.insert(pin);
            } else if let Some(pin) = pin_of(name, MEMBERS) {
                listed.next = listed.next.max(pin.0 + 1);
                if !self.path(pin, HEADER).exists() {
                    listed.leftovers.push(path);
                }
            } else if name.starts_with(names::TEMPORARY_PREFIX) {
                listed.leftovers.push(path);
            }
        }
        Ok(listed)
    }

    /// Updates the journal from the files.
    fn update_journal(&self, journal: &JournalContents, pins: &[FoundPin]) {
        let known = pins.iter().filter_map(|found| Some((found.root?, found.record.clone())));
        let is_new = |(_, record): &(Cid, PinRecord)| {
            let journaled = journal.pins.get(&record.id).map(|(_, journaled)| (journaled.state, &journaled.name));
            journaled != Some((record.state, &record.name))
        };
        let updated = if journal.is_worth_rewriting() {
            self.journal().rewrite(SCHEMA, Watermark::default(), known)
        } else {
            self.journal().append(&known.filter(is_new).collect::<Vec<_>>(), true)
        };
        if let Err(error) = updated {
            warn!(%error, "the pin journal could not be updated; the next start tries again");
        }
    }

    fn read(&self, pin: PinId, journal: &JournalContents, clean_up: bool) -> Result<FoundPin, StoreError> {
        let path = self.path(pin, HEADER);
        let bytes = fs::read(&path).map_err(|error| failed(&path, &error))?;
        if let Some((root, record)) = parse_header(&bytes).filter(|(_, record)| record.id == pin) {
            return self.with_members(Some(root), record, clean_up);
        }
        let Some((root, record)) = journal.pins.get(&pin) else {
            error!(
                path = %path.display(),
                "a pin's file is damaged and its root is lost; its blocks are kept: pin the content again, and delete \
                 this file"
            );
            return self.with_members(None, PinRecord::new(pin, None), clean_up);
        };
        warn!(%root, path = %path.display(), "the file of a pin is damaged and is recreated from the pin journal");
        if clean_up {
            replace(&path, &header(root, record))?;
        }
        self.with_members(Some(*root), record.clone(), clean_up)
    }

    fn with_members(&self, root: Option<Cid>, record: PinRecord, clean_up: bool) -> Result<FoundPin, StoreError> {
        let (pin, list) = (record.id, self.path(record.id, MEMBERS));
        let bytes = match fs::read(&list) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            bytes => bytes.map_err(|error| failed(&list, &error))?,
        };
        let (members, good) = parse_members(&bytes);
        if clean_up {
            let mut state = self.state();
            state.lengths.insert(pin, good as u64);
            // The previous process may have been killed before it synced this list, and these members are not written
            // again.
            if record.state == PinState::Partial && good > 0 {
                let file = File::options().write(true).open(&list).map_err(|error| failed(&list, &error))?;
                state.unsynced.insert(pin, file);
            }
        }
        Ok(FoundPin { root, record, members })
    }
}

/// The files of pins.
#[derive(Debug, Default)]
struct Listed {
    headers: BTreeSet<PinId>,
    /// Temporary files, and lists of members without a pin.
    leftovers: Vec<PathBuf>,
    /// The first unused ID, as far as the files show.
    next: u64,
}

fn pin_of(name: &str, what: &str) -> Option<PinId> {
    let id = name.strip_suffix(what)?.strip_suffix('.').filter(|id| id.len() == 16)?;
    u64::from_str_radix(id, 16).ok().map(PinId)
}

fn read_next(path: &Path) -> Result<u64, StoreError> {
    let bytes = fs::read(path).map_err(|error| failed(path, &error))?;
    let next = bytes.try_into().ok().map(u64::from_be_bytes);
    if next.is_none_or(|next| next > NEXT_MAX) {
        warn!(path = %path.display(), "the file of the next pin ID is damaged: IDs continue after the known ones");
    }
    Ok(next.filter(|next| *next <= NEXT_MAX).unwrap_or_default())
}

fn header(root: &Cid, record: &PinRecord) -> Vec<u8> {
    let root = root.to_bytes();
    let mut bytes = vec![FORMAT];
    bytes.extend(u16::try_from(root.len()).unwrap_or(u16::MAX).to_be_bytes());
    bytes.extend(root);
    bytes.extend(record.to_bytes());
    let sum = crc32fast::hash(&bytes);
    bytes.extend(sum.to_be_bytes());
    bytes
}

fn parse_header(bytes: &[u8]) -> Option<(Cid, PinRecord)> {
    let (bytes, sum) = bytes.split_last_chunk()?;
    if crc32fast::hash(bytes) != u32::from_be_bytes(*sum) {
        return None;
    }
    let ([FORMAT, high, low], rest) = bytes.split_first_chunk()? else { return None };
    let (root, record) = rest.split_at_checked(usize::from(u16::from_be_bytes([*high, *low])))?;
    Some((Cid::try_from(root).ok()?, PinRecord::from_bytes(record)?))
}

fn put_member(bytes: &mut Vec<u8>, key: &[u8], block_bytes: u64) {
    let begin = bytes.len();
    bytes.push(u8::try_from(key.len()).unwrap_or(u8::MAX));
    bytes.extend_from_slice(key);
    bytes.extend(u32::try_from(block_bytes).unwrap_or(u32::MAX).to_be_bytes());
    let sum = crc32fast::hash(&bytes[begin..]);
    bytes.extend(sum.to_be_bytes());
}

/// The members of a list before the first invalid one, and their length in bytes.
fn parse_members(bytes: &[u8]) -> (Vec<(Key, u64)>, usize) {
    let (mut members, mut rest) = (Vec::new(), bytes);
    while let Some((member, more)) = parse_member(rest) {
        members.push(member);
        rest = more;
    }
    (members, bytes.len() - rest.len())
}

fn parse_member(bytes: &[u8]) -> Option<((Key, u64), &[u8])> {
    let length = usize::from(*bytes.first()?);
    let (summed, rest) = bytes.split_at_checked(1 + length + 4)?;
    let (sum, rest) = rest.split_first_chunk()?;
    if crc32fast::hash(summed) != u32::from_be_bytes(*sum) {
        return None;
    }
    let (key, block_bytes) = summed[1..].split_last_chunk()?;
    BlockKey::from_bytes(key)?;
    Some(((Key::from(key), u64::from(u32::from_be_bytes(*block_bytes))), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::{codec, hashes};
    use proptest::prelude::*;

    fn cid(seed: u64) -> Cid {
        let hash = hashes::digest(hashes::SHA2_256, 32, &seed.to_be_bytes()).expect("sha2-256 is accepted");
        Cid::new_v1(codec::RAW, hash)
    }

    proptest! {
        #[test]
        fn a_header_round_trips_unless_a_bit_is_flipped(
            seed: u64, name: Option<String>, id: u64, flip in any::<prop::sample::Index>(), bit in 0..8_u32
        ) {
            let mut record = PinRecord::new(PinId(id), name);
            record = PinRecord::from_bytes(&record.to_bytes()).expect("to the millisecond");
            (record.blocks, record.state) = (seed, PinState::Complete);
            let mut bytes = header(&cid(seed), &record);
            prop_assert_eq!(parse_header(&bytes), Some((cid(seed), record)));
            let at = flip.index(bytes.len());
            prop_assert_eq!(parse_header(&bytes[..at]), None);
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(parse_header(&bytes), None);
        }

        #[test]
        fn members_round_trip_up_to_the_first_invalid_one(
            seeds in proptest::collection::vec(any::<u64>(), 0..20), cut in any::<prop::sample::Index>(),
            noise in any::<[u8; 9]>()
        ) {
            let key = |seed: u64| Key::from(cid(seed).hash().to_bytes());
            let members: Vec<_> = seeds.iter().map(|seed| (key(*seed), seed % 99)).collect();
            let mut bytes = Vec::new();
            members.iter().for_each(|(key, block_bytes)| put_member(&mut bytes, key, *block_bytes));
            prop_assert_eq!(parse_members(&bytes), (members.clone(), bytes.len()));
            let each = bytes.len() / members.len().max(1);
            let at = cut.index(bytes.len() + 1);
            let intact = at.checked_div(each).unwrap_or_default();
            prop_assert_eq!(parse_members(&bytes[..at]), (members[..intact].to_vec(), intact * each));
            // A torn tail with zeros, or with earlier contents.
            for tail in [[0; 9], noise] {
                let torn = [&bytes[..intact * each], &tail[..]].concat();
                prop_assert_eq!(parse_members(&torn).1, intact * each);
            }
        }
    }

    #[test]
    fn ids_are_not_reused() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut last = 0;
        for _ in 0..3 {
            let (journal, found) = PinJournal::open(dir.path()).expect("opens");
            let pins = PinFiles::new(dir.path().to_owned(), journal);
            pins.load(&found, true).expect("loads");
            for _ in 0..ID_BATCH + 5 {
                let PinId(id) = pins.allocate_id().expect("allocates");
                assert!(id > last, "{id}");
                last = id;
            }
        }
    }
}
