//! The routing API, with a simulated network.

use crate::dag::raw;
use crate::site::{NoNames, PATIENCE, Setup, Site, header, until};
use content::ipns::{self, Record};
use content::names::Key;
use content::{Block, Cid, Name, NameError, NameResolver, Resolution};
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use futures::stream::{self, BoxStream, StreamExt as _};
use gateway::routing_v1::RoutingResponseLimits;
use gateway::routing_v1::finder::PeerFinder;
use libp2p::PeerId;
use libp2p::identity::Keypair;
use p2p_bridge::routing_v1::{PeerRecord, types};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// A network that knows its peers at once; searches for more never end.
#[derive(Default)]
struct SimulatedNetwork {
    records: Vec<PeerRecord>,
    never_ends: bool,
    own_record: Option<PeerRecord>,
    running: Arc<AtomicU64>,
}

/// A search in progress; dropping it ends the search.
struct Running(Arc<AtomicU64>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl SimulatedNetwork {
    fn search(&self) -> BoxStream<'static, PeerRecord> {
        self.running.fetch_add(1, Ordering::SeqCst);
        let running = Running(Arc::clone(&self.running));
        let known = stream::iter(self.records.clone());
        let rest = if self.never_ends { stream::pending().left_stream() } else { stream::empty().right_stream() };
        known.chain(rest).inspect(move |_| _ = &running).boxed()
    }
}

impl PeerFinder for SimulatedNetwork {
    fn providers(&self, _: &Cid) -> BoxStream<'static, PeerRecord> {
        self.search()
    }

    fn peer(&self, _: PeerId) -> BoxStream<'static, PeerRecord> {
        self.search()
    }

    fn closest(&self, _: Vec<u8>) -> BoxStream<'static, PeerRecord> {
        self.search()
    }

    fn own_record(&self) -> BoxFuture<'static, Option<PeerRecord>> {
        ready(self.own_record.clone()).boxed()
    }
}

fn at(address: &str) -> PeerRecord {
    PeerRecord::new(PeerId::random(), vec![address.parse().expect("an address")])
}

fn setup(blocks: &[&Block], network: SimulatedNetwork) -> Setup {
    Setup { routing: Some((Arc::new(network), RoutingResponseLimits::default())), ..Setup::new(blocks) }
}

fn key() -> Key {
    Key::from(PeerId::random())
}

const NDJSON: (&str, &str) = ("accept", "application/x-ndjson");

async fn counted(site: &Site, endpoint: &str, result: &str) -> u64 {
    site.metric(&format!("causeway_routing_v1_requests_total{{endpoint=\"{endpoint}\",result=\"{result}\"}}"))
}

#[tokio::test]
async fn each_endpoint_has_json_and_ndjson() {
    let records = vec![at("/ip4/8.8.8.8/tcp/1"), at("/ip4/8.8.4.4/udp/1/quic-v1")];
    let found = setup(&[], SimulatedNetwork { records: records.clone(), ..SimulatedNetwork::default() }).start().await;
    let empty = setup(&[], SimulatedNetwork::default()).start().await;
    let cid = *raw("some block").cid();
    let endpoints = [
        ("providers", format!("/routing/v1/providers/{cid}"), "Providers"),
        ("peers", format!("/routing/v1/peers/{}", key()), "Peers"),
        ("peers", format!("/routing/v1/peers/{}", PeerId::random()), "Peers"),
        ("closest", format!("/routing/v1/dht/closest/peers/{cid}"), "Peers"),
        ("closest", format!("/routing/v1/dht/closest/peers/{}", PeerId::random()), "Peers"),
    ];
    for (site, records, result, age) in [(&found, &records[..], "found", 300), (&empty, &[][..], "empty", 15)] {
        for (endpoint, path, list) in &endpoints {
            let before = counted(site, endpoint, result).await;
            let lines = records.iter().map(|record| record.to_json() + "\n").collect::<String>();
            let answers = [
                (site.get(path).await, "application/json", types::to_json_list(list, records)),
                (site.send("GET", path, &[NDJSON]).await, "application/x-ndjson", lines),
            ];
            for (answer, content_type, body) in answers {
                assert_eq!((answer.status().as_u16(), header(&answer, "content-type")), (200, content_type), "{path}");
                // A client in the local network, whose response shared caches must not store.
                let fresh = format!("private, max-age={age}");
                assert_eq!(header(&answer, "cache-control"), fresh, "{path}");
                assert_eq!(header(&answer, "vary"), "Accept");
                assert_eq!(header(&answer, "access-control-allow-origin"), "*");
                assert!(!header(&answer, "last-modified").is_empty());
                assert_eq!(answer.text().await.expect("a body"), body, "{path}");
            }
            assert_eq!(counted(site, endpoint, result).await, before + 2, "{path}");
            let head = site.send("HEAD", path, &[]).await;
            assert_eq!((head.status().as_u16(), header(&head, "content-type")), (200, "application/json"));
            assert_eq!(head.text().await.expect("nothing"), "");
        }
    }
}

