// Every page, in each theme and width: it has what an operator needs to see, is readable and accessible, and fits.

import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { assertReadable } from "../support/browser.mjs";
import { assertAccessible, assertTabReachesAll } from "./axe.mjs";
import { PAGES, VARIANTS, all, button, dialogOf, eventually, follow, heading, main, nameOf, settled } from "./driver.mjs";
import { breakableProxy } from "./world.mjs";

export default function pages({ console_, gateway }) {
  describe("each page", () => {
    for (const variant of VARIANTS) {
      it(`is readable and accessible: ${nameOf(variant)}`, async () => {
        await console_.open(async (page) => {
          await page.goto(`${console_.origin}/`);
          await page.getByRole("button", { name: "Sign in" }).waitFor();
          await console_.picture(page, `sign-in-${nameOf(variant)}`);
          await assertReadable(page);
          await assertAccessible(page, "signing in");
          await page.getByLabel("Token", { exact: true }).fill(gateway.token);
          await page.getByRole("button", { name: "Sign in" }).click();
          await all(Object.keys(PAGES).map((id) => async () => {
            await follow(page, id);
            await settled(page);
            assert.equal(new URL(page.url()).hash, `#/${id}`);
            assert.match(await page.title(), new RegExp(`^${PAGES[id]}\\b`));
            await console_.picture(page, `${id}-${nameOf(variant)}`);
            await assertReadable(page, id);
            await assertAccessible(page, id);
          }));
        }, variant);
      });
    }

    it("can be used with the keyboard alone", () => console_.signedIn(async (page) => {
      await all(Object.keys(PAGES).map((id) => async () => {
        await console_.show(page, id);
        await settled(page);
        await assertTabReachesAll(page, id);
      }));
    }));

    // The pages with dialogs, and what opens them.
    const dialogs = {
      peers: ["Connect…"],
      pins: ["Pin content"],
      names: ["Create a key", "Import a key", "Publish"],
      tokens: ["Create a token"],
      store: ["Check…", "Compact…"],
      settings: ["Drain…", "Stop the process…"],
    };
    for (const dark of [false, true]) {
      it(`has dialogs that hold the focus and return it${dark ? ", in the dark" : ""}`, () => console_.signedIn(async (page) => {
        await all(Object.entries(dialogs).map(([id, names]) => async () => {
          await console_.show(page, id);
          await settled(page);
          for (const name of names) {
            const opener = button(main(page), name);
            await opener.focus();
            await page.keyboard.press("Enter");
            await dialogOf(page).waitFor();
            await assertAccessible(page, `the dialog of ${name}`);
            if (!dark) await assertTabReachesAll(page, `the dialog of ${name}`);
            for (const key of ["Tab", "Tab", "Tab", "Shift+Tab", "Shift+Tab"]) {
              await page.keyboard.press(key);
              const isInside = await page.evaluate(() => document.activeElement === document.body
                || document.querySelector("dialog").contains(document.activeElement));
              assert.ok(isInside, `${name}: ${key} stays in the dialog`);
            }
            await console_.picture(page, `dialog-${id}-${names.indexOf(name)}${dark ? "-dark" : ""}`, { fullPage: false });
            await page.keyboard.press("Escape");
            await dialogOf(page).waitFor({ state: "detached" });
            await eventually(async () => {
              assert.ok(await opener.evaluate((element) => element === document.activeElement), `${name} has the focus again`);
            });
          }
        }));
      }, { dark }));
    }

    it("has a link past the navigation", () => console_.signedIn(async (page) => {
      await page.reload();
      await console_.signIn(page);
      await page.keyboard.press("Shift+Tab");
      const skip = page.getByRole("link", { name: "Skip to the content" });
      for (let presses = 0; !(await skip.evaluate((link) => link === document.activeElement)); presses += 1) {
        assert.ok(presses < 30, "the link is reached backwards from the heading");
        await page.keyboard.press("Shift+Tab");
      }
      assert.ok(await skip.evaluate((link) => link.getBoundingClientRect().left >= 0), "it is visible");
      await page.keyboard.press("Enter");
      assert.ok(await heading(page, "overview").evaluate((h1) => h1 === document.activeElement));
    }));

    it("has an address, which Back and a new tab show again", () => console_.signedIn(async (page) => {
      await follow(page, "pins");
      await follow(page, "settings");
      await page.goBack();
      await heading(page, "pins").waitFor();
      await page.goForward();
      await heading(page, "settings").waitFor();
    }));

    it("is only listed for tokens that may use it", async () => {
      const reader = await gateway.api("POST", "/api/v1/tokens", { json: { name: "reader", scopes: ["read"] } });
      const remover = await gateway.api("POST", "/api/v1/tokens", { json: { name: "remover", scopes: ["takedown"] } });
      const listed = (token) => console_.signedIn(async (page) => {
        await settled(page);
        return page.getByRole("navigation", { name: "Pages" }).getByRole("link").allInnerTexts();
      }, { token, refusals: true });
      const [all, read, takedown] = [await listed(gateway.token), await listed(reader.token), await listed(remover.token)];
      assert.deepEqual(all, Object.values(PAGES));
      assert.ok(read.includes("Overview") && !read.includes("Audit") && !read.includes("Uploads"), read.join());
      assert.deepEqual(takedown, ["Denylists", "Tokens"]);
      for (const { id } of [reader, remover]) await gateway.api("DELETE", `/api/v1/tokens/${id}`);
    });
  });

  describe("a page of a gateway that stops answering", () => {
    it("says so, and goes on when it answers again", async () => {
      const proxy = await breakableProxy(console_.origin);
      try {
        await console_.at(proxy.origin).signedIn(async (page) => {
          const notice = page.getByText("The gateway does not answer. This page tries again every two seconds.");
          await settled(page);
          assert.equal(await notice.isVisible(), false);
          proxy.refuse(true);
          await notice.waitFor();
          proxy.refuse(false);
          await notice.waitFor({ state: "hidden" });
          await heading(page, "overview").waitFor();
        }, { refusals: true });
      } finally {
        await proxy.close();
      }
    });
  });
}
