// Whether the gateway is well, and what it does: state in words, figures of each second, the last hour, and the node.

import { ApiError, get } from "../lib/api.js";
import { chart, sparkline } from "../lib/chart.js";
import { append, fill, h, plain, setText, uniqueId } from "../lib/dom.js";
import { byteRate, bytes, clock, count, duration, plural, rate, sentence, share, time, wholeDuration } from "../lib/format.js";
import { listeners } from "../lib/listeners.js";
import * as live from "../lib/live.js";
import { poll } from "../lib/poll.js";
import { Samples } from "../lib/samples.js";
import { badge, budgetMeter, card, copyButton, icon, identifier, meter, pageHead, tile } from "../lib/ui.js";
import { TRANSPORTS } from "../lib/words.js";

// The tiers in the order in which they are asked, with the colours that they have in all pictures. Only a gateway that belongs
// to a site has that of its shared storage.
const TIERS = [["ram", "RAM", 1], ["disk", "Disk", 3], ["site", "Site", 4], ["network", "Network", 2]];
const HEALTH_EVERY = 10;
const HISTORY_EVERY = 30;
const NODE_EVERY = 60;
// In milliseconds, if the gateway has not answered by then.
const APPEARS_AFTER = 5000;
// Five minutes of samples beside a figure.
const SPARK_SAMPLES = 60;

const perSecond = (value) => (Number.isFinite(value) ? `${rate(value)}/s` : "–");

export default {
  id: "overview",
  title: "Overview",
  scopes: ["read"],
  show(main, context) {
    const { signal } = context;
    const samples = new Samples();
    const parts = { state: stateCard(), welcome: welcomeNotice(), figures: figures(), tiers: tiersCard(), charts: charts() };
    const cards = { node: nodeCard(), storage: storageCard(), reach: reachCard(), pins: pinsCard(context), peers: peersCard() };
    // All of it appears at once, when the state is known: nothing moves while the first answers come.
    const body = h("div", { hidden: true }, Object.values(parts), h("div", { class: "columns" }, Object.values(cards)));
    let known = "";
    const appear = () => {
      if (parts.state.isKnown() && known !== "") body.hidden = false;
    };
    const late = setTimeout(() => {
      body.hidden = false;
    }, APPEARS_AFTER);
    signal.addEventListener("abort", () => clearTimeout(late));
    const showSamples = () => {
      parts.figures.showSamples(samples);
      parts.charts.showSamples(samples);
    };
    const readHealth = async () => {
      const health = await get("/api/v1/health", {}, { signal });
      parts.state.showHealth(health);
      cards.reach.showHealth(health);
      appear();
    };
    const readHistory = async () => {
      const history = await get("/api/v1/history", {}, { signal });
      samples.replace(history.samples);
      showSamples();
    };
    const readNode = async () => {
      const node = await get("/api/v1/node", {}, { signal });
      const urls = await listeners(node, signal);
      const now = JSON.stringify([{ ...node, uptime_seconds: 0, peers: 0 }, urls]);
      if (now === known) return;
      known = now;
      for (const part of [parts.welcome, cards.node, cards.peers]) part.showNode(node, urls);
      appear();
    };
    const readings = [[readHealth, HEALTH_EVERY], [readHistory, HISTORY_EVERY], [readNode, NODE_EVERY]];
    append(main, pageHead("Overview"), readings.map(([read, seconds]) => poll(() => unlessSilent(read), seconds, signal)), body);
    return live.subscribe((stats, connected) => {
      parts.state.showConnection(connected);
      if (!stats || !connected) return;
      const isComplete = samples.add(stats);
      if (document.hidden) return;
      for (const part of [...Object.values(parts), ...Object.values(cards)]) part.showStats?.(stats);
      if (isComplete) showSamples();
      appear();
    });
  },
};

// Whether the gateway answers at all is said by the frame.
async function unlessSilent(work) {
  try {
    await work();
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 0)) throw error;
  }
}

