// Uploads: files and folders that are chosen and dropped, over connections that break.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, it } from "node:test";
import { assertAccessible } from "./axe.mjs";
import { FLOWS, button, dialogOf, eventually, main, nameOf } from "./driver.mjs";
import { MARKUP, breakableProxy } from "./world.mjs";

const BIG_BYTES = 24 * 1024 * 1024;

const upload = (page, name) => main(page).locator("li.upload").filter({ hasText: name });

/** Chooses files or a folder by a button of the page. */
async function choose(page, name, paths) {
  const choosing = page.waitForEvent("filechooser");
  await button(main(page), name).click();
  await (await choosing).setFiles(paths);
}

/** Waits for the end of an upload; returns the URL of the result on the public listener. */
async function done(page, name) {
  await upload(page, name).getByText("Done", { exact: true }).waitFor();
  return upload(page, name).getByRole("link").first().evaluate((link) => link.href);
}

/** Drops what is at a path of the disk into the middle of an element, as a person does. */
async function drop(page, element, path) {
  const { x, y, width, height } = await element.boundingBox();
  const session = await page.context().newCDPSession(page);
  const data = { items: [], files: [path], dragOperationsMask: 1 };
  for (const type of ["dragEnter", "dragOver", "drop"]) {
    await session.send("Input.dispatchDragEvent", { type, x: x + width / 2, y: y + height / 2, data });
  }
  await session.detach();
}

const bytesAt = async (url) => {
  const response = await fetch(url);
  assert.equal(response.status, 200, url);
  return Buffer.from(await response.arrayBuffer());
};

