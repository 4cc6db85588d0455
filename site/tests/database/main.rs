//! The database of a site, with a real PostgreSQL server.
//!
//! | module | shows |
//! |---|---|
//! | [`blocks`] | the blocks that gateways share, with their objects in a folder |
//! | [`claims`] | which of several gateways works on a root |
//! | [`contract`] | the contract of a log, by the suite that every implementation passes |
//! | [`failures`] | a server that is killed, that is away, that was replaced by a standby without its latest entries |
//! | [`pins`] | pin services that share one list |
//! | [`schema`] | tables of other releases, roles with few rights, several sites in one database |
//! | [`store`] | the stores of gateways, each with a disk of its own |
//! | [`tls`] | what a server has to prove |
//! | [`waits`] | changes of the index of blocks that wait for each other |

mod blocks;
mod claims;
mod contract;
mod failures;
mod pins;
mod schema;
mod store;
mod support;
mod tls;
mod waits;
