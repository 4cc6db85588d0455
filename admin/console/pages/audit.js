// Audit: the changes that tokens requested, the newest first.

import { get } from "../lib/api.js";
import { append, fill, h } from "../lib/dom.js";
import { filters, matches } from "../lib/filters.js";
import { count, duration, plural, time } from "../lib/format.js";
import { saveAs } from "../lib/task.js";
import { badge, button, card, errorPlace, facts, pageHead, statusBadge, table } from "../lib/ui.js";

const ROWS = 100;
const LIMITS = [["100", "the latest 100"], ["1000", "the latest 1,000"], ["10000", "the latest 10,000"]];
const CLIENT_DISCONNECTED = 499;

const hasFailed = ({ status }) => status === null || status === undefined || status >= 400;

function result({ status }) {
  if (status === null || status === undefined) return badge("No result", "warning");
  if (status === CLIENT_DISCONNECTED) return badge("499", "warning");
  return statusBadge(status);
}

function explanation({ status }) {
  if (status === null || status === undefined) return "The change is in progress, or the process ended before it was completed: it may have been made or not.";
  if (status === CLIENT_DISCONNECTED) return "The client disconnected before the response: the change may have been made.";
  return null;
}

// On narrow screens, the time and the token are below the change.
function changeCell({ method, path, at, name }) {
  return h("span", { class: "long" }, h("b", {}, method), " ", h("code", {}, path), h("div", { class: "sub narrow-only" }, `${time(at)}, ${name}`));
}

const COLUMNS = [
  { title: "Time", hide: "narrow", cell: ({ at }) => h("span", { class: "no-wrap" }, time(at)) },
  { title: "Token", hide: "narrow", cell: ({ name, token }) => h("span", { title: `ID ${token}` }, name) },
  { title: "Address", hide: "narrow", cell: ({ from }) => from ?? "–" },
  { title: "Change", cell: changeCell },
  { title: "Result", cell: result },
  { title: "Duration", numeric: true, hide: "narrow", cell: ({ seconds }) => duration(seconds) },
];

// It may be longer than the screen is wide: it can be scrolled by keys.
const detailOf = ({ detail }) => h("pre", { tabindex: "0", role: "region", "aria-label": "Details of the change" }, JSON.stringify(detail, null, 2));

function details(entry) {
  const words = explanation(entry);
  return [
    words ? h("p", { class: "notice warning" }, words) : null,
    facts([
      ["Time", time(entry.at)],
      ["Token", `${entry.name} (ID ${entry.token})`],
      ["Scope", entry.scope],
      ["Address", entry.from ?? "not recorded"],
      ["Duration", duration(entry.seconds)],
      entry.id && ["Entry", h("code", {}, entry.id)],
    ]),
    h("h3", {}, entry.method === "command" ? "Command" : "Request"),
    h("p", {}, h("code", {}, `${entry.method} ${entry.path}`)),
    entry.detail === undefined || entry.detail === null ? null : [h("h3", {}, "Details"), detailOf(entry)],
  ];
}

const FILTERS = {
  search: { label: "Search", placeholder: "Path, address or details" },
  token: { label: "Token", placeholder: "Name or ID" },
  limit: { label: "Entries", options: LIMITS },
  failures: { label: "Failures only", checkbox: true },
};

function show(main, context) {
  const { signal } = context;
  const problem = errorPlace();
  const found = h("p", { class: "muted" });
  const rows = table("Audit log", COLUMNS, { key: (entry, index) => entry.id || index, limit: ROWS, details });
  let entries = [];
  let limit = null;
  const filter = filters(context, FILTERS, () => (filter.values.limit === limit ? list() : load()));

  function wanted() {
    const { search, token, failures } = filter.values;
    return entries.filter((entry) =>
      (failures !== "yes" || hasFailed(entry)) && matches(token, [entry.name, entry.token]) &&
      (matches(search, [entry.path, entry.method, entry.from, entry.scope]) || matches(search, [JSON.stringify(entry.detail)])));
  }

  function list() {
    const shown = wanted();
    const oldest = entries.at(-1);
    const part = shown.length === entries.length ? "" : `${count(shown.length)} of `;
    fill(found, `${part}${plural(entries.length, "entry", "entries")}${oldest ? `, since ${time(oldest.at)}` : ""}.`);
    rows.show(shown, entries.length > 0 ? "No entry matches the filters. Remove some, or read more entries." : "No change was requested yet.");
  }

  async function load() {
    limit = filter.values.limit;
    const asked = limit;
    try {
      const answer = await get("/api/v1/audit", { limit }, { signal });
      // Another number was chosen in the meantime.
      if (asked !== limit) return;
      entries = answer.entries;
      problem.show(null);
      list();
    } catch (error) {
      if (error.name !== "AbortError" && asked === limit) problem.show(error);
    }
  }

  const save = () => {
    const text = wanted().map((entry) => `${JSON.stringify(entry)}\n`);
    saveAs("causeway-audit.jsonl", new Blob(text, { type: "application/x-ndjson" }));
  };

  append(main,
    pageHead("Audit", "The changes that tokens and commands requested, the newest first.",
      button("Save as JSON lines", save), button("Refresh", load, { kind: "primary" })),
    problem, card("Entries", filter, found, rows));
  load();
}

export default { id: "audit", title: "Audit", scopes: ["operate"], show };
