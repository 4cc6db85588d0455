// Uploads: files, folders and CAR files, which go on where they stopped.

import { send } from "../lib/api.js";
import { append, fill, h, setText } from "../lib/dom.js";
import { chosen, dropped, withoutHidden } from "../lib/files.js";
import { byteRate, bytes, count, plural, sentence, share, span, time, until } from "../lib/format.js";
import { gatewayOf } from "../lib/listeners.js";
import { poll } from "../lib/poll.js";
import { contentHref, pathInUrl } from "../lib/subject.js";
import * as tus from "../lib/tus.js";
import {
  badge, button, card, checkbox, confirm, dialog, emptyState, errorNotice, field, identifier, input, pageHead, select, table, toast,
} from "../lib/ui.js";
import { Upload, UploadQueue } from "../lib/upload-queue.js";

const POLL_SECONDS = 10;
// What is shown at once. More files belong into a folder, which is one upload.
const QUEUE_MAX = 200;
const ROOTS_SHOWN = 16;

const CIDS = [
  ["", "CIDv0, as ipfs add (profile unixfs-v0-2015)"],
  ["v1", "CIDv1 with raw leaves, as ipfs add --cid-version=1"],
  ["unixfs-v1-2025", "CIDv1 of the profile unixfs-v1-2025"],
];
const RECORD_STATES = { open: ["Unfinished", "warning"], complete: ["Importing", "info"], done: ["Done", "ok"], failed: ["Failed", "error"] };

// The queue outlives the page, so that uploads go on when it is shown again. It belongs to the token that filled it.
let queue = null;
let owner = null;

function queueOf(token) {
  if (queue === null || owner !== token.id) {
    queue = new UploadQueue(send);
    owner = token.id;
  }
  return queue;
}

// ---------------------------------------------------------------- Options

function optionsOf({ parameters, setParameters }) {
  const flag = (name, label, otherwise) => {
    const set = (event) => setParameters({ [name]: event.target.checked === otherwise ? "" : event.target.checked });
    return checkbox(label, { name, checked: (parameters.get(name) ?? String(otherwise)) === "true", onchange: set });
  };
  const cids = select(CIDS, parameters.get("cids") ?? "", { onchange: (event) => setParameters({ cids: event.target.value }) });
  const pinName = input({ maxlength: 255 });
  const flags = {
    car: flag("car", "Import the blocks of .car files, and pin their roots", true),
    wrap: flag("wrap", "Wrap each upload in a folder, so that its name is in the path", false),
    hidden: flag("hidden", "With hidden files of folders", false),
    mtime: flag("mtime", "Keep the modification times of a folder's files", false),
  };
  const element = h("details", {}, h("summary", {}, "Options"),
    h("div", { class: "fields options" }, field("CIDs", cids), field("Name of the pins", pinName, "Empty: that of the file or folder.")),
    h("div", { class: "checks" }, Object.values(flags)));
  // The options at this moment.
  const read = () => ({
    ...Object.fromEntries(Object.entries(flags).map(([name, label]) => [name, label.querySelector("input").checked])),
    cids: cids.value,
    pinName: pinName.value.trim(),
  });
  return { element, read };
}

// The parameters of an upload (services/src/uploads/query.rs).
function queryOf(content, options, asCar) {
  const query = new URLSearchParams();
  if (options.pinName) query.set("pin-name", options.pinName);
  if (asCar) return query.toString();
  if (options.wrap) query.set("wrap", "true");
  if (options.cids === "v1") query.set("cid-version", "1");
  else if (options.cids) query.set("profile", options.cids);
  if (options.mtime && content.entries) query.set("preserve-mtime", "true");
  return query.toString();
}

// ---------------------------------------------------------------- Results

function rootOf({ name, cid, path, bytes: size }, origin) {
  return h("li", {},
    origin ? h("a", { href: origin + pathInUrl(path), target: "_blank", rel: "noopener noreferrer" }, name ?? "Open at the gateway") : name,
    " ", identifier(cid, { href: contentHref(path) }), " ", h("span", { class: "muted" }, bytes(size)));
}

function rootsOf(result, origin) {
  const { roots } = result;
  const more = roots.length > ROOTS_SHOWN ? h("li", { class: "muted" }, `and ${count(roots.length - ROOTS_SHOWN)} more`) : null;
  return h("ul", { class: "unmarked" }, roots.slice(0, ROOTS_SHOWN).map((root) => rootOf(root, origin)), more);
}

// ---------------------------------------------------------------- One upload

