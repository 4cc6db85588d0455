//! The servers of sites, PostgreSQL and S3, and a relay with faults before the latter.
#![allow(dead_code, reason = "the tests of `site` and `objects` use the rest")]

#[path = "../../../objects/tests/engines/relay.rs"]
pub mod relay;
#[path = "../../../objects/tests/engines/server.rs"]
pub mod server;
#[path = "../../../site/tests/database/support.rs"]
pub mod support;
