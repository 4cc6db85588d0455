// IPNS names: the keys of this node, what is published with them, and resolving a name again.

import { call, get } from "../lib/api.js";
import { append, fill, h } from "../lib/dom.js";
import { ago, capitalised, count, plural, sentence, span, time, until } from "../lib/format.js";
import { poll } from "../lib/poll.js";
import { contentHref } from "../lib/subject.js";
import { saveAs } from "../lib/task.js";
import {
  badge, button, card, confirm, copyButton, dialog, emptyState, facts, field, form, identifier, input, pageHead, progress, select, submit, table,
  toast,
} from "../lib/ui.js";
import { NAME_SOURCES } from "../lib/words.js";

const KEYS = "/api/v1/names/keys";
const PUBLISHED = "/api/v1/names/publish";
// The name of the key that is the node's identity: it can publish, but is neither renamed, exported nor deleted.
const SELF = "self";
const POLL_SECONDS = 10;
// A record that no peer has yet is looked at more often.
const FAST_SECONDS = 2;
const UNITS = [["60", "minutes"], ["3600", "hours"], ["86400", "days"]];
const KINDS = [["ed25519", "Ed25519"], ["secp256k1", "secp256k1"], ["ecdsa", "ECDSA"]];
const FORMATS = [["libp2p-protobuf-cleartext", "libp2p's protobuf message, in base64"], ["pem-pkcs8-cleartext", "PEM (PKCS #8), for Ed25519 and RSA"]];

const keyPath = (name, action) => `${KEYS}/${encodeURIComponent(name)}${action ? `/${action}` : ""}`;
const pathLink = (path) => (path ? h("a", { class: "mono", href: contentHref(path) }, path) : "–");
const cancelButton = (close) => h("button", { type: "button", onclick: () => close() }, "Cancel");

// ---------------------------------------------------------------- Keys

function createKey() {
  return dialog("Create a key", (close) => {
    const name = input({ required: true, maxlength: 128, autofocus: true });
    const kind = select(KINDS, "ed25519");
    const action = async () => close(await call("POST", KEYS, { json: { name: name.value.trim(), type: kind.value } }));
    return form(action,
      h("p", {}, "A key is an IPNS name that this node publishes under. Its private key stays in the gateway's data folder."),
      field("Name", name, "Only for you: it is not part of the IPNS name."),
      field("Type", kind, "Ed25519 makes the shortest names, and every implementation has it."),
      h("div", { class: "actions" }, cancelButton(close), submit("Create")));
  });
}

function importKey() {
  return dialog("Import a key", (close) => {
    const name = input({ required: true, maxlength: 128, autofocus: true });
    const key = h("textarea", { required: true, spellcheck: "false", autocomplete: "off" });
    const action = async () => {
      const imported = await call("POST", `${KEYS}/import`, { json: { name: name.value.trim(), key: key.value.trim() } });
      key.value = "";
      close(imported);
    };
    return form(action,
      h("p", {}, "Export it elsewhere with ", h("code", {}, "ipfs key export"), " or ", h("code", {}, "causeway key export"),
        ". Only one node should publish with a key: two that do replace each other's records."),
      field("Name", name),
      field("Private key", key, "PEM text, or libp2p's protobuf message in base64."),
      h("div", { class: "actions" }, cancelButton(close), submit("Import")));
  });
}

function renameKey({ name }) {
  return dialog("Rename the key", (close) => {
    const to = input({ required: true, maxlength: 128, value: name, autofocus: true });
    const action = async () => close(await call("POST", keyPath(name, "rename"), { json: { to: to.value.trim() } }));
    return form(action,
      h("p", {}, "The IPNS name and what is published under it stay the same."),
      field("New name", to),
      h("div", { class: "actions" }, cancelButton(close), submit("Rename")));
  });
}

function saveButton(name, format, text) {
  return button("Save as a file", () => saveAs(`${name}.${format.startsWith("pem") ? "pem" : "key"}`, new Blob([text])));
}

// Asks first: the private key then is on the screen, and the audit log has the export.
function exportKey({ name }) {
  return dialog(`Export the key "${name}"`, (close) => {
    const place = h("div", {});
    const format = select(FORMATS, FORMATS[0][0]);
    const action = async () => {
      const exported = await call("POST", keyPath(name, "export"), { json: { format: format.value } });
      const text = h("textarea", { readonly: true, rows: 6 });
      text.value = exported.key;
      fill(place,
        field("Private key", text),
        h("div", { class: "actions" },
          copyButton(exported.key, "the private key"),
          saveButton(name, exported.format, exported.key),
          h("button", { type: "button", onclick: () => close() }, "Close")));
      text.focus();
      text.select();
    };
    append(place, form(action,
      h("p", { class: "notice warning" },
        "Anyone with the private key can publish under this name, and nothing takes that back. It is shown without encryption."),
      field("Format", format),
      h("div", { class: "actions" }, cancelButton(close), submit("Show the private key", "danger"))));
    return place;
  });
}

// ---------------------------------------------------------------- Publishing

