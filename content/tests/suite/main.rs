//! Tests of `content` through its public interface: tables, properties, and archives made by Kubo.

#![allow(clippy::result_large_err, reason = "as in the crate itself")]

mod archives;
mod dags;
mod directories;
mod documents;
mod files;
mod fixtures;
mod read_ahead;
mod robustness;
mod scopes;
mod support;
mod tars;
mod work;
