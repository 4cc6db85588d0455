// The overview: the state and the figures of a gateway that is answering requests.

import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { FLOWS, eventually, main, nameOf, settled } from "./driver.mjs";
import { traffic } from "./world.mjs";

const PICTURES_AFTER_MS = 90_000;
/** Pictures of the documentation, with their themes. */
const PICTURES = {
  desktop: { "console-overview-dark": "dark", "console-overview": "light" },
  phone: { "console-overview-phone": "light" },
};

/** A figure: its value and its note. */
const figure = (page, name) => main(page).locator(".tile").filter({ has: page.getByText(name, { exact: true }) });
const numberOf = (text) => Number(/[\d,.]+/.exec(text)[0].replaceAll(",", ""));

/** The row of a tier in the table of answers: its number of answers. */
async function answersOf(page, tier) {
  const row = main(page).getByRole("row").filter({ has: page.getByRole("rowheader", { name: tier, exact: true }) });
  return numberOf(await row.first().locator("td.numeric").first().innerText());
}

export default function overview({ console_, gateway, content }) {
  describe("the overview", () => {
    for (const [index, variant] of FLOWS.entries()) {
      it(`shows figures that are those of the gateway: ${nameOf(variant)}`, () => console_.signedIn(async (page) => {
        await settled(page);
        const load = traffic(content.pathsOf(index));
        try {
          await eventually(async () => {
            assert.ok(numberOf(await figure(page, "Requests").innerText()) > 0, "requests run");
            assert.ok(load.counts[200] > 0 && load.counts[404] > 0, JSON.stringify(load.counts));
            for (const tier of ["RAM", "Network", "No content"]) assert.ok(await answersOf(page, tier) > 0, tier);
          });
          // Figures run by themselves, once a second.
          const before = await main(page).getByRole("heading", { level: 1 }).evaluate(() => document.body.innerText);
          await eventually(async () => assert.notEqual(await page.evaluate(() => document.body.innerText), before));
          await console_.picture(page, `overview-traffic-${nameOf(variant)}`);
          // The charts of the documentation's pictures have lines of some length.
          if (process.env.BROWSER_TESTS_PICTURES) await pause(PICTURES_AFTER_MS);
          for (const [name, colorScheme] of Object.entries(PICTURES[variant.view])) {
            await page.emulateMedia({ colorScheme });
            await console_.picture(page, name, { fullPage: false });
          }
          await page.emulateMedia({ colorScheme: variant.dark ? "dark" : "light" });
        } finally {
          await load.stop();
        }
        // The page and the API say the same once nothing moves.
        await eventually(async () => {
          const { recent, http } = await gateway.api("GET", "/api/v1/stats");
          const shown = { ram: await answersOf(page, "RAM"), network: await answersOf(page, "Network"), none: await answersOf(page, "No content") };
          for (const [tier, number] of Object.entries(shown)) assert.equal(number, recent[tier]?.requests ?? 0, tier);
          assert.ok(http.requests["2xx"] > 0);
        });
        const failed = await figure(page, "Server errors").innerText();
        const { http } = await gateway.api("GET", "/api/v1/stats");
        assert.ok(failed.includes(`${http.requests["5xx"] ?? 0} since the start`), failed);
      }, variant));
    }

    it("says in a sentence whether the gateway is well", () => console_.signedIn(async (page) => {
      const state = main(page).locator("section.state");
      await settled(page);
      const { findings } = await gateway.api("GET", "/api/v1/health");
      for (const { text } of findings) assert.ok((await state.innerText()).includes(text), text);
      await gateway.api("POST", "/api/v1/drain", { json: { stop: false } });
      try {
        await state.getByText("The gateway is draining").waitFor();
        await page.getByRole("banner").getByText("Draining").waitFor();
      } finally {
        await gateway.api("DELETE", "/api/v1/drain");
      }
      await page.getByRole("banner").getByText("Serving").waitFor();
    }));

    it("tells the figures of a chosen time to the keyboard", () => console_.signedIn(async (page) => {
      const slider = main(page).getByRole("slider").first();
      // A sample is recorded every five seconds.
      await eventually(async () => {
        await slider.focus();
        await page.keyboard.press("End");
        const last = await slider.getAttribute("aria-valuetext");
        await page.keyboard.press("ArrowLeft");
        const earlier = await slider.getAttribute("aria-valuetext");
        assert.match(last, /^\d\d:\d\d:\d\d: Answered /);
        assert.notEqual(earlier, last);
      });
    }));
  });
}
