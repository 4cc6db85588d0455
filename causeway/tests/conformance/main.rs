//! Conformance with the gateway specifications (<https://specs.ipfs.tech/http-gateways/>), as tables of requests and
//! answers.
//!
//! The content is that of the official conformance suite (`tests/fixtures/conformance`), stored by a real Kubo: it
//! reaches Causeway over Bitswap, and IPNS records over the DHT.
//!
//! | module | its tables |
//! |---|---|
//! | [`unixfs`] | files, ranges, listings, symlinks, caching |
//! | [`raw`] | single blocks |
//! | [`dag`] | JSON and CBOR, with links and without |
//! | [`tar`], [`car`] | archives |
//! | [`ipns`] | names, and their records |
//! | [`subdomain`], [`dnslink`] | origin isolation on subdomains, and websites under their own domain |
//! | [`redirects`] | the `_redirects` files of websites |
//! | [`proxy`] | the gateway as an HTTP proxy |
//! | [`cors`], [`errors`] | CORS, and error responses |
//! | [`nginx`] | answers in a cache that uses HTTP/1.0, and what nginx decides in the place of the gateway |
//! | [`restart`] | the same answers without any network |
//! | [`official`] | the official suite itself |
//!
//! Each table is sent over HTTP/1.1, over TLS with HTTP/1.1 ([`https`]) and HTTP/2 ([`http2`]), over HTTP/3
//! ([`http3`]), and over TLS and HTTP/2 to an nginx with the shipped configuration (`deploy/nginx`) in front of the
//! gateway. [`case`] runs tables, [`socket`] sends requests, [`world`] starts the servers, and [`fixtures`] has the
//! content.
//!
//! `CONFORMANCE_URL=http://127.0.0.1:PORT` sends the tables to a running gateway that has the fixtures, in order
//! to test the tables, over HTTP/1.1 only.

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

mod car;
mod case;
mod cors;
mod dag;
mod dnslink;
mod errors;
mod fixtures;
mod http2;
mod http3;
mod https;
mod ipns;
mod nginx;
mod official;
mod proxy;
mod raw;
mod redirects;
mod restart;
mod socket;
mod subdomain;
mod tar;
mod unixfs;
mod world;
