// Settings: those of the running node, with their origins; its log level; draining.

import { call, get } from "../lib/api.js";
import { append, fill, h, setText, uniqueId } from "../lib/dom.js";
import { filters, matches } from "../lib/filters.js";
import { bytes, duration, plural, time, wholeDuration } from "../lib/format.js";
import { poll } from "../lib/poll.js";
import { badge, button, card, confirm, facts, field, form, identifier, input, pageHead, select, submit, table, toast } from "../lib/ui.js";
import { STAGES } from "../lib/words.js";

const REFRESH_SECONDS = 5;
const DEFAULT = "the default";
const GENERAL = "general";

const SECTIONS = {
  [GENERAL]: "General", http: "Public listener", admin: "Admin listener", uploads: "Uploads", p2p: "Network", names: "Names",
  cache: "Caches and store", pinning: "Pinning", policy: "Policy", log: "Log", telemetry: "Telemetry",
};

// ---------------------------------------------------------------- The node

const READINESS = {
  serving: "/readyz answers 200.",
  draining: "/readyz answers 503.",
  starting: "/readyz answers 503 until the node is ready.",
};

function stageBadge({ stage, stopping }) {
  if (stopping) return badge("Stopping", "error");
  const [text, tone] = STAGES[stage] ?? [stage, "quiet"];
  return badge(text, tone);
}

const DRAIN = "/readyz answers 503, so that load balancers send no more traffic. Requests that arrive are still answered, and the process goes on. " +
  "Draining can be ended here.";
const STOP = "The gateway drains and then ends, as after SIGTERM. This page cannot start it again: that is up to the service manager, " +
  "such as systemd, or to you. Nothing is deleted.";

// What is known of the node. Only the figures that change are written again.
function nodeFacts(first) {
  const uptime = h("span", {});
  const network = h("span", {});
  const element = facts([
    ["Version", first.version],
    ["Peer ID", identifier(first.peer_id)],
    ["Started", time(first.started_at)],
    ["Uptime", uptime],
    ["Public listener", first.gateway_listeners.join(", ")],
    ["Admin listener", first.admin_listeners.join(", ")],
    ["Network", network],
  ]);
  const show = (node) => {
    setText(uptime, wholeDuration(node.uptime_seconds));
    setText(network, node.offline ? "offline" : plural(node.peers, "peer"));
  };
  return Object.assign(element, { show });
}

function nodeCards({ may, signal }) {
  const known = h("div", { class: "seven-rows" });
  const stage = h("p", {});
  const actions = h("div", { class: "actions" });
  let shown = null;
  let what = null;

  const change = (method, options) => async () => {
    const view = await call(method, "/api/v1/drain", { ...options, signal });
    toast(view.stopping ? "The gateway is stopping." : view.stage === "serving" ? "The gateway serves." : "The gateway drains.");
    await updates.now();
    // The button that was pressed is hidden now.
    if (document.activeElement === document.body) [start, end].find((one) => !one.hidden)?.focus();
  };
  const begin = change("POST", { json: {} });
  const stop = change("POST", { json: { stop: true } });
  const asked = (title, text, yes, action, kind) => async () => {
    if (await confirm(title, text, yes, kind)) await action();
  };
  const start = button("Drain…", asked("Drain this gateway?", DRAIN, "Drain", begin));
  const end = button("End draining", change("DELETE", {}), { kind: "primary" });
  const shutDown = button("Stop the process…", asked("Stop the gateway?", STOP, "Stop the process", stop), { kind: "danger" });

  function show(node) {
    if (what === null) {
      what = nodeFacts(node);
      fill(known, what);
    }
    what.show(node);
    const now = `${node.stage} ${node.stopping}`;
    if (now === shown) return;
    shown = now;
    fill(stage, stageBadge(node), " ", node.stopping ? "The process ends when open requests are answered." : READINESS[node.stage]);
    start.hidden = node.stage === "draining" || node.stopping;
    end.hidden = node.stage !== "draining" || node.stopping;
    shutDown.hidden = node.stopping;
  }

  const updates = poll(async () => show(await get("/api/v1/node", {}, { signal })), REFRESH_SECONDS, signal);
  if (may("operate")) append(actions, start, end, shutDown);
  return [
    updates,
    card("Node", known),
    card("Draining", stage,
      h("p", { class: "muted" }, "A draining gateway tells load balancers to send no more traffic, and still answers what arrives."), actions),
  ];
}

// ---------------------------------------------------------------- The log level

const LEVELS = ["error", "warn", "info", "debug", "trace", "info,libp2p=warn", "info,access=debug", "info,p2p_bridge=debug"];
const DURATIONS = [["600", "10 minutes"], ["3600", "1 hour"], ["86400", "1 day"], ["604800", "1 week"], ["", "until the next start"]];

