// HTTP/3: the browser speaks it, and receives the same content. That it goes over to QUIC by itself (Alt-Svc) cannot be
// tested here: Chromium ignores Alt-Svc of certificates that no public authority has signed.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { createHash, X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, it } from "node:test";
import { Browser } from "./support/browser.mjs";

/** A few mebibytes, more than any window. */
const BYTES = Buffer.from([...Array(3 << 20).keys()].map((n) => (n * 2654435761) >>> 24));

const sha256 = (bytes, encoding) => createHash("sha256").update(bytes).digest(encoding);

/** A certificate for 127.0.0.1 and its key, and the hash by which Chromium is told to trust it. */
function makeCertificate(dir) {
  const [certificate, key] = [join(dir, "certificate.pem"), join(dir, "key.pem")];
  const args = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "9"];
  args.push("-keyout", key, "-out", certificate, "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1");
  const made = spawnSync("openssl", args, { encoding: "utf8" });
  if (made.status !== 0) throw new Error(`openssl: ${made.error ?? made.stderr}`);
  const spki = new X509Certificate(readFileSync(certificate)).publicKey.export({ type: "spki", format: "der" });
  return { certificate, key, hash: sha256(spki, "base64") };
}

/** The protocol of the page, and the hash of what it fetches. */
async function protocolAndHash(page, path) {
  return page.evaluate(async (path) => {
    const response = await fetch(path, { cache: "no-store" });
    const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", await response.arrayBuffer()));
    const entries = performance.getEntriesByName(new URL(path, location).href);
    return { protocol: entries.at(-1).nextHopProtocol, hash: [...hash].map((n) => n.toString(16).padStart(2, "0")).join("") };
  }, path);
}

export default ({ node, folder, launch }) => {
  describe("HTTP/3", () => {
    it("the browser speaks it, and receives the same content", async () => {
      const dir = await folder("http3-files");
      const { certificate, key, hash } = makeCertificate(dir);
      const settings = {
        CAUSEWAY_HTTP_TLS_LISTEN: "127.0.0.1:0",
        CAUSEWAY_HTTP_TLS_CERTIFICATE: certificate,
        CAUSEWAY_HTTP_TLS_KEY: key,
        CAUSEWAY_HTTP_HTTP3: "true",
      };
      const gateway = await node("http3", { settings });
      const file = join(dir, "large.bin");
      await writeFile(file, BYTES);
      const path = gateway.add(file);
      await gateway.start(["--offline"]);
      const { host } = new URL(gateway.tlsOrigin);
      const flags = [`--ignore-certificate-errors-spki-list=${hash}`, `--origin-to-force-quic-on=${host}`];
      const browser = await Browser.launch({ ...launch, quic: true, flags });
      try {
        await browser.page(async (page) => {
          await page.goto(`${gateway.tlsOrigin}/healthz`);
          assert.deepEqual(await protocolAndHash(page, path), { protocol: "h3", hash: sha256(BYTES, "hex") });
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
