// Resumable uploads: tus 1.0 (https://tus.io/protocols/resumable-upload) at /api/v1/uploads.
//
// An upload is created, receives its bytes in chunks, and is imported with the last one. After an error the gateway is
// asked where to go on. Nothing here depends on a page: `send` is that of api.js, or of a test.

const UPLOADS = "/api/v1/uploads";
const VERSION = { "tus-resumable": "1.0.0" };
const CHUNK_FIRST = 256 * 1024;
const CHUNK_MIN = 64 * 1024;
const CHUNK_MAX = 32 * 1024 * 1024;
// A chunk should take about so long, so that the progress moves and an interruption costs little.
const CHUNK_MS = 1000;
// Errors after which the same request may succeed: no answer, a running request, an import, a restart.
const TRANSIENT = new Set([0, 408, 409, 423, 425, 429, 502, 503, 504]);
const FAILURES_MAX = 12;
const IMPORT_POLL_MS = 2000;

// An upload that cannot go on by itself.
export class UploadError extends Error {
  // `canResume`: another attempt may succeed, without sending again what was received.
  constructor(message, canResume) {
    super(message);
    this.canResume = canResume;
  }
}

// The header Upload-Metadata: keys, and values in base64. Those that are undefined are left out.
export function metadata(values) {
  const base64 = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)));
  return Object.entries(values).filter(([, value]) => value !== undefined).map(([key, value]) => `${key} ${base64(value)}`).join(",");
}

// The wait before an attempt: doubled after each failure, at most half a minute.
export const backOff = (failures, retryAfterSeconds) => Math.max(1000 * (retryAfterSeconds ?? 0), Math.min(30_000, 500 * 2 ** failures));

// The size of the next chunk after one that took so long.
export function nextChunk(size, milliseconds) {
  const wanted = (size * CHUNK_MS) / Math.max(1, milliseconds);
  return Math.round(Math.min(CHUNK_MAX, Math.max(CHUNK_MIN, Math.min(2 * size, Math.max(size / 4, wanted)))));
}

// Waits; fails at once when the signal fires.
export function wait(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { once: true });
  });
}

// Whether the content can still be read: the file may have been changed or removed since it was chosen. Browsers report
// that as a network error.
async function assertReadable(chunk) {
  try {
    const reader = chunk.stream().getReader();
    while (!(await reader.read()).done);
  } catch {
    throw new UploadError("The content can no longer be read: a file was changed, moved or removed since it was chosen. Choose it again.", false);
  }
}

const isAbort = (error, signal) => signal.aborted || error.name === "AbortError";

// Uploads a Blob, and returns the state of the completed upload (PartialView).
//
// `path` is that of an upload that exists already, to be resumed; without it one is created with `query` and `metadata`.
// `onChange` is called with {path}, {offset}, {state} (sending, importing, retrying) and with {retryMs, error} before a
// further attempt. When `signal` fires, what the gateway received stays there.
//
// Fails with UploadError, or with the reason of `signal`.
export async function upload({ blob, path = null, query = "", metadata: about = "" }, tools) {
  const { send, signal, onChange = () => {}, pause = wait, now = () => performance.now() } = tools;
  const request = (method, options) => send(method, path, { ...options, headers: { ...VERSION, ...options?.headers }, signal });
  const look = async () => (await request("GET")).json();
  let offset = path === null ? 0 : null;
  let size = CHUNK_FIRST;
  let failures = 0;

  async function create() {
    const headers = { ...VERSION, "upload-length": String(blob.size), ...(about ? { "upload-metadata": about } : {}) };
    const response = await send("POST", query ? `${UPLOADS}?${query}` : UPLOADS, { headers, signal });
    path = new URL(response.headers.get("location"), "http://localhost").pathname;
    onChange({ path });
    return response.json();
  }

  // Where to go on; null if the upload is done, whose state is then `ended`.
  let ended = null;
  async function ask() {
    let said;
    try {
      // HEAD also ends a request whose connection was lost, so that the offset is final.
      said = await request("HEAD");
    } catch (error) {
      if (error.status === 404) throw new UploadError("The gateway no longer has this upload: it has expired or was removed. Start it anew.", false);
      if (error.status === undefined || [0, 401, 403, 429].includes(error.status)) throw error;
    }
    const found = said && Number(said.headers.get("upload-offset"));
    if (said && found < blob.size) {
      if (Number(said.headers.get("upload-length")) !== blob.size) throw new UploadError("The upload on the gateway has another length: start it anew.", false);
      return found;
    }
    for (;;) {
      const state = await look();
      if (state.state === "done") {
        ended = state;
        return null;
      }
      // The import failed for good, or may be tried again with an empty chunk.
      if (state.state === "failed" && state.failure.status < 500) throw new UploadError(state.failure.error, false);
      if (state.state !== "complete" || said) return state.offset;
      onChange({ state: "importing" });
      await pause(IMPORT_POLL_MS, signal);
    }
  }

  async function step() {
    if (path === null) {
      const created = await create();
      if (created.state === "done") {
        ended = created;
        return;
      }
    }
    if (offset === null) {
      offset = await ask();
      if (offset === null) return;
      onChange({ offset });
    }
    const chunk = blob.slice(offset, offset + size);
    const isLast = offset + chunk.size === blob.size;
    onChange({ state: isLast ? "importing" : "sending" });
    const started = now();
    const headers = { "content-type": "application/offset+octet-stream", "upload-offset": String(offset) };
    let response;
    try {
      response = await request("PATCH", { headers, body: chunk });
    } catch (error) {
      if (error.status === 0 && !isAbort(error, signal)) await assertReadable(chunk);
      throw error;
    }
    offset = Number(response.headers.get("upload-offset"));
    onChange({ offset });
    if (offset === blob.size) ended = await look();
    else if (!isLast) size = nextChunk(chunk.size, now() - started);
    failures = 0;
  }

  for (;;) {
    try {
      await step();
      if (ended !== null) return ended;
    } catch (error) {
      if (isAbort(error, signal)) throw signal.reason ?? error;
      if (error instanceof UploadError) throw error;
      failures += 1;
      if (!TRANSIENT.has(error.status)) throw new UploadError(error.message, error.status >= 500);
      if (failures > FAILURES_MAX) throw new UploadError(error.message, true);
      if (path !== null) offset = null;
      const retryMs = backOff(failures, error.retryAfter);
      onChange({ state: "retrying", retryMs, error });
      await pause(retryMs, signal);
    }
  }
}

// The token's own uploads that the gateway knows of.
export const list = async (send, signal) => (await (await send("GET", UPLOADS, { headers: VERSION, signal })).json()).uploads;

// Removes an upload, and what was received of it. Pinned content stays pinned.
export const remove = (send, path) => send("DELETE", path, { headers: VERSION });
