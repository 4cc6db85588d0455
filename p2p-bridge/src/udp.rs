//! UDP sockets for QUIC, with large kernel buffers.
//!
//! Senders pace by acknowledgements and not by the receiver's kernel buffer. The system's default is commonly 208 KiB,
//! which is less than a hundred packets. A Kubo node 50 ms away sends far larger bursts; the overflow is lost, and each
//! loss halves its rate: 100 MiB took 10 s that way and 2 s with this.

use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Once;

/// The requested size in bytes, as in quic-go; the system's `net.core.rmem_max` may allow less.
const BUFFER_BYTES: usize = 7 * 1024 * 1024;
/// Smaller buffers cause a warning, in bytes.
const ENOUGH_BYTES: usize = 2 * 1024 * 1024;

/// Binds a socket, for IPv4 or IPv6 alone.
///
/// # Errors
/// If the address is in use, or cannot be used.
pub fn bind(at: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(at), Type::DGRAM, Some(Protocol::UDP))?;
    if at.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    let bytes = enlarge_buffers(&socket);
    if bytes < ENOUGH_BYTES {
        warn_of_small_buffers(bytes);
    }
    socket.set_nonblocking(true)?;
    socket.bind(&at.into())?;
    Ok(socket.into())
}

/// Requests large buffers; returns the resulting receive buffer in bytes.
fn enlarge_buffers(socket: &Socket) -> usize {
    let size = || socket.recv_buffer_size().unwrap_or_default();
    let _ = socket.set_recv_buffer_size(BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(BUFFER_BYTES);
    #[cfg(target_os = "linux")]
    if size() < BUFFER_BYTES {
        // Exceeding the system's limit needs a privilege.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, BUFFER_BYTES);
    }
    size()
}

fn warn_of_small_buffers(bytes: usize) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            bytes,
            wanted = BUFFER_BYTES,
            "the receive buffers of QUIC are small, so bursts of packets are lost: raise net.core.rmem_max"
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_have_the_largest_buffers_that_the_system_allows() {
        let socket = Socket::from(bind("127.0.0.1:0".parse().expect("an address")).expect("binds"));
        let default = Socket::from(UdpSocket::bind("127.0.0.1:0").expect("binds"));
        let size = |socket: &Socket| socket.recv_buffer_size().expect("a socket");
        assert!(size(&socket) >= size(&default));
        let before = size(&socket);
        assert_eq!(enlarge_buffers(&socket), before, "nothing larger is to be had");
    }

    #[test]
    fn ipv4_and_ipv6_may_have_the_same_port() {
        let Ok(ipv6) = bind("[::]:0".parse().expect("an address")) else { return };
        let port = ipv6.local_addr().expect("bound").port();
        let ipv4 = bind(SocketAddr::from(([0, 0, 0, 0], port)));
        assert!(ipv4.is_ok() || UdpSocket::bind(("0.0.0.0", port)).is_err(), "{ipv4:?}");
    }
}
