//! [`Recorded`]: a change that a command makes of a data folder itself, as the audit log has it.
//!
//! Goals: what changes tokens, keys, names and pins is recorded, whether a gateway does it or a command without one.
//!
//! Non-goals: what changes none of these: blocks that are read, checked, mended or moved.

use p2p_bridge::names::keystore::KeyError;
use serde_json::{Value, json};
use services::access::token_store::TokenStoreError;
use services::audit::LocalChange;
use services::logging::chain;
use services::views::keys;
use std::path::Path;

/// A change that is recorded as begun.
#[must_use = "how it ended is to be recorded as well"]
pub struct Recorded {
    record: LocalChange,
    asked: Value,
}

impl Recorded {
    /// Records that a change is about to be made: `words` are those of the command, `asked` what it was told. Blocks
    /// the thread.
    ///
    /// # Errors
    /// That it cannot be recorded, and so must not be made.
    pub fn begin(data_dir: &Path, words: &str, asked: Value) -> anyhow::Result<Self> {
        Ok(Self { record: LocalChange::begin(data_dir, words, &asked)?, asked })
    }

    /// Records what became of it, of which `tell` says what is worth telling, and gives it back. Blocks the thread.
    ///
    /// # Errors
    /// What became of it.
    pub fn end<T>(self, changed: anyhow::Result<T>, tell: impl FnOnce(&T) -> Value) -> anyhow::Result<T> {
        let ended = match &changed {
            Ok(changed) => self.record.end(200, &tell(changed)),
            Err(error) => {
                self.record.end(status(error), &json!({ "asked": self.asked, "error": chain(error).to_string() }))
            }
        };
        if let Err(error) = ended {
            eprintln!("warning: the audit log says that this was begun, and not how it ended: {error}");
        }
        changed
    }
}

/// The status that the admin API would answer, as far as that is known.
fn status(error: &anyhow::Error) -> u16 {
    let of_token = error.downcast_ref::<TokenStoreError>().map(TokenStoreError::status);
    let of_key = || error.downcast_ref::<KeyError>().map(keys::status);
    of_token.or_else(of_key).map_or(500, |status| status.as_u16())
}
