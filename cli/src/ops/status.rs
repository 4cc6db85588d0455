//! `causeway stats`, `requests` and `node`.

use crate::options::{GATEWAY_REQUIRED, RequestOptions};
use crate::output::{count, print_line, print_view, table};
use crate::progress::brief;
use crate::remote::address::query;
use crate::remote::connect;
use crate::store_cli::printable;
use crate::values::{latency, moment, share};
use anyhow::Context as _;
use api::node::NodeView;
use api::requests::{RequestView, RequestsView};
use api::stats::{HttpView, RatesView, ResponseTierView, StatsView, TierView};
use api::text::size;
use clap::Args;
use config::Loaded;
use http::Method;
use std::fmt::Write as _;

/// `stats --watch` prints the head again after so many lines.
const LINES: usize = 20;

const STATS: &str = "\
Examples:
  causeway stats
  causeway stats --watch                   a line every second, until Ctrl-C
  causeway stats --watch --json | jq .rates.requests

\"causeway store stats\" has more about the store, and /metrics of the admin listener all metrics for Prometheus. \
\"causeway report\" evaluates access logs.";

/// `causeway stats`
#[derive(Debug, Args)]
#[command(after_help = format!("{STATS}\n\n{GATEWAY_REQUIRED}"))]
pub struct StatsArgs {
    /// Print a line every second
    #[arg(long, short)]
    watch: bool,
    /// Output format and node.
    #[command(flatten)]
    pub options: RequestOptions,
}

/// Prints statistics.
///
/// # Errors
/// When the gateway rejects the request, or closes the connection.
pub async fn stats(loaded: &Loaded, args: StatsArgs) -> anyhow::Result<()> {
    let StatsArgs { watch, options } = args;
    let remote = connect(loaded, &options.node).await?;
    if !watch {
        let stats: StatsView = remote.get("/api/v1/stats").await?;
        return print_view(options.json, &stats, stats_text);
    }
    let mut lines = remote.client().lines(Method::GET, "/api/v1/events", None::<&()>).await?;
    let mut shown = 0;
    while let Some(line) = lines.next().await? {
        let Some(data) = line.strip_prefix(b"data: ") else { continue };
        if options.json {
            print_line(String::from_utf8_lossy(data).trim_end())?;
            continue;
        }
        let stats: StatsView =
            serde_json::from_slice(data).context("the answer cannot be parsed: the gateway has another version")?;
        if shown % LINES == 0 {
            print_line(&rates_head(&stats))?;
        }
        shown += 1;
        print_line(&rates_line(&stats))?;
    }
    anyhow::bail!("the gateway at {} closed the connection", remote.client().url())
}

/// A gateway of a site has a column more.
fn rates_head(stats: &StatsView) -> String {
    let site = stats.tiers.site.as_ref().map_or_else(String::new, |_| format!(" {:>10}", "site/s"));
    format!(" requests/s       sent/s   memory/s     disk/s{site}  network/s    p2p in/s   p2p out/s  waiting  peers")
}

fn rates_line(stats: &StatsView) -> String {
    let rates = stats.rates.clone().unwrap_or_default();
    let RatesView { requests, sent_bytes, ram_hits, disk_hits, network_hits, .. } = rates;
    let site_hits = stats.tiers.site.as_ref().map(|_| rates.site_hits.unwrap_or_default());
    let site = site_hits.map_or_else(String::new, |hits| format!(" {hits:>10.0}"));
    let RatesView { p2p_received_bytes, p2p_sent_bytes, .. } = rates;
    let bytes = |rate: f64| size(rate as u64);
    format!(
        "{requests:>11.0} {:>12} {ram_hits:>10.0} {disk_hits:>10.0}{site} {network_hits:>10.0} {:>11} {:>11} {:>8} {:>6}",
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
    let answers: Vec<String> = http.requests.iter().map(|(class, requests)| format!("{requests} {class}")).collect();
    let answers = if answers.is_empty() { "none".to_owned() } else { answers.join(", ") };
    _ = writeln!(text, "requests     {answers}; {} sent, {} aborted", size(http.sent_bytes), http.aborted);
    _ = writeln!(
        text,
        "in flight    requests {}, of them waiting {}; connections {}",
        http.in_flight, http.waiting, http.connections
    );
    text.push_str(&response_tiers(http));
    let local = [("memory", &tiers.ram), ("disk", &tiers.disk)];
    let site = tiers.site.as_ref().map(|site| ("site", site));
    for (name, tier) in local.into_iter().chain(site).chain([("network", &tiers.network)]) {
        let TierView { hits, misses, bytes, .. } = tier;
        _ = writeln!(text, "{name:12} {} ({}), {misses} misses", count(*hits, "block"), size(*bytes));
    }
    let degraded = match store.trouble.as_deref() {
        Some("full") => "; THE DISK IS FULL",
        Some("no_inodes") => "; THE FILE SYSTEM HAS NO INODES LEFT",
        _ if store.degraded => "; WRITES TO THE DISK FAIL",
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
        _ = writeln!(text, "pins         {} pinned, {} pending, {} failed", of("pinned"), of("pending"), of("failed"));
    }
    _ = writeln!(
        text,
        "peers        {}; provider searches {}, wanted blocks {}",
        network.peers, network.searches, network.wanted_blocks
    );
    for transport in network.transports.iter().filter(|one| one.received_bytes + one.sent_bytes > 0) {
        _ = writeln!(
            text,
            "  {:10} {} received, {} sent",
            transport.transport,
            size(transport.received_bytes),
            size(transport.sent_bytes)
        );
    }
    text
}

/// Responses with content by tier: their shares and latencies, as in Table 5 of the paper. Empty without any.
fn response_tiers(http: &HttpView) -> String {
    let tiers = [("memory", "ram"), ("disk", "disk"), ("site", "site"), ("network", "network")];
    let found = tiers.iter().filter_map(|(name, key)| Some((*name, http.tiers.get(*key)?)));
    let found: Vec<(&str, &ResponseTierView)> = found.collect();
    let (requests, bytes) =
        found.iter().fold((0, 0), |(requests, bytes), (_, tier)| (requests + tier.requests, bytes + tier.sent_bytes));
    if requests == 0 {
        return String::new();
    }
    let latency = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), latency);
    let row = |(name, tier): (&str, &ResponseTierView)| {
        [
            format!("  {name}"),
            share(tier.requests, requests),
            share(tier.sent_bytes, bytes),
            latency(tier.first_byte_median_seconds),
            latency(tier.first_byte_p95_seconds),
        ]
    };
    table(["content from", "REQUESTS", "BYTES", "FIRST BYTE (MEDIAN)", "95 %"], found.into_iter().map(row))
}

