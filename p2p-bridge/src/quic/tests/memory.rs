//! Memory: streams that are not read, and the budget.

use super::*;
use crate::quic::stream::PIECE_BYTES;

const DELAY: Duration = Duration::from_millis(100);

#[tokio::test]
async fn an_unread_stream_does_not_stop_the_others() {
    for mut dialer in [ours(), theirs()] {
        let mut listener = ours();
        let address = listener.listen(LOCALHOST).await;
        let (client, mut server) = connect(&mut dialer, &mut listener, &address).await;
        keep(dialer);
        keep(listener);
        let bytes = content(4 * MIB);
        let unread = tokio::spawn(send(client.open().await, bytes.clone()));
        let mut kept = in_time(server.accept()).await;
        let sending = tokio::spawn(send(client.open().await, bytes.clone()));
        let mut read = in_time(server.accept()).await;
        assert!(in_time(read_all(&mut read)).await == bytes);
        // What was spilled from QUIC is still there, in order.
        assert!(in_time(read_all(&mut kept)).await == bytes);
        let _ = (unread.await.expect("sent"), sending.await.expect("sent"));
    }
}

#[tokio::test]
async fn many_streams_with_a_byte_that_is_not_read_take_little_memory() {
    const STREAMS: usize = 200;
    let budget = Budget::new(64 * MIB);
    let (mut dialer, mut listener) = (ours(), ours_with(&budget).0);
    let address = listener.listen(LOCALHOST).await;
    let (client, mut server) = connect(&mut dialer, &mut listener, &address).await;
    keep(dialer);
    keep(listener);
    let (mut sending, mut reading) = (Vec::new(), Vec::new());
    for _ in 0..STREAMS {
        let mut stream = in_time(client.open()).await;
        stream.write_all(b"x").await.expect("written");
        sending.push(stream);
        reading.push(in_time(server.accept()).await);
    }
    until(|| budget.free().0 == 64 * MIB - STREAMS * PIECE_BYTES).await;
    for (mut one, other) in sending.into_iter().zip(&mut reading) {
        one.write_all(b"y").await.expect("written");
        one.close().await.expect("closed");
        assert_eq!(in_time(read_all(other)).await, b"xy");
    }
    until(|| budget.free().0 == 64 * MIB).await;
}

#[tokio::test]
async fn an_unread_stream_is_stopped_if_there_is_no_memory_for_it() {
    let budget = Budget::new(0);
    let (mut dialer, mut listener) = (ours_with(&budget).0, ours_with(&budget).0);
    let address = listener.listen(LOCALHOST).await;
    let (client, mut server) = connect(&mut dialer, &mut listener, &address).await;
    let bytes = content(2 * MIB);
    let mut stream = client.open().await;
    let unread = tokio::spawn(async move { stream.write_all(&content(2 * MIB)).await });
    let mut kept = in_time(server.accept()).await;
    let sending = tokio::spawn(send(client.open().await, bytes.clone()));
    let mut read = in_time(server.accept()).await;
    assert!(in_time(read_all(&mut read)).await == bytes);
    assert!(kept.read_to_end(&mut Vec::new()).await.is_err(), "the stream was given up");
    assert!(unread.await.expect("ended").is_err(), "the writer learns of it");
    assert_eq!(budget.metrics().stopped_streams.get(), 1);
    sending.await.expect("sent");
}

#[tokio::test]
async fn what_a_connection_had_of_the_budget_is_free_after_its_end() {
    let budget = Budget::new(64 * MIB);
    let (mut dialer, mut listener) = (ours_with(&budget).0, ours_with(&budget).0);
    let address = listener.listen(LOCALHOST).await;
    let (client, mut server) = connect(&mut dialer, &mut listener, &address).await;
    // A stream that is not read takes memory of the budget for certain.
    let mut stream = client.open().await;
    let writing = tokio::spawn(async move {
        let _ = stream.write_all(&content(4 * MIB)).await;
    });
    let unread = in_time(server.accept()).await;
    until(|| budget.free().0 < 64 * MIB).await;
    writing.abort();
    drop((unread, client, server));
    until(|| budget.free() == (64 * MIB, 64 * MIB)).await;
}

