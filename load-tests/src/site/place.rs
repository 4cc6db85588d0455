//! Nodes in places: reached by their clients over one link, and by the nodes of other places over another, longer one.
//!
//! Goals: bytes between the places are counted, and nothing bypasses the links: a node announces the address of its
//! link only, and is dialled there by the nodes of other places. Those of its own place dial it directly.

use super::Options;
use super::gateways::{Shared, total, wait_for_members};
use super::postgres::Postgres;
use crate::comparison::System;
use crate::http;
use crate::network::world::socket;
use crate::relay::{Link, Protocol, Relay};
use crate::sample;
use crate::servers::{Causeway, Kubo, Setup, Transport, token};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Longer than any write takes.
const WRITE_TIMEOUT: Duration = Duration::from_secs(300);
/// For nodes to be connected over the links.
const PEERS_TIMEOUT: Duration = Duration::from_secs(120);
/// Of the file that every node reads before anything is measured, in bytes.
const WARM_UP: usize = 600_000;
/// What separates the parts of a form.
const BOUNDARY: &str = "causeway-load-tests-boundary";

/// A node behind its links.
pub struct Place {
    node: Node,
    /// Of its gateway's clients.
    clients: Relay,
    /// Of the clients that write: the admin listener of Causeway, the RPC API of Kubo.
    writers: Relay,
    /// Of nodes in other places.
    between: Relay,
    /// Its address in its own place, and over the link.
    near: String,
    far: String,
}

enum Node {
    Causeway(Box<Causeway>),
    Kubo { _process: Box<Kubo> },
}

/// What was written, and how long it took.
pub struct Written {
    /// On any gateway.
    pub path: String,
    pub took: Duration,
}

/// Relays before a node has started: connections wait.
struct Relays {
    clients: Relay,
    writers: Relay,
    between: Relay,
    transport: Transport,
}

impl Relays {
    async fn bind(options: &Options) -> Result<Self> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (to_clients, to_nodes) = (options.client_link(), options.link_between());
        let transport = options.transport();
        let protocol = if transport == Transport::Tcp { Protocol::Tcp } else { Protocol::Udp };
        Ok(Self {
            clients: Relay::bind(Protocol::Tcp, any, to_clients).await?,
            writers: Relay::bind(Protocol::Tcp, any, to_clients).await?,
            between: Relay::bind(protocol, any, to_nodes).await?,
            transport,
        })
    }

    /// What the node announces instead of where it listens.
    fn announced(&self) -> String {
        let port = self.between.address().port();
        match self.transport {
            Transport::Tcp => format!("/ip4/127.0.0.1/tcp/{port}"),
            Transport::Quic => format!("/ip4/127.0.0.1/udp/{port}/quic-v1"),
        }
    }

    fn lead_to(self, node: Node, peer_id: &str, listening: &[String], url: &str, api: SocketAddr) -> Result<Place> {
        let announced = self.announced();
        let own: Vec<String> = listening.iter().filter(|address| **address != announced).cloned().collect();
        let part = if self.transport == Transport::Tcp { "/tcp/" } else { "/udp/" };
        self.between.forward_to(socket(&own, part)?);
        self.writers.forward_to(api);
        let http = url.trim_start_matches("http://").trim_end_matches('/');
        self.clients.forward_to(http.parse().with_context(|| url.to_owned())?);
        let near = format!("/ip4/127.0.0.1/tcp/{}/p2p/{peer_id}", socket(&own, "/tcp/")?.port());
        let far = format!("{announced}/p2p/{peer_id}");
        let Self { clients, writers, between, .. } = self;
        Ok(Place { node, clients, writers, between, near, far })
    }
}

impl Place {
    /// A Causeway that is connected to nodes of other places. With `shared` it is a gateway of a site.
    async fn causeway(options: &Options, shared: Option<&Shared>, peers: &[String]) -> Result<Self> {
        let relays = Relays::bind(options).await?;
        let announced = relays.announced();
        let setup = Setup { peers, flags: vec!["--announce", &announced], ..Setup::default() };
        let node = match shared {
            Some(shared) => shared.start(options, setup).await?,
            None => {
                let flags = [setup.flags, options.flags.get()].concat();
                Causeway::start(&options.binaries.causeway, Setup { flags, ..setup }).await?
            }
        };
        let (listening, url, api) = (node.listening.clone(), node.server.url.clone(), node.admin_address()?);
        let peer_id = node.peer_id.clone();
        relays.lead_to(Node::Causeway(Box::new(node)), &peer_id, &listening, &url, api)
    }

