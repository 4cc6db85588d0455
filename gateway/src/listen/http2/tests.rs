//! Connections in memory: links of any rate, and clients that change their windows at any time.

use super::*;
use crate::listen::admission::Evictable as _;
use crate::listen::drain::Drain;
use crate::listen::rate::RateMin;
use h2::client::SendRequest;
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadBuf};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(30);

fn connection() -> Arc<Connection> {
    Arc::new(Connection::new(([127, 0, 0, 1], 1).into()))
}

/// Limits with these timeouts, and a minimum rate over a window of the same length.
fn limits(send_timeout: Duration, bytes_per_second: u64) -> ConnectionLimits {
    let rate_min = RateMin { bytes_per_second, window: send_timeout };
    ConnectionLimits { send_timeout, rate_min, ..ConnectionLimits::of(&config::Http::default()) }
}

/// Serves `body` as the response to every request.
fn serve_body(far: DuplexStream, limits: ConnectionLimits, body: Bytes) -> JoinHandle<()> {
    tokio::spawn(async move {
        let handler = |_, _| std::future::ready(Response::new(Full::new(body.clone())));
        serve(far, &limits, &handler, &Drain::default().signal(), &connection()).await;
    })
}

/// The other end of a link that carries so many bytes every two milliseconds in one direction.
fn slow_link(near: DuplexStream, bytes: usize) -> DuplexStream {
    let (end, far) = tokio::io::duplex(1024);
    tokio::spawn(async move {
        let (mut reads, mut writes) = tokio::io::split(near);
        let (mut end_reads, mut end_writes) = tokio::io::split(end);
        let up = tokio::io::copy(&mut end_reads, &mut writes);
        let down = async {
            let mut buffer = vec![0; bytes];
            loop {
                let read = reads.read(&mut buffer).await?;
                if read == 0 {
                    return Ok::<_, std::io::Error>(());
                }
                end_writes.write_all(&buffer[..read]).await?;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        // One of them ends with the connection.
        _ = futures::try_join!(up, down);
    });
    far
}

/// A client with these windows of a stream and of the connection.
async fn client(io: DuplexStream, stream: u32, connection: u32) -> SendRequest<Bytes> {
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(stream).initial_connection_window_size(connection);
    let (requests, driver) = builder.handshake(io).await.expect("shakes hands");
    tokio::spawn(driver);
    requests
}

async fn ask(requests: &SendRequest<Bytes>) -> RecvStream {
    try_ask(requests).await.expect("is answered")
}

async fn try_ask(requests: &SendRequest<Bytes>) -> Result<RecvStream, h2::Error> {
    let mut requests = requests.clone().ready().await.expect("is ready");
    let (answer, _) = requests.send_request(Request::new(()), true).expect("sends");
    answer.await.map(Response::into_body)
}

/// Reads to the end; returns the number of bytes.
async fn read(mut body: RecvStream) -> Result<usize, h2::Error> {
    let mut all = 0;
    while let Some(data) = body.data().await {
        let bytes = data?.len();
        body.flow_control().release_capacity(bytes).expect("was received");
        all += bytes;
    }
    Ok(all)
}

/// A request that the client has sent when its connection is evicted.
#[tokio::test]
async fn an_eviction_drops_no_request() {
    for _ in 0..30 {
        let (near, far) = tokio::io::duplex(1 << 16);
        let state = connection();
        let of_server = Arc::clone(&state);
        let server = tokio::spawn(async move {
            let limits = ConnectionLimits::of(&config::Http::default());
            let handler = |_, _| async { Response::new(Full::new(Bytes::from_static(b"fine"))) };
            serve(far, &limits, &handler, &Drain::default().signal(), &of_server).await;
        });
        let (mut requests, mut client) = h2::client::handshake(near).await.expect("shakes hands");
        // The server is idle.
        while futures::poll!(&mut client).is_pending() && state.awaiting_head_since().is_none() {
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
        let (answer, _) = requests.send_request(Request::new(()), true).expect("sends");
        assert!(futures::poll!(&mut client).is_pending());
        state.evict();
        let client = tokio::spawn(client);
        assert_eq!(answer.await.expect("is answered").status(), 200);
        drop(requests);
        server.await.expect("no panic");
        client.await.expect("no panic").expect("an orderly end");
    }
}

/// Each of many streams waits for its turn for longer than the send timeout, for the socket or for the connection's
/// window.
#[tokio::test]
async fn streams_that_wait_for_their_turn_on_a_slow_link_are_not_reset() {
    const STREAMS: usize = 40;
    const BYTES: usize = 24 << 10;
    for connection_window in [65_535, 1 << 30] {
        let (near, far) = tokio::io::duplex(4096);
        // At most 512 KB a second: a turn of all streams takes more than a second.
        let server = serve_body(far, limits(Duration::from_secs(1), 64), vec![7; BYTES].into());
        let requests = client(slow_link(near, 1024), 1 << 20, connection_window).await;
        let reads = (0..STREAMS).map(|_| async { read(ask(&requests).await).await });
        let all = tokio::time::timeout(PATIENCE, futures::future::join_all(reads)).await.expect("ends in time");
        for bytes in all {
            assert_eq!(bytes.expect("is not reset"), BYTES, "with a window of {connection_window}");
        }
        drop(requests);
        server.await.expect("no panic");
    }
}

#[tokio::test]
async fn a_stream_that_is_not_read_is_reset_beside_one_that_is() {
    let (near, far) = tokio::io::duplex(4096);
    let server = serve_body(far, limits(Duration::from_secs(1), 64), vec![7; 64 << 20].into());
    let requests = client(slow_link(near, 16 << 10), 64 << 10, 1 << 30).await;
    let (mut unread, mut other) = (ask(&requests).await, ask(&requests).await);
    let reading = async {
        while let Some(data) = other.data().await {
            let bytes = data.expect("is not reset").len();
            other.flow_control().release_capacity(bytes).expect("was received");
        }
        panic!("the other stream ends first");
    };
    let waiting = async {
        loop {
            match unread.data().await.expect("no orderly end") {
                Ok(_) => {}
                Err(error) => break error,
            }
        }
    };
    let error = tokio::select! {
        error = waiting => error,
        () = reading => unreachable!("it panics"),
    };
    assert_eq!((error.is_reset(), error.reason()), (true, Some(Reason::ENHANCE_YOUR_CALM)));
    server.abort();
}

#[tokio::test]
async fn the_streams_of_a_connection_below_the_minimum_rate_are_reset() {
    let (near, far) = tokio::io::duplex(4096);
    let server = serve_body(far, limits(Duration::from_millis(200), 1 << 30), vec![7; 1 << 20].into());
    let requests = client(slow_link(near, 1024), 1 << 20, 1 << 30).await;
    // Some may be reset before their head is sent.
    let reads = (0..10).map(|_| async { read(try_ask(&requests).await?).await });
    let all = tokio::time::timeout(PATIENCE, futures::future::join_all(reads)).await.expect("ends in time");
    for bytes in all {
        let error = bytes.expect_err("is reset");
        assert_eq!((error.is_reset(), error.reason()), (true, Some(Reason::ENHANCE_YOUR_CALM)));
    }
    server.abort();
}

/// Bytes that count how many of them exist.
struct Tracked(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Tracked {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

fn settings(initial_window: u16) -> Vec<u8> {
    let [high, low] = initial_window.to_be_bytes();
    vec![0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, high, low]
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn request(stream: u8) -> Vec<u8> {
    // GET, of the path "/", with the scheme "https" and the authority "x".
    [&[0, 0, 6, 1, 5, 0, 0, 0, stream][..], &[0x82, 0x84, 0x87, 0x41, 1, b'x']].concat()
}

fn window_update(stream: u8, bytes: u16) -> Vec<u8> {
    let [high, low] = bytes.to_be_bytes();
    vec![0, 0, 4, 8, 0, 0, 0, 0, stream, 0, 0, high, low]
}

/// Waits until the server resets a stream; returns the reason.
async fn until_reset(reads: &mut (impl AsyncRead + Unpin), stream: u8) -> u8 {
    loop {
        let mut head = [0; 9];
        reads.read_exact(&mut head).await.expect("a frame");
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        reads.read_exact(&mut payload).await.expect("its payload");
        if (head[3], head[8]) == (3, stream) {
            return payload[3];
        }
    }
}

/// A client reads one response at the minimum rate of the connection, and takes a byte of the other one before each
/// timeout.
#[tokio::test]
async fn a_stream_that_is_read_byte_by_byte_is_reset_beside_one_that_is_read() {
    let (near, far) = tokio::io::duplex(1 << 16);
    let server = serve_body(far, limits(Duration::from_millis(200), 1024), vec![7; 1 << 20].into());
    let (mut reads, mut writes) = tokio::io::split(near);
    let opening = [PREFACE, &settings(1000), &request(1), &request(3)].concat();
    writes.write_all(&opening).await.expect("sends");
    let updating = async {
        loop {
            let updates = [window_update(0, 1001), window_update(1, 1), window_update(3, 1000)].concat();
            writes.write_all(&updates).await.expect("sends");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let reason = tokio::select! {
        () = updating => unreachable!("it does not end"),
        reason = tokio::time::timeout(PATIENCE, until_reset(&mut reads, 1)) => reason.expect("is reset in time"),
    };
    assert_eq!(Reason::from(u32::from(reason)), Reason::ENHANCE_YOUR_CALM);
    server.abort();
}

/// A link that counts the flushes of what was written.
struct Flushes {
    link: DuplexStream,
    is_written: bool,
    count: Arc<AtomicUsize>,
}

impl AsyncRead for Flushes {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.link).poll_read(cx, buf)
    }
}

impl AsyncWrite for Flushes {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.is_written = true;
        Pin::new(&mut self.link).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.is_written) {
            self.count.fetch_add(1, Ordering::SeqCst);
        }
        Pin::new(&mut self.link).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.link).poll_shutdown(cx)
    }
}

/// Requests that arrive together are answered together; one that arrives alone is answered at once.
#[tokio::test]
async fn responses_that_are_ready_at_the_same_time_are_sent_together() {
    const STREAMS: u8 = 20;
    let (mut near, far) = tokio::io::duplex(1 << 20);
    let count = Arc::<AtomicUsize>::default();
    let link = Flushes { link: far, is_written: false, count: Arc::clone(&count) };
    let server = tokio::spawn(async move {
        let limits = ConnectionLimits::of(&config::Http::default());
        let handler = |_, _| async { Response::new(Full::new(Bytes::from(vec![7; 4096]))) };
        serve(link, &limits, &handler, &Drain::default().signal(), &connection()).await;
    });
    let requests: Vec<u8> = (0..STREAMS).flat_map(|index| request(2 * index + 1)).collect();
    near.write_all(&[PREFACE, &settings(16_000), &window_update(0, 60_000), &requests].concat()).await.expect("sends");
    until_ended(&mut near, 2 * STREAMS - 1).await;
    // The settings, and the responses.
    let flushes = count.swap(0, Ordering::SeqCst);
    assert!(flushes <= 3, "{flushes}");
    near.write_all(&request(2 * STREAMS + 1)).await.expect("sends");
    until_ended(&mut near, 2 * STREAMS + 1).await;
    assert_eq!(count.load(Ordering::SeqCst), 1);
    server.abort();
}

/// Waits until the server ends a stream.
async fn until_ended(reads: &mut (impl AsyncRead + Unpin), stream: u8) {
    let ending = async {
        loop {
            let mut head = [0; 9];
            reads.read_exact(&mut head).await.expect("a frame");
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            reads.read_exact(&mut payload).await.expect("its payload");
            // A frame with data and the flag END_STREAM.
            if (head[3], head[4] & 1, head[8]) == (0, 1, stream) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, ending).await.expect("ends in time");
}

/// What a response occupies, such as a permit: tells how many tracked bytes exist when it is released.
struct Permit(Arc<AtomicUsize>, Option<oneshot::Sender<usize>>);

impl Drop for Permit {
    fn drop(&mut self) {
        _ = self.1.take().expect("once").send(self.0.load(Ordering::SeqCst));
    }
}

/// A client resets a stream of which a piece is being written.
#[tokio::test]
async fn a_response_occupies_its_permit_until_nothing_of_it_is_left() {
    let (mut near, far) = tokio::io::duplex(1024);
    let tracked = Arc::new(AtomicUsize::new(0));
    let of_server = Arc::clone(&tracked);
    let (released, mut release) = oneshot::channel();
    let released = Mutex::new(Some(released));
    let server = tokio::spawn(async move {
        let handler = move |_, _| {
            of_server.fetch_add(1, Ordering::SeqCst);
            let bytes = Bytes::from_owner(Tracked(vec![7; 10_000], Arc::clone(&of_server)));
            let permit = Permit(Arc::clone(&of_server), released.lock().expect("no panic").take());
            // More follows later.
            let frames = futures::stream::iter([Ok::<_, Infallible>(Frame::data(bytes))]);
            let frames = frames.chain(futures::stream::pending()).inspect(move |_| _ = &permit);
            std::future::ready(Response::new(StreamBody::new(frames)))
        };
        serve(far, &limits(PATIENCE, 0), &handler, &Drain::default().signal(), &connection()).await;
    });
    near.write_all(&[PREFACE, &settings(16_000), &request(1)].concat()).await.expect("sends");
    // The server is writing the response.
    near.read_exact(&mut [0; 512]).await.expect("a response");
    near.write_all(&[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 8]).await.expect("sends");
    // It does not wait for what is written if it is released too early.
    _ = tokio::time::timeout(Duration::from_millis(100), &mut release).await.map(|left| assert_eq!(left, Ok(0)));
    let reading = async { while near.read_u8().await.is_ok() {} };
    let left = tokio::select! {
        () = reading => unreachable!("the connection stays open"),
        left = tokio::time::timeout(PATIENCE, &mut release) => left.expect("is released in time"),
    };
    assert_eq!(left, Ok(0));
    server.abort();
}

/// A client shrinks the window of a stream when its only piece is in `h2`, and reads only after the stream was reset:
/// `h2` has a part of the piece in its write buffer, and a reset does not discard the rest of it.
#[tokio::test]
async fn nothing_of_a_response_is_left_after_its_reset() {
    let (mut near, far) = tokio::io::duplex(1024);
    let (tracked, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (of_server, gone) = (Arc::clone(&tracked), Arc::clone(&go));
    let state = connection();
    let of_connection = Arc::clone(&state);
    let server = tokio::spawn(async move {
        let handler = move |_, _| {
            let (tracked, go) = (Arc::clone(&of_server), Arc::clone(&gone));
            async move {
                go.notified().await;
                tracked.fetch_add(1, Ordering::SeqCst);
                Response::new(Full::new(Bytes::from_owner(Tracked(vec![7; 10_000], tracked))))
            }
        };
        serve(far, &limits(Duration::from_millis(100), 0), &handler, &Drain::default().signal(), &of_connection).await;
    });
    near.write_all(&[PREFACE, &settings(16_000), &request(1)].concat()).await.expect("sends");
    while state.awaiting_head_since().is_some() {
        tokio::task::yield_now().await;
    }
    // The server reads the new window after it has handed the response to `h2`, and before that is sent.
    near.write_all(&settings(1000)).await.expect("sends");
    go.notify_one();
    while tracked.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    // The stream is reset meanwhile, or will be.
    tokio::time::sleep(Duration::from_millis(350)).await;
    let reading = async {
        let mut buffer = [0; 4096];
        while near.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
        std::future::pending::<()>().await;
    };
    let released = async {
        while tracked.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = reading => {}
        released = tokio::time::timeout(PATIENCE, released) => released.expect("nothing is left in time"),
    }
    server.abort();
}
