// One piece of content: how a request for it would be answered, and from where; and what can be done with it.

import { call, get, lines, withQuery } from "../lib/api.js";
import { append, fill, h, setText } from "../lib/dom.js";
import { chainOf, headlineOf, networkCard, pathBlocks, picture, summaryOf } from "../lib/explained.js";
import { bytes, count, duration, plural } from "../lib/format.js";
import { gatewayOf } from "../lib/listeners.js";
import { requestHref, requestOf } from "../lib/subject.js";
import { button, card, confirm, dialog, emptyState, errorNotice, field, form, input, pageHead, progress, submit, toast } from "../lib/ui.js";

// What is read from RAM or the disk is there sooner, in milliseconds: its progress would only flicker.
const WAITING_AFTER = 300;

export default {
  id: "content",
  title: "Content",
  scopes: ["operate"],
  show(main, context) {
    const { parameters, setParameters, signal } = context;
    // Without them, there is no link to the gateway.
    const gateway = gatewayOf(context).catch(() => ({ node: null, url: null }));
    const placeholder = "bafy…, /ipns/example.org/page, ipfs://… or example.org";
    const what = input({ type: "search", name: "path", value: parameters.get("path") ?? "", placeholder });
    const waiting = h("div", { class: "waiting", hidden: true });
    const spoken = h("p", { class: "hidden", role: "status" });
    const work = h("div", {});
    const result = h("div", {});
    let running = null;

    // Explains what is in the field; with `fetch`, missing blocks are fetched first.
    async function explain(fetch = false) {
      const text = what.value.trim();
      const request = requestOf(text);
      if (request === null) throw new Error("Enter a CID, a path, a URL or a domain.");
      running?.abort();
      const mine = new AbortController();
      running = mine;
      if (parameters.get("path") !== text) setParameters({ path: text }, { push: parameters.has("path") });
      const cancel = h("button", { type: "button", class: "small", onclick: () => mine.abort() }, "Cancel");
      const doing = fetch ? "Asking the network: for at most a minute." : "Reading what is stored.";
      fill(waiting, progress(fetch ? "Fetching" : "Explaining"), h("span", { class: "muted" }, doing), cancel);
      const showWaiting = setTimeout(() => {
        waiting.hidden = false;
      }, WAITING_AFTER);
      result.setAttribute("aria-busy", "true");
      try {
        const view = await get("/api/v1/explain", { ...request, fetch: fetch || undefined }, { signal: AbortSignal.any([signal, mine.signal]) });
        const shown = explained(view, request, await gateway);
        if (running !== mine || signal.aborted) return;
        fill(result, shown);
        const last = chainOf(view).at(-1);
        setText(spoken, `${headlineOf(last)[0]}. ${summaryOf(last)}`);
        // The button that was pressed is gone, or lost the focus while it was disabled.
        if (document.activeElement === document.body) focusOn(result.querySelector("h2"));
      } catch (error) {
        if (error.name !== "AbortError" && running === mine) fill(result, errorNotice(error));
      } finally {
        clearTimeout(showWaiting);
        if (running === mine) {
          waiting.hidden = true;
          result.removeAttribute("aria-busy");
        }
      }
    }

    function explained(view, request, { node, url }) {
      const again = (fetch) => explain(fetch).catch((error) => toast(error.message, "error"));
      const actions = actionsFor(view, request, { ...context, gateway: { node, url }, work, again });
      const text = h("pre", { tabindex: "0" }, JSON.stringify(view, null, 2));
      const json = h("details", { class: "card" }, h("summary", {}, "The whole explanation as JSON"), text);
      return [actions, picture(view), pathBlocks(view), networkCard(view), json];
    }

    append(main,
      pageHead("Content", "How a request would be answered: from RAM, from the disk or from the network, and why."),
      h("div", { class: "card" }, form(() => explain(), h("div", { class: "fields" }, field("CID, path, URL or domain", what), submit("Explain")))),
      spoken, waiting, work, result);
    if (parameters.has("path")) explain().catch((error) => fill(result, errorNotice(error)));
    else gateway.then(({ node }) => running === null && !signal.aborted && fill(result, nothingYet(node)));
  },
};

function focusOn(heading) {
  heading.tabIndex = -1;
  heading.focus({ preventScroll: true });
}

function nothingYet(node) {
  const link = node?.welcome ? h("a", { href: requestHref(`/ipfs/${node.welcome}/`) }, "the welcome site of this gateway") : null;
  return card("", emptyState("Enter what a client would request.", link ? ["For example ", link, "."] : "For example a CID of the Pins page."));
}

// ---------------------------------------------------------------- Actions

// What actions are about: the path without its query, and the CID at its end as far as it is known.
function subjectOf(view) {
  const last = chainOf(view).at(-1);
  const path = last.route?.path ?? (last.host === null ? last.path.split("?")[0] : null);
  const isContent = last.root !== null || last.names.length > 0;
  const isRoot = path !== null && path.split("/").filter((part) => part !== "").length <= 2;
  return { path: isContent ? path : null, cid: last.content?.cid ?? (isRoot ? last.root : null) };
}

function actionsFor(view, request, context) {
  const { may, gateway, again } = context;
  const { path, cid } = subjectOf(view);
  const url = request.url ?? (gateway.url ? `${gateway.url}${view.path}` : null);
  const isWeb = url !== null && /^https?:/i.test(url);
  return h("div", { class: "actions subject-actions", role: "group", "aria-label": "Actions" },
    isWeb ? h("a", { class: "button", href: url, target: "_blank", rel: "noopener noreferrer" }, "Open at the gateway") : null,
    gateway.node?.offline ? null : button("Fetch and explain", () => again(true)),
    cid && may("pin") ? button("Pin…", () => pin(cid, context)) : null,
    path ? button("Warm", () => warm(path, context)) : null,
    path ? button("Purge…", () => purge(path, context), { kind: "danger" }) : null,
    path && may("takedown") ? h("a", { class: "button danger", href: withQuery("#/denylists", { subject: path }) }, "Take down…") : null);
}

