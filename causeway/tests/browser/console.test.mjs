// The console in a browser, on gateways with content, 10,000 pins, peers and traffic.
//
// One gateway and one browser serve all tests, each with its own browser context. Everything happens on loopback.
// scripts/console-tests installs what this needs and sets the variables read here:
//
//   BROWSER_TESTS_CAUSEWAY     the binary under test
//   BROWSER_TESTS_CHROMIUM     Chromium's binary
//   BROWSER_TESTS_MODULES      a folder with this package's node_modules
//   BROWSER_TESTS_SCREENSHOTS  the folder for screenshots of the pages
//   BROWSER_TESTS_PICTURES     the folder for the pictures of the documentation; empty: they are not renewed
//   CAUSEWAY_CONSOLE_SECONDS   how long figures run while memory is observed
//   CAUSEWAY_CONSOLE_FLOWS     "all": flows run at both widths in both themes, instead of in two of these variants
//   CAUSEWAY_CONSOLE_SOURCES   if set, the console of the source tree is tested instead of that in the binary

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { rmSync } from "node:fs";
import { copyFile, mkdir, mkdtemp, stat } from "node:fs/promises";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after } from "node:test";
import { fileURLToPath } from "node:url";
import { loadAxe } from "./console/axe.mjs";
import { Console } from "./console/driver.mjs";
import content_ from "./console/content.mjs";
import network from "./console/network.mjs";
import operating from "./console/operating.mjs";
import overview from "./console/overview.mjs";
import pages from "./console/pages.mjs";
import pins from "./console/pins.mjs";
import security from "./console/security.mjs";
import uploads from "./console/uploads.mjs";
import weight from "./console/weight.mjs";
import { TOKEN, archives, makeWorld } from "./console/world.mjs";
import { Browser } from "./support/browser.mjs";
import { Causeway } from "./support/causeway.mjs";

const repository = join(dirname(fileURLToPath(import.meta.url)), "../../..");
/** The screenshots that the documentation shows, and the maximum size of each. */
const PICTURES = ["overview", "content"].map((name) => `console-${name}.png`);
const PICTURE_BYTES_MAX = 150 * 1024;

function setting(name) {
  const value = process.env[`BROWSER_TESTS_${name}`];
  if (!value) throw new Error(`BROWSER_TESTS_${name} is not set; run scripts/console-tests`);
  return value;
}

const dir = await mkdtemp(join(tmpdir(), "causeway-console-"));
const nodes = [];
const helpers = [];
// No process and no file is left behind, also after a failure.
process.on("exit", () => {
  for (const each of [...nodes, ...helpers]) each.kill();
  rmSync(dir, { recursive: true, force: true });
});
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => process.exit(1));

const folder = async (name) => {
  await mkdir(join(dir, name), { recursive: true });
  return join(dir, name);
};

async function node(name, settings = {}) {
  const private_ = { CAUSEWAY_P2P_DIAL_PRIVATE: "true", CAUSEWAY_P2P_UPNP: "false", ...settings };
  const made = new Causeway({ binary: setting("CAUSEWAY"), dir: await folder(name), settings: private_, token: TOKEN });
  nodes.push(made);
  return made.start(["--bootstrap", "none", "--p2p-listen", "/ip4/127.0.0.1/tcp/0"]);
}

/** A port that is free now. */
async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** The origin of a node's console; of a server of its sources, if these are tested. */
async function consoleOrigin({ adminOrigin }) {
  if (!process.env.CAUSEWAY_CONSOLE_SOURCES) return adminOrigin;
  const arguments_ = [join(repository, "scripts/console-dev.mjs"), adminOrigin, String(await freePort())];
  const server = spawn(process.execPath, arguments_, { stdio: ["ignore", "pipe", "inherit"] });
  helpers.push(server);
  const [line] = await once(server.stdout, "data");
  return String(line).trim().replace(/\/$/, "");
}

const modules = setting("MODULES");
await loadAxe(modules);
// Its pins are in memory: a disk that is synchronised ten thousand times takes minutes.
const MANY = { CAUSEWAY_CACHE_STORE: "memory" };
const GATEWAY = { CAUSEWAY_HTTP_STALL_TIMEOUT_SECONDS: "6" };
const [gateway, other, manyPins] = await Promise.all([node("gateway", GATEWAY), node("other"), node("many", MANY)]);
const maker = await archives(modules);
const { content, peer } = await makeWorld({ gateway, other, many: manyPins, maker, modules });
const browser = await Browser.launch({
  playwright: createRequire(join(modules, "package.json"))("playwright-core"),
  executable: setting("CHROMIUM"),
  screenshots: setting("SCREENSHOTS"),
});
const consoleOf = async (of) => new Console({ browser, node: of, origin: await consoleOrigin(of) });
const console_ = await consoleOf(gateway);
const many = { node: manyPins, console: await consoleOf(manyPins) };

after(async () => {
  await browser.close();
  await peer.stop();
  for (const each of helpers) each.kill();
  for (const each of nodes) await each.stop();
  const pictures = process.env.BROWSER_TESTS_PICTURES;
  if (!pictures) return;
  for (const name of PICTURES) {
    const from = join(setting("SCREENSHOTS"), name);
    assert.ok((await stat(from)).size < PICTURE_BYTES_MAX, `${name} is small enough for the documentation`);
    await copyFile(from, join(pictures, name));
  }
});

const world = { gateway, other, many, browser, console_, content, maker, peer, modules, folder };
for (const suite of [overview, pages, content_, pins, uploads, network, operating, security, weight]) suite(world);
