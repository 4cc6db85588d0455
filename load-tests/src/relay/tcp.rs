//! TCP connections through a relay.
//!
//! The kernel completes the client's handshake at once, which takes a round trip over a long link. So the client's
//! bytes are left in the kernel for that time, and the target is dialled when the third packet of a handshake would
//! have reached it: the first response arrives after two round trips, as it would.

use super::line::{Entrance, Exit, line};
use super::shape::capacity_bytes;
use super::timer::Timer;
use super::{Direction, Shared};
use anyhow::{Context, Result};
use bytes::BytesMut;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Bytes read at once.
const READ_BYTES: usize = 128 << 10;

/// Accepts connections until the task is aborted, and ends them with itself.
pub async fn run(listener: TcpListener, target: watch::Receiver<Option<SocketAddr>>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    connections.spawn(connection(client, target.clone(), Arc::clone(&shared)));
                }
                // Out of descriptors: some connection has to end first.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One connection, until both directions have ended or either failed. Dropping the sockets ends both peers' sides.
async fn connection(
    client: TcpStream,
    mut target: watch::Receiver<Option<SocketAddr>>,
    shared: Arc<Shared>,
) -> Result<()> {
    let accepted = Instant::now();
    let (client_in, client_out) = split(client)?;
    let (up_entrance, up_exit) = line(capacity_bytes(shared.link))?;
    let (down_entrance, down_exit) = line(capacity_bytes(shared.link))?;
    let far = async {
        Timer::new()?.until(accepted + 3 * shared.link.delay).await?;
        let target = target.wait_for(Option::is_some).await?.context("no target")?;
        let (target_in, target_out) = split(TcpStream::connect(target).await?)?;
        let down = drain(target_in, down_entrance, &shared.down, &shared);
        tokio::try_join!(down, deliver(up_exit, target_out)).map(drop)
    };
    let up = async {
        Timer::new()?.until(accepted + shared.link.round_trip()).await?;
        drain(client_in, up_entrance, &shared.up, &shared).await
    };
    tokio::try_join!(up, far, deliver(down_exit, client_out)).map(drop)
}

fn split(stream: TcpStream) -> Result<(OwnedReadHalf, OwnedWriteHalf)> {
    // The sender's kernel has applied Nagle's algorithm already.
    stream.set_nodelay(true)?;
    Ok(stream.into_split())
}

/// Reads until the end of the stream, which is delayed like data.
async fn drain(mut from: OwnedReadHalf, to: Entrance, direction: &Direction, shared: &Shared) -> Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(READ_BYTES);
        let read = from.read_buf(&mut buffer).await?;
        let Some(room) = to.room(read).await else { return Ok(()) };
        let now = Instant::now();
        let due = if read == 0 { now + shared.link.delay } else { direction.due(now, read) };
        direction.count(read);
        if !to.send(buffer.split().freeze(), room, due) || read == 0 {
            return Ok(());
        }
    }
}

/// Writes the pieces of a line; an empty one is the end of the stream.
async fn deliver(mut from: Exit, mut to: OwnedWriteHalf) -> Result<()> {
    while let Some(piece) = from.next().await? {
        if piece.data.is_empty() {
            to.shutdown().await?;
            return Ok(());
        }
        to.write_all(&piece.data).await?;
    }
    Ok(())
}
