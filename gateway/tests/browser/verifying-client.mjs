// A web application that trusts nobody: Helia's verified fetch runs in the browser, on a page of another origin, with this
// gateway as its only source, and checks every block itself.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { open } from "./support/browser.mjs";
import { manyName, manyText } from "./support/content.mjs";
import { meddle, serveFiles } from "./support/meddler.mjs";

const BUNDLE = "node_modules/@helia/verified-fetch/dist/index.min.js";
const PAGE = `<!doctype html><meta charset="utf-8"><title>A client</title><script src="/client.js"></script>`;
/** How long the client may try before it counts as refusing what it got. */
const REFUSAL_MS = 10_000;

/** Runs in the page: fetches `resource` by way of `gateway` alone. */
async function fetchVerified({ gateway, resource, init, refusalMs }) {
  const client = await HeliaVerifiedFetch.createVerifiedFetch({
    gateways: [gateway],
    routers: [],
    allowInsecure: true,
    allowLocal: true,
    // Nobody else to talk to.
    libp2pConfig: { addresses: { listen: [] }, peerDiscovery: [], start: false },
  });
  try {
    const signal = AbortSignal.timeout(refusalMs);
    const response = await client(resource, { ...init, signal });
    const bytes = [...new Uint8Array(await response.arrayBuffer())];
    return { status: response.status, type: response.headers.get("content-type"), bytes };
  } catch (error) {
    return { error: `${error.name}: ${error.message}` };
  } finally {
    await client.stop();
  }
}

export default function verifyingClient({ gateway, browser, content, modules }) {
  describe("a client that verifies", () => {
    let page;
    const through = (source, resource, init, refusalMs = 60_000) => browser.page(async (tab) => {
      await open(tab, `${page.origin}/`);
      return tab.evaluate(fetchVerified, { gateway: source.origin, resource, init, refusalMs });
    }, { troubles: true });
    const expectBytes = (given, expected, status = 200) => {
      assert.equal(given.error, undefined);
      assert.equal(given.status, status);
      assert.ok(Buffer.from(given.bytes).equals(Buffer.from(expected)), "the bytes are the file's");
    };

    before(async () => {
      const bundle = await readFile(join(modules, BUNDLE));
      page = await serveFiles({ "/": ["text/html", PAGE], "/client.js": ["text/javascript", bundle] });
    });
    after(() => page.close());

    it("reads a file of several blocks", async () => {
      expectBytes(await through(gateway, `ipfs://${content.cids.big}`), content.big);
    });

    it("reads by a path", async () => {
      const given = await through(gateway, `ipfs://${content.cids.site}/js/app.js`);
      expectBytes(given, "document.querySelector('#from-script').textContent = 'made by a script';");
    });

    it("reads a site's index", async () => {
      const given = await through(gateway, `ipfs://${content.cids.site}/about/`);
      assert.match(Buffer.from(given.bytes).toString(), /<h1>About<\/h1>/);
    });

    it("reads an entry of a sharded directory", async () => {
      expectBytes(await through(gateway, `ipfs://${content.cids.many}/${manyName(1234)}`), manyText(1234));
    });

    it("reads part of a file", async () => {
      const init = { headers: { range: "bytes=262140-262149" } };
      const given = await through(gateway, `ipfs://${content.cids.big}`, init);
      expectBytes(given, content.big.subarray(262_140, 262_150), 206);
    });

    it("reads a document", async () => {
      const init = { headers: { accept: "application/vnd.ipld.dag-json" } };
      const given = await through(gateway, `ipfs://${content.cids.document}`, init);
      assert.deepEqual(JSON.parse(Buffer.from(given.bytes)), content.document);
    });

    it("is given the same blocks by a bystander who passes them on", async () => {
      const honest = await meddle(gateway.origin);
      try {
        expectBytes(await through(honest, `ipfs://${content.cids.big}`), content.big);
        assert.ok(honest.seen.some((url) => url.includes(content.cids.big)), "it asked there");
        const formats = honest.seen.map((url) => new URL(url, honest.origin).searchParams.get("format"));
        assert.deepEqual([...new Set(formats)], ["raw"]);
      } finally {
        await honest.close();
      }
    });

    it("notices one bit that was turned over on the way", async () => {
      const spoilt = await meddle(gateway.origin, (url) => url.includes("/ipfs/"));
      try {
        const given = await through(spoilt, `ipfs://${content.cids.big}`, {}, REFUSAL_MS);
        assert.ok(given.error !== undefined || given.status >= 400, `it took what it got: ${given.status}`);
        assert.ok(spoilt.seen.length > 0, "it asked there");
      } finally {
        await spoilt.close();
      }
    });
  });
}