    /// A Kubo that is connected to other nodes.
    async fn kubo(options: &Options, peers: &[String]) -> Result<Self> {
        let relays = Relays::bind(options).await?;
        let announced = relays.announced();
        let node = Kubo::start_with(&options.binaries.kubo, |settings| {
            settings["Addresses"]["Announce"] = json!([announced]);
            if options.kubo_apart {
                // Nodes that know of each other's peers would connect.
                settings["Routing"]["Type"] = json!("none");
            }
        });
        let node = node.await?;
        for peer in peers {
            node.connect(peer).await?;
        }
        let (listening, url, api) = (node.listening().await?, node.server.url.clone(), node.api_address()?);
        let peer_id = node.peer_id().await?;
        relays.lead_to(Node::Kubo { _process: Box::new(node) }, &peer_id, &listening, &url, api)
    }

    /// Its gateway over the link of its clients.
    pub fn url(&self) -> String {
        format!("http://{}", self.clients.address())
    }

    /// Writes a file over the link of its clients, on a connection of its own, and pins it: an upload to Causeway, an
    /// `add` by Kubo's RPC API. Both have the same CIDs.
    pub async fn write(&self, content: &[u8]) -> Result<Written> {
        let base = format!("http://{}", self.writers.address());
        let client = reqwest::Client::builder().no_proxy().timeout(WRITE_TIMEOUT).build()?;
        let request = match &self.node {
            Node::Causeway(_) => client
                .post(format!("{base}/upload?cid-version=1&name=file"))
                .bearer_auth(token())
                .body(content.to_vec()),
            Node::Kubo { .. } => client
                .post(format!("{base}/api/v0/add?cid-version=1&raw-leaves=true&pin=true&progress=false"))
                .header("content-type", format!("multipart/form-data; boundary={BOUNDARY}"))
                .body(form(content)),
        };
        let begun = Instant::now();
        let response = request.send().await?;
        let (status, text) = (response.status(), response.text().await?);
        let took = begun.elapsed();
        ensure!(status.is_success(), "{base}: {status}: {text}");
        // Kubo may send a line for each step.
        let last_line = || serde_json::from_str(text.lines().last().unwrap_or_default());
        let answer: Value = serde_json::from_str(&text).or_else(|_| last_line())?;
        let cid = answer["Hash"].as_str().or_else(|| answer["roots"][0]["cid"].as_str());
        Ok(Written { path: format!("/ipfs/{}", cid.with_context(|| format!("no CID in {text}"))?), took })
    }

    /// Reads a file over the link of its clients, on a connection of its own; wrong bytes are an error.
    pub async fn read(&self, path: &str, content: &[u8]) -> Result<Duration> {
        Ok(http::get(&format!("{}{path}", self.url())).await?.of_content(content)?.complete)
    }

    /// Bytes that have passed its link to other places, both ways.
    fn bytes_between(&self) -> u64 {
        let passed = self.between.passed();
        passed.up + passed.down
    }

