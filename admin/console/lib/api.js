// Requests to the admin API of the node that the page came from.
//
// The bearer token is in a variable of this module and nowhere else. A cookie would be sent to every port of the host,
// also to the public listener and to other programs; storage of the browser would outlive the page.

let token = null;
let onUnauthorised = () => {};

// An answer that says why the request was not carried out.
export class ApiError extends Error {
  constructor(status, message, retryAfter) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

export function setToken(value) {
  token = value;
}

// Calls `listener` when the gateway rejects the token: it was revoked, or has expired.
export function whenUnauthorised(listener) {
  onUnauthorised = listener;
}

// A path with query parameters; those that are undefined, null or empty are left out.
export function withQuery(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters ?? {})) {
    if (value !== undefined && value !== null && value !== "") query.set(name, String(value));
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

async function failure(response) {
  let message = `${response.status} ${response.statusText}`;
  try {
    const body = await response.json();
    if (typeof body.error === "string") message = body.error;
    else if (body.error?.details) message = body.error.details;
  } catch {
    // The status has to do.
  }
  return new ApiError(response.status, message, Number(response.headers.get("retry-after")) || null);
}

// A late answer to a former session says nothing about the token of this one.
function rejected(used) {
  if (used !== null && used === token) onUnauthorised();
}

// Sends a request with the token, and returns the response if its status is a success.
// `options` are those of fetch; `json` is a body that is sent as JSON.
export async function send(method, path, { json, headers, ...options } = {}) {
  const used = token;
  const sent = { ...headers, ...(used === null ? {} : { authorization: `Bearer ${used}` }) };
  if (json !== undefined) {
    sent["content-type"] = "application/json";
    options.body = JSON.stringify(json);
  }
  let response;
  try {
    response = await fetch(path, { method, headers: sent, credentials: "omit", cache: "no-store", redirect: "error", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The gateway does not answer. It may be restarting.");
  }
  if (response.status === 401) rejected(used);
  if (!response.ok) throw await failure(response);
  return response;
}

// The JSON answer of a request; null if it has no body.
export async function call(method, path, options) {
  const response = await send(method, path, options);
  const text = await response.text();
  return text === "" ? null : JSON.parse(text);
}

export const get = (path, parameters, options) => call("GET", withQuery(path, parameters), options);

// Sends a file, and returns the JSON answer. `onProgress(bytes)` is called as they are sent, which fetch does not tell.
export function sendFile(method, path, file, { type, signal, onProgress }) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const used = token;
    const isGone = () => reject(new ApiError(0, "The gateway does not answer. It may be restarting, or it rejected the file while it was sent."));
    const abort = () => request.abort();
    request.open(method, path);
    request.setRequestHeader("authorization", `Bearer ${used}`);
    request.setRequestHeader("content-type", type);
    request.upload.addEventListener("progress", ({ loaded }) => onProgress(loaded));
    request.addEventListener("error", isGone);
    request.addEventListener("abort", () => reject(new DOMException("The request was cancelled.", "AbortError")));
    request.addEventListener("load", async () => {
      const response = new Response(request.response, { status: request.status, statusText: request.statusText });
      if (request.status === 401) rejected(used);
      if (response.ok) response.json().then(resolve, reject);
      else reject(await failure(response));
    });
    request.addEventListener("loadend", () => signal.removeEventListener("abort", abort));
    signal.addEventListener("abort", abort);
    if (signal.aborted) abort();
    else request.send(file);
  });
}

// The pieces of a body, as they come.
export async function* chunks(stream) {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The answer of the gateway ended early. It may have stopped.");
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function* pieces(response, separator) {
  let rest = "";
  for await (const text of chunks(response.body.pipeThrough(new TextDecoderStream()))) {
    const parts = (rest + text).split(separator);
    rest = parts.pop();
    yield* parts;
  }
  if (rest !== "") yield rest;
}

// The JSON lines of a long-running operation, as they come.
export async function* lines(method, path, options) {
  for await (const line of pieces(await send(method, path, options), "\n")) {
    if (line.trim() !== "") yield JSON.parse(line);
  }
}

// Server-Sent Events, as parsed JSON. EventSource cannot send the token.
export async function* events(path, options) {
  const response = await send("GET", path, { headers: { accept: "text/event-stream" }, ...options });
  for await (const event of pieces(response, "\n\n")) {
    const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim());
    if (data.length > 0) yield JSON.parse(data.join("\n"));
  }
}
