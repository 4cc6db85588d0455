// The statistics of every second, read once for all parts of the page, and only while a part uses them.

import { ApiError, events } from "./api.js";

const listeners = new Set();
let latest = null;
let stop = null;
let connected = false;

const RETRY_MS = 2000;
// Events come every second. A connection without any for so long is dead, as after a pause of the machine or of a tunnel.
const SILENT_MS = 10_000;

function tell() {
  for (const listener of listeners) {
    try {
      listener(latest, connected);
    } catch (error) {
      // A defect of one part does not look like a gateway that does not answer.
      reportError(error);
    }
  }
}

async function read(signal) {
  while (!signal.aborted) {
    const attempt = new AbortController();
    const giveUp = () => attempt.abort();
    let silence = setTimeout(giveUp, SILENT_MS);
    try {
      for await (const stats of events("/api/v1/events", { signal: AbortSignal.any([signal, attempt.signal]) })) {
        clearTimeout(silence);
        silence = setTimeout(giveUp, SILENT_MS);
        latest = stats;
        connected = true;
        tell();
      }
    } catch (error) {
      if (signal.aborted || (error instanceof ApiError && (error.status === 401 || error.status === 403))) return;
    } finally {
      clearTimeout(silence);
    }
    connected = false;
    tell();
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

// Calls `listener(stats, connected)` for every event until the returned function is called.
export function subscribe(listener) {
  listeners.add(listener);
  if (latest !== null) listener(latest, connected);
  if (stop === null) {
    const controller = new AbortController();
    stop = () => controller.abort();
    read(controller.signal);
  }
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0 && stop !== null) {
      stop();
      stop = null;
      connected = false;
    }
  };
}

// Forgets everything, for the next one who signs in.
export function reset() {
  stop?.();
  stop = null;
  latest = null;
  connected = false;
  listeners.clear();
}
