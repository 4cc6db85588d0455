// What others can do: pages of another origin, content, peers and clients that choose names; and what is left behind.

import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { PAGES, eventually, heading, main, settled } from "./driver.mjs";
import { MARKUP } from "./world.mjs";

const HEADERS = {
  "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
    "connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'; " +
    "require-trusted-types-for 'script'; trusted-types 'none'",
  "x-frame-options": "DENY",
  "x-content-type-options": "nosniff",
  "referrer-policy": "no-referrer",
  "cross-origin-opener-policy": "same-origin",
  "cross-origin-resource-policy": "same-origin",
};

/** What an attacker's page on another port of the same host tries. Runs there; each value says what it got. */
async function attack({ admin, token }) {
  const tries = {
    "reads the API": () => fetch(`${admin}/api/v1/stats`).then((response) => response.text()),
    "reads the API with cookies": () => fetch(`${admin}/api/v1/stats`, { credentials: "include" }).then((r) => r.text()),
    // Also with a token that is valid: a page of another origin has no use for it.
    "reads the API with a token": () => fetch(`${admin}/api/v1/stats`, { headers: { authorization: `Bearer ${token}` } })
      .then((response) => response.text()),
    "reads the page": () => fetch(`${admin}/`).then((response) => response.text()),
    "sends without reading": () => fetch(`${admin}/api/v1/drain`, { method: "POST", mode: "no-cors", body: "{}" })
      .then((response) => response.type),
    "imports a module": () => import(`${admin}/console/lib/api.js`).then(() => "imported"),
    "runs a script": () => loads("script", "src", `${admin}/console/app.js`),
    "shows a picture": () => loads("img", "src", `${admin}/console/icon.svg`),
    "uses a style": () => loads("link", "href", `${admin}/console/style.css`, { rel: "stylesheet" }),
    "listens to events": () => new Promise((resolve, reject) => {
      const source = new EventSource(`${admin}/api/v1/events`, { withCredentials: true });
      source.onmessage = ({ data }) => resolve(data);
      source.onerror = () => {
        source.close();
        reject(new Error("no events"));
      };
    }),
    "sends a beacon": async () => (navigator.sendBeacon(`${admin}/api/v1/drain`, "{}") ? "queued" : "refused"),
  };
  function loads(name, attribute, url, attributes = {}) {
    return new Promise((resolve, reject) => {
      const element = Object.assign(document.createElement(name), attributes);
      element.onload = () => resolve("loaded");
      element.onerror = () => reject(new Error("not loaded"));
      element[attribute] = url;
      document.head.append(element);
    });
  }
  const got = {};
  for (const [name, run] of Object.entries(tries)) {
    got[name] = await run().then((value) => value, () => null);
  }
  return got;
}

/** The state of the node that an attack could change. */
async function stateOf(node) {
  const [{ stage }, { tokens }, { rules }, { count }, { entries }] = await Promise.all([
    node.api("GET", "/api/v1/stats"),
    node.api("GET", "/api/v1/tokens"),
    node.api("GET", "/api/v1/denylists/local/rules"),
    node.api("GET", "/api/v1/pins?limit=1"),
    node.api("GET", "/api/v1/audit?limit=1"),
  ]);
  return { stage, tokens, rules, count, entries };
}

