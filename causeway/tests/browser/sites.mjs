// Web sites below a path, and the gateway's own pages.

import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { VIEW_NAMES, assertIcon, assertReadable, open } from "./support/browser.mjs";

export default function sites({ gateway, browser, content }) {
  const site = `${gateway.origin}/ipfs/${content.cids.site}/`;

  describe("a site in a directory", () => {
    it("shows its index with style, script and pictures", () => browser.page(async (page) => {
      // Without the trailing slash, relative links would not work: the browser is redirected.
      await open(page, site.slice(0, -1));
      assert.equal(page.url(), site);
      assert.equal(await page.title(), "A site");
      const colour = await page.locator("h1").evaluate((h1) => getComputedStyle(h1).color);
      assert.equal(colour, "rgb(1, 2, 3)");
      assert.equal(await page.locator("#from-script").innerText(), "made by a script");
      assert.equal(await page.locator("img").evaluate((img) => img.decode().then(() => img.naturalWidth)), 20);
    }));

    it("keeps its relative links", () => browser.page(async (page) => {
      await open(page, site);
      await page.getByRole("link", { name: "About" }).click();
      await page.waitForURL(`${site}about/`);
      await page.getByRole("link", { name: "Back" }).click();
      await page.waitForURL(site);
    }));

    it("plays a film from the middle by byte ranges", () => browser.page(async (page) => {
      await open(page, site);
      const url = `/ipfs/${content.cids.folder}/film.mp4`;
      const given = await page.evaluate(async (film) => {
        const response = await fetch(film, { headers: { range: "bytes=300000-300009" } });
        return { status: response.status, bytes: [...new Uint8Array(await response.arrayBuffer())] };
      }, url);
      assert.deepEqual(given, { status: 206, bytes: [...content.big.subarray(300_000, 300_010)] });
    }));

    it("comes from the browser's own cache the second time", () => browser.page(async (page) => {
      await open(page, site);
      await page.getByRole("link", { name: "About" }).click();
      await page.waitForURL(`${site}about/`, { waitUntil: "load" });
      // Both pages have the same style sheet.
      const sizes = await page.evaluate((url) => performance.getEntriesByName(url).map((entry) => entry.transferSize),
        `${site}style.css`);
      assert.deepEqual(sizes, [0], "no byte was transferred");
    }));
  });

  describe("the gateway's own pages", () => {
    for (const view of VIEW_NAMES) {
      for (const dark of [false, true]) {
        const name = `${view}${dark ? "-dark" : ""}`;
        it(`have the welcome site on a ${name}`, () => browser.page(async (page) => {
          await open(page, gateway.welcome.replace("localhost", "127.0.0.1"));
          await browser.picture(page, `welcome-${name}`);
          await assertReadable(page);
        }, { view, dark }));

        it(`have a landing page on a ${name}`, () => browser.page(async (page) => {
          await open(page, `${gateway.origin}/`);
          await browser.picture(page, `landing-${name}`);
          await assertReadable(page);
        }, { view, dark }));
      }
    }

    it("need no scripts at /, and send no other requests", () => browser.page(async (page) => {
      await open(page, `${gateway.origin}/`);
      assert.equal(await page.locator("script").count(), 0);
      await assertIcon(page);
    }));

    it("lead from / to content", () => browser.page(async (page) => {
      await open(page, `${gateway.origin}/`);
      const links = await page.locator("a[href*='/ipfs/']").evaluateAll((all) => all.map((a) => a.href));
      assert.ok(links.length > 0, "there is a link to content");
      for (const link of links) await open(page, link);
    }));

    const { site: cid } = content.cids;
    const spellings = [
      [`ipfs://${cid}/about/`, `${site}about/`],
      [`/ipfs/${cid}/about/`, `${site}about/`],
      [cid, site],
      [` ${cid} `, site],
    ];
    for (const [typed, expected] of spellings) {
      it(`open what is typed into the field at /: ${typed.replace(cid, "CID")}`, () => browser.page(async (page) => {
        await open(page, `${gateway.origin}/`);
        await page.getByRole("textbox").fill(typed);
        await page.keyboard.press("Enter");
        await page.waitForURL((url) => !["/", "/ipfs/"].includes(url.pathname) || url.search !== "");
        assert.equal(page.url(), expected);
      }));
    }

    it("open what is typed into the welcome page", () => browser.page(async (page) => {
      await open(page, gateway.welcome.replace("localhost", "127.0.0.1"));
      await page.getByRole("textbox").fill(`ipfs://${content.cids.site}/about/`);
      await page.getByRole("button").click();
      await page.waitForURL(`${site}about/`);
    }));
  });
}
