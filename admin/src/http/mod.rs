//! What all operations of the admin API have in common: authentication, the audit log, parameters, answers, and the description.
//!
//! | module | concern |
//! |---|---|
//! | [`guard`] | authentication and authorisation, before any handler runs |
//! | [`extract`] | what handlers take of a request besides its body |
//! | [`parameters`] | the query, and a body of JSON |
//! | [`openapi`] | the description of the API, which the routes and the guard follow |
//! | [`answer`], [`refusals`] | JSON, and words for what goes wrong; what many operations refuse |
//! | [`method_override`] | POST requests that stand for another method |
//! | [`long`] | what operations that take long have in common |

pub mod answer;
pub mod extract;
pub mod guard;
pub mod long;
pub mod method_override;
pub mod openapi;
pub mod parameters;
pub mod refusals;

use self::openapi::Permissions;
use bytes::Bytes;
use prometheus_client::registry::Registry;
use services::access::Authenticator;
use services::audit::AuditLog;
use services::health::Health;
use std::sync::Arc;

/// What every request of the listener meets.
pub struct Shared {
    /// Every metric of the process.
    pub registry: Registry,
    /// How far along its life the process is.
    pub health: Arc<Health>,
    /// Who may ask.
    pub authenticator: Authenticator,
    /// Where changes are written down.
    pub audit: Arc<AuditLog>,
    /// What each operation needs.
    pub permissions: Permissions,
    /// The description of the API, as JSON.
    pub document: Bytes,
}
