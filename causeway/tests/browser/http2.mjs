// Pages over TLS and HTTP/2, as Chromium requests them: many at a time over one connection.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { X509Certificate, createHash } from "node:crypto";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, it } from "node:test";
import { open } from "./support/browser.mjs";

/** More than a browser has connections to a host over HTTP/1.1, and than an HTTP/2 connection has streams. */
const PICTURES = 150;
const PICTURE_PX = 8;
/** Uncompressed sound: long enough that the browser does not request all of it at once. */
const SOUND = { seconds: 120, rate: 48_000, bytesPerSample: 2 };

const pictureName = (index) => `picture-${String(index).padStart(3, "0")}.svg`;
const picture = (index) => `<svg xmlns='http://www.w3.org/2000/svg' width='${PICTURE_PX}' height='${PICTURE_PX}'>
<rect width='${PICTURE_PX}' height='${PICTURE_PX}' fill='hsl(${(index * 7) % 360} 80% 50%)'/></svg>`;
const PAGE = `<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Pictures</title>
<link rel="icon" href="${pictureName(0)}"><link rel="stylesheet" href="style.css"></head><body>
${[...Array(PICTURES).keys()].map((index) => `<img src="${pictureName(index)}" alt="">`).join("\n")}
<audio src="sound.wav" preload="metadata" muted></audio><script src="app.js"></script></body></html>`;

/** A WAV file with a tone (RIFF, PCM, one channel). */
function sound() {
  const { seconds, rate, bytesPerSample } = SOUND;
  const bytes = seconds * rate * bytesPerSample;
  const file = Buffer.alloc(44 + bytes);
  file.write("RIFF", 0);
  file.writeUInt32LE(36 + bytes, 4);
  file.write("WAVEfmt ", 8);
  file.writeUInt32LE(16, 16);
  file.writeUInt16LE(1, 20);
  file.writeUInt16LE(1, 22);
  file.writeUInt32LE(rate, 24);
  file.writeUInt32LE(rate * bytesPerSample, 28);
  file.writeUInt16LE(bytesPerSample, 32);
  file.writeUInt16LE(8 * bytesPerSample, 34);
  file.write("data", 36);
  file.writeUInt32LE(bytes, 40);
  for (let at = 0; at < bytes; at += bytesPerSample) file.writeInt16LE((at * 40) % 20_000, 44 + at);
  return file;
}

const SOUND_FILE = sound();

/** Writes a certificate for localhost, its subdomains and its address, and its key; returns the gateway's settings. */
export function makeCertificate(dir) {
  const [certificate, key] = ["certificate.pem", "key.pem"].map((name) => join(dir, name));
  const args = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"];
  const names = "subjectAltName=DNS:localhost,DNS:*.ipfs.localhost,IP:127.0.0.1";
  args.push("-subj", "/CN=localhost", "-addext", names, "-keyout", key, "-out", certificate);
  const made = spawnSync("openssl", args, { encoding: "utf8" });
  if (made.status !== 0) throw new Error(`openssl: ${made.error ?? made.stderr}`);
  return {
    CAUSEWAY_HTTP_TLS_LISTEN: "127.0.0.1:0",
    CAUSEWAY_HTTP_TLS_CERTIFICATE: certificate,
    CAUSEWAY_HTTP_TLS_KEY: key,
  };
}

/** The hash of a certificate's key, by which Chromium can trust it. */
export async function keyHash(certificate) {
  const { publicKey } = new X509Certificate(await readFile(certificate));
  return createHash("sha256").update(publicKey.export({ type: "spki", format: "der" })).digest("base64");
}

/** Stores the pages in a node that is not started; returns the path of their folder. */
export async function storePages(node, dir) {
  const site = join(dir, "site");
  await mkdir(site);
  await writeFile(join(site, "index.html"), PAGE);
  await writeFile(join(site, "style.css"), "img { margin: 2px; }");
  await writeFile(join(site, "app.js"), "document.body.dataset.script = 'ran';");
  await writeFile(join(site, "sound.wav"), SOUND_FILE);
  for (let index = 0; index < PICTURES; index += 1) await writeFile(join(site, pictureName(index)), picture(index));
  return node.add(site);
}

/** What the page has loaded: the address, the protocol, and whether a connection was opened for it. */
const loaded = (page) => page.evaluate(() => {
  const entries = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  return entries.map(({ name, nextHopProtocol, connectStart, connectEnd }) => ({
    name: name.slice(name.lastIndexOf("/") + 1), nextHopProtocol, connects: connectEnd > connectStart,
  }));
});

