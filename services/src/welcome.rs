//! The welcome site of a new gateway: a CAR in the binary, created by `assets/make-welcome.sh`.
//!
//! The site is pinned once, and a file in the store's folder records its root: if that root is no longer pinned, the
//! operator has unpinned it, and it is not pinned again. A store that cannot take the site, for instance on a full
//! disk, goes without.

use anyhow::Context as _;
use cache::{BlockStore, PinState};
use content::Cid;
use content::car::CarReader;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use p2p_bridge::durable;
use std::path::Path;

const CAR: &[u8] = include_bytes!("../assets/welcome.car");
/// The name of the site's pin.
const PIN_NAME: &str = "welcome";
/// The maximum size of the file with the pinned root, in bytes.
const RECORD_BYTES_MAX: usize = 256;

/// Pins the site and returns its root; `None` if the operator has unpinned it. `note` is the file that records which
/// root was pinned, if the store is persistent.
///
/// # Errors
/// When the archive in the binary is damaged, or pinning it failed.
pub fn offer<'a>(store: &'a dyn BlockStore, note: Option<&'a Path>) -> BoxFuture<'a, anyhow::Result<Option<Cid>>> {
    async move {
        let root = root().await?;
        let pinned_before = note.and_then(recorded_root);
        let pin = store.pin(&root).await?;
        if pin.as_ref().is_none_or(|pin| pin.state != PinState::Complete) {
            if pin.is_none() && was_unpinned(store, pinned_before).await? {
                return Ok(None);
            }
            cache::import_car(store, CAR, Some(PIN_NAME.to_owned()))
                .await
                .context("pinning the welcome site failed")?;
        }
        if let Some(note) = note.filter(|_| pinned_before != Some(root))
            && let Err(error) = durable::write(note, root.to_string().as_bytes())
        {
            tracing::warn!(path = %note.display(), %error, "recording that the welcome site was pinned failed");
        }
        Ok(Some(root))
    }
    .boxed()
}

/// Whether a root that was pinned before is no longer pinned.
async fn was_unpinned(store: &dyn BlockStore, pinned_before: Option<Cid>) -> anyhow::Result<bool> {
    match pinned_before {
        Some(former) => Ok(store.pin(&former).await?.is_none()),
        None => Ok(false),
    }
}

/// The recorded root. An invalid file counts as none: at worst the site is pinned again.
fn recorded_root(note: &Path) -> Option<Cid> {
    let text = durable::read(note, RECORD_BYTES_MAX).ok()?;
    content::cid::parse(str::from_utf8(&text).ok()?.trim()).ok()
}

/// The root of the archive.
async fn root() -> anyhow::Result<Cid> {
    let reader = CarReader::new(CAR).await.context("the welcome site in this binary is damaged")?;
    reader.roots().first().copied().context("the welcome site in this binary has no root")
}

#[cfg(test)]
mod tests {
    use super::*;
    use cache::{Disk, DiskOptions};

    #[tokio::test]
    async fn the_site_is_pinned_once_and_unpinned_for_good() {
        let dir = tempfile::tempdir().expect("a folder");
        let (store_dir, note) = (dir.path().join("store"), dir.path().join("store/welcome"));
        let open = || {
            let options = DiskOptions { free_bytes_min: 0, reserve_bytes_max: 0, ..DiskOptions::default() };
            Disk::open(&store_dir, options).expect("opens")
        };
        let root = root().await.expect("a root");
        for _ in 0..2 {
            assert_eq!(offer(&open(), Some(&note)).await.expect("pins"), Some(root));
        }
        assert!(BlockStore::remove_pin(&open(), &root).await.expect("unpins"));
        for _ in 0..2 {
            assert_eq!(offer(&open(), Some(&note)).await.expect("looks"), None);
        }
        // A site of another release, which the operator has also unpinned.
        std::fs::write(&note, "bafkqaaa").expect("writes");
        assert_eq!(offer(&open(), Some(&note)).await.expect("looks"), None);
        // The operator pins it again.
        cache::import_car(&open(), CAR, None).await.expect("pins");
        assert_eq!(offer(&open(), Some(&note)).await.expect("looks"), Some(root));
        std::fs::write(&note, "no root").expect("writes");
        assert!(BlockStore::remove_pin(&open(), &root).await.expect("unpins"));
        assert_eq!(offer(&open(), Some(&note)).await.expect("pins"), Some(root), "an invalid file counts as none");
        // A store in memory has no such file.
        let memory = cache::memory::open(&cache::memory::MemoryOptions::default()).expect("opens");
        assert_eq!(offer(&*memory, None).await.expect("pins"), Some(root));
    }

    #[tokio::test]
    async fn a_store_that_cannot_take_the_site_reports_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let options = DiskOptions { free_bytes_min: u64::MAX / 2, reserve_bytes_max: 0, ..DiskOptions::default() };
        let store = Disk::open(dir.path(), options).expect("opens");
        let note = dir.path().join("welcome");
        let error = offer(&store, Some(&note)).await.expect_err("there is no space");
        assert!(format!("{error:#}").contains("MiB left"), "{error:#}");
        assert!(!note.exists(), "the next start tries again");
    }
}