function progressText(upload) {
  const { state, offset, length, rate, retryMs, error } = upload;
  const sent = `${bytes(offset)} of ${bytes(length)} (${share(offset, length)})`;
  if (state === "waiting") return offset > 0 ? `Waits for its turn, ${sent}` : `Waits for its turn, ${bytes(length)}`;
  if (state === "sending") return rate > 0 ? `${sent}, ${byteRate(rate)}, ${span((length - offset) / rate)} left` : sent;
  if (state === "importing") return `${bytes(length)} are sent; the gateway imports and pins them`;
  if (state === "retrying") return `${sent}. ${sentence(error.message)} The next attempt is in ${Math.round(retryMs / 1000)} s.`;
  if (state === "paused") return `Paused, ${sent}`;
  return sent;
}

function failureText({ error, kind }) {
  const hint = kind === "car" && error.canResume === false ? " To keep it as a plain file, turn off the import of .car files in the options." : "";
  return sentence(error.message) + hint;
}

const KINDS = { file: () => null, car: () => "CAR file", folder: ({ files }) => `Folder, ${plural(files, "file")}` };
const STATES = {
  waiting: ["Waiting", "quiet"], sending: ["Sending", "info"], importing: ["Importing", "info"], retrying: ["Trying again", "warning"],
  paused: ["Paused", "warning"], failed: ["Failed", "error"], done: ["Done", "ok"],
};

// What a screen reader says about a new state; figures and chunks are not said.
function milestoneOf(former, { state, name, error }) {
  switch (state) {
    case "sending": return former === "retrying" ? `${name} goes on.` : `The upload of ${name} begins.`;
    case "importing": return `${name} is sent and is imported now.`;
    case "retrying": return `The upload of ${name} was interrupted and is tried again.`;
    case "paused": return `${name} is paused.`;
    case "failed": return `The upload of ${name} failed: ${error.message}`;
    case "done": return `${name} is uploaded.`;
    default: return null;
  }
}

// The row of an upload. Figures change in place; the rest only with the state, so that the focus stays.
function uploadRow(upload, { origin, announce, cancel, onEnd }) {
  const text = h("p", { class: "sub figures" });
  const bar = h("progress", { max: 1, "aria-label": `Progress of ${upload.name}` });
  const state = h("span", {});
  const more = h("div", {});
  const actions = h("div", { class: "actions" });
  const kind = KINDS[upload.kind](upload);
  const name = [h("b", { class: "break" }, upload.name), kind ? h("span", { class: "muted" }, kind) : null];
  const element = h("li", { class: "upload" }, h("div", { class: "upload-head" }, name, state, h("span", { class: "spacer" }), actions), bar, text, more);
  let shown = null;
  let isHalf = upload.offset > upload.length / 2;

  const act = (word, action) => button(word, action, { kind: "small", label: `${word} ${upload.name}` });
  function actionsOf() {
    const pause = act("Pause", () => queue.pause(upload));
    const resume = (word) => act(word, () => queue.resume(upload));
    const stop = act("Cancel", () => cancel(upload));
    const dismiss = act("Dismiss", () => queue.forget(upload));
    switch (upload.state) {
      case "waiting": case "sending": case "retrying": return [pause, stop];
      case "paused": return [resume("Resume"), stop];
      // The gateway carries an import through.
      case "importing": return [];
      case "failed":
        if (upload.error.canResume === false) return [act("Dismiss", () => queue.cancel(upload))];
        return [resume(upload.path === null ? "Try again" : "Resume"), stop];
      default: return [dismiss];
    }
  }

  function showState() {
    const hadFocus = actions.contains(document.activeElement);
    fill(actions, actionsOf());
    if (hadFocus) actions.querySelector("button")?.focus();
    fill(state, badge(...STATES[upload.state]));
    bar.hidden = upload.state === "done" || upload.state === "failed";
    text.hidden = bar.hidden;
    const failed = upload.state === "failed" ? errorNotice({ message: failureText(upload) }) : null;
    fill(more, failed, upload.state === "done" ? rootsOf(upload.result, origin()) : null);
    // What the page shows when it is opened is no news.
    if (shown !== null) {
      const milestone = milestoneOf(shown, upload);
      if (milestone) announce(milestone);
      if (upload.state === "done" || upload.state === "failed") onEnd();
    }
    shown = upload.state;
  }

  function update() {
    if (upload.state !== shown) showState();
    setText(text, progressText(upload));
    if (upload.state === "importing") bar.removeAttribute("value");
    else bar.value = upload.length > 0 ? upload.offset / upload.length : 0;
    if (!isHalf && upload.offset > upload.length / 2) {
      isHalf = true;
      if (upload.state === "sending") announce(`Half of ${upload.name} is sent.`);
    }
  }

  upload.onChange = update;
  update();
  return element;
}

// ---------------------------------------------------------------- What the gateway has

