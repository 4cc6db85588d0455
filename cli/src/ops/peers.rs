//! `causeway peers`: who is connected, connections on request, and what passed between peers and this node.

use crate::output::{print_view, table};
use crate::place::{Asking, RUNNING};
use crate::progress::brief;
use crate::remote::address::{query, segment};
use crate::remote::running;
use crate::store_cli::printable;
use crate::values;
use api::peers::{BandwidthView, ConnectRequest, ConnectedView, DisconnectedView, PeerView, PeersView};
use api::text::size;
use clap::{Args, Subcommand};
use config::{Flags, Loaded};
use std::time::Duration;

const HELP: &str = "\
Examples:
  causeway peers              the oldest connection first
  causeway peers traffic      bytes by transport
  causeway peers connect /dns4/peer.example.org/tcp/4001/p2p/12D3KooW…
  causeway peers --json | jq -r '.peers[].agent' | sort | uniq -c";

/// `causeway peers`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, after_help = format!("{HELP}\n\n{RUNNING}"))]
pub struct PeersArgs {
    #[command(subcommand)]
    command: Option<PeersCommand>,
    /// So many at most
    #[arg(long, value_name = "NUMBER")]
    limit: Option<u32>,
    /// How it is asked.
    #[command(flatten)]
    asking: Asking,
}

#[derive(Debug, Subcommand)]
enum PeersCommand {
    /// Connect with a peer, and say where it is
    #[command(
        after_help = "Examples:\n  causeway peers connect /ip4/203.0.113.7/tcp/4001/p2p/12D3KooW…\n  causeway peers connect 12D3KooW…"
    )]
    Connect {
        /// A multiaddr that ends in /p2p/ID; or an ID, for which the DHT is asked
        #[arg(value_name = "MULTIADDR|ID")]
        peer: String,
        /// How long it may take, such as 10s; up to 2m
        #[arg(long, value_name = "TIME", value_parser = values::duration)]
        timeout: Option<Duration>,
        /// How it is asked.
        #[command(flatten)]
        asking: Asking,
    },
    /// Close every connection with a peer, which may come back
    #[command(after_help = "Example:\n  causeway peers disconnect 12D3KooW…")]
    Disconnect {
        /// The peer
        #[arg(value_name = "ID")]
        peer: String,
        /// How it is asked.
        #[command(flatten)]
        asking: Asking,
    },
    /// Say how many bytes passed between peers and this node since it began
    #[command(after_help = "Example:\n  causeway peers traffic --json")]
    Traffic {
        /// How it is asked.
        #[command(flatten)]
        asking: Asking,
    },
}

impl PeersArgs {
    /// The settings that were given.
    pub fn flags(&self) -> Flags {
        let asking = match &self.command {
            None => &self.asking,
            Some(
                PeersCommand::Connect { asking, .. }
                | PeersCommand::Disconnect { asking, .. }
                | PeersCommand::Traffic { asking },
            ) => asking,
        };
        asking.flags()
    }
}

/// Runs a command.
///
/// # Errors
/// What was answered instead; among it why a peer cannot be reached.
pub async fn run(loaded: &Loaded, args: PeersArgs) -> anyhow::Result<()> {
    let PeersArgs { command, limit, asking } = args;
    match command {
        None => {
            let limit: Vec<_> = limit.map(|limit| ("limit", limit.to_string())).into_iter().collect();
            let remote = running(loaded, &asking.node).await?;
            let peers: PeersView = remote.get(&format!("/api/v1/peers{}", query(&limit))).await?;
            print_view(asking.json, &peers, peers_text)
        }
        Some(PeersCommand::Connect { peer, timeout, asking }) => {
            let request = ConnectRequest { address: peer, timeout_seconds: timeout.map(|timeout| timeout.as_secs()) };
            let remote = running(loaded, &asking.node).await?;
            let connected: ConnectedView = remote.post("/api/v1/peers/connect", &request).await?;
            print_view(asking.json, &connected, connected_text)
        }
        Some(PeersCommand::Disconnect { peer, asking }) => {
            let remote = running(loaded, &asking.node).await?;
            let gone: DisconnectedView = remote.delete(&format!("/api/v1/peers/{}", segment(&peer))).await?;
            print_view(asking.json, &gone, |gone| format!("{} is connected no longer\n", gone.peer_id))
        }
        Some(PeersCommand::Traffic { asking }) => {
            let traffic: BandwidthView = running(loaded, &asking.node).await?.get("/api/v1/bandwidth").await?;
            print_view(asking.json, &traffic, traffic_text)
        }
    }
}

fn connected_text(connected: &ConnectedView) -> String {
    let ConnectedView { peer_id, address, already } = connected;
    format!("{peer_id} {} connected at {address}\n", if *already { "was already" } else { "is" })
}

fn peers_text(peers: &PeersView) -> String {
    let row = |peer: &PeerView| {
        // What a stranger calls itself.
        let agent: String = printable(peer.agent.as_deref().unwrap_or("-")).chars().take(32).collect();
        let rtt = peer.rtt_seconds.map_or_else(|| "-".to_owned(), |rtt| format!("{:.0} ms", rtt * 1e3));
        let marks = [(peer.is_trusted, "trusted"), (peer.is_throttled, "throttled"), (peer.owes_blocks, "owes blocks")];
        let marks: Vec<&str> = marks.iter().filter_map(|(is, mark)| is.then_some(*mark)).collect();
        [
            peer.peer_id.clone(),
            brief(peer.connected_seconds as u64),
            rtt,
            size(peer.bitswap_received_bytes),
            size(peer.bitswap_sent_bytes),
            agent,
            peer.connections.first().map(|connection| connection.address.clone()).unwrap_or_default(),
            marks.join(", "),
        ]
    };
    let head = ["PEER", "SINCE", "RTT", "RECEIVED", "SENT", "AGENT", "ADDRESS", ""];
    let more = match peers.count - peers.peers.len().min(peers.count) {
        0 => String::new(),
        more => format!("and {more} more\n"),
    };
    match peers.count {
        0 => "nobody is connected\n".to_owned(),
        _ => table(head, peers.peers.iter().map(row)) + &more,
    }
}

fn traffic_text(traffic: &BandwidthView) -> String {
    let row = |name: &str, received, sent| [name.to_owned(), size(received), size(sent)];
    let transports = traffic.transports.iter();
    let transports = transports.map(|carried| row(&carried.transport, carried.received_bytes, carried.sent_bytes));
    let all = row("all", traffic.received_bytes, traffic.sent_bytes);
    let bitswap = row("blocks, with who is connected now", traffic.bitswap.received_bytes, traffic.bitswap.sent_bytes);
    table(["", "RECEIVED", "SENT"], std::iter::once(all).chain(transports).chain([bitswap]))
}
