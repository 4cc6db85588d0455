#!/usr/bin/env python3
"""Writes the Grafana dashboards into the folder dashboards/, or with --check only compares them.

A panel has a title, a unit, queries with their legends, and a sentence about what to see in it. In queries, $i is the
selector of the instances that are chosen at the top of a dashboard. Shares and some quantiles come from the recording
rules (../prometheus/causeway.recording.yml), so that a month is drawn as fast as an hour.

scripts/monitoring-tests runs every query against a real Prometheus that scrapes a real gateway.
"""

import json
import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).parent / "dashboards"
# Of Grafana 12.
SCHEMA_VERSION = 41
COLUMNS = 24
STAT_WIDTH, STAT_HEIGHT = 4, 4
GRAPH_WIDTH, GRAPH_HEIGHT = 12, 8
# Other programs have metrics of their process by the same names.
OF_CAUSEWAY = "and on (job, instance) causeway_build_info"


def stat(title, unit, query, why, good="high", limit=None):
    """One number; below `limit` it is red, or above it if `good` is "low"."""
    return {"title": title, "kind": "stat", "unit": unit, "queries": [(query, "{{instance}}")], "why": why,
            "good": good, "limit": limit}


def graph(title, unit, queries, why, stacked=False):
    """Lines over time."""
    return {"title": title, "kind": "timeseries", "unit": unit, "queries": queries, "why": why, "stacked": stacked}


def table(title, query, why):
    """Labels of the current series."""
    return {"title": title, "kind": "table", "unit": "none", "queries": [(query, "")], "why": why}


def rate(metric, selector="", by=""):
    """The rate of a counter, summed by labels, of which the instance is one."""
    inside = ", ".join(part for part in ("$i", selector) if part)
    labels = ", ".join(part for part in ("instance", by) if part)
    return f"sum by ({labels}) (rate({metric}{{{inside}}}[$__rate_interval]))"


def quantiles(metric, by=""):
    """Median and 99th percentile of a histogram."""
    legend = "{{instance}} " + (f"{{{{{by}}}}} " if by else "")
    buckets = rate(f"{metric}_bucket", by=f"le, {by}" if by else "le")
    return [(f"histogram_quantile(0.5, {buckets})", legend + "p50"),
            (f"histogram_quantile(0.99, {buckets})", legend + "p99")]


def by_tier(query):
    """A query that has a series for each tier."""
    return [(query, "{{instance}} {{tier}}")]


