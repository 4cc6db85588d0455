//! Restarts under load: a socket that the test keeps open, as systemd does, and 1,000 requests a second, half of them
//! on new connections. While the gateway restarts, connections wait in the socket, and no request fails.

use crate::support::causeway::Launch;
use crate::support::get;
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

const PATIENCE: Duration = Duration::from_secs(60);
/// The time between requests, and how many there are between restarts.
const INTERVAL: Duration = Duration::from_millis(1);
const PHASE_REQUESTS: u64 = 2_000;
const RESTARTS: usize = 2;
/// The time for the first request on a connection.
const FIRST_REQUEST_GRACE: Duration = Duration::from_secs(3);
/// A block in its own CID.
const TEXT: &[u8] = b"hello world";
const PATH: &str = "/ipfs/bafkqac3imvwgy3zao5xxe3de";

/// The clients: connections that can be reused, and how requests ended.
struct Clients {
    address: SocketAddr,
    paths: Vec<(String, Vec<u8>)>,
    reusable: Mutex<Vec<TcpStream>>,
    answered: AtomicU64,
    /// Requests on a connection that ended before its response, because it was idle or its client did not send the
    /// first request in time (this machine may be busy); the client sends them again.
    sent_again: AtomicU64,
    slowest: Mutex<Duration>,
    failures: Mutex<BTreeMap<String, u64>>,
}

/// How a request on a connection ended.
enum Ending {
    /// With the expected response, and whether the connection stays open.
    Answered { reusable: bool },
    /// The server ended the connection without a response to the request, which was sent at that time, in an orderly way.
    Closed { sent: Instant },
}

impl Clients {
    /// Sends one request, on a new connection or on one that may have been used before.
    async fn request(&self, number: u64) {
        let begun = Instant::now();
        let result = timeout(PATIENCE, self.send(number)).await.unwrap_or_else(|_| Err("timeout".to_owned()));
        let mut slowest = self.slowest.lock().expect("is sound");
        *slowest = begun.elapsed().max(*slowest);
        match result {
            Ok(()) => _ = self.answered.fetch_add(1, Ordering::Relaxed),
            Err(failure) => *self.failures.lock().expect("is sound").entry(failure).or_default() += 1,
        }
    }

    async fn send(&self, number: u64) -> Result<(), String> {
        let keeps_alive = number.is_multiple_of(2);
        let (path, expected) = &self.paths[usize::try_from(number / 2).expect("fits") % self.paths.len()];
        if keeps_alive && let Some(mut stream) = self.reused() {
            match exchange(&mut stream, path, expected, true).await? {
                Ending::Answered { reusable } => {
                    self.keep(stream, reusable);
                    return Ok(());
                }
                // RFC 9112, section 9.3.1: the server closed an idle connection at the same moment.
                Ending::Closed { .. } => _ = self.sent_again.fetch_add(1, Ordering::Relaxed),
            }
        }
        loop {
            let begun = Instant::now();
            let connecting = TcpStream::connect(self.address).await;
            let mut stream = connecting.map_err(|error| format!("connecting: {}", error.kind()))?;
            match exchange(&mut stream, path, expected, keeps_alive).await? {
                Ending::Answered { reusable } => {
                    self.keep(stream, reusable);
                    return Ok(());
                }
                Ending::Closed { sent } if sent.duration_since(begun) < FIRST_REQUEST_GRACE => {
                    return Err("a new connection was closed".to_owned());
                }
                Ending::Closed { .. } => _ = self.sent_again.fetch_add(1, Ordering::Relaxed),
            }
        }
    }

    fn keep(&self, stream: TcpStream, reusable: bool) {
        if reusable {
            self.reusable.lock().expect("is sound").push(stream);
        }
    }

    /// A connection that the server has not ended as far as this client knows.
    fn reused(&self) -> Option<TcpStream> {
        let mut reusable = self.reusable.lock().expect("is sound");
        while let Some(stream) = reusable.pop() {
            match stream.try_read(&mut [0; 1]) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Some(stream),
                _ => {}
            }
        }
        None
    }
}

/// Sends a request and reads the response.
async fn exchange(stream: &mut TcpStream, path: &str, expected: &[u8], keeps_alive: bool) -> Result<Ending, String> {
    let failed = |what: &'static str| move |error: std::io::Error| format!("{what}: {}", error.kind());
    let close = if keeps_alive { "" } else { "Connection: close\r\n" };
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{close}\r\n");
    stream.write_all(request.as_bytes()).await.map_err(failed("sending"))?;
    let (sent, mut received) = (Instant::now(), Vec::with_capacity(1024));
    loop {
        let head = received.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(head) = head.filter(|head| received.len() >= head + 4 + expected.len()) {
            let text = String::from_utf8_lossy(&received[..head]).to_lowercase();
            let status = text.lines().next().unwrap_or_default().to_owned();
            if status != "http/1.1 200 ok" || received[head + 4..] != *expected {
                return Err(status);
            }
            return Ok(Ending::Answered { reusable: keeps_alive && !text.contains("connection: close") });
        }
        match stream.read_buf(&mut received).await.map_err(failed("receiving"))? {
            0 if received.is_empty() => return Ok(Ending::Closed { sent }),
            0 => return Err("a truncated response".to_owned()),
            _ => {}
        }
    }
}

