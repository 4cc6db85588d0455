//! Answers the look-ups of the other gateways of a site.
//!
//! Each stream has a task. It ends when the peer closes the stream, is no gateway of the site any more, or sends something
//! else than one look-up at a time; and with it ends what was fetched for the look-up.

use super::Lookup;
use super::behaviour::FromPeer;
use super::message::{LOOKUP_BYTES_MAX, Reply};
use super::metrics::{LookupResult, Metrics};
use crate::dag::framing::read_frame;
use crate::dag::server::streams::InboundStream;
use crate::known_members::KnownMembers;
use content::{Block, BlockSource, Cid, SourceError};
use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use libp2p::PeerId;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// The maximum number of look-ups in progress. Further ones are answered as busy.
const LOOKUPS_MAX: usize = 1024;
/// The bytes of blocks that wait until they have been written. Further replies wait.
const REPLY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The time for a look-up from its first byte to its last.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for writing a reply.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a stream may be idle: longer than the gateway that asks keeps it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// A look-up that takes longer is reported as waiting, and again after each [`WAITING_INTERVAL`].
const FIRST_WAITING: Duration = Duration::from_millis(20);
/// The time between two reports.
pub const WAITING_INTERVAL: Duration = Duration::from_secs(1);

/// Opens a source for the blocks below a root, which fetches what is not stored, and then sets the flag.
pub type OpenSession = dyn Fn(&Cid, Arc<AtomicBool>) -> Arc<dyn BlockSource> + Send + Sync;

/// What look-ups are answered with.
pub struct Answering {
    /// The blocks that are stored at this gateway or in the shared storage.
    pub stored: Arc<dyn BlockSource>,
    /// The same and the network. It asks no other gateway of the site.
    pub open_session: Box<OpenSession>,
}

/// The session of a root, which a stream keeps for its next look-ups: what is read ahead for it is dropped with it.
struct OpenedSession {
    root: Cid,
    source: Arc<dyn BlockSource>,
    has_fetched: Arc<AtomicBool>,
}

impl Answering {
    async fn answer(&self, lookup: &Lookup, opened: &mut Option<OpenedSession>) -> Reply {
        let block = |block: Block, fetched| Reply::Block { data: block.data().clone(), fetched };
        let Lookup { root, cid, may_fetch, ahead } = lookup;
        if let Some(stored) = self.stored.peek(cid) {
            return block(stored, false);
        }
        if !may_fetch {
            return match self.stored.get(cid).await {
                Ok(stored) => block(stored, false),
                Err(SourceError::NotFound { .. }) => Reply::NotStored,
                Err(_) => Reply::Failed,
            };
        }
        let OpenedSession { source, has_fetched, .. } = match opened.take() {
            Some(session) if session.root == *root => opened.insert(session),
            _ => {
                let has_fetched = Arc::<AtomicBool>::default();
                let source = (self.open_session)(root, Arc::clone(&has_fetched));
                opened.insert(OpenedSession { root: *root, source, has_fetched })
            }
        };
        has_fetched.store(false, Ordering::Relaxed);
        let fetched = match ahead {
            Some(ahead) => source.get_ahead(cid, ahead).await,
            None => source.get(cid).await,
        };
        match fetched {
            Ok(fetched) => block(fetched, has_fetched.load(Ordering::Relaxed)),
            // Without peers this gateway cannot say that there are no providers.
            Err(SourceError::Stalled { stall, .. }) if !stall.no_peers => Reply::NotFound(stall),
            Err(SourceError::Busy { .. } | SourceError::RateLimited { .. }) => Reply::Busy,
            Err(_) => Reply::Failed,
        }
    }
}

/// What the tasks of the streams share.
struct Server {
    answering: Answering,
    members: KnownMembers,
    lookups: Semaphore,
    reply_bytes: Semaphore,
    metrics: Metrics,
}

