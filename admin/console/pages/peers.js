// Peers: who this gateway is connected with, and what passes between them.

import { call, get } from "../lib/api.js";
import { append, fill, h } from "../lib/dom.js";
import { filters, matches } from "../lib/filters.js";
import { byteRate, bytes, count, duration, plural, sentence, share, shortened, wholeDuration } from "../lib/format.js";
import { poll } from "../lib/poll.js";
import {
  badge, button, card, confirm, dialog, facts, field, form, identifier, input, meter, pageHead, progress, select, submit, table, tile, toast,
} from "../lib/ui.js";
import { TRANSPORTS } from "../lib/words.js";

const REFRESH_SECONDS = 3;
const ROWS = 200;
// The commonest agents that are shown; the others are counted together, so that the height of the list stays.
const AGENTS = 4;

// ---------------------------------------------------------------- What a peer is

function transportOf(address) {
  if (address.includes("/p2p-circuit")) return "Circuit";
  if (address.includes("/webtransport")) return "WebTransport";
  if (address.includes("/webrtc")) return "WebRTC";
  if (address.includes("/quic")) return "QUIC";
  if (/\/wss?(\/|$)/.test(address)) return "WebSocket";
  return address.includes("/tcp/") ? "TCP" : "Other";
}

const distinct = (values) => [...new Set(values)];
const transportsOf = (peer) => distinct(peer.connections.map(({ address }) => transportOf(address))).sort().join(", ");

function directionOf(peer) {
  const directions = distinct(peer.connections.map(({ direction }) => direction));
  if (directions.length > 1) return "Both";
  return directions[0] === "in" ? "Inbound" : "Outbound";
}

// "kubo/0.40.0/3f0947b/docker" is "kubo/0.40.0".
const agentOf = ({ agent }) => (agent ? agent.split("/").slice(0, 2).join("/").slice(0, 40) : "Unknown");

const connectedFor = (peer) => wholeDuration(peer.connected_seconds);

function flagsOf(peer) {
  const flags = [];
  if (peer.is_trusted) flags.push(badge("Trusted", "ok"));
  if (peer.is_throttled) flags.push(badge("Throttled", "warning"));
  if (peer.owes_blocks) flags.push(badge("Outstanding blocks", "info"));
  return flags;
}

function sentences(peer) {
  const useful = peer.useful_seconds_ago;
  return [
    peer.is_trusted && "Trusted: a configured peer, which always has a connection slot.",
    peer.is_throttled && "Throttled: it misbehaved, and is served with the lowest priority.",
    peer.owes_blocks && "Outstanding blocks: it was asked for blocks that it has not sent yet.",
    typeof useful === "number" ? `It last sent a requested block ${wholeDuration(useful)} ago.` : "It has sent no requested block yet.",
  ].filter(Boolean);
}

// ---------------------------------------------------------------- The page

const receivedOf = (peer) => peer.bitswap_received_bytes;

const COLUMNS = [
  { id: "peer", title: "Peer", width: "10rem", cell: (peer) => identifier(peer.peer_id, { ends: 6 }), sort: (peer) => peer.peer_id },
  { id: "agent", title: "Agent", width: "9.5rem", hide: "narrow", cell: (peer) => shortened(peer.agent, 14), sort: (peer) => peer.agent },
  { id: "latency", title: "Latency", width: "5.5rem", numeric: true, cell: (peer) => duration(peer.rtt_seconds), sort: (peer) => peer.rtt_seconds },
  { id: "received", title: "Received", width: "6rem", numeric: true, cell: (peer) => bytes(receivedOf(peer)), sort: receivedOf },
  { id: "sent", title: "Sent", width: "6rem", numeric: true, cell: (peer) => bytes(peer.bitswap_sent_bytes), sort: (peer) => peer.bitswap_sent_bytes },
  { id: "direction", title: "Direction", width: "5.5rem", hide: "narrow", cell: directionOf, sort: directionOf },
  { id: "transport", title: "Transport", width: "6rem", hide: "narrow", cell: transportsOf, sort: transportsOf },
  { id: "connected", title: "Connected", width: "6.5rem", numeric: true, hide: "narrow", cell: connectedFor, sort: (peer) => peer.connected_seconds },
  { title: "State", width: "5rem", hide: "narrow", cell: (peer) => h("span", { class: "badges" }, flagsOf(peer)) },
];

const FILTERS = {
  search: { label: "Search", placeholder: "Peer ID, agent, address or protocol" },
  direction: { label: "Direction", options: [["", "All"], ["Inbound", "Inbound"], ["Outbound", "Outbound"]] },
  transport: { label: "Transport", options: [["", "All"], ...Object.values(TRANSPORTS).map((name) => [name, name])] },
  state: { label: "State", options: [["", "All"], ["is_trusted", "Trusted"], ["is_throttled", "Throttled"], ["owes_blocks", "Outstanding blocks"]] },
};

