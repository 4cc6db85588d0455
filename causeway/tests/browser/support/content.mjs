// The content of the tests, created for each run: folders with unusual names, a folder of thousands of
// entries, sites, and a document with links.

import { randomBytes } from "node:crypto";
import { mkdir, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { Kubo } from "./kubo.mjs";

/** Names that a file system allows and a URL has to encode; each file contains its own name. */
export const PROVOKING_NAMES = [
  "ąę źdźbło.txt",
  "a space.txt",
  "100%.txt",
  "%2F.txt",
  "hash#tag.txt",
  "what?.txt",
  "plus+and&amp;.txt",
  "\"quoted\" 'twice' <b>.txt",
  "back\\slash.txt",
  "javascript:alert(1).txt",
  "日本語.txt",
  "semi;colon=equals.txt",
];
/** As long as names may be on common file systems, without break opportunities. */
export const LONG_NAME = `${"long".repeat(60)}.txt`;
/** Nested folders, for breadcrumbs. */
export const NESTED = ["folder ą % # ? &copy", "inner"];
export const MANY_ENTRIES = 3000;
export const manyName = (index) => `entry-${String(index).padStart(4, "0")}.txt`;
export const manyText = (index) => `I am number ${index}.\n`;

const SITE = {
  "index.html": `<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A site</title>
<link rel="stylesheet" href="style.css"><link rel="icon" href="picture.svg"></head>
<body><h1>A site</h1><img src="./img/picture.svg" alt="a square" width="20" height="20">
<a href="about/">About</a><p id="from-script"></p><script src="js/app.js"></script></body></html>`,
  "about/index.html": `<!doctype html><html lang="en"><head><meta charset="utf-8"><title>About</title>
<link rel="stylesheet" href="../style.css"></head><body><h1>About</h1><a href="../">Back</a></body></html>`,
  "style.css": "h1 { color: rgb(1, 2, 3); }",
  "js/app.js": "document.querySelector('#from-script').textContent = 'made by a script';",
  "img/picture.svg": "<svg xmlns='http://www.w3.org/2000/svg' width='20' height='20'><rect width='20' height='20'/></svg>",
  "picture.svg": "<svg xmlns='http://www.w3.org/2000/svg' width='20' height='20'><circle cx='10' cy='10' r='9'/></svg>",
  // Answers a path that the site does not have, which proves that the worker is active.
  "sw.js": `self.addEventListener('install', () => self.skipWaiting());
self.addEventListener('activate', (event) => event.waitUntil(self.clients.claim()));
self.addEventListener('fetch', (event) => {
  if (new URL(event.request.url).pathname.endsWith('/from-worker')) event.respondWith(new Response('worker'));
});`,
};

async function write(folder, files) {
  for (const [name, bytes] of Object.entries(files)) {
    await mkdir(dirname(join(folder, name)), { recursive: true });
    await writeFile(join(folder, name), bytes);
  }
}

const keyed = (names, value) => Object.fromEntries(names.map((name, index) => [name, value(name, index)]));

/** Creates everything in `dir` with Kubo; returns the CIDs, the expected bytes, and the archives to import. */
export async function makeContent(ipfs, dir) {
  const kubo = new Kubo(ipfs, dir);
  // So low that only the folder of many entries is sharded.
  kubo.run(["config", "Import.UnixFSHAMTDirectorySizeThreshold", "64KiB"]);
  const add = (path) => kubo.text(["add", "--recursive", "--quieter", "--cid-version=1", join(dir, path)]);

  const big = randomBytes(3 * 256 * 1024 + 1234);
  const names = [...PROVOKING_NAMES, LONG_NAME];
  await write(join(dir, "folder"), {
    ...keyed(names, (name) => name),
    [join(...NESTED, "file.txt")]: "at the bottom",
    "picture.svg": SITE["picture.svg"],
    "film.mp4": big,
    "notes.v2/README": "a folder with a dot in its name",
    "empty.bin": "",
  });
  await write(join(dir, "many"), keyed([...Array(MANY_ENTRIES).keys()].map(manyName), (_, index) => manyText(index)));
  await write(join(dir, "site"), SITE);
  await write(join(dir, "other-site"), { ...SITE, "index.html": SITE["index.html"].replaceAll("A site", "Another") });

  const cids = { folder: add("folder"), many: add("many"), site: add("site"), otherSite: add("other-site") };
  cids.big = kubo.text(["files", "stat", "--hash", `/ipfs/${cids.folder}/film.mp4`]);
  cids.worker = kubo.text(["files", "stat", "--hash", `/ipfs/${cids.site}/sw.js`]);
  const document = {
    title: "A document <of> blocks",
    numbers: [1, -2, 3.5],
    nothing: null,
    yes: true,
    bytes: { "/": { bytes: "AAECAwQ" } },
    long: "x".repeat(400),
    site: { "/": cids.site },
    nested: { deeper: { file: { "/": cids.big } } },
  };
  const put = (codec) => kubo.text(["dag", "put", `--store-codec=${codec}`], { input: JSON.stringify(document) });
  cids.dagCbor = put("dag-cbor");
  cids.dagJson = put("dag-json");
  const block = (cid) => kubo.run(["block", "get", cid]);
  const stored = { dagCbor: block(cids.dagCbor), dagJson: block(cids.dagJson) };

  const archives = [];
  for (const [name, cid] of Object.entries(cids)) {
    // The other roots are contained in these.
    if (["big", "worker"].includes(name)) continue;
    archives.push(join(dir, `${name}.car`));
    await writeFile(archives.at(-1), kubo.run(["dag", "export", "--progress=false", cid]));
  }
  return { cids, big, document, stored, archives };
}
