//! The `causeway` commands: their arguments, their work or the requests they send, and their output.
//!
//! Goals: a command works with and without a running gateway, where that makes sense; standard output is for scripts;
//! errors are one line on standard error that says what to do.
//!
//! | module | concern |
//! |---|---|
//! | [`command_line`] | the command line as a whole |
//! | [`options`] | options of many commands: which node, which output format |
//! | [`ownership`] | files that a command run as root leaves in a data folder go to the folder's owner |
//! | [`remote`] | the client of a running gateway's admin API |
//! | [`values`] | parsing and printing of sizes, durations and dates |
//! | [`output`], [`progress`] | output formats and exit codes; the progress line |
//! | [`store_cli`] | `add`, `get`, `cat`, `ls`: files and folders to and from the store |
//! | [`store_admin`] | `store`, `import`: statistics, check, repair, compaction, CAR files |
//! | [`names_cli`] | `key`, `name`: IPNS keys and published names |
//! | [`ops`] | commands that operate a running gateway |
//! | [`block`] | `block`: denylist rules |
//! | [`pin`] | `pin`: pins |
//! | [`token`] | `token`: access tokens of the admin API |
//! | [`report`] | `report`: evaluates access logs |
//! | [`audited_change`] | audit log entries of changes that commands make without a gateway |
//! | [`local_policy`] | the content policy of commands that work without a gateway |
//! | [`shell`] | `completions`, `man` |

#![allow(clippy::result_large_err, reason = "errors name the CID, whose digest has room for 128 bytes, and are rare")]

mod audited_change;
mod block;
pub mod command_line;
mod local_policy;
mod names_cli;
mod ops;
mod options;
pub mod output;
mod ownership;
mod pin;
mod progress;
mod remote;
mod report;
mod shell;
mod store_admin;
mod store_cli;
mod token;
mod values;

#[cfg(test)]
mod tests;
