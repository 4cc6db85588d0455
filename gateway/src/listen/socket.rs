//! [`Listener`] and [`Socket`]: TCP and Unix sockets.
//!
//! A Unix socket has no addresses: its peers are known as [`UNIX_PEER`]. It has no reset either: a client notices an
//! aborted response by its length, or the missing end of its last chunk.

use config::UNIX_PEER;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// The queue of connections that are established but not accepted. The kernel reduces it to `net.core.somaxconn`.
pub const BACKLOG: u32 = 4096;

/// Something to do when a listener is closed, such as the removal of a file.
pub type OnClose = Box<dyn Send + Sync>;

/// A listening socket. Dropping it closes it.
pub struct Listener {
    socket: ListeningSocket,
    /// Whether another process keeps the socket open, such as systemd: what is not accepted waits for the next process.
    shared: bool,
    /// Dropped after the socket.
    _on_close: Option<OnClose>,
}

enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(socket: TcpListener) -> Self {
        Self { socket: ListeningSocket::Tcp(socket), shared: false, _on_close: None }
    }
}

impl From<UnixListener> for Listener {
    fn from(socket: UnixListener) -> Self {
        Self { socket: ListeningSocket::Unix(socket), shared: false, _on_close: None }
    }
}

impl Listener {
    /// A listener whose socket another process keeps open.
    pub fn shared(self) -> Self {
        Self { shared: true, ..self }
    }

    /// Drops `on_close` when the listener is closed.
    pub fn on_close(self, on_close: OnClose) -> Self {
        Self { _on_close: Some(on_close), ..self }
    }

    /// Accepts a connection: its socket, and the address of the peer.
    pub(super) async fn accept(&self) -> io::Result<(Socket, SocketAddr)> {
        match &self.socket {
            ListeningSocket::Tcp(socket) => socket.accept().await.map(|(stream, peer)| (Socket::Tcp(stream), peer)),
            ListeningSocket::Unix(socket) => {
                socket.accept().await.map(|(stream, _)| (Socket::Unix(stream), unix_peer()))
            }
        }
    }

    /// Closes the listener. Returns the connections that would be reset with it: those that are established and not
    /// accepted, unless the next process accepts them.
    pub(super) fn close(self) -> Vec<(Socket, SocketAddr)> {
        if self.shared {
            return Vec::new();
        }
        let next: Box<dyn Fn() -> io::Result<(Socket, SocketAddr)>> = match self.socket {
            ListeningSocket::Tcp(socket) => match socket.into_std() {
                Ok(socket) => Box::new(move || {
                    let (stream, peer) = socket.accept()?;
                    stream.set_nonblocking(true)?;
                    Ok((Socket::Tcp(TcpStream::from_std(stream)?), peer))
                }),
                Err(_) => return Vec::new(),
            },
            ListeningSocket::Unix(socket) => match socket.into_std() {
                Ok(socket) => Box::new(move || {
                    let (stream, _) = socket.accept()?;
                    stream.set_nonblocking(true)?;
                    Ok((Socket::Unix(UnixStream::from_std(stream)?), unix_peer()))
                }),
                Err(_) => return Vec::new(),
            },
        };
        // The socket does not block, so the first error is that there are no more.
        (0..BACKLOG).map_while(|_| next().ok()).collect()
    }
}

fn unix_peer() -> SocketAddr {
    SocketAddr::new(UNIX_PEER, 0)
}

/// A connection.
#[derive(Debug)]
pub(super) enum Socket {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(UnixStream),
}

impl Socket {
    /// Sends what is written without a delay: hyper writes a head and its body together.
    pub fn set_nodelay(&self) {
        if let Self::Tcp(stream) = self {
            _ = stream.set_nodelay(true);
        }
    }

    /// Has the end of the connection be a reset (RST) instead of a FIN.
    pub fn reset_on_close(&self) {
        if let Self::Tcp(stream) = self {
            _ = stream.set_zero_linger();
        }
    }
}

/// Calls a method of the stream within.
macro_rules! with_stream {
    ($socket:expr, $stream:ident => $call:expr) => {
        match $socket.get_mut() {
            Socket::Tcp(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            Socket::Unix(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => stream.poll_read(cx, buf))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        with_stream!(self, stream => stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        with_stream!(self, stream => stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => stream.poll_shutdown(cx))
    }
}