// ---------------------------------------------------------------- State

const LEVELS = { error: ["Error", "error", "alert"], warning: ["Warning", "warning", "alert"], info: ["Note", "info", "info"] };

// The state as a sentence: its text, and its tone.
function sentenceOf(stage, findings) {
  const number = (level) => findings.filter((finding) => finding.level === level).length;
  const [errors, warnings] = [number("error"), number("warning")];
  if (stage === "starting") return ["The gateway is starting.", "info"];
  if (stage === "draining") return ["The gateway is draining: load balancers should send it no more requests.", "warning"];
  const warned = warnings > 0 ? ` There ${warnings === 1 ? "is" : "are"} ${plural(warnings, "warning")} as well.` : "";
  if (errors > 0) return [`${plural(errors, "problem")} ${errors === 1 ? "needs" : "need"} your attention.${warned}`, "error"];
  if (warnings > 0) return [`The gateway works, with ${plural(warnings, "warning")}.`, "warning"];
  return ["Everything is well.", "ok"];
}

// What was looked at and found to be in order. Without figures: a text of another length would move what is below.
function checkedText(stats, health) {
  const known = { public: "peers can connect to it", private: "peers cannot connect to it from outside" };
  const parts = [
    stats.stage === "serving" ? "it serves requests" : null,
    stats.store.degraded ? null : "the store accepts blocks",
    !stats.pins.failed ? "no pin has failed" : null,
    stats.network.peers > 0 ? "peers are connected" : null,
    known[health.reachability.state],
  ];
  const all = " Checked: process, store, disk, memory, clock, peers, reachability, pins, denylists and certificates.";
  return `${sentence(parts.filter((part) => part).join("; "))}${health.findings.length === 0 ? all : ""}`;
}

function stateCard() {
  const id = uniqueId("state");
  const sign = h("div", { class: "sign" });
  const sentence = h("h2", { id, "aria-live": "polite" }, "Reading the state…");
  const checked = h("p", { class: "muted" }, "\u00a0");
  const list = h("ul", { class: "findings" });
  const at = h("span", { class: "muted at" });
  const element = h("section", { class: "card state", "aria-labelledby": id }, sign, h("div", {}, sentence, checked, list), at);
  let [health, stats, shown, isSilent] = [null, null, "", false];

  const isKnown = () => stats !== null && health !== null;

  function item({ level, subject, text, advice }) {
    const [word, tone, sort] = LEVELS[level] ?? LEVELS.info;
    const what = h("div", {}, h("b", {}, `${word}, ${subject}: `), text, advice ? h("span", { class: "muted" }, ` ${advice}`) : null);
    return h("li", { class: tone }, icon(sort), what);
  }

  function show() {
    if (!isKnown()) return;
    const findings = isSilent ? [] : health.findings;
    const [text, tone] = isSilent ? ["The gateway does not answer.", "error"] : sentenceOf(stats.stage, findings);
    const silence = "It may be restarting, or have stopped. All figures are those of the last answer.";
    setText(checked, isSilent ? silence : checkedText(stats, health));
    setText(at, `${isSilent ? "Last answer" : "Checked"} at ${clock(stats.taken_at)}`);
    const now = JSON.stringify([text, findings]);
    if (now === shown) return;
    shown = now;
    element.className = `card state ${tone}`;
    fill(sign, icon(tone === "ok" ? "ok" : tone === "info" ? "info" : "alert"));
    setText(sentence, text);
    fill(list, findings.map(item));
  }

  const showHealth = (answer) => {
    health = answer;
    show();
  };
  const showConnection = (connected) => {
    if (isSilent === !connected || stats === null) return;
    isSilent = !connected;
    show();
  };
  const showStats = (latest) => {
    const isFirst = stats === null || stats.stage !== latest.stage;
    stats = latest;
    if (isFirst) show();
  };
  return Object.assign(element, { showHealth, showStats, showConnection, isKnown });
}

