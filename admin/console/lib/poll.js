// Figures that are read again while a page is shown.

// Runs `work` now, and again `seconds()` after it ended, until the signal fires. It pauses while the page is hidden, so that
// a forgotten tab costs the gateway nothing, and while a dialog is open, so that its button is still there for the focus to
// return to. Returns a function that runs it at once; if it is running, once more after that. `work` handles its own errors.
export function poll(signal, work, seconds) {
  let timer;
  let running = false;
  let again = false;
  const run = async () => {
    clearTimeout(timer);
    again = running;
    if (running || signal.aborted || document.hidden) return;
    running = true;
    try {
      await work();
    } finally {
      running = false;
    }
    if (again) run();
    else if (!signal.aborted) timer = setTimeout(tick, 1000 * seconds());
  };
  const tick = () => {
    if (document.querySelector("dialog[open]") === null) run();
    else timer = setTimeout(tick, 1000);
  };
  const resume = () => document.hidden || run();
  document.addEventListener("visibilitychange", resume, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  run();
  return run;
}
