//! The site that a fresh gateway has to show: a CAR in the binary, made by `assets/make-welcome.sh`.
//!
//! Goals: the first start shows something that works; nothing of that stands in anybody's way. The site is pinned once, and the
//! store's folder has a note of its root: a root that was pinned and is not any more was unpinned by the operator, for good.
//! A store that cannot take the site, on a full disk for instance, goes without.

use anyhow::Context as _;
use cache::{BlockStore, PinState};
use content::Cid;
use content::car::CarReader;
use p2p_bridge::durable;
use std::path::Path;

const CAR: &[u8] = include_bytes!("../assets/welcome.car");
/// What the site is called among the pins.
const PIN_NAME: &str = "welcome";
/// The longest note that is read, in bytes.
const NOTE_BYTES_MAX: usize = 256;

/// The root of the site, which is pinned when this returns; `None` if the operator has unpinned it. `note` is the file that tells
/// which root was pinned before, for a store that outlives the process.
///
/// # Errors
/// When the archive in the binary is damaged or the store does not take it.
pub async fn offer(store: &dyn BlockStore, note: Option<&Path>) -> anyhow::Result<Option<Cid>> {
    let root = root().await?;
    let pinned_before = note.and_then(noted);
    let pin = store.pin(&root).await?;
    if pin.as_ref().is_none_or(|pin| pin.state != PinState::Complete) {
        if pin.is_none() && was_unpinned(store, pinned_before).await? {
            return Ok(None);
        }
        cache::import_car(store, CAR, Some(PIN_NAME.to_owned()))
            .await
            .context("the welcome site could not be pinned")?;
    }
    if let Some(note) = note.filter(|_| pinned_before != Some(root))
        && let Err(error) = durable::write(note, root.to_string().as_bytes())
    {
        tracing::warn!(path = %note.display(), %error, "that the welcome site was pinned could not be noted");
    }
    Ok(Some(root))
}

/// Whether a root that was pinned before is pinned no more.
async fn was_unpinned(store: &dyn BlockStore, pinned_before: Option<Cid>) -> anyhow::Result<bool> {
    match pinned_before {
        Some(former) => Ok(store.pin(&former).await?.is_none()),
        None => Ok(false),
    }
}

/// The root in a note. One that cannot be read is none: at worst the site is pinned once more.
fn noted(note: &Path) -> Option<Cid> {
    let text = durable::read(note, NOTE_BYTES_MAX).ok()?;
    content::cid::parse(str::from_utf8(&text).ok()?.trim()).ok()
}

/// The root that the archive names.
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
        // A site of another release, which the operator has unpinned likewise.
        std::fs::write(&note, "bafkqaaa").expect("writes");
        assert_eq!(offer(&open(), Some(&note)).await.expect("looks"), None);
        // Who pins it again wants it.
        cache::import_car(&open(), CAR, None).await.expect("pins");
        assert_eq!(offer(&open(), Some(&note)).await.expect("looks"), Some(root));
        std::fs::write(&note, "no root").expect("writes");
        assert!(BlockStore::remove_pin(&open(), &root).await.expect("unpins"));
        assert_eq!(offer(&open(), Some(&note)).await.expect("pins"), Some(root), "a note that says nothing is none");
        // A store that forgets everything has no note.
        let memory = cache::memory::open(&cache::memory::MemoryOptions::default()).expect("opens");
        assert_eq!(offer(&*memory, None).await.expect("pins"), Some(root));
    }

    #[tokio::test]
    async fn a_store_that_cannot_take_the_site_says_so() {
        let dir = tempfile::tempdir().expect("a folder");
        let options = DiskOptions { free_bytes_min: u64::MAX / 2, reserve_bytes_max: 0, ..DiskOptions::default() };
        let store = Disk::open(dir.path(), options).expect("opens");
        let note = dir.path().join("welcome");
        let error = offer(&store, Some(&note)).await.expect_err("there is no space");
        assert!(format!("{error:#}").contains("MiB left"), "{error:#}");
        assert!(!note.exists(), "it is tried again at the next start");
    }
}
