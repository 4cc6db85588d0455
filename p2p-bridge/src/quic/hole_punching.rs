//! Hole punching as the listener: packets from the listening socket open a way through this node's NAT, until the
//! peer's own dial arrives through it ([DCUtR]).
//!
//! [DCUtR]: https://github.com/libp2p/specs/blob/master/relay/DCUtR.md

use super::Error;
use super::connection::HANDSHAKE_TIMEOUT;
use super::listener::Handshake;
use futures::channel::oneshot;
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

/// The length of a packet, which no protocol understands.
const PACKET_BYTES: usize = 64;
/// The shortest time between two packets. What is added is random, up to 255 ms, so that peers do not stay in step.
const GAP_MIN: Duration = Duration::from_millis(10);

/// The attempts under way, by the peer's address.
#[derive(Default)]
pub(super) struct HolePunches {
    waiting: HashMap<SocketAddr, oneshot::Sender<Handshake>>,
}

impl HolePunches {
    /// Begins an attempt.
    pub fn begin(&mut self, peer: SocketAddr) -> Result<oneshot::Receiver<Handshake>, Error> {
        self.waiting.retain(|_, attempt| !attempt.is_canceled());
        if self.waiting.contains_key(&peer) {
            return Err(Error::HolePunchInProgress(peer));
        }
        let (sender, receiver) = oneshot::channel();
        self.waiting.insert(peer, sender);
        Ok(receiver)
    }

    /// Hands an inbound connection to the attempt that waits for it. Returns it if none does.
    pub fn deliver(&mut self, peer: SocketAddr, handshake: Handshake) -> Option<Handshake> {
        match self.waiting.remove(&peer) {
            Some(attempt) => attempt.send(handshake).err(),
            None => Some(handshake),
        }
    }
}

/// Sends packets until the peer's connection arrives.
pub(super) async fn punch(
    socket: UdpSocket,
    peer: SocketAddr,
    arrived: oneshot::Receiver<Handshake>,
) -> Result<Handshake, Error> {
    let socket = tokio::net::UdpSocket::from_std(socket)?;
    tokio::select! {
        handshake = arrived => handshake.map_err(|_| Error::NoListener),
        failed = send_packets(&socket, peer) => Err(failed.into()),
        () = tokio::time::sleep(HANDSHAKE_TIMEOUT) => Err(Error::HandshakeTimedOut),
    }
}

/// Sends packets until that fails.
async fn send_packets(socket: &tokio::net::UdpSocket, peer: SocketAddr) -> io::Error {
    let random = rustls::crypto::aws_lc_rs::default_provider().secure_random;
    loop {
        let mut packet = [0; PACKET_BYTES];
        if random.fill(&mut packet).is_err() {
            return io::Error::other("no randomness");
        }
        if let Err(error) = socket.send_to(&packet, peer).await {
            return error;
        }
        tokio::time::sleep(GAP_MIN + Duration::from_millis(packet[0].into())).await;
    }
}