#[tokio::test]
async fn records_are_streamed_and_a_disconnect_ends_the_search() {
    let records = vec![at("/ip4/8.8.8.8/tcp/1")];
    let network = SimulatedNetwork { records: records.clone(), never_ends: true, ..SimulatedNetwork::default() };
    let running = Arc::clone(&network.running);
    let site = setup(&[], network).start().await;
    let path = format!("/routing/v1/providers/{}", raw("x").cid());
    let mut answer = site.send("GET", &path, &[NDJSON]).await;
    let first = tokio::time::timeout(PATIENCE, answer.chunk()).await.expect("in time").expect("no error");
    assert_eq!(first.as_deref(), Some((records[0].to_json() + "\n").as_bytes()));
    assert_eq!(running.load(Ordering::SeqCst), 1, "the search goes on");
    drop(answer);
    until(|| running.load(Ordering::SeqCst) == 0, "its end").await;
    // The same before any record was found.
    let stream = site.connect(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await;
    until(|| running.load(Ordering::SeqCst) == 1, "the search").await;
    drop(stream);
    until(|| running.load(Ordering::SeqCst) == 0, "its end").await;
}

#[tokio::test]
async fn a_search_timeout_returns_the_records_found() {
    let records = vec![at("/ip4/8.8.8.8/tcp/1")];
    let network = SimulatedNetwork { records: records.clone(), never_ends: true, ..SimulatedNetwork::default() };
    let running = Arc::clone(&network.running);
    let limits = RoutingResponseLimits { time: Duration::from_millis(300), ..RoutingResponseLimits::default() };
    let site = Setup { routing: Some((Arc::new(network), limits)), ..Setup::new(&[]) }.start().await;
    let path = format!("/routing/v1/providers/{}", raw("x").cid());
    let lines = site.send("GET", &path, &[NDJSON]).await.text().await.expect("an orderly end");
    assert_eq!(lines, records[0].to_json() + "\n");
    let list = site.get(&path).await.text().await.expect("an orderly end");
    assert_eq!(list, types::to_json_list("Providers", &records));
    // HTTP/1.0 has no chunked encoding.
    let (answer, end) = site.exchange(&format!("GET {path} HTTP/1.0\r\nAccept: application/x-ndjson\r\n\r\n")).await;
    end.expect("an orderly end");
    let text = String::from_utf8_lossy(&answer).to_ascii_lowercase();
    assert!(text.contains("\r\ncontent-length: ") && !text.contains("\r\ntransfer-encoding"), "{text}");
    until(|| running.load(Ordering::SeqCst) == 0, "the end of every search").await;
}

#[tokio::test]
async fn searches_over_a_clients_limit_are_rejected() {
    let network = SimulatedNetwork { never_ends: true, ..SimulatedNetwork::default() };
    let running = Arc::clone(&network.running);
    let mut setup = setup(&[], network);
    setup.http.client_misses_max = 2;
    let site = setup.start().await;
    let path = format!("/routing/v1/providers/{}", raw("x").cid());
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    let waiting = [site.connect(&request).await, site.connect(&request).await];
    until(|| running.load(Ordering::SeqCst) == 2, "two searches").await;
    let refused = site.get(&path).await;
    assert_eq!((refused.status().as_u16(), header(&refused, "retry-after")), (429, "5"));
    assert_eq!(header(&refused, "cache-control"), "no-store");
    assert_eq!(site.metric("causeway_http_requests_rejected_total{limit=\"searches\"}"), 1);
    assert_eq!(counted(&site, "providers", "busy").await, 1);
    let name = site.get(&format!("/routing/v1/ipns/{}", key())).await;
    assert_eq!(name.status().as_u16(), 429, "names are searches as well");
    drop(waiting);
    until(|| running.load(Ordering::SeqCst) == 0, "their end").await;
}

#[tokio::test]
async fn filters_and_limits_apply_and_public_clients_get_no_private_addresses() {
    let [tcp, quic, private] = [at("/ip4/8.8.8.8/tcp/1"), at("/ip4/8.8.8.8/udp/1/quic-v1"), at("/ip4/10.0.0.1/tcp/1")];
    let gateway = PeerRecord { protocols: vec![types::HTTP_GATEWAY.to_owned()], ..at("/dns4/a.example/tcp/443/https") };
    let unknown = PeerRecord::new(PeerId::random(), Vec::new());
    let records = vec![tcp.clone(), quic.clone(), private.clone(), gateway.clone(), unknown.clone()];
    let mut setup = setup(&[], SimulatedNetwork { records, ..SimulatedNetwork::default() });
    setup.http.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    let site = setup.start().await;
    let cid = *raw("x").cid();
    let table: [(&str, &str, Vec<&PeerRecord>); 7] = [
        ("", "10.0.0.1", vec![&tcp, &quic, &private, &gateway, &unknown]),
        ("", "8.8.8.8", vec![&tcp, &quic, &gateway, &unknown]),
        ("?filter-addrs=tcp", "8.8.8.8", vec![&tcp, &gateway]),
        ("?filter-addrs=quic-v1,unknown", "10.0.0.1", vec![&quic, &unknown]),
        ("?filter-addrs=%21https&filter-protocols=unknown", "10.0.0.1", vec![&tcp, &quic, &private]),
        ("?filter-protocols=transport-ipfs-gateway-http", "8.8.8.8", vec![&gateway]),
        ("?filter-protocols=transport-bitswap", "8.8.8.8", vec![]),
    ];
    for (query, client, expected) in table {
        for endpoint in [format!("providers/{cid}"), format!("peers/{}", PeerId::random())] {
            let path = format!("/routing/v1/{endpoint}{query}");
            let answer = site.send("GET", &path, &[NDJSON, ("x-forwarded-for", client)]).await;
            let lines = expected.iter().map(|record| record.to_json() + "\n").collect::<String>();
            assert_eq!(answer.text().await.expect("a body"), lines, "{path} for {client}");
        }
    }

    let many = SimulatedNetwork { records: (0..2000).map(|_| tcp.clone()).collect(), ..SimulatedNetwork::default() };
    let site = self::setup(&[], many).start().await;
    let path = format!("/routing/v1/providers/{cid}");
    let list = site.get(&path).await.text().await.expect("a body");
    assert_eq!(
        types::from_json_list(list.as_bytes(), 5000).expect("a list").len(),
        RoutingResponseLimits::default().list_max
    );
    let lines = site.send("GET", &path, &[NDJSON]).await.text().await.expect("a body");
    assert_eq!(lines.lines().count(), RoutingResponseLimits::default().lines_max);
}

#[tokio::test]
async fn this_node_is_a_provider_of_its_blocks() {
    let held = raw("held here");
    let ours = PeerRecord { protocols: vec![types::BITSWAP.to_owned()], ..at("/ip4/8.8.8.8/tcp/1") };
    let other = at("/ip4/8.8.4.4/tcp/1");
    let records = vec![other.clone(), ours.clone()];
    let site =
        setup(&[&held], SimulatedNetwork { records, own_record: Some(ours.clone()), ..SimulatedNetwork::default() })
            .start()
            .await;
    let providers = async |cid: &Cid| {
        let list = site.get(&format!("/routing/v1/providers/{cid}")).await.text().await.expect("a body");
        types::from_json_list(list.as_bytes(), 10).expect("a list")
    };
    assert_eq!(providers(held.cid()).await, [ours.clone(), other.clone()], "once, and first");
    assert_eq!(providers(raw("held elsewhere").cid()).await, [other, ours]);
}

/// A resolver with one record.
struct OneName(Key, Record);

impl NameResolver for OneName {
    fn resolve(&self, name: &Name) -> BoxFuture<'static, Result<Resolution, NameError>> {
        NoNames.resolve(name)
    }

    fn record(&self, key: &Key) -> BoxFuture<'static, Result<Record, NameError>> {
        let known = (*key == self.0).then(|| self.1.clone());
        let missing = NameError::NoRecord { key: *key, waited: Duration::ZERO, peers_asked: 3 };
        ready(known.ok_or(missing)).boxed()
    }
}

