// Documents that are not files: their HTML page, and its links.
//
// A gateway sends documents as they are stored; converting codecs is left to clients (IPIP-524).

import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { VIEW_NAMES, assertIcon, assertReadable, open } from "./support/browser.mjs";

export default function documents({ gateway, browser, content }) {
  const address = (codec) => `${gateway.origin}/ipfs/${content.cids[codec]}`;

  for (const [codec, format] of [["dagCbor", "dag-cbor"], ["dagJson", "dag-json"]]) {
    describe(`a ${format} document`, () => {
      for (const view of VIEW_NAMES) {
        for (const dark of [false, true]) {
          const name = `${view}${dark ? "-dark" : ""}`;
          it(`is shown as a page on a ${name}`, () => browser.page(async (page) => {
            const response = await open(page, address(codec));
            assert.match(response.headers()["content-type"], /^text\/html/);
            await browser.picture(page, `${format}-${name}`);
            await assertReadable(page);
            const text = await page.evaluate(() => document.body.innerText);
            for (const part of [content.document.title, content.cids.site, content.cids[codec], "deeper", "-2"]) {
              assert.ok(text.includes(part), `the page says ${part}`);
            }
          }, { view, dark }));
        }
      }

      it("works without scripts, and sends no other requests", () => browser.page(async (page) => {
        await open(page, address(codec));
        assert.equal(await page.locator("script").count(), 0);
        await assertIcon(page);
      }));

      it("has links that work", () => browser.page(async (page) => {
        await open(page, address(codec));
        // By CID or by the path through the document.
        await page.getByRole("link", { name: content.cids.site }).first().click();
        await page.waitForURL((url) => url.href !== address(codec));
        assert.equal(await page.title(), "A site");
      }));

      it("has a link to the document as it is stored", () => browser.page(async (page) => {
        await open(page, address(codec));
        const links = page.locator(`a[href*="format=${format}"], a[href*="format=raw"]`);
        const href = await links.first().evaluate((a) => a.href);
        const given = await page.evaluate(async (url) => [...new Uint8Array(await (await fetch(url)).arrayBuffer())], href);
        assert.ok(Buffer.from(given).equals(content.stored[codec]));
      }));

      it("can be traversed by a path", () => browser.page(async (page) => {
        await open(page, `${address(codec)}/site/about/`);
        assert.equal(await page.title(), "About");
      }));
    });
  }
}
