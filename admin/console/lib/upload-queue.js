// Uploads that wait, run and have ended. At most two run at once. Nothing here draws: `onChange` of a queue and of an upload
// tell the page that shows them.

import { tar, tarLength } from "./tar.js";
import { metadata, remove, upload } from "./tus.js";

const AT_ONCE = 2;
// The rate is that of the last seconds.
const RATE_MS = 8000;
const CAR = "application/vnd.ipld.car";
const TAR = "application/x-tar";

// An upload of a content (see files.js).
//
// `state` is waiting, sending, importing, retrying, paused, failed or done. `path` is that of the upload on the gateway, once
// it is created; `result` is its result, and `error` why it failed or is tried again.
export class Upload {
  #content;
  #samples = [];

  // `query` has the parameters of the upload; `asCar` imports the blocks of a CAR file.
  constructor(content, { query, asCar = false }) {
    this.#content = content;
    this.name = content.name;
    this.kind = content.entries ? "folder" : asCar ? "car" : "file";
    this.files = content.entries?.filter(({ file }) => file).length ?? 1;
    this.length = content.entries ? tarLength(content.entries) : content.file.size;
    this.query = query;
    Object.assign(this, { state: "waiting", path: null, offset: 0, result: null, error: null, retryMs: 0, controller: null, ended: null, onChange: () => {} });
  }

  // The media type says how the gateway reads it. That of a single file would have it unpack a TAR.
  get metadata() {
    const filetype = { folder: TAR, car: CAR, file: "application/octet-stream" }[this.kind];
    return metadata({ filename: this.name, filetype });
  }

  get isRunning() {
    return this.controller !== null;
  }

  // Bytes in a second; null if it is not known yet.
  get rate() {
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    return this.#samples.length < 2 || last.at === first.at ? null : (1000 * (last.offset - first.offset)) / (last.at - first.at);
  }

  change(values) {
    Object.assign(this, values);
    // The time without a connection is no part of the rate.
    if (values.state === "retrying") this.#samples = [];
    if (values.offset !== undefined) {
      const at = performance.now();
      this.#samples = [...this.#samples.filter((sample) => at - sample.at < RATE_MS), { at, offset: this.offset }];
    }
    this.onChange();
  }

  async run(send) {
    this.controller = new AbortController();
    this.#samples = [];
    this.change({ state: "sending", error: null });
    const { signal } = this.controller;
    const onChange = (values) => this.change(values);
    let values;
    try {
      const blob = this.#content.entries ? tar(this.#content.entries) : this.#content.file;
      const { path, query, metadata: about } = this;
      const ended = await upload({ blob, path, query, metadata: about }, { send, signal, onChange });
      this.#content = null;
      values = { state: "done", result: ended.result, offset: this.length };
    } catch (error) {
      values = signal.aborted ? { state: "paused" } : { state: "failed", error };
    }
    this.controller = null;
    this.change(values);
  }
}

export class UploadQueue {
  #send;

  constructor(send) {
    this.#send = send;
    this.uploads = [];
    this.onChange = () => {};
    this.interrupted = new Set();
    this.isInterrupted = false;
  }

  add(added) {
    this.uploads.push(added);
    this.#start();
  }

  pause(paused) {
    if (paused.isRunning) paused.controller.abort();
    else paused.change({ state: "paused" });
  }

  resume(paused) {
    paused.change({ state: "waiting", error: null });
    this.#start();
  }

  // Takes an upload out of the queue, and removes from the gateway what it received of it.
  async cancel(cancelled) {
    const { path, state } = cancelled;
    cancelled.controller?.abort();
    if (path !== null && state !== "done") await remove(this.#send, path).catch((error) => error.status === 404 || Promise.reject(error));
    this.forget(cancelled);
  }

  forget(forgotten) {
    this.interrupted.delete(forgotten);
    this.uploads = this.uploads.filter((one) => one !== forgotten);
    this.onChange();
  }

  // Pauses what runs and waits, until `goOn`.
  interrupt() {
    this.isInterrupted = true;
    for (const one of this.uploads.filter((each) => each.isRunning || each.state === "waiting")) {
      this.interrupted.add(one);
      this.pause(one);
    }
  }

  async goOn() {
    this.isInterrupted = false;
    // What was interrupted a moment ago has not ended yet.
    await Promise.all([...this.interrupted].map(({ ended }) => ended));
    if (this.isInterrupted) return;
    for (const one of this.interrupted) if (one.state === "paused") this.resume(one);
    this.interrupted.clear();
  }

  get isActive() {
    return this.uploads.some((one) => one.isRunning || one.state === "waiting");
  }

  #start() {
    let running = this.uploads.filter((one) => one.isRunning).length;
    for (const next of this.uploads.filter((one) => one.state === "waiting" && !one.isRunning)) {
      if (running >= AT_ONCE) break;
      running += 1;
      next.ended = next.run(this.#send).then(() => this.#start());
    }
    this.onChange();
  }
}
