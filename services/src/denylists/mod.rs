//! Content control: what is withheld, by which lists, and how that changes while the gateway runs.
//!
//! | module | concern |
//! |---|---|
//! | [`running`] | [`Running`]: the policy that everything asks, and that lists replace |
//! | [`lists`] | [`Lists`]: every list, where its text is, and what became of it when it was last read |
//! | `reader` | a file that is read again as it grows |
//! | `local` | the list that the admin API writes |
//! | [`subscription`] | lists that are fetched over HTTP |
//! | `keeper` | tasks that look after lists |
//! | [`takedown`] | a rule that is in force, and content that is gone |
//! | [`views`] | what the admin API says of lists, rules and decisions |
//!
//! Goals: a rule is on the disk and in force before its sender hears so; a source that fails leaves the list as it was; nothing
//! stops while lists are read; an operator can tell which line of which list decided.
//!
//! Non-goals: what rules mean ([`content::denylist`]); telling other gateways.
//!
//! # Which list counts
//!
//! In the order of `policy.denylists`, then the local list, then `policy.deny`: of these, the last that says anything. So a rule
//! or an exception that an operator adds through the API beats every list, and what the settings deny nothing lifts.
//!
//! # What only serves what is listed (`policy.mode = "allow"`)
//!
//! Over HTTP, a request has to begin with what is on an allowlist: the root of its path or its name, and the path from there, as
//! the client wrote them. What lies below is then served whatever it is, as are the pieces of it. A block that is asked for by
//! its own CID has to be on a list by itself. Other peers get blocks that are pinned, or on a list by their CIDs; what was
//! cached for a client is not given away. What a denylist withholds is withheld here too. The answer to anything else is 403.

mod keeper;
pub mod lists;
mod local;
mod reader;
pub mod running;
pub mod served;
pub mod subscription;
pub mod takedown;
#[cfg(test)]
mod tests;
pub mod views;

pub use self::keeper::Keeper;
pub use self::lists::{Lists, StartError};
pub use self::running::Running;
pub use self::takedown::Control;
use content::{Cid, Name};

/// What the policy refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// A block, or a path below it.
    Content(Cid),
    /// A name, or a path below it.
    Name(Name),
}
