//! The site of a gateway: from the settings to its store, and to what its pin service needs.
//!
//! Non-goals: a gateway that is alone, for which nothing of this is used.

use cache::tiers::SiteTier;
use cache::{BlockStore, StoreError};
use config::{ConfigError, Loaded};
use content::stored::CompressionOptions;
use services::pinning::Coordination;
use site::store::{SiteStore, SiteStoreOptions};
use std::sync::Arc;

/// What a gateway has of its site.
pub(super) struct Site {
    store: SiteStore,
    pub coordination: Coordination,
}

impl Site {
    /// Opens the site of the settings, if there is one. `disk` is the gateway's own.
    ///
    /// # Errors
    /// [`ConfigError`] about the setting that cannot be used.
    pub async fn open(loaded: &Loaded, disk: &Arc<dyn BlockStore>) -> Result<Option<Self>, ConfigError> {
        let (settings, cache) = (&loaded.config.site, &loaded.config.cache);
        if !settings.is_on() {
            return Ok(None);
        }
        let engines = site::open(settings).await.map_err(|error| loaded.error(error.setting, error.reason))?;
        let options = SiteStoreOptions {
            cached_bytes_max: settings.cache_bytes_max,
            zstd: CompressionOptions { level: i32::from(cache.zstd_level) },
            ..SiteStoreOptions::default()
        };
        let store = SiteStore::new(Arc::clone(disk), engines.blocks, &options);
        let (name, database, storage) = (&settings.name, engines.database_name, engines.store_name);
        tracing::info!(%name, %database, %storage, "this gateway is one of the site");
        log_own_pins(&**disk).await.map_err(|error| loaded.error("data_dir", error.to_string()))?;
        let coordination = Coordination { log: Arc::new(engines.log), claims: Arc::new(engines.claims) };
        Ok(Some(Self { store, coordination }))
    }

    /// The tier of the site.
    pub fn tier(&self) -> SiteTier {
        let source = self.store.source();
        SiteTier {
            store: self.store.handle(),
            blocks: Arc::new(source.clone()),
            blocks_for_peers: Arc::new(source.for_peers()),
        }
    }
}

/// Logs pins of a time when the gateway was alone, which are not those of the site.
async fn log_own_pins(disk: &dyn BlockStore) -> Result<(), StoreError> {
    let pins = disk.pins().await?.len();
    if pins > 0 {
        tracing::warn!(
            pins,
            "this gateway has pins of its own from before it was one of a site: their blocks stay on its disk, but they \
             are not listed, and cannot be removed; to take them along, export them as CAR files before, and import them"
        );
    }
    Ok(())
}
