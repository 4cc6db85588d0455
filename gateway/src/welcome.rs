//! The site that a fresh gateway has to show: a CAR in the binary, made by `assets/make-welcome.sh`.

use anyhow::Context as _;
use cache::{BlockStore, PinState};
use content::Cid;
use content::car::CarReader;

const CAR: &[u8] = include_bytes!("../assets/welcome.car");
/// What the site is called among the pins.
const PIN_NAME: &str = "welcome";

/// The root of the site, which is pinned when this returns.
///
/// # Errors
/// When the archive in the binary is damaged or the store does not take it.
pub async fn ensure_pinned(store: &dyn BlockStore) -> anyhow::Result<Cid> {
    let root = root().await?;
    let pins = store.pins().await?;
    if !pins.iter().any(|pin| pin.root == root && pin.state == PinState::Complete) {
        cache::import_car(store, CAR, Some(PIN_NAME.to_owned()))
            .await
            .context("the welcome site could not be pinned")?;
    }
    Ok(root)
}

/// The root that the archive names.
async fn root() -> anyhow::Result<Cid> {
    let reader = CarReader::new(CAR).await.context("the welcome site in this binary is damaged")?;
    reader.roots().first().copied().context("the welcome site in this binary has no root")
}