// What to try first, as long as no client has sent a request.
function welcomeNotice() {
  const element = h("div", { class: "notice info welcome", hidden: true });
  let [node, urls, isQuiet] = [null, [], false];
  const show = () => {
    element.hidden = !isQuiet || node === null;
    if (element.hidden) return;
    const url = urls.find((listener) => listener.url)?.url;
    const page = url && node.welcome ? `${url}/ipfs/${node.welcome}/` : url && `${url}/`;
    const name = node.welcome ? "the welcome page" : "the start page";
    const link = page ? ["Open ", h("a", { href: page, target: "_blank", rel: "noopener" }, name), " of this gateway: ", h("code", {}, page)] : null;
    fill(element, h("b", {}, "No request yet. "), link ?? "Send it one, for example /ipfs/ and a CID.");
  };
  const showNode = (newNode, newUrls) => {
    [node, urls] = [newNode, newUrls];
    show();
  };
  const showStats = ({ http }) => {
    const quiet = Object.values(http.requests).every((number) => number === 0) && http.in_flight === 0;
    if (quiet === isQuiet) return;
    isQuiet = quiet;
    show();
  };
  return Object.assign(element, { showNode, showStats });
}

// ---------------------------------------------------------------- Figures

// A figure with a line of the last minutes.
function figure(name, { href, colour, ofSample } = {}) {
  const spark = ofSample ? sparkline([], colour) : null;
  const showSamples = (samples) => spark?.show(samples.all.slice(-SPARK_SAMPLES).map(ofSample));
  return Object.assign(tile(name, { href, below: spark }), { showSamples });
}

// The answers of the last minute by tier.
const answersOf = ({ recent }) => TIERS.map(([id]) => recent[id]?.requests ?? 0);

// A bar with the colours of the tiers, as a background: parts with widths would move each other.
function sharesOf(answers, sum) {
  if (sum === 0) return "";
  let end = 0;
  const parts = TIERS.map(([, , colour], index) => {
    const begin = end;
    end += (100 * answers[index]) / sum;
    return `var(--c${colour}) ${begin.toFixed(2)}% ${end.toFixed(2)}%`;
  });
  return `linear-gradient(to right, ${parts.join(", ")})`;
}

function figures() {
  const parts = {
    requests: figure("Requests", { href: "#/requests", colour: 1, ofSample: (sample) => sample.requests }),
    local: figure("Answered locally"),
    sent: figure("Sent to clients", { colour: 1, ofSample: (sample) => sample.sent_bytes }),
    waiting: figure("Waiting requests", { href: "#/requests", colour: 2, ofSample: (sample) => sample.waiting }),
    errors: figure("Server errors", { href: "#/requests", colour: 5, ofSample: (sample) => sample.errors }),
    peers: figure("Peers", { href: "#/peers", colour: 3, ofSample: (sample) => sample.peers }),
    traffic: figure("From peers", { href: "#/peers", colour: 3, ofSample: (sample) => sample.p2p_received_bytes }),
    memory: figure("Memory", { colour: 4, ofSample: (sample) => sample.resident_bytes }),
  };
  const bar = h("div", { class: "tier-shares", "aria-hidden": "true" });
  append(parts.local, bar);
  let last = null;

  function showLocal(stats) {
    const answers = answersOf(stats);
    const sum = answers.reduce((all, one) => all + one, 0);
    const site = stats.tiers.site ? ` · site ${share(answers[2], sum)}` : "";
    const about = sum === 0 ? "No content in the last minute" : `RAM ${share(answers[0], sum)} · disk ${share(answers[1], sum)}${site}`;
    parts.local.show(share(answers[0] + answers[1], sum), about);
    bar.style.background = sharesOf(answers, sum);
  }

  // The share of a processor core that was used since the last event.
  function coresOf({ process, uptime_seconds: now }) {
    const passed = now - (last?.uptime_seconds ?? now);
    const used = (process.cpu_seconds ?? NaN) - (last?.process.cpu_seconds ?? NaN);
    return passed > 0 && used >= 0 ? used / passed : null;
  }

  function showStats(stats) {
    const { http, network, process, rates } = stats;
    parts.requests.show(perSecond(rates?.requests), `${count(http.in_flight)} in progress · ${plural(http.connections, "connection")}`);
    showLocal(stats);
    parts.sent.show(byteRate(rates?.sent_bytes), `${bytes(http.sent_bytes)} since the start`);
    parts.waiting.show(count(http.waiting), `${plural(network.sessions, "session")} · ${plural(network.wanted_blocks, "wanted block")}`);
    const errors = rates?.errors;
    parts.errors.show(perSecond(errors), `${count(http.requests["5xx"] ?? 0)} since the start`, errors > 0 ? "error" : "");
    parts.peers.show(count(network.peers), `${plural(network.searches, "search", "searches")} for providers`);
    parts.traffic.show(byteRate(rates?.p2p_received_bytes), `${byteRate(rates?.p2p_sent_bytes)} to peers`);
    parts.memory.show(bytes(process.resident_bytes), `${share(coresOf(stats), 1)} of a processor core`);
    last = stats;
  }

  const showSamples = (samples) => {
    for (const part of Object.values(parts)) part.showSamples(samples);
  };
  return Object.assign(h("div", { class: "tiles four" }, Object.values(parts)), { showStats, showSamples });
}

