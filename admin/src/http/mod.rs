//! The code that all routes of the admin API share: authentication, the audit log, parameters, answers, and the OpenAPI
//! description.
//!
//! | module | concern |
//! |---|---|
//! | [`guard`] | middleware: authentication, authorisation and the audit log |
//! | [`extract`] | extractors: the authenticated client, and the audit context |
//! | [`parameters`] | the query, and JSON bodies |
//! | [`openapi`] | the OpenAPI description, from which the guard takes the required scopes |
//! | [`answer`] | JSON answers, and errors in the format of each API |
//! | [`error_responses`] | error responses that many operations list in the description |
//! | [`method_override`] | `X-HTTP-Method-Override` |
//! | [`long_running`] | concurrency limits, cancellation safety and JSON lines of long-running operations |

pub mod answer;
pub mod error_responses;
pub mod extract;
pub mod guard;
pub mod long_running;
pub mod method_override;
pub mod openapi;
pub mod parameters;

use self::openapi::Permissions;
use bytes::Bytes;
use prometheus_client::registry::Registry;
use services::access::Authenticator;
use services::audit::AuditLog;
use services::health::Health;
use std::sync::Arc;

/// The shared state of the listener.
pub struct ListenerState {
    /// Every metric of the process.
    pub registry: Registry,
    /// The health of the process.
    pub health: Arc<Health>,
    /// The authenticator of bearer tokens.
    pub authenticator: Authenticator,
    /// The audit log.
    pub audit: Arc<AuditLog>,
    /// The scope that each operation requires.
    pub permissions: Permissions,
    /// The OpenAPI description, as JSON.
    pub document: Bytes,
}
