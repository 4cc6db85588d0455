//! API views of uploads.

use crate::uploads::{ProgressSnapshot, Root, UploadResult};
use api::uploads::{GlanceView, RootView, UploadView};

/// The result of an upload.
pub fn upload(UploadResult { roots, bytes, blocks }: UploadResult) -> UploadView {
    UploadView { roots: roots.into_iter().map(root).collect(), bytes, blocks }
}

fn root(Root { name, cid, bytes, pin }: Root) -> RootView {
    let name = Some(name).filter(|name| !name.is_empty());
    RootView { name, cid: cid.to_string(), path: format!("/ipfs/{cid}"), bytes, pin }
}

/// The progress of an upload.
pub fn progress(ProgressSnapshot { files, bytes, path }: ProgressSnapshot) -> GlanceView {
    GlanceView { files, bytes, path }
}
