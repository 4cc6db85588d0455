//! [`StreamUpgrade`]: a protocol whose streams are handed over as they are, if it is enabled.

use futures::future::{Ready, ready};
use libp2p::StreamProtocol;
use libp2p::core::upgrade::{InboundUpgrade, OutboundUpgrade, UpgradeInfo};
use libp2p::swarm::Stream;
use std::convert::Infallible;

/// A protocol, if it is enabled. Otherwise it is neither accepted nor announced.
#[derive(Debug, Clone)]
pub struct StreamUpgrade(Option<StreamProtocol>);

impl StreamUpgrade {
    /// The upgrade of streams to a protocol.
    pub fn new(protocol: StreamProtocol, enabled: bool) -> Self {
        Self(enabled.then_some(protocol))
    }
}

impl UpgradeInfo for StreamUpgrade {
    type Info = StreamProtocol;
    type InfoIter = std::option::IntoIter<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.clone().into_iter()
    }
}

impl InboundUpgrade<Stream> for StreamUpgrade {
    type Output = Stream;
    type Error = Infallible;
    type Future = Ready<Result<Stream, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, _: StreamProtocol) -> Self::Future {
        ready(Ok(stream))
    }
}

impl OutboundUpgrade<Stream> for StreamUpgrade {
    type Output = Stream;
    type Error = Infallible;
    type Future = Ready<Result<Stream, Infallible>>;

    fn upgrade_outbound(self, stream: Stream, _: StreamProtocol) -> Self::Future {
        ready(Ok(stream))
    }
}