export default function uploads({ console_, gateway, folder }) {
  const assertPinned = async (url) => {
    const [, cid] = /\/ipfs\/([^/?]+)/.exec(url);
    const { pins } = await gateway.api("GET", `/api/v1/pins?cid=${cid}`);
    assert.deepEqual(pins.map(({ status }) => status), ["pinned"], cid);
    return cid;
  };

  describe("an upload", () => {
    for (const variant of FLOWS) {
      it(`of a file and of a folder, chosen and dropped: ${nameOf(variant)}`, async () => {
        const place = await folder(`uploads-${nameOf(variant)}`);
        const hostile = `${MARKUP.replaceAll("/", "")} ${nameOf(variant)}.txt`;
        const [one, two] = [randomBytes(100_000), randomBytes(100_000)];
        await writeFile(join(place, hostile), one);
        await writeFile(join(place, "dropped.bin"), two);
        for (const name of ["chosen-folder", "dropped-folder"]) {
          await mkdir(join(place, name, "inner"), { recursive: true });
          await writeFile(join(place, name, "inner", "deep.txt"), `deep in ${name} ${nameOf(variant)}`);
          await writeFile(join(place, name, "top.txt"), `at the top of ${name}`);
        }
        await console_.signedIn(async (page) => {
          await choose(page, "Choose files", [join(place, hostile)]);
          const file = await done(page, hostile);
          assert.ok((await bytesAt(file)).equals(one));
          await assertPinned(file);
          assert.equal(await page.evaluate(() => window.hacked), undefined);

          await choose(page, "Choose a folder", join(place, "chosen-folder"));
          const chosen = await done(page, "chosen-folder");
          assert.equal(String(await bytesAt(`${chosen}/inner/deep.txt`)), `deep in chosen-folder ${nameOf(variant)}`);
          await assertPinned(chosen);

          const zone = main(page).locator(".drop");
          await drop(page, zone, join(place, "dropped.bin"));
          assert.ok((await bytesAt(await done(page, "dropped.bin"))).equals(two));
          await drop(page, zone, join(place, "dropped-folder"));
          const dropped = await done(page, "dropped-folder");
          assert.equal(String(await bytesAt(`${dropped}/inner/deep.txt`)), `deep in dropped-folder ${nameOf(variant)}`);
          assert.equal(String(await bytesAt(`${dropped}/top.txt`)), "at the top of dropped-folder");
          await console_.picture(page, `uploads-done-${nameOf(variant)}`);
          await assertAccessible(page, "uploads that are done");
        }, { at: "uploads", ...variant });
      });
    }

    it("goes on where it stopped when its connection breaks", async () => {
      const place = await folder("uploads-broken");
      const bytes = randomBytes(BIG_BYTES);
      await writeFile(join(place, "big.bin"), bytes);
      const proxy = await breakableProxy(console_.origin);
      try {
        await console_.at(proxy.origin).signedIn(async (page) => {
          const before = proxy.sent;
          proxy.breaksAfter = before + BIG_BYTES / 4;
          await choose(page, "Choose files", [join(place, "big.bin")]);
          const url = await done(page, "big.bin");
          assert.equal(proxy.broken, 1, "the connection broke");
          const sent = proxy.sent - before;
          // What was received before is not sent again, except what was on the way.
          assert.ok(sent < 1.5 * BIG_BYTES, `${sent} of ${BIG_BYTES} bytes were sent`);
          assert.ok((await bytesAt(url)).equals(bytes));
          await assertPinned(url);
        }, { at: "uploads", refusals: true });
      } finally {
        await proxy.close();
      }
    });

    it("is resumed by another page", async () => {
      const place = await folder("uploads-reloaded");
      const bytes = randomBytes(BIG_BYTES);
      await writeFile(join(place, "resumed.bin"), bytes);
      const proxy = await breakableProxy(console_.origin);
      const behind = console_.at(proxy.origin);
      try {
        await behind.signedIn(async (page) => {
          page.on("dialog", (question) => question.accept());
          proxy.breaksAfter = proxy.sent + BIG_BYTES / 4;
          proxy.thenRefuses = true;
          await choose(page, "Choose files", [join(place, "resumed.bin")]);
          await upload(page, "resumed.bin").getByText("Trying again").waitFor();
          proxy.refuse(false);
          await page.reload();
          const before = proxy.sent;
          await behind.signIn(page);
          await behind.show(page, "uploads");
          await main(page).getByRole("table", { name: "Uploads that the gateway knows" }).getByText("resumed.bin").waitFor();
          await choose(page, "Choose files", [join(place, "resumed.bin")]);
          await dialogOf(page).getByRole("heading", { name: "Resume the upload?" }).waitFor();
          await assertAccessible(page, "the question whether to resume");
          await dialogOf(page).getByRole("button", { name: /^Resume at/ }).click();
          const url = await done(page, "resumed.bin");
          assert.ok(proxy.sent - before < BIG_BYTES, "only the rest was sent");
          assert.ok((await bytesAt(url)).equals(bytes));
        }, { at: "uploads", refusals: true });
      } finally {
        await proxy.close();
      }
    });

    it("is paused, resumed and cancelled", async () => {
      const place = await folder("uploads-paused");
      await writeFile(join(place, "cancelled.bin"), randomBytes(BIG_BYTES));
      const proxy = await breakableProxy(console_.origin);
      try {
        await console_.at(proxy.origin).signedIn(async (page) => {
          proxy.breaksAfter = proxy.sent + BIG_BYTES / 4;
          proxy.thenRefuses = true;
          await choose(page, "Choose files", [join(place, "cancelled.bin")]);
          await upload(page, "cancelled.bin").getByText("Trying again").waitFor();
          await page.getByRole("button", { name: "Pause cancelled.bin" }).click();
          await upload(page, "cancelled.bin").getByText("Paused", { exact: true }).waitFor();
          proxy.refuse(false);
          await page.getByRole("button", { name: "Cancel cancelled.bin" }).click();
          await dialogOf(page).getByRole("button", { name: "Cancel the upload", exact: true }).click();
          await upload(page, "cancelled.bin").waitFor({ state: "detached" });
          await eventually(async () => {
            const { uploads: all } = await gateway.api("GET", "/api/v1/uploads");
            assert.ok(!all.some(({ name }) => name === "cancelled.bin"));
          });
        }, { at: "uploads", refusals: true });
      } finally {
        await proxy.close();
      }
    });
  });
}
