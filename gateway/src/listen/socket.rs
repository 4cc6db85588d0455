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
    /// Dropped by [`Self::close`] before the last connections are accepted.
    on_close: Option<OnClose>,
}

enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(socket: TcpListener) -> Self {
        Self { socket: ListeningSocket::Tcp(socket), shared: false, on_close: None }
    }
}

impl From<UnixListener> for Listener {
    fn from(socket: UnixListener) -> Self {
        Self { socket: ListeningSocket::Unix(socket), shared: false, on_close: None }
    }
}

impl Listener {
    /// A listener whose socket another process keeps open.
    pub fn shared(self) -> Self {
        Self { shared: true, ..self }
    }

    /// Drops `on_close` when the listener is closed.
    pub fn on_close(self, on_close: OnClose) -> Self {
        Self { on_close: Some(on_close), ..self }
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
        let Self { socket, shared, on_close } = self;
        if shared {
            return Vec::new();
        }
        // The file of a Unix socket is removed first: no client connects after the last accept.
        drop(on_close);
        let next: Box<dyn Fn() -> io::Result<(Socket, SocketAddr)>> = match socket {
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
        accept_all(next)
    }
}

/// Accepts what waits in the queue of a socket that does not block. A connection that its client has aborted is not the
/// last one.
fn accept_all<T>(mut next: impl FnMut() -> io::Result<T>) -> Vec<T> {
    let (mut accepted, mut failed) = (Vec::new(), None);
    for _ in 0..BACKLOG {
        match next() {
            Ok(connection) => accepted.push(connection),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            // It may be of this connection only.
            Err(error) => failed = Some(error),
        }
    }
    if let Some(error) = failed {
        tracing::warn!(%error, "a listener was closed before all of its connections were accepted: they are reset");
    }
    accepted
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind::{ConnectionAborted, WouldBlock};
    use std::path::PathBuf;

    /// Connects when it is dropped.
    struct LastClient(PathBuf);

    impl Drop for LastClient {
        fn drop(&mut self) {
            std::os::unix::net::UnixStream::connect(&self.0).expect("connects");
        }
    }

    #[tokio::test]
    async fn the_file_is_removed_before_the_last_accept() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("http.sock");
        let listener = Listener::from(UnixListener::bind(&path).expect("binds"));
        assert_eq!(listener.on_close(Box::new(LastClient(path))).close().len(), 1);
    }

    #[test]
    fn what_waits_is_accepted_after_errors_of_single_connections() {
        let error = |kind| Err(io::Error::from(kind));
        let table = [
            (vec![Ok(1), Ok(2), error(WouldBlock), Ok(3)], vec![1, 2]),
            (vec![error(ConnectionAborted), Ok(1), error(ConnectionAborted), Ok(2), error(WouldBlock)], vec![1, 2]),
            (vec![Ok(1), error(io::ErrorKind::Other), Ok(2), error(WouldBlock), Ok(3)], vec![1, 2]),
        ];
        for (results, expected) in table {
            let mut results = results.into_iter();
            assert_eq!(accept_all(|| results.next().expect("stops in time")), expected);
        }
        // It ends although clients connect all the time, or a lack of file descriptors lasts.
        assert_eq!(accept_all(|| Ok(7)).len(), BACKLOG as usize);
        assert_eq!(accept_all(|| Err::<(), _>(io::Error::other("too many open files"))), []);
    }
}
