//! Clients that speak HTTP/3: with `h3`, with bytes of their own on QUIC streams, or with a hand-made datagram.

use crate::certificate::Encrypted;
use crate::site::{PATIENCE, Site};
use bytes::{Buf as _, Bytes, BytesMut};
use h3::client::{RequestStream, SendRequest};
use h3::error::{Code, ConnectionError, StreamError};
use http::{Request, Response};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint, TransportConfig, VarInt};
use rustls::version::TLS13;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// A stream of `h3`, after its request.
pub type Stream = RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;

/// Connects over QUIC.
pub async fn connect_quic(
    encrypted: &Encrypted,
    address: SocketAddr,
    set: impl FnOnce(&mut TransportConfig),
) -> Result<(Endpoint, quinn::Connection), quinn::ConnectionError> {
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(Some(VarInt::from_u32(20_000).into()));
    set(&mut transport);
    let tls = QuicClientConfig::try_from(encrypted.trusting(&[&TLS13], &["h3"])).expect("TLS 1.3");
    let mut config = ClientConfig::new(Arc::new(tls));
    config.transport_config(Arc::new(transport));
    let endpoint = Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let connecting = endpoint.connect_with(config, address, "localhost").expect("can connect");
    let connection = tokio::time::timeout(PATIENCE, connecting).await.expect("in time")?;
    Ok((endpoint, connection))
}

/// A client that speaks HTTP/3 with `h3`.
pub struct Http3 {
    pub quic: quinn::Connection,
    pub requests: SendRequest<h3_quinn::OpenStreams, Bytes>,
    driver: JoinHandle<ConnectionError>,
    _endpoint: Endpoint,
}

impl Http3 {
    pub async fn connect(site: &Site) -> Self {
        Self::connect_with(site.encrypted(), |_| {}).await
    }

    pub async fn connect_with(encrypted: &Encrypted, set: impl FnOnce(&mut TransportConfig)) -> Self {
        Self::begin_with(connect_quic(encrypted, encrypted.address, set).await.expect("shakes hands")).await
    }

    /// Connects as soon as the server accepts another connection.
    pub async fn connect_when_accepted(site: &Site) -> Self {
        let begun = Instant::now();
        loop {
            match connect_quic(site.encrypted(), site.encrypted().address, |_| {}).await {
                Ok(connected) => return Self::begin_with(connected).await,
                Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
            }
        }
    }

    async fn begin_with((endpoint, quic): (Endpoint, quinn::Connection)) -> Self {
        let connection = h3_quinn::Connection::new(quic.clone());
        let (mut connection, requests) = h3::client::new(connection).await.expect("begins");
        let driver = tokio::spawn(async move { connection.wait_idle().await });
        Self { quic, requests, driver, _endpoint: endpoint }
    }

    /// Sends a request.
    pub async fn begin(&mut self, request: Request<()>) -> Result<Stream, StreamError> {
        let mut stream = self.requests.send_request(request).await?;
        match stream.finish().await {
            // A server that has answered already needs no end of the request (RFC 9114, section 4.1).
            Err(StreamError::RemoteTerminate { code: Code::H3_NO_ERROR, .. }) | Ok(()) => Ok(stream),
            Err(error) => Err(error),
        }
    }

    /// Sends a request, and waits for the head of its response.
    pub async fn send(&mut self, request: Request<()>) -> Result<(Response<()>, Stream), StreamError> {
        let mut stream = self.begin(request).await?;
        let head = tokio::time::timeout(PATIENCE, stream.recv_response()).await.expect("an answer in time")?;
        Ok((head, stream))
    }

    pub async fn get(&mut self, path: &str) -> Result<(Response<()>, Stream), StreamError> {
        self.send(get(path)).await
    }

    /// The whole body of a path.
    pub async fn body(&mut self, path: &str) -> Result<Vec<u8>, StreamError> {
        let (_, stream) = self.get(path).await?;
        read(stream).await
    }

    pub fn is_closed(&self) -> bool {
        self.quic.close_reason().is_some()
    }

    /// Waits for the end of the connection; returns the code that the server gave.
    pub async fn ended(self) -> Option<u64> {
        // The client keeps its end open meanwhile.
        let Self { quic, requests, driver, _endpoint } = self;
        tokio::time::timeout(PATIENCE, driver).await.expect("an end in time").expect("no panic");
        drop(requests);
        code_of(&quic.closed().await)
    }
}

/// The code with which a server has closed a connection.
pub fn code_of(error: &quinn::ConnectionError) -> Option<u64> {
    match error {
        quinn::ConnectionError::ApplicationClosed(close) => Some(close.error_code.into_inner()),
        _ => None,
    }
}

pub fn get(path: &str) -> Request<()> {
    Request::get(format!("https://127.0.0.1{path}")).body(()).expect("a request")
}

/// The rest of a response.
pub async fn read(mut stream: Stream) -> Result<Vec<u8>, StreamError> {
    let mut all = Vec::new();
    loop {
        let data = tokio::time::timeout(PATIENCE, stream.recv_data()).await.expect("data in time")?;
        let Some(mut data) = data else { return Ok(all) };
        all.extend_from_slice(&data.copy_to_bytes(data.remaining()));
    }
}

/// The code with which a stream was reset.
pub fn reset_code(error: &StreamError) -> Option<Code> {
    match error {
        StreamError::RemoteTerminate { code, .. } => Some(*code),
        _ => None,
    }
}

