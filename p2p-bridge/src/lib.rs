//! The network tier: one swarm task, Kademlia, Bitswap and provider routing.
//!
//! Goals: find the providers of a block as fast as possible, take full part in the DHT, and bound memory whatever peers
//! send. Non-goals: caching (the `cache` crate) and deciding what may be served (a `Policy` behind the local source).
//!
//! The path of a cache miss:
//!
//! 1. [`Session::get`](content::BlockSource::get) registers a waiter in [`wants`] and tells the swarm task.
//! 2. [`bitswap::client`] decides which peers to ask; in parallel, `task` searches for providers.
//! 3. The connection's task ([`bitswap::handler`]) reads and verifies the block and hands it to the waiter.
//!
//! | module | concern |
//! |---|---|
//! | [`session`] | the network as a `BlockSource`, per DAG |
//! | [`wants`] | registry of waiters for blocks |
//! | [`bitswap`] | Bitswap: client and server state machines, connection handler, behaviour |
//! | [`stream_upgrade`] | protocols whose streams are handed over as they are |
//! | [`dag`] | the DAG protocol between two Causeways, client and server |
//! | [`known_members`], [`member_lookup`] | the gateways of a site, and look-ups between them |
//! | [`http_source`] | trustless gateways as block sources |
//! | [`names`] | name resolution: IPNS records, DNSLinks, the operator's list |
//! | [`discovery`] | provider discovery: cached providers, plans, dials, negative cache |
//! | [`observers`] | what happens in a session, for traces of requests |
//! | [`no_peers`] | detects that there are no peers to ask |
//! | [`lookups`], [`puts`] | value records in the DHT: GET_VALUE and PUT_VALUE |
//! | [`finders`] | searches for providers and peers on behalf of clients |
//! | [`routing_v1`] | delegated routing over HTTP (`/routing/v1`), client and formats |
//! | [`connecting`], [`peers`] | connections on request, and the state of connected peers |
//! | `task` | the task that owns the swarm |
//! | [`runtime`] | the threads that the network runs on, and their priority |
//! | `swarm`, `transport` | protocols and limits, over TCP, QUIC and WebSocket |
//! | [`tcp`], [`counted`] | TCP from the listening port if possible, and bandwidth by transport |
//! | [`admission`] | admission control: connection budgets, bans, trimming |
//! | [`options`] | options of the bridge |
//! | [`network_policy`] | the network policy: content that is neither fetched nor announced |
//! | [`dialable`], [`address_filter`] | accepted shapes of multiaddrs, and the filters that enforce them for dials |
//! | [`scope`], [`dht`] | the public and the local DHT, their separation, and the record stores |
//! | [`announced`] | which of the node's addresses are announced |
//! | [`reachability`], [`nat`] | whether peers can dial the node, and NAT traversal |
//! | [`private_network`] | pre-shared key of a private network |
//! | [`durable`], [`epoch`] | atomic writes of files, and timestamps in them |
//! | [`errors`] | messages of errors that wrap others |
//! | [`framing`], [`traffic`] | frames that peers send, read within memory budgets, and when a peer was asked and sent |
//! | [`fairness`] | fair shares of what is served to peers, over all protocols |
//! | [`essential`] | tasks whose panic ends the process |
//! | [`quic`], [`udp`] | QUIC between peers on quinn, and its sockets |
//! | [`peer_tls`] | TLS between peers, with AES where the processor has it |
//! | [`tls`], [`retry_after`] | TLS of HTTP clients, and the `Retry-After` header |
//! | [`metric_set`] | declarations of metrics, and of the enums of their labels |
//! | `behaviours` | methods that several network behaviours share |
//! | [`providing`] | announcing provider records, in sweeps |
//! | [`redial`], [`peerbook`], [`identity`] | reconnecting to peerings, the table of known peers, the key pair |
//! | [`back_off`], `smoothed_time`, `recent` | exponential back-off, estimates of durations, and bounded maps |

pub mod address_filter;
pub mod admission;
pub mod announced;
pub mod back_off;
pub mod bitswap;
pub mod connecting;
pub mod counted;
pub mod dag;
pub mod dht;
pub mod dialable;
pub mod discovery;
pub mod durable;
pub mod epoch;
pub mod errors;
pub mod essential;
pub mod fairness;
pub mod finders;
pub mod framing;
pub mod http_source;
pub mod identity;
pub mod known_members;
pub mod lookups;
pub mod member_lookup;
pub mod metric_set;
pub mod metrics;
pub mod names;
pub mod nat;
pub mod network_policy;
pub mod no_peers;
pub mod observers;
pub mod options;
pub mod peer_tls;
pub mod peerbook;
pub mod peers;
pub mod private_network;
pub mod providing;
pub mod puts;
pub mod quic;
pub mod reachability;
pub mod redial;
pub mod retry_after;
pub mod routing_v1;
pub mod runtime;
pub mod scope;
pub mod session;
pub mod stream_upgrade;
pub mod tcp;
pub mod tls;
pub mod traffic;
pub mod udp;
pub mod wants;

mod behaviours;
mod bridge;
mod recent;
mod smoothed_time;
mod swarm;
mod task;
mod transport;

pub use bridge::{Bridge, StartError};
pub use names::{Names, NamesError, NamesOptions};
pub use observers::SessionObserver;
pub use options::BridgeOptions;
pub use providing::KeySource;
pub use session::Session;
