//! The database of a site, with a real PostgreSQL server.
//!
//! | module | shows |
//! |---|---|
//! | [`blocks`] | the blocks that gateways share, with their objects in a folder |
//! | [`claims`] | which of several gateways works on a root |
//! | [`contract`] | the contract of a log, by the suite that every implementation passes |
//! | [`failures`] | a server that is killed or stopped, that was replaced by a standby without its latest entries |
//! | [`members`] | which gateways there are, and which keys each of them provides |
//! | [`open`] | a site that is opened from its settings, with a folder and with a real S3 server |
//! | [`pins`] | pin services that share one list |
//! | [`schema`] | tables of other releases, roles with few rights, several sites in one database |
//! | [`sizes`] | the size of the index by the number of blocks, and how long statements take (by `make test-long`)
//! | [`store`] | the stores of gateways, each with a disk of its own |
//! | [`tls`] | what a server has to prove |
//! | [`uploads`] | resumable uploads that gateways share |
//! | [`waits`] | changes of the index of blocks that wait for each other |

mod blocks;
mod claims;
mod contract;
mod failures;
mod members;
mod open;
mod pins;
mod schema;
#[allow(dead_code, reason = "the tests of `objects` use all of it")]
#[path = "../../../objects/tests/engines/server.rs"]
mod server;
mod sizes;
mod store;
mod support;
mod tls;
mod uploads;
mod waits;
