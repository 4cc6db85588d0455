//! End to end: the real binary, a real Kubo (`make kubo` builds it), real HTTP; everything on loopback.
//!
//! | module | shows |
//! |---|---|
//! | [`welcome`] | the page that a first start prints, without any network |
//! | [`tiers`] | content that only Kubo has, served from the network, then from RAM, then from disk |
//! | [`routing`] | content found by its provider record, with no peer known but a DHT node |
//! | [`routing_v1`] | delegated routing, either way round |
//! | [`gateways`] | content over HTTP, from Causeway and from Kubo, and what comes of a gateway that lies |
//! | [`dht`] | Causeway as the server of the DHT between Kubo nodes, and over its restarts |
//! | [`store`] | files and folders added, listed and read on the command line, beside Kubo's commands |
//! | [`names`] | IPNS names that Kubo published |
//! | [`publish`] | names that Causeway published, resolved by Kubo; keys that go from one to the other |
//! | [`reverse`] | Kubo reading what only Causeway has |
//! | [`private`] | a private network: blocks both ways, and nobody without its key |
//! | [`websocket`] | blocks both ways over WebSocket |
//! | [`streaming`] | a 1 GiB file in little memory, for fast, slow and vanishing readers |
//! | [`coalescing`] | a hundred readers, one fetch |
//! | [`encoded`] | text that is stored compressed, read by curl and by the tool of zstd |
//! | [`malice`] | peers that send wrong bytes, too many, garbage or nothing |
//! | [`full`] | a disk that is full, and has space again |
//! | [`store_admin`] | the store checked, mended, and archives in and out of it |
//! | [`commands`] | commands as people and scripts use them: tokens, content from the network, shells and manuals |
//! | [`operator`] | the operator's commands with a gateway that runs |
//! | [`through_admin`] | the same and files and folders, while the gateway runs: over its admin listener |
//! | [`control`] | what is taken down: refused to clients and peers, neither fetched nor announced, also after a restart |
//! | [`front_caches`] | what is taken down, behind nginx as it is shipped |
//! | [`stores`] | a store of files and one in memory |
//! | [`uploads`] | files, forms, TARs and CARs over the admin listener; uploads in parts |
//! | [`no_peers`] | a gateway without peers, and how it says so |
//! | [`operations`] | peers, explanations, warming, purging, the log level, draining: on a node that runs |
//! | [`pinning`] | remote pins that Kubo drives; a pin that is killed and goes on; many blocks |
//! | [`kubo_rpc`] | Kubo's command line as a client of ours |
//! | [`metrics`] | the metrics reference, from what a node exposes |
//! | [`soak`] | much traffic for long, in `make test-long` only |

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

mod coalescing;
mod commands;
mod control;
mod dht;
mod encoded;
mod front_caches;
mod full;
mod gateways;
mod kubo_rpc;
mod malice;
mod metrics;
mod names;
mod no_peers;
mod operations;
mod operator;
mod pinning;
mod private;
mod publish;
mod reverse;
mod routing;
mod routing_v1;
mod soak;
mod store;
mod store_admin;
mod stores;
mod streaming;
mod through_admin;
mod tiers;
mod uploads;
mod websocket;
mod welcome;
