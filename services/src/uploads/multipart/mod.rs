//! Uploads as forms (`multipart/form-data`, RFC 7578): each part is a file, a folder or a symlink.
//!
//! The name of a part is its `filename`, which is a path if it has slashes, as browsers send for a selected folder.
//! Kubo's clients send folders and symlinks as separate parts (`application/x-directory`, `application/symlink`), with
//! all names percent-encoded, and modes and times in a query after the field's name.
//!
//! | module | concern |
//! |---|---|
//! | [`backpressure`] | limits how much the parser reads ahead |
//! | [`part`] | the headers of a part |

mod backpressure;
pub mod part;

use self::backpressure::{Backpressure, ThrottledBody};
pub use self::part::filename;
use self::part::{Kind, Part};
use crate::uploads::UploadError;
use crate::uploads::body::Meter;
use crate::uploads::entries::EntryWriter;
use crate::uploads::limits::TARGET_BYTES_MAX;
use crate::uploads::tarball::check_target;
use bytes::Bytes;
use futures::StreamExt as _;
use multer::{Field, Multipart};
use std::io::{self, Read};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio_util::io::SyncIoBridge;

/// Reads all parts, and the rest of the body. `kubo`: all names are percent-encoded. Blocks, so it must not be called
/// on a runtime worker thread.
///
/// # Errors
/// [`UploadError`].
pub fn import(
    body: &Meter,
    boundary: &str,
    kubo: bool,
    runtime: &Handle,
    entries: &mut EntryWriter<'_, '_>,
) -> Result<(), UploadError> {
    let backpressure = Arc::<Backpressure>::default();
    let mut multipart = Multipart::new(ThrottledBody::new(body.clone(), &backpressure), boundary);
    while let Some(field) = runtime.block_on(backpressure.drive(|cx| multipart.poll_next_field(cx)))? {
        let part = Part::of(field.headers(), kubo)?;
        let (piece, backpressure, runtime) = (Bytes::new(), Arc::clone(&backpressure), runtime.clone());
        let mut content = Content { field, piece, backpressure, runtime };
        match part.kind {
            Kind::File => entries.file(part.path.as_ref(), part.attributes, &mut content)?,
            Kind::Folder => entries.folder(part.needs_path()?, part.attributes)?,
            Kind::Symlink => {
                let path = part.needs_path()?;
                let mut target = Vec::new();
                (&mut content).take(TARGET_BYTES_MAX as u64 + 1).read_to_end(&mut target)?;
                check_target(&target, path.as_bytes())?;
                entries.symlink(path, &target, part.attributes)?;
            }
        }
        io::copy(&mut content, &mut io::sink())?;
    }
    drop(multipart);
    io::copy(&mut SyncIoBridge::new_with_handle(body.clone(), runtime.clone()), &mut io::sink())?;
    Ok(())
}

/// The content of a part.
struct Content {
    field: Field<'static>,
    piece: Bytes,
    backpressure: Arc<Backpressure>,
    runtime: Handle,
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            let next = self.backpressure.drive(|cx| self.field.poll_next_unpin(cx));
            match self.runtime.block_on(next) {
                None => return Ok(0),
                Some(piece) => self.piece = piece.map_err(|error| io::Error::other(UploadError::from(error)))?,
            }
        }
        let taken = self.piece.len().min(buffer.len());
        buffer[..taken].copy_from_slice(&self.piece.split_to(taken));
        Ok(taken)
    }
}

/// Errors of the parser are the client's; errors of the body are passed on.
impl From<multer::Error> for UploadError {
    fn from(error: multer::Error) -> Self {
        match error {
            multer::Error::StreamReadFailed(error) => match error.downcast::<io::Error>() {
                Ok(error) => (*error).into(),
                Err(error) => Self::Invalid(error.to_string()),
            },
            error => Self::Invalid(format!("the form is invalid: {error}")),
        }
    }
}
