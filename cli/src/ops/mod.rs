//! Commands that operate a running gateway (`admin::operations`).
//!
//! Goals: a command is one request, and prints the answer: with `--json` the API's JSON unchanged, otherwise a summary
//! as text.
//!
//! | module | commands |
//! |---|---|
//! | [`caches`] | `purge`, `warm`, `refresh`: cached content and names |
//! | [`control`] | `gc`, `drain`, `log-level`, `config running` |
//! | [`console`] | `console`: the URL of the web page |
//! | [`explain`] | `explain`: how a request would be answered, and why |
//! | [`status`] | `stats`, `requests`, `node` |
//! | [`peers`] | `peers`: connections and traffic |
//! | [`site`] | `site`: the gateways of a site |
//! | [`node`] | `health`, `audit` |

pub mod caches;
pub mod console;
pub mod control;
pub mod explain;
pub mod node;
pub mod peers;
pub mod site;
pub mod status;

use content::path::Namespace;
use content::{Name, cid, codec};

/// The content path of an argument: a path, an `ipfs://` or `ipns://` URL, or a CID or name with an optional path.
fn path_of(argument: &str) -> String {
    if let Some((scheme @ ("ipfs" | "ipns"), rest)) = argument.split_once("://") {
        return format!("/{scheme}/{rest}");
    }
    if argument.starts_with('/') {
        return argument.to_owned();
    }
    let root = argument.split(['/', '?', '#']).next().unwrap_or_default();
    let is_content = cid::parse(root).is_ok_and(|cid| cid.codec() != codec::LIBP2P_KEY);
    let is_name = !is_content && Name::parse(root).is_ok();
    // The API rejects anything else as an invalid CID.
    let namespace = if is_name { Namespace::Ipns } else { Namespace::Ipfs };
    format!("/{}/{argument}", namespace.name())
}
