//! The servers of sites: PostgreSQL and S3.
#![allow(dead_code, reason = "the tests of `site` and `objects` use the rest")]

#[path = "../../../objects/tests/engines/server.rs"]
pub mod server;
#[path = "../../../site/tests/database/support.rs"]
pub mod support;
