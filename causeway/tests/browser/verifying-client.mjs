// A trustless web application: Helia's verified fetch runs in the browser, on a page of another origin, with this
// gateway as its only source, and verifies every block.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { open } from "./support/browser.mjs";
import { manyName, manyText } from "./support/content.mjs";
import { startProxy, serveFiles } from "./support/proxy.mjs";

const BUNDLE = "node_modules/@helia/verified-fetch/dist/index.min.js";
const PAGE = `<!doctype html><meta charset="utf-8"><title>A client</title><script src="/client.js"></script>`;
/** The client has failed if it is idle for so long. */
const IDLE_MS = 30_000;
const IDLE_MS_WHEN_SPOILT = 2_000;

/** Runs in the page: fetches `resource` only through `gateway`, until the client is idle. */
async function fetchVerified({ gateway, resource, init, idleMs }) {
  const client = await HeliaVerifiedFetch.createVerifiedFetch({
    gateways: [gateway],
    routers: [],
    allowInsecure: true,
    allowLocal: true,
    // No other sources.
    libp2pConfig: { addresses: { listen: [] }, peerDiscovery: [], start: false },
  });
  const patience = new AbortController();
  let idle;
  const steps = { received: 0, accepted: 0 };
  const onProgress = ({ type }) => {
    clearTimeout(idle);
    idle = setTimeout(() => patience.abort(new Error("the client has given up")), idleMs);
    if (type === "helia:block-broker:receive-block") steps.received += 1;
    if (type === "blocks:get:blockstore:put") steps.accepted += 1;
  };
  try {
    const response = await client(resource, { ...init, signal: patience.signal, onProgress });
    const url = await response.blob().then((blob) => new Promise((resolve, reject) => {
      const reader = Object.assign(new FileReader(), { onerror: reject, onload: () => resolve(reader.result) });
      reader.readAsDataURL(blob);
    }));
    return { steps, status: response.status, base64: url.slice(url.indexOf(",") + 1) };
  } catch (error) {
    return { steps, error: `${error.name}: ${error.message}` };
  } finally {
    clearTimeout(idle);
    await client.stop();
  }
}

const bytesOf = ({ base64 }) => Buffer.from(base64, "base64");

export default function verifyingClient({ gateway, browser, content, modules }) {
  describe("a client that verifies", () => {
    let page;
    const through = (source, resource, init = {}, idleMs = IDLE_MS) => browser.page(async (tab) => {
      await open(tab, `${page.origin}/`);
      return tab.evaluate(fetchVerified, { gateway: source.origin, resource, init, idleMs });
    }, { failures: true });
    const expectBytes = (given, expected, status = 200) => {
      assert.equal(given.error, undefined);
      assert.equal(given.status, status);
      assert.ok(bytesOf(given).equals(Buffer.from(expected)), "the bytes are the file's");
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
      assert.match(bytesOf(given).toString(), /<h1>About<\/h1>/);
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
      const init = { headers: { accept: "application/vnd.ipld.dag-cbor" } };
      expectBytes(await through(gateway, `ipfs://${content.cids.dagCbor}`, init), content.stored.dagCbor);
    });

    it("reads what is behind a document's links", async () => {
      expectBytes(await through(gateway, `ipfs://${content.cids.dagCbor}/nested/deeper/file`), content.big);
    });

    it("gets the same blocks through a proxy", async () => {
      const honest = await startProxy(gateway.origin);
      try {
        expectBytes(await through(honest, `ipfs://${content.cids.big}`), content.big);
        assert.ok(honest.seen.some((url) => url.includes(content.cids.big)), "it asked there");
        const formats = honest.seen.map((url) => new URL(url, honest.origin).searchParams.get("format"));
        assert.deepEqual([...new Set(formats)], ["raw"]);
      } finally {
        await honest.close();
      }
    });

    const corruptions = [
      ["the first block", (url) => url.includes(content.cids.big)],
      ["a later block", (url) => url.includes("/ipfs/") && !url.includes(content.cids.big)],
    ];
    for (const [which, corrupts] of corruptions) {
      it(`detects one flipped bit: ${which}`, async () => {
        const corrupting = await startProxy(gateway.origin, corrupts);
        try {
          const given = await through(corrupting, `ipfs://${content.cids.big}`, {}, IDLE_MS_WHEN_SPOILT);
          assert.notEqual(given.error, undefined, "it does not answer with what it got");
          const { received, accepted } = given.steps;
          assert.ok(received > accepted, `of ${received} blocks it accepted ${accepted}`);
        } finally {
          await corrupting.close();
        }
      });
    }
  });
}
