//! Routers with good, invalid, slow or no answers, scripted on a socket.

use super::client::RoutingRequestLimits;
use super::types::{self, PeerRecord};
use super::*;
use content::{Cid, cid};
use libp2p::PeerId;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Generous, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(120);
/// The timeout of a request to a silent router.
const SHORTLY: Duration = Duration::from_secs(1);
/// The timeout of a request to a router that sends something first.
const A_WHILE: Duration = Duration::from_secs(6);

/// An action of a scripted router after it has read a request.
#[derive(Clone)]
enum Act {
    /// Sends text.
    Send(String),
    /// Sends text repeatedly until the connection is closed.
    Flood(String),
    /// Sends nothing more, but keeps the connection open.
    Stall,
}

/// A router that plays one script for every request, and records the requests.
struct ScriptedRouter {
    url: String,
    asked: UnboundedReceiver<String>,
}

async fn play(script: Vec<Act>) -> ScriptedRouter {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("is bound"));
    let (requests, asked) = unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(perform(stream, script.clone(), requests.clone()));
        }
    });
    ScriptedRouter { url, asked }
}

async fn perform(
    mut stream: TcpStream,
    script: Vec<Act>,
    requests: mpsc::UnboundedSender<String>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let read = stream.read_buf(&mut head).await?;
        if read == 0 {
            return Ok(());
        }
    }
    let _ = requests.send(String::from_utf8_lossy(&head).into_owned());
    for act in script {
        match act {
            Act::Send(text) => stream.write_all(text.as_bytes()).await?,
            Act::Flood(text) => loop {
                stream.write_all(text.as_bytes()).await?;
            },
            Act::Stall => std::future::pending::<()>().await,
        }
    }
    stream.shutdown().await
}

/// A response head without `Content-Length`: the body ends with the connection.
fn head(status: &str, content_type: &str) -> Act {
    Act::Send(format!("HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nConnection: close\r\n\r\n"))
}

fn say(text: impl Into<String>) -> Act {
    Act::Send(text.into())
}

fn record(port: u16) -> PeerRecord {
    PeerRecord::new(PeerId::random(), vec![format!("/ip4/127.0.0.1/tcp/{port}").parse().expect("an address")])
}

fn cid() -> Cid {
    cid::parse("bafkreicysg23kiwv34eg2d7qweipxwosdo2py4ldv42nbauguluen5v6am").expect("a CID")
}

/// Limits with a request timeout.
fn limits(request: Duration) -> RoutingRequestLimits {
    RoutingRequestLimits { request, connect: PATIENCE, bytes_max: 100_000, line_bytes_max: 2000, records_max: 50 }
}

/// Routers, and the registry of their metrics.
fn routers(urls: &[&str]) -> (Routers, Registry) {
    patient_routers(urls, PATIENCE)
}

fn patient_routers(urls: &[&str], request: Duration) -> (Routers, Registry) {
    let mut registry = Registry::default();
    let routers = Routers::with(urls, limits(request), &mut registry).expect("good addresses");
    (routers, registry)
}

fn counted(registry: &Registry, endpoint: &str, result: &str) -> u64 {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).expect("encodes");
    let name = format!("causeway_router_requests_total{{endpoint=\"{endpoint}\",result=\"{result}\"}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&name));
    value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("timed out waiting for {what}"))
}

/// All records that are found.
async fn all(routers: &Routers, question: &Question) -> Vec<PeerRecord> {
    let (mut found, mut records) = (routers.find(question), Vec::new());
    while let Some(record) = within("records", found.next()).await {
        records.push(record);
    }
    records
}

#[tokio::test]
async fn each_endpoint_is_requested_as_specified_and_both_formats_are_parsed() {
    let [one, two] = [record(1), record(2)];
    let lines = format!("{}\n{{\"Schema\":\"else\"}}\n{}", one.to_json(), two.to_json());
    let bodies = [
        ("application/x-ndjson", lines.clone()),
        ("Application/X-NDJSON; charset=utf-8", lines + "\n"),
        ("application/json", types::to_json_list("Providers", &[one.clone(), two.clone()])),
        ("application/json; charset=utf-8", types::to_json_list("Peers", &[one.clone(), two.clone()])),
    ];
    let peer = one.id;
    let filters = "?filter-protocols=unknown,transport-bitswap,transport-ipfs-gateway-http ";
    let questions = [
        (Question::Providers(cid()), format!("GET /routing/v1/providers/{}{filters}", cid())),
        (Question::Peer(peer), format!("GET /routing/v1/peers/{}{filters}", Key::from(peer).to_cid())),
        (Question::Closest(cid()), format!("GET /routing/v1/dht/closest/peers/{} ", cid())),
    ];
    for (content_type, body) in bodies {
        let mut router = play(vec![head("200 OK", content_type), say(body)]).await;
        let (routers, registry) = routers(&[&format!("{}/routing/v1/", router.url)]);
        for (question, expected) in &questions {
            assert_eq!(all(&routers, question).await, [one.clone(), two.clone()], "{content_type}");
            let asked = within("a request", router.asked.recv()).await.expect("was asked");
            assert!(asked.starts_with(expected), "{asked}");
            let asked = asked.to_ascii_lowercase();
            assert!(asked.contains("\r\naccept: application/x-ndjson, application/json;q=0.5\r\n"), "{asked}");
            assert!(asked.contains("\r\nuser-agent: causeway/"), "{asked}");
            assert_eq!(counted(&registry, question.endpoint(), "found"), 1);
        }
    }
}

