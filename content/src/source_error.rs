//! [`SourceError`]: why a block is not to be had.

use crate::block::BlockError;
use crate::cid::Cid;
use crate::verdict::Verdict;
use std::sync::Arc;
use std::time::Duration;

/// Why a source has no block to give.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// This source does not hold the block and asks nobody else (local tiers, offline mode).
    #[error("{cid} is not held here")]
    NotFound {
        /// The block that was asked for.
        cid: Cid,
    },
    /// The network made no progress for as long as the caller allows. Trying later may help.
    #[error("no block of {cid} arrived in time: {stall}")]
    Stalled {
        /// The block that was asked for.
        cid: Cid,
        /// How far the search got.
        stall: Stall,
    },
    /// As many requests as are allowed fetch from the network already. Trying later helps.
    #[error("too many requests are fetching from the network at the moment")]
    Busy,
    /// Whoever was asked sent bytes that are not the block.
    #[error("every copy of {cid} that was sent failed its check")]
    Corrupt {
        /// The block that was asked for.
        cid: Cid,
    },
    /// The policy does not let this content out.
    #[error("{cid} is not served here")]
    Refused {
        /// The block that was asked for.
        cid: Cid,
        /// What the policy said.
        verdict: Verdict,
    },
    /// The request has used up its processor budget ([`crate::work`]).
    #[error("this takes more than the {max} steps of work that one request may take")]
    TooMuchWork {
        /// The budget, in steps.
        max: u64,
    },
    /// The CID cannot be served by anyone: its hash function is not accepted.
    #[error(transparent)]
    Unacceptable(#[from] BlockError),
    /// A local store failed. The operator has to look.
    #[error("the local store failed: {0}")]
    Store(Arc<str>),
    /// The process is stopping, or the part that would answer is gone.
    #[error("shutting down")]
    Closed,
}

/// How far a search got before it stalled: what an error page tells its reader.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stall {
    /// How long nothing arrived.
    pub waited: Duration,
    /// Distinct providers that routing named.
    pub providers_found: u32,
    /// Peers that were asked for the block.
    pub peers_asked: u32,
    /// Peers that answered anything at all.
    pub peers_answered: u32,
    /// Nobody was there to ask: the node has no peers at all, so that the search was not begun.
    pub no_peers: bool,
}

impl std::fmt::Display for Stall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { waited, providers_found, peers_asked, peers_answered, no_peers } = self;
        if *no_peers {
            return f.write_str("this gateway has no peers that it could ask");
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
    /// What the search was doing when nothing more arrived.
    pub fn phase(&self) -> &'static str {
        match (self.providers_found, self.peers_asked, self.peers_answered) {
            (0, 0, _) => "looking for somebody who has it",
            (_, 0, _) => "connecting to those who have it",
            (_, _, 0) => "waiting for those who were asked to answer",
            _ => "waiting for the block itself",
        }
    }
}