#[tokio::test]
async fn the_end_and_the_reset_of_a_stream_are_reported_after_bytes_were_spilled() {
    const TOTAL: usize = 64 * MIB;
    for is_reset in [true, false] {
        let budget = Budget::new(TOTAL);
        let mut connection = Undriven::new(&budget).await;
        let (mut sending, mut reading) = connection.stream(b"part").await;
        connection.ticks(2);
        assert_eq!(budget.free().0, TOTAL - PIECE_BYTES);
        let before = connection.frames();
        if is_reset {
            sending.reset(7_u32.into()).expect("reset");
            until(|| connection.frames().reset_stream > before.reset_stream).await;
        } else {
            sending.finish().expect("finished");
            until(|| connection.frames().stream > before.stream).await;
        }
        connection.ticks(2);
        let mut read = Vec::new();
        let ended = in_time(reading.read_to_end(&mut read)).await;
        assert_eq!((ended.is_err(), &read[..]), (is_reset, &b"part"[..]));
        assert_eq!(reading.read(&mut [0]).await.is_err(), is_reset, "again");
        assert_eq!(budget.free().0, TOTAL);
    }
}

#[tokio::test]
async fn a_quiet_stream_is_not_stopped_when_bytes_arrive_without_memory() {
    let mut connection = Undriven::new(&Budget::new(0)).await;
    let (mut sending, mut reading) = connection.stream(b"a").await;
    let mut read = [0];
    in_time(reading.read_exact(&mut read)).await.expect("read");
    connection.ticks(40);
    let before = connection.frames().stream;
    sending.write_all(b"bcdefghijklmnopqrstuvwxyz").await.expect("written");
    until(|| connection.frames().stream > before).await;
    connection.ticks(11);
    let mut read = [0; 25];
    in_time(reading.read_exact(&mut read)).await.expect("it waits for some seconds");
    assert_eq!(&read, b"bcdefghijklmnopqrstuvwxyz");
    let before = connection.frames().stream;
    sending.write_all(b"0123456789abcdef").await.expect("written");
    until(|| connection.frames().stream > before).await;
    connection.ticks(13);
    assert!(in_time(reading.read_exact(&mut read)).await.is_err(), "for no longer");
}

/// Sends from the first peer to the second.
async fn transfer(from: &Peer, to: &mut Peer, bytes: &[u8]) {
    let sending = async { send(from.open().await, bytes.to_vec()).await };
    let reading = async { read_all(&mut to.accept().await).await };
    let (_sent, read) = in_time(async { futures::join!(sending, reading) }).await;
    assert!(read == bytes);
}

/// Windows grow only if this machine keeps up with the path, so it may take long beside other load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an idle machine; make test-long runs it"]
async fn an_idle_connection_returns_what_exceeds_its_minimum() {
    const TOTAL: usize = 256 * MIB;
    let (sending, reading) = (Budget::new(TOTAL), Budget::new(TOTAL));
    let (mut dialer, mut listener) = (ours_with(&reading).0, ours_with(&sending).0);
    let address = listener.listen(LOCALHOST).await;
    let through = path(&address, DELAY, |_, _| true).await;
    let (mut client, server) = connect(&mut dialer, &mut listener, &through).await;
    keep(dialer);
    keep(listener);
    let bytes = content(8 * MIB);
    // A machine that is slow for a moment needs more than one.
    while reading.free().0 == TOTAL || sending.free().0 == TOTAL {
        transfer(&server, &mut client, &bytes).await;
    }
    until(|| reading.free().0 == TOTAL && sending.free() == (TOTAL, TOTAL)).await;
    let surplus = TOTAL - reading.free().1;
    assert!(surplus > 0, "what the peer may still send stays reserved");
    // It can do as much as before.
    transfer(&server, &mut client, &bytes).await;
    while TOTAL - reading.free().1 >= surplus {
        transfer(&server, &mut client, &bytes).await;
    }
    drop((client, server));
    until(|| reading.free() == (TOTAL, TOTAL) && sending.free() == (TOTAL, TOTAL)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_busy_connections_share_a_small_budget() {
    const CONNECTIONS: usize = 12;
    const TOTAL: usize = 16 * MIB;
    let budget = Budget::new(TOTAL);
    let mut listener = ours_with(&budget).0;
    let address = listener.listen(LOCALHOST).await;
    let mut peers = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut dialer = ours();
        let through = path(&address, DELAY / 4, |_, _| true).await;
        peers.push(connect(&mut dialer, &mut listener, &through).await);
        keep(dialer);
    }
    keep(listener);
    let bytes = content(2 * MIB);
    let busy = peers.iter_mut().map(|(dialled, accepted)| async {
        transfer(dialled, accepted, &bytes).await;
        transfer(accepted, dialled, &bytes).await;
    });
    futures::future::join_all(busy).await;
    drop(peers);
    until(|| budget.free() == (TOTAL, TOTAL)).await;
}
