//! API views of uploads.

use crate::uploads::{PackingResult, ProgressSnapshot, Root, UploadResult};
use api::uploads::{GlanceView, PackedView, RootView, UploadView};
use content::importer::packer::PLAIN_NOTE;

/// The result of an upload.
pub fn upload(UploadResult { roots, bytes, blocks }: UploadResult) -> UploadView {
    UploadView { roots: roots.into_iter().map(root).collect(), bytes, blocks }
}

fn root(Root { name, cid, bytes, pin, packing }: Root) -> RootView {
    let name = Some(name).filter(|name| !name.is_empty());
    let (packed, note) = match packing {
        PackingResult::NotRequested => (None, None),
        PackingResult::Plain => (None, Some(PLAIN_NOTE.to_owned())),
        PackingResult::Packed(packed) => {
            let (zstd, cid) = (packed.zstd_file.cid.to_string(), packed.cid.to_string());
            (Some(PackedView { zstd, cid, bytes: packed.zstd_file.file_bytes }), None)
        }
    };
    RootView { name, cid: cid.to_string(), path: format!("/ipfs/{cid}"), bytes, pin, packed, note }
}

/// The progress of an upload.
pub fn progress(ProgressSnapshot { files, bytes, path }: ProgressSnapshot) -> GlanceView {
    GlanceView { files, bytes, path }
}
