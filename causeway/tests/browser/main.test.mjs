// The gateway in a browser, and with a verifying client.
//
// One gateway, one browser and one set of content serve all tests; each test has its own browser context. Everything
// happens on loopback. scripts/browser-tests installs what this needs and sets the variables read here:
//
//   BROWSER_TESTS_CAUSEWAY     the binary under test
//   BROWSER_TESTS_KUBO         Kubo's binary, which creates the content and imports archives
//   BROWSER_TESTS_CHROMIUM     Chromium's binary
//   BROWSER_TESTS_MODULES      a folder with this package's node_modules
//   BROWSER_TESTS_SCREENSHOTS  the folder for screenshots of the pages

import { rmSync } from "node:fs";
import { mkdir, mkdtemp, readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after } from "node:test";
import { fileURLToPath } from "node:url";
import documents from "./documents.mjs";
import encoded, { storeText } from "./encoded.mjs";
import errors from "./errors.mjs";
import http2, { keyHash, makeCertificate, storePages } from "./http2.mjs";
import http3 from "./http3.mjs";
import listings from "./listings.mjs";
import otherImplementation from "./other-implementation.mjs";
import sites from "./sites.mjs";
import subdomains from "./subdomains.mjs";
import { Browser } from "./support/browser.mjs";
import { Causeway } from "./support/causeway.mjs";
import { makeContent } from "./support/content.mjs";
import verifyingClient from "./verifying-client.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const repository = join(here, "../../..");
const fixtures = join(here, "../fixtures/conformance");
const FIXTURES = ["dir_listing/fixtures.car", "redirects_file/redirects-spa.car", "subdomain_gateway/fixtures.car"];

function setting(name) {
  const value = process.env[`BROWSER_TESTS_${name}`];
  if (!value) throw new Error(`BROWSER_TESTS_${name} is not set; run scripts/browser-tests`);
  return value;
}

const dir = await mkdtemp(join(tmpdir(), "causeway-browser-"));
const nodes = [];
// No process and no file is left behind, also after a failure.
process.on("exit", () => {
  nodes.forEach((node) => node.kill());
  rmSync(dir, { recursive: true, force: true });
});
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => process.exit(1));

const folder = async (name) => {
  await mkdir(join(dir, name), { recursive: true });
  return join(dir, name);
};

async function node(name, settings) {
  const made = new Causeway({ binary: setting("CAUSEWAY"), dir: await folder(name), ...settings });
  nodes.push(made);
  return made;
}

const modules = setting("MODULES");
const kubo = setting("KUBO");
const content = await makeContent(kubo, await folder("content"));
const gateway = await node("gateway", { config: join(repository, "config/examples/conformance.toml") });
gateway.import([...content.archives, ...FIXTURES.map((path) => join(fixtures, path))]);
const text = await storeText(gateway, await folder("text"));
// The fixtures' names, and one of our own.
const names = (await readFile(join(fixtures, "dnslinks.IPFS_NS_MAP"), "utf8")).trim();
await writeFile(join(dir, "names"), `${names},document.example.org:/ipfs/${content.cids.dagCbor}\n`);
await gateway.start(["--offline", "--dnslink-map", join(dir, "names")]);
// A node with an empty network.
const alone = await node("alone", { settings: { CAUSEWAY_HTTP_STALL_TIMEOUT_SECONDS: "1" } });
await alone.start(["--bootstrap", "none", "--p2p-listen", "/ip4/127.0.0.1/tcp/0"]);
// A node with TLS.
const certificate = makeCertificate(await folder("certificate"));
const encrypted = await node("encrypted", { settings: certificate });
const pages = await storePages(encrypted, await folder("pages"));
await encrypted.start(["--offline"]);
const launch = {
  playwright: createRequire(join(modules, "package.json"))("playwright-core"),
  executable: setting("CHROMIUM"),
  screenshots: setting("SCREENSHOTS"),
  trustedKey: await keyHash(certificate.CAUSEWAY_HTTP_TLS_CERTIFICATE),
};
const browser = await Browser.launch(launch);

after(async () => {
  await browser.close();
  for (const each of nodes) await each.stop();
});

const world = {
  gateway, alone, encrypted, browser, content, text, pages, kubo, modules, folder, node, launch, certificate,
};
const suites = [
  listings, sites, subdomains, documents, encoded, errors, http2, http3, verifyingClient, otherImplementation,
];
for (const suite of suites) suite(world);