#[tokio::test]
async fn records_are_forwarded_as_they_arrive() {
    let first = record(1);
    let script = vec![head("200 OK", client::NDJSON), say(first.to_json() + "\n"), say("{\"Schema\":"), Act::Stall];
    let slow = play(script).await;
    let second = record(2);
    let list = types::to_json_list("Providers", std::slice::from_ref(&second));
    let quick = play(vec![head("200 OK", client::JSON), say(list)]).await;
    let (routers, registry) = routers(&[&slow.url, &quick.url]);
    let mut found = routers.find(&Question::Providers(cid()));
    let mut records = Vec::new();
    for _ in 0..2 {
        records.push(within("a record", found.next()).await.expect("a record"));
    }
    assert!(records.contains(&first) && records.contains(&second));
    // Dropping the search cancels the request.
    drop(found);
    within("the end of the request", async {
        while counted(&registry, "providers", "left") == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn answers_are_counted_by_outcome() {
    let good = record(1).to_json() + "\n";
    let ndjson = || head("200 OK", client::NDJSON);
    let json = || head("200 OK", client::JSON);
    let long_list = format!("{{\"Providers\":[{}]}}", vec!["0"; 100_000].join(","));
    // A script, the number of records, the result in metrics, and whether the next request is allowed.
    let table = [
        (vec![ndjson()], 0, "empty", true),
        (vec![json(), say("{\"Providers\":null}")], 0, "empty", true),
        (vec![head("404 Not Found", "text/plain"), say("nothing")], 0, "empty", true),
        (vec![head("400 Bad Request", "text/plain")], 0, "refused", true),
        (vec![head("301 Moved\r\nLocation: http://127.0.0.1:1/", "text/plain")], 0, "refused", true),
        (vec![head("429 Too Many Requests\r\nRetry-After: 60", "text/plain")], 0, "busy", false),
        (vec![head("503 Service Unavailable", "text/plain")], 0, "busy", false),
        (vec![head("500 Internal Server Error", "text/plain")], 0, "unreachable", false),
        (vec![say("SSH-2.0-nonsense\r\n")], 0, "unreachable", false),
        (vec![], 0, "unreachable", false),
        (vec![Act::Stall], 0, "unreachable", false),
        (vec![ndjson(), Act::Stall], 0, "unreachable", false),
        (vec![ndjson(), say(good.clone()), Act::Stall], 1, "found", true),
        (vec![head("200 OK", "text/html"), say("<html>")], 0, "broken", false),
        (vec![ndjson(), say(good.clone()), say("<html>\n")], 1, "broken", false),
        (vec![ndjson(), say(good.clone()), say("{\"Schema\":")], 1, "broken", false),
        (vec![json(), say("{\"Providers\":[")], 0, "broken", false),
        (vec![json(), say(long_list)], 0, "broken", false),
        (vec![ndjson(), Act::Flood("x".repeat(1000))], 0, "broken", false),
        (vec![ndjson(), Act::Flood("{}\n".to_owned())], 0, "broken", false),
        (vec![ndjson(), Act::Flood(good.clone())], limits(PATIENCE).records_max, "found", true),
        (vec![json(), Act::Flood(" ".repeat(1000))], 0, "broken", false),
    ];
    let played = table.map(|(script, records, result, again)| async move {
        let patience = match (script.last(), records) {
            (Some(Act::Stall), 0) => SHORTLY,
            (Some(Act::Stall), _) => A_WHILE,
            _ => PATIENCE,
        };
        let router = play(script).await;
        let (routers, registry) = patient_routers(&[&router.url], patience);
        let what = format!("{records} {result} of {}", router.url);
        let begun = Instant::now();
        assert_eq!(all(&routers, &Question::Providers(cid())).await.len(), records, "{what}");
        assert_eq!(counted(&registry, "providers", result), 1, "{what}");
        let mut second = routers.find(&Question::Providers(cid()));
        if again {
            assert_eq!(counted(&registry, "providers", "skipped"), 0, "{what}");
        } else if begun.elapsed() < health::BACK_OFF_MIN {
            // The breaker is still open, however slow this machine is.
            assert_eq!(within("nothing", second.next()).await, None, "{what}");
            assert_eq!(counted(&registry, "providers", "skipped"), 1, "{what}");
        }
    });
    futures::future::join_all(played).await;
}

#[tokio::test]
async fn peers_with_other_transfer_protocols_are_dropped() {
    let speaking = |protocols: &[&str]| PeerRecord {
        protocols: protocols.iter().map(|text| (*text).to_owned()).collect(),
        ..record(1)
    };
    let records = [
        speaking(&["transport-graphsync-filecoinv1"]),
        speaking(&["transport-bitswap"]),
        speaking(&["transport-x", "transport-ipfs-gateway-http"]),
        speaking(&[]),
    ];
    let lines = records.iter().map(|record| record.to_json() + "\n").collect::<String>();
    let router = play(vec![head("200 OK", client::NDJSON), say(lines)]).await;
    let (routers, _registry) = routers(&[&router.url]);
    assert_eq!(all(&routers, &Question::Providers(cid())).await, records[1..]);
}

#[tokio::test]
async fn concurrent_requests_to_a_router_are_limited() {
    let mut router = play(vec![Act::Stall]).await;
    let (routers, registry) = routers(&[&router.url]);
    let searches: Vec<RouterRecords> =
        (0..REQUESTS_MAX + 5).map(|_| routers.find(&Question::Providers(cid()))).collect();
    assert_eq!(counted(&registry, "providers", "skipped"), 5);
    for _ in 0..REQUESTS_MAX {
        within("a request", router.asked.recv()).await.expect("was asked");
    }
    drop(searches);
}

#[tokio::test]
async fn ipns_records_are_fetched_and_put() {
    let key = Key::parse("k51qzi5uqu5dlvj2baxnqndepeb86cbk3ng7n3i46uzyxzyqj2xjonzllnv0v8").expect("a key");
    let full = "r".repeat(content::ipns::RECORD_BYTES_MAX);
    let ok = |body: &str| vec![head("200 OK", client::IPNS_RECORD), say(body)];
    let table = [
        (ok("record"), Some("record".to_owned()), "found"),
        (ok(&full), Some(full.clone()), "found"),
        (ok(&format!("{full}r")), None, "broken"),
        (vec![head("200 OK", "text/plain; charset=utf-8"), say("there is none")], None, "empty"),
        (vec![head("404 Not Found", "text/plain")], None, "empty"),
        (vec![head("200 OK", client::IPNS_RECORD), Act::Stall], None, "unreachable"),
    ];
    for (script, expected, result) in table {
        let patience = if result == "unreachable" { SHORTLY } else { PATIENCE };
        let mut router = play(script).await;
        let (routers, registry) = patient_routers(&[&router.url], patience);
        let (search, mut found) = mpsc::channel(1);
        within("an end", routers.clone().feed(key, search)).await;
        let record = found.recv().await.map(|found| String::from_utf8_lossy(&found.bytes).into_owned());
        assert!(record == expected && counted(&registry, "ipns", result) == 1, "{result}");
        let asked = router.asked.recv().await.expect("was asked");
        assert!(asked.starts_with(&format!("GET /routing/v1/ipns/{key} HTTP")), "{asked}");
    }
    let mut taking = play(vec![head("200 OK", "text/plain")]).await;
    let refusing = play(vec![head("400 Bad Request", "text/plain")]).await;
    let (routers, registry) = routers(&[&taking.url, &refusing.url]);
    assert_eq!(within("an end", routers.publish(key, Bytes::from_static(b"record"))).await, 1);
    assert_eq!((counted(&registry, "ipns_put", "found"), counted(&registry, "ipns_put", "refused")), (1, 1));
    let asked = taking.asked.recv().await.expect("was asked");
    assert!(asked.starts_with(&format!("PUT /routing/v1/ipns/{key} HTTP")), "{asked}");
    assert!(asked.to_ascii_lowercase().contains("content-type: application/vnd.ipfs.ipns-record"), "{asked}");
}

#[test]
fn addresses_of_routers_are_checked() {
    let mut registry = Registry::default();
    let table = [
        ("http://127.0.0.1:1", Some("http://127.0.0.1:1/")),
        ("https://router.example/", Some("https://router.example/")),
        ("https://router.example/a/routing/v1", Some("https://router.example/a/")),
        ("ftp://router.example", None),
        ("router.example", None),
        ("http://router.example/?q", None),
    ];
    for (url, expected) in table {
        let routers = Routers::new([url], &mut registry);
        let base = routers.ok().map(|routers| routers.routers[0].router.base().to_string());
        assert_eq!(base.as_deref(), expected, "{url}");
    }
    assert!(Routers::new([""; 0], &mut registry).expect("no routers").is_empty());
}
