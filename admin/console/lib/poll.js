// Work that is repeated while a page is shown, such as reading a list again.

import { ApiError } from "./api.js";
import { h, setText } from "./dom.js";
import { errorPlace } from "./ui.js";

// After a slow run the next one waits so many times as long: the answer about thousands of peers is not asked for all the time.
const REST = 10;
const DIALOG_MS = 1000;

// Runs `work` now, and again `seconds` (a number or a function) after it ended, until `signal` fires. It pauses while the page is
// hidden, so that a forgotten tab costs the gateway nothing, and while a dialog is open, so that its button is still there for the
// focus to return to. Returns an element that says why the last run failed. Its `now()` runs the work, once more if it is running,
// and its promise resolves when that has ended, whatever the result; its `pause` is a button that stops and continues.
export function poll(work, seconds, signal) {
  const place = errorPlace();
  const pause = h("button", { type: "button" }, "Pause");
  let timer;
  let running = Promise.resolve();
  let next = null;
  let isPaused = false;

  async function run() {
    next = null;
    clearTimeout(timer);
    if (signal.aborted) return;
    const begun = performance.now();
    try {
      await work();
      place.show(null);
    } catch (error) {
      if (error.name !== "AbortError") place.show(error);
      // A defect of the page is found in the browser's console, too.
      if (error.name !== "AbortError" && !(error instanceof ApiError)) reportError(error);
    }
    const wait = 1000 * (typeof seconds === "function" ? seconds() : seconds);
    schedule(Math.max(wait, REST * (performance.now() - begun)));
  }

  function now() {
    if (next === null) {
      next = running.then(run);
      running = next;
    }
    return next;
  }

  function schedule(milliseconds) {
    clearTimeout(timer);
    if (!signal.aborted && !isPaused && !document.hidden) timer = setTimeout(tick, milliseconds);
  }

  function tick() {
    if (document.querySelector("dialog[open]") === null) now();
    else schedule(DIALOG_MS);
  }

  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    setText(pause, isPaused ? "Continue" : "Pause");
    if (isPaused) clearTimeout(timer);
    else now();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(timer);
    else schedule(0);
  }, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  now();
  return Object.assign(place, { now, pause });
}
