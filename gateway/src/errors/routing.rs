//! Why a request to the routing API is rejected.

use content::CidError;
use std::time::Duration;

/// A request to the routing API is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RoutingProblem {
    /// The key of a provider request is not a CID.
    #[error(transparent)]
    Cid(#[from] CidError),
    /// The text is not a peer ID.
    #[error("\"{text}\" is not a peer ID")]
    Peer {
        /// The text, shortened.
        text: String,
    },
    /// The text is not an IPNS key.
    #[error("\"{text}\" is not an IPNS key")]
    Name {
        /// The text, shortened.
        text: String,
    },
    /// The text is not a DHT key.
    #[error("\"{text}\" is neither a CID nor a peer ID")]
    Key {
        /// The text, shortened.
        text: String,
    },
    /// `Accept` names no media type that the endpoint has.
    #[error("the response is only available as {available}")]
    NotAcceptable {
        /// The available media types.
        available: &'static str,
    },
    /// The client, or all clients together, have reached the limit of concurrent searches.
    #[error("the limit of concurrent searches is reached")]
    Busy {
        /// After which time a retry is expected to succeed.
        retry_after: Duration,
    },
}