// ---------------------------------------------------------------- Tiers

function tiersCard() {
  const quantiles = ["p50", "p95", "p99"].map((title) => [title, "numeric"]);
  const titles = [["Tier"], ["Share", "wide-only"], ["Answers", "numeric"], ...quantiles, ["Sent", "numeric wide-only"]];
  const rows = [...TIERS, ["none", "No content", 5]].map(([id, name, colour]) => {
    const cells = ["numeric", "numeric", "numeric", "numeric", "numeric wide-only"].map((kind) => h("td", { class: kind }, "–"));
    const bar = meter(0, 1, `Share of ${name}`, `c${colour}`);
    const title = h("th", { scope: "row" }, h("i", { class: `c${colour}` }), name);
    const row = h("tr", { hidden: id === "site" }, title, h("td", { class: "wide-only" }, bar), cells);
    return { id, row, bar, cells };
  });
  const head = h("tr", {}, titles.map(([title, kind]) => h("th", { scope: "col", class: kind }, title)));
  const about = h("p", { class: "muted" }, "Answers of the last minute by the farthest tier that the first byte came from, and the time until then.");
  const grid = plainTable("Time to the first byte by tier", head, h("tbody", {}, rows.map(({ row }) => row)));

  function showStats({ recent, rates, tiers }) {
    const sum = rows.reduce((all, { id }) => all + (recent[id]?.requests ?? 0), 0);
    for (const { id, row, bar, cells } of rows) {
      const tier = recent[id];
      if (id === "site") row.hidden = !tiers.site;
      bar.show(tier?.requests ?? 0, sum);
      const times = [tier?.p50_seconds, tier?.p95_seconds, tier?.p99_seconds].map(duration);
      const texts = [count(tier?.requests ?? 0), ...times, byteRate(rates?.bytes_by_tier[id])];
      cells.forEach((cell, index) => setText(cell, texts[index]));
    }
  }
  return Object.assign(card("Answers by tier", about, grid), { showStats });
}

// A table whose cells are changed in place, with columns of equal width.
function plainTable(caption, head, body) {
  const grid = h("table", { class: "fixed" }, h("caption", { class: "hidden" }, caption), h("thead", {}, head), body);
  return h("div", { class: "table-wrap", tabindex: "0", role: "region", "aria-label": caption }, grid);
}

// ---------------------------------------------------------------- The last hour

const member = (name, title, colour) => ({ name: title, colour, value: (sample) => sample[name] });

