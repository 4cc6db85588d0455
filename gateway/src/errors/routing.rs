//! Why a request to the routing API is not answered.

use content::CidError;

/// Why a request to the API is not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RoutingProblem {
    /// What providers are asked for of is no CID.
    #[error(transparent)]
    Cid(#[from] CidError),
    /// What should be a peer is none.
    #[error("\"{text}\" is not a peer id")]
    Peer {
        /// What was sent, shortened.
        text: String,
    },
    /// What should be a name is none.
    #[error("\"{text}\" is not the key of an IPNS name")]
    Name {
        /// What was sent, shortened.
        text: String,
    },
    /// What should be a key of the DHT is none.
    #[error("\"{text}\" is neither a CID nor a peer id")]
    Key {
        /// What was sent, shortened.
        text: String,
    },
    /// There is no answer of the media types that are accepted.
    #[error("the answer can be had as {there_is} only")]
    NotAcceptable {
        /// What there is.
        there_is: &'static str,
    },
    /// The client, or all of them, search for as much as they may.
    #[error("too many searches are under way at the moment")]
    Busy,
}
