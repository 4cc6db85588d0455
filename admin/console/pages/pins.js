// The pins of all owners, or those of the token: what is kept, what is being fetched, and why it fails.

import { call, get } from "../lib/api.js";
import { append, fill, h, setText } from "../lib/dom.js";
import { ago, byteRate, bytes, count, plural, sentence, shortened, time, until } from "../lib/format.js";
import { poll } from "../lib/poll.js";
import { cidOf, contentHref } from "../lib/subject.js";
import { badge, button, card, confirm, dialog, facts, field, form, identifier, input, pageHead, submit, table, toast } from "../lib/ui.js";

const PAGE = 50;
const OWNERS_MAX = 200;
const STATUSES = { queued: ["Queued", "quiet"], pinning: ["Pinning", "info"], pinned: ["Pinned", "ok"], failed: ["Failed", "error"] };
const IN_PROGRESS = "queued,pinning";
const CHIPS = [["", "All"], [IN_PROGRESS, "In progress"], ["pinned", "Pinned"], ["failed", "Failed"]];
// Pins that are being fetched change all the time, others when somebody adds or removes one.
const FAST_SECONDS = 2;
const SLOW_SECONDS = 15;

// Being fetched, or about to be.
const isInProgress = ({ status, next_attempt_at: next }) => status === "pinning" || (status === "queued" && !(next > Date.now() / 1000 + FAST_SECONDS));
const nameOf = (pin) => pin.name || pin.cid;

// ---------------------------------------------------------------- Where pins come from

// `cursor` is what the next page begins after.
const allPins = {
  about: "What the gateway keeps, for all owners.",
  cursor: (pin) => pin.requestid,
  list: ({ status, name, cid, owner, older }, signal) =>
    get("/api/v1/pins", { status, name, match: name && "ipartial", cid, owner, older_than: older, limit: PAGE }, { signal }),
  counts: (signal) => get("/api/v1/pins/owners", {}, { signal }),
  retry: (pin, signal) => call("POST", `/api/v1/pins/${encodeURIComponent(pin.requestid)}/retry`, { signal }),
  remove: (pin) => call("DELETE", `/api/v1/pins/${encodeURIComponent(pin.requestid)}`),
};

// A pin of the Pinning Service API in the form of the others.
function ownPin({ requestid, status, created, pin, info }) {
  return {
    requestid,
    status,
    cid: pin.cid,
    name: pin.name ?? null,
    meta: pin.meta ?? {},
    origins: pin.origins ?? [],
    blocks: Number(info.blocks ?? 0),
    bytes: Number(info.bytes ?? 0),
    attempts: Number(info.attempts ?? 0),
    said: info.status_details,
    created_at: Date.parse(created) / 1000,
    created,
  };
}

const ownPins = {
  about: "The pins of this token. A token with the scope operate shows those of all owners.",
  cursor: (pin) => pin.created,
  async list({ status, name, cid, older }, signal) {
    const parameters = { status: status || Object.keys(STATUSES).join(","), name, match: name && "ipartial", cid, before: older, limit: PAGE };
    const { count: matching, results } = await get("/psa/pins", parameters, { signal });
    return { count: matching, pins: results.map(ownPin) };
  },
  counts: async () => null,
  // A pin that replaces itself begins anew.
  retry: ({ requestid, cid, name, meta, origins }, signal) =>
    call("POST", `/psa/pins/${encodeURIComponent(requestid)}`, { json: { cid, name: name ?? undefined, meta, origins }, signal }),
  remove: (pin) => call("DELETE", `/psa/pins/${encodeURIComponent(pin.requestid)}`),
};

// ---------------------------------------------------------------- Words

// Why a pin is in its status, in a sentence; null if there is nothing to say.
function reason(pin) {
  const { status, details, attempts, next_attempt_at: next, said } = pin;
  if (said !== undefined) return sentence(said.replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/, (at) => time(Date.parse(at) / 1000)));
  if (status === "queued" && attempts > 0) return `Attempt ${attempts} failed: ${details ?? "no reason is known"}. The next one is due ${until(next)}.`;
  if (status === "queued") return sentence(details ?? "Waits for a free slot");
  if (status === "pinning" && details) return sentence(`Is fetched again after an error: ${details}`);
  if (status === "failed") return sentence(`${details ?? "No reason is known"}${attempts > 1 ? ` (after ${attempts} attempts)` : ""}`);
  return null;
}

