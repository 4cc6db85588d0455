//! What an operator does with a gateway that runs (`admin::operations`), as commands.
//!
//! Goals: a command is one request, and prints what was answered: as JSON what the API says, word for word, and as text what a
//! person wants to know of it.
//!
//! | module | commands |
//! |---|---|
//! | [`caches`] | `purge`, `warm`, `refresh`: what is kept, and what is brought here |
//! | [`changes`] | `gc`, `drain`, `log-level`, `config running`: how it runs |
//! | [`explain`] | `explain`: what would be answered, and why |
//! | [`figures`] | `stats`, `requests`, `node`: the figures of this moment, and which node this is |
//! | [`peers`] | `peers`: who is connected |
//! | [`node`] | `health`, `audit`: whether it is well, and who changed what |

pub mod caches;
pub mod changes;
pub mod explain;
pub mod figures;
pub mod node;
pub mod peers;

use content::path::Namespace;
use content::{Name, cid, codec};

/// What is said to be content, as a path. A CID or a name may stand alone, or before what is below it.
fn path_of(said: &str) -> String {
    if let Some((scheme @ ("ipfs" | "ipns"), rest)) = said.split_once("://") {
        return format!("/{scheme}/{rest}");
    }
    if said.starts_with('/') {
        return said.to_owned();
    }
    let root = said.split(['/', '?', '#']).next().unwrap_or_default();
    let is_content = cid::parse(root).is_ok_and(|cid| cid.codec() != codec::LIBP2P_KEY);
    let is_name = !is_content && Name::parse(root).is_ok();
    // What is neither is told of as no CID.
    let namespace = if is_name { Namespace::Ipns } else { Namespace::Ipfs };
    format!("/{}/{said}", namespace.name())
}
