// Tokens: who may do what, and how much each owner keeps.

import { call, get } from "../lib/api.js";
import { append, h, setText } from "../lib/dom.js";
import { ago, bytes, count, plural, time, until } from "../lib/format.js";
import { poll } from "../lib/poll.js";
import {
  badge, button, card, checkbox, confirm, copyButton, dialog, facts, field, form, identifier, input, meter, pageHead, select, submit, table, toast,
} from "../lib/ui.js";

const POLL_SECONDS = 15;
const OPERATOR = "operator";
const SCOPES = {
  read: "See everything: statistics, peers, requests, settings and content.",
  pin: "Pin and upload, and list and remove the token's own pins.",
  operate: "Change the running gateway: the store, caches, peers, names and their keys, draining, and the pins of all owners.",
  takedown: "Change what is withheld: the denylists.",
};
const DAY = 86_400;
const LIFETIMES = [
  ["", "Never"], [String(DAY), "In a day"], [String(7 * DAY), "In a week"], [String(30 * DAY), "In 30 days"], [String(90 * DAY), "In 90 days"],
  [String(365 * DAY), "In a year"],
];
const UNITS = [[String(2 ** 20), "MiB"], [String(2 ** 30), "GiB"], [String(2 ** 40), "TiB"]];
// A token that expires so soon is marked.
const SOON_SECONDS = 7 * DAY;

// ---------------------------------------------------------------- Cells

// Scopes that change more than the token's own pins stand out.
const TONES = { read: "quiet", pin: "info" };
const scopeBadges = (scopes) => h("div", { class: "badges" }, scopes.map((scope) => badge(scope, TONES[scope] ?? "warning")));

function used(figure, most, text, label, short = text) {
  if (most === undefined || most === null) return h("div", {}, text(figure));
  const share = most > 0 ? figure / most : 1;
  return h("div", {}, `${short(figure)} of ${text(most)}`, meter(figure, most, label, share >= 1 ? "error" : share > 0.9 ? "warning" : "ok"));
}

function usageCell({ id, name, usage, quota }) {
  const pins = (figure) => plural(figure, "pin");
  const shown = [used(usage.pins, quota?.pins_max, pins, `Pins of ${name}`, count), used(usage.bytes, quota?.bytes_max, bytes, `Bytes of ${name}`)];
  return [...shown, usage.pins > 0 ? h("a", { class: "sub", href: `#/pins?owner=${encodeURIComponent(id)}` }, "Show the pins") : null];
}

function expiryCell({ expires_at: at, state }) {
  if (state === "revoked") return "–";
  if (at === undefined) return "Never";
  const seconds = at - Date.now() / 1000;
  if (seconds <= 0) return [badge("Expired", "error"), h("div", { class: "sub" }, ago(at))];
  return h("span", { class: "no-wrap", title: time(at) }, seconds < SOON_SECONDS ? badge(until(at), "warning") : until(at));
}

function nameCell({ id, name, state }) {
  if (state === "operator") return [h("b", {}, "operator"), h("div", { class: "sub" }, "admin.token, or DATA_DIR/admin.token")];
  if (state === "revoked") return [h("span", { class: "muted" }, "Revoked"), h("div", {}, identifier(id, { ends: 6 }))];
  return [h("b", { class: "break" }, name), h("div", {}, identifier(id, { ends: 6 }))];
}

const createdCell = ({ created_at: at }) => (at ? h("span", { class: "no-wrap", title: time(at) }, ago(at)) : "–");

// The issued tokens, the operator, and owners whose tokens were revoked.
function rowsOf(tokens, owners) {
  const usage = new Map(owners.map((one) => [one.owner, one]));
  const none = { pins: 0, bytes: 0 };
  const issued = tokens.map((token) => ({ ...token, state: "issued", usage: usage.get(token.id) ?? none }));
  const operator = { id: OPERATOR, name: OPERATOR, scopes: Object.keys(SCOPES), state: "operator", usage: usage.get(OPERATOR) ?? none };
  const known = new Set([OPERATOR, ...tokens.map(({ id }) => id)]);
  const former = owners.filter(({ owner }) => !known.has(owner));
  const revoked = former.map((one) => ({ id: one.owner, name: one.owner, scopes: [], state: "revoked", usage: one }));
  return [operator, ...issued.reverse(), ...revoked];
}

// ---------------------------------------------------------------- Creating

function scopeChoice() {
  const boxes = Object.entries(SCOPES).map(([scope, about]) => {
    const box = checkbox([h("b", {}, scope), ` – ${about}`], { name: scope });
    return { scope, box };
  });
  const choices = boxes.map(({ box }) => h("div", {}, box));
  const element = h("fieldset", {}, h("legend", {}, "Scopes"), choices, h("p", { class: "sub" }, "No scope includes another."));
  const chosen = () => boxes.filter(({ box }) => box.querySelector("input").checked).map(({ scope }) => scope);
  return { element, chosen };
}

// A whole number that may be left empty.
function numberOf(control, unit = 1) {
  if (control.value.trim() === "") return undefined;
  const number = Math.round(Number(control.value) * unit);
  if (!Number.isSafeInteger(number) || number < 0) throw new Error("A quota must be a number, or empty for none.");
  return number;
}