OVERVIEW = [
    stat("Ready", "bool_yes_no", "causeway_ready{$i}", "Whether /readyz answers 200.", limit=1),
    stat("Requests", "reqps", rate("causeway_http_requests_total"), "Answered requests, of all methods and statuses."),
    stat("Server errors", "percentunit", "instance:causeway_http_errors:ratio_rate5m{$i}",
         "Share of answers with 5xx. Some 504 are usual: content that no peer has.", good="low", limit=0.2),
    stat("First byte, p99", "s", "instance:causeway_http_first_byte_seconds:p99_rate5m{$i}",
         "From a request's head to its response's head. Misses wait for the network."),
    stat("Peers", "none", "causeway_p2p_connections{$i}", "Established libp2p connections.", limit=1),
    stat("Free disk", "percentunit", "causeway_data_dir_available_bytes{$i} / causeway_data_dir_size_bytes{$i}",
         "Of the file system of the data folder.", limit=0.05),
    table("Alerts", 'ALERTS{$i, alertname=~"Causeway.*", alertstate="firing"} or causeway_build_info{$i}',
          "What fires now, and the versions. docs/runbook.md has a section for each alert."),
    graph("Requests by status", "reqps", [(rate("causeway_http_requests_total", by="code"), "{{instance}} {{code}}")],
          "Answered requests by class of status.", stacked=True),
    graph("First byte", "s", [("instance:causeway_http_first_byte_seconds:p50_rate5m{$i}", "{{instance}} p50"),
                              ("instance:causeway_http_first_byte_seconds:p99_rate5m{$i}", "{{instance}} p99")],
          "Time to the response's head, over all tiers."),
    graph("Duration", "s", quantiles("causeway_http_duration_seconds"),
          "Time to the last byte: long for downloads by slow clients."),
    graph("Sent to clients", "Bps", [(rate("causeway_http_response_bytes_total"), "{{instance}}")],
          "Bytes of response bodies."),
    graph("Server errors", "percentunit", [("instance:causeway_http_errors:ratio_rate5m{$i}", "{{instance}}")],
          "Share of answers with 5xx."),
    graph("Aborted responses", "reqps", [
        (rate("causeway_http_responses_aborted_total", by="reason"), "{{instance}} {{reason}}"),
        (rate("causeway_http_requests_cancelled_total"), "{{instance}} cancelled"),
    ], "Responses that were aborted after their head, by reason; requests whose client left before it."),
    graph("In progress", "none", [("causeway_http_requests_in_flight{$i}", "{{instance}} requests"),
                                  ("causeway_http_connections{$i}", "{{instance}} connections")],
          "Against http.connections_max."),
    graph("Memory", "bytes", [
        (f"process_resident_memory_bytes{{$i}} {OF_CAUSEWAY}", "{{instance}}"),
        ("causeway_ram_bytes{$i}", "{{instance}} RAM cache"),
    ], "Resident memory, and the blocks in it."),
    graph("Processor", "none", [
        (f"rate(process_cpu_seconds_total{{$i}}[$__rate_interval]) {OF_CAUSEWAY}", "{{instance}}"),
    ], "Cores in use."),
    graph("File descriptors", "percentunit", [
        (f"process_open_fds{{$i}} / process_max_fds{{$i}} {OF_CAUSEWAY}", "{{instance}}"),
    ], "Share of the limit (LimitNOFILE)."),
    graph("Uptime", "s", [("causeway_uptime_seconds{$i}", "{{instance}}")], "A saw tooth is a restart."),
]

TIERS = [
    graph("Responses by tier", "percentunit", by_tier("instance_tier:causeway_http_tier_requests:share_rate5m{$i}"),
          "The farthest tier that was read for the first byte. Responses without content are left out.", stacked=True),
    graph("Bytes sent by tier", "percentunit", by_tier("instance_tier:causeway_http_tier_bytes:share_rate5m{$i}"),
          "Bytes of these responses.", stacked=True),
    graph("First byte by tier, p50", "s",
          by_tier("instance_tier:causeway_http_tier_first_byte_seconds:p50_rate5m{$i}"),
          "From a request's head to its response's head."),
    graph("First byte by tier, p99", "s",
          by_tier("instance_tier:causeway_http_tier_first_byte_seconds:p99_rate5m{$i}"),
          "From a request's head to its response's head."),
    graph("Blocks by tier", "percentunit", by_tier("instance_tier:causeway_tier_hits:share_rate5m{$i}"),
          "Where the blocks of all responses came from: one response may need blocks of several tiers.", stacked=True),
    graph("Bytes by tier", "percentunit", by_tier("instance_tier:causeway_tier_bytes:share_rate5m{$i}"),
          "Where their bytes came from.", stacked=True),
    graph("Hit ratio", "percentunit", by_tier("instance_tier:causeway_tier_hits:ratio_rate5m{$i}"),
          "How often a tier had what it was asked for. RAM is asked first, then the disk, then the storage of a site, then the network."),
    graph("Blocks", "ops", by_tier(rate("causeway_tier_requests_total", by="tier")),
          "Blocks requested from each tier."),
    graph("Latency, p50", "s", by_tier("instance_tier:causeway_tier_latency_seconds:p50_rate5m{$i}"),
          "Of a block. RAM is sampled."),
    graph("Latency, p99", "s", by_tier("instance_tier:causeway_tier_latency_seconds:p99_rate5m{$i}"),
          "Of a block. RAM is sampled."),
    graph("Bytes", "Bps", by_tier(rate("causeway_tier_bytes_total", by="tier")),
          "Bytes of the blocks that each tier returned."),
    graph("Errors", "ops", by_tier(rate("causeway_tier_errors_total", by="tier")),
          "Failed requests. Those of the network include content that no peer has."),
    graph("RAM cache", "bytes", [("causeway_ram_bytes{$i}", "{{instance}}")], "Against cache.ram_bytes_max."),
    graph("Blocks in RAM", "none", [("causeway_ram_entries{$i}", "{{instance}}")], "Cached blocks."),
    graph("Singleflight", "ops", [
        (rate("causeway_flight_joined_total"), "{{instance}} fetches"),
        (rate("causeway_http_walks_joined_total"), "{{instance}} path resolutions"),
        (rate("causeway_http_listings_total", 'result="joined"'), "{{instance}} listings"),
    ], "Requests that shared the work of another one."),
    graph("Resolved paths and listings", "ops", [
        (rate("causeway_http_path_lookups_total", by="result"), "{{instance}} path {{result}}"),
        (rate("causeway_http_listings_total", by="result"), "{{instance}} listing {{result}}"),
    ], "Look-ups in the caches of resolved paths and of listings."),
]

