//! What a node does besides answering requests: it keeps pins, takes uploads in, withholds content, and knows who may do what.
//!
//! Goals: each service is used in the same way by the admin API, by Kubo's RPC and by commands that work on a data folder without
//! a gateway; errors say what the caller can do.
//!
//! Non-goals: HTTP routes and JSON bodies, which are `admin` and [`api`]; what the public is answered, which is `gateway`.
//!
//! | module | concern |
//! |---|---|
//! | [`access`] | bearer tokens: who sends a request, and what they may do |
//! | [`audit`] | the audit log |
//! | [`pinning`] | the pin service: who asked for which DAG to be kept, and the workers that fetch it |
//! | [`uploads`] | bytes, folders and CARs that become pinned blocks; resumable uploads |
//! | [`denylists`] | which content is withheld, and take-downs |
//! | [`front_caches`] | caches in front of the gateway, which are told of take-downs |
//! | [`stores`], [`upkeep`] | opening the data folder, and keeping its store in order |
//! | [`limiter`] | permits, of which each client has a share |
//! | [`health`], [`supervision`] | how far along its life the process is; the tasks that it cannot do without |
//! | [`subject`], [`surrogate_keys`] | what an operator refers to; how content delivery networks refer to it |
//! | [`views`] | what the API and the commands say of stores, tokens, keys and uploads |
//! | [`url`], [`redact`], [`fingerprint`] | URLs, secrets in them, and files that change |

#![allow(clippy::result_large_err, reason = "errors name the CID, whose digest has room for 128 bytes, and are rare")]

pub mod access;
pub mod audit;
pub mod denylists;
pub mod fingerprint;
pub mod front_caches;
pub mod health;
pub mod limiter;
pub mod logging;
pub mod p2p;
pub mod pinning;
pub mod redact;
#[cfg(test)]
mod small_disk;
pub mod stores;
pub mod subject;
pub mod supervision;
pub mod surrogate_keys;
pub mod upkeep;
pub mod uploads;
pub mod url;
pub mod views;
pub mod welcome;
