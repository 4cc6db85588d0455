// Store: what the block store has, and its maintenance.

import { ApiError, call, chunks, get, lines, send, sendFile, withQuery } from "../lib/api.js";
import { append, fill, h } from "../lib/dom.js";
import { bytes, capitalised, count, parseBytes, plural, share } from "../lib/format.js";
import * as live from "../lib/live.js";
import { cidOf, contentHref } from "../lib/subject.js";
import { saveAs, task } from "../lib/task.js";
import {
  badge, budgetMeter, button, card, confirm, copyButton, emptyState, errorNotice, facts, field, form, identifier, input, meter, pageHead, submit, table, tile,
} from "../lib/ui.js";

const CAR = "application/vnd.ipld.car";
// An export is held in memory by the browser until it is whole.
const EXPORT_BYTES_MAX = 256 * 1024 * 1024;
const CIDS_MAX = 4096;
const ROWS = 100;
const FAULTS_MAX = 1000;

const TROUBLE = {
  full: "The disk is full. Free some space; until then nothing more is stored.",
  no_inodes: "The file system has no free inodes. Delete some files; until then nothing more is stored.",
  failing: "The disk reports errors. Look into the gateway's log, and at the disk.",
  broken: "The store failed and accepts no blocks. Look into the gateway's log, and restart the gateway.",
  index_damaged: "The index of the store is damaged. Look into the gateway's log, and restart the gateway.",
};

const CHECK = "Every block is read, and its hash is verified. Damaged blocks are deleted at once, and fetched again when they are needed. " +
  "Intact blocks are left alone. The check ends if you leave this page.";
const COMPACT = "Segment files are rewritten without the deleted blocks. No block is deleted. It takes disk bandwidth, and runs to its end " +
  "even if you leave this page.";
const NOT_STORED = "The export ended early, probably because a block of this DAG is not stored locally. Pin or warm it first.";
const TOO_LONG = `This CAR is larger than ${bytes(EXPORT_BYTES_MAX)}, which is too much for the memory of a browser. This command writes it to a file:`;

const cidHref = (cid) => contentHref(`/ipfs/${cid}`);

function notBelow(text, least, example) {
  const value = parseBytes(text);
  if (!(value >= least)) throw new Error(`Enter a size, such as ${example}.`);
  return value;
}

// ---------------------------------------------------------------- Statistics

// Which blocks there are, and how much of all each kind is.
function statistics(figures) {
  const { all, pinned_segments: pinned, cached_segments: cached, pins, partial_pins } = figures;
  const saved = Math.max(0, all.block_bytes - all.stored_bytes);
  const hasSegments = pinned.segments + cached.segments > 0;
  const rows = table("Blocks by kind", KINDS, { key: ({ kind }) => kind });
  rows.show(Object.entries(NAMES).map(([kind, name]) => ({ kind, name, all, ...figures[kind] })));
  return [
    rows,
    facts([
      ["Complete pins", count(pins)],
      ["Partial pins", count(partial_pins)],
      ["Saved by compression", `${bytes(saved)} (${share(saved, all.block_bytes)})`],
      hasSegments && ["Segment files", `${count(pinned.segments)} of pinned blocks, ${count(cached.segments)} of cached ones`],
      hasSegments && ["Reclaimable by compaction", bytes(pinned.dead_bytes + cached.dead_bytes)],
    ]),
  ];
}

const NAMES = {
  all: "All", pinned: "Pinned", cached: "Cached", raw: "Uncompressed", frames: "Compressed as zstd frames", envelopes: "Leaves with compressed data",
};

const KINDS = [
  { title: "Blocks", cell: ({ name }) => name },
  { title: "Number", numeric: true, cell: ({ blocks }) => count(blocks) },
  { title: "Size", numeric: true, hide: "narrow", cell: ({ block_bytes }) => bytes(block_bytes) },
  { title: "On the disk", numeric: true, cell: ({ stored_bytes }) => bytes(stored_bytes) },
  {
    title: "Share of the disk", hide: "narrow",
    cell: ({ name, stored_bytes, all }) =>
      h("div", { class: "share" }, meter(stored_bytes, all.stored_bytes, `Share of the disk: ${name}`), h("span", {}, share(stored_bytes, all.stored_bytes))),
  },
];

