//! A form of several parts (`multipart/form-data`, RFC 7578) as it is uploaded: each part a file, a folder or a symlink.
//!
//! What a part is called is its `filename`, a path if it has slashes, as browsers send for a folder that is chosen. Kubo's clients send
//! folders and symlinks as parts of their own (`application/x-directory`, `application/symlink`), all names percent-encoded, and modes
//! and times behind a question mark in the field's name.
//!
//! | module | concern |
//! |---|---|
//! | [`gate`] | the parser, which would read all of the body if it could, read with a bound |
//! | [`part`] | what a part's head says |

mod gate;
pub mod part;

use self::gate::{Gate, Gated};
pub use self::part::filename;
use self::part::{Kind, Part};
use crate::uploads::UploadError;
use crate::uploads::body::Meter;
use crate::uploads::taker::Taker;
use crate::uploads::tarball::{TARGET_BYTES_MAX, check_target};
use bytes::Bytes;
use futures::StreamExt as _;
use multer::{Field, Multipart};
use std::io::{self, Read};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio_util::io::SyncIoBridge;

/// Takes in every part, and reads what comes behind them. `kubo`: every name is percent-encoded. Must not be called by a thread
/// that drives tasks: it waits.
///
/// # Errors
/// [`UploadError`].
pub fn take(
    body: &Meter,
    boundary: &str,
    kubo: bool,
    runtime: &Handle,
    taker: &mut Taker<'_, '_>,
) -> Result<(), UploadError> {
    let gate = Arc::<Gate>::default();
    let mut multipart = Multipart::new(Gated::new(body.clone(), &gate), boundary);
    while let Some(field) = runtime.block_on(gate.drive(|cx| multipart.poll_next_field(cx)))? {
        let part = Part::of(field.headers(), kubo)?;
        let (piece, gate, runtime) = (Bytes::new(), Arc::clone(&gate), runtime.clone());
        let mut content = Content { field, piece, gate, runtime };
        match part.kind {
            Kind::File => taker.file(part.path.as_ref(), part.attributes, &mut content)?,
            Kind::Folder => taker.folder(part.needs_path()?, part.attributes)?,
            Kind::Symlink => {
                let path = part.needs_path()?;
                let mut target = Vec::new();
                (&mut content).take(TARGET_BYTES_MAX as u64 + 1).read_to_end(&mut target)?;
                check_target(&target, path.as_bytes())?;
                taker.symlink(path, &target, part.attributes)?;
            }
        }
        io::copy(&mut content, &mut io::sink())?;
    }
    drop(multipart);
    io::copy(&mut SyncIoBridge::new_with_handle(body.clone(), runtime.clone()), &mut io::sink())?;
    Ok(())
}

/// A part's bytes.
struct Content {
    field: Field<'static>,
    piece: Bytes,
    gate: Arc<Gate>,
    runtime: Handle,
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            let next = self.gate.drive(|cx| self.field.poll_next_unpin(cx));
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

/// What the parser does not understand is the sender's fault; what the body says comes through.
impl From<multer::Error> for UploadError {
    fn from(error: multer::Error) -> Self {
        match error {
            multer::Error::StreamReadFailed(error) => match error.downcast::<io::Error>() {
                Ok(error) => (*error).into(),
                Err(error) => Self::Invalid(error.to_string()),
            },
            error => Self::Invalid(format!("this is no form that can be read: {error}")),
        }
    }
}
