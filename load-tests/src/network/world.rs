//! Sources behind relays, and fresh clients that know nothing but the relay's address.

use super::Options;
use super::figures::Who;
use crate::relay::{Link, Passed, Protocol, Relay};
use crate::servers::{Causeway, Kubo, Server, Setup, Transport};
use anyhow::{Context, Result, bail, ensure};
use content::Cid;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

/// The relays of a source, one for each way to it.
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
fn socket(listening: &[String], part: &str) -> Result<SocketAddr> {
    let sockets = listening.iter().filter_map(|address| {
        let (host, rest) = address.strip_prefix("/ip4/")?.split_once(part)?;
        let port = rest.split('/').next()?.parse().ok()?;
        Some(SocketAddr::new(host.parse().ok()?, port))
    });
    let mut sockets = sockets;
    sockets.next().with_context(|| format!("no {part} in {listening:?}"))
}

/// A node with content, reached through relays only.
pub struct Far<Node> {
    pub node: Node,
    peer_id: String,
    relays: Relays,
}

/// The transport is what a row is about; on either, the relay's bytes prove that nothing went round it.
impl<Node> Far<Node> {
    /// Its address as others know it.
    pub fn multiaddr(&self, transport: Transport) -> String {
        let [tcp, quic] = self.relays.announced();
        let address = if transport == Transport::Tcp { tcp } else { quic };
        format!("{address}/p2p/{}", self.peer_id)
    }

    /// Its gateway over the relay.
    pub fn url(&self) -> String {
        format!("http://{}", self.relays.http.address())
    }

    /// What went through the relay for `who` on this transport.
    pub fn passed(&self, who: Who, transport: Transport) -> Passed {
        if who == Who::Http { self.relays.http.passed() } else { self.relays.of(transport).passed() }
    }

    /// Bytes that came from it over either transport: a peer that is found twice may be reached by both.
    pub fn passed_down(&self) -> u64 {
        [Transport::Tcp, Transport::Quic].map(|transport| self.relays.of(transport).passed().down).iter().sum()
    }

    /// Fails unless the relay carried what was transferred.
    pub fn check(&self, who: Who, transport: Transport, before: Passed, bytes: usize) -> Result<Passed> {
        let passed = self.passed(who, transport).since(before);
        let way = transport.name();
        ensure!(passed.down >= bytes as u64, "{who}: {bytes} bytes came, {passed:?} through the {way} relay");
        Ok(passed)
    }
}

impl Far<Kubo> {
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

impl Far<Causeway> {
    /// A Causeway that holds what is in the archive.
    pub async fn start(options: &Options, link: Link, archive: &Path) -> Result<Self> {
        let relays = Relays::bind(link).await?;
        let announced = relays.announced();
        let mut flags = options.flags();
        flags.extend(announced.iter().flat_map(|address| ["--announce", address.as_str()]));
        let node =
            Causeway::start(&options.binaries.causeway, Setup { archive: Some(archive), flags, ..Setup::default() })
                .await?;
        // It names what it announces among the addresses that it can be reached at.
        let listening: Vec<String> =
            node.listening.iter().filter(|address| !announced.contains(address)).cloned().collect();
        relays.forward_to(&listening, &node.server.url)?;
        Ok(Self { peer_id: node.peer_id.clone(), node, relays })
    }
}

/// A fresh client that is connected to all of `peers` and holds nothing.
pub async fn client(who: Who, options: &Options, peers: &[String]) -> Result<Server> {
    match who {
        Who::Kubo => {
            let kubo = Kubo::start(&options.binaries.kubo).await?;
            for peer in peers {
                kubo.connect(peer).await?;
            }
            Ok(kubo.server)
        }
        Who::Causeway => {
            let setup = Setup { peers, flags: options.flags(), ..Setup::default() };
            Ok(Causeway::start(&options.binaries.causeway, setup).await?.server)
        }
        Who::Http | Who::Ceiling | Who::OneSource => bail!("{who} is no client"),
    }
}

/// Every CID of a DAG that a Kubo node holds, the root's first.
pub async fn all_blocks(kubo: &Kubo, path: &str) -> Result<Vec<Cid>> {
    let root = path.trim_start_matches("/ipfs/").to_owned();
    let below = kubo.blocks_below(path).await?;
    [root].iter().chain(&below).map(|cid| Ok(cid.parse::<Cid>()?)).collect()
}

/// Writes a DAG that a Kubo node holds to a CAR file.
pub async fn archive(kubo: &Kubo, path: &str, file: &Path) -> Result<()> {
    let car = crate::fetch::get(&format!("{}{path}?format=car", kubo.server.url)).await?.1;
    Ok(std::fs::write(file, car)?)
}

#[test]
fn sockets_are_read_from_multiaddrs() {
    let listening = ["/ip6/::1/tcp/1", "/ip4/127.0.0.1/tcp/4001", "/ip4/127.0.0.1/udp/4002/quic-v1"].map(str::to_owned);
    assert_eq!(socket(&listening, "/tcp/").ok(), Some(([127, 0, 0, 1], 4001).into()));
    assert_eq!(socket(&listening, "/udp/").ok(), Some(([127, 0, 0, 1], 4002).into()));
    assert!(socket(&listening[..1], "/tcp/").is_err());
}
