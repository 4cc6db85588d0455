//! Uploads as TAR archives (POSIX ustar and pax, and GNU).
//!
//! Files, folders, symlinks and hard links are imported; other entries (devices, sparse files) and paths outside the
//! archive are rejected. Of several entries with the same path the last counts, as in extraction. `./` is the wrapping
//! folder, with which `tar c -C FOLDER .` begins.
//!
//! Archives are untrusted: received bytes are counted; descriptions of entries are limited; an archive without its end
//! marker is truncated and rejected.

use crate::uploads::entries::EntryWriter;
use crate::uploads::limits::{DESCRIPTION_BYTES_MAX, TARGET_BYTES_MAX};
use crate::uploads::names::{Path, shown};
use crate::uploads::{UploadError, tree};
use content::importer::Attributes;
use std::cell::Cell;
use std::io::{self, BufReader, Read};
use std::rc::Rc;
use tar::{Archive, Entry, EntryType};

/// The read size, in bytes.
const READ_BYTES: usize = 64 * 1024;
/// The magic number of gzip (RFC 1952, section 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Imports an archive, and reads the rest of the body.
///
/// # Errors
/// [`UploadError`].
pub fn import(reader: impl Read, entries: &mut EntryWriter<'_, '_>) -> Result<(), UploadError> {
    let bounds = Bounds::default();
    let mut reader = BoundedReader { inner: BufReader::with_capacity(READ_BYTES, reader), bounds: bounds.clone() };
    reject_gzip(&mut reader)?;
    let mut archive = Archive::new(reader);
    let mut members = archive.entries()?;
    loop {
        bounds.allow(DESCRIPTION_BYTES_MAX);
        let Some(entry) = members.next() else { break };
        let entry = entry.map_err(|error| broken(error, &bounds))?;
        bounds.allow(u64::MAX);
        import_entry(entry, entries).map_err(|error| match error {
            UploadError::Read(error) => broken(error, &bounds),
            error => error,
        })?;
    }
    if bounds.ended.get() {
        return Err(UploadError::Invalid("the archive has no end marker: it is truncated".to_owned()));
    }
    bounds.allow(u64::MAX);
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    Ok(())
}

fn reject_gzip(reader: &mut BoundedReader<BufReader<impl Read>>) -> Result<(), UploadError> {
    if io::BufRead::fill_buf(&mut reader.inner)?.starts_with(&GZIP) {
        let words = "the archive is compressed with gzip: send it uncompressed";
        return Err(UploadError::Unsupported(words.to_owned()));
    }
    Ok(())
}

/// Errors of the parser are the archive's; errors of the body are passed on.
fn broken(error: io::Error, bounds: &Bounds) -> UploadError {
    if bounds.failed.get() {
        return error.into();
    }
    match error.downcast::<UploadError>() {
        Ok(error) => error,
        Err(error) => UploadError::Invalid(format!("the TAR archive is invalid: {error}")),
    }
}

fn import_entry(mut entry: Entry<'_, impl Read>, entries: &mut EntryWriter<'_, '_>) -> Result<(), UploadError> {
    let kind = entry.header().entry_type();
    if kind == EntryType::XGlobalHeader {
        // Comments about the whole archive.
        io::copy(&mut entry, &mut io::sink())?;
        return Ok(());
    }
    let bytes = entry.path_bytes().into_owned();
    let path = Path::of(&bytes)?;
    reject_sparse(&mut entry, &bytes)?;
    let attributes = attributes(&entry);
    match kind {
        // Before ustar, a trailing slash marked folders.
        EntryType::Regular if bytes.ends_with(b"/") && entry.size() == 0 => entries.folder(&path, attributes),
        EntryType::Regular | EntryType::Continuous => {
            let left = entry.size();
            entries.file(Some(&path), attributes, CompleteFile { inner: entry, left })
        }
        EntryType::Directory => entries.folder(&path, attributes),
        EntryType::Symlink => entries.symlink(&path, &target(&entry, &bytes)?, attributes),
        EntryType::Link => entries.hard_link(&path, &Path::of(&target(&entry, &bytes)?)?),
        other => {
            let words = format!("{} is a {}: only files, folders and links are supported", shown(&bytes), name(other));
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

/// Rejects sparse files: their holes are not sent, so a few bytes could describe a file of any size.
fn reject_sparse(entry: &mut Entry<'_, impl Read>, path: &[u8]) -> Result<(), UploadError> {
    let Some(records) = entry.pax_extensions()? else { return Ok(()) };
    for record in records {
        if record?.key_bytes().starts_with(b"GNU.sparse.") {
            let words = format!("{} is a sparse file: create the archive without --sparse", shown(path));
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

/// Validates the target of a symlink. It may be any path, because symlinks are not followed out of the content.
///
/// # Errors
/// [`UploadError::Invalid`] if it is empty or too long.
pub fn check_target(target: &[u8], path: &[u8]) -> Result<(), UploadError> {
    let reason = match target.len() {
        0 => "has no target",
        length if length > TARGET_BYTES_MAX => "has a target of more than 4096 bytes",
        _ => return Ok(()),
    };
    Err(UploadError::Invalid(format!("the symlink {} {reason}", shown(path))))
}

fn attributes(entry: &Entry<'_, impl Read>) -> Attributes {
    let seconds = entry.header().mtime().ok().and_then(|seconds| i64::try_from(seconds).ok());
    Attributes { mode: entry.header().mode().ok(), modified: seconds.and_then(|seconds| tree::at(seconds, 0)) }
}

/// A file in the archive, which fails if the archive ends before the file does.
struct CompleteFile<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for CompleteFile<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.left = self.left.saturating_sub(read as u64);
        if read == 0 && self.left > 0 && !buffer.is_empty() {
            let words = "the archive is truncated inside a file".to_owned();
            return Err(io::Error::other(UploadError::Invalid(words)));
        }
        Ok(read)
    }
}

/// How much the parser may read, and the state of the reader.
#[derive(Debug, Clone, Default)]
struct Bounds {
    left: Rc<Cell<u64>>,
    /// Whether the end was reached.
    ended: Rc<Cell<bool>>,
    /// Whether the underlying reader failed.
    failed: Rc<Cell<bool>>,
}

impl Bounds {
    fn allow(&self, bytes: u64) {
        self.left.set(bytes);
    }
}

struct BoundedReader<R> {
    inner: R,
    bounds: Bounds,
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Bounds { left, ended, failed } = &self.bounds;
        let most = usize::try_from(left.get()).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 && !buffer.is_empty() {
            let words = format!("the description of an entry of the archive exceeds {DESCRIPTION_BYTES_MAX} bytes");
            return Err(io::Error::other(UploadError::Invalid(words)));
        }
        let read = self.inner.read(&mut buffer[..most]).inspect_err(|_| failed.set(true))?;
        left.set(left.get() - read as u64);
        ended.set(read == 0 && !buffer.is_empty());
        Ok(read)
    }
}
