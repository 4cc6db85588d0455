//! A TAR archive (POSIX ustar and pax, and GNU's) as it is uploaded.
//!
//! Files, folders, symlinks and hard links are taken in; whatever else a TAR can hold (devices, sparse files) is refused, and so is a
//! path that leads out of the archive. Of two entries with the same path the last counts, as when it is unpacked. `./` is the folder
//! around everything, with which `tar c -C FOLDER .` begins.
//!
//! Nothing is believed that an archive says of itself: a file has the bytes that come, and they are counted; what describes the next
//! entry is bounded; an archive that ends without its end mark has been cut.

use crate::uploads::names::{Path, shown};
use crate::uploads::taker::Taker;
use crate::uploads::{UploadError, tree};
use content::importer::Attributes;
use std::cell::Cell;
use std::io::{self, BufReader, Read};
use std::rc::Rc;
use tar::{Archive, Entry, EntryType};

/// What may come before an entry that describes it (long names, pax records, maps of sparse files), in bytes.
const DESCRIPTION_BYTES_MAX: u64 = 256 * 1024;
/// What is read at a time, in bytes.
const READ_BYTES: usize = 64 * 1024;
/// The longest target of a symlink, in bytes: Linux's limit to paths.
pub const TARGET_BYTES_MAX: usize = 4096;
/// What a gzip file begins with (RFC 1952, section 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Takes in an archive, and reads what comes behind it.
///
/// # Errors
/// [`UploadError`].
pub fn take(reader: impl Read, taker: &mut Taker<'_, '_>) -> Result<(), UploadError> {
    let bounds = Bounds::default();
    let mut reader = Bounded { inner: BufReader::with_capacity(READ_BYTES, reader), bounds: bounds.clone() };
    refuse_gzip(&mut reader)?;
    let mut archive = Archive::new(reader);
    let mut entries = archive.entries()?;
    loop {
        bounds.allow(DESCRIPTION_BYTES_MAX);
        let Some(entry) = entries.next() else { break };
        let entry = entry.map_err(|error| broken(error, &bounds))?;
        bounds.allow(u64::MAX);
        take_entry(entry, taker).map_err(|error| match error {
            UploadError::Read(error) => broken(error, &bounds),
            error => error,
        })?;
    }
    if bounds.ended.get() {
        return Err(UploadError::Invalid("the archive ends without its end mark: part of it is missing".to_owned()));
    }
    bounds.allow(u64::MAX);
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    Ok(())
}

fn refuse_gzip(reader: &mut Bounded<BufReader<impl Read>>) -> Result<(), UploadError> {
    if io::BufRead::fill_buf(&mut reader.inner)?.starts_with(&GZIP) {
        let words = "this is compressed with gzip: send the archive as it is without that";
        return Err(UploadError::Unsupported(words.to_owned()));
    }
    Ok(())
}

/// What the archive's reader says in words of its own is the archive's fault; what the body says is not.
fn broken(error: io::Error, bounds: &Bounds) -> UploadError {
    if bounds.failed.get() {
        return error.into();
    }
    match error.downcast::<UploadError>() {
        Ok(ours) => ours,
        Err(error) => UploadError::Invalid(format!("this is no TAR archive that can be read: {error}")),
    }
}

fn take_entry(mut entry: Entry<'_, impl Read>, taker: &mut Taker<'_, '_>) -> Result<(), UploadError> {
    let kind = entry.header().entry_type();
    if kind == EntryType::XGlobalHeader {
        // It describes the whole archive: comments, mostly.
        io::copy(&mut entry, &mut io::sink())?;
        return Ok(());
    }
    let bytes = entry.path_bytes().into_owned();
    let path = Path::of(&bytes)?;
    refuse_sparse(&mut entry, &bytes)?;
    let attributes = attributes(&entry);
    match kind {
        // Before ustar, the slash at its end told a folder.
        EntryType::Regular if bytes.ends_with(b"/") && entry.size() == 0 => taker.folder(&path, attributes),
        EntryType::Regular | EntryType::Continuous => {
            let left = entry.size();
            taker.file(Some(&path), attributes, Whole { inner: entry, left })
        }
        EntryType::Directory => taker.folder(&path, attributes),
        EntryType::Symlink => taker.symlink(&path, &target(&entry, &bytes)?, attributes),
        EntryType::Link => taker.hard_link(&path, &Path::of(&target(&entry, &bytes)?)?),
        other => {
            let words =
                format!("{} is a {}: only files, folders and links can be taken in", shown(&bytes), name(other));
            Err(UploadError::Invalid(words))
        }
    }
}

