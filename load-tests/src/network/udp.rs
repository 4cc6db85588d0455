//! Kernel buffers of the UDP sockets of libp2p's QUIC transport, with which the ceiling is measured.
//!
//! The system's default is commonly less than a hundred packets, and a source sends larger bursts. libp2p exposes
//! neither its sockets nor their descriptors. Linux lets a process duplicate its own descriptors (`pidfd_getfd`), and
//! options set on a duplicate apply to the socket. Where that is not supported, the buffers stay as they are.

/// The requested size in bytes, as in quic-go; the system's `net.core.rmem_max` may allow less.
#[cfg(target_os = "linux")]
const BUFFER_BYTES: usize = 7 * 1024 * 1024;
/// Smaller buffers cause a warning, in bytes.
#[cfg(target_os = "linux")]
const ENOUGH_BYTES: usize = 2 * 1024 * 1024;

/// Enlarges the buffers of this process's UDP sockets that are bound to one of these ports.
#[cfg(target_os = "linux")]
pub fn enlarge_buffers(ports: &[u16]) {
    if ports.is_empty() {
        return;
    }
    match linux::sockets(ports) {
        Ok(sockets) => {
            let smallest = sockets.iter().map(linux::enlarge).min();
            if smallest.is_none_or(|bytes| bytes < ENOUGH_BYTES) {
                eprintln!("the receive buffers of QUIC are small, {smallest:?} bytes: raise net.core.rmem_max");
            }
        }
        Err(error) => eprintln!("cannot enlarge the receive buffers of QUIC: {error}"),
    }
}

/// Other systems have larger defaults, and no way to access the sockets.
#[cfg(not(target_os = "linux"))]
pub fn enlarge_buffers(_: &[u16]) {}

#[cfg(target_os = "linux")]
mod linux {
    use super::BUFFER_BYTES;
    use rustix::net::{SocketType, getsockname, sockopt};
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    use std::io;
    use std::net::SocketAddr;
    use std::os::fd::OwnedFd;

    /// Duplicates of the descriptors of the UDP sockets that are bound to one of these ports.
    pub fn sockets(ports: &[u16]) -> io::Result<Vec<OwnedFd>> {
        let process = pidfd_open(getpid(), PidfdFlags::empty())?;
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc/self/fd")? {
            let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // It may have been closed in the meantime.
            let Ok(descriptor) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) else { continue };
            if port(&descriptor).is_some_and(|port| ports.contains(&port)) {
                found.push(descriptor);
            }
        }
        Ok(found)
    }

    /// The port of a UDP socket; `None` for anything else.
    fn port(descriptor: &OwnedFd) -> Option<u16> {
        if sockopt::socket_type(descriptor).ok()? != SocketType::DGRAM {
            return None;
        }
        SocketAddr::try_from(getsockname(descriptor).ok()?).ok().map(|address| address.port())
    }

    /// Requests large buffers; returns the resulting receive buffer in bytes.
    pub fn enlarge(socket: &OwnedFd) -> usize {
        let size = || sockopt::socket_recv_buffer_size(socket).unwrap_or_default();
        let _ = sockopt::set_socket_recv_buffer_size(socket, BUFFER_BYTES);
        let _ = sockopt::set_socket_send_buffer_size(socket, BUFFER_BYTES);
        if size() < BUFFER_BYTES {
            // Exceeding the system's limit needs a privilege.
            let _ = sockopt::set_socket_recv_buffer_size_force(socket, BUFFER_BYTES);
        }
        size()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn the_sockets_of_a_port_get_larger_buffers() {
        let [ours, other] = std::array::from_fn(|_| UdpSocket::bind("127.0.0.1:0").expect("a free port"));
        let port = ours.local_addr().expect("bound").port();
        let before = rustix::net::sockopt::socket_recv_buffer_size(&ours).expect("a socket");
        let untouched = rustix::net::sockopt::socket_recv_buffer_size(&other).expect("a socket");
        let found = linux::sockets(&[port]).expect("Linux 5.6 or newer");
        assert_eq!(found.len(), 1);
        // The growth depends on the system's limit.
        let grown = linux::enlarge(&found[0]);
        assert!(grown >= before);
        drop(found);
        assert_eq!(rustix::net::sockopt::socket_recv_buffer_size(&ours).expect("a socket"), grown);
        assert_eq!(rustix::net::sockopt::socket_recv_buffer_size(&other).expect("a socket"), untouched);
    }
}