function overview(context) {
  const { signal } = context;
  const tiles = { disk: tile("On the disk"), pinned: tile("Pinned"), cached: tile("Cached"), free: tile("Free disk space"), evicted: tile("Evicted") };
  const budgets = { ram: budgetMeter("RAM", "c1"), disk: budgetMeter("Cached blocks on the disk", "c3") };
  const trouble = h("div", { role: "status" });
  const place = h("div", { class: "store-figures" }, h("p", { class: "muted" }, "Counting the blocks…"));
  let told = null;

  function showLive({ store }) {
    tiles.disk.show(bytes(store.disk_used_bytes), plural(store.blocks, "block"));
    tiles.pinned.show(bytes(store.pinned_bytes), "never evicted");
    tiles.cached.show(bytes(store.cached_bytes), "may be evicted");
    tiles.free.show(bytes(store.disk_free_bytes), store.disk_size_bytes ? `of ${bytes(store.disk_size_bytes)}` : "");
    tiles.evicted.show(count(store.evicted_blocks), "blocks since the start");
    budgets.ram.show(store.ram_bytes, store.ram_budget_bytes, `${plural(store.ram_blocks, "block")}, ${share(store.ram_bytes, store.ram_budget_bytes)}`);
    budgets.disk.show(store.cached_bytes, store.disk_budget_bytes, `${share(store.cached_bytes, store.disk_budget_bytes)}; pinned blocks do not count`);
    const reason = store.degraded ? store.trouble ?? "unknown reason" : null;
    if (reason === told) return;
    told = reason;
    fill(trouble, reason === null ? null : h("p", { class: "notice error" }, TROUBLE[reason] ?? `The store accepts no blocks: ${reason}.`));
  }

  async function readFigures() {
    try {
      fill(place, statistics(await get("/api/v1/store/stats", {}, { signal })));
    } catch (error) {
      if (error.name !== "AbortError") fill(place, errorNotice(error));
    }
  }

  const unsubscribe = live.subscribe((stats) => stats && showLive(stats));
  signal.addEventListener("abort", unsubscribe);
  readFigures();
  return {
    refresh: readFigures,
    elements: [
      trouble,
      h("div", { class: "tiles" }, Object.values(tiles)),
      card("Budgets", h("div", { class: "grid" }, Object.values(budgets))),
      card("Blocks", place),
    ],
  };
}

// ---------------------------------------------------------------- Maintenance

function checkCard({ signal }, refresh) {
  const rate = input({ placeholder: "unlimited" });
  const work = task(signal);
  const faults = table("Faulty blocks", [
    { title: "Fault", cell: ({ fault }) => badge(capitalised(fault), "error") },
    { title: "Block", cell: ({ cid }) => identifier(cid, { href: cidHref(cid), ends: 12 }) },
  ], { limit: ROWS });

  async function start() {
    const perSecond = rate.value.trim() === "" ? undefined : notBelow(rate.value, 1, "20 MiB");
    if (!(await confirm("Check the store?", CHECK, "Check", "primary"))) return;
    await work.run("Checking…", (cancelled, report) => check(cancelled, report, perSecond));
    refresh();
  }

  async function check(cancelled, report, perSecond) {
    const found = [];
    faults.show([], "");
    const total = (await get("/api/v1/store/stats", {}, { signal: cancelled }).catch(() => null))?.all.stored_bytes;
    for await (const line of lines("POST", withQuery("/api/v1/store/check", { bytes_per_second: perSecond }), { signal: cancelled })) {
      if (line.error) throw new Error(`The check was stopped: ${line.error}`);
      if (line.finding && found.length < FAULTS_MAX) {
        found.push(line.finding);
        faults.show(found);
      }
      if (line.progress) report(progressText(line.progress), total > 0 ? Math.min(1, line.progress.bytes / total) : undefined);
      if (line.report) return reportOf(line.report);
    }
    throw new ApiError(0, "The check ended without a report. The gateway may have stopped.");
  }

  return card("Check", h("p", { class: "muted" }, "Verifies the hash of every block, and whether pins have all their blocks."),
    form(start, field("Read rate per second", rate, "Such as 20 MiB, to leave the disk to requests."), submit("Check…", "")), work, faults);
}

const progressText = ({ blocks, bytes: size, damaged, unreadable }) =>
  `${plural(blocks, "block")}, ${bytes(size)}: ${count(damaged)} damaged, ${count(unreadable)} unreadable`;

function pinSentence({ name, missing, withheld, blocks }) {
  const of = `${plural(blocks, "block")}${name ? ` (“${name}”)` : ""}`;
  const lost = Math.max(0, missing - withheld);
  return [lost > 0 && `lacks ${count(lost)} of ${of}`, withheld > 0 && `${count(withheld)} of ${of} withheld by rules`].filter(Boolean).join("; ");
}

