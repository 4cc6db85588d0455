//! `causeway stats`, `requests` and `node`: the figures of this moment or of each second, what is being answered, and which node
//! this is.

use crate::output::{count, print_line, print_view, table};
use crate::place::{Asking, RUNNING};
use crate::progress::brief;
use crate::remote::address::query;
use crate::remote::running;
use crate::store_cli::printable;
use crate::values::moment;
use anyhow::Context as _;
use api::node::NodeView;
use api::requests::{RequestView, RequestsView};
use api::stats::{RatesView, StatsView, TierView};
use api::text::size;
use clap::Args;
use config::Loaded;
use http::Method;
use std::fmt::Write as _;

/// How many lines of figures stand below one head.
const LINES: usize = 20;

const STATS: &str = "\
Examples:
  causeway stats
  causeway stats --watch                   a line each second, until Ctrl-C
  causeway stats --watch --json | jq .rates.requests

What the store holds by kind: causeway store stats. Everything for Prometheus: /metrics of the admin listener.";

/// `causeway stats`
#[derive(Debug, Args)]
#[command(after_help = format!("{STATS}\n\n{RUNNING}"))]
pub struct StatsArgs {
    /// Go on: a line each second
    #[arg(long, short)]
    watch: bool,
    /// How it is asked.
    #[command(flatten)]
    pub asking: Asking,
}

/// Prints figures.
///
/// # Errors
/// What was answered instead; that the gateway went away.
pub async fn stats(loaded: &Loaded, args: StatsArgs) -> anyhow::Result<()> {
    let StatsArgs { watch, asking } = args;
    let remote = running(loaded, &asking.node).await?;
    if !watch {
        let stats: StatsView = remote.get("/api/v1/stats").await?;
        return print_view(asking.json, &stats, stats_text);
    }
    let mut lines = remote.client().lines(Method::GET, "/api/v1/events", None::<&()>).await?;
    let mut shown = 0;
    while let Some(line) = lines.next().await? {
        let Some(data) = line.strip_prefix(b"data: ") else { continue };
        if asking.json {
            print_line(String::from_utf8_lossy(data).trim_end())?;
            continue;
        }
        let stats: StatsView = serde_json::from_slice(data).context("the gateway is of another version")?;
        if shown % LINES == 0 {
            print_line(HEAD)?;
        }
        shown += 1;
        print_line(&second(&stats))?;
    }
    anyhow::bail!("the gateway at {} says no more", remote.client().url())
}

const HEAD: &str = " requests/s       sent/s   memory/s     disk/s  network/s    p2p in/s   p2p out/s  waiting  peers";

fn second(stats: &StatsView) -> String {
    let rates = stats.rates.clone().unwrap_or_default();
    let RatesView { requests, sent_bytes, ram_hits, disk_hits, network_hits, p2p_received_bytes, p2p_sent_bytes } =
        rates;
    let bytes = |rate: f64| size(rate as u64);
    format!(
        "{requests:>11.0} {:>12} {ram_hits:>10.0} {disk_hits:>10.0} {network_hits:>10.0} {:>11} {:>11} {:>8} {:>6}",
        bytes(sent_bytes),
        bytes(p2p_received_bytes),
        bytes(p2p_sent_bytes),
        stats.http.waiting,
        stats.network.peers
    )
}

fn stats_text(stats: &StatsView) -> String {
    let StatsView { uptime_seconds, stage, http, tiers, store, network, pins, .. } = stats;
    let mut text = format!("{stage} for {}\n", brief(*uptime_seconds as u64));
    let answered: Vec<String> = http.requests.iter().map(|(class, requests)| format!("{requests} {class}")).collect();
    let answered = if answered.is_empty() { "none".to_owned() } else { answered.join(", ") };
    _ = writeln!(text, "requests     {answered}; {} sent, {} broke off", size(http.sent_bytes), http.aborted);
    _ = writeln!(
        text,
        "now          requests {}, of them waiting {}; connections {}",
        http.in_flight, http.waiting, http.connections
    );
    for (name, tier) in [("memory", &tiers.ram), ("disk", &tiers.disk), ("network", &tiers.network)] {
        let TierView { hits, misses, bytes, .. } = tier;
        _ = writeln!(text, "{name:12} {} ({}), {misses} not there", count(*hits, "block"), size(*bytes));
    }
    let degraded = match store.trouble.as_deref() {
        Some("full") => "; THE DISK IS FULL",
        Some("no_inodes") => "; THE FILE SYSTEM HAS NO INODES LEFT",
        _ if store.degraded => "; THE DISK REFUSES TO WRITE",
        _ => "",
    };
    _ = writeln!(text, "in memory    {}, {}", count(store.ram_blocks, "block"), size(store.ram_bytes));
    _ = writeln!(
        text,
        "stored       {}, {} cached and {} pinned{degraded}",
        count(store.blocks, "block"),
        size(store.cached_bytes),
        size(store.pinned_bytes)
    );
    if !pins.is_empty() {
        let of = |key: &str| pins.get(key).copied().unwrap_or_default();
        _ = writeln!(text, "pins         {} here, {} not yet, {} failed", of("pinned"), of("pending"), of("failed"));
    }
    _ = writeln!(
        text,
        "peers        {}; searches {}, blocks that are waited for {}",
        network.peers, network.searches, network.wanted_blocks
    );
    for carried in network.transports.iter().filter(|carried| carried.received_bytes + carried.sent_bytes > 0) {
        _ = writeln!(
            text,
            "  {:10} {} received, {} sent",
            carried.transport,
            size(carried.received_bytes),
            size(carried.sent_bytes)
        );
    }
    text
}