function lengthField(label, value, unit, about) {
  const number = input({ type: "number", min: 1, step: "any", placeholder: "Default", value });
  const units = select(UNITS, unit, { "aria-label": `Unit of ${label}` });
  const seconds = () => (number.value === "" ? undefined : Math.round(Number(number.value) * Number(units.value)));
  return Object.assign(h("div", { class: "with-unit" }, field(label, number, about), units), { seconds });
}

function publishForm(keys, { key, path } = {}) {
  return dialog("Publish a path", (close) => {
    const value = input({ required: true, value: path ?? "", placeholder: "/ipfs/bafy…", autofocus: true });
    const chosen = select(keys.map(({ name }) => [name, name === SELF ? "self (the node's identity)" : name]), key ?? SELF);
    const lifetime = lengthField("Lifetime", "", "3600", "How long a record is valid. It is published again long before its end.");
    const ttl = lengthField("TTL", "", "60", "How long resolvers may use a record without asking again.");
    const busy = h("div", {});
    const action = async () => {
      const json = { path: value.value.trim(), key: chosen.value, lifetime_seconds: lifetime.seconds(), ttl_seconds: ttl.seconds() };
      const text = "The first publication with a key searches the network for earlier records, for ten seconds at most.";
      fill(busy, h("p", { class: "muted" }, text), progress("Publishing"));
      try {
        close(await call("POST", PUBLISHED, { json }));
      } finally {
        fill(busy);
      }
    };
    return form(action,
      field("Path", value, "What the name resolves to: /ipfs/CID, /ipfs/CID/folder or another /ipns/ name."),
      field("Key", chosen),
      h("details", {}, h("summary", {}, "Lifetime and TTL"), lifetime, ttl),
      busy,
      h("div", { class: "actions" }, cancelButton(close), submit("Publish")));
  });
}

const DHTS = { lan: "LAN DHT", wan: "WAN DHT" };

// A record is stored by several peers of a DHT, and by a router as a whole.
function putOf([target, peers]) {
  if (DHTS[target]) return `${DHTS[target]}: ${plural(peers, "peer")}`;
  return `${target}: ${peers > 0 ? "accepted" : "not yet"}`;
}

function putsCell({ status, puts }) {
  const takers = Object.entries(puts);
  const isPublished = takers.some(([, peers]) => peers > 0);
  return [
    badge(isPublished ? "Published" : "Stored locally", isPublished ? "ok" : "warning"),
    h("div", { class: "sub" }, takers.length > 0 ? takers.map((put) => h("div", { class: "no-wrap" }, putOf(put))) : sentence(status)),
  ];
}

function validityCell({ valid_until_at: at }) {
  const isOver = at * 1000 < Date.now();
  return h("span", { class: "no-wrap", title: time(at) }, isOver ? [badge("Expired", "error"), ` ${ago(at)}`] : until(at));
}

// ---------------------------------------------------------------- Resolving

function stepOf({ name, source, value, error, age_seconds: age, fresh_for_seconds: fresh, valid_until_at: at, sequence }) {
  return h("li", {},
    h("div", { class: "break" }, h("span", { class: "mono" }, name), " → ", value ? pathLink(value) : h("span", { class: "muted" }, "no value")),
    error ? h("div", { class: "notice error break" }, sentence(error)) : null,
    h("div", { class: "sub" }, [
      capitalised(NAME_SOURCES[source] ?? source),
      age !== null && `${span(age)} old`,
      fresh !== null && `fresh for ${span(fresh)}`,
      at !== null && `valid until ${time(at)}`,
      sequence !== null && `sequence ${sequence}`,
    ].filter(Boolean).join(", "), "."));
}

function resolvedView({ name, old, new: now, error, changed, steps }) {
  const said = error ? badge("Failed", "error") : changed ? badge("Changed", "info") : badge("Unchanged", "ok");
  return h("div", { class: "resolved" },
    facts([["Name", [name, " ", said]], ["Path", pathLink(now)], changed && old ? ["Before", pathLink(old)] : null]),
    error && old ? h("p", { class: "notice warning" }, "The previous value stays in use while it is valid.") : null,
    error && !steps.some((step) => step.error === error) ? h("p", { class: "notice error break" }, sentence(error)) : null,
    steps.length > 0 ? [h("h3", {}, "Steps"), h("ol", {}, steps.map(stepOf))] : null);
}

function resolveCard(context) {
  const name = input({ required: true, value: context.parameters.get("name") ?? "", placeholder: "k51… or example.org" });
  const place = h("div", { "aria-live": "polite" });
  let running = null;
  context.signal.addEventListener("abort", () => running?.abort());
  const stop = h("button", { type: "button", class: "small", onclick: () => running.abort() }, "Stop");
  const action = async () => {
    const wanted = name.value.trim();
    if (wanted === "") throw new Error("Enter a name: an IPNS key or a domain with a DNSLink.");
    context.setParameters({ name: wanted });
    running = new AbortController();
    fill(place, progress(`Resolving ${wanted}`), h("div", { class: "actions" }, stop));
    try {
      fill(place, resolvedView(await call("POST", "/api/v1/names/refresh", { json: { name: wanted }, signal: running.signal })));
    } catch (error) {
      fill(place);
      throw error;
    }
  };
  return card("Resolve a name now",
    h("p", { class: "muted" }, "Looks the name up again, past the cache. Later requests use what is found."),
    form(action, h("div", { class: "fields" }, field("Name", name), submit("Resolve"))), place);
}

