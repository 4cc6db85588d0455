//! `causeway peers`: connections with peers, and the traffic.

use crate::options::{GATEWAY_REQUIRED, RequestOptions};
use crate::output::{print_view, table};
use crate::progress::brief;
use crate::remote::address::{query, segment};
use crate::remote::connect;
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
#[command(args_conflicts_with_subcommands = true, after_help = format!("{HELP}\n\n{GATEWAY_REQUIRED}"))]
pub struct PeersArgs {
    #[command(subcommand)]
    command: Option<PeersCommand>,
    /// The maximum number of peers
    #[arg(long, value_name = "NUMBER")]
    limit: Option<u32>,
    /// Output format and node.
    #[command(flatten)]
    options: RequestOptions,
}

#[derive(Debug, Subcommand)]
enum PeersCommand {
    /// Connect to a peer, and print its address
    #[command(after_help = "Examples:\n\
            \x20 causeway peers connect /ip4/203.0.113.7/tcp/4001/p2p/12D3KooW…\n\
            \x20 causeway peers connect 12D3KooW…")]
    Connect {
        /// A multiaddr that ends in /p2p/ID, or a peer ID to look up in the DHT
        #[arg(value_name = "MULTIADDR|ID")]
        peer: String,
        /// The timeout, such as 10s; at most 2m
        #[arg(long, value_name = "TIME", value_parser = values::duration)]
        timeout: Option<Duration>,
        /// Output format and node.
        #[command(flatten)]
        options: RequestOptions,
    },
    /// Close all connections with a peer, which may reconnect
    #[command(after_help = "Example:\n  causeway peers disconnect 12D3KooW…")]
    Disconnect {
        /// The peer ID
        #[arg(value_name = "ID")]
        peer: String,
        /// Output format and node.
        #[command(flatten)]
        options: RequestOptions,
    },
    /// Print the bytes sent to and received from peers since the start of the node
    #[command(after_help = "Example:\n  causeway peers traffic --json")]
    Traffic {
        /// Output format and node.
        #[command(flatten)]
        options: RequestOptions,
    },
}

impl PeersArgs {
    /// The settings that the options override.
    pub fn flags(&self) -> Flags {
        let options = match &self.command {
            None => &self.options,
            Some(
                PeersCommand::Connect { options, .. }
                | PeersCommand::Disconnect { options, .. }
                | PeersCommand::Traffic { options },
            ) => options,
        };
        options.flags()
    }
}

/// Runs a command.
///
/// # Errors
/// When the gateway rejects the request, or the peer cannot be reached.
pub async fn run(loaded: &Loaded, args: PeersArgs) -> anyhow::Result<()> {
    let PeersArgs { command, limit, options } = args;
    match command {
        None => {
            let limit: Vec<_> = limit.map(|limit| ("limit", limit.to_string())).into_iter().collect();
            let remote = connect(loaded, &options.node).await?;
            let peers: PeersView = remote.get(&format!("/api/v1/peers{}", query(&limit))).await?;
            print_view(options.json, &peers, peers_text)
        }
        Some(PeersCommand::Connect { peer, timeout, options }) => {
            let request = ConnectRequest { address: peer, timeout_seconds: timeout.map(|timeout| timeout.as_secs()) };
            let remote = connect(loaded, &options.node).await?;
            let connected: ConnectedView = remote.post("/api/v1/peers/connect", &request).await?;
            print_view(options.json, &connected, connected_text)
        }
        Some(PeersCommand::Disconnect { peer, options }) => {
            let remote = connect(loaded, &options.node).await?;
            let disconnected: DisconnectedView = remote.delete(&format!("/api/v1/peers/{}", segment(&peer))).await?;
            print_view(options.json, &disconnected, |view| format!("disconnected {}\n", view.peer_id))
        }
        Some(PeersCommand::Traffic { options }) => {
            let traffic: BandwidthView = connect(loaded, &options.node).await?.get("/api/v1/bandwidth").await?;
            print_view(options.json, &traffic, traffic_text)
        }
    }
}

fn connected_text(connected: &ConnectedView) -> String {
    let ConnectedView { peer_id, address, already } = connected;
    format!("{} {peer_id} at {address}\n", if *already { "already connected to" } else { "connected to" })
}

fn peers_text(peers: &PeersView) -> String {
    let row = |peer: &PeerView| {
        // The agent version is untrusted input.
        let agent: String = printable(peer.agent.as_deref().unwrap_or("-")).chars().take(32).collect();
        let rtt = peer.rtt_seconds.map_or_else(|| "-".to_owned(), |rtt| format!("{:.0} ms", rtt * 1e3));
        let marks =
            [(peer.is_trusted, "trusted"), (peer.is_throttled, "throttled"), (peer.owes_blocks, "outstanding blocks")];
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
        0 => "no peers are connected\n".to_owned(),
        _ => table(head, peers.peers.iter().map(row)) + &more,
    }
}

fn traffic_text(traffic: &BandwidthView) -> String {
    let row = |name: &str, received, sent| [name.to_owned(), size(received), size(sent)];
    let transports = traffic.transports.iter();
    let transports = transports.map(|one| row(&one.transport, one.received_bytes, one.sent_bytes));
    let all = row("all", traffic.received_bytes, traffic.sent_bytes);
    let bitswap = row("Bitswap, with connected peers", traffic.bitswap.received_bytes, traffic.bitswap.sent_bytes);
    table(["", "RECEIVED", "SENT"], std::iter::once(all).chain(transports).chain([bitswap]))
}