function selected(peers, { search, direction, transport, state }) {
  const wanted = (peer) =>
    (direction === "" || [direction, "Both"].includes(directionOf(peer))) &&
    (transport === "" || peer.connections.some(({ address }) => transportOf(address) === transport)) &&
    (state === "" || peer[state]) &&
    matches(search, [peer.peer_id, peer.agent, ...peer.connections.map(({ address }) => address), ...peer.protocols]);
  return peers.filter(wanted);
}

function show(main, context) {
  const { may, parameters, setParameters, signal } = context;
  let peers = [];
  let traffic = null;
  let noPeers;

  const figures = { count: tile("Peers"), latency: tile("Median latency"), received: tile("Received"), sent: tile("Sent") };
  const agents = agentsTable();
  const transports = transportsTable();
  const found = h("p", { class: "muted" });
  const filter = filters(context, FILTERS, () => list());
  const rows = table("Connected peers", COLUMNS, {
    key: (peer) => peer.peer_id, limit: ROWS, details,
    order: parameters.get("sort") ?? "-connected",
    onOrder: (sort) => setParameters({ sort }),
  });
  const updates = poll(refresh, REFRESH_SECONDS, signal);

  async function refresh() {
    const [answer, bandwidth] = await Promise.all([get("/api/v1/peers", {}, { signal }), get("/api/v1/bandwidth", {}, { signal })]);
    peers = answer.peers;
    if (peers.length === 0) noPeers = await reason();
    total(answer.count, bandwidth);
    agents.show(commonest(peers));
    transports.show(bandwidth.transports, "No traffic: this gateway has no network.");
    list();
  }

  // Why there is no peer.
  async function reason() {
    const node = await get("/api/v1/node", {}, { signal });
    if (node.offline) return "This gateway is offline (p2p.offline): it has no peers, and serves what is stored locally.";
    return node.advice ? sentence(node.advice) : "This gateway has no peers yet. Connect one by its address.";
  }

  function total(number, { received_bytes, sent_bytes }) {
    const now = performance.now();
    const seconds = (now - traffic?.now) / 1000;
    const inbound = peers.filter((peer) => directionOf(peer) === "Inbound").length;
    const latencies = peers.map((peer) => peer.rtt_seconds).filter(Number.isFinite).sort((a, b) => a - b);
    figures.count.show(count(number), `${count(inbound)} inbound, ${count(peers.length - inbound)} outbound`);
    figures.latency.show(duration(latencies[Math.floor(latencies.length / 2)]), `of ${plural(latencies.length, "measured peer")}`);
    figures.received.show(bytes(received_bytes), traffic ? byteRate(Math.max(0, received_bytes - traffic.received_bytes) / seconds) : "");
    figures.sent.show(bytes(sent_bytes), traffic ? byteRate(Math.max(0, sent_bytes - traffic.sent_bytes) / seconds) : "");
    traffic = { now, received_bytes, sent_bytes };
  }

  function list() {
    const wanted = selected(peers, filter.values);
    fill(found, wanted.length === peers.length ? plural(peers.length, "peer") : `${count(wanted.length)} of ${plural(peers.length, "peer")}`);
    rows.show(wanted, peers.length > 0 ? "No peer matches the filters. Remove some of them." : noPeers);
  }

  function details(peer) {
    const connections = peer.connections.map(({ address, direction }) =>
      h("li", {}, h("code", {}, address), h("span", { class: "muted" }, direction === "in" ? " – the peer dialled" : " – this gateway dialled")));
    return [
      facts([
        ["Peer ID", h("code", {}, peer.peer_id)],
        ["Agent", peer.agent ?? "The peer has not told it"],
        ["Latency", duration(peer.rtt_seconds)],
        ["Connected for", connectedFor(peer)],
        ["Bitswap received", bytes(peer.bitswap_received_bytes)],
        ["Bitswap sent", bytes(peer.bitswap_sent_bytes)],
      ]),
      h("h3", {}, "State"), h("ul", {}, sentences(peer).map((text) => h("li", {}, text))),
      h("h3", {}, "Connections"), h("ul", {}, connections),
      h("h3", {}, "Protocols"),
      h("p", {}, peer.protocols.length > 0 ? peer.protocols.map((name) => [h("code", {}, name), " "]) : "The peer has not told them."),
      may("operate") ? button("Disconnect…", () => disconnect(peer), { kind: "danger small", label: `Disconnect ${peer.peer_id}` }) : null,
    ];
  }

  async function disconnect({ peer_id, is_trusted }) {
    const again = is_trusted
      ? "It is a configured peer: this gateway connects with it again."
      : "It may connect again, and this gateway may dial it when it has content that is requested.";
    const text = `All connections with ${peer_id} are closed, and transfers on them end. ${again}`;
    if (!(await confirm("Disconnect this peer?", text, "Disconnect"))) return;
    await call("DELETE", `/api/v1/peers/${encodeURIComponent(peer_id)}`, { signal });
    toast(`${shortened(peer_id)} is disconnected.`);
    updates.now();
  }

  append(main,
    pageHead("Peers", "The nodes of the network that this gateway is connected with.", updates.pause,
      may("operate") ? button("Connect…", () => connect(signal, updates.now), { kind: "primary" }) : null),
    updates,
    h("div", { class: "tiles" }, Object.values(figures)),
    h("div", { class: "grid" },
      card("Agents", h("div", { class: "five-rows" }, agents)),
      card("Traffic by transport since the start", h("div", { class: "five-rows" }, transports))),
    card("Connected peers", filter, found, rows));
}