const statusBadge = ({ status }) => badge(...(STATUSES[status] ?? [status, "warning"]));

function statusCell(pin) {
  const why = reason(pin);
  // With the CIDs shortened, the words are in the two lines that there are.
  const brief = why?.replace(/\w{40,}/g, (cid) => shortened(cid));
  return [statusBadge(pin), why ? h("div", { class: "sub clipped", title: why }, brief) : null];
}

const contentCell = (pin) => [
  h("div", { class: pin.name ? "break" : "break muted" }, pin.name || "Without a name"),
  identifier(pin.cid, { href: contentHref(`/ipfs/${pin.cid}`) }),
];

function ownerCell({ owner, owner_name: name }) {
  if (name) return h("span", { title: owner }, name);
  return [identifier(owner, { ends: 4 }), h("div", { class: "sub" }, "Revoked token")];
}

function showDetails(pin) {
  const rows = [
    ["Status", statusBadge(pin)],
    ["CID", identifier(pin.cid, { ends: 12 })],
    ["Name", pin.name],
    pin.owner && ["Owner", ownerCell(pin)],
    ["Request ID", identifier(pin.requestid, { ends: 12 })],
    ["Created", `${time(pin.created_at)} (${ago(pin.created_at)})`],
    ["Blocks", count(pin.blocks)],
    ["Size", bytes(pin.bytes)],
    pin.attempts > 0 && ["Failed attempts", count(pin.attempts)],
    pin.next_attempt_at && ["Next attempt", `${time(pin.next_attempt_at)} (${until(pin.next_attempt_at)})`],
  ];
  const meta = Object.entries(pin.meta);
  const why = reason(pin);
  return dialog(nameOf(pin), (close) => [
    why ? h("p", { class: `notice ${pin.status === "failed" ? "error" : "info"} break` }, why) : null,
    facts(rows.filter((row) => row && row[1])),
    meta.length > 0 ? [h("h3", {}, "Metadata"), facts(meta)] : null,
    h("h3", {}, "Origins"),
    pin.origins.length > 0
      ? h("ul", { class: "unmarked mono" }, pin.origins.map((origin) => h("li", {}, origin)))
      : h("p", { class: "muted" }, "None were named: the providers are looked up in the network."),
    h("div", { class: "actions" },
      h("a", { class: "button", href: contentHref(`/ipfs/${pin.cid}`), onclick: () => close() }, "Show the content"),
      h("button", { type: "button", onclick: () => close() }, "Close")),
  ]);
}

// ---------------------------------------------------------------- Pinning new content

function pinForm() {
  return dialog("Pin content", (close) => {
    const cid = input({ name: "cid", required: true, autofocus: true });
    const name = input({ name: "name", maxlength: 255 });
    const origins = h("textarea", { name: "origins", spellcheck: "false" });
    const action = async () => {
      const pin = { cid: cidOf(cid.value), name: name.value.trim() || undefined };
      const listed = origins.value.split(/\s+/).filter(Boolean);
      if (pin.cid === "") throw new Error("Enter the CID of the content.");
      if (listed.length > 0) pin.origins = listed;
      close(await call("POST", "/api/v1/pins", { json: pin }));
    };
    return form(action,
      h("p", {}, "The gateway fetches the whole DAG and keeps it until the pin is removed. The pin belongs to this token."),
      field("CID", cid, "Or a path or URL of it, such as /ipfs/bafy…"),
      field("Name", name, "Optional: to find the pin again."),
      field("Origins", origins, "Optional: multiaddrs of peers that have it, one on a line, such as /ip4/192.0.2.1/tcp/4001/p2p/12D3…"),
      h("div", { class: "actions" }, h("button", { type: "button", onclick: () => close() }, "Cancel"), submit("Pin")));
  });
}

// ---------------------------------------------------------------- Filters

