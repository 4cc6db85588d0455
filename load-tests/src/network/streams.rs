//! The smallest network behaviour for Bitswap: messages out, each on a stream of its own, and messages in from any
//! number of streams. libp2p's own behaviour for streams drops inbound streams when several are opened at once, as Kubo
//! does.

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures::io::BufReader;
use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use libp2p::core::upgrade::ReadyUpgrade;
use libp2p::swarm::handler::{ConnectionEvent, FullyNegotiatedInbound, FullyNegotiatedOutbound};
use libp2p::swarm::{
    ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm, NetworkBehaviour, NotifyHandler, Stream,
    SubstreamProtocol, THandlerInEvent, ToSwarm,
};
use libp2p::{PeerId, StreamProtocol};
use p2p_bridge::bitswap::message::Message;
use p2p_bridge::framing::MAX_MESSAGE_BYTES;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::ErrorKind;
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use unsigned_varint::{aio::read_usize, io::ReadError};

type Protocol = ReadyUpgrade<StreamProtocol>;

/// A message, or the error of a stream.
pub type Received = Result<Message>;

const BITSWAP: StreamProtocol = StreamProtocol::new("/ipfs/bitswap/1.2.0");
const READ_BYTES: usize = 64 << 10;

fn protocol<Info>(info: Info) -> SubstreamProtocol<Protocol, Info> {
    SubstreamProtocol::new(ReadyUpgrade::new(BITSWAP), info)
}

/// The behaviour, with the frames that are to be written.
pub struct Streams {
    received: mpsc::UnboundedSender<Received>,
    outgoing: VecDeque<ToSwarm<Infallible, Bytes>>,
}

impl Streams {
    /// Messages are sent to `received`.
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

    p2p_bridge::handler_of_each_connection!(|streams, _| streams.handler());

    fn on_swarm_event(&mut self, _: FromSwarm) {}

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: Infallible) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Infallible, THandlerInEvent<Self>>> {
        // The swarm is polled after every call of `write`: no waker is needed.
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
    loop {
        let length = match read_usize(&mut stream).await {
            Err(ReadError::Io(error)) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            length => length?,
        };
        ensure!(length <= MAX_MESSAGE_BYTES, "a message of {length} bytes");
        let mut frame = vec![0; length];
        stream.read_exact(&mut frame).await?;
        if received.send(Ok(Message::decode(frame.into())?)).is_err() {
            return Ok(());
        }
    }
}