// Offers to go on with an upload that an earlier page began: "resume", "anew", or undefined.
function askToResume(record) {
  return dialog("Resume the upload?", (close) => [
    h("p", {}, `The gateway has ${bytes(record.offset)} of ${bytes(record.length)} of "${record.name}", begun ${time(record.created_at)}.`),
    h("p", {}, "Resume only if the content is the same: its name and its length are. The options are those that it was begun with."),
    h("div", { class: "actions" },
      h("button", { type: "button", onclick: () => close("anew") }, "Start anew"),
      h("button", { type: "button", class: "primary", autofocus: true, onclick: () => close("resume") }, `Resume at ${share(record.offset, record.length)}`)),
  ]);
}

const canGoOn = ({ state, failure }) => state === "open" || (state === "failed" && failure.status >= 500);

function recordTable(origin, remove) {
  const resultCell = ({ result, failure, state }) => {
    if (result) return rootsOf(result, origin());
    if (failure) return h("span", { class: "break" }, failure.error);
    return h("span", { class: "muted" }, state === "open" ? "Choose the same file or folder again to resume." : "–");
  };
  const receivedCell = ({ offset, length }) => (offset === length ? bytes(length) : `${bytes(offset)} of ${bytes(length)}`);
  const actionsCell = (record) => {
    const label = `Remove ${record.name ?? "the upload"}`;
    return record.state === "complete" ? "–" : button("Remove", () => remove(record), { kind: "small", label });
  };
  return table("Uploads that the gateway knows", [
    { title: "Name", cell: ({ name }) => h("span", { class: "break" }, name ?? "Without a name"), sort: ({ name }) => name ?? "" },
    { title: "State", cell: ({ state }) => badge(...(RECORD_STATES[state] ?? [state])), sort: ({ state }) => state },
    { title: "Received", cell: receivedCell, sort: ({ offset }) => offset, numeric: true },
    { title: "Result", cell: resultCell },
    { title: "Expires", cell: ({ expires_at: at }) => h("span", { class: "no-wrap", title: time(at) }, until(at)), hide: "narrow" },
    { title: "Actions", cell: actionsCell },
  ], { key: ({ id }) => id, empty: "The gateway has no other uploads of this token." });
}

// ---------------------------------------------------------------- The page

function show(main, context) {
  const uploads = queueOf(context.token);
  const options = optionsOf(context);
  const milestones = h("p", { class: "hidden", role: "status" });
  const list = h("ul", { class: "unmarked uploads" });
  const none = emptyState("No uploads are running.", "Drop files above, or choose them. Two uploads run at once; others wait.");
  const shown = new Map();
  const updates = poll(load, POLL_SECONDS, context.signal);
  let origin = null;
  let records = [];

  const announce = (text) => fill(milestones, text);
  const row = (upload) => uploadRow(upload, { origin: () => origin, announce, cancel, onEnd: () => updates.now() });
  function showQueue() {
    for (const upload of uploads.uploads) {
      if (shown.has(upload)) continue;
      shown.set(upload, row(upload));
      list.append(shown.get(upload));
    }
    for (const [upload, element] of shown) {
      if (uploads.uploads.includes(upload)) continue;
      element.remove();
      shown.delete(upload);
    }
    none.hidden = shown.size > 0;
    clear.hidden = !uploads.uploads.some(({ state }) => state === "done");
    showRecords();
  }

  async function cancel(upload) {
    const text = `What was sent of "${upload.name}" is removed from the gateway, and nothing of it is pinned.`;
    if (upload.path !== null && !(await confirm("Cancel the upload?", text, "Cancel the upload"))) return;
    await uploads.cancel(upload);
    context.focusHeading();
  }

  const clear = button("Dismiss all that are done", () => {
    for (const upload of uploads.uploads.filter(({ state }) => state === "done")) uploads.forget(upload);
  }, { kind: "small" });

  // Earlier uploads: those of other pages, and of this one before it was loaded again.
  const earlier = recordTable(() => origin, async (record) => {
    const isDone = record.state === "done";
    const text = isDone
      ? "The result of the upload is removed from this list. What it pinned stays pinned."
      : "What was received is removed from the gateway, and the upload cannot be resumed.";
    if (!(await confirm("Remove the upload?", text, "Remove", isDone ? "" : "danger"))) return;
    await tus.remove(send, record.path);
    context.focusHeading();
    updates.now();
  });
  const showRecords = () => {
    const own = new Set(uploads.uploads.map(({ path }) => path));
    earlier.show(records.filter(({ path }) => !own.has(path)).reverse());
  };
  async function load() {
    records = await tus.list(send, context.signal);
    showRecords();
  }

  async function addOne(content, chosenOptions) {
    const asCar = chosenOptions.car && !content.entries && content.name.toLowerCase().endsWith(".car");
    const visible = content.entries && !chosenOptions.hidden ? withoutHidden(content) : content;
    if (visible.entries?.length === 0) {
      throw new Error(`The folder ${content.name} has no files${chosenOptions.hidden ? "" : ", or only hidden ones: see the options"}.`);
    }
    const upload = new Upload(visible, { query: queryOf(visible, chosenOptions, asCar), asCar });
    const own = new Set(uploads.uploads.map(({ path }) => path));
    const isSame = ({ name, length, path }) => name === upload.name && length === upload.length && !own.has(path);
    const record = records.find((one) => canGoOn(one) && isSame(one));
    if (record) {
      const answer = await askToResume(record);
      if (answer === undefined) return;
      if (answer === "resume") Object.assign(upload, { path: record.path, offset: record.offset });
    }
    uploads.add(upload);
  }

  async function add(contents) {
    if (uploads.uploads.length + contents.length > QUEUE_MAX) {
      throw new Error(`At most ${QUEUE_MAX} uploads are listed at once. Put the files into a folder and choose that, which is one upload.`);
    }
    await updates.now();
    const chosenOptions = options.read();
    for (const content of contents) {
      context.signal.throwIfAborted();
      await addOne(content, chosenOptions);
    }
  }

  const { element: drop, stop } = dropZone(context, add);
  append(main,
    pageHead("Uploads", "Files and folders, which the gateway pins for this token. An upload that breaks off goes on where it stopped."),
    updates,
    card(null, drop, options.element),
    card("Queue",
      h("p", { class: "muted" }, "Uploads run while this page is shown, and pause while another one is."),
      list, none, h("div", { class: "actions" }, clear), milestones),
    card("Earlier uploads", earlier));

  window.addEventListener("beforeunload", (event) => {
    if (uploads.isActive) event.preventDefault();
  }, { signal: context.signal });

  uploads.onChange = showQueue;
  showQueue();
  uploads.goOn();
  gatewayOf(context).then(({ url }) => {
    if (url === null) return;
    origin = url;
    // Results that are shown already get their links.
    shown.clear();
    fill(list);
    showQueue();
  }).catch(() => {
    // Results are without links to the gateway.
  });

  return () => {
    stop();
    uploads.onChange = () => {};
    for (const upload of uploads.uploads) upload.onChange = () => {};
    uploads.interrupt();
  };
}

