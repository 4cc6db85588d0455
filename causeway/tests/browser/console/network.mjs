// Peers and requests: two gateways that are connected, and requests that take long and fail.

import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { FLOWS, answer, dialogOf, eventually, main, nameOf, rowOf } from "./driver.mjs";
import { MARKUP } from "./world.mjs";

export default function network({ console_, gateway, other, maker }) {
  const peers = async () => (await gateway.api("GET", "/api/v1/peers")).peers.map(({ peer_id: id }) => id);

  describe("peers", () => {
    for (const variant of FLOWS) {
      it(`are listed, disconnected and connected: ${nameOf(variant)}`, () => console_.signedIn(async (page) => {
        const row = main(page).locator("tr").filter({ has: page.getByTitle(other.peerId) });
        await row.waitFor();
        await row.getByRole("button", { name: "Details", exact: true }).click();
        const disconnect = main(page).getByRole("button", { name: `Disconnect ${other.peerId}` });
        await disconnect.click();
        await dialogOf(page).getByText(other.peerId).waitFor();
        await answer(page, "Disconnect");
        await eventually(async () => assert.ok(!(await peers()).includes(other.peerId)));
        await row.waitFor({ state: "detached" });

        await main(page).getByRole("button", { name: "Connect…" }).click();
        const address = dialogOf(page).getByLabel("Address or peer ID");
        const submit = dialogOf(page).getByRole("button", { name: "Connect", exact: true });
        await address.fill("/ip4/127.0.0.1/tcp/nonsense");
        await submit.click();
        await dialogOf(page).getByRole("alert").waitFor();
        await address.fill(other.p2p);
        await submit.click();
        await dialogOf(page).waitFor({ state: "detached" });
        await row.waitFor();
        assert.ok((await peers()).includes(other.peerId));
      }, { at: "peers", refusals: true, ...variant }));
    }
  });

  describe("requests", () => {
    for (const variant of FLOWS) {
      it(`are shown while they wait, and after they failed: ${nameOf(variant)}`, () => console_.signedIn(async (page) => {
        const path = `/ipfs/${await maker.unknown()}/${encodeURIComponent(MARKUP)}`;
        const running = main(page).getByRole("table", { name: "Running requests" });
        const failed = main(page).getByRole("table", { name: "Recent errors" });
        const asked = fetch(`${gateway.origin}${path}`);
        await rowOf(running, path).waitFor();
        const { requests } = await gateway.api("GET", "/api/v1/requests");
        assert.ok(requests.some((one) => one.path === path));
        const { status } = await asked;
        assert.ok(status >= 500, `the answer is ${status}`);
        await rowOf(running, path).waitFor({ state: "detached" });
        await main(page).getByRole("button", { name: /^Recent errors/ }).click();
        await rowOf(failed, path).getByText(String(status)).waitFor();
        const { errors } = await gateway.api("GET", "/api/v1/requests/errors");
        const found = errors.find((one) => one.path === path);
        assert.equal(found.status, status);
        assert.ok((await rowOf(failed, path).innerText()).includes(found.reason));
        // A link to what the gateway would answer now.
        assert.match(await rowOf(failed, path).getByRole("link").getAttribute("href"), /^#\/content\?path=/);
      }, { at: "requests", ...variant }));
    }
  });
}
