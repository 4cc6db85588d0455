// Documents that are no files: the page that shows them, and its links.

import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { VIEW_NAMES, assertReadable, open } from "./support/browser.mjs";

export default function documents({ gateway, browser, content }) {
  const document = `${gateway.origin}/ipfs/${content.cids.document}`;

  describe("a dag-cbor document", () => {
    for (const view of VIEW_NAMES) {
      for (const dark of [false, true]) {
        const name = `${view}${dark ? "-dark" : ""}`;
        it(`is shown as a page on a ${name}`, () => browser.page(async (page) => {
          const response = await open(page, document);
          assert.match(response.headers()["content-type"], /^text\/html/);
          await browser.picture(page, `document-${name}`);
          await assertReadable(page);
          const text = await page.evaluate(() => document.body.innerText);
          for (const part of [content.document.title, content.cids.site, content.cids.document]) {
            assert.ok(text.includes(part), `the page says ${part}`);
          }
        }, { view, dark }));
      }
    }

    it("leads to what it links to", () => browser.page(async (page) => {
      await open(page, document);
      await page.locator(`a[href*="${content.cids.site}"]`).first().click();
      await page.waitForURL(`**/ipfs/${content.cids.site}/**`);
      assert.equal(await page.title(), "A site");
    }));

    it("can be had as JSON by a link", () => browser.page(async (page) => {
      await open(page, document);
      const href = await page.locator("a[href*='format=dag-json']").first().evaluate((a) => a.href);
      const given = await page.evaluate((url) => fetch(url).then((response) => response.json()), href);
      assert.deepEqual(given, content.document);
    }));

    it("is left by a path to what is behind its links", () => browser.page(async (page) => {
      await open(page, `${document}/site/about/`);
      assert.equal(await page.title(), "About");
    }));
  });
}
