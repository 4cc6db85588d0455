//! Reads the records of a segment without an index.
//!
//! Goals: every valid record is found, whatever surrounds it, including unreadable sectors; memory does not grow with
//! the segment.
//!
//! After an invalid record, the next one is searched byte by byte, since the length in a damaged head is not reliable.
//! A record found this way may be the content of a block that was crafted to look like records, so the hash of every
//! block is verified; that of a slice by the caller, when it has the slice's base.
//!
//! All functions here block.

use super::StoreError;
use super::files::Files;
use super::record::{self, ParsedRecord, RECORD_BYTES_MAX};
use super::schema::Place;
use super::store::check_hash;
use bytes::Bytes;
use content::BlockKey;
use content::stored::{Shape, Slice, Stored};
use tracing::warn;

/// The size of a read: several records of the maximum size.
const WINDOW_BYTES: usize = 4 * RECORD_BYTES_MAX;

/// The maximum number of unreadable bytes of a segment, and the maximum part of it. With more, the whole device is
/// failing, and its data may be readable later or on another machine.
const UNREADABLE_BYTES_MAX: u64 = 1024 * 1024;
const UNREADABLE_PART_MAX: u64 = 4;

/// A value found in a segment.
#[derive(Debug)]
pub(super) struct FoundValue {
    pub(super) key: BlockKey,
    pub(super) place: Place,
    pub(super) value: FoundForm,
}

/// The form of a value that was found.
#[derive(Debug)]
pub(super) enum FoundForm {
    /// A block that matches its hash.
    Block(Shape),
    /// A slice, which cannot be verified before its base is found.
    Slice(Slice),
}

/// The result of a scan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Scanned {
    /// The number of valid records.
    pub(super) blocks: u64,
    /// The bytes read.
    pub(super) bytes: u64,
    /// The bytes that belong to no valid record.
    pub(super) damaged_bytes: u64,
    /// Approximately how many of these the device could not read.
    pub(super) unreadable_bytes: u64,
}

/// Calls `visit` with every value of a segment, in disk order.
///
/// # Errors
/// I/O errors, except for a few unreadable sectors; or the error of `visit`.
pub(super) fn segment(
    files: &Files,
    segment: u32,
    visit: &mut dyn FnMut(FoundValue) -> Result<(), StoreError>,
) -> Result<Scanned, StoreError> {
    let mut scanned = Scanned::default();
    let (mut from, mut valid_bytes) = (Some(0_u32), 0);
    while let Some(offset) = from {
        let (window, unreadable) = files.read_past_damage(segment, offset, WINDOW_BYTES)?;
        scanned.unreadable_bytes += unreadable as u64;
        if scanned.unreadable_bytes > UNREADABLE_BYTES_MAX {
            return Err(too_much_unreadable(files, segment));
        }
        let is_last = window.len() < WINDOW_BYTES;
        let used = read_window(&window, is_last, &mut |at, key, value, bytes| {
            let place = u32::try_from(at).ok().and_then(|at| offset.checked_add(at));
            // Segments never exceed 4 GiB.
            let Some(offset) = place else { return Ok(false) };
            let Some(value) = verify(&key, value) else { return Ok(false) };
            scanned.blocks += 1;
            valid_bytes += bytes as u64;
            visit(FoundValue { key, place: Place { segment, offset }, value }).map(|()| true)
        })?;
        scanned.bytes += used as u64;
        from = u32::try_from(used).ok().filter(|_| !is_last).and_then(|used| offset.checked_add(used));
    }
    if scanned.unreadable_bytes > scanned.bytes / UNREADABLE_PART_MAX {
        return Err(too_much_unreadable(files, segment));
    }
    if scanned.unreadable_bytes > 0 {
        warn!(
            segment,
            bytes = scanned.unreadable_bytes,
            "parts of a segment cannot be read from the device and count as damaged"
        );
    }
    scanned.damaged_bytes = scanned.bytes.saturating_sub(valid_bytes);
    Ok(scanned)
}

