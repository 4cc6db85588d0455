//! A TCP relay before a server. The server ends each connection after one answer, so that a connection is a request.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What happens to a connection.
#[derive(Debug, Clone)]
pub enum Fault {
    /// It breaks off after so many bytes of the answer.
    CutAnswer(usize),
    /// It breaks off when the server has begun to answer, of which nothing arrives.
    LoseAnswer,
    /// The connection is ended at once.
    Refuse,
    /// The relay answers in place of the server.
    Answer(String),
    /// Nothing is answered, and the connection stays open.
    Stall,
    /// It is passed on after a while.
    Delay(Duration),
}

impl Fault {
    /// An error answer of S3.
    pub fn error(status: &str, code: &str, headers: &str) -> Self {
        let body = format!("<Error><Code>{code}</Code><Message>from the relay</Message></Error>");
        let len = body.len();
        Self::Answer(format!("HTTP/1.1 {status}\r\nContent-Length: {len}\r\n{headers}Connection: close\r\n\r\n{body}"))
    }
}

/// A relay, which ends with this.
pub struct Relay {
    pub port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    /// What happens to the next connections. After these, all are passed on.
    next: Mutex<VecDeque<Fault>>,
    /// What happens to all connections after those.
    always: Mutex<Option<Fault>>,
    connections: AtomicUsize,
}

impl Relay {
    /// A relay before the server at a port.
    pub async fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                theirs.connections.fetch_add(1, Ordering::Relaxed);
                let next = theirs.next.lock().expect("no panic").pop_front();
                let fault = next.or_else(|| theirs.always.lock().expect("no panic").clone());
                tokio::spawn(connection(client, server, fault));
            }
        });
        Self { port, shared, accepting }
    }

    /// What happens to the next connections.
    pub fn next(&self, faults: impl IntoIterator<Item = Fault>) {
        *self.shared.next.lock().expect("no panic") = faults.into_iter().collect();
    }

    /// What happens to all connections after those.
    pub fn always(&self, fault: Option<Fault>) {
        *self.shared.always.lock().expect("no panic") = fault;
    }

    /// How many connections there were since this was asked for the last time.
    pub fn connections(&self) -> usize {
        self.shared.connections.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// One connection. Errors are ends of connections, which the client sees.
async fn connection(mut client: TcpStream, server: u16, fault: Option<Fault>) {
    let answer_max = match fault {
        Some(Fault::Refuse) => return,
        Some(Fault::Stall) => {
            // Until the client gives up.
            let mut rest = Vec::new();
            _ = client.read_to_end(&mut rest).await;
            return;
        }
        Some(Fault::Answer(answer)) => {
            let mut head = [0; 1024];
            _ = client.read(&mut head).await;
            _ = client.write_all(answer.as_bytes()).await;
            _ = client.shutdown().await;
            let mut rest = Vec::new();
            _ = client.read_to_end(&mut rest).await;
            return;
        }
        Some(Fault::CutAnswer(bytes)) => bytes,
        Some(Fault::LoseAnswer) => 0,
        Some(Fault::Delay(length)) => {
            tokio::time::sleep(length).await;
            usize::MAX
        }
        None => usize::MAX,
    };
    let Ok(mut upstream) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = upstream.split();
    let requests = async {
        _ = tokio::io::copy(&mut from_client, &mut to_server).await;
        _ = to_server.shutdown().await;
        // The answer ends the connection.
        std::future::pending::<()>().await;
    };
    let answers = async {
        let mut left = answer_max;
        let mut buffer = vec![0; 16 << 10];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            let passed = read.min(left);
            if to_client.write_all(&buffer[..passed]).await.is_err() || passed < read {
                return;
            }
            left -= passed;
        }
    };
    tokio::select! { () = requests => {}, () = answers => {} }
}