function createToken() {
  return dialog("Create a token", (close) => {
    const scopes = scopeChoice();
    const name = input({ maxlength: 64, autofocus: true, placeholder: "such as ci or backup" });
    const lifetime = select(LIFETIMES, "");
    const pins = input({ type: "number", min: 0, placeholder: "No limit" });
    const size = input({ type: "number", min: 0, step: "any", placeholder: "No limit" });
    const unit = select(UNITS, UNITS[1][0], { "aria-label": "Unit of the size" });
    const action = async () => {
      const wanted = scopes.chosen();
      if (wanted.length === 0) throw new Error("Choose at least one scope.");
      const quota = { pins_max: numberOf(pins), bytes_max: numberOf(size, Number(unit.value)) };
      const expires = lifetime.value === "" ? undefined : Number(lifetime.value);
      const json = { scopes: wanted, name: name.value.trim() || undefined, quota, expires_seconds: expires };
      close(await call("POST", "/api/v1/tokens", { json }));
    };
    return form(action,
      field("Name", name, "Optional: who uses it, or what for. The audit log shows it."),
      scopes.element,
      field("Expires", lifetime),
      h("fieldset", {}, h("legend", {}, "Quota"),
        h("p", { class: "sub" }, "How much the token's pins may have, for the scope pin."),
        field("Pins", pins),
        h("div", { class: "with-unit" }, field("Size of their content", size), unit)),
      h("div", { class: "actions" }, h("button", { type: "button", onclick: () => close() }, "Cancel"), submit("Create")));
  });
}

function showCreated({ token, name, scopes }) {
  return dialog("The token is created", (close) => {
    const text = input({ readonly: true, class: "mono", value: token, onfocus: (event) => event.target.select() });
    return [
      h("p", { class: "notice warning" }, "Copy the token now: it is shown this once. The gateway keeps only its hash."),
      h("div", { class: "with-unit" }, field(`Token "${name}" (${scopes.join(", ")})`, text), copyButton(token, "the token")),
      h("p", { class: "muted" },
        "Programs send it as ", h("code", {}, "Authorization: Bearer TOKEN"), "; ", h("code", {}, "causeway"), " takes it from ",
        h("code", {}, "CAUSEWAY_ADMIN_TOKEN"), "."),
      h("div", { class: "actions" }, h("button", { type: "button", class: "primary", onclick: () => close() }, "I have copied it")),
    ];
  });
}

// ---------------------------------------------------------------- The page

function ownCard(token) {
  const { pins_max: pins, bytes_max: size } = token.quota ?? {};
  return card("The token of this session",
    facts([
      ["Name", token.name],
      ["Scopes", scopeBadges(token.scopes)],
      ["Quota", [pins === undefined ? "pins without limit" : plural(pins, "pin"), ", ", size === undefined ? "bytes without limit" : bytes(size)]],
      ["Created", token.created_at ? time(token.created_at) : null],
      ["Expires", token.expires_at ? `${time(token.expires_at)} (${until(token.expires_at)})` : "Never"],
    ].filter(([, value]) => value !== null)),
    h("ul", { class: "unmarked" }, token.scopes.map((scope) => h("li", {}, h("b", {}, scope), ` – ${SCOPES[scope] ?? ""}`))));
}

function show(main, context) {
  const isOperator = context.may("operator");
  const mayList = context.may("operate");
  const updates = mayList ? poll(load, POLL_SECONDS, context.signal) : null;
  const summary = h("span", {});

  async function create() {
    const created = await createToken();
    if (!created) return;
    updates.now();
    await showCreated(created);
  }

  async function revoke({ id, name, usage }) {
    const pins = usage.pins > 0 ? ` Its ${plural(usage.pins, "pin")} (${bytes(usage.bytes)}) stay; remove them on the page Pins.` : " It owns no pins.";
    const text = `The gateway rejects the token "${name}" from the next request on, and a new token does not get its pins.${pins}`;
    if (!(await confirm("Revoke the token?", text, "Revoke"))) return;
    await call("DELETE", `/api/v1/tokens/${encodeURIComponent(id)}`);
    toast(`The token "${name}" is revoked.`);
    context.focusHeading();
    updates.now();
  }

  const actionsCell = (row) => (row.state === "issued" ? button("Revoke", () => revoke(row), { kind: "small danger", label: `Revoke ${row.name}` }) : null);
  const rows = table("Tokens", [
    { title: "Token", cell: nameCell, sort: ({ name }) => name },
    { title: "Scopes", cell: ({ scopes }) => (scopes.length > 0 ? scopeBadges(scopes) : "–") },
    { title: "Usage and quota", cell: usageCell, sort: ({ usage }) => usage.bytes },
    { title: "Expires", cell: expiryCell, sort: (row) => row.expires_at ?? Infinity },
    { title: "Created", cell: createdCell, sort: (row) => row.created_at ?? 0, hide: "narrow" },
    isOperator && { title: "Actions", cell: actionsCell },
  ].filter(Boolean), { key: ({ id }) => id });

  append(main,
    pageHead("Tokens", ["Who may use the admin API, and for what. ", summary], isOperator ? button("Create a token", create, { kind: "primary" }) : null),
    updates,
    isOperator ? null : h("p", { class: "notice info" },
      "Only the operator's own token creates and revokes tokens: the one in the settings (admin.token), or in DATA_DIR/admin.token."),
    mayList ? card(null, rows) : null,
    isOperator ? null : ownCard(context.token));
  async function load() {
    const options = { signal: context.signal };
    const [{ tokens }, { owners }] = await Promise.all([get("/api/v1/tokens", {}, options), get("/api/v1/pins/owners", {}, options)]);
    rows.show(rowsOf(tokens, owners));
    setText(summary, tokens.length === 0 ? "None was created yet besides the operator's." : `${count(tokens.length)} besides the operator's.`);
  }
}

export default { id: "tokens", title: "Tokens", scopes: ["read", "pin", "operate", "takedown"], show };
