// Requests: what the public listener is answering now, and which requests failed recently.

import { get } from "../lib/api.js";
import { append, fill, h, setText } from "../lib/dom.js";
import { filters, matches } from "../lib/filters.js";
import { ago, bytes, count, duration, plural, time } from "../lib/format.js";
import { poll } from "../lib/poll.js";
import { requestHref } from "../lib/subject.js";
import { badge, card, pageHead, statusBadge, table } from "../lib/ui.js";

const REFRESH_SECONDS = 1;
// Recent errors are read with every fifth refresh.
const ERRORS_EVERY = 5;
// The oldest requests that are asked for, and the rows that are in the page at first.
const REQUESTS = 1000;
const ROWS = 100;

const WAITS = {
  route: "Its host is being routed",
  name: "The name is being resolved",
  content: "The first block is awaited",
  more: "Further blocks are awaited",
  client: "The client has not read what was sent",
};

const NONE = "No request is waiting or being sent. Requests that are answered at once from memory are never listed here.";

// The path of the content that a request is for: that of its URL, or of its subdomain. Null if it is not known from these.
function contentPath(host, path) {
  const [plain] = path.split("?");
  if (/^\/ip[fn]s\/./.test(plain)) return plain;
  const [, label, namespace] = /^([^.]+)\.(ip[fn]s)\./.exec(host) ?? [];
  if (!label) return null;
  // A domain in one label: "-" stands for ".", and "--" for "-". Keys and CIDs have none.
  const root = namespace === "ipns" && label.includes("-") ? label.replace(/--|-/g, (found) => (found === "--" ? "-" : ".")) : label;
  return `/${namespace}/${root}${plain === "/" ? "" : plain}`;
}

function pathCell({ method, host, path }) {
  // The host may have a DNSLink: the page finds out by the URL.
  const target = contentPath(host, path) ?? `http://${host}${path}`;
  const link = h("a", { href: requestHref(target), title: "Explain this request" }, h("code", {}, path));
  return h("span", { class: "long" }, h("b", {}, method), " ", link, h("div", { class: "sub" }, host));
}

const statusCell = ({ status }) => (status === null ? "–" : statusBadge(status));

// A response that was aborted began with another status than that of an error.
function failedStatusCell({ status }) {
  if (status === null) return "–";
  return status < 400 ? badge(String(status), "warning") : statusBadge(status);
}

function reasonCell({ reason, trace_id: trace }) {
  return h("span", { class: "long" }, reason || "–", trace ? h("div", { class: "sub" }, `Trace ${trace}`) : null);
}

const PATH = { title: "Request", cell: pathCell };
// Clients are not named if the settings hide their addresses.
const CLIENT = { title: "Client", hide: "narrow", cell: ({ client }) => client || "–" };
const STATUS = { title: "Status", cell: statusCell };

const RUNNING = [
  PATH, CLIENT,
  { id: "time", title: "Duration", numeric: true, cell: ({ seconds }) => duration(seconds), sort: ({ seconds }) => seconds },
  STATUS,
  { id: "sent", title: "Sent", numeric: true, cell: ({ sent_bytes }) => bytes(sent_bytes), sort: ({ sent_bytes }) => sent_bytes },
  { title: "What it waits for", cell: ({ waits_for }) => WAITS[waits_for] ?? waits_for },
];

const FAILED = [
  { title: "Time", cell: ({ at }) => h("span", { title: time(at), class: "no-wrap" }, ago(at)) },
  { title: "Status", cell: failedStatusCell }, PATH, CLIENT,
  { title: "Reason", cell: reasonCell },
  { title: "Duration", numeric: true, cell: ({ seconds }) => duration(seconds) },
];

const FILTERS = {
  search: { label: "Search", placeholder: "Path, host, client or reason" },
  waits: {
    label: "Waits for",
    options: [["", "All"], ["route", "Its host"], ["name", "A name"], ["content", "The first block"], ["more", "Further blocks"], ["client", "The client"]],
  },
};

function show(main, context) {
  const { parameters, setParameters, signal } = context;
  let running = { count: 0, requests: [] };
  let failed = null;
  const found = h("p", { class: "muted" });
  const numbers = { running: h("b", {}), errors: h("b", {}) };
  const onOrder = (sort) => setParameters({ sort });
  const rows = table("Running requests", RUNNING, { key: ({ id }) => id, limit: ROWS, order: parameters.get("sort"), onOrder });
  const errors = table("Recent errors", FAILED, { limit: ROWS });
  const filter = filters(context, FILTERS, () => {
    listRunning();
    listErrors();
  });

  function listRunning() {
    const { search, waits } = filter.values;
    const { count: number, requests } = running;
    const wanted = requests.filter((one) => (waits === "" || one.waits_for === waits) && matches(search, [one.path, one.host, one.client, one.method]));
    const part = number > requests.length ? `, of which the ${count(requests.length)} oldest are listed` : "";
    const matching = wanted.length === requests.length ? "" : `; ${count(wanted.length)} match the filters`;
    fill(found, `${plural(number, "request")}${part}${matching}.`);
    setText(numbers.running, count(number));
    rows.show(wanted, requests.length > 0 ? "No running request matches the filters." : NONE);
  }

  function listErrors() {
    if (failed === null) return;
    setText(numbers.errors, count(failed.length));
    const wanted = failed.filter((one) => matches(filter.values.search, [one.path, one.host, one.client, one.method, one.reason, String(one.status)]));
    errors.show(wanted, failed.length > 0 ? "No recent error matches the search." : "No request has failed recently.");
  }

  let ticks = 0;
  // One list at a time: below the other one, it would move all the time.
  const cards = { running: card("Running requests", found, rows), errors: card("Recent errors", errors) };
  const chips = Object.entries({ running: "Running", errors: "Recent errors" }).map(([view, text]) =>
    h("button", { type: "button", class: "chip", "data-view": view, onclick: () => choose(view) }, text, " ", numbers[view]));

  function choose(view) {
    setParameters({ view: view === "running" ? "" : view });
    for (const chip of chips) chip.setAttribute("aria-pressed", String(chip.dataset.view === view));
    for (const [name, element] of Object.entries(cards)) element.hidden = name !== view;
  }

  const updates = poll(async () => {
    running = await get("/api/v1/requests", { limit: REQUESTS }, { signal });
    listRunning();
    if (ticks % ERRORS_EVERY === 0) {
      failed = (await get("/api/v1/requests/errors", {}, { signal })).errors;
      listErrors();
    }
    ticks += 1;
  }, REFRESH_SECONDS, signal);

  append(main,
    pageHead("Requests", "What the public listener is answering now, and which requests failed.", updates.pause),
    updates,
    h("div", { class: "chips", role: "group", "aria-label": "Which requests" }, chips),
    filter,
    Object.values(cards));
  choose(parameters.get("view") === "errors" ? "errors" : "running");
}

export default { id: "requests", title: "Requests", scopes: ["read"], show };
