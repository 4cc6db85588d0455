//! What an operator does with a gateway that runs ([`crate::operations`]), as commands.
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