/// Serves the streams of a behaviour, all of gateways of the site, until the network ends.
pub async fn serve(
    mut inbound: mpsc::Receiver<FromPeer>,
    members: KnownMembers,
    answering: Answering,
    metrics: Metrics,
) {
    let [lookups, reply_bytes] = [LOOKUPS_MAX, REPLY_BYTES_MAX].map(Semaphore::new);
    let server = Arc::new(Server { answering, members, lookups, reply_bytes, metrics });
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            opened = inbound.recv() => match opened {
                Some((peer, inbound)) => _ = streams.spawn(Arc::clone(&server).serve_stream(peer, inbound)),
                None => return,
            },
            Some(_) = streams.join_next() => {}
        }
    }
}

impl Server {
    async fn serve_stream<S: AsyncRead + AsyncWrite + Unpin>(self: Arc<Self>, peer: PeerId, inbound: InboundStream<S>) {
        let InboundStream { stream, permit } = inbound;
        let (mut reader, mut writer) = stream.split();
        let mut session = None;
        loop {
            let frame = timeout(IDLE_TIMEOUT, read_frame(&mut reader, LOOKUP_BYTES_MAX, READ_TIMEOUT)).await;
            let Ok(Ok(Some(frame))) = frame else { break };
            // Its lease may have ended since the stream was opened.
            if !self.members.contains(&peer) {
                break;
            }
            let lookup = match Lookup::decode(frame) {
                Ok(lookup) => lookup,
                Err(error) => {
                    tracing::debug!(%peer, %error, "a gateway of the site sent no look-up");
                    break;
                }
            };
            if self.serve_lookup(&lookup, &mut session, &mut reader, &mut writer).await.is_err() {
                break;
            }
            if !lookup.may_fetch {
                session = None;
            }
        }
        drop(permit);
    }

    /// Answers a look-up.
    ///
    /// # Errors
    /// The stream was closed, takes nothing, or has something else than nothing.
    async fn serve_lookup(
        &self,
        lookup: &Lookup,
        session: &mut Option<OpenedSession>,
        reader: &mut (impl AsyncRead + Unpin),
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let Ok(_permit) = self.lookups.try_acquire() else {
            self.metrics.served(LookupResult::Busy);
            return write(writer, &Reply::Busy).await;
        };
        let _serving = Serving::start(&self.metrics);
        let answer = self.answering.answer(lookup, session);
        tokio::pin!(answer);
        let (mut byte, mut report) = ([0], Instant::now() + FIRST_WAITING);
        let reply = loop {
            tokio::select! {
                reply = &mut answer => break reply,
                // The next look-up may follow the reply only.
                _ = reader.read(&mut byte) => return Err(io::ErrorKind::ConnectionAborted.into()),
                () = sleep_until(report) => {
                    write(writer, &Reply::Waiting).await?;
                    report = Instant::now() + WAITING_INTERVAL;
                }
            }
        };
        self.metrics.served(reply.result());
        let bytes = if let Reply::Block { data, .. } = &reply { data.len() } else { 0 };
        let bytes = self.reply_bytes.acquire_many(u32::try_from(bytes).unwrap_or(u32::MAX));
        let _bytes = timeout(WRITE_TIMEOUT, bytes).await.map_err(|_| io::ErrorKind::TimedOut)?;
        write(writer, &reply).await
    }
}

/// A look-up in progress, as it is counted.
struct Serving<'a>(&'a Metrics);

impl<'a> Serving<'a> {
    fn start(metrics: &'a Metrics) -> Self {
        metrics.serving.inc();
        Self(metrics)
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.0.serving.dec();
    }
}

async fn write(writer: &mut (impl AsyncWrite + Unpin), reply: &Reply) -> io::Result<()> {
    let writing = async {
        for part in reply.encode() {
            writer.write_all(&part).await?;
        }
        writer.flush().await
    };
    timeout(WRITE_TIMEOUT, writing).await.map_err(|_| io::ErrorKind::TimedOut)?
}