NETWORK = [
    stat("Peers", "none", "causeway_p2p_connections{$i}", "Established libp2p connections.", limit=1),
    stat("Routing table", "none", 'causeway_dht_routing_table_peers{$i, dht="wan"}',
         "Peers of the public DHT that queries start from. Under 20 on a public node is a reason to worry.", limit=20),
    stat("DHT server", "bool_yes_no", 'causeway_dht_server{$i, dht="wan"}', "Whether queries of peers are answered."),
    stat("Announcements late", "s", "max by (instance) (causeway_provide_lag_seconds{$i})",
         "How long the most overdue part of the key space has been due.", good="low", limit=6 * 3600),
    stat("Banned peers", "none", "causeway_p2p_banned{$i}", "Peers that sent invalid blocks or flooded this node."),
    stat("Published names not renewed", "none", "causeway_names_unput{$i}",
         "Names whose current record is on no target yet.", good="low", limit=1),
    graph("Discovery", "s", quantiles("causeway_upstream_discovery_seconds"),
          "From the first request for a DAG to the first peer that has it. A median over 2 s: few peers, or no UDP."),
    graph("Transfer", "s", quantiles("causeway_upstream_transfer_seconds"), "From requesting a block to receiving it."),
    graph("Received blocks", "ops", [(rate("causeway_bitswap_blocks_total", by="kind"), "{{instance}} {{kind}}")],
          "Duplicates over 5 % of wanted blocks, or a steady number of unsolicited ones, are a reason to worry.",
          stacked=True),
    graph("Bitswap", "Bps", [
        (rate("causeway_bitswap_block_bytes_total"), "{{instance}} received"),
        (rate("causeway_bitswap_sent_bytes_total"), "{{instance}} sent"),
        (rate("causeway_http_source_block_bytes_total"), "{{instance}} received over HTTP"),
    ], "Bytes of blocks from and to peers, and from trustless gateways."),
    graph("All protocols", "Bps", [(rate("causeway_p2p_carried_bytes_total"), "{{instance}}")],
          "Bytes that protocols read from peers and wrote to them."),
    graph("Hedged requests and stalls", "ops", [
        (rate("causeway_bitswap_hedges_total"), "{{instance}} hedged"),
        (rate("causeway_bitswap_stalls_total"), "{{instance}} stalled"),
    ], "Wants that no peer served in time. Stalls that grow with the traffic: content is gone, or no peer is reached."),
    graph("Connections", "none", [
        ("causeway_p2p_connections{$i}", "{{instance}}"),
        ("causeway_p2p_relayed_connections{$i}", "{{instance}} relayed"),
    ], "Against p2p.connections_max."),
    graph("Dials and trimming", "ops", [
        (rate("causeway_p2p_dials_overdue_total"), "{{instance}} overdue"),
        (rate("causeway_p2p_dials_displaced_total"), "{{instance}} displaced"),
        (rate("causeway_p2p_trimmed_total"), "{{instance}} trimmed"),
    ], "Many displaced dials: raise p2p.pending_dials_max. Trimming that never stops: raise p2p.connections_max."),
    graph("Reachability", "none", [("causeway_p2p_reachability{$i} == 1", "{{instance}} {{verdict}}"),
                                   ("causeway_p2p_relay_reservations{$i}", "{{instance}} relay reservations"),
                                   ("causeway_p2p_mapped_ports{$i}", "{{instance}} mapped ports")],
          "The verdict of other peers; relays and port mappings that make up for it."),
    graph("Misbehaviour of peers", "ops", [
        (rate("causeway_p2p_offences_total", by="offence"), "{{instance}} {{offence}}"),
    ], "Violations of protocols, by kind."),
    graph("Routing tables", "none", [("causeway_dht_routing_table_peers{$i}", "{{instance}} {{dht}}")],
          "Peers that queries start from."),
    graph("DHT queries", "s", quantiles("causeway_dht_walk_seconds"), "How long they take."),
    graph("DHT traffic", "ops", [
        (rate("causeway_dht_queries_total", by="dht"), "{{instance}} {{dht}} queries"),
        (rate("causeway_dht_providers_found_total", by="dht"), "{{instance}} {{dht}} providers found"),
        (rate("causeway_dht_records_received_total", by="dht"), "{{instance}} {{dht}} records stored for others"),
        (rate("causeway_dht_records_refused_total", by="reason"), "{{instance}} records refused: {{reason}}"),
    ], "Own queries, and what others store here."),
    graph("Announcing", "ops", [
        (rate("causeway_provide_announced_total", by="dht"), "{{instance}} {{dht}} keys"),
        (rate("causeway_provide_failures_total", by="dht"), "{{instance}} {{dht}} batches that failed"),
    ], "Provider records of pinned content."),
    graph("Keys to announce", "none", [
        ("causeway_provide_keys{$i}", "{{instance}} {{dht}} keys"),
        ("causeway_provide_waiting{$i}", "{{instance}} {{dht}} not yet announced"),
    ], "All, and those that wait for their first announcement."),
    graph("Names", "ops", [
        (rate("causeway_names_lookups_total", by="kind, result"), "{{instance}} {{kind}} {{result}}"),
        (rate("causeway_names_cached_total", by="state"), "{{instance}} cached {{state}}"),
    ], "Look-ups of IPNS keys in the DHT and of domains in DNS, and answers that needed none."),
    graph("Trustless gateways and routers", "ops", [
        (rate("causeway_http_source_requests_total", by="outcome"), "{{instance}} gateway {{outcome}}"),
        (rate("causeway_router_requests_total", by="endpoint, result"), "{{instance}} router {{endpoint}} {{result}}"),
    ], "Requests to other HTTP services (p2p.gateways, p2p.routers, and those of provider records)."),
]

