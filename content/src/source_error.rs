//! [`SourceError`]: why a [`crate::BlockSource`] returned no block.

use crate::block::BlockError;
use crate::cid::Cid;
use crate::verdict::Verdict;
use std::sync::Arc;
use std::time::Duration;

/// Why a source returned no block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The source does not have the block, and does not ask the network (local tiers, offline mode).
    #[error("{cid} is not stored locally")]
    NotFound {
        /// The requested block.
        cid: Cid,
    },
    /// The network made no progress for as long as the caller allows. A retry may succeed.
    #[error("the block {cid} did not arrive in time: {stall}")]
    Stalled {
        /// The requested block.
        cid: Cid,
        /// How far the search got.
        stall: Stall,
    },
    /// The limit of concurrent network fetches is reached. A retry with back-off succeeds.
    #[error("too many requests are fetching from the network; retry later")]
    Busy {
        /// After which time a retry is expected to succeed.
        retry_after: Duration,
    },
    /// The client exceeds its rate of network fetches.
    #[error("this client exceeds its rate of requests that fetch from the network (http.client_misses_per_second)")]
    RateLimited {
        /// The time after which the client may fetch again.
        retry_after: Duration,
    },
    /// Every peer that sent the block sent an invalid one.
    #[error("every received copy of {cid} was invalid: its hash did not match the CID")]
    Corrupt {
        /// The requested block.
        cid: Cid,
    },
    /// The policy denies this content.
    #[error("{cid} is not served here")]
    Refused {
        /// The requested block.
        cid: Cid,
        /// The decision of the policy.
        verdict: Verdict,
    },
    /// The policy denies this path; the blocks at its end may be served under other paths.
    #[error("/ipfs/{root}/{path} is not served here")]
    RefusedPath {
        /// The root of the path.
        root: Cid,
        /// The decoded path below the root.
        path: Arc<str>,
        /// The decision of the policy.
        verdict: Verdict,
    },
    /// The request has used up its CPU budget ([`crate::work`]).
    #[error("the request exceeds its limit of {max} steps of work")]
    TooMuchWork {
        /// The budget, in steps.
        max: u64,
    },
    /// The hash function of the CID is not accepted, so no source can serve it.
    #[error(transparent)]
    Unacceptable(#[from] BlockError),
    /// A local store failed. The operator has to repair it.
    #[error("the local store failed: {0}")]
    Store(Arc<str>),
    /// The process is shutting down.
    #[error("shutting down")]
    Closed,
}

impl SourceError {
    /// Whether the error concerns the limits of one client, so that a request of another one may succeed.
    pub fn is_of_client(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::RateLimited { .. })
    }

    /// The policy denies a path below a root, or the root itself if the path is empty.
    pub fn refused(root: &Cid, path: &str, verdict: Verdict) -> Self {
        match path {
            "" => Self::Refused { cid: *root, verdict },
            path => Self::RefusedPath { root: *root, path: path.into(), verdict },
        }
    }
}

/// The progress of a search before it stalled, for error pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stall {
    /// How long nothing was received.
    pub waited: Duration,
    /// Distinct providers that content routing returned.
    pub providers_found: u32,
    /// Peers to which a want was sent.
    pub peers_asked: u32,
    /// Peers that sent any answer.
    pub peers_answered: u32,
    /// The node has no connected peers, so the search did not begin.
    pub no_peers: bool,
}

impl std::fmt::Display for Stall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { waited, providers_found, peers_asked, peers_answered, no_peers } = self;
        if *no_peers {
            return f.write_str("this gateway has no peers");
        }
        write!(
            f,
            "{providers_found} providers found, {peers_asked} peers asked, {peers_answered} answered, \
             nothing for {:.1} s while {}",
            waited.as_secs_f32(),
            self.phase()
        )
    }
}

impl Stall {
    /// The phase of the search in which it stalled.
    pub fn phase(&self) -> &'static str {
        match (self.providers_found, self.peers_asked, self.peers_answered) {
            (0, 0, _) => "looking for providers",
            (_, 0, _) => "connecting to the providers",
            (_, _, 0) => "waiting for the peers to answer",
            _ => "waiting for the block",
        }
    }
}
