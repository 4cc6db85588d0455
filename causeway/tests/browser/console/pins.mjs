// Pins: ten thousand of them, found and paged; new ones, failed ones, and removing.

import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { FLOWS, answer, dialogOf, eventually, main, nameOf, rowOf, settled, toastOf } from "./driver.mjs";
import { PINS, batchName, storeBlocks } from "./world.mjs";

const PAGE = 50;
/** How soon the first page of all pins is there. */
const FIRST_PAGE_MS_MAX = 3000;

const rows = (page) => main(page).getByRole("table", { name: "Pins", exact: true }).locator("tbody tr");
const place = (page) => main(page).locator(".pager").getByRole("status");
const listed = (page) => rows(page).evaluateAll((all) => all.map((row) => row.querySelector(".identifier [title]").title));

export default function pins({ console_, gateway, other, many, content, maker }) {
  describe("ten thousand pins", () => {
    for (const variant of FLOWS) {
      it(`are listed page by page: ${nameOf(variant)}`, () => many.console.signedIn(async (page) => {
        const { count } = await many.node.api("GET", "/api/v1/pins?limit=1");
        assert.ok(count >= PINS, `${count} pins`);
        const begun = Date.now();
        await many.console.show(page, "pins");
        await rows(page).nth(PAGE - 1).waitFor();
        const took = Date.now() - begun;
        assert.ok(took < FIRST_PAGE_MS_MAX, `the first page takes ${took} ms`);
        assert.equal(await rows(page).count(), PAGE, "no more rows than a page has");
        assert.equal(await place(page).innerText(), `${PAGE} pins, ${(count - PAGE).toLocaleString("en-GB")} older`);
        const first = await listed(page);
        assert.equal(await main(page).getByRole("button", { name: "Newer" }).isEnabled(), false);
        await main(page).getByRole("button", { name: "Older" }).click();
        await eventually(async () => assert.match(page.url(), /older=/));
        await eventually(async () => assert.notDeepEqual(await listed(page), first));
        const second = await listed(page);
        const { pins: expected } = await many.node.api("GET", `/api/v1/pins?limit=${2 * PAGE}`);
        assert.deepEqual([...first, ...second], expected.map(({ cid }) => cid), "every pin once, in the order of the API");
        await main(page).getByRole("button", { name: "Newer" }).click();
        await eventually(async () => assert.deepEqual(await listed(page), first));
        await many.console.picture(page, `pins-many-${nameOf(variant)}`, { fullPage: false });
        if (variant.view === "desktop") await many.console.picture(page, "console-pins", { fullPage: false });
      }, variant));
    }

    it("are found by name, by CID and by status, and the address has the filter", () => many.console.signedIn(async (page) => {
      await page.getByLabel("Name contains").fill(batchName(3).toUpperCase());
      await eventually(async () => assert.match(page.url(), /name=BATCH\+03/));
      await eventually(async () => assert.equal(await place(page).innerText(), `${PAGE} pins, 950 older`));
      assert.deepEqual(new Set(await listed(page)).size, PAGE);
      const wanted = content.batches[3][17];
      await page.getByLabel("CID", { exact: true }).fill(wanted);
      await eventually(async () => assert.deepEqual(await listed(page), [wanted]));
      // The address shows the same in another tab.
      const { hash } = new URL(page.url());
      await many.console.open(async (second) => {
        await many.console.signIn(second);
        await second.goto(`${many.console.origin}/${hash}`);
        await eventually(async () => assert.deepEqual(await listed(second), [wanted]));
        assert.equal(await second.getByLabel("Name contains").inputValue(), batchName(3).toUpperCase());
      });
      await main(page).getByRole("button", { name: /^Failed/ }).click();
      await main(page).getByText("No pin matches. Change the filters.").waitFor();
    }, { at: "pins" }));
  });

  describe("a pin", () => {
    for (const [index, variant] of FLOWS.entries()) {
      it(`is created, shown and removed: ${nameOf(variant)}`, () => console_.signedIn(async (page) => {
        const cid = content.remote[250 + index];
        const name = `made in the console ${index}`;
        await main(page).getByRole("button", { name: "Pin content" }).click();
        await dialogOf(page).getByLabel("CID", { exact: true }).fill(`ipfs://${cid}`);
        await dialogOf(page).getByLabel("Name", { exact: true }).fill(name);
        await dialogOf(page).getByRole("button", { name: "Pin", exact: true }).click();
        await dialogOf(page).waitFor({ state: "detached" });
        const row = rowOf(page, name);
        await row.getByText("Pinned", { exact: true }).waitFor();
        const { pins: [pin] } = await gateway.api("GET", `/api/v1/pins?cid=${cid}`);
        assert.deepEqual([pin.status, pin.name], ["pinned", name]);
        await row.getByRole("button", { name: `Details of ${name}` }).click();
        await dialogOf(page).getByRole("heading", { name, exact: true }).waitFor();
        await page.keyboard.press("Escape");
        await dialogOf(page).waitFor({ state: "detached" });
        await row.getByRole("button", { name: `Remove ${name}` }).click();
        await answer(page, "Cancel");
        assert.equal((await gateway.api("GET", `/api/v1/pins?cid=${cid}`)).count, 1, "nothing happens without the answer");
        await row.getByRole("button", { name: `Remove ${name}` }).click();
        await answer(page, "Remove");
        await row.waitFor({ state: "detached" });
        assert.equal((await gateway.api("GET", `/api/v1/pins?cid=${cid}`)).count, 0);
      }, { at: "pins", ...variant }));
    }

    it("that fails says why, and is retried", async () => {
      const { bytes, cids: [cid] } = await maker.of(["content that is withheld at first"]);
      await storeBlocks(other, bytes);
      const { rule } = await gateway.api("POST", "/api/v1/denylists/local/rules", { json: { cid, reason: "for the test" } });
      await gateway.adminRequest("POST", "/psa/pins", { json: { cid, name: "withheld" } });
      await eventually(async () => {
        const { pins: [pin] } = await gateway.api("GET", `/api/v1/pins?cid=${cid}`);
        assert.equal(pin.status, "failed");
      });
      await console_.signedIn(async (page) => {
        await console_.show(page, "pins", { status: "failed" });
        const row = rowOf(page, "withheld");
        await row.waitFor();
        const { pins: [{ details }] } = await gateway.api("GET", `/api/v1/pins?cid=${cid}`);
        assert.match(details, new RegExp(`^${cid} `));
        // The CID is shortened.
        assert.ok((await row.innerText()).includes(details.slice(cid.length)), `${details}: ${await row.innerText()}`);
        await console_.picture(page, "pins-failed");
        await gateway.api("DELETE", `/api/v1/denylists/local/rules?rule=${encodeURIComponent(rule)}`);
        await row.getByRole("button", { name: "Retry withheld" }).click();
        await toastOf(page, "withheld is fetched again.").waitFor();
        await eventually(async () => {
          const { pins: [pin] } = await gateway.api("GET", `/api/v1/pins?cid=${cid}`);
          assert.equal(pin.status, "pinned");
        });
        // It is no longer among those that failed.
        await row.waitFor({ state: "detached" });
      });
      const served = await fetch(`${gateway.origin}/ipfs/${cid}`);
      assert.equal(await served.text(), "content that is withheld at first");
    });

    it("of others is neither seen nor removed with a token that may only pin", async () => {
      const { id, token } = await gateway.api("POST", "/api/v1/tokens", { json: { name: "pinner", scopes: ["pin"] } });
      await gateway.api("POST", "/psa/pins", { token, json: { cid: content.remote[260], name: "of the pinner" } });
      await console_.open(async (page) => {
        await console_.signIn(page, token);
        await rowOf(page, "of the pinner").waitFor();
        await settled(page);
        assert.equal(await rows(page).count(), 1);
      });
      await gateway.api("DELETE", `/api/v1/tokens/${id}`);
    });
  });
}
