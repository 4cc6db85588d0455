// Directory listings: readable on every screen, with links that work.

import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { VIEW_NAMES, assertIcon, assertReadable, open } from "./support/browser.mjs";
import { LONG_NAME, MANY_ENTRIES, NESTED, PROVOKING_NAMES, manyName, manyText } from "./support/content.mjs";

/** The minimum size of touch targets (WCAG 2.2, 2.5.8, requires 24 px). */
const TARGET_PX_MIN = 32;

/** The link of an entry, by its name; the links of all entries; the breadcrumbs; the link to the parent. */
const entry = (page, name) => page.getByRole("main").getByRole("link", { name, exact: true });
const entries = (page) => page.locator("main li:not(.up) a:not(.ipfs-hash)");
const crumbs = (page) => page.locator("header h1").getByRole("link");
const parent = (page) => page.locator("main li.up").getByRole("link");

export default function listings({ gateway, browser, content }) {
  const folder = `${gateway.origin}/ipfs/${content.cids.folder}/`;

  describe("a directory listing", () => {
    for (const view of VIEW_NAMES) {
      for (const dark of [false, true]) {
        it(`is readable on a ${view}${dark ? " in the dark" : ""}`, () => browser.page(async (page) => {
          await open(page, folder);
          await browser.picture(page, `listing-${view}${dark ? "-dark" : ""}`);
          await assertReadable(page);
          for (const link of await entries(page).all()) {
            const { height } = await link.boundingBox();
            assert.ok(height >= TARGET_PX_MIN, `${await link.innerText()} is ${height} px high`);
          }
        }, { view, dark }));
      }
    }

    it("opens every entry, whatever its name", () => browser.page(async (page) => {
      for (const name of [...PROVOKING_NAMES, LONG_NAME]) {
        await open(page, folder);
        await entry(page, name).click();
        await page.waitForURL((url) => url.href !== folder);
        assert.equal(await page.evaluate(() => document.body.innerText.trim()), name);
        // Neither a query nor a fragment: the whole name is in the path.
        assert.equal(decodeURIComponent(new URL(page.url()).pathname), `/ipfs/${content.cids.folder}/${name}`);
      }
    }));

    it("draws an icon for everything", () => browser.page(async (page) => {
      await open(page, `${folder}${encodeURIComponent(NESTED[0])}/`);
      // An icon is a mask, a picture or text, not a filled box.
      const boxes = await page.locator("main li i").evaluateAll((all) => all.filter((icon) => {
        const { backgroundColor, maskImage } = getComputedStyle(icon);
        return !["rgba(0, 0, 0, 0)", "transparent"].includes(backgroundColor) && maskImage === "none";
      }).map((icon) => icon.closest("li").innerText));
      assert.deepEqual(boxes, []);
    }));

    it("has links into folders and breadcrumbs back", () => browser.page(async (page) => {
      await open(page, folder);
      for (const name of NESTED) await entry(page, name).click();
      await entry(page, "file.txt").waitFor();
      assert.equal(decodeURIComponent(new URL(page.url()).pathname), `/ipfs/${content.cids.folder}/${NESTED.join("/")}/`);
      await crumbs(page).filter({ hasText: NESTED[0] }).click();
      await entry(page, NESTED[1]).waitFor();
      await crumbs(page).filter({ hasText: content.cids.folder }).click();
      await entry(page, NESTED[0]).waitFor();
      assert.equal(page.url(), folder);
    }));

    it("has a link to the parent except at the root", () => browser.page(async (page) => {
      await open(page, folder);
      for (const name of NESTED) await entry(page, name).click();
      await entry(page, "file.txt").waitFor();
      await parent(page).click();
      await entry(page, NESTED[1]).waitFor();
      await parent(page).click();
      await page.waitForURL(folder);
      assert.equal(await parent(page).count(), 0);
    }));

    it("also links each entry by its own CID", () => browser.page(async (page) => {
      await open(page, folder);
      const row = page.getByRole("listitem").filter({ has: page.getByRole("link", { name: "film.mp4" }) });
      const href = await row.locator("a.ipfs-hash").evaluate((a) => a.href);
      assert.equal(new URL(href).pathname, `/ipfs/${content.cids.big}`);
    }));

    it("works without scripts, and sends no other requests", () => browser.page(async (page) => {
      await open(page, folder);
      assert.equal(await page.locator("script").count(), 0);
      await assertIcon(page);
    }));

    for (const view of VIEW_NAMES) {
      it(`of deep folders with long names fits on a ${view}`, () => browser.page(async (page) => {
        const path = NESTED.map(encodeURIComponent).join("/");
        await open(page, `${folder}${path}/`);
        await browser.picture(page, `listing-nested-${view}`);
        await assertReadable(page);
      }, { view }));
    }
  });

  describe("a sharded directory of thousands", () => {
    const many = `${gateway.origin}/ipfs/${content.cids.many}/`;
    const next = (page) => page.locator("a[rel~=next]");

    it("shows every entry exactly once from page to page", () => browser.page(async (page) => {
      const names = [];
      await open(page, many);
      for (;;) {
        names.push(...(await entries(page).evaluateAll((all) => all.map((a) => decodeURIComponent(new URL(a.href).pathname)))));
        assert.ok(names.length <= MANY_ENTRIES, "nothing comes twice");
        if ((await next(page).count()) === 0) break;
        const before = page.url();
        await next(page).first().click();
        await page.waitForURL((url) => url.href !== before);
      }
      const expected = [...Array(MANY_ENTRIES).keys()].map((i) => `/ipfs/${content.cids.many}/${manyName(i)}`);
      assert.deepEqual(names.sort(), expected);
    }));

    for (const view of VIEW_NAMES) {
      it(`has a link to the next page on a ${view}`, () => browser.page(async (page) => {
        await open(page, many);
        await next(page).first().scrollIntoViewIfNeeded();
        await browser.picture(page, `listing-paged-${view}`, { fullPage: false });
        await assertReadable(page);
        const { height } = await next(page).first().boundingBox();
        assert.ok(height >= TARGET_PX_MIN, `the link is ${height} px high`);
        await next(page).first().click();
        await page.waitForURL((url) => url.href !== many);
        await browser.picture(page, `listing-paged-second-${view}`, { fullPage: false });
      }, { view }));
    }

    it("opens an entry far down", () => browser.page(async (page) => {
      const response = await open(page, `${many}${manyName(MANY_ENTRIES - 1)}`);
      assert.equal(await response.text(), manyText(MANY_ENTRIES - 1));
    }));
  });
}