#[tokio::test]
async fn ipns_records_are_sent_as_signed() {
    let keypair = Keypair::generate_ed25519();
    let key = Key::from(keypair.public().to_peer_id());
    let draft = ipns::Draft {
        value: "/ipfs/bafkqaddjnzzxazldoqwxizltoq".to_owned(),
        sequence: 1,
        end_of_life: SystemTime::now() + Duration::from_secs(3600),
        ttl: Duration::from_secs(120),
    };
    let record = Record::sign(&keypair, &draft).expect("signs");
    let names = Arc::new(OneName(key, record.clone()));
    let site = Setup { names, ..setup(&[], SimulatedNetwork::default()) }.start().await;
    for path in [format!("/routing/v1/ipns/{key}"), format!("/routing/v1/ipns/{}", key.to_cid())] {
        for accept in ["application/vnd.ipfs.ipns-record", "*/*"] {
            let answer = site.send("GET", &path, &[("accept", accept)]).await;
            assert_eq!(answer.status(), 200);
            assert_eq!(header(&answer, "content-type"), "application/vnd.ipfs.ipns-record");
            assert!(header(&answer, "cache-control").starts_with("public, max-age=120, stale-while-revalidate=3"));
            assert!(header(&answer, "content-disposition").contains(&format!("{key}.ipns-record")));
            assert!(!header(&answer, "expires").is_empty());
            let etag = header(&answer, "etag").to_owned();
            let bytes = answer.bytes().await.expect("a body");
            assert_eq!(Record::verify(&key, bytes), Ok(record.clone()));
            let again = site.send("GET", &path, &[("if-none-match", &etag)]).await;
            assert_eq!(again.status(), 304);
        }
    }
    let missing = site.get(&format!("/routing/v1/ipns/{}", self::key())).await;
    assert_eq!((missing.status().as_u16(), header(&missing, "content-type")), (200, "text/plain; charset=utf-8"));
    assert!(header(&missing, "cache-control").starts_with("public, max-age=15,"));
    assert!(missing.text().await.expect("text").contains("3 peers asked"));
    assert_eq!((counted(&site, "ipns", "found").await, counted(&site, "ipns", "empty").await), (8, 1));
}