function levelCard({ may, signal }) {
  const now = h("div", {});
  const listId = uniqueId("levels");
  const level = input({ list: listId, required: true });
  const period = select(DURATIONS, "600");
  let configured = "";
  const show = (view) => {
    fill(now, facts([
      ["Level", h("code", {}, view.level)],
      ["In the settings", h("code", {}, view.configured)],
      ["Until", view.until_at ? time(view.until_at) : view.level === view.configured ? "it is changed" : "the next start"],
    ]));
    if (level.value === "") level.value = view.level;
    restore.hidden = view.level === view.configured;
    configured = view.configured;
  };
  const set = async (text, duration_seconds) => {
    show(await call("PUT", "/api/v1/log/level", { json: { level: text, duration_seconds }, signal }));
    toast("The log level is changed.");
  };
  const restore = button("Restore the settings' level", async () => {
    await set(configured);
    level.value = configured;
  });
  restore.hidden = true;
  const action = async () => {
    if (level.value.trim() === "") throw new Error("Enter a level, such as info or debug.");
    await set(level.value.trim(), period.value === "" ? undefined : Number(period.value));
  };
  const failed = (error) => error.name !== "AbortError" && fill(now, h("p", { class: "muted" }, error.message));
  get("/api/v1/log/level", {}, { signal }).then(show, failed);
  const choices = h("datalist", { id: listId }, LEVELS.map((value) => h("option", { value })));
  const fields = [field("New level", level, "A level, and levels of modules after commas: info,p2p_bridge=debug"), field("For", period)];
  return card("Log level", now, may("operate") ? form(action, fields, choices, h("div", { class: "actions" }, submit("Change"), restore)) : null);
}

// ---------------------------------------------------------------- The settings

// What a number of a setting stands for, if its key says it.
function meaning(key, value) {
  if (typeof value !== "number" || value === 0) return null;
  if (/_bytes_per_second/.test(key)) return value >= 1024 ? `${bytes(value)}/s` : null;
  if (/bytes/.test(key)) return value >= 1024 ? bytes(value) : null;
  if (/_seconds/.test(key)) return value >= 60 ? duration(value) : null;
  return /_hours/.test(key) && value >= 24 ? duration(3600 * value) : null;
}

const scalar = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));

function valueCell({ key, value }) {
  if (value === "" || value === null) return h("span", { class: "muted" }, "empty");
  if (!Array.isArray(value)) {
    const words = meaning(key, value);
    return h("span", { class: "long" }, h("code", {}, scalar(value)), words ? h("span", { class: "muted" }, ` ${words}`) : null);
  }
  if (value.length === 0) return h("span", { class: "muted" }, "none");
  return h("ul", { class: "unmarked long" }, value.map((one) => h("li", {}, h("code", {}, scalar(one)))));
}

const variableOf = (key) => `CAUSEWAY_${key.toUpperCase().replaceAll(".", "_")}`;
const isChanged = ({ origin }) => origin !== DEFAULT;

const nameCell = ({ key }) => h("span", { class: "long" }, h("code", { title: `Environment variable ${variableOf(key)}` }, key));

function originCell(setting) {
  if (!isChanged(setting)) return h("span", { class: "muted" }, DEFAULT);
  return h("span", { class: "long" }, badge("Changed", "info"), " ", setting.origin);
}

const COLUMNS = [
  { title: "Setting", cell: nameCell },
  { title: "Value", cell: valueCell },
  { title: "Set by", cell: originCell },
];

const FILTERS = {
  search: { label: "Search", placeholder: "Key, value or origin" },
  section: { label: "Section", options: [["", "All"], ...Object.entries(SECTIONS)] },
  changed: { label: "Changed only", checkbox: true },
};

function settingsList(context) {
  const place = h("div", { class: "sections" });
  const found = h("p", { class: "muted", role: "status" });
  const groups = new Map();
  let all = [];
  const filter = filters(context, FILTERS, () => list());

  function list() {
    const { search, section: only, changed } = filter.values;
    const isIn = ({ section }) => only === "" || only === section;
    const texts = ({ key, value, origin }) => [key, variableOf(key), JSON.stringify(value), origin];
    const wanted = all.filter((setting) => isIn(setting) && (changed !== "yes" || isChanged(setting)) && matches(search, texts(setting)));
    const changes = `${plural(all.length, "setting")}, of which ${all.filter(isChanged).length} are changed.`;
    fill(found, wanted.length === all.length ? changes : `${wanted.length} of ${plural(all.length, "setting")}.`);
    for (const [section, { element, rows }] of groups) {
      const own = wanted.filter((setting) => setting.section === section);
      element.hidden = own.length === 0;
      rows.show(own);
    }
  }

  async function load() {
    const { settings } = await get("/api/v1/config", {}, { signal: context.signal });
    all = Object.entries(settings).map(([key, setting]) => ({ key, section: key.includes(".") ? key.split(".")[0] : GENERAL, ...setting }));
    const order = Object.keys(SECTIONS);
    const rank = (section) => (order.includes(section) ? order.indexOf(section) : order.length);
    for (const section of [...new Set(all.map((setting) => setting.section))].sort((a, b) => rank(a) - rank(b))) {
      const title = SECTIONS[section] ?? section;
      const rows = table(`Settings: ${title}`, COLUMNS, { key: ({ key }) => key });
      groups.set(section, { rows, element: card(section === GENERAL ? title : `${title} (${section})`, rows) });
    }
    append(place, [...groups.values()].map(({ element }) => element));
    list();
  }

  load().catch((error) => error.name !== "AbortError" && fill(found, error.message));
  return [
    h("h2", {}, "Settings"),
    h("p", { class: "muted" },
      "Settings are changed in the configuration file, by environment variables and by flags. ",
      "SIGHUP applies some of them; most take effect at the next start."),
    filter, found, place,
  ];
}

function show(main, context) {
  const [updates, node, draining] = nodeCards(context);
  append(main,
    pageHead("Settings", "The node, and how it is configured."),
    updates,
    h("div", { class: "grid" }, h("div", { class: "stack" }, node, draining), h("div", { class: "stack" }, levelCard(context))),
    settingsList(context));
}

export default { id: "settings", title: "Settings", scopes: ["read"], show };