// The report of a check, in the words of "causeway store check".
function reportOf(report) {
  const { clean, pins_lacking_blocks: lacking, unclaimed_blocks: unclaimed } = report;
  const line = (pin) => h("li", {}, identifier(pin.root, { href: cidHref(pin.root) }), " ", pinSentence(pin));
  const further = lacking.length - ROWS;
  return [
    h("p", { class: `notice ${clean ? "ok" : "error"}` }, clean ? "No fault was found. " : "There are faults. ", progressText(report), "."),
    lacking.length > 0 && [h("h3", {}, "Pins without all their blocks"), h("ul", {}, lacking.slice(0, ROWS).map(line))],
    further > 0 && h("p", {}, `and ${plural(further, "further pin")}.`),
    unclaimed > 0 && h("p", {}, `${plural(unclaimed, "block is", "blocks are")} kept without a known pin. When the list of pins is as expected, `,
      h("code", {}, "causeway store repair --release-unclaimed"), " unpins them."),
  ];
}

function reclaimCard(context, refresh) {
  return card("Reclaim space",
    h("p", { class: "muted" },
      "A garbage collection deletes cached blocks before their space is needed. A compaction returns the space of deleted blocks to the disk."),
    collection(context, refresh), h("h3", {}, "Compaction"), compaction(context, refresh));
}

function collection({ signal }, refresh) {
  const keep = input({ placeholder: "0" });
  const result = h("div", { class: "result", role: "status" });
  const gc = (body) => call("POST", "/api/v1/store/gc", { json: body, signal });

  async function collect() {
    const cached_bytes_max = keep.value.trim() === "" ? 0 : notBelow(keep.value, 0, "10 GiB");
    fill(result);
    const plan = await gc({ cached_bytes_max, dry_run: true });
    if (plan.bytes === 0) {
      fill(result, h("p", { class: "notice" }, `Nothing to delete: ${bytes(plan.cached_bytes)} are cached.`));
      return;
    }
    const what = plan.blocks > 0 ? `${plural(plan.blocks, "cached block")} (${bytes(plan.bytes)})` : bytes(plan.bytes);
    const sentences = [
      `${what} will be deleted from the disk, the oldest first; ${bytes(plan.cached_bytes)} stay cached.`,
      `Pinned blocks (${bytes(plan.pinned_bytes)}) stay. Deleted blocks are fetched again when they are requested.`,
    ];
    if (!(await confirm("Delete cached blocks?", sentences.join(" "), "Delete"))) return;
    const done = await gc({ cached_bytes_max });
    const deleted = done.blocks > 0 ? `${plural(done.blocks, "block was", "blocks were")} deleted (${bytes(done.bytes)}).` : `Deleted: ${bytes(done.bytes)}.`;
    fill(result, h("p", { class: "notice ok" }, deleted, ` ${bytes(done.cached_bytes)} are cached now. A compaction reclaims the space.`));
    refresh();
  }

  return [form(collect, field("Cached blocks to keep", keep, "Such as 10 GiB; 0 deletes all cached blocks."), submit("Collect garbage…", "")), result];
}

function compaction({ signal }, refresh) {
  const work = task(signal);
  const compact = async () => {
    if (!(await confirm("Compact the store?", COMPACT, "Compact", "primary"))) return;
    await work.run("Compacting…", async (cancelled) => {
      const { bytes_before, bytes_after } = await call("POST", "/api/v1/store/compact", { signal: cancelled });
      return h("p", { class: "notice ok" }, `${bytes(bytes_before)} before, ${bytes(bytes_after)} now.`);
    }, { stop: "Stop waiting", stopped: "The compaction goes on in the gateway." });
    refresh();
  };
  return [button("Compact…", compact), work];
}

// ---------------------------------------------------------------- CAR files

function exportCard({ signal, parameters }) {
  const cid = input({ value: parameters.get("export") ?? "", placeholder: "bafy…", required: true });
  const work = task(signal);

  async function start() {
    const root = cidOf(cid.value);
    if (root === "") throw new Error("Enter the CID of a root.");
    await work.run("Exporting…", (cancelled, report) => exportCar(root, cancelled, report));
  }

  async function exportCar(root, cancelled, report) {
    const response = await send("GET", `/api/v1/store/export/${encodeURIComponent(root)}`, { signal: cancelled });
    const parts = [];
    let size = 0;
    try {
      for await (const part of chunks(response.body)) {
        size += part.length;
        if (size > EXPORT_BYTES_MAX) return tooLong(root);
        parts.push(part);
        report(`${bytes(size)} of at most ${bytes(EXPORT_BYTES_MAX)}`);
      }
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error(NOT_STORED);
    }
    saveAs(`${root}.car`, new Blob(parts, { type: CAR }));
    return h("p", { class: "notice ok" }, `The CAR has ${bytes(size)}; the browser saves it as ${root}.car.`);
  }

  return card("Export a CAR", h("p", { class: "muted" }, `Saves a DAG whose blocks are all stored locally, up to ${bytes(EXPORT_BYTES_MAX)}.`),
    form(start, field("Root CID", cid), submit("Export", "")), work);
}

