//! Content policy: which content is withheld, by which lists, and how that changes at run time.
//!
//! | module | concern |
//! |---|---|
//! | [`running`] | [`Running`]: the policy in force, which lists replace |
//! | [`lists`] | [`Lists`]: all lists, their files, and their state |
//! | `reader` | reading a list file incrementally |
//! | [`local`] | the local list, which the admin API writes |
//! | `deleted_links` | the links of deleted blocks, for later deep take-downs |
//! | [`subscription`] | lists that are fetched over HTTP |
//! | `keeper` | tasks that keep lists up to date |
//! | [`site_rules`] | in a site: the rules that other gateways add and remove |
//! | [`takedown`] | take-downs: a rule in force, and the content deleted |
//! | [`views`] | API views of lists, rules and decisions |
//!
//! Goals: a rule is on the disk and in force before the request is answered; a failing source leaves the list
//! unchanged; reading lists does not block requests; the operator can find out which line of which list decided.
//!
//! Non-goals: the semantics of rules ([`content::denylist`]); what the gateways of a site agree on
//! ([`crate::control_log`]).
//!
//! # Precedence
//!
//! The lists of `policy.denylists` in their order, then the local list, then in a site that of the site, then
//! `policy.deny`: the last one with a matching rule decides. So a rule or an exception that the operator adds through
//! the API overrides all lists, and nothing overrides `policy.deny`.
//!
//! In a site, the API changes the list of the site. The local list is then the operator's own of that one gateway: the
//! API only removes rules from it.
//!
//! # Allowlists (`policy.mode = "allow"`)
//!
//! Over HTTP, a request must begin with an entry of an allowlist: the root of its path or its name, and the path from
//! there, as the client wrote them. Everything below is then served, including its single blocks. A block that is
//! requested by its own CID must be on a list itself. Other peers get blocks that are pinned, or on a list by their
//! CIDs; blocks that were cached for clients are not served to them. Denylists apply too. Any other request is answered
//! with 403.

mod deleted_links;
mod keeper;
pub mod lists;
pub mod local;
mod reader;
pub mod running;
pub mod served;
pub mod site_rules;
pub mod subscription;
pub mod takedown;
#[cfg(test)]
mod tests;
pub mod views;

pub use self::keeper::ListUpdater;
pub use self::lists::{ListEntry, Lists, StartError};
pub use self::running::Running;
pub use self::takedown::Control;
use content::Cid;
use content::path::Root;

/// What the policy withholds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The CID of a block, or a name.
    pub root: Root,
    /// The decoded path below it; empty for the block or the name itself.
    pub path: String,
}

impl Refused {
    /// A block, or a path below it.
    pub fn content(root: &Cid, path: &str) -> Self {
        Self { root: Root::Cid(*root), path: path.to_owned() }
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slash = if self.path.is_empty() { "" } else { "/" };
        match &self.root {
            Root::Cid(cid) => write!(f, "{cid}{slash}{}", self.path),
            Root::Name(name) => write!(f, "{name}{slash}{}", self.path),
        }
    }
}