function charts() {
  const group = new Set();
  const quantiles = [member("p50_seconds", "p50", 1), member("p95_seconds", "p95", 3), member("p99_seconds", "p99", 2)];
  const traffic = [member("sent_bytes", "To clients", 1), member("p2p_received_bytes", "From peers", 2), member("p2p_sent_bytes", "To peers", 3)];
  const firstByte = chart("Time to the first byte", quantiles, duration, { group, minimum: 0.001, log: true });
  const others = [
    chart("Requests", [member("requests", "Answered", 1), member("errors", "Server errors", 5)], perSecond, { group }),
    chart("Block look-ups by tier", TIERS.map(([id, name, colour]) => ({ ...member(`${id}_hits`, name, colour), optional: id === "site" })), perSecond, { group, stacked: true }),
    chart("Traffic", traffic, byteRate, { group, base: 1024, minimum: 1024 }),
    chart("Requests in progress", [member("in_flight", "All", 1), member("waiting", "Waiting", 2)], count, { group, minimum: 2 }),
    chart("Peers", [member("peers", "Connected", 3)], count, { group, minimum: 2 }),
  ];
  const element = h("div", { class: "grid" }, [others[0], others[1], firstByte, ...others.slice(2)].map((one) => h("div", { class: "card" }, one)));
  const showSamples = ({ all }) => {
    for (const one of others) one.show(all);
    // Events lack these quantiles: the line ends at the last sample that the gateway recorded.
    firstByte.show(all.filter((sample) => sample.p50_seconds !== undefined));
  };
  return Object.assign(h("section", { "aria-label": "The last hour" }, element), { showSamples });
}

// ---------------------------------------------------------------- The node

// Names and values that change: `show({name: text or nodes})`.
function liveFacts(names) {
  const values = Object.fromEntries(names.map((name) => [name, h("dd", {}, "–")]));
  const element = h("dl", { class: "facts one" }, names.map((name) => h("div", {}, h("dt", {}, name), values[name])));
  const show = (texts) => {
    for (const [name, text] of Object.entries(texts)) {
      if (typeof text === "string") setText(values[name], plain(text));
      else fill(values[name], text);
    }
  };
  return Object.assign(element, { show });
}

function nodeCard() {
  const of = liveFacts(["Version", "Peer ID", "Started", "Uptime", "Public listener", "Admin listener", "Open files"]);
  const showNode = (node, urls) => of.show({
    Version: node.version,
    Started: time(node.started_at),
    "Peer ID": identifier(node.peer_id),
    "Public listener": lines(urls.map(({ address, url }) => (url ? h("a", { href: `${url}/`, target: "_blank", rel: "noopener" }, url) : address))),
    "Admin listener": lines(node.admin_listeners),
  });
  const showStats = ({ uptime_seconds: seconds, process }) => {
    const files = `${count(process.open_files)} of ${count(process.open_files_max)}`;
    of.show({ Uptime: wholeDuration(seconds), "Open files": files });
  };
  return Object.assign(card("Node", of), { showNode, showStats });
}

const lines = (all) => all.map((one) => h("div", {}, one));

const REACHES = {
  public: ["Public", "ok", "Peers can connect to this node from outside."],
  private: ["Private", "warning", "Peers cannot connect to this node from outside; it connects to them. Forward its port, or let it use UPnP."],
  unknown: ["Unknown", "quiet", "Whether peers can connect to this node is not known yet."],
};

function reachCard() {
  const state = h("p", {}, badge("…"));
  const list = h("ul", { class: "addresses" });
  let shown = "";
  const showHealth = (health) => {
    const now = JSON.stringify(health.reachability);
    if (now === shown) return;
    shown = now;
    const [word, tone, text] = REACHES[health.reachability.state] ?? REACHES.unknown;
    fill(state, badge(word, tone), ` ${text}`);
    fill(list, health.reachability.addresses.map((address) => h("li", {}, h("code", {}, address), copyButton(address))));
  };
  return Object.assign(card("Reachability", state, list), { showHealth });
}

