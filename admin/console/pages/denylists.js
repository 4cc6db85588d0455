// Denylists: what is withheld, by which list, and take-downs.

import { call, get, withQuery } from "../lib/api.js";
import { append, fill, h } from "../lib/dom.js";
import { filters, matches } from "../lib/filters.js";
import { ago, bytes, count, plural, time } from "../lib/format.js";
import { poll } from "../lib/poll.js";
import { isName } from "../lib/subject.js";
import {
  badge, button, card, checkbox, confirm, emptyState, facts, field, form, input, pageHead, select, submit, table, toast,
} from "../lib/ui.js";

// The lists change by their sources, and are shown with how long ago they were checked.
const POLL_SECONDS = 15;
const PAGE = 100;
const SEARCH_PAGE = 1000;
// A search ends when it has found so many rules.
const FOUND_MAX = 500;

const STATUSES = [["410", "410 Gone"], ["451", "451 Unavailable for legal reasons"]];
const REASON_MAX = 1000;

// ---------------------------------------------------------------- Subjects

// A subject as the member of a request that the API wants: a CID, a path, a name or a URL. A rule is written out.
function subjectOf(text) {
  if (/^!?\/\//.test(text) || text.startsWith("!")) return { kind: "rule", request: { rule: text } };
  if (text.includes("://")) return { kind: "URL", request: { url: text } };
  if (/^\/ip[fn]s\//.test(text)) return { kind: "path", request: { path: text } };
  const [root] = text.split("/");
  if (root !== text) return { kind: "path", request: { path: `/${isName(root) ? "ipns" : "ipfs"}/${text}` } };
  return isName(root) ? { kind: "name", request: { name: text } } : { kind: "CID", request: { cid: text } };
}

function deciding({ list, line, rule }) {
  const name = list === "settings" ? "the settings (policy.deny)" : list;
  return [" by ", name, line ? `, line ${line}` : null, rule ? [": ", h("code", {}, rule)] : null];
}

// Whether a subject is withheld, as a sentence with a tone.
function verdict({ subject, blocked, status, answer, unknown }) {
  if (blocked && answer && answer !== status) {
    return [`${subject} is partly withheld: the answer ${answer} is cut short at a block that is withheld with ${status}.`, "warning"];
  }
  if (blocked) return [`${subject} is withheld: requests are answered with ${status}.`, "error"];
  if (answer && answer < 400) return [`${subject} is served: ${answer}${unknown ? ` (from stored blocks; ${unknown})` : ""}.`, "ok"];
  if (answer) return [`${subject} is not withheld. A request for it is answered with ${answer}.`, "info"];
  return [`${subject} is not known to be withheld${unknown ? `: ${unknown}` : ""}.`, "info"];
}

function showCheck(view) {
  const [sentence, tone] = verdict(view);
  const decided = view.decisions.filter(({ list, blocked }) => list || blocked);
  const effect = ({ blocked, status }) => (blocked ? ` is withheld${status ? ` with ${status}` : ""}` : " is allowed");
  const decision = (one) => h("li", {}, h("code", {}, one.of), effect(one), one.list ? deciding(one) : " because no allowlist has it");
  return [
    h("p", { class: `notice ${tone}` }, sentence),
    decided.length > 0 ? h("ul", {}, decided.map(decision)) : h("p", { class: "muted" }, "No rule of any list matches it."),
  ];
}

// ---------------------------------------------------------------- The lists

function stateOf({ error, failures, fetching_bytes, cut_off, malformed }) {
  if (error) return badge(plural(failures, "failure"), "error");
  if (typeof fetching_bytes === "number") return badge(`Fetching, ${bytes(fetching_bytes)}`, "info");
  if (cut_off) return badge("Cut off", "error");
  if (malformed > 0) return badge(plural(malformed, "invalid line"), "warning");
  return badge("In force", "ok");
}

const KINDS = { file: "File", subscription: "Subscription", local: "Local list", site: "List of the site" };

function listDetails(list) {
  const reported = list.reported.map(({ line, error }) => h("li", {}, `Line ${line}: ${error}`));
  return [
    list.error ? h("p", { class: "notice error" }, `${list.error}. The rules of the last successful check are in force.`) : null,
    list.cut_off ? h("p", { class: "notice error" }, "The list is longer than policy.list_bytes_max: its end is ignored.") : null,
    list.description ? h("p", {}, list.description) : null,
    facts([
      ["ID", h("code", {}, list.id)],
      list.author && ["Author", list.author],
      ["Status of its rules", list.allows ? "allows" : String(list.status)],
      ["Size", bytes(list.bytes)],
      ["Memory of its rules", bytes(list.memory_bytes)],
      ["Checked", time(list.checked_at)],
      ["Changed", time(list.changed_at)],
      list.fetched && ["Last fetch", list.fetched === "whole" ? "the whole list" : "what was appended"],
    ]),
    reported.length > 0 ? [h("h3", {}, `Invalid lines: ${count(list.malformed)}`), h("ul", {}, reported)] : null,
  ];
}

function listsCard({ may, signal }) {
  const notes = h("div", {});
  const reload = async (list) => {
    showLists(await call("POST", withQuery("/api/v1/denylists/reload", { list }), { signal }));
    toast("Reloaded.");
  };
  const columns = [
    { title: "List", cell: (list) => h("span", { class: "long" }, list.name ?? list.id, list.name ? h("div", { class: "muted" }, list.id) : null) },
    { title: "Kind", hide: "narrow", cell: (list) => `${KINDS[list.kind] ?? list.kind}${list.allows ? ", allows" : ""}` },
    { title: "State", cell: stateOf },
    { title: "Rules", numeric: true, cell: (list) => count(list.rules) },
    { title: "Checked", hide: "narrow", cell: (list) => h("span", { title: time(list.checked_at) }, ago(list.checked_at)) },
    { title: "Changed", hide: "narrow", cell: (list) => h("span", { title: time(list.changed_at) }, ago(list.changed_at)) },
  ];
  const reloadButton = ({ id }) => button("Reload", () => reload(id), { kind: "small", label: `Reload ${id}` });
  if (may("takedown")) columns.push({ title: "Action", cell: reloadButton });
  const rows = table("Denylists and allowlists", columns, { key: ({ id }) => id, details: listDetails });

  function showLists({ mode, settings_rules, lists }) {
    fill(notes,
      mode === "allow" ? h("p", { class: "notice warning" }, "Allowlist mode: only content on an allowlist is served (policy.mode).") : null,
      settings_rules > 0 ? h("p", {}, `The settings withhold ${plural(settings_rules, "CID")} (policy.deny). No list can allow them again.`) : null);
    // The API lists the weakest first.
    rows.show([...lists].reverse());
  }

  const updates = poll(async () => showLists(await get("/api/v1/denylists", {}, { signal })), POLL_SECONDS, signal);
  const element = card("Lists", h("p", { class: "muted" }, "In order of precedence: the first list with a matching rule decides."), updates, notes, rows,
    may("takedown") ? h("div", { class: "pager" }, h("span", {}), button("Reload all", () => reload())) : null);
  return Object.assign(element, { load: updates.now });
}

// ---------------------------------------------------------------- Checks and take-downs

function added(view) {
  const { rule, evicted_blocks, evicted_bytes, caches_notified, unpurged_blocks, deep_rules, complete, unread_blocks, unpinned } = view;
  const roots = unpinned.slice(0, PAGE).map((root) => h("li", {}, h("code", {}, root)));
  const warning = (text) => h("p", { class: "notice warning" }, text);
  return [
    h("p", { class: "notice ok" }, view.added ? "The rule is in force, on the public listener and for peers." : "The list already had this rule."),
    h("p", {}, h("code", {}, rule)),
    facts([
      (deep_rules > 0 || !complete) && ["Rules for blocks below it", count(deep_rules)],
      ["Deleted from the disk", evicted_blocks > 0 ? `${plural(evicted_blocks, "block")} (${bytes(evicted_bytes)})` : "nothing"],
      ["Removed pins", count(unpinned.length)],
      ["Front caches", caches_notified > 0 ? `purge requests go to ${plural(caches_notified, "cache")}` : "none is purged"],
    ]),
    complete ? null : warning("There are more blocks below it than the limit of the walk. Take down its parts one by one."),
    unread_blocks > 0 && warning(`Not stored here: ${plural(unread_blocks, "block")} below it. What is below was not looked for.`),
    unpurged_blocks > 0 && warning(`The front caches are sent no purge requests for ${plural(unpurged_blocks, "block")} below it, because there are too many.`),
    roots.length > 0 &&
      [h("h3", {}, "Removed pins"), h("p", { class: "muted" }, "Their blocks without another pin are deleted."), h("ul", {}, roots)],
  ];
}

function takeDown({ signal }, subjectText, changed) {
  const reason = input({ maxlength: REASON_MAX, placeholder: "court order 7/26" });
  const status = select(STATUSES, "410");
  const deep = checkbox("Also every stored block below it, by its own hash (deep)");
  const below = checkbox("Also every path that begins with it");
  const double = checkbox("As a double hash, which does not reveal the subject");
  const allow = checkbox("An exception instead: serve it even if a list withholds it");
  const boxes = { deep, below, double_hash: double, allow };
  const result = h("div", { class: "result", role: "status" });
  const isChecked = (box) => box.firstChild.checked;

  async function start() {
    const text = subjectText();
    const { kind, request } = subjectOf(text);
    const chosen = Object.fromEntries(Object.entries(boxes).filter(([, box]) => isChecked(box)).map(([name]) => [name, true]));
    const rule = { ...request, ...chosen, status: chosen.allow ? undefined : Number(status.value), reason: reason.value.trim() || undefined };
    const [title, sentence, yes] = question(text, kind, rule);
    if (!(await confirm(title, sentence, yes, chosen.allow ? "primary" : "danger"))) return;
    fill(result, h("p", { class: "muted" }, "Working… A take-down runs to its end even if you leave this page."));
    try {
      fill(result, added(await call("POST", "/api/v1/denylists/local/rules", { json: rule, signal })));
      changed();
    } catch (error) {
      fill(result);
      throw error;
    }
  }

  return [
    h("h3", {}, "Take it down"),
    form(start,
      h("div", { class: "fields" }, field("Answer", status), field("Reason, for readers of the list", reason)),
      h("fieldset", {}, h("legend", {}, "Options"), Object.values(boxes).map((box) => h("div", {}, box))),
      submit("Take down…", "danger")),
    result,
  ];
}

function question(text, kind, { allow, deep, status }) {
  if (allow || text.startsWith("!")) {
    return ["Allow this content?", `The ${kind} ${text} is served even if another list withholds it. Nothing is fetched or deleted.`, "Allow"];
  }
  const more = deep ? " Every stored block below it is withheld as well." : "";
  const sentences = [
    `Requests for the ${kind} ${text} are answered with ${status}, and peers get none of it.${more}`,
    "What the rule withholds is deleted from memory and disk, pinned content too, and purge requests go to the caches in front.",
    "Removing the rule later does not restore deleted content.",
  ];
  return ["Take down this content?", sentences.join(" "), "Take down"];
}

function subjectCard(context, changed) {
  const { may, parameters, setParameters, signal } = context;
  const subject = input({ value: parameters.get("subject") ?? "", required: true, placeholder: "bafy…, /ipfs/…, example.org or https://…" });
  const result = h("div", { class: "result", role: "status" });
  const forget = () => fill(result);
  subject.addEventListener("input", forget);
  const text = () => {
    const value = subject.value.trim();
    if (value === "") throw new Error("Enter a CID, a path, a name or a URL.");
    setParameters({ subject: value });
    return value;
  };
  const check = async () => {
    const { kind, request } = subjectOf(text());
    if (kind === "rule") throw new Error("A rule cannot be checked, but its subject can: enter a CID, a path, a name or a URL.");
    fill(result, h("p", { class: "muted" }, "Checking…"));
    try {
      fill(result, showCheck(await get("/api/v1/denylists/check", { subject: Object.values(request)[0] }, { signal })));
    } catch (error) {
      fill(result);
      throw error;
    }
  };
  const about = "The URL may be that of any gateway. A take-down also accepts a rule in the syntax of denylists.";
  const asking = form(may("read") ? check : () => {}, field("CID, path, name or URL", subject, about), may("read") ? submit("Check") : null);
  const isTaken = () => {
    forget();
    changed();
  };
  const parts = may("takedown") ? takeDown(context, text, isTaken) : null;
  const element = card(may("takedown") ? "Check and take down" : "Check", asking, result, parts);
  // The link of another page asks about its subject.
  const begin = () => may("read") && subject.value !== "" && asking.requestSubmit();
  return Object.assign(element, { begin });
}

// ---------------------------------------------------------------- The local list

function localCard(context, changed) {
  const { may, signal } = context;
  const found = h("p", { class: "muted", role: "status" });
  const more = button("Show more", () => nextPage(), { kind: "small" });
  const filter = filters(context, { search: { label: "Search the rules", placeholder: "CID, path, name or reason" } }, () => load());
  let rules = [];
  let next = 0;
  let searches = 0;
  const columns = [
    { title: "Rule", cell: ({ rule }) => h("code", { class: "long" }, rule.split(" ")[0]) },
    { title: "Effect", cell: ({ allows, status }) => (allows ? badge("Allows", "ok") : badge(String(status ?? 410), "error")) },
    { title: "Reason", hide: "narrow", cell: ({ reason }) => h("span", { class: "long" }, reason ?? "–") },
    { title: "Added", hide: "narrow", cell: ({ added_at }) => time(added_at) },
  ];
  const removeButton = (rule) => button("Remove…", () => remove(rule), { kind: "small danger", label: `Remove ${rule.rule}` });
  if (may("takedown")) columns.push({ title: "Action", cell: removeButton });
  const rows = table("Rules of the local list", columns, { key: ({ line }) => line });

  function list(isWhole) {
    const { search } = filter.values;
    rows.show(rules, search === "" ? "The list has no rules. A take-down adds one." : "No rule matches the search.");
    more.hidden = search !== "" || next === null;
    const number = plural(rules.length, "rule");
    if (search !== "") fill(found, `${number} found${isWhole ? "" : "; there may be more. Search for a longer text"}.`);
    else fill(found, next === null ? `${number}.` : `The first ${number}, in the order in which they were added.`);
  }

  async function nextPage() {
    const own = searches;
    const page = await get("/api/v1/denylists/local/rules", { after: next, limit: PAGE }, { signal });
    if (own !== searches) return;
    rules.push(...page.rules);
    next = page.next ?? null;
    list();
  }

  // The API has no search: pages are read until enough rules are found.
  async function search(words) {
    searches += 1;
    const own = searches;
    let read = 0;
    for (let after = 0; after !== null && rules.length < FOUND_MAX; ) {
      const page = await get("/api/v1/denylists/local/rules", { after, limit: SEARCH_PAGE }, { signal });
      if (own !== searches) return;
      rules.push(...page.rules.filter((rule) => matches(words, [rule.rule, rule.reason])));
      read += page.rules.length;
      after = page.next ?? null;
      next = after;
      fill(found, `${plural(read, "rule")} searched…`);
    }
    list(next === null);
  }

  async function load() {
    searches += 1;
    rules = [];
    next = 0;
    try {
      if (filter.values.search === "") await nextPage();
      else await search(filter.values.search);
    } catch (error) {
      if (error.name !== "AbortError") fill(found, error.message);
    }
  }

  async function remove({ rule, allows }) {
    const item = rule.split(" ")[0];
    const served = "It can be requested again, unless another list withholds it. Deleted content is not restored: it is fetched again on request, " +
      "and pins that were removed stay removed.";
    const effect = allows ? "What other lists withhold is withheld again." : served;
    const text = `All lines for ${item} are removed, and the rules that “deep” added for the blocks below it. ${effect}`;
    if (!(await confirm("Remove this rule?", text, "Remove"))) return;
    const { removed } = await call("DELETE", withQuery("/api/v1/denylists/local/rules", { rule }), { signal });
    toast(`${plural(removed, "line was", "lines were")} removed from the list.`);
    load();
    changed();
  }

  load();
  const ofSite = h("p", { class: "muted" }, "For a gateway of a site, these are the rules of the site, which all of its gateways obey.");
  const element = card("Rules of the local list", ofSite, filter, found, rows, h("div", { class: "pager" }, h("span", {}), more));
  return Object.assign(element, { load });
}

function show(main, context) {
  const { may } = context;
  const isReader = may("read");
  const lists = isReader ? listsCard(context) : emptyState("This token may not read the lists.", "They need the scope “read”.");
  const local = isReader ? localCard(context, () => lists.load()) : null;
  const changed = () => {
    lists.load?.();
    local?.load();
  };
  const subject = subjectCard(context, changed);
  append(main, pageHead("Denylists", "What this gateway withholds, and why."), subject, lists, local);
  subject.begin();
}

export default { id: "denylists", title: "Denylists", scopes: ["read", "takedown"], show };
