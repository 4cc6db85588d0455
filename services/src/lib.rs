//! The services of a node besides answering public requests: pins, uploads, content policy, access control.
//!
//! Goals: the admin API, Kubo's RPC and commands that work on a data directory without a gateway use each service in
//! the same way; errors say what the caller can do.
//!
//! Non-goals: HTTP routes and JSON bodies, which are `admin` and [`api`]; public responses, which are `gateway`.
//! | module | concern |
//! |---|---|
//! | [`acme`] | certificates of the public listener by ACME |
//! | [`access`] | authentication and authorisation by bearer tokens |
//! | [`access_log`] | the access log: records, formats, the file |
//! | [`audit`] | the audit log |
//! | [`pinning`] | the pin service: pin requests, and the workers that fetch their DAGs |
//! | [`uploads`] | uploads of files, folders and CARs, which become pinned blocks; resumable uploads |
//! | [`denylists`] | content policy: denylists, allowlists and take-downs |
//! | [`control_log`] | the rules and tokens of a site, which all of its gateways obey |
//! | [`name_log`] | the IPNS keys and published names of a site, which all of its gateways have |
//! | [`isolation`] | whether a gateway is cut off from its site, and refuses content |
//! | [`front_caches`] | caches in front of the gateway, which are purged after take-downs |
//! | [`stores`], [`upkeep`] | opening the data directory, and maintaining its store |
//! | [`limiter`], [`rate_limiter`], [`client_budgets`] | permits, request rates and memory, with a limit for each client |
//! | [`health`], [`supervision`] | the health of the process; supervision of its essential tasks |
//! | [`process`] | the resource usage of the process, and the space of file systems |
//! | [`telemetry`] | traces of requests, exported by OTLP |
//! | [`subject`], [`surrogate_keys`] | parsing references to content; surrogate keys of content delivery networks |
//! | [`views`] | API views of stores, tokens, keys and uploads |
//! | [`url`], [`redact`], [`fingerprint`] | URLs, removal of secrets from them, change detection of files |
//! | `line_file` | appending lines to files |

#![allow(clippy::result_large_err, reason = "errors name the CID, whose digest has room for 128 bytes, and are rare")]

pub mod access;
pub mod access_log;
pub mod acme;
pub mod audit;
pub mod client_budgets;
pub mod control_log;
pub mod denylists;
pub mod fingerprint;
pub mod front_caches;
pub mod health;
pub mod isolation;
pub mod limiter;
mod line_file;
pub mod logging;
pub mod name_log;
pub mod p2p;
pub mod pinning;
pub mod process;
pub mod rate_limiter;
pub mod redact;
#[cfg(test)]
mod small_disk;
pub mod stores;
pub mod subject;
pub mod supervision;
pub mod surrogate_keys;
pub mod telemetry;
#[cfg(test)]
mod test_log;
pub mod upkeep;
pub mod uploads;
pub mod url;
pub mod views;
pub mod welcome;
