// HTTP/3: the browser speaks it, and receives the same content. That it goes over to QUIC by itself (Alt-Svc) cannot be
// tested here: Chromium ignores Alt-Svc of certificates that no public authority has signed.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, it } from "node:test";
import { Browser } from "./support/browser.mjs";

/** A few mebibytes, more than any window. */
const BYTES = Buffer.from([...Array(3 << 20).keys()].map((n) => (n * 2654435761) >>> 24));

/** The protocol of the page, and the hash of what it fetches. */
async function protocolAndHash(page, path) {
  return page.evaluate(async (path) => {
    const response = await fetch(path, { cache: "no-store" });
    const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", await response.arrayBuffer()));
    const entries = performance.getEntriesByName(new URL(path, location).href);
    return { protocol: entries.at(-1).nextHopProtocol, hash: [...hash].map((n) => n.toString(16).padStart(2, "0")).join("") };
  }, path);
}

export default ({ node, folder, launch, certificate }) => {
  describe("HTTP/3", () => {
    it("the browser speaks it, and receives the same content", async () => {
      const gateway = await node("http3", { settings: { ...certificate, CAUSEWAY_HTTP_HTTP3: "true" } });
      const file = join(await folder("http3-files"), "large.bin");
      await writeFile(file, BYTES);
      const path = gateway.add(file);
      await gateway.start(["--offline"]);
      const { host } = new URL(gateway.tlsOrigin);
      const browser = await Browser.launch({ ...launch, quic: true, flags: [`--origin-to-force-quic-on=${host}`] });
      try {
        await browser.page(async (page) => {
          await page.goto(`${gateway.tlsOrigin}/healthz`);
          assert.deepEqual(await protocolAndHash(page, path), { protocol: "h3", hash: createHash("sha256").update(BYTES).digest("hex") });
          // Many at a time, on one connection.
          const all = await page.evaluate(async (path) => {
            const lengths = [...Array(20)].map(async () => (await (await fetch(path, { cache: "no-store" })).arrayBuffer()).byteLength);
            return Promise.all(lengths);
          }, path);
          assert.deepEqual(all, Array(20).fill(BYTES.length));
        });
      } finally {
        await browser.close();
      }
      await gateway.stop();
    });
  });
};
