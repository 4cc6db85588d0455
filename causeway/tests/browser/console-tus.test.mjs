// Resumable uploads of the console (admin/console/lib/tus.js) over connections that break.
//
//   node --test causeway/tests/browser/console-tus.test.mjs

import assert from "node:assert/strict";
import { test } from "node:test";
import { consoleModule } from "./support/console.mjs";

const { UploadError, backOff, metadata, nextChunk, upload, wait } = await consoleModule("tus.js");

class Status extends Error {
  constructor(status, message = `status ${status}`) {
    super(message);
    this.status = status;
  }
}

/**
 * A gateway with one upload. `faults` are functions that are asked at each request, in order, and removed once they return
 * something: "lose" loses the answer, "break" also the second half of the body, and a number is an error.
 */
class Gateway {
  constructor({ faults = [], imports = [{ state: "done" }], busyImports = 0 } = {}) {
    Object.assign(this, { faults, imports, busyImports, bytes: Buffer.alloc(0), length: null, ended: null, requests: [] });
    this.send = this.send.bind(this);
  }

  get record() {
    const offset = this.bytes.length;
    return { state: "open", offset, length: this.length, path: "/api/v1/uploads/1", ...(offset === this.length ? { state: "complete", ...this.ended } : {}) };
  }

  response(headers = {}) {
    const record = this.record;
    return { headers: new Headers({ "upload-offset": record.offset, "upload-length": record.length, ...headers }), json: async () => record };
  }

  async send(method, path, { headers, body, signal }) {
    signal?.throwIfAborted();
    assert.equal(headers["tus-resumable"], "1.0.0");
    this.requests.push(method);
    const fault = this.faults.length > 0 ? this.faults[0]({ method, path, headers }) : undefined;
    if (fault !== undefined) this.faults.shift();
    if (typeof fault === "number") throw new Status(fault);
    const answer = await this.answer(method, path, headers, fault === "break" ? body?.slice(0, body.size / 2) : body);
    if (fault !== undefined) throw new Status(0, "no answer");
    return answer;
  }

  async answer(method, path, headers, body) {
    if (method === "POST") {
      this.length = Number(headers["upload-length"]);
      this.metadata = headers["upload-metadata"];
      this.query = path.split("?")[1];
      return this.response({ location: "/api/v1/uploads/1" });
    }
    assert.equal(path, "/api/v1/uploads/1");
    if (this.length === null) throw new Status(404);
    if (method === "GET") {
      // An import ends after it was looked at a few times.
      if (this.busyImports > 0) this.busyImports -= 1;
      else if (this.bytes.length === this.length) this.ended ??= this.imports.shift();
      return this.response();
    }
    if (method === "HEAD") {
      if (this.ended?.failure) throw new Status(this.ended.failure.status);
      if (this.bytes.length === this.length && this.busyImports > 0) throw new Status(423);
      return this.response();
    }
    assert.deepEqual([method, headers["content-type"]], ["PATCH", "application/offset+octet-stream"]);
    if (Number(headers["upload-offset"]) !== this.bytes.length) throw new Status(409);
    this.bytes = Buffer.concat([this.bytes, Buffer.from(await body.arrayBuffer())]);
    if (this.bytes.length === this.length && this.busyImports === 0) {
      this.ended = this.imports.shift();
      if (this.ended.failure) throw new Status(this.ended.failure.status, this.ended.failure.error);
    }
    return this.response();
  }
}

const content = Buffer.from(Array.from({ length: 3_000_000 }, (_, index) => (index * 7919) % 251));
const blob = new Blob([content]);

function begin(gateway, { signal = new AbortController().signal, ...given } = {}) {
  const seen = [];
  const tools = { send: gateway.send, signal, onChange: (change) => seen.push(change), pause: async () => signal.throwIfAborted() };
  return { seen, done: upload({ blob, ...given }, tools) };
}

// The nth PATCH has the fault.
const patch = (number, fault) => {
  let left = number;
  return ({ method }) => (method === "PATCH" && --left === 0 ? fault : undefined);
};

test("an upload arrives whole, whatever breaks", async () => {
  const table = [
    ["nothing", []],
    ["the answer to the creation", [({ method }) => (method === "POST" ? "lose" : undefined)]],
    ["the first answer", [patch(1, "lose")]],
    ["the middle of a chunk", [patch(2, "break")]],
    ["several in a row", [patch(1, "break"), patch(1, "lose"), patch(1, 503), patch(1, "break")]],
    ["HEAD", [patch(2, "lose"), ({ method }) => (method === "HEAD" ? 0 : undefined), ({ method }) => (method === "HEAD" ? 429 : undefined)]],
    ["a request that still runs", [patch(2, 423)]],
    ["the last answer", [({ method, headers }) => (method === "PATCH" && Number(headers["upload-offset"]) > 1_500_000 ? "lose" : undefined)]],
  ];
  for (const [what, faults] of table) {
    const gateway = new Gateway({ faults });
    const { done, seen } = begin(gateway, { query: "wrap=true", metadata: metadata({ filename: "a" }) });
    assert.equal((await done).state, "done", what);
    assert.ok(gateway.bytes.equals(content), `${what}: the bytes are those of the content`);
    assert.deepEqual([gateway.query, gateway.metadata, faults.length], ["wrap=true", "filename YQ==", 0], what);
    assert.equal(seen.filter(({ state }) => state === "retrying").length > 0, what !== "nothing", what);
  }
});

