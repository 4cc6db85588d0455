// Error pages: they have a message, fit every screen, and have the right status.

import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { VIEW_NAMES, assertIcon, assertReadable, open } from "./support/browser.mjs";
import { LONG_NAME } from "./support/content.mjs";

/** "nobody has this", as a raw block that is not available. */
const NOWHERE = "bafkreibmn4gaz77jk3t25jgwhb35yy5bqrxbvgzmgs6h3xwkgo36iqwfya";

export default function errors({ gateway, alone, browser, content }) {
  const table = [
    ["no-such-entry", 404, `${gateway.origin}/ipfs/${content.cids.folder}/missing-${LONG_NAME}`, /not found/i],
    ["no-such-page", 404, `${gateway.origin}/nothing/here`, /not found/i],
    ["not-stored-locally", 404, `${gateway.origin}/ipfs/${NOWHERE}`, /stored locally/i],
    ["not-a-cid", 400, `${gateway.origin}/ipfs/not-a-cid${"x".repeat(200)}`, /not a cid/i],
    ["no-peers", 504, `${alone.origin}/ipfs/${NOWHERE}`, /no peers/i],
  ];

  describe("a page for a failure", () => {
    for (const [name, status, url, words] of table) {
      for (const view of VIEW_NAMES) {
        for (const dark of [false, true]) {
          const title = `${name}-${view}${dark ? "-dark" : ""}`;
          it(`has a message: ${title}`, () => browser.page(async (page) => {
            const response = await open(page, url, status);
            assert.match(response.headers()["content-type"], /^text\/html/);
            await browser.picture(page, `error-${title}`);
            await assertReadable(page);
            assert.match(await page.getByRole("heading").first().innerText(), words);
            assert.match(await page.title(), new RegExp(`^${status} `));
          }, { view, dark, failures: true }));
        }
      }
    }

    it("sends no other requests", () => browser.page(async (page) => {
      await open(page, `${gateway.origin}/nothing/here`, 404);
      assert.equal(await page.locator("script").count(), 0);
      await assertIcon(page);
    }, { failures: true }));

    it("is plain text for programs", () => browser.page(async (page) => {
      await open(page, `${gateway.origin}/ipfs/${content.cids.site}/`);
      const type = await page.evaluate(async (url) => (await fetch(url)).headers.get("content-type"), `/ipfs/${NOWHERE}`);
      assert.match(type, /^text\/plain/);
    }, { failures: true }));
  });
}
