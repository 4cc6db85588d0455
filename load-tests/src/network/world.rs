//! Sources behind links, and fresh clients that know nothing but the link's address.

use super::Options;
use crate::comparison::System;
use crate::http;
use crate::relay::{Link, Passed, Protocol, Relay};
use crate::servers::{Causeway, Kubo, Server, Setup, Transport};
use anyhow::{Context, Result, bail, ensure};
use content::Cid;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

/// The setting without which a node exchanges blocks by Bitswap alone, all of them plain.
pub const PLAIN: (&str, &str) = ("CAUSEWAY_P2P_DAG_PROTOCOL", "false");

/// The links to a source, one for each protocol.
pub struct Relays {
    tcp: Relay,
    quic: Relay,
    http: Relay,
}

impl Relays {
    pub async fn bind(link: Link) -> Result<Self> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Ok(Self {
            tcp: Relay::bind(Protocol::Tcp, any, link).await?,
            quic: Relay::bind(Protocol::Udp, any, link).await?,
            http: Relay::bind(Protocol::Tcp, any, link).await?,
        })
    }

    /// What the source announces instead of where it listens.
    pub fn announced(&self) -> [String; 2] {
        let (tcp, quic) = (self.tcp.address().port(), self.quic.address().port());
        [format!("/ip4/127.0.0.1/tcp/{tcp}"), format!("/ip4/127.0.0.1/udp/{quic}/quic-v1")]
    }

    fn forward_to(&self, listening: &[String], url: &str) -> Result<()> {
        self.tcp.forward_to(socket(listening, "/tcp/")?);
        self.quic.forward_to(socket(listening, "/udp/")?);
        let http = url.trim_start_matches("http://").trim_end_matches('/');
        self.http.forward_to(http.parse().with_context(|| url.to_owned())?);
        Ok(())
    }

    fn of(&self, transport: Transport) -> &Relay {
        match transport {
            Transport::Tcp => &self.tcp,
            Transport::Quic => &self.quic,
        }
    }
}

/// The socket of the multiaddr that contains `part`. A name of the loopback is no socket; nor are other transports.
pub fn socket(listening: &[String], part: &str) -> Result<SocketAddr> {
    let mut sockets = listening.iter().filter_map(|address| {
        let (host, rest) = address.strip_prefix("/ip4/")?.split_once(part)?;
        let port = rest.split('/').next()?.parse().ok()?;
        Some(SocketAddr::new(host.parse().ok()?, port))
    });
    sockets.next().with_context(|| format!("no {part} in {listening:?}"))
}

/// A node with content, reached through links only.
pub struct Remote<Node> {
    pub node: Node,
    peer_id: String,
    relays: Relays,
}

/// The link's bytes prove that nothing bypassed it.
impl<Node> Remote<Node> {
    /// Its address as peers know it.
    pub fn multiaddr(&self, transport: Transport) -> String {
        let [tcp, quic] = self.relays.announced();
        let address = if transport == Transport::Tcp { tcp } else { quic };
        format!("{address}/p2p/{}", self.peer_id)
    }

    /// Its gateway over the link.
    pub fn url(&self) -> String {
        format!("http://{}", self.relays.http.address())
    }

    /// Bytes that passed the link for a system on this transport.
    pub fn passed(&self, system: System, transport: Transport) -> Passed {
        match system {
            System::Http | System::HttpUsed => self.relays.http.passed(),
            _ => self.relays.of(transport).passed(),
        }
    }

    /// Bytes sent by the source over either transport: a peer that is found twice may be reached by both.
    pub fn passed_down(&self) -> u64 {
        [Transport::Tcp, Transport::Quic].map(|transport| self.relays.of(transport).passed().down).iter().sum()
    }

    /// Fails unless the link carried what was transferred.
    pub fn check(&self, system: System, transport: Transport, before: Passed, bytes: usize) -> Result<Passed> {
        let passed = self.passed(system, transport).since(before);
        let way = transport.name();
        ensure!(
            passed.down >= bytes as u64,
            "{system}: {bytes} bytes were received, {passed:?} through the {way} link"
        );
        Ok(passed)
    }
}

