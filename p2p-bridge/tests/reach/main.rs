//! Whom a node reaches, and who reaches it: private networks, WebSocket, relays. Real sockets, all on loopback.
//!
//! | module | shows |
//! |---|---|
//! | [`connecting`] | connections on request, and what is told of peers |
//! | [`private`] | holders of one swarm key talk with each other and with nobody else |
//! | [`relays`] | nodes that are reached through a relay, and then without |
//! | [`websocket`] | blocks over WebSocket, on public and on private networks |

mod connecting;
mod private;
mod relays;
mod support;
mod websocket;