function filterForm(context, source, changed) {
  const { parameters } = context;
  const owners = h("datalist", { id: "pin-owners" });
  const controls = {
    name: input({ type: "search", name: "name", value: parameters.get("name") ?? "" }),
    cid: input({ type: "search", name: "cid", value: parameters.get("cid") ?? "" }),
    owner: input({ type: "search", name: "owner", list: "pin-owners", value: parameters.get("owner") ?? "" }),
  };
  let timer;
  context.signal.addEventListener("abort", () => clearTimeout(timer));
  const apply = () => {
    clearTimeout(timer);
    changed(Object.fromEntries(Object.entries(controls).map(([name, control]) => [name, control.value.trim()])));
  };
  const element = h("form", { class: "filters", role: "search", "aria-label": "Filter the pins" },
    field("Name contains", controls.name), field("CID", controls.cid), source === allPins ? [field("Owner", controls.owner), owners] : null);
  element.addEventListener("submit", (event) => {
    event.preventDefault();
    apply();
  });
  element.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(apply, 300);
  });
  const showOwners = (list) => {
    const names = list.slice(0, OWNERS_MAX).map(({ owner, owner_name: name }) => name ?? owner);
    const shown = [...owners.children].map(({ value }) => value);
    if (names.join("\n") !== shown.join("\n")) fill(owners, names.map((name) => h("option", { value: name })));
  };
  return { element, showOwners };
}

// The number of pins of a chip; `counts` are by status, or those of all owners (OwnersView).
function countOf(status, { pending, pinned, failed, queued, pinning }) {
  const inProgress = pending ?? queued + pinning;
  return { "": inProgress + pinned + failed, [IN_PROGRESS]: inProgress, pinned, failed }[status];
}

function chipsOf(choose) {
  const chips = CHIPS.map(([status, text]) => {
    const figure = h("b", {});
    const chip = h("button", { type: "button", class: "chip", onclick: () => choose(status) }, text, " ", figure);
    return { status, chip, figure };
  });
  const element = h("div", { class: "chips", role: "group", "aria-label": "Status" }, chips.map(({ chip }) => chip));
  const show = (chosen, counts) => {
    for (const { status, chip, figure } of chips) {
      chip.setAttribute("aria-pressed", String(status === chosen));
      if (counts) setText(figure, count(countOf(status, counts)));
    }
  };
  return Object.assign(element, { show });
}

// ---------------------------------------------------------------- The page