async function pin(cid, { again, signal }) {
  const name = input({ name: "name", maxlength: 255, autofocus: true });
  const isPinned = await dialog("Pin", (close) => form(async () => {
    await call("POST", "/api/v1/pins", { json: { cid, name: name.value.trim() || undefined }, signal });
    close(true);
  },
  h("p", {}, "Fetches all blocks below ", h("code", {}, cid), ", and keeps them until the pin is removed."),
  field("Name", name, "Optional: shown in the list of pins."),
  h("div", { class: "actions" }, h("button", { type: "button", onclick: () => close() }, "Cancel"), submit("Pin"))));
  if (!isPinned) return;
  toast("The pin is created. The Pins page shows its progress.");
  await again(false);
}

// ---------------------------------------------------------------- Purge

// What a purge deletes, or would delete.
function purgeParts({ ram_blocks: ram, disk_blocks: disk, disk_bytes: size, names, paths, listings, sites, encoded }) {
  const derived = paths + listings + sites + encoded;
  return [
    ram > 0 ? `${plural(ram, "block")} in RAM` : null,
    disk > 0 ? `${plural(disk, "cached block")} on the disk (${bytes(size)})` : null,
    derived > 0 ? `${plural(derived, "cached result")} about paths and pages` : null,
    names.length > 0 ? `the cached value of ${names.join(", ")}` : null,
  ].filter((part) => part);
}

async function purge(path, { again, signal }) {
  const wouldDelete = await call("POST", "/api/v1/purge", { json: { path, dry_run: true }, signal });
  const parts = purgeParts(wouldDelete);
  const { pinned_blocks: pinned, caches_notified: caches } = wouldDelete;
  if (parts.length === 0 && caches === 0) {
    toast(pinned > 0 ? "Nothing to purge: what is stored of it is pinned." : "Nothing to purge: nothing of it is cached.");
    return;
  }
  const text = [
    parts.length > 0 ? `Deletes ${parts.join(", ")}.` : null,
    caches > 0 ? `${plural(caches, "cache")} in front of the gateway ${caches === 1 ? "is" : "are"} told to do the same.` : null,
    pinned > 0 ? `${plural(pinned, "pinned block")} stay${pinned === 1 ? "s" : ""} on the disk.` : null,
    "The content is not withheld: the next request fetches it again. Pins and denylists do not change.",
  ];
  if (!(await confirm("Purge cached copies", text.filter((sentence) => sentence).join(" "), "Purge"))) return;
  const done = purgeParts(await call("POST", "/api/v1/purge", { json: { path }, signal }));
  toast(done.length > 0 ? `Deleted ${done.join(", ")}.` : "Purged.");
  await again(false);
}

// ---------------------------------------------------------------- Warm

const REASONS = {
  bytes_max: "the limit of bytes was reached",
  blocks: "it has more blocks than http.dag_blocks_max",
  links: "one level has too many links",
  failures: "too many blocks could not be fetched",
};

const warmText = ({ blocks, fetched_blocks: fetched, fetched_bytes: size, failed_blocks: failed, seconds }) =>
  `${plural(blocks, "block")}, ${count(fetched)} of them fetched (${bytes(size)}), ${count(failed)} failed, in ${duration(seconds)}`;

// Fetches everything below a path, and shows how far it is. It ends when the page is left.
async function warm(path, { work, again, signal }) {
  const controller = new AbortController();
  // The panel shows one at a time.
  work.stop?.();
  work.stop = () => controller.abort();
  const text = h("p", { class: "muted" }, "Starting…");
  const cancel = h("button", { type: "button", class: "small", onclick: () => controller.abort() }, "Cancel");
  const ended = h("div", { role: "status" });
  const bar = progress("Warming");
  const running = h("div", { class: "waiting" }, bar, text, cancel);
  const about = h("p", {}, "Fetches what is missing of ", h("code", {}, path), " into the cache. It is not pinned, so it may be evicted again.");
  fill(work, card("Warm", about, running, ended));
  let report = null;
  try {
    for await (const line of lines("POST", "/api/v1/warm", { json: { path }, signal: AbortSignal.any([signal, controller.signal]) })) {
      if (line.error) throw new Error(line.error);
      report = line.report ?? null;
      setText(text, warmText(line.progress ?? line.report));
    }
    running.hidden = true;
    append(ended, report === null ? errorNotice({ message: "The gateway ended the work without a report. Try again." }) : warmReport(report));
  } catch (error) {
    running.hidden = true;
    append(ended, controller.signal.aborted ? h("p", { class: "notice" }, "Cancelled. The blocks that were fetched stay in the cache.") : errorNotice(error));
  }
  if (!signal.aborted) await again(false);
}

function warmReport(report) {
  const { complete, stopped_by: reason, failures } = report;
  const tone = complete ? "ok" : "warning";
  const first = complete ? "All of it is stored here now: " : `It is not complete, because ${REASONS[reason] ?? "some blocks could not be fetched"}: `;
  const list = failures.map(({ cid, error }) => h("li", {}, h("code", {}, cid), `: ${error}`));
  return h("div", { class: `notice ${tone}` }, h("p", {}, `${first}${warmText(report)}.`), list.length > 0 ? h("ul", {}, list) : null);
}
