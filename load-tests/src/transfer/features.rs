//! What the binary that is measured supports, found by asking it: older builds are measured as far as they can be.

use crate::comparison::Unsupported;
use crate::network::peer;
use crate::network::world::PLAIN;
use crate::servers::{Causeway, Setup, without_settings};
use crate::timed;
use anyhow::Result;
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// The protocol in which a Causeway sends a DAG in one stream, with blocks as they are stored.
pub const DAG_PROTOCOL: &str = "/causeway/dag/1.0.0";
/// The option of `causeway add` for files that are compressed as a whole.
pub const PACKED: &str = "--packed";

/// The option of `causeway add` that turns compression on the way off.
const UNCOMPRESSED: &str = "--uncompressed";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Features {
    /// [`DAG_PROTOCOL`].
    pub dag: bool,
    /// The setting that turns it off.
    pub plain: bool,
    /// [`PACKED`].
    pub packed: bool,
    /// Commands compress what they send to other machines.
    pub compresses: bool,
}

impl Features {
    pub async fn of(causeway: &Path) -> Result<Self> {
        let node = Causeway::start(causeway, Setup::default()).await?;
        let protocols = peer::protocols(&node.multiaddr()?).await?;
        let mut check = without_settings(causeway);
        check.args(["config", "check"]).env(PLAIN.0, PLAIN.1);
        let help = timed::run(without_settings(causeway).args(["add", "--help"]))?.stdout;
        Ok(Self {
            dag: protocols.iter().any(|protocol| *protocol == DAG_PROTOCOL),
            plain: check.output()?.status.success(),
            packed: help.contains(PACKED),
            compresses: help.contains(UNCOMPRESSED),
        })
    }

    /// Fails unless blocks are sent as they are stored. `bar` is what would be required.
    pub fn require_dag(self, bar: &str) -> Result<()> {
        if !self.dag {
            return Err(Unsupported::error(format!("`{DAG_PROTOCOL}`"), bar));
        }
        Ok(())
    }

    /// The same, and the setting that turns it off, for a comparison with plain blocks.
    pub fn require_plain(self, bar: &str) -> Result<()> {
        self.require_dag(bar)?;
        if !self.plain {
            return Err(Unsupported::error(format!("`{}`", PLAIN.0), bar));
        }
        Ok(())
    }

    pub fn require_packed(self, bar: &str) -> Result<()> {
        if !self.packed {
            return Err(Unsupported::error(format!("`add {PACKED}`"), bar));
        }
        Ok(())
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dag = if self.dag { "speaks" } else { "does not speak" };
        let packed = if self.packed { "has" } else { "does not have" };
        write!(f, "{dag} `{DAG_PROTOCOL}` and {packed} `add {PACKED}`")
    }
}

#[test]
fn a_missing_feature_is_no_failure() {
    let all = Features { dag: true, plain: true, packed: true, compresses: true };
    for (features, error) in [
        (all, None),
        (Features { dag: false, ..all }, Some("`/causeway/dag/1.0.0` is not supported by this binary")),
        (Features { plain: false, ..all }, Some("`CAUSEWAY_P2P_DAG_PROTOCOL` is not supported by this binary")),
    ] {
        let found = features.require_plain("2 ×").err();
        assert_eq!(found.as_ref().map(ToString::to_string).as_deref(), error);
        assert!(found.is_none_or(|error| error.downcast_ref::<Unsupported>().is_some_and(|it| it.bar == "2 ×")));
    }
    assert!(Features { packed: false, ..all }.require_packed("2 MiB").is_err());
    assert!(Features { plain: false, ..all }.require_dag("2 ×").is_ok() && all.require_packed("2 MiB").is_ok());
}
