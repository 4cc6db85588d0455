//! The `causeway` commands: what is typed, what is asked or done for it, and what is printed.
//!
//! Goals: a command works whether the gateway runs or not, where that makes sense; standard output is for scripts, standard
//! error for what goes wrong, in one line that says what to do.
//!
//! | module | concern |
//! |---|---|
//! | [`command_line`] | the command line as a whole |
//! | [`place`] | which node is meant |
//! | [`ownership`] | who owns what a command of root's leaves in a data folder |
//! | [`remote`] | a gateway that runs, as commands see it: the client of the admin API |
//! | [`values`] | amounts, times and moments, typed and shown |
//! | [`output`], [`progress`] | what is printed, and what codes mean; the line that says how far something is |
//! | [`store_cli`] | `add`, `get`, `ls`: files and folders into the store and out of it |
//! | [`store_admin`] | `store`, `import`: the store checked, mended, and archives in and out of it |
//! | [`names_cli`] | `key`, `name`: keys, and what is published with them |
//! | [`ops`] | what an operator does with a gateway that runs |
//! | [`block`] | `block`: what is not served |
//! | [`pin`] | `pin`: what is kept for good |
//! | [`token`] | `token`: who may use the admin API |
//! | [`recorded`] | changes that commands make themselves, as the audit log has them |
//! | [`withheld`] | what commands refuse while no gateway runs |
//! | [`shell`] | `completions`, `man` |

#![allow(clippy::result_large_err, reason = "errors name the CID, whose digest has room for 128 bytes, and are rare")]

mod block;
pub mod command_line;
mod names_cli;
mod ops;
pub mod output;
mod ownership;
mod pin;
mod place;
mod progress;
mod recorded;
mod remote;
mod shell;
mod store_admin;
mod store_cli;
mod token;
mod values;
mod withheld;

#[cfg(test)]
mod tests;