STORE = [
    stat("Store", "bool_on_off", "1 - causeway_disk_degraded{$i}", "Off while writes fail and nothing is stored.",
         limit=1),
    stat("Free disk", "bytes", "causeway_data_dir_available_bytes{$i}", "Of the file system of the data folder.",
         limit=4 * 1024**3),
    stat("Blocks", "none", "causeway_disk_blocks{$i}", "On disk, pinned and cached."),
    stat("Incomplete pins", "none", "causeway_pins_incomplete{$i}",
         "Complete pins that lost blocks, which are being fetched again.", good="low", limit=1),
    stat("Damaged blocks", "none", "increase(causeway_disk_corrupt_blocks_total{$i}[1d])", "Found within a day.",
         good="low", limit=1),
    stat("Purges waiting", "none", "sum by (instance) (causeway_cache_invalidations_waiting{$i})",
         "Purge requests that a cache in front has not acknowledged. Empty without policy.caches.",
         good="low", limit=1),
    graph("Disk", "bytes", [
        ("causeway_disk_pinned_bytes{$i}", "{{instance}} pinned"),
        ("causeway_disk_cached_bytes{$i}", "{{instance}} cached"),
        ("causeway_data_dir_available_bytes{$i}", "{{instance}} free"),
    ], "Cached blocks stay within cache.disk_bytes_max; pinned ones are never evicted.", stacked=True),
    graph("Evicted", "Bps", [(rate("causeway_disk_evicted_bytes_total"), "{{instance}}")],
          "To stay within the budget, or to leave cache.disk_free_bytes_min free."),
    graph("Not written", "ops", [
        (rate("causeway_disk_dropped_writes_total"), "{{instance}} dropped blocks"),
        (rate("causeway_disk_write_errors_total"), "{{instance}} failed batches"),
    ], "Blocks that were not cached because the disk was too slow or failed."),
    graph("Damage", "none", [
        ("increase(causeway_disk_corrupt_blocks_total{$i}[1h])", "{{instance}} damaged blocks within an hour"),
        ("causeway_disk_index_damaged{$i}", "{{instance}} index damaged"),
        ("causeway_disk_index_rebuilt{$i}", "{{instance}} index rebuilt"),
        ("causeway_disk_lacking_pins{$i}", "{{instance}} pins that lack blocks"),
    ], "Everything but zero is a reason to check the disk."),
    graph("Scrub", "Bps", [(rate("causeway_disk_scrubbed_bytes_total"), "{{instance}}")],
          "Read in the background to find damage (cache.scrub_bytes_per_second)."),
    graph("Pin requests", "none", [("causeway_pins_requests{$i}", "{{instance}} {{status}}")], "By status."),
    graph("Fetching pins", "none", [
        ("causeway_pins_queued_roots{$i}", "{{instance}} queued"),
        ("causeway_pins_active_roots{$i}", "{{instance}} active"),
    ], "DAGs. At most pinning.workers_max are active."),
    graph("Fetched for pins", "Bps", [(rate("causeway_pins_fetched_bytes_total"), "{{instance}}")],
          "From the network."),
    graph("Pins that failed or lost blocks", "ops", [
        (rate("causeway_pins_failures_total", by="reason"), "{{instance}} failed: {{reason}}"),
        (rate("causeway_pins_losses_total"), "{{instance}} lost blocks"),
    ], "Failed attempts to fetch a DAG, by reason; pins that were found to have lost blocks."),
    graph("Purge requests", "none", [
        ("causeway_cache_invalidations_waiting{$i}", "{{instance}} {{cache}} waiting"),
        ("increase(causeway_cache_invalidations_dropped_total{$i}[1h])", "{{instance}} dropped within an hour"),
        ("increase(causeway_cache_invalidations_sent_total{$i}[1h])",
         "{{instance}} {{cache}} {{result}} within an hour"),
    ], "To the caches in front, for take-downs (policy.caches)."),
]

