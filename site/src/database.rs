//! The database of a site.
//!
//! ```text
//! services ─┬─ MetadataLog ──→ DatabaseLog ────┬─→ ReconnectingSession ──→ Database ──→ PostgreSQL
//!           └─ Claims ───────→ DatabaseClaims ─┤                         hosts, TLS
//! blocks ───── BlockIndex ───→ DatabaseIndex ──┤
//! uploads ─────────────────→ DatabaseUploads ──┘
//! ```
//!
//! | module | concern |
//! |---|---|
//! | `address` | the URL of the database, and TLS to it |
//! | `claims` | [`DatabaseClaims`]: which gateway works on which root |
//! | `error` | [`DatabaseError`]: what the operator can do |
//! | `index` | [`DatabaseIndex`]: the index of the blocks in the shared storage |
//! | `locator` | look-ups of blocks, those of many callers in one statement |
//! | `log` | [`DatabaseLog`]: a log of changes of metadata records |
//! | `members` | [`DatabaseMembers`]: which gateways are members of the site |
//! | `reconnecting` | one session that is established again when it was lost |
//! | `schema` | the tables, and how older ones become current |
//! | `server` | [`ServerState`]: what a gateway checks of the server when it starts |
//! | `session` | a connection with its settings, and its notifications |
//! | `uploads` | [`DatabaseUploads`]: resumable uploads, and the objects with their bytes |

mod address;
mod claims;
mod error;
mod index;
mod locator;
mod log;
mod members;
mod reconnecting;
mod schema;
mod server;
mod session;
mod uploads;

pub use address::{Database, DatabaseOptions};
pub use claims::{ClaimOptions, DatabaseClaims};
pub use error::DatabaseError;
pub use index::{DatabaseIndex, IndexOptions};
pub use log::{DatabaseLog, LogKind, LogOptions};
pub use members::{DatabaseMembers, Identity, Member, Renewed};
pub use server::ServerState;
pub use uploads::{CreatedUpload, DatabaseUploads, NewPart, PartRow, UploadRow};

use std::time::Duration;
use tokio_postgres::types::{ToSql, Type};

/// A parameter of a statement, with its type.
type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// A duration as statements take it.
fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// A random number, which names an entry of the log, or a process.
///
/// # Errors
/// [`DatabaseError::Settings`] if the system has none.
fn random_number() -> Result<u64, DatabaseError> {
    getrandom::u64().map_err(|error| DatabaseError::Settings(error.to_string().into()))
}
