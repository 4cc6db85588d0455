// Text that is stored compressed: the browser receives the concatenated frames of its blocks as they are stored
// (Content-Encoding: zstd), and decodes them.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { writeFile } from "node:fs/promises";
import { get } from "node:http";
import { join } from "node:path";
import { describe, it } from "node:test";
import { open } from "./support/browser.mjs";

/** Layouts of a file: raw leaves, and dag-pb leaves with both CID versions. */
const VARIANTS = {
  "raw leaves": ["--cid-version=1"],
  "dag-pb leaves, CIDv0": ["--cid-version=0"],
  "dag-pb leaves, CIDv1": ["--cid-version=1", "--raw-leaves=false"],
};
/** Leaves of the file, at 256 KiB each; the last one is short. */
const LEAVES = 5;
const LINES = [...Array(60_000).keys()].map((line) => `line ${line}: ${line % 99} bottles, ${(line * line).toString(16)}\n`);
const TEXT = Buffer.from(LINES.join("")).subarray(0, (LEAVES - 1) * 256 * 1024 + 1000);

const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");

/** Stores the text in every variant; returns the paths. */
export async function storeText(gateway, dir) {
  const file = join(dir, "text.txt");
  await writeFile(file, TEXT);
  return Object.fromEntries(Object.entries(VARIANTS).map(([name, flags]) => [name, gateway.add(file, flags)]));
}

/** The body of a response as it is sent. */
function asSent(url, headers) {
  return new Promise((resolve, reject) => {
    get(url, { headers }, (response) => {
      const chunks = [];
      response.on("data", (chunk) => chunks.push(chunk));
      response.on("end", () => resolve({ headers: response.headers, body: Buffer.concat(chunks) }));
      response.on("error", reject);
    }).on("error", reject);
  });
}

/** The number of concatenated frames (RFC 8878, section 3.1.1). */
function countFrames(body) {
  let [at, frames] = [0, 0];
  while (at < body.length) {
    assert.equal(body.readUInt32LE(at), 0xfd2fb528, `a frame begins at ${at} of ${body.length}`);
    const descriptor = body[at + 4];
    const [sizeFlag, single, checksum] = [descriptor >> 6, (descriptor >> 5) & 1, (descriptor >> 2) & 1];
    at += 5 + (single ? 0 : 1) + [0, 1, 2, 4][descriptor & 3] + (sizeFlag === 0 ? single : 2 ** sizeFlag);
    for (let last = 0; !last; ) {
      const block = body.readUIntLE(at, 3);
      last = block & 1;
      // An RLE block has only one byte.
      at += 3 + (((block >> 1) & 3) === 1 ? 1 : block >> 3);
    }
    at += 4 * checksum;
    frames += 1;
  }
  assert.equal(at, body.length);
  return frames;
}

/** Runs in the page: fetches a path, and returns the result. */
async function inPage({ path, headers }) {
  const response = await fetch(path, { headers, cache: "no-store" });
  const bytes = await response.arrayBuffer();
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const entry = performance.getEntriesByName(new URL(path, location.href).href).at(-1);
  return {
    status: response.status,
    encoding: response.headers.get("content-encoding"),
    length: bytes.byteLength,
    sha256: [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join(""),
    sentBytes: entry.encodedBodySize,
  };
}

export default function encoded({ gateway, browser, text }) {
  describe("text that is stored compressed", () => {
    for (const name of Object.keys(VARIANTS)) {
      const path = () => text[name];

      it(`is sent as the frames of its blocks: ${name}`, async () => {
        const { headers, body } = await asSent(gateway.origin + path(), { "accept-encoding": "gzip, deflate, br, zstd" });
        assert.equal(headers["content-encoding"], "zstd");
        assert.equal(headers["content-length"], String(body.length));
        assert.equal(countFrames(body), LEAVES);
      });

      it(`is read by a script as it was written, in fewer bytes: ${name}`, () => browser.page(async (page) => {
        await open(page, gateway.welcome);
        // The first request, and one with the cached encoding.
        for (let turn = 0; turn < 2; turn += 1) {
          const got = await page.evaluate(inPage, { path: path() });
          assert.deepEqual([got.status, got.encoding, got.length], [200, "zstd", TEXT.length]);
          assert.equal(got.sha256, sha256(TEXT));
          assert.ok(got.sentBytes > 0 && got.sentBytes < TEXT.length / 2, `${got.sentBytes} of ${TEXT.length} bytes`);
        }
      }));

      it(`is shown as a page: ${name}`, () => browser.page(async (page) => {
        const response = await open(page, gateway.origin + path());
        const headers = await response.allHeaders();
        assert.equal(headers["content-encoding"], "zstd");
        assert.match(headers["content-type"], /^text\/plain/);
        const shown = await page.evaluate(() => document.body.textContent);
        assert.equal(sha256(Buffer.from(shown)), sha256(TEXT));
      }));

      it(`is sent in parts as it was written: ${name}`, () => browser.page(async (page) => {
        await open(page, gateway.welcome);
        const [first, last] = [200_000, 600_000];
        const got = await page.evaluate(inPage, { path: path(), headers: { range: `bytes=${first}-${last}` } });
        const part = TEXT.subarray(first, last + 1);
        assert.deepEqual([got.status, got.encoding, got.length], [206, null, part.length]);
        assert.equal(got.sha256, sha256(part));
        // A browser's range request accepts only identity; one without Accept-Encoding also gets identity.
        const headers = { range: `bytes=${first}-${last}`, "accept-encoding": "zstd" };
        const sent = await asSent(gateway.origin + path(), headers);
        assert.equal(sent.headers["content-encoding"], undefined);
        assert.ok(sent.body.equals(part));
      }));
    }
  });
}
