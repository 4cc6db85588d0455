//! Denylists in the compact format (<https://specs.ipfs.tech/compact-denylist-format/>, IPIP-383): parsing rules, and
//! matching blocks, paths and names against millions of them. Without I/O.
//!
//! Goals: all rules of the specification, and the legacy hashes of the public badbits list; an invalid line is reported
//! and skipped; checking a block allocates nothing; an append-only list is parsed incrementally; a rule for a block, a
//! name or a double hash takes some 20 bytes of memory.
//!
//! Non-goals: where lists come from, when they are reloaded, and what is done about denied content.
//!
//! | module | concern |
//! |---|---|
//! | [`rule`] | one line: [`Rule`], parsed and displayed |
//! | [`header`] | the header before the rules |
//! | [`parser`] | incremental parsing of bytes into rules |
//! | `keys` | the 128-bit keys by which rules are indexed |
//! | `runs` | sorted runs of keys in layers that are appended and merged (as in an LSM tree) |
//! | [`list`] | one list, as it grows |
//! | [`matcher`] | [`Matcher`]: matches several lists |
//!
//! # Precedence
//!
//! Of the matching rules of a list, the last one wins, so exceptions (`!`) come after the rules that they override. Of
//! several lists, the last one with a matching rule wins.
//!
//! # Scope of a rule
//!
//! `/ipfs/CID` denies the block, by its multihash, and so every path through it. `/ipfs/CID/path` and `/ipfs/CID/path*`
//! deny responses to that path; its blocks remain available under their own CIDs. As in the specification, `path/*` is
//! the same as `path*`: all paths with this prefix.

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