/// Sends requests at the interval, whether or not earlier ones are answered.
async fn send_requests(clients: &Arc<Clients>, tasks: &TaskTracker, first: u64) -> u64 {
    let mut ticks = tokio::time::interval(INTERVAL);
    for number in first..first + PHASE_REQUESTS {
        ticks.tick().await;
        let clients = Arc::clone(clients);
        tasks.spawn(async move { clients.request(number).await });
    }
    first + PHASE_REQUESTS
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_the_gateway_restarts_on_a_socket_of_systemd() {
    // A connection for each request during the restart.
    rlimit::increase_nofile_limit(u64::MAX).expect("a limit of open files");
    let dir = TempDir::new().expect("the temporary folder is writable");
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
    let socket = socket.listen(4096).expect("listens").into_std().expect("a socket");
    let address = socket.local_addr().expect("is bound");
    // All clients have one address here.
    let launch = Launch::new(dir.path())
        .set("CAUSEWAY_P2P_OFFLINE", "true")
        .set("CAUSEWAY_HTTP_CONNECTIONS_MAX", 16_384)
        .set("CAUSEWAY_HTTP_CLIENT_CONNECTIONS_MAX", 16_384)
        .activated_by(socket);
    let stored = vec![b'x'; 20_000];
    std::fs::write(dir.path().join("stored"), &stored).expect("the folder is ours");
    let root = launch.run(&["add", "-Q", "--profile", "unixfs-v1-2025", "stored"]).expect("is added");
    let mut node = launch.start().await;
    assert_eq!(node.url(""), format!("http://{address}"), "it uses the socket");

    let clients = Arc::new(Clients {
        address,
        paths: vec![(PATH.to_owned(), TEXT.to_vec()), (format!("/ipfs/{root}"), stored)],
        reusable: Mutex::default(),
        answered: AtomicU64::default(),
        sent_again: AtomicU64::default(),
        slowest: Mutex::default(),
        failures: Mutex::default(),
    });
    let (tasks, begun) = (TaskTracker::new(), Instant::now());
    let sending = tokio::spawn({
        let (clients, tasks) = (Arc::clone(&clients), tasks.clone());
        async move {
            let mut sent = 0;
            for _ in 0..=2 * RESTARTS {
                sent = send_requests(&clients, &tasks, sent).await;
            }
            sent
        }
    });
    let mut restarts = Vec::new();
    for restart in 0..RESTARTS {
        let answered = (restart as u64 + 1) * PHASE_REQUESTS;
        while clients.answered.load(Ordering::Relaxed) < answered {
            assert_eq!(node.process.status(), None, "the gateway ended");
            assert!(begun.elapsed() < PATIENCE, "{:?} {:?}", clients.answered, clients.failures);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let stopped = Instant::now();
        node.stop().await;
        let ended = stopped.elapsed();
        node = launch.start().await;
        restarts.push((ended, stopped.elapsed() - ended));
    }
    let sent = sending.await.expect("no panic");
    let rate = sent as f64 / begun.elapsed().as_secs_f64();
    tasks.close();
    tasks.wait().await;
    let slowest = *clients.slowest.lock().expect("is sound");
    let sent_again = clients.sent_again.load(Ordering::Relaxed);
    eprintln!(
        "{sent} requests at {rate:.0}/s; (stop, start): {restarts:?}; slowest {slowest:?}; {sent_again} sent again by \
         their clients"
    );
    let failures = std::mem::take(&mut *clients.failures.lock().expect("is sound"));
    assert!(failures.is_empty(), "{failures:?}");
    assert_eq!(clients.answered.load(Ordering::Relaxed), sent);
    drop(clients);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_fails_before_the_listener_closes() {
    let dir = TempDir::new().expect("the temporary folder is writable");
    let launch =
        Launch::new(dir.path()).set("CAUSEWAY_P2P_OFFLINE", "true").set("CAUSEWAY_HTTP_DRAIN_DELAY_SECONDS", 3);
    let mut node = launch.start().await;
    assert_eq!(node.get("/readyz").await.status, 200);
    let begun = Instant::now();
    node.process.signal(Signal::SIGTERM);
    // Each request has a connection of its own.
    while node.get("/readyz").await.status != 503 {
        assert!(begun.elapsed() < PATIENCE, "it stays ready");
    }
    for _ in 0..10 {
        node.expect(PATH, TEXT).await;
        assert_eq!(get(&node.url("/readyz")).await.status, 503);
    }
    assert!(node.process.ended(PATIENCE).await.success());
    assert!(begun.elapsed() >= Duration::from_secs(3));
}