DASHBOARDS = {"overview": OVERVIEW, "tiers": TIERS, "network": NETWORK, "store": STORE}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def expression(query):
    """A query with the selector of the chosen instances."""
    return re.sub(r"\$i\b", 'instance=~"$instance"', query)


def thresholds(panel):
    """Colours of a number."""
    if panel.get("limit") is None:
        return {"mode": "absolute", "steps": [{"color": "text", "value": None}]}
    first, second = ("red", "green") if panel["good"] == "high" else ("green", "red")
    return {"mode": "absolute", "steps": [{"color": first, "value": None}, {"color": second, "value": panel["limit"]}]}


def field_config(panel):
    """How values are drawn."""
    defaults = {"unit": panel["unit"]}
    if panel["kind"] == "stat":
        defaults["thresholds"] = thresholds(panel)
    if panel["kind"] == "timeseries":
        defaults["min"] = 0
        defaults["custom"] = {"fillOpacity": 10 if panel["stacked"] else 0, "showPoints": "never",
                              "stacking": {"mode": "normal" if panel["stacked"] else "none"}}
    return {"defaults": defaults, "overrides": []}


OPTIONS = {
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "none",
             "textMode": "auto", "justifyMode": "auto", "orientation": "auto", "wideLayout": True,
             "showPercentChange": False, "percentChangeColorMode": "standard"},
    "timeseries": {"legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
                   "tooltip": {"mode": "multi", "sort": "desc"}},
    "table": {"showHeader": True, "frameIndex": 0},
}


