//! Complete nodes over real sockets on loopback, as one program: each program of tests compiles the network once more.
//!
//! | module | shows |
//! |---|---|
//! | [`dag`] | DAG transfers, and what is fetched by Bitswap when they cannot bring it |
//! | [`gateways`] | trustless gateways as sources |
//! | [`providing`] | announcing to many DHT servers |
//! | [`publish`] | names that one node publishes and another resolves |
//! | [`reach`] | private networks, WebSocket, relays, and addresses that must not be dialled |
//! | [`routing`] | providers, peers and closest peers, and content that is found through routers |
//!
//! The network with churn is a program of its own ([`churn.rs`](../churn.rs)): it keeps all processors busy.

mod dag;
mod gateways;
mod providing;
mod publish;
mod reach;
mod routing;
