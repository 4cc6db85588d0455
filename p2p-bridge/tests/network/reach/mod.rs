//! Reachability in both directions: private networks, WebSocket, relays. Real sockets, all on loopback.
//!
//! | module | shows |
//! |---|---|
//! | [`no_peers`] | a node without peers, and one whose network is down |
//! | [`connecting`] | connections on request, and the information about peers |
//! | [`forged`] | addresses that peers must not make a node dial |
//! | [`private`] | nodes with the same swarm key connect only to each other |
//! | [`relays`] | nodes that are reached through a relay, and then directly |
//! | [`websocket`] | blocks over WebSocket, on public and on private networks |

mod connecting;
mod forged;
mod no_peers;
mod private;
mod relays;
mod support;
mod websocket;