fn name(kind: EntryType) -> String {
    match kind {
        EntryType::Char | EntryType::Block => "device".to_owned(),
        EntryType::Fifo => "pipe".to_owned(),
        EntryType::GNUSparse => "sparse file".to_owned(),
        other => format!("member of type {:?}", char::from(other.as_byte())),
    }
}

/// Holes are announced and not sent, so a few bytes could become any number.
fn refuse_sparse(entry: &mut Entry<'_, impl Read>, path: &[u8]) -> Result<(), UploadError> {
    let Some(records) = entry.pax_extensions()? else { return Ok(()) };
    for record in records {
        if record?.key_bytes().starts_with(b"GNU.sparse.") {
            let words = format!("{} is a sparse file: make the archive without --sparse", shown(path));
            return Err(UploadError::Invalid(words));
        }
    }
    Ok(())
}

fn target(entry: &Entry<'_, impl Read>, path: &[u8]) -> Result<Vec<u8>, UploadError> {
    let target = entry.link_name_bytes().map(|target| target.into_owned()).unwrap_or_default();
    check_target(&target, path)?;
    Ok(target)
}

/// Whether a symlink may lead there. It may lead anywhere: nothing here follows it out of the content.
///
/// # Errors
/// [`UploadError::Invalid`] for an empty or overlong one.
pub fn check_target(target: &[u8], path: &[u8]) -> Result<(), UploadError> {
    let reason = match target.len() {
        0 => "leads nowhere",
        length if length > TARGET_BYTES_MAX => "has a target of more than 4096 bytes",
        _ => return Ok(()),
    };
    Err(UploadError::Invalid(format!("the link {} {reason}", shown(path))))
}

fn attributes(entry: &Entry<'_, impl Read>) -> Attributes {
    let seconds = entry.header().mtime().ok().and_then(|seconds| i64::try_from(seconds).ok());
    Attributes { mode: entry.header().mode().ok(), modified: seconds.and_then(|seconds| tree::at(seconds, 0)) }
}

/// A file in the archive, which ends where the archive says, or is an error.
struct Whole<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Whole<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.left = self.left.saturating_sub(read as u64);
        if read == 0 && self.left > 0 && !buffer.is_empty() {
            let words = "the archive ends in the middle of a file".to_owned();
            return Err(io::Error::other(UploadError::Invalid(words)));
        }
        Ok(read)
    }
}

/// What the archive's reader may read until it is told otherwise, and what became of that.
#[derive(Debug, Clone, Default)]
struct Bounds {
    left: Rc<Cell<u64>>,
    /// Whether the end was read.
    ended: Rc<Cell<bool>>,
    /// Whether an error came from below.
    failed: Rc<Cell<bool>>,
}

impl Bounds {
    fn allow(&self, bytes: u64) {
        self.left.set(bytes);
    }
}

struct Bounded<R> {
    inner: R,
    bounds: Bounds,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Bounds { left, ended, failed } = &self.bounds;
        let most = usize::try_from(left.get()).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 && !buffer.is_empty() {
            let words = format!("what describes an entry of the archive has more than {DESCRIPTION_BYTES_MAX} bytes");
            return Err(io::Error::other(UploadError::Invalid(words)));
        }
        let read = self.inner.read(&mut buffer[..most]).inspect_err(|_| failed.set(true))?;
        left.set(left.get() - read as u64);
        ended.set(read == 0 && !buffer.is_empty());
        Ok(read)
    }
}