// ---------------------------------------------------------------- The page

function show(main, context) {
  const mayChange = context.may("operate");
  const isWaiting = ({ puts }) => !Object.values(puts).some((peers) => peers > 0);
  const updates = poll(load, () => (published.some(isWaiting) ? FAST_SECONDS : POLL_SECONDS), context.signal);
  let keys = [];
  let published = [];

  // Runs what a dialog is for, and shows what changed.
  const then = (work, text) => async () => {
    const done = await work();
    if (!done) return;
    toast(text(done));
    updates.now();
  };
  const publish = (given) => then(() => publishForm(keys, given), ({ name, status }) => `${name}: ${status}.`);

  async function removeKey({ name, id }) {
    const record = published.find((one) => one.name === `/ipns/${id}`);
    const text = [
      `The private key of "${name}" is deleted. Unless you exported it, nobody can publish under /ipns/${id} again.`,
      record ? ` The published record stays in the network until ${time(record.valid_until_at)}, and is not renewed.` : "",
    ];
    if (!(await confirm("Delete the key?", text.join(""), "Delete"))) return;
    await call("DELETE", keyPath(name));
    toast(`The key "${name}" is deleted.`);
    context.focusHeading();
    updates.now();
  }

  const small = (word, name, action, kind = "small") => button(word, action, { kind, label: `${word} ${name}` });
  const keyActions = (key) => h("div", { class: "actions" },
    small("Publish", key.name, publish({ key: key.name })),
    key.name === SELF ? null : [
      small("Rename", key.name, then(() => renameKey(key), ({ name }) => `The key is now "${name}".`)),
      small("Export", key.name, () => void exportKey(key)),
      small("Delete", key.name, () => removeKey(key), "small danger"),
    ]);
  const keyCell = ({ name }) => [h("span", { class: "break" }, name), name === SELF ? h("div", { class: "sub" }, "The node's identity") : null];
  const keyTable = table("All keys", [
    { title: "Key", cell: keyCell, sort: ({ name }) => name },
    { title: "IPNS name", cell: ({ id }) => identifier(id, { href: contentHref(`/ipns/${id}`) }) },
    { title: "Type", cell: ({ type }) => type, hide: "narrow" },
    mayChange && { title: "Actions", cell: keyActions },
  ].filter(Boolean), { key: ({ name }) => name, empty: "No keys." });

  const nameCell = ({ key, name }) => [
    key ?? h("span", { class: "muted" }, "Deleted key"),
    h("div", {}, identifier(name.replace("/ipns/", ""), { href: contentHref(name) })),
  ];
  const publishedTable = table("All published names", [
    { title: "Name", cell: nameCell, sort: ({ key }) => key },
    { title: "Path", cell: ({ value }) => pathLink(value) },
    { title: "State", cell: putsCell },
    { title: "Expires", cell: validityCell, sort: (one) => one.valid_until_at },
    { title: "TTL", cell: ({ ttl_seconds: ttl }) => h("span", { class: "no-wrap" }, span(ttl)), hide: "narrow" },
    { title: "Sequence", cell: ({ sequence }) => count(sequence), numeric: true, hide: "narrow" },
    mayChange && { title: "Actions", cell: ({ key, name, value }) => (key ? small("Publish again", name, publish({ key, path: value })) : "–") },
  ].filter(Boolean), { key: ({ name }) => name, empty: "" });
  const none = emptyState("Nothing is published.", mayChange ? "Publish a path: its name then always leads to the newest content." : null);
  none.hidden = true;

  const actions = mayChange ? [
    button("Import a key", then(importKey, ({ name }) => `The key "${name}" is imported.`)),
    button("Create a key", then(createKey, ({ name }) => `The key "${name}" is created.`)),
    button("Publish", publish(), { kind: "primary" }),
  ] : [];
  append(main,
    pageHead("Names", "IPNS names, which lead to content that changes.", actions),
    updates,
    card("Published names", publishedTable, none),
    card("Keys", keyTable),
    mayChange ? resolveCard(context) : null);

  async function load() {
    const options = { signal: context.signal };
    const [keysView, publishedView] = await Promise.all([get(KEYS, {}, options), get(PUBLISHED, {}, options)]);
    keys = keysView.keys;
    published = publishedView.published.sort((one, other) => (one.key ?? "").localeCompare(other.key ?? ""));
    keyTable.show(keys);
    publishedTable.show(published);
    none.hidden = published.length > 0;
    publishedTable.hidden = published.length === 0;
  }
}

export default { id: "names", title: "Names", scopes: ["read"], show };