    /// Waits for connections to peers that it was started with, or was started before.
    async fn wait_for_peers(&self, count: usize) -> Result<()> {
        let Node::Causeway(node) = &self.node else { return Ok(()) };
        let begun = Instant::now();
        while total(node, "causeway_p2p_connections").await? < count as f64 {
            ensure!(begun.elapsed() < PEERS_TIMEOUT, "Causeway is not connected to {count} nodes of other places");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// A form with one file, as RPC clients of Kubo send it.
fn form(content: &[u8]) -> Vec<u8> {
    let head = format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"file\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    [head.as_bytes(), content, format!("\r\n--{BOUNDARY}--\r\n").as_bytes()].concat()
}

/// The nodes of one system, by place: every node is connected to all nodes of other places.
pub struct Net {
    pub system: System,
    /// By place, and by node in it.
    pub places: Vec<Vec<Place>>,
    /// Whether the nodes of a place can fetch from each other.
    pub is_joined: bool,
    // After the gateways that use them: fields are dropped in this order.
    _shared: Vec<Shared>,
}

impl Net {
    fn new(system: System, is_joined: bool) -> Self {
        Self { system, places: Vec::new(), is_joined, _shared: Vec::new() }
    }

    /// Causeways: a site in each place.
    pub async fn sites(options: &Options, database: &Postgres) -> Result<Self> {
        let mut net = Self::new(System::Causeway, true);
        for number in 0..options.sites() {
            let shared = Shared::new(&format!("bench-{number}"), database)?;
            let (peers, mut place) = (net.far_addresses(), Vec::new());
            for _ in 0..options.gateways() {
                place.push(Place::causeway(options, Some(&shared), &peers).await?);
            }
            net.places.push(place);
            net._shared.push(shared);
        }
        for place in &net.places {
            let gateways = place.iter().filter_map(|place| match &place.node {
                Node::Causeway(node) => Some(&**node),
                Node::Kubo { .. } => None,
            });
            wait_for_members(gateways, options.gateways()).await?;
        }
        net.warm_up().await
    }

    /// Causeways without a site: one in each of two places.
    pub async fn alone(options: &Options) -> Result<Self> {
        let mut net = Self::new(System::Alone, false);
        for _ in 0..2 {
            let peers = net.far_addresses();
            net.places.push(vec![Place::causeway(options, None, &peers).await?]);
        }
        net.warm_up().await
    }

    /// Kubos, as many as there are gateways of sites. They are connected within their place as well, unless they are to
    /// be apart.
    pub async fn kubos(options: &Options) -> Result<Self> {
        let mut net = Self::new(System::Kubo, !options.kubo_apart);
        for _ in 0..options.sites() {
            let (far, mut place) = (net.far_addresses(), Vec::<Place>::new());
            for _ in 0..options.gateways() {
                let near = place.iter().map(|place| place.near.clone()).filter(|_| !options.kubo_apart);
                let peers: Vec<String> = near.chain(far.iter().cloned()).collect();
                place.push(Place::kubo(options, &peers).await?);
            }
            net.places.push(place);
        }
        net.warm_up().await
    }

    /// Bytes that have passed between the places, both ways.
    pub fn bytes_between(&self) -> u64 {
        self.places.iter().flatten().map(Place::bytes_between).sum()
    }

    fn far_addresses(&self) -> Vec<String> {
        self.places.iter().flatten().map(|place| place.far.clone()).collect()
    }

    /// Waits for the connections, and reads a file at every node that can fetch it.
    async fn warm_up(self) -> Result<Self> {
        let all = self.places.iter().map(Vec::len).sum::<usize>();
        for place in &self.places {
            for node in place {
                node.wait_for_peers(all - place.len()).await?;
            }
        }
        for (number, place) in self.places.iter().enumerate() {
            let content = sample::bytes(WARM_UP, (self.system as u64) << 8 | number as u64);
            let [first, ..] = place.as_slice() else { continue };
            let path = first.write(&content).await.with_context(|| format!("place {number}"))?.path;
            let others = self.places.iter().enumerate().filter(|(other, _)| self.is_joined || *other != number);
            for node in others.flat_map(|(_, place)| place) {
                node.read(&path, &content).await.with_context(|| format!("a file of place {number}"))?;
            }
        }
        Ok(self)
    }
}

/// A server of plain files for clients over the link.
pub async fn behind_link(link: Link, url: &str) -> Result<Relay> {
    let relay = Relay::bind(Protocol::Tcp, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), link).await?;
    relay.forward_to(url.trim_start_matches("http://").parse().with_context(|| url.to_owned())?);
    Ok(relay)
}

#[test]
fn a_form_has_the_file_between_its_boundaries() {
    let form = form(b"a\r\nb");
    let text = String::from_utf8_lossy(&form);
    let (head, rest) = text.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with(&format!("--{BOUNDARY}\r\n")) && head.contains("filename="), "{head}");
    assert_eq!(rest, format!("a\r\nb\r\n--{BOUNDARY}--\r\n"));
}
