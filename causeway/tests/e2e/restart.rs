//! Restarts under load: a socket that the test keeps open, as systemd does, and 1,000 requests a second. While the
//! gateway restarts, connections wait in the socket, and no request fails. Here over HTTP/1.1, half of them on new
//! connections; [`crate::restart_tls`] has HTTP/2 and HTTP/3.

use crate::support::causeway::{Causeway, Launch};
use crate::support::get;
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
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
pub const PHASE_REQUESTS: u64 = 2_000;
const RESTARTS: usize = 2;
/// The number of phases: restarts begin after the first ones.
pub const PHASES: usize = 2 * RESTARTS + 1;
/// The time for the first request on a connection.
const FIRST_REQUEST_GRACE: Duration = Duration::from_secs(3);
/// A block in its own CID.
const TEXT: &[u8] = b"hello world";
const PATH: &str = "/ipfs/bafkqac3imvwgy3zao5xxe3de";

/// A path, and the content there.
pub type Content = (String, Vec<u8>);

/// Clients that speak one version of HTTP.
pub trait Clients: Send + Sync + 'static {
    /// Sends a request until it is answered.
    ///
    /// # Errors
    /// Why it has failed.
    fn send(&self, number: u64, requests: &Requests) -> impl Future<Output = Result<(), String>> + Send;
}

/// How requests ended.
#[derive(Default)]
pub struct Requests {
    answered: AtomicU64,
    /// Requests that the server has not processed, and that their clients sent again.
    sent_again: AtomicU64,
    slowest: Mutex<Duration>,
    failures: Mutex<BTreeMap<String, u64>>,
}

impl Requests {
    /// Counts a request that its client sends again.
    pub fn send_again(&self) {
        self.sent_again.fetch_add(1, Ordering::Relaxed);
    }

    async fn send(&self, number: u64, clients: &impl Clients) {
        let begun = Instant::now();
        let result = timeout(PATIENCE, clients.send(number, self)).await.unwrap_or_else(|_| Err("timeout".to_owned()));
        let mut slowest = self.slowest.lock().expect("is sound");
        *slowest = begun.elapsed().max(*slowest);
        match result {
            Ok(()) => _ = self.answered.fetch_add(1, Ordering::Relaxed),
            Err(failure) => *self.failures.lock().expect("is sound").entry(failure).or_default() += 1,
        }
    }
}

/// Sends requests at the interval, whether or not earlier ones are answered.
async fn send_requests(clients: &Arc<impl Clients>, requests: &Arc<Requests>, tasks: &TaskTracker, first: u64) -> u64 {
    let mut ticks = tokio::time::interval(INTERVAL);
    for number in first..first + PHASE_REQUESTS {
        ticks.tick().await;
        let (clients, requests) = (Arc::clone(clients), Arc::clone(requests));
        tasks.spawn(async move { requests.send(number, &*clients).await });
    }
    first + PHASE_REQUESTS
}

/// Restarts the gateway under load; no request fails.
pub async fn restart_under_load(launch: &Launch, mut node: Causeway, clients: Arc<impl Clients>) {
    let (requests, tasks, begun) = (Arc::<Requests>::default(), TaskTracker::new(), Instant::now());
    let sending = tokio::spawn({
        let (clients, requests, tasks) = (Arc::clone(&clients), Arc::clone(&requests), tasks.clone());
        async move {
            let mut sent = 0;
            for _ in 0..PHASES {
                sent = send_requests(&clients, &requests, &tasks, sent).await;
            }
            sent
        }
    });
    let mut restarts = Vec::new();
    for restart in 0..RESTARTS {
        let answered = (restart as u64 + 1) * PHASE_REQUESTS;
        while requests.answered.load(Ordering::Relaxed) < answered {
            assert_eq!(node.process.status(), None, "the gateway ended");
            assert!(begun.elapsed() < PATIENCE, "{:?} {:?}", requests.answered, requests.failures);
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
    let slowest = *requests.slowest.lock().expect("is sound");
    let sent_again = requests.sent_again.load(Ordering::Relaxed);
    eprintln!(
        "{sent} requests at {rate:.0}/s; (stop, start): {restarts:?}; slowest {slowest:?}; {sent_again} sent again by \
         their clients"
    );
    let failures = std::mem::take(&mut *requests.failures.lock().expect("is sound"));
    assert!(failures.is_empty(), "{failures:?}");
    assert_eq!(requests.answered.load(Ordering::Relaxed), sent);
    drop(clients);
    node.stop().await;
}

/// A listening socket, which the test keeps open, and its address.
pub fn listening_socket() -> (TcpListener, SocketAddr) {
    // A connection for each request during the restart.
    rlimit::increase_nofile_limit(u64::MAX).expect("a limit of open files");
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
    let socket = socket.listen(4096).expect("listens").into_std().expect("a socket");
    let address = socket.local_addr().expect("is bound");
    (socket, address)
}

/// A gateway for many connections.
pub fn launch(dir: &Path) -> Launch {
    Launch::new(dir)
        .set("CAUSEWAY_P2P_OFFLINE", "true")
        .set("CAUSEWAY_HTTP_CONNECTIONS_MAX", 16_384)
        .set("CAUSEWAY_HTTP_CLIENT_CONNECTIONS_MAX", 16_384)
}

/// Stores content; returns what clients ask for.
pub fn content(launch: &Launch, dir: &Path) -> Vec<Content> {
    let stored = vec![b'x'; 20_000];
    std::fs::write(dir.join("stored"), &stored).expect("the folder is ours");
    let root = launch.run(&["add", "-Q", "--profile", "unixfs-v1-2025", "stored"]).expect("is added");
    vec![(PATH.to_owned(), TEXT.to_vec()), (format!("/ipfs/{root}"), stored)]
}

/// Clients over HTTP/1.1, with the connections that can be reused. A request on a connection that ended before its
/// response, because it was idle or its client did not send the first request in time (this machine may be busy), is
/// sent again.
struct PlainClients {
    address: SocketAddr,
    content: Vec<Content>,
    reusable: Mutex<Vec<TcpStream>>,
}

/// How a request on a connection ended.
enum Ending {
    /// With the expected response, and whether the connection stays open.
    Answered { reusable: bool },
    /// The server ended the connection without a response to the request, which was sent at that time, in an orderly
    /// way.
    Closed { sent: Instant },
}

impl Clients for PlainClients {
    async fn send(&self, number: u64, requests: &Requests) -> Result<(), String> {
        let keeps_alive = number.is_multiple_of(2);
        let (path, expected) = &self.content[usize::try_from(number / 2).expect("fits") % self.content.len()];
        if keeps_alive && let Some(mut stream) = self.reused() {
            match exchange(&mut stream, path, expected, true).await? {
                Ending::Answered { reusable } => {
                    self.keep(stream, reusable);
                    return Ok(());
                }
                // RFC 9112, section 9.3.1: the server closed an idle connection at the same moment.
                Ending::Closed { .. } => requests.send_again(),
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
                Ending::Closed { .. } => requests.send_again(),
            }
        }
    }
}

impl PlainClients {
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

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_the_gateway_restarts_on_a_socket_of_systemd() {
    let dir = TempDir::new().expect("the temporary folder is writable");
    let (socket, address) = listening_socket();
    let launch = launch(dir.path()).activated_by(socket, "http");
    let content = content(&launch, dir.path());
    let node = launch.start().await;
    assert_eq!(node.url(""), format!("http://{address}"), "it uses the socket");
    restart_under_load(&launch, node, Arc::new(PlainClients { address, content, reusable: Mutex::default() })).await;
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
