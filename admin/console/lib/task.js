// Long work that was started from a page: its progress, a button that cancels it, and its result.

import { append, fill, h, setText } from "./dom.js";
import { progress } from "./ui.js";

// An element for one kind of work. Its `run(label, work)` awaits `work(signal, report)` and shows what this returns;
// `report(text, share)` shows how far it is. The work is cancelled by the button, and by leaving the page. Where the gateway may
// go on by itself, `stop` names the button and `stopped` says so.
export function task(pageSignal) {
  const doing = h("div", { class: "task", hidden: true });
  const result = h("div", { class: "result", role: "status" });

  async function run(label, work, { stop = "Cancel", stopped = "Cancelled." } = {}) {
    const controller = new AbortController();
    const signal = AbortSignal.any([pageSignal, controller.signal]);
    const bar = progress(label);
    const text = h("span", { class: "muted" }, label);
    const cancel = h("button", { type: "button", class: "small", onclick: () => controller.abort() }, stop);
    fill(result);
    fill(doing, bar, h("div", { class: "pager" }, text, cancel));
    doing.hidden = false;
    const report = (words, share) => {
      setText(text, words);
      if (share === undefined) return;
      bar.max = 1;
      bar.value = share;
    };
    try {
      append(result, await work(signal, report));
    } catch (error) {
      if (!controller.signal.aborted) throw error;
      append(result, h("p", { class: "notice" }, stopped));
    } finally {
      doing.hidden = true;
      fill(doing);
    }
  }

  return Object.assign(h("div", {}, doing, result), { run });
}

// Saves bytes as a file by the browser.
export function saveAs(name, blob) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  // The browser reads the bytes later.
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
