//! The content policy of commands that work on the store without a running gateway: the same denylists and allowlists
//! as the gateway has, so that a command neither stores nor reads content that the gateway withholds.
//!
//! Subscribed lists are used as last fetched, and the rules of a site as the gateway has last copied them. Nothing is
//! written.

use cache::store::IsWithheld;
use cache::withheld_by;
use config::{Config, Loaded};
use content::policy::admit;
use content::{AllowAll, Cid, Policy};
use services::denylists::Lists;
use std::sync::Arc;

/// The policy of the gateway on the data folder.
///
/// # Errors
/// When a list cannot be read; the error names the setting.
pub async fn load(loaded: &Loaded) -> anyhow::Result<Arc<dyn Policy>> {
    let Config { policy, data_dir, site, .. } = &loaded.config;
    let lists = Lists::open_read_only(policy, data_dir, site.is_on()).await;
    let lists = lists.map_err(|error| loaded.error(error.setting, error.to_string()))?;
    Ok(Arc::clone(lists.running()) as _)
}

/// Which blocks are withheld, for commands that only tell them from damage and neither store nor print content. If a
/// list cannot be read, they work nevertheless: a warning is printed, and no block counts as withheld.
pub async fn withheld_or_none(loaded: &Loaded) -> IsWithheld {
    let policy = load(loaded).await.unwrap_or_else(|error| {
        eprintln!("warning: {error:#}; blocks that are withheld are reported as missing");
        Arc::new(AllowAll)
    });
    withheld_by(&policy)
}

/// The check of an import for each block.
pub fn import_check(policy: &Arc<dyn Policy>) -> impl Fn(&Cid) -> Result<(), BoxedError> + Send + Sync + use<> {
    let policy = Arc::clone(policy);
    move |cid| Ok(admit(&*policy, cid)?)
}

type BoxedError = Box<dyn std::error::Error + Send + Sync>;

#[cfg(test)]
mod tests {
    use super::*;
    use content::BlockKey;

    #[tokio::test]
    async fn withheld_blocks_are_told_apart_unless_a_list_cannot_be_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let list = dir.path().join("own.deny");
        let cid = content::cid::parse("bafybeihrw75yfhdx5qsqgesdnxejtjybscwuclpusvxkuttep6h7pkgmze").expect("a CID");
        let mut loaded = config::load(&config::Flags::default(), []).expect("the defaults are valid");
        loaded.config.data_dir = dir.path().join("data");
        let from = config::ListSource::File(list.clone());
        loaded.config.policy.denylists = vec![config::ListSetting { from, status: 410 }];
        for (text, is_read, withheld) in [
            (None, false, false),
            (Some(format!("/ipfs/{cid}\n")), true, true),
            (Some("<html>\n".to_owned()), false, false),
        ] {
            text.iter().for_each(|text| std::fs::write(&list, text).expect("writes"));
            assert_eq!(load(&loaded).await.is_ok(), is_read, "{text:?}");
            let key = BlockKey::of(&cid).expect("a key");
            assert_eq!(withheld_or_none(&loaded).await(&key), withheld, "{text:?}");
        }
    }
}
