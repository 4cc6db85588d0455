//! What is withheld, for commands that work on the store while no gateway runs: the same lists as a gateway on the data
//! folder would have, so that nothing is taken in or read here that it refuses.
//!
//! Lists that are fetched are as they were fetched last. Nothing is written.

use config::Loaded;
use content::policy::admit;
use content::{Cid, Policy};
use services::denylists::Lists;
use std::sync::Arc;

/// The policy of the gateway that runs on the data folder, or would.
///
/// # Errors
/// The list that cannot be read, and the setting that names it.
pub async fn policy(loaded: &Loaded) -> anyhow::Result<Arc<dyn Policy>> {
    let lists = Lists::open_as_they_are(&loaded.config.policy, &loaded.config.data_dir).await;
    let lists = lists.map_err(|error| loaded.error(error.setting, error.to_string()))?;
    Ok(Arc::clone(lists.running()) as _)
}

/// What an import asks of each block.
pub fn look(policy: &Arc<dyn Policy>) -> impl Fn(&Cid) -> Result<(), BoxedError> + Send + Sync + use<> {
    let policy = Arc::clone(policy);
    move |cid| Ok(admit(&*policy, cid)?)
}

type BoxedError = Box<dyn std::error::Error + Send + Sync>;