def targets(panel):
    """The queries of a panel."""
    for number, (query, legend) in enumerate(panel["queries"]):
        target = {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": expression(query),
                  "legendFormat": legend}
        if panel["kind"] != "timeseries":
            target["instant"] = True
        if panel["kind"] == "table":
            target["format"] = "table"
        yield target


def placed(panels):
    """The panels with their places: numbers in the first line, then two graphs a line."""
    x = y = height = 0
    for number, panel in enumerate(panels, start=1):
        wide = {"stat": STAT_WIDTH, "table": COLUMNS, "timeseries": GRAPH_WIDTH}[panel["kind"]]
        high = {"stat": STAT_HEIGHT, "table": STAT_HEIGHT + 2, "timeseries": GRAPH_HEIGHT}[panel["kind"]]
        if x + wide > COLUMNS or (x > 0 and high != height):
            x, y = 0, y + height
        height = high
        grid = {"x": x, "y": y, "w": wide, "h": high}
        x += wide
        yield {"id": number, "type": panel["kind"], "title": panel["title"], "description": panel["why"],
               "gridPos": grid, "datasource": SOURCE, "targets": list(targets(panel)),
               "fieldConfig": field_config(panel), "options": OPTIONS[panel["kind"]]}


def dashboard(name, panels):
    """A dashboard as Grafana reads it."""
    instances = "label_values(causeway_build_info, instance)"
    variables = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {"name": "instance", "label": "Instance", "type": "query", "datasource": SOURCE, "refresh": 2, "sort": 1,
         "definition": instances, "query": {"query": instances, "refId": "instances"},
         "multi": True, "includeAll": True, "allValue": ".+", "current": {"text": "All", "value": "$__all"}},
    ]
    links = [{"type": "dashboards", "title": "Causeway", "tags": ["causeway"], "icon": "dashboard",
              "tooltip": "The other dashboards of Causeway", "asDropdown": False, "keepTime": True, "includeVars": True,
              "targetBlank": False}]
    return {"uid": f"causeway-{name}", "title": f"Causeway: {name}", "tags": ["causeway"],
            "schemaVersion": SCHEMA_VERSION, "editable": True, "timezone": "browser", "refresh": "30s",
            "time": {"from": "now-6h", "to": "now"}, "links": links,
            "annotations": {"list": []}, "templating": {"list": variables},
            "panels": list(placed(panels))}


def rendered(name, panels):
    """A dashboard as JSON, with a line for each panel."""
    whole = dashboard(name, panels)
    lines = ",\n".join(json.dumps(panel) for panel in whole.pop("panels"))
    return f'{json.dumps(whole, indent=1)[:-2]},\n "panels": [\n{lines}\n]}}\n'


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(f"usage: {sys.argv[0]} [--check]")
    for name, panels in DASHBOARDS.items():
        file = FOLDER / f"causeway-{name}.json"
        text = rendered(name, panels)
        if not check:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            sys.exit(f"{file} is out of date: run {sys.argv[0]}")


main()
