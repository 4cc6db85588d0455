//! The outgoing Kademlia streams of one connection: questions and announcements, and what became of each.
//!
//! A stream that was asked a question is kept for the next one, or for an announcement: to the same peer that saves a round
//! trip. ADD_PROVIDER has no answer, so a batch ends with our half of the stream closed, and counts as taken when the peer
//! closes the other half: it has then read everything. A Go peer that refuses a record resets the stream instead.
//!
//! Incoming streams are the business of `libp2p-kad`.

use super::desk::RequestId;
use super::keys::Batch;
use super::message::{self, Provider};
use super::walk::Peer;
use crate::scope::Scope;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{AsyncReadExt, AsyncWriteExt, FutureExt, StreamExt};
use libp2p::StreamProtocol;
use libp2p::core::upgrade::{DeniedUpgrade, ReadyUpgrade};
use libp2p::swarm::handler::{
    ConnectionEvent, ConnectionHandler, ConnectionHandlerEvent, DialUpgradeError, FullyNegotiatedOutbound,
};
use libp2p::swarm::{Stream, SubstreamProtocol};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Streams in use at once on one connection.
const STREAMS_MAX: usize = 4;
/// How long a stream may take to open.
const OPEN_TIMEOUT: Duration = Duration::from_secs(6);
/// How long a question may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);
/// How long a piece of a batch may take, and then the peer to close the stream.
const PIECE_TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of a batch that are written at a time.
const PIECE_BYTES: usize = 32 * 1024;
/// How long a stream is kept for the next use.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// Names a request over both scopes.
pub type Id = (Scope, RequestId);

/// What a peer is to be asked or told.
#[derive(Debug, Clone)]
pub enum Command {
    /// Which peers are close to a target?
    Ask {
        /// Names it.
        id: Id,
        /// What about.
        target: Arc<[u8]>,
    },
    /// We provide these.
    Announce {
        /// Names it.
        id: Id,
        /// What.
        batch: Batch,
        /// Who we are.
        provider: Arc<Provider>,
    },
}

impl Command {
    /// Which request it is.
    pub fn id(&self) -> Id {
        match self {
            Self::Ask { id, .. } | Self::Announce { id, .. } => *id,
        }
    }

    fn scope(&self) -> Scope {
        self.id().0
    }
}

/// What became of a command.
#[derive(Debug)]
pub enum Outcome {
    /// The peer named these, with addresses of any scope.
    Answered(Vec<Peer>),
    /// The peer has read all of a batch.
    Announced,
    /// Neither.
    Failed(io::Error),
}

/// Told to the behaviour when a command has ended.
#[derive(Debug)]
pub struct Done {
    /// Which.
    pub id: Id,
    /// How.
    pub outcome: Outcome,
}

struct Ended {
    command: Command,
    result: io::Result<Outcome>,
    /// The stream, if it may be used again.
    stream: Option<Stream>,
    /// Whether the stream had been kept: the peer may have closed it, which says nothing about the command.
    was_kept: bool,
}

struct Kept {
    scope: Scope,
    stream: Stream,
    since: Instant,
}

/// The connection handler. See the module's documentation.
#[derive(Default)]
pub struct Handler {
    queue: VecDeque<Command>,
    opening: usize,
    running: FuturesUnordered<BoxFuture<'static, Ended>>,
    kept: Vec<Kept>,
    done: VecDeque<Done>,
}

impl Handler {
    fn run(&mut self, command: Command, mut stream: Stream, was_kept: bool) {
        stream.ignore_for_keep_alive();
        self.running.push(carry_out(command, stream, was_kept).boxed());
    }

    fn take_kept(&mut self, scope: Scope) -> Option<Stream> {
        self.kept.retain(|kept| kept.since.elapsed() < KEPT_FOR);
        let index = self.kept.iter().position(|kept| kept.scope == scope)?;
        Some(self.kept.swap_remove(index).stream)
    }

