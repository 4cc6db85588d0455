//! [`SeparatingSocket`]: packets reach quinn one by one.
//!
//! Linux hands over packets of one sender together (GRO), up to 64 KiB. quinn copies them once, and each frame of a
//! stream refers to that copy until it is read. So a peer that leaves a gap in a stream would keep 64 KiB with each byte
//! behind it, of which quinn counts one packet. Here packets are separated before quinn copies them, which costs one
//! more copy and is much cheaper than a system call for each.

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Endpoint, EndpointConfig, Runtime as _, ServerConfig, TokioRuntime, UdpPoller};
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

/// How many groups of packets are received with one system call.
const GROUPS: usize = 16;

/// An endpoint on a socket.
pub(super) fn endpoint(
    config: EndpointConfig,
    server: Option<ServerConfig>,
    socket: UdpSocket,
) -> io::Result<Endpoint> {
    let runtime = Arc::new(TokioRuntime);
    let packet_bytes = usize::try_from(config.get_max_udp_payload_size()).unwrap_or(usize::MAX);
    let socket = SeparatingSocket::new(runtime.wrap_udp_socket(socket)?, packet_bytes);
    Endpoint::new_with_abstract_socket(config, server, Arc::new(socket), runtime)
}

#[derive(Debug)]
struct SeparatingSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    received: Mutex<Received>,
}

/// Groups of packets that were received and not handed over yet.
#[derive(Debug)]
struct Received {
    buffers: [Box<[u8]>; GROUPS],
    metas: [RecvMeta; GROUPS],
    groups: usize,
    /// The group whose turn it is, and how much of it was handed over.
    group: usize,
    offset: usize,
}

impl SeparatingSocket {
    fn new(inner: Arc<dyn AsyncUdpSocket>, packet_bytes: usize) -> Self {
        let group_bytes = packet_bytes * inner.max_receive_segments();
        let received = Received {
            buffers: std::array::from_fn(|_| vec![0; group_bytes].into_boxed_slice()),
            metas: [RecvMeta::default(); GROUPS],
            groups: 0,
            group: 0,
            offset: 0,
        };
        Self { inner, received: Mutex::new(received) }
    }
}

impl Received {
    fn receive(&mut self, socket: &dyn AsyncUdpSocket, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut slices = self.buffers.each_mut().map(|buffer| IoSliceMut::new(buffer));
        self.groups = ready!(socket.poll_recv(cx, &mut slices, &mut self.metas))?;
        (self.group, self.offset) = (0, 0);
        Poll::Ready(Ok(()))
    }

    /// The next packet.
    fn next(&mut self) -> Option<(RecvMeta, &[u8])> {
        while self.group < self.groups {
            let mut meta = self.metas[self.group];
            let rest = meta.len.saturating_sub(self.offset);
            if rest > 0 {
                let start = self.offset;
                meta.len = if meta.stride == 0 { rest } else { meta.stride.min(rest) };
                meta.stride = meta.len;
                self.offset += meta.len;
                return Some((meta, &self.buffers[self.group][start..self.offset]));
            }
            (self.group, self.offset) = (self.group + 1, 0);
        }
        None
    }
}

impl AsyncUdpSocket for SeparatingSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.inner.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        if received.group >= received.groups {
            ready!(received.receive(&*self.inner, cx))?;
        }
        let mut packets = 0;
        for (buffer, meta) in buffers.iter_mut().zip(metas) {
            let Some((packet_meta, packet)) = received.next() else { break };
            // No peer may send larger packets than fit: the rest would not be authentic.
            let length = packet.len().min(buffer.len());
            buffer[..length].copy_from_slice(&packet[..length]);
            *meta = packet_meta;
            (meta.len, meta.stride) = (length, length);
            packets += 1;
        }
        Poll::Ready(Ok(packets))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::task::Waker;

    /// Receives groups of packets: their bytes, and the length of a packet.
    #[derive(Debug)]
    struct Groups(Mutex<VecDeque<(Vec<u8>, usize)>>);

    impl AsyncUdpSocket for Groups {
        fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
            unreachable!("nothing is sent")
        }

        fn try_send(&self, _: &Transmit<'_>) -> io::Result<()> {
            Ok(())
        }

        fn poll_recv(
            &self,
            _: &mut Context<'_>,
            buffers: &mut [IoSliceMut<'_>],
            metas: &mut [RecvMeta],
        ) -> Poll<io::Result<usize>> {
            let mut groups = self.0.lock().expect("not poisoned");
            let count = groups.len().min(buffers.len());
            for (at, (bytes, stride)) in groups.drain(..count).enumerate() {
                buffers[at][..bytes.len()].copy_from_slice(&bytes);
                (metas[at].len, metas[at].stride) = (bytes.len(), stride);
            }
            if count == 0 { Poll::Pending } else { Poll::Ready(Ok(count)) }
        }

        fn local_addr(&self) -> io::Result<SocketAddr> {
            Ok(SocketAddr::from(([127, 0, 0, 1], 1)))
        }

        fn max_receive_segments(&self) -> usize {
            4
        }
    }

    /// What is received with room for some packets at a time.
    fn packets(groups: &[(&[u8], usize)], at_a_time: usize) -> Vec<Vec<u8>> {
        let groups = groups.iter().map(|(bytes, stride)| (bytes.to_vec(), *stride)).collect();
        let socket = SeparatingSocket::new(Arc::new(Groups(Mutex::new(groups))), 10);
        let (mut cx, mut received) = (Context::from_waker(Waker::noop()), Vec::new());
        loop {
            let mut buffers = vec![[0; 10]; at_a_time];
            let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
            let mut metas = vec![RecvMeta::default(); at_a_time];
            let Poll::Ready(polled) = socket.poll_recv(&mut cx, &mut slices, &mut metas) else { return received };
            for at in 0..polled.expect("received") {
                assert_eq!(metas[at].len, metas[at].stride);
                received.push(slices[at][..metas[at].len].to_vec());
            }
        }
    }

    #[test]
    fn groups_are_separated_into_their_packets() {
        let groups: &[(&[u8], usize)] = &[(b"aaabbbc", 3), (b"dddd", 4), (b"", 0), (b"eeff", 2)];
        for at_a_time in [1, 2, 3, 32] {
            let expected: Vec<&[u8]> = vec![b"aaa", b"bbb", b"c", b"dddd", b"ee", b"ff"];
            assert_eq!(packets(groups, at_a_time), expected, "{at_a_time} at a time");
        }
    }

    #[test]
    fn a_packet_that_is_larger_than_any_may_be_is_cut() {
        assert_eq!(packets(&[(b"0123456789abc", 13), (b"x", 1)], 4), [&b"0123456789"[..], b"x"]);
    }
}
