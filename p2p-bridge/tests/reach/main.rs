//! Whom a node reaches, and who reaches it: private networks, WebSocket, relays. Real sockets, all on loopback.
//!
//! | module | shows |
//! |---|---|
//! | [`no_peers`] | a node without peers, and one whose network is gone |
//! | [`connecting`] | connections on request, and what is told of peers |
//! | [`forged`] | addresses that would lead where no peer may send a node |
//! | [`private`] | holders of one swarm key talk with each other and with nobody else |
//! | [`relays`] | nodes that are reached through a relay, and then without |
//! | [`websocket`] | blocks over WebSocket, on public and on private networks |

mod connecting;
mod forged;
mod no_peers;
mod private;
mod relays;
mod support;
mod websocket;
