// The statistics of every second, read once for all parts of the page, and only while a part uses them.

import { ApiError, events } from "./api.js";

const listeners = new Set();
let latest = null;
let stop = null;
let connected = false;

const RETRY_MS = 2000;

function tell() {
  for (const listener of listeners) listener(latest, connected);
}

async function read(signal) {
  while (!signal.aborted) {
    try {
      for await (const stats of events("/api/v1/events", { signal })) {
        latest = stats;
        connected = true;
        tell();
      }
    } catch (error) {
      if (signal.aborted || (error instanceof ApiError && (error.status === 401 || error.status === 403))) return;
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