/// `causeway requests`
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n\
    \x20 causeway requests\n\
    \x20 causeway requests --json | jq '.requests[] | select(.seconds > 60)'\n\n\
    {GATEWAY_REQUIRED}"))]
pub struct RequestsArgs {
    /// The maximum number of requests
    #[arg(long, value_name = "NUMBER")]
    limit: Option<u32>,
    /// Output format and node.
    #[command(flatten)]
    pub options: RequestOptions,
}

/// Prints the requests in progress.
///
/// # Errors
/// When the gateway cannot be reached or rejects the request.
pub async fn requests(loaded: &Loaded, args: RequestsArgs) -> anyhow::Result<()> {
    let RequestsArgs { limit, options } = args;
    let limit: Vec<_> = limit.map(|limit| ("limit", limit.to_string())).into_iter().collect();
    let path = format!("/api/v1/requests{}", query(&limit));
    let requests: RequestsView = connect(loaded, &options.node).await?.get(&path).await?;
    print_view(options.json, &requests, requests_text)
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
        0 => "no requests in progress\n".to_owned(),
        _ => {
            table(["FOR", "STATUS", "SENT", "WAITS FOR", "CLIENT", "REQUEST"], requests.requests.iter().map(row))
                + &more
        }
    }
}

/// `causeway node`
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:\n\
    \x20 causeway node\n\
    \x20 causeway node --json | jq -r '.addresses[]'\n\n\
    {GATEWAY_REQUIRED}"))]
pub struct NodeArgs {
    /// Output format and node.
    #[command(flatten)]
    pub options: RequestOptions,
}

/// Prints the node's version, peer ID and addresses.
///
/// # Errors
/// When the gateway cannot be reached or rejects the request.
pub async fn node(loaded: &Loaded, args: NodeArgs) -> anyhow::Result<()> {
    let node: NodeView = connect(loaded, &args.options.node).await?.get("/api/v1/node").await?;
    print_view(args.options.json, &node, node_text)
}

fn node_text(node: &NodeView) -> String {
    let mut text =
        format!("Causeway {}, {}\n", node.version, if node.stopping { "stopping" } else { node.stage.as_str() });
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

#[cfg(test)]
mod tests {
    use super::*;
    use api::stats::TiersView;

    #[test]
    fn only_a_gateway_of_a_site_has_a_row_and_a_column_for_it() {
        let alone = StatsView::default();
        let tier = TierView { hits: 7, misses: 1, errors: 0, bytes: 70 };
        let member = StatsView {
            tiers: TiersView { site: Some(tier), ..TiersView::default() },
            rates: Some(RatesView { site_hits: Some(3.0), ..RatesView::default() }),
            ..StatsView::default()
        };
        assert!(!stats_text(&alone).contains("site"), "{}", stats_text(&alone));
        let text = stats_text(&member);
        assert!(text.contains("\nsite         7 blocks (70 B), 1 misses\nnetwork "), "{text}");
        let columns = |line: String| line.split("  ").filter(|column| !column.trim().is_empty()).count();
        for (stats, expected) in [(&alone, 9), (&member, 10)] {
            let (head, line) = (rates_head(stats), rates_line(stats));
            assert_eq!(head.len(), line.len(), "{head}\n{line}");
            assert_eq!((columns(head.clone()), head.contains("site/s")), (expected, expected == 10), "{head}");
        }
    }
}