async function assertAllOverHttp2(page, least) {
  const all = await loaded(page);
  assert.ok(all.length >= least, `${all.length} of at least ${least}`);
  assert.deepEqual(all.filter((each) => each.nextHopProtocol !== "h2"), [], "everything comes over HTTP/2");
  return all;
}

export default function http2({ encrypted, browser, pages }) {
  // By its name, so that sites have origins of their own.
  const origin = () => encrypted.tlsOrigin.replace("127.0.0.1", "localhost");
  const site = () => `${origin()}${pages}/`;

  describe("a browser over TLS", () => {
    it("loads a page with many pictures over one HTTP/2 connection", () => browser.page(async (page) => {
      const response = await open(page, site());
      // The content has an origin of its own, for which the certificate is valid as well.
      assert.match(new URL(page.url()).host, /^\w+\.ipfs\.localhost:\d+$/);
      assert.equal(new URL(page.url()).protocol, "https:");
      assert.equal((await response.securityDetails()).protocol, "TLS 1.3");
      await page.waitForLoadState("load");
      const broken = await page.locator("img").evaluateAll((all) => all.filter((one) => !one.naturalWidth).length);
      assert.equal(broken, 0, "every picture is shown");
      assert.equal(await page.evaluate(() => document.body.dataset.script), "ran");
      // The page, the pictures, the style and the script.
      const all = await assertAllOverHttp2(page, PICTURES + 3);
      assert.deepEqual(all.slice(1).filter((each) => each.connects), [], "no further connection");
    }));

    it("shows a directory listing over HTTP/2, with its links", () => browser.page(async (page) => {
      const parent = pages.slice(0, pages.lastIndexOf("/"));
      await open(page, `${origin()}${parent}/`);
      await assertAllOverHttp2(page, 1);
      await page.getByRole("main").getByRole("link", { name: "site", exact: true }).click();
      await page.locator("img").first().waitFor();
      await assertAllOverHttp2(page, 1);
    }));

    it("seeks in a recording by requests of ranges", () => browser.page(async (page) => {
      const statuses = [];
      page.on("response", (response) => {
        if (response.url().endsWith("/sound.wav")) statuses.push(response.status());
      });
      await open(page, site());
      const [duration, position] = await page.locator("audio").evaluate(async (audio) => {
        const until = (event) => new Promise((resolve, reject) => {
          audio.addEventListener(event, resolve, { once: true });
          audio.addEventListener("error", () => reject(new Error(audio.error.message)), { once: true });
        });
        if (audio.readyState < HTMLMediaElement.HAVE_METADATA) await until("loadedmetadata");
        const sought = until("seeked");
        audio.currentTime = audio.duration - 5;
        await sought;
        return [audio.duration, audio.currentTime];
      });
      assert.deepEqual([Math.round(duration), Math.round(position)], [SOUND.seconds, SOUND.seconds - 5]);
      assert.ok(statuses.length > 0 && statuses.every((status) => status === 206), `statuses: ${statuses}`);
      await assertAllOverHttp2(page, PICTURES);
    }));

    it("reads exact ranges, many at a time", () => browser.page(async (page) => {
      await open(page, site());
      const ranges = [...Array(40).keys()].map((index) => [index * 250_001, index * 250_001 + index * 997]);
      const digests = await page.evaluate((all) => Promise.all(all.map(async ([first, last]) => {
        const response = await fetch("sound.wav", { headers: { range: `bytes=${first}-${last}` }, cache: "no-store" });
        const digest = await crypto.subtle.digest("SHA-256", await response.arrayBuffer());
        return [response.status, [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("")];
      })), ranges);
      const digest = ([first, last]) => createHash("sha256").update(SOUND_FILE.subarray(first, last + 1)).digest("hex");
      assert.deepEqual(digests, ranges.map((range) => [206, digest(range)]));
      await assertAllOverHttp2(page, 1);
    }));

    it("goes on with the connection after downloads that it aborts", () => browser.page(async (page) => {
      await open(page, site());
      await page.waitForLoadState("load");
      const after = await page.evaluate(async () => {
        performance.clearResourceTimings();
        for (let index = 0; index < 30; index += 1) {
          const abort = new AbortController();
          const response = await fetch(`sound.wav?${index}`, { signal: abort.signal, cache: "no-store" });
          await response.body.getReader().read();
          abort.abort();
        }
        const response = await fetch("style.css?after", { cache: "no-store" });
        const text = await response.text();
        const [entry] = performance.getEntriesByType("resource").filter(({ name }) => name.endsWith("?after"));
        return [text, entry.nextHopProtocol, entry.connectEnd > entry.connectStart];
      });
      assert.deepEqual(after, ["img { margin: 2px; }", "h2", false]);
    }));
  });
}
