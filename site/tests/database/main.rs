//! The database of a site, with a real PostgreSQL server.
//!
//! | module | shows |
//! |---|---|
//! | [`claims`] | which of several gateways works on a root |
//! | [`contract`] | the contract of a log, by the suite that every implementation passes |
//! | [`failures`] | a server that is killed, that is away, that was replaced by a standby without its latest entries |
//! | [`pins`] | pin services that share one list |
//! | [`schema`] | tables of other releases, roles with few rights, several sites in one database |
//! | [`tls`] | what a server has to prove |

mod claims;
mod contract;
mod failures;
mod pins;
mod schema;
mod support;
mod tls;
