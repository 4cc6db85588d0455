// Gateways for tests: each with its own folder, on free loopback ports, without peers.
//
// scripts/rpc-tests sets the variables read here:
//
//   RPC_TESTS_CAUSEWAY  the binary under test
//   RPC_TESTS_MODULES   a folder with this package's node_modules

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { createWriteStream, mkdirSync, readFileSync, rmSync } from "node:fs";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after } from "node:test";
import { pathToFileURL } from "node:url";

const START_MS = 60_000;
const STOP_MS = 60_000;
/** The operator's token of every gateway. */
export const TOKEN = "a token for tests";

function setting(name) {
  const value = process.env[`RPC_TESTS_${name}`];
  if (!value) throw new Error(`RPC_TESTS_${name} is not set; run scripts/rpc-tests`);
  return value;
}

/** Imports a module of a package, since node_modules is not above these files. */
export const packaged = (path) => import(pathToFileURL(join(setting("MODULES"), "node_modules", path)));

/** Deleted when the process ends. */
export const dir = await mkdtemp(join(tmpdir(), "causeway-rpc-"));
const nodes = [];
// No process and no file is left behind, also after a failure.
process.on("exit", () => {
  nodes.forEach((node) => node.kill("SIGKILL"));
  rmSync(dir, { recursive: true, force: true });
});
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => process.exit(1));

/** The environment without the caller's settings. */
function clean() {
  return Object.fromEntries(Object.entries(process.env).filter(([variable]) => !variable.startsWith("CAUSEWAY_")));
}

/** Starts a gateway, and returns the values of its start-up message. */
export async function start(name) {
  const place = join(dir, name);
  mkdirSync(place);
  const env = {
    ...clean(),
    CAUSEWAY_ADMIN_TOKEN: TOKEN,
    CAUSEWAY_P2P_DIAL_PRIVATE: "true",
    CAUSEWAY_P2P_UPNP: "false",
  };
  const args = ["serve", "--data-dir", join(place, "data"), "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
  args.push("--p2p-listen", "/ip4/127.0.0.1/tcp/0", "--bootstrap", "none");
  const child = spawn(setting("CAUSEWAY"), args, { env, cwd: place, stdio: ["ignore", "pipe", "pipe"] });
  nodes.push(child);
  const log = join(place, "stderr");
  child.stderr.pipe(createWriteStream(log));
  let output = "";
  const ready = new Promise((done, reject) => {
    const fail = (reason) => reject(new Error(`causeway ${reason}:\n${output}${readFileSync(log, "utf8")}`));
    const impatience = setTimeout(() => fail("does not say that it is ready"), START_MS);
    child.on("error", reject);
    child.once("close", () => fail("ended"));
    child.stdout.on("data", (chunk) => {
      output += chunk;
      if (!/^ {2}welcome .*\n/m.test(output)) return;
      clearTimeout(impatience);
      done();
    });
  });
  await ready;
  const value = (key) => new RegExp(`^ {2}${key} +(\\S+)$`, "m").exec(output)[1];
  const addresses = { admin: value("admin"), gateway: value("gateway"), p2p: value("p2p") };
  return { child, dataDir: join(place, "data"), peerId: value("peer id"), ...addresses };
}

/** Runs a command on a gateway's data folder, and returns its output. */
export function command(node, ...args) {
  const options = { env: clean(), encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] };
  return execFileSync(setting("CAUSEWAY"), [...args, "--data-dir", node.dataDir], options).trim();
}

after(async () => {
  for (const child of nodes) {
    const ended = once(child, "exit");
    child.kill("SIGTERM");
    const impatience = setTimeout(() => child.kill("SIGKILL"), STOP_MS);
    await ended;
    clearTimeout(impatience);
    assert.equal(child.exitCode, 0, "causeway ends in order");
  }
});
