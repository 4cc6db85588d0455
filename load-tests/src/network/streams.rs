//! The smallest network behaviour that Bitswap goes through: frames out, each on a stream of its own, and frames in from
//! any number of streams.

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures::io::BufReader;
use futures::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::ReadyUpgrade;
use libp2p::swarm::handler::{ConnectionEvent, FullyNegotiatedInbound, FullyNegotiatedOutbound};
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm, NetworkBehaviour,
    NotifyHandler, Stream, SubstreamProtocol, THandlerInEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId, StreamProtocol};
use p2p_bridge::bitswap::message::MAX_MESSAGE_BYTES;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

type Protocol = ReadyUpgrade<StreamProtocol>;

/// A frame without its length, or why there are no more on some stream.
pub type Received = Result<Bytes>;

const BITSWAP: StreamProtocol = StreamProtocol::new("/ipfs/bitswap/1.2.0");
const READ_BYTES: usize = 64 << 10;

fn protocol<Info>(info: Info) -> SubstreamProtocol<Protocol, Info> {
    SubstreamProtocol::new(ReadyUpgrade::new(BITSWAP), info)
}

/// The behaviour: frames that are to be written wait here for the swarm's turn.
pub struct Streams {
    received: mpsc::UnboundedSender<Received>,
    outgoing: VecDeque<ToSwarm<Infallible, Bytes>>,
}

impl Streams {
    /// What comes in goes to `received`.
    pub fn new(received: mpsc::UnboundedSender<Received>) -> Self {
        Self { received, outgoing: VecDeque::new() }
    }

    /// Writes a frame, its length included, to a connected peer.
    pub fn write(&mut self, peer_id: PeerId, frame: Bytes) {
        self.outgoing.push_back(ToSwarm::NotifyHandler { peer_id, handler: NotifyHandler::Any, event: frame });
    }

    fn handler(&self) -> Handler {
        Handler { received: self.received.clone(), outgoing: VecDeque::new() }
    }
}

impl NetworkBehaviour for Streams {
    type ConnectionHandler = Handler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<Handler, ConnectionDenied> {
        Ok(self.handler())
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<Handler, ConnectionDenied> {
        Ok(self.handler())
    }

    fn on_swarm_event(&mut self, _: FromSwarm) {}

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: Infallible) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Infallible, THandlerInEvent<Self>>> {
        // Whoever writes also drives the swarm, which polls after every call: no waker is needed.
        self.outgoing.pop_front().map_or(Poll::Pending, Poll::Ready)
    }
}

/// One connection's streams. Each is read and written by a task of its own.
pub struct Handler {
    received: mpsc::UnboundedSender<Received>,
    outgoing: VecDeque<Bytes>,
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Bytes;
    type ToBehaviour = Infallible;
    type InboundProtocol = Protocol;
    type OutboundProtocol = Protocol;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = Bytes;

    fn listen_protocol(&self) -> SubstreamProtocol<Protocol> {
        protocol(())
    }

    fn connection_keep_alive(&self) -> bool {
        true
    }

    fn on_behaviour_event(&mut self, frame: Bytes) {
        self.outgoing.push_back(frame);
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<'_, Protocol, Protocol, (), Bytes>) {
        let received = self.received.clone();
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol: stream, .. }) => {
                tokio::spawn(async move {
                    if let Err(error) = read(stream, &received).await {
                        let _ = received.send(Err(error));
                    }
                });
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol: stream, info }) => {
                tokio::spawn(async move {
                    if let Err(error) = write(stream, &info).await {
                        let _ = received.send(Err(error));
                    }
                });
            }
            ConnectionEvent::DialUpgradeError(error) => {
                let _ = received.send(Err(anyhow::anyhow!("no Bitswap stream: {}", error.error)));
            }
            _ => {}
        }
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ConnectionHandlerEvent<Protocol, Bytes, Infallible>> {
        let frame = self.outgoing.pop_front();
        let request = |frame| ConnectionHandlerEvent::OutboundSubstreamRequest { protocol: protocol(frame) };
        frame.map_or(Poll::Pending, |frame| Poll::Ready(request(frame)))
    }
}

async fn write(mut stream: Stream, frame: &Bytes) -> Result<()> {
    stream.write_all(frame).await?;
    Ok(stream.close().await?)
}

async fn read(stream: Stream, received: &mpsc::UnboundedSender<Received>) -> Result<()> {
    let mut stream = BufReader::with_capacity(READ_BYTES, stream);
    while let Some(length) = read_length(&mut stream).await? {
        ensure!(length <= MAX_MESSAGE_BYTES, "a message of {length} bytes");
        let mut frame = vec![0; length];
        stream.read_exact(&mut frame).await?;
        if received.send(Ok(frame.into())).is_err() {
            break;
        }
    }
    Ok(())
}

/// An unsigned varint of up to four bytes, or the end of the stream.
async fn read_length(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<usize>> {
    let mut length = 0;
    for shift in [0, 7, 14, 21] {
        let mut byte = [0];
        if stream.read(&mut byte).await? == 0 {
            ensure!(shift == 0, "the stream ends in the length of a message");
            return Ok(None);
        }
        length |= usize::from(byte[0] & 0x7f) << shift;
        if byte[0] & 0x80 == 0 {
            return Ok(Some(length));
        }
    }
    anyhow::bail!("the length of a message is too long")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lengths_are_read_and_broken_ones_refused() {
        let table: [(&[u8], Option<Option<usize>>); 6] = [
            (&[], Some(None)),
            (&[0], Some(Some(0))),
            (&[0x7f, 9], Some(Some(127))),
            (&[0xac, 0x02], Some(Some(300))),
            (&[0x80], None),
            (&[0xff, 0xff, 0xff, 0xff, 1], None),
        ];
        for (bytes, expected) in table {
            let read = read_length(&mut futures::io::Cursor::new(bytes)).await;
            assert_eq!(read.ok(), expected, "{bytes:?}");
        }
    }
}