fn too_much_unreadable(files: &Files, segment: u32) -> StoreError {
    let path = files.path(segment);
    StoreError::io(format!(
        "much of {} cannot be read, so the device fails: copy its files to another device",
        path.display()
    ))
}

/// The form of a value, if the value matches its key or is a slice.
fn verify(key: &BlockKey, value: Bytes) -> Option<FoundForm> {
    if let Some(slice) = Slice::read(&value).ok()? {
        return Some(FoundForm::Slice(slice));
    }
    let stored = Stored::read(value).ok()?;
    check_hash(key, &stored).ok()?;
    Some(FoundForm::Block(stored.shape()))
}

/// Calls `found` with each record of a window, which returns whether it is valid. Returns how many bytes of the window
/// are done.
fn read_window(
    window: &Bytes,
    is_last: bool,
    found: &mut dyn FnMut(usize, BlockKey, Bytes, usize) -> Result<bool, StoreError>,
) -> Result<usize, StoreError> {
    let mut at = 0;
    while at < window.len() {
        // A record that begins here may end after the window.
        if !is_last && window.len() - at < RECORD_BYTES_MAX {
            return Ok(at);
        }
        if !record::may_begin(window[at]) {
            at += 1;
            continue;
        }
        at += match record::read_first(&window.slice(at..)) {
            ParsedRecord::Record { key, value, bytes } => match found(at, key, value, bytes)? {
                true => bytes,
                false => 1,
            },
            ParsedRecord::Invalid => 1,
        };
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::super::faults::{Call, Fault};
    use super::*;
    use content::{Cid, codec, hashes};
    use proptest::prelude::*;
    use rustix::io::Errno;

    /// A block's key and record.
    fn record_of(data: &[u8]) -> (BlockKey, Vec<u8>) {
        let hash = hashes::digest(hashes::SHA2_256, 32, data).expect("sha2-256 is accepted");
        let key = BlockKey::of(&Cid::new_v1(codec::RAW, hash)).expect("not an inline block");
        let length = u32::try_from(data.len()).expect("small").to_be_bytes();
        let value = [Bytes::from([&[2_u8], &length[..]].concat()), Bytes::copy_from_slice(data)];
        (key, [record::head(&key.to_bytes(), &value).expect("lengths are small"), value.concat()].concat())
    }

    fn found(bytes: &[u8]) -> (Vec<(usize, BlockKey)>, Scanned) {
        let dir = tempfile::tempdir().expect("a directory");
        let files = Files::open(dir.path().join("segments"), 4).expect("opens");
        files.write(3, 0, bytes, false).expect("writes");
        let mut found = Vec::new();
        let scanned = segment(&files, 3, &mut |value| {
            assert_eq!(value.place.segment, 3);
            found.push((value.place.offset as usize, value.key));
            Ok(())
        });
        (found, scanned.expect("reads"))
    }

    proptest! {
        #[test]
        fn valid_records_are_found_whatever_was_damaged(
            blocks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..300), 1..12),
            damage in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), bit in 0..8_u32,
            gap in proptest::collection::vec(any::<u8>(), 0..40)
        ) {
            let damaged = damage.index(blocks.len());
            let (mut bytes, mut expected) = (Vec::new(), Vec::new());
            for (number, data) in blocks.iter().enumerate() {
                let (key, mut record) = record_of(data);
                if number == damaged {
                    let at = at.index(record.len());
                    record[at] ^= 1 << bit;
                    bytes.extend(&gap);
                } else {
                    expected.push((bytes.len(), key));
                }
                bytes.extend(record);
            }
            let (found, scanned) = found(&bytes);
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(scanned.blocks, expected.len() as u64);
            let (_, intact) = record_of(&blocks[damaged]);
            prop_assert_eq!(scanned.damaged_bytes, (intact.len() + gap.len()) as u64);
            prop_assert_eq!(scanned.bytes, bytes.len() as u64);
        }
    }

    /// The bytes of a block are a record with the wrong hash for its key: when the outer head is damaged, it is found
    /// next.
    #[test]
    fn a_key_is_verified() {
        let (_, mut inner) = record_of(b"what it says");
        let at = inner.len() - 3;
        inner[at] ^= 1;
        // Its checksum is valid.
        let key = record_of(b"what it says").0.to_bytes();
        let value = [Bytes::copy_from_slice(&inner[10 + key.len()..]), Bytes::new()];
        let inner = [record::head(&key, &value).expect("small"), value.concat()].concat();
        let (_, mut outer) = record_of(&inner);
        outer[0] ^= 0x40;
        let (behind, last) = record_of(b"behind");
        let length = outer.len();
        let (found, _) = found(&[outer, last].concat());
        assert_eq!(found, [(length, behind)]);
    }

    #[test]
    fn records_are_found_across_windows() {
        let blocks: Vec<Vec<u8>> = (0..14_u8).map(|seed| vec![seed; 1_000_000 + usize::from(seed) * 70_001]).collect();
        let records: Vec<_> = blocks.iter().map(|data| record_of(data)).collect();
        let bytes: Vec<u8> = records.iter().flat_map(|(_, record)| record.clone()).collect();
        assert!(bytes.len() > WINDOW_BYTES * 2);
        let (found, scanned) = found(&bytes);
        let keys: Vec<_> = found.into_iter().map(|(_, key)| key).collect();
        assert_eq!(keys, records.into_iter().map(|(key, _)| key).collect::<Vec<_>>());
        assert_eq!((scanned.damaged_bytes, scanned.bytes), (0, bytes.len() as u64));
    }

    #[test]
    fn records_around_unreadable_sectors_are_found() {
        let records: Vec<_> = (0..20_u8).map(|seed| record_of(&vec![seed; 3_000])).collect();
        let bytes: Vec<u8> = records.iter().flat_map(|(_, record)| record.clone()).collect();
        let dir = tempfile::tempdir().expect("a directory");
        let files = Files::open(dir.path().join("segments"), 4).expect("opens");
        files.write(3, 0, &bytes, false).expect("writes");
        let scan = |refused: fn(usize) -> bool| {
            let mut reads = 0;
            files.faults.plan(move |call| {
                reads += usize::from(call == Call::Read);
                (call == Call::Read && refused(reads - 1)).then_some(Fault::Refused(Errno::IO))
            });
            let mut found = Vec::new();
            let scanned = segment(&files, 3, &mut |value| {
                found.push(value.key);
                Ok(())
            });
            files.faults.clear();
            (found, scanned)
        };
        // The first read is of the whole segment; then the sixth sector fails.
        let (found, scanned) = scan(|read| read == 0 || read == 6);
        let lost = 5 * 4_096..6 * 4_096;
        let length = bytes.len() / records.len();
        let is_readable = |n: &usize| (n + 1) * length <= lost.start || n * length >= lost.end;
        let expected: Vec<_> = (0..20).filter(is_readable).map(|n| records[n].0).collect();
        assert_eq!(found, expected);
        let scanned = scanned.expect("continues");
        assert_eq!((scanned.unreadable_bytes, scanned.bytes), (4_096, bytes.len() as u64));
        assert_eq!(scanned.damaged_bytes, ((20 - expected.len()) * length) as u64);
        // A device that reads nothing fails the scan, however small the segment is.
        let large = vec![1; UNREADABLE_BYTES_MAX as usize + 10_000];
        for more in [&[][..], &large] {
            files.write(3, 0, more, false).expect("writes");
            let (found, scanned) = scan(|_| true);
            assert!(found.is_empty() && scanned.is_err_and(|error| error.to_string().contains("the device fails")));
        }
    }
}