impl Remote<Kubo> {
    pub async fn start(options: &Options, link: Link) -> Result<Self> {
        Self::start_with(options, link, |_| {}).await
    }

    /// The same with changes to its configuration.
    pub async fn start_with(options: &Options, link: Link, change: impl FnOnce(&mut Value)) -> Result<Self> {
        let relays = Relays::bind(link).await?;
        let announced = relays.announced();
        let kubo = Kubo::start_with(&options.binaries.kubo, |settings| {
            settings["Addresses"]["Announce"] = json!(announced);
            change(settings);
        });
        let kubo = kubo.await?;
        relays.forward_to(&kubo.listening().await?, &kubo.server.url)?;
        Ok(Self { peer_id: kubo.peer_id().await?, node: kubo, relays })
    }
}

impl Remote<Causeway> {
    /// A Causeway that has the blocks of the archive.
    pub async fn start(options: &Options, link: Link, archive: &Path) -> Result<Self> {
        Self::start_with(options, link, Setup { archive: Some(archive), ..Setup::default() }).await
    }

    /// A Causeway that is set up otherwise.
    pub async fn start_with(options: &Options, link: Link, setup: Setup<'_>) -> Result<Self> {
        let relays = Relays::bind(link).await?;
        let announced = relays.announced();
        let announce = announced.iter().flat_map(|address| ["--announce", address.as_str()]);
        let flags = setup.flags.iter().copied().chain(options.flags.get()).chain(announce).collect();
        let node = Causeway::start(&options.binaries.causeway, Setup { flags, ..setup }).await?;
        // It names what it announces among the addresses that it can be reached at.
        let listening: Vec<String> =
            node.listening.iter().filter(|address| !announced.contains(address)).cloned().collect();
        relays.forward_to(&listening, &node.server.url)?;
        Ok(Self { peer_id: node.peer_id.clone(), node, relays })
    }
}

/// A fresh client that is connected to all of `peers` and has no content.
pub async fn client(system: System, options: &Options, peers: &[String]) -> Result<Server> {
    match system {
        System::Kubo => {
            let kubo = Kubo::start(&options.binaries.kubo).await?;
            for peer in peers {
                kubo.connect(peer).await?;
            }
            Ok(kubo.server)
        }
        System::Causeway | System::Plain | System::Earlier => {
            let settings: &[(&str, &str)] = if system == System::Plain { &[PLAIN] } else { &[] };
            let earlier = options.earlier.as_ref().filter(|_| system == System::Earlier);
            let setup = Setup { peers, flags: options.flags.get(), settings, ..Setup::default() };
            Ok(Causeway::start(earlier.unwrap_or(&options.binaries.causeway), setup).await?.server)
        }
        _ => bail!("{system} is no client"),
    }
}

/// Every CID of a DAG that a Kubo node has, the root's first.
pub async fn all_blocks(kubo: &Kubo, path: &str) -> Result<Vec<Cid>> {
    let root = path.trim_start_matches("/ipfs/").to_owned();
    let below = kubo.blocks_below(path).await?;
    [root].iter().chain(&below).map(|cid| Ok(cid.parse::<Cid>()?)).collect()
}

/// Writes a DAG that a Kubo node has to a CAR file.
pub async fn archive(kubo: &Kubo, path: &str, file: &Path) -> Result<()> {
    let car = http::get(&kubo.server.at(&format!("{path}?format=car"))).await?.body;
    Ok(std::fs::write(file, car)?)
}

#[test]
fn sockets_are_read_from_multiaddrs() {
    let listening = ["/ip6/::1/tcp/1", "/ip4/127.0.0.1/tcp/4001", "/ip4/127.0.0.1/udp/4002/quic-v1"].map(str::to_owned);
    assert_eq!(socket(&listening, "/tcp/").ok(), Some(([127, 0, 0, 1], 4001).into()));
    assert_eq!(socket(&listening, "/udp/").ok(), Some(([127, 0, 0, 1], 4002).into()));
    assert!(socket(&listening[..1], "/tcp/").is_err());
}