/// `causeway requests`
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  causeway requests\n  causeway requests --json | jq '.requests[] | select(.seconds > 60)'\n\n{RUNNING}"))]
pub struct RequestsArgs {
    /// So many at most
    #[arg(long, value_name = "NUMBER")]
    limit: Option<u32>,
    /// How it is asked.
    #[command(flatten)]
    pub asking: Asking,
}

/// Prints what is being answered.
///
/// # Errors
/// What was answered instead.
pub async fn requests(loaded: &Loaded, args: RequestsArgs) -> anyhow::Result<()> {
    let RequestsArgs { limit, asking } = args;
    let limit: Vec<_> = limit.map(|limit| ("limit", limit.to_string())).into_iter().collect();
    let path = format!("/api/v1/requests{}", query(&limit));
    let requests: RequestsView = running(loaded, &asking.node).await?.get(&path).await?;
    print_view(asking.json, &requests, requests_text)
}

fn requests_text(requests: &RequestsView) -> String {
    let row = |request: &RequestView| {
        [
            format!("{:.1} s", request.seconds),
            request.status.map_or_else(|| "-".to_owned(), |status| status.to_string()),
            size(request.sent_bytes),
            request.waits_for.clone(),
            request.client.clone(),
            format!("{} {}{}", printable(&request.method), printable(&request.host), printable(&request.path)),
        ]
    };
    let more = requests.count.saturating_sub(requests.requests.len());
    let more = if more > 0 { format!("and {more} more\n") } else { String::new() };
    match requests.count {
        0 => "nothing is being answered\n".to_owned(),
        _ => {
            table(["FOR", "STATUS", "SENT", "WAITS FOR", "CLIENT", "REQUEST"], requests.requests.iter().map(row))
                + &more
        }
    }
}

/// `causeway node`
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n  causeway node\n  causeway node --json | jq -r '.addresses[]'\n\n{RUNNING}"))]
pub struct NodeArgs {
    /// How it is asked.
    #[command(flatten)]
    pub asking: Asking,
}

/// Prints which node it is.
///
/// # Errors
/// What was answered instead.
pub async fn node(loaded: &Loaded, args: NodeArgs) -> anyhow::Result<()> {
    let node: NodeView = running(loaded, &args.asking.node).await?.get("/api/v1/node").await?;
    print_view(args.asking.json, &node, node_text)
}

fn node_text(node: &NodeView) -> String {
    let mut text =
        format!("Causeway {}, {}\n", node.version, if node.stopping { "about to end" } else { node.stage.as_str() });
    _ = writeln!(text, "since     {} ({})", moment(node.started_at), brief(node.uptime_seconds as u64));
    _ = writeln!(text, "peer id   {}", node.peer_id);
    node.gateway_listeners.iter().for_each(|address| _ = writeln!(text, "gateway   {address}"));
    node.admin_listeners.iter().for_each(|address| _ = writeln!(text, "admin     {address}"));
    node.addresses.iter().for_each(|address| _ = writeln!(text, "p2p       {address}"));
    if node.offline {
        text.push_str("p2p       offline\n");
    } else {
        _ = writeln!(text, "peers     {}", node.peers);
    }
    node.welcome.iter().for_each(|root| _ = writeln!(text, "welcome   /ipfs/{root}/"));
    node.advice.iter().for_each(|advice| _ = writeln!(text, "{advice}"));
    text
}
