//! A cold 1 GiB file: the answer starts long before the last block is fetched, and memory is bounded for all readers.

use crate::support::causeway::{Causeway, Launch};
use crate::support::kubo::Kubo;
use crate::support::noise::Noise;
use crate::support::{assert_same_bytes, client, eventually};
use futures::StreamExt;
use std::io::Read;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::time::{Instant, interval, timeout_at};

const MIB: u64 = 1 << 20;
const LEN: u64 = 1 << 30;
const SEED: u64 = 300;
const RAM_BUDGET: u64 = 32 * MIB;
/// The allowed memory in addition to the RAM tier's budget.
const GROWTH_MAX: u64 = 64 * MIB;
/// Blocks in flight when a reader stops reading: read-ahead, sent wants, socket buffers.
const UNDER_WAY_MAX: u64 = 64 * MIB;

#[tokio::test(flavor = "multi_thread")]
async fn a_gibibyte_streams_in_little_memory() {
    let kubo = Kubo::start().await;
    let cid = kubo.add(Noise::new(SEED).take(LEN), &["--cid-version=1", "--raw-leaves"]);
    let path = format!("/ipfs/{cid}");

    let dir = TempDir::new().expect("the temporary folder is writable");
    let causeway = start(&dir, &kubo).await;
    let idle = causeway.process.resident_bytes();
    slow_reader(&causeway, &kubo, &path).await;
    let slow = growth("a slow reader", &causeway, idle);
    reader_who_leaves(&causeway, &kubo, &path).await;
    let leaves = growth("a reader who leaves", &causeway, idle);
    causeway.stop().await;

    let dir = TempDir::new().expect("the temporary folder is writable");
    let causeway = start(&dir, &kubo).await;
    let idle = causeway.process.resident_bytes();
    fast_reader(&causeway, &kubo, &path).await;
    let fast = growth("a fast reader", &causeway, idle);
    causeway.stop().await;

    // All three are measured before the first assertion, so that a failure shows all values.
    let allowed = RAM_BUDGET + GROWTH_MAX;
    for (reader, grown) in [("a slow reader", slow), ("a reader who leaves", leaves), ("a fast reader", fast)] {
        assert!(grown < allowed, "{reader}: memory grew by {} MiB, {} MiB allowed", grown / MIB, allowed / MIB);
    }
}

async fn start(dir: &TempDir, kubo: &Kubo) -> Causeway {
    let launch = Launch::new(dir.path()).peering(kubo.tcp()).set("CAUSEWAY_CACHE_RAM_BYTES_MAX", RAM_BUDGET);
    let causeway = launch.start().await;
    causeway.process.reset_resident_peak();
    causeway
}

fn growth(reader: &str, causeway: &Causeway, idle: u64) -> u64 {
    let grown = causeway.process.resident_peak_bytes().saturating_sub(idle);
    println!("{reader}: {} MiB resident when idle, {} MiB more at the peak", idle / MIB, grown / MIB);
    grown
}

/// Reads the whole file, and compares it while reading.
async fn fast_reader(causeway: &Causeway, kubo: &Kubo, path: &str) {
    let sent_before = kubo.sent().await.bytes;
    let begun = Instant::now();
    let response = client().get(causeway.url(path)).send().await.expect("an answer");
    assert_eq!((response.status().as_u16(), response.content_length()), (200, Some(LEN)));
    let mut body = response.bytes_stream();
    let (mut noise, mut expected, mut read) = (Noise::new(SEED), Vec::new(), 0);
    while let Some(chunk) = body.next().await {
        let chunk = chunk.expect("the file is complete");
        if read == 0 {
            let sent = kubo.sent().await.bytes - sent_before;
            println!("first byte after {:?}, when Kubo had sent {} MiB", begun.elapsed(), sent / MIB);
            assert!(sent < LEN / 4, "the first byte left when {sent} bytes had arrived");
        }
        expected.resize(chunk.len(), 0);
        noise.fill(&mut expected);
        assert_same_bytes(&format!("{path} from byte {read}"), &chunk, &expected);
        read += chunk.len() as u64;
    }
    assert_eq!(read, LEN);
    println!("last byte after {:?}", begun.elapsed());
}

/// Reads 50 KB/s for ten seconds, then disconnects. Unread blocks are not fetched (backpressure).
async fn slow_reader(causeway: &Causeway, kubo: &Kubo, path: &str) {
    let sent_before = kubo.sent().await.bytes;
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(64 << 10).expect("a small buffer is allowed");
    let host = causeway.url("").trim_start_matches("http://").to_owned();
    let mut connection = socket.connect(host.parse().expect("an address")).await.expect("the gateway accepts");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    connection.write_all(request.as_bytes()).await.expect("the gateway reads");

    let mut pace = interval(Duration::from_millis(100));
    let mut portion = vec![0; 5_000];
    for _ in 0..100 {
        pace.tick().await;
        let deadline = Instant::now() + Duration::from_secs(30);
        timeout_at(deadline, connection.read_exact(&mut portion)).await.expect("in time").expect("more of the file");
    }
    let sent = kubo.sent().await.bytes - sent_before;
    println!("500 KB were read in ten seconds, when Kubo had sent {} MiB", sent / MIB);
    assert!(sent < UNDER_WAY_MAX, "{sent} bytes fetched for a reader of 500,000");
    drop(connection);
    assert_transfer_ends(kubo).await;
}

/// Reads half of the file at full speed, then disconnects.
async fn reader_who_leaves(causeway: &Causeway, kubo: &Kubo, path: &str) {
    let sent_before = kubo.sent().await.bytes;
    let mut body = client().get(causeway.url(path)).send().await.expect("an answer").bytes_stream();
    let mut read = 0;
    while read < LEN / 2 {
        read += body.next().await.expect("half is not all").expect("more of the file").len() as u64;
    }
    drop(body);
    let sent = assert_transfer_ends(kubo).await - sent_before;
    assert!(sent < read + UNDER_WAY_MAX, "{sent} bytes were sent for a reader of {read}");
}

/// Waits until Kubo has sent nothing for a second, and returns the total.
async fn assert_transfer_ends(kubo: &Kubo) -> u64 {
    let mut last = kubo.sent().await.bytes;
    let mut since = Instant::now();
    eventually("Kubo stops sending", Duration::from_secs(15), async || {
        let now = kubo.sent().await.bytes;
        if now != last {
            (last, since) = (now, Instant::now());
        }
        if since.elapsed() > Duration::from_secs(1) { Ok(now) } else { Err(format!("{now} bytes so far")) }
    })
    .await
}
