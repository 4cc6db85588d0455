// HTTP/3: the browser learns of it over HTTP/2 (Alt-Svc), and goes over to QUIC.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { createHash, X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, it } from "node:test";
import { Browser } from "./support/browser.mjs";

const PATIENCE_MS = 30_000;
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
    it("the browser goes over to it, and receives the same content", async () => {
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
      const flags = [`--ignore-certificate-errors-spki-list=${hash}`];
      const browser = await Browser.launch({ ...launch, quic: true, flags });
      try {
        await browser.page(async (page) => {
          await page.goto(`${gateway.tlsOrigin}/healthz`);
          const first = await protocolAndHash(page, path);
          assert.equal(first.hash, sha256(BYTES, "hex"), `the content over ${first.protocol}`);
          // Chromium uses QUIC for new requests as soon as its connection is there.
          const begun = Date.now();
          for (;;) {
            const { protocol, hash } = await protocolAndHash(page, path);
            assert.equal(hash, sha256(BYTES, "hex"), `the content over ${protocol}`);
            if (protocol === "h3") break;
            assert.ok(Date.now() - begun < PATIENCE_MS, `the browser stays with ${protocol}`);
          }
        });
      } finally {
        await browser.close();
      }
      await gateway.stop();
    });
  });
};
