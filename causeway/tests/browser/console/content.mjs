// One piece of content: explained, warmed, pinned and purged.

import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { assertReadable } from "../support/browser.mjs";
import { assertAccessible } from "./axe.mjs";
import { FLOWS, answer, button, dialogOf, eventually, heading, main, nameOf, toastOf } from "./driver.mjs";

export default function contents({ console_, gateway, content }) {
  const isHere = async (cid) => {
    const { held } = await gateway.api("POST", "/api/v1/store/have", { json: { cids: [cid] } });
    return held[0];
  };

  describe("a piece of content", () => {
    for (const [index, variant] of FLOWS.entries()) {
      it(`is explained, warmed, purged and pinned: ${nameOf(variant)}`, () => console_.signedIn(async (page) => {
        const cid = content.remote[220 + index];
        const says = (text) => main(page).locator(".headline").getByText(text).waitFor();
        assert.equal(await isHere(cid), false);
        await page.getByLabel("CID, path, URL or domain", { exact: true }).fill(`ipfs://${cid}`);
        await button(page, "Explain").click();
        await says("Would be fetched from the network");
        assert.equal(new URLSearchParams(new URL(page.url()).hash.split("?")[1]).get("path"), `ipfs://${cid}`);
        assert.equal(await isHere(cid), false, "to explain is not to fetch");
        await assertAccessible(page, "missing content");

        await button(page, "Warm").click();
        await main(page).getByText("All of it is stored here now").waitFor();
        await says(/^Answered from (RAM|the disk)$/);
        assert.equal(await isHere(cid), true);
        const warm = await fetch(`${gateway.origin}/ipfs/${cid}`);
        assert.match(await warm.text(), /^only elsewhere/);

        await button(page, "Purge…").click();
        await dialogOf(page).getByText(/^Deletes /).waitFor();
        await assertAccessible(page, "the question before a purge");
        await answer(page, "Purge");
        await says("Would be fetched from the network");
        assert.equal(await isHere(cid), false);

        await button(page, "Pin…").click();
        await dialogOf(page).getByLabel("Name", { exact: true }).fill(`explained ${index}`);
        await dialogOf(page).getByRole("button", { name: "Pin", exact: true }).click();
        await dialogOf(page).waitFor({ state: "detached" });
        await eventually(async () => {
          const { pins: [pin] } = await gateway.api("GET", `/api/v1/pins?cid=${cid}`);
          assert.deepEqual([pin.status, pin.name], ["pinned", `explained ${index}`]);
        });
        await button(page, "Explain").click();
        await main(page).getByText("Pinned", { exact: true }).first().waitFor();
        await assertReadable(page);
        await assertAccessible(page, "pinned content");
        // What is pinned is not purged.
        await button(page, "Purge…").click();
        await eventually(async () => {
          if (await dialogOf(page).isVisible()) await answer(page, "Purge");
          assert.ok(await toastOf(page, /Nothing to purge|Deleted/).count() > 0);
        });
        assert.equal(await isHere(cid), true);
      }, { at: "content", ...variant }));
    }

    for (const variant of FLOWS) {
      it(`is a picture of its tiers: ${nameOf(variant)}`, () => console_.signedIn(async (page) => {
        await console_.show(page, "content", { path: `/ipfs/${content.site}/big.bin` });
        await main(page).locator(".headline").getByText(/^Answered from/).waitFor();
        const tiers = await main(page).locator(".flow").getByRole("heading").allInnerTexts();
        assert.deepEqual(tiers, ["RAM", "Disk", "Network"]);
        await console_.picture(page, `content-explained-${nameOf(variant)}`);
        if (variant.view === "desktop") await console_.picture(page, "console-content", { fullPage: false });
        await assertReadable(page);
        await assertAccessible(page, "explained content");
        // A path that does not exist is explained as well, with what the public listener answers.
        await page.getByLabel("CID, path, URL or domain", { exact: true }).fill(`/ipfs/${content.site}/nothing`);
        await button(page, "Explain").click();
        await main(page).locator(".headline").getByText("404").waitFor();
        assert.equal((await fetch(`${gateway.origin}/ipfs/${content.site}/nothing`)).status, 404);
        await page.goBack();
        await main(page).locator(".headline").getByText(/^Answered from/).waitFor();
      }, variant));
    }

    it("is found from every page", () => console_.signedIn(async (page) => {
      await page.getByRole("banner").getByRole("searchbox").fill(content.site);
      await page.keyboard.press("Enter");
      await heading(page, "content").waitFor();
      await main(page).locator(".headline").getByText(/^Answered from/).waitFor();
    }, { at: "audit" }));
  });
}