function tooLong(root) {
  const command = `causeway store export ${root} ${root}.car`;
  return h("div", { class: "notice warning" }, h("p", {}, TOO_LONG), h("p", {}, h("code", {}, command), copyButton(command)));
}

function importCard({ signal }, refresh) {
  const file = h("input", { type: "file", accept: `.car,${CAR}`, required: true });
  const name = input({ maxlength: 255 });
  const work = task(signal);

  async function start() {
    const [car] = file.files;
    if (!car) throw new Error("Choose a CAR file.");
    await work.run("Sending…", async (cancelled, report) => {
      const words = (sent) => (sent < car.size ? `${bytes(sent)} of ${bytes(car.size)} are sent` : "The blocks are being stored…");
      const onProgress = (sent) => report(words(sent), Math.min(1, sent / Math.max(1, car.size)));
      const path = withQuery("/api/v1/store/import", { name: name.value.trim() });
      return imported(await sendFile("POST", path, car, { type: CAR, signal: cancelled, onProgress }));
    }, { stopped: "Cancelled. If all of the file was sent already, the gateway imports it nevertheless." });
    refresh();
  }

  return card("Import a CAR", h("p", { class: "muted" }, "Stores the blocks of a CAR file, and pins its roots for your token."),
    form(start, field("CAR file", file), field("Name of the pins", name, "Optional."), submit("Import", "")), work);
}

function imported(view) {
  const pins = table("Imported pins", [
    { title: "Root", cell: ({ root }) => identifier(root, { href: cidHref(root) }) },
    { title: "Blocks", numeric: true, cell: ({ blocks }) => count(blocks) },
    { title: "Size", numeric: true, cell: (pin) => bytes(pin.bytes) },
  ], { key: ({ root }) => root, limit: ROWS, empty: "The archive names no roots." });
  pins.show(view.pins);
  const blocks = `${plural(view.blocks, "block is", "blocks are")} imported (${bytes(view.bytes)})`;
  return [h("p", { class: "notice ok" }, `${blocks}, and ${plural(view.pins.length, "root is", "roots are")} pinned.`), pins];
}

// ---------------------------------------------------------------- Which blocks are stored

function haveCard({ signal }) {
  const list = h("textarea", { spellcheck: "false", autocapitalize: "off" });
  const result = h("div", { class: "result", role: "status" });
  const rows = table("Blocks", [
    { title: "Block", cell: ({ cid }) => identifier(cid, { href: cidHref(cid), ends: 12 }) },
    { title: "Stored", cell: ({ isStored }) => (isStored ? badge("Stored", "ok") : badge("Not stored", "warning")) },
  ], { limit: ROWS });

  async function ask() {
    const cids = list.value.split(/[\s,]+/).filter((text) => text !== "").map(cidOf);
    if (cids.length === 0) throw new Error("Enter one CID or several.");
    if (cids.length > CIDS_MAX) throw new Error(`Enter at most ${count(CIDS_MAX)} CIDs at a time; these are ${count(cids.length)}.`);
    const { held } = await call("POST", "/api/v1/store/have", { json: { cids }, signal });
    const stored = held.filter(Boolean).length;
    fill(result, h("p", {}, `${count(stored)} of ${plural(cids.length, "block")} ${stored === 1 ? "is" : "are"} stored locally.`));
    // What is missing comes first.
    rows.show(cids.map((cid, index) => ({ cid, isStored: held[index] })).sort((a, b) => Number(a.isStored) - Number(b.isStored)));
  }

  const about = `Separated by spaces, commas or lines; at most ${count(CIDS_MAX)}. Only these blocks are looked up, not what is below them.`;
  return card("Which blocks are stored", form(ask, field("CIDs", list, about), submit("Look up", "")), result, rows);
}

// ---------------------------------------------------------------- The page

function show(main, context) {
  const { may } = context;
  const none = () => ({ refresh() {}, elements: [emptyState("This token may not read the statistics.", "They need the scope “read”.")] });
  const figures = may("read") ? overview(context) : none();
  const { refresh } = figures;
  append(main,
    pageHead("Store", "The blocks in RAM and on the disk.", may("read") ? button("Refresh", refresh) : null),
    figures.elements);
  const cards = [
    may("operate") && checkCard(context, refresh),
    may("operate") && reclaimCard(context, refresh),
    may("operate") && importCard(context, refresh),
    may("read") && exportCard(context),
  ];
  append(main, h("div", { class: "grid" }, cards), may("operate") && haveCard(context));
}

export default { id: "store", title: "Store", scopes: ["read", "operate"], show };