#[tokio::test]
async fn invalid_requests_get_the_cause() {
    let site = setup(&[], SimulatedNetwork::default()).start().await;
    let cid = *raw("x").cid();
    let table = [
        ("GET", "/routing/v1/providers/nonsense".to_owned(), "*/*", 400, "not a CID"),
        ("GET", "/routing/v1/peers/nonsense".to_owned(), "*/*", 400, "not a peer ID"),
        ("GET", format!("/routing/v1/peers/{cid}"), "*/*", 400, "not a peer ID"),
        ("GET", "/routing/v1/ipns/example.org".to_owned(), "*/*", 400, "not an IPNS key"),
        ("GET", "/routing/v1/dht/closest/peers/nonsense".to_owned(), "*/*", 400, "neither a CID nor a peer ID"),
        ("GET", format!("/routing/v1/elsewhere/{cid}"), "*/*", 404, ""),
        ("GET", "/routing/v1/".to_owned(), "*/*", 404, ""),
        ("GET", format!("/routing/v1/providers/{cid}"), "text/html", 406, "application/x-ndjson"),
        ("GET", format!("/routing/v1/ipns/{}", key()), "application/json", 406, "ipns-record"),
        ("PUT", format!("/routing/v1/providers/{cid}"), "*/*", 405, ""),
        ("OPTIONS", format!("/routing/v1/providers/{cid}"), "*/*", 204, ""),
    ];
    for (method, path, accept, status, expected) in table {
        let answer = site.send(method, &path, &[("accept", accept)]).await;
        assert_eq!(answer.status().as_u16(), status, "{method} {path}");
        assert_eq!(header(&answer, "access-control-allow-origin"), "*");
        let text = answer.text().await.expect("a body");
        assert!(text.contains(expected), "{method} {path}: {text}");
    }
    assert_eq!((counted(&site, "unknown", "invalid").await, counted(&site, "providers", "invalid").await), (7, 1));

    // The API is disabled by default, and does not exist on sites.
    let path = format!("/routing/v1/providers/{cid}");
    let off = Setup::new(&[]).start().await;
    assert_eq!(off.get(&path).await.status(), 404);
    let origin = site.send("GET", &path, &[("host", &format!("{cid}.ipfs.localhost"))]).await;
    assert_ne!(header(&origin, "content-type"), "application/json");
}