// ---------------------------------------------------------------- Summaries

// The commonest agents with the number of their peers.
function commonest(peers) {
  const numbers = new Map();
  for (const peer of peers) numbers.set(agentOf(peer), (numbers.get(agentOf(peer)) ?? 0) + 1);
  const all = [...numbers].map(([name, number]) => ({ name, number, of: peers.length })).sort((a, b) => b.number - a.number || a.name.localeCompare(b.name));
  const others = all.slice(AGENTS);
  if (others.length < 2) return all;
  const number = others.reduce((sum, other) => sum + other.number, 0);
  return [...all.slice(0, AGENTS), { name: plural(others.length, "other agent"), number, of: peers.length, isRest: true }];
}

function agentCell({ name, isRest }) {
  if (isRest || name === "Unknown") return name;
  return h("a", { href: `#/peers?search=${encodeURIComponent(name)}`, title: "Show the peers with this agent" }, name.replace("/", " "));
}

const agentsTable = () => table("Agents of the peers", [
  { title: "Agent", width: "45%", cell: agentCell },
  { title: "Peers", width: "15%", numeric: true, cell: ({ number }) => count(number) },
  { title: "Share", cell: ({ name, number, of }) => h("div", { class: "share" }, meter(number, of, `Share of ${name}`), h("span", {}, share(number, of))) },
], { key: ({ name }) => name, empty: "No peers." });

const transportsTable = () => table("Traffic by transport", [
  { title: "Transport", width: "34%", cell: ({ transport }) => TRANSPORTS[transport] ?? transport },
  { title: "Received", numeric: true, cell: ({ received_bytes }) => bytes(received_bytes) },
  { title: "Sent", numeric: true, cell: ({ sent_bytes }) => bytes(sent_bytes) },
], { key: ({ transport }) => transport });

// ---------------------------------------------------------------- Connecting

const TIMEOUTS = [["10", "10 seconds"], ["30", "30 seconds"], ["120", "2 minutes"]];

// Asks for an address, connects, and waits for the result. Closing the dialog, or leaving the page, gives the attempt up.
async function connect(pageSignal, connected) {
  const controller = new AbortController();
  const signal = AbortSignal.any([pageSignal, controller.signal]);
  const address = input({ name: "address", required: true, autofocus: true, placeholder: "/ip4/192.0.2.1/tcp/4001/p2p/12D3KooW…" });
  const timeout = select(TIMEOUTS, "30");
  const waiting = h("div", { role: "status" });
  const view = await dialog("Connect with a peer", (close) => {
    const action = async () => {
      const text = address.value.trim();
      if (text === "") throw new Error("Enter the address or the ID of a peer.");
      fill(waiting, h("p", { class: "muted" }, "Connecting…"), progress("Connecting"));
      try {
        close(await call("POST", "/api/v1/peers/connect", { json: { address: text, timeout_seconds: Number(timeout.value) }, signal }));
      } finally {
        fill(waiting);
      }
    };
    return form(action,
      field("Address or peer ID", address, "A multiaddr that ends in /p2p/ID, or a peer ID alone, whose addresses are looked up in the DHT."),
      field("Give up after", timeout), waiting,
      h("div", { class: "actions" }, submit("Connect")));
  });
  controller.abort();
  if (!view) return;
  toast(`${view.already ? "Already connected" : "Connected"} with ${shortened(view.peer_id)} at ${view.address}.`);
  connected();
}

export default { id: "peers", title: "Peers", scopes: ["read"], show };