/// A client that sends bytes of its own.
pub struct RawClient {
    pub quic: quinn::Connection,
    /// The control stream, after SETTINGS.
    pub control: quinn::SendStream,
    _endpoint: Endpoint,
}

impl RawClient {
    pub async fn connect(site: &Site) -> Self {
        let encrypted = site.encrypted();
        let (endpoint, quic) = connect_quic(encrypted, encrypted.address, |_| {}).await.expect("shakes hands");
        let mut control = quic.open_uni().await.expect("opens");
        control.write_all(&[0, 4, 0]).await.expect("sends");
        Self { quic, control, _endpoint: endpoint }
    }

    /// Opens a stream and sends bytes on it.
    pub async fn open(
        &self,
        bytes: &[u8],
    ) -> Result<(quinn::SendStream, quinn::RecvStream), Box<dyn std::error::Error>> {
        let (mut send, receive) = self.quic.open_bi().await?;
        send.write_all(bytes).await?;
        Ok((send, receive))
    }

    /// Waits for the end of the connection; returns the code that the server gave.
    pub async fn ended(self) -> Option<u64> {
        code_of(&tokio::time::timeout(PATIENCE, self.quic.closed()).await.expect("an end in time"))
    }
}

/// The frame CONNECTION_CLOSE without an error (RFC 9000, section 19.19).
pub const CONNECTION_CLOSE: [u8; 4] = [0x1c, 0, 0, 0];

/// A datagram that opens a connection: an Initial packet with these frames (RFC 9000, section 17.2.2). It can be sent
/// from a forged address, since its keys follow from what is in it (RFC 9001, section 5.2).
pub fn initial(number: u64, frames: &[u8]) -> Vec<u8> {
    const BYTES: usize = 1200;
    const TAG_BYTES: usize = 16;
    let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256.tls13().expect("a suite of TLS 1.3");
    let (id, suite) = (number.to_be_bytes(), suite.quic_suite().expect("QUIC"));
    let keys = suite.keys(&id, rustls::Side::Client, rustls::quic::Version::V1).local;
    // An Initial packet of version 1, whose packet number has four bytes; the IDs of the server and of the client; no
    // token.
    let mut header = vec![0xc3, 0, 0, 0, 1, 8];
    header.extend_from_slice(&id);
    header.push(8);
    header.extend_from_slice(&id);
    header.push(0);
    // The length of the rest has two bytes.
    let rest = BYTES - header.len() - 2;
    header.extend_from_slice(&varint(rest as u64));
    let number_at = header.len();
    header.extend_from_slice(&[0; 4]);
    // PADDING follows the frames.
    let mut payload = vec![0; rest - 4 - TAG_BYTES];
    payload[..frames.len()].copy_from_slice(frames);
    let tag = keys.packet.encrypt_in_place(0, &header, &mut payload).expect("is short");
    let sample: Vec<u8> = payload[..keys.header.sample_len()].to_vec();
    let (first, others) = header.split_at_mut(1);
    keys.header.encrypt_in_place(&sample, &mut first[0], &mut others[number_at - 1..]).expect("a sample");
    [&header[..], &payload, tag.as_ref()].concat()
}

/// A variable-length integer (RFC 9000, section 16).
pub fn varint(value: u64) -> Vec<u8> {
    match value {
        0..64 => vec![value.to_be_bytes()[7]],
        64..16_384 => (value | 1 << 14).to_be_bytes()[6..].to_vec(),
        16_384..1_073_741_824 => (value | 2 << 30).to_be_bytes()[4..].to_vec(),
        _ => (value | 3 << 62).to_be_bytes().to_vec(),
    }
}

/// A frame (RFC 9114, section 7.1).
pub fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    [&varint(kind), &varint(payload.len() as u64), payload].concat()
}

/// The type of HEADERS.
pub const HEADERS: u64 = 1;

/// The field section of a GET request (RFC 9204, section 4.5), with a further field of so many bytes.
pub fn head(path: &str, further: usize) -> Vec<u8> {
    let mut block = BytesMut::from(&[0, 0, 0xc0 | 17, 0xc0 | 23][..]);
    let mut literal = |name: &[u8], value: &[u8]| {
        block.extend_from_slice(name);
        // A length with a prefix of seven bits.
        match value.len() {
            length @ 0..127 => block.extend_from_slice(&[u8::try_from(length).expect("short")]),
            length => {
                block.extend_from_slice(&[127]);
                let mut rest = length - 127;
                while rest >= 128 {
                    block.extend_from_slice(&[u8::try_from(rest % 128 + 128).expect("a byte")]);
                    rest /= 128;
                }
                block.extend_from_slice(&[u8::try_from(rest).expect("a byte")]);
            }
        }
        block.extend_from_slice(value);
    };
    literal(&[0x50], b"127.0.0.1");
    literal(&[0x51], path.as_bytes());
    if further > 0 {
        literal(b"\x23x-a", &vec![b'a'; further]);
    }
    block.to_vec()
}

/// A HEADERS frame with a GET request.
pub fn get_frame(path: &str) -> Vec<u8> {
    frame(HEADERS, &head(path, 0))
}

/// Waits a moment, for what must not happen meanwhile.
pub async fn moment() {
    tokio::time::sleep(Duration::from_millis(200)).await;
}