test("an unfinished upload goes on from its offset", async () => {
  const gateway = new Gateway();
  Object.assign(gateway, { length: content.length, bytes: content.subarray(0, 1_000_000) });
  const { done, seen } = begin(gateway, { path: "/api/v1/uploads/1" });
  assert.equal((await done).state, "done");
  assert.ok(gateway.bytes.equals(content) && !gateway.requests.includes("POST"));
  assert.deepEqual(seen[0], { offset: 1_000_000 });
});

test("an import that outlasts its request is waited for", async () => {
  const gateway = new Gateway({ busyImports: 3 });
  const last = ({ method, headers }) => (method === "PATCH" && Number(headers["upload-offset"]) > 1_500_000 ? "lose" : undefined);
  gateway.faults.push(last);
  const { done, seen } = begin(gateway);
  assert.equal((await done).state, "done");
  assert.ok(seen.at(-1).state === "importing", JSON.stringify(seen.at(-1)));
});

test("errors say whether the upload can be resumed", async () => {
  const refused = { state: "failed", failure: { status: 400, error: "the archive is invalid" } };
  const full = { state: "failed", failure: { status: 507, error: "the disk is full" } };
  const table = [
    [{ imports: [refused] }, false, /archive is invalid/],
    [{ imports: [full] }, true, /disk is full/],
    [{ faults: [({ method }) => (method === "POST" ? 413 : undefined)] }, false, /413/],
    [{ faults: [patch(1, "lose"), ({ method }) => (method === "HEAD" ? 404 : undefined)] }, false, /Start it anew/],
    [{ faults: Array.from({ length: 99 }, () => patch(1, 503)) }, true, /503/],
  ];
  for (const [settings, canResume, message] of table) {
    const error = await begin(new Gateway(settings)).done.then(assert.fail, (failure) => failure);
    assert.ok(error instanceof UploadError && message.test(error.message), String(error));
    assert.equal(error.canResume, canResume, error.message);
  }
});

test("an import that failed for lack of space is tried again without sending the content again", async () => {
  const full = { state: "failed", failure: { status: 507, error: "the disk is full" } };
  const gateway = new Gateway({ imports: [full, { state: "done" }] });
  await assert.rejects(begin(gateway).done, UploadError);
  gateway.requests = [];
  assert.equal((await begin(gateway, { path: "/api/v1/uploads/1" }).done).state, "done");
  assert.deepEqual(gateway.requests, ["HEAD", "GET", "PATCH", "GET"]);
  assert.ok(gateway.bytes.equals(content));
});

test("a content of another length is not appended", async () => {
  const gateway = new Gateway();
  Object.assign(gateway, { length: content.length + 1, bytes: Buffer.alloc(10) });
  await assert.rejects(begin(gateway, { path: "/api/v1/uploads/1" }).done, /another length/);
  assert.equal(gateway.bytes.length, 10);
});

test("a content that can no longer be read ends the upload", async () => {
  const unreadable = { size: 100, slice: () => unreadable, stream: () => new ReadableStream({ start: (stream) => stream.error(new Error("gone")) }) };
  const gateway = new Gateway({ faults: [patch(1, 0)] });
  await assert.rejects(begin(gateway, { blob: unreadable }).done, (error) => error instanceof UploadError && !error.canResume && /Choose it again/.test(error.message));
});

test("an upload that is stopped sends nothing more", async () => {
  const controller = new AbortController();
  let patches = 0;
  const stop = ({ method }) => {
    patches += method === "PATCH" ? 1 : 0;
    if (patches < 2) return undefined;
    controller.abort();
    return "lose";
  };
  const gateway = new Gateway({ faults: [stop] });
  await assert.rejects(begin(gateway, { signal: controller.signal }).done, { name: "AbortError" });
  assert.deepEqual(gateway.requests, ["POST", "PATCH", "PATCH"]);
});

test("waiting ends with its signal", async () => {
  const controller = new AbortController();
  const waiting = wait(60_000, controller.signal);
  controller.abort();
  await assert.rejects(waiting, { name: "AbortError" });
  await assert.rejects(wait(60_000, controller.signal), { name: "AbortError" });
});

test("chunks take about a second, and waits double", () => {
  assert.equal(nextChunk(256 * 1024, 10), 512 * 1024);
  assert.equal(nextChunk(32 << 20, 1), 32 << 20);
  assert.equal(nextChunk(1 << 20, 2000), 512 * 1024);
  assert.equal(nextChunk(64 * 1024, 60_000), 64 * 1024);
  assert.equal(nextChunk(16 << 20, 60_000), 4 << 20);
  assert.deepEqual([1, 2, 3, 9].map((failures) => backOff(failures)), [1000, 2000, 4000, 30_000]);
  assert.equal(backOff(1, 60), 60_000);
});

test("metadata is UTF-8 in base64", () => {
  assert.equal(metadata({ filename: "grüße 🏔.txt", filetype: undefined, empty: "" }), `filename ${Buffer.from("grüße 🏔.txt").toString("base64")},empty `);
});
