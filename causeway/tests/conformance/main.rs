//! What the gateway specifications (<https://specs.ipfs.tech/http-gateways/>) demand, as tables of requests and answers.
//!
//! The content is that of the official conformance suite (`tests/fixtures/conformance`), held by a real Kubo: it reaches
//! Causeway over Bitswap, and IPNS records over the DHT, as in life.
//!
//! | module | its tables |
//! |---|---|
//! | [`unixfs`] | files, ranges, listings, symlinks, caching |
//! | [`raw`] | single blocks |
//! | [`dag`] | JSON and CBOR, with links and without |
//! | [`tar`], [`car`] | archives |
//! | [`ipns`] | names, and their records |
//! | [`subdomain`], [`dnslink`] | origins: an own host for each root, and websites under their own domain |
//! | [`redirects`] | the `_redirects` files of websites |
//! | [`proxy`] | the gateway as an HTTP proxy |
//! | [`cors`], [`errors`] | what all answers have in common, good ones and bad ones |
//! | [`nginx`] | what becomes of answers in a cache that speaks HTTP/1.0 |
//! | [`restart`] | the same answers without any network |
//!
//! [`case`] is how a table is written and judged, [`socket`] how a request is sent, [`world`] whom it is sent to, and
//! [`fixtures`] what is asked for.
//!
//! `CONFORMANCE_URL=http://127.0.0.1:PORT` sends the tables to a gateway that runs already and has the fixtures, in order
//! to test the tables.

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
mod ipns;
mod nginx;
mod proxy;
mod raw;
mod redirects;
mod restart;
mod socket;
mod subdomain;
mod tar;
mod unixfs;
mod world;