function show(main, context) {
  const source = context.may("operate") ? allPins : ownPins;
  const filter = () => Object.fromEntries(["status", "name", "cid", "owner", "older"].map((name) => [name, context.parameters.get(name) ?? ""]));
  // The cursors of the newer pages that were shown before this one.
  let trail = [];
  let pins = [];
  // Of the rows that are in progress: the bytes and when they were read, for the rate.
  let before = new Map();
  let figures = null;

  const queue = h("span", {});
  const nothing = h("span", {});
  const chips = chipsOf((status) => change({ status }));
  const filters = filterForm(context, source, change);
  const retryAll = button("Retry all failed on this page", retryFailed);
  retryAll.disabled = true;
  const rows = table("Pins", [
    { title: "Status", cell: statusCell },
    { title: "Content", cell: contentCell },
    { title: "Size", cell: sizeCell, numeric: true },
    source === allPins && { title: "Owner", cell: ownerCell, hide: "narrow" },
    { title: "Created", cell: (pin) => h("span", { class: "no-wrap", title: time(pin.created_at) }, ago(pin.created_at)), hide: "narrow" },
    { title: "Actions", cell: actionsCell },
  ].filter(Boolean), { key: (pin) => pin.requestid, empty: nothing });
  const updates = poll(load, () => (pins.some(isInProgress) ? FAST_SECONDS : SLOW_SECONDS), context.signal);
  const place = h("span", { role: "status" });
  const newer = h("button", { type: "button", onclick: () => turnTo(trail.pop() ?? "") }, "Newer");
  const older = h("button", { type: "button", onclick: () => {
    trail.push(filter().older);
    turnTo(source.cursor(pins.at(-1)));
  } }, "Older");

  const add = async () => {
    const added = await pinForm();
    if (!added) return;
    toast("The pin is created; its content is fetched now.");
    filters.element.reset();
    change({ status: "", name: "", cid: "", owner: "" });
  };
  append(main,
    pageHead("Pins", [source.about, " ", queue], retryAll, context.may("pin") ? button("Pin content", add, { kind: "primary" }) : null),
    updates,
    card(null, chips, filters.element, rows, h("div", { class: "pager" }, newer, place, older)));

  function sizeCell(pin) {
    const known = before.get(pin.requestid);
    const rate = known && pin.bytes > known.bytes ? (pin.bytes - known.bytes) / ((Date.now() - known.at) / 1000) : 0;
    if (pin.status === "failed" && pin.blocks === 0) return "–";
    const blocks = h("div", { class: "sub" }, plural(pin.blocks, "block"), pin.status === "pinning" ? `, ${byteRate(rate)}` : null);
    return h("div", { class: "size" }, bytes(pin.bytes), blocks);
  }

  function actionsCell(pin) {
    const canRetry = pin.status === "failed" || (pin.status === "queued" && pin.attempts > 0);
    return h("div", { class: "actions" },
      button("Details", () => void showDetails(pin), { kind: "small", label: `Details of ${nameOf(pin)}` }),
      canRetry ? button("Retry", () => retry(pin), { kind: "small", label: `Retry ${nameOf(pin)}` }) : null,
      button("Remove", () => remove(pin), { kind: "small danger", label: `Remove ${nameOf(pin)}` }));
  }

  async function retry(pin) {
    await source.retry(pin, context.signal);
    toast(`${nameOf(pin)} is fetched again.`);
    updates.now();
  }

  async function retryFailed(element) {
    const failed = pins.filter(({ status }) => status === "failed");
    let refused = null;
    for (const [index, pin] of failed.entries()) {
      setText(element, `Retrying ${index + 1} of ${failed.length}…`);
      try {
        await source.retry(pin, context.signal);
      } catch (error) {
        if (error.name === "AbortError") throw error;
        refused ??= error;
        // A pin may be gone, or withheld. Otherwise the others would fail in the same way.
        if (error.status !== 404 && error.status !== 409) break;
      }
    }
    setText(element, "Retry all failed on this page");
    updates.now();
    if (refused) throw refused;
    toast(`${plural(failed.length, "pin is", "pins are")} fetched again.`);
  }

  async function remove(pin) {
    const text = `The gateway may evict the blocks of "${nameOf(pin)}" from now on, except those that other pins have. Copies on other nodes stay there.`;
    if (!(await confirm("Remove the pin?", text, "Remove"))) return;
    await source.remove(pin);
    toast("The pin is removed.");
    context.focusHeading();
    updates.now();
  }

  // Shows the first page with other filters.
  function change(values) {
    trail = [];
    figures = null;
    context.setParameters({ ...values, older: "" });
    chips.show(filter().status, null);
    updates.now();
  }

  function turnTo(cursor) {
    context.setParameters({ older: cursor });
    updates.now();
    window.scrollTo(0, 0);
  }

  async function load() {
    const wanted = filter();
    const isStale = () => context.signal.aborted || JSON.stringify(filter()) !== JSON.stringify(wanted);
    try {
      const [page, counts] = await Promise.all([source.list(wanted, context.signal), source.counts(context.signal)]);
      if (!isStale()) showPage(page, counts);
    } catch (error) {
      if (isStale()) return;
      if (error.status === 404 && filter().older) {
        // The pin that the page begins after was removed.
        turnTo(trail.pop() ?? "");
        return;
      }
      throw error;
    }
  }

  function showPage(page, counts) {
    pins = page.pins;
    const { status, name, cid, owner, older: cursor } = filter();
    // On the first page the counts are of all pins that match, and on others of the older ones.
    if (cursor === "" || figures === null) figures = (cursor === "" ? page.by_status : null) ?? counts;
    chips.show(status, figures);
    if (counts) {
      filters.showOwners(counts.owners);
      const { active_roots: active, queued_roots: queued } = counts;
      setText(queue, active + queued > 0 ? `${plural(active, "DAG is", "DAGs are")} being fetched, ${count(queued)} queued.` : "");
    }
    setText(nothing, status || name || cid || owner ? "No pin matches. Change the filters." : "Nothing is pinned. Pin content by its CID, or upload files.");
    rows.show(pins);
    const at = Date.now();
    before = new Map(pins.filter(isInProgress).map((pin) => [pin.requestid, { bytes: pin.bytes, at }]));
    const rest = page.count - pins.length;
    newer.disabled = cursor === "";
    older.disabled = rest <= 0;
    setText(place, pins.length === 0 ? "" : `${plural(pins.length, "pin")}, ${count(rest)} older`);
    retryAll.disabled = !pins.some((pin) => pin.status === "failed");
  }
}

export default { id: "pins", title: "Pins", scopes: ["operate", "pin"], show };
