//! Datagrams through a relay: a socket towards the target for each address that sends to the relay.

use super::line::{Entrance, Exit, line};
use super::shape::capacity_bytes;
use super::{Direction, Shared};
use anyhow::{Context, Result};
use bytes::Bytes;
use socket2::{Domain, Socket, Type};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The largest payload of a datagram.
const DATAGRAM_BYTES: usize = 65_535;
/// What the kernel keeps for us while something else runs, if it may: the default holds some hundred datagrams.
const KERNEL_BYTES: usize = 4 << 20;
/// Addresses served at once. A measurement has a few; more would be a mistake.
const FLOWS_MAX: usize = 4_096;

/// A socket with large buffers.
pub fn bind(address: SocketAddr) -> Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    // The kernel grants what its limits allow.
    socket.set_recv_buffer_size(KERNEL_BYTES)?;
    socket.set_send_buffer_size(KERNEL_BYTES)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(UdpSocket::from_std(socket.into())?)
}

/// Relays until the task is aborted.
pub async fn run(socket: UdpSocket, target: watch::Receiver<Option<SocketAddr>>, shared: Arc<Shared>) {
    let socket = Arc::new(socket);
    let mut flows: HashMap<SocketAddr, Entrance> = HashMap::new();
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; DATAGRAM_BYTES];
    loop {
        tokio::select! {
            received = socket.recv_from(&mut buffer) => {
                // An error is the echo of a datagram that nobody received: UDP promises nothing.
                let Ok((len, caller)) = received else { continue };
                if !flows.contains_key(&caller) {
                    let Some((entrance, flow)) = begin(caller, &socket, &target, &shared, flows.len()) else { continue };
                    tasks.spawn(async move {
                        let _ = flow.await;
                        caller
                    });
                    flows.insert(caller, entrance);
                }
                if let Some(entrance) = flows.get(&caller) {
                    pass(&buffer[..len], entrance, &shared.up);
                }
            }
            Some(ended) = tasks.join_next() => {
                if let Ok(caller) = ended {
                    flows.remove(&caller);
                }
            }
        }
    }
}

/// The line up for a new caller, and the task that serves both directions of its flow.
fn begin(
    caller: SocketAddr,
    socket: &Arc<UdpSocket>,
    target: &watch::Receiver<Option<SocketAddr>>,
    shared: &Arc<Shared>,
    flows: usize,
) -> Option<(Entrance, impl Future<Output = Result<()>> + use<>)> {
    if flows >= FLOWS_MAX {
        return None;
    }
    let (entrance, exit) = line(capacity_bytes(shared.link)).ok()?;
    Some((entrance, flow(caller, exit, Arc::clone(socket), target.clone(), Arc::clone(shared))))
}

async fn flow(
    caller: SocketAddr,
    up: Exit,
    socket: Arc<UdpSocket>,
    mut target: watch::Receiver<Option<SocketAddr>>,
    shared: Arc<Shared>,
) -> Result<()> {
    let target = target.wait_for(Option::is_some).await?.context("no target")?;
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let far = bind(any.parse()?)?;
    far.connect(target).await?;
    let (entrance, exit) = line(capacity_bytes(shared.link))?;
    let answers = async {
        let mut buffer = vec![0; DATAGRAM_BYTES];
        loop {
            // A closed port is reported here; the target may open it later.
            let Ok(len) = far.recv(&mut buffer).await else { continue };
            pass(&buffer[..len], &entrance, &shared.down);
        }
    };
    let up = deliver(up, &far, target);
    let down = deliver(exit, &socket, caller);
    tokio::select! {
        () = answers => Ok(()),
        ended = up => ended,
        ended = down => ended,
    }
}

/// A full queue drops, as a router's does, and some links lose what passes.
fn pass(data: &[u8], entrance: &Entrance, direction: &Direction) {
    let room = if direction.loses_one() { None } else { entrance.try_room(data.len()) };
    let Some(room) = room else {
        direction.dropped.fetch_add(1, Ordering::Relaxed);
        return;
    };
    let due = direction.due(Instant::now(), data.len());
    direction.count(data.len());
    entrance.send(Bytes::copy_from_slice(data), room, due);
}

/// Sends what comes out. What the network below refuses is lost.
async fn deliver(mut from: Exit, socket: &UdpSocket, to: SocketAddr) -> Result<()> {
    while let Some(piece) = from.next().await? {
        let _ = socket.send_to(&piece.data, to).await;
    }
    Ok(())
}
