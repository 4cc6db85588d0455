//! Denylists in the compact format (<https://specs.ipfs.tech/compact-denylist-format/>, IPIP-383): what their rules say, and
//! whether any of a million of them is about a block, a path or a name. Without I/O.
//!
//! Goals: every rule of the specification and the older hashes of the public list of bad bits; a line that cannot be read is
//! reported and costs nothing else; a check of a block allocates nothing; a list that grows is not read or copied again;
//! some 20 bytes of memory for a rule that names a block, a name or a double hash.
//!
//! Non-goals: where lists come from and when they are read again; what is done about content that is refused.
//!
//! | module | concern |
//! |---|---|
//! | [`rule`] | one line: [`Rule`], read and written |
//! | [`header`] | what stands before the rules |
//! | [`parser`] | bytes as they come, cut into lines and read |
//! | `keys` | what a rule and a question are compared by: 128 bits |
//! | `runs` | many of these, sorted, in layers that are added and merged |
//! | [`list`] | one list, as it grows |
//! | [`matcher`] | [`Matcher`]: several lists, asked together |
//!
//! # What wins
//!
//! Of the rules of a list that match, the last one counts, so that exceptions (`!`) come after what they are exceptions from. Of
//! several lists, the last one that has a matching rule counts.
//!
//! # What a rule withholds
//!
//! `/ipfs/CID` is about the block, by its multihash, and so in effect about every path that leads through it. `/ipfs/CID/path` and
//! `/ipfs/CID/path*` are about answers to that path; blocks that lie there stay to be had under their own CIDs. As the
//! specification has it, `path/*` is the same as `path*`: what begins with these characters.

pub mod header;
mod keys;
pub mod list;
pub mod matcher;
pub mod parser;
pub mod rule;
mod runs;
#[cfg(test)]
mod tests;

pub use self::header::{Header, HeaderError};
pub use self::list::{List, ListBuilder, Reported};
pub use self::matcher::{Hit, Matcher, Source};
pub use self::parser::{LINE_BYTES_MAX, Parser};
pub use self::rule::{PathPattern, Rule, RuleError, Target};
