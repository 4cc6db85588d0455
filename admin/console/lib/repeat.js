// Work that is repeated while a page is open: it stops when the page is left, and rests while the page is hidden.

import { fill, h } from "./dom.js";

// After a slow run the next one waits so many times as long: the answer about thousands of peers is not asked for all the time.
const REST = 10;

// Runs `work` now, and then every so many seconds until `signal` fires. Returns an element that says why the last run failed.
// Its `now()` runs the work at once, and its `pause` is a button that stops and continues.
export function repeat(seconds, work, signal) {
  const element = h("div", { "aria-live": "polite" });
  const pause = h("button", { type: "button" }, "Pause");
  let timer;
  let running = false;
  let again = false;
  let paused = false;
  let said = null;

  function say(error) {
    const message = error?.message ?? null;
    if (message === said) return;
    said = message;
    fill(element, message === null ? null : h("p", { class: "notice error" }, message));
  }

  async function now() {
    clearTimeout(timer);
    if (signal.aborted) return;
    again = running;
    if (running) return;
    running = true;
    const begun = performance.now();
    try {
      await work();
      say(null);
    } catch (error) {
      if (error.name !== "AbortError") say(error);
    }
    running = false;
    if (again) now();
    else if (!signal.aborted && !paused && !document.hidden) timer = setTimeout(now, Math.max(1000 * seconds, REST * (performance.now() - begun)));
  }

  pause.addEventListener("click", () => {
    paused = !paused;
    fill(pause, paused ? "Continue" : "Pause");
    if (paused) clearTimeout(timer);
    else now();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(timer);
    else if (!paused) now();
  }, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  now();
  return Object.assign(element, { now, pause });
}
