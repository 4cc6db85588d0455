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
/// Kernel buffers, if the kernel's limits allow: the default has space for some hundred datagrams.
const KERNEL_BYTES: usize = 4 << 20;
/// Limit for concurrent flows. A benchmark has a few.
const FLOWS_MAX: usize = 4_096;

/// A socket with large buffers.
pub fn bind(address: SocketAddr) -> Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    // The kernel grants as much as its limits allow.
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
                // An error is an ICMP message about an earlier datagram that was not received.
                let Ok((len, client)) = received else { continue };
                if !flows.contains_key(&client) {
                    let flow = begin(client, &socket, &target, &shared, flows.len());
                    let Some((entrance, flow)) = flow else { continue };
                    tasks.spawn(async move {
                        let _ = flow.await;
                        client
                    });
                    flows.insert(client, entrance);
                }
                if let Some(entrance) = flows.get(&client) {
                    pass(&buffer[..len], entrance, &shared.up);
                }
            }
            Some(ended) = tasks.join_next() => {
                if let Ok(client) = ended {
                    flows.remove(&client);
                }
            }
        }
    }
}

/// The line towards the target for a new client, and the task that serves both directions of its flow.
fn begin(
    client: SocketAddr,
    socket: &Arc<UdpSocket>,
    target: &watch::Receiver<Option<SocketAddr>>,
    shared: &Arc<Shared>,
    flows: usize,
) -> Option<(Entrance, impl Future<Output = Result<()>> + use<>)> {
    if flows >= FLOWS_MAX {
        return None;
    }
    let (entrance, exit) = line(capacity_bytes(shared.link)).ok()?;
    Some((entrance, flow(client, exit, Arc::clone(socket), target.clone(), Arc::clone(shared))))
}

async fn flow(
    client: SocketAddr,
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
    let down = deliver(exit, &socket, client);
    tokio::select! {
        () = answers => Ok(()),
        ended = up => ended,
        ended = down => ended,
    }
}

/// A full queue drops datagrams, as a router's does; some links lose them.
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

/// Sends datagrams when they are due. A failure to send is a loss.
async fn deliver(mut from: Exit, socket: &UdpSocket, to: SocketAddr) -> Result<()> {
    while let Some(piece) = from.next().await? {
        let _ = socket.send_to(&piece.data, to).await;
    }
    Ok(())
}