function storageCard() {
  const ram = budgetMeter("RAM", "c1");
  const disk = budgetMeter("Cached blocks on the disk", "c3");
  const volume = budgetMeter("File system", "c4");
  const pinned = liveFacts(["Pinned blocks", "Evicted since the start"]);
  const showStats = ({ store }) => {
    ram.show(store.ram_bytes, store.ram_budget_bytes, plural(store.ram_blocks, "block"));
    disk.show(store.cached_bytes, store.disk_budget_bytes, `${plural(store.blocks, "block")}, with those that are pinned`);
    const { disk_size_bytes: size, disk_free_bytes: free } = store;
    volume.hidden = free === null || free === undefined;
    if (!volume.hidden) {
      const isFull = size > 0 && free < 0.05 * size;
      volume.show(size > 0 ? size - free : free, size ?? 0, `${bytes(free)} free`, isFull ? "error" : undefined);
    }
    pinned.show({ "Pinned blocks": bytes(store.pinned_bytes), "Evicted since the start": plural(store.evicted_blocks, "block") });
  };
  return Object.assign(card("Storage", ram, disk, volume, pinned), { showStats });
}

function pinsCard({ may }) {
  const pending = ["pending", "In progress", "info", "queued,pinning"];
  const states = [["pinned", "Pinned", "ok", "pinned"], pending, ["failed", "Failed", "error", "failed"]];
  const rows = states.map(([id, name, tone, status]) => {
    const number = h("b", { class: "number" }, "–");
    const inner = [badge(name, tone), number];
    const row = may("operate") ? h("a", { href: `#/pins?status=${status}` }, inner) : h("div", {}, inner);
    return { id, number, row };
  });
  const about = h("p", { class: "muted" }, "\u00a0");
  const showStats = ({ pins }) => {
    for (const { id, number } of rows) setText(number, count(pins[id] ?? 0));
    const sum = (pins.pinned ?? 0) + (pins.pending ?? 0) + (pins.failed ?? 0);
    setText(about, sum === 0 ? "Nothing is pinned yet. Upload files, or pin a CID: pins are kept, and cached content is evicted."
      : `${plural(pins.active_roots ?? 0, "DAG is", "DAGs are")} being fetched, ${count(pins.queued_roots ?? 0)} queued.`);
  };
  return Object.assign(card("Pins", h("ul", { class: "counts" }, rows.map(({ row }) => h("li", {}, row))), about), { showStats });
}

function peersCard() {
  const body = h("tbody", {});
  const advice = h("p", { class: "muted" }, "\u00a0");
  const rows = new Map();
  let node = null;
  const head = h("tr", {}, ["Transport", "Received", "Sent"].map((title, index) => h("th", { scope: "col", class: index > 0 ? "numeric" : undefined }, title)));
  const grid = plainTable("Traffic with peers by transport", head, body);
  const more = h("p", { class: "more" }, h("a", { href: "#/peers" }, "All peers"));

  function rowOf(transport) {
    if (!rows.has(transport)) {
      const cells = [h("td", { class: "numeric" }), h("td", { class: "numeric" })];
      rows.set(transport, cells);
      append(body, h("tr", {}, h("th", { scope: "row" }, TRANSPORTS[transport] ?? transport), cells));
    }
    return rows.get(transport);
  }

  const showStats = ({ network }) => {
    for (const { transport, received_bytes: received, sent_bytes: sent } of network.transports) {
      const [from, to] = rowOf(transport);
      setText(from, bytes(received));
      setText(to, bytes(sent));
    }
    const quiet = node?.offline ? "This node is offline: it serves what is stored." : node?.advice ?? "No peer is connected.";
    grid.hidden = network.transports.length === 0;
    setText(advice, network.peers > 0 ? `${plural(network.peers, "peer")} connected.` : plain(sentence(quiet)));
  };
  const showNode = (newNode) => {
    node = newNode;
  };
  return Object.assign(card("Peers", advice, grid, more), { showStats, showNode });
}
