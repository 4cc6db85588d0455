// What operators do from the pages: the store, denylists, names, tokens, settings, and the audit log of all that.

import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { assertReadable } from "../support/browser.mjs";
import { assertAccessible } from "./axe.mjs";
import { FLOWS, answer, button, dialogOf, eventually, follow, main, nameOf, rowOf, toastOf } from "./driver.mjs";
import { storeBlocks } from "./world.mjs";

export default function operating({ console_, gateway, other, maker, content }) {
  describe("the store", () => {
    it("is checked with progress, which can be cancelled", () => console_.signedIn(async (page) => {
      const start = async (rate) => {
        await page.getByLabel("Read rate per second").fill(rate);
        await button(main(page), "Check…").click();
        await assertAccessible(page, "the question before a check");
        await answer(page, "Check");
      };
      await start("1 KiB");
      await main(page).getByRole("progressbar", { name: "Checking…" }).waitFor();
      await button(main(page), "Cancel").click();
      await main(page).getByText("Cancelled.").waitFor();
      await start("");
      await main(page).getByText("No fault was found.").waitFor();
      const { all } = await gateway.api("GET", "/api/v1/store/stats");
      const said = await main(page).getByText("No fault was found.").innerText();
      assert.ok(said.includes(`${all.blocks.toLocaleString("en-GB")} blocks`), `${all.blocks}: ${said}`);
    }, { at: "store" }));

    it("says what garbage collection would delete, and deletes it only if told so", () => console_.signedIn(async (page) => {
      await (await fetch(`${gateway.origin}/ipfs/${content.remote[230]}`)).text();
      const plan = () => gateway.api("POST", "/api/v1/store/gc", { json: { cached_bytes_max: 0, dry_run: true } });
      // Blocks that were fetched before may be written meanwhile: then the question is asked again.
      let before;
      for (let attempt = 1; ; attempt += 1) {
        before = await plan();
        assert.ok(before.bytes > 0, "there are cached blocks");
        await button(main(page), "Collect garbage…").click();
        const asked = dialogOf(page).getByText(/[\d,]+ cached block/);
        await asked.waitFor();
        if ((await asked.innerText()).includes(`${before.blocks.toLocaleString("en-GB")} cached block`)) break;
        assert.ok(attempt < 20, "the number is that of a plan");
        await answer(page, "Cancel");
      }
      await assertAccessible(page, "the question before a collection");
      await answer(page, "Cancel");
      assert.deepEqual(await plan(), before, "nothing was deleted");
      await button(main(page), "Collect garbage…").click();
      await answer(page, "Delete");
      await main(page).getByText("were deleted").or(main(page).getByText("was deleted")).waitFor();
      assert.equal((await plan()).bytes, 0);
    }, { at: "store" }));
  });

  describe("a take-down", () => {
    for (const [index, variant] of FLOWS.entries()) {
      const status = [410, 451][index % 2];
      it(`is in force until it is undone: ${nameOf(variant)}`, async () => {
        const { bytes, cids: [cid] } = await maker.of([`content to take down ${index}`]);
        await storeBlocks(other, bytes);
        const served = async () => (await fetch(`${gateway.origin}/ipfs/${cid}`)).status;
        assert.equal(await served(), 200);
        await console_.signedIn(async (page) => {
          await page.getByLabel("CID, path, name or URL").fill(cid);
          await page.getByLabel("Answer", { exact: true }).selectOption(String(status));
          await page.getByLabel("Reason, for readers of the list").fill("a test of the console");
          await button(main(page), "Take down…").click();
          await assertAccessible(page, "the question before a take-down");
          await answer(page, "Take down");
          await main(page).getByText("The rule is in force").waitFor();
          assert.equal(await served(), status);
          await button(main(page), "Check").click();
          await main(page).getByText(`is withheld: requests are answered with ${status}.`).waitFor();
          await assertAccessible(page, "a checked subject");
          await assertReadable(page, "a take-down");
          const row = rowOf(main(page).getByRole("table", { name: "Rules of the local list" }), cid);
          await row.getByText("a test of the console").waitFor({ state: variant.view === "phone" ? "attached" : "visible" });
          await row.getByRole("button", { name: /^Remove/ }).click();
          await answer(page, "Remove");
          await row.waitFor({ state: "detached" });
          assert.equal(await served(), 200);
          await button(main(page), "Check").click();
          await main(page).getByText(`${cid} is served: 200`).waitFor();
        }, { at: "denylists", ...variant });
      });
    }
  });

  describe("names", () => {
    for (const [index, variant] of FLOWS.entries()) {
      it(`are made, published, resolved and deleted: ${nameOf(variant)}`, () => console_.signedIn(async (page) => {
        const name = `site-${index}`;
        const keys = async () => (await gateway.api("GET", "/api/v1/names/keys")).keys;
        await button(main(page), "Create a key").click();
        await dialogOf(page).getByLabel("Name", { exact: true }).fill(name);
        await button(dialogOf(page), "Create").click();
        await dialogOf(page).waitFor({ state: "detached" });
        const row = rowOf(main(page).getByRole("table", { name: "Keys" }), name);
        await row.waitFor();
        const { id } = (await keys()).find((key) => key.name === name);

        await row.getByRole("button", { name: `Publish ${name}` }).click();
        await dialogOf(page).getByLabel("Path", { exact: true }).fill(`/ipfs/${content.site}`);
        await assertAccessible(page, "the form to publish");
        await button(dialogOf(page), "Publish").click();
        await dialogOf(page).waitFor({ state: "detached" });
        const published = rowOf(main(page).getByRole("table", { name: "Published names" }), name);
        await published.getByText(`/ipfs/${content.site}`).waitFor();
        const served = await fetch(`${gateway.origin}/ipns/${id}/index.html`);
        assert.match(await served.text(), /A site/);

        await main(page).getByLabel("Name", { exact: true }).fill(id);
        await button(main(page), "Resolve").click();
        await main(page).locator(".resolved").getByText(`/ipfs/${content.site}`).first().waitFor();
        await assertAccessible(page, "a resolved name");
        await console_.picture(page, `names-published-${nameOf(variant)}`);

        await row.getByRole("button", { name: `Delete ${name}` }).click();
        await dialogOf(page).getByText(`nobody can publish under /ipns/${id} again`).waitFor();
        await answer(page, "Delete");
        await row.waitFor({ state: "detached" });
        assert.ok(!(await keys()).some((key) => key.name === name));
      }, { at: "names", ...variant }));
    }
  });

  describe("a token", () => {
    for (const [index, variant] of FLOWS.entries()) {
      it(`is created, used and revoked, which signs its page out: ${nameOf(variant)}`, () => console_.signedIn(async (page) => {
        const name = `made by the tests ${index}`;
        await button(main(page), "Create a token").click();
        await dialogOf(page).getByLabel("Name", { exact: true }).fill(name);
        await button(dialogOf(page), "Create").click();
        await dialogOf(page).getByRole("alert").getByText("Choose at least one scope.").waitFor();
        await dialogOf(page).getByRole("checkbox", { name: /^read/ }).check();
        await dialogOf(page).getByRole("checkbox", { name: /^pin/ }).check();
        await assertAccessible(page, "the form of a token");
        await button(dialogOf(page), "Create").click();
        await dialogOf(page).getByRole("heading", { name: "The token is created" }).waitFor();
        await assertAccessible(page, "the created token");
        const token = await dialogOf(page).getByLabel(/^Token "/).inputValue();
        await button(dialogOf(page), "I have copied it").click();
        await dialogOf(page).waitFor({ state: "detached" });
        assert.ok(!(await page.content()).includes(token), "it is shown once");
        const { tokens } = await gateway.api("GET", "/api/v1/tokens");
        const made = tokens.find((one) => one.name === name);
        assert.deepEqual([...made.scopes].sort(), ["pin", "read"]);

        await console_.open(async (second) => {
          await console_.signIn(second, token);
          await follow(second, "peers");
          await rowOf(page, name).getByRole("button", { name: `Revoke ${name}` }).click();
          await answer(page, "Revoke");
          await rowOf(page, name).waitFor({ state: "detached" });
          assert.equal((await gateway.adminRequest("GET", "/api/v1/stats", { token })).status, 401);
          await second.getByRole("alert").getByText("The gateway no longer accepts this token").waitFor();
          await second.getByLabel("Token", { exact: true }).waitFor();
          assert.equal(await second.locator("nav").count(), 0, "nothing of the console is left");
        }, { refusals: true, ...variant });

        await follow(page, "audit");
        const entries = main(page).getByRole("table", { name: "Audit log" });
        await rowOf(entries, `/api/v1/tokens/${made.id}`).getByText("DELETE").waitFor();
        await rowOf(entries, "/api/v1/tokens").filter({ hasText: "POST" }).first().waitFor();
        const { entries: [last] } = await gateway.api("GET", "/api/v1/audit?limit=1");
        assert.deepEqual([last.method, last.path], ["DELETE", `/api/v1/tokens/${made.id}`]);
      }, { at: "tokens", ...variant }));
    }
  });

  describe("the audit log", () => {
    it("has the change that was just made, with its details, and is filtered", () => console_.signedIn(async (page) => {
      const { rule } = await gateway.api("POST", "/api/v1/denylists/local/rules", { json: { cid: await maker.unknown() } });
      const entries = main(page).getByRole("table", { name: "Audit log" });
      await button(main(page), "Refresh").click();
      const first = entries.locator("tbody tr").first();
      await first.getByText("/api/v1/denylists/local/rules").waitFor();
      await first.getByRole("button", { name: /^Details/ }).click();
      await main(page).getByRole("region", { name: "Details of the change" }).getByText(rule).waitFor();
      await assertAccessible(page, "an entry of the audit log");
      // The latest hundred entries may all be of other tests.
      await main(page).getByRole("combobox", { name: "Entries" }).selectOption("1000");
      await page.getByLabel("Search", { exact: true }).fill("/psa/pins");
      await eventually(async () => {
        const texts = await entries.locator("tbody tr:not(.below)").allInnerTexts();
        assert.ok(texts.length > 0 && texts.every((text) => text.includes("/psa/pins")), texts.join("\n"));
      });
      assert.match(page.url(), /search=/);
      await gateway.api("DELETE", `/api/v1/denylists/local/rules?rule=${encodeURIComponent(rule)}`);
    }, { at: "audit" }));
  });

  describe("the settings", () => {
    for (const variant of FLOWS) {
      it(`drain the gateway and end it: ${nameOf(variant)}`, () => console_.signedIn(async (page) => {
        const ready = async () => (await fetch(`${gateway.adminOrigin}/readyz`)).status;
        await button(main(page), "Drain…").click();
        await assertAccessible(page, "the question before draining");
        await answer(page, "Drain");
        await main(page).getByText("/readyz answers 503.").waitFor();
        assert.equal(await ready(), 503);
        await button(main(page), "End draining").click();
        await main(page).getByText("/readyz answers 200.").waitFor();
        assert.equal(await ready(), 200);
      }, { at: "settings", ...variant }));
    }

    it("change the log level for a time", () => console_.signedIn(async (page) => {
      const { configured } = await gateway.api("GET", "/api/v1/log/level");
      await main(page).getByLabel("New level").fill("no=such=level");
      await button(main(page), "Change").click();
      await main(page).getByRole("alert").waitFor();
      await main(page).getByLabel("New level").fill("warn");
      await button(main(page), "Change").click();
      await toastOf(page, "The log level is changed.").waitFor();
      const changed = await gateway.api("GET", "/api/v1/log/level");
      assert.equal(changed.level, "warn");
      assert.ok(changed.until_at > Date.now() / 1000);
      await button(main(page), "Restore the settings' level").click();
      await eventually(async () => assert.equal((await gateway.api("GET", "/api/v1/log/level")).level, configured));
    }, { at: "settings", refusals: true }));

    it("are listed with their origins, without secrets", () => console_.signedIn(async (page) => {
      const { settings } = await gateway.api("GET", "/api/v1/config");
      await main(page).getByText(`${Object.keys(settings).length} settings`).waitFor();
      await main(page).getByLabel("Changed only").check();
      await eventually(async () => assert.match(page.url(), /changed=yes/));
      await rowOf(main(page), "http.stall_timeout_seconds").getByText("CAUSEWAY_HTTP_STALL_TIMEOUT_SECONDS").waitFor();
      assert.ok(!(await page.content()).includes(gateway.token));
    }, { at: "settings" }));
  });
}
