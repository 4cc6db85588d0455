//! [`Inbound`]: the part of a connection's handler that accepts streams, up to a limit. Further ones are reset.

use super::streams::InboundStream;
use libp2p::swarm::Stream;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// The maximum number of inbound streams of one connection.
pub const STREAMS_PER_CONNECTION: usize = 128;

/// The inbound streams of a connection, which the server has until they end.
#[derive(Debug)]
pub struct Inbound {
    permits: Arc<Semaphore>,
    permits_max: usize,
    accepted: VecDeque<InboundStream<Stream>>,
}

impl Default for Inbound {
    fn default() -> Self {
        Self::with_limit(STREAMS_PER_CONNECTION)
    }
}

impl Inbound {
    /// At most so many streams.
    pub fn with_limit(permits_max: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(permits_max)), permits_max, accepted: VecDeque::new() }
    }

    /// The peer has opened a stream.
    pub fn opened(&mut self, stream: Stream) {
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            self.accepted.push_back(InboundStream { stream, permit });
        }
    }

    /// The next stream for the server.
    pub fn accept(&mut self) -> Option<InboundStream<Stream>> {
        self.accepted.pop_front()
    }

    /// Whether the peer has open streams.
    pub fn is_busy(&self) -> bool {
        self.permits.available_permits() < self.permits_max
    }
}