export default function security({ console_, gateway, browser, content, peer }) {
  describe("the page", () => {
    it("has headers that shut others out, on every file", async () => {
      for (const path of ["/", "/console/app.js", "/console/style.css", "/console/icon.svg", "/console/nothing.js"]) {
        const response = await fetch(`${console_.origin}${path}`);
        for (const [name, value] of Object.entries(HEADERS)) assert.equal(response.headers.get(name), value, `${path} ${name}`);
        assert.equal(response.headers.get("set-cookie"), null);
        assert.equal(response.headers.get("access-control-allow-origin"), null);
      }
    });

    it("takes the token out of the address and the history at once", () => console_.open(async (page) => {
      const addresses = [];
      page.on("framenavigated", (frame) => addresses.push(frame.url()));
      await console_.signIn(page);
      await settled(page);
      const secret = encodeURIComponent(gateway.token);
      assert.ok(!page.url().includes("token"), page.url());
      const session = await page.context().newCDPSession(page);
      const { entries } = await session.send("Page.getNavigationHistory");
      assert.ok(!entries.some(({ url }) => url.includes(secret)), "no entry of the history has it");
      const mentions = await page.evaluate((text) => [document.documentElement.outerHTML, document.referrer, document.title]
        .filter((where) => where.includes(text)).length, gateway.token);
      assert.equal(mentions, 0, "it is not in the document");
      // A copy of the tab is signed out, since the token is in the memory of this page only.
      await page.reload();
      await page.getByRole("button", { name: "Sign in" }).waitFor();
    }));

    it("signs in by the link that the command prints, and by the form", async () => {
      const printed = gateway.command("console");
      const link = /http:\S+/.exec(printed)[0];
      await console_.open(async (page) => {
        await page.goto(link.replace(gateway.adminOrigin, console_.origin));
        await heading(page, "overview").waitFor();
        assert.ok(!page.url().includes("token"));
      });
      await console_.open(async (page) => {
        await page.goto(`${console_.origin}/`);
        const field = page.getByLabel("Token", { exact: true });
        assert.ok(await field.evaluate((input) => input === document.activeElement), "the field has the focus");
        await field.fill("wrong");
        await page.keyboard.press("Enter");
        await page.getByRole("alert").waitFor();
        assert.ok((await page.getByRole("alert").innerText()).length > 10, "it says why");
        await field.fill(gateway.token);
        await page.keyboard.press("Enter");
        await heading(page, "overview").waitFor();
        await page.getByRole("button", { name: "Sign out" }).click();
        await field.waitFor();
        assert.equal(await field.inputValue(), "");
      }, { refusals: true });
    });

    it("shows markup in names, paths and agents as text", () => console_.signedIn(async (page) => {
      await peer.connect();
      await eventually(async () => {
        const { peers } = await gateway.api("GET", "/api/v1/peers");
        assert.equal(peers.find((one) => one.peer_id === peer.id)?.agent, MARKUP);
      });
      const where = { pins: { name: MARKUP, match: "exact" }, peers: {}, requests: {}, uploads: {}, audit: {}, tokens: {} };
      const shown = {};
      for (const [id, parameters] of Object.entries(where)) {
        await console_.show(page, id, parameters);
        await settled(page);
        shown[id] = /<img src=x|<\/script>/.test(await main(page).innerText());
        assert.equal(await page.evaluate(() => window.hacked), undefined);
        assert.equal(await main(page).locator("img, script, iframe, [onerror]").count(), 0, `${id} has no such element`);
      }
      assert.ok(shown.pins && shown.peers && shown.tokens, JSON.stringify(shown));
    }));
  });

  describe("a page of another origin", () => {
    it("on the same host reads nothing and changes nothing", () => browser.page(async (page) => {
      const before = await stateOf(gateway);
      await page.goto(`${gateway.origin}/ipfs/${content.attacker}`);
      const got = await page.evaluate(attack, { admin: console_.origin, token: gateway.token });
      // Those that cannot be read were answered with a refusal, as the state shows.
      assert.deepEqual(got, {
        ...Object.fromEntries(Object.keys(got).map((name) => [name, null])),
        "sends without reading": got["sends without reading"],
        "sends a beacon": "queued",
      });
      assert.ok([null, "opaque"].includes(got["sends without reading"]), got["sends without reading"]);
      assert.deepEqual(await stateOf(gateway), before);
    }, { failures: true }));

    it("cannot submit a form to the API", () => browser.page(async (page) => {
      const before = await stateOf(gateway);
      await page.goto(`${gateway.origin}/ipfs/${content.attacker}`);
      for (const enctype of ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"]) {
        const answered = page.waitForResponse((response) => response.url().startsWith(console_.origin));
        await page.evaluate(([action, type]) => {
          const form = Object.assign(document.createElement("form"), { method: "post", enctype: type, action });
          form.append(Object.assign(document.createElement("input"), { name: '{"stop": true, "x": "', value: '"}' }));
          document.body.append(form);
          form.submit();
        }, [`${console_.origin}/api/v1/drain`, enctype]);
        assert.equal((await answered).status(), 403, enctype);
        await page.waitForURL(`${console_.origin}/**`);
        await page.goto(`${gateway.origin}/ipfs/${content.attacker}`);
      }
      assert.deepEqual(await stateOf(gateway), before);
    }, { failures: true }));

    it("cannot frame the console", () => browser.page(async (page) => {
      await page.goto(`${gateway.origin}/ipfs/${content.attacker}`);
      await page.evaluate((url) => {
        const frame = Object.assign(document.createElement("iframe"), { src: url });
        document.body.append(frame);
        return new Promise((resolve) => frame.addEventListener("load", resolve));
      }, `${console_.origin}/`);
      const frame = page.frames().find((each) => each !== page.mainFrame());
      assert.equal(await frame.locator("#app, main, input").count(), 0, "nothing of it is shown");
      assert.equal(await page.evaluate(() => {
        try {
          return document.querySelector("iframe").contentWindow.document?.title ?? null;
        } catch {
          return null;
        }
      }), null);
    }, { failures: true }));

    it("that opens the console has no hold of it", () => browser.page(async (page) => {
      await page.goto(`${gateway.origin}/ipfs/${content.attacker}`);
      const opening = page.context().waitForEvent("page");
      await page.evaluate((url) => {
        window.opened = window.open(url);
      }, `${console_.origin}/#token=${encodeURIComponent(gateway.token)}`);
      const opened = await opening;
      await heading(opened, "overview").waitFor();
      assert.equal(await opened.evaluate(() => window.opener), null);
      await eventually(async () => assert.equal(await page.evaluate(() => window.opened.closed), true));
      assert.equal(await page.evaluate(() => {
        try {
          return window.opened.document.title;
        } catch {
          return null;
        }
      }).catch(() => null), null);
      assert.ok(await opened.evaluate(() => document.body.innerText.length > 0), "and the console goes on");
    }, { failures: true }));
  });
}
