//! The content policy of commands that work on the store without a running gateway: the same denylists and allowlists
//! as the gateway has, so that a command neither stores nor reads content that the gateway withholds.
//!
//! Subscribed lists are used as last fetched. Nothing is written.

use config::Loaded;
use content::policy::admit;
use content::{Cid, Policy};
use services::denylists::Lists;
use std::sync::Arc;

/// The policy of the gateway on the data folder.
///
/// # Errors
/// When a list cannot be read; the error names the setting.
pub async fn load(loaded: &Loaded) -> anyhow::Result<Arc<dyn Policy>> {
    let lists = Lists::open_read_only(&loaded.config.policy, &loaded.config.data_dir).await;
    let lists = lists.map_err(|error| loaded.error(error.setting, error.to_string()))?;
    Ok(Arc::clone(lists.running()) as _)
}

/// The check of an import for each block.
pub fn import_check(policy: &Arc<dyn Policy>) -> impl Fn(&Cid) -> Result<(), BoxedError> + Send + Sync + use<> {
    let policy = Arc::clone(policy);
    move |cid| Ok(admit(&*policy, cid)?)
}

type BoxedError = Box<dyn std::error::Error + Send + Sync>;