    fn ended(&mut self, ended: Ended) {
        let Ended { command, result, stream, was_kept } = ended;
        let scope = command.scope();
        if let Some(stream) = stream
            && !self.kept.iter().any(|kept| kept.scope == scope)
        {
            self.kept.push(Kept { scope, stream, since: Instant::now() });
        }
        match result {
            Ok(outcome) => self.done.push_back(Done { id: command.id(), outcome }),
            Err(_) if was_kept => self.queue.push_front(command),
            Err(error) => self.failed(&command, error),
        }
    }

    fn failed(&mut self, command: &Command, error: io::Error) {
        self.done.push_back(Done { id: command.id(), outcome: Outcome::Failed(error) });
    }
}

async fn carry_out(command: Command, mut stream: Stream, was_kept: bool) -> Ended {
    match &command {
        Command::Ask { target, .. } => {
            let result = ask(&mut stream, target).await;
            let stream = result.is_ok().then_some(stream);
            Ended { command, result, stream, was_kept }
        }
        Command::Announce { batch, provider, .. } => {
            let result = announce(&mut stream, batch, provider).await;
            Ended { command, result, stream: None, was_kept }
        }
    }
}

async fn ask(stream: &mut Stream, target: &[u8]) -> io::Result<Outcome> {
    let exchange = async {
        stream.write_all(&message::find_node(target)).await?;
        stream.flush().await?;
        let answer = message::read(stream).await?;
        message::closer_peers(answer).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    };
    let peers = timeout(ANSWER_TIMEOUT, exchange).await.map_err(|_| io::ErrorKind::TimedOut)??;
    Ok(Outcome::Answered(peers))
}

async fn announce(stream: &mut Stream, batch: &Batch, provider: &Provider) -> io::Result<Outcome> {
    let mut piece = Vec::new();
    let mut keys = batch.iter().peekable();
    while keys.peek().is_some() {
        piece.clear();
        while piece.len() < PIECE_BYTES
            && let Some(key) = keys.next()
        {
            provider.add_provider(key, &mut piece);
        }
        timeout(PIECE_TIMEOUT, stream.write_all(&piece)).await.map_err(|_| io::ErrorKind::TimedOut)??;
    }
    let end = async {
        stream.close().await?;
        // Nothing is to come but the end.
        stream.read(&mut [0]).await
    };
    timeout(PIECE_TIMEOUT, end).await.map_err(|_| io::ErrorKind::TimedOut)??;
    Ok(Outcome::Announced)
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Command;
    type ToBehaviour = Done;
    type InboundProtocol = DeniedUpgrade;
    type OutboundProtocol = ReadyUpgrade<StreamProtocol>;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = Command;

    fn listen_protocol(&self) -> SubstreamProtocol<DeniedUpgrade> {
        SubstreamProtocol::new(DeniedUpgrade, ())
    }

    /// A kept stream is a convenience, and no reason to keep a connection.
    fn connection_keep_alive(&self) -> bool {
        self.opening > 0 || !self.queue.is_empty() || !self.running.is_empty()
    }

    fn on_behaviour_event(&mut self, command: Command) {
        self.queue.push_back(command);
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<'_, DeniedUpgrade, ReadyUpgrade<StreamProtocol>, (), Command>,
    ) {
        match event {
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol, info }) => {
                self.opening -= 1;
                self.run(info, protocol, false);
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, error }) => {
                self.opening -= 1;
                self.failed(&info, io::Error::other(error.to_string()));
            }
            _ => {}
        }
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<ReadyUpgrade<StreamProtocol>, Command, Done>> {
        loop {
            if let Some(done) = self.done.pop_front() {
                return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(done));
            }
            if self.opening + self.running.len() < STREAMS_MAX
                && let Some(command) = self.queue.pop_front()
            {
                if let Some(stream) = self.take_kept(command.scope()) {
                    self.run(command, stream, true);
                    continue;
                }
                self.opening += 1;
                let upgrade = ReadyUpgrade::new(command.scope().protocol());
                let protocol = SubstreamProtocol::new(upgrade, command).with_timeout(OPEN_TIMEOUT);
                return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
            }
            match self.running.poll_next_unpin(cx) {
                Poll::Ready(Some(ended)) => self.ended(ended),
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }
}
