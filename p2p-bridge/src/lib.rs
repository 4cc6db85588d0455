//! The network tier: one swarm task, Kademlia, Bitswap and provider routing.
//!
//! Goals: the fastest honest answer to "who has this block", a full citizen of the DHT, and bounded memory whatever peers
//! do. Non-goals: caching (the `cache` crate) and deciding what may be served (a `Policy` behind the local source).
//!
//! How a miss flows:
//!
//! 1. [`Session::get`](content::BlockSource::get) registers a waiter in [`wants`] and tells the swarm task.
//! 2. [`bitswap::client`] decides whom to ask, and `task` searches for providers at the same moment.
//! 3. A connection's own task ([`bitswap::handler`]) reads, hashes and hands the block straight to the waiter.
//!
//! | module | concern |
//! |---|---|
//! | [`session`] | the network as a `BlockSource`, per DAG |
//! | [`wants`] | where waiters and received blocks meet |
//! | [`bitswap`] | the protocol: two state machines, a connection handler, the glue |
//! | [`http_source`] | trustless gateways, asked as peers are |
//! | [`names`] | what names stand for: IPNS records, DNSLinks, the operator's list |
//! | [`discovery`] | providers: remembered, named, dialled, or absent |
//! | [`no_peers`] | whether there is anybody to ask |
//! | [`lookups`], [`puts`] | searches for value records in the DHT, and putting them there |
//! | [`finders`] | searches for providers and peers on behalf of others |
//! | [`routing_v1`] | delegated routers, and what they and we exchange |
//! | [`connecting`], [`peers`] | connections that somebody asked for, and what is told of those that there are |
//! | `task` | the one task that owns the swarm |
//! | `swarm`, `transport` | protocols and limits, over TCP, QUIC and WebSocket |
//! | [`counted`] | what each transport carried |
//! | [`admission`] | who may be connected: budgets, bans, trimming |
//! | [`options`] | what all of it is started with |
//! | [`obeyed`] | the policy: what is neither fetched nor announced, nor told to others |
//! | [`dialable`], [`address_filter`] | the shapes of addresses that are known; nothing else is dialled |
//! | [`scope`], [`dht`] | public and local DHT, the wall between them, and what is kept for others |
//! | [`announced`] | which of our addresses others are told |
//! | [`reachability`], [`nat`] | whether peers can reach us, and detours for when they cannot |
//! | [`private_network`] | the key that keeps strangers out |
//! | [`durable`], [`epoch`] | files that are whole or not there; times as they are kept in them |
//! | [`essential`] | tasks that must not panic unnoticed |
//! | [`udp`] | room in the kernel for QUIC's bursts |
//! | [`tls`], [`retry_after`] | what HTTP clients encrypt with, and how long servers ask to be spared |
//! | [`providing`] | announcing what we hold, in sweeps |
//! | [`redial`], [`peerbook`], [`identity`] | peerings, remembered peers, the key |

pub mod address_filter;
pub mod admission;
pub mod announced;
pub mod bitswap;
pub mod connecting;
pub mod counted;
pub mod dht;
pub mod dialable;
pub mod discovery;
pub mod durable;
pub mod epoch;
pub mod essential;
pub mod finders;
pub mod http_source;
pub mod identity;
pub mod lookups;
pub mod metrics;
pub mod names;
pub mod nat;
pub mod no_peers;
pub mod obeyed;
pub mod options;
pub mod peerbook;
pub mod peers;
pub mod private_network;
pub mod providing;
pub mod puts;
pub mod reachability;
pub mod redial;
pub mod retry_after;
pub mod routing_v1;
pub mod scope;
pub mod session;
pub mod tls;
pub mod udp;
pub mod wants;

mod bridge;
mod swarm;
mod task;
mod transport;

pub use bridge::{Bridge, StartError};
pub use names::{Names, NamesError, NamesOptions};
pub use options::BridgeOptions;
pub use providing::KeySource;
pub use session::Session;
