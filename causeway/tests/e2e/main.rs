//! End to end: the real binary, a real Kubo (`make kubo` builds it), real HTTP; everything on loopback.
//!
//! | module | shows |
//! |---|---|
//! | [`welcome`] | the welcome page of a first start, without any network |
//! | [`tiers`] | content that only Kubo has, served from the network, then from RAM, then from disk |
//! | [`routing`] | content found by its provider record in the DHT |
//! | [`routing_v1`] | delegated routing, as client and server |
//! | [`gateways`] | content over HTTP, from Causeway and from Kubo, and from a misbehaving gateway |
//! | [`dht`] | Causeway as the DHT server of Kubo nodes, also after a restart |
//! | [`store`] | files and folders added, listed and read on the command line, compared with Kubo's commands |
//! | [`names`] | IPNS names that Kubo published |
//! | [`publish`] | names that Causeway published, resolved by Kubo; exchange of keys |
//! | [`reverse`] | Kubo reading what only Causeway has |
//! | [`private`] | a private network: blocks in both directions, and no connections without the key |
//! | [`websocket`] | blocks in both directions over WebSocket |
//! | [`streaming`] | a 1 GiB file in little memory, for fast, slow and disconnecting readers |
//! | [`coalescing`] | a hundred readers, one fetch |
//! | [`prefetch`] | what a page loads, stored before it is requested |
//! | [`encoded`] | text that is stored compressed, read by curl and by zstd |
//! | [`dag`] | DAG transfers between two nodes, with Kubo beside them, and from misbehaving peers |
//! | [`forged`] | addresses of peers and clients that lead to a local service |
//! | [`malice`] | peers that send invalid blocks, oversized messages, garbage or nothing |
//! | [`flood`] | cache hits during a flood of misses |
//! | [`full`] | a full disk, and recovery from it |
//! | [`store_admin`] | check and repair of the store; import and export of archives |
//! | [`commands`] | commands: tokens, content from the network, pins, completions and manual pages |
//! | [`operator`] | the operator's commands with a running gateway |
//! | [`through_admin`] | commands of the store over the admin listener of a running gateway |
//! | [`control`] | take-downs: content is withheld from clients and peers, neither fetched nor provided |
//! | [`behind_caddy`] | Caddy in front: origins, headers, ranges, truncated responses |
//! | [`front_caches`] | purging of take-downs from nginx and Varnish |
//! | [`stores`] | the flat store, and the memory store |
//! | [`uploads`] | files, forms, TARs and CARs over the admin listener; resumable uploads |
//! | [`no_peers`] | a gateway without peers, and how it reports that |
//! | [`operations`] | peers, explanations, warming, purging, the log level, draining of a running node |
//! | [`pinning`] | remote pins of Kubo; pins that resume after a kill; many blocks |
//! | [`https`] | HTTPS and HTTP/2, asked by curl, and certificates that are renewed |
//! | [`acme`] | certificates by ACME, from a real authority |
//! | [`listening`] | Unix sockets behind nginx, the PROXY protocol of HAProxy, notifications to systemd |
//! | [`restart`], [`restart_tls`] | restarts under load, over each version of HTTP: sockets of systemd, readiness first |
//! | [`kubo_rpc`] | Kubo's command line as a client of the RPC |
//! | [`metrics`] | the metrics reference, generated from a node |
//! | [`access_log`] | the access log in each format, read by `causeway report` and GoAccess; rotation; a full disk |
//! | [`site`] | several gateways with one database and one storage, also behind HAProxy and nginx |
//! | [`site_faults`] | a site whose gateways, database and storage fail while clients change its pins |
//! | [`site_names`] | IPNS keys and published names that the gateways of a site share |
//! | [`site_operations`] | an operator's commands on a site: reconciling, moving in and out, restoring a backup |
//! | [`soak`] | a soak test, in `make test-long` only |

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

mod access_log;
mod acme;
mod behind_caddy;
mod coalescing;
mod commands;
mod console;
mod control;
mod dag;
mod dht;
mod encoded;
mod engines;
mod flood;
mod forged;
mod front_caches;
mod full;
mod gateways;
mod https;
mod kubo_rpc;
mod listening;
mod malice;
mod metrics;
mod names;
mod no_peers;
mod operations;
mod operator;
mod packed;
mod pinning;
mod prefetch;
mod private;
mod publish;
mod restart;
mod restart_tls;
mod reverse;
mod routing;
mod routing_v1;
mod site;
mod site_faults;
mod site_names;
mod site_operations;
mod soak;
mod store;
mod store_admin;
mod stores;
mod streaming;
mod through_admin;
mod tiers;
mod traces;
mod uploads;
mod websocket;
mod welcome;
