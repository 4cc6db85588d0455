//! The outbound Kademlia streams of one connection: requests, announcements and their results.
//!
//! A stream is reused after a FIND_NODE response, for the next request or announcement to the same peer, which saves a
//! round trip. ADD_PROVIDER has no response, so the local half of the stream is closed after a batch, and the batch
//! counts as accepted when the peer closes the other half: then it has read everything. A Go peer that rejects a record
//! resets the stream instead.
//!
//! `libp2p-kad` handles inbound streams.

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

/// Maximum streams in use on one connection.
const STREAMS_MAX: usize = 4;
/// The timeout for opening a stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(6);
/// The timeout of a FIND_NODE request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);
/// The timeout for writing a piece of a batch, and then for the peer to close the stream.
const PIECE_TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of a batch written per piece.
const PIECE_BYTES: usize = 32 * 1024;
/// How long an idle stream is idle for reuse.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// A request ID that is unique over both scopes.
pub type Id = (Scope, RequestId);

/// A command to the handler.
#[derive(Debug, Clone)]
pub enum Command {
    /// Send a FIND_NODE request.
    Ask {
        /// The ID of the request.
        id: Id,
        /// The target key.
        target: Arc<[u8]>,
    },
    /// Announce keys with ADD_PROVIDER.
    Announce {
        /// The ID of the request.
        id: Id,
        /// The keys.
        batch: Batch,
        /// The node's provider field.
        provider: Arc<Provider>,
    },
}

impl Command {
    /// The ID of the request.
    pub fn id(&self) -> Id {
        match self {
            Self::Ask { id, .. } | Self::Announce { id, .. } => *id,
        }
    }

    fn scope(&self) -> Scope {
        self.id().0
    }
}

/// The result of a command.
#[derive(Debug)]
pub enum CommandOutcome {
    /// The closer peers in the response, with addresses of any scope.
    Answered(Vec<Peer>),
    /// The peer has read the whole batch.
    Announced,
    /// The command failed.
    Failed(io::Error),
}

/// Reported to the behaviour when a command has ended.
#[derive(Debug)]
pub struct Done {
    /// The ID of the request.
    pub id: Id,
    /// The result.
    pub outcome: CommandOutcome,
}

struct Ended {
    command: Command,
    result: io::Result<CommandOutcome>,
    /// The stream, if it can be reused.
    stream: Option<Stream>,
    /// Whether the stream was a reused one: the peer may have closed it meanwhile, so a failure is retried on a new
    /// stream.
    was_reused: bool,
}

struct IdleStream {
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
    idle: Vec<IdleStream>,
    done: VecDeque<Done>,
}

impl Handler {
    fn run(&mut self, command: Command, mut stream: Stream, was_reused: bool) {
        stream.ignore_for_keep_alive();
        self.running.push(execute(command, stream, was_reused).boxed());
    }

    fn take_idle(&mut self, scope: Scope) -> Option<Stream> {
        self.idle.retain(|idle| idle.since.elapsed() < IDLE_TIMEOUT);
        let index = self.idle.iter().position(|idle| idle.scope == scope)?;
        Some(self.idle.swap_remove(index).stream)
    }

    fn ended(&mut self, ended: Ended) {
        let Ended { command, result, stream, was_reused } = ended;
        let scope = command.scope();
        if let Some(stream) = stream
            && !self.idle.iter().any(|idle| idle.scope == scope)
        {
            self.idle.push(IdleStream { scope, stream, since: Instant::now() });
        }
        match result {
            Ok(outcome) => self.done.push_back(Done { id: command.id(), outcome }),
            Err(_) if was_reused => self.queue.push_front(command),
            Err(error) => self.failed(&command, error),
        }
    }

    fn failed(&mut self, command: &Command, error: io::Error) {
        self.done.push_back(Done { id: command.id(), outcome: CommandOutcome::Failed(error) });
    }
}

async fn execute(command: Command, mut stream: Stream, was_reused: bool) -> Ended {
    match &command {
        Command::Ask { target, .. } => {
            let result = ask(&mut stream, target).await;
            let stream = result.is_ok().then_some(stream);
            Ended { command, result, stream, was_reused }
        }
        Command::Announce { batch, provider, .. } => {
            let result = announce(&mut stream, batch, provider).await;
            Ended { command, result, stream: None, was_reused }
        }
    }
}

async fn ask(stream: &mut Stream, target: &[u8]) -> io::Result<CommandOutcome> {
    let exchange = async {
        stream.write_all(&message::find_node(target)).await?;
        stream.flush().await?;
        let answer = message::read(stream).await?;
        message::closer_peers(answer).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    };
    let peers = timeout(ANSWER_TIMEOUT, exchange).await.map_err(|_| io::ErrorKind::TimedOut)??;
    Ok(CommandOutcome::Answered(peers))
}

async fn announce(stream: &mut Stream, batch: &Batch, provider: &Provider) -> io::Result<CommandOutcome> {
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
        // Only the end of the stream can follow.
        stream.read(&mut [0]).await
    };
    timeout(PIECE_TIMEOUT, end).await.map_err(|_| io::ErrorKind::TimedOut)??;
    Ok(CommandOutcome::Announced)
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

    /// An idle stream does not keep the connection alive.
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
                if let Some(stream) = self.take_idle(command.scope()) {
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
