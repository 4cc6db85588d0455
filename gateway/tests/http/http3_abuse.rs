//! Clients that abuse HTTP/3: heads without an end, floods of what is no request, resets, handshakes that are not
//! finished, forged datagrams, random bytes.

use crate::dag::{noise, raw};
use crate::quic::{
    CONNECTION_CLOSE, HEADERS, Http3, RawClient, connect_quic, frame, get_frame, head, initial, moment, varint,
};
use crate::site::{PATIENCE, Setup, Site, until};
use crate::upstream::FakeNetwork;
use content::Block;
use futures::FutureExt as _;
use h3::error::Code;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UdpSocket;

/// The maximum number of streams of a connection.
const STREAMS_MAX: u64 = 100;
/// What a client can send of one head, at most: what is read, and the window beyond it.
const HEAD_SENT_MAX: usize = 2 * 32 * 1024 + 64 * 1024;

/// The maximum number of unfinished handshakes of addresses that are not validated.
const UNVALIDATED_MAX: u64 = 32;
const RETRIES: &str = "causeway_http_quic_retries_total";
const CONNECTIONS: &str = "causeway_http_quic_connections";

/// A site whose network holds a block back, and the path to it.
async fn site(set: impl FnOnce(&mut Setup)) -> (Site, Arc<FakeNetwork>, String) {
    let absent = raw("far away");
    let network = FakeNetwork::new([&absent], [&absent]);
    let mut setup = Setup { tls: true, upstream: Some(Arc::clone(&network) as Arc<_>), ..Setup::new(&[]) };
    set(&mut setup);
    (setup.start().await, network, format!("/ipfs/{}", absent.cid()))
}

/// Another client is served.
async fn serves(site: &Site) {
    assert_eq!(Http3::connect(site).await.body("/healthz").await.expect("answers"), b"ok\n");
    assert_eq!(site.metric("causeway_http_panics_total"), 0);
}

#[tokio::test]
async fn heads_without_an_end_are_reset() {
    let (site, ..) = site(|_| {}).await;
    let client = RawClient::connect(&site).await;
    // A head of a terabyte, the same in small pieces, and an unknown frame before the head.
    let begin = |kind: u64| [varint(kind), varint(1 << 40)].concat();
    let table = [(begin(HEADERS), 16_384), (begin(HEADERS), 1), (begin(0x21), 16_384)];
    for (begin, piece) in table {
        let (mut send, mut receive) = client.open(&begin).await.expect("opens");
        let mut sent = 0;
        let some = vec![b'a'; piece];
        while send.write_all(&some).await.is_ok() {
            sent += piece;
            assert!(sent <= HEAD_SENT_MAX, "the head is read without an end");
        }
        let error = receive.read_to_end(1000).await.expect_err("no orderly end");
        let reset = matches!(error, quinn::ReadToEndError::Read(quinn::ReadError::Reset(code))
            if code.into_inner() == Code::H3_EXCESSIVE_LOAD.value());
        assert!(reset, "{error}");
    }
    assert_eq!(site.metric("causeway_http_version_requests_total{version=\"3\"}"), 0);
    // The connection goes on, with an unknown frame that has an end.
    let request = [frame(0x21, &[7; 100]), get_frame("/healthz")].concat();
    let (mut send, mut receive) = client.open(&request).await.expect("opens");
    send.finish().expect("is open");
    let answer = receive.read_to_end(10_000).await.expect("an orderly end");
    assert!(answer.ends_with(b"ok\n"), "{answer:?}");
    serves(&site).await;
}

#[tokio::test]
async fn heads_that_are_too_long_are_answered() {
    let (site, ..) = site(|_| {}).await;
    let client = RawClient::connect(&site).await;
    let (mut send, mut receive) = client.open(&frame(HEADERS, &head("/healthz", 33_000))).await.expect("opens");
    send.finish().expect("is open");
    let answer = receive.read_to_end(10_000).await.expect("an orderly end");
    // A head alone, whose only field is a status without an index: 431.
    assert_eq!((answer[0], usize::from(answer[1])), (1, answer.len() - 2), "{answer:?}");
    assert!(answer.len() < 12, "{answer:?}");
    assert_eq!(site.metric("causeway_http_version_requests_total{version=\"3\"}"), 0);
    // One that is just short enough.
    let (mut send, mut receive) = client.open(&frame(HEADERS, &head("/healthz", 32_000))).await.expect("opens");
    send.finish().expect("is open");
    assert!(receive.read_to_end(10_000).await.expect("an orderly end").ends_with(b"ok\n"));
}

