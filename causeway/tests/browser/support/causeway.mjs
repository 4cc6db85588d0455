// The binary under test, run as by an operator, with its own data folder.

import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { createWriteStream, readFileSync } from "node:fs";
import { basename, join } from "node:path";

const START_MS = 60_000;
const STOP_MS = 60_000;

// Ignore the settings of the caller's environment.
const cleanEnvironment = () =>
  Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("CAUSEWAY_")));

/** A node on free loopback ports, without peers. */
export class Causeway {
  #binary;
  #dir;
  #environment;
  #common;
  #adminFlags;
  #child;

  /**
   * @param {object} launch
   * @param {string} launch.binary  the program
   * @param {string} launch.dir     an empty folder that outlives it
   * @param {string} [launch.config]  a configuration file
   * @param {Record<string, string>} [launch.settings]  keys by their environment variables
   * @param {string} [launch.token]  the operator's token; without it, the node has no admin listener
   */
  constructor({ binary, dir, config, settings = {}, token }) {
    this.#binary = binary;
    this.#dir = dir;
    this.token = token;
    this.#environment = { ...cleanEnvironment(), ...settings, ...(token ? { CAUSEWAY_ADMIN_TOKEN: token } : {}) };
    this.#adminFlags = ["--admin-listen", token ? "127.0.0.1:0" : "none"];
    this.#common = ["--data-dir", join(dir, "data"), ...(config ? ["--config", config] : [])];
  }

  /** Imports archives, while the node is stopped. */
  import(files) {
    for (const file of files) {
      const args = ["import", ...this.#common, file];
      const done = spawnSync(this.#binary, args, { env: this.#environment, cwd: this.#dir, encoding: "utf8" });
      if (done.status !== 0) throw new Error(`causeway import ${file}: ${done.error ?? done.stderr}`);
    }
  }

  /** Adds a file with its name, while the node is stopped; returns its path. */
  add(file, flags = []) {
    const args = ["add", "--quieter", "--wrap-with-directory", ...flags, ...this.#common, file];
    const done = spawnSync(this.#binary, args, { env: this.#environment, cwd: this.#dir, encoding: "utf8" });
    if (done.status !== 0) throw new Error(`causeway add ${file}: ${done.error ?? done.stderr}`);
    return `/ipfs/${done.stdout.trim()}/${basename(file)}`;
  }

  /** Runs a command on its data folder while it is running; returns the output. */
  command(...args) {
    const options = { env: cleanEnvironment(), cwd: this.#dir, encoding: "utf8" };
    const done = spawnSync(this.#binary, [...args, "--data-dir", join(this.#dir, "data")], options);
    if (done.status !== 0) throw new Error(`causeway ${args.join(" ")}: ${done.error ?? done.stderr}`);
    return done.stdout.trim();
  }

  /** Sends a request to the admin listener, with the operator's token unless another one is given. */
  adminRequest(method, path, { json, token = this.token, headers = {}, ...options } = {}) {
    const sent = { authorization: `Bearer ${token}`, ...headers };
    if (json !== undefined) {
      sent["content-type"] = "application/json";
      options.body = JSON.stringify(json);
    }
    const request = () => fetch(`${this.adminOrigin}${path}`, { method, headers: sent, ...options });
    // On a busy machine, an idle connection is closed while the request is sent on it.
    return request().catch((error) => (error.cause?.code === "UND_ERR_SOCKET" ? request() : Promise.reject(error)));
  }

  /** The JSON answer of the admin API to a request that must succeed; null if it has no body. */
  async api(method, path, options) {
    const response = await this.adminRequest(method, path, options);
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return text === "" ? null : JSON.parse(text);
  }

  /** Starts it, and waits for the start-up message. `flags` are added to those of every node. */
  async start(flags = []) {
    const args = ["serve", ...this.#common, "--listen", "127.0.0.1:0", ...this.#adminFlags, ...flags];
    const stdio = ["ignore", "pipe", "pipe"];
    this.#child = spawn(this.#binary, args, { env: this.#environment, cwd: this.#dir, stdio });
    this.#child.stderr.pipe(createWriteStream(this.#log));
    const output = await this.#saysWelcome();
    /** The URL of the gateway, such as http://127.0.0.1:40123. */
    this.origin = /^ {2}gateway +(\S+)$/m.exec(output)[1].replace(/\/$/, "");
    this.port = new URL(this.origin).port;
    /** The same with TLS, if the node has it. */
    this.tlsOrigin = /^ {2}gateway +(https:\S+)$/m.exec(output)?.[1].replace(/\/$/, "");
    /** The URL of the welcome site. */
    this.welcome = /^ {2}welcome +(\S+)$/m.exec(output)[1];
    /** The URL of the admin listener, if it has one. */
    this.adminOrigin = /^ {2}admin +(\S+)$/m.exec(output)?.[1].replace(/\/$/, "");
    /** Its peer ID, and an address of it with that ID. */
    this.peerId = /^ {2}peer id +(\S+)$/m.exec(output)[1];
    this.p2p = /^ {2}p2p +(\S+)$/m.exec(output)?.[1];
    return this;
  }

  /** Sends SIGTERM, and SIGKILL if it does not end. */
  async stop() {
    const child = this.#child;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const ended = once(child, "exit");
    child.kill("SIGTERM");
    const impatience = setTimeout(() => child.kill("SIGKILL"), STOP_MS);
    await ended;
    clearTimeout(impatience);
    if (child.signalCode !== null || child.exitCode !== 0) {
      throw new Error(`causeway ended with ${child.signalCode ?? child.exitCode} after SIGTERM`);
    }
  }

  /** Sends SIGKILL, for when the tests themselves are ended. */
  kill() {
    this.#child?.kill("SIGKILL");
  }

  get #log() {
    return join(this.#dir, "causeway.stderr");
  }

  /** Waits for the last line of the start-up message. Later output is read too, so that the pipe does not fill up. */
  #saysWelcome() {
    let output = "";
    return new Promise((resolve, reject) => {
      const fail = (reason) => reject(new Error(`causeway ${reason}:\n${output}${readFileSync(this.#log, "utf8")}`));
      const impatience = setTimeout(() => {
        this.kill();
        fail("does not say that it is ready");
      }, START_MS);
      this.#child.on("error", reject);
      this.#child.once("close", () => fail("ended"));
      this.#child.stdout.on("data", (chunk) => {
        output += chunk;
        if (!/^ {2}welcome .*\n/m.test(output)) return;
        clearTimeout(impatience);
        resolve(output);
      });
    });
  }
}