// ---------------------------------------------------------------- Dropping and choosing

// Where files are dropped and chosen. `add` gets the contents (see files.js).
function dropZone(context, add) {
  let reading = null;
  const status = h("p", { class: "sub", role: "status" });
  const stop = () => reading?.abort();
  const cancel = h("button", { type: "button", class: "small", hidden: true, onclick: stop }, "Stop reading");

  const chooser = (attributes) => {
    const element = h("input", { type: "file", class: "hidden", tabindex: "-1", "aria-hidden": "true", multiple: true, ...attributes });
    element.addEventListener("change", () => {
      const contents = chosen([...element.files]);
      // The same file can be chosen again.
      element.value = "";
      take(async () => contents);
    });
    return element;
  };
  const [files, folder] = [chooser({ name: "files" }), chooser({ name: "folder", webkitdirectory: true })];

  async function take(read) {
    try {
      await add(await read());
    } catch (error) {
      if (error.name !== "AbortError") toast(error.message, "error");
    }
  }

  async function readDrop(transfer) {
    stop();
    reading = new AbortController();
    let found = 0;
    const onFile = () => {
      found += 1;
      if (found % 100 === 0) setText(status, `Reads the folder: ${plural(found, "file")} so far.`);
    };
    cancel.hidden = false;
    try {
      return await dropped(transfer, { signal: reading.signal, onFile });
    } finally {
      cancel.hidden = true;
      setText(status, "");
    }
  }

  const element = h("div", { class: "drop" },
    h("p", {}, "Drop files or folders here, or choose them."),
    h("div", { class: "actions centred" },
      h("button", { type: "button", class: "primary", onclick: () => files.click() }, "Choose files"),
      h("button", { type: "button", onclick: () => folder.click() }, "Choose a folder")),
    files, folder, status, cancel);
  // A file that is dropped beside the frame would be opened in the place of the console.
  const on = (name, listener) => document.addEventListener(name, listener, { signal: context.signal });
  on("dragover", (event) => {
    event.preventDefault();
    element.classList.add("over");
  });
  on("dragleave", (event) => {
    if (event.relatedTarget === null) element.classList.remove("over");
  });
  on("drop", (event) => {
    event.preventDefault();
    element.classList.remove("over");
    const transfer = event.dataTransfer;
    if (transfer.types.includes("Files")) take(() => readDrop(transfer));
  });
  return { element, stop };
}

export default { id: "uploads", title: "Uploads", scopes: ["pin"], show };