/// Whether the server has reset a stream, on which it sends nothing. The end of the connection is no reset.
fn is_reset(receive: &mut quinn::RecvStream) -> bool {
    let end = receive.read_to_end(1).now_or_never();
    matches!(end, Some(Err(quinn::ReadToEndError::Read(quinn::ReadError::Reset(_)))))
}

/// All streams of a connection together hold few bytes of heads.
#[tokio::test]
async fn incomplete_heads_are_bounded_together_and_in_time() {
    let (site, ..) = site(|setup| setup.http.header_timeout_seconds = 3).await;
    let client = RawClient::connect(&site).await;
    let part = [varint(HEADERS), varint(40_000), vec![b'a'; 20_000]].concat();
    let mut streams = Vec::new();
    for _ in 0..STREAMS_MAX {
        // Those that are too many are reset, perhaps before all is sent.
        if let Ok(stream) = client.open(&part).await {
            streams.push(stream);
        }
    }
    // 128 KiB are enough for six of them.
    let begun = Instant::now();
    loop {
        streams.retain_mut(|(_, receive)| !is_reset(receive));
        if streams.len() <= 6 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{} streams are not reset", streams.len());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // No request comes.
    assert_eq!(client.ended().await, Some(Code::H3_NO_ERROR.value()));
    site.until_metric("causeway_http_connections", 0).await;
    serves(&site).await;
}

#[tokio::test]
async fn floods_of_what_is_no_request_end_the_connection() {
    let (site, ..) = site(|_| {}).await;
    let max_push_id = |value: u64| frame(0xd, &varint(value));
    let table = [
        ("MAX_PUSH_ID", max_push_id(7)),
        ("an unknown frame", frame(0x21, &[])),
        ("PRIORITY_UPDATE", frame(0xf_0700, &[0, b'u', b'=', b'3'])),
    ];
    for (name, one) in table {
        let mut client = RawClient::connect(&site).await;
        let some = one.repeat(1000);
        let begun = Instant::now();
        while client.control.write_all(&some).await.is_ok() {
            assert!(begun.elapsed() < PATIENCE, "{name}: the server reads on");
        }
        assert_eq!(client.ended().await, Some(Code::H3_EXCESSIVE_LOAD.value()), "{name}");
    }
    // A frame without an end is not read, however slowly it is sent.
    let mut client = RawClient::connect(&site).await;
    client.control.write_all(&[varint(0x21), varint(1 << 40)].concat()).await.expect("sends");
    assert_eq!(client.ended().await, Some(Code::H3_EXCESSIVE_LOAD.value()));
    // Streams that are not known.
    let client = RawClient::connect(&site).await;
    while let Ok(mut stream) = client.quic.open_uni().await {
        _ = stream.write_all(&varint(0x21)).await;
        _ = stream.reset(0_u32.into());
    }
    assert_eq!(client.ended().await, Some(Code::H3_EXCESSIVE_LOAD.value()));
    site.until_metric("causeway_http_connections", 0).await;
    serves(&site).await;
}

/// Streams that are reset as soon as they are opened, before and after their head (CVE-2023-44487 over HTTP/2).
#[tokio::test]
async fn rapid_resets_end_the_connection() {
    let (site, network, path) = site(|_| {}).await;
    for request in [get_frame(&path), varint(HEADERS)] {
        let client = RawClient::connect(&site).await;
        let (begun, mut in_flight_max) = (Instant::now(), 0);
        while let Ok((mut send, mut receive)) = client.open(&request).await {
            _ = send.reset(0_u32.into());
            _ = receive.stop(0_u32.into());
            in_flight_max = in_flight_max.max(site.metric("causeway_http_requests_in_flight"));
            assert!(begun.elapsed() < PATIENCE, "the server goes on");
        }
        assert_eq!(client.ended().await, Some(Code::H3_EXCESSIVE_LOAD.value()));
        assert!(in_flight_max <= STREAMS_MAX, "{in_flight_max}");
        site.until_metric("causeway_http_requests_in_flight", 0).await;
    }
    until(|| network.waiting() == 0, "the fetches to end").await;
    serves(&site).await;
}

/// A client that opens as many streams as it may, with windows that admit not even a head.
#[tokio::test]
async fn streams_without_a_window_end_in_time() {
    let block: Block = raw(noise(1, 100_000));
    let mut setup = Setup { tls: true, ..Setup::new(&[&block]) };
    // All streams are opened within it, however busy this machine is.
    setup.http.send_timeout_seconds = 5;
    let site = setup.start().await;
    let memory = Arc::clone(site.gateway.limits().memory.all());
    let all = memory.left();
    let set = |transport: &mut quinn::TransportConfig| _ = transport.stream_receive_window(64_u32.into());
    let encrypted = site.encrypted();
    let (_endpoint, quic) = connect_quic(encrypted, encrypted.address, set).await.expect("shakes hands");
    let mut control = quic.open_uni().await.expect("opens");
    control.write_all(&[0, 4, 0]).await.expect("sends");
    let request = get_frame(&format!("/ipfs/{}", block.cid()));
    let mut streams = Vec::new();
    for _ in 0..STREAMS_MAX {
        let (mut send, receive) = quic.open_bi().await.expect("opens");
        send.write_all(&request).await.expect("sends");
        send.finish().expect("is open");
        streams.push(receive);
    }
    site.until_metric("causeway_http_requests_in_flight", STREAMS_MAX).await;
    // No more than that.
    assert!(tokio::time::timeout(Duration::from_millis(100), quic.open_bi()).await.is_err(), "the streams are limited");
    // None ends because its client begins to read.
    site.until_metric("causeway_http_requests_in_flight", 0).await;
    for receive in &mut streams {
        let ended = tokio::time::timeout(PATIENCE, receive.read_to_end(1_000_000)).await.expect("an end in time");
        ended.expect_err("no orderly end");
    }
    until(|| memory.left() == all, "the memory to be released").await;
}

/// Sends what a client sends on to the server, and never an answer back.
async fn one_way(server: SocketAddr) -> SocketAddr {
    let (front, back) = (UdpSocket::bind("127.0.0.1:0").await, UdpSocket::bind("127.0.0.1:0").await);
    let (front, back) = (front.expect("a free port"), back.expect("a free port"));
    let address = front.local_addr().expect("is bound");
    tokio::spawn(async move {
        let mut packet = vec![0; 2048];
        // The first packet alone, so that nothing speaks for the client.
        let (length, _) = front.recv_from(&mut packet).await.expect("receives");
        back.send_to(&packet[..length], server).await.expect("sends");
        std::future::pending::<()>().await;
    });
    address
}

/// Datagrams that each open a connection and close it, so that no handshake remains. QUIC may store their state all the
/// same: it counts.
#[tokio::test]
async fn forged_datagrams_that_close_their_connection_are_counted_and_bounded() {
    let (site, ..) = site(|_| {}).await;
    let (socket, server) = (UdpSocket::bind("127.0.0.1:0").await.expect("a free port"), site.encrypted().address);
    for number in 0..UNVALIDATED_MAX {
        socket.send_to(&initial(number, &CONNECTION_CLOSE), server).await.expect("sends");
    }
    // The next one has to prove its address, which the forger cannot.
    socket.send_to(&initial(UNVALIDATED_MAX, &CONNECTION_CLOSE), server).await.expect("sends");
    site.until_metric(RETRIES, 1).await;
    site.until_metric(CONNECTIONS, 0).await;
    moment().await;
    for piece in 1..=5 {
        // As many as the socket of the server holds.
        for number in 0..20 {
            socket.send_to(&initial(1_000 * piece + number, &CONNECTION_CLOSE), server).await.expect("sends");
        }
        site.until_metric(RETRIES, 1 + 20 * piece).await;
    }
    assert_eq!(site.metric(CONNECTIONS), 0);
    // A client that is there is served.
    serves(&site).await;
    assert_eq!(site.metric(RETRIES), 102);
}

/// Datagrams with the first bytes of a ClientHello, whose rest never comes.
#[tokio::test]
async fn forged_datagrams_that_begin_a_handshake_end_in_time() {
    let (site, ..) = site(|setup| setup.http.header_timeout_seconds = 2).await;
    let (socket, server) = (UdpSocket::bind("127.0.0.1:0").await.expect("a free port"), site.encrypted().address);
    // CRYPTO at the offset 0 with 100 bytes (RFC 9000, section 19.6): a ClientHello of 400 bytes.
    let begun = [&[0x06, 0][..], &varint(100), &[1, 0, 1, 0x90, 3, 3], &[7; 94]].concat();
    for number in 0..UNVALIDATED_MAX + 8 {
        socket.send_to(&initial(number, &begun), server).await.expect("sends");
    }
    site.until_metric(RETRIES, 8).await;
    assert_eq!(site.metric(CONNECTIONS), UNVALIDATED_MAX);
    let since = Instant::now();
    serves(&site).await;
    site.until_metric(CONNECTIONS, 0).await;
    assert!(since.elapsed() < Duration::from_secs(9), "they end with the timeout of the settings");
}

#[tokio::test]
async fn addresses_are_validated_while_many_handshakes_are_pending() {
    let (site, ..) = site(|_| {}).await;
    serves(&site).await;
    assert_eq!(site.metric(RETRIES), 0);
    site.until_metric("causeway_http_connections", 0).await;
    let mut pending = Vec::new();
    let encrypted = site.encrypted();
    for _ in 0..40 {
        let address = one_way(encrypted.address).await;
        let config = encrypted.trusting(&[&rustls::version::TLS13], &["h3"]);
        let tls = quinn::crypto::rustls::QuicClientConfig::try_from(config).expect("TLS 1.3");
        let endpoint = quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        let config = quinn::ClientConfig::new(Arc::new(tls));
        let connecting = endpoint.connect_with(config, address, "localhost").expect("can connect");
        pending.push((endpoint, tokio::spawn(connecting)));
    }
    site.until_metric(RETRIES, 8).await;
    assert_eq!(site.metric(CONNECTIONS), UNVALIDATED_MAX);
    // A client that is there is served all the same, after a round trip.
    serves(&site).await;
    assert_eq!(site.metric(RETRIES), 9);
    pending.iter().for_each(|(_, connecting)| connecting.abort());
    // They end without their clients.
    site.until_metric(CONNECTIONS, 0).await;
    // QUIC may store their state until the idle timeout, so that they count until then.
    serves(&site).await;
    assert_eq!(site.metric(RETRIES), 10);
}

/// Whatever bytes come on whatever streams, the server goes on.
#[tokio::test(flavor = "multi_thread")]
async fn random_bytes_cause_no_panic() {
    let (site, ..) = site(|_| {}).await;
    let runtime = tokio::runtime::Handle::current();
    // Bytes that look like frames more often than random ones do.
    let frames = prop::collection::vec(
        (
            prop_oneof![0_u64..16, Just(0x41), Just(0x54), any::<u64>().prop_map(|kind| kind >> 2)],
            prop::collection::vec(any::<u8>(), 0..40),
        ),
        0..6,
    );
    let bytes =
        frames.prop_map(|frames| frames.iter().flat_map(|(kind, payload)| frame(*kind, payload)).collect::<Vec<u8>>());
    let section =
        prop::collection::vec(any::<u8>(), 0..60).prop_map(|bytes| frame(HEADERS, &[&[0, 0][..], &bytes].concat()));
    let streams = prop::collection::vec(
        (any::<bool>(), prop_oneof![bytes, section, prop::collection::vec(any::<u8>(), 0..80)]),
        1..6,
    );
    let site = &site;
    tokio::task::block_in_place(|| {
        let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
        let result = runner.run(&streams, |streams| {
            runtime.block_on(async {
                let client = RawClient::connect(site).await;
                for (is_request, bytes) in streams {
                    let sent = match is_request {
                        true => client.open(&bytes).await.map(|(send, _)| send).map_err(drop),
                        false => match client.quic.open_uni().await {
                            Ok(mut send) => send.write_all(&bytes).await.map(|()| send).map_err(drop),
                            Err(_) => Err(()),
                        },
                    };
                    if let Ok(mut send) = sent {
                        _ = send.finish();
                    }
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            });
            prop_assert_eq!(site.metric("causeway_http_panics_total"), 0);
            Ok(())
        });
        result.expect("no panic");
    });
    moment().await;
    serves(site).await;
}
